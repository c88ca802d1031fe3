"""How Inductor writes a call of the registered operators: one function of op.py into a buffer of its own.

Without it an operator is called by the dispatcher and its Python kernels: 17 us, which a small product does not take.
The buffer is one that Inductor plans: it may take the place of another, and its alignment is known. Role on the path
of a call: none; it runs while Inductor compiles a graph.
"""

from __future__ import annotations

import math
from typing import Any

from torch._inductor import ir
from torch._inductor.lowering import fallback_handler, register_lowering
from torch._inductor.virtualized import V

from . import op
from .activations import Activation


def _turned(weight: Any) -> Any:
    return ir.TensorBox(ir.PermuteView.create(weight.data, [1, 0]))


def _in_place(weight: Any) -> bool:
    """Is it a buffer as it stands, of which no view has to be made in every call?"""
    realized = ir.ExternKernel.realize_input(weight)
    if not isinstance(realized, ir.ReinterpretView):
        return True
    layout, base = realized.get_layout(), realized.data.get_layout()
    return (layout.size, layout.stride, layout.offset) == (base.size, base.stride, base.offset)


def _operand(value: Any) -> Any:
    return ir.ExternKernel.require_stride1(ir.ExternKernel.realize_input(value))


def _emit(kernel: str, x: Any, weights: list[Any], more: list[Any], columns: Any, **words: Any) -> Any:
    """The call of a function of op.py; more: tensors behind the weights."""
    turned = not all(map(_in_place, weights)) and all(_in_place(_turned(weight)) for weight in weights)
    if turned:
        weights = [_turned(weight) for weight in weights]
    inputs = [_operand(x), *(ir.ExternKernel.realize_input(value) for value in (*weights, *more))]
    size = [*x.get_size()[:-1], columns]
    layout = ir.FixedLayout(x.get_device(), x.get_dtype(), size, ir.FlexibleLayout.contiguous_strides(size))
    name = f"torch.ops.matmul_fused.{kernel}"
    return ir.TensorBox.create(
        ir.ExternKernelOut(layout, inputs, kwargs={"turned": turned, **words}, python_kernel_name=name)
    )


def _linear(x: Any, weight: Any, bias: Any, up: Any, up_bias: Any, name: str, parameters: Any, layout: Any) -> Any:
    one_bias = up is not None and (bias is None) != (up_bias is None)
    if V.graph.cpp_wrapper or one_bias or not all(map(math.isfinite, parameters)):
        return fallback_handler(op.linear, add_to_fallback_set=False)(
            x, weight, bias, up, up_bias, name, parameters, layout
        )
    activation = Activation(name, tuple(parameters), layout)
    columns = weight.get_size()[0]
    if activation.gated and up is None:
        columns = columns // 2
    weights = [weight] if up is None else [weight, up]
    biases = [value for value in (bias, up_bias) if value is not None]
    kernel = "linear_into" if up is None else "pair_into"
    return _emit(kernel, x, weights, biases, columns, activation=activation.spec, gate_layout=layout)


def _linear_add(x: Any, weight: Any, bias: Any, added: Any) -> Any:
    if V.graph.cpp_wrapper:
        return fallback_handler(op.linear_add, add_to_fallback_set=False)(x, weight, bias, added)
    more = [added] if bias is None else [added, bias]
    return _emit("add_into", x, [weight], more, weight.get_size()[0])


for _operator, _lowering in ((op.linear, _linear), (op.linear_add, _linear_add)):
    register_lowering(_operator, type_promotion_kind=None)(_lowering)
