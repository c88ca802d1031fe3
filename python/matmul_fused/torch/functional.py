"""`linear` and `mlp`: the calls a model makes, and which way each goes.

An eager call without gradients goes straight to the extension. torch.compile sees the registered operator of op.py,
autograd a torch.autograd.Function around the call.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch.autograd import forward_ad

from matmul_fused import _core

from . import op
from .activations import GATED, Activation, _halves, keeps, resolve

# Looked up once: each of them is a part of every call.
_linear = _core._linear
_tracing = torch.compiler.is_dynamo_compiling
_autocasting = torch._C._is_any_autocast_enabled
_modes = torch._C._len_torch_dispatch_stack  # make_fx, FakeTensorMode, ...: what looks on must see an operator
_scripting = torch._C._is_tracing  # torch.jit.trace, which keeps what runs outside of torch as a constant


Weights: TypeAlias = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


def linear(
    x: torch.Tensor,
    weight: Weights,
    bias: Weights | None = None,
    activation: Any = None,
    *,
    gate_layout: str | None = None,
) -> torch.Tensor:
    """activation(x @ weight.T + bias) in one kernel: torch.nn.functional.linear, then the activation.

    x: (..., K). weight: (N, K), as torch.nn.Linear has it; for a gated activation (2 I, K), or the pair (gate, up) of
    (I, K) each. bias: (N,); a pair with a pair. activation: a name of matmul_fused.activations or gated_activations,
    (name, parameter, ...), or a function or module of torch that is one. gate_layout: where the gate and up columns of
    one weight lie, as in matmul_fused. The result has the shape (..., N), or (..., I), and the dtype of x.

    Gradients are recorded for x, weight and bias; those of gradients are not. Under autocast, operands are cast as
    those of torch.nn.functional.linear are. torch.compile keeps it as one operator without a graph break,
    torch.jit.trace as torch's own operators.
    """
    if _tracing():
        return _general(x, weight, bias, activation, gate_layout)
    try:
        if not _autocasting() and not _modes() and forward_ad._current_level < 0 and not _scripting():
            try:
                if gate_layout is None:
                    result = _linear(x, weight, bias, activation)
                else:
                    result = _linear(x, weight, bias, activation, gate_layout=gate_layout)
            except TypeError:
                result = NotImplemented
                if not (isinstance(weight, tuple) or _for_dispatcher(x, weight, bias) or _distributed(x, weight, bias)):
                    _check_types(x, weight, bias)
                    raise
            if result is not NotImplemented:
                return result
        return _general(x, weight, bias, activation, gate_layout)
    except (TypeError, ValueError) as error:
        error.add_note("in matmul_fused.torch.linear, A is x and B is weight.T")
        raise


def straight(x: torch.Tensor, weight: Weights, bias: Any, activation: Any) -> Any:
    """linear() where no mode is active, nothing is traced and no weight is packed: the call and no question before it.

    NotImplemented: a call for linear(), which refuses it or records gradients. None: the same inside of torch.func,
    which linear() refuses.
    """
    if _autocasting():
        return NotImplemented
    try:
        result = _linear(x, weight, bias, activation)
    except (TypeError, ValueError):
        result = NotImplemented
    return None if result is NotImplemented and torch._C._functorch.peek_interpreter_stack() is not None else result


def mlp(
    x: torch.Tensor,
    gate_up: Weights,
    down: torch.Tensor,
    activation: Any = "swiglu",
    *,
    gate_up_bias: Weights | None = None,
    down_bias: torch.Tensor | None = None,
    gate_layout: str | None = None,
) -> torch.Tensor:
    """linear(linear(x, gate_up, gate_up_bias, activation), down, down_bias): the MLP of a transformer in two kernels.

    gate_up: (2 I, K), or the pair (gate, up) of (I, K) each, for a gated activation; (I, K) for another. down: (N, I).
    """
    hidden = linear(x, gate_up, gate_up_bias, activation, gate_layout=gate_layout)
    return linear(hidden, down, down_bias)


def _pair(value: Any, name: str) -> tuple[Any, Any]:
    if not isinstance(value, tuple):
        return value, None
    if len(value) != 2:
        raise ValueError(f"{name} is a tuple of {len(value)}; a pair is (gate, up)")
    return value


def _check_types(*operands: Any) -> None:
    for name, value in zip(("x", "weight", "bias"), operands, strict=True):
        for part in value if isinstance(value, tuple) and name != "x" else (value,):
            if not isinstance(part, torch.Tensor) and (part is not None or name != "bias"):
                kind = f"{type(part).__module__}.{type(part).__qualname__}".removeprefix("builtins.")
                raise TypeError(f"{name} is a {kind}; matmul_fused.torch takes torch tensors") from None


def _for_dispatcher(*operands: Any) -> bool:
    """Is one of them a tensor without memory, that only the registered operator can take?"""
    return any(
        isinstance(value, torch.Tensor) and (value.is_meta or torch._subclasses.fake_tensor.is_fake(value))
        for operand in operands
        for value in (operand if isinstance(operand, tuple) else (operand,))
    )


_PLAIN = (torch.Tensor, torch.nn.Parameter, type(None))


def _distributed(*operands: Any) -> bool:
    """Is one of them a DTensor, or a tensor that a collective still writes to? Told without importing their classes."""
    return any(
        type(operand) not in _PLAIN and (hasattr(operand, "placements") or hasattr(operand, "trigger_wait"))
        for operand in operands
    )


def _check_transforms(*tensors: Any) -> None:
    """Refuse what would lose a derivative."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise NotImplementedError(
            "matmul_fused.torch has no rules for torch.func (vmap, grad, jvp); call it outside of the transform"
        )
    if forward_ad._current_level >= 0 and any(
        tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors
    ):
        raise NotImplementedError("matmul_fused.torch has no forward-mode gradients; use torch.nn.functional.linear")


def _cast(tensor: Any, device: str, dtype: Any) -> Any:
    """As autocast casts an operand of linear: floating point on its device, but not float64."""
    if tensor is None or tensor.device.type != device or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _general(x: Any, weight: Any, bias: Any, activation: Any, gate_layout: str | None) -> Any:
    """Any call: traced, cast, with gradients, or with a pair of weights."""
    _check_types(x, weight, bias)
    weight, up = _pair(weight, "weight")
    bias, up_bias = _pair(bias, "bias")
    if not _tracing():
        _check_transforms(x, weight, bias, up, up_bias)
    device = x.device.type
    if device != "meta" and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        x, weight, bias, up, up_bias = (_cast(tensor, device, dtype) for tensor in (x, weight, bias, up, up_bias))
    found = resolve(activation)
    layout = found.gate_layout or gate_layout
    if found.name in GATED and up is None and layout is None:  # Dynamo of torch 2.10 cannot ask found.gated
        layout = "halves"
    named = Activation(found.name, found.parameters, layout)
    if weight.dim() == 1 and up is None:
        row = None if bias is None else bias.reshape(1)
        return _chosen(x, weight[None], row, None, None, named).squeeze(-1)
    return _chosen(x, weight, bias, up, up_bias, named)


def _chosen(x: Any, weight: Any, bias: Any, up: Any, up_bias: Any, activation: Activation) -> Any:
    tensors = (x, weight, bias, up, up_bias)
    if _distributed(*tensors):
        from . import sharded

        return sharded.call(*tensors, activation, _chosen)
    recorded = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)
    if not _tracing() and _scripting():
        return _by_torch(*tensors, activation)
    if _tracing() or _modes() or _for_dispatcher(*tensors):
        arguments = (*tensors, activation.name, list(activation.parameters), activation.gate_layout)
        if recorded and keeps(activation.name) == "z":
            return op.linear_z(*arguments)[0]
        return op.linear(*arguments)
    if recorded:
        return _Recorded.apply(*tensors, activation)
    return op.call(*tensors, activation)


def _by_torch(x: Any, weight: Any, bias: Any, up: Any, up_bias: Any, activation: Activation) -> Any:
    """A call by torch's own operators, which others can run without this package."""
    from matmul_fused.testing import formulas

    z = _linear_by_torch(x, weight, bias)
    if activation.gated:
        parts = _halves(z, activation.gate_layout) if up is None else (z, _linear_by_torch(x, up, up_bias))
        result = formulas.GATED[activation.name].torch(torch, *parts, *activation.parameters)
    else:
        result = formulas.ACTIVATIONS[activation.name].torch(torch, z, *activation.parameters)
    return result.to(x.dtype)  # autocast widens some


def _linear_by_torch(x: Any, weight: Any, bias: Any) -> Any:
    if bias is None or bias.dim() == 1:
        return torch.nn.functional.linear(x, weight, bias)
    return torch.nn.functional.linear(x, weight) + bias


def _gemm(x: Any, weight: Any) -> Any:
    return _core.matmul_fused(x, weight.t())


class _Refused(torch.autograd.Function):  # type: ignore[misc]
    """Hands gradients on, and refuses to be differentiated by what they are of: the first count tensors."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Any) -> Any:
        return tensors[count:]

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(
            "matmul_fused.torch has no second derivatives; use torch.nn.functional.linear and torch's activation "
            "where a gradient is differentiated again"
        )


class _Recorded(torch.autograd.Function):  # type: ignore[misc]
    """An eager call whose gradients are recorded."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, up: Any, up_bias: Any, activation: Activation) -> Any:
        kept = None
        if keeps(activation.name) == "z":
            result, kept = op.with_z(x, weight, bias, up, up_bias, activation)
        else:
            result = op.call(x, weight, bias, up, up_bias, activation)
            if keeps(activation.name) == "result":
                kept = result
        ctx.activation = activation
        ctx.bias_shapes = op.bias_shapes(bias, up_bias)
        ctx.biases = bias, up_bias  # for _Refused alone: as a saved one, a write to it would be an error
        ctx.save_for_backward(x, weight, up, kept)
        return result

    @staticmethod
    def backward(ctx: Any, d: Any) -> Any:
        x, weight, up, kept = ctx.saved_tensors
        with torch.no_grad():
            gradients = op.backward(ctx, d, x, weight, up, kept, _gemm)
        if torch.is_grad_enabled():  # create_graph=True
            present = [gradient for gradient in gradients if gradient is not None]
            origins = (d, x, weight, up, *ctx.biases)
            refused = iter(_Refused.apply(len(origins), *origins, *present))
            gradients = tuple(None if gradient is None else next(refused) for gradient in gradients)
        return (*gradients, None)
