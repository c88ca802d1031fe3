"""What can go wrong in a GPU call, on the stand-in CUDA driver: its errors, libraries, threads, forks."""

import ctypes
import shutil
import sys
import threading
import time

import pytest

import matmul_fused as mf
import stub_cuda
from fake_dlpack import DLDevice
from gpu_support import A, B, balance, driver, in_child, operands  # noqa: F401
from stub_cuda import calls, clear_log, fail_next, fetch
from support import check

# The driver's errors

LAUNCH, MEMORY, HANDLE = 719, 2, 400
NAMES = {
    LAUNCH: r"CUDA_ERROR_LAUNCH_FAILED \(unspecified launch failure\)",
    MEMORY: r"CUDA_ERROR_OUT_OF_MEMORY \(out of memory\)",
    HANDLE: r"CUDA_ERROR_INVALID_HANDLE \(invalid resource handle\)",
    12345: r"unknown error \(no text\)",
}


@pytest.mark.parametrize(
    ("function", "code"),
    [
        ("cuLaunchKernel", LAUNCH),
        ("cuLaunchKernel", 12345),
        ("cuMemAllocAsync", MEMORY),
        ("cuEventCreate", MEMORY),
        ("cuEventRecord", HANDLE),
        ("cuStreamIsCapturing", HANDLE),
        ("cuCtxPushCurrent", HANDLE),
        ("cuPointerGetAttribute", LAUNCH),
    ],
)
def test_errors_have_the_driver_s_name_and_text(function, code):
    a, b = operands()
    mf.matmul_fused(a, b)  # loads the kernel
    skip = 2 if function == "cuCtxPushCurrent" else 0  # the two checks of memory come first
    fail_next(function, code, skip)
    with pytest.raises(mf.DeviceError, match=rf"^{function} on cuda:0: {NAMES[code]}$"):
        mf.matmul_fused(a, b)
    check(fetch(mf.matmul_fused(a, b)), A, B)


@pytest.mark.parametrize("function", ["cuCtxPushCurrent", "cuEventRecord", "cuStreamWaitEvent", "cuStreamIsCapturing"])
def test_whichever_call_fails(function):
    """Fails the first, the second, ... of a call's calls until none is left to fail.

    In a child: memory whose use the driver took no note of is lost.
    """
    in_child(f"""
        a, b = operands()
        z = mf.matmul_fused(a, b)
        for skip in range(20):
            fail_next("{function}", 400, skip)
            try:
                result = mf.matmul_fused(a, b, C=z)
            except mf.DeviceError as error:
                text = str(error)
            else:
                break  # the fault is disarmed before the result is freed
            finally:
                fail_next("", 0)
            assert text == "{function} on cuda:0: CUDA_ERROR_INVALID_HANDLE (invalid resource handle)", text
        assert 2 <= skip < 20
        check(fetch(result), A, B, C=fetch(z))
        assert stub_cuda.library().stub_context_depth() == 0
    """)


def test_loading_fails_and_is_tried_again():
    in_child("""
        a, b = operands()
        for function, code, name in (
            ("cuDeviceGetName", 2, "CUDA_ERROR_OUT_OF_MEMORY"),
            ("cuDeviceGetAttribute", 2, "CUDA_ERROR_OUT_OF_MEMORY"),
            ("cuDevicePrimaryCtxRetain", 2, "CUDA_ERROR_OUT_OF_MEMORY"),
            ("cuModuleLoadData", 209, "unknown error"),
            ("cuModuleGetFunction", 500, "CUDA_ERROR_NOT_FOUND"),
        ):
            fail_next(function, code)
            with pytest.raises(mf.DeviceError) as caught:
                mf.matmul_fused(a, b)
            assert str(caught.value).startswith(f"{function} on cuda:0: {name} ("), caught.value
        check(fetch(mf.matmul_fused(a, b)), A, B)
        assert len(calls("cuModuleUnload")) == 1
    """)


@pytest.mark.parametrize(
    ("function", "code", "text"),
    [
        ("cuInit", 12345, ": cuInit: unknown error (no text)"),
        ("cuInit", 100, " finds no NVIDIA GPU (cuInit: CUDA_ERROR_NO_DEVICE)"),
        ("cuInit", 2, ": cuInit: CUDA_ERROR_OUT_OF_MEMORY (out of memory)"),
        ("cuDeviceGetCount", 3, ": cuDeviceGetCount: CUDA_ERROR_NOT_INITIALIZED (initialization error)"),
    ],
)
def test_a_driver_that_does_not_start(function, code, text):
    in_child(f"""
        fail_next("{function}", {code})
        try:
            mf.matmul_fused(*operands())
        except mf.DeviceError as error:
            assert str(error) == f"NVIDIA GPUs cannot be used: {{stub_cuda.LIBRARY}}{text}", error
        else:
            raise AssertionError
        check(fetch(mf.matmul_fused(*operands())), A, B)  # the next call tries again
    """)


def test_a_driver_without_memory_pools():
    """Its answer to the question for them is that it knows no such attribute; another error is an error."""
    in_child("""
        fail_next("cuDeviceGetAttribute", 719, 5)
        with pytest.raises(mf.DeviceError, match="cuDeviceGetAttribute on cuda:0: CUDA_ERROR_LAUNCH_FAILED"):
            mf.matmul_fused(*operands())
        fail_next("cuDeviceGetAttribute", 1, 5)
        out = DeviceArray(np.zeros((5, 6), np.float32))
        mf.matmul_fused(*operands(), out=out)
        check(out.numpy(), A, B)
        with pytest.raises(NotImplementedError, match="cuda:0 cannot allocate memory in stream order; pass out="):
            mf.matmul_fused(*operands())
        with pytest.raises(NotImplementedError, match="in stream order; pass the plain weight"):
            mf.prepack(operands()[1])
    """)


def test_a_device_that_is_not_there():
    a, b = operands()
    for x in (a, b):
        x.device = (2, 7)
        x.change = lambda tensor: setattr(tensor, "device", DLDevice(2, 7))
    with pytest.raises(mf.DeviceError, match=r"there is no device cuda:7; CUDA finds 2 \("):
        mf.matmul_fused(a, b)


# Libraries


@pytest.mark.parametrize(
    ("library", "text"),
    [
        ("/nonexistent/libcuda.so.1", "no CUDA driver (/nonexistent/libcuda.so.1: cannot open shared object file"),
        ("libm.so.6", "it has no function cuInit"),
    ],
)
def test_named_library_that_does_not_serve(library, text):
    code = """
        a = np.ones((2, 2), np.float32)
        assert (mf.matmul_fused(a, a) == 2).all()
        print(dict(mf.info().backends)["NVIDIA GPUs"])
        try:
            mf.matmul_fused(*operands())
        except mf.DeviceError as error:
            print(error)
    """
    lines = in_child(code, library, build=False).splitlines()
    assert lines[0].startswith("off: ")
    assert text in lines[0]
    assert lines[1].startswith("NVIDIA GPUs cannot be used: ")
    assert text in lines[1]


def test_a_mapped_library_is_taken_first():
    """No variable: the copy that somebody else has mapped is used, here one that the linker would not find."""
    code = """
        import ctypes, shutil, tempfile
        folder = tempfile.mkdtemp()
        name = os.path.join(folder, "libcuda.so.1")
        shutil.copy(stub_cuda.build(), name)
        ctypes.CDLL(name)
        print(dict(mf.info().backends)["NVIDIA GPUs"] == f"on: CUDA 13.0, {name}")
        shutil.rmtree(folder)
    """
    assert in_child(code, None) == "True\n"


def test_a_long_path_is_kept_whole(tmp_path):
    library = tmp_path.joinpath("a" * 250, "b" * 250, "c" * 250, "libcuda.so.1")
    library.parent.mkdir(parents=True)
    shutil.copy(stub_cuda.build(), library)
    code = 'print(mf._core.gpus()["libraries"]["cuda"], dict(mf.info().backends)["NVIDIA GPUs"], sep="\\n")'
    assert in_child(code, library, build=False).splitlines() == [str(library), f"on: CUDA 13.0, {library}"]


def test_import_opens_no_driver():
    in_child("""
        assert stub_cuda.log() == []
        mf.matmul_fused(A, B)
        mf.explain(A, B)
        assert stub_cuda.log() == []
    """)


# Threads and processes


def test_threads_on_both_devices():
    in_child("""
        errors, start = [], threading.Barrier(8)
        def work(number):
            try:
                a, b = operands(number % 2)
                start.wait()
                for _ in range(50):
                    check(fetch(mf.matmul_fused(a, b, activation="relu")), A, B, activation="relu")
            except Exception as error:
                errors.append(error)
        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert errors == []
        gc.collect()
        assert len(calls("cuInit")) == 1 and len(calls("cuModuleLoadData")) == 2
        assert stub_cuda.library().stub_live_memory() == 0
    """)


def test_loading_on_one_device_stops_no_other():
    """It may take seconds, and who asks for another device's facts holds the interpreter's lock."""
    in_child("""
        library = stub_cuda.library()
        library.stub_close_gate(b"cuModuleLoadData")
        results = []
        thread = threading.Thread(target=lambda: results.append(fetch(mf.matmul_fused(*operands(0)))))
        thread.start()
        while not calls("cuModuleLoadData"):
            pass
        assert dict(mf.info().devices)["cuda:1"].startswith("Stub 1")
        assert results == []
        library.stub_close_gate(b"")
        thread.join()
        check(results[0], A, B)
    """)


def test_the_current_device_stays():
    library = stub_cuda.library()
    context = ctypes.c_void_p()
    library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 1)
    library.cuCtxPushCurrent_v2(context)
    try:
        check(fetch(mf.matmul_fused(*operands(0))), A, B)
        now = ctypes.c_void_p()
        library.cuCtxGetCurrent(ctypes.byref(now))
        assert now.value == context.value
    finally:
        library.cuCtxPopCurrent_v2(ctypes.byref(context))


def test_fork_before_and_after_the_first_use():
    in_child("""
        def child(work):
            pid = os.fork()
            if pid == 0:
                try:
                    work()
                except BaseException as error:
                    print(repr(error), flush=True)
                    os._exit(1)
                os._exit(0)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        def works():
            check(fetch(mf.matmul_fused(*operands())), A, B)
        def refused():
            with pytest.raises(mf.DeviceError, match="NVIDIA GPUs cannot be used: a parent of this process used them"):
                mf.matmul_fused(*operands())
            check(mf.matmul_fused(A, B), A, B)
        assert child(works) == 0
        z = mf.matmul_fused(*operands())
        def drops():
            global z
            clear_log()
            del z
            assert stub_cuda.log() == []
        assert child(refused) == 0
        assert child(drops) == 0
        works()
    """)


def test_an_error_text_belongs_to_its_thread():
    """A launch fails without the GIL; before its thread raises the exception, another thread fails."""
    library, interval, texts = stub_cuda.library(), sys.getswitchinterval(), []
    a, b = operands()
    mf.matmul_fused(a, b)

    def fails():
        with pytest.raises(mf.DeviceError) as caught:
            mf.matmul_fused(a, b)
        texts.append(str(caught.value))

    thread = threading.Thread(target=fails)
    clear_log()
    fail_next("cuLaunchKernel", LAUNCH)
    library.stub_close_gate(b"cuLaunchKernel")
    try:
        thread.start()
        while not calls("cuLaunchKernel"):
            time.sleep(0.001)
        sys.setswitchinterval(1000)  # from here on the GIL is not given up
        library.stub_close_gate(b"")
        end = time.perf_counter() + 0.2
        while time.perf_counter() < end:
            pass
        with pytest.raises(ValueError, match="unknown activation"):
            mf.matmul_fused(A, B, None, "nope")
    finally:
        sys.setswitchinterval(interval)
        library.stub_close_gate(b"")
        thread.join()
    assert texts == ["cuLaunchKernel on cuda:0: CUDA_ERROR_LAUNCH_FAILED (unspecified launch failure)"]
