"""A user of torch for `mypy --strict`: the result type follows A."""

from typing import Any, assert_type

import numpy as np
import torch
from numpy.typing import NDArray

import matmul_fused as mf
from matmul_fused.torch import linear, mlp

x = torch.ones(2, 3)
layer = torch.nn.Linear(3, 4).requires_grad_(False)
assert_type(mf.matmul_fused(x, layer.weight.T, layer.bias, "gelu"), torch.Tensor)
assert_type(mf.matmul_fused(x, layer.weight.T, out_dtype=torch.float64), torch.Tensor)

out: NDArray[np.float32] = np.empty((2, 4), dtype=np.float32)
same: NDArray[np.float32] = mf.matmul_fused(x, layer.weight.T, out=out)
mixed: NDArray[Any] = mf.matmul_fused(out, layer.weight)

assert_type(linear(x, layer.weight, layer.bias, "gelu"), torch.Tensor)
assert_type(mlp(x, (layer.weight, layer.weight), torch.ones(3, 4), torch.nn.functional.silu), torch.Tensor)
