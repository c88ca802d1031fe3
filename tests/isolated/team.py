"""Whose threads compute in a program that uses torch: torch's OpenMP threads, else our own. Prints "done".

Argument: what happens. A child that hangs is killed by its alarm and seen by its exit status.
"""

import os
import signal
import sys
import threading
import warnings

import numpy as np
import torch

THREADS = 2  # torch makes one; a machine may have no more
rng = np.random.default_rng(0)
X, W = (torch.from_numpy(rng.standard_normal(size, np.float32)) for size in ((301, 257), (333, 257)))


def own_threads():
    return len(os.listdir("/proc/self/task"))


def torch_in_parallel():
    """An operator of torch on all its threads."""
    return torch.nn.functional.gelu(torch.ones(1 << 20)).sum()


def compute():
    import matmul_fused as mf  # in some tests not before a fork

    mf.set_num_threads(THREADS)
    assert mf.explain(X, W.T).threads == THREADS
    return mf.matmul_fused(X, W.T, None, "gelu").numpy().tobytes()


def alone():
    """The bits of one thread, which are those of any number."""
    import matmul_fused as mf

    with mf.num_threads(1):
        return mf.matmul_fused(X, W.T, None, "gelu").numpy().tobytes()


def starts(function):
    """How many threads a call leaves behind; its result is right."""
    before = own_threads()
    assert function() == alone()
    return own_threads() - before


def shared():
    """No thread beside torch's, and torch keeps its own."""
    torch_in_parallel()
    assert starts(compute) == 0
    before = own_threads()
    torch_in_parallel()
    assert own_threads() == before


def first():
    """Torch's team begins with our call, and is torch's from then on."""
    assert starts(compute) == THREADS - 1
    before = own_threads()
    torch_in_parallel()
    assert own_threads() == before


def fewer():
    """Torch was told to use one thread: ours are started, and change nothing about torch."""
    torch.set_num_threads(1)
    assert starts(compute) == THREADS - 1
    assert torch.get_num_threads() == 1


def several():
    """Callers at the same time: one has the team, the others compute alone."""
    wanted, wrong = compute(), []

    def hammer():
        wrong.extend(i for i in range(100) if compute() != wanted)

    callers = [threading.Thread(target=hammer) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def in_child(function):
    child = os.fork()
    if child:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        return
    signal.alarm(60)
    status = 1
    try:
        function()
        status = 0
    finally:
        os._exit(status)


def fork():
    """The runtime waits for threads that a child does not have: there ours are started."""

    def child():
        assert starts(compute) == THREADS - 1

    torch_in_parallel()
    wanted = compute()
    in_child(child)
    assert compute() == wanted


def fork_before():
    """The child is the first to use matmul_fused; its parent has used torch's threads."""

    def child():
        assert starts(compute) == THREADS - 1

    torch_in_parallel()
    in_child(child)


def fork_inside():
    """A signal handler forks in the middle of a call and calls in the child, whose outer call ends."""
    import matmul_fused as mf

    parent, children, x = os.getpid(), [], torch.ones(4000, 4000)
    wanted, error = compute(), ""

    def handler(*_):
        if os.getpid() == parent and not children:
            children.append(os.fork())
            if not children[0]:
                signal.alarm(60)
                assert compute() == wanted

    signal.signal(signal.SIGUSR1, handler)
    threading.Timer(0.03, os.kill, (parent, signal.SIGUSR1)).start()
    try:
        mf.matmul_fused(x, x)
    except RuntimeError as caught:
        error = str(caught)
    if os.getpid() != parent:
        os._exit(0 if "forked in the middle" in error and compute() == wanted else 1)
    assert not error
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
    assert compute() == wanted


def mode():
    """Torch's threads compute in the default float mode, and have their own again afterwards."""
    tiny, x = torch.full((1 << 20,), 1e-39), torch.full((512, 64), 1e-39)
    torch.set_flush_denormal(True)
    kept = (tiny * 1).count_nonzero()
    import matmul_fused as mf

    mf.set_num_threads(THREADS)
    assert mf.explain(x, torch.eye(64)).threads == THREADS
    assert mf.matmul_fused(x, torch.eye(64)).numpy().view(np.uint32).all()
    assert (tiny * 1).count_nonzero() == kept


if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)  # of os.fork() in a process with threads: that is the point
    torch.set_num_threads(THREADS)
    {f.__name__: f for f in (shared, first, fewer, several, fork, fork_before, fork_inside, mode)}[sys.argv[1]]()
    print("done")
