"""Run one case through matmul_fused and judge it: what `check`, the tests and the benches call.

Role: the top of matmul_fused.testing. Another array library or device comes in as a Transfer, another
implementation of the call as `library`.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from . import force_kernel
from .cases import Case
from .devices import DeviceTransfer
from .inputs import Inputs, Operand, make_inputs, result_shape
from .reference import Expected, Figures, assert_close, expect
from .rounding import Array, numpy_dtype

# With small integers these have results without any rounding in the accumulator.
_EXACT = {"none", "relu", "leaky_relu(-0.5)", "clamp(-0.5:0.75)", "clamp(0:6)", "clamp(0.75:-0.5)"}


class Transfer(Protocol):
    """Takes operands to another library or device, and what the call wrote back."""

    def send(self, operand: Operand) -> Any:
        """An array with the operand's values, shape and, where the library has them, strides."""

    def fetch(self, operand: Operand, array: Any) -> None:
        """Copy the memory behind what send() gave back into operand.buffer, guards too."""

    def to_numpy(self, array: Any) -> Array:
        """A result as a NumPy array."""


class NumPyTransfer:
    """The views themselves."""

    def send(self, operand: Operand) -> Any:
        return operand.view

    def fetch(self, operand: Operand, array: Any) -> None:
        pass

    def to_numpy(self, array: Any) -> Array:
        if not isinstance(array, np.ndarray):
            raise AssertionError(f"NumPy operands gave a {type(array).__name__}")
        return array


@dataclass(frozen=True)
class Outcome:
    """How the results of a case fit."""

    case: Case
    out: Figures
    preactivation: Figures | None


def call_arguments(inputs: Inputs, xp: Transfer, library: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keyword arguments of the call, and the arrays by operand name."""
    case, operands = inputs.case, inputs.operands
    sent = {id(operand): xp.send(operand) for operand in operands.values()}
    arrays = {name: sent[id(operand)] for name, operand in operands.items()}  # in place: C is out
    numbers = {name: int(x) if x.is_integer() else x for name, x in inputs.numbers.items()}
    gate = case.gate_layout if case.gate_layout not in ("", "default", "pair") else None

    def weight(name: str) -> Any:
        array = arrays[name]
        if not case.prepack:
            return array
        keywords = {} if case.gate_layout in ("", "pair") else {"gate_layout": gate or "halves"}
        if case.prepack is not True:
            keywords["layout"] = case.prepack
        return library.prepack(array, **keywords)

    def pair(name: str, get: Any) -> Any:
        if name not in operands and name not in numbers:
            return None
        return (get(name), get(name + "_up")) if case.gate_layout == "pair" else get(name)

    arguments: dict[str, Any] = {
        "A": arrays["A"],
        "B": pair("B", weight),
        "bias": pair("bias", (numbers | arrays).__getitem__),
        "activation": case.activation_argument,
        "alpha": case.alpha,
        "gate_layout": gate,
        "allow_tf32": case.allow_tf32,
    }
    for name in ("C", "multiply", "preactivation", "out"):
        if name in operands or name in numbers:
            arguments[name] = (numbers | arrays)[name]
    if case.beta is not None:
        arguments["beta"] = case.beta
    if case.out_dtype:
        arguments["out_dtype"] = case.out_dtype
    return arguments, arrays


def check(case: Case, inputs: Inputs, outputs: Array | None) -> Outcome:
    """Judge a call that has run: AssertionError with the worst element, or the figures.

    inputs: what make_inputs gave, its out and preactivation written. outputs: the new array that the
    call returned, or None if out was given.
    """
    shape = result_shape(case)
    operands = inputs.operands
    for operand in {id(o): o for o in operands.values()}.values():
        damage = operand.damage()
        if damage:
            raise AssertionError(damage)
    for name in ("out", "preactivation"):
        if name in operands:
            unwritten = operands[name].unwritten()
            if unwritten is not None:
                first = tuple(int(i) for i in np.argwhere(unwritten)[0])
                raise AssertionError(f"{name}: {int(unwritten.sum())} elements unwritten, first {first}")
    out = operands["out"].view if "out" in operands else outputs
    if out is None or out.shape != shape:
        raise AssertionError(f"out has shape {None if out is None else out.shape}, not {shape}")
    if out.dtype != numpy_dtype(case.result_dtype):
        raise AssertionError(f"out has dtype {out.dtype}, not {case.result_dtype}")
    expected, expected_z = _cached_results(inputs)
    figures_z = None
    if "preactivation" in operands:
        z = operands["preactivation"].view
        figures_z = assert_close(z, expected_z, case.preactivation, "preactivation")
    return Outcome(case, assert_close(out, expected, case.result_dtype), figures_z)


_latest: dict[tuple[Case, int], tuple[Expected, Expected]] = {}  # one entry


def _cached_results(inputs: Inputs) -> tuple[Expected, Expected]:
    """expected_results, kept for the next run of the same case: a sweep runs it on every kernel."""
    key = inputs.case, inputs.seed
    expected = _latest.get(key)
    if expected is None:
        expected = expected_results(inputs)
        _latest.clear()
        _latest[key] = expected
    return expected


def expected_results(inputs: Inputs) -> tuple[Expected, Expected]:
    """What reference.expect says of (out, preactivation) for these inputs."""
    case, values = inputs.case, inputs.values

    def pair(name: str) -> Any:
        pairs = case.gate_layout == "pair" and (name in inputs.operands or name in inputs.numbers)
        return (values(name), values(name + "_up")) if pairs else values(name)

    dyadic = case.alpha != 0.3 and case.beta != 0.7
    return expect(
        values("A"),
        pair("B"),
        pair("bias"),
        case.activation_argument,
        alpha=case.alpha,
        beta=case.beta,
        C=values("C"),
        multiply=values("multiply"),
        gate_layout=case.gate_layout or None,
        allow_tf32=case.allow_tf32,
        exact=case.values == "integers" and dyadic and case.activation in _EXACT,
    )


def run_case(
    case: Case,
    seed: int,
    kernel: str | None = None,
    xp: Transfer | None = None,
    library: ModuleType | Any = None,
) -> Outcome:
    """Make the inputs of a case, call matmul_fused on them and check everything that it may write.

    kernel: the row to force. xp: how operands reach another library or device. library: what has
    matmul_fused() and prepack(), if it is not this package. Raises AssertionError with the way to
    repeat the case, and whatever the call itself raises.
    """
    if library is None:
        import matmul_fused as library
    xp = xp or NumPyTransfer()
    inputs = make_inputs(case, seed)
    with force_kernel(kernel) if kernel else nullcontext():
        arguments, arrays = call_arguments(inputs, xp, library)
        result = library.matmul_fused(**arguments)
    try:
        fresh = None
        if "out" in arrays:
            if result is not arrays["out"]:
                raise AssertionError("out was given, but the call returned another object")
        else:
            fresh = xp.to_numpy(result)
            if not fresh.flags.c_contiguous:
                raise AssertionError(f"a new result is not C-contiguous: strides {fresh.strides}")
        for name, array in arrays.items():  # inputs too: they may not have changed
            xp.fetch(inputs.operands[name], array)
        return check(case, inputs, fresh)
    except AssertionError as error:
        raise AssertionError(f"{error}\nrepeat: {repeat(case, seed, kernel, xp)}") from None


def repeat(case: Case, seed: int, kernel: str | None = None, xp: Transfer | None = None) -> str:
    """A line of Python that runs the case again."""
    forced = f", kernel={kernel!r}" if kernel else ""
    device = f", xp={xp!r}" if isinstance(xp, DeviceTransfer) else ""
    return f"matmul_fused.testing.run_case(Case.parse({case.id!r}), {seed}{forced}{device})"
