"""What `patch` does where changing a layer's class is not enough: a new forward of the module that has the layers.

The forward is traced with every child as a black box, the sites that match.py finds are replaced by calls of
`fused_layers`, and the code of that graph is put over the module's own forward. Used for GPT-2's Conv1D, for one
weight of gate and up (Phi-3), and for activations that are called as functions.
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
from .choice import Choice
from .match import Matcher, Site
from .modules import Packed, eager

_MARK = "_rewritten_by_matmul_fused"
_PACKED = "_packed_by_matmul_fused"
_CHOICE = "_choice_by_matmul_fused"

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


@dataclass(frozen=True)
class Rewrite:
    """The new forward of a module: in training and in eval mode, and the classes of the layers it was made for."""

    train: Callable[..., Any]
    evaluated: Callable[..., Any]
    layers: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Words:
    """A site, as the report says it."""

    form: str
    spelled: str
    names: tuple[str, ...]


def plan(graphs: list[fx.Graph], module: Any, layer: Callable[[str], Any]) -> tuple[Rewrite, list[Words]] | None:
    """The new forward, of the graphs of the old one in training and in eval mode; None if there is no site in both."""
    found = [Matcher(graph, layer).sites() for graph in graphs]
    words = [[_words(site) for site in sites] for sites in found]
    if not words[0] or words[0] != words[1]:
        return None
    for graph, sites in zip(graphs, found, strict=True):
        fused: dict[fx.Node, fx.Node] = {}
        for site in sites:
            _replace(graph, site, fused)
    names = dict.fromkeys(linear.layer for site in found[0] for linear in site.linears)
    layers = tuple((name, type(module.get_submodule(name))) for name in names)
    return Rewrite(_code(graphs[0]), _code(graphs[1]), layers), words[0]


def _words(site: Site) -> Words:
    acts = sorted(str(node.target) for node in site.replaced if node.op == "call_module")
    layers = tuple(linear.layer for linear in site.linears)
    called = tuple(name for name in acts if name not in layers)
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


def has_hooks(module: Any) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


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
    paths = [name.split(".") for name in names]

    def forward(self: Any, *arguments: Any, **keywords: Any) -> Any:
        old, choice = type(self).forward, vars(self)[_CHOICE]
        settled = choice.settled(arguments[0]) if choice is not None and arguments else None
        if settled is False:
            return old(self, *arguments, **keywords)
        layers = [_child(self, path) for path in paths]
        as_planned = all(type(layer) is was for layer, was in zip(layers, kinds, strict=True))
        if not as_planned or any(has_hooks(layer) for layer in layers):
            return old(self, *arguments, **keywords)
        new = rewrite.train if self.training else rewrite.evaluated
        hooked = choice is not None and any(has_hooks(part) for part in self.children())
        if choice is not None and (not settled or self.training or hooked):
            x = [*arguments, *keywords.values(), None][0]
            forms = (lambda: new(self, x), lambda: old(self, x))
            if hooked or not choice.takes_new(self, x, tuple(_rows(layer) for layer in layers), *forms):
                if not choice.ours_in_traces:
                    for layer in layers:
                        vars(layer)[_PACKED].drop()
                return old(self, *arguments, **keywords)
        return new(self, *arguments, **keywords)

    vars(module)[_MARK] = [name for name, _ in rewrite.layers]
    vars(module)[_CHOICE] = choice
    for name, _ in rewrite.layers:
        vars(module.get_submodule(name))[_PACKED] = Packed()
    module.forward = types.MethodType(forward, module)


def undo(module: Any) -> None:
    """Give a module its own forward back; nothing happens to one that has it."""
    for name in vars(module).pop(_MARK, ()):
        vars(module.get_submodule(name)).pop(_PACKED, None)
        vars(module).pop("forward", None)
        vars(module).pop(_CHOICE, None)
