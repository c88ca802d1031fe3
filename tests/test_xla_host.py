"""XLA's handler for GPUs on the stand-in CUDA driver, by frames made by hand: stream, GPU, workspace, errors.

What the kernels compute on machine code is for test_xla_hip.py, XLA itself for test_jax_cuda.py.
"""

import threading

import numpy as np
import pytest

import matmul_fused as mf
import stub_cuda
from gpu_support import Capture, Stream, balance, driver, in_child  # noqa: F401
from matmul_fused import _core
from matmul_fused.testing import force_kernel
from stub_cuda import DeviceArray, calls, clear_log, fail_next
from support import DTYPES, check, draw, same_bits
from xla_frames import INTERNAL, INVALID_ARGUMENT, UNIMPLEMENTED, Buffer, Error, Xla, axes

A, B, BIAS = draw((5, 70), seed=1), draw((70, 6), seed=2), draw((1, 6), seed=3)
LONG = draw((3, 8192), seed=1), draw((8192, 13), seed=2)  # split in K
SPLIT = ["gemm_simt_splitk_64x64x16_f32_any", "reduce_splitk_16x64x1_f32_any"]
BYTES = 32 * 3 * 16 * 4  # of the workspace: pieces, rows, columns in whole fours
SM_90A = any(arch == "sm_90a" for arch, _, _ in _core.device_objects())


def buffer(array):
    return Buffer(array.memory.pointer + array.offset, array.array.shape, array.array.dtype.name)


class Run:
    """The operands on a device, an Xla with a stream there, and results that are filled with NaN."""

    def __init__(self, device=0, **operands):
        self.device, self.stream = device, Stream(device)
        self.xla = Xla("CUDA", self.stream.handle, device)
        self.xla.allocate = lambda size: stub_cuda.library().stub_alloc(device, size)
        self.xla.free = lambda address: stub_cuda.library().stub_free(address)
        self.operands = {name: DeviceArray(array, device) for name, array in operands.items()}

    def result(self, shape, dtype="float32"):
        return DeviceArray(np.full(shape, np.nan, draw((1,), dtype).dtype), self.device)

    def call(self, *results, names=None, **attributes):
        clear_log()
        found = {(names or {}).get(name, name): buffer(array) for name, array in self.operands.items()}
        return self.xla.call(found, *map(buffer, results), **attributes)


def launched():
    return [line.split("(")[1].split(",")[0] for line in calls("cuLaunchKernel", "cuLaunchKernelEx")]


@pytest.fixture
def split():
    with force_kernel("gemm_simt_splitk"):
        yield lambda: Run(A=LONG[0], B=LONG[1])  # which ends with the test


# Results, and where they are computed


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_result_on_the_stream_of_xla(dtype):
    a, b = A.astype(draw((1,), dtype).dtype), B.astype(draw((1,), dtype).dtype)
    run = Run(A=a, B=b, bias=BIAS)
    out = run.result((5, 6), dtype)
    assert run.call(out, activation="gelu") is None
    check(out.numpy(), a, b, BIAS, activation="gelu")
    (launch,) = calls("cuLaunchKernel", "cuLaunchKernelEx")
    assert launch.endswith(f"{run.stream.handle:#x})")
    assert calls("cuMemAllocAsync", "cuEventRecord", "cuStreamWaitEvent") == []
    assert run.xla.asked == ["stream", "ordinal"]


def test_pair_c_multiply_and_preactivation():
    gate, up, c, multiply = B, draw((70, 6), seed=4), draw((5, 12), seed=5), draw((5, 6), seed=6)
    run = Run(A=A, B=gate, up=up, bias=BIAS, bias_up=axes(np.float32([0.5]), 2), C=c, multiply=multiply)
    out, z = run.result((5, 6), "float64"), run.result((5, 12), "float64")
    names = {"up": "B[1]", "bias_up": "bias[1]"}
    assert run.call(out, z, names=names, activation="swiglu", alpha=-2.0, beta=0.5) is None
    keywords = {"C": c, "alpha": -2.0, "beta": 0.5}
    check(out.numpy(), A, (gate, up), (BIAS[0], 0.5), activation="swiglu", multiply=multiply, **keywords)
    check(z.numpy(), A, np.concatenate((gate, up), 1), np.append(BIAS[0], np.float32([0.5] * 6)), **keywords)


def test_transposed_operands_and_a_repeated_batch():
    bias = draw((3, 1, 6))
    run = Run(A=axes(A.T, 3), B=axes(B.T, 3), bias=bias)
    out = run.result((3, 5, 6))
    assert run.call(out, names={"A": "A.T", "B": "B.T"}, activation="relu") is None
    for i in range(3):
        check(out.numpy()[i], A, B, bias[i], activation="relu")


@pytest.mark.skipif(not SM_90A, reason="this build has no code for sm_90a")
def test_tensor_maps_and_clusters():
    a, b = draw((200, 72), "float16"), draw((264, 72), "float16")
    run = Run(A=a, B=b)
    out = run.result((200, 264), "float16")
    with force_kernel("gemm_wgmma"):
        assert run.call(out, names={"B": "B.T"}) is None
    assert len(calls("cuTensorMapEncodeTiled")) == 3
    (launch,) = calls("cuLaunchKernelEx")
    assert "gemm_wgmma_" in launch
    assert launch.endswith(f"{run.stream.handle:#x})")
    check(out.numpy(), a, b.T)


@pytest.mark.parametrize("shape", [(0, 6), (5, 0)])
def test_a_result_of_size_zero(shape):
    m, n = shape
    run = Run(A=np.zeros((m, 7), np.float32), B=np.zeros((7, n), np.float32))
    empty = {"A": Buffer(0, (m, 7), "float32"), "B": Buffer(0, (7, n), "float32")}
    assert run.xla.call(empty, Buffer(0, shape, "float32")) is None
    assert launched() == []


def test_no_products():
    run = Run(A=np.zeros((5, 0), np.float32), B=np.zeros((0, 6), np.float32), bias=BIAS)
    out = run.result((5, 6))
    assert run.call(out) is None
    assert same_bits(out.numpy(), np.repeat(BIAS, 5, 0))


@pytest.mark.parametrize("ordinal", [None, -1, 0, 1])
@pytest.mark.parametrize("device", [0, 1])
def test_the_gpu_is_that_of_the_stream(device, ordinal):
    """Whatever XLA's number for it is, if it has one."""
    run = Run(device, A=A, B=B)
    run.xla.ordinal = ordinal
    out = run.result((5, 6))
    assert run.call(out) is None
    check(out.numpy(), A, B)
    assert len(launched()) == 1


@pytest.mark.parametrize("device", [0, 1])
def test_the_default_stream_is_of_the_gpu_that_xla_names(device):
    run = Run(device, A=A, B=B)
    run.xla.stream = None
    out = run.result((5, 6))
    assert run.call(out) is None
    check(out.numpy(), A, B)


def test_threads_of_xla():
    """Many at a time, on streams of both devices."""
    runs = [Run(i % 2, A=A + i, B=B) for i in range(8)]
    outs = [run.result((5, 6)) for run in runs]
    failed = []

    def work(i):
        for _ in range(20):
            failed.extend(filter(None, [runs[i].call(outs[i])]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    for i, out in enumerate(outs):
        check(out.numpy(), A + i, B)


# Plans that are kept


def test_calls_with_other_addresses():
    """The third finds its plan; an output that would overwrite an operand is refused by then, too."""
    for i in range(4):
        run = Run(A=A + i, B=B, bias=BIAS)
        out = run.result((5, 6))
        assert run.call(out, activation="relu") is None
        check(out.numpy(), A + i, B, BIAS, activation="relu")
        square = Run(A=draw((6, 6)), B=draw((6, 6), seed=1))
        if i:
            assert square.call(square.result((6, 6))) is None
        error = square.call(square.operands["B"])
        assert error.text.startswith("out shares memory with B")
        assert error.code == INVALID_ARGUMENT


def test_a_measured_choice_is_taken_from_then_on():
    run = Run(A=LONG[0], B=LONG[1])
    out = run.result((3, 13))
    before = [run.call(out) or launched() for _ in range(3)][-1]
    other = "gemm_simt_64x64x16_f32_any"
    assert other not in before
    key = mf.explain(*run.operands.values(), out=out).key
    try:
        _core._set_tuned([(key, other, 1e-6)])
        assert [run.call(out) or launched() for _ in range(3)] == [[other]] * 3
    finally:
        _core._set_tuned([])
    assert (run.call(out) or launched()) == before


# The workspace


@pytest.mark.parametrize("shift", [0, 16, 240])
def test_the_workspace_is_xlas(split, shift):
    """It has no more than 16 bytes of alignment for sure; what is asked for has room for ours."""
    run = split()
    given = {}

    def allocate(size):
        whole = stub_cuda.library().stub_alloc(0, size + shift)
        given[whole + shift] = whole
        return whole + shift

    run.xla.allocate, run.xla.free = allocate, lambda at: stub_cuda.library().stub_free(given.pop(at))
    out = run.result((3, 13))
    assert run.call(out) is None
    assert launched() == SPLIT
    check(out.numpy(), *LONG)
    assert run.xla.asked == ["stream", "ordinal", "allocate", "free"]
    assert (run.xla.memory, given) == ({}, {})
    assert calls("cuMemAllocAsync", "cuMemFreeAsync") == []


def test_bytes_of_the_workspace(split):
    run = split()
    sizes, allocate = [], run.xla.allocate
    run.xla.allocate = lambda size: sizes.append(size) or allocate(size)
    assert run.call(run.result((3, 13))) is None
    assert sizes == [BYTES + 240]


def test_xla_has_no_memory_left(split):
    run = split()
    out, run.xla.refuses = run.result((3, 13)), ("allocate",)
    assert run.call(out) == Error("XLA's own of allocate", 8)
    assert launched() == []
    assert "free" not in run.xla.asked
    assert np.isnan(out.numpy()).all()


@pytest.mark.parametrize("lacks", ["allocate", "free"])
def test_a_table_without_an_allocator(split, lacks):
    run = split()
    run.xla.lacks = (lacks,)
    error = run.call(run.result((3, 13)))
    assert error.code == UNIMPLEMENTED
    assert error.text == (
        "matmul_fused under jax.jit needs a workspace, for which this version of XLA has no allocator"
    )
    assert launched() == []


@pytest.mark.parametrize("launch", [0, 1])
def test_a_launch_that_fails_gives_the_workspace_back(split, launch):
    run = split()
    fail_next("cuLaunchKernel", 719, launch)
    error = run.call(run.result((3, 13)))
    assert error.code == INTERNAL
    assert error.text.startswith("cuLaunchKernel on cuda:0: CUDA_ERROR_LAUNCH_FAILED")
    assert launched() == SPLIT[: launch + 1]
    assert run.xla.memory == {}
    assert run.xla.asked[-1] == "free"


def test_memory_that_cannot_be_given_back(split):
    run = split()
    run.xla.refuses = ("free",)
    run.xla.allocate = lambda size: 1 << 20
    with force_kernel("gemm_simt_splitk"):
        fail_next("cuLaunchKernel", 719)
        first = run.call(run.result((3, 13)))
    assert first.text.startswith("cuLaunchKernel on cuda:0")
    assert run.xla.asked[-3:] == ["new_error", "free", "drop_error"]
    assert list(run.xla.errors.values()) == [first]


# Errors


@pytest.mark.parametrize("function", ["stream", "ordinal"])
def test_an_error_of_xla_goes_back_to_it(function):
    run = Run(A=A, B=B)
    run.xla.refuses = (function,)
    assert run.call(run.result((5, 6))) == Error(f"XLA's own of {function}", 8)
    assert launched() == []


def test_a_stream_that_is_gone():
    run = Run(A=A, B=B)
    stub_cuda.library().stub_stream_destroy(run.stream.handle)
    error = run.call(run.result((5, 6)))
    assert error == Error("cuLaunchKernel on cuda:0: CUDA_ERROR_INVALID_HANDLE (invalid resource handle)", INTERNAL)


def test_a_gpu_that_is_not_there():
    run = Run(A=A, B=B)
    run.xla.ordinal = 7
    error = run.call(run.result((5, 6)))
    assert error.code == INTERNAL
    assert error.text.startswith("there is no device cuda:7; CUDA finds 2 (")


def test_what_does_not_fit():
    run = Run(A=A, B=B)
    error = run.call(run.result((5, 5)))
    assert error.code == INVALID_ARGUMENT
    assert error.text.startswith("out has shape (5, 5)")
    error = run.call(run.result((5, 6)), activation="no such")
    assert error.text.startswith("a call of matmul_fused under jax.jit has no activation")
    with force_kernel("gemm_wgmma"):
        error = run.call(run.result((5, 6)))
    assert error.code == UNIMPLEMENTED
    assert error.text.startswith("no kernel takes this call (gemm_")
    assert launched() == []


def test_inside_a_capture_what_is_loaded_runs():
    """XLA does not capture this handler, which announces no trait; where somebody does, nothing breaks."""
    in_child("""
        from test_xla_host import A, B, Run, launched
        from matmul_fused import _core
        _core.force_kernel("gemm_simt")
        run = Run(A=A, B=B)
        out = run.result((5, 6))
        run.stream = Capture()
        run.xla.stream = run.stream.handle
        with run.stream:
            error = run.call(out)
        assert "captured and gemm_simt_64x64x16_f32_any is not loaded yet" in error.text, error
        assert run.call(out) is None
        with run.stream:
            assert run.call(out) is None
            assert launched() == ["gemm_simt_64x64x16_f32_any"]
        check(out.numpy(), A, B)
    """)


def test_without_a_driver():
    in_child(
        """
        from xla_frames import Buffer, Xla
        error = Xla("CUDA", 1 << 12).call({"A": Buffer(0, (2, 3), "float32")}, Buffer(0, (2, 2), "float32"))
        assert error.text.startswith("NVIDIA GPUs cannot be used: "), error
        """,
        library="/nowhere/libcuda.so",
        build=False,
    )
