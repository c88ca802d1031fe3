"""The backend of torch.compile: `torch.compile(model, backend="matmul_fused")`.

Dynamo's graph is searched for sites by match.py, each site becomes one registered operator of op.py where that is
faster, and the graph goes on to Inductor. Role on the path of a call: none; it runs while a model is compiled.
"""

from __future__ import annotations

import operator
import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import fx

from matmul_fused.report import engineering

from . import measure, op, whole
from .activations import keeps
from .match import Left, Linear, Matcher, Site
from .patching import check_when, record_compiled
from .records import Record


def _options(options: dict[str, Any] | None, mode: str | None) -> tuple[str, bool, Any, dict[str, Any]]:
    """(when, is the whole graph measured, too, the backend behind this one, options of Inductor)"""
    rest = dict(options or {})
    when = rest.pop("when", "measured")
    all_of_it = rest.pop("whole", True)
    inner = rest.pop("inner", "inductor")
    check_when(when)
    if mode not in (None, "default"):
        from torch._inductor import list_mode_options

        rest = {**list_mode_options(mode), **rest}
    if inner != "inductor" and rest:
        raise ValueError(f"options {', '.join(map(repr, rest))} are Inductor's, but inner is {inner!r}")
    return when, all_of_it and when == "measured", inner, rest


def _compiler(inner: Any, patches: dict[str, Any]) -> Callable[[Any, Any], Any]:
    if inner != "inductor":
        return torch._dynamo.lookup_backend(inner)  # type: ignore[no-any-return]
    from torch._inductor.compile_fx import compile_fx

    from . import lowering  # noqa: F401  # how it writes our operators

    return lambda graph, inputs: compile_fx(graph, inputs, config_patches=patches or None)


def backend(
    graph: fx.GraphModule, inputs: list[Any], *, options: dict[str, Any] | None = None, mode: str | None = None
) -> Any:
    """Compile a graph of Dynamo with fused linear layers: what torch.compile(model, backend="matmul_fused") calls.

    options: "when": "measured" (a site is fused if that is faster than what Inductor makes of it, both timed once, and
    all of them if the whole graph is faster with them), "always", or "never" for the report alone; "whole": False
    decides by the sites alone, without the second compilation; "inner": the backend that the rewritten graph goes to,
    "inductor" by default; all others are Inductor's, as those of `mode` are. What was done:
    matmul_fused.torch.report().
    """
    when, all_of_it, inner, patches = _options(options, mode)
    compiler = _compiler(inner, patches)
    matcher = Matcher(graph.graph)
    sites, left = matcher.sites(), list(matcher.left())
    decisions = [_decide(site, when, inner, compiler) for site in sites]  # all before the graph changes
    records = [_record(site, decision) for site, decision in zip(sites, decisions, strict=True)]
    places = [matcher.place[site.end] for site in sites]
    places += [matcher.place[item.node] for item in left]
    won = [site for site, decision in zip(sites, decisions, strict=True) if decision.fused]
    plain = whole.copy_of(graph) if won and all_of_it else None
    fused: dict[fx.Node, fx.Node] = {}
    for site in won:
        fuse(graph.graph, site, fused)
    graph.recompile()
    if plain is None:
        compiled = compiler(graph, inputs)
    else:
        device = _value(won[0].end).device
        found, compiled = whole.faster(graph, plain, inputs, device, f"{inner} {patches}", compiler)
        records = [_in_the_whole(record, found) for record in records]
    made = zip(places, [*records, *map(_record_left, left)], strict=True)
    record_compiled([record for _, record in sorted(made, key=lambda pair: pair[0])])
    return compiled


def _in_the_whole(record: Record, found: measure.Decision | None) -> Record:
    """What becomes of a record when its graph is left."""
    if found is None or found.fused or not record.fused:
        return record
    why = found.why
    if found.ours is not None and found.theirs is not None:
        times = f"{engineering(found.ours, 's')}, without {engineering(found.theirs, 's')}"
        why = f"left: slower as a whole graph, {times}"
    return replace(record, fused=False, why=f"{why}, {record.why}")


def _decide(site: Site, when: str, inner: Any, compiler: Callable[[Any, Any], Any]) -> measure.Decision:
    if when == "measured":
        return _measured(site, inner, compiler)
    return measure.Decision(when == "always", None, None, "" if when == "always" else 'when is "never"')


# --- one site ---


def _value(node: fx.Node) -> Any:
    return node.meta["example_value"]


def _call(graph: fx.Graph, kind: str, target: Any, arguments: tuple[Any, ...], like: fx.Node, value: Any) -> fx.Node:
    node = graph.create_node(kind, target, arguments)
    node.meta = {**like.meta, "example_value": value}
    return node


def _operand(graph: fx.Graph, node: fx.Node, dtype: Any, end: fx.Node, turned: bool = False) -> fx.Node:
    """An operand of the fused call: cast as autocast casts it, and a weight as (N, K)."""
    if _value(node).dtype != dtype:
        node = _call(graph, "call_method", "to", (node, dtype), end, _value(node).to(dtype))
    if turned:
        node = _call(graph, "call_method", "t", (node,), end, _value(node).t())
    return node


def fuse(graph: fx.Graph, site: Site, fused: dict[fx.Node, fx.Node]) -> None:
    """Put the fused call in the place of what it computes; fused: those of earlier sites, by what they replaced."""
    end, first = site.end, site.linears[0]
    dtype = _value(first.result).dtype

    def operand(node: fx.Node | None, turned: bool = False) -> fx.Node | None:
        return None if node is None else _operand(graph, fused.get(node, node), dtype, end, turned)

    with graph.inserting_before(end):
        x = operand(first.x)
        parts: list[Any] = []
        for linear in site.linears:
            parts += [operand(linear.weight, linear.turned), operand(linear.bias)]
        if site.added is not None:
            added = fused.get(site.added, site.added)
            result = _call(graph, "call_function", op.linear_add, (x, *parts, added), end, _value(end))
        else:
            parts += [None] * (4 - len(parts))
            named = site.activation
            arguments = (x, *parts, named.name, list(named.parameters), named.gate_layout)
            if _recorded(site) and keeps(named.name) == "z":
                both = op.linear_z(*(_value(a) if isinstance(a, fx.Node) else a for a in arguments))
                pair = _call(graph, "call_function", op.linear_z, arguments, end, both)
                result = _call(graph, "call_function", operator.getitem, (pair, 0), end, _value(end))
            else:
                result = _call(graph, "call_function", op.linear, arguments, end, _value(end))
    end.replace_all_uses_with(result)
    for node in reversed([node for node in graph.nodes if node in site.replaced]):
        graph.erase_node(node)
    fused[end] = result


def _recorded(site: Site) -> bool:
    """Will gradients be recorded?"""
    operands = [site.added, *(part for linear in site.linears for part in (linear.x, linear.weight, linear.bias))]
    return torch.is_grad_enabled() and any(_value(part).requires_grad for part in operands if part is not None)


# --- which form is faster ---


def _alone(site: Site) -> tuple[fx.GraphModule, Site, list[fx.Node]]:
    """A site as a graph of its own, the site in it, and the nodes of the whole graph that are its inputs."""
    inside = set(site.replaced)
    for linear in site.linears:  # the views that the matcher looked through
        for node in list(inside):
            for source in node.all_input_nodes:
                if source not in (linear.x, linear.weight) and set(source.all_input_nodes) & {linear.x, linear.weight}:
                    inside.add(source)
    order = {node: place for place, node in enumerate(site.end.graph.nodes)}
    nodes = sorted(inside, key=order.__getitem__)
    outer = sorted({source for node in nodes for source in node.all_input_nodes} - inside, key=order.__getitem__)
    graph, copies = fx.Graph(), {}
    for place, node in enumerate(outer):
        copies[node] = graph.placeholder(f"operand_{place}")
        copies[node].meta = dict(node.meta)
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output((copies[site.end],))
    linears = tuple(
        replace(
            linear,
            result=copies[linear.result],
            x=copies[linear.x],
            weight=copies[linear.weight],
            bias=None if linear.bias is None else copies[linear.bias],
        )
        for linear in site.linears
    )
    copied = replace(
        site,
        linears=linears,
        end=copies[site.end],
        replaced=frozenset(copies[node] for node in site.replaced),
        added=None if site.added is None else copies[site.added],
    )
    return fx.GraphModule({}, graph), copied, outer


def _sample(value: Any) -> Any:
    shape, stride = (tuple(map(whole.number, sizes)) for sizes in (value.shape, value.stride()))
    made = torch.empty_strided(shape, stride, dtype=value.dtype, device=value.device)
    made.normal_() if made.is_floating_point() else made.zero_()
    return made.requires_grad_(value.requires_grad)


def _measured(site: Site, inner: Any, compiler: Callable[[Any, Any], Any]) -> measure.Decision:
    """Time the site as the inner backend compiles it against the fused call, with the gradients if there are any."""
    first, recorded = site.linears[0], _recorded(site)
    x, weight, end = _value(first.x), _value(first.weight), _value(site.end)
    known = [whole.number(size) for value in (x, weight) for size in value.shape]
    sizes = [size for size in known if size is not None]
    if sizes != known:
        return measure.Decision(False, None, None, "left: not measured: a size is not known before the run")
    columns = sizes[-1 if first.turned else -2]
    more = (
        ("grad",) * recorded
        + ("grad of x",) * (recorded and x.requires_grad)
        + ("bias",) * (first.bias is not None)
        + ("turned",) * first.turned
    )
    key = measure.site_key(
        f"{inner} {op.VERSION} {site.form}",
        " ".join(filter(None, (site.spelled, site.activation.gate_layout))),
        m=prod(sizes[: x.dim() - 1]),
        k=sizes[x.dim() - 1],
        n=columns,
        dtype=end.dtype,
        device=end.device,
        more=" ".join(more),
    )
    compiling = 0.0  # is none of the timed calls' time
    forms: dict[bool, Callable[[], object]] = {}
    samples: list[Any] = []

    def make(fused: bool) -> Callable[[], object]:
        module, copied, outer = _alone(site)
        if fused:
            fuse(module.graph, copied, {})
        module.recompile()
        if not samples:
            samples.extend(_sample(_value(node)) for node in outer)
        with torch._functorch.config.patch(force_non_lazy_backward_lowering=True):  # now, while its time is not counted
            compiled = compiler(module, list(samples))
        wanted = [sample for sample in samples if sample.requires_grad]
        if not recorded:
            return lambda: compiled(*samples)
        d = torch.ones_like(compiled(*samples)[0])
        return lambda: torch.autograd.grad(compiled(*samples), wanted, d)

    def form(fused: bool) -> Callable[[], object]:
        def call() -> object:
            nonlocal compiling
            if fused not in forms:
                start = time.perf_counter()
                forms[fused] = make(fused)
                compiling += time.perf_counter() - start
            return forms[fused]()

        return call

    with ExitStack() as stack:  # real tensors, in a compilation inside of another
        stack.enter_context(torch._guards.tracing(None))
        stack.enter_context(torch._subclasses.fake_tensor.unset_fake_temporarily())
        return measure.decide(
            key, form(True), form(False), device=end.device, clock=lambda: time.perf_counter() - compiling
        )


# --- records ---


def module_of(node: fx.Node) -> str:
    """Name of the module that a node was traced in."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    return re.sub(r"^L\['\w+'\]\.?", "", stack[-1][0]) if stack else ""


def _split(linear: Linear) -> tuple[str, str]:
    """(the module that has the linear, its name there)"""
    stack = list(linear.result.meta.get("nn_module_stack", {}).values())
    path = module_of(linear.result)
    if not stack or not any(word in getattr(stack[-1][1], "__name__", "") for word in ("Linear", "Conv1D")):
        return path, ""
    return path.rpartition(".")[0], path.rpartition(".")[2]


def _record(site: Site, decision: measure.Decision) -> Record:
    place = _split(site.linears[0])[0]
    names = [name for linear in site.linears if (name := _split(linear)[1])]
    names.append("residual" if site.added is not None else site.spelled)
    why = decision.why or " + ".join(names)
    return Record(place, site.form, site.spelled, decision.fused, why, decision.ours, decision.theirs)


def _record_left(left: Left) -> Record:
    return Record(module_of(left.node), "linear", left.spelled, False, left.why)
