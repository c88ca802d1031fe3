"""What the source of a class says of its modules, while `patch` decides what may be fused in them.

The layers of OPT and Whisper branch on what they are called with, around `self.activation_fn(self.fc1(x))`: no trace
can be made. That the result of the one goes to the other alone can be read where both are written, whatever runs around
them. What a trace does not show is read as well: other methods that use a layer, and what a forward does besides.
Role on the path of a call: none.
"""

from __future__ import annotations

import ast
import copy
import dis
import functools
import inspect
import itertools
import math
import textwrap
import types
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

_Sequential = torch.nn.Sequential


class Left(Exception):  # noqa: N818  # no error
    """Why a site is left alone."""


# --- a layer and its activation ---


def _forward(module: Any) -> Any:
    forward = inspect.unwrap(type(module).forward)
    if not isinstance(forward, types.FunctionType):
        raise Left(f"its forward is a {type(forward).__qualname__}")
    return forward


def pairs(module: Any) -> list[tuple[str, str]]:
    """(layer, activation): children that the module's forward uses nowhere but in activation(layer(x))."""
    forward = _forward(module)
    elsewhere = set().union(*(_names(method.__code__) for method in _methods(type(module), forward)))
    return [pair for pair in _pairs(forward) if not set(pair) & elsewhere]


def _pairs(method: Any) -> list[tuple[str, str]]:
    """As pairs(), of one method alone."""
    function = _function(method)
    if function is None or any(isinstance(node, (ast.Global, ast.Nonlocal)) for node in ast.walk(function)):
        return []
    owner = function.args.args[0].arg
    uses = Counter(name for node in ast.walk(function) if (name := _child(node, owner)))
    return [
        (layer, act)
        for layer, act in _written(function, owner)
        if uses[layer] == uses[act] == 1
        and {layer, act} <= set(method.__code__.co_names)  # the file may have changed since
    ]


def check_pair(module: Any, layer: str, act: str) -> None:
    """Leave a pair, found in a trace, that a method uses otherwise, or the forward on another way through a branch."""
    kind = type(module)
    forward = _forward(module)
    for method in _methods(kind, forward):
        if {layer, act} & _names(method.__code__) and (layer, act) not in _pairs(method):
            raise Left(f"{layer} or {act} is used in {method.__name__}, too")
        if issubclass(kind, _Sequential) and not method.__name__.startswith("_"):
            raise Left(f"{method.__name__} may use {layer} by its number")
    used = _names(forward.__code__)
    branches = any(step.opcode in _JUMPS for step in dis.get_instructions(forward))
    if branches and {layer, act} & used and (layer, act) not in _pairs(forward):  # a trace has one way alone
        raise Left("its forward branches, or has a loop")


_JUMPS = {*dis.hasjrel, *dis.hasjabs}


def check_owner(owner: Any, name: str, module: Any, layer: str, act: str) -> None:
    """Leave a layer that the module around its own may call by itself; a Sequential has to be called as a whole."""
    if type(owner).forward is _Sequential.forward:
        return
    sequential = isinstance(module, _Sequential)
    why = f"{layer} may be called by {type(owner).__name__}, around it"
    if sequential and isinstance(owner, (torch.nn.ModuleList, torch.nn.ModuleDict)):
        raise Left(why)
    for method in _methods(type(owner)):
        function = _function(method) if name in _names(method.__code__) else None
        if function is None:
            if sequential and name in _names(method.__code__):
                raise Left(why)
            continue
        me = function.args.args[0].arg
        called = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
        whole = sum(_child(node, me) == name for node in called)
        if any(isinstance(node, ast.Attribute) and node.attr in (layer, act) and _child(node.value, me) == name
               for node in called):  # fmt: skip
            raise Left(why)
        strings = any(isinstance(node, ast.Constant) and node.value == name for node in ast.walk(function))
        if sequential and (strings or whole != sum(_child(node, me) == name for node in ast.walk(function))):
            raise Left(why)


def check_called(owner: Any, name: str, module: Any) -> None:
    """Leave a Sequential whose layers the forward around it calls one by one: a forward of its own would not run."""
    function = _function(type(owner).forward) if isinstance(module, _Sequential) else None
    if function is None:
        return
    me = function.args.args[0].arg
    called = sum(isinstance(node, ast.Call) and _child(node.func, me) == name for node in ast.walk(function))
    if called != sum(_child(node, me) == name for node in ast.walk(function)):
        raise Left(f"{type(owner).__name__} calls its layers one by one")


@functools.lru_cache(256)
def _function(method: Any) -> Any:
    """The source of a method, if there is any."""
    try:
        (function,) = ast.parse(textwrap.dedent(inspect.getsource(method))).body
    except (OSError, SyntaxError, TypeError, ValueError):  # not of a file, or one half of a line
        return None
    return function if isinstance(function, ast.FunctionDef) and function.args.args else None


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


def _methods(kind: type, forward: Any = None) -> list[Any]:
    """The other functions of a class that may use its objects. __init__ makes them."""
    first: set[str] = set()
    found: list[Any] = []
    overridden: list[Any] = []
    for base in kind.__mro__:
        if base in _Sequential.__mro__:
            continue
        for name, value in vars(base).items():
            method = getattr(value, "fget", None) or getattr(value, "__func__", value)
            method = inspect.unwrap(method) if callable(method) else None
            code = getattr(method, "__code__", None)
            if code is not None and name != "__init__" and (forward is None or code is not forward.__code__):
                (overridden if name in first else found).append(method)
            first.add(name)
    called = [*found, *([] if forward is None else [forward])]
    return found + overridden if any("super" in _names(method.__code__) for method in called) else found


def _names(code: types.CodeType) -> set[str]:
    inner = [_names(value) for value in code.co_consts if isinstance(value, types.CodeType)]
    return set(code.co_names).union({value for value in code.co_consts if isinstance(value, str)}, *inner)


# --- what a forward does besides ---

_WRITERS = {"append", "appendleft", "extend", "insert", "pop", "update", "setdefault", "clear", "remove", "write"}
_STORES = {"STORE_SUBSCR", "DELETE_SUBSCR", "STORE_GLOBAL", "DELETE_GLOBAL"}


def check_trace(module: Any) -> None:
    """Leave a forward that a trace of it may write in, to a buffer or a list."""
    forward = _forward(module)
    used = _names(forward.__code__)
    helpers = [method for method in _methods(type(module), forward) if method.__name__ in used]
    for method in (forward, *helpers):
        names = _names(method.__code__)
        found = [name for name in names if name in _WRITERS or (name.endswith("_") and not name.endswith("__"))]
        if found or any(step.opname in _STORES for step in dis.get_instructions(method)):
            raise Left(f"{method.__name__} may write: {min(found, default='an item')}")


_KNOWN = (
    *(ast.Assign, ast.AnnAssign, ast.Return, ast.If, ast.Expr, ast.Pass, ast.Name, ast.Attribute, ast.Call),
    *(ast.keyword, ast.Constant, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Tuple),
    *(ast.Subscript, ast.Slice),
    *(ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)
_CASTS = {"to", "type", "type_as", "float", "double", "half", "bfloat16", "dtype"}


def names(module: Any) -> set[str]:
    """What the forward of a module names."""
    return _names(_forward(module).__code__)


@dataclass(frozen=True)
class Reads:
    """What a forward reads besides its argument: it stays what a trace has of it as long as this does."""

    casts: tuple[tuple[str, str], ...] = ()
    """(child, parameter) to whose dtype it casts, as T5 does: no cast where all have one dtype."""
    values: tuple[tuple[str, Any], ...] = ()
    """Attributes that are numbers or words."""


def reads(module: Any) -> Reads:
    """What the forward of a module reads, if it is understood, and so may be replaced by what a trace has of it.

    Its source is nothing but calls of children and of torch's functions on its tensors. All else may write, or depend
    on what is no tensor: left.
    """
    method = type(module).forward
    if method is _Sequential.forward:
        return Reads()
    function = _function(method)
    if function is None or not _is_source(function, method):
        raise Left("its forward has no source")
    body = ast.Module(copy.deepcopy([node for node in function.body if not _is_text(node)]), [])
    me = function.args.args[0].arg
    cast = _Cast(me)
    reader = _Reader(module, me, method.__globals__, {argument.arg for argument in function.args.args[1:]})
    reader.visit(cast.visit(body))
    if cast.found and _CASTS & reader.attributes:
        raise Left("its forward casts in several ways")
    return Reads(tuple(cast.found), tuple(reader.values.items()))


def _is_text(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_source(function: ast.FunctionDef, method: Any) -> bool:
    """Is it what runs? Not below a decorator, nor after a change of the file."""
    if not isinstance(method, types.FunctionType) or function.decorator_list or method.__code__.co_freevars:
        return False
    made = compile(ast.Module([function], []), "<source>", "exec", dont_inherit=True)
    code = next(
        value for value in made.co_consts if isinstance(value, types.CodeType) and value.co_name == function.name
    )
    # Instructions depend on the imports of a file, and a docstring's spaces on dedent (before Python 3.13).
    mine, running = (
        (found.co_names, found.co_varnames, found.co_consts[1:] if _is_text(function.body[0]) else found.co_consts)
        for found in (code, method.__code__)
    )
    return bool(mine == running)


class _Cast(ast.NodeTransformer):
    """Takes `if ...: h = h.to(self.child.parameter.dtype)` out, whose test reads only."""

    def __init__(self, me: str) -> None:
        self.me = me
        self.found: list[tuple[str, str]] = []

    def visit_If(self, node: ast.If) -> Any:
        match node:
            case ast.If(
                test=ast.expr() as test,
                body=[
                    ast.Assign(
                        targets=[ast.Name(id=target)],
                        value=ast.Call(
                            func=ast.Attribute(value=ast.Name(id=source), attr="to"),
                            args=[ast.Attribute(value=ast.Attribute(value=child, attr=parameter), attr="dtype")],
                            keywords=[],
                        ),
                    )
                ],
                orelse=[],
            ) if target == source and (name := _child(child, self.me)) and _reads_only(test):
                self.found.append((name, parameter))
                return None
        return self.generic_visit(node)


def _reads_only(test: ast.expr) -> bool:
    calls = (node.func for node in ast.walk(test) if isinstance(node, ast.Call))
    return all(isinstance(call, ast.Name) and call.id == "isinstance" for call in calls)


@functools.cache
def _overridable() -> set[Any]:
    return {function for found in torch.overrides.get_overridable_functions().values() for function in found}


class _Reader(ast.NodeVisitor):
    """Leaves what is not understood in a forward."""

    def __init__(self, module: Any, me: str, names: dict[str, Any], own: set[str]) -> None:
        self.module, self.me, self.names, self.own = module, me, names, own
        self.attributes: set[str] = set()
        self.values: dict[str, Any] = {}

    def visit(self, node: Any) -> None:
        if not isinstance(node, (ast.Module, *_KNOWN)) or isinstance(node, (ast.Is, ast.IsNot)):
            text = ast.unparse(node).partition("\n")[0] or type(node).__name__
            raise Left(f"its forward has `{text}`, which is not understood")
        super().visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._assign([node.target], node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        self._assign(node.targets, node.value)

    def _assign(self, targets: list[Any], value: ast.expr | None) -> None:
        if value is not None:
            self.visit(value)
        for target in targets:
            for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                if not isinstance(part, ast.Name) or part.id == self.me:
                    raise Left("its forward writes to what is not its own")
                self.own.add(part.id)

    def visit_Call(self, node: ast.Call) -> None:
        if any(keyword.arg in ("out", None) for keyword in node.keywords):  # match.py sees an `inplace`
            raise Left("its forward writes in place")
        for part in (*node.args, *node.keywords):
            self.visit(part)
        name = _child(node.func, self.me)
        if name is not None:
            function = vars(self.module).get(name)
            if self._is_tensors(function):
                self.values[name] = function
            elif self.module._modules.get(name) is None:
                raise Left(f"its forward calls its own {name}")
        elif isinstance(node.func, ast.Attribute) and self._found(node.func) is None:
            self.visit(node.func)
        elif not self._is_torchs(node.func):
            raise Left(f"its forward calls {ast.unparse(node.func)}")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        name = _child(node, self.me)
        if name is not None:
            value = vars(self.module).get(name)
            if name == "training" or self.module._parameters.get(name) is not None:
                return
            if not isinstance(value, (bool, int, float, str)):
                raise Left(f"its forward depends on {name}")
            self.values[name] = value
            return
        if self._found(node) is not None:
            self._read(node)
            return
        if not hasattr(torch.Tensor, node.attr) or node.attr.endswith("_"):
            raise Left(f"its forward reads {ast.unparse(node)}, which is no number or word of its own")
        self.attributes.add(node.attr)
        self.visit(node.value)

    def visit_Name(self, node: ast.Name) -> None:
        if node.id == self.me:
            raise Left("its forward hands itself on")
        if node.id not in self.own:
            self._read(node)

    def _read(self, node: ast.expr) -> None:
        value = self._found(node)
        constant = isinstance(node, ast.Attribute) and self._found(node.value) in (math, torch)
        if not isinstance(value, torch.dtype) and not (constant and isinstance(value, float)):
            raise Left(f"its forward depends on {ast.unparse(node)}")

    def _found(self, node: ast.expr) -> Any:
        """What a name, or a.b of modules, is outside of the forward."""
        if isinstance(node, ast.Name) and node.id not in self.own and node.id != self.me:
            return self.names.get(node.id)
        if isinstance(node, ast.Attribute) and isinstance(holder := self._found(node.value), types.ModuleType):
            return getattr(holder, node.attr, None)
        return None

    def _is_torchs(self, node: ast.expr) -> bool:
        """Is it a function of tensors that writes to none, or of math?"""
        value = self._found(node)
        return getattr(value, "__module__", None) == "math" or self._is_tensors(value)

    def _is_tensors(self, value: Any) -> bool:
        try:
            return value in _overridable() and not value.__name__.endswith("_")
        except TypeError:  # not hashable
            return False
