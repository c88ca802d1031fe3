"""`patch` and `unpatch`: fused calls in the modules of a model as it stands, and the report of what was done.

A site is a module whose forward passes the result of a torch.nn.Linear to an activation and nowhere else. sites.py
reads that in a symbolic trace of a forward with one argument, with every child as a black box, in training and in eval
mode, or else in its source. Nothing is changed before all sites are known, and every change has its undo.
"""

from __future__ import annotations

import types
import weakref
from collections import Counter
from dataclasses import replace
from typing import Any

import torch

from . import rewriting
from .activations import Activation, of_module
from .choice import Choice, MeasuredLinear, measured_gate
from .modules import FusedLinear, GateLinear, Packed, gate_times_up
from .records import Record, Report
from .sites import Left, Site, graphs, sites_of

WHEN = ("measured", "always", "never")


# --- the sites of a module ---


def _kind(module: Any) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _check_hooks(name: str, module: Any) -> None:
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    if any(getattr(module, kind) for kind in hooks):
        raise Left(f"{name} has hooks")
    if "forward" in vars(module):
        raise Left(f"{name}: its forward was replaced")


_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def _check_linear(name: str, module: Any, uses: Counter[int]) -> None:
    """Leave what is more than a plain nn.Linear: LoRA, quantised and sharded weights, hooks, shared modules."""
    if type(module) is not torch.nn.Linear:
        raise Left(f"{name} is a {_kind(module)}, not a torch.nn.Linear")
    _check_layer(name, module, uses)


def _check_layer(name: str, module: Any, uses: Counter[int]) -> None:
    if type(module.weight) is not torch.nn.Parameter:
        raise Left(f"the weight of {name} is a {_kind(module.weight)}, not a plain parameter")
    if module.weight.dtype not in _DTYPES or module.weight.layout != torch.strided:
        raise Left(f"the weight of {name} is {module.weight.dtype}, {module.weight.layout}")
    _check_hooks(name, module)
    if uses[id(module)] > 1:
        raise Left(f"{name} is a part of several modules")


def _looks_linear(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.Linear) or any(
        hasattr(module, attribute) for attribute in ("weight", "base_layer", "qweight")
    )


# --- changes, each with its undo ---

# Of a module with sites: [(site, its activation module, its Choice or None)], site None in a new forward; of a model:
# the report of patch().
_SITES = "_sites_of_matmul_fused"
_REPORT = "_report_of_matmul_fused"
_PACKED = "_packed_by_matmul_fused"
_CHOICE = "_choice_by_matmul_fused"

# Activations of a gate that have a gated form.
_GATED_BY = {"silu": "swiglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh", "relu": "reglu", "sigmoid": "glu"}


def _as_checked(linear: Any) -> bool:
    """Is it still what patch saw? LoRA may have been added since, or a hook."""
    return type(linear) is torch.nn.Linear and not linear._forward_hooks and not linear._forward_pre_hooks


def _as_patched(linear: Any, kind: type) -> bool:
    """As _as_checked, of a gate or up that is fused: hooks of parallelize_module may have come, see GateLinear."""
    same = type(linear) is kind  # apart, or mypy takes linear for an object
    if not same:
        return False
    if not linear._forward_hooks and not linear._forward_pre_hooks:
        return True
    hooks = (*linear._forward_hooks.values(), *linear._forward_pre_hooks.values())
    places = (str(getattr(hook, "__module__", "")) for hook in hooks)
    return all(place.startswith("torch.distributed.tensor.") for place in places)


def _fuse_gate(module: Any, site: Site, choice: Choice | None) -> None:
    gate_name, up_name, down_name = site.linears
    activation = _GATED_BY[site.activation.name]

    def forward(self: Any, x: Any) -> Any:
        choice = vars(self)[_CHOICE]
        settled = None if choice is None else choice.settled(x)
        if settled is False:
            return type(self).forward(self, x)
        parts = self._modules  # asking the module itself for them takes a microsecond
        gate, up = parts.get(gate_name), parts.get(up_name)
        if not _as_patched(gate, GateLinear) or not _as_patched(up, torch.nn.Linear):
            return type(self).forward(self, x)
        keeper = vars(self)[_PACKED]

        def ours(x: Any) -> Any:
            return gate_times_up(self, keeper, x, gate, up, activation)

        def measured(x: Any) -> Any:
            pair = None
            if type(parts.get(down_name)) is torch.nn.Linear and not any(map(rewriting.has_hooks, self.children())):
                # As a call of each goes, with what modules cost.
                pair = lambda: (choice.settled(x), parts[down_name](gate(x, fused=ours))), lambda: old(self, x)
            return measured_gate(self, choice, keeper, x, (gate, up), activation, pair)

        old = type(self).forward
        hidden = gate(x, fused=ours if choice is None or settled else measured)
        return old(self, x) if hidden is None else parts[down_name](hidden)

    setattr(module, _PACKED, Packed())
    setattr(module, _CHOICE, choice)
    module.get_submodule(gate_name).__class__ = GateLinear
    module.forward = types.MethodType(forward, module)


def _fuse_linear(module: Any, site: Site, choice: Choice | None) -> None:
    linear, act = module.get_submodule(site.linears[0]), module.get_submodule(site.act)
    linear.__class__ = FusedLinear if choice is None else MeasuredLinear
    linear._set(site.activation, None, True)
    if choice is not None:
        linear.choice = choice
    setattr(module, site.act, torch.nn.Identity().train(act.training))


def _fuse_rewrite(module: Any, site: rewriting.Rewrite, spelled: str, when: str) -> None:
    """Once for each record of a new forward; they share one choice."""
    sites = vars(module).setdefault(_SITES, [])
    choice = sites[0][2] if sites else Choice("new forward", spelled, None) if when == "measured" else None
    if not sites:
        rewriting.apply(module, site, choice)
    sites.append((None, None, choice))


def _fuse(module: Any, site: Site | rewriting.Rewrite, spelled: str, when: str) -> None:
    if isinstance(site, rewriting.Rewrite):
        _fuse_rewrite(module, site, spelled, when)
        return
    act = module.get_submodule(site.act)
    choice = Choice(site.form, _spell(site.activation), act) if when == "measured" else None
    vars(module).setdefault(_SITES, []).append((site, act, choice))
    (_fuse_gate if site.form == "gate/up" else _fuse_linear)(module, site, choice)


def _restore(module: Any, site: Site | None, act: Any) -> None:
    if site is None:  # rewriting.py has undone it
        return
    if site.form == "gate/up":
        for name in ("forward", _PACKED, _CHOICE):
            vars(module).pop(name, None)
        gate = module.get_submodule(site.linears[0])
        if type(gate) is GateLinear:
            gate.__class__ = torch.nn.Linear
        return
    linear = module.get_submodule(site.linears[0])
    if type(linear) in (FusedLinear, MeasuredLinear):
        linear.__class__ = torch.nn.Linear
        for name in ("activation", "gate_layout", "prepack", "_packed", "choice"):
            vars(linear).pop(name, None)
    setattr(module, site.act, act.train(module.training))


def _spell(activation: Activation) -> str:
    return ", ".join((activation.name, *(f"{value:g}" for value in activation.parameters)))


def _plan(
    name: str, module: torch.nn.Module, uses: Counter[int], when: str
) -> list[tuple[Site | rewriting.Rewrite | None, Record]]:
    """The sites of one module, with what would become of them; a new forward only where that fuses more."""
    swaps: list[tuple[Site | rewriting.Rewrite | None, Record]] = [*_plan_swaps(name, module, uses)]
    done = any(record.fused for _, record in swaps)
    if any(record.fused and record.form == "gate/up" for _, record in swaps) or (done and when == "measured"):
        return swaps
    rewrite = _plan_rewrite(name, module, uses)
    more = any(record.form != "linear" for _, record in rewrite)
    return rewrite if rewrite and (more or not done) else swaps


def _plan_rewrite(
    name: str, module: torch.nn.Module, uses: Counter[int]
) -> list[tuple[Site | rewriting.Rewrite | None, Record]]:
    """The sites of a new forward; the first one carries it."""

    def layer(child: str) -> Any:
        part = module.get_submodule(child)
        try:
            _check_hooks(child, part)
            found = rewriting.kind(part)
            if found is None:
                return of_module(part)
            _check_layer(child, part, uses)
        except Left:
            return None
        return found

    if not any(rewriting.kind(part) for part in module.children()):
        return []
    try:
        _check_hooks("it", module)
        made = rewriting.plan(graphs(module), module, layer)
    except Left:
        return []
    if made is None:
        return []
    rewrite, words = made
    records = [Record(name, word.form, word.spelled, True, " + ".join(word.names)) for word in words]
    return [(rewrite, record) for record in records]


def _plan_swaps(name: str, module: torch.nn.Module, uses: Counter[int]) -> list[tuple[Site | None, Record]]:
    """The sites of one module that need no new forward, or one for a gate, with what would become of them."""
    acts = {child: act for child, part in module.named_children() if (act := of_module(part))}
    if not acts or not any(_looks_linear(part) for part in module.children()):
        return []
    words = "; ".join(_spell(activation) for activation in acts.values())
    try:
        _check_hooks("it", module)
        found = sites_of(module, acts)
    except Left as left:
        return [(None, Record(name, "linear", words, False, str(left)))]
    sites = sorted(found, key=lambda site: list(acts).index(site.act))
    if not sites:
        return [(None, Record(name, "linear", words, False, "no linear goes to the activation alone"))]
    planned: list[tuple[Site | None, Record]] = []
    for site in sites:
        spelled = _spell(site.activation)
        try:
            _check_site(module, site, uses)
        except Left as left:
            planned.append((None, Record(name, site.form, spelled, False, str(left))))
        else:
            planned.append((site, Record(name, site.form, spelled, True, " + ".join((*site.linears[:2], site.act)))))
    return planned


def _check_site(module: torch.nn.Module, site: Site, uses: Counter[int]) -> None:
    act = module.get_submodule(site.act)
    if site.form == "gate/up":
        if site.activation.name not in _GATED_BY:
            raise Left(f"there is no gated form of {site.activation.name}")
        for linear in site.linears[:2]:
            _check_linear(linear, module.get_submodule(linear), uses)
    else:
        _check_linear(site.linears[0], module.get_submodule(site.linears[0]), uses)
    _check_hooks(site.act, act)
    if sum(part is act for part in module._modules.values()) > 1:
        raise Left(f"{site.act} has another name in the module, too")


# --- what users call ---

_last: weakref.ref[torch.nn.Module] | None = None
_compiled: dict[int, list[Record]] = {}  # by the number that Dynamo gives a frame


def record_compiled(records: list[Record]) -> None:
    """Take the records of one graph of the torch.compile backend; a frame that is compiled again has new ones."""
    number = torch._guards.CompileContext.current_compile_id()
    frame = -1 if number is None or number.frame_id is None else number.frame_id
    if frame in _compiled and (number is None or number.frame_compile_id == 0):  # Dynamo was reset
        _compiled.clear()
    _compiled[frame] = records


def patch(model: torch.nn.Module, when: str = "measured") -> Report:
    """Let linear layers of a model and the activations behind them run as one call each; what was done and why not.

    The modules stay the same objects, with the same parameters and state_dict; gradients are recorded as before.
    LoRA-wrapped, quantised and sharded layers, and modules with hooks, are left alone. A model that is patched already
    is unpatched first. An exception leaves the model as it was.

    when: "measured": a site runs what was faster when both forms were timed, once a power of two of its rows, for
    50 ms or two calls of each; the tune store keeps it, report() says it. "always": nothing is timed. "never": the
    report alone. No site is timed inside torch.compile, a trace or a capture of a CUDA graph: it runs fused there,
    unless that lost wherever it was measured before.
    """
    global _last
    _compiled.clear()
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is a {_kind(model)}; it must be a torch.nn.Module")
    if when not in WHEN:
        raise ValueError(f"when is {when!r}; it must be one of {', '.join(map(repr, WHEN))}")
    unpatch(model)
    uses = Counter(id(part) for _, part in model.named_modules(remove_duplicate=False))
    planned = [(part, *plan) for name, part in model.named_modules() for plan in _plan(name, part, uses, when)]
    made = Report()
    try:
        for module, site, record in planned:
            if site is not None and when == "never":
                record = replace(record, fused=False, why='when is "never"')
            elif site is not None:
                _fuse(module, site, record.activation, when)
            made.append(record)
    except BaseException:
        unpatch(model)
        raise
    vars(model)[_REPORT] = made
    _last = weakref.ref(model)
    return report(model)


def unpatch(model: torch.nn.Module) -> None:
    """Undo patch(model), also in a copy of a patched model; nothing happens to a model that is not patched."""
    vars(model).pop(_REPORT, None)
    for module in list(model.modules()):
        rewriting.undo(module)
        for site, act, _ in reversed(vars(module).pop(_SITES, [])):
            _restore(module, site, act)


def _measured(record: Record, choice: Choice | None) -> list[Record]:
    """The record of a fused site, one for each decision if there are any."""
    if choice is None:
        return [record]
    if not choice.decisions:
        return [replace(record, why=f"{record.why}, {choice.skipped or 'not measured yet'}")]
    return [
        replace(
            record,
            fused=decision.fused,
            why=", ".join(word for word in (decision.why, record.why, str(case)) if word),
            ours=decision.ours,
            theirs=decision.theirs,
        )
        for case, decision in sorted(choice.decisions.items(), key=lambda made: (made[0].rows, str(made[0])))
    ]


def _report(model: torch.nn.Module) -> Report:
    """What patch() did, with what was measured since."""
    made = Report()
    choices = {
        name: iter([choice for _, _, choice in vars(part).get(_SITES, ())]) for name, part in model.named_modules()
    }
    for record in vars(model).get(_REPORT, ()):
        choice = next(choices.get(record.site, iter(())), None) if record.fused else None
        made += _measured(record, choice)
    return made


def report(model: torch.nn.Module | None = None) -> Report:
    """The report of patch(model); without a model that of the last patch, and of what the backend compiled since."""
    if model is not None:
        return _report(model)
    last = _last() if _last is not None else None
    compiled = (record for records in _compiled.values() for record in records)
    return Report([*(_report(last) if last is not None else ()), *compiled])
