"""Every allocation of a GPU call fails once, under the preloaded tests/c/failing_malloc.c, on the stand-in CUDA driver
(whose own allocations fail, too). Prints how many, then
"done".

First calls open the driver and load code: each is made in a process of its own, forked before the first use.
"""

import contextlib
import ctypes
import itertools
import os

import failing
import numpy as np

import matmul_fused as mf
import stub_cuda

A, B, square = (stub_cuda.DeviceArray(np.ones(shape, np.float32)) for shape in ((5, 70), (70, 6), (6, 6)))
out = stub_cuda.DeviceArray(np.zeros((5, 6), np.float32))
stub_cuda.calls("")  # what the first log costs


def attempt(call, nth):
    """Whether the nth allocation was made, and so failed."""
    outcome = []
    failing.attempt(call, nth, False, outcome)
    judge(nth, outcome)
    return outcome[-1]


def judge(nth, outcome):
    """The driver's own failures are told by its code."""
    *errors, failed = outcome
    assert all(isinstance(error, str | mf.DeviceError | BufferError) for error in errors), (nth, errors)
    assert failed or not errors, (nth, errors)


def first_call(nth):
    """In a child: 0 if a failure did no harm, 1 if there was no such allocation."""
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            failed = attempt(lambda: mf.matmul_fused(A, B, out=out), nth)
            mf.matmul_fused(A, B, out=out)
            assert (out.numpy() == 70).all()
            code = 0 if failed else 1
        except BaseException as error:
            print(nth, repr(error), flush=True)
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def owned():
    """Blocks of memory, but for the destroyed events that the stand-in keeps."""
    return failing.alive() - ctypes.c_int.in_dll(stub_cuda.library(), "stub_kept_events").value


def exhausted(name, call):
    def run(nth):
        outcome = []
        failing.attempt(call, nth, False, outcome)
        return outcome

    return failing.exhaust(name, run, judge, owned)


def refused():
    with contextlib.suppress(TypeError):
        mf.matmul_fused(packed, packed)
        raise AssertionError("not refused")


def main():
    global packed
    codes = list(itertools.takewhile(lambda code: code != 1, map(first_call, itertools.count(1))))
    assert set(codes) == {0}, [(i + 1, code) for i, code in enumerate(codes) if code]
    z, w, y = mf.matmul_fused(A, B), mf.matmul_fused(square, square), mf.matmul_fused(A, B)
    packed, stream = mf.prepack(w), stub_cuda.library().stub_stream_create(0)
    failing.failures += len(codes)
    calls = {  # mf.Array alone: producers written in Python keep what they gave
        "call": lambda: mf.matmul_fused(z, w, None, "gelu"),
        "out": lambda: mf.matmul_fused(z, w, C=z, out=y),
        "copy": lambda: z.__dlpack__(copy=True, max_version=(1, 0)),
        "explain": lambda: mf._core.explain(z, w),
        "gpus": mf._core.gpus,
        "gate": lambda: mf.matmul_fused(z, w, None, "swiglu", gate_layout="interleaved"),
        "pair": lambda: mf.matmul_fused(z, (w, w), (0.5, 2), ("swiglu_oai", 7.0), multiply=3),
        "preactivation": lambda: mf.matmul_fused(z, w, multiply=z, activation="mish", preactivation=y),
        "another dtype": lambda: mf.matmul_fused(z, w, out_dtype="float64"),
        "nothing to multiply": lambda: mf.matmul_fused(z, w, alpha=0, beta=2, C=z),
        "on a stream": lambda: mf.matmul_fused(z, w, out=y, stream=stream),
        "prepack": lambda: mf.prepack(w),
        "prepack of a pair": lambda: mf.prepack((w, w)),
        "packed": lambda: mf.matmul_fused(z, packed),
        "unpack": packed.unpack,
        "refused": refused,
    }
    counts = {name: exhausted(name, call) for name, call in calls.items()}
    # pymalloc has small blocks of its own: of the strings of gpus(), whose lengths vary, only long ones count
    gpus = 20 if os.environ["PYTHONMALLOC"] == "malloc" else 1
    wanted = {"call": 2, "copy": 2, "gpus": gpus, "prepack": 2, "unpack": 1}
    assert len(codes) >= 5, len(codes)
    assert all(counts[name] >= least for name, least in wanted.items()), counts


main()
failing.report()
