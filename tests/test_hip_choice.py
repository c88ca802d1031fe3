"""Which row the plan picks on AMD GPUs: calls of models, pinned. The cost model is asked, nothing is computed."""

import re

import ml_dtypes
import numpy as np
import pytest

import hipsim
import matmul_fused as mf
from hip_support import account, in_child, simulator  # noqa: F401

# M, N, K of bfloat16, the weight as nn.Linear has it -> the row, or what its name must hold.
PICKED = {
    "gfx942": {
        (1, 4096, 4096): "gemm_gemv_1x16x1024",
        (16, 5120, 8192): "gemm_thin_16x32x512",
        (64, 8192, 8192): "gemm_thin_32x32x512",  # two tiles below each other share a die's cache
        (256, 2112, 7168): "gemm_pingpong_staged_splitk_128x256x64",  # 16 pieces of 18 tiles
        (256, 4096, 14336): "gemm_pingpong_staged_splitk_128x256x64",  # 32 tiles for 304 units
        (1024, 4096, 14336): "gemm_pingpong_staged_splitk_128x256x64",
        (4096, 4096, 4096): "gemm_pingpong_staged_256x256x64",
        (4096, 10240, 8192): "gemm_pingpong_staged_splitk_128x256x64",  # behind two whole waves of 256x256
    },
    "gfx950": {
        (1, 4096, 4096): "gemm_gemv_1x16x1024",
        (16, 5120, 8192): "gemm_thin_16x32x512",
        (256, 4096, 14336): "gemm_pingpong_splitk_128x256x64",
        (1024, 4096, 14336): "gemm_pingpong_splitk_128x256x64",
        (1024, 3072, 2048): "gemm_pingpong_128x128x64",  # LDS is busier in tiles of 128x192
        (4096, 4096, 4096): "gemm_pingpong_256x256x64",  # one tile for every unit
        (8192, 8192, 8192): "gemm_pingpong_256x256x64",
    },
    "gfx90a": {
        (1, 4096, 4096): "gemm_gemv_1x16x1024",
        (16, 5120, 8192): "gemm_thin_16x32x512",
        (64, 8192, 8192): "gemm_pingpong_staged_64x128x64",  # 2 % before gemm_thin
        (256, 4096, 4096): r"_(64|128|256)x(64|128|192|256)x64",  # twice as good as gemm_thin by AMD's model Origami
        (256, 4096, 14336): "gemm_pingpong_staged_splitk_128x256x64",  # 32 tiles for 104 units
        (1024, 4096, 14336): r"_(64|128|256)x(128|192|256)x64",
        (4096, 4096, 4096): r"_(128|256)x(128|192|256)x64",
    },
    "gfx1100": {
        (1, 4096, 4096): "gemm_gemv_1x16x1024",
        (4096, 4096, 4096): "gemm_wmma_128x",
        (12288, 128, 4096): "gemm_wmma_256x128x32",  # one tile for every unit
    },
    "gfx1201": {
        (1, 4096, 4096): "gemm_gemv_1x16x1024",
        (4096, 4096, 4096): "gemm_wmma_128x256x32",
        (8192, 128, 4096): "gemm_wmma_256x128x32",  # one tile for every unit
        (8192, 384, 4096): "gemm_wmma_256x128x32",  # 128 columns of every other tile of 128x256 lie beyond it
    },
}
# Bytes a second, published: docs/amd_gpus.md.
MEMORY = {
    "gfx90a": 1.6e12,
    "gfx942": 5.3e12,
    "gfx950": 8.0e12,
    "gfx1100": 0.96e12,
    "gfx1201": 0.64e12,
}  # docs/amd_gpus.md


def explain(dev, m, n, k, dtype=ml_dtypes.bfloat16):
    return mf.explain(dev.empty((m, k), dtype), dev.empty((n, k), dtype).mT)


@pytest.mark.parametrize(("part", "size"), [(part, size) for part, calls in PICKED.items() for size in calls])
def test_picked(part, size):
    picked = explain(hipsim.Device(part), *size).kernel
    assert re.search(PICKED[part][size], picked), picked


HALF = {  # float16 on gfx90a, whose products are those of float32
    (1, 4096, 4096): "gemm_gemv_1x16x1024",
    (16, 4096, 4096): "gemm_thin_16x32x512",
    (256, 256, 65536): "gemm_pingpong_staged_splitk_64x128x64",
    (2048, 2048, 1024): "gemm_mfma_64x64x64",
    (4096, 4096, 4096): "gemm_mfma_128x128x64",
    (8192, 8192, 8192): "gemm_mfma_128x128x64",
}


@pytest.mark.parametrize("size", HALF)
def test_float16_of_gfx90a_takes_the_matrix_cores(size):
    found = explain(hipsim.Device("gfx90a"), *size, np.float16)
    assert re.match(HALF[size], found.kernel), found.kernel
    generic = min(row.seconds for row in found.candidates if row.seconds and row.family.startswith("gemm_simt"))
    assert generic > 3 * found.seconds


@pytest.mark.parametrize("size", [(16, 4096, 4096), (2048, 2048, 1024), (4096, 4096, 4096)])
def test_float16_of_gfx90a_takes_no_less_than_its_products(size):
    """AMD's peak of float32 on matrix cores, at the clock of the table: 104 units, 256 operations a cycle."""
    m, n, k = size
    assert explain(hipsim.Device("gfx90a"), m, n, k, np.float16).seconds > 2 * m * n * k / (104 * 256 * 1.7e9)


@pytest.mark.parametrize("part", MEMORY)
def test_no_part_has_more_memory_bandwidth_than_its_sheet(part):
    """A weight of 1 GiB by a row: the time is that of memory, at 60 % to 100 % of what was published."""
    m, n, k = 1, 1 << 16, 1 << 13
    seconds = explain(hipsim.Device(part), m, n, k).seconds
    assert 0.6 * MEMORY[part] < 2 * n * k / seconds < MEMORY[part]


BEHIND = """
import os, re, sys
from fake_dlpack import DLDevice, Producer
from hipsim.library import try_hip
from matmul_fused.testing import force_kernel
dev = hipsim.Device(0)
memory = dev.empty((45 * 64, 16), np.float32)
def lie(tensor):
    tensor.device, tensor.data = DLDevice(10, 0), memory.pointer
weight = Producer(np.empty((48 * 64, 16), np.float32).T, device=(10, 0), change=lie)
with force_kernel("gemm_simt_64x64x16_f32_any"):
    y = mf.matmul_fused(dev.empty((64, 16), np.float32), weight)
assert try_hip("hipDeviceSynchronize") == 700
print(re.search(r"workgroup (\\d+)", dev.report().violations[0].text)[1])
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize(("part", "workgroups"), [("gfx942", {31, 39}), ("gfx90a", {45, 46, 47})])
def test_a_die_gets_neighbours(part, workgroups):
    """Of 48 tiles the last three, whose columns of B lie behind its memory: on eight dies those of the eighth, whose
    workgroups are 7, 15, ..., 47. One of them, not 47 in the simulator's order, ends the launch.
    """
    assert int(in_child(BEHIND, part)) in workgroups
