"""The plugin of vLLM: with MATMUL_FUSED_VLLM=1 its MLPs run a linear layer and the activation as one call.

vLLM calls `register` in each of its processes (entry point group vllm.general_plugins). It changes the forward of the
classes named below, of those that are imported already and of others when they are, and what vLLM's own backend
compiles (vllm_graph.py); nothing else of vLLM.
Exceptions never reach vLLM, whose loader does not catch them: a version that was not tried, or parts that are not where
they were, are a warning and no change.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.metadata
import logging
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import switched_on

logger = logging.getLogger("vllm.matmul_fused")  # below vLLM's own, so that it is seen where that is

VARIABLE = "MATMUL_FUSED_VLLM"
TRIED = ("0.33",)
"""The versions whose layers and forwards were read, and run by the tests."""

_MODELS = "vllm.model_executor.models."
_BACKENDS = "vllm.compilation.backends"
# Attributes by which a forward finds its layers -> the classes whose forward has the linear layer's result go to the
# activation alone, and that to the last layer. OPT's decoder layer has more in it, which is left as it is.
_CLASSES: dict[tuple[str, str, str], str] = {
    ("gate_up_proj", "act_fn", "down_proj"): (
        "bailing_moe.BailingMLP commandr.CohereMLP deepseek_v2.DeepseekV2MLP exaone4.Exaone4GatedMLP gemma.GemmaMLP "
        "gemma2.Gemma2MLP gemma3.Gemma3MLP gemma4.Gemma4MLP glm4_moe.Glm4MoeMLP granite.GraniteMLP llama.LlamaMLP "
        "minicpm.MiniCPMMLP mistral.MistralMLP orion.OrionMLP qwen2.Qwen2MLP qwen2_moe.Qwen2MoeMLP "
        "qwen3_moe.Qwen3MoeMLP solar.SolarMLP stablelm.StablelmMLP"
    ),
    ("fc1", "activation_fn", "fc2"): "clip.CLIPMLP opt.OPTDecoderLayer siglip.SiglipMLP whisper.WhisperMLP",
    ("c_fc", "act", "c_proj"): "gpt2.GPT2MLP",
    ("dense_h_to_4h", "gelu_impl", "dense_4h_to_h"): "bloom.BloomMLP",
}


def classes() -> dict[str, dict[str, tuple[str, str, str]]]:
    """module -> class -> (linear, activation, last layer), as attributes of the class."""
    found: dict[str, dict[str, tuple[str, str, str]]] = {}
    for form, names in _CLASSES.items():
        for name in names.split():
            module, kind = name.split(".")
            found.setdefault(_MODELS + module, {})[kind] = form
    return found


def tried(version: str) -> bool:
    return ".".join(version.split(".")[:2]) in TRIED


def report() -> Any:
    """What became of the layers that have run, or were traced, in this process. Prints as a table."""
    from .seam import report as of_host

    return of_host("vllm")


def _forbids() -> str:
    from vllm import envs

    return "VLLM_BATCH_INVARIANT asks for kernels of vLLM's own" if envs.VLLM_BATCH_INVARIANT else ""


def _host() -> Any:
    from vllm.model_executor.layers import linear
    from vllm.model_executor.layers.fusion.quant_activation import get_input_quant_key

    from .seam import Host

    return Host(
        name="vllm",
        column=(linear.ColumnParallelLinear, linear.MergedColumnParallelLinear),
        row=(linear.RowParallelLinear,),
        unquantized=linear.UnquantizedLinearMethod,
        activations="vllm.model_executor.layers.activation",
        input_quant=get_input_quant_key,
        packed=lambda layer: False,  # its CPU build leaves an empty weight
        forbids=_forbids,
    )


_ORIGINAL = "_forward_before_matmul_fused"


def _change(module: ModuleType, kinds: dict[str, tuple[str, str, str]]) -> None:
    """Change the classes of one module of vLLM, once."""
    try:
        from .seam import Form, around

        host = _host()
        for name, form in kinds.items():
            kind = getattr(module, name, None)
            if not isinstance(kind, type) or kind.__module__ != module.__name__:
                logger.warning("vLLM has no %s.%s; nothing is changed there", module.__name__, name)
                continue
            if _ORIGINAL in vars(kind):
                continue
            original = kind.__dict__["forward"]
            missing = [attribute for attribute in form if attribute not in original.__code__.co_names]
            if missing:
                logger.warning("%s.forward has no %s; nothing is changed there", name, ", ".join(missing))
                continue
            kind.forward = _hooked(original, around(host, name, Form(*form)))  # type: ignore[attr-defined]
            setattr(kind, _ORIGINAL, original)
            logger.debug("vLLM's %s may fuse %s and %s", name, *form[:2])
    except Exception:
        logger.warning("vLLM's %s is left as it is", module.__name__, exc_info=True)


def _hooked(original: Any, hook: Any) -> Any:
    @functools.wraps(original)
    def forward(self: Any, *arguments: Any, **keywords: Any) -> Any:
        return hook(original, self, *arguments, **keywords)

    return forward


def _change_backend(module: ModuleType) -> None:
    try:
        from . import vllm_graph

        vllm_graph.change(module)
    except Exception:
        logger.warning("vLLM's %s is left as it is", module.__name__, exc_info=True)


def _changes() -> dict[str, Callable[[ModuleType], None]]:
    """module -> what is done when it is there."""
    made: dict[str, Callable[[ModuleType], None]] = {_BACKENDS: _change_backend}
    for name, kinds in classes().items():
        made[name] = functools.partial(_change, kinds=kinds)
    return made


class _Loader(importlib.abc.Loader):
    """Runs a module as its own loader does, then changes its classes."""

    def __init__(self, real: Any, change: Callable[[ModuleType], None]) -> None:
        self._real = real
        self._change = change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def create_module(self, spec: Any) -> Any:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._real.exec_module(module)
        self._change(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Notices the import of vLLM's models, and of its backend."""

    def __init__(self) -> None:
        self._changes = _changes()

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        change = self._changes.get(fullname)
        if change is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, change)
        return spec


def register() -> None:
    """What vLLM calls: changes the classes, if MATMUL_FUSED_VLLM=1. More calls do nothing more."""
    try:
        if not switched_on(VARIABLE, logger):
            return
        version = importlib.metadata.version("vllm")
        if not tried(version):
            logger.warning("vLLM %s was not tried, only %s; nothing is changed", version, ", ".join(TRIED))
            return
        if any(isinstance(finder, _Finder) for finder in sys.meta_path):
            return
        _host()  # all parts are there, before anything is changed
        from vllm.config import VllmConfig

        from .vllm_graph import key_caches

        key_caches(VllmConfig)
        finder = _Finder()
        sys.meta_path.insert(0, finder)
        for name, change in _changes().items():
            if name in sys.modules:
                change(sys.modules[name])
        logger.info("vLLM %s: %d classes may fuse", version, sum(map(len, classes().values())))
    except Exception:
        logger.warning("matmul_fused changes nothing in vLLM", exc_info=True)
