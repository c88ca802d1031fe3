"""Import every module of the package and use all of its interface: a script for -X dev -W error. Prints "done".

Arguments: libraries to use besides NumPy. Their own warnings at import are theirs.
"""

import copy
import gc
import importlib
import pickle
import pkgutil
import sys
import threading
import warnings
from contextlib import suppress

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    LIBRARIES = {name: importlib.import_module(name) for name in sys.argv[1:]}

from common import Generic

import matmul_fused as mf

# Modules that need another library: how their names begin, and which.
HOSTS = {"torch": "torch", "jax": "jax"}
HOSTS |= {f"integrations.{name}": "torch" for name in ("seam", "transformers", "vllm_graph")}


def converters():
    """Functions from a NumPy array to the libraries' own."""
    yield lambda x: x
    yield Generic
    if "ml_dtypes" in LIBRARIES:
        yield lambda x: x.astype(LIBRARIES["ml_dtypes"].bfloat16)
    if "torch" in LIBRARIES:
        yield LIBRARIES["torch"].from_numpy
    if "jax" in LIBRARIES:
        yield LIBRARIES["jax"].numpy.asarray


def use_calls(convert):
    rng = np.random.default_rng(0)
    A, B, bias, z = (convert(rng.random(shape, np.float32)) for shape in ((8, 40), (40, 48), 48, (8, 48)))
    out, preactivation = np.empty((8, 24), np.float32), np.empty((8, 48))
    for activation in mf.activations:
        if activation not in ("clamp", "threshold"):  # which need parameters
            mf.matmul_fused(A, B, bias, activation, C=z, beta=0.5)
    mf.matmul_fused(A, B, bias, ("clamp", -1, 1.5), alpha=np.float32(2), multiply=z, out_dtype="float16")
    for gate_layout in ("halves", "halves_up_first", "interleaved"):
        packed = mf.prepack(B, gate_layout=gate_layout)
        for activation in ("swiglu", "geglu", "geglu_tanh", "reglu", "glu", "swiglu_oai", "swiglustep", ("situglu", 4)):
            mf.matmul_fused(A, B, bias, activation, gate_layout=gate_layout, out=out, preactivation=preactivation)
            mf.matmul_fused(A, packed, bias, activation, out=out)
        use_packed(packed)
    mf.matmul_fused(A, (B, B), (bias, bias), "swiglu")
    mf.matmul_fused(A, mf.prepack((B, B)), None, "swiglu")
    repr(mf.explain(A, B, bias, "gelu"))


def use_packed(packed):
    pickle.loads(pickle.dumps(packed))
    copy.copy(packed)
    repr(packed)
    array = packed.unpack()
    repr((array, array.shape, array.dtype, array.device, array.__dlpack_device__()))
    if array.dtype != "bfloat16":
        np.from_dlpack(array)
    array.__dlpack__()
    array.__dlpack__(max_version=(1, 0), copy=True)


def use_errors():
    x = np.ones((3, 3), np.float32)
    bad = ({"bias": [1]}, {"activation": "gelo"}, {"C": np.ones(7)}, {"out": x}, {"alpha": 10**400}, {"out_dtype": "?"})
    for keywords in (*bad, {"stream": 1}, {"beta": 1}, {"gate_layout": "?"}, {"wrong": 1}):
        with suppress(TypeError, ValueError):
            mf.matmul_fused(x, x, **keywords)
            raise AssertionError(keywords)


def use_threads():
    A, B = np.ones((300, 300), np.float32), np.ones((300, 300), np.float32)
    before = mf.get_num_threads()
    for count in (1, 3, before):
        mf.set_num_threads(count)
        threads = [threading.Thread(target=mf.matmul_fused, args=(A, B)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for kernel in mf.info().kernels:
        with mf.testing.force_kernel(f"{kernel}, cpu_blocked"):  # of another dtype, of another machine
            mf.matmul_fused(A, B)


for module in pkgutil.walk_packages(mf.__path__, "matmul_fused."):
    host = next((host for start, host in HOSTS.items() if module.name.startswith(f"matmul_fused.{start}")), None)
    if host is None or host in LIBRARIES:
        importlib.import_module(module.name)
repr(mf.info())
for converter in converters():
    use_calls(converter)
use_errors()
use_threads()
gc.collect()
print("done")
