"""Modules with nn.Linear's parameters that compute a linear layer and its activation in one call.

In eval mode on the CPU they keep a prepacked copy of their weight, which is made on first use and again when the
weight is another one or has been written to.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Self

import torch
from torch.autograd import forward_ad
from torch.optim.optimizer import register_optimizer_step_post_hook

from matmul_fused import _core

from . import functional
from .activations import resolve

# Up to this many rows, a plain weight of 16 bits that is read in place is faster than panels (docs/prepack.md).
_FEW_ROWS = 8


_uncounted_steps = 0


def _stepped(optimizer: Any, *_: Any) -> None:
    """Behind each step of an optimizer: those of torch count what they write, but not with fused=True."""
    global _uncounted_steps
    fused = any(group.get("fused") for group in optimizer.param_groups)
    if fused or not type(optimizer).__module__.startswith("torch.optim."):
        _uncounted_steps += 1


@cache
def _watch_optimizers() -> None:
    register_optimizer_step_post_hook(_stepped)


class Packed:
    """The prepacked form of one weight, or of a pair, as long as it is unchanged. Copies and pickles are empty."""

    def __init__(self) -> None:
        self._key: Any = None
        self._kept: Any = None
        self._packed: Any = None
        self._panels = False

    def __reduce__(self) -> tuple[Any, ...]:
        return Packed, ()

    def drop(self) -> None:
        self._key = self._kept = self._packed = None

    def get(self, x: Any, *weights: Any, gate_layout: str | None = None) -> Any:
        """The prepacked weights as B of a call; None where plain ones are better, or changes could not be noticed."""
        if weights[0].device.type != "cpu":
            self.drop()
            return None
        if x.is_meta or any(weight.is_inference() for weight in weights):
            return None
        few = x.dtype in (torch.float16, torch.bfloat16) and x.numel() <= _FEW_ROWS * x.shape[-1]
        if few and x.dtype == torch.float16:
            return None
        # In-place writes count the version up. The kept aliases hold the memory, so that an address means one weight.
        steps = _uncounted_steps
        key = [
            (weight.data_ptr(), weight._version, steps, weight.dtype, weight.shape, weight.stride())
            for weight in weights
        ]
        if key != self._key:
            _watch_optimizers()
            packed = tuple(_core.prepack(weight.detach().t(), gate_layout=gate_layout) for weight in weights)
            self._kept = [weight.detach() for weight in weights]
            self._packed = packed if len(packed) > 1 else packed[0]
            self._panels = packed[0].layout == "panels64"
            self._key = key
        return None if few and self._panels else self._packed


def drop_packed(model: torch.nn.Module) -> None:
    """Forget the prepacked weights of the fused modules in a model, patched ones too; the next call makes them again.

    For writes that torch does not count, through `weight.data` or NumPy.
    """
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Packed):
                value.drop()


def own(layer: Any) -> tuple[Any, Any]:
    """Weight and bias of a layer. Not for Dynamo: asking the module itself for them takes a microsecond."""
    parts = layer._parameters
    if "weight" not in parts or "bias" not in parts:
        return layer.weight, layer.bias
    return parts["weight"], parts["bias"]


def eager(module: Any, x: Any, *parameters: Any) -> bool:
    """May a call of this module use a prepacked weight: eval mode, nothing cast or traced, no gradients recorded?"""
    if module.training or torch._C._is_any_autocast_enabled() or torch._C._is_tracing():
        return False
    if forward_ad._current_level >= 0 or torch._C._len_torch_dispatch_stack():
        return False
    recording = torch.is_grad_enabled()
    for tensor in (x, *parameters):
        if tensor is not None:
            kind = type(tensor)
            if kind is not torch.nn.Parameter and kind is not torch.Tensor:
                return False
            if recording and tensor.requires_grad:
                return False
    return x is not None


class _DropsPacked(torch.nn.Module):  # type: ignore[misc]
    """A module whose packed weight is dropped with every change of mode, device or dtype."""

    _packed: Packed

    def train(self, mode: bool = True) -> Self:
        self._packed.drop()
        return super().train(mode)  # type: ignore[no-any-return]

    def _apply(self, *arguments: Any, **keywords: Any) -> Any:
        self._packed.drop()
        return super()._apply(*arguments, **keywords)


class FusedLinear(_DropsPacked, torch.nn.Linear):  # type: ignore[misc]
    """torch.nn.Linear with the activation behind it: activation(x @ weight.T + bias) in one call.

    Parameters and state_dict are those of torch.nn.Linear: weight (out_features, in_features) and bias. A gated
    activation takes out_features columns and gives half as many. In eval mode without gradients it keeps a prepacked
    copy of the weight (on the CPU; twice its memory) unless prepack is False. Writes that torch does not count, through
    `weight.data` or NumPy, are not noticed: call drop_packed() after them.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        activation: Any = None,
        gate_layout: str | None = None,
        prepack: bool = True,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self._set(activation, gate_layout, prepack)

    def _set(self, activation: Any, gate_layout: str | None, prepack: bool) -> None:
        found = resolve(activation)
        self.activation = found.spec
        self.gate_layout = found.gate_layout or gate_layout or ("halves" if found.gated else None)
        self.prepack = prepack
        self._packed = Packed()

    @classmethod
    def from_linear(
        cls, linear: Any, activation: Any = None, *, gate_layout: str | None = None, prepack: bool = True
    ) -> FusedLinear:
        """A FusedLinear with the parameters and the mode of a torch.nn.Linear; nothing is copied."""
        if type(linear) is not torch.nn.Linear:
            raise TypeError(f"linear is a {type(linear).__qualname__}; it must be a torch.nn.Linear")
        hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        if "forward" in vars(linear) or any(getattr(linear, kind) for kind in hooks):  # weight_norm of before, pruning
            raise ValueError("linear has hooks or a forward of its own, which a FusedLinear would not have")
        kinds = {type(part) for part in (linear.weight, linear.bias) if part is not None}
        if kinds != {torch.nn.Parameter}:
            names = " and ".join(sorted(kind.__qualname__ for kind in kinds))
            raise TypeError(f"weight and bias of linear are {names}; they must be plain parameters")
        fused = cls.__new__(cls)
        torch.nn.Module.__init__(fused)
        fused.in_features, fused.out_features = linear.in_features, linear.out_features
        fused.weight, fused.bias = linear.weight, linear.bias
        fused._set(activation, gate_layout, prepack)
        return fused.train(linear.training)

    def drop_packed(self) -> None:
        """Forget the prepacked weight; the next call makes it again."""
        self._packed.drop()

    def forward(self, x: Any) -> Any:
        if torch.compiler.is_compiling():
            return functional.linear(x, self.weight, self.bias, self.activation, gate_layout=self.gate_layout)
        weight, bias = own(self)
        if not weight.is_cpu:
            self._packed.drop()
        elif self.prepack and eager(self, x, weight, bias):
            packed = self._packed.get(x, weight, gate_layout=self.gate_layout)
            if packed is not None:
                return _core.matmul_fused(x, packed, bias, self.activation, gate_layout=self.gate_layout)
        if isinstance(x, torch.fx.Proxy):  # symbolic_trace: a module as torch's own
            return x.tracer.create_proxy("call_module", x.tracer.path_of_module(self), (x,), {})
        return functional.linear(x, weight, bias, self.activation, gate_layout=self.gate_layout)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, activation={self.activation!r}"


class GateLinear(torch.nn.Linear):  # type: ignore[misc]
    """The gate of a fused MLP: a call of it may compute more, between its hooks, by which it may be sharded."""

    def forward(self, x: Any, fused: Any = None) -> Any:
        if fused is not None:
            return fused(x)
        if torch.compiler.is_dynamo_compiling():
            return super().forward(x)
        return torch.nn.functional.linear(x, *own(self))


class FusedMLP(_DropsPacked):
    """The MLP of a transformer in two calls: down_proj(activation(x)), or down_proj(act(gate_proj(x)) * up_proj(x)).

    With a gated activation (the default, Llama's) it has gate_proj, up_proj and down_proj, else up_proj and down_proj:
    the state_dict is that of torch.nn.Linear modules of these names. Prepacked weights as in FusedLinear. Hooks of
    gate_proj get x and the product of both; those of up_proj do not run. Layers of other classes in the place of these
    (LoRA, quantised ones) are refused with a TypeError.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int | None = None,
        activation: Any = "swiglu",
        bias: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        prepack: bool = True,
    ) -> None:
        super().__init__()
        found = resolve(activation)
        if found.gate_layout is not None:
            raise ValueError(f"activation {activation!r} means one weight for gate and up; FusedMLP keeps them apart")
        out_features = in_features if out_features is None else out_features
        make: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        self.gated = found.gated
        if found.gated:
            self.gate_proj = GateLinear(in_features, hidden_features, **make)
            self.up_proj = torch.nn.Linear(in_features, hidden_features, **make)
        else:
            self.up_proj = FusedLinear(in_features, hidden_features, **make, activation=found.spec, prepack=prepack)
        self.down_proj = FusedLinear(hidden_features, out_features, **make, prepack=prepack)
        self.activation = found.spec
        self.prepack = prepack
        self._packed = Packed()

    def drop_packed(self) -> None:
        """Forget the prepacked weights; the next call makes them again."""
        drop_packed(self)

    def forward(self, x: Any) -> Any:
        if not self.gated:
            if not isinstance(self.up_proj, FusedLinear):  # it has the activation
                kind = type(self.up_proj).__qualname__
                raise TypeError(f"up_proj is a {kind}; FusedMLP has no rule for other layers than FusedLinear")
            return self.down_proj(self.up_proj(x))
        packed = self._packed if self.prepack else None
        gate, up = self.gate_proj, self.up_proj
        if type(gate) not in (GateLinear, torch.nn.Linear) or type(up) is not torch.nn.Linear:  # only weights are taken
            kinds = " and ".join(type(part).__qualname__ for part in (gate, up))
            raise TypeError(f"gate_proj and up_proj are {kinds}; FusedMLP has no rule for other layers than torch's")

        def fused(x: Any) -> Any:
            return gate_times_up(self, packed, x, gate, up, self.activation)

        return self.down_proj(gate(x, fused=fused) if type(gate) is GateLinear else fused(x))

    def extra_repr(self) -> str:
        return f"activation={self.activation!r}"


def gate_times_up(module: Any, keeper: Packed | None, x: Any, gate: Any, up: Any, activation: Any) -> Any:
    """act(gate(x)) * up(x) for two torch.nn.Linear of a module."""
    if torch.compiler.is_compiling():
        return _gate_times_up(x, (gate.weight, up.weight), (gate.bias, up.bias), None, activation)
    weights, bias = zip(own(gate), own(up), strict=True)
    packed = keeper.get(x, *weights) if keeper is not None and eager(module, x, *weights, *bias) else None
    return _gate_times_up(x, weights, bias, packed, activation)


def straight_gate(x: Any, gate: Any, up: Any, activation: Any) -> Any:
    """gate_times_up() on plain weights, as functional.straight() has it."""
    (weight, bias), (up_weight, up_bias) = own(gate), own(up)
    biases = None if bias is None and up_bias is None else (bias, up_bias)
    return functional.straight(x, (weight, up_weight), biases, activation)


def _gate_times_up(x: Any, weights: Any, bias: Any, packed: Any, activation: Any) -> Any:
    if bias[0] is None and bias[1] is None:
        bias = None
    if packed is None:
        return functional.linear(x, weights, bias, activation)
    if bias is not None:
        bias = tuple(0.0 if part is None else part for part in bias)
    return _core.matmul_fused(x, packed, bias, activation)
