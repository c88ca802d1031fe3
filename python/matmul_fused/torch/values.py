"""Which activation some elementwise operators of an FX graph compute, told by their values, not by their spelling.

They are evaluated at some points, in float64, and compared with what matmul_fused computes there. Role on the path of
a call: none; match.py asks while a model is patched or compiled.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from matmul_fused import _core

from .activations import GATED, Activation, known
from .operators import idle

# Close together where activations bend, and beyond what any dtype but float64 holds: a guard against overflow is seen.
_FAR = torch.logspace(-7, 40, 142, dtype=torch.float64)
_POINTS = torch.cat((torch.linspace(-12, 12, 2401, dtype=torch.float64), _FAR, -_FAR))
_usual: list[tuple[Activation, Any]] = []  # made by the first question


def _computed(activation: Activation) -> Any:
    one = torch.ones(1, 1, dtype=torch.float64)
    return _core.matmul_fused(_POINTS[:, None], one, None, activation.spec)[:, 0]


def _table() -> list[tuple[Activation, Any]]:
    """Every activation with the usual parameters, and its values."""
    global _usual
    if not _usual:
        names = [row[0] for row in _core.activation_table() if row[0] not in GATED and row[0] != "none"]
        usual = [found for name in names if (found := known(name)) is not None]
        _usual = [(activation, _computed(activation)) for activation in usual]
    return _usual


def _near(got: Any, wanted: Any) -> bool:
    return bool(torch.allclose(got, wanted, rtol=1e-9, atol=1e-9, equal_nan=True))


def _proposed(nodes: list[fx.Node]) -> Iterable[Activation]:
    """Activations with the numbers of a single call as parameters."""
    busy = [node for node in nodes if not idle(node)]
    if len(busy) != 1:
        return
    node = busy[0]
    name = (node.target if isinstance(node.target, str) else node.target.__name__).rstrip("_")
    numbers = tuple(
        float(value)
        for value in (*node.args[1:], *node.kwargs.values())
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    )
    for candidate in ("clamp", "hardtanh") if name in ("clamp", "clip", "relu6") else (name,):
        given = (0.0, 6.0) if name == "relu6" else numbers
        if given and (found := known((candidate, *given))) is not None and found.name not in GATED:
            yield found


def _evaluate(nodes: list[fx.Node], source: fx.Node) -> Any:
    values: dict[fx.Node, Any] = {source: _POINTS.clone()}
    for node in nodes:
        arguments = fx.map_arg(node.args, values.__getitem__)
        keywords = fx.map_arg(node.kwargs, values.__getitem__)
        if node.op == "call_method":
            values[node] = getattr(arguments[0], node.target)(*arguments[1:], **keywords)
        else:
            values[node] = node.target(*arguments, **keywords)
    return values[nodes[-1]]


def by_values(nodes: list[fx.Node], source: fx.Node) -> Activation | None:
    """The activation that these operators compute of `source`, or None."""
    try:
        with torch.no_grad(), torch._subclasses.fake_tensor.unset_fake_temporarily():
            got = _evaluate(nodes, source)
            if not isinstance(got, torch.Tensor) or got.shape != _POINTS.shape or got.dtype != torch.float64:
                return None
            for found in _proposed(nodes):  # first: other parameters may differ between two points alone
                if _near(got, _computed(found)):
                    return found
            return next((activation for activation, wanted in _table() if _near(got, wanted)), None)
    except (TypeError, ValueError, RuntimeError):  # arguments that are none of an elementwise operator
        return None
