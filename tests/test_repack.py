"""gemm_wgmma on operands that it has copied first, on an NVIDIA GPU that has it (--device cuda).

Odd pitches and addresses, lines that are not along K, strided and reversed ones, batches, pairs; the plan's choice.
"""

import itertools
import os

import pytest

import matmul_fused as mf
from matmul_fused.testing import Case, force_kernel, run_case
from matmul_fused.testing.devices import DeviceTransfer

DEVICE = os.environ["MMF_TEST_DEVICE"]
pytestmark = pytest.mark.device

KERNELS = {"float16": "gemm_wgmma_128x128x64_f16_nt", "bfloat16": "gemm_wgmma_16x128x64_bf16_nt"}
KERNELS["float32"] = "gemm_wgmma_128x128x32_f32_nt"


@pytest.fixture(scope="module")
def torch():
    torch = pytest.importorskip("torch")
    x = torch.zeros(16, 16, dtype=torch.float16, device=DEVICE)
    if not any(row.family == "gemm_wgmma" and not row.reason for row in mf.explain(x, x).candidates):
        pytest.skip("this GPU has no gemm_wgmma")
    return torch


@pytest.mark.parametrize("view", ["plain", "offset", "padded", "sliced", "negative"])
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("dtype", KERNELS)
def test_layouts_and_views(torch, dtype, layout, view, sweep_seed):
    fixed = {"dtype": dtype, "layout": layout, "a_view": view, "b_view": view, "allow_tf32": dtype == "float32"}
    for m, n, k in ((150, 141, 75), (65, 64, 1029), (33, 257, 129), (1, 130, 7)):
        for case in (
            Case(m, n, k, bias="row", activation="gelu", **fixed),
            Case(m, n, k, batch="2", activation="swiglu", gate_layout="pair", **fixed),
            Case(m, n, k, batch="a", c="full", beta=0.7, **fixed),
        ):
            run_case(case, sweep_seed, kernel=KERNELS[dtype], xp=DeviceTransfer(DEVICE))


@pytest.mark.parametrize(("dtype", "k"), [("float16", 2047), ("bfloat16", 2047), ("float32", 2048)])
def test_large_ones_are_copied_by_choice(torch, dtype, k):
    torch.manual_seed(0)
    a = torch.randn(2049, k, device=DEVICE, dtype=getattr(torch, dtype))
    b = torch.randn(k, 2050, device=DEVICE, dtype=a.dtype) / k**0.5
    for x, y in itertools.product((a, a.T.contiguous().T), (b, b.T.contiguous().T)):
        found = mf.explain(x, y, activation="relu", allow_tf32=True)
        if dtype == "float32" and len(found.launches) == 1:
            assert x.stride(1) == y.stride(0) == 1
        elif dtype == "float32":
            assert found.launches[0] == "repack_64x64x1_f32_any"
        for _ in range(3):
            out = mf.matmul_fused(x, y, activation="relu", allow_tf32=True)
        torch.testing.assert_close(out.double(), (a.double() @ b.double()).relu(), rtol=1e-2, atol=1e-2)


def test_many_matrices(torch):
    torch.manual_seed(1)
    a = torch.randn(200, 70, 75, device=DEVICE).to(torch.bfloat16)
    b = torch.randn(200, 33, 75, device=DEVICE).to(torch.bfloat16) / 8
    with force_kernel(KERNELS["bfloat16"]):
        out = mf.matmul_fused(a, b.mT)
    torch.testing.assert_close(out.double(), a.double() @ b.mT.double(), rtol=1e-2, atol=1e-2)
