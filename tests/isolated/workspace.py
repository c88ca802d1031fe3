"""The most memory that a call takes besides its operands, under the preloaded tests/c/counting_malloc.c. Prints JSON
for each number of threads: the greatest peak, what is allowed, the call.

Arguments: the kernel; one dtype of 16 bits if it takes no other.
"""

import ctypes
import itertools
import json
import sys
import threading

import numpy as np

import matmul_fused as mf

MIB = 1 << 20
# batch, M, N, K: each of the last three is short and long once; blocks of rows, of columns and of K are full somewhere,
# in the batches for every thread
SIZES = (
    (1, 1, 4096, 4096), (1, 9, 8000, 3000), (1, 400, 300, 2048), (1, 2048, 400, 600), (1, 385, 4096, 300),
    (1, 384, 20_000, 1024), (1, 256, 8192, 2048), (1, 200, 16_000, 1500), (1, 160, 8192, 4096),
    (1, 129, 2051, 1031), (1, 97, 20_000, 40), (1, 20_000, 97, 40), (1, 100, 100, 30_000), (1, 200, 40, 13_000),
    (1, 400, 3000, 1000), (48, 16, 960, 768), (48, 96, 192, 768),
    (1, 6307, 241, 520), (1, 2048, 2048, 1024),  # a narrow B for each of few threads; two chunks for many
)  # fmt: skip
# of B: its rows are contiguous, its columns, neither; and prepacked
OPERANDS = (
    ("float64", "turned"), ("float64", "gap"), ("float64", "packed"), ("float32", "row"), ("float32", "turned"),
    ("float16", "turned"),
)  # fmt: skip
THREADS = (1, 7, 16)

_library = ctypes.PyDLL(None)
alive, most, forget = (getattr(_library, f"counting_malloc_{name}") for name in ("alive", "most", "forget"))
alive.restype = most.restype = ctypes.c_long


def make_b(batch, rows, columns, dtype, layout):
    if layout == "turned":
        return np.ones((batch, columns, rows), dtype).mT
    if layout == "gap":
        return np.ones((batch, rows, 2 * columns), dtype)[..., ::2]
    b = np.ones((batch, rows, columns), dtype)
    return mf.prepack(b[0]) if layout == "packed" else b


def peak(kernel, threads, a, b, activation, out):
    """Bytes of one call on a thread of its own, which has no workspace yet."""
    taken = []

    def call():
        mf.set_num_threads(threads)
        with mf.testing.force_kernel(kernel):
            forget()
            before = alive()
            try:
                mf.matmul_fused(a, b, None, activation, out=out)
            except NotImplementedError:  # few rows, which AMX leaves to others
                assert own
            taken.append(most() - before)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    return taken[0]


def operands_of(kernel, own):
    if own:
        return [(own, layout) for layout in ("row", "turned", "gap", "packed")]
    square = np.ones((64, 64), np.float32)
    fastest = kernel == mf.explain(square, square).kernel
    return OPERANDS if fastest else OPERANDS[:1]  # of a slower one what takes the most


def calls(kernel, own):
    operands = operands_of(kernel, own)
    for (batch, m, n, k), (dtype, layout) in itertools.product(SIZES, operands):
        if layout == "packed" and batch > 1:
            continue
        a, b = np.ones((batch, m, k), dtype), make_b(batch, k, n, dtype, layout)
        for activation in (None, "reglu")[: 1 if n % 2 or layout == "packed" else 2]:
            out = np.empty((batch, m, n // 2 if activation else n), dtype)
            yield f"{batch}x{m}x{n}x{k} {dtype} {layout} {activation or 'none'}", a, b, activation, out


kernel, own, *_ = *sys.argv[1:], None
if own == "bfloat16":
    import ml_dtypes  # noqa: F401  NumPy knows the name then
found = {threads: {"kernel": kernel, "threads": threads, "calls": 0, "bytes": -1} for threads in THREADS}
for name, *call in calls(kernel, own):
    for threads, row in found.items():
        taken = peak(kernel, threads, *call)
        row["calls"] += 1
        if taken > row["bytes"]:
            row |= {"bytes": taken, "at": name}
for threads, row in found.items():
    row["allowed"] = 8 * MIB + threads * MIB
    print(json.dumps(row))
