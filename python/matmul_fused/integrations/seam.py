"""What the seams of vLLM and SGLang share: which layers are fused, why others are not, and the record of it.

Both programs keep a linear layer and its activation as two modules of a third, whose forward calls one after the
other. That forward is left as it is: it runs on a stand-in for its module (`StandIn`), where the linear layer gives the
activated result and the activation hands it on. torch.compile traces all of it without a graph break; `_decide` and
`_note` run while it does.
Role on the path of a call: once for each forward of a hooked module, before matmul_fused.torch.linear.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from matmul_fused import explain
from matmul_fused.report import table
from matmul_fused.torch import linear


@dataclass(frozen=True)
class Spec:
    """A linear layer with a typed epilogue: what a provider of linear layers is asked to accept or to refuse."""

    x: Any
    """(..., K); its values are not read."""
    weight: Any
    """(N, K), or (2 I, K) for a gated activation."""
    bias: Any = None
    activation: Any = None
    gate_layout: Any = None
    residual: Any = None
    """Added before the activation."""
    multiply: Any = None
    """Multiplied with the activated result."""
    norm: str | None = None
    """A norm of the result."""


def accepts(spec: Spec) -> tuple[bool, str]:
    """Would matmul_fused compute this in one kernel: (True, the kernel), or (False, what it says against it)."""
    if spec.norm is not None:
        return False, f"norm {spec.norm!r}: no kernel has an epilogue over whole rows"
    try:
        plan = explain(
            spec.x,
            spec.weight.t(),
            spec.bias,
            spec.activation,
            C=spec.residual,
            multiply=spec.multiply,
            gate_layout=spec.gate_layout,
        )
    except (AttributeError, BufferError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        return False, (str(error) or type(error).__name__).splitlines()[0]
    return True, plan.kernel


# --- the record ---


@dataclass(frozen=True)
class Record:
    """What became of the layers of one class."""

    host: str
    form: str
    """The class and its activation."""
    layers: int
    fused: bool
    why: str
    """The kernel that was planned, or why the layers were left alone."""


class Report(list[Record]):
    """Records of this process. Prints as a table."""

    def __repr__(self) -> str:
        rows = [(row.form, str(row.layers), "fused" if row.fused else "left", row.why) for row in self]
        fused = sum(row.layers for row in self if row.fused)
        host = self[0].host if self else "integrations"
        return table([("form", "layers", "", "why"), *rows], f"matmul_fused.{host}: {fused} fused")


# (host, form, layer, why, fused), in the order in which it was seen; a layer that changes its mind has two.
_seen: dict[tuple[str, str, str, str, bool], None] = {}


def report(host: str) -> Report:
    """What became of the layers that have run, or were traced, in this process."""
    counts = Counter((form, fused, why) for seen, form, _, why, fused in _seen if seen == host)
    return Report(Record(host, form, count, fused, why) for (form, fused, why), count in counts.items())


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _note(host: str, form: str, layer: str, why: str, fused: bool) -> bool:
    row = (host, form, layer, why, fused)
    if row not in _seen:
        first = not any((form, why, fused) == (f, w, x) for _, f, _, w, x in _seen)
        _seen[row] = None
        level = logging.INFO if first else logging.DEBUG
        logging.getLogger(f"{host}.matmul_fused").log(level, "%s %s: %s", form, "fused" if fused else "left", why)
    return fused


_refusals: dict[Any, tuple[bool, str]] = {}
_forbids: dict[str, Callable[[], str]] = {}  # of each Host, by name: what is traced passes strings and numbers


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _decide(
    host: str, form: str, layer: str, activation: Any, dtype: Any, device: str, N: int, K: int, bias: bool
) -> bool:
    """May a layer of this shape be fused? Asked with operands of its K, and of an N with the same remainders."""
    key = (activation, dtype, device, N % 256, K, bias)
    if key not in _refusals:
        with torch.no_grad():
            n = N % 256 + 256
            x, weight = (torch.empty((rows, K), dtype=dtype, device=device) for rows in (1, n))
            b = torch.empty(n, dtype=dtype, device=device) if bias else None
            _refusals[key] = accepts(Spec(x, weight, b, activation))
    fused, why = _refusals[key]
    forbidden = _forbids[host]()
    if forbidden:
        fused, why = False, forbidden
    return bool(_note(host, form, layer, f"{why} for one row" if fused else why, fused))


# --- which layers ---

# Classes of activations, by name: the activation here, and attributes that must have one value. The two programs use
# the same names for the same functions, as does torch.nn.
PLAIN: dict[str, tuple[str, dict[str, Any]]] = {
    "GELU": ("gelu", {"approximate": "none"}),
    "GELUTanh": ("gelu_tanh", {}),
    "NewGELU": ("gelu_tanh", {}),
    "FastGELU": ("gelu_tanh", {}),
    "QuickGELU": ("quick_gelu", {}),
    "ReLUSquaredActivation": ("relu_squared", {}),
    "ReLU2": ("relu_squared", {}),
    "ReLU": ("relu", {}),
    "SiLU": ("silu", {}),
    "Sigmoid": ("sigmoid", {}),
    "Tanh": ("tanh", {}),
}
GATED: dict[tuple[str, str | None], str] = {
    ("SiluAndMul", None): "swiglu",
    ("GeluAndMul", "none"): "geglu",
    ("GeluAndMul", "tanh"): "geglu_tanh",
}


def activation_of(module: Any, folder: str) -> str | None:
    """The activation that a module of torch, or of the host's folder, is."""
    kind = type(module)
    if kind.__module__ != folder and not kind.__module__.startswith("torch.nn.modules."):
        return None
    gated = GATED.get((kind.__name__, getattr(module, "approximate", None)))
    if gated is not None:
        return gated
    name, fixed = PLAIN.get(kind.__name__, (None, {}))
    if kind.__name__ == "GELU" and getattr(module, "approximate", "none") == "tanh":  # torch's; the host's has none
        return "gelu_tanh"
    return name if all(getattr(module, key, value) == value for key, value in fixed.items()) else None


@dataclass(frozen=True)
class Host:
    """Where a host keeps what is checked. Filled when it is there."""

    name: str
    column: tuple[type, ...]
    """Column-parallel linear layers, by their exact types: a wrapper for LoRA is another."""
    row: tuple[type, ...]
    unquantized: type
    activations: str
    """Its module of activations."""
    input_quant: Callable[[Any], Any]
    """What a layer wants its input quantised to, or None."""
    packed: Callable[[Any], bool]
    """Is the weight of a layer kept in an order of the host's own?"""
    forbids: Callable[[], str]
    """Why nothing may be fused in this process; "" if it may."""

    def __post_init__(self) -> None:
        _forbids[self.name] = self.forbids


def why_not(host: Host, linear_: Any, act: Any, after: Any) -> str:
    """Why a column-parallel layer, its activation and the row-parallel layer after them are left alone; "" if not."""
    for part, kinds in ((linear_, host.column), (after, host.row)):
        if type(part) not in kinds:
            return f"a layer is a {type(part).__name__}, not a {' or '.join(kind.__name__ for kind in kinds)}"
    if type(linear_.quant_method) is not host.unquantized:
        return f"its weight belongs to {type(linear_.quant_method).__name__}"
    if host.input_quant(after) is not None:
        return f"{type(after).__name__} wants a quantised input"
    if linear_.gather_output or linear_.skip_bias_add:
        return "its result is gathered, or its bias is left to others"
    if linear_._forward_hooks or linear_._forward_pre_hooks or act._forward_hooks or act._forward_pre_hooks:
        return "it has hooks"
    weight = linear_.weight
    if weight.dim() != 2 or weight.numel() == 0 or host.packed(linear_):
        return "its weight is packed"
    if weight.dtype not in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        return f"its weight is {weight.dtype}"
    if activation_of(act, host.activations) is None:
        return f"there is no {type(act).__name__} here"
    return ""


def may_fuse(host: Host, site: str, linear_: Any, act: Any, after: Any) -> bool:
    """Check the layers of one module; what is found is remembered for the report."""
    form = f"{site}, {type(act).__name__}"
    layer = getattr(linear_, "prefix", "")
    why = why_not(host, linear_, act, after)
    if why:
        return bool(_note(host.name, form, layer, why, False))
    N, K = linear_.weight.shape
    name = activation_of(act, host.activations)
    weight = linear_.weight
    return bool(_decide(host.name, form, layer, name, weight.dtype, str(weight.device), N, K, linear_.bias is not None))


class FusedColumn:
    """Stands for a column-parallel layer with its activation: called as the layer is."""

    def __init__(self, real: Any, act: Any, activation: str | None) -> None:
        self.real = real
        self.act = act
        self.activation = activation

    def __call__(self, x: Any, *arguments: Any, **keywords: Any) -> Any:
        real = self.real
        if isinstance(x, torch.Tensor) and x.dtype == real.weight.dtype and not arguments and not keywords:
            out = linear(x, real.weight, real.bias, self.activation)
            return (out, None) if getattr(real, "return_bias", True) else out
        done = real(x, *arguments, **keywords)
        return (self.act(done[0]), *done[1:]) if isinstance(done, tuple) else self.act(done)


def hand_on(x: Any) -> Any:
    """Stands for the activation."""
    return x


class StandIn:
    """A module as its own forward sees it, with a fused layer in the place of the layer and its activation."""

    def __init__(self, module: Any, linear_name: str, fused: FusedColumn, act_name: str) -> None:
        self.__dict__["_module"] = module
        self.__dict__[linear_name] = fused
        self.__dict__[act_name] = hand_on

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_module"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_module"], name, value)


@dataclass(frozen=True)
class Form:
    """The attributes by which the forward of a class finds its layers."""

    linear: str
    act: str
    after: str


def around(host: Host, site: str, form: Form) -> Callable[..., Any]:
    """hook(original, module, ...): the forward of a class with its layers fused, where they can be."""

    def hook(original: Any, module: Any, *arguments: Any, **keywords: Any) -> Any:
        layer, act = getattr(module, form.linear), getattr(module, form.act)
        if not may_fuse(host, site, layer, act, getattr(module, form.after)):
            return original(module, *arguments, **keywords)
        fused = FusedColumn(layer, act, activation_of(act, host.activations))
        return original(StandIn(module, form.linear, fused, form.act), *arguments, **keywords)

    return hook
