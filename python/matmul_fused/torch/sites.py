"""The sites of a module that `patch` may fuse: in symbolic traces of its forward or, without those, in its source.

Role on the path of a call: none; patching.py asks while a model is patched.
"""

from __future__ import annotations

import inspect
import operator
import os
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from . import reading
from .activations import Activation
from .match import only
from .reading import Left

__all__ = ["Left", "Site", "check_arguments", "graphs", "sites_of"]


class _Tracer(fx.Tracer):  # type: ignore[misc]
    """Traces one forward; every module in it is a black box. torch gives it the calls of all threads meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.thread = threading.get_ident()

    def is_leaf_module(self, module: Any, qualified_name: str) -> bool:
        return True

    def call_module(self, module: Any, forward: Any, args: Any, kwargs: Any) -> Any:
        if threading.get_ident() != self.thread:
            return forward(*args, **kwargs)
        return super().call_module(module, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: Any) -> Any:
        if threading.get_ident() != self.thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)


_tracing = threading.RLock()  # what torch changes for a trace is put back in the order of one thread


def _after_fork() -> None:
    global _tracing
    _tracing = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def check_arguments(module: torch.nn.Module) -> None:
    parameters = list(inspect.signature(module.forward).parameters.values())
    if len(parameters) != 1 or parameters[0].kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
        raise Left("its forward takes more than one argument")


def _graph(module: torch.nn.Module) -> Any:
    try:
        with _tracing:
            return _Tracer().trace(module)
    except Exception as error:  # any code of a model runs here
        said = str(error).strip().splitlines() or [""]
        raise Left(f"its forward cannot be traced: {type(error).__name__}: {said[0]}") from error


def graphs(module: torch.nn.Module) -> list[Any]:
    """The forward of a module as graphs: in training and in eval mode."""
    check_arguments(module)
    reading.check_trace(module)
    made = []
    for training in (True, False):
        shadow = object.__new__(type(module))  # other threads may be in the module itself
        before = {**vars(module), "training": training}
        vars(shadow).update(before)
        made.append(_graph(shadow))
        after = vars(shadow)
        if after.keys() != before.keys() or any(after[name] is not before[name] for name in before):
            raise Left("its forward sets attributes")
    return made


@dataclass(frozen=True)
class Site:
    """A linear layer with its activation, or gate, up and down with theirs: names of children."""

    form: str
    linears: tuple[str, ...]
    act: str
    activation: Activation


def _children_used_once(graph: Any) -> dict[str, Any]:
    """target -> node, for children that are called at one place, on one argument."""
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    return {
        node.target: node
        for node in graph.nodes
        if node.op == "call_module" and calls[node.target] == 1 and len(node.args) == 1 and not node.kwargs
    }


def _gate(graph: Any, act: Any, nodes: dict[str, Any]) -> tuple[str, ...] | None:
    """(gate, up, down) if the whole graph is down(act(gate(x)) * up(x))."""
    gate, product = act.args[0], only(act.users)
    if product is None or product.target is not operator.mul or product.kwargs:
        return None
    up, down = only([other for other in product.args if other is not act]), only(product.users)
    if any(node not in nodes.values() for node in (up, down)) or len(up.users) != 1:
        return None
    if gate.args != up.args or gate.args[0].op != "placeholder":
        return None
    (output,) = [node for node in graph.nodes if node.op == "output"]
    if output.args != (down,) or len(graph.nodes) != 7:
        return None
    return gate.target, up.target, down.target


def _sites_in(graph: Any, acts: dict[str, Activation]) -> set[Site]:
    nodes = _children_used_once(graph)
    found = set()
    for name, activation in acts.items():
        if name not in nodes:
            continue
        act = nodes[name]
        source = act.args[0]
        if source not in nodes.values() or len(source.users) != 1 or source.target in acts:
            continue
        gate = _gate(graph, act, nodes)
        found.add(Site("gate/up" if gate else "linear", gate or (source.target,), name, activation))
    return found


def sites_of(module: Any, acts: dict[str, Activation]) -> set[Site]:
    """The sites of a module with these activations: in its traces or, if it cannot be traced, in its source.

    What they are changed for is not yet checked: see reading.check_pair, and reading.reads for gate/up.
    """
    try:
        train, evaluated = (_sites_in(graph, acts) for graph in graphs(module))
    except Left:
        children = dict(module.named_children())
        read = [(layer, act) for layer, act in reading.pairs(module) if layer in children and act in acts]
        if not read:
            raise
        return {Site("linear", (layer,), act, acts[act]) for layer, act in read}
    return train & evaluated
