"""Calls that must be refused: a valid one with one thing wrong, and the exception that says so.

A row takes (world, call, arguments, keywords, rng), edits arguments (a list) or keywords, and returns the type of the
exception; None: this call cannot have that fault. Faults of capsules: hostile.py.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

import matmul_fused as mf
from matmul_fused.testing.rounding import numpy_dtype

from .draw import ACTIVATIONS, GATED, Call
from .world import DTYPES, World, pick

POSITIONS = {"A": 0, "B": 1, "bias": 2, "activation": 3}
Row = Callable[[World, Call, list[Any], dict[str, Any], Random], Any]
ROWS: list[Row] = []
_NO_ARRAYS = ([1.0], 3.0, "x", object(), {}, np.float32(1), mf, int, b"")
_BAD_OUT_DTYPES = ("int8", "single precision", np.int32, object(), 7, ">f4", np.dtype("?"), b"\xff")
_BAD_DTYPES = ("i4", "?", "c8", ">f4", "O", "g", "u1", "M8[s]", "S4")
_BAD_ACTIVATIONS: tuple[tuple[Any, type], ...] = (
    ("geluu", ValueError),
    ("", ValueError),
    ("relu_7", ValueError),
    ("x" * 100_000, ValueError),
    (3, TypeError),
    (len, TypeError),
    ((), ValueError),
    (["relu"], TypeError),
    (("relu", 1), ValueError),
    (("elu", "1"), TypeError),
    (("elu", float("nan")), ValueError),
    (("elu", 1, 2), ValueError),
    (("elu", 10**400), ValueError),
    ((None,), TypeError),
    ("clamp", ValueError),
    (("clamp", 1), ValueError),
    (("swiglu_oai", -1), ValueError),
    ("\ud800", ValueError),
    ("relu\0x", ValueError),
    ("a" + "é" * 60, ValueError),
    (("elu\0", 1), ValueError),
)


def row(function: Row) -> Row:
    ROWS.append(function)
    return function


def put(name: str, value: Any, arguments: list[Any], keywords: dict[str, Any]) -> None:
    """Replace an argument where it is, or add it."""
    at = POSITIONS.get(name, 4)
    if at < len(arguments):
        arguments[at] = value
    else:
        keywords[name] = value


def operand(world: World, call: Call, rng: Random) -> str:
    """The name of an array argument; of the given ones, or one that may be added."""
    names = ["A"] + ["B"] * (len(call.b) == 1) + ["bias"] * (len(call.bias) < 2) + ["C", "multiply"]
    return pick(rng, names)


def like(world: World, call: Call, name: str, dtype: str | None = None) -> np.ndarray:
    """A plain array that would do as the operand; C-contiguous, writable."""
    shapes = {"A": world.a_shape, "B": world.b_shape, "multiply": world.shape(call.columns)}
    width = world.n if call.layout == "pair" else call.z_columns
    shapes |= {"bias": world.shape(width), "C": world.shape(call.z_columns), "out": world.shape(call.columns)}
    shape = shapes.get(name, world.shape(call.z_columns))
    return np.zeros(shape, numpy_dtype(dtype or (call.out_dtype if name == "out" else world.dtype)))


@row
def wrong_keyword(world: World, call: Call, arguments: Any, keywords: Any, rng: Random) -> Any:
    keywords[pick(rng, ("a", "activaton", "", "self", "é", "out_"))] = None
    return TypeError


@row
def missing_weight(world: World, call: Call, arguments: Any, keywords: Any, rng: Random) -> Any:
    if len(arguments) > 1:
        del arguments[1:]
    keywords.pop("B", None)
    return TypeError


@row
def twice(world: World, call: Call, arguments: Any, keywords: Any, rng: Random) -> Any:
    if not arguments:
        return None
    keywords["A"] = arguments[0]
    return TypeError


@row
def too_many(world: World, call: Call, arguments: Any, keywords: Any, rng: Random) -> Any:
    arguments += [None] * (5 - len(arguments))
    return TypeError


@row
def no_array(world: World, call: Call, arguments: Any, keywords: Any, rng: Random) -> Any:
    name, value = operand(world, call, rng), pick(rng, _NO_ARRAYS)
    if name in ("bias", "C", "multiply") and isinstance(value, float | np.float32):  # a number may be one of these
        value = bool(value)
    put(name, value, arguments, keywords)
    return TypeError


@row
def bad_dtype(world: World, call: Call, arguments: Any, keywords: Any, rng: Random) -> Any:
    put(operand(world, call, rng), np.zeros((2, 2), pick(rng, _BAD_DTYPES)), arguments, keywords)
    return TypeError


@row
def other_dtype(world: World, call: Call, arguments: Any, keywords: Any, rng: Random) -> Any:
    name = operand(world, call, rng)
    allowed = {world.dtype} if name == "B" else {world.dtype, call.out_dtype, "float32"}
    others = [dtype for dtype in DTYPES if dtype not in allowed]
    if name == "A" or not others or (name == "bias" and call.layout == "pair"):
        return None
    put(name, like(world, call, name, pick(rng, others)), arguments, keywords)
    return TypeError


@row
def masked(world: World, call: Call, arguments: Any, keywords: Any, rng: Random) -> Any:
    kind = pick(rng, (np.ma.array, np.matrix))
    put(operand(world, call, rng), kind(np.zeros((2, 2), np.float32)), arguments, keywords)
    return TypeError


@row
def no_axis(world: World, call: Call, arguments: Any, keywords: Any, rng: Random) -> Any:
    put("A", np.zeros((), numpy_dtype(world.dtype)), arguments, keywords)
    return ValueError


@row
def other_k(world: World, call: Call, arguments: Any, keywords: Any, rng: Random) -> Any:
    shape = (*world.a_shape[:-1], world.k + rng.randint(1, 3))
    put("A", np.zeros(shape, numpy_dtype(world.dtype)), arguments, keywords)
    return ValueError


@row
def too_many_axes(world: World, call: Call, arguments: Any, keywords: Any, rng: Random) -> Any:
    put("A", np.zeros((1,) * rng.randint(9, 12), numpy_dtype(world.dtype)), arguments, keywords)
    return NotImplementedError


@row
def no_broadcast(world: World, call: Call, arguments: Any, keywords: Any, rng: Random) -> Any:
    """An epilogue operand that does not fit, or would enlarge the result."""
    name = pick(rng, ("C", "multiply") if call.layout == "pair" else ("bias", "C", "multiply"))
    shape = like(world, call, name).shape
    if rng.random() < 0.5:
        shape = (*shape[:-1], shape[-1] + 2) if shape else (2,)
    elif len(shape) < 8:
        shape = (2, *shape)
    else:
        return None
    put(name, np.zeros(shape, numpy_dtype(world.dtype)), arguments, keywords)
    return ValueError


@row
def output_shape(world: World, call: Call, arguments: Any, keywords: Any, rng: Random) -> Any:
    name = pick(rng, ("out", "preactivation"))
    shape = like(world, call, name).shape
    shape = (*shape[:-1], shape[-1] + 1) if shape and rng.random() < 0.7 else (1, *shape)
    if len(shape) > 8:
        return None
    keywords[name] = np.zeros(shape, numpy_dtype(call.out_dtype))
    return ValueError


@row
def read_only(world: World, call: Call, arguments: Any, keywords: Any, rng: Random) -> Any:
    name = pick(rng, ("out", "preactivation"))
    array = like(world, call, name)
    array.flags.writeable = False
    keywords[name] = array
    return ValueError


@row
def self_overlapping(world: World, call: Call, arguments: Any, keywords: Any, rng: Random) -> Any:
    name = pick(rng, ("out", "preactivation"))
    array = like(world, call, name)
    axes = [axis for axis, length in enumerate(array.shape) if length > 1]
    if not array.size or not axes:
        return None
    strides = list(array.strides)
    strides[pick(rng, axes)] = 0
    keywords[name] = np.ndarray(array.shape, array.dtype, array, 0, strides)
    return ValueError


@row
def shared_memory(world: World, call: Call, arguments: Any, keywords: Any, rng: Random) -> Any:
    """An output that begins where an operand begins."""
    target = pick(rng, ("out", "preactivation"))
    name = operand(world, call, rng)
    unread = {"A": call.alpha == 0, "B": call.alpha == 0 or call.b[0].kind == "packed", "bias": call.layout == "pair"}
    unread["C"] = target == "out" or call.scale == 0 or call.c is None
    if unread.get(name):
        return None
    result, source = like(world, call, target), like(world, call, name)
    if not result.size or not source.size:
        return None
    memory = np.zeros(max(result.nbytes, source.nbytes), np.uint8)
    keywords[target] = memory[: result.nbytes].view(result.dtype).reshape(result.shape)
    put(name, memory[: source.nbytes].view(source.dtype).reshape(source.shape), arguments, keywords)
    return ValueError


@row
def beta_alone(world: World, call: Call, arguments: Any, keywords: Any, rng: Random) -> Any:
    keywords.pop("C", None)
    keywords["beta"] = pick(rng, (0, 1.0, np.float32(2)))
    return ValueError


@row
def bad_scalar(world: World, call: Call, arguments: Any, keywords: Any, rng: Random) -> Any:
    name = pick(rng, ("alpha", "beta")) if "C" in keywords and keywords["C"] is not None else "alpha"
    value = pick(rng, (np.ones(1), 1j, "1", [1.0], object(), 10**400, np.complex64(1)))
    keywords[name] = value
    return ValueError if type(value) is int else TypeError


@row
def bad_activation(world: World, call: Call, arguments: Any, keywords: Any, rng: Random) -> Any:
    value, error = pick(rng, _BAD_ACTIVATIONS)
    put("activation", value, arguments, keywords)
    return error


@row
def bad_gate_layout(world: World, call: Call, arguments: Any, keywords: Any, rng: Random) -> Any:
    value = pick(rng, ("thirds", "", 1, b"halves", "Halves", "halves\0", "é" * 90, "\udcff"))
    keywords["gate_layout"] = value
    return ValueError if isinstance(value, str) else TypeError


@row
def gate_without_need(world: World, call: Call, arguments: Any, keywords: Any, rng: Random) -> Any:
    if call.layout not in (None, "pair"):
        return None
    keywords["gate_layout"] = "halves"
    return ValueError


@row
def gated_or_not(world: World, call: Call, arguments: Any, keywords: Any, rng: Random) -> Any:
    """A pair or a packed gate without a gated activation; odd columns, or plain panels, with one."""
    if call.layout is None:
        odd = call.b[0].kind == "packed" or world.vector_b or world.n % 2
        put("activation", pick(rng, GATED), arguments, keywords)
        return ValueError if odd else None
    if call.layout != "pair" and call.b[0].kind != "packed":
        return None
    keywords.pop("gate_layout", None)
    put("activation", pick(rng, ACTIVATIONS), arguments, keywords)
    return ValueError


@row
def bad_tuple(world: World, call: Call, arguments: Any, keywords: Any, rng: Random) -> Any:
    count = pick(rng, (0, 1, 3, 5))
    name = pick(rng, ("B", "bias"))
    put(name, (call.a.argument,) * count, arguments, keywords)
    return ValueError


@row
def mixed_pair(world: World, call: Call, arguments: Any, keywords: Any, rng: Random) -> Any:
    if call.layout != "pair" or not world.packable:
        return None
    plain = like(world, call, "B")
    weight = mf.prepack(plain)
    put("B", pick(rng, ((plain, weight), (weight, plain))), arguments, keywords)
    return TypeError


@row
def packed_elsewhere(world: World, call: Call, arguments: Any, keywords: Any, rng: Random) -> Any:
    if not world.packable:
        return None
    put(pick(rng, ("A", "bias", "C", "multiply", "out")), mf.prepack(like(world, call, "B")), arguments, keywords)
    return TypeError


@row
def bad_flags(world: World, call: Call, arguments: Any, keywords: Any, rng: Random) -> Any:
    if rng.random() < 0.5:
        keywords["stream"] = pick(rng, (0, 1, -1, object()))
        return ValueError
    keywords["allow_tf32"] = pick(rng, (0, 1, None, "yes"))
    return TypeError


@row
def bad_out_dtype(world: World, call: Call, arguments: Any, keywords: Any, rng: Random) -> Any:
    keywords["out_dtype"] = pick(rng, _BAD_OUT_DTYPES)
    return TypeError


@row
def out_dtype_disagrees(world: World, call: Call, arguments: Any, keywords: Any, rng: Random) -> Any:
    if call.out is None:
        return None
    keywords["out_dtype"] = pick(rng, [dtype for dtype in DTYPES if dtype != call.out_dtype])
    return ValueError


@row
def bad_memory(world: World, call: Call, arguments: Any, keywords: Any, rng: Random) -> Any:
    """A misaligned address, or a stride between items."""
    name = operand(world, call, rng)
    array = like(world, call, name)
    size = array.itemsize
    if rng.random() < 0.5 or max(array.shape, default=0) < 2:
        memory = np.zeros(array.nbytes + 2 * size, np.uint8)
        start = 1 + -memory.__array_interface__["data"][0] % size
        bad = np.ndarray(array.shape, array.dtype, memory, start)
    else:
        memory = np.zeros((size + 1) * max(array.shape) * (array.size + 1) + 64, np.uint8)
        start = -memory.__array_interface__["data"][0] % size
        strides = [s + (length > 1) for s, length in zip(array.strides, array.shape, strict=True)]
        bad = np.ndarray(array.shape, array.dtype, memory, start, strides)
    put(name, bad, arguments, keywords)
    return ValueError
