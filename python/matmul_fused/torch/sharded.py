"""`linear` of DTensors: where each operand has to be for the call, and where the result and the gradients are then.

Role on the path of a call: functional.py comes here where an operand is a DTensor, or a tensor that a collective still
writes to. The operands are redistributed by DTensor, each process makes the usual call on what it has, and its result
is a part of a DTensor again. An operator with registered sharding would not do: of two weights, z lies as gate next to
up in each process, which no placement says. Imported by the first such call: torch.distributed takes its time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from . import op
from .activations import Activation

_WHOLE, _SUM = Replicate(), Partial()


class _Rule(NamedTuple):
    """Placements along one axis of the mesh: of operands, of the gradients that a process computes, of the result."""

    x: Any
    weight: Any
    bias: Any
    dx: Any
    dweight: Any
    dbias: Any
    result: Any


def _rule(x: Any, weight: Any, last: int) -> _Rule:
    """The one that follows from where the weight is, then from where x is; `last` is the axis of x with K."""
    if isinstance(weight, Shard) and weight.dim == 0:
        part = Shard(0)
        return _Rule(_WHOLE, part, part, _SUM, part, part, Shard(last))
    if isinstance(weight, Shard) and weight.dim == 1:
        return _Rule(Shard(last), Shard(1), _WHOLE, Shard(last), Shard(1), _WHOLE, _SUM)
    if isinstance(x, Shard) and x.dim != last:
        part = Shard(x.dim)
        return _Rule(part, _WHOLE, _WHOLE, part, _SUM, _SUM, part)
    return _Rule(*[_WHOLE] * 7)


def _check_rule(rule: _Rule, weight: Any, up: Any, activation: Activation) -> None:
    """Refuse where a process cannot apply the activation to what it has."""
    if rule.result.is_partial() and activation.name != "none":
        raise ValueError(
            f"weight is sharded along K, as RowwiseParallel shards it, so that each process has one term of the sum, "
            f"and {activation.name} has to follow the sum; shard this layer by ColwiseParallel, or take the activation "
            "out of it"
        )
    if rule.weight != Shard(0) or up is not None or not activation.gated:
        return
    if activation.gate_layout != "interleaved":
        raise ValueError(
            f"weight has gate and up in one ({activation.gate_layout}) and is sharded along N, as ColwiseParallel "
            'shards it, so that gate and up of a column are in two processes; use FusedMLP, gate_layout="interleaved", '
            "or replicate the weight"
        )
    if weight.shape[0] % (2 * weight.device_mesh.size()):
        raise ValueError(
            f"weight has {weight.shape[0]} interleaved rows, which {weight.device_mesh.size()} processes cannot share "
            "in pairs of gate and up"
        )


class _Ready(torch.autograd.Function):  # type: ignore[misc]
    """The tensor and its gradient, when the collectives that write them are done."""

    @staticmethod
    def forward(ctx: Any, tensor: Any) -> Any:
        return _ready(tensor)

    @staticmethod
    def backward(ctx: Any, d: Any) -> Any:
        return _ready(d)


class _Once(torch.autograd.Function):  # type: ignore[misc]
    """A bias where it is added to one term of a sum, 0 for the other terms. Its gradient is the same for all of them.

    An equal part for each term, as DTensor makes one, would be rounded.
    """

    @staticmethod
    def forward(ctx: Any, bias: Any, first: bool) -> Any:
        return bias if first else torch.zeros_like(bias)

    @staticmethod
    def backward(ctx: Any, d: Any) -> Any:
        return d, None


def _ready(tensor: Any) -> Any:
    return tensor.trigger_wait() if hasattr(tensor, "trigger_wait") else tensor


def _waited(tensor: Any) -> Any:
    if torch.compiler.is_compiling() or tensor is None:  # the compiler orders collectives itself
        return tensor
    return _Ready.apply(tensor) if tensor.requires_grad else _ready(tensor)


def _local(tensor: Any, placements: tuple[Any, ...], gradients: tuple[Any, ...]) -> Any:
    if tensor is None:
        return None
    if tensor.placements != placements:
        tensor = tensor.redistribute(placements=placements)
    return _waited(tensor.to_local(grad_placements=gradients))


def _check_mesh(**tensors: Any) -> None:
    mesh = None
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if not isinstance(tensor, DTensor):
            kinds = ", ".join(name for name, other in tensors.items() if isinstance(other, DTensor))
            raise TypeError(f"{name} is a plain tensor, but {kinds} is a DTensor; make it one (DTensor.from_local)")
        if mesh is not None and tensor.device_mesh != mesh:
            raise ValueError(f"{name} is on {tensor.device_mesh}, but the operands before it on {mesh}")
        mesh = tensor.device_mesh


def call(
    x: Any, weight: Any, bias: Any, up: Any, up_bias: Any, activation: Activation, local: Callable[..., Any]
) -> Any:
    """local(x, weight, bias, up, up_bias, activation), which takes plain tensors, of DTensors."""
    if not any(isinstance(tensor, DTensor) for tensor in (x, weight, bias, up, up_bias)):
        return local(*(_waited(tensor) for tensor in (x, weight, bias, up, up_bias)), activation)
    _check_mesh(x=x, weight=weight, bias=bias, up=up, up_bias=up_bias)
    last = x.dim() - 1
    rules = [_rule(*places, last) for places in zip(x.placements, weight.placements, strict=True)]
    for rule in rules:
        _check_rule(rule, weight, up, activation)
    places = _Rule(*zip(*rules, strict=True))

    def local_bias(value: Any) -> Any:
        if value is None:
            return None
        here = rules
        if value.numel() != weight.shape[0]:  # one number for all columns
            here = [rule._replace(bias=_WHOLE, dbias=_SUM) if rule.bias == Shard(0) else rule for rule in rules]
        part = _local(value, tuple(rule.bias for rule in here), tuple(rule.dbias for rule in here))
        terms = [
            place for rule, place in zip(rules, x.device_mesh.get_coordinate(), strict=True) if rule.result == _SUM
        ]
        return _Once.apply(part, not any(terms)) if terms else part

    result = local(
        _local(x, places.x, places.dx),
        _local(weight, places.weight, places.dweight),
        local_bias(bias),
        _local(up, places.weight, places.dweight),
        local_bias(up_bias),
        activation,
    )
    shape = torch.Size(op.shapes(x, weight, up, activation)[0])
    stride = [1]
    for length in reversed(shape[1:]):
        stride.insert(0, stride[0] * max(length, 1))
    return DTensor.from_local(
        _waited(result), x.device_mesh, places.result, run_check=False, shape=shape, stride=tuple(stride)
    )
