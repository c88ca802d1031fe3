"""The RMS rule of matmul_fused.testing.reference bites where no element fails, and only where it is about averages."""

import numpy as np
import pytest

from matmul_fused.testing import Case, expect, round_to
from matmul_fused.testing.inputs import make_inputs
from matmul_fused.testing.reference import RMS_FROM, Expected, compare
from matmul_fused.testing.run import expected_results


def test_rms_rule_catches_what_every_element_hides():
    """An error of a third of the bound in every element of a long sum: no element fails, the RMS does."""
    rng = np.random.default_rng(6)
    A, B = (rng.standard_normal(s).astype(np.float32) for s in ((64, 400), (400, 64)))
    out, _ = expect(A, B)
    assert compare(round_to(out.value, "float32"), out, "float32").ok
    figures = compare(round_to(out.value + (out.high - out.value) / 3, "float32"), out, "float32")
    assert figures.elements == RMS_FROM
    assert figures.failures == 0
    assert figures.rms_ratio > 1
    assert not figures.ok


def spread_over(sizes):
    """What is expected of zeros whose errors have these sizes; no element can fail, no rounding counts."""
    value, wide = np.zeros(sizes.shape), np.full(sizes.shape, 1e9)
    return Expected(value, -wide, wide, sizes)


# Sizes of the errors of 16384 elements, and how much larger than expected an RMS the rule must see, and may not mind.
SIZES_OF_ERRORS = [
    ("alike", np.ones(16384), 1.01, 1.0),
    ("log-normal", np.exp(np.random.default_rng(8).standard_normal(16384)), 1.4, 1.3),  # 540 effective elements
    ("a few", np.where(np.arange(16384) % 128 == 0, 1.0, 1e-3), 1.6, 1.2),
    ("one", np.where(np.arange(16384) == 99, 1.0, 1e-3), 6.5, 4.0),
]


@pytest.mark.parametrize(("name", "sizes", "seen", "allowed"), SIZES_OF_ERRORS, ids=[row[0] for row in SIZES_OF_ERRORS])
def test_rms_rule_counts_effective_elements(name, sizes, seen, allowed):
    """Normal errors of the sizes that are expected pass, however few carry them; larger errors do not.

    The rule's own margins are those of 4096 elements alike, 2 sqrt(16 / 4096) + 2 16 / 4096 of the squares."""
    expected, rng = spread_over(sizes), np.random.default_rng(9)
    worst = 0.0
    for _ in range(300):
        figures = compare(0.94 * sizes * rng.standard_normal(sizes.shape), expected, "float64")
        assert figures.ok, figures.message
        worst = max(worst, figures.rms_ratio)
    assert worst > 0.4
    for factor, ok in ((allowed, True), (seen, False)):
        assert compare(sizes * factor, expected, "float64").ok is ok, factor


def test_rms_rule_without_averages():
    """A right result that failed the rule as if its elements were alike: one element carries most of the error."""
    text = (
        "256x16x32,dtype=bfloat16,out_dtype=float32,a_view=offset,b_view=sliced,out_view=negative,batch=b,"
        "activation=relu_squared,bias=scalar,c=scalar,c_dtype=float32,beta=0.0,multiply=scalar,"
        "multiply_dtype=float32,epilogue_view=zero_rows,preactivation=float32,preactivation_view=offset,values=mixed"
    )
    inputs = make_inputs(Case.parse(text), 173689528)
    expected, _ = expected_results(inputs)
    weights = np.square(expected.spread / expected.spread.max())
    assert weights.sum() ** 2 / np.square(weights).sum() < 10
    out = round_to(expected.value, "float32")
    at = np.unravel_index(np.argmax(weights), weights.shape)
    for factor, ok in ((3, True), (12, False)):
        out[at] = expected.value[at] + factor * expected.spread[at]
        figures = compare(out, expected, "float32")
        assert (figures.failures, figures.ok) == (0, ok), figures.message


def test_rms_rule_of_numbers_that_round():
    """Right sums failed the rule as if alpha and beta rounded anew in each element: 0.3 gains 0.67 u in all of them."""
    text = (
        "64x64x7,dtype=float16,out_dtype=float64,layout=NT,a_view=padded,b_view=sliced,out_view=offset,batch=inner,"
        "activation=hardshrink,bias=number,c=row,c_dtype=float32,alpha=0.3,beta=0.7,multiply=number,"
        "epilogue_view=zero_rows,preactivation=float64,preactivation_view=transposed,values=positive"
    )
    inputs = make_inputs(Case.parse(text), 44107699)
    _, expected = expected_results(inputs)
    a, b, c, bias = (inputs.values(name).astype(np.float64) for name in ("A", "B", "C", "bias"))
    alpha, beta = np.float32((0.3, 0.7)).astype(np.float64)
    total = np.zeros(expected.value.shape, np.float32)
    for k in range(7):  # each line rounds once
        total = (total + a[..., k, None] * b[..., k, None, :]).astype(np.float32)
    total = (alpha * total).astype(np.float32)
    total = (beta * c + total).astype(np.float32)
    total = (bias + total).astype(np.float32)
    for factor, ok in ((1, True), (2, False)):
        figures = compare(expected.value + factor * (total - expected.value), expected, "float64")
        assert (figures.failures, figures.ok) == (0, ok), figures.message
