"""Leave the interpreter with results, capsules and packed weights still alive. Prints "done" before it does.

Argument: what holds them.
"""

import atexit
import builtins
import sys
import threading

import numpy as np
from common import Generic

import matmul_fused as mf
from matmul_fused import _core


def make():
    """One of each: Array, PackedMatrix, capsules that nobody took, an ndarray on an Array's memory."""
    A, B = np.ones((8, 40), np.float32), np.ones((40, 48), np.float32)
    array = mf.matmul_fused(Generic(A), B)
    capsules = [array.__dlpack__(), array.__dlpack__(max_version=(1, 0)), array.__dlpack__(copy=True)]
    return [array, mf.prepack(B), *capsules, np.from_dlpack(array), array.__dlpack__]


class Cycle:
    """Collected at the very end, with a finalizer that still computes."""

    def __init__(self):
        self.me = self
        self.alive = make()
        self.call = mf.matmul_fused

    def __del__(self):
        x = np.ones((3, 3), np.float32)
        self.call(x, x)


def compute_forever():
    x = np.ones((400, 400), np.float32)
    started.set()
    while True:
        mf.matmul_fused(x, x)


where = sys.argv[1]
if where in ("globals", "capsules"):
    alive = make() if where == "globals" else make()[2:5]
elif where == "builtins":
    builtins.alive = make()
elif where == "module":  # of the extension: outlives the package
    _core.alive = make()
    mf.alive = make()
    np.alive = make()
elif where == "cycle":
    Cycle()
    kept = Cycle()
elif where == "thread":  # a daemon computes without the GIL while the interpreter ends
    started = threading.Event()
    for _ in range(3):
        threading.Thread(target=compute_forever, daemon=True).start()
    started.wait()
elif where == "atexit":
    kept = make()
    atexit.register(lambda: [mf.matmul_fused(np.ones((300, 300)), np.ones((300, 300))), make()])
elif where == "torch":
    import torch

    kept = [torch.from_dlpack(make()[0]), mf.matmul_fused(torch.ones(8, 40), torch.ones(40, 48))]
else:
    raise SystemExit(f"unknown: {where}")
print("done", flush=True)
