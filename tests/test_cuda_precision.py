"""16-bit calls of real layers on an NVIDIA GPU (--device cuda), beside torch eager on the same GPU.

The RMS error of a call against float64 is at most 1.02 times that of linear and the activation, each in the dtype of
the operands; a hundred calls give the same bits. The kernels are those that the plan chooses.
"""

import math
import os

import pytest

import matmul_fused as mf
from matmul_fused.testing.formulas import is_gated, resolve

DEVICE = os.environ["MMF_TEST_DEVICE"]
pytestmark = pytest.mark.device

ROWS = (1, 16, 64, 256, 1024, 4096, 8192)
LAYERS = (  # N, K
    (16384, 4096, "relu"), (8192, 8192, "silu"), (7168, 2048, "silu"), (4096, 1024, "gelu"),
    (4096, 1024, "gelu_tanh"), (28672, 4096, "swiglu"), (51200, 5120, "swiglu"),
)  # fmt: skip
LEAST = 1 << 16  # elements of an RMS: of fewer it is luck
ALLOWED = 1.02


@pytest.fixture(scope="module")
def torch():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    return torch


def activated(torch, activation, z):
    _, row, parameters = resolve(activation)
    return row.torch(torch, *(z.chunk(2, -1) if is_gated(activation) else (z,)), *parameters)


def draw(torch, m, n, k, dtype, seed):
    generator = torch.Generator(DEVICE).manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, device=DEVICE)

    return normal(m, k).to(dtype), (normal(n, k) * k**-0.5).to(dtype), normal(n).to(dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: "x".join(map(str, layer)))
@pytest.mark.parametrize("m", ROWS)
def test_error_beside_eager_and_the_same_bits(torch, m, layer, dtype, sweep_seed):
    n, k, activation = layer
    squares = {"ours": 0.0, "eager": 0.0}
    for number in range(math.ceil(LEAST / (m * n))):
        x, weight, bias = draw(torch, m, n, k, getattr(torch, dtype), sweep_seed + number)
        ours = mf.matmul_fused(x, weight.T, bias, activation)
        exact = activated(torch, activation, x.double() @ weight.double().T + bias.double())
        eager = activated(torch, activation, torch.nn.functional.linear(x, weight, bias))
        for name, result in (("ours", ours), ("eager", eager)):
            squares[name] += float((result.double() - exact).square().mean())
    del exact, eager
    out = torch.full_like(ours, math.nan)
    different = 0
    for _ in range(100):
        different += not torch.equal(mf.matmul_fused(x, weight.T, bias, activation, out=out), ours)
        out.fill_(math.nan)
    assert different == 0
    ratio = math.sqrt(squares["ours"] / squares["eager"])
    assert ratio <= ALLOWED, f"{mf.explain(x, weight.T, bias, activation).kernel}: {ratio:.4f} of eager's RMS error"
