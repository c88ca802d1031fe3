"""`python -m matmul_fused check --torch`: which seams of torch, transformers, vLLM and SGLang work here.

Each seam is tried on a layer of a few elements; of vLLM and SGLang it is seen that their parts are where the plugin
looks for them. What is not installed is no failure.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from matmul_fused.report import table


@dataclass(frozen=True)
class Seam:
    """What became of one try."""

    package: str
    version: str
    """ "" if it is not installed."""
    seam: str
    works: bool | None
    """None if there was nothing to try."""
    why: str


def _close(ours: Any, theirs: Any) -> str:
    difference = float((ours - theirs).abs().max())
    if not difference < 1e-4:
        raise ArithmeticError(f"it differs from torch's by {difference:.1e}")
    return f"differs from torch's by {difference:.1e}"


def _operands() -> tuple[Any, Any, Any]:
    import torch

    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(shape, generator=generator) for shape in ((4, 16), (8, 16), (8,)))


def _ours(x: Any, weight: Any, bias: Any) -> Any:
    from matmul_fused.torch import linear

    return linear(x, weight, bias, "gelu")


def _theirs(x: Any, weight: Any, bias: Any) -> Any:
    from torch.nn import functional

    return functional.gelu(functional.linear(x, weight, bias))


def _torch_linear() -> str:
    operands = _operands()
    return _close(_ours(*operands), _theirs(*operands))


def _torch_gradients() -> str:
    import torch

    operands = [tensor.requires_grad_() for tensor in _operands()]
    ours, theirs = (torch.autograd.grad(f(*operands).square().sum(), operands)[1] for f in (_ours, _theirs))
    return _close(ours, theirs)


def _torch_compile() -> str:
    import torch

    operands = _operands()
    compiled = torch.compile(_ours, fullgraph=True, backend="aot_eager")
    return _close(compiled(*operands), _theirs(*operands))


def _patched(model: Any, x: Any) -> str:
    import torch

    from matmul_fused.torch import patch, unpatch

    model.eval()
    with torch.no_grad():
        before = model(x)
        if not any(record.fused for record in patch(model)):
            raise RuntimeError("patch fuses nothing")
        said = _close(model(x), before)
    unpatch(model)
    return said


def _torch_patch() -> str:
    import torch

    torch.manual_seed(0)
    return _patched(torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.GELU()), _operands()[0])


def _llama() -> Any:
    import torch
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaMLP

    torch.manual_seed(0)
    return LlamaMLP(LlamaConfig(hidden_size=16, intermediate_size=32, num_attention_heads=2)).eval()


def _transformers_patch() -> str:
    return _patched(_llama(), _operands()[0])


def _transformers_kernels() -> str:
    import torch
    from kernels import Mode, kernelize, use_kernel_mapping

    from .transformers import GatedMLP, kernel_mapping

    model, x = torch.nn.Sequential(_llama()), _operands()[0]
    with torch.no_grad():
        before = model(x)
        with use_kernel_mapping(kernel_mapping(), inherit_mapping=False):
            kernelize(model, mode=Mode.INFERENCE, device="cpu")
        if model[0].forward.__func__ is not GatedMLP.forward:
            raise RuntimeError("kernelize replaces nothing")
        return _close(model(x), before)


def _plugin(host: str, group: str) -> str:
    plugin = importlib.import_module(f".{host}", __package__)
    version = importlib.metadata.version(host)
    if not any(point.name == "matmul_fused" for point in importlib.metadata.entry_points(group=group)):
        raise RuntimeError(f"there is no entry point matmul_fused in {group}; install the package again")
    if not plugin.tried(version):
        raise RuntimeError(f"this version was not tried, only {', '.join(plugin.TRIED)}; the plugin changes nothing")
    plugin._host()
    on = os.environ.get(plugin.VARIABLE) == "1"
    return f"on by {plugin.VARIABLE}=1" if on else f"off; {plugin.VARIABLE}=1 switches it on"


def _vllm_plugin() -> str:
    return _plugin("vllm", "vllm.general_plugins")


def _sglang_plugin() -> str:
    return _plugin("sglang", "sglang.srt.plugins")


# (package, further package that is needed, seam, how it is tried: returns what to say, or raises)
_SEAMS: tuple[tuple[str, str | None, str, Callable[[], str]], ...] = (
    ("torch", None, "linear", _torch_linear),
    ("torch", None, "gradients", _torch_gradients),
    ("torch", None, "torch.compile", _torch_compile),
    ("torch", None, "patch", _torch_patch),
    ("transformers", None, "patch", _transformers_patch),
    ("transformers", "kernels", "kernel_mapping", _transformers_kernels),
    ("vllm", None, "plugin", _vllm_plugin),
    ("sglang", None, "plugin", _sglang_plugin),
)


def _version(package: str) -> str:
    if importlib.util.find_spec(package) is None:
        return ""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _try(package: str, other: str | None, seam: str, attempt: Callable[[], str]) -> Seam:
    version = _version(package)
    for needed in filter(None, (package, other)):
        if not _version(needed):
            return Seam(package, version, seam, None, f"{needed} is not installed")
    try:
        return Seam(package, version, seam, True, attempt())
    except Exception as error:  # any code of the package runs here
        said = (str(error).strip() or "no text").splitlines()[0]
        return Seam(package, version, seam, False, f"{type(error).__name__}: {said}")


def seams() -> list[Seam]:
    """Try every seam."""
    return [_try(*row) for row in _SEAMS]


def show(found: list[Seam]) -> str:
    """The table of `check --torch`."""
    words = {True: "works", False: "fails", None: "-"}
    rows = [(row.package, row.version or "-", row.seam, words[row.works], row.why) for row in found]
    return table([("package", "version", "seam", "", ""), *rows], "matmul_fused check --torch")
