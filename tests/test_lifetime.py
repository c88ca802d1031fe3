"""Nothing leaks and nothing dies too early: references, memory, modules, packed weights, whole interpreters."""

import contextlib
import copy
import gc
import importlib
import importlib.util
import pickle
import sys
import threading
import weakref

import numpy as np
import psutil
import pytest

import matmul_fused as mf
from lifetime_calls import FAILURES, SUCCESSES
from matmul_fused import _core
from support import DTYPES, ISOLATED, Generic, check, draw, python, reuse_memory, same_bits, to_numpy

LIMIT = 4 << 20
# Objects that the extension and other code take references to: their counts may vary.
SINGLETONS = (None, True, False, 0, 1, 2, _core, _core._unpickle_packed, mf.Array, mf.PackedMatrix, np.float32)
SINGLETONS += (TypeError, ValueError, BufferError, NotImplementedError, OverflowError, OSError, MemoryError)


for _name in ("torch", "jax.numpy"):  # before small_heap of conftest.py
    with contextlib.suppress(ImportError):
        importlib.import_module(_name)


def growth(call, times):
    """Bytes of the process and blocks of Python's allocator that calls leave; noise occurs once, a leak each time."""
    for _ in range(times // 10):
        call()
    grown, blocks = LIMIT, times
    for _ in range(3):
        if grown < LIMIT and blocks < times // 2:
            break
        gc.collect()
        grown, blocks = psutil.Process().memory_info().rss, sys.getallocatedblocks()
        for _ in range(times):
            call()
        gc.collect()
        grown, blocks = psutil.Process().memory_info().rss - grown, sys.getallocatedblocks() - blocks
    return grown, blocks


def assert_no_growth(call, times):
    grown, blocks = growth(call, times)
    assert grown < LIMIT
    assert blocks < times // 2


def is_singleton(value):
    return isinstance(value, (bool, type(None))) or (type(value) is int and -5 <= value <= 256)


def walk(value):
    """An argument and what hangs on it: items of tuples, types, dtypes."""
    yield value
    yield type(value)
    for item in value if isinstance(value, tuple) else ():
        yield from walk(item)
    if isinstance(value, np.ndarray):
        yield value.dtype


def references(call):
    function, arguments, keywords = call
    tracked = [x for value in (function, arguments, keywords, *keywords.values()) for x in walk(value)]
    tracked = list({id(x): x for x in tracked if not is_singleton(x)}.values())
    return [*(sys.getrefcount(x) for x in tracked)], [repr(type(x)) for x in tracked]


# --- references ---


@pytest.mark.parametrize("name", SUCCESSES)
def test_a_call_keeps_no_reference(name):
    """10,000 calls of each kind: above 10^5 in all."""
    call = function, arguments, keywords = SUCCESSES[name]()
    for _ in range(100):
        function(*arguments, **keywords)
    gc.collect()
    (before, names), shared = references(call), [sys.getrefcount(x) for x in SINGLETONS]
    blocks = sys.getallocatedblocks()
    for _ in range(10_000):
        function(*arguments, **keywords)
    gc.collect()
    blocks = sys.getallocatedblocks() - blocks
    assert dict(zip(names, references(call)[0], strict=True)) == dict(zip(names, before, strict=True))
    assert references(call)[0] == before
    for value, count in zip(SINGLETONS, shared, strict=True):
        assert abs(sys.getrefcount(value) - count) < 500, value
    assert blocks < 500


@pytest.mark.parametrize("name", FAILURES)
def test_a_failing_call_keeps_nothing(name):
    """References, Python's memory blocks and the process's memory over 10,000 errors of each kind."""
    make, error, calls = FAILURES[name]
    call = function, arguments, keywords = make()

    def fail():
        try:
            function(*arguments, **keywords)
        except error:
            return
        raise AssertionError("the call did not fail")

    with pytest.raises(error) as caught:
        function(*arguments, **keywords)
    assert type(caught.value) is error
    del caught
    for _ in range(100):
        fail()
    gc.collect()
    (before, names), shared = references(call), [sys.getrefcount(x) for x in SINGLETONS]
    assert_no_growth(fail, calls)
    after = references(call)[0]
    assert [f"{n}: {y - x}" for n, x, y in zip(names, before, after, strict=True) if x != y] == []
    for value, count in zip(SINGLETONS, shared, strict=True):
        assert abs(sys.getrefcount(value) - count) < calls // 20, value


def test_types_leave_the_cache():
    """The module remembers 16 types; forty others push them out, and a type that is gone is freed."""
    x, B = draw((2, 3)), draw((3, 4))
    types = [type(f"Library{i}", (Generic,), {}) for i in range(40)]
    for _ in range(3):
        for library in types:
            mf.matmul_fused(library(x), B)
    gone = [weakref.ref(library) for library in types]
    del types, library
    for i in range(16):
        mf.matmul_fused(type(f"Other{i}", (Generic,), {})(x), B)
    gc.collect()
    assert [ref() for ref in gone] == [None] * 40


# --- memory ---


def make_round_trip():
    packed = mf.prepack(draw((40, 48)))
    return lambda: pickle.loads(pickle.dumps(packed))


def make_torch(argument):
    torch = pytest.importorskip("torch")
    A, B = torch.ones(8, 40), torch.ones(40, 48)
    if argument == "from_dlpack":
        array = mf.matmul_fused(Generic(draw((8, 40))), draw((40, 48)))
        return lambda: torch.from_dlpack(array)
    keywords = {"out": torch.empty(8, 48)} if argument == "out" else {}
    return lambda: mf.matmul_fused(A, B, **keywords)


def make_array(use):
    """use: what is done with an mf.Array."""
    array = mf.matmul_fused(Generic(draw((8, 40))), draw((40, 48)))
    return lambda: use(array)


def make_numpy(**keywords):
    A, B = draw((8, 40)), draw((40, 48))
    return lambda: mf.matmul_fused(A, B, **keywords)


def make_new_array():
    A, B = Generic(draw((8, 40))), draw((40, 48))
    return lambda: np.from_dlpack(mf.matmul_fused(A, B))


def make_prepack():
    B = draw((40, 48))
    return lambda: mf.prepack(B)


def make_explain():
    A, B = draw((8, 40)), draw((40, 48))
    return lambda: mf.explain(A, B, None, "relu")


MEMORY = {
    "a new result": make_numpy,
    "a new result of another dtype": lambda: make_numpy(out_dtype="float16"),
    "out": lambda: make_numpy(out=np.empty((8, 48), np.float32)),
    "preactivation": lambda: make_numpy(preactivation=np.empty((8, 48), np.float16), activation="gelu"),
    "a new torch result": lambda: make_torch("new"),
    "torch out": lambda: make_torch("out"),
    "a new Array": make_new_array,
    "prepack": make_prepack,
    "unpack": lambda: mf.prepack(draw((40, 48)), gate_layout="interleaved").unpack,
    "pickle": make_round_trip,
    "explain": make_explain,
    "a capsule dropped": lambda: make_array(lambda array: array.__dlpack__()),
    "a versioned capsule dropped": lambda: make_array(lambda array: array.__dlpack__(max_version=(1, 0))),
    "a copy dropped": lambda: make_array(lambda array: array.__dlpack__(max_version=(1, 0), copy=True)),
    "a capsule taken by NumPy": lambda: make_array(np.from_dlpack),
    "a capsule taken by torch": lambda: make_torch("from_dlpack"),
}


@pytest.mark.parametrize("name", MEMORY)
def test_memory_does_not_grow(name):
    """Over 10^5 calls, by less than 4 MB: 42 bytes a call."""
    assert_no_growth(MEMORY[name](), 100_000)


def test_workspace_goes_with_its_thread():
    A, B = draw((200, 600)), draw((200, 600)).T

    def run():
        thread = threading.Thread(target=mf.matmul_fused, args=(A, B))
        thread.start()
        thread.join()

    assert_no_growth(run, 200)


# --- modules ---


def load_copy():
    """Another module object of the extension, with a state of its own."""
    spec = importlib.util.spec_from_file_location("matmul_fused._core", _core.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def use_copy(module):
    A, B = draw((5, 7)), draw((7, 6))
    check(module.matmul_fused(A, module.prepack(B), None, "relu"), A, B, None, "relu")
    with pytest.raises(ValueError, match="unknown activation"):
        module.matmul_fused(A, B, None, "gelo")
    array = module.matmul_fused(Generic(A), B)
    assert type(array) is module.Array
    return array


def test_module_objects_are_freed():
    module = load_copy()
    assert module is not _core
    assert module.Array is not _core.Array
    use_copy(module)
    refs = [weakref.ref(x) for x in (module, module.Array, module.PackedMatrix, module.DeviceError)]
    del module
    gc.collect()
    assert [ref() for ref in refs] == [None] * 4


def test_module_objects_leave_no_memory():
    assert_no_growth(lambda: use_copy(load_copy()), 300)


def test_an_array_keeps_its_module():
    array = use_copy(load_copy())
    gc.collect()
    got = np.from_dlpack(array)
    copied = array.__dlpack__(copy=True)  # makes a new Array: needs the module's state
    del array, copied
    gc.collect()
    check(got, draw((5, 7)), draw((7, 6)))


# --- PackedMatrix ---


def test_packed_matrix_is_immutable():
    packed = mf.prepack(draw((7, 6)))
    for name in ("shape", "dtype", "device", "layout", "gate_layout", "nbytes", "unpack", "new"):
        with pytest.raises(AttributeError):
            setattr(packed, name, 1)
        with pytest.raises(AttributeError):
            delattr(packed, name)
        with pytest.raises(TypeError, match="immutable type"):
            setattr(mf.PackedMatrix, name, 1)
    with pytest.raises(TypeError, match="cannot create"):
        mf.PackedMatrix()
    with pytest.raises(TypeError, match="not an acceptable base type"):
        type("Mine", (mf.PackedMatrix,), {})
    copied = to_numpy(packed.unpack())
    np.from_dlpack(packed.unpack())[...] = 0  # a copy: the packed weight is as it was
    assert same_bits(to_numpy(packed.unpack()), copied)


def test_packed_matrix_outlives_its_source():
    B, A = draw((40, 50)), draw((30, 40))
    wanted, packed = B.copy(), mf.prepack(B)
    B[...] = np.nan
    del B
    others = reuse_memory()
    check(mf.matmul_fused(A, packed), A, wanted)
    assert len(others) == 20


def test_packed_matrix_as_an_object():
    packed = mf.prepack(draw((40, 50)))
    assert sys.getsizeof(packed) > packed.nbytes >= 40 * 50 * 4
    reference, named = weakref.ref(packed), weakref.WeakValueDictionary(weight=packed)
    assert reference() is named["weight"] is packed
    for convert in (np.asarray, np.array, np.float32):
        with pytest.raises(TypeError, match=r"^a PackedMatrix is no array, .* np.asarray\(packed.unpack\(\)\)"):
            convert(packed)
    del packed
    assert reference() is None
    assert not named


FACTS = ("shape", "dtype", "device", "layout", "gate_layout", "nbytes")


@pytest.mark.parametrize("gate_layout", [None, "halves", "halves_up_first", "interleaved"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "duplicate",
    [lambda x, p=p: pickle.loads(pickle.dumps(x, p)) for p in range(6)],
    ids=[f"protocol {p}" for p in range(6)],
)
def test_packed_matrix_is_pickled(duplicate, dtype, gate_layout):
    B, A = draw((17, 38), dtype), draw((5, 17), dtype)
    packed = mf.prepack(B.T.copy().T, gate_layout=gate_layout)
    again = duplicate(packed)
    assert again is not packed
    assert copy.copy(packed) is copy.deepcopy(packed) is packed  # it never changes
    assert type(again) is mf.PackedMatrix
    assert [getattr(again, name) for name in FACTS] == [getattr(packed, name) for name in FACTS]
    del packed
    gc.collect()
    assert same_bits(to_numpy(again.unpack()), B)
    activation = None if gate_layout is None else "swiglu"
    check(mf.matmul_fused(A, again, None, activation), A, B, None, activation, gate_layout=gate_layout)


@pytest.mark.parametrize("shape", [(0, 6), (7, 0), (0, 0)])
def test_an_empty_packed_matrix_is_pickled(shape):
    again = pickle.loads(pickle.dumps(mf.prepack(draw(shape))))
    assert again.shape == shape
    assert to_numpy(again.unpack()).shape == shape


@pytest.mark.parametrize(
    "arguments",
    [
        (b"1234", 1, 2, "float32", None),
        (b"1234", -1, -1, "float32", None),
        (b"1234", 2**62, 2**62, "float32", None),
        (b"", 2**62, 2**62, "float32", None),
        (b"1234", 1, 1, None, None),
        (b"", 0, 4, None, None),
        (b"", 4, 0, None, None),
        (b"1234", 1, 1, "float32", "halves"),
        (b"1234", 1, 1, "float32", "thirds"),
        (b"1234", 1, 1, "int32", None),
        ("1234", 1, 1, "float32", None),
        (b"1234", 1.0, 1, "float32", None),
        (b"1234", 2**70, 1, "float32", None),
        (b"1234", 1, 1, "float32"),
    ],
)
def test_a_damaged_pickle_is_refused(arguments):
    with pytest.raises((ValueError, TypeError, OverflowError)):
        _core._unpickle_packed(*arguments)


# --- whole interpreters ---


@pytest.mark.parametrize("libraries", [(), ("ml_dtypes",), ("torch",), ("jax",)], ids="+".join)
def test_development_mode_has_nothing_to_say(libraries):
    for name in libraries:
        pytest.importorskip(name)
    done = python("-X", "dev", "-W", "error", ISOLATED / "everything.py", *libraries)
    assert (done.stdout, done.stderr) == ("done\n", "")


@pytest.mark.parametrize("where", ["globals", "builtins", "module", "cycle", "capsules", "thread", "atexit", "torch"])
def test_exit_with_live_objects(where):
    if where == "torch":
        pytest.importorskip("torch")
    done = python("-X", "dev", ISOLATED / "exit_alive.py", where)
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_numpy_is_all_it_needs():
    done = python("-W", "error", ISOLATED / "numpy_only.py")
    assert (done.stdout, done.stderr) == ("done\n", "")
