"""Where the pool's worker runs. Prints "done".

Argument: "two", then a worker on the caller's CPU must go to another one; or "one", then there is no other.
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


def pin(thread):
    os.sched_setaffinity(thread, {here})


if sys.argv[1] == "one":
    cpus = {here}
    pin(0)
mf.set_num_threads(2)
assert mf.explain(A, A).threads == 2
before = set(os.listdir("/proc/self/task"))
compute()
(worker,) = map(int, set(os.listdir("/proc/self/task")) - before)
pin(0)
pin(worker)
end = time.monotonic() + (1 if len(cpus) == 1 else 30)
while os.sched_getaffinity(worker) == {here} and time.monotonic() < end:
    compute()
assert os.sched_getaffinity(worker) == (cpus - {here} or {here}), os.sched_getaffinity(worker)
print("done")
