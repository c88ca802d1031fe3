"""Every allocation of every entry point fails once, under the preloaded tests/c/failing_malloc.c. Prints how many,
then "done".

Arguments: "any" (each allocation, Python's and NumPy's included), "aligned" (those of this library for results, panels
and workspace: their errors must say what was asked for), "threads" (errors of two threads at once).
"""

import contextlib
import gc
import itertools
import re
import sys
import threading
import types
import weakref

import failing
import numpy as np
from common import Generic

import matmul_fused as mf

SAYS = re.compile(r"no memory for (the )?\d+ bytes of ")


rng = np.random.default_rng(0)
A, B, bias = (rng.standard_normal(shape).astype(np.float16) for shape in ((20, 600), (600, 100), 100))
C, out, z = rng.standard_normal((20, 100)), np.empty((20, 100), np.float16), np.empty((20, 100), np.float32)
C64, C = C, C.astype(np.float16)
stacked, wide = np.stack([B, B]), rng.standard_normal((640, 64)).astype(np.float16)
array, packed = mf.matmul_fused(Generic(A), B), mf.prepack(B, gate_layout="halves")
threads = itertools.count(2)


def parallel():
    mf.set_num_threads(next(threads))
    try:
        mf.matmul_fused(wide, wide.T)
    finally:
        mf.set_num_threads(1)


class Namespaced(Generic):
    """Of a library of the array API, which takes results over as they are."""

    def __array_namespace__(self):
        return types.SimpleNamespace(from_dlpack=lambda array: array)


def one_thread():
    with mf.num_threads(1):
        mf.matmul_fused(A, B)


def refused():
    for call in (packed.__array__, lambda: mf.matmul_fused(packed, B), lambda: mf.matmul_fused(A, B, out_dtype="int8")):
        with contextlib.suppress(TypeError):
            call()


def unknown():
    with contextlib.suppress(ValueError):
        mf.matmul_fused(A, B, bias, "relux" + "\0")


CALLS = {
    "call": lambda: mf.matmul_fused(A, B, bias, "gelu"),
    "out": lambda: mf.matmul_fused(A, B, bias, "swiglu", C=C, preactivation=z, out=out[:, :50]),
    "generic": lambda: mf.matmul_fused(Generic(A), Generic(B), Generic(bias), multiply=Generic(C)),
    "batched": lambda: mf.matmul_fused(A, stacked, bias, ("clamp", -1, 1.0), alpha=0.5),
    "packed": lambda: mf.matmul_fused(A, packed, bias, "geglu", out_dtype="float32"),
    "dlpack": lambda: (np.from_dlpack(array), array.__dlpack__(copy=True)),
    "prepack": lambda: mf.prepack(B),
    "prepack of a gate": lambda: mf.prepack(Generic(B), gate_layout="interleaved"),
    "prepack of a pair": lambda: mf.prepack((B, Generic(B)), layout="panels64"),
    "unpack": packed.unpack,
    "pickle": lambda: (parts := packed.__reduce__())[0](*parts[1]),
    "explain": lambda: mf._core.explain(A, B, bias, "gelu"),
    "info": mf._core.info,
    "force_kernel": lambda: mf._core.force_kernel(None),
    "set_num_threads": lambda: mf.set_num_threads(np.int64(1)),
    "error": unknown,
    "another error": refused,
    "float64": lambda: mf.matmul_fused(C64, C64.T, None, "silu", out_dtype=np.float16),
    "pair": lambda: mf.matmul_fused(A, (B, B), (bias, bias), ("swiglu_oai", 7.0)),
    "array API": lambda: mf.matmul_fused(Namespaced(A), B),
    "Array": lambda: mf.matmul_fused(array, B.T),
    "ndarray of an Array": lambda: (np.asarray(array), np.array(array, dtype=np.float64), array[0], next(iter(array))),
    "buffer of an Array": lambda: bytes(memoryview(array)),
    "repr of packed": lambda: repr(packed),
    "sizeof": lambda: (sys.getsizeof(packed), weakref.ref(packed)),
    "num_threads": one_thread,
    "GPU kernels": lambda: (mf._core.device_manifest(), mf._core.device_kernel(0)),
}


def exhausted(name, aligned):
    """How many allocations of a call were failed, each with MemoryError or without harm."""

    def judge(nth, outcome):
        *errors, failed = outcome
        assert not any(isinstance(error, BaseException) for error in errors), (name, nth, errors)
        assert failed or not errors, (name, nth, errors)
        assert not (aligned and failed) or (errors and SAYS.match(errors[0])), (name, nth, errors)

    return failing.exhaust(name, lambda nth: failing.in_thread(CALLS[name], nth, aligned), judge)


def race():
    """One thread's call fails without the GIL while another fails with it: each gets its own text."""
    failing.limit(1 << 12)
    rows, columns = np.zeros((300, 3000), np.float16), np.zeros((3000, 400), np.float16)  # the most workspace so far
    stop = threading.Event()
    sys.setswitchinterval(1e-5)
    wrong = []

    def fail():
        while not stop.is_set():
            try:
                mf.matmul_fused(C, C, None, "nonsense")
            except ValueError as error:
                if "nonsense" not in str(error):
                    wrong.append(str(error))

    other = threading.Thread(target=fail)
    other.start()
    for _ in range(500):
        try:
            mf.matmul_fused(rows, columns)
            wrong.append("no error")
        except MemoryError as error:
            if not re.fullmatch(r"no memory for \d+ bytes of workspace on the CPU", str(error)):
                wrong.append(str(error))
    stop.set()
    other.join()
    assert not wrong, (len(wrong), set(wrong))


def main(how):
    mf.set_num_threads(1)
    gc.disable()
    if how == "threads":
        race()
        return
    counts = {name: exhausted(name, how == "aligned") for name in CALLS}
    assert len(CALLS) >= 25
    wanted = {"call": 1, "out": 1, "generic": 2, "dlpack": 1, "prepack": 1, "prepack of a pair": 1, "unpack": 1}
    assert all(counts[name] >= least for name, least in wanted.items()), counts
    for nth in range(1, 20):  # threads that cannot be started are not missed
        *errors, _ = failing.in_thread(parallel, nth, False)
        assert all(isinstance(error, str) for error in errors), errors


main(sys.argv[1])
failing.report()
