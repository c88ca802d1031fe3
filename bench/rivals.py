"""One problem of the CPU in every way that there is: our call, torch eager, torch.compile, NumPy, on the same values.

Role: what bench_cpu.py times. `ways` gives the calls, and for a way that cannot run here the reason; `check` holds the
result of each against float64 before anything is timed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

import matmul_fused as mf
from matmul_fused.testing import assert_close, expect
from matmul_fused.testing.formulas import is_gated, resolve
from matmul_fused.testing.rounding import FORMATS, numpy_dtype, widen

OURS, OURS_OUT, PACKED, PACKED_OUT = (
    f"matmul_fused{what}" for what in ("", ", out=", ", prepacked", ", prepacked, out=")
)
EAGER, COMPILED, NUMPY = "torch eager", "torch.compile", "NumPy"
PRODUCT = "NumPy, product alone"


@dataclass(frozen=True)
class Problem:
    """activation(x @ B + bias): x is (m, k), B has n columns, of which a gate makes n / 2."""

    group: str
    m: int
    n: int
    k: int
    dtype: str = "float32"
    activation: str | None = "silu"
    layout: str = "NK"  # how the weight is stored; (N, K) as in torch.nn.Linear, passed as W.T
    batch: int = 0  # of matrices, each with a weight of its own; 0: one matrix
    listed: bool = False  # does it count in the means that the project asks for?

    @property
    def name(self) -> str:
        shape = f"{self.batch}x" * bool(self.batch) + f"{self.m}x{self.n}x{self.k}"
        words = shape, self.dtype, self.activation or "none", "K x N" if self.layout == "KN" else ""
        return " ".join(filter(None, words))

    @property
    def flops(self) -> int:
        return 2 * max(self.batch, 1) * self.m * self.n * self.k

    @property
    def gated(self) -> bool:
        return is_gated(self.activation)

    @property
    def columns(self) -> int:
        """Of the result."""
        return self.n // 2 if self.gated else self.n

    @property
    def nbytes(self) -> int:
        """Of the operands and the result."""
        elements = self.m * self.k + self.n * self.k + self.m * self.columns
        return max(self.batch, 1) * elements * numpy_dtype(self.dtype).itemsize


class Operands:
    """Tensors of a problem. Copies have the values of the first in memory of their own."""

    def __init__(self, problem: Problem, like: Operands | None = None) -> None:
        self.problem = problem
        self.x, self.weight, self.bias = (t.clone() for t in like.tensors()) if like else _values(problem)
        leading = (problem.batch,) if problem.batch else ()
        self.out = torch.empty(*leading, problem.m, problem.columns, dtype=self.x.dtype)
        self.packed = None if problem.batch else mf.prepack(self.b, gate_layout="halves" if problem.gated else None)

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return self.x, self.weight, self.bias

    @property
    def b(self) -> torch.Tensor:
        """The second operand of the product: a view, made anew for every call as callers do."""
        return self.weight if self.problem.layout == "KN" else self.weight.mT


def _values(problem: Problem) -> tuple[torch.Tensor, ...]:
    rng = np.random.default_rng([problem.m, problem.n, problem.k])
    leading = (problem.batch,) if problem.batch else ()
    weight = (problem.k, problem.n) if problem.layout == "KN" else (problem.n, problem.k)
    shapes = (*leading, problem.m, problem.k), (*leading, *weight), (problem.n,)
    x, weight, bias = (torch.from_numpy(rng.standard_normal(shape, dtype=np.float32)) for shape in shapes)
    dtype = getattr(torch, problem.dtype)
    return x.to(dtype), (weight * problem.k**-0.5).to(dtype), bias.to(dtype)


def as_numpy(tensor: torch.Tensor) -> Any:
    """The tensor's memory as a NumPy array; bfloat16 by its bits."""
    if tensor.dtype != torch.bfloat16:
        return tensor.numpy()
    return tensor.view(torch.int16).numpy().view(numpy_dtype("bfloat16"))


# The ways: functions of Operands


def _ours(o: Operands, packed: bool = False, out: bool = False) -> Any:
    b = o.packed if packed else o.b
    if out:
        return mf.matmul_fused(o.x, b, o.bias, o.problem.activation, out=o.out)
    return mf.matmul_fused(o.x, b, o.bias, o.problem.activation)


def torch_layer(problem: Problem) -> Callable[..., torch.Tensor]:
    """A function of x, weight and bias in torch's own operators, as a model has them."""
    _, row, parameters = resolve(problem.activation)
    half = problem.n // 2

    def layer(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        if problem.batch:
            z = torch.baddbmm(bias, x, weight if problem.layout == "KN" else weight.mT)
        elif problem.layout == "KN":
            z = torch.addmm(bias, x, weight)
        else:
            z = torch.nn.functional.linear(x, weight, bias)
        if problem.gated:
            return row.torch(torch, z[..., :half], z[..., half:], *parameters)
        return row.torch(torch, z, *parameters)

    return layer


def _compiled_layer(problem: Problem) -> Callable[..., torch.Tensor]:
    torch._dynamo.reset()  # one problem, one graph: no guards of the problems before it
    return torch.compile(torch_layer(problem), fullgraph=True, dynamic=False)


def _sigmoid_of(z: Any) -> Any:
    s = np.negative(z)
    np.exp(s, out=s)
    s += 1
    return np.reciprocal(s, out=s)


def _numpy_gelu_tanh(z: Any) -> Any:
    t = z * z
    t *= 0.044715
    t += 1
    t *= z
    t *= (2 / math.pi) ** 0.5
    np.tanh(t, out=t)
    t += 1
    t *= 0.5
    return np.multiply(z, t, out=t)


NUMPY_ACTIVATIONS: dict[str | None, Callable[[Any], Any]] = {
    None: lambda z: z,
    "relu": lambda z: np.maximum(z, 0, out=z),
    "tanh": lambda z: np.tanh(z, out=z),
    "silu": lambda z: np.multiply(z, _sigmoid_of(z), out=z),
    "gelu_tanh": _numpy_gelu_tanh,
    "swiglu": lambda z: _numpy_swiglu(*np.split(z, 2, axis=-1)),
}


def _numpy_swiglu(gate: Any, up: Any) -> Any:
    s = _sigmoid_of(gate)
    s *= gate
    s *= up
    return s


def _numpy(o: Operands) -> Any:
    z = o.x.numpy() @ o.b.numpy()
    z += o.bias.numpy()
    return NUMPY_ACTIVATIONS[o.problem.activation](z)


def _why_not_numpy(problem: Problem) -> str | None:
    if problem.dtype not in ("float32", "float64"):
        return f"NumPy multiplies no {problem.dtype} matrices at speed"
    if problem.activation not in NUMPY_ACTIVATIONS:
        return f"NumPy has no ufunc to make {problem.activation} of"
    return None


@dataclass(frozen=True)
class Ways:
    calls: dict[str, Callable[[Operands], Any]]
    skipped: dict[str, str]  # way -> why it cannot run


def ways(problem: Problem, operands: Operands) -> Ways:
    """Every way, ours first. torch.compile compiles here, on these operands."""
    calls: dict[str, Callable[[Operands], Any]] = {OURS: _ours, OURS_OUT: partial(_ours, out=True)}
    skipped: dict[str, str] = {}
    if operands.packed is None:
        skipped[PACKED] = skipped[PACKED_OUT] = "a batch of weights cannot be prepacked"
    else:
        calls |= {PACKED: partial(_ours, packed=True), PACKED_OUT: partial(_ours, packed=True, out=True)}
    layer = torch_layer(problem)
    calls[EAGER] = lambda o: layer(*o.tensors())
    try:
        compiled = _compiled_layer(problem)
        compiled(*operands.tensors())
    except Exception as error:  # whatever the compiler raises: it is the rival's result
        skipped[COMPILED] = f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"
    else:
        calls[COMPILED] = lambda o: compiled(*o.tensors())
    why = _why_not_numpy(problem)
    if why:
        skipped[NUMPY] = why
    else:
        calls[NUMPY] = _numpy
    return Ways(calls, skipped)


def products(problem: Problem) -> dict[str, Callable[[Operands], Any]]:
    """NumPy's product of the listed float32 problems without bias and activation: less than what the ways compute."""
    if not (problem.listed and problem.dtype == "float32"):
        return {}
    return {PRODUCT: lambda o: o.x.numpy() @ o.b.numpy()}


def alternating(problem: Problem) -> dict[str, Callable[[Operands], Any]]:
    """What a model does: an operator of torch, then the layer; with our call, with torch's, and the operator alone."""
    layer, shape = torch_layer(problem), (problem.k,)

    def normed(o: Operands) -> torch.Tensor:
        return torch.nn.functional.layer_norm(o.x, shape)

    return {
        "layer_norm, matmul_fused": lambda o: mf.matmul_fused(normed(o), o.b, o.bias, problem.activation),
        "layer_norm, torch eager": lambda o: layer(normed(o), o.weight, o.bias),
        "layer_norm alone": normed,
    }


def check(problem: Problem, operands: Operands, calls: dict[str, Callable[[Operands], Any]]) -> dict[str, float]:
    """The error of each result: |result - exact| / |exact|, both 2-norms. AssertionError if it is wrong.

    Ours must keep the bound of the tests, element by element. A rival may round between its operators: four
    roundings of two units, and the sum's.
    """
    x, b, bias = (as_numpy(t) for t in (operands.x, operands.b, operands.bias))
    exact, _ = expect(x, b, bias, problem.activation)
    sum_unit = FORMATS["float64" if problem.dtype == "float64" else "float32"].unit
    allowed = 8 * FORMATS[problem.dtype].unit + (problem.k + 8) * sum_unit
    errors = {}
    for name, call in calls.items():
        operands.out.fill_(math.nan)
        got = call(operands)
        got = got if isinstance(got, np.ndarray) else as_numpy(got)
        if name.startswith(OURS):
            assert_close(got, exact, problem.dtype, f"{problem.name}, {name}")
        wide = widen(got, exact.value.dtype)
        error = float(np.linalg.norm((wide - exact.value).ravel()) / np.linalg.norm(exact.value.ravel()))
        if not error <= allowed:
            raise AssertionError(f"{problem.name}, {name}: relative error {error:.3g}, allowed {allowed:.3g}")
        errors[name] = error
    return errors
