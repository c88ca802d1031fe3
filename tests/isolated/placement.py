"""Where the pool's worker runs. Prints "done".

Argument: "two", then a worker on the caller's CPU must go to another one, until the caller moves; "one", then there is
no other; "outside": what somebody else sets as its affinity, it keeps; or "cpuset": the same of the CPUs of a cgroup
(prints "no cpuset" where none can be made).
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import matmul_fused as mf

A = np.ones((300, 300), np.float32)
cpus = os.sched_getaffinity(0)
here = min(cpus)
SPIN = "import os; os.sched_setaffinity(0, {{{}}})\nwhile os.getppid() == {}: pass"


def compute():
    assert (mf.matmul_fused(A, A) == 300).all()


def pin(thread, cpu):
    os.sched_setaffinity(thread, {cpu})


def start_worker():
    mf.set_num_threads(2)
    assert mf.explain(A, A).threads == 2
    before = set(os.listdir("/proc/self/task"))
    compute()
    (worker,) = map(int, set(os.listdir("/proc/self/task")) - before)
    return worker


def leave():
    """Other processes keep the other CPUs busy, so that the scheduler leaves the worker where it was put."""
    worker = start_worker()
    others = [[sys.executable, "-c", SPIN.format(cpu, os.getpid())] for cpu in cpus - {here} for _ in range(2)]
    others = [subprocess.Popen(command) for command in others]
    pin(0, here)
    end = time.monotonic() + 60
    while os.sched_getaffinity(worker) != cpus - {here}:
        assert time.monotonic() < end, os.sched_getaffinity(worker)
        pin(worker, here)
        os.sched_setaffinity(worker, cpus)
        compute()
    while here not in os.sched_getaffinity(worker):
        pin(0, max(cpus))
        os.sched_setaffinity(0, cpus)  # the caller moved, and its affinity is not the worker's
        compute()
        assert time.monotonic() < end, os.sched_getaffinity(worker)
    for process in others:
        process.kill()
        process.wait()


def stay():
    """On the only CPU that there is."""
    pin(0, here)
    worker = start_worker()
    end = time.monotonic() + 1
    while time.monotonic() < end:
        compute()
        assert os.sched_getaffinity(worker) == {here}


def obey():
    """taskset -a, say: every thread is given one CPU, or all of them again, and computes on."""
    worker = start_worker()
    for allowed in ({here}, cpus, {max(cpus)}, {here}, cpus, {here}):
        # What is set between a worker's look at its mask and its change of it is lost: set again.
        assert any(stays(worker, allowed) for _ in range(4)), (os.sched_getaffinity(worker), allowed)


def stays(worker, allowed):
    for thread in map(int, os.listdir("/proc/self/task")):
        os.sched_setaffinity(thread, allowed)
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        compute()
        if not os.sched_getaffinity(worker) <= allowed:
            return False
    return True


def confine():
    """The cgroup of the process gets one CPU, or all of them again, and every thread computes on."""
    worker = start_worker()
    root = Path("/sys/fs/cgroup/cpuset")  # of version 1; of version 2 there is one tree
    root = root if root.is_dir() else root.parent
    group = root / f"matmul_fused_{os.getpid()}"
    try:
        group.mkdir()
        (group / "cpuset.cpus").write_text(",".join(map(str, cpus)))
        (group / "cpuset.mems").write_text((root / "cpuset.mems").read_text())
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError:
        print("no cpuset")
        if group.is_dir():
            group.rmdir()
        sys.exit()
    try:
        for allowed in ({here}, cpus, {max(cpus)}, {here}, cpus):
            (group / "cpuset.cpus").write_text(",".join(map(str, allowed)))
            end = time.monotonic() + 0.3
            while time.monotonic() < end:
                compute()
                assert os.sched_getaffinity(worker) <= allowed, (os.sched_getaffinity(worker), allowed)
    finally:
        (root / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


{"two": leave if len(cpus) > 1 else stay, "one": stay, "outside": obey, "cpuset": confine}[sys.argv[1]]()
print("done")
