"""The check for shared elements against np.shares_memory, on random strided views of one buffer.

Between two arrays it is exact where both layouts have at most two axes; beyond that it may refuse too much, never too
little. Of one array with itself it is exact, but for searches that would take too long.
"""

import re
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import matmul_fused as mf

STEPS = [s * sign for s in (1, 2, 3, 4, 5, 6, 8, 12, 16) for sign in (1, -1)]
SETTINGS = {
    "deadline": None,
    "derandomize": True,
    "suppress_health_check": [HealthCheck.filter_too_much, HealthCheck.too_slow],
}


def nested_steps(draw_, shape):
    """Steps of which each goes over the whole of the next smaller one: no two elements share an address."""
    steps, extent = [0] * len(shape), 1
    for axis in draw_(st.permutations(range(len(shape)))):
        steps[axis] = (extent + draw_(st.integers(0, 3))) * draw_(st.sampled_from([1, -1]))
        extent += abs(steps[axis]) * (shape[axis] - 1)
    return steps


@st.composite
def make_view(draw_, memory, shape):
    """A view of this shape anywhere in memory, with any strides that fit."""
    dtype = np.dtype(draw_(st.sampled_from(["float16", "float32", "float64"])))
    nested = draw_(st.booleans())
    steps = nested_steps(draw_, shape) if nested else [draw_(st.sampled_from(STEPS)) for _ in shape]
    reach = [step * (length - 1) for step, length in zip(steps, shape, strict=True)]
    low = -sum(r for r in reach if r < 0)
    high = memory.nbytes // dtype.itemsize - 1 - sum(r for r in reach if r > 0)
    assume(low <= high)
    start = draw_(st.integers(low, high))
    strides = tuple(step * dtype.itemsize for step in steps)
    return np.ndarray(shape, dtype, memory, start * dtype.itemsize, strides)


def overlaps_itself(view):
    """Do two elements have one address?"""
    offsets = {sum(i * s for i, s in zip(index, view.strides, strict=True)) for index in np.ndindex(view.shape)}
    return len(offsets) < view.size


def refusal(**arguments):
    """The text of the ValueError of a call, or None."""
    try:
        mf.matmul_fused(**arguments)
    except ValueError as error:
        return str(error)
    return None


def arguments_around(name, other, shape):
    """Operands for a result of this shape, of which the named one is other."""
    if name == "A":
        return {"A": other, "B": np.zeros((other.shape[-1], shape[-1]), other.dtype)}
    if name == "B":
        return {"A": np.zeros((*shape[:-1], other.shape[-2]), other.dtype), "B": other}
    outer = {"A": np.zeros((*shape[:-1], 2), other.dtype), "B": np.zeros((2, shape[-1]), other.dtype)}
    return outer | {name: other}


@given(data=st.data())
@settings(max_examples=600, **SETTINGS)
def test_two_dimensions_are_judged_exactly(data):
    memory = np.zeros(60)
    name = data.draw(st.sampled_from(["A", "B", "bias", "multiply", "C"]))
    m, n, k = (data.draw(st.integers(1, 6)) for _ in range(3))
    one_row = data.draw(st.booleans())
    shape = (n,) if one_row else (m, n)
    other_shape = {"A": (*shape[:-1], k), "B": (k, n), "bias": (n,)}.get(name, shape)
    out = data.draw(make_view(memory, shape))
    other = data.draw(make_view(memory, other_shape))
    in_place = name == "C" and (other.ctypes.data, other.dtype) == (out.ctypes.data, out.dtype)
    assume(not in_place)
    text = refusal(**arguments_around(name, other, shape), out=out)
    if overlaps_itself(out):
        assert text == "out has strides that make its elements overlap; pass an array whose elements are distinct"
    elif np.shares_memory(out, other):
        assert text is not None
        assert text.startswith(f"out shares memory with {name}; ")
    else:
        assert text is None


@given(data=st.data())
@settings(max_examples=250, **SETTINGS)
def test_more_dimensions_are_never_wrongly_allowed(data):
    memory = np.zeros(60)
    shape = tuple(data.draw(st.integers(1, 3)) for _ in range(data.draw(st.integers(3, 4))))
    out = data.draw(make_view(memory, shape))
    A = data.draw(make_view(memory, (*shape[:-1], data.draw(st.integers(1, 3)))))
    text = refusal(**arguments_around("A", A, shape), out=out)
    if overlaps_itself(out):
        assert text is not None
        assert text.startswith("out has strides that make its elements overlap")
    elif np.shares_memory(out, A):
        assert text is not None
    elif not np.may_share_memory(out, A):  # the ranges of addresses do not meet
        assert text is None


@given(data=st.data())
@settings(max_examples=300, **SETTINGS)
def test_any_number_of_axes_is_judged_exactly(data):
    """Steps near products of the lengths: hardly ever nested, and about as often distinct as not."""
    shape = data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=5).map(tuple))
    steps = [data.draw(st.integers(1, 60)) * data.draw(st.sampled_from([1, -1])) for _ in shape]
    reach = [step * (length - 1) for step, length in zip(steps, shape, strict=True)]
    memory = np.zeros(1 + sum(map(abs, reach)), np.float32)
    start = -sum(r for r in reach if r < 0)
    out = np.ndarray(shape, np.float32, memory, 4 * start, tuple(4 * step for step in steps))
    A, B = np.ones((*shape[:-1], 1), np.float32), np.ones((1, shape[-1]), np.float32)
    for name in ("out", "preactivation"):
        text = refusal(A=A, B=B, **{name: out})
        assert (text or "").startswith(f"{name} has strides that make its elements overlap") == overlaps_itself(out)
        if text is None:
            assert memory.sum() == out.size
        memory[...] = 0


def strided(shape, steps):
    return np.lib.stride_tricks.as_strided(np.zeros(1 << 22, np.float32), shape, tuple(4 * step for step in steps))


@pytest.mark.parametrize(
    ("shape", "steps", "verdict"),
    [
        ((3, 3, 3), (3, 5, 9), None),  # they do not nest, but no two elements meet
        ((3, 3, 3), (1, 2, 5), "overlap"),
        ((2, 600, 600), (3, 4, 1801), "overlap"),
        ((2, 900, 900), (1, 2, 1799), "overlap"),
        ((2, 900, 900), (1, 2, 1801), None),
        ((5, 3, 900, 900), (2000001, 600, 901, 1), "overlap"),
        ((1200, 1200, 1200), (1201, 1199, 1), "overlap"),
        ((100, 100, 100), (30000, 203, 2), None),
        ((99, 99, 99, 2), (4 * 10001, 4 * 101, 4, 4 * 99 + 2), None),
        ((7, 11, 13, 17, 2), (100002, 15400, 14300, 13090, 30030), "overlap"),
    ],
)
def test_large_layouts_are_judged_in_no_time(shape, steps, verdict):
    out = strided(shape, steps)
    A, B = np.ones((*shape[:-1], 1), np.float32), np.ones((1, shape[-1]), np.float32)
    start = time.perf_counter()
    text = refusal(A=A, B=B, out=out, C=out)
    assert time.perf_counter() - start < 1
    if verdict is None:
        assert text is None
    else:
        assert re.search(verdict, text)


def test_a_search_that_takes_too_long_says_so():
    """Nothing is written: explain asks the same questions."""
    steps = (1000000000039, 1000000006100, 1000000063777)
    out = np.lib.stride_tricks.as_strided(np.zeros(1), (1000,) * 3, [8 * step for step in steps])
    start = time.perf_counter()
    with pytest.raises(
        ValueError, match="out has strides that do not nest, and whether its elements are distinct takes"
    ):
        mf.explain(np.ones((1000, 1000, 1)), np.ones((1, 1000)), out=out)
    assert time.perf_counter() - start < 2
