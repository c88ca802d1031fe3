"""First calls of many threads at once, in a new process: the pool, the thread count, the type cache and the errors
start under a race. Prints "done"; run under ThreadSanitizer by run.py.

Results are compared bit for bit, and threads start and end, so that workspaces are created and freed.
"""

import sys
import threading

import numpy as np

import matmul_fused as mf
from fuzz.producers import Capsule, Library

THREADS = 6


class Mine(np.ndarray):
    pass


def main(seed):
    rng = np.random.default_rng(seed)
    A, B = rng.standard_normal((150, 120), np.float32), rng.standard_normal((120, 160), np.float32)
    wraps = [np.asarray, Capsule, Library, lambda x: x.view(Mine), lambda x: Capsule(x, versioned=False), mf.prepack]
    results, errors = {}, []
    barrier = threading.Barrier(THREADS)

    def work(number):
        weight = wraps[number % len(wraps)](B)
        A_own = wraps[(number + seed) % 5](A)
        barrier.wait()
        for turn in range(8):
            result = mf.matmul_fused(A_own, weight, None, "gelu")
            results[number, turn] = result.view if isinstance(result, Library) else result
            mf.set_num_threads(1 + (number + turn) % 4)
            try:
                mf.matmul_fused(A, B, None, f"thread{number}")
            except ValueError as error:
                errors.append(f'"thread{number}"' in str(error))

    for _ in range(2):
        threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    wanted = mf.matmul_fused(A, B, None, "gelu").tobytes()
    for result in results.values():
        array = result if isinstance(result, np.ndarray) else np.from_dlpack(result)
        assert array.tobytes() == wanted
    assert len(results) == 8 * THREADS
    assert errors == [True] * (2 * 8 * THREADS)


main(int(sys.argv[1]))
print("done")
