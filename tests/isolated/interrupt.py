"""Signals in the middle of long calls. Arguments: a function of this file, a kernel to force ("": none), threads.

Prints "done"; `latency` prints the seconds from the signal to the exception, one a line.
"""

import os
import pickle
import resource
import signal
import sys
import threading
import time

import ml_dtypes
import numpy as np
import pytest

import matmul_fused as mf
from matmul_fused.testing import force_kernel

rng = np.random.default_rng(0)
DELAY = 0.1


def matrix(rows, columns, row=None, dtype=np.float32):
    """Normal values; row: the stride of rows in elements, 0 to have a large matrix in little memory."""
    if row is None:
        return rng.standard_normal((rows, columns), dtype=np.float32).astype(dtype)
    line = rng.standard_normal(columns, dtype=np.float32).astype(dtype)
    return np.lib.stride_tricks.as_strided(line, (rows, columns), (row * line.itemsize, line.itemsize))


def product(a, b, *arguments, **keywords):
    return lambda: (mf.matmul_fused, (a(), b(), *arguments), keywords)


def stacked(times, rows, columns, dtype=np.float32):
    return lambda: np.broadcast_to(matrix(rows, columns, None, dtype), (times, rows, columns))


def plain(*arguments):
    return lambda: matrix(*arguments)


def turned(*arguments):
    return lambda: matrix(*arguments).T


def packing(make, **keywords):
    return lambda: (mf.prepack, (make(),), keywords)


# name -> makes a call of a second at least: every way through the kernels
CALLS = {
    "tiles": product(stacked(64, 2048, 2048), plain(2048, 2048)),
    "tiles of float16": product(stacked(64, 2048, 1024, "f2"), turned(2048, 1024, None, "f2")),
    "tiles of float64": product(stacked(32, 2048, 2048, "f8"), plain(2048, 2048, None, "f8")),
    "tiles of bfloat16": product(
        stacked(32, 2048, 2048, ml_dtypes.bfloat16), turned(2048, 2048, None, ml_dtypes.bfloat16)
    ),
    "a gate": product(stacked(64, 2048, 2048), plain(2048, 2048), None, "swiglu"),
    "a batch of small ones": product(stacked(1 << 17, 16, 64), plain(64, 64), None, "mish"),
    "dots": product(plain(8, 1 << 20), turned(100_000, 1 << 20, 0)),
    "long dots": product(plain(8, 1 << 25, 0), turned(200, 1 << 25, 0)),
    "lines": product(plain(1, 13000), plain(13000, 1 << 23, 0)),
    "lines of float16": product(plain(3, 13000, None, "f2"), plain(13000, 1 << 22, 0, "f2")),
    "lines of some rows": product(plain(16, 13000), plain(13000, 1 << 21, 0)),
    "a strip": product(plain(4, 70000), plain(70000, 1 << 18, 0)),
    "no products": product(plain(1 << 16, 1), plain(1, 1 << 15), None, "mish", alpha=0, out_dtype="float16"),
}
PACKING = {
    "prepack": packing(plain(1 << 14, 1 << 14, 0)),
    "prepack of W.T": packing(turned(1 << 14, 1 << 14, 0)),
    "prepack of float16": packing(plain(1 << 14, 1 << 14, 0, "f2"), gate_layout="interleaved"),
    "prepack of pairs": packing(plain(1 << 14, 1 << 14, 0, ml_dtypes.bfloat16), layout="pairs64"),
    "unpack": lambda: (mf.prepack(matrix(1 << 14, 1 << 14, 0, "f2")).unpack, (), {}),
    "pickle": lambda: (pickle.dumps, (mf.prepack(matrix(1 << 14, 1 << 14, 0, "f2")),), {}),
}


def interrupt_after(delay, call):
    """Seconds from the signal to the exception."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, delay)
    start = time.monotonic()
    try:
        call()
    except KeyboardInterrupt:
        return time.monotonic() - start - delay
    raise AssertionError("the call was over before the signal")


def latency(name, times=3):
    function, arguments, keywords = (CALLS | PACKING)[name]()
    for _ in range(int(times)):
        print(interrupt_after(DELAY, lambda: function(*arguments, **keywords)))


def nested():
    """Handlers make calls of their own, on every way; the call they interrupt is right."""
    small = 10 if kernel == "cpu_reference" else 1
    A, B = matrix(700 // small, 1500), matrix(1500, 900 // small)
    others = [(matrix(m, 700), matrix(700, 300 // small)) for m in (1, 5, 40, 200 // small)]
    stack = np.broadcast_to(A, (60, *A.shape))
    wanted = mf.matmul_fused(A, B, None, "gelu").tobytes()
    wanted_others = [mf.matmul_fused(*pair).tobytes() for pair in others]
    seen = []

    def handler(number, frame):
        seen.append([mf.matmul_fused(*pair).tobytes() for pair in others] == wanted_others)
        if len(seen) == 5:  # else handlers that take longer than the interval never end
            signal.setitimer(signal.ITIMER_REAL, 0)
        mf.matmul_fused(stack[:2], B)  # long enough to be asked in turn
        mf.prepack(B)

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.2)
    end = time.monotonic() + 60
    while len(seen) < 3 and time.monotonic() < end:
        result = mf.matmul_fused(stack, B, None, "gelu")
        assert all(part.tobytes() == wanted for part in result)
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert len(seen) >= 3
    assert all(seen)


def storm():
    """A timer that is faster than its handler, whose calls are asked in turn: a small stack is enough."""
    resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1]))
    A, B = matrix(2000, 300), matrix(300, 2000)
    wanted, levels = mf.matmul_fused(A, B).tobytes(), 0

    def handler(number, frame):
        nonlocal levels
        levels += 1
        if levels == 100:
            signal.setitimer(signal.ITIMER_REAL, 0)
        mf.matmul_fused(A, B)

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    while levels < 100:
        assert mf.matmul_fused(A, B).tobytes() == wanted


def raises():
    """Whatever a handler raises ends the call; arguments are released, and calls go on as before."""

    def handler(number, frame):
        raise TimeoutError("too long")

    A = np.broadcast_to(matrix(1024, 1024), (100, 1024, 1024))
    B, out = matrix(1024, 1024), np.empty((100, 1024, 1024), np.float32)
    before = [sys.getrefcount(x) for x in (A, B, out)]
    for named in ((), ("out",), ("out", "C")):
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, DELAY)
        with pytest.raises(TimeoutError, match="too long"):
            mf.matmul_fused(A, B, **dict.fromkeys(named, out))
    assert [sys.getrefcount(x) for x in (A, B, out)] == before
    assert (mf.matmul_fused(A[0], B) == mf.matmul_fused(A[:2], B)[1]).all()


def other_thread():
    """A call on another thread goes on."""
    A = np.broadcast_to(matrix(1024, 1024), (400, 1024, 1024))
    B, results = matrix(1024, 1024), []
    wanted, done = mf.matmul_fused(A[0], B).tobytes(), threading.Event()

    def run():
        results.append(mf.matmul_fused(A, B))
        done.set()

    thread = threading.Thread(target=run)
    thread.start()
    late = interrupt_after(DELAY, done.wait)
    assert not done.is_set()
    assert late < 0.5, late
    thread.join()
    assert all(part.tobytes() == wanted for part in results[0])


def forks():
    """A handler forks: the parent's call is right; the child has no result, as the other threads are not in it."""
    A, B = matrix(700, 1500), matrix(1500, 900)
    stack = np.broadcast_to(A, (200, *A.shape))
    wanted, children = mf.matmul_fused(A, B).tobytes(), []

    def handler(number, frame):
        children.append(os.fork())

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        result = mf.matmul_fused(stack, B)
    except RuntimeError as error:
        forked = children == [0] and str(error).startswith("a signal handler forked in the middle of this call")
        os._exit(0 if forked and mf.matmul_fused(A, B).tobytes() == wanted else 1)
    if children == [0]:
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
    assert all(part.tobytes() == wanted for part in result)


def modes():
    """A handler that changes its thread's float mode does not change the call's."""
    import torch

    A, B = matrix(300, 64) * np.float32(2**-64), matrix(64, 300) * np.float32(2**-66)
    stack = np.broadcast_to(A, (1000, 300, 64))
    wanted = mf.matmul_fused(A, B).tobytes()
    seen = []

    def handler(number, frame):
        seen.append(torch.set_flush_denormal(True))

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    result = mf.matmul_fused(stack, B)
    assert seen == [True]
    assert all(part.tobytes() == wanted for part in result)


what, kernel, threads = sys.argv[1:4]
mf.set_num_threads(int(threads))
with force_kernel(kernel or None):
    globals()[what](*sys.argv[4:])
print("done")
