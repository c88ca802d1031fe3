"""gemm_wgmma on a GPU that has it (--device cuda): more tiles than workgroups, batches, pairs, padded lines.

The cases of the sweep are smaller than what a data centre GPU computes at once; here a workgroup takes several tiles.
"""

import dataclasses
import os

import pytest

import matmul_fused as mf
from matmul_fused.testing import Case, force_kernel, run_case
from matmul_fused.testing.devices import DeviceTransfer

DEVICE = os.environ["MMF_TEST_DEVICE"]
pytestmark = pytest.mark.device

TURNS = [  # tile, case
    ("128x128x64_f16_nt", Case(51200, 64, 8, dtype="float16", activation="swiglu", gate_layout="halves", bias="row")),
    ("128x128x64_bf16_nt", Case(51200, 72, 8, dtype="bfloat16", activation="silu", bias="row")),
    ("128x256x64_bf16_nt", Case(25601, 320, 64, dtype="bfloat16", activation="gelu", bias="column")),
    ("128x256x64_f16_nt", Case(25700, 456, 136, dtype="float16", c="full", beta=0.7)),
    ("128x256x64_f16_nt", Case(25601, 64, 72, dtype="float16", preactivation="float16", activation="relu")),
    ("128x224x64_bf16_nt", Case(25601, 320, 64, dtype="bfloat16", activation="gelu", bias="column")),
    ("128x224x64_f16_nt", Case(25700, 456, 136, dtype="float16", c="full", beta=0.7)),
    ("128x224x64_f16_nt", Case(25601, 64, 72, dtype="float16", preactivation="float16", activation="relu")),
    ("128x224x64_bf16_nt", Case(25700, 232, 72, dtype="bfloat16", activation="swiglu", gate_layout="halves")),
    ("128x224x64_f16_nt", Case(25700, 232, 8, dtype="float16", activation="geglu", gate_layout="halves", bias="row")),
    ("pingpong_128x192x64_bf16_nt", Case(25601, 328, 64, dtype="bfloat16", activation="gelu", bias="row")),
    ("pingpong_128x192x64_f16_nt", Case(25700, 456, 136, dtype="float16", bias="row", bias_dtype="float32")),
    ("pingpong_128x192x64_f16_nt", Case(51200, 8, 8, dtype="float16", activation="silu")),
    ("pingpong_128x192x64_bf16_nt", Case(51201, 200, 128, dtype="bfloat16", activation="relu")),
    ("pingpong_128x160x64_bf16_nt", Case(51201, 328, 72, dtype="bfloat16", activation="gelu", bias="row")),
    ("pingpong_128x160x64_f16_nt", Case(25700, 488, 136, dtype="float16", bias="row", bias_dtype="float32")),
    ("pingpong_128x160x64_f16_nt", Case(51200, 72, 64, dtype="float16", activation="relu", alpha=0.5)),
    ("pingpong_128x128x64_bf16_nt", Case(51201, 328, 72, dtype="bfloat16", activation="gelu", bias="row")),
    ("pingpong_128x128x64_f16_nt", Case(51200, 136, 456, dtype="float16", activation="relu", alpha=0.5)),
    ("pingpong_128x128x64_f16_nt", Case(51200, 136, 64, dtype="float16", activation="silu", bias="row")),
    ("pingpong_128x112x64_bf16_nt", Case(51201, 328, 72, dtype="bfloat16", activation="gelu", bias="row")),
    ("pingpong_128x112x64_f16_nt", Case(51200, 120, 456, dtype="float16", activation="silu", bias="row")),
    ("pingpong_128x112x64_f16_nt", Case(25700, 8, 64, dtype="float16", activation="relu", alpha=0.5)),
    ("pingpong_128x192x64_bf16_nt", Case(2561, 392, 200, dtype="bfloat16", activation="mish", multiply="full")),
    ("pingpong_128x160x64_f16_nt", Case(2570, 328, 200, dtype="float16", preactivation="float16", activation="relu")),
    ("pingpong_128x128x64_f16_nt", Case(2570, 264, 200, dtype="float16", activation="elu", batch="2")),
    ("pingpong_128x112x64_bf16_nt", Case(2561, 328, 200, dtype="bfloat16", activation="mish", c="full", beta=0.7)),
    ("pingpong_128x112x64_bf16_nt", Case(2561, 120, 72, dtype="bfloat16", bias="column", activation="relu")),
    ("pingpong_aux_128x192x64_bf16_nt", Case(25601, 328, 136, dtype="bfloat16", c="full", beta=0.7, bias="row")),
    ("pingpong_aux_128x192x64_f16_nt", Case(51201, 392, 64, dtype="float16", bias="column", activation="gelu")),
    ("pingpong_aux_128x192x64_bf16_nt", Case(25601, 392, 72, dtype="bfloat16", multiply="full", activation="silu")),
    ("pingpong_aux_128x160x64_f16_nt", Case(25700, 328, 136, dtype="float16", c="inplace", beta=0.7)),
    ("pingpong_aux_128x160x64_bf16_nt", Case(51201, 328, 72, dtype="bfloat16", bias="column", bias_dtype="float32")),
    (
        "pingpong_aux_128x160x64_f16_nt",
        Case(25700, 328, 72, dtype="float16", preactivation="float16", activation="gelu", bias="row"),
    ),
    ("pingpong_aux_128x160x64_bf16_nt", Case(2561, 328, 200, dtype="bfloat16", activation="mish", multiply="full")),
    ("pingpong_aux_128x128x64_bf16_nt", Case(51201, 328, 72, dtype="bfloat16", c="full", beta=0.7, activation="silu")),
    (
        "pingpong_aux_128x128x64_f16_nt",
        Case(
            25700,
            264,
            200,
            dtype="float16",
            bias="column",
            activation="silu",
            multiply="full",
            preactivation="float16",
            c="full",
            beta=0.7,
        ),
    ),
    (
        "pingpong_aux_128x128x64_bf16_nt",
        Case(25700, 264, 200, dtype="bfloat16", c="row", beta=0.7, bias="row", batch="2"),
    ),
    ("pingpong_aux_128x112x64_bf16_nt", Case(51201, 328, 72, dtype="bfloat16", c="full", beta=0.7, activation="gelu")),
    ("pingpong_aux_128x112x64_f16_nt", Case(51200, 120, 456, dtype="float16", multiply="full", activation="silu")),
    ("pingpong_aux_128x112x64_f16_nt", Case(25700, 328, 72, dtype="float16", preactivation="float16", bias="row")),
    ("64x128x64_f16_nt", Case(40000, 72, 264, dtype="float16", activation="silu", bias="row")),
    ("16x128x64_bf16_nt", Case(4001, 264, 136, dtype="bfloat16", activation="relu")),
    ("128x256x32_f32_nt", Case(2570, 1036, 100, allow_tf32=True, activation="gelu", bias="row")),
    ("128x256x32_f32_nt", Case(300, 264, 36, allow_tf32=True, activation="swiglu", gate_layout="halves", batch="2")),
    ("128x256x32_f32_nt", Case(129, 130, 4, allow_tf32=True, c="full", beta=0.7, preactivation="float32")),
    ("128x128x32_f32_nt", Case(1400, 1356, 68, allow_tf32=True, activation="silu", bias="column")),
    ("128x128x32_f32_nt", Case(70, 72, 1028, allow_tf32=True, batch="2")),
    ("128x64x32_f32_nt", Case(400, 328, 200, allow_tf32=True, activation="geglu", gate_layout="halves", bias="row")),
    ("128x64x32_f32_nt", Case(130, 72, 1028, allow_tf32=True, alpha=0.5)),
]


@pytest.fixture(scope="module")
def torch():
    torch = pytest.importorskip("torch")
    x = torch.zeros(16, 16, dtype=torch.float16, device=DEVICE)
    if not any(row.family == "gemm_wgmma" and not row.reason for row in mf.explain(x, x).candidates):
        pytest.skip("this GPU has no gemm_wgmma")
    return torch


@pytest.mark.parametrize(("tile", "case"), TURNS, ids=lambda value: getattr(value, "id", value))
def test_workgroups_take_turns(torch, tile, case, sweep_seed):
    for layout in ("NT", "NN")[: 1 if case.allow_tf32 or "pingpong" in tile or "x224x" in tile else 2]:
        kernel = f"gemm_wgmma_{tile.rpartition('_')[0]}_{layout.lower()}"
        run_case(dataclasses.replace(case, layout=layout), sweep_seed, kernel=kernel, xp=DeviceTransfer(DEVICE))


def draw(torch, *shape, scale=1.0):
    return (torch.randn(*shape, device=DEVICE) * scale).to(torch.bfloat16)


def compare(torch, got, want):
    assert not torch.isnan(got).any()
    torch.testing.assert_close(got.double(), want, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    "tile",
    [
        "pingpong_128x192x64",
        "pingpong_128x160x64",
        "pingpong_128x128x64",
        "pingpong_128x112x64",
        "128x256x64",
        "128x224x64",
        "128x128x64",
        "64x128x64",
        "16x128x64",
    ],
)
@pytest.mark.parametrize("batched", ["both", "a", "b"])
def test_many_matrices(torch, tile, batched):
    torch.manual_seed(1)
    a = draw(torch, *([200] if batched != "b" else []), 70, 136)
    b = draw(torch, *([200] if batched != "a" else []), 72, 136, scale=0.1)
    bias = draw(torch, 200, 1, 72)  # found anew for each matrix, while a workgroup goes from one to the next
    with force_kernel(f"gemm_wgmma_{tile}_bf16_nt"):
        compare(torch, mf.matmul_fused(a, b.mT, bias), a.double() @ b.mT.double() + bias.double())


@pytest.mark.parametrize("tile", ["128x256x64", "128x224x64", "128x128x64", "64x128x64", "16x128x64"])
@pytest.mark.parametrize("expanded", ["gate", "up", "none"])
def test_a_pair_of_which_one_is_the_same_for_all(torch, tile, expanded):
    torch.manual_seed(2)
    a = draw(torch, 5, 70, 136)
    weights = [draw(torch, 5, 72, 136, scale=0.1) for _ in range(2)]
    if expanded != "none":
        i = ("gate", "up").index(expanded)
        weights[i] = weights[i][:1].expand(5, 72, 136)
    gate, up = (w.mT for w in weights)
    with force_kernel(f"gemm_wgmma_{tile}_bf16_nt"):
        got = mf.matmul_fused(a, (gate, up), activation="swiglu")
    compare(torch, got, torch.nn.functional.silu(a.double() @ gate.double()) * (a.double() @ up.double()))


@pytest.mark.parametrize(
    ("tile", "layout"), [("64x128x64", "nt"), ("64x128x64", "tn"), ("64x128x64", "tt"), ("16x128x64", "nt")]
)
@pytest.mark.parametrize("activation", [None, "gelu"])
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (64, 4096, 1024),  # tiles of 64 rows: parts of k; of 16: B shared
        (64, 128, 4096),  # parts of k in both
        (64, 1024, 1024),  # four parts
        (16, 8192, 4096),  # two parts of all tiles
        (16, 7168, 512),
        (11, 128, 4096),
        (256, 1024, 264),  # two tiles share B
        (130, 200, 520),  # an edge of both axes
        (8, 40, 64),
    ],
)
def test_few_rows(torch, tile, layout, activation, m, n, k):
    torch.manual_seed(5)
    a = draw(torch, m, k) if layout[0] == "n" else draw(torch, k, m + -m % 8).T[:m]
    b = draw(torch, k, n, scale=k**-0.5) if layout[1] == "n" else draw(torch, n, k, scale=k**-0.5).T
    z = a.double() @ b.double()
    for bias in (None, draw(torch, n), torch.randn(n, device=DEVICE)):
        out = torch.full((m + 1, n + 8), float("nan"), device=DEVICE, dtype=torch.bfloat16)
        with force_kernel(f"gemm_wgmma_{tile}_bf16_{layout}"):
            mf.matmul_fused(a, b, bias, activation, out=out[:m, :n])
        want = z if bias is None else z + bias.double()
        compare(torch, out[:m, :n], torch.nn.functional.gelu(want) if activation else want)
        assert torch.isnan(out[m]).all()
        assert torch.isnan(out[:, n:]).all()


@pytest.mark.parametrize(("tile", "layout"), [("64x128x64", "nt"), ("64x128x64", "nn"), ("16x128x64", "nt")])
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (16, 14336, 512),  # tiles of fewer columns than 128; gated: two turns
        (64, 25600, 136),
        (61, 12808, 264),  # the last tile is narrow
        (64, 128, 4096),  # parts of k
        (16, 264, 4096),
        (61, 5064, 1544),  # of narrower tiles; gated: two turns
        (16, 2552, 1544),  # gated: parts of them
        (130, 8200, 200),
        (8, 40, 64),
    ],
)
def test_few_rows_take_turns(torch, tile, layout, gated, m, n, k):
    torch.manual_seed(6)
    a = draw(torch, m, k)
    weights = [draw(torch, n, k, scale=k**-0.5).T for _ in range(1 + gated)]
    if layout[1] == "n":
        weights = [w.contiguous() for w in weights]
    z = [a.double() @ w.double() for w in weights]
    for dtype in (None, torch.bfloat16, torch.float32):
        biases = [torch.randn(n, device=DEVICE).to(dtype) for _ in weights] if dtype else []
        out = torch.full((m + 1, n + 8), float("nan"), device=DEVICE, dtype=torch.bfloat16)
        with force_kernel(f"gemm_wgmma_{tile}_bf16_{layout}"):
            if gated:
                mf.matmul_fused(a, tuple(weights), tuple(biases) or None, activation="swiglu", out=out[:m, :n])
            else:
                mf.matmul_fused(a, *weights, *biases, activation="silu", out=out[:m, :n])
        got = [x + b.double() for x, b in zip(z, biases, strict=True)] if biases else z
        want = torch.nn.functional.silu(got[0])
        compare(torch, out[:m, :n], want * got[1] if gated else want)
        assert torch.isnan(out[m]).all()
        assert torch.isnan(out[:, n:]).all()


@pytest.mark.parametrize("tile", ["128x128x64", "64x128x64"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_padded_lines(torch, tile, layout):
    torch.manual_seed(3)
    a = draw(torch, 256, 256)[:136, :72] if layout[0] == "n" else draw(torch, 256, 256)[:72, :136].mT
    b = draw(torch, 256, 256, scale=0.1)[:72, :200] if layout[1] == "n" else draw(torch, 256, 256)[:200, :72].mT
    out = torch.full((136, 256), float("nan"), device=DEVICE, dtype=torch.bfloat16)
    with force_kernel(f"gemm_wgmma_{tile}_bf16_{layout}"):
        mf.matmul_fused(a, b, activation="relu", out=out[:, :200])
    compare(torch, out[:, :200], (a.double() @ b.double()).relu())
    assert torch.isnan(out[:, 200:]).all()


@pytest.mark.parametrize(
    "kernel",
    [
        "gemm_wgmma_128x256x32_f32_nt",
        "gemm_wgmma_128x128x32_f32_nt",
        "gemm_wgmma_128x64x32_f32_nt",
        "gemm_mma_128x128x32_f32_any",
    ],
)
@pytest.mark.parametrize("shape", [(128, 256, 32), (257, 300, 164), (1, 5, 4)])
def test_float32_is_rounded_to_11_bits(torch, kernel, shape):
    """To nearest: truncated inputs would be 40 times as far off as this allows."""
    to_even = kernel.startswith("gemm_wgmma")  # ties; else away from 0

    def rounded(x):
        bits = x.view(torch.int32)
        return ((bits + (0xFFF + (bits >> 13 & 1) if to_even else 0x1000)) & ~0x1FFF).view(torch.float32).double()

    torch.manual_seed(4)
    m, n, k = shape
    a, b = torch.rand(m, k, device=DEVICE) + 0.5, torch.rand(n, k, device=DEVICE) + 0.5
    a[0, 0], b[0, 0] = 1 + 2**-11, 1 + 3 * 2**-12  # a tie; to the next one
    with force_kernel(kernel):
        got = mf.matmul_fused(a, b.T, allow_tf32=True)
    want = rounded(a) @ rounded(b).T
    assert ((got.double() - want).abs() <= 1e-5 * want).all()
    a[0, 0], a[-1, -1] = float("nan"), float("inf")
    with force_kernel(kernel):
        got = mf.matmul_fused(a, b.T, allow_tf32=True)
    assert torch.isnan(got[0]).all()
    assert m == 1 or torch.isposinf(got[-1]).all()


@pytest.mark.parametrize(
    ("columns", "layout"), [(192, "nt"), (128, "nt"), (128, "nn"), (128, "tn"), (128, "tt"), (112, "nt")]
)
@pytest.mark.parametrize("shape", [(4096, 4096, 1024), (1000, 1000, 1000), (40000, 392, 64), (257, 7168, 2048)])
def test_ping_pong_gives_the_same_bits_each_time(torch, shape, columns, layout):
    """Which warpgroup is ahead of the other differs from run to run; what they compute must not."""
    torch.manual_seed(5)
    m, n, k = shape
    m += -m % 8 if layout[0] == "t" else 0  # its lines begin at multiples of 16 bytes
    a = draw(torch, k, m).T if layout[0] == "t" else draw(torch, m, k)
    b = draw(torch, n, k, scale=k**-0.5).T if layout[1] == "t" else draw(torch, k, n, scale=k**-0.5)
    bias = draw(torch, n)
    with force_kernel(f"gemm_wgmma_pingpong_128x{columns}x64_bf16_{layout}"):
        first = mf.matmul_fused(a, b, bias, "silu")
        for _ in range(100):
            assert torch.equal(mf.matmul_fused(a, b, bias, "silu"), first)
    compare(torch, first, torch.nn.functional.silu(a.double() @ b.double() + bias.double()))


def test_batches_that_no_map_describes_go_elsewhere(torch):
    a, b = draw(torch, 70, 2, 136).transpose(0, 1), draw(torch, 72, 136, scale=0.1)
    assert mf.explain(a, b.T).family in ("gemm_wgmma", "gemm_mma", "gemm_simt", "gemm_simt_splitk")
    compare(torch, mf.matmul_fused(a, b.T), a.double() @ b.T.double())
