"""Every activation of the general epilogue on a device, point by point, and numbers as its operands.

The sweep meets most of them in a few cases. Here a product with K = 0 leaves z = bias, exactly, as in test_activations.
"""

import functools
import os

import numpy as np
import pytest

import matmul_fused as mf
from activation_points import argument, describe, worst_ratio
from matmul_fused.testing import Case, expect, run_case
from matmul_fused.testing.cases import GATED_ACTIVATIONS, PLAIN_ACTIVATIONS
from matmul_fused.testing.devices import Device, DeviceTransfer, to_numpy
from matmul_fused.testing.reference import assert_close
from matmul_fused.testing.run import NumPyTransfer

DEVICE = os.environ["MMF_TEST_DEVICE"]
PART = os.environ["MMF_TEST_SIMULATED"] or DEVICE
POINTS = np.float32([np.nan, np.inf, -np.inf, 0, -0.0, 1e-30, -1e-30, 3, -3, 20, 20.5, 88, -88, 1e5, -1e5, 1e38, -1e38])

pytestmark = pytest.mark.device


@functools.cache
def transfer():
    return NumPyTransfer() if DEVICE == "cpu" else DeviceTransfer(DEVICE)


def through(z, name):
    """The activation of a 1-D array on the device."""
    operands = np.zeros((1, 0), z.dtype), np.zeros((0, z.size), z.dtype), z
    if DEVICE == "cpu":
        return mf.matmul_fused(*operands, argument(name))[0]
    device = Device(DEVICE)
    return to_numpy(device, mf.matmul_fused(*map(device.array, operands), argument(name)))[0]


def points(dtype, count):
    rng = np.random.default_rng(17)
    z = rng.standard_normal(count - POINTS.size) * np.exp2(rng.integers(-20, 6, count - POINTS.size))
    return np.concatenate([POINTS, z]).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [name for name in PLAIN_ACTIVATIONS if name != "none"])
def test_points(name, dtype, accounts):
    z = points(dtype, 4096 if dtype == "float32" else 512)
    worst = worst_ratio(z, through(z, name), name)
    describe(accounts, name, dtype, worst, PART)
    assert worst[0] <= 1, f"at z = {worst[1]!r}: got {worst[2]!r}, exact {worst[3]!r}, {worst[0]:.3g} times the bound"


@pytest.mark.parametrize("name", GATED_ACTIVATIONS)
def test_gates(name, accounts):
    rng = np.random.default_rng(18)
    z = (rng.standard_normal(4096) * np.exp2(rng.integers(-10, 5, 4096))).astype(np.float32)
    exact, _ = expect(np.zeros((1, 0), np.float32), np.zeros((0, z.size), np.float32), z, argument(name))
    figures = assert_close(through(z, name)[None], exact, "float32")
    describe(accounts, name, "float32", (figures.max_ratio, 0, 0, 0, 0), PART)


NUMBERS = (
    {"bias": "number"},
    {"c": "number", "beta": -0.5},
    {"multiply": "number"},
    {"bias": "number", "c": "number", "multiply": "number", "preactivation": "float32", "batch": "2"},
    {"bias": "number", "activation": "swiglu", "gate_layout": "pair", "c": "number"},
    {"bias": "row", "c": "number", "activation": "geglu", "gate_layout": "interleaved", "multiply": "number"},
)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("features", NUMBERS, ids=lambda features: "-".join(map(str, features.values())))
def test_numbers(features, dtype, sweep_seed):
    for m, n, k, layout in ((5, 24, 16, "NT"), (70, 129, 65, "NN"), (16, 64, 513, "NT")):
        for values in ("normal", "special"):
            run_case(Case(m, n, k, dtype=dtype, layout=layout, values=values, **features), sweep_seed, xp=transfer())
