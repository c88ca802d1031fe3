"""The simulated GPU for its own tests: built into build/hipsim, unless MATMUL_FUSED_HIP_LIBRARY names another."""

import os
from pathlib import Path

import numpy as np
import pytest

import hipsim
from hipsim.build import build

FOLDER = Path(__file__).resolve().parents[2] / "build" / "hipsim"
ARCHS = ("gfx942", "gfx950", "gfx1100")


@pytest.fixture(scope="session", autouse=True)
def simulator():
    ours = str(FOLDER / "libamdhip64_sim.so")
    if os.environ.setdefault("MATMUL_FUSED_HIP_LIBRARY", ours) == ours:
        build(FOLDER)
    os.environ.setdefault("HIPSIM_DEVICES", "gfx942,gfx950,gfx1100,gfx90a,gfx1201,gfx942")
    return os.environ["MATMUL_FUSED_HIP_LIBRARY"]


@pytest.fixture(autouse=True)
def account(simulator):
    """Each test begins and ends with idle, clean devices; a violation that it expects it takes with report()."""
    hipsim.configure(seed=1, order="late", checks="all", version=70253211)
    with hipsim.all_clean():
        yield
    hipsim.try_hip("hipGetLastError")  # of what a test provoked; the next file may look
    assert hipsim.live_exports() == 0
    assert not [name for name in hipsim.entry_points() if hipsim.fault_waits(name)]


@pytest.fixture
def dev():
    return hipsim.Device("gfx942")


@pytest.fixture
def rng():
    return np.random.default_rng(20260801)
