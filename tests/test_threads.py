"""Many threads on one weight, any number of threads in the pool, and forks.

Everything is compared bit for bit: results may depend on none of these.
"""

import itertools
import os
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

import matmul_fused as mf
from matmul_fused.testing import force_kernel
from matmul_fused.testing.formulas import ACTIVATIONS, GATED
from support import DTYPES, ISOLATED, KERNELS, check, draw, python

COUNTS = (1, 2, 3, 9)


@pytest.fixture(autouse=True)
def restored_threads():
    """A test may set the number of threads; and never leaves a forced kernel behind."""
    before = mf.get_num_threads()
    yield
    mf.set_num_threads(before)
    assert mf._core.force_kernel(None) is None


def in_threads(count, function):
    """function(number) in several threads at once; the first exception is raised here."""
    barrier = threading.Barrier(count)

    def run(number):
        barrier.wait()
        return function(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


# --- one weight, many threads ---


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_share_one_weight(dtype, packed):
    B, bias = draw((129, 258), dtype), draw(258, dtype)
    weight = mf.prepack(B, gate_layout="interleaved") if packed else B
    layout = None if packed else "interleaved"
    inputs = [draw((m, 129), dtype) for m in (1, 2, 5, 8, 13, 33, 100, 200, 333)]

    def compute(A):
        return mf.matmul_fused(A, weight, bias, "swiglu", gate_layout=layout)

    mf.set_num_threads(1)
    wanted = [compute(A) for A in inputs]
    for A, result in zip(inputs, wanted, strict=True):
        check(result, A, B, bias, "swiglu", gate_layout="interleaved")
    mf.set_num_threads(3)
    assert mf.explain(inputs[0], weight, bias, "swiglu", gate_layout=layout).threads == 1
    assert mf.explain(inputs[-1], weight, bias, "swiglu", gate_layout=layout).threads == 3

    def hammer(number):
        order = random.Random(number).choices(range(len(inputs)), k=60)
        return [i for i in order if compute(inputs[i]).tobytes() != wanted[i].tobytes()]

    assert in_threads(8, hammer) == [[]] * 8


@pytest.mark.parametrize("kernel", KERNELS)
def test_subnormals_are_kept_whatever_the_threads_mode(kernel):
    """torch.set_flush_denormal changes the calling thread; the workers were started in either mode."""
    torch = pytest.importorskip("torch")
    A, B = draw((200, 64)) * np.float32(2**-64), draw((64, 130)) * np.float32(2**-66)
    tensors = torch.from_numpy(A), torch.from_numpy(B)
    with force_kernel(kernel):
        wanted = mf.matmul_fused(A, B).tobytes()
        assert np.any(np.abs(np.frombuffer(wanted, np.float32)) < 2**-126)
        assert torch.set_flush_denormal(True)
        try:
            for threads in COUNTS:
                mf.set_num_threads(threads)
                assert mf.matmul_fused(A, B).tobytes() == wanted
                assert mf.matmul_fused(*tensors).numpy().tobytes() == wanted
        finally:
            torch.set_flush_denormal(False)


def test_number_of_threads_changes_while_others_compute():
    A, B = draw((257, 300)), draw((300, 201))
    wanted = mf.matmul_fused(A, B, None, "gelu").tobytes()
    stop = threading.Event()

    def hammer(number):
        if number == 0:
            for count in COUNTS * 30:
                mf.set_num_threads(count)
                time.sleep(0.001)
            stop.set()
            return 0
        wrong = calls = 0
        while not stop.is_set() or calls < 10:
            wrong += mf.matmul_fused(A, B, None, "gelu").tobytes() != wanted
            calls += 1
        return wrong

    assert in_threads(4, hammer) == [0] * 4


def test_outputs_of_several_threads_do_not_mix():
    """Each thread writes its own rows of one array."""
    A, B = draw((8 * 40, 200)), draw((200, 133))
    wanted = mf.matmul_fused(A, B)
    out = np.empty_like(wanted)
    mf.set_num_threads(3)
    for _ in range(10):
        out.fill(np.nan)
        parts = [(A[i::8], out[i::8]) for i in range(8)]
        in_threads(8, lambda i, parts=parts: mf.matmul_fused(parts[i][0], B, out=parts[i][1]))
        check(out, A, B)


def test_errors_belong_to_their_thread():
    x = draw((6, 6))

    def fail(number):
        name = f"thread{number}"
        for _ in range(2000):
            with pytest.raises(ValueError, match=f'^unknown activation "{name}"'):
                mf.matmul_fused(x, x, None, name)

    in_threads(4, fail)


def test_large_calls_release_the_gil():
    """No thread is switched by force here: the counter moves during a call only if the call lets it."""
    A, B = draw((400, 1000)), draw((1000, 400))
    ticks, stop = [0], threading.Event()

    def tick():
        while not stop.is_set():
            ticks[0] += 1
            time.sleep(0)

    def moves():
        before = ticks[0]
        mf.matmul_fused(A, B)
        return ticks[0] > before

    counter = threading.Thread(target=tick)
    counter.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        assert any(moves() for _ in range(50))
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        counter.join()


# --- results do not depend on the number of threads ---


def bits_by_threads(call):
    """The bytes of call() for every number of threads; at least once it took more than one."""
    results = {}
    for count in COUNTS:
        mf.set_num_threads(count)
        assert mf.get_num_threads() == count
        results[count] = call().tobytes()
    return set(results.values())


RAGGED = [
    (7, 4097, 60),
    (333, 17, 300),
    (17, 333, 1031),
    (193, 385, 129),
    (257, 255, 33),
    (1000, 3, 500),
    (64, 2050, 65),
    (7, 33, 16600),  # compensated sums of pieces of K
    (100, 530, 1025),  # B packed once for all threads
    (97, 801, 2049),  # in two chunks
    (65, 801, 1031),  # A packed once for all threads, from eight on
    (170, 410, 300),  # eight threads pack the next chunk of B beside the blocks of this one
]


@pytest.mark.parametrize("kernel", KERNELS[:-1])  # the reference has one thread
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_results_do_not_depend_on_the_number_of_threads(kernel, dtype, layout):
    taken = set()
    for (m, n, k), activation in zip(RAGGED, itertools.cycle(["gelu", "silu", None]), strict=False):
        A = draw((m, k), dtype) if layout[0] == "N" else draw((k, m), dtype).T
        B = draw((k, n), dtype) if layout[1] == "N" else draw((n, k), dtype).T
        with force_kernel(kernel):
            assert len(bits_by_threads(lambda a=A, b=B, f=activation: mf.matmul_fused(a, b, None, f))) == 1, (m, n, k)
            taken.add(mf.explain(A, B).threads)
    assert max(taken) > 2


@pytest.mark.parametrize("activation", [name for name, row in ACTIVATIONS.items() if not row.required])
def test_activations_do_not_depend_on_the_number_of_threads(activation):
    A, B, bias = draw((65, 130)), draw((130, 333)), draw(333)
    assert len(bits_by_threads(lambda: mf.matmul_fused(A, B, bias, activation))) == 1


@pytest.mark.parametrize("gate_layout", ["halves", "halves_up_first", "interleaved", "pair"])
@pytest.mark.parametrize("activation", [(name, *row.usual[: row.required]) for name, row in GATED.items()])
def test_gates_do_not_depend_on_the_number_of_threads(activation, gate_layout):
    A, C, multiply = draw((65, 130)), draw((65, 2 * 151)), draw((65, 151))
    pair = gate_layout == "pair"
    B = (draw((130, 151)), draw((130, 151), seed=1)) if pair else draw((130, 302))
    keywords = {"C": C, "multiply": multiply, "gate_layout": None if pair else gate_layout}
    assert len(bits_by_threads(lambda: mf.matmul_fused(A, B, None, activation, **keywords))) == 1


@pytest.mark.parametrize("gate_layout", ["halves", "interleaved", "pair"])
def test_gates_in_chunks_do_not_depend_on_the_number_of_threads(gate_layout):
    A, pair = draw((170, 90)), gate_layout == "pair"
    B = (draw((90, 430)), draw((90, 430), seed=1)) if pair else draw((90, 860))
    layout = None if pair else gate_layout
    assert len(bits_by_threads(lambda: mf.matmul_fused(A, B, None, "swiglu", gate_layout=layout))) == 1


BATCHES = [
    ((5, 40, 77), (77, 130)),
    ((40, 1, 33, 77), (3, 77, 65)),
    ((7, 77), (30, 77, 65)),
    ((3, 170, 77), (3, 77, 430)),  # in chunks
]


@pytest.mark.parametrize("shape", BATCHES)
def test_batches_do_not_depend_on_the_number_of_threads(shape):
    A, B = draw(shape[0]), draw(shape[1])
    z = np.empty(np.matmul(A, B).shape)

    def call():
        got = mf.matmul_fused(A, B, None, "mish", preactivation=z)
        return np.concatenate([got.ravel(), z.ravel()])

    assert len(bits_by_threads(call)) == 1


def test_number_of_threads_is_checked():
    before = mf.get_num_threads()
    for value in (0, -1, 1025, 10**30, -(10**30), np.int64(0)):
        with pytest.raises(ValueError, match="n must be from 1 to 1024"):
            mf.set_num_threads(value)
    for value in (2.0, "2", None, True, np.True_, np.float32(2), np.ones(2, int)):
        with pytest.raises(TypeError, match="n must be an int"):
            mf.set_num_threads(value)
    assert mf.get_num_threads() == before
    for value in (1, np.int64(2), np.uint8(3), 1024):
        mf.set_num_threads(value)
        assert mf.get_num_threads() == mf.info().threads == value
    A, B = draw((700, 100)), draw((100, 700))  # 1024 threads were asked for: as many as there is work for
    check(mf.matmul_fused(A, B), A, B)


def test_num_threads_is_the_threads_own():
    A, B = draw((300, 300)), draw((300, 300))
    wanted = mf.matmul_fused(A, B).tobytes()
    mf.set_num_threads(5)

    def run(number):
        seen = []
        for n in (1 + number, np.int64(2), 3):
            with mf.num_threads(n):
                for _ in range(3):  # the plan of one number is not that of another
                    seen.append(mf.get_num_threads() == mf.explain(A, B).threads == n)
                    seen.append(mf.matmul_fused(A, B).tobytes() == wanted)
            seen.append(mf.get_num_threads() == mf.explain(A, B).threads == 5)
        return all(seen)

    with mf.num_threads(4):
        assert in_threads(4, run) == [True] * 4
        mf.set_num_threads(6)
        assert mf.get_num_threads() == mf.info().threads == 4
        mf.set_num_threads(5)
    assert mf.get_num_threads() == 5


def test_num_threads_nests_and_ends_with_an_exception():
    before = mf.get_num_threads()
    with mf.num_threads(3):
        with pytest.raises(KeyError), mf.num_threads(2), mf.num_threads(7):
            raise KeyError(mf.get_num_threads())
        assert mf.get_num_threads() == 3
    assert mf.get_num_threads() == before
    for value, error in {0: ValueError, 1025: ValueError, 10**30: ValueError, 2.0: TypeError, True: TypeError}.items():
        with pytest.raises(error, match="n must be"), mf.num_threads(value):
            raise AssertionError
    assert mf.get_num_threads() == before


# --- forced kernels are the thread's own ---


def chosen():
    return mf.explain(draw((5, 7)), draw((7, 6))).kernel


def test_a_forced_kernel_is_the_threads_own():
    def run(number):
        name = KERNELS[number % len(KERNELS)]
        for _ in range(200):
            with force_kernel(name):
                if chosen() != name:
                    return False
            if chosen() != KERNELS[0]:
                return False
        return True

    with force_kernel("cpu_reference"):
        assert in_threads(6, run) == [True] * 6
        assert chosen() == "cpu_reference"
    assert chosen() == KERNELS[0]


def test_forced_kernels_nest():
    with force_kernel("cpu_reference"):
        with force_kernel("cpu_blocked"):
            assert chosen() == "cpu_blocked"
            with force_kernel(None):
                assert chosen() == KERNELS[0]
            assert chosen() == "cpu_blocked"
        assert chosen() == "cpu_reference"
    assert chosen() == KERNELS[0]


def test_a_forced_kernel_ends_with_an_exception():
    @contextmanager
    def refused(text):
        with pytest.raises(ValueError, match=text), force_kernel("cpu_reference"):
            yield

    with refused("planned"):
        assert chosen() == "cpu_reference"
        raise ValueError("planned")
    assert chosen() == KERNELS[0]
    with (
        refused('unknown kernel "cpu_magic"; this build has ' + ", ".join(mf.info().kernels)),
        force_kernel("cpu_magic"),
    ):
        raise AssertionError
    assert chosen() == KERNELS[0]


# --- forks ---


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize(
    "how", ["before", "after", "grandchild", "busy", "busy, from a thread", "forced", "fork", "spawn", "forkserver"]
)
def test_forked_processes_compute(how):
    done = python(ISOLATED / "fork.py", how)
    assert (done.stdout, done.stderr) == ("done\n", "")
