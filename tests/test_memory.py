"""Memory of the extension: every failure to allocate is a MemoryError, leaks nothing and says nothing; no kernel steps
beyond its workspace, which is small whatever the problem. Scripts of isolated/ in processes with another allocator
(c/*_malloc.c)."""

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import matmul_fused as mf
import stub_cuda
from gpu_support import PATHS
from matmul_fused.testing import force_kernel
from support import ISOLATED, KERNELS, dtype_of, dtype_of_row, nothing_ran, python

SOURCES = Path(__file__).parent / "c"
# but for the reference, which takes no memory; and the one dtype of rows that take no other
ROWS = [(row, *([] if row in KERNELS else [dtype_of_row(row)])) for row in mf.info().kernels[:-1]]


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory):
    """Builds an allocator, gives the environment that preloads it."""
    compiler = next(filter(shutil.which, (os.environ.get("CC", "gcc"), "gcc", "cc", "clang")), None)
    if compiler is None:
        pytest.skip("no C compiler")
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("no glibc")
    folder = tmp_path_factory.mktemp("malloc")
    options = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-fno-builtin", "-shared", "-fPIC"]

    def build(name):
        path = folder / f"{name}.so"
        if not path.exists():
            subprocess.run([compiler, *options, "-o", path, SOURCES / f"{name}.c"], check=True)
        return {"LD_PRELOAD": str(path)}

    return build


def check_python(allocator):
    if allocator == "malloc" and sys.version_info[:2] == (3, 12):
        pytest.skip("CPython 3.12 frees a function's globals twice where it has no memory for a frame")


def failures(done):
    """How many allocations a script has failed; it says so last."""
    *_, line, last = done.stdout.splitlines()
    assert last == "done"
    return int(line.removesuffix(" allocations failed"))


@pytest.mark.parametrize("allocator", ["malloc", "pymalloc"])
@pytest.mark.parametrize("how", ["any", "aligned", "threads"])
def test_no_memory(preloaded, how, allocator):
    check_python(allocator)
    environment = {**preloaded("failing_malloc"), "PYTHONMALLOC": allocator}
    done = python("-W", "error", ISOLATED / "no_memory.py", how, environment=environment)
    assert done.stderr == ""
    least = {"any": 5000 if allocator == "malloc" else 250, "aligned": 150, "threads": -1}
    assert failures(done) > least[how]


def test_no_memory_for_torchs_tensors(preloaded):
    pytest.importorskip("torch")
    environment = {**preloaded("failing_malloc"), "PYTHONMALLOC": "malloc"}
    done = python("-W", "error", ISOLATED / "no_torch_memory.py", environment=environment, timeout=600)
    assert failures(done) > 1000


@pytest.mark.parametrize("allocator", ["malloc", "pymalloc"])
def test_no_memory_for_a_gpu_call(preloaded, allocator):
    check_python(allocator)
    environment = {**preloaded("failing_malloc"), "PYTHONMALLOC": allocator}
    environment |= {"MATMUL_FUSED_CUDA_LIBRARY": str(stub_cuda.build()), "PYTHONPATH": PATHS}
    done = python("-W", "error", ISOLATED / "no_gpu_memory.py", environment=environment)
    assert failures(done) > (1000 if allocator == "malloc" else 250)


def needs(kernel, *own):
    """Skips the test on a CPU that lacks what the row needs."""
    x = np.ones((64, 64), dtype_of(own[0] if own else "float32"))
    try:
        with force_kernel(kernel):
            mf.explain(x, x)
    except NotImplementedError as refusal:
        nothing_ran(kernel, str(refusal))


@pytest.mark.parametrize("row", ROWS, ids="-".join)
def test_kernels_keep_within_their_workspace(preloaded, row):
    needs(*row)
    environment = {**preloaded("guarded_malloc"), "OPENBLAS_NUM_THREADS": "1"}
    done = python("-W", "error", ISOLATED / "guarded.py", *row, environment=environment, check=False)
    last = done.stdout.splitlines()[-1:]
    assert (done.returncode, last, done.stderr) == (0, ["done"], "")


@pytest.mark.parametrize("row", ROWS, ids="-".join)
def test_workspace_is_small_at_any_size(preloaded, row, accounts):
    """At most 8 MiB, and 1 MiB for each thread; bench/results.py writes the figures into RESULTS.md."""
    needs(*row)
    environment = {**preloaded("counting_malloc"), "OPENBLAS_NUM_THREADS": "1"}
    done = python("-W", "error", ISOLATED / "workspace.py", *row, environment=environment)
    peaks = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(peaks) > 1
    for peak in peaks:
        accounts.record("workspace", peak)
        assert 1 << 20 < peak["bytes"] <= peak["allowed"], peak
