"""Arrays of every library: the result belongs to that of A, dtypes go by any of their names, and nothing is shared."""

import itertools
import os
import pickle
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


# --- torch ---


def test_torch_parameters_and_subclasses():
    torch = pytest.importorskip("torch")

    class Mine(torch.Tensor):
        pass

    A, B = draw((5, 7)), draw((7, 6))
    parameter = torch.nn.Parameter(to_torch(A), requires_grad=False)
    for a in (parameter, to_torch(A).as_subclass(Mine)):
        got = mf.matmul_fused(a, torch.nn.Parameter(to_torch(B), requires_grad=False))
        assert type(got) is torch.Tensor
        assert not got.requires_grad
        check(from_torch(got), A, B)


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_torch_without_gradients(mode):
    torch = pytest.importorskip("torch")
    values = operands()
    tensors = {name: to_torch(x).requires_grad_() for name, x in values.items()}
    with pytest.raises(ValueError, match=r"^A requires grad, but matmul_fused records no gradients; pass A.detach\(\)"):
        mf.matmul_fused(**tensors)
    with getattr(torch, mode)():
        got = mf.matmul_fused(**tensors, activation="tanh")
        made_inside = torch.ones(6, 3)
    assert not got.requires_grad
    assert got.grad_fn is None
    check(from_torch(got), **values, activation="tanh")
    assert mf.matmul_fused(got, made_inside).shape == (5, 3)  # inference tensors are inputs like others


def test_torch_out_that_requires_grad():
    torch = pytest.importorskip("torch")
    A, B = draw((5, 7)), draw((7, 6))
    out = torch.zeros(5, 6, requires_grad=True)
    with pytest.raises(ValueError, match=r"^out requires grad"):
        mf.matmul_fused(A, B, out=out)
    with torch.no_grad():
        assert mf.matmul_fused(A, B, out=out) is out
    check(from_torch(out), A, B)


@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_out_with_strides_and_offsets(dtype):
    torch = pytest.importorskip("torch")
    A, B = draw((5, 7), dtype), draw((7, 6), dtype)
    storage = torch.full((400,), 9.0, dtype=getattr(torch, dtype))
    for view in (
        storage[13:43].view(5, 6),
        storage[1:].as_strided((5, 6), (20, 3)),
        storage[200:260].view(6, 10)[:, ::2].T,
        storage.as_strided((5, 6), (1, 5), 300),
    ):
        storage.fill_(9.0)
        assert mf.matmul_fused(to_torch(A), B, None, "silu", out=view) is view
        check(from_torch(view), A, B, None, "silu")
        view.fill_(9.0)
        assert bool((storage == 9.0).all())


@pytest.mark.parametrize("shape", [(3, 7), (2, 0), (0, 7), (2, 1, 3, 7), (700, 900)])
def test_torch_results_are_ordinary_tensors(shape):
    """They own their memory, at an address that vector instructions like, and can all that a tensor can."""
    torch = pytest.importorskip("torch")
    a, b = torch.randn(*shape[:-1], 5), torch.randn(5, shape[-1])
    got = mf.matmul_fused(a, b, None, "relu")
    assert got.shape == shape
    check(got.numpy().copy(), a.numpy(), b.numpy(), None, "relu")
    assert got.is_contiguous()
    assert got.storage_offset() == 0
    assert got.data_ptr() % 64 == 0 or not got.numel()
    assert got.untyped_storage().nbytes() == 4 * got.numel()
    assert not got.requires_grad
    assert got.is_leaf
    assert not got.is_inference()
    flat = got.view(-1)
    kept = got.clone()
    del got
    assert torch.equal(flat, kept.view(-1))
    flat.mul_(2)
    assert torch.equal(pickle.loads(pickle.dumps(flat)), 2 * kept.view(-1))
    assert torch.equal(flat, 2 * kept.view(-1))
    flat.requires_grad_().sum().backward()
    assert torch.equal(flat.grad, torch.ones_like(flat))


@pytest.mark.parametrize(
    "change", ["del torch.Tensor.__dlpack_c_exchange_api__", "torch.Tensor.__dlpack_c_exchange_api__ = other_major"]
)
def test_torch_without_the_exchange_api_is_refused(change):
    """Through plain DLPack the result would be an mf.Array, streams and gradients unseen: never silently."""
    pytest.importorskip("torch")
    code = f"""
import numpy as np, pytest, torch, matmul_fused as mf
from fake_dlpack import make_library
other_major = make_library(major=2).__dlpack_c_exchange_api__
{change}
a, t = np.ones((3, 3), np.float32), torch.ones(3, 3)
text = f" is a tensor of torch {{torch.__version__}}, which has no DLPack C exchange API; matmul_fused needs torch 2."
for name, call in [
    ("A", lambda: mf.matmul_fused(t, a)), ("A", lambda: mf.explain(t, a)), ("B", lambda: mf.prepack(t)),
    ("bias", lambda: mf.matmul_fused(a, a, t[0])), ("out", lambda: mf.matmul_fused(a, a, out=torch.nn.Parameter(t))),
]:
    with pytest.raises(NotImplementedError) as error:
        call()
    assert str(error.value).startswith(name + text), error.value
    assert str(error.value).endswith(" or later")
"""
    python("-c", code, environment={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))})


NEGATIVE_VIEWS = {
    "itself": lambda x: x,
    "mT": lambda x: x.mT,
    "one column": lambda x: x[:, :1],
    "one row": lambda x: x[:1],
    "every third column": lambda x: x[:, ::3],
    "tail": lambda x: x[1:, 3:],
    "diagonal": lambda x: x.diagonal()[None],
    "element": lambda x: x[2, 3].reshape(1, 1),
    "unsqueezed": lambda x: x[None],
    "expanded": lambda x: x[:1, :1].expand(4, 6),
    "as_strided": lambda x: x.as_strided((3, 4), (13, 1)),
}


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("view", NEGATIVE_VIEWS)
def test_torch_negative_bit(view, dtype):
    torch = pytest.importorskip("torch")
    x = NEGATIVE_VIEWS[view](torch.randn(8, 8, dtype=getattr(torch, dtype)).conj().imag)
    assert x.is_neg()
    w = torch.randn(x.shape[-1], 5, dtype=x.dtype)
    with pytest.raises(ValueError, match=r"^A has its negative bit set; pass A\.resolve_neg"):
        mf.matmul_fused(x, w)
    check(from_torch(mf.matmul_fused(x.resolve_neg(), w)), from_torch(x.resolve_neg()), from_torch(w))


def test_torch_inputs_with_offsets():
    torch = pytest.importorskip("torch")
    buffer = draw(300)
    storage = torch.from_numpy(buffer)
    A, B = storage[31:66].view(5, 7), storage.as_strided((7, 6), (-1 + 2, 9), 101)
    a, b = buffer[31:66].reshape(5, 7), np.lib.stride_tricks.as_strided(buffer[101:], (7, 6), (4, 36))
    check(from_torch(mf.matmul_fused(A, B, storage[3:9])), a, b, buffer[3:9])


@pytest.mark.parametrize("how", ["default device", "context", "default dtype", "deterministic"])
def test_torch_settings_do_not_change_the_result(how):
    """The result is float32 on the CPU whatever torch makes by default."""
    torch = pytest.importorskip("torch")
    A, B = draw((5, 7)), draw((7, 6))
    a, b = to_torch(A), to_torch(B)
    try:
        if how == "default device":
            torch.set_default_device("meta")
        elif how == "default dtype":
            torch.set_default_dtype(torch.float64)
        elif how == "deterministic":
            torch.use_deterministic_algorithms(True)
        with torch.device("meta" if how == "context" else a.device):
            got = mf.matmul_fused(a, b)
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)
    assert (got.device.type, got.dtype) == ("cpu", torch.float32)
    check(from_torch(got), A, B)


@pytest.mark.parametrize("mode", ["FakeTensorMode", "functionalize", "grad", "vmap"])
def test_torch_modes_do_not_crash(mode):
    """Under some, torch's own allocator makes tensors without memory: a result cannot be written."""
    pytest.importorskip("torch")
    done = python("-W", "ignore", ISOLATED / "torch_modes.py", mode)
    assert done.stdout.startswith(("refused: ", "computed"))
    assert len(done.stdout.splitlines()) == 1  # a sentence, no C++ backtrace


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
