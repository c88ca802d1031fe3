"""The calls whose instructions bench/instructions.py counts: `python bench/instruction_calls.py cpu | gfx942 ...`.

On the CPU a marker, os.getppid(), stands before and after every counted call; callgrind writes what it counted so far
at each. On a simulated AMD GPU the simulator's own counters are read. Prints the names of the rows, in order, or the
counters of every row, as JSON. Shapes, kernels and seeds are fixed, memory is aligned: nothing depends on the machine.
"""

import json
import os
import sys

import ml_dtypes
import numpy as np

import matmul_fused as mf
from matmul_fused.testing import force_kernel
from matmul_fused.testing.formulas import ACTIVATIONS

AVX2, BASELINE, REFERENCE = "cpu_blocked_avx2", "cpu_blocked", "cpu_reference"
COUNTERS = ("instructions", "bytes_loaded", "lds_conflict_cycles")
PLAIN = {name: (name, *row.usual) if row.required else name for name, row in ACTIVATIONS.items() if name != "none"}
rng = np.random.default_rng(0)


def aligned(shape, dtype=np.float32, zero=False):
    """Random numbers at an address that is a multiple of 64: an edge of a vector would cost instructions."""
    dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    array = memory[start : start + size].view(dtype).reshape(shape)
    array[...] = 0 if zero else rng.standard_normal(shape)
    return array


def operands(m, k, n, dtype="float32", transposed=False):
    a = aligned((m, k), dtype)
    b = aligned((n, k), dtype).T if transposed else aligned((k, n), dtype)
    return a, b, aligned((n,), dtype)


def cpu_rows():
    """(name, kernel, whether the first call counts, arguments, keywords)."""
    small = operands(1, 64, 64)
    yield "small call", AVX2, False, (*small, "relu"), {"out": aligned((1, 64), zero=True)}
    yield "small call, new result", AVX2, False, (*small, "relu"), {}
    yield "small call, seen first", AVX2, True, (*operands(1, 48, 80), "relu"), {"out": aligned((1, 80), zero=True)}
    for dtype in ("float32", "float64", "float16", "bfloat16"):
        for kernel in (AVX2, BASELINE):
            for transposed in (False, True):
                name = f"64x128x256 {dtype} {'NT' if transposed else 'NN'}, {kernel}"
                yield name, kernel, False, (*operands(64, 128, 256, dtype, transposed), "silu"), {}
    yield "8x16x8, reference", REFERENCE, False, (*operands(8, 16, 8), "gelu"), {}
    yield "one row, 512x512", AVX2, False, operands(1, 512, 512), {}
    yield "one row, 512x512 NT", AVX2, False, operands(1, 512, 512, transposed=True), {}
    yield "long K, 16x4096x16", AVX2, False, operands(16, 4096, 16), {}
    yield "batch of 6, 16x32x48", AVX2, False, (aligned((6, 16, 32)), aligned((6, 32, 48))), {}
    a, b, bias = operands(64, 128, 256)
    yield "prepacked", AVX2, False, (a, mf.prepack(b), bias, "silu"), {}
    yield "swiglu", AVX2, False, (a, b, bias, "swiglu"), {}
    yield "swiglu of a pair", AVX2, False, (a, (b, aligned((128, 256))), None, "swiglu"), {}
    z, c = aligned((64, 256), zero=True), aligned((64, 256))
    yield "C, multiply, preactivation", AVX2, False, (a, b, bias, "relu"), {"C": c, "multiply": c, "preactivation": z}
    x, w, _ = operands(16, 8, 64)
    for name, activation in PLAIN.items():
        yield f"activation {name}", AVX2, False, (x, w, None, activation), {"out": aligned((16, 64), zero=True)}


def count_cpu():
    names = []
    for name, kernel, first, arguments, keywords in cpu_rows():
        with force_kernel(kernel):
            for _ in range(0 if first else 2):
                mf.matmul_fused(*arguments, **keywords)
            os.getppid()
            mf.matmul_fused(*arguments, **keywords)
            os.getppid()
        names.append(name)
    return names


def gpu_rows(part):
    """(name, kernel, arguments), as NumPy arrays."""
    for dtype in ("float32", "float64", "float16", "bfloat16"):
        yield f"simt {dtype}, gelu", "gemm_simt", (*operands(64, 128, 64, dtype), "gelu")
    yield "simt float32 edges, mish", "gemm_simt", (*operands(33, 70, 65), "mish")
    yield "simt split-K float16", "gemm_simt_splitk", (*operands(64, 2048, 64, "float16"), "gelu")
    if part not in ("gfx942", "gfx950"):
        return
    a, b = aligned((256, 256), "bfloat16"), aligned((256, 256), "bfloat16")
    for layout, x, y in (("nn", a, b), ("nt", a, b.T), ("tn", a.T, b), ("tt", a.T, b.T)):
        yield f"mfma bfloat16 {layout}, gelu", "gemm_mfma", (x, y, None, "gelu")
    yield "mfma float16 edges, swiglu", "gemm_mfma", (*operands(130, 200, 272, "float16"), "swiglu")


def count_gpu(part):
    import hipsim

    device = hipsim.Device(part)

    def send(value):
        return device.array(value) if isinstance(value, np.ndarray) else value

    rows = {}
    for name, kernel, arguments in gpu_rows(part):
        sent = [send(value) for value in arguments]
        device.synchronize()
        device.report()
        with force_kernel(kernel):
            mf.matmul_fused(*sent)
        device.synchronize()
        counters = device.assert_clean().counters
        rows[f"{part} {name}"] = {counter: counters[counter] for counter in COUNTERS}
    return rows


if __name__ == "__main__":
    where = sys.argv[1]
    print(json.dumps(count_cpu() if where == "cpu" else count_gpu(where)))
