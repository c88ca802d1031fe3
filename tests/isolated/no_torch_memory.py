"""Every allocation of a call with torch's tensors fails once, under the preloaded tests/c/failing_malloc.c: torch's own
and Python's too. Prints how many, then "done".

First calls look at torch and its types: each is made in a process of its own, forked before the first use.
"""

import contextlib
import gc
import os
import signal
import tempfile

import failing
import torch
from torch.nn import functional

import matmul_fused as mf

torch.set_num_threads(1)
mf.set_num_threads(1)
generator = torch.Generator().manual_seed(0)
A, B, bias = (torch.randn(shape, generator=generator) for shape in ((20, 600), (600, 100), (100,)))
C, out, z = torch.randn(20, 100, generator=generator), torch.empty(20, 100), torch.empty(20, 100, dtype=torch.float64)
# A Linear makes a view of its weight for each call: the call's alone are to be counted.
weight = torch.nn.Parameter(torch.randn(100, 600, generator=generator)).T
learnt, narrow, wide = torch.nn.Parameter(B), out[:, :50], torch.empty(20, 200)[:, ::2]
half, half_weight = A.bfloat16(), B.bfloat16()
stacked = torch.stack([B, B])
A_numpy, B_numpy, negative = A.numpy(), B.numpy(), torch.complex(B, B).conj().imag
row, column = A[0], B[:, 0]
gelu = torch.nn.GELU("tanh")


def refused(*arguments, **keywords):
    def call():
        with contextlib.suppress(TypeError, ValueError):
            mf.matmul_fused(*arguments, **keywords)
            raise AssertionError("not refused")

    return call


def without_gradients():
    with torch.no_grad():
        mf.matmul_fused(A, learnt)


def calls():
    packed, gate = mf.prepack(B), mf.prepack(half_weight, gate_layout="halves")
    with torch.no_grad():
        view = weight.detach()
    return {
        "result": lambda: mf.matmul_fused(A, B, bias, "gelu"),
        "out": lambda: mf.matmul_fused(A, B, bias, "swiglu", C=C, preactivation=z, out=narrow),
        "out with strides": lambda: mf.matmul_fused(A, B, bias, C=C, out=wide),
        "in place": lambda: mf.matmul_fused(A, B, C=out, out=out),
        "view of a weight": lambda: mf.matmul_fused(A, view, bias, "silu"),
        "bfloat16": lambda: mf.matmul_fused(half, half_weight, bias, out_dtype=torch.float32),
        "pair": lambda: mf.matmul_fused(A, (B, B), (bias, 0.5), ("swiglu_oai", 7.0), multiply=2.0),
        "batched": lambda: mf.matmul_fused(A, stacked, bias, ("clamp", -1, 1.0), alpha=0.5),
        "beside NumPy": lambda: mf.matmul_fused(A, B_numpy, bias),
        "for NumPy": lambda: mf.matmul_fused(A_numpy, B),
        "prepack": lambda: mf.prepack(B),
        "prepack of a gate": lambda: mf.prepack(half_weight, gate_layout="interleaved", layout="pairs64"),
        "packed": lambda: mf.matmul_fused(A, packed, bias, "relu"),
        "packed gate": lambda: mf.matmul_fused(half, gate, None, "geglu", out_dtype="float32"),
        "unpack": packed.unpack,
        "function": lambda: mf.matmul_fused(A, B, bias, functional.gelu),
        "module": lambda: mf.matmul_fused(A, B, bias, gelu),
        "explain": lambda: mf._core.explain(A, B, bias, "gelu"),
        "requires grad": refused(A, learnt),
        "out requires grad": refused(A, B, out=learnt),
        "another dtype": refused(A, half_weight),
        "no shape": refused(A, A),
        "negative bit": refused(A, negative),
        "gradients off": without_gradients,
        "vectors": lambda: mf.matmul_fused(row, column),
    }


def torch_has_none(error):
    """torch says so by a RuntimeError, which may be the cause of a BufferError."""
    cause = error.__cause__ if type(error) is BufferError else error
    return isinstance(cause, RuntimeError) and any(word in str(cause) for word in ("memory", "alloc"))


def judge_call(name):
    def judge(nth, outcome):
        *errors, failed = outcome
        errors = [error for error in errors if isinstance(error, BaseException)]
        assert all(torch_has_none(error) for error in errors), (
            name,
            nth,
            errors,
            [error.__cause__ for error in errors],
        )
        assert failed or len(outcome) == 1, (name, nth, outcome)

    return judge


def in_child(name, call, nth, repeats):
    """0 if a failure did no harm, 1 if there was no such allocation, "torch" if torch ended the process."""
    with tempfile.TemporaryFile() as said:
        pid = os.fork()
        if pid == 0:
            code = 2
            os.dup2(said.fileno(), 2)
            try:
                code = 0 if harmless(name, call, nth, repeats) else 1
            except BaseException as error:
                print(name, nth, repr(error), flush=True)
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        said.seek(0)
        # Allocations in functions of torch that may not throw end the process, whoever calls them.
        return "torch" if code == -signal.SIGABRT and b"std::bad_alloc" in said.read() else code


def harmless(name, call, nth, repeats):
    """On this thread: glibc ends a process that has no memory for torch's variables of a new one."""
    judge = judge_call(name)
    for _ in range(21):  # caches fill at last, a leak leaves a block each time
        gc.collect()
        before = failing.alive()
        for _ in range(repeats):
            outcome = []
            failing.attempt(call, nth, False, outcome)
            judge(nth, outcome)
            failed = outcome[-1]
        del outcome
        gc.collect()
        if failing.alive() - before < failing.REPEATS:
            break
    else:
        raise AssertionError(f"{failing.alive() - before} blocks leaked by {repeats} failures")
    assert torch.allclose(mf.matmul_fused(A, B, bias), A @ B + bias, atol=1e-4)
    return failed


def exhaust(name, call, repeats):
    """Fail the first, second, ... allocation, each in a process; how many, and how many of them torch did not bear."""
    codes = [in_child(name, call, nth, repeats) for nth in range(1, 3)]
    while codes[-1] in (0, "torch"):
        codes.append(in_child(name, call, len(codes) + 1, repeats))
    codes = codes[: codes.index(1)] if codes[-1] == 1 else codes
    assert not set(codes) - {0, "torch"}, (name, codes)
    return len(codes), codes.count("torch")


def main():
    gc.freeze()  # a collection looks at nothing of torch
    first, ended = exhaust("first call", lambda: mf.matmul_fused(A, B, bias), 1)
    assert first >= 10
    assert ended <= 2  # c10::impl::getGlobalPyInterpreter()
    mf.matmul_fused(A, B, bias)
    failing.failures += first
    named = calls()
    for name, call in named.items():
        count, ended = exhaust(name, call, failing.REPEATS)
        failing.failures += count * failing.REPEATS
        print(f"{name}: {count}, {ended} of them end the process in torch", flush=True)
    assert len(named) >= 25


main()
failing.report()
