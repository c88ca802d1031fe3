"""Shared by tests of the host path on simulated AMD GPUs: the simulator, its account after every test, child
processes, producers that lie.
"""

import os
import sys
from pathlib import Path

import pytest

import hipsim
import hipsim.build
from fake_dlpack import DLDevice, Producer
from support import check, draw, python  # noqa: F401  (check is for the children)

HIPSIM = Path(os.environ["MATMUL_FUSED_HIP_LIBRARY"])  # of conftest.py
A, B = draw((9, 70), seed=1), draw((70, 12), seed=2)


@pytest.fixture(scope="session", autouse=True)
def simulator():
    hipsim.build.build(HIPSIM.parent)


@pytest.fixture(autouse=True)
def account(simulator):
    """No test leaves a violation, device memory, an event or an error for the next caller of HIP behind."""
    hipsim.configure(order="late", seed=1)
    with hipsim.all_clean("events"):
        yield
    assert hipsim.try_hip("hipPeekAtLastError") == 0


def in_child(code, devices="gfx942"):
    start = (
        "import numpy as np, pytest, hipsim, matmul_fused as mf\nfrom hip_support import *\nfrom support import check\n"
    )
    environment = {
        "MATMUL_FUSED_HIP_LIBRARY": str(HIPSIM),
        "HIPSIM_DEVICES": devices,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    return python("-c", start + code, environment=environment).stdout


def claim(array, ordinal=0):
    """A producer that says of any memory that it is a ROCm device's."""
    return Producer(array, device=(10, ordinal), change=lambda tensor: setattr(tensor, "device", DLDevice(10, ordinal)))
