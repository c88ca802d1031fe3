"""Where the pool's worker runs. Prints "done".

Argument: "two", then a worker on the caller's CPU must go to another one, until the caller moves; or "one", then there
is no other.
"""

import os
import sys
import time

import numpy as np

import matmul_fused as mf

A = np.ones((300, 300), np.float32)
cpus = os.sched_getaffinity(0)
here = min(cpus)


def compute():
    assert (mf.matmul_fused(A, A) == 300).all()


def pin(thread, cpu):
    os.sched_setaffinity(thread, {cpu})


if sys.argv[1] == "one":
    cpus = {here}
    pin(0, here)
mf.set_num_threads(2)
assert mf.explain(A, A).threads == 2
before = set(os.listdir("/proc/self/task"))
compute()
(worker,) = map(int, set(os.listdir("/proc/self/task")) - before)
pin(0, here)
end = time.monotonic() + (1 if len(cpus) == 1 else 30)
while here in os.sched_getaffinity(worker) and time.monotonic() < end:
    pin(worker, here)
    compute()
assert os.sched_getaffinity(worker) == (cpus - {here} or {here}), os.sched_getaffinity(worker)
if len(cpus) > 1:
    pin(0, max(cpus))
    compute()
    while here not in os.sched_getaffinity(worker):
        assert time.monotonic() < end, os.sched_getaffinity(worker)
print("done")
