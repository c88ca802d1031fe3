"""Shared by tests of the host path of GPU calls: operands and streams of the stand-in driver, child interpreters."""

import gc
import sys
import textwrap

import pytest

import matmul_fused as mf
import stub_cuda
from stub_cuda import DeviceArray, calls, clear_log, fail_next, fetch
from support import check, draw, python

__all__ = [  # for the children, too
    "A",
    "B",
    "Capture",
    "DeviceArray",
    "Stream",
    "balance",
    "calls",
    "check",
    "clear_log",
    "driver",
    "fail_next",
    "fetch",
    "in_child",
    "mf",
    "operands",
    "pytest",
    "stub_cuda",
]

PATHS = ":".join(path for path in sys.path if path)
A, B = draw((5, 70), seed=1), draw((70, 6), seed=2)


@pytest.fixture(scope="module", autouse=True)
def driver():
    stub_cuda.build()
    return stub_cuda.library()


@pytest.fixture(autouse=True)
def balance(driver):
    """No test leaves device memory or a context behind."""
    gc.collect()
    before = driver.stub_live_memory()
    clear_log()
    yield
    gc.collect()
    fail_next("", 0)
    assert driver.stub_live_memory() == before
    assert driver.stub_context_depth() == 0


def operands(device=0, **how):
    return DeviceArray(A, device, **how), DeviceArray(B, device, **how)


class Stream:
    """A stream of the stand-in, as an object that knows CUDA's protocol."""

    def __init__(self, device=0):
        self.handle = stub_cuda.library().stub_stream_create(device)

    def __cuda_stream__(self):
        return 0, self.handle


class Capture(Stream):
    """A stream that is being captured inside a with block."""

    def __enter__(self):
        stub_cuda.library().stub_stream_capture(self.handle, 1)
        return self

    def __exit__(self, *error):
        stub_cuda.library().stub_stream_capture(self.handle, 0)


def in_child(code, library=stub_cuda.LIBRARY, build=True):
    """Run code in a fresh interpreter whose CUDA library is the stand-in, or another one; its output."""
    start = "import gc, os, threading\nimport numpy as np\nfrom gpu_support import *\n"
    if build:
        start += "stub_cuda.build()\n"
    environment = {"MATMUL_FUSED_CUDA_LIBRARY": str(library), "PYTHONPATH": PATHS} if library else {"PYTHONPATH": PATHS}
    return python("-c", start + textwrap.dedent(code), environment=environment).stdout
