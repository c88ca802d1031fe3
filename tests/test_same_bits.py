"""tools/same_bits.py sees what it is for: one changed bit, a changed guard byte, another refusal, a side that ends."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import matmul_fused as mf
from matmul_fused import testing
from matmul_fused.testing import Case, make_inputs

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
try:
    import same_bits
finally:
    sys.path.pop(0)

ROW = "cpu_blocked"
CASES = [Case(3, 5, 7), Case(3, 5, 7, out_view="padded", preactivation="float32", bias="row", prepack=True)]


def lines(*results):
    return [json.dumps({"row": result}) for result in results]


@pytest.mark.parametrize(
    ("there", "any_text", "new", "says"),
    [
        (lines("aa", "refused: E: x"), False, False, None),
        (lines("aa", "refused: E: y"), True, False, None),
        (lines("aa", "refused: E: y"), False, True, "there refused: E: y"),
        (lines("refused: E: x", "refused: E: x"), False, True, None),
        (lines("refused: E: x", "refused: E: x"), True, False, "there refused: E: x"),
        (lines("aa", "bb"), True, True, "there bb"),
        (lines("ab", "refused: E: x"), False, True, "there ab"),
        (lines("aa"), False, False, "ended early"),
        (lines("aa", "refused: E: x", "aa"), False, False, "ended early"),
    ],
)
def test_compare(there, any_text, new, says):
    differing = same_bits.compare([lines("aa", "refused: E: x"), there], CASES, ["row"], any_text, new)
    assert len(differing) == (says is not None)
    assert says is None or says in differing[0]


def test_any_nan_forgives_the_sign_and_payload_of_a_nan(monkeypatch):
    inputs, call = make_inputs(CASES[0], 0), mf.matmul_fused

    def result(bits, any_nan):
        def changed(**arguments):
            out = call(**arguments)
            out.reshape(-1).view(np.uint32)[4] = bits
            return out

        monkeypatch.setattr(mf, "matmul_fused", changed)
        return same_bits.result(testing, inputs, ROW, any_nan)

    quiet, negative, one = 0x7FC00000, 0xFFC00001, 0x3F800000
    assert result(quiet, False) != result(negative, False)
    assert result(quiet, True) == result(negative, True) != result(one, True)


@pytest.mark.parametrize("any_nan", [False, True])
@pytest.mark.parametrize("case", CASES, ids=["new", "written"])
def test_result_holds_every_bit(case, any_nan, monkeypatch):
    inputs = make_inputs(case, 0)
    right = same_bits.result(testing, inputs, ROW, any_nan)
    assert right == same_bits.result(testing, inputs, ROW, any_nan)
    call = mf.matmul_fused

    def flips(name, where):
        def flipped(**arguments):
            out = call(**arguments)
            array = inputs.operands[name].buffer if name else out
            array.reshape(-1)[where : where + 1].view(np.uint32)[...] ^= 1
            return out

        return flipped

    places = [("preactivation", -1), ("out", 0), ("B", 90)] if case.out_view else [("", 0), ("A", 85)]
    for name, where in places:
        where %= inputs.operands[name].buffer.size if name else 15
        monkeypatch.setattr(mf, "matmul_fused", flips(name, where))
        assert same_bits.result(testing, inputs, ROW, any_nan) != right, name
    monkeypatch.undo()
    assert same_bits.result(testing, inputs, ROW, any_nan) == right


def test_result_of_a_refusal():
    inputs = make_inputs(CASES[1], 0)
    assert same_bits.result(testing, inputs, "no_such").startswith("refused: ValueError: ")
    reason = same_bits.result(testing, inputs, "cpu_reference")
    assert reason.startswith("refused: NotImplementedError: ")
    assert "cpu_blocked" not in reason  # nor any row but the forced one
