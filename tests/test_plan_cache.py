"""Calls that take over problem and plan of an earlier one: the third call of its kind is the first that does."""

import threading

import numpy as np
import pytest

import matmul_fused as mf
from matmul_fused.testing import covering_sample, force_kernel
from matmul_fused.testing.inputs import make_inputs
from matmul_fused.testing.run import NumPyTransfer, call_arguments, check

CALLS = 4
rng = np.random.default_rng(20261121)


def numbers(*shape):
    """Small integers: every product and sum below is exact."""
    return rng.integers(-4, 5, shape).astype(np.float32)


def reference(A, B, bias=0.0):
    return A.astype(np.float64) @ B + bias


@pytest.mark.timeout(600)
def test_cases_with_other_values_and_pointers(sweep_seed):
    """A sixth of the sample's cases, each several times, all inputs alive: no two calls share an address."""
    transfer = NumPyTransfer()
    for case in covering_sample(sweep_seed)[::6]:
        every = [make_inputs(case, sweep_seed + i) for i in range(CALLS)]
        for inputs in every:
            arguments, arrays = call_arguments(inputs, transfer, mf)
            result = mf.matmul_fused(**arguments)
            check(case, inputs, None if "out" in arrays else result)


def test_scalars_are_part_of_the_question():
    A, B, C = numbers(3, 64), numbers(64, 32), numbers(3, 32)
    z = reference(A, B)
    for _ in range(CALLS):
        for alpha in (1.0, 2.0, 0.0):
            assert np.array_equal(mf.matmul_fused(A, B, alpha=alpha), alpha * z)
        for beta in (None, 0.5, 0.0):
            expected = z + (1.0 if beta is None else beta) * C
            assert np.array_equal(mf.matmul_fused(A, B, C=C, beta=beta), expected)
        for bounds in ((-1.0, 1.0), (0.0, 6.0)):
            assert np.array_equal(mf.matmul_fused(A, B, None, ("clamp", *bounds)), np.clip(z, *bounds))
        for dtype in ("float32", "float64"):
            assert mf.matmul_fused(A, B, out_dtype=dtype).dtype == dtype


def test_layouts_are_part_of_the_question():
    for _ in range(CALLS):
        for A in (numbers(4, 6), numbers(6, 4).T, numbers(8, 12)[::2, ::2], numbers(4, 6)[::-1]):
            for bias in (numbers(16), numbers(32)[::2], numbers(16)[::-1]):
                for out in (np.zeros((4, 16), np.float32), np.zeros((16, 4), np.float32).T):
                    B = numbers(6, 16)
                    mf.matmul_fused(A, B, bias, out=out)
                    assert np.array_equal(out, reference(A, B, bias))


def test_forced_kernel_is_part_of_the_question():
    A, B = (rng.standard_normal(shape, dtype=np.float32) for shape in ((1, 999), (999, 64)))
    chosen = [mf.matmul_fused(A, B) for _ in range(CALLS)]
    with force_kernel("cpu_reference"):
        forced = [mf.matmul_fused(A, B) for _ in range(CALLS)]
    chosen += [mf.matmul_fused(A, B)]
    assert all(np.array_equal(chosen[0], other) for other in chosen)
    assert all(np.array_equal(forced[0], other) for other in forced)
    assert not np.array_equal(chosen[0], forced[0])


OPERANDS = ("A", "B", "bias", "C", "multiply")
PAIRS = [(operand, output) for output in ("out", "preactivation") for operand in OPERANDS]


@pytest.mark.parametrize(("operand", "output"), [*PAIRS, ("preactivation", "out")])
def test_shared_memory_is_refused_every_time(operand, output):
    for _ in range(CALLS):
        arrays = {"A": numbers(16, 16), "B": numbers(16, 16), "bias": numbers(16, 16), "C": numbers(16, 16)}
        arrays |= {name: numbers(16, 16) for name in ("multiply", "preactivation", "out")}
        mf.matmul_fused(**arrays)
        memory = numbers(31, 16)
        for low, high in ((memory[:16], memory[15:]), (memory[15:], memory[:16])):
            before = memory.copy()
            with pytest.raises(ValueError, match="shares memory with"):
                mf.matmul_fused(**{**arrays, operand: low, output: high})
            assert np.array_equal(memory, before)
        apart = numbers(32, 16)
        mf.matmul_fused(**{**arrays, operand: apart[:16], output: apart[16:]})


def test_in_place():
    for _ in range(CALLS):
        A, B, C = numbers(5, 16), numbers(16, 48), numbers(5, 48)
        expected = reference(A, B) + C
        assert mf.matmul_fused(A, B, C=C, out=C) is C
        assert np.array_equal(C, expected)


@pytest.mark.parametrize("layout", ["halves", "halves_up_first", "interleaved"])
@pytest.mark.parametrize("packed", [False, True])
def test_streams_of_a_gate_follow_their_operand(layout, packed):
    for _ in range(CALLS):
        A, B, bias = numbers(4, 32), numbers(32, 48), numbers(48)
        z = reference(A, B, bias)
        halves = (z[:, :24], z[:, 24:])
        gate, up = {"halves": halves, "halves_up_first": halves[::-1]}.get(layout, (z[:, ::2], z[:, 1::2]))
        weight = mf.prepack(B, gate_layout=layout) if packed else B
        result = mf.matmul_fused(A, weight, bias, "reglu", gate_layout=None if packed else layout)
        assert np.array_equal(result, np.maximum(gate, 0) * up)


def test_more_kinds_than_there_is_room_for():
    for _ in range(CALLS):
        for n in range(1, 200):
            A, B = numbers(2, 8), numbers(8, n)
            assert np.array_equal(mf.matmul_fused(A, B), reference(A, B))


def test_one_kind_on_many_threads():
    """Long enough for the GIL to be free meanwhile, so that calls of one kind overlap."""
    B = numbers(96, 96)
    failures = []

    def work(seed):
        local = np.random.default_rng(seed)
        for _ in range(200):
            A = local.integers(-4, 5, (96, 96)).astype(np.float32)
            if not np.array_equal(mf.matmul_fused(A, B), reference(A, B)):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
