"""The lazy form: expressions evaluate to the one call that they spell, or say why there is none."""

import numpy as np
import pytest

import matmul_fused as mf
from matmul_fused import _core, expression
from support import draw, python, same_bits

A, B, U = draw((5, 7)), draw((7, 6)), draw((7, 6), seed=1)
b, v, C, M = draw((6,)), draw((6,), seed=1), draw((5, 6)), draw((5, 6), seed=1)
e = mf.lazy(A) @ B

# expression, the call that it is
CASES = {
    "product": (lambda: e, (A, B), {}),
    "bias": (lambda: e + b, (A, B, b), {}),
    "left bias": (lambda: b + e, (A, B, b), {}),
    "number": (lambda: e + 2, (A, B, 2), {}),
    "C": (lambda: e + C, (A, B), {"C": C}),
    "bias and C": (lambda: C + (e + b), (A, B, b), {"C": C}),
    "two biases": (lambda: e + b + v, (A, B, b), {"C": v}),
    "alpha": (lambda: 2 * e + b, (A, B, b), {"alpha": 2}),
    "alpha of A": (lambda: 2 * mf.lazy(A) @ B, (A, B), {"alpha": 2}),
    "scaled C": (lambda: (e + C) * 3, (A, B), {"alpha": 3, "C": C, "beta": 3}),
    "scaled bias": (lambda: (e + b) * np.float32(3), (A, B), {"alpha": 3, "C": b, "beta": 3}),
    "scaled number": (lambda: (e + 2) * 3, (A, B, 6), {"alpha": 3}),
    "activation": (lambda: mf.relu(e + b), (A, B, b, "relu"), {}),
    "parameters": (lambda: mf.leaky_relu(e, 0.2), (A, B, None, ("leaky_relu", 0.2)), {}),
    "factor": (lambda: mf.silu(e) * M, (A, B, None, "silu"), {"multiply": M}),
    "left factor": (lambda: M * mf.silu(e), (A, B, None, "silu"), {"multiply": M}),
    "number as factor": (lambda: mf.silu(e) * 0.5, (A, B, None, "silu"), {"multiply": 0.5}),
    "no activation": (lambda: (e + b) * M, (A, B, b), {"multiply": M}),
    "gate": (lambda: mf.silu(e) * (mf.lazy(A) @ U), (A, (B, U), None, "swiglu"), {}),
    "gate on the right": (lambda: (mf.lazy(A) @ U + v) * mf.gelu(e), (A, (B, U), (0.0, v), "geglu"), {}),
    "one weight of a gate": (lambda: mf.swiglu(e), (A, B, None, "swiglu"), {}),
    "A on the left": (lambda: A @ mf.lazy(B) + b, (A, B, b), {}),
    "two lazy ones": (lambda: mf.lazy(A) @ mf.lazy(B), (A, B), {}),
}


@pytest.mark.parametrize(("make", "arguments", "keywords"), CASES.values(), ids=CASES)
def test_an_expression_is_one_call(make, arguments, keywords):
    wanted = mf.matmul_fused(*arguments, **keywords)
    assert same_bits(make().eval(), wanted)
    out = np.full_like(wanted, np.nan)
    assert make().eval(out=out) is out
    assert same_bits(out, wanted)
    assert same_bits(np.asarray(make()), wanted)
    assert same_bits(np.from_dlpack(make()), wanted)


def test_every_activation_has_its_function():
    for name in mf.activations + mf.gated_activations:
        assert getattr(mf, name).__name__ == name
    with pytest.raises(ValueError, match="threshold"):
        mf.threshold(e).eval()


def test_it_is_evaluated_once(monkeypatch):
    calls = []

    class Core:
        @staticmethod
        def matmul_fused(*arguments, **keywords):
            calls.append(arguments)
            return _core.matmul_fused(*arguments, **keywords)

    monkeypatch.setattr(expression, "_core", Core)
    y = mf.relu(mf.lazy(A) @ B + b)
    assert calls == []
    assert y.eval() is y.eval()
    np.asarray(y)
    assert len(calls) == 1
    (y * M).eval()
    assert len(calls) == 2


def test_np_asarray_takes_dtype_and_copy():
    y = mf.lazy(A) @ B
    assert np.asarray(y, dtype=np.float64).dtype == np.float64
    assert np.shares_memory(np.asarray(y), y.eval())
    assert not np.shares_memory(np.array(y), y.eval())


REFUSED = {
    "nothing": (lambda: mf.lazy(A).eval(), "nothing to compute yet"),
    "second product": (lambda: e @ draw((6, 4)), "a second product cannot be fused"),
    "product on the right": (lambda: A @ e, "the right factor of @ is an expression already"),
    "lazy product on the right": (lambda: mf.lazy(A) @ e, "the right factor of @ is an expression already"),
    "sum first": (lambda: mf.lazy(A) + b, "a sum before the product"),
    "sum last": (lambda: mf.relu(e) + b, "a sum behind an activation"),
    "sum behind a factor": (lambda: e * M + b, "a sum behind an activation or a factor"),
    "sum of two": (lambda: e + (mf.lazy(A) @ U), "the sum of two expressions"),
    "three addends": (lambda: e + b + C + C, "one call adds a bias and one array C"),
    "factor of two addends": (lambda: (e + b + C) * 2, "a factor of a sum with a bias and C"),
    "two factors": (lambda: e * M * M, "one call multiplies by one factor"),
    "array times A": (lambda: mf.lazy(A) * A, "an array as factor of A"),
    "two activations": (lambda: mf.relu(mf.silu(e)), "a second activation"),
    "activation behind a factor": (lambda: mf.relu(e * M), "a second activation"),
    "activation first": (lambda: mf.relu(mf.lazy(A)), "an activation before the product"),
    "no expression": (lambda: mf.relu(A), 'for arrays pass activation="relu"'),
    "two A": (lambda: mf.silu(e) * (mf.lazy(A.copy()) @ U), "no gated call"),
    "a gate that is none": (lambda: mf.tanh(e) * (mf.lazy(A) @ U), "no gated call"),
    "scaled gate": (lambda: mf.silu(e) * (2 * mf.lazy(A) @ U), "no gated call"),
    "factor of a gate": (lambda: mf.silu(e) * (mf.lazy(A) @ U) * M, "one factor"),
    "a text": (lambda: e + "1.0", "unsupported operand"),
    "bool": (lambda: e * True, "unsupported operand"),
    "a difference": (lambda: b - e, "unsupported operand"),
}


@pytest.mark.parametrize(("make", "says"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_single_call_is_refused(make, says):
    with pytest.raises(TypeError, match=says):
        make()


def test_torch_on_both_sides():
    torch = pytest.importorskip("torch")
    a, w, bias, m = (torch.from_numpy(x) for x in (A, B, b, M))
    wanted = mf.matmul_fused(a, w, bias, "relu", multiply=m)
    for y in (m * mf.relu(bias + a @ mf.lazy(w)), mf.relu(torch.add(mf.lazy(a) @ w, bias)) * m):
        assert type(y) is mf.Expression
        assert torch.equal(y.eval(), wanted)
        assert torch.equal(torch.from_dlpack(y), wanted)
    with pytest.raises(TypeError, match="torch's relu of an expression cannot be fused"):
        torch.relu(mf.lazy(a) @ w)
    with pytest.raises(TypeError, match="unsupported operand"):
        a - mf.lazy(a)


def test_jax_on_the_left():
    jax = pytest.importorskip("jax")
    a, w, bias = (jax.device_put(x) for x in (A, B, b))
    y = bias + a @ mf.lazy(w)
    assert type(y) is mf.Expression
    assert same_bits(np.asarray(y.eval()), mf.matmul_fused(A, B, b))


def test_an_expression_prints_what_it_is():
    assert repr(mf.silu(e + b) * M) == "<matmul_fused.Expression of A, B, bias, activation='silu', multiply>"
    assert (mf.lazy(A) @ B)._results == []


def test_it_is_imported_on_first_use():
    code = (
        "import sys, matmul_fused as m; n = 'matmul_fused.expression'; print(n in sys.modules)\n"
        "m.lazy; print(n in sys.modules)"
    )
    assert python("-c", code).stdout.split() == ["False", "True"]
