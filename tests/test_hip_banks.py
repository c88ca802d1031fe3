"""LDS banks of the main loops of the matrix kernels: tiles of 64 and more have no conflicts."""

import re
from pathlib import Path

import numpy as np
import pytest

import hipsim
import matmul_fused as mf
from hip_support import account, simulator  # noqa: F401
from matmul_fused.testing import force_kernel
from matmul_fused.testing.gpu_cases import PRESHUFFLE
from support import dtype_of

DEFINITIONS = (Path(__file__).resolve().parents[1] / "csrc/gpu/kernels/common/kernels.def").read_text()
DTYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}


def sizes_of(name):
    return tuple(map(int, name.split("_")[-3].split("x")))


def operand(dev, lines, k, dtype, along_k):
    """lines x k, with stride 1 along k or across it."""
    if along_k:
        return dev.array(np.ones((lines, k), dtype))
    return dev.array(np.ones((k, lines), dtype)).mT


def conflicts(dev, name, steps):
    """Of one tile, and so many steps of k: in the loop and beside it."""
    _, operands, layout = name.rsplit("_", 2)
    m, n, k = sizes_of(name)
    dtype, k = dtype_of(DTYPES[operands]), steps * k
    a = operand(dev, m, k, dtype, layout[0] == "n")
    b = operand(dev, n, k, dtype, layout[1] != "n").mT
    if layout == "np":
        b = mf.prepack(b, layout=PRESHUFFLE)
    dev.synchronize()
    dev.report()
    with force_kernel(name):
        mf.matmul_fused(a, b, allow_tf32="xf32" in name)
    dev.synchronize()
    return dev.report().counters["lds_conflict_cycles"]


@pytest.mark.parametrize(
    ("part", "least"), [("gfx90a", 26), ("gfx942", 26), ("gfx950", 26), ("gfx1100", 18), ("gfx1201", 18)]
)
def test_main_loops_without_conflicts(part, least):
    dev = hipsim.Device(part)
    rows = re.findall(
        r"^MMF_GPU_KERNEL\((gemm_(?:mfma|pingpong|wmma)\w+),.*, ([A-Z0-9 |]+)\)$", DEFINITIONS, re.MULTILINE
    )
    names = [name for name, targets in rows if part.upper() in targets and min(sizes_of(name)[:2]) >= 64]
    assert len(names) >= least
    for name in names:  # in as many pieces of k, where it is cut
        assert conflicts(dev, name, 32) == conflicts(dev, name, 16), name
