"""matmul_fused for torch: linear layers and their activations as one call, in eager code, training and torch.compile.

    from matmul_fused.torch import linear, patch
    y = linear(x, weight, bias, "gelu")     # as torch.nn.functional.linear, then gelu
    print(patch(model))                     # every linear with an activation behind it, and what was left and why

`import matmul_fused` does not import this package, nor torch.
"""

try:
    import torch as _torch
except ImportError as _error:
    raise ImportError("matmul_fused.torch needs torch, which is not installed; pip install 'torch>=2.10'") from _error

# The first torch whose tensors have the DLPack C exchange API, by which the extension reads them.
if not hasattr(_torch.Tensor, "__dlpack_c_exchange_api__"):
    raise ImportError(f"matmul_fused.torch needs torch 2.10 or later; this is torch {_torch.__version__}")

from .backend import backend
from .functional import linear, mlp
from .modules import FusedLinear, FusedMLP, drop_packed
from .patching import patch, report, unpatch
from .records import Record, Report

__all__ = [
    "FusedLinear",
    "FusedMLP",
    "Record",
    "Report",
    "backend",
    "drop_packed",
    "linear",
    "mlp",
    "patch",
    "report",
    "unpatch",
]
