"""Compute with the pool before and after a fork; every process must get the parent's bits. Prints "done".

Argument: how the child is made. A child that hangs is killed by its alarm and seen by its exit status.
"""

import multiprocessing
import os
import signal
import sys
import threading
import warnings

import numpy as np

import matmul_fused as mf

rng = np.random.default_rng(0)
A, B = rng.standard_normal((300, 257), np.float32), rng.standard_normal((257, 333), np.float32)
PACKED = mf.prepack(B)
THREADS = 3


def compute(_=None):
    """Bytes of a result that takes several threads."""
    mf.set_num_threads(THREADS)
    assert mf.explain(A, B).threads > 1
    plain = mf.matmul_fused(A, B, None, "gelu").tobytes()
    assert mf.matmul_fused(A, PACKED, None, "gelu").tobytes() == plain
    return plain


def in_child(function):
    """Run function in a forked child, which must return True."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    signal.alarm(60)
    status = 1
    try:
        status = 0 if function() else 2
    finally:
        os._exit(status)


def own_threads():
    return len(os.listdir("/proc/self/task"))


def compute_anew(wanted):
    """In a child: the same bits, from a pool with workers of its own."""
    before = own_threads()
    return compute() == wanted and own_threads() == before + THREADS - 1


def check_children(wanted, count):
    codes = [in_child(lambda: compute_anew(wanted)) for _ in range(count)]
    assert codes == [0] * count, codes
    assert compute() == wanted


def fork_while_others_compute(wanted, fork_from_thread):
    stop = threading.Event()

    def hammer():
        while not stop.is_set():
            mf.matmul_fused(A, B)

    hammers = [threading.Thread(target=hammer) for _ in range(3)]
    for thread in hammers:
        thread.start()
    try:
        if fork_from_thread:
            forker = threading.Thread(target=check_children, args=(wanted, 10))
            forker.start()
            forker.join()
        else:
            check_children(wanted, 20)
    finally:
        stop.set()
        for thread in hammers:
            thread.join()


def with_multiprocessing(wanted, method):
    with multiprocessing.get_context(method).Pool(2) as pool:
        results = pool.map_async(compute, range(8)).get(timeout=100)
    assert results == [wanted] * 8


def main():
    how = sys.argv[1]
    if how == "before":  # the pool has not been used yet
        assert in_child(lambda: bool(compute())) == 0
    wanted = compute()
    if how in ("fork", "spawn", "forkserver"):
        with_multiprocessing(wanted, how)
    elif how == "grandchild":
        assert in_child(lambda: in_child(lambda: compute() == wanted) == 0 and compute() == wanted) == 0
    elif how in ("busy", "busy, from a thread"):
        fork_while_others_compute(wanted, how != "busy")
    elif how == "forced":  # a forced kernel is the thread's, and the child goes on with it
        with mf.testing.force_kernel("cpu_blocked"):
            assert in_child(lambda: mf.explain(A, B).kernel == "cpu_blocked") == 0
    check_children(wanted, 3)


if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)  # of os.fork() in a process with threads: that is the point
    main()
    print("done")
