"""Calls at the edges of blocks and panels, under the preloaded tests/c/guarded_malloc.c: a kernel that needs more
workspace than it requested, or reads beyond an operand, dies at once. Prints each size, then "done".

Arguments: the kernel; one dtype of 16 bits if it takes no other.
"""

import ctypes
import itertools
import mmap
import sys
import threading

import numpy as np

import matmul_fused as mf

kernel, *own = sys.argv[1:]
if own == ["bfloat16"]:
    import ml_dtypes  # noqa: F401  NumPy knows the name then
alive = ctypes.CDLL(None).guarded_malloc_alive
rng = np.random.default_rng(0)
seen = 0


def between_guards(array, first):
    """A copy that begins (first) or ends at a page that cannot be touched."""
    size = -(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    pages = mmap.mmap(-1, size + 2 * mmap.PAGESIZE)
    start = mmap.PAGESIZE + (0 if first else size - array.nbytes)
    copy = np.ndarray(array.shape, array.dtype, pages, start, array.strides)
    copy[...] = array
    for guard in (0, mmap.PAGESIZE + size):
        address = ctypes.addressof(ctypes.c_char.from_buffer(pages, guard))
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, 0) == 0
    return copy


def compute(m, n, k, dtype, turned, gated):
    """One call on a thread of its own, whose workspace is therefore no larger than requested."""
    global seen
    A, B = rng.integers(-2, 3, (m, k)).astype(dtype), rng.integers(-2, 3, (k, n)).astype(dtype)
    weight = between_guards(np.asfortranarray(B) if turned else B, gated)
    A = between_guards(np.asfortranarray(A) if turned and gated else A, gated)
    try:
        with mf.testing.force_kernel(kernel):
            got = mf.matmul_fused(A, (weight, weight), None, "reglu") if gated else mf.matmul_fused(A, weight)
    except NotImplementedError:  # few rows, which AMX leaves to others
        assert own
        return
    seen = max(seen, alive())
    if dtype in ("float32", "float64"):  # small integers: exact
        z = A.astype(float) @ B.astype(float)
        if not np.array_equal(got, np.maximum(z, 0) * z if gated else z):
            wrong.append((m, n, k, dtype, turned, gated))


wrong = []
for threads, m, n, k in itertools.product((1, 3), (1, 12, 96, 97), (1, 17, 33, 527), (5, 50, 383, 400, 3100, 6200)):
    if m * n * k > 3_000_000:
        continue
    print(threads, m, n, k, flush=True)
    mf.set_num_threads(threads)
    for how in itertools.product(own or ("float32", "float64", "float16"), (False, True), (False, True)):
        thread = threading.Thread(target=compute, args=(m, n, k, *how))
        thread.start()
        thread.join()
assert not wrong, wrong
assert seen > 0, "nothing was guarded"
print("done")
