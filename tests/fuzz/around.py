"""What the rest of a process does around a call, and new spellings of one: neither may change what the call gives.

A row takes (world, call, rng) and makes the call again; AssertionError: it is wrong. False: this call cannot meet it.
What a row changes in the process it puts back.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import math
import os
import pickle
import platform
import sys
import threading
import types
from collections.abc import Callable, Iterator
from random import Random
from typing import Any
from unittest.mock import MagicMock

import numpy as np

import matmul_fused as mf
from matmul_fused import _core
from matmul_fused.testing.rounding import numpy_dtype

from .draw import Call, check_valid
from .producers import Capsule
from .refuse import put
from .world import DTYPES, World, pick

Row = Callable[[World, Call, Random], bool]
ROWS: list[Row] = []
SHARES: list[int] = []  # how often a row is drawn; those that cost milliseconds seldom
CPUS = os.sched_getaffinity(0)


def row(share: int) -> Callable[[Row], Row]:
    def add(function: Row) -> Row:
        ROWS.append(function)
        SHARES.append(share)
        return function

    return add


def draw(rng: Random) -> Row:
    return rng.choices(ROWS, SHARES)[0]


def judged(world: World, call: Call, make: Any = None) -> bool:
    """The call, or that it is no call of this kernel."""
    if world.kernel == "cpu_reference" and call.refused_by_reference:
        return False
    check_valid(world, call, make)
    return True


@contextlib.contextmanager
def imported(modules: dict[str, Any]) -> Iterator[None]:
    """These stand in sys.modules; None: an import of it fails."""
    before = {name: sys.modules.get(name, ...) for name in modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is ...:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module


def beside(modules: dict[str, Any]) -> Callable[..., Any]:
    def make(*arguments: Any, **keywords: Any) -> Any:
        with imported(modules):
            return mf.matmul_fused(*arguments, **keywords)

    return make


# --- threads and their modes ---


def set_affinity(cpus: set[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # a thread that has just ended
            os.sched_setaffinity(int(thread), cpus)


def obeyed(cpus: set[int]) -> bool:
    set_affinity(cpus)
    wide = np.ones((256, 256), np.float32)
    assert (mf.matmul_fused(wide, wide) == 256).all()
    return all(os.sched_getaffinity(int(thread)) <= cpus for thread in os.listdir("/proc/self/task"))


@row(4)
def affinity(world: World, call: Call, rng: Random) -> bool:
    """As taskset -a: every thread is given one CPU, or all of them."""
    allowed = {pick(rng, sorted(CPUS))} if rng.random() < 0.8 else CPUS
    try:
        # What is set between a worker's look at its mask and its change of it is lost: set again.
        assert any(obeyed(allowed) for _ in range(4)), f"a thread left the CPUs {allowed} that it was given"
        return judged(world, call)
    finally:
        set_affinity(CPUS)


_libm = ctypes.CDLL("libm.so.6")
_MXCSR = 28  # its place in glibc's fenv_t of x86-64
_CONTROL = 0xFFC0
# flush to zero, denormals are zero, both; each rounding; all exceptions but "inexact" trap
MODES = (0x9F80, 0x1FC0, 0x9FC0, 0x3F80, 0x5F80, 0x7F80, 0x1000, 0xFFC0)


def float_mode(word: int | None = None) -> int:
    """The control bits of this thread's MXCSR, which become word."""
    environment = (ctypes.c_char * 32)()
    _libm.fegetenv(environment)
    at = ctypes.c_uint32.from_buffer(environment, _MXCSR)
    before = at.value & _CONTROL
    if word is not None:
        at.value = word
        _libm.fesetenv(environment)
    return before


def in_mode(word: int) -> Callable[..., Any]:
    def make(*arguments: Any, **keywords: Any) -> Any:
        usual = float_mode(word)
        try:
            return mf.matmul_fused(*arguments, **keywords)
        finally:
            left = float_mode(usual)
            assert left == word, f"the thread's float mode {word:#x} became {left:#x}"

    return make


def in_thread(make: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any, **keywords: Any) -> Any:
        results, errors = [], []

        def body() -> None:
            try:
                results.append(make(*arguments, **keywords))
            except BaseException as error:  # raised again below
                errors.append(error)

        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
        if errors:
            raise errors.pop()
        return results.pop()

    return run


@row(40)
def float_modes(world: World, call: Call, rng: Random) -> bool:
    """Of this thread, or of one that was started with it."""
    if platform.machine() != "x86_64":
        return False
    make = in_mode(pick(rng, MODES))
    return judged(world, call, make if rng.random() < 0.8 else in_thread(make))


@row(40)
def num_threads(world: World, call: Call, rng: Random) -> bool:
    number = pick(rng, (1, 2, 3, 5, np.int64(2)))
    before = mf.get_num_threads()

    def make(*arguments: Any, **keywords: Any) -> Any:
        with mf.num_threads(number):
            assert mf.get_num_threads() == number
            result = mf.matmul_fused(*arguments, **keywords)
            assert mf.get_num_threads() == number, "a call changed the number of threads"
        return result

    done = judged(world, call, make)
    assert mf.get_num_threads() == before, "num_threads left its number"
    return done


# --- modules ---

_NAMES = ("torch", "torch._C", "jax", "jax.core", "cupy", "cupy.cuda", "numpy.ma", "ml_dtypes", "torch.nn", "jax.nn")
_MOCK = MagicMock()


def stand_in(name: str, rng: Random) -> Any:
    half = types.ModuleType(name)
    vars(half).update({key: pick(rng, (3, None, "x", _MOCK)) for key in ("Tensor", "_C", "ndarray", "gelu")})
    return pick(rng, (_MOCK, None, types.ModuleType(name), half, types.SimpleNamespace(), 7))


@row(40)
def mocked(world: World, call: Call, rng: Random) -> bool:
    """Array libraries that are mocks, half imported or forbidden; A's type may be one that was never seen."""
    names = [name for name in _NAMES if rng.random() < 0.4]
    if type(call.a.argument) is Capsule and rng.random() < 0.5:
        argument = type("Fresh", (Capsule,), {})(call.a.argument.view)
        put("A", argument, call.arguments, call.keywords)
    modules = {name: stand_in(name, rng) for name in names}
    return judged(world, call, beside(modules))


@row(3)
def reloaded(world: World, call: Call, rng: Random) -> bool:
    kept = dict(vars(mf))
    try:
        assert importlib.reload(mf).matmul_fused is _core.matmul_fused
    finally:
        vars(mf).update(kept)
    return judged(world, call)


@row(1)
def imported_anew(world: World, call: Call, rng: Random) -> bool:
    """A second matmul_fused, made after the first was removed from sys.modules, takes what the first has made."""
    if call.out is None and call.a.kind not in ("numpy", "library"):
        return False
    ours = [name for name in sys.modules if name.partition(".")[0] == "matmul_fused"]
    before = {name: sys.modules.pop(name) for name in ours}
    try:
        new = importlib.import_module("matmul_fused")
        new._core.force_kernel(world.kernel)
        return judged(world, call, new.matmul_fused)
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "matmul_fused"]:
            del sys.modules[name]
        sys.modules.update(before)
        world.enter()


# --- activations as callables ---

_FUNCTIONS = {
    "torch.nn.functional": ("relu", "gelu", "silu", "softplus", "mish", "hardtanh", "tanhshrink", "softsign", "glu"),
    "jax.nn": ("relu6", "selu", "celu", "sigmoid", "elu", "glu"),
}
# class -> the activation, and what its instances hold
_CLASSES: dict[str, tuple[Any, dict[str, Any]]] = {
    "LeakyReLU": (("leaky_relu", 0.25), {"negative_slope": 0.25}),
    "Hardtanh": (("hardtanh", -2, 3), {"min_val": -2, "max_val": 3.0}),
    "Threshold": (("threshold", 1, -2), {"threshold": 1, "value": -2}),
    "Hardshrink": (("hardshrink", 2), {"lambd": 2.0}),
    "GELU": ("gelu_tanh", {"approximate": "tanh"}),
    "Tanh": ("tanh", {}),
    "GLU": ("glu", {"dim": -1}),
}


def _libraries() -> tuple[dict[str, Any], list[tuple[Any, Any]]]:
    """Modules that have functions by these names, and (callable, the activation that it is)."""
    modules = {name: types.ModuleType(name) for name in ("torch.nn", *_FUNCTIONS)}
    known: list[tuple[Any, Any]] = []
    for module, names in _FUNCTIONS.items():
        for name in names:
            known.append((lambda z: z, name))
            setattr(modules[module], name, known[-1][0])
    for name, (activation, attributes) in _CLASSES.items():
        made = type(name, (), attributes)
        setattr(modules["torch.nn"], name, made)
        known.append((made(), activation))
    return modules, known


_MODULES, _KNOWN = _libraries()


@row(40)
def callables(world: World, call: Call, rng: Random) -> bool:
    """torch.nn.functional.gelu, torch.nn.LeakyReLU(0.25): known by their places in modules that are imported."""
    gated = call.layout is not None
    if not math.isfinite(call.alpha) or (gated and call.layout != "halves_up_first"):
        return False
    argument, call.activation = pick(rng, [known for known in _KNOWN if (known[1] == "glu") == gated])
    put("activation", argument, call.arguments, call.keywords)
    if call.b[0].kind != "packed" and rng.random() < 0.5:
        call.keywords.pop("gate_layout", None)  # which the function implies
    counts = [sys.getrefcount(module) for module in _MODULES.values()]
    done = judged(world, call, beside(_MODULES))
    assert [sys.getrefcount(module) for module in _MODULES.values()] == counts, "references to modules were kept"
    return done


# --- outputs that share memory ---


@row(30)
def interleaved(world: World, call: Call, rng: Random) -> bool:
    """Columns of C, multiply and out lie between each other: the same bits as from arrays of the same strides."""
    shape = world.shape(call.columns)
    if call.columns != call.z_columns or not 1 <= len(shape) <= 2:
        return False
    if world.kernel == "cpu_reference" and call.refused_by_reference:
        return False
    name = pick(rng, ("C", "multiply"))
    dtype = numpy_dtype(call.out_dtype)
    together, apart = (np.zeros((*shape, 2), dtype) for _ in range(2))
    values = np.random.default_rng(rng.getrandbits(32)).integers(-3, 4, shape)
    together[..., 0] = apart[..., 0] = values
    results = []
    for source, target in ((together, together), (apart, np.zeros_like(apart))):
        arguments, keywords = list(call.arguments), dict(call.keywords)
        keywords |= {name: source[..., 0], "out": target[..., 1]}
        if name == "C" and call.c is None:
            keywords.pop("beta", None)
        if call.c is call.out and name == "multiply":
            keywords.pop("C", None), keywords.pop("beta", None)
        keywords.pop("preactivation", None)
        mf.matmul_fused(*arguments, **keywords)
        assert (source[..., 0] == values).all(), f"{name} was written"
        results.append(target[..., 1].tobytes())
    assert results[0] == results[1], f"out beside {name} has other values"
    return True


# --- pickles ---

_ODD = (None, -1, 0, 1, 2**31, 2**62, 2**63 - 1, 2**64, "", "float32", "bfloat16", "int8", b"", 1.5, (), "halves", "\0")


class RefusedError(Exception):
    """The extension raised what it may."""


class Wrong(BaseException):
    """It raised something else, which pickle's own exceptions shall not hide."""


def load_packed(*arguments: Any) -> Any:
    try:
        return _core._unpickle_packed(*arguments)
    except (TypeError, ValueError, OverflowError, MemoryError) as error:
        raise RefusedError from error
    except BaseException as error:
        raise Wrong(f"_unpickle_packed{arguments!r:.2000}") from error


class Loader(pickle._Unpickler):  # type: ignore[name-defined, misc]  (the one in C takes what a mutated length says)
    """Finds nothing but PackedMatrix's own function: other pickles are no matter of ours."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) != ("matmul_fused._core", "_unpickle_packed"):
            raise RefusedError
        return load_packed


def use_packed(weight: Any) -> None:
    """What a mutated pickle gave is a matrix like any other."""
    (k, n), dtype = weight.shape, weight.dtype
    assert k >= 0, repr(weight)
    assert n >= 0, repr(weight)
    assert dtype in DTYPES, dtype
    assert str(k) in repr(weight)
    if k * n < 10_000 and k + n < 10_000:
        out = np.asarray(mf.matmul_fused(np.zeros((1, k), numpy_dtype(dtype)), weight.unpack(), alpha=0))
        assert out.shape == (1, n)
        assert not out.any()
        weight.__reduce__()


def mutate(text: bytes, rng: Random) -> bytes:
    at, end = int(rng.random() * len(text)), int(rng.random() * len(text))
    ways = (
        lambda: text[:at] + bytes([rng.getrandbits(8)]) + text[at + 1 :],
        lambda: text[:at] + bytes([text[at] ^ 1 << int(rng.random() * 8)]) + text[at + 1 :],
        lambda: text[:at],
        lambda: text[:at] + text[end:],
        lambda: text[:at] + rng.randbytes(4) + text[at:],
    )
    return pick(rng, ways)()


@row(20)
def pickles(world: World, call: Call, rng: Random) -> bool:
    packed = [form.argument for form in world.b if form.kind == "packed"]
    if not packed:
        return False
    weight = pick(rng, packed)
    _, arguments = weight.__reduce__()
    text = pickle.dumps(weight, int(rng.random() * 6))
    for _ in range(8):
        with contextlib.suppress(Exception):  # of pickle itself: those of the extension are judged in load_packed
            loaded = None
            loaded = Loader(io.BytesIO(mutate(text, rng))).load()
        if type(loaded) is mf.PackedMatrix:
            use_packed(loaded)
        odd = list(arguments)
        for _ in range(1 + int(rng.random() * 2)):
            odd[int(rng.random() * 5)] = pick(rng, (*_ODD, arguments[0][1:]))
        with contextlib.suppress(RefusedError):
            use_packed(load_packed(*odd[: 5 if rng.random() < 0.9 else 4]))
    return True
