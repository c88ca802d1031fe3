"""Every row of gemm_mma, gemm_fma and their split forms on an NVIDIA GPU (--device cuda).

Layouts, and lines that no wide copy takes, K shorter than the parts of a cluster, K of many steps, and many tiles.
The sweep forces families, of which the plan takes the row that suits the size; here each row runs.
"""

import os

import pytest

import matmul_fused as mf
from matmul_fused.testing import Case, run_case
from matmul_fused.testing.devices import DeviceTransfer

DEVICE = os.environ["MMF_TEST_DEVICE"]
pytestmark = pytest.mark.device

FAMILIES = ("gemm_mma_", "gemm_fma_")
ROWS = [n for n in mf.info().gpu_kernels if n.startswith(FAMILIES) and not n.startswith("gemm_mma_thin_")]
DTYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}
SIZES = [(150, 140, 75), (264, 136, 264), (65, 66, 129), (33, 68, 1029), (128, 64, 16)]


@pytest.mark.parametrize("view", ["plain", "offset", "padded", "negative"])
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("kernel", ROWS)
def test_rows(kernel, layout, view, sweep_seed):
    dtype = DTYPES[kernel.split("_")[-2]]
    fixed = {"dtype": dtype, "layout": layout, "a_view": view, "b_view": view}
    fixed["allow_tf32"] = dtype == "float32" and kernel.startswith("gemm_mma")
    for m, n, k in SIZES:
        run_case(Case(m, n, k, bias="row", activation="gelu", **fixed), sweep_seed, kernel=kernel, xp=transfer())
        gated = Case(m, n // 2, k, activation="swiglu", gate_layout="halves", batch="2", **fixed)
        run_case(gated, sweep_seed, kernel=kernel, xp=transfer())


@pytest.mark.parametrize("view", ["plain", "padded"])
@pytest.mark.parametrize("kernel", ROWS)
def test_many_tiles(kernel, view, sweep_seed):
    """A workgroup begins in shared memory that another one left, and its warps end at different times."""
    dtype = DTYPES[kernel.split("_")[-2]]
    tf32 = dtype == "float32" and kernel.startswith("gemm_mma")
    case = Case(2048, 2040, 200, dtype=dtype, a_view=view, b_view=view, allow_tf32=tf32)
    run_case(case, sweep_seed, kernel=kernel, xp=transfer())


def transfer():
    return DeviceTransfer(DEVICE)
