"""torch tensors as operands: parameters, views, settings and modes of torch; the result is an ordinary tensor."""

import os
import pickle
import sys

import numpy as np
import pytest

import matmul_fused as mf
from support import DTYPES, ISOLATED, check, draw, python
from test_libraries import from_torch, operands, to_torch


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
