"""What vLLM compiles, where no class of vllm.py has been before: linear layers and activations in its graphs.

vLLM's own backend (compilation mode 3) is handed Dynamo's graph of a model, whatever its classes are. Before it splits
that at the attention layers, sites that match.py finds become the registered operator of matmul_fused.torch. A linear
layer that LoRA adds to, that is quantised, or whose result is gathered has something else behind it, and is none.
Role on the path of a call: none; it runs while vLLM compiles.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import importlib.metadata
import logging
from types import ModuleType
from typing import Any

import torch
from torch import fx

from matmul_fused.torch.backend import fuse, module_of
from matmul_fused.torch.match import Matcher, Site

from . import seam

logger = logging.getLogger("vllm.matmul_fused")

_ORIGINAL = "_call_before_matmul_fused"


def _accepted(site: Site) -> bool:
    """Is there a kernel for it? Remembered for the report."""
    first = site.linears[0]
    weight: Any = first.weight
    weight = weight.meta["example_value"]
    rows, width = reversed(weight.shape) if first.turned else weight.shape
    form, place = f"compiled graph, {site.spelled}", module_of(first.result)
    with torch._guards.tracing(None), torch._subclasses.fake_tensor.unset_fake_temporarily():
        return seam._decide(  # type: ignore[no-any-return]
            "vllm",
            form,
            place,
            site.activation.spec,
            first.result.meta["example_value"].dtype,
            str(weight.device),
            rows * len(site.linears),
            width,
            first.bias is not None,
        )


def rewrite(graph: fx.Graph) -> fx.Graph | None:
    """The graph with its sites fused; None if there is none. The one given stays as it is."""
    copied = copy.deepcopy(graph)
    # Additions are left to vLLM, which fuses them with the norms behind them.
    sites = [site for site in Matcher(copied).sites() if site.added is None]
    sites = [site for site in sites if site.activation.gate_layout in (None, "halves") and _accepted(site)]
    fused: dict[fx.Node, fx.Node] = {}
    for site in sites:
        fuse(copied, site, fused)
    return copied if sites else None


def change(module: ModuleType) -> None:
    """Let vLLM's backend compile rewritten graphs."""
    kind = module.VllmBackend
    if _ORIGINAL in vars(kind):
        return
    original = kind.__call__

    @functools.wraps(original)
    def call(self: Any, graph: Any, *arguments: Any, **keywords: Any) -> Any:
        try:
            made = rewrite(graph.graph)
            if made is not None:
                graph.graph = made
        except Exception:
            logger.warning("a graph of vLLM is compiled as it is", exc_info=True)
        return original(self, graph, *arguments, **keywords)

    kind.__call__ = call
    setattr(kind, _ORIGINAL, original)


def _installed() -> str:
    """What is installed of this package: its version, and the hashes of its files."""
    found = importlib.metadata.distribution("matmul_fused")
    return f"{found.version} {found.read_text('RECORD')}"


def key_caches(config: Any) -> None:
    """Let the key of vLLM's compilation caches name this package, whose operators are in what they hold."""
    original = config.compute_hash
    if hasattr(original, "__wrapped__"):
        return
    installed = _installed()

    @functools.wraps(original)
    def compute_hash(self: Any, *arguments: Any, **keywords: Any) -> str:
        theirs = original(self, *arguments, **keywords)
        ours = hashlib.sha256(f"{theirs} {installed}".encode()).hexdigest()
        return ours[: len(theirs)]

    config.compute_hash = compute_hash
