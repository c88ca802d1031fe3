"""Every row of gemm_gemv and gemm_gemv_stream on an NVIDIA GPU that has it (--device cuda).

K with and without whole steps and whole runs of 16 bytes, one to four rows, gates, batches, many workgroups, launches
that overlap. Lines are padded with NaN: what lies behind K is not read.
"""

import os

import pytest

import matmul_fused as mf
from matmul_fused.testing import Case, force_kernel, run_case
from matmul_fused.testing.devices import DeviceTransfer

DEVICE = os.environ["MMF_TEST_DEVICE"]
pytestmark = pytest.mark.device

ROWS = [name for name in mf.info().gpu_kernels if name.startswith("gemm_gemv_")]
DTYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}
MOST = {name: int(name.split("_")[-3].partition("x")[0]) for name in ROWS}


@pytest.fixture(scope="module")
def torch():
    torch = pytest.importorskip("torch")
    x = torch.zeros(1, 16, dtype=torch.float16, device=DEVICE)
    if not any(row.family == "gemm_gemv" and not row.reason for row in mf.explain(x, x.expand(16, 16).T).candidates):
        pytest.skip("this GPU has no gemm_gemv")
    return torch


@pytest.mark.parametrize("kernel", ROWS)
def test_rows(torch, kernel, sweep_seed):
    fixed = {"dtype": DTYPES[kernel.split("_")[-2]], "layout": "NT"}
    batch = "" if "_stream_" in kernel else "2"
    xp = DeviceTransfer(DEVICE)
    for m in range(1, MOST[kernel] + 1):
        for n, k in ((8, 8), (72, 1024), (4099, 2056), (264, 4096), (136, 16392)):
            run_case(Case(m, n, k, bias="row", activation="gelu", **fixed), sweep_seed, kernel=kernel, xp=xp)
            gated = {"activation": "swiglu", "gate_layout": "halves", "batch": batch, "c": "full", "beta": 0.7}
            run_case(Case(m, n, k, **gated, **fixed), sweep_seed, kernel=kernel, xp=xp)


@pytest.mark.parametrize("kernel", ROWS)
@pytest.mark.parametrize("k", [1, 7, 9, 511, 1025, 2055, 4099])
def test_what_lies_behind_k_is_not_read(torch, kernel, k):
    torch.manual_seed(k)
    dtype, pitch = getattr(torch, DTYPES[kernel.split("_")[-2]]), (k + 15) // 8 * 8
    a, w = torch.full((MOST[kernel], pitch), torch.nan), torch.full((136, pitch), torch.nan)
    a[:, :k], w[:, :k] = torch.randn(len(a), k), torch.randn(len(w), k)
    a, w = a.to(DEVICE, dtype), w.to(DEVICE, dtype)
    want = a[:, :k].double() @ w[:, :k].double().T
    with force_kernel(kernel):
        got = mf.matmul_fused(a[:, :k], w[:, :k].T, out_dtype="float32")
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-4 * k**0.5)


@pytest.mark.parametrize("kernel", [name for name in ROWS if "_bf16_" in name])
def test_calls_of_a_chain_wait_for_each_other(torch, kernel):
    """Each reads what the one before wrote, and begins before that one is done."""
    torch.manual_seed(0)
    kind = {"device": DEVICE, "dtype": torch.bfloat16}
    weights = [torch.randn(4096, 4096, **kind) / 64 for _ in range(8)]
    x = torch.randn(MOST[kernel], 4096, **kind)
    want = x
    for w in weights:
        want = (want.double() @ w.T.double()).relu().to(torch.bfloat16)
    for _ in range(20):
        got = x
        with force_kernel(kernel):
            for w in weights:
                got = mf.matmul_fused(got, w.T, activation="relu")
        torch.testing.assert_close(got.double(), want.double(), rtol=0.1, atol=0.05)
