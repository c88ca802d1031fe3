"""The host path of GPU calls on the simulated AMD GPUs: results on every part, which kernel is chosen and why.

What the kernels compute is for the sweeps (--device hip:...); cases here are small. Streams: test_hip_streams.py.
"""

import numpy as np
import pytest

import hipsim
import matmul_fused as mf
from hip_support import HIPSIM, A, B, in_child, simulator  # noqa: F401
from support import check, draw, dtype_of


@pytest.fixture
def dev():
    return hipsim.Device("gfx942")


# Results


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950", "gfx1100"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_part(arch, dtype):
    dev, dtype = hipsim.Device(arch), dtype_of(dtype)
    a, w, bias = A.astype(dtype), np.ascontiguousarray(B.T).astype(dtype), draw(12, seed=3)
    x = dev.array(a), dev.array(w).mT, dev.array(bias)
    y = mf.matmul_fused(*x, "silu")
    assert (y.device, y.shape, y.dtype) == (f"rocm:{dev.ordinal}", (9, 12), dtype.name)
    check(dev.to_numpy(y), a, w.T, bias, activation="silu")
    matrix = {"bfloat16": "gemm_mfma", "float16": "gemm_mfma", "float32": "gemm_mfma_f32"}[dtype.name]
    assert mf.explain(*x, "silu").family == (matrix if arch != "gfx1100" else "gemm_simt")


LONGEST = {"gemm_mfma": (np.float16, 2**30 - 8), "gemm_mfma_f32": (np.float32, 2**29 - 4)}
LONGEST["gemm_mfma_f64"] = (np.float64, 2**28 - 2)


@pytest.mark.parametrize("kernel", LONGEST)
@pytest.mark.parametrize("more", [0, 1])
def test_longest_k_of_a_buffer_descriptor(dev, kernel, more):
    """One element more would lie outside of the descriptor and be read as 0."""
    dtype, k = LONGEST[kernel]
    x, w = dev.empty((1, k + more), dtype), dev.empty((k + more, 1), dtype)
    found = {row.reason for row in mf.explain(x, w).candidates if row.family == kernel}
    assert (None in found) != more
    assert not more or f"takes K up to {k}, K is {k + 1}" in found


WIDE = {"float32": "gemm_mfma_f32", "float64": "gemm_mfma_f64"}


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950"])
@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_wide_operands_take_the_matrix_cores(arch, dtype, layout):
    dev = hipsim.Device(arch)

    def matrix(rows, columns, turned):
        return dev.empty((columns, rows), dtype).mT if turned else dev.empty((rows, columns), dtype)

    a, b = matrix(4096, 1024, layout[0] == "T"), matrix(1024, 4096, layout[1] == "T")
    assert mf.explain(a, b, activation="silu").family == WIDE[dtype]
    along_k = layout[0] == "N" or layout[1] == "T"  # which then has stride 2
    family = mf.explain(a[:, ::2], b[::2]).family
    assert family.startswith("gemm_simt") if along_k else family == WIDE[dtype]


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950"])
@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("turned", [False, True])
def test_few_rows_and_small_results_of_wide_operands(arch, dtype, turned):
    """Whole chunks go to gemm_thin, others to tiles of 64 x 64."""
    dev = hipsim.Device(arch)

    def picked(m, n, k):
        weight = dev.empty((n, k), dtype).mT if turned else dev.empty((k, n), dtype)
        found = mf.explain(dev.empty((m, k), dtype), weight)
        assert found.rows_independent_of_m
        return found.kernel

    for m in (5, 16, 64):
        assert picked(m, 4096, 4096).startswith("gemm_thin_")
    assert picked(1000, 1000, 1001).startswith(f"{WIDE[dtype]}_64x64x")


def test_info_shows_the_parts():
    info = mf.info()
    assert dict(info.backends)["AMD GPUs"].startswith("on: HIP ")
    assert dict(info.devices)["rocm:0"] == "AMD Instinct MI300X, gfx942, 304 compute units, wave 64; code for gfx942"
    assert "gfx1100, 48 compute units, wave 32" in dict(info.devices)["rocm:2"]


STRIDE_1 = "needs A and B each with stride 1 along one matrix axis, and along the other a stride that keeps rows apart"
CHOICES = {  # of docs/gpu.md: shapes of A and B, dtype, other arguments -> why gemm_mfma refuses; "": it takes the call
    "lines of odd length": ((40, 63), (63, 33), "bfloat16", {}, ""),
    "plain": ((40, 64), (64, 32), "bfloat16", {}, ""),
    "float16": ((40, 64), (64, 32), "float16", {"activation": "gelu"}, ""),
    "batches": ((3, 1, 40, 64), (2, 64, 32), "bfloat16", {}, ""),
    "preactivation": ((40, 64), (64, 32), "bfloat16", {"preactivation": (40, 32)}, ""),
    "C and multiply": ((40, 64), (64, 32), "bfloat16", {"C": (40, 32), "multiply": (40, 1)}, ""),
    "out_dtype": ((40, 64), (64, 32), "bfloat16", {"out_dtype": "float64"}, ""),
    "gate": ((40, 64), (64, 32), "bfloat16", {"activation": "swiglu"}, ""),
    "interleaved gate": (
        (40, 64),
        (64, 32),
        "bfloat16",
        {"activation": "geglu", "gate_layout": "interleaved"},
        STRIDE_1,
    ),
    "float32": ((40, 64), (64, 32), "float32", {}, "takes float16 and bfloat16 only"),
}


@pytest.mark.parametrize("name", CHOICES)
def test_explain_says_which_kernel_and_why(dev, name):
    *shapes, dtype, others, why = CHOICES[name]
    a, w = (dev.array(draw(shape, dtype)) for shape in shapes)
    others = {
        key: dev.array(draw(value, dtype)) if isinstance(value, tuple) else value for key, value in others.items()
    }
    found = mf.explain(a, w, **others)
    refused = [row.reason for row in found.candidates if row.family == "gemm_mfma" and dtype[0] in row.name[-8:]]
    # Whole chunks of 16 bytes are for either of two families, whichever is modelled as faster.
    chunks = shapes[0][-1] % 8 == 0
    chosen = ("gemm_thin", "gemm_pingpong_staged") if chunks else ("gemm_mfma",)
    chosen = ("gemm_thin",) if dtype == "float32" else ("gemm_simt",) if why else chosen
    assert found.family in chosen
    assert refused.count(None) == (0 if why else 1)  # of the instances for this dtype
    assert not why or all(reason.startswith(why) for reason in refused)


CHUNKS = "needs A, and B, in lines of whole 16 bytes at multiples of 16 bytes, A's along K, and 256 lines"
LARGE = {  # M, N, K, what is cut off the first elements of A's rows, layout -> why gemm_pingpong_staged refuses
    "torch weight": (4096, 4096, 512, 0, "NT", ""),
    "row-major": (4096, 4096, 512, 0, "NN", ""),
    "K": (4096, 4096, 508, 0, "NT", "needs K to be a multiple of 8 and not 0, K is 508"),
    "N of rows": (4096, 4092, 512, 0, "NN", CHUNKS),
    "address": (4096, 4096, 512, 4, "NT", CHUNKS),
    "rows too long": (4096, 4096, 1 << 22, 0, "NT", CHUNKS),
    "B too large": (4096, 1 << 18, 1 << 12, 0, "NN", CHUNKS),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_tiles_and_why_not(dev, name):
    m, n, k, cut, layout, why = LARGE[name]
    a = dev.empty((m, k + cut), np.float16)[:, cut:]
    b = dev.empty((k, n), np.float16) if layout == "NN" else dev.empty((n, k), np.float16).mT
    found = mf.explain(a, b)
    reasons = {
        row.reason for row in found.candidates if row.name == f"gemm_pingpong_staged_256x256x64_f16_{layout.lower()}"
    }
    assert found.family == ("gemm_mfma" if why else "gemm_pingpong_staged")
    assert all(reason.startswith(why) if why else reason is None for reason in reasons)
    assert len(reasons) == 1


@pytest.mark.parametrize("columns", [192, 128])
def test_tiles_of_three_groups_of_columns_take_no_gate(dev, columns):
    a, b = dev.empty((256, 512), np.float16), dev.empty((384, 512), np.float16).mT
    found = mf.explain(a, b, activation="swiglu")
    name = f"gemm_pingpong_staged_256x{columns}x64_f16_nt"
    (reason,) = (row.reason for row in found.candidates if row.name == name)
    assert (reason or "").startswith("takes no gate: its waves have three groups" if columns == 192 else "")
    assert bool(reason) == (columns == 192)


@pytest.mark.parametrize("given", [False, True])
def test_explain_changes_nothing_on_the_device(dev, given):
    stream, x, w = dev.stream() if given else None, dev.array(A), dev.array(B)
    y, out = mf.matmul_fused(x, w, stream=stream), mf.matmul_fused(x, w)
    dev.synchronize()
    before = hipsim.calls()
    mf.explain(x, w, C=y, out=out, stream=stream)
    asked = {name for name, count in hipsim.calls().items() if count != before.get(name, 0)}
    assert asked <= {"hipGetDevice", "hipPointerGetAttributes", "hipStreamGetDevice", "hipStreamIsCapturing"}
    assert x.exports[-1]["stream"] == w.exports[-1]["stream"] == -1


def test_explain_says_which_kernels_other_parts_have():
    dev = hipsim.Device("gfx1100")
    found = mf.explain(dev.array(draw((8, 8), "bfloat16")), dev.array(draw((8, 8), "bfloat16")))
    assert found.family == "gemm_wmma"
    reasons = {row.reason for row in found.candidates if row.family == "gemm_mfma"}
    assert reasons == {"this build has no gemm_mfma for gfx1100", "takes float16 only"}


@pytest.mark.parametrize("arch", ["gfx1100", "gfx1201"])
def test_rdna_refuses_with_a_reason(arch):
    """Results of 32 bits, and operands that are not whole chunks, are left to the generic kernel."""
    dev = hipsim.Device(arch)
    x, wide = dev.array(draw((8, 8), "float16")), dev.array(draw((8, 16), "float16"))
    for a, more, why in (
        (x, {"out_dtype": "float32"}, "out and preactivation must have 16 bits"),
        (wide[:, 1:9], {}, "whole 16 bytes at multiples of 16 bytes"),
        (wide[:, :7], {}, "K to be a multiple of 8"),
    ):
        found = mf.explain(a, x[: a.shape[1]], **more)
        reasons = " ".join(row.reason for row in found.candidates if row.name == "gemm_wmma_128x128x32_f16_nn")
        assert why in reasons
        assert found.family.startswith("gemm_simt")


def test_a_machine_without_a_gpu():
    code = """
print(dict(mf.info().backends)["AMD GPUs"])
a = np.ones((2, 2), np.float32)
assert (mf.matmul_fused(a, a) == 2).all()
"""
    assert in_child(code, "none").startswith(f"off: {HIPSIM} finds no AMD GPU (hip")
