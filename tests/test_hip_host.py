"""The host path of GPU calls on the simulated AMD GPUs: HIP's own rules for streams, capture, and memory.

Work on a simulated device runs late and in a seeded order, so a missing dependency or memory given back too early is a
wrong result. What the kernels compute is for the sweeps (--device hip:...); cases here are small.
"""

import ctypes
import gc
import threading
import types

import numpy as np
import pytest

import hipsim
import matmul_fused as mf
from hip_support import HIPSIM, A, B, account, in_child, simulator  # noqa: F401
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


# Order of streams


@pytest.mark.parametrize("seed", range(5))
def test_work_on_several_streams_is_ordered(dev, seed):
    """Each operand arrives late on a stream of its own; results wander over streams and are dropped at once.

    The producers' arrays stay: their memory goes back in the order of their own stream, which knows nothing of ours.
    """
    hipsim.configure(seed=seed)
    one, two, three = dev.stream(), dev.stream(), dev.stream()
    x, w, wt = dev.array(A, stream=one), dev.array(B, stream=two), dev.array(np.ascontiguousarray(B.T), stream=one)
    y = mf.matmul_fused(x, w, stream=three)
    z = mf.matmul_fused(y, wt, None, "relu", stream=two)
    del y
    again = mf.matmul_fused(x, w)  # may take the memory of y
    z, again = dev.to_numpy(z), dev.to_numpy(again)
    check(again, A, B)
    check(z, again, B.T, activation="relu")  # y had the bits of again
    dev.synchronize()


def test_default_stream_for_unknown_libraries(dev):
    x, y = dev.array(A), dev.array(B)
    mf.matmul_fused(x, y)
    assert x.exports == y.exports == [{"max_version": (1, 3), "stream": 0}]
    stream = dev.stream()
    mf.matmul_fused(x, y, stream=stream)
    assert x.exports[1:] == y.exports[1:] == [{"max_version": (1, 3), "stream": stream.handle}]


@pytest.mark.parametrize("stream", [1, 2])
def test_rocm_has_no_such_streams(dev, stream):
    with pytest.raises(ValueError, match=f"stream is {stream}, which names no stream in ROCm; pass 0 or a handle"):
        mf.matmul_fused(dev.array(A), dev.array(B), stream=stream)


def test_stream_of_another_device(dev):
    other = hipsim.Device("gfx1100").stream()
    with pytest.raises(mf.DeviceError, match="stream belongs to another device than the operands, which are on rocm:0"):
        mf.matmul_fused(dev.array(A), dev.array(B), stream=other)


def test_the_current_device_stays(dev):
    other = hipsim.Device("gfx1100")
    with other.current():
        check(dev.to_numpy(mf.matmul_fused(dev.array(A), dev.array(B))), A, B)
        current = ctypes.c_int()
        hipsim.hip("hipGetDevice", ctypes.byref(current))
        assert current.value == other.ordinal


def test_threads_on_several_devices():
    errors, start = [], threading.Barrier(6)

    def work(ordinal):
        try:
            dev = hipsim.Device(ordinal)
            a, b = dev.array(A), dev.array(B)
            start.wait()
            for _ in range(5):
                stream = dev.stream()
                y = mf.matmul_fused(a, b, stream=stream)
                check(dev.to_numpy(y, stream=stream), A, B)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i % 2 * 5,)) for i in range(6)]  # both gfx942
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


# Views that a consumer reads on a stream of its own


def read(dev, view, stream=None):
    """A copy of a capsule's memory, made on a stream some time later, by a consumer that says nothing of it."""
    source = hipsim.array.Imported(types.SimpleNamespace(__dlpack__=lambda **_: view))
    out = dev.empty(source.shape, source.dtype)
    hipsim.hip("hipMemcpyAsync", out.pointer, source.pointer, out.nbytes, 3, stream.handle if stream else 0)
    return out


def live(dev):
    gc.collect()
    dev.synchronize()
    return dev.report(reset=False).allocations


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_memory_outlives_the_reads_of_a_consumer(dev, seed, copy):
    hipsim.configure(seed=seed)
    x, w = dev.array(A), dev.array(B)
    before = live(dev)
    reader, y = dev.stream(), mf.matmul_fused(x, w)
    view = y.__dlpack__(stream=reader.handle, copy=copy, max_version=(1, 3))
    out = read(dev, view, reader)
    del y, view
    check(dev.to_numpy(out, stream=reader), A, B)
    mf.matmul_fused(x, w, out=out, stream=reader)  # the stream is seen again
    reader.synchronize()
    del out
    assert live(dev) == before


@pytest.mark.parametrize("seed", range(20))
def test_memory_outlives_the_reads_on_several_streams(dev, seed):
    hipsim.configure(seed=seed)
    one, two, x, w = dev.stream(), dev.stream(), dev.array(A), dev.array(B)
    before = live(dev)
    y = mf.matmul_fused(x, w, stream=one)
    views = [y.__dlpack__(stream=stream.handle if stream else None) for stream in (one, two, None, one)]
    outs = [read(dev, view, stream) for view, stream in zip(views, (one, two, None), strict=False)]
    del y, views
    for stream, out in zip((one, two, None), outs, strict=True):
        check(dev.to_numpy(out, stream=stream), A, B)
    for stream, out in zip((two, one), outs, strict=False):
        mf.matmul_fused(x, w, out=out, stream=stream)
    dev.synchronize()
    del outs, out
    assert live(dev) == before


def test_a_consumer_may_destroy_its_stream(dev):
    """The stream is the consumer's own: after the export nobody else touches it (`account` sees a stale handle). The
    memory goes back when the device has none left."""
    x, w = dev.array(A), dev.array(B)
    before = live(dev)
    reader, y = dev.stream(), mf.matmul_fused(x, w)
    view = y.__dlpack__(stream=reader.handle)
    out = read(dev, view, reader)
    reader.synchronize()
    reader.destroy()
    del y, view, out
    mf.matmul_fused(x, w)
    assert live(dev) == before + 1
    hipsim.fail_next("hipMallocAsync", 2)
    synchronised = hipsim.calls("hipDeviceSynchronize")
    check(dev.to_numpy(mf.matmul_fused(x, w)), A, B)
    assert hipsim.calls("hipDeviceSynchronize") == synchronised + 1
    assert live(dev) == before
    hipsim.fail_next("hipMallocAsync", 2)
    with pytest.raises(mf.DeviceError, match="hipMallocAsync on rocm:0: hipErrorOutOfMemory"):
        mf.matmul_fused(x, w)
    assert hipsim.calls("hipDeviceSynchronize") == synchronised + 2  # one of them by live()


def test_a_captured_stream_keeps_what_it_reads(dev):
    reader, x, w, out = dev.stream(), dev.array(A), dev.array(B), dev.empty((9, 12))
    mf.matmul_fused(x, w, out=out, stream=reader)
    before = live(dev)
    y = mf.matmul_fused(x, w)
    view = y.__dlpack__(stream=reader.handle)
    dev.synchronize()
    with dev.capture(reader) as graph:
        del y, view
        mf.matmul_fused(x, w, out=out, stream=reader)
    assert live(dev) == before + 1
    mf.matmul_fused(x, w, out=out, stream=reader)
    assert live(dev) == before
    graph.destroy()


# Capture


def test_graph_replays_with_new_inputs(dev):
    stream = dev.stream()
    x, w, out = dev.array(A), dev.array(B), dev.empty((9, 12))
    mf.matmul_fused(x, w, out=out, stream=stream)  # loads the kernel
    with dev.capture(stream) as graph:
        assert mf.matmul_fused(x, w, out=out, activation="gelu", stream=stream) is out
    for seed in (7, 8):
        new = draw(A.shape, seed=seed)
        hipsim.hip("hipMemcpyAsync", x.pointer, new.ctypes.data, new.nbytes, 1, stream.handle)
        graph.launch(stream)
        check(dev.to_numpy(out, stream=stream), new, B, activation="gelu")
    graph.destroy()


def test_results_in_a_capture_need_out(dev):
    stream, x, w = dev.stream(), dev.array(A), dev.array(B)
    out = mf.matmul_fused(x, w, stream=stream)
    stream.synchronize()
    before = hipsim.calls("hipMallocAsync")
    with dev.capture(stream) as graph:
        text = "the stream is being captured, so no memory can be allocated; pass out="
        with pytest.raises(mf.DeviceError, match=text):
            mf.matmul_fused(x, w, stream=stream)
        mf.matmul_fused(x, w, activation="relu", out=out, stream=stream)  # the capture is whole: it goes on
    assert hipsim.calls("hipMallocAsync") == before
    graph.launch(stream)
    check(dev.to_numpy(out, stream=stream), A, B, activation="relu")
    graph.destroy()


def test_first_call_in_a_capture():
    in_child("""
dev = hipsim.Device(0)
stream, x, w, out = dev.stream(), dev.array(A), dev.array(B), dev.empty((9, 12))
dev.synchronize()
with dev.capture(stream) as graph:
    with pytest.raises(mf.DeviceError, match="captured and gemm_mfma_f32_64x64x32_f32_nn is not loaded yet; make one"):
        mf.matmul_fused(x, w, out=out, stream=stream)
assert hipsim.calls("hipModuleLoadData") == 0
mf.matmul_fused(x, w, out=out, stream=stream)
check(dev.to_numpy(out, stream=stream), A, B)
""")


def test_first_call_beside_a_capture():
    """Loading a kernel leaves alone what another thread records, in the strictest mode, and this thread's mode."""
    in_child("""
import ctypes, threading
dev = hipsim.Device(0)
stream, x, w, out = dev.stream(), dev.array(A), dev.array(B), dev.empty((9, 12))
dev.synchronize()
started, go_on = threading.Event(), threading.Event()
def record():
    with dev.capture(stream) as graph:
        started.set()
        go_on.wait(60)
        hipsim.hip("hipMemsetAsync", out.pointer, 0, 4, stream.handle)
    graph.destroy()
    results.append("whole")
results, recorder = [], threading.Thread(target=record)
recorder.start()
assert started.wait(60)
side = dev.stream()
mf.matmul_fused(x, w, out=out, stream=side)
go_on.set()
recorder.join()
assert results == ["whole"]
check(dev.to_numpy(out, stream=side), A, B)
mode = ctypes.c_int(0)
hipsim.hip("hipThreadExchangeStreamCaptureMode", ctypes.byref(mode))
assert mode.value == 0, mode
""")


@pytest.mark.parametrize("blocking", [False, True])
def test_arrays_may_go_while_a_graph_is_captured(dev, blocking):
    """Giving memory back is no part of the graph and does not break it; it waits where it would."""
    stream, x, w, out = dev.stream(blocking=blocking), dev.array(A), dev.array(B), dev.empty((9, 12))
    y = mf.matmul_fused(x, w, out=out, stream=stream)
    y = mf.matmul_fused(x, w)
    dev.synchronize()
    with dev.capture(stream) as graph:
        mf.matmul_fused(x, w, out=out, stream=stream)
        freed = hipsim.calls("hipFreeAsync")
        del y
        assert hipsim.calls("hipFreeAsync") == freed + (not blocking)
        mf.matmul_fused(x, w, out=out, stream=stream)
    graph.launch(stream)
    stream.synchronize()  # out's memory goes back in the order of its producer's stream
    del out
    out = mf.matmul_fused(x, w, stream=stream)  # gives back what waited
    assert hipsim.calls("hipFreeAsync") >= freed + 2
    check(dev.to_numpy(out, stream=stream), A, B)
    graph.destroy()
