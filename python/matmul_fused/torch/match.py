"""Which parts of an FX graph one fused call can compute: the matcher of `patch` and of the torch.compile backend.

A site starts at a linear layer: a call of a layer module, torch.nn.functional.linear, addmm, or a product with a 2-D
weight. What follows is taken as an activation for its values, not for its spelling: elementwise operators of the
linear's result and of numbers are compared with what matmul_fused computes (values.py).
Role on the path of a call: none; it runs once, when a model is patched or compiled.
"""

from __future__ import annotations

import heapq
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from .activations import Activation
from .operators import (
    ACTIVATION_METHODS,
    ACTIVATIONS,
    ADD,
    DTYPES,
    ELEMENTWISE,
    ELEMENTWISE_METHODS,
    LINEAR,
    MATMUL,
    MUL,
    alike,
    argument,
    barrier,
    calls,
    fake,
    idle,
    is_plain,
    word,
)
from .values import by_values

# Activations of a gate that have a gated form.
GATED_BY = {"silu": "swiglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh", "relu": "reglu", "sigmoid": "glu"}

# More operators than this are no activation.
_LONGEST = 16


@dataclass(frozen=True)
class Linear:
    """x @ weight.T + bias, or x @ weight + bias if `turned`; of a layer module, `layer` is its name."""

    result: fx.Node
    x: fx.Node
    weight: fx.Node | None
    bias: fx.Node | None
    turned: bool = False
    layer: str = ""


@dataclass(frozen=True)
class Site:
    """One fused call: activation(linears), times the second one's if gated, or plus `added`, in place of `end`."""

    form: str
    """ "linear", "gate/up" (two weights), "packed" (one weight for both) or "residual"."""
    spelled: str
    """The activation in the report's words."""
    activation: Activation
    linears: tuple[Linear, ...]
    end: fx.Node
    replaced: frozenset[fx.Node]
    """All that the fused call computes, the linears too."""
    added: fx.Node | None = None


@dataclass(frozen=True)
class Left:
    """What looks like a site, and is none."""

    node: fx.Node
    spelled: str
    why: str


@dataclass(frozen=True)
class Found:
    """What an activation may be a part of."""

    activation: Activation
    end: fx.Node
    inner: frozenset[fx.Node]
    """Its operators, `end` too; not what it is applied to."""


class Matcher:
    """Finds the sites of a graph.

    layer(name) says of a called module: "linear", "conv1d" (a weight of (K, N)), an Activation, or None; writes(name)
    whether it may write to what it is called with.
    """

    def __init__(
        self,
        graph: fx.Graph,
        layer: Callable[[str], Any] = lambda name: None,
        writes: Callable[[str], bool] = lambda name: False,
    ) -> None:
        self.writes = writes
        self.nodes = list(graph.nodes)
        self.place = {node: place for place, node in enumerate(self.nodes)}
        self.kinds = {node.target: layer(node.target) for node in self.nodes if node.op == "call_module"}
        self.taken: set[fx.Node] = set()
        self.linears = {found.result: found for node in self.nodes if (found := self._linear(node))}

    def sites(self) -> list[Site]:
        """All sites, in the order of their ends; no node is in two of them."""
        found = []
        for search in (self._gated, self._plain, self._residual):
            for linear in list(self.linears.values()):
                if not self.core(linear) & self.taken and (site := search(linear)) is not None:
                    if site.replaced & self.taken or not self._movable(site):
                        continue
                    self.taken |= site.replaced
                    found.append(site)
        return sorted(found, key=lambda site: self.place[site.end])

    def left(self) -> Iterator[Left]:
        """Activations that no site contains."""
        for node in self.nodes:
            if node in self.taken or not self._is_activation(node):
                continue
            source = node.args[0] if node.args else node.kwargs.get("input")
            if not isinstance(source, fx.Node):
                continue
            named = self._activation_from(source)
            words = spell(named.activation) if named else self._words(node)
            if source in self.linears:
                why = "the result of the linear goes elsewhere, too" if len(source.users) > 1 else "it is no known one"
                if named is not None and not self._movable_all(source, named.end):
                    why = "something between writes to memory or changes a mode"
            else:
                why = f"it follows {self._words(source)}, no linear"
            yield Left(node, words, why)

    def _words(self, node: fx.Node) -> str:
        return str(node.target) if node.op == "call_module" else word(node)

    def _is_activation(self, node: fx.Node) -> bool:
        if node.op == "call_module":
            return isinstance(self.kinds[node.target], Activation)
        return calls(node, ACTIVATIONS, *ACTIVATION_METHODS)

    # linears

    def _linear(self, node: fx.Node) -> Linear | None:
        if node.op == "call_module" and self.kinds[node.target] in ("linear", "conv1d"):
            if len(node.args) != 1 or node.kwargs or sum(other.target == node.target for other in self.nodes) > 1:
                return None
            return Linear(node, node.args[0], None, None, self.kinds[node.target] == "conv1d", node.target)
        if calls(node, LINEAR):
            x, weight, bias = (argument(node, place, name) for place, name in enumerate(("input", "weight", "bias")))
            return self._checked(Linear(node, x, weight, bias))
        if calls(node, {torch.addmm}) and len(node.args) == 3 and not node.kwargs:
            bias, x, weight = node.args
            return self._viewed(self._checked(Linear(node, x, weight, bias, True)))
        if calls(node, MATMUL, "matmul", "mm") and len(node.args) == 2 and not node.kwargs:
            x, weight = node.args
            value = fake(weight)
            if value is None or value.dim() != 2:
                return None
            return self._plus_bias(self._checked(self._untransposed(Linear(node, x, weight, None, True))))
        return None

    def _checked(self, linear: Linear) -> Linear | None:
        """Of tensors whose shapes and dtypes are known to fit; layers are checked by who calls."""
        x, weight, result = fake(linear.x), fake(linear.weight), fake(linear.result)
        operands = [x, weight] + ([fake(linear.bias)] if linear.bias is not None else [])
        if result is None or any(value is None for value in operands):
            return None
        plain = all(is_plain(value) for value in (*operands, result))
        if not plain or weight.dim() != 2 or x.dim() < 2 or result.dtype not in DTYPES:
            return None
        if linear.bias is not None and operands[2].shape != (weight.shape[1 if linear.turned else 0],):
            return None
        return linear

    def _viewed(self, linear: Linear | None) -> Linear | None:
        """Conv1D of transformers: the rows are made one axis before, and are several behind the product."""
        view: Any = only(linear.result.users) if linear is not None else None
        if linear is None or not calls(view, set(), "view", "reshape"):
            return linear
        before, shape = linear.x, fake(view)
        if not calls(before, set(), "view", "reshape") or fake(before.args[0]) is None or shape is None:
            return linear
        x = fake(before.args[0])
        if x.dim() != shape.dim() or x.shape[:-1] != shape.shape[:-1] or x.shape[-1] != fake(before).shape[-1]:
            return linear
        return Linear(view, before.args[0], linear.weight, linear.bias, True)

    def _untransposed(self, linear: Linear) -> Linear:
        """x @ w.T: w itself."""
        turn: Any = linear.weight
        swapped = (calls(turn, {getattr}) and turn.args[1:] in (("T",), ("mT",))) or calls(turn, {torch.t}, "t")
        if calls(turn, {torch.transpose}, "transpose") and sorted(a % 2 for a in turn.args[1:3]) == [0, 1]:
            swapped = True
        if not swapped:
            return linear
        return Linear(linear.result, linear.x, turn.args[0], linear.bias)

    def _plus_bias(self, linear: Linear | None) -> Linear | None:
        add: Any = only(linear.result.users) if linear is not None else None
        if linear is None or not calls(add, ADD, "add") or len(add.args) != 2 or add.kwargs:
            return linear
        bias = next(other for other in (*add.args, None) if other is not linear.result)
        value, result = fake(bias), fake(linear.result)
        if value is None or value.shape != result.shape[-1:] or value.dtype != result.dtype:
            return linear
        return Linear(add, linear.x, linear.weight, bias, linear.turned)

    def core(self, linear: Linear) -> frozenset[fx.Node]:
        """The nodes that are the linear."""
        nodes, node = {linear.result}, linear.result
        while not self._makes_product(node):
            node = next(arg for arg in node.all_input_nodes if arg is not linear.bias)
            nodes.add(node)
        return frozenset(nodes)

    def _makes_product(self, node: fx.Node) -> bool:
        return node.op == "call_module" or calls(node, LINEAR | MATMUL | {torch.addmm}, "matmul", "mm")

    # what follows

    def _elementwise(self, node: fx.Node) -> bool:
        if node.op == "call_module":
            return isinstance(self.kinds[node.target], Activation)
        return calls(node, ELEMENTWISE, *ELEMENTWISE_METHODS) or idle(node)

    def _region(self, source: fx.Node) -> list[fx.Node]:
        """Elementwise operators of `source` and of numbers, in order."""
        inside: dict[fx.Node, None] = {source: None}
        queue = [(self.place[user], user.name, user) for user in source.users]
        heapq.heapify(queue)
        while queue and len(inside) <= _LONGEST:
            node = heapq.heappop(queue)[2]
            if node in inside or not self._elementwise(node) or not alike(node, source):
                continue
            if all(argument in inside for argument in node.all_input_nodes):
                inside[node] = None
                for user in node.users:
                    heapq.heappush(queue, (self.place[user], user.name, user))
        return list(inside)[1:]

    def _activation_from(self, source: fx.Node) -> Found | None:
        """The longest activation of `source` alone, of which nothing else takes a part."""
        region = self._region(source)
        for end in reversed(region):
            inner = {end}
            for node in reversed(region[: region.index(end)]):
                if any(user in inner for user in node.users):
                    inner.add(node)
            if any(user not in inner for node in (*inner - {end}, source) for user in node.users):
                continue
            nodes = [node for node in region if node in inner]
            found = self._named(nodes, source)
            if found is not None:
                return Found(found, end, frozenset(inner))
        return None

    def _named(self, nodes: list[fx.Node], source: fx.Node) -> Activation | None:
        busy = [node for node in nodes if not idle(node)]
        modules = [node for node in busy if node.op == "call_module"]
        if not modules:
            return by_values(nodes, source)
        if len(busy) > 1 or len(busy[0].args) != 1 or busy[0].kwargs:
            return None
        kind = self.kinds[busy[0].target]
        return kind if isinstance(kind, Activation) else None

    def _plain(self, linear: Linear) -> Site | None:
        found = self._activation_from(linear.result)
        if found is None:
            return None
        replaced = self.core(linear) | found.inner
        return Site("linear", spell(found.activation), found.activation, (linear,), found.end, replaced)

    def _gated(self, linear: Linear) -> Site | None:
        return self._pair(linear) or self._packed(linear)

    def _product(self, source: fx.Node) -> tuple[Found, fx.Node, fx.Node] | None:
        """(activation of source, what it is multiplied with, the product)"""
        found = self._activation_from(source)
        product: Any = only(found.end.users) if found is not None else None
        if found is None or not calls(product, MUL, "mul") or len(product.args) != 2 or product.kwargs:
            return None
        other = next((value for value in product.args if value is not found.end), None)
        if not isinstance(other, fx.Node) or not alike(other, found.end) or len(other.users) != 1:
            return None
        return found, other, product

    def _pair(self, gate: Linear) -> Site | None:
        match = self._product(gate.result)
        if match is None or match[0].activation not in _GATES or match[1] not in self.linears:
            return None
        found, other, product = match
        up = self.linears[other]
        if up.x is not gate.x or up.turned != gate.turned:
            return None
        name = Activation(GATED_BY[found.activation.name])
        replaced = self.core(gate) | self.core(up) | found.inner | {product}
        return Site("gate/up", spell(found.activation), name, (gate, up), product, replaced)

    def _packed(self, linear: Linear) -> Site | None:
        glu = only(linear.result.users)
        if calls(glu, {torch.nn.functional.glu}) and argument(glu, 1, "dim", -1) == -1:
            name = Activation("glu", (), "halves_up_first")
            return Site("packed", "sigmoid", name, (linear,), glu, self.core(linear) | {glu})
        first, second, step, cut = self._halves(linear.result)
        for gate, up, layout in ((first, second, step or "halves"), (second, first, "halves_up_first")):
            if gate is None or up is None or (step and gate is second):
                continue
            match = self._product(gate)
            if match is None or match[1] is not up or match[0].activation not in _GATES:
                continue
            found, _, product = match
            name = Activation(GATED_BY[found.activation.name], (), layout)
            replaced = self.core(linear) | cut | found.inner | {first, second, product}
            return Site("packed", spell(found.activation), name, (linear,), product, replaced)
        return None

    def _halves(self, z: fx.Node) -> tuple[Any, Any, str, frozenset[fx.Node]]:
        """The two parts of z's columns, "interleaved" if so, and the node that cuts them."""
        none = (None, None, "", frozenset[fx.Node]())
        users = list(z.users)
        if len(users) == 1 and calls(users[0], {torch.chunk, torch.split, torch.tensor_split}, "chunk", "split"):
            cut = users[0]
            parts = cut.meta.get("example_value")
            count, dim = argument(cut, 1, "chunks"), argument(cut, 2, "dim", 0)
            if parts is None:  # no shapes: only what is two by its number
                if word(cut) != "chunk" or count != 2 or dim != -1:
                    return none
            elif len(parts) != 2 or dim not in (-1, parts[0].dim() - 1) or parts[0].shape != parts[1].shape:
                return none
            taken = {user.args[1]: user for user in cut.users if calls(user, {operator.getitem})}
            if len(taken) != len(cut.users) or set(taken) != {0, 1}:
                return none
            return taken[0], taken[1], "", frozenset((cut,))
        if len(users) != 2 or not all(calls(user, {operator.getitem}) for user in users):
            return none
        value = fake(z)
        cuts = {cut: user for user in users if (cut := _columns(user, value)) is not None}
        if set(cuts) == {"first", "second"}:
            return cuts["first"], cuts["second"], "", frozenset()
        if set(cuts) == {"even", "odd"}:
            return cuts["even"], cuts["odd"], "interleaved", frozenset()
        return none

    def _residual(self, linear: Linear) -> Site | None:
        node = linear.result
        replaced = set(self.core(linear))
        while (user := only(node.users)) is not None and idle(user):
            node = user
            replaced.add(node)
        add: Any = user
        if not calls(add, ADD, "add") or len(add.args) != 2 or add.kwargs or fake(linear.result) is None:
            return None
        added = next((other for other in add.args if other is not node), None)
        if barrier(add) and add.args[0] is not node:  # writes to what is added
            return None
        value, result = fake(added), fake(add)
        if value is None or not is_plain(value) or not alike(added, add) or not alike(node, add):
            return None
        if result.dim() < 2:
            return None
        return Site("residual", "none", Activation("none"), (linear,), add, frozenset(replaced | {add}), added)

    # order

    def _movable(self, site: Site) -> bool:
        first = min(self.place[node] for node in site.replaced)
        between = self.nodes[first : self.place[site.end]]
        return not any(self._barrier(node) for node in between if node not in site.replaced)

    def _movable_all(self, first: fx.Node, end: fx.Node) -> bool:
        return not any(self._barrier(node) for node in self.nodes[self.place[first] : self.place[end]])

    def _barrier(self, node: fx.Node) -> bool:
        return self.writes(str(node.target)) if node.op == "call_module" else barrier(node)


_GATES = {Activation(name) for name in GATED_BY}


def only(values: Any) -> Any:
    """The one value there is, or None."""
    (value,) = list(values) if len(values) == 1 else (None,)
    return value


def _columns(node: fx.Node, value: Any) -> str | None:
    """Which columns z[..., a:b:c] takes."""
    index = node.args[1]
    if not isinstance(index, tuple) or len(index) != 2 or index[0] is not Ellipsis or not isinstance(index[1], slice):
        return None
    start, stop, step = index[1].start, index[1].stop, index[1].step
    if step == 2 and stop is None and start in (None, 0, 1):
        return "odd" if start == 1 else "even"
    if step not in (None, 1) or value is None or not isinstance(value.shape[-1], int) or value.shape[-1] % 2:
        return None
    half, width = value.shape[-1] // 2, value.shape[-1]
    if start in (None, 0, -width) and stop in (half, -half):
        return "first"
    return "second" if start in (half, -half) and stop in (None, width) else None


def spell(activation: Activation) -> str:
    return ", ".join((activation.name, *(f"{value:g}" for value in activation.parameters)))
