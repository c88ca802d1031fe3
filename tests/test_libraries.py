"""Arrays of every library: the result belongs to that of A, dtypes go by any of their names, and nothing is shared."""

import itertools
import os
import sys

import numpy as np
import pytest

import matmul_fused as mf
from support import DTYPES, ISOLATED, Generic, check, draw, dtype_of, python, same_bits, to_numpy

SHAPES = {"A": (5, 7), "B": (7, 6), "bias": (6,), "C": (5, 6), "multiply": (5, 6)}
TORCH_VIEWS = {"float32": "int32", "float64": "int64", "float16": "int16", "bfloat16": "int16"}


def to_torch(x):
    """A torch tensor with a copy of x, bfloat16 too."""
    torch = pytest.importorskip("torch")
    bits = torch.from_numpy(np.array(x).view(TORCH_VIEWS[x.dtype.name]))
    return bits.view(getattr(torch, x.dtype.name))


def from_torch(x):
    torch = pytest.importorskip("torch")
    name = str(x.dtype).removeprefix("torch.")
    bits = x.detach().contiguous().view(getattr(torch, TORCH_VIEWS[name]))
    return bits.numpy().view(dtype_of(name)).copy()


def to_jax(x):
    jax = pytest.importorskip("jax")
    return jax.device_put(np.array(x))


def to_array(x):
    """An mf.Array with the values of x, a vector or a matrix."""
    return mf.prepack(x).unpack() if x.ndim == 2 else mf.matmul_fused(Generic(np.eye(len(x), dtype=x.dtype)), x)


def is_torch(x):
    return type(x) is pytest.importorskip("torch").Tensor


def is_jax(x):
    return isinstance(x, pytest.importorskip("jax").Array)


# library: (from NumPy, is the result of its kind, to NumPy)
LIBRARIES = {
    "numpy": (lambda x: x, lambda x: type(x) is np.ndarray, lambda x: x),
    "torch": (to_torch, is_torch, from_torch),
    "jax": (to_jax, is_jax, np.array),
    "Array": (to_array, lambda x: type(x) is mf.Array, to_numpy),
    "DLPack": (Generic, lambda x: type(x) is mf.Array, to_numpy),
}


def operands(dtype="float32"):
    return {name: draw(shape, dtype) for name, shape in SHAPES.items()}


# --- the result belongs to the library of A ---


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("library", LIBRARIES)
def test_result_is_of_the_library_of_a(library, dtype):
    convert, is_own, back = LIBRARIES[library]
    A, B = draw((5, 7), dtype), draw((7, 6), dtype)
    if library == "DLPack" and dtype == "bfloat16":
        a, b = Generic(to_torch(A)), Generic(to_torch(B))
    elif library == "jax" and dtype == "float64":
        jax = pytest.importorskip("jax")
        with jax.enable_x64(True):
            got = mf.matmul_fused(to_jax(A), to_jax(B))
            assert is_own(got)
            assert got.dtype == "float64"
            check(np.array(got), A, B)
        return
    else:
        a, b = convert(A), convert(B)
    got = mf.matmul_fused(a, b)
    assert is_own(got)
    got = back(got)
    assert got.dtype == dtype_of(dtype)
    check(got, A, B)


@pytest.mark.parametrize(("first", "rest"), list(itertools.product(LIBRARIES, LIBRARIES)))
def test_libraries_mix(first, rest):
    values = operands()
    mixed = {name: LIBRARIES[rest][0](x) for name, x in values.items()}
    mixed["A"] = LIBRARIES[first][0](values["A"])
    got = mf.matmul_fused(**mixed, activation="silu")
    assert LIBRARIES[first][1](got)
    check(LIBRARIES[first][2](got), **values, activation="silu")


@pytest.mark.parametrize("library", ["numpy", "torch", "Array"])
@pytest.mark.parametrize("first", LIBRARIES)
def test_out_of_any_library_is_returned_itself(first, library):
    values = operands()
    out = LIBRARIES[library][0](np.full((5, 6), np.nan, np.float32))
    z = np.empty((5, 6))
    values["A"] = LIBRARIES[first][0](values["A"])
    got = mf.matmul_fused(**values, activation="gelu", out=out, preactivation=z)
    assert got is out
    check(LIBRARIES[library][2](out), **operands(), activation="gelu")


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("a_shape", "b_shape", "shape"),
    [
        ((7,), (7,), ()),
        ((7,), (7, 6), (6,)),
        ((5, 7), (7,), (5,)),
        ((0, 7), (7, 6), (0, 6)),
        ((5, 0), (0, 6), (5, 6)),
        ((2, 0, 7), (7, 6), (2, 0, 6)),
        ((2, 1, 5, 7), (3, 7, 6), (2, 3, 5, 6)),
        ((1, 2, 1, 2, 1, 2, 5, 7), (1, 2, 1, 2, 1, 7, 6), (1, 2, 2, 2, 2, 2, 5, 6)),
    ],
)
def test_every_rank_from_0_to_8(library, a_shape, b_shape, shape):
    convert = Generic if library == "Array" else LIBRARIES[library][0]
    A, B = draw(a_shape), draw(b_shape)
    got = mf.matmul_fused(convert(A), convert(B), activation="relu")
    assert LIBRARIES[library][1](got)
    assert tuple(got.shape) == shape
    check(LIBRARIES[library][2](got), A, B, None, "relu")


@pytest.mark.parametrize("library", LIBRARIES)
def test_nine_axes_are_refused(library):
    convert = Generic if library == "Array" else LIBRARIES[library][0]  # no Array has nine axes
    x = convert(draw((1,) * 9))
    with pytest.raises(NotImplementedError, match=r"^A has 9 axes; at most 8 are supported, merge some by reshape$"):
        mf.matmul_fused(x, draw((1, 1)))
    with pytest.raises(NotImplementedError, match=r"^bias has 9 axes"):
        mf.matmul_fused(draw((1, 1)), draw((1, 1)), x)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("shape", [(7,), ()])
def test_scalars_and_vectors_as_epilogue_operands(library, shape):
    convert = Generic if library == "Array" else LIBRARIES[library][0]
    values = {name: draw(shape) for name in ("bias", "C", "multiply")}
    got = mf.matmul_fused(draw((5, 7)), draw((7, 7)), **{name: convert(x) for name, x in values.items()})
    check(got, draw((5, 7)), draw((7, 7)), **values)


@pytest.mark.parametrize("library", LIBRARIES)
def test_results_share_no_memory_with_inputs(library):
    """Not even where the result has an operand's values: A @ 1, 0 * A @ B + C."""
    convert, _, back = LIBRARIES[library]
    x, eye = draw((6, 6)), np.eye(6, dtype=np.float32)
    first, second = convert(x), convert(eye)
    product = mf.matmul_fused(first, second)
    only_c = mf.matmul_fused(second, second, alpha=0, C=first)
    assert same_bits(back(product), x)
    assert same_bits(back(only_c), x)
    if library == "DLPack":
        first = first.array
    views = [np.from_dlpack(array) for array in (first, product, only_c)]
    for one, other in itertools.combinations(views, 2):
        assert not np.shares_memory(one, other)


# --- NumPy ---


def test_subclasses_of_ndarray_give_plain_arrays(tmp_path):
    values = operands()
    for name, x in values.items():
        x.tofile(tmp_path / name)
    mapped = {name: np.memmap(tmp_path / name, np.float32, "r", shape=x.shape) for name, x in values.items()}
    got = mf.matmul_fused(**mapped, activation="gelu")
    assert type(got) is np.ndarray
    check(got, **values, activation="gelu")
    out = np.memmap(tmp_path / "out", np.float32, "w+", shape=(5, 6))
    assert mf.matmul_fused(**mapped, out=out) is out
    check(np.asarray(out), **values)
    with pytest.raises(ValueError, match=r"^out is read-only"):
        mf.matmul_fused(values["A"], values["B"], out=mapped["C"])


def test_new_numpy_results_own_their_memory():
    got = mf.matmul_fused(draw((5, 7)), draw((7, 6)))
    assert got.flags.owndata
    assert got.flags.c_contiguous
    assert got.flags.writeable


def test_without_ml_dtypes():
    for libraries in ((), ("torch",)):
        for name in libraries:
            pytest.importorskip(name)
        done = python("-W", "error", ISOLATED / "no_ml_dtypes.py", *libraries)
        assert (done.stdout, done.stderr) == ("done\n", "")


# --- dtypes by every name ---


def spellings(dtype):
    numpy_dtype = dtype_of(dtype)
    yield from (dtype, numpy_dtype, numpy_dtype.type)
    if dtype == "float64":
        yield from (float, "f8", "d", np.double)
    for library in ("torch", "jax.numpy"):
        try:
            module = __import__(library, fromlist=["float32"])
        except ImportError:
            continue
        yield getattr(module, dtype)
        if library == "jax.numpy":
            yield module.dtype(dtype)


@pytest.mark.parametrize("library", ["numpy", "torch", "DLPack"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_out_dtype_by_every_name(dtype, library):
    A, B, C = draw((5, 7)), draw((7, 6)), draw((5, 6), dtype)
    convert, is_own, back = LIBRARIES[library]
    for spelling in spellings(dtype):
        got = mf.matmul_fused(convert(A), B, None, "gelu", C=C, out_dtype=spelling)
        assert is_own(got), spelling
        assert back(got).dtype == dtype_of(dtype), spelling
        check(back(got), A, B, None, "gelu", C=C)
        out = np.empty((5, 6), dtype_of(dtype))
        assert mf.matmul_fused(A, B, out=out, out_dtype=spelling) is out


def test_out_dtype_for_jax():
    jax = pytest.importorskip("jax")
    A, B = draw((5, 7)), draw((7, 6))
    for dtype in ("float32", "float16", "bfloat16"):
        got = mf.matmul_fused(to_jax(A), B, out_dtype=dtype)
        assert got.dtype == dtype_of(dtype)
        check(np.array(got), A, B)
    with jax.enable_x64(True):
        got = mf.matmul_fused(to_jax(A), B, out_dtype="float64")
        assert got.dtype == "float64"
        check(np.array(got), A, B)


def test_a_jax_array_with_an_exchange_api_stays_read_only():
    """None has one yet; a view by it would not say whether the memory may be written."""
    pytest.importorskip("jax")
    code = """
import jax.numpy as jnp, numpy as np, pytest, matmul_fused as mf
from fake_dlpack import make_library
x = jnp.ones((3, 3), "float32")
type(x).array = property(np.asarray)
type(x).__dlpack_c_exchange_api__ = make_library().__dlpack_c_exchange_api__
with pytest.raises(ValueError, match="out is read-only"):
    mf.matmul_fused(np.ones((3, 3), np.float32), np.ones((3, 3), np.float32), out=x)
assert (x == 1).all()
"""
    python("-c", code, environment={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))})


def test_jax_is_asked_about_float64_before_anything_is_written():
    pytest.importorskip("jax")
    z = np.full((5, 6), np.nan)
    with pytest.raises(TypeError, match="jax makes float32 of a float64 result; set jax_enable_x64"):
        mf.matmul_fused(to_jax(draw((5, 7))), draw((7, 6)), out_dtype="float64", preactivation=z)
    assert np.isnan(z).all()


@pytest.mark.parametrize(
    ("spelling", "text"),
    [
        ("int32", "out_dtype is int32; it must be float32, float64, float16 or bfloat16"),
        (np.dtype(">f4"), "out_dtype is >f4; it must be"),
        (np.complex64, "out_dtype is complex64; it must be"),
        (np.longdouble, "out_dtype is float128; it must be"),
        (bool, "out_dtype is bool; it must be"),
        ("float31", "out_dtype is no dtype; it must be"),
        (3.5, "out_dtype is no dtype; it must be"),
        (np.ones(3), "out_dtype is no dtype; it must be"),
        ([("x", "f4")], "out_dtype is .*; it must be"),
    ],
)
def test_other_dtypes_are_refused(spelling, text):
    with pytest.raises(TypeError, match=f"^{text}"):
        mf.matmul_fused(draw((5, 7)), draw((7, 6)), out_dtype=spelling)


def test_other_torch_dtypes_are_refused():
    torch = pytest.importorskip("torch")
    for dtype in (torch.int32, torch.complex64, torch.float8_e4m3fn, torch.bool):
        with pytest.raises(TypeError, match=f"^out_dtype is {dtype}; it must be float32"):
            mf.matmul_fused(draw((5, 7)), draw((7, 6)), out_dtype=dtype)
