"""FlyDSL's fused epilogues by name: bias, bias_relu, bias_silu, bias_gelu, judged element by element.

Its own test (tests of its preshuffled GEMM, one shape (16, 5120, 8192), bfloat16, N(0, 1) inputs, a weight of (N, K))
accepts rtol 0.05 and atol 2.0; here every element has the derived bound. N is cut to what a simulated GPU multiplies in
a second, K is theirs once; ragged shapes and float16 are added.
"""

import functools
import os

import numpy as np
import pytest

import matmul_fused as mf
from matmul_fused.testing import assert_close, expect
from matmul_fused.testing.devices import Device, DeviceArray, to_numpy
from matmul_fused.testing.inputs import Operand
from support import draw

DEVICE = os.environ["MMF_TEST_DEVICE"]
EPILOGUES = {"bias": None, "bias_relu": "relu", "bias_silu": "silu", "bias_gelu": "gelu_tanh"}
SHAPES = [(16, 64, 8192), (16, 320, 1024), (33, 72, 520), (77, 130, 257)]

pytestmark = pytest.mark.device


@functools.cache
def device():
    return None if DEVICE == "cpu" else Device(DEVICE)


def call(a, weight, bias, activation):
    """weight is (N, K) in memory, as torch.nn.Linear has it; the call gets its transpose."""
    if DEVICE == "cpu":
        return mf.matmul_fused(a, weight.T, bias, activation)
    n, k = weight.shape
    transposed = DeviceArray(device(), Operand("B", weight.reshape(-1), (k, n), (1, k), 0))
    result = mf.matmul_fused(device().array(a), transposed, device().array(bias), activation)
    return to_numpy(device(), result)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_flydsl_epilogue(epilogue, shape, dtype, sweep_seed, accounts):
    m, n, k = shape
    a, weight = draw((m, k), dtype, sweep_seed), draw((n, k), dtype, sweep_seed + 1)
    bias = draw((n,), dtype, sweep_seed + 2)
    out = call(a, weight, bias, EPILOGUES[epilogue])
    expected, _ = expect(a, weight.T, bias, EPILOGUES[epilogue])
    figures = assert_close(out, expected, dtype)
    error = np.abs(out.astype(np.float64) - expected.value).max()
    accounts.say(
        "FlyDSL's epilogues: greatest error / bound, greatest absolute error (FlyDSL accepts 2.0)",
        f"{epilogue} {m}x{n}x{k} {dtype}: {figures.max_ratio:.3f}, {error:.3g}",
    )
