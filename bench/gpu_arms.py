"""What bench_gpu.py times: operands, arms of torch and of ours on them, and their check against float64.

An arm that this torch or this activation lacks, or that is wrong, is left out, with a sentence that says why; ours must
be right.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import matmul_fused as mf

functional = torch.nn.functional
Arms = dict[str, Callable[[int], Any]]

CACHE = 256 << 20  # bytes, more than the last cache of an H200
RELATIVE, ABSOLUTE = 1e-2, 1e-2  # twice the relative one for rivals, whose steps round one after the other


def swiglu(z: torch.Tensor) -> torch.Tensor:
    gate, up = z.chunk(2, -1)
    return functional.silu(gate) * up


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": functional.relu,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "swiglu": swiglu,
}


def compiled(layer: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    # Dynamo counts what it compiled of one line of source, and gives up after some.
    torch._dynamo.reset()
    made: Callable[..., torch.Tensor] = torch.compile(
        layer, mode="max-autotune-no-cudagraphs", fullgraph=True, dynamic=False
    )
    return made


def addmm_is_missing(activation: str) -> str:
    if activation not in ("relu", "gelu_tanh"):  # on CUDA use_gelu is the tanh form
        return f"torch._addmm_activation has no {activation}"
    return "" if hasattr(torch, "_addmm_activation") else f"torch {torch.__version__} has no _addmm_activation"


def arms_of(
    m: int, n: int, k: int, activation: Any, names: tuple[str, ...] = ("mm", "eager", "ours"), device: str = "cuda"
) -> tuple[int, Arms, dict[str, str], Any]:
    """How many sets of operands there are, the arms by set, why others are left out, what explain says of ours."""
    size = 2 * (m * k + n * k + m * n)
    sets = max(2, min(16, CACHE // size + 1))
    gated = activation == "swiglu"
    kind: dict[str, Any] = {"device": device, "dtype": torch.bfloat16}
    xs = [torch.randn(m, k, **kind) for _ in range(sets)]
    ws = [torch.randn(n, k, **kind) / k**0.5 for _ in range(sets)]
    bias = None if gated else torch.randn(n, **kind)
    products = [torch.empty(m, n, **kind) for _ in range(sets)]
    outs = [torch.full((m, n // 2 if gated else n), math.nan, **kind) for _ in range(sets)]
    function = ACTIVATIONS[activation]

    def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return function(functional.linear(x, w, bias))

    arms: Arms = {
        "mm": lambda i: torch.mm(xs[i], ws[i].t(), out=products[i]),
        "linear": lambda i: functional.linear(xs[i], ws[i], bias),
        "eager": lambda i: layer(xs[i], ws[i]),
        "addmm": lambda i: torch._addmm_activation(bias, xs[i], ws[i].t(), use_gelu=activation == "gelu_tanh"),
        "ours": lambda i: mf.matmul_fused(xs[i], ws[i].t(), bias, activation, out=outs[i]),
    }
    skipped = {"addmm": addmm_is_missing(activation)}
    if "compile" in names:
        try:
            fast = compiled(layer)
            arms["compile"] = lambda i: fast(xs[i], ws[i])
        except Exception as error:
            skipped["compile"] = first_line(error)
    rows = slice(0, 64)
    product = xs[0][rows].double() @ ws[0].double().t()
    z = product if bias is None else product + bias
    exact = {"mm": product, "linear": z}
    for name in names:
        if not skipped.get(name):
            skipped[name] = wrong(arms[name], exact.get(name, function(z)), rows, must=name == "ours")
    arms = {name: arms[name] for name in names if not skipped[name]}
    left_out = {name: skipped[name] for name in names if skipped[name]}
    return sets, arms, left_out, mf.explain(xs[0], ws[0].t(), bias, activation)


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}".rstrip(": ")


def wrong(arm: Callable[[int], Any], exact: torch.Tensor, rows: slice, must: bool) -> str:
    """Why the arm is not timed, empty if it may be. must: then it is an error."""
    try:
        relative = RELATIVE if must else 2 * RELATIVE
        torch.testing.assert_close(arm(0)[rows].double(), exact, rtol=relative, atol=ABSOLUTE)
    except Exception as error:  # a rival may fail in many ways, and the others are still worth their time
        if must:
            raise
        far = re.search(r"Greatest absolute difference: \S+", str(error))
        return f"wrong: {far[0]}" if far else first_line(error)
    return ""
