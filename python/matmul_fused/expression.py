"""The lazy form: `mf.lazy(A) @ B + bias` written with operators, evaluated as one fused call.

An expression is an immutable record of what one call can do, in the order in which the call does it: product, sum,
activation, factor. What does not fit into that order is an error when it is written, never a second kernel.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _core

# The gated forms that act(x @ G) * (x @ U) is.
_GATES = {"silu": "swiglu", "swish": "swiglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh", "relu": "reglu"}
_GATES["sigmoid"] = "glu"
_LATER = "evaluate it with .eval() and go on with the result"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.floating | np.integer) and not isinstance(value, bool)


def _is_array(value: Any) -> bool:
    return hasattr(value, "__dlpack__") and hasattr(value, "ndim") and not isinstance(value, Expression)


def _refuse(what: str) -> TypeError:
    return TypeError(f"matmul_fused.lazy: {what}")


@dataclass(frozen=True, repr=False, eq=False)
class Expression:
    """A call that has not been made yet; mf.lazy makes one.

    `e @ B`, `e + bias`, `e * factor`, `mf.relu(e)` and other activations give new expressions. A number or 1-D array
    that is added is the bias, any other array is C. `.eval()`, np.asarray and DLPack run it as one call, the first time
    alone. Operands are read then, not when the expression is written.
    """

    A: Any
    B: Any = None
    bias: Any = None
    activation: Any = None
    alpha: float = 1.0
    beta: float | None = None
    C: Any = None
    multiply: Any = None
    _done: bool = False
    """True behind an activation or a factor."""
    _results: list[Any] = dataclasses.field(default_factory=list)

    def _with(self, **changes: Any) -> Expression:
        return dataclasses.replace(self, _results=[], **changes)

    # --- evaluation ---

    def eval(self, out: Any = None) -> Any:
        """The result, of the library of A; computed once. out: an array that is filled, and returned, by a new call."""
        if self.B is None:
            raise _refuse("there is nothing to compute yet; write lazy(A) @ B")
        if out is None and self._results:
            return self._results[0]
        result = _core.matmul_fused(
            self.A,
            self.B,
            self.bias,
            self.activation,
            alpha=self.alpha,
            beta=self.beta,
            C=self.C,
            multiply=self.multiply,
            out=out,
        )
        if out is None:
            self._results.append(result)
        return result

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self.eval(), dtype=dtype, copy=copy)

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.eval().__dlpack__(**keywords)

    def __dlpack_device__(self) -> Any:
        return self.eval().__dlpack_device__()

    def __repr__(self) -> str:
        parts = [name for name in ("B", "bias", "C", "activation", "multiply") if getattr(self, name) is not None]
        words = [f"{name}={self.activation!r}" if name == "activation" else name for name in parts]
        return f"<matmul_fused.Expression of A{''.join(', ' + word for word in words)}>"

    # --- operators ---

    def __matmul__(self, other: Any) -> Expression:
        if isinstance(other, Expression):
            if other.B is not None:
                raise _refuse(f"the right factor of @ is an expression already; {_LATER}")
            return self._scaled_product(self, other.A, other.alpha)
        return self._scaled_product(self, other, 1.0)

    def __rmatmul__(self, other: Any) -> Expression:
        if self.B is not None or self._done:
            raise _refuse(f"the right factor of @ is an expression already; {_LATER}")
        return Expression(other, self.A, alpha=self.alpha)

    @staticmethod
    def _scaled_product(left: Expression, B: Any, alpha: float) -> Expression:
        if left.B is not None or left._done:
            raise _refuse(f"a second product cannot be fused into the first; {_LATER}")
        return left._with(B=B, alpha=left.alpha * alpha)

    def __add__(self, other: Any) -> Expression:
        if isinstance(other, Expression):
            raise _refuse(f"the sum of two expressions is no single call; {_LATER}")
        if not _is_number(other) and not _is_array(other):
            return NotImplemented
        if self.B is None:
            raise _refuse("a sum before the product cannot be fused; write lazy(A) @ B + bias")
        if self._done:
            raise _refuse(f"a sum behind an activation or a factor cannot be fused; {_LATER}")
        if (_is_number(other) or other.ndim == 1) and self.bias is None:
            return self._with(bias=other)
        if self.C is None:
            return self._with(C=other, beta=1.0)
        raise _refuse(f"one call adds a bias and one array C, and both are there; {_LATER}")

    __radd__ = __add__

    def __mul__(self, other: Any) -> Expression:
        if isinstance(other, Expression):
            return self._times_expression(other)
        if _is_number(other) and not self._done:
            return self._scaled(float(other))
        if not _is_number(other) and not _is_array(other):
            return NotImplemented
        if self.B is None:
            raise _refuse("an array as factor of A cannot be fused; write the product first: lazy(A) @ B * factor")
        if self.multiply is not None or isinstance(self.B, tuple):
            raise _refuse(f"one call multiplies by one factor; {_LATER}")
        return self._with(multiply=other, _done=True)

    __rmul__ = __mul__

    def _scaled(self, factor: float) -> Expression:
        """factor * (alpha A @ B + beta C + bias), where the bias is no array, or C is free to take it."""
        bias, C, beta = self.bias, self.C, self.beta
        if bias is not None and not _is_number(bias):
            if C is not None:
                raise _refuse(f"a factor of a sum with a bias and C cannot be fused; {_LATER}")
            bias, C, beta = None, bias, 1.0
        return self._with(
            alpha=self.alpha * factor,
            bias=None if bias is None else bias * factor,
            C=C,
            beta=None if C is None else (1.0 if beta is None else beta) * factor,
        )

    def _times_expression(self, other: Expression) -> Expression:
        """act(x @ G + b) * (x @ U + c): a gated call."""
        gate, up = (self, other) if self.activation is not None else (other, self)
        name = gate.activation.lower() if isinstance(gate.activation, str) else None
        alike = gate.A is up.A and all(e.alpha == 1 and e.C is None and e.multiply is None for e in (gate, up))
        if name not in _GATES or up._done or not alike or isinstance(gate.B, tuple) or up.B is None:
            raise _refuse(f"this product of two expressions is no gated call; {_LATER}")
        bias = None
        if gate.bias is not None or up.bias is not None:
            bias = tuple(0.0 if e.bias is None else e.bias for e in (gate, up))
        return gate._with(B=(gate.B, up.B), bias=bias, activation=_GATES[name])

    # --- other libraries on the left ---

    __array_ufunc__ = None  # NumPy leaves its operators to those above

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "").strip("_")
        if name in ("matmul", "add", "mul") and len(args) == 2 and not kwargs:
            left, right = args
            own = {"matmul": cls.__matmul__, "add": cls.__add__, "mul": cls.__mul__}[name]
            if isinstance(left, cls):
                return own(left, right)
            return cls.__rmatmul__(right, left) if name == "matmul" else own(right, left)
        raise _refuse(f"torch's {name} of an expression cannot be fused; {_LATER}")


def lazy(A: Any) -> Expression:
    """Start an expression: `mf.silu(mf.lazy(x) @ w + b).eval()` is one call of matmul_fused.

    `@` takes B, `+` a bias (a number, a 1-D array) or C (another array), `*` numbers and, at the end, one factor;
    mf.relu(e) and the other activations of mf.activations and mf.gated_activations take an expression and their
    parameters. act(lazy(x) @ G) * (lazy(x) @ U) is the gated call. NumPy, torch and JAX arrays may stand on the left.
    np.asarray, DLPack and .eval(out=None) compute it. What is no single call raises TypeError.
    """
    return Expression(A)


def activation(name: str) -> Callable[..., Expression]:
    """The function `mf.<name>`: an expression with this activation behind it."""

    def apply(expression: Expression, /, *parameters: float) -> Expression:
        if not isinstance(expression, Expression):
            raise _refuse(f'{name} takes an expression of mf.lazy; for arrays pass activation="{name}" to matmul_fused')
        if expression.B is None:
            raise _refuse(f"an activation before the product cannot be fused; write mf.{name}(lazy(A) @ B)")
        if expression._done:
            raise _refuse(f"a second activation cannot be fused; {_LATER}")
        return expression._with(activation=(name, *parameters) if parameters else name, _done=True)

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"{name} of an expression that mf.lazy began, with the activation's parameters if it has any."
    return apply
