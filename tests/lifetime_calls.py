"""The calls that test_lifetime.py repeats: of every kind of argument, and one for every way to fail.

A call is (function, arguments, keywords), so that the references to its arguments can be counted.
"""

import pickle
import warnings

import numpy as np
import pytest

import fake_dlpack
import matmul_fused as mf
from fake_dlpack import Producer, make_library
from matmul_fused import _core
from support import Generic, draw, dtype_of

f = mf.matmul_fused


def call(function, *arguments, **keywords):
    return function, arguments, keywords


def arrays():
    """A (5, 7) and B (7, 6)."""
    return draw((5, 7)), draw((7, 6))


def gated():
    """A, and a pair of weights and one of biases."""
    return draw((5, 7)), (draw((7, 6)), draw((7, 6), seed=1)), (draw(6), draw(6, seed=1))


def tensors(**keywords):
    torch = pytest.importorskip("torch")
    return torch, torch.ones(5, 7, **keywords), torch.ones(7, 6, **keywords)


def scalars():
    return call(f, *arrays(), draw(6), ("clamp", -0.12345, 6.5), alpha=np.float32(1.25), beta=0.7654, C=draw((5, 6)))


def every_array():
    out, z = np.empty((5, 6), np.float16), np.empty((5, 6))
    return call(f, *arrays(), draw(6), "gelu", C=draw((5, 6)), multiply=draw((5, 6)), out=out, preactivation=z)


def pairs():
    A, B, bias = gated()
    return call(f, A, B, bias, ("swiglu_oai", 7.125, 1.702))


def packed_pair():
    A, B, bias = gated()
    return call(f, A, (mf.prepack(B[0]), mf.prepack(B[1])), bias, "geglu")


def subclass():
    class Mine(np.ndarray):
        pass

    A, B = arrays()
    return call(f, A.view(Mine), B.view(Mine))


def torch_call(**keywords):
    torch, A, B = tensors()
    if "out_dtype" in keywords:
        keywords["out_dtype"] = torch.float16
    if "out" in keywords:
        keywords["out"] = torch.empty(6, 5).T
    return call(f, A, B, torch.ones(6), "silu", **keywords)


def torch_parameter():
    torch, A, B = tensors()
    return call(f, A, torch.nn.Parameter(B, requires_grad=False))


def jax_call():
    jnp = pytest.importorskip("jax.numpy")
    return call(f, jnp.ones((5, 7)), jnp.ones((7, 6)), out_dtype=jnp.float16)


def array_call():
    array = f(Generic(draw((5, 7))), draw((7, 6)))
    return call(f, array, draw((6, 3)), out_dtype=np.dtype("f8"))


class Unversioned(Generic):
    """A producer older than max_version: its capsule is a plain "dltensor"."""

    def __dlpack__(self):
        return self.array.__dlpack__()


SUCCESSES = {
    "arrays": lambda: call(f, *arrays()),
    "scalars": scalars,
    "every array": every_array,
    "pairs": pairs,
    "gate_layout": lambda: call(f, draw((5, 7)), draw((7, 6)), activation="swiglu", gate_layout="interleaved"),
    "flags": lambda: call(f, *arrays(), stream=None, allow_tf32=True),
    "packed": lambda: call(f, draw((5, 7)), mf.prepack(draw((7, 6)))),
    "packed pair": packed_pair,
    "a subclass of ndarray": subclass,
    "bfloat16": lambda: call(f, draw((5, 7), "bfloat16"), draw((7, 6), "bfloat16"), out_dtype=dtype_of("bfloat16")),
    "torch": torch_call,
    "torch out": lambda: torch_call(out=True),
    "torch out_dtype": lambda: torch_call(out_dtype=True),
    "torch Parameter": torch_parameter,
    "JAX": jax_call,
    "Array": array_call,
    "DLPack": lambda: call(f, Generic(draw((5, 7))), Generic(draw((7, 6)))),
    "unversioned DLPack": lambda: call(f, Unversioned(draw((5, 7))), Unversioned(draw((7, 6)))),
    "explain": lambda: call(mf.explain, *arrays(), draw(6), "gelu"),
    "pickle": lambda: call(pickle.dumps, mf.prepack(draw((7, 6)))),
    "prepack": lambda: call(mf.prepack, draw((7, 6)), gate_layout="halves", layout="panels64"),
}


# --- failures: (call, exception, repetitions) ---


def row(error, make, calls=10_000):
    return make, error, calls


def numpy_row(error, *arguments, **keywords):
    """matmul_fused(A, B, *arguments, **keywords) fails."""
    return row(error, lambda: call(f, *arrays(), *arguments, **keywords))


def producer_row(error, calls=10_000, role="B", **how):
    def make():
        producer = Generic if not how else Failing
        shapes = {"A": (5, 7), "B": (7, 6), "bias": (6,), "out": (5, 6)}
        operands = {name: draw(shapes[name]) for name in ("A", "B")}
        return call(f, **operands | {role: producer(draw(shapes[role]), **how)})

    return row(error, make, calls)


class Failing(Generic):
    """A producer that breaks in one way."""

    def __init__(self, array, raises=None, returns=None, device=(1, 0)):
        super().__init__(array)
        self.raises, self.returns, self.device = raises, returns, device

    def __dlpack__(self, **keywords):
        if self.raises:
            raise self.raises("broken")
        return super().__dlpack__(**keywords) if self.returns is None else self.returns

    def __dlpack_device__(self):
        return self.device


def after_import(**keywords):
    """B's capsule was taken when a later argument fails."""
    return call(f, draw((5, 7)), Generic(draw((7, 6))), **keywords)


def used_capsule():
    """A capsule that somebody has taken before."""
    capsule = draw((7, 6)).__dlpack__()
    np.from_dlpack(type("Once", (), {"__dlpack__": lambda s, **k: capsule, "__dlpack_device__": lambda s: (1, 0)})())
    return call(f, draw((5, 7)), Failing(draw((7, 6)), returns=capsule))


def made_capsule(**how):
    """A ctypes producer keeps what it has handed out: that is emptied, or it would look like a leak."""
    producer = Producer(draw((7, 6)), **how)

    def run(A, B):
        try:
            return f(A, B)
        finally:
            producer.handed.clear()
            producer.calls.clear()
            producer._keep.clear()
            fake_dlpack._kept.pop()

    return call(run, draw((5, 7)), producer)


def torch_row(error, make, calls=2000):
    """make(torch, A, B) gives the arguments."""

    def build():
        torch, A, B = tensors()
        arguments = make(torch, A, B)
        return call(f, *arguments) if isinstance(arguments, tuple) else call(f, A, B, **arguments)

    return row(error, build, calls)


def fake_tensor(torch, A, B):
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode().from_tensor(A), B


def quantized(torch, A, B):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch means to remove them
        return torch.quantize_per_tensor(A, 1, 0, torch.qint8), B


def negative(torch, A, B):
    return torch.ones(5, 7, dtype=torch.complex64).conj().imag, B


def tracer():
    jax = pytest.importorskip("jax")
    leaked = []
    jax.make_jaxpr(lambda x: leaked.append(x) or x)(np.ones((5, 7), np.float32))
    return call(f, leaked[0], draw((7, 6)))


def jax_out():
    jnp = pytest.importorskip("jax.numpy")
    return call(f, *arrays(), out=jnp.zeros((5, 6)))


def jax_integers():
    jnp = pytest.importorskip("jax.numpy")
    return call(f, jnp.ones((5, 7), jnp.int32), draw((7, 6)))


def forced():
    A, B = arrays()
    packed = mf.prepack(B)

    def run(A, packed):
        with mf.testing.force_kernel("cpu_reference"):
            return f(A, packed)

    return call(run, A, packed)


def misaligned():
    memory = np.zeros(7 * 6 * 4 + 4, np.uint8)
    return call(f, draw((5, 7)), memory[2:-2].view(np.float32).reshape(7, 6))


def odd_stride():
    memory = np.zeros((7, 26), np.uint8)
    return call(f, draw((5, 7)), np.ndarray((7, 6), np.float32, memory, 0, (26, 4)))


def out_is(view):
    A, B = arrays()
    return call(f, A, B, out=view(A, B))


def read_only_array():
    array = draw((5, 6))
    array.flags.writeable = False
    return array


NUMPY_FAILURES = {
    "a missing argument": row(TypeError, lambda: call(f, draw((5, 7)))),
    "an unknown keyword": numpy_row(TypeError, activaton="relu"),
    "an argument twice": numpy_row(TypeError, A=None),
    "too many arguments": numpy_row(TypeError, None, None, 1.5),
    "a list": row(TypeError, lambda: call(f, [[1.5]], draw((7, 6)))),
    "a bool": numpy_row(TypeError, True),
    "integers": row(TypeError, lambda: call(f, draw((5, 7)), np.ones((7, 6), int))),
    "swapped bytes": row(TypeError, lambda: call(f, draw((5, 7)), draw((7, 6)).astype(">f4"))),
    "a masked array": row(TypeError, lambda: call(f, np.ma.array(draw((5, 7))), draw((7, 6)))),
    "two dtypes": row(TypeError, lambda: call(f, draw((5, 7)), draw((7, 6), "float64"))),
    "misaligned": row(ValueError, misaligned),
    "an odd stride": row(ValueError, odd_stride),
    "nine axes": row(NotImplementedError, lambda: call(f, draw((1,) * 8 + (7,)), draw((7, 6)))),
    "no match": row(ValueError, lambda: call(f, draw((5, 7)), draw((6, 7)))),
    "no broadcast": numpy_row(ValueError, draw(5)),
    "an unknown activation": numpy_row(ValueError, None, "gelo"),
    "activation parameters": numpy_row(ValueError, None, ("leaky_relu", 0.5, 0.25)),
    "a lone surrogate": numpy_row(ValueError, None, "\ud800"),
    "alpha too large": numpy_row(ValueError, alpha=10**400),
    "alpha an array": numpy_row(TypeError, alpha=np.ones(3)),
    "beta without C": numpy_row(ValueError, beta=0.5),
    "no dtype": numpy_row(TypeError, out_dtype="nonsense"),
    "another dtype": numpy_row(TypeError, out_dtype=np.dtype("i4")),
    "an unknown gate_layout": numpy_row(ValueError, None, "swiglu", gate_layout="thirds"),
    "no flag": numpy_row(TypeError, allow_tf32=1.5),
    "a stream": numpy_row(ValueError, stream=7.5),
    "a tuple of three": row(ValueError, lambda: call(f, draw((5, 7)), (draw((7, 6)),) * 3, None, "swiglu")),
    "half a pair": row(TypeError, lambda: call(f, draw((5, 7)), (draw((7, 6)), [1.5]), None, "swiglu")),
    "out is read-only": row(ValueError, lambda: call(f, *arrays(), out=read_only_array())),
    "out is A": row(ValueError, lambda: out_is(lambda A, B: A[:, :6])),
    "out overlaps itself": row(ValueError, lambda: out_is(lambda A, B: np.lib.stride_tricks.as_strided(A, (5, 6)))),
    "out and out_dtype": row(ValueError, lambda: call(f, *arrays(), out=draw((5, 6)), out_dtype=np.float64)),
    "a packed A": row(TypeError, lambda: call(f, mf.prepack(draw((5, 7))), draw((7, 6)))),
    "a kernel that refuses": row(NotImplementedError, forced),
    "prepack of a batch": row(NotImplementedError, lambda: call(mf.prepack, draw((2, 7, 6)))),
    "prepack of half a pair": row(TypeError, lambda: call(mf.prepack, (Generic(draw((7, 6))), [1.5]))),
    "prepack of an unlike pair": row(ValueError, lambda: call(mf.prepack, (Generic(draw((7, 6))), draw((7, 4))))),
    "prepack in an unknown layout": row(ValueError, lambda: call(mf.prepack, Generic(draw((7, 6))), layout="tiles")),
    "explain": row(ValueError, lambda: call(mf.explain, draw((5, 7)), draw((6, 7)))),
    "an unknown kernel": row(ValueError, lambda: call(_core.force_kernel, "cpu_magic")),
    "no threads": row(ValueError, lambda: call(mf.set_num_threads, 10**30)),
    "a bad pickle": row(ValueError, lambda: call(_core._unpickle_packed, b"12345678", 1, 3, "float32", None)),
}
DLPACK_FAILURES = {
    "__dlpack__ raises": producer_row(BufferError, raises=OSError),
    "__dlpack__ raises TypeError": producer_row(BufferError, raises=TypeError),
    "__dlpack__ raises MemoryError": producer_row(MemoryError, raises=MemoryError),
    "__dlpack__ is interrupted": producer_row(KeyboardInterrupt, raises=KeyboardInterrupt),
    "__dlpack__ of A raises": producer_row(BufferError, role="A", raises=OSError),
    "no capsule": producer_row(BufferError, returns="capsule"),
    "no pair": producer_row(BufferError, device=[1, 0]),
    "no numbers": producer_row(BufferError, device=("cpu", 0)),
    "another device": producer_row(BufferError, device=(1, 3)),
    "a used capsule": row(BufferError, used_capsule),
    "another major version": row(BufferError, lambda: made_capsule(version=(2, 0)), 2000),
    "no deleter": row(BufferError, lambda: made_capsule(version=(2, 0), has_deleter=False), 2000),
    "a read-only capsule": row(ValueError, lambda: call(f, *arrays(), out=Generic(read_only_array()))),
    "a later list": row(TypeError, lambda: after_import(bias=[1.5])),
    "a later shape": row(ValueError, lambda: after_import(bias=draw(5))),
    "a later producer": row(BufferError, lambda: after_import(bias=Failing(draw(6), raises=OSError))),
    "a capsule that does not fit": row(ValueError, lambda: call(f, Generic(draw((5, 7))), Generic(draw((6, 7))))),
    "no view": row(BufferError, lambda: call(f, make_library(view_fails=True)(draw((5, 7))), draw((7, 6)))),
}
LIBRARY_FAILURES = {
    "requires grad": torch_row(ValueError, lambda torch, A, B: (A.requires_grad_(), B)),
    "a negative bit": torch_row(ValueError, negative),
    "sparse": torch_row(TypeError, lambda torch, A, B: (A.to_sparse(), B), 200),
    "on meta": torch_row(TypeError, lambda torch, A, B: (A.to("meta"), B), 200),
    "quantized": torch_row(TypeError, quantized, 200),
    "a FakeTensor": torch_row(TypeError, fake_tensor, 500),
    "torch integers": torch_row(TypeError, lambda torch, A, B: (A.int(), B)),
    "torch dtypes": torch_row(TypeError, lambda torch, A, B: (A.double(), B)),
    "a torch dtype": torch_row(TypeError, lambda torch, A, B: {"out_dtype": torch.int32}),
    "torch out overlaps itself": torch_row(ValueError, lambda torch, A, B: {"out": torch.ones(6).expand(5, 6)}),
    "a tracer": row(TypeError, tracer, 2000),
    "JAX out": row(ValueError, jax_out, 2000),
    "JAX integers": row(TypeError, jax_integers, 2000),
}
FAILURES = NUMPY_FAILURES | DLPACK_FAILURES | LIBRARY_FAILURES
