"""Layers and the activations behind them as the source of a forward has them: `patch` asks where no trace can be made.

The layers of OPT and Whisper branch on what they are called with, around `self.activation_fn(self.fc1(x))`. That the
result of the one goes to the other alone can be read where both are written, whatever runs around them.
Role on the path of a call: none; it runs while a model is patched.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
import types
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch


def pairs(module: Any) -> list[tuple[str, str]]:
    """(layer, activation): children that the module's forward uses nowhere but in activation(layer(x))."""
    forward = inspect.unwrap(type(module).forward)
    try:
        (function,) = ast.parse(textwrap.dedent(inspect.getsource(forward))).body
    except (OSError, SyntaxError, TypeError, ValueError):  # not of a file, or one half of a line
        return []
    if not isinstance(function, ast.FunctionDef) or not function.args.args:
        return []
    if any(isinstance(node, (ast.Global, ast.Nonlocal)) for node in ast.walk(function)):
        return []
    owner = function.args.args[0].arg
    uses = Counter(name for node in ast.walk(function) if (name := _child(node, owner)))
    elsewhere = _names_elsewhere(type(module), forward)
    return [
        (layer, act)
        for layer, act in _written(function, owner)
        if uses[layer] == uses[act] == 1
        and not {layer, act} & elsewhere
        and {layer, act} <= set(forward.__code__.co_names)  # the file may have changed since
    ]


def _child(node: Any, owner: str) -> str | None:
    """The name of self.name."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == owner:
        return node.attr
    return None


def _called(node: Any, owner: str) -> tuple[str, ast.expr] | None:
    """(name, x) of self.name(x)."""
    if not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords or isinstance(node.args[0], ast.Starred):
        return None
    name = _child(node.func, owner)
    return None if name is None else (name, node.args[0])


def _assigned(statement: ast.stmt) -> tuple[str, ast.expr] | None:
    """(v, x) of v = x."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        return (target.id, statement.value) if isinstance(target, ast.Name) else None
    return None


def _written(function: ast.FunctionDef, owner: str) -> Iterator[tuple[str, str]]:
    """Of self.act(self.layer(x)), and of v = self.layer(x), v = self.act(v) in a row."""
    for node in ast.walk(function):
        act = _called(node, owner)
        layer = _called(act[1], owner) if act else None
        if act and layer:
            yield layer[0], act[0]
    for statements in _blocks(function):
        for before, behind in itertools.pairwise(_assigned(statement) for statement in statements):
            if before and behind and before[0] == behind[0]:
                layer, act = _called(before[1], owner), _called(behind[1], owner)
                if layer and act and isinstance(act[1], ast.Name) and act[1].id == before[0]:
                    yield layer[0], act[0]


def _blocks(node: Any) -> Iterator[list[ast.stmt]]:
    """Statements that run in a row. Not those of a try: what was assigned before an exception stays."""
    for block in (node.body, getattr(node, "orelse", [])):
        yield block
        for statement in block:
            if isinstance(statement, (ast.If, ast.For, ast.While, ast.With)):
                yield from _blocks(statement)


def _names_elsewhere(kind: type, forward: Any) -> set[str]:
    """What the other methods of a class may get of its objects. __init__ makes them."""
    first: set[str] = set()
    found: set[str] = set()
    overridden: set[str] = set()
    for base in kind.__mro__:
        if base in torch.nn.Module.__mro__:
            continue
        for name, value in vars(base).items():
            method = getattr(value, "fget", None) or getattr(value, "__func__", value)
            code = getattr(inspect.unwrap(method), "__code__", None) if callable(method) else None
            if code is not None and name != "__init__" and code is not forward.__code__:
                (overridden if name in first else found).update(_names(code))
            first.add(name)
    return found | overridden if "super" in found | _names(forward.__code__) else found


def _names(code: types.CodeType) -> set[str]:
    inner = [_names(value) for value in code.co_consts if isinstance(value, types.CodeType)]
    return set(code.co_names).union({value for value in code.co_consts if isinstance(value, str)}, *inner)
