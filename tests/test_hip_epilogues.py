"""The set of epilogues that FlyDSL tests its GEMMs with (there with an absolute tolerance of 2.0), element by element
against the derived bound, on the simulated gfx942: a layer of a large model for a few rows, and a ragged one."""

import numpy as np
import pytest

import hipsim
import matmul_fused as mf
from support import check, draw
from test_hip_host import simulator  # noqa: F401

SHAPES = ((16, 5120, 8192), (33, 250, 513))
EPILOGUES = (None, "relu", "silu", "gelu")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_bias_and_activation(shape, dtype):
    m, n, k = shape
    dev = hipsim.Device("gfx942")
    a, w, bias = draw((m, k), dtype), draw((n, k), dtype), draw(n, dtype)
    x, b = (dev.array(a), dev.array(w).mT), dev.array(bias)
    for activation in EPILOGUES:
        assert mf.explain(*x, b, activation).kernel == "gemm_mfma"
        check(dev.to_numpy(mf.matmul_fused(*x, b, activation)), a, np.asarray(w.T), bias, activation=activation)
    dev.assert_clean()
