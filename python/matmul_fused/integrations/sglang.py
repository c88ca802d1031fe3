"""The plugin of SGLang: with MATMUL_FUSED_SGLANG=1 its MLPs run a linear layer and the activation as one call.

SGLang calls `register` in each of its processes (entry point group sglang.srt.plugins). Its Llama and Qwen MLPs already
ask an object, DualGemm, for gate, up and activation in one; that class is replaced by one that asks SGLang's own
kernels first. The forward of the other classes named below is wrapped. Both go through SGLang's HookRegistry.
A version that was not tried is a warning and no change.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
from typing import Any

from . import switched_on

logger = logging.getLogger("sglang.matmul_fused")  # below SGLang's own, so that it is seen where that is

VARIABLE = "MATMUL_FUSED_SGLANG"
TRIED = ("0.5.23",)
"""The versions whose layers and forwards were read, and run by the tests."""

DUAL_GEMM = "sglang.srt.layers.dual_gemm.DualGemm"
_MODELS = "sglang.srt.models."
# Attributes by which a forward finds its layers -> the classes whose forward has the linear layer's result go to the
# activation alone, and that to the last layer. OPT's decoder layer has more in it, which is left as it is.
_CLASSES: dict[tuple[str, str, str], str] = {
    ("gate_up_proj", "act_fn", "down_proj"): (
        "commandr.CohereMLP exaone4.Exaone4GatedMLP gemma.GemmaMLP gemma2.Gemma2MLP gemma3_causal.Gemma3MLP "
        "glm4.Glm4MLP granite.GraniteMLP minicpm.MiniCPMMLP olmo.OlmoMLP olmo2.Olmo2MLP stablelm.StablelmMLP"
    ),
    ("fc1", "act", "fc2"): "phi.PhiMLP siglip.SiglipMLP",
    ("fc1", "activation_fn", "fc2"): "opt.OPTDecoderLayer",
    ("c_fc", "act", "c_proj"): "gpt2.GPT2MLP gpt_bigcode.GPTBigMLP starcoder2.Starcoder2MLP",
}


def classes() -> dict[str, tuple[str, str, str]]:
    """The path of a class -> (linear, activation, last layer), as its attributes."""
    return {_MODELS + name: form for form, names in _CLASSES.items() for name in names.split()}


def tried(version: str) -> bool:
    return version in TRIED


def report() -> Any:
    """What became of the layers that have run, or were traced, in this process. Prints as a table."""
    from .seam import report as of_host

    return of_host("sglang")


def _forbids() -> str:
    from sglang.srt.runtime_context import get_exec, publish_role

    if publish_role() is not None and get_exec().deterministic.enable_deterministic_inference:
        return "SGLang's deterministic inference asks for kernels of its own"
    return ""


def _host() -> Any:
    from sglang.srt.layers import linear
    from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod
    from sglang.srt.utils import use_intel_amx_backend

    from .seam import Host

    return Host(
        name="sglang",
        column=(linear.ColumnParallelLinear, linear.MergedColumnParallelLinear),
        row=(linear.RowParallelLinear,),
        unquantized=UnquantizedLinearMethod,
        activations="sglang.srt.layers.activation",
        input_quant=lambda layer: None if type(layer.quant_method) is UnquantizedLinearMethod else layer.quant_method,
        packed=use_intel_amx_backend,
        forbids=_forbids,
    )


def _dual_gemm(host: Any) -> type:
    import torch
    from sglang.srt.layers.activation import SiluAndMul
    from sglang.srt.layers.dual_gemm import DualGemm
    from sglang.srt.runtime_context import get_forward

    from matmul_fused.torch import linear

    from . import seam

    class FusedDualGemm(DualGemm):  # type: ignore[misc]
        """SGLang's own kernels where they run, else matmul_fused where it may, else what the MLP does without."""

        def __init__(self, gate_up_proj: Any, down_proj: Any, hidden_size: int) -> None:
            super().__init__(gate_up_proj, down_proj, hidden_size)
            self._act = SiluAndMul()

        def can_run(self, x: Any, gate_up_proj: Any) -> bool:
            return bool(super().can_run(x, gate_up_proj) or self._may_fuse(x, gate_up_proj))

        def _may_fuse(self, x: Any, gate_up_proj: Any) -> bool:
            if not isinstance(x, torch.Tensor) or (self.tp_size > 1 and get_forward().sp_active):
                return False
            if not seam.may_fuse(host, "DualGemm", gate_up_proj, self._act, self.down_proj):
                return False
            return bool(x.dtype == gate_up_proj.weight.dtype)

        def __call__(self, x: Any, gate_up_proj: Any) -> Any:
            if super().can_run(x, gate_up_proj):
                return super().__call__(x, gate_up_proj)
            return linear(x, gate_up_proj.weight, gate_up_proj.bias, "swiglu")

    return FusedDualGemm


def _has_forward(path: str) -> bool:
    """Is this class there? HookRegistry would log an error, where parts of SGLang do not run on this machine."""
    module, name = path.rsplit(".", 1)
    try:
        return "forward" in vars(getattr(importlib.import_module(module), name))
    except Exception as error:
        logger.info("SGLang's %s is left as it is: %s", path, error)
        return False


_registered = False


def register() -> None:
    """What SGLang calls: registers the hooks, if MATMUL_FUSED_SGLANG=1. More calls do nothing more."""
    global _registered  # in each process once; a forked one has the hooks of its parent
    try:
        if _registered or not switched_on(VARIABLE, logger):
            return
        version = importlib.metadata.version("sglang")
        if not tried(version):
            logger.warning("SGLang %s was not tried, only %s; nothing is changed", version, ", ".join(TRIED))
            return
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        from .seam import Form, around

        host = _host()
        dual_gemm = _dual_gemm(host)  # all parts are there, before anything is changed
        _registered = True
        HookRegistry.register(DUAL_GEMM, dual_gemm, HookType.REPLACE)
        for path, form in classes().items():
            if not _has_forward(path):
                continue
            hook = around(host, path.rsplit(".", 1)[1], Form(*form))
            HookRegistry.register(f"{path}.forward", hook, HookType.AROUND)
        logger.info("SGLang %s: DualGemm and %d classes may fuse", version, len(classes()))
    except Exception:
        logger.warning("matmul_fused changes nothing in SGLang", exc_info=True)
