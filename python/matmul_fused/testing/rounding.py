"""Correct rounding to the four dtypes, in NumPy alone (ml_dtypes provides the dtype object only).

Role: the bottom of matmul_fused.testing. Casts are not used, because ml_dtypes rounds float64 to bfloat16 twice
(through float32); frexp, rint and ldexp are exact and work for float64 and for np.longdouble alike.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]


class Format(NamedTuple):
    """A binary floating-point format: significand bits (the implicit one included), least and greatest exponent."""

    bits: int
    emin: int
    emax: int

    @property
    def unit(self) -> float:
        """The unit roundoff: half the distance from 1 to the next number."""
        return 2.0**-self.bits

    @property
    def greatest(self) -> float:
        return (2.0 - 2.0 ** (1 - self.bits)) * 2.0**self.emax

    @property
    def least(self) -> float:
        """The least positive subnormal number."""
        return 2.0 ** (self.emin - self.bits + 1)

    @property
    def least_normal(self) -> float:
        return 2.0**self.emin


FORMATS = {
    "float32": Format(24, -126, 127),
    "float64": Format(53, -1022, 1023),
    "float16": Format(11, -14, 15),
    "bfloat16": Format(8, -126, 127),
}
DTYPES = tuple(FORMATS)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype called name. ImportError if it is bfloat16 and ml_dtypes is not installed."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def have_bfloat16() -> bool:
    try:
        numpy_dtype("bfloat16")
    except ImportError:
        return False
    return True


def wide_dtype(name: str) -> np.dtype[Any]:
    """The dtype that the reference of a call with operands of this dtype is computed in."""
    return np.dtype(np.longdouble if name == "float64" else np.float64)


def widen(x: Any, wide: np.dtype[Any]) -> Array:
    """x in float64 or np.longdouble; exact for the four dtypes."""
    x = np.asarray(x)
    if x.dtype != np.longdouble:
        x = x.astype(np.float64)
    return x.astype(wide, copy=False)


def ulp(x: Array, name: str) -> Array:
    """The distance between neighbours of the format at |x| (x: float64 or longdouble; the result alike).

    Below the least normal number it is the least subnormal one; at inf and NaN it means nothing.
    """
    format_ = FORMATS[name]
    _, exponent = np.frexp(x)  # |x| = [0.5, 1) * 2**exponent
    quantum = np.where(x == 0, format_.emin + 1, np.maximum(exponent, format_.emin + 1)) - format_.bits
    return np.ldexp(np.ones((), x.dtype), quantum)


def round_to(x: Array, name: str) -> Array:
    """x rounded once to the format, to nearest, ties to even, in x's own wide dtype. Overflow gives an infinity."""
    format_ = FORMATS[name]
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if name == "float64" and x.dtype == np.float64:
            return x
        if name == "float32" and x.dtype == np.float64:
            return x.astype(np.float32).astype(np.float64)  # one rounding, in hardware
        _, exponent = np.frexp(x)
        quantum = np.maximum(exponent, format_.emin + 1) - format_.bits
        rounded = np.ldexp(np.rint(np.ldexp(x, -quantum)), quantum)
        return np.where(np.abs(rounded) > format_.greatest, np.copysign(x.dtype.type(np.inf), x), rounded)


def overflow_as(x: Array, name: str) -> Array:
    """x with every value that would round to an infinity in the format replaced by that infinity; others as is."""
    format_ = FORMATS[name]
    limit = x.dtype.type(format_.greatest) + x.dtype.type(2.0) ** (format_.emax - format_.bits)
    if x.dtype == np.float64 and name == "float64":
        return x
    return np.where(np.abs(x) >= limit, np.copysign(x.dtype.type(np.inf), x), x)
