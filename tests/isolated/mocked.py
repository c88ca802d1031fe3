"""Calls beside array libraries that are mocked, half imported or changed while they are asked. Prints "done".

Argument: one of the functions below.
"""

import contextlib
import sys
import types
from unittest.mock import MagicMock

import numpy as np
import pytest
from common import Generic

import matmul_fused as mf

A, B = np.ones((5, 7), np.float32), np.ones((7, 6), np.float32)


def fresh():
    """An operand of a type that was not seen before."""
    return type("E", (Generic,), {})(A)


def right(*operands, **keywords):
    result = mf.matmul_fused(*operands, **keywords)
    assert (np.asarray(np.from_dlpack(result)) == 7).all()


def fails(error, text, *operands, **keywords):
    with pytest.raises(error, match=text) as caught:
        mf.matmul_fused(*operands, **keywords)
    assert type(caught.value) is error


def mocks():
    """Modules that are mocks have no arrays: every producer works as before."""
    names = ("torch", "jax", "jax.core", "cupy", "cupy.cuda", "numpy.ma", "ml_dtypes")
    for name in names:
        sys.modules[name] = MagicMock()
        right(fresh(), B)
    for name in names:
        sys.modules[name] = types.ModuleType(name)
        right(fresh(), B)
    for name in names:
        sys.modules[name] = None
        right(fresh(), B)


def ml_dtypes():
    """What is no 2-byte dtype is not bfloat16."""
    others = (MagicMock(), types.ModuleType("ml_dtypes"), types.SimpleNamespace(bfloat16=np.float16))
    others += tuple(types.SimpleNamespace(bfloat16=x) for x in (object, np.object_, 3, np.dtype("f2"), list))
    for other in others:
        sys.modules["ml_dtypes"] = other
        fails(TypeError, "a bfloat16 result for NumPy operands needs ml_dtypes", A, B, out_dtype="bfloat16")
    del sys.modules["ml_dtypes"]
    import ml_dtypes

    assert mf.matmul_fused(A, B, out_dtype="bfloat16").dtype == ml_dtypes.bfloat16


class Exchanging(Generic):
    """An array whose type has torch's exchange API, or looks like it."""


def fake_torch(core):
    module = types.ModuleType("torch")
    module.Tensor, module._C, module.is_grad_enabled = Exchanging, core, lambda: False
    Exchanging.__torch_dispatch__ = None
    sys.modules["torch"] = module


def torch():
    """Modules called torch that are not laid out as torch is."""
    from fake_dlpack import make_library

    Exchanging.__dlpack_c_exchange_api__ = make_library().__dlpack_c_exchange_api__
    for base in (3, None, "TensorBase", MagicMock(), MagicMock, object, Exchanging, type):
        fake_torch(types.SimpleNamespace(TensorBase=base))
        fails(NotImplementedError, "this torch has no Tensor.requires_grad", Exchanging(A), B)
    for core in (None, 3, object()):
        fake_torch(core)
        fails(TypeError, "whose type raised", Exchanging(A), B)


class Vanishing(type):
    """Its classes remove torch from sys.modules when they are asked for an attribute."""

    def __getattribute__(cls, name):
        if name in ("__torch_dispatch__", "__dlpack_c_exchange_api__"):
            sys.modules.pop("torch", None)
        return super().__getattribute__(name)


class VanishingModule(types.ModuleType):
    def __getattribute__(self, name):
        sys.modules.pop("torch", None)
        return super().__getattribute__(name)


def vanishes():
    """torch goes while it is asked: an error, or what the object is without torch."""
    tensor = Vanishing("Tensor", (Generic,), {"__torch_dispatch__": None})
    for make in (types.ModuleType, VanishingModule):
        for name in ("Tensor", "_C"):
            module = make("torch")
            vars(module).update(Tensor=tensor, is_grad_enabled=lambda: False, _C=types.SimpleNamespace(TensorBase=3))
            vars(module).pop(name if name != "Tensor" else "", None)
            sys.modules["torch"] = module
            with contextlib.suppress(TypeError, NotImplementedError):
                right(tensor(A), B)
    sys.modules.pop("torch", None)
    right(fresh(), B)


def another_torch():
    """The real torch, then a module that says its tensors are of another type with the same exchange API."""
    import torch

    t = torch.ones(5, 7)
    assert (mf.matmul_fused(t, torch.ones(7, 6)) == 7).all()
    Exchanging.__dlpack_c_exchange_api__ = torch.Tensor.__dlpack_c_exchange_api__
    fake_torch(torch._C)
    fails(TypeError, "another torch", Exchanging(A), B)
    assert (mf.matmul_fused(t, torch.ones(7, 6)) == 7).all()
    sys.modules["torch"] = torch
    assert (mf.matmul_fused(t, torch.ones(7, 6)) == 7).all()


globals()[sys.argv[1]]()
print("done")
