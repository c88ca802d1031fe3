"""What `patch` changes, and back: the class of a layer, or the forward of the module that has the layers.

A new forward is for where a class is not enough: GPT-2's Conv1D, one weight of gate and up (Phi-3), and activations
that are called as functions. The old one is traced with every child as a black box, the sites that match.py finds are
replaced by calls of `fused_layers`, and the code of that graph is put over the module's own forward.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from matmul_fused import _core

from . import functional
from .activations import Activation, of_module
from .choice import Choice, MeasuredLinear
from .match import Matcher, Site
from .modules import FusedLinear, GateLinear, Packed, eager
from .reading import Reads

_MARK = "_rewritten_by_matmul_fused"
_PACKED = "_packed_by_matmul_fused"
_KEPT = "_kept_by_matmul_fused"  # the Choice or None, and the activations that are modules

# Layers besides torch.nn.Linear, by class: "linear" has a weight (N, K), "conv1d" one of (K, N).
_KINDS = {
    "transformers.pytorch_utils.Conv1D": "conv1d",
    "transformers.models.falcon.modeling_falcon.FalconLinear": "linear",
}


def kind(layer: Any) -> str | None:
    """ "linear" or "conv1d", if that is what a module computes."""
    if type(layer) is torch.nn.Linear:
        return "linear"
    return _KINDS.get(f"{type(layer).__module__}.{type(layer).__qualname__}")


def is_known(part: Any) -> bool:
    """Is it of torch, a layer, or an activation? Others may count their calls, or write to their argument."""
    return type(part).__module__.startswith("torch.nn.") or bool(kind(part) or of_module(part))


@dataclass(frozen=True)
class Rewrite:
    """The new forward of a module: in training and in eval mode, and what it was made for."""

    train: Callable[..., Any]
    evaluated: Callable[..., Any]
    layers: tuple[tuple[str, Any], ...]
    """Names and classes."""
    acts: tuple[str, ...]
    """Activations that are modules."""
    reads: Reads


@dataclass(frozen=True)
class Words:
    """A site, as the report says it."""

    form: str
    spelled: str
    names: tuple[str, ...]


def plan(
    graphs: list[fx.Graph], module: Any, layer: Callable[[str], Any], reads: Reads
) -> tuple[Rewrite, list[Words]] | None:
    """The new forward, of the graphs of the old one in training and in eval mode; None if there is no site in both."""

    def writes(name: str) -> bool:
        parts = module.get_submodule(name).modules()
        return any(getattr(part, "inplace", False) or not is_known(part) for part in parts)

    found = [Matcher(graph, layer, writes).sites() for graph in graphs]
    words = [[_words(site) for site in sites] for sites in found]
    if not words[0] or words[0] != words[1]:
        return None
    names = dict.fromkeys(linear.layer for site in found[0] for linear in site.linears)
    acts = dict.fromkeys(act for site in found[0] for act in _called(site) if act not in names)
    for graph, sites in zip(graphs, found, strict=True):
        fused: dict[fx.Node, fx.Node] = {}
        for site in sites:
            _replace(graph, site, fused)
    layers = tuple((name, type(module.get_submodule(name))) for name in names)
    return Rewrite(_code(graphs[0]), _code(graphs[1]), layers, tuple(acts), reads), words[0]


def _called(site: Site) -> list[str]:
    return sorted(str(node.target) for node in site.replaced if node.op == "call_module")


def _words(site: Site) -> Words:
    layers = tuple(linear.layer for linear in site.linears)
    called = tuple(name for name in _called(site) if name not in layers)
    return Words(site.form, site.spelled, (*layers, *(called or (site.spelled,))))


def _replace(graph: fx.Graph, site: Site, fused: dict[fx.Node, fx.Node]) -> None:
    first = site.linears[0]
    with graph.inserting_before(site.end):
        layers = [graph.create_node("get_attr", linear.layer) for linear in site.linears]
        arguments = (fused.get(first.x, first.x), *layers, *[None] * (2 - len(layers)))
        named = site.activation
        result = graph.call_function(fused_layers, (*arguments, named.name, named.parameters, named.gate_layout))
    site.end.replace_all_uses_with(result)
    for node in reversed([node for node in graph.nodes if node in site.replaced]):
        graph.erase_node(node)
    fused[site.end] = result


def _code(graph: fx.Graph) -> Any:
    code = graph.python_code("self")
    names = dict(code.globals)
    exec(compile(code.src, "<forward rewritten by matmul_fused>", "exec"), names)
    return names["forward"]


def _rows(layer: Any) -> Any:
    """The weight as (N, K)."""
    return layer.weight.t() if kind(layer) == "conv1d" else layer.weight


def fused_layers(x: Any, layer: Any, up: Any, name: str, parameters: tuple[float, ...], layout: str | None) -> Any:
    """The activation of one or two layers; packed weights are kept by the first of them."""
    activation = (name, *parameters) if parameters else name  # torch 2.10 traces no property
    layers = [layer] if up is None else [layer, up]
    weights = [_rows(part) for part in layers]
    biases = [part.bias for part in layers]
    packed = None
    if not torch.compiler.is_compiling() and eager(layer, x, *weights, *biases):
        packed = vars(layer)[_PACKED].get(x, *weights, gate_layout=layout)
    if packed is None:
        weight, bias = (weights[0], biases[0]) if up is None else (tuple(weights), tuple(biases))
        if all(part is None for part in biases):
            bias = None
        return functional.linear(x, weight, bias, activation, gate_layout=layout)
    bias = biases[0] if up is None else None
    if up is not None and any(part is not None for part in biases):
        bias = tuple(0.0 if part is None else part for part in biases)
    return _core.matmul_fused(x, packed, bias, activation, gate_layout=layout)


# --- a forward over another ---


def has_hooks(*modules: Any) -> bool:
    """Does somebody watch calls of one of these: by hooks, or by another forward?"""
    for module in modules:
        own = vars(module)
        if own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_backward_hooks"] or own["_backward_pre_hooks"]:
            return True
        if "forward" in own:
            return True
    return bool(_any_global_hook())


def _busy(module: Any, training: bool) -> bool:
    """May it not run more often than the model calls it?"""
    return has_hooks(module) or module.training != training


_any_global_hook = torch.nn.modules.module._has_any_global_hook
_codes: set[types.CodeType] = set()


def put_over(module: Any, forward: Any) -> None:
    """Give a module a forward of its own, which drop_forward() knows again."""
    _codes.add(forward.__code__)
    module.forward = types.MethodType(forward, module)


def _of_pickle(module: Any) -> bool:
    """Is its forward what a pickle makes of one of ours: that of the class?"""
    return getattr(vars(module).get("forward"), "__func__", None) is type(module).forward


def is_patched(module: Any) -> bool:
    """Has it one of these, perhaps below what somebody else has put over it?"""
    return "forward" in vars(module) and not _of_pickle(module)


def drop_forward(module: Any) -> None:
    """Take it away, unless somebody else has put another one over it."""
    forward = vars(module).get("forward")
    if getattr(forward, "__code__", None) in _codes or _of_pickle(module):
        del module.forward


def _child(module: Any, path: list[str]) -> Any:
    """get_submodule without its checks; None if there is none."""
    for name in path:
        module = module._modules.get(name) if module is not None else None
    return module


def apply(module: Any, rewrite: Rewrite, choice: Choice | None) -> None:
    """Put the new forward over the old one, which runs where the layers are no longer what they were.

    choice: the old one runs where it was measured to be faster, too. Both run to be measured, so not with hooks.
    """

    # By name, since a copy of the module has its own layers, and another one may take a layer's place.
    names, kinds = zip(*rewrite.layers, strict=True)
    casts, values = rewrite.reads.casts, rewrite.reads.values
    paths, act_paths = ([name.split(".") for name in part] for part in (names, rewrite.acts))

    def forward(self: Any, *arguments: Any, **keywords: Any) -> Any:
        old, kept = type(self).forward, vars(self).get(_KEPT)
        if kept is None:  # undone, and this method is called by somebody who has kept it
            return old(self, *arguments, **keywords)
        choice, acts = kept
        settled = choice.settled(arguments[0]) if choice is not None and arguments else None
        if settled is False:
            return old(self, *arguments, **keywords)
        layers = [_child(self, path) for path in paths]
        if not all(type(layer) is was and _PACKED in vars(layer) for layer, was in zip(layers, kinds, strict=True)):
            return old(self, *arguments, **keywords)
        if not all(_child(self, path) is act for path, act in zip(act_paths, acts, strict=True)):
            return old(self, *arguments, **keywords)
        if has_hooks(*layers, *acts) or not _reads_the_same(self, layers[0], casts, values):
            return old(self, *arguments, **keywords)
        new = rewrite.train if self.training else rewrite.evaluated
        if choice is not None and (not settled or self.training):
            busy = any(_busy(part, self.training) for part in self.children())
            x = [*arguments, *keywords.values(), None][0]
            if busy or not _takes_new(choice, self, x, layers, (new, old)):
                if not choice.ours_in_traces:
                    for layer in layers:
                        vars(layer)[_PACKED].drop()
                return old(self, *arguments, **keywords)
        return new(self, *arguments, **keywords)

    vars(module)[_KEPT] = choice, [module.get_submodule(name) for name in rewrite.acts]
    vars(module)[_MARK] = names
    for name in names:
        vars(module.get_submodule(name))[_PACKED] = Packed()
    put_over(module, forward)


def _reads_the_same(module: Any, layer: Any, casts: tuple[Any, ...], values: tuple[Any, ...]) -> bool:
    """As reading.Reads has it."""
    for child, parameter in casts:
        part = getattr(module._modules.get(child), parameter, None)
        if getattr(part, "dtype", None) != layer.weight.dtype:
            return False
    for name, value in values:
        now = vars(module).get(name)
        if type(now) is not type(value) or now != value:
            return False
    return True


def _takes_new(choice: Choice, module: Any, x: Any, layers: list[Any], forms: tuple[Any, Any]) -> bool:
    """Choice.takes_new; if it has to run the forms, then on a copy of x, and no random number is used up."""
    spare: list[Any] = []

    def aside() -> Any:
        if not spare:
            fork = torch.random.fork_rng(devices=[x.device] if x.is_cuda else [])
            fork.__enter__()
            spare.extend((x.detach().clone(), fork))
        return spare[0]

    new, old = forms
    try:
        weights = tuple(_rows(layer) for layer in layers)
        return choice.takes_new(module, x, weights, lambda: new(module, aside()), lambda: old(module, aside()))
    finally:
        if spare:
            spare[1].__exit__(None, None, None)


def undo(module: Any) -> None:
    """Give a module its own forward back; nothing happens to one that has it."""
    vars(module).pop(_KEPT, None)
    for name in vars(module).pop(_MARK, ()):
        vars(_child(module, name.split(".")) or module).pop(_PACKED, None)
        drop_forward(module)


# --- a layer of another class ---

_OURS = (FusedLinear, MeasuredLinear, GateLinear)
_REGISTERS = (
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_full_backward_hook",
    "register_full_backward_pre_hook",
    "register_backward_hook",
)


def fuse_layer(linear: Any, act: Any, activation: Activation, choice: Choice | None) -> torch.nn.Identity:
    """Let a torch.nn.Linear compute the activation behind it; what comes into the place of that one."""
    linear.__class__ = FusedLinear if choice is None else MeasuredLinear
    linear._set(activation, None, True)
    if choice is not None:
        linear.choice = choice
    idle = torch.nn.Identity().train(act.training)
    for part in (linear, idle):
        vars(part).update({name: _Register(name, part, (linear, idle, act)) for name in _REGISTERS})
    return idle


def of_sharding(hook: Any) -> bool:
    """Is it a hook of parallelize_module? GateLinear and FusedLinear run between them."""
    return str(getattr(hook, "__module__", "")).startswith("torch.distributed.tensor.")


@dataclass(eq=False)
class _Register:
    """Of a fused layer and of what is in its activation's place: a hook sees what torch's own modules get and give.

    So with the first hook both are these again; a call of a layer without hooks need not ask.
    """

    name: str
    module: Any
    parts: tuple[Any, Any, Any]

    def __call__(self, hook: Any, *arguments: Any, **keywords: Any) -> Any:
        linear, idle, act = self.parts
        if not of_sharding(hook) and take_back(linear):
            act.train(idle.training)
            idle.__class__ = type(act)
            vars(idle).clear()
            vars(idle).update(vars(act))
        return getattr(type(self.module), self.name)(self.module, hook, *arguments, **keywords)


def take_back(linear: Any) -> bool:
    """Give a layer torch's class back; False where it has none of ours, or somebody has put a forward over ours.

    A parametrization, or FSDP, has made a subclass of it, and in that torch's class takes the place of ours.
    """
    kind: Any = type(linear)
    if "forward" in vars(linear) or not (kind in _OURS or any(base in _OURS for base in kind.__bases__)):
        return False
    if kind in _OURS:
        linear.__class__ = torch.nn.Linear
    else:
        bases = tuple(torch.nn.Linear if base in _OURS else base for base in kind.__bases__)
        body = {name: value for name, value in vars(kind).items() if name not in ("__dict__", "__weakref__")}
        meta: Any = type(kind)
        linear.__class__ = meta(kind.__name__, bases, body)
    for name in ("activation", "gate_layout", "prepack", "_packed", "choice", *_REGISTERS):
        vars(linear).pop(name, None)
    return True
