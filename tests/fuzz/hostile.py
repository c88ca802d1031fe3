"""Capsules that lie, and what they must get. A row edits a Capsule over a good view of an operand.

A row takes (capsule, view, rng) and returns the type of the exception, None where this view cannot carry that lie, or
VALID where it must be taken as what it says.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from .producers import CODES, READ_ONLY, Capsule, Keeper, libc
from .world import pick

Row = Callable[[Capsule, np.ndarray, Random], Any]
ROWS: list[Row] = []
HUGE = (2**31, 2**40, 2**62, 2**63 - 1)


def row(function: Row) -> Row:
    ROWS.append(function)
    return function


@row
def version(capsule: Capsule, view: np.ndarray, rng: Random) -> Any:
    """Of another major version only the deleter may be used: the rest is nonsense."""
    if not capsule.versioned:
        return None
    capsule.fields.update(major=pick(rng, (0, 2, 3, 2**31, 2**32 - 1)), data=8, ndim=99, dtype=(77, 77, 77), shape=None)
    return BufferError


@row
def item(capsule: Capsule, view: np.ndarray, rng: Random) -> Any:
    code, bits = CODES[view.dtype.name]
    wrong = (
        (code, bits, 0),
        (code, bits, 2),
        (code, bits, 65535),
        (0, bits, 1),
        (255, bits, 1),
        (code, 8, 1),
        (6, 0, 1),
    )
    capsule.fields["dtype"] = pick(rng, wrong)
    return TypeError


@row
def axes(capsule: Capsule, view: np.ndarray, rng: Random) -> Any:
    count = pick(rng, (-1, -(2**31), 9, 64, 2**31 - 1))
    capsule.fields["ndim"] = count
    return BufferError if count < 0 else NotImplementedError


@row
def no_shape(capsule: Capsule, view: np.ndarray, rng: Random) -> Any:
    if not view.ndim:
        return None
    capsule.fields["shape"] = None
    return BufferError


@row
def negative_length(capsule: Capsule, view: np.ndarray, rng: Random) -> Any:
    if not view.ndim:
        return None
    lengths = list(view.shape)
    lengths[int(rng.random() * view.ndim)] = -pick(rng, (1, 2, *HUGE))
    capsule.fields["shape"] = tuple(lengths)
    if rng.random() < 0.5:
        capsule.fields["strides"] = None
    return BufferError


@row
def huge(capsule: Capsule, view: np.ndarray, rng: Random) -> Any:
    """Lengths that no memory holds: whatever the other arguments are, they do not fit these."""
    if not view.ndim:
        return None
    capsule.fields["shape"] = tuple(pick(rng, HUGE) - axis for axis in range(view.ndim))
    if rng.random() < 0.6:
        capsule.fields["strides"] = None
    elif rng.random() < 0.5:
        capsule.fields["strides"] = tuple(pick(rng, (*HUGE, -(2**63), 0, 1)) for _ in range(view.ndim))
    if rng.random() < 0.3:
        capsule.fields["data"] = 0
        return BufferError
    return (ValueError, BufferError, MemoryError)


@row
def no_memory(capsule: Capsule, view: np.ndarray, rng: Random) -> Any:
    if not view.size:
        return None
    capsule.fields["data"] = 0
    return BufferError


@row
def misaligned(capsule: Capsule, view: np.ndarray, rng: Random) -> Any:
    """An odd offset, also one that wraps around."""
    capsule.fields["byte_offset"] = pick(rng, (1, 3, 2**64 - 1, 2**63 + 1))
    return ValueError


@row
def unknown_device(capsule: Capsule, view: np.ndarray, rng: Random) -> Any:
    capsule.said_device = capsule.fields["device"] = (pick(rng, (0, 4, 7, 99, -1)), 0)
    return NotImplementedError


@row
def other_device(capsule: Capsule, view: np.ndarray, rng: Random) -> Any:
    """On a GPU by its own account, with another operand here: nobody may look at its memory."""
    capsule.said_device = capsule.fields["device"] = (pick(rng, (2, 10, 13)), pick(rng, (0, 3)))
    capsule.fields["data"] = 4096
    return ValueError


@row
def devices_disagree(capsule: Capsule, view: np.ndarray, rng: Random) -> Any:
    device = pick(rng, ((2, 0), (1, 1), (10, 0), (2**32 + 1, 0), (1, 2**32), (1, -1), (2**100, 0)))
    if max(device) < 2**32 and rng.random() < 0.5:
        capsule.fields["device"] = device
    else:
        capsule.said_device = device
    return BufferError


@row
def no_device(capsule: Capsule, view: np.ndarray, rng: Random) -> Any:
    capsule.said_device = pick(rng, (None, [1, 0], (1,), (1, 0, 0), 1, "cpu", ("cpu", 0), (1, None), (2.0, 0)))
    return BufferError


class Wrong(Capsule):
    """A producer whose methods do something else."""

    def __init__(self, act: Callable[[Capsule], Any], capsule: Capsule) -> None:
        self.__dict__.update(capsule.__dict__)
        self.act = act

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.act(self)


_OTHER = ctypes.create_string_buffer(b"other")
_USED = ctypes.create_string_buffer(b"used_dltensor")
_new = ctypes.pythonapi.PyCapsule_New


def _raise(error: BaseException) -> Any:
    try:
        raise error
    finally:
        del error  # else its traceback's frame holds it: a cycle, which outlives the call until a collection


_ACTS: tuple[tuple[Callable[[Capsule], Any], type], ...] = (
    (lambda self: None, BufferError),
    (lambda self: 7, BufferError),
    (lambda self: self.view, BufferError),
    (lambda self: _new(4096, _OTHER, None), BufferError),
    (lambda self: _new(4096, _USED, None), BufferError),
    (lambda self: _new(4096, None, None), BufferError),
    (lambda self: _raise(TypeError("no")), BufferError),
    (lambda self: _raise(RuntimeError("no")), BufferError),
    (lambda self: _raise(MemoryError()), MemoryError),
    (lambda self: _raise(KeyboardInterrupt()), KeyboardInterrupt),
    (lambda self: _raise(StopIteration), BufferError),
)


@row
def wrong_method(capsule: Capsule, view: np.ndarray, rng: Random) -> Any:
    act, error = pick(rng, _ACTS)
    capsule.__class__ = Wrong
    capsule.act = act  # type: ignore[attr-defined]
    return error


VALID = "valid"


@row
def no_deleter(capsule: Capsule, view: np.ndarray, rng: Random) -> Any:
    """Nothing to release: the block stays ours."""
    capsule.__class__ = Keeper
    capsule.fields["deleter"] = 0
    return VALID


@row
def wrapped_offset(capsule: Capsule, view: np.ndarray, rng: Random) -> Any:
    """data + byte_offset wraps around to the right address."""
    offset = 64 * pick(rng, (1, 2**57, 2**57 - 1, 2**58 - 1))
    capsule.fields["data"] = (capsule.fields["data"] + capsule.fields["byte_offset"] - offset) % 2**64
    capsule.fields["byte_offset"] = offset
    return VALID if view.size and capsule.fields["data"] else None


@row
def later_minor(capsule: Capsule, view: np.ndarray, rng: Random) -> Any:
    capsule.fields.update(minor=pick(rng, (0, 4, 2**32 - 1)), flags=pick(rng, (2, 4, 2**63, READ_ONLY)))
    return VALID


@row
def odd_strides(capsule: Capsule, view: np.ndarray, rng: Random) -> Any:
    """Strides of axes that have one element, or of an array that has none, mean nothing."""
    strides = [
        pick(rng, (*HUGE, -(2**63), -1)) if length == 1 or not view.size else stride // view.itemsize
        for stride, length in zip(view.strides, view.shape, strict=True)
    ]
    capsule.fields["strides"] = tuple(strides)
    return VALID


@row
def frees_itself(capsule: Capsule, view: np.ndarray, rng: Random) -> Any:
    """The producer goes on with its own work in __dlpack__: it allocates and frees memory of the same size."""
    capsule.__class__ = Wrong
    capsule.act = lambda self: (libc.free(ctypes.c_void_p(libc.malloc(128))), Capsule.__dlpack__(self))[1]  # type: ignore[attr-defined]
    return VALID
