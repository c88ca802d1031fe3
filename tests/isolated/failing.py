"""Shared by no_memory.py, no_torch_memory.py and no_gpu_memory.py: fails the allocations of a call, one after another.

Under the preloaded tests/c/failing_malloc.c.
"""

import ctypes
import gc
import threading

_library = ctypes.PyDLL(None)
arm, disarm, alive = (getattr(_library, f"failing_malloc_{name}") for name in ("arm", "disarm", "alive"))
limit = _library.failing_malloc_limit
arm.argtypes, alive.restype, limit.argtypes = [ctypes.c_long, ctypes.c_int], ctypes.c_long, [ctypes.c_size_t]

REPEATS = 12
failures = 0


def attempt(call, nth, aligned, outcome):
    """Call it with the nth allocation failing; then what it raised, if it did, and whether the allocation was made."""
    try:
        arm(nth, aligned)
        call()
        failed = disarm()
    except MemoryError as error:
        failed = disarm()
        outcome.append(str(error))
    except BaseException as error:
        failed = disarm()
        outcome.append(error)
    outcome.append(failed)


def in_thread(*arguments):
    """In a thread of its own, whose workspace is new."""
    outcome = []
    thread = threading.Thread(target=attempt, args=(*arguments, outcome))
    thread.start()
    thread.join()
    return outcome


def exhaust(name, run, judge, own=alive):
    """Fail the first, second, ... allocation until there is none left to fail; how many there were.

    run(nth) is what attempt left, judge(nth, outcome) raises if that is wrong; own(): the blocks that count.
    """
    global failures
    nth, failed = 0, True
    while failed:
        nth += 1
        for _ in range(21):  # caches of Python and NumPy fill at last, a leak leaves a block each time
            gc.collect()
            before = own()
            for _ in range(REPEATS):
                outcome = run(nth)
                judge(nth, outcome)
                failed = outcome[-1]
                failures += failed
            del outcome
            gc.collect()
            blocks = own() - before
            if blocks < REPEATS:
                break
        assert blocks < REPEATS, f"{name}: {blocks} blocks leaked by {REPEATS} failures of allocation {nth}"
    return nth - 1


def report():
    """What the tests read: how many allocations were failed in all."""
    print(f"{failures} allocations failed")
    print("done")
