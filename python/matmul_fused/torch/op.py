"""The registered operators: what torch.compile, fake tensors and autograd below the dispatcher see of a fused linear.

`matmul_fused::linear_v2` gives the result, `linear_z_v2` also z, rounded to the result's dtype, which the backward
pass needs for most activations, and `linear_add_v2` adds a tensor (a residual) to a linear. The numbers in the names
change with their meaning: Inductor's cache knows an operator by its name alone. Eager calls do not come here, see
functional.py.
"""

from __future__ import annotations

from typing import Any

import torch

from matmul_fused import _core

from .activations import Activation, derivative, keeps

_ARGUMENTS = (
    "(Tensor x, Tensor weight, Tensor? bias, Tensor? up, Tensor? up_bias, "
    "str activation, float[] parameters, str? gate_layout)"
)
VERSION = "v2"
# Lives as long as the process: the operators go with it.
_library = torch.library.Library("matmul_fused", "FRAGMENT")
_library.define(f"linear_v2{_ARGUMENTS} -> Tensor")
_library.define(f"linear_z_v2{_ARGUMENTS} -> (Tensor, Tensor)")
_library.define("linear_add_v2(Tensor x, Tensor weight, Tensor? bias, Tensor added) -> Tensor")
linear = torch.ops.matmul_fused.linear_v2.default
linear_add = torch.ops.matmul_fused.linear_add_v2.default
linear_z = torch.ops.matmul_fused.linear_z_v2.default


def call(
    x: Any,
    weight: Any,
    bias: Any,
    up: Any,
    up_bias: Any,
    activation: Activation,
    preactivation: Any = None,
) -> Any:
    """The call of the extension: weights (N, K), apart where up is given; no gradients."""
    B = weight.t() if up is None else (weight.t(), up.t())
    if up is not None and (bias is not None or up_bias is not None):
        bias = (0.0 if bias is None else bias, 0.0 if up_bias is None else up_bias)
    return _core.matmul_fused(
        x, B, bias, activation.spec, gate_layout=activation.gate_layout, preactivation=preactivation
    )


def shapes(x: Any, weight: Any, up: Any, activation: Activation) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Shapes of the result and of z."""
    columns = weight.shape[0] if up is None else 2 * weight.shape[0]
    rows = x.shape[:-1]
    return (*rows, columns // 2 if activation.gated else columns), (*rows, columns)


def with_z(x: Any, weight: Any, bias: Any, up: Any, up_bias: Any, activation: Activation) -> tuple[Any, Any]:
    """The result and z."""
    z = x.new_empty(shapes(x, weight, up, activation)[1])
    return call(x, weight, bias, up, up_bias, activation, z), z


def _run(x: Any, weight: Any, bias: Any, up: Any, up_bias: Any, name: str, parameters: Any, layout: Any) -> Any:
    with torch.no_grad():
        return call(x, weight, bias, up, up_bias, Activation(name, tuple(parameters), layout))


def _run_z(x: Any, weight: Any, bias: Any, up: Any, up_bias: Any, name: str, parameters: Any, layout: Any) -> Any:
    with torch.no_grad():
        return with_z(x, weight, bias, up, up_bias, Activation(name, tuple(parameters), layout))


def _run_add(x: Any, weight: Any, bias: Any, added: Any) -> Any:
    with torch.no_grad():
        return _core.matmul_fused(x, weight.t(), bias, C=added)


# --- what graphs of Inductor call, see lowering.py; turned: the weights are (K, N) ---


def _into(turned: bool, *operands: Any, **keywords: Any) -> None:
    run = _core.matmul_fused if turned else _core._linear
    if torch.is_grad_enabled():  # gradients are the graph's matter
        with torch.no_grad():
            result = run(*operands, **keywords)
    else:
        result = run(*operands, **keywords)
    if result is NotImplemented:
        raise NotImplementedError("a compiled graph called matmul_fused with what is no plain tensor of torch")


def _linear_into(
    x: Any, weight: Any, bias: Any = None, *, turned: bool, activation: Any, gate_layout: Any, out: Any
) -> None:
    _into(turned, x, weight, bias, activation, gate_layout=gate_layout, out=out)


def _pair_into(
    x: Any, gate: Any, up: Any, *biases: Any, turned: bool, activation: Any, gate_layout: Any, out: Any
) -> None:
    _into(turned, x, (gate, up), biases or None, activation, gate_layout=gate_layout, out=out)


def _add_into(x: Any, weight: Any, added: Any, bias: Any = None, *, turned: bool, out: Any) -> None:
    _into(turned, x, weight, bias, C=added, out=out)


# Here rather than among Inductor's kernels: a graph from its cache finds them wherever the operators are.
torch.ops.matmul_fused.linear_into = _linear_into
torch.ops.matmul_fused.pair_into = _pair_into
torch.ops.matmul_fused.add_into = _add_into


def _check_device(x: Any, other: Any, name: str) -> None:
    torch._check(x.device == other.device, lambda: f"x is on {x.device}, but {name} on {other.device}; move one")


def _check(x: Any, weight: Any, name: str) -> None:
    _check_device(x, weight, name)
    torch._check(weight.dim() == 2, lambda: f"{name} has {weight.dim()} axes, it must be (N, K)")
    torch._check(
        x.shape[-1] == weight.shape[1],
        lambda: f"x has {x.shape[-1]} columns, but {name} is {tuple(weight.shape)}; it must be (N, K)",
    )
    torch._check(x.dtype == weight.dtype, lambda: f"x is {x.dtype}, but {name} is {weight.dtype}; convert one")


def _check_added(x: Any, added: Any, name: str, to: tuple[Any, ...]) -> None:
    if added is None:
        return
    _check_device(x, added, name)
    fits = added.dtype in (x.dtype, torch.float32)
    torch._check(fits, lambda: f"x is {x.dtype}, but {name} is {added.dtype}; convert one")
    pairs = zip(reversed(added.shape), reversed(to), strict=False)
    torch._check(
        added.dim() <= len(to) and all(size == wanted or size == 1 for size, wanted in pairs),
        lambda: f"{name} is {tuple(added.shape)}, which does not broadcast to {to}",
    )


def _checked_shapes(x: Any, weight: Any, bias: Any, up: Any, up_bias: Any, name: str) -> tuple[Any, Any]:
    """`shapes` of operands that fit together: what runs without memory is refused as what runs is."""
    _check(x, weight, "weight")
    if up is not None:
        _check(x, up, "up")
        torch._check(up.shape == weight.shape, lambda: f"weight is {tuple(weight.shape)}, but up is {tuple(up.shape)}")
    activation = Activation(name)
    columns = weight.shape[0]
    if activation.gated and up is None:
        torch._check(columns % 2 == 0, lambda: f"weight has {columns} rows, a gated activation needs an even number")
    for part, words in ((bias, "bias"), (up_bias, "up_bias")):
        _check_added(x, part, words, (*x.shape[:-1], columns))
    return shapes(x, weight, up, activation)


def _fake(x: Any, weight: Any, bias: Any, up: Any, up_bias: Any, name: str, parameters: Any, layout: Any) -> Any:
    return x.new_empty(_checked_shapes(x, weight, bias, up, up_bias, name)[0])


def _fake_z(x: Any, weight: Any, bias: Any, up: Any, up_bias: Any, name: str, parameters: Any, layout: Any) -> Any:
    result, z = _checked_shapes(x, weight, bias, up, up_bias, name)
    return x.new_empty(result), x.new_empty(z)


def _fake_add(x: Any, weight: Any, bias: Any, added: Any) -> Any:
    _check(x, weight, "weight")
    shape = (*x.shape[:-1], weight.shape[0])
    _check_added(x, bias, "bias", shape)
    _check_added(x, added, "added", shape)
    return x.new_empty(shape)


for _name, _implementation, _shape in (
    ("linear_v2", _run, _fake),
    ("linear_z_v2", _run_z, _fake_z),
    ("linear_add_v2", _run_add, _fake_add),
):
    for _key in ("CPU", "CUDA"):  # ROCm's torch calls its devices CUDA, too
        _library.impl(_name, _implementation, _key)
    torch.library.register_fake(f"matmul_fused::{_name}", _shape, lib=_library)


# --- gradients ---


def plain(x: Any, weight: Any) -> Any:
    """x @ weight.T as the registered operator, for a traced backward pass."""
    return linear(x, weight, None, None, None, "none", [], None)


def _rows(tensor: Any) -> Any:
    """All axes but the last as one, which a -1 would not find of no elements."""
    return tensor.flatten(0, -2) if tensor.dim() > 1 else tensor[None]


def backward(ctx: Any, d: Any, x: Any, weight: Any, up: Any, kept: Any, gemm: Any) -> tuple[Any, ...]:
    """Gradients of x, weight, bias, up and up_bias, as far as they are wanted; gemm(x, weight) is x @ weight.T."""
    wanted = ctx.needs_input_grad
    dz = derivative(d, kept, ctx.activation)
    if dz.stride()[-1:] != (1,):  # an expanded gradient: of a sum
        dz = dz.contiguous()
    parts = [(weight, dz)]
    if up is not None:
        half = dz.shape[-1] // 2
        parts = [(weight, dz[..., :half]), (up, dz[..., half:])]
    dx = None
    if wanted[0]:
        dx = gemm(parts[0][1], weight.t())
        if up is not None:
            dx = dx + gemm(parts[1][1], up.t())
    gradients = [dx]
    rows = _rows(x)
    for number, (_, part) in enumerate(parts):
        flat = _rows(part)
        gradients.append(gemm(flat.t(), rows.t()) if wanted[1 + 2 * number] else None)
        gradients.append(part.sum_to_size(ctx.bias_shapes[number]) if wanted[2 + 2 * number] else None)
    return tuple([*gradients, None, None][:5])


def bias_shapes(*biases: Any) -> list[Any]:
    return [None if bias is None else bias.shape for bias in biases]


def _setup(ctx: Any, inputs: Any, output: Any, kept: Any) -> None:
    x, weight, bias, up, up_bias, name, parameters, layout = inputs
    ctx.activation = Activation(name, tuple(parameters), layout)
    ctx.bias_shapes = bias_shapes(bias, up_bias)
    ctx.save_for_backward(x, weight, bias, up, up_bias, kept)


def _setup_z(ctx: Any, inputs: Any, output: Any) -> None:
    _setup(ctx, inputs, output, output[1])


def _setup_result(ctx: Any, inputs: Any, output: Any) -> None:
    _setup(ctx, inputs, output, output if keeps(inputs[5]) == "result" else None)


def _backward_of_op(ctx: Any, d: Any, _of_z: Any = None) -> Any:
    x, weight, bias, up, up_bias, kept = ctx.saved_tensors
    # linear_v2 keeps none if others than us call it; to the one that linear_z_v2 returned no second derivative leads.
    if keeps(ctx.activation.name) == "z" and (kept is None or torch.is_grad_enabled()):
        kept = _preactivation(x, weight, bias, up, up_bias)
    return (*backward(ctx, d, x, weight, up, kept, plain), None, None, None)


def _preactivation(x: Any, weight: Any, bias: Any, up: Any, up_bias: Any) -> Any:
    z = linear(x, weight, bias, None, None, "none", [], None)
    if up is None:
        return z
    return torch.cat((z, linear(x, up, up_bias, None, None, "none", [], None)), dim=-1)


torch.library.register_autograd("matmul_fused::linear_v2", _backward_of_op, setup_context=_setup_result, lib=_library)
torch.library.register_autograd("matmul_fused::linear_z_v2", _backward_of_op, setup_context=_setup_z, lib=_library)


_NONE = Activation("none")


def _setup_add(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, bias, added = inputs
    ctx.activation = _NONE
    ctx.bias_shapes = [None if bias is None else bias.shape, None]
    ctx.added_shape = added.shape
    ctx.save_for_backward(x, weight)


def _backward_of_add(ctx: Any, d: Any) -> Any:
    x, weight = ctx.saved_tensors
    gradients = backward(ctx, d, x, weight, None, None, plain)[:3]
    return (*gradients, d.sum_to_size(ctx.added_shape) if ctx.needs_input_grad[3] else None)


torch.library.register_autograd("matmul_fused::linear_add_v2", _backward_of_add, setup_context=_setup_add, lib=_library)
