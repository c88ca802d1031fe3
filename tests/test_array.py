"""mf.Array, the result for unknown libraries: what it says of itself, and how long its memory lives."""

import struct
import sys
import types

import numpy as np
import pytest

import matmul_fused as mf
from support import DTYPES, ISOLATED, Generic, check, draw, python, reuse_memory, same_bits


def new_array():
    A, B = draw((30, 40)), draw((40, 50))
    return mf.matmul_fused(Generic(A), B), mf.matmul_fused(A, B)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_consumers_keep_an_array_alive(library):
    consumer = pytest.importorskip(library)
    array, wanted = new_array()
    address = np.from_dlpack(array).ctypes.data
    taken = consumer.from_dlpack(array)
    view = taken[3:, ::2]
    del array, taken
    others = reuse_memory()
    np.testing.assert_array_equal(np.asarray(view), wanted[3:, ::2])
    assert address not in [np.from_dlpack(other).ctypes.data for other in others]


@pytest.mark.parametrize("keywords", [{}, {"max_version": (1, 0)}, {"max_version": (0, 8)}, {"max_version": None}])
def test_a_capsule_keeps_an_array_alive(keywords):
    array, wanted = new_array()
    references = sys.getrefcount(array)
    capsule = array.__dlpack__(**keywords)
    versioned = keywords.get("max_version", None) == (1, 0)
    assert f'"dltensor{"_versioned" * versioned}"' in repr(capsule)
    assert sys.getrefcount(array) == references + 1
    producer = type("Given", (), {"__dlpack__": lambda s, **k: capsule, "__dlpack_device__": lambda s: (1, 0)})()
    del array
    others = reuse_memory()
    np.testing.assert_array_equal(np.from_dlpack(producer), wanted)
    assert len(others) == 20


def test_a_dropped_capsule_lets_the_array_go():
    array, _ = new_array()
    references = sys.getrefcount(array)
    capsules = [array.__dlpack__(max_version=(1, 0)) for _ in range(5)] + [array.__dlpack__() for _ in range(5)]
    assert sys.getrefcount(array) == references + 10
    del capsules
    assert sys.getrefcount(array) == references


def test_consumers_share_the_memory_of_an_array():
    array, wanted = new_array()
    first, second = np.from_dlpack(array), np.from_dlpack(array)
    assert np.shares_memory(first, second)
    first[0, 0] = 7
    assert second[0, 0] == 7
    copied = np.from_dlpack(array, copy=True)
    assert not np.shares_memory(first, copied)
    copied[0, 0] = 9
    assert second[0, 0] == 7
    assert first.ctypes.data % 64 == 0
    assert same_bits(second[1:], wanted[1:])


def test_an_array_says_what_it_is():
    for dtype in DTYPES[:3]:
        array = mf.matmul_fused(Generic(draw((2, 5, 7), dtype)), draw((7, 6), dtype))
        assert (array.shape, array.dtype, array.device) == ((2, 5, 6), dtype, "cpu")
        assert array.__dlpack_device__() == (1, 0)
        check(np.from_dlpack(array), draw((2, 5, 7), dtype), draw((7, 6), dtype))
    with pytest.raises(TypeError, match="cannot create"):
        mf.Array()
    with pytest.raises(AttributeError):
        array.shape = (1,)


@pytest.mark.parametrize(
    ("keywords", "error", "text"),
    [
        ({"stream": 1}, BufferError, "stream must be None on the CPU"),
        ({"dl_device": (2, 0)}, BufferError, "this Array is on the CPU"),
        ({"dl_device": (1, 1)}, BufferError, "this Array is on the CPU"),
        ({"max_version": 1}, TypeError, "max_version must be None or a pair"),
        ({"max_version": (1, 0, 0)}, TypeError, "max_version must be None or a pair"),
        ({"max_version": ("1", 0)}, TypeError, "int"),
        ({"copy": "yes"}, TypeError, "copy must be None, True or False"),
        ({"kopy": True}, TypeError, "unexpected keyword argument 'kopy'"),
    ],
)
def test_dlpack_export_refuses_bad_arguments(keywords, error, text):
    array, _ = new_array()
    references = sys.getrefcount(array)
    with pytest.raises(error, match=text):
        array.__dlpack__(**keywords)
    assert sys.getrefcount(array) == references


# --- values on the CPU ---


def results(dtype):
    A, B = draw((5, 7)), draw((7, 6))
    return mf.matmul_fused(Generic(A), B, out_dtype=dtype), mf.matmul_fused(A, B, out_dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_shares_the_memory(dtype):
    pytest.importorskip("ml_dtypes")
    array, wanted = results(dtype)
    got = np.asarray(array)
    assert same_bits(got, wanted)
    assert np.shares_memory(got, np.asarray(array))
    assert np.shares_memory(got, np.asarray(array, dtype=wanted.dtype))
    assert got.flags.writeable
    assert not np.shares_memory(got, np.array(array))
    assert not np.shares_memory(got, array.__array__(copy=True))
    assert np.shares_memory(got, array.__array__(None, copy=False))
    wide = np.asarray(array, dtype=np.float64)
    np.testing.assert_array_equal(wide, wanted.astype(np.float64))
    if dtype != "float64":
        with pytest.raises(ValueError, match="drop copy=False"):
            array.__array__(np.float64, copy=False)
    for bad in ({"dtype": "nonsense"}, {"kind": 1}):
        with pytest.raises(TypeError):
            array.__array__(**bad)
    del array
    reuse_memory()
    assert same_bits(got, wanted)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_an_array_is_a_buffer(dtype):
    array, wanted = results(dtype)
    references = sys.getrefcount(array)
    view = memoryview(array)
    assert (view.format, view.shape, view.strides) == (wanted.dtype.char, wanted.shape, wanted.strides)
    assert not view.readonly
    assert view.c_contiguous
    assert sys.getrefcount(array) == references + 1
    assert bytes(array) == wanted.tobytes()
    assert struct.unpack_from(f"={wanted.dtype.char}", array) == (wanted[0, 0],)
    del view
    assert sys.getrefcount(array) == references
    outer = memoryview(mf.matmul_fused(Generic(draw((5, 7))), draw((7, 6))))
    reuse_memory()
    assert outer.tolist() == mf.matmul_fused(draw((5, 7)), draw((7, 6))).tolist()


def test_buffers_of_every_rank():
    for A, B in (
        (draw(7), draw(7)),
        (draw(7), draw((7, 6))),
        (draw((2, 3, 5, 7)), draw((7, 6))),
        (draw((0, 7)), draw((7, 6))),
    ):
        array, wanted = mf.matmul_fused(Generic(A), B), mf.matmul_fused(A, B)
        view = memoryview(array)
        assert (view.shape, view.nbytes) == (np.shape(wanted), np.asarray(wanted).nbytes)
        assert same_bits(np.asarray(array), np.asarray(wanted))


def test_a_buffer_that_an_array_cannot_be():
    pytest.importorskip("ml_dtypes")
    array, _ = results("bfloat16")
    references = sys.getrefcount(array)
    with pytest.raises(BufferError, match=r"no buffer has elements of bfloat16; np\.asarray"):
        memoryview(array)
    assert sys.getrefcount(array) == references


def test_an_index_is_numpys():
    array, wanted = results("float32")
    for index in (0, -1, (1, 2), slice(1, 3), (..., 0), None, [0, 2], wanted > 0):
        np.testing.assert_array_equal(array[index], wanted[index])
    assert len(array) == 5
    assert [row.tolist() for row in array] == wanted.tolist()
    with pytest.raises(IndexError):
        array[5]
    with pytest.raises(TypeError):
        array[0] = 1
    scalar = mf.matmul_fused(Generic(draw(7)), draw(7))
    assert scalar[()] == mf.matmul_fused(draw(7), draw(7))
    with pytest.raises(TypeError, match="without axes has no length"):
        len(scalar)


def test_repr_shows_values():
    array, wanted = results("float16")
    head, values = repr(array).split("\n", 1)
    assert head == "<matmul_fused.Array shape=(5, 6) dtype=float16 device=cpu"
    assert values == f"{wanted}>"
    large = mf.matmul_fused(Generic(draw((2000, 1))), draw((1, 2000)))
    assert len(repr(large)) < 1000


def test_bfloat16_needs_ml_dtypes():
    code = (
        "import sys; sys.path[:0] = [{!r}]; from isolated.common import Generic, block; block('ml_dtypes')\n"
        "import numpy as np, matmul_fused as mf\n"
        "x = mf.matmul_fused(Generic(np.ones((2, 2), np.float32)), np.ones((2, 2), np.float32), out_dtype='bfloat16')\n"
        "print(repr(x))\nnp.asarray(x)"
    )
    done = python("-c", code.format(str(ISOLATED.parent)), check=False)
    assert done.stdout == "<matmul_fused.Array shape=(2, 2) dtype=bfloat16 device=cpu>\n"
    assert done.stderr.endswith(
        "TypeError: this Array has dtype bfloat16, which NumPy has with ml_dtypes; install that package\n"
    )


# --- libraries of the array API, and what is no array ---


def test_the_array_api_makes_its_own_results():
    xp = pytest.importorskip("array_api_strict")
    A, B = draw((5, 7)), draw((7, 6))
    got = mf.matmul_fused(xp.asarray(A), B, out_dtype="float64")
    assert type(got) is type(xp.asarray(A))
    assert got.dtype == xp.float64
    check(np.from_dlpack(got), A, B)
    with pytest.raises(TypeError, match="A's library took no result of this dtype or device over"):
        mf.matmul_fused(xp.asarray(A), B, out_dtype="float16")
    assert type(mf.matmul_fused(A, xp.asarray(B))) is np.ndarray


class Namespaced(Generic):
    """Of a library of the array API."""

    space = types.SimpleNamespace(from_dlpack=lambda x: ("taken", np.from_dlpack(x)))

    def __array_namespace__(self, **keywords):
        return self.space


@pytest.mark.parametrize(
    "space",
    [None, types.SimpleNamespace(), types.SimpleNamespace(from_dlpack=lambda x: 1 / 0)],
    ids=["None", "no", "raises"],
)
def test_a_namespace_that_breaks(space, monkeypatch):
    A, B = Namespaced(draw((5, 7))), draw((7, 6))
    name, got = mf.matmul_fused(A, B)
    assert name == "taken"
    check(got, draw((5, 7)), B)
    monkeypatch.setattr(Namespaced, "space", space)
    with pytest.raises(TypeError, match="A's library took no result") as caught:
        mf.matmul_fused(A, B)
    assert isinstance(caught.value.__cause__, (AttributeError, ZeroDivisionError))


LOST = "which would be lost; pass A.to_numpy()"


@pytest.mark.parametrize(
    ("module", "name", "advice"),
    [
        ("pandas.core.frame", "DataFrame", f"pandas.core.frame.DataFrame, which has labels, {LOST}"),
        ("pyarrow.lib", "Tensor", f"pyarrow.lib.Tensor, which has nulls, {LOST}"),
        ("polars.series.series", "Series", f"polars.series.series.Series, which has labels, {LOST}"),
        ("xarray.core.dataarray", "DataArray", f"xarray.core.dataarray.DataArray, which has labels, {LOST}"),
        ("dask.array.core", "Array", "dask.array.core.Array, which is not computed yet; pass A.compute()"),
    ],
)
def test_tables_are_refused_with_what_to_pass(module, name, advice):
    table = type(name, (Generic,), {"__module__": module})
    with pytest.raises(TypeError, match=f"^A is a {advice}$".replace("(", "\\(").replace(")", "\\)")):
        mf.matmul_fused(table(draw((5, 7))), draw((7, 6)))
    check(
        np.asarray(mf.matmul_fused(type(name, (Generic,), {"__module__": "pandasx"})(draw((5, 7))), draw((7, 6)))),
        draw((5, 7)),
        draw((7, 6)),
    )
