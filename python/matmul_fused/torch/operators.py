"""What the matcher knows of single nodes of an FX graph: which operators there are, and what a node is.

Role on the path of a call: none; match.py asks while a model is patched or compiled.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx


def _functions(names: str, *modules: Any) -> set[Any]:
    return {getattr(module, name) for name in names.split() for module in modules if hasattr(module, name)}


_F = torch.nn.functional
LINEAR = _functions("linear", _F, torch._C._nn)
MATMUL = _functions("matmul mm", torch, operator)
ADD = _functions("add iadd", torch, operator)
MUL = _functions("mul imul", torch, operator)
DROPOUT = _functions("dropout", _F, torch)
# Activations by one call: what is left of them is worth a line in the report.
ACTIVATIONS = _functions(
    "relu relu_ relu6 gelu silu silu_ leaky_relu leaky_relu_ elu elu_ selu selu_ celu celu_ hardswish hardsigmoid "
    "hardtanh softplus mish softsign logsigmoid threshold softshrink hardshrink tanhshrink tanh sigmoid log_sigmoid",
    _F,
    torch,
    torch._C._nn,
)
ACTIVATION_METHODS = {"relu", "relu_", "tanh", "tanh_", "sigmoid", "sigmoid_"}
ELEMENTWISE = (
    ACTIVATIONS
    | ADD
    | MUL
    | _functions("sub isub truediv itruediv neg pow", operator)
    | _functions("sub div neg pow square sqrt rsqrt reciprocal exp expm1 log1p erf abs clamp clip clamp_min", torch)
    | _functions("clamp_max true_divide negative multiply", torch)
)
ELEMENTWISE_METHODS = ACTIVATION_METHODS | {
    *("add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_", "neg", "pow", "square", "sqrt", "rsqrt", "exp"),
    *("erf", "abs", "clamp", "clip", "clamp_min", "clamp_max"),
}


def word(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def argument(node: fx.Node, position: int, name: str, default: Any = None) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def calls(node: Any, functions: set[Any], *methods: str) -> bool:
    if not isinstance(node, fx.Node):
        return False
    return (node.op == "call_function" and node.target in functions) or (
        node.op == "call_method" and node.target in methods
    )


def fake(node: Any) -> Any:
    """The fake tensor that Dynamo has for a node, if any."""
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def idle(node: fx.Node) -> bool:
    """A dropout that drops nothing."""
    if not calls(node, DROPOUT):
        return False
    return argument(node, 2, "training", True) is False or argument(node, 1, "p", 0.5) == 0


def alike(node: fx.Node, other: fx.Node) -> bool:
    """Same shape and dtype, as far as they are known."""
    a, b = fake(node), fake(other)
    return a is None or b is None or (a.dtype == b.dtype and a.shape == b.shape)


_WRITES = {
    *("iadd", "iand", "iconcat", "ifloordiv", "ilshift", "imatmul", "imod", "imul", "ior", "ipow", "irshift", "isub"),
    *("itruediv", "ixor", "setitem", "delitem"),
}


def _in_place(node: fx.Node) -> Any:
    """Its argument `inplace`, which may be given by position, too."""
    code = getattr(node.target, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code is not None else ()
    return argument(node, names.index("inplace") if "inplace" in names else len(node.args), "inplace")


def _written(node: fx.Node, overload: Any) -> bool:
    """Does this overload write to what the call gives? Most calls give no `out`."""
    written = [part for part in overload._schema.arguments if part.alias_info and part.alias_info.is_write]
    return any(not part.kwarg_only or part.name in node.kwargs for part in written)


def barrier(node: fx.Node) -> bool:
    """Does it write to memory, or change a mode, so that no call may be moved over it?"""
    if node.op == "call_method":
        name = node.target
        return name.strip("_") in _WRITES if name.endswith("__") else name.endswith("_")
    if node.op != "call_function":
        return False
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return _written(node, target)
    if isinstance(target, torch._ops.OpOverloadPacket):
        return any(_written(node, getattr(target, name)) for name in target.overloads())
    if isinstance(target, torch._ops.OperatorBase):  # graphs within, kernels of Triton
        return True
    name = word(node)
    if "out" in node.kwargs or _in_place(node):
        return True
    if getattr(target, "__module__", "") == "_operator":
        return name in _WRITES
    return name.endswith("_") or "autocast" in name or "grad_enabled" in name or "inference_mode" in name


DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def is_plain(value: Any) -> bool:
    """A dense tensor of no subclass, on a device that the operator is registered for."""
    kind = type(value)
    dense = kind in (torch.Tensor, torch.nn.Parameter, torch._subclasses.FakeTensor)
    return dense and value.layout == torch.strided and value.device.type in ("cpu", "cuda")
