"""Calls at the edges of blocks and panels, under the preloaded tests/c/guarded_malloc.c: a kernel that needs more
workspace than it asked for, or reads beyond an operand, dies at once. Prints each size, then "done".

Argument: the kernel.
"""

import ctypes
import itertools
import mmap
import sys
import threading

import numpy as np

import matmul_fused as mf

kernel = sys.argv[1]
alive = ctypes.CDLL(None).guarded_malloc_alive
rng = np.random.default_rng(0)
seen = 0


def before_a_guard(array):
    """A copy that ends where a page begins that cannot be touched."""
    size = -(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    pages = mmap.mmap(-1, size + mmap.PAGESIZE)
    copy = np.ndarray(array.shape, array.dtype, pages, size - array.nbytes, array.strides)
    copy[...] = array
    guard = ctypes.addressof(ctypes.c_char.from_buffer(pages, size))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(guard), mmap.PAGESIZE, 0) == 0
    return copy


def compute(m, n, k, dtype, turned, gated):
    """One call on a thread of its own, whose workspace is therefore no larger than asked for."""
    global seen
    A, B = rng.integers(-2, 3, (m, k)).astype(dtype), rng.integers(-2, 3, (k, n)).astype(dtype)
    weight = before_a_guard(np.asfortranarray(B) if turned else B)
    A = before_a_guard(A)
    with mf.testing.force_kernel(kernel):
        got = mf.matmul_fused(A, (weight, weight), None, "reglu") if gated else mf.matmul_fused(A, weight)
    seen = max(seen, alive())
    if dtype != "float16":  # small integers: exact
        z = A.astype(float) @ B.astype(float)
        if not np.array_equal(got, np.maximum(z, 0) * z if gated else z):
            wrong.append((m, n, k, dtype, turned, gated))


wrong = []
for threads, m, n, k in itertools.product((1, 3), (1, 12, 96, 97), (1, 17, 33, 527), (5, 50, 383, 400, 3100, 6200)):
    if m * n * k > 3_000_000:
        continue
    print(threads, m, n, k, flush=True)
    mf.set_num_threads(threads)
    for how in itertools.product(("float32", "float64", "float16"), (False, True), (False, True)):
        thread = threading.Thread(target=compute, args=(m, n, k, *how))
        thread.start()
        thread.join()
assert not wrong, wrong
assert seen > 0, "nothing was guarded"
print("done")
