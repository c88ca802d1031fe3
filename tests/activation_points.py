"""Shared by tests of activations: one at every point of an array, and how far it is off."""

import numpy as np

from matmul_fused.testing import Case
from matmul_fused.testing.formulas import resolve
from matmul_fused.testing.propagate import magnitude
from matmul_fused.testing.rounding import FORMATS, overflow_as, widen


def argument(name):
    return Case(1, 1, 1, activation=name).activation_argument


def worst_ratio(z, result, name):
    """The greatest error / (8 u |exact| + 4 L u |z|) over the points, where it is, and its error in u |exact|."""
    dtype = z.dtype.name
    form = FORMATS[dtype]
    got = widen(result, np.dtype(np.longdouble if dtype == "float64" else np.float64))
    _, row, parameters = resolve(argument(name))
    with np.errstate(all="ignore"):
        wide = widen(z, got.dtype)
        exact = overflow_as(row.f(wide, *parameters), dtype)
        reach = form.unit * (magnitude(wide) + row.shift)
        if row.other is not None:  # z is exact, parameters are rounded: the branch that is nearer
            either, there, _ = row.other(wide, reach, *parameters)
            exact = np.where(either & (np.abs(got - there) < np.abs(got - exact)), there, exact)
        slope = row.lipschitz(wide, np.zeros(()), *parameters)
        allowed = 8 * form.unit * np.abs(exact) + 4 * slope * reach + 4 * form.least
        error = np.abs(got - exact)
        same = (got == exact) | (np.isnan(got) & np.isnan(exact))
        ratio = np.where(same, 0, np.where(np.isfinite(error) & np.isfinite(allowed), error / allowed, np.inf))
    at = int(np.argmax(ratio))
    units = error[at] / (form.unit * abs(exact[at])) if ratio[at] else 0.0
    return float(ratio[at]), z[at], got[at], exact[at], float(units)


def describe(accounts, name, dtype, worst, device=""):
    """Put it into the account of the run."""
    row = {"activation": name, "dtype": dtype, "ratio": worst[0]} | ({"device": device} if device else {})
    if worst[0]:
        row |= {"z": float(worst[1]), "got": float(worst[2]), "exact": float(worst[3]), "error_in_u": worst[4]}
    accounts.record("activations", row)
    where = f" at z = {worst[1]!s}" if worst[0] else ""
    accounts.say(
        "activations: greatest error / (8 u |exact| + 4 L u |z|)",
        f"{name} {dtype}: {worst[0]:.3f}{where}{device and f' on {device}'}",
    )
