"""`matmul_fused` for jax: arguments, shapes and errors while jax traces, then one XLA FFI call; derivatives of it.

What XLA runs is csrc/xla/handler.c. Operands reach it in one form: all with the same number of axes, matrix axes
last, so that jax.vmap needs no more than another axis in front of them (vmap_method="expand_dims").
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from matmul_fused import _core

from . import activations

# The number changes with what the handler expects: programs may be stored.
_TARGET = "matmul_fused_v1"
# XLA keeps its targets as long as the process lives; the same ones again, after a reload, are none the worse.
for _platform, _handler in _core._xla_handlers():
    jax.ffi.register_ffi_target(_TARGET, _handler, platform=_platform)

# Names and order of csrc/problem/operands.def.
_ORDER = ("A", "B", "B[1]", "bias", "bias[1]", "C", "multiply")


class _Terms(NamedTuple):
    """All of a call but its arrays."""

    activation: str = "none"
    parameters: tuple[float, ...] = ()
    gate_layout: str | None = None
    alpha: float = 1.0
    beta: float | None = None
    out_dtype: str | None = None
    preactivation: bool = False  # z is a second result
    transposed: str = ""  # the operand whose last two axes change places: A or B


def matmul_fused(
    A: Any,
    B: Any,
    bias: Any = None,
    activation: Any = None,
    *,
    alpha: float = 1.0,
    beta: float | None = None,
    C: Any = None,
    multiply: Any = None,
    preactivation: bool = False,
    gate_layout: str | None = None,
    out_dtype: Any = None,
) -> Any:
    """activation(alpha * (A @ B) + beta * C + bias) * multiply in one kernel, under jax.jit, grad and vmap.

    The arguments mean what they mean in matmul_fused.matmul_fused, but preactivation: True gives the pair
    (result, z), z in the dtype of the result. Arrays are those of jax or NumPy; alpha, beta, activation and its
    parameters are Python values, which jax does not trace. Gradients are those of A, B, bias, C and multiply.
    """
    operands = {"A": _array(A, "A"), **_pair(B, "B"), **_pair(bias, "bias", True)}
    for name, value in (("C", C), ("multiply", multiply)):
        if value is not None:
            operands[name] = _array(value, name, True)
    name, parameters, layout = _core._activation(activation)
    dtype = None if out_dtype is None else np.dtype(out_dtype).name
    terms = _Terms(
        name,
        parameters,
        _one_layout(name, layout, gate_layout, operands),
        _number(alpha, "alpha"),
        None if beta is None else _number(beta, "beta"),
        dtype,
        bool(preactivation),
    )
    return _call(terms, operands)


# --- arguments ---


def _array(value: Any, name: str, number: bool = False) -> Any:
    """An array of jax or NumPy as it is, a number (where there may be one) as a float."""
    if isinstance(value, jax.Array | np.ndarray):
        return value
    if number and isinstance(value, int | float | np.number) and not isinstance(value, bool):
        return float(value)
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    raise TypeError(f"{name} is a {kind}; matmul_fused.jax takes arrays of jax or NumPy{' and numbers' * number}")


def _pair(value: Any, name: str, number: bool = False) -> dict[str, Any]:
    if value is None and number:
        return {}
    if not isinstance(value, tuple):
        return {name: _array(value, name, number)}
    if len(value) != 2:
        raise ValueError(f"{name} is a tuple of {len(value)}; a pair is (gate, up)")
    return {name: _array(value[0], f"{name}[0]", number), f"{name}[1]": _array(value[1], f"{name}[1]", number)}


def _number(value: Any, name: str) -> float:
    if isinstance(value, jax.core.Tracer):
        raise TypeError(f"{name} is traced by jax; it must be a Python number, which is compiled into the call")
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    return float(value)


def _one_layout(name: str, said: str | None, given: str | None, operands: dict[str, Any]) -> str | None:
    """The gate layout that the activation says by its name, or that was given, or the default."""
    if said is not None and (given not in (None, said) or "B[1]" in operands):
        what = "B is a pair (gate, up)" if "B[1]" in operands else f"gate_layout is {given}"
        raise ValueError(f"the activation is {name} with gate_layout {said} by its name, but {what}; pass {name!r}")
    if name in activations.GATED and "B[1]" not in operands:
        return said or given or "halves"
    return given  # refused where there is no gate to lay out


def _stand_in(value: Any, name: str) -> Any:
    """An array of the same shape and dtype without memory of its own."""
    if isinstance(value, float) or (value.weak_type and value.ndim == 0):
        return 0.0
    if not isinstance(value.dtype, np.dtype):
        raise TypeError(f"{name} is an array of {value.dtype}, which are no numbers")
    return np.broadcast_to(np.zeros((), value.dtype), value.shape)


def _check(terms: _Terms, operands: dict[str, Any]) -> None:
    """Let the extension say what does not fit, as it does outside of jax."""
    shapes = {name: _stand_in(value, name) for name, value in operands.items()}
    for name in ("B", "bias"):
        if f"{name}[1]" in shapes:
            shapes[name] = (shapes[name], shapes.pop(f"{name}[1]"))
    _core.explain(
        shapes.pop("A"),
        shapes.pop("B"),
        activation=(terms.activation, *terms.parameters),
        alpha=terms.alpha,
        beta=terms.beta,
        gate_layout=terms.gate_layout,
        out_dtype=terms.out_dtype,
        **shapes,
    )


# --- one form for every call ---


def _align(value: Any, batch: int, has_row: bool, has_column: bool) -> Any:
    """An operand of the epilogue, which broadcasts to the result, with the axes that A and B have."""
    axes = batch + has_row + has_column
    value = value.reshape((1,) * (axes - value.ndim) + value.shape)
    value = value if has_row else jnp.expand_dims(value, batch)
    return value if has_column else value[..., None]


@functools.partial(jax.jit, static_argnums=0, inline=True)
def _call(terms: _Terms, operands: dict[str, Any]) -> Any:
    _check(terms, operands)
    if "B[1]" in operands and "bias" in operands:  # of a pair of weights: a pair, or a number for both
        operands = {"bias[1]": operands["bias"], **operands}
    A, B = operands["A"], operands["B"]
    wide = jnp.promote_types(A.dtype, jnp.float32)
    has_row, has_column = A.ndim > 1, B.ndim > 1
    aligned = {"A": A if has_row else A[None]}
    for name in ("B", "B[1]"):
        if name in operands:
            aligned[name] = operands[name] if has_column else operands[name][:, None]
    axes = max(value.ndim for value in aligned.values())
    for name, value in aligned.items():
        aligned[name] = value.reshape((1,) * (axes - value.ndim) + value.shape)
    for name in _ORDER[3:]:
        if name in operands:
            value = operands[name]
            if value.weak_type and value.ndim == 0:
                value = value.astype(wide)
            aligned[name] = _align(value, axes - 2, has_row, has_column)
    if terms.beta is None:
        terms = terms._replace(beta=1.0 if "C" in operands else 0.0)
    results = [_without(result, has_row, has_column) for result in _fused(terms, aligned)]
    return tuple(results) if terms.preactivation else results[0]


def _without(result: Any, has_row: bool, has_column: bool) -> Any:
    result = result if has_column else result[..., 0]
    axis = -2 if has_column else -1
    return result if has_row else result.squeeze(axis)


# --- the call, and its derivative ---


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _fused(terms: _Terms, operands: dict[str, Any]) -> tuple[Any, ...]:
    """(result,) or (result, z) of operands in the one form."""
    A, B = operands["A"], operands["B"]
    names = [name for name in _ORDER if name in operands]
    rows = A.shape[-1] if terms.transposed == "A" else A.shape[-2]
    columns = B.shape[-2] if terms.transposed == "B" else B.shape[-1]
    columns *= 2 if "B[1]" in operands else 1
    batch = np.broadcast_shapes(A.shape[:-2], B.shape[:-2])
    dtype = A.dtype if terms.out_dtype is None else np.dtype(terms.out_dtype)
    z = jax.ShapeDtypeStruct((*batch, rows, columns), dtype)
    gated = terms.activation in activations.GATED
    out = jax.ShapeDtypeStruct((*batch, rows, columns // 2 if gated else columns), dtype)
    parameters = dict(zip(("p0", "p1", "p2", "p3"), map(np.float64, terms.parameters), strict=False))
    call = jax.ffi.ffi_call(_TARGET, (out, z) if terms.preactivation else (out,), vmap_method="expand_dims")
    results = call(
        *(operands[name] for name in names),
        operands=",".join(name + ".T" * (name == terms.transposed) for name in names),
        activation=terms.activation,
        gate_layout=terms.gate_layout or "",
        alpha=np.float64(terms.alpha),
        beta=np.float64(terms.beta),
        **parameters,
    )
    return tuple(results)  # a list in jax 0.5


def _forward(terms: _Terms, operands: dict[str, Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    if terms.activation == "none" and "multiply" not in operands:
        results = _fused(terms, operands)
        return results, (operands, None)
    if terms.activation == "relu" and "multiply" not in operands:  # has the slope of z, which is not kept
        results = _fused(terms, operands)
        return results, (operands, results[0])
    result, z = _fused(terms._replace(preactivation=True), operands)
    return (result, z) if terms.preactivation else (result,), (operands, z)


def _sum_to(value: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """The gradient of an operand that broadcast."""
    axes = tuple(i for i, size in enumerate(shape) if size != value.shape[i])
    return (value.sum(axes, keepdims=True) if axes else value).astype(dtype)


def _product(alpha: float, A: Any, B: Any, transposed: str, out_dtype: Any, C: Any = None) -> Any:
    terms = _Terms(alpha=alpha, beta=0.0 if C is None else 1.0, transposed=transposed, out_dtype=out_dtype.name)
    return _fused(terms, {"A": A, "B": B} | ({} if C is None else {"C": C}))[0]


def _gradient_of_weight(alpha: float, A: Any, dz: Any, B: Any) -> Any:
    """A.T @ dz, summed over the leading axes that B has not: where it has none, by one product."""
    batch = dz.shape[:-2]
    if B.shape[:-2] != batch and all(size == 1 for size in B.shape[:-2]):
        A = jnp.broadcast_to(A, (*batch, *A.shape[-2:]))
        A, dz = (x.reshape((1,) * len(batch) + (-1, x.shape[-1])) for x in (A, dz))
        return _product(alpha, A, dz, "A", B.dtype)
    wide = jnp.promote_types(B.dtype, jnp.float32) if B.shape[:-2] != batch else B.dtype
    return _sum_to(_product(alpha, A, dz, "A", wide), B.shape, B.dtype)


def _swap(terms: _Terms, operands: dict[str, Any]) -> dict[str, Any]:
    """With the axes of the transposed operand as the products have them, or back."""
    name = terms.transposed
    return operands | {name: operands[name].swapaxes(-1, -2)} if name else operands


def _backward(terms: _Terms, kept: tuple[Any, ...], gradients: tuple[Any, ...]) -> tuple[dict[str, Any]]:
    operands, z = kept
    operands = _swap(terms, operands)  # of a derivative of derivatives
    A = operands["A"]
    wide = jnp.promote_types(A.dtype, jnp.float32)
    d = gradients[0].astype(wide)
    found = {}
    if z is None:
        dz = d
    else:
        act = functools.partial(activations.apply, terms.activation, terms.parameters, terms.gate_layout)
        value, pull = jax.vjp(act, z.astype(wide))
        if "multiply" in operands:
            found["multiply"] = d * value
            d = d * operands["multiply"].astype(wide)
        (dz,) = pull(d)
    if terms.preactivation:
        dz = dz + gradients[1].astype(wide)
    if "C" in operands:
        found["C"] = terms.beta * dz
    weights = [name for name in ("B", "B[1]") if name in operands]
    parts = [dz] if len(weights) == 1 else jnp.split(dz, 2, axis=-1)
    dA = None
    for name, bias, part in zip(weights, ("bias", "bias[1]"), parts, strict=False):
        found[bias] = part
        narrow = part.astype(A.dtype)
        last = name == weights[-1] and A.shape[:-2] == dz.shape[:-2]
        dA = _product(terms.alpha, narrow, operands[name], "B", A.dtype if last else wide, dA)
        found[name] = _gradient_of_weight(terms.alpha, A, narrow, operands[name])
    found["A"] = dA
    summed = {name: _sum_to(found[name], value.shape, value.dtype) for name, value in operands.items()}
    return (_swap(terms, summed),)


_fused.defvjp(_forward, _backward)
