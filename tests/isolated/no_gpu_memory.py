"""Every allocation of a GPU call fails once, under the preloaded tests/c/failing_malloc.c, on the stand-in CUDA driver
(whose own allocations fail, too). Prints "done".

First calls open the driver and load code: each is made in a process of its own, forked before the first use.
"""

import ctypes
import gc
import itertools
import os

import numpy as np

import matmul_fused as mf
import stub_cuda

_library = ctypes.PyDLL(None)
arm, disarm, alive = (getattr(_library, f"failing_malloc_{name}") for name in ("arm", "disarm", "alive"))
arm.argtypes, alive.restype = [ctypes.c_long, ctypes.c_int], ctypes.c_long

REPEATS = 12
A, B, square = (stub_cuda.DeviceArray(np.ones(shape, np.float32)) for shape in ((5, 70), (70, 6), (6, 6)))
out = stub_cuda.DeviceArray(np.zeros((5, 6), np.float32))
stub_cuda.calls("")  # what the first log costs


def attempt(call, nth):
    """Whether the nth allocation was made, and so failed."""
    result = None
    try:
        arm(nth, 0)
        result = call()
        failed = disarm()
    except (MemoryError, mf.DeviceError, BufferError):
        failed = disarm()
    del result
    return failed


def first_call(nth):
    """In a child: 0 if a failure did no harm, 1 if there was no such allocation."""
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            failed = attempt(lambda: mf.matmul_fused(A, B, out=out), nth)
            mf.matmul_fused(A, B, out=out)
            assert (out.numpy() == 70).all()
            code = 0 if failed else 1
        except BaseException as error:
            print(nth, repr(error), flush=True)
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def owned():
    """Blocks of memory, but for the destroyed events that the stand-in keeps."""
    gc.collect()
    return alive() - ctypes.c_int.in_dll(stub_cuda.library(), "stub_kept_events").value


def leaked(call, nth):
    """Blocks that REPEATS failures of the nth allocation leave, and whether it was made."""
    for _ in range(20):  # caches of Python fill at last, a leak leaves a block each time
        before = owned()
        failed = [attempt(call, nth) for _ in range(REPEATS)][-1]
        blocks = owned() - before
        if blocks < REPEATS:
            break
    return blocks, failed


def exhaust(name, call):
    """Fail the first, second, ... allocation until there is none left to fail; how many there were."""
    for nth in itertools.count(1):
        blocks, failed = leaked(call, nth)
        assert blocks < REPEATS, f"{name}: {blocks} blocks leaked by {REPEATS} failures of allocation {nth}"
        if not failed:
            break
    return nth - 1


def main():
    codes = list(itertools.takewhile(lambda code: code != 1, map(first_call, itertools.count(1))))
    assert set(codes) == {0}, [(i + 1, code) for i, code in enumerate(codes) if code]
    z, w, y = mf.matmul_fused(A, B), mf.matmul_fused(square, square), mf.matmul_fused(A, B)
    calls = {  # mf.Array alone: producers written in Python keep what they gave
        "call": lambda: mf.matmul_fused(z, w, None, "gelu"),
        "out": lambda: mf.matmul_fused(z, w, C=z, out=y),
        "copy": lambda: z.__dlpack__(copy=True, max_version=(1, 0)),
        "explain": lambda: mf._core.explain(z, w),
        "gpus": mf._core.gpus,
    }
    counts = {name: exhaust(name, call) for name, call in calls.items()}
    wanted = {"call": 2, "copy": 2, "gpus": 5}
    assert len(codes) >= 5, len(codes)
    assert all(counts[name] >= least for name, least in wanted.items()), counts


main()
print("done")
