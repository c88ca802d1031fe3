"""`patch` and `unpatch`: fused calls in the modules of a model as it stands, and the report of what was done.

A site is a module whose forward passes the result of a torch.nn.Linear to an activation and nowhere else. sites.py
reads that in a symbolic trace of a forward with one argument, with every child as a black box, in training and in eval
mode, or else in its source. Nothing is changed before all sites are known, and every change has its undo.
"""

from __future__ import annotations

import inspect
import weakref
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import torch

from . import reading, rewriting
from .activations import of_module
from .choice import NEW_FORWARD, Choice, measured_gate
from .match import GATED_BY, spell
from .modules import FusedLinear, GateLinear, Packed, gate_times_up, straight_gate
from .operators import ACTIVATIONS, DTYPES
from .reading import Left
from .records import Record, Report
from .sites import Site, check_arguments, graphs, sites_of

WHEN = ("measured", "always", "never")


def check_when(when: str) -> None:
    if when not in WHEN:
        raise ValueError(f"when is {when!r}; it must be one of {', '.join(map(repr, WHEN))}")


# --- the sites of a module ---


def _kind(module: Any) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _check_hooks(name: str, module: Any) -> None:
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    if any(getattr(module, kind) for kind in hooks):
        raise Left(f"{name} has hooks")
    if "forward" in vars(module):
        raise Left(f"{name}: its forward was replaced")


def _check_linear(name: str, module: Any, uses: Counter[int]) -> None:
    """Leave what is more than a plain nn.Linear: LoRA, quantised and sharded weights, hooks, shared modules."""
    if type(module) is not torch.nn.Linear:
        raise Left(f"{name} is a {_kind(module)}, not a torch.nn.Linear")
    _check_layer(name, module, uses)


def _check_layer(name: str, module: Any, uses: Counter[int]) -> None:
    if type(module.weight) is not torch.nn.Parameter:
        raise Left(f"the weight of {name} is a {_kind(module.weight)}, not a plain parameter")
    if module.weight.dtype not in DTYPES or module.weight.layout != torch.strided:
        raise Left(f"the weight of {name} is {module.weight.dtype}, {module.weight.layout}")
    _check_hooks(name, module)
    if uses[id(module)] > 1:
        raise Left(f"{name} is a part of several modules")


def _looks_linear(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.Linear) or any(
        hasattr(module, attribute) for attribute in ("weight", "base_layer", "qweight")
    )


# --- changes, each with its undo ---

# Of a module with sites: [(site, its activation module, its Choice or None, its first layer)], site None in a new
# forward; of a model: the report of patch().
_SITES = "_sites_of_matmul_fused"
_REPORT = "_report_of_matmul_fused"
_PACKED = "_packed_by_matmul_fused"


def _as_checked(linear: Any) -> bool:
    """Is it still what patch saw? LoRA may have been added since, or a hook."""
    return type(linear) is torch.nn.Linear and not rewriting.has_hooks(linear)


def _are_sharded(*linears: Any) -> bool:
    """Does nobody but parallelize_module watch their calls?"""
    for linear in linears:
        if "forward" in vars(linear) or linear._backward_hooks or linear._backward_pre_hooks:
            return False
        hooks = (*linear._forward_hooks.values(), *linear._forward_pre_hooks.values())
        if not all(map(rewriting.of_sharding, hooks)):
            return False
    return True


def _fuse_gate(module: Any, site: Site, choice: Choice | None) -> None:
    (gate_name, up_name, down_name), act_name = site.linears, site.act
    activation = GATED_BY[site.activation.name]
    (name,) = inspect.signature(module.forward).parameters

    def forward(self: Any, x: Any = None, /, **keywords: Any) -> Any:
        if keywords or x is None:
            if x is not None or keywords.keys() != {name}:
                return type(self).forward(self, *(() if x is None else (x,)), **keywords)
            x = keywords[name]
        own = self.__dict__
        if _PACKED not in own:  # unpatched, and this method is called by somebody who has kept it
            return type(self).forward(self, x)
        choice = own[_SITES][0][2]
        settled = None if choice is None else choice.settled(x)
        return type(self).forward(self, x) if settled is False else fused(self, x, settled)

    def fused(self: Any, x: Any, settled: bool | None) -> Any:  # apart: its cells would slow a call that is left alone
        own = vars(self)
        keeper, (_, act, choice, _) = own[_PACKED], own[_SITES][0]
        parts = self._modules  # asking the module itself for them takes a microsecond
        gate, up, old = parts.get(gate_name), parts.get(up_name), type(self).forward
        kinds = type(gate), type(up)  # apart, or mypy takes them for objects
        if parts.get(act_name) is not act or kinds != (GateLinear, torch.nn.Linear):
            return old(self, x)
        watched = rewriting.has_hooks(gate, up, act)
        if watched and (rewriting.has_hooks(act) or not _are_sharded(gate, up)):
            return old(self, x)
        if settled and not watched and not x.is_cpu:  # no weight is packed
            hidden = straight_gate(x, gate, up, activation)
            if hidden is not NotImplemented:
                return old(self, x) if hidden is None else parts[down_name](hidden)

        def ours(x: Any) -> Any:
            return gate_times_up(self, keeper, x, gate, up, activation)

        def measured(x: Any) -> Any:
            pair = None
            if type(parts.get(down_name)) is torch.nn.Linear and not rewriting.has_hooks(*self.children()):
                # As a call of each goes, with what modules cost.
                pair = lambda: (choice.settled(x), fused(self, x, True)), lambda: old(self, x)
            return measured_gate(self, choice, keeper, x, (gate, up), activation, pair)

        form = ours if choice is None or settled else measured
        hidden = gate(x, fused=form) if watched else form(x)
        return old(self, x) if hidden is None else parts[down_name](hidden)

    setattr(module, _PACKED, Packed())
    module.get_submodule(gate_name).__class__ = GateLinear
    rewriting.put_over(module, forward)


def _fuse_linear(module: Any, site: Site, choice: Choice | None) -> None:
    linear, act = module.get_submodule(site.linears[0]), module.get_submodule(site.act)
    setattr(module, site.act, rewriting.fuse_layer(linear, act, site.activation, choice))


def _fuse_rewrite(module: Any, site: rewriting.Rewrite, spelled: str, when: str) -> None:
    """Once for each record of a new forward; they share one choice."""
    sites = vars(module).setdefault(_SITES, [])
    choice = sites[0][2] if sites else Choice(NEW_FORWARD, spelled, None) if when == "measured" else None
    if not sites:
        rewriting.apply(module, site, choice)
    sites.append((None, None, choice, None))


def _fuse(module: Any, site: Site | rewriting.Rewrite, spelled: str, when: str) -> None:
    if isinstance(site, rewriting.Rewrite):
        _fuse_rewrite(module, site, spelled, when)
        return
    act = module.get_submodule(site.act)
    choice = Choice(site.form, spell(site.activation), act) if when == "measured" else None
    layer = module.get_submodule(site.linears[0])
    vars(module).setdefault(_SITES, []).append((site, act, choice, layer))
    (_fuse_gate if site.form == "gate/up" else _fuse_linear)(module, site, choice)


def _restore(module: Any, site: Site | None, act: Any, layer: Any) -> bool:
    """False: it stays fused."""
    if site is None:  # rewriting.py has undone it
        return True
    done = rewriting.take_back(layer)
    if site.form == "gate/up":
        rewriting.drop_forward(module)
        vars(module).pop(_PACKED, None)
    elif done or type(layer) is torch.nn.Linear:
        setattr(module, site.act, act.train(module.training))
    else:
        return False
    return True


class _Model:
    """What surrounds the modules of a model: how many have each as a part, and which, under what name."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.uses = Counter(id(part) for _, part in model.named_modules(remove_duplicate=False))
        self.owners: dict[int, list[tuple[Any, str]]] = defaultdict(list)
        for owner in model.modules():
            for name, part in owner._modules.items():
                self.owners[id(part)].append((owner, name))


_Plan = list[tuple[Site | rewriting.Rewrite | None, Record]]


def _plan(name: str, module: torch.nn.Module, model: _Model, when: str) -> _Plan:
    """The sites of one module, with what would become of them; a new forward only where that fuses more."""
    swaps = _plan_swaps(name, module, model)
    done = any(record.fused for _, record in swaps)
    if any(record.fused and record.form == "gate/up" for _, record in swaps) or (done and when == "measured"):
        return swaps
    rewrite = _plan_rewrite(name, module, model, when)
    more = any(record.fused and record.form != "linear" for _, record in rewrite)
    return rewrite if rewrite and (more or not done) else swaps


def _plan_rewrite(name: str, module: torch.nn.Module, model: _Model, when: str) -> _Plan:
    """The sites of a new forward; the first one carries it."""

    def layer(child: str) -> Any:
        part = module.get_submodule(child)
        try:
            _check_hooks(child, part)
            found = rewriting.kind(part)
            if found is None:
                return of_module(part)
            _check_layer(child, part, model.uses)
        except Left:
            return None
        return found

    if not any(rewriting.kind(part) for part in module.children()):
        return []
    words: list[rewriting.Words] = []
    try:
        names = reading.names(module) & {function.__name__ for function in ACTIVATIONS}
        words = [rewriting.Words("linear", word, ()) for word in sorted(names)]  # what the report has if it is left
        _check_hooks("it", module)
        check_arguments(module)
        for owner, child in model.owners[id(module)]:
            reading.check_called(owner, child, module)
        read = reading.reads(module)
        words = []
        made = rewriting.plan(graphs(module), module, layer, read)
        if made is None:
            return []
        rewrite, words = made
        _check_whole(module, when)
    except Left as left:
        return [(None, Record(name, word.form, word.spelled, False, str(left))) for word in words]
    records = [Record(name, word.form, word.spelled, True, " + ".join(word.names)) for word in words]
    return [(rewrite, record) for record in records]


def _check_whole(module: torch.nn.Module, when: str) -> None:
    """Leave a module with a cast that no trace shows, and one that may not run to be measured: its parts may count."""
    if len({parameter.dtype for parameter in module.parameters()}) > 1:
        raise Left("its parameters have several dtypes")
    for name, part in module.named_modules():
        if when == "measured" and part is not module and not rewriting.is_known(part):
            raise Left(f"{name} is a {_kind(part)}, which may not run to be measured")


def _plan_swaps(name: str, module: torch.nn.Module, model: _Model) -> _Plan:
    """The sites of one module that need no new forward, or one for a gate, with what would become of them."""
    acts = {child: act for child, part in module.named_children() if (act := of_module(part))}
    if not acts or not any(_looks_linear(part) for part in module.children()):
        return []
    words = "; ".join(spell(activation) for activation in acts.values())
    try:
        _check_hooks("it", module)
        found = sites_of(module, acts)
    except Left as left:
        return [(None, Record(name, "linear", words, False, str(left)))]
    sites = sorted(found, key=lambda site: list(acts).index(site.act))
    if not sites:
        return [(None, Record(name, "linear", words, False, "no linear goes to the activation alone"))]
    planned: _Plan = []
    for site in sites:
        spelled = spell(site.activation)
        try:
            _check_site(module, site, model)
        except Left as left:
            planned.append((None, Record(name, site.form, spelled, False, str(left))))
        else:
            planned.append((site, Record(name, site.form, spelled, True, " + ".join((*site.linears[:2], site.act)))))
    return planned


def _check_site(module: torch.nn.Module, site: Site, model: _Model) -> None:
    act = module.get_submodule(site.act)
    if site.form == "gate/up":
        if site.activation.name not in GATED_BY:
            raise Left(f"there is no gated form of {site.activation.name}")
        for linear in site.linears[:2]:
            _check_linear(linear, module.get_submodule(linear), model.uses)
        if reading.reads(module) != reading.Reads():
            raise Left("its forward casts, or depends on an attribute")
    else:
        (layer,) = site.linears
        _check_linear(layer, module.get_submodule(layer), model.uses)
        if "." in layer:
            raise Left(f"{layer} is a part of a child")
        reading.check_pair(module, layer, site.act)
        for owner, name in model.owners[id(module)]:
            reading.check_owner(owner, name, module, layer, site.act)
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

    Layers stay the same objects, with the same parameters and state_dict, and gradients are recorded as before. In the
    place of an activation that its layer computes is a torch.nn.Identity, and the layer gives the activated result to
    whoever calls it: a slice of a Sequential, a global hook. A hook of either gives both their own forms back.
    LoRA-wrapped, quantised and sharded layers, and modules with hooks, are left alone. A model that is patched already
    is unpatched first. An exception leaves the model as it was. No other thread may call a compiled model meanwhile.

    when: "measured": a site runs what was faster when both forms were timed, once a power of two of its rows, for
    50 ms or two calls of each; the tune store keeps it, report() says it. "always": nothing is timed. "never": the
    report alone. No site is timed inside torch.compile, a trace or a capture of a CUDA graph: it runs fused there,
    unless that lost wherever it was measured before.
    """
    global _last
    _compiled.clear()
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is a {_kind(model)}; it must be a torch.nn.Module")
    check_when(when)
    unpatch(model)
    around = _Model(model)
    planned = [(part, *plan) for name, part in model.named_modules() for plan in _plan(name, part, around, when)]
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
    for module in list(model.modules()):
        vars(module).pop(_REPORT, None)
        rewriting.undo(module)
        sites = vars(module).pop(_SITES, [])
        fused = [entry for entry in reversed(sites) if not _restore(module, entry[0], entry[1], entry[3])]
        if fused:
            vars(module)[_SITES] = fused[::-1]


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
    sites = {name: (part, iter(vars(part).get(_SITES, ()))) for name, part in model.named_modules()}
    for record in vars(model).get(_REPORT, ()):
        if record.fused:
            module, entries = sites.get(record.site, (None, iter(())))
            site, _, choice, layer = next(entries, (None, None, None, None))
            if module is None or not _is_fused(module, site, layer):
                made.append(replace(record, fused=False, why=f"left: undone since, {record.why}"))
                continue
            made += _measured(record, choice)
        else:
            made.append(record)
    return made


def _is_fused(module: Any, site: Site | None, layer: Any) -> bool:
    """Is it as patch() made it? A pickle has lost new forwards, and hooks undo a site."""
    if site is not None and site.form == "linear":
        return isinstance(layer, FusedLinear)
    return rewriting.is_patched(module)


def report(model: torch.nn.Module | None = None) -> Report:
    """The report of patch(model); without a model that of the last patch, and of what the backend compiled since."""
    if model is not None:
        return _report(model)
    last = _last() if _last is not None else None
    compiled = (record for records in _compiled.values() for record in records)
    return Report([*(_report(last) if last is not None else ()), *compiled])
