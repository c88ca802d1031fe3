"""The two forms of a site that patch(when="measured") made, and which of them runs.

A form is chosen for the rows (by powers of two), the dtype and the device of a call, and for whether gradients are
recorded: then forward and backward are timed, on detached aliases, so that no hook and no .grad sees it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad
from torch.nn import functional as torchs

from matmul_fused import _core

from . import functional, measure
from .modules import FusedLinear, Packed, gate_times_up, own

# Looked up once: each of them is a part of every call.
_tracing = torch.compiler.is_dynamo_compiling
_case_of = _core._torch_case
_autocasting = torch._C._is_any_autocast_enabled
_modes = torch._C._len_torch_dispatch_stack
_scripting = torch._C._is_tracing  # torch.jit.trace, which keeps what runs outside of torch as a constant
_transforms = torch._C._functorch.peek_interpreter_stack

_AXES = 8  # that ours takes
_SETTLED = 64  # cases that a site is not asked about again
NEW_FORWARD = "new forward"  # the form of a site that needs one

_Tensors = tuple[Any, ...]  # weights and biases; None where there is no bias
Form = Callable[[], object]


class Case(NamedTuple):
    """What a decision is made for."""

    rows: int  # a power of two
    dtype: torch.dtype
    device: torch.device
    recorded: bool  # gradients
    cast: torch.dtype | None  # by autocast

    def __str__(self) -> str:
        words = [f"M <= {self.rows}", str(self.dtype).removeprefix("torch."), str(self.device)]
        words += ["with gradients"] if self.recorded else []
        words += [f"autocast to {str(self.cast).removeprefix('torch.')}"] if self.cast else []
        return ", ".join(words)


@dataclass(frozen=True)
class Forms:
    """What a site may run on x."""

    site: Callable[[], Any]
    """Ours as the site runs it, with packed weights."""
    ours: Callable[..., Any]
    """Of x and its weights and biases."""
    theirs: Callable[..., Any]
    whole: tuple[Form, Form] | None = None
    """Both forms of the module that has the site, where that may run to be measured."""
    module: Any = None
    """That module."""


class Choice:
    """The decisions of one site. Copies and pickles have none yet."""

    def __init__(self, form: str, spelled: str, act: Any) -> None:
        self.form = form
        self.spelled = spelled  # the activation, with its parameters
        self.act = act  # the module that was there, which the model no longer has
        self.decisions: dict[Case, measure.Decision] = {}
        self.skipped = ""  # why a call was not measured
        self._settled: dict[bytes | None, bool] = {}  # see settled()
        self.ours_in_traces = True  # no shapes are asked for there: ours, unless it lost wherever it was measured

    def __reduce__(self) -> tuple[Any, ...]:
        return Choice, (self.form, self.spelled, self.act)

    def settled(self, x: Any) -> bool | None:
        """The decision for x, if one was made for such an x, recorded or not as well; None: it has to be asked for.

        What a site costs that is left alone. In a model other operators run between two calls of a site, and code that
        is out of the caches takes a microsecond a line: so it is short.
        """
        if _tracing() or type(x) is not torch.Tensor or _autocasting() or _scripting():
            return None
        fused = self._settled.get(_case_of(x))
        if fused:
            if _modes() or forward_ad._current_level >= 0:
                return None
            # Elsewhere functional.straight() finds them: asking takes some microseconds where caches are cold.
            if (x.is_cpu or self.form == NEW_FORWARD) and _transforms() is not None:
                return None
        return fused

    def takes_ours(self, x: Any, tensors: _Tensors, forms: Forms) -> bool:
        """Does our form run for x? Measures what was not measured before, where that is safe."""
        if torch.compiler.is_compiling():
            return self.ours_in_traces or hasattr(x, "placements")
        weight = tensors[0]
        if functional._distributed(x):
            if hasattr(x, "placements"):  # a DTensor: all processes have to decide alike
                self.skipped = "not measured: sharded"
            return True
        why = _unfit(x)
        if why is not None:
            self.skipped = why
            return False
        if type(x) not in _PLAIN:  # fake, and its sizes are perhaps no numbers
            return self.ours_in_traces
        if x.shape[-1:] != weight.shape[1:] or not x.numel() or x.device != weight.device:
            return True
        case = _case(x, _recorded(x, *tensors))

        def more() -> str:
            words = f"{sum(t is not None for t in tensors)} tensors"
            if case.recorded or forms.whole is None:
                return words
            return f"{words}, in a module of {_parameters(forms.module)} parameters"

        def pair() -> tuple[Form, Form]:
            if case.recorded:
                return _both_ways(forms.ours, x, tensors), _both_ways(forms.theirs, x, tensors)
            return forms.whole or (forms.site, lambda: forms.theirs(x, *tensors))

        return self._fused(case, x, weight, more, pair)

    def takes_new(self, module: Any, x: Any, weights: _Tensors, new: Form, old: Form) -> bool:
        """Does a module's new forward run for x? As takes_ours, but only without gradients and in eval mode."""
        if torch.compiler.is_compiling():
            return self.ours_in_traces
        why = _unfit(x)
        if why is not None:
            self.skipped = why
            return False
        if type(x) is not torch.Tensor or not x.numel() or x.device != weights[0].device:
            return False
        recorded = _recorded(x, *module.parameters())
        if module.training or recorded:
            self.skipped = "not measured: in training"
            if recorded:
                self._settle(x, False)
            return False

        def more() -> str:
            return f"in {type(module).__qualname__} of {_parameters(module)} parameters"

        return self._fused(_case(x, False), x, weights[0], more, lambda: (new, old))

    def _fused(
        self, case: Case, x: Any, weight: Any, more: Callable[[], str], pair: Callable[[], tuple[Form, Form]]
    ) -> bool:
        found = self.decisions.get(case)
        if found is None:
            why = measure.why_not(x, weight)
            if why is not None:
                self.skipped = why
                return self.ours_in_traces
            n, k = weight.shape
            words = more() + (" with gradients" if case.recorded else "")
            words += f" cast to {case.cast}" if case.cast else ""
            key = measure.site_key(
                self.form, self.spelled, m=case.rows, k=k, n=n, dtype=case.dtype, device=case.device, more=words
            )
            found = self.decisions[case] = measure.decide(key, *pair(), device=x.device, eager=True)
            self.ours_in_traces = any(made.fused for made in self.decisions.values())
        if case.cast is None:
            self._settle(x, found.fused)
        return found.fused

    def _settle(self, x: Any, fused: bool) -> None:
        case = _case_of(x) if type(x) is torch.Tensor and not _autocasting() else None
        if case is not None:
            if len(self._settled) >= _SETTLED:
                self._settled.clear()
            self._settled[case] = fused


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _unfit(x: Any) -> str | None:
    """Why torch's own form has to run for x; None if either may, as far as x says."""
    if _scripting():
        return "not measured: inside torch.jit.trace"
    if _transforms() is not None:
        return "not measured: inside torch.func"
    if forward_ad._current_level >= 0:
        return "not measured: with forward-mode gradients"
    if type(x) not in _PLAIN and not (isinstance(x, torch.Tensor) and torch._subclasses.fake_tensor.is_fake(x)):
        return f"not measured: x is a {type(x).__qualname__}"
    if x.is_nested or x.layout is not torch.strided:
        return f"not measured: x is {'nested' if x.is_nested else x.layout}"
    return f"not measured: x has more than {_AXES} axes" if x.dim() > _AXES else None


def _parameters(module: Any) -> int:
    return sum(part.numel() for part in module.parameters())


def _recorded(*tensors: Any) -> bool:
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def _case(x: Any, recorded: bool) -> Case:
    device = x.device.type
    cast = torch.get_autocast_dtype(device) if not x.is_meta and torch.is_autocast_enabled(device) else None
    return Case(measure.rows(x.numel() // x.shape[-1]), x.dtype, x.device, recorded, cast)


def _both_ways(form: Callable[..., Any], x: Any, tensors: _Tensors) -> Callable[[], object]:
    """Forward and backward of a form on aliases of these tensors."""
    aliases = [None if t is None else t.detach().requires_grad_(t.requires_grad) for t in (x, *tensors)]
    leaves = [alias for alias in aliases if alias is not None and alias.requires_grad]

    def run() -> object:
        result = form(*aliases)
        return torch.autograd.grad(result, leaves, torch.ones_like(result))

    return run


_IDENTITY = torch.nn.Identity()  # what patch() puts in the place of the activation's module


class MeasuredLinear(FusedLinear):
    """A FusedLinear that runs torch's linear and the activation's module instead where those are faster."""

    choice: Choice

    def forward(self, x: Any) -> Any:
        choice = self.choice
        settled = choice.settled(x)
        if settled is None:
            return self._decide(x)
        return self._ours(x) if settled else choice.act(torchs.linear(x, *own(self)))

    def _ours(self, x: Any) -> Any:
        if not x.is_cpu:  # no weight is packed
            weight, bias = own(self)
            result = functional.straight(x, weight, bias, self.activation)
            if result is None:
                return self.choice.act(torchs.linear(x, weight, bias))
            if result is not NotImplemented:
                return result
        return super().forward(x)

    def _decide(self, x: Any) -> Any:  # apart: its cells would slow a call that is settled
        choice, act, activation = self.choice, self.choice.act, self.activation
        forms = Forms(
            lambda: (choice.settled(x), _IDENTITY(self._ours(x))),  # as a call goes
            lambda x, weight, bias: functional.linear(x, weight, bias, activation),
            lambda x, weight, bias: act(torchs.linear(x, weight, bias)),
        )
        if choice.takes_ours(x, (self.weight, self.bias), forms):
            return super().forward(x)
        if not choice.ours_in_traces:
            self._packed.drop()
        return act(torchs.linear(x, self.weight, self.bias))


def measured_gate(
    module: Any,
    choice: Choice,
    keeper: Packed,
    x: Any,
    parts: tuple[Any, Any],
    activation: str,
    whole: tuple[Form, Form] | None,
) -> Any:
    """act(gate(x)) * up(x) of a module with the linears parts; None where torch's own form is to run."""

    def theirs(x: Any, w: Any, up_w: Any, b: Any, up_b: Any) -> Any:
        return choice.act(torchs.linear(x, w, b)) * torchs.linear(x, up_w, up_b)

    def ours(x: Any, w: Any, up_w: Any, b: Any, up_b: Any) -> Any:
        return functional.linear(x, (w, up_w), None if b is None and up_b is None else (b, up_b), activation)

    tensors = (parts[0].weight, parts[1].weight, parts[0].bias, parts[1].bias)
    forms = Forms(lambda: gate_times_up(module, keeper, x, *parts, activation), ours, theirs, whole, module)
    if choice.takes_ours(x, tensors, forms):
        return forms.site()
    if not choice.ours_in_traces:
        keeper.drop()
    return None
