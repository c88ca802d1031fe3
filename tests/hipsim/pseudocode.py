"""AMD's pseudo-code of instructions, evaluated: an independent statement for test_machine_pseudocode.py.

The text comes from the ISA documents by way of PyPI's tinygrad (abi/fetch.py). It is nearly Python: `compiled` rewrites
what is not (if/then, ?:, {a, b}, 32'U(x)), and `State` holds the registers that its names mean. A register reads as
Bits, a whole number that knows its place, so that D0[31 : 16].f16 = x writes there.
"""

from __future__ import annotations

import ast
import functools
import re
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

FLOATS: dict[int, Any] = {16: np.float16, 32: np.float32, 64: np.float64}
WORDS: dict[int, Any] = {16: np.uint16, 32: np.uint32, 64: np.uint64}
SHAPES = {np.float32: (24, -126), np.float64: (53, -1022)}  # digits, least exponent


def table(path: Path) -> dict[str, str]:
    """Opcode without its encoding -> pseudo-code, of one of tinygrad's str_pcode.py."""
    entries = next(node.value for node in ast.parse(path.read_text()).body if isinstance(node, ast.Assign))
    assert isinstance(entries, ast.Dict)
    pairs = [(key.attr.lower(), value.value) for key, value in zip(entries.keys, entries.values, strict=True)]
    return {re.sub(r"_e(32|64)$", "", name): text for name, text in pairs}


def from_bits(raw: int, width: int) -> Any:
    return WORDS[width](raw).view(FLOATS[width])


def to_bits(kind: str, width: int, value: Any) -> int:
    if kind == "f":
        return int(FLOATS[width](value).view(WORDS[width]))
    return int(value) & ((1 << width) - 1)


class Bits(int):
    """`width` bits from bit `low` of the register `name` of a state; without a state, a value."""

    def __new__(cls, value: int, width: int = 64, place: tuple[State, str, int] | None = None) -> Bits:
        self = int.__new__(cls, value)
        self.__dict__.update(width=width, place=place)
        return self

    def __getattr__(self, name: str) -> Any:
        if not re.fullmatch(r"[uibf]\d+", name):
            raise AttributeError(name)
        kind, width = name[0], int(name[1:])
        raw = int(self) & ((1 << width) - 1)
        if kind == "f":
            return from_bits(raw, width)
        return Bits(raw - (raw >> width - 1 << width) if kind == "i" else raw, width, self.place)

    def __setattr__(self, name: str, value: Any) -> None:
        state, register, low = self.place
        kind, width = ("b", 16) if name == "bf16" else (name[0], int(name[1:]))
        state.put(register, low, width, to_bits(kind, width, value))

    def _range(self, key: Any) -> tuple[int, int]:
        first, last = (key.start, key.stop) if isinstance(key, slice) else (key, key)
        return min(first, last), abs(first - last) + 1

    def __getitem__(self, key: Any) -> Bits:
        low, width = self._range(key)
        value = int(self) >> low & ((1 << width) - 1)
        if isinstance(key, slice) and key.start < key.stop:
            return Bits(int(f"{value:0{width}b}"[::-1], 2), width)
        state, register, offset = self.place or (None, "", 0)
        return Bits(value, width, (state, register, offset + low) if state is not None else None)

    def __setitem__(self, key: Any, value: Any) -> None:
        low, width = self._range(key)
        state, register, offset = self.place
        state.put(register, offset + low, width, int(value) & ((1 << width) - 1))


class State(dict):
    """Names of the pseudo-code. A whole number reads as Bits; what is written to a name is kept as it is.

    `code` (opcode -> pseudo-code) has what a text calls like a function, as v_med3_f32 does v_max_f32.
    """

    def __init__(self, code: dict[str, str], **names: Any) -> None:
        super().__init__(**names)
        self.code = code

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        return Bits(value, 64, (self, name, 0)) if isinstance(value, int) else value

    def __missing__(self, name: str) -> Any:
        if name in FUNCTIONS:
            raise KeyError(name)
        text = self.code[name]

        def call(*sources: Any) -> Any:
            given = {f"S{k}": to_bits("f", 32, x) for k, x in enumerate(sources)}
            return execute(text, self.code, D0=0, **given)["D0"].f32

        return call

    def put(self, name: str, low: int, width: int, raw: int) -> None:
        mask = (1 << width) - 1 << low
        dict.__setitem__(self, name, (int(dict.__getitem__(self, name)) & ~mask) | (raw << low))


class Subnormal:
    """`x == DENORM.f32`: x is subnormal."""

    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, least: float) -> None:
        self.least = least

    def __eq__(self, x: object) -> bool:
        return bool(0 < abs(x) < self.least)  # type: ignore[arg-type]


def fma(a: Any, b: Any, c: Any, scale: int = 0) -> Any:
    """(a * b + c) * 2 ** scale, rounded once, to nearest even."""
    if not (np.isfinite(a) and np.isfinite(b)):
        return a * b + c
    if not np.isfinite(c):
        return c
    product = Fraction(float(a)) * Fraction(float(b))
    exact = (product + Fraction(float(c))) * Fraction(2) ** scale
    if exact == 0:  # signs of zeros add up, other sums that vanish are +0
        return np.copysign(type(a)(0), a) * np.copysign(type(a)(1), b) + c if product == 0 else type(a)(0)
    digits, least = SHAPES[type(a)]
    top = abs(exact.numerator).bit_length() - exact.denominator.bit_length()
    power = max(top if abs(exact) >= Fraction(2) ** top else top - 1, least) - digits + 1
    return np.copysign(
        np.ldexp(type(a)(abs(round(exact / Fraction(2) ** power))), power), type(a)(float(exact > 0) - 0.5)
    )


def is_signalling(x: Any) -> bool:
    return bool(np.isnan(x)) and not to_bits("f", 32, x) >> 22 & 1


def bfloat(x: Any) -> int:
    """The bits of a float32 rounded to bfloat16, to nearest even."""
    word = to_bits("f", 32, x)
    return word >> 16 | 0x40 if np.isnan(x) else word + 0x7FFF + (word >> 16 & 1) >> 16


def whole(x: Any, least: int, most: int) -> int:
    return 0 if np.isnan(x) else int(min(max(float(np.trunc(x)), least), most))


def exponent(x: Any) -> int:
    word, digits = WORDS[x.itemsize * 8], SHAPES[type(x)][0]
    return int(x.view(word)) >> digits - 1 & (1 << x.itemsize * 8 - digits) - 1


def cast(kind: str, width: int, x: Any) -> Any:
    if kind == "F":
        return from_bits(x, width) if isinstance(x, int) and x else FLOATS[width](x)
    raw = int(x) & ((1 << width) - 1)
    return Bits(raw - (raw >> width - 1 << width) if kind == "I" else raw, width)


def join(*parts: Bits) -> Bits:
    value = 0
    for part in parts:
        value = value << part.width | int(part) & ((1 << part.width) - 1)
    return Bits(value, sum(part.width for part in parts))


def maximum(a: Any, b: Any) -> Any:
    """v_maximum_f32, which gfx950 has within v_maximum3_f32 alone: a NaN wins, and +0 over -0."""
    if a == b:
        return b if np.signbit(a) else a
    return np.maximum(a, b)


FUNCTIONS: dict[str, Any] = {
    "Bits": Bits, "cast": cast, "join": join, "f32": np.float32, "f64": np.float64,
    "INF": np.float64(np.inf), "NAN": np.float64(np.nan), "ROUND_NEAREST_EVEN": 0,
    "DENORM": SimpleNamespace(f32=Subnormal(2.0**-126), f64=Subnormal(2.0**-1022)),
    "UNDERFLOW_F32": np.float32(0), "UNDERFLOW_F64": np.float64(0),
    "OVERFLOW_F32": np.float32(np.inf), "OVERFLOW_F64": np.float64(np.inf),
    "fma": fma, "v_maximum_f32": maximum, "exponent": exponent, "trunc": np.trunc, "mantissa": lambda x: np.frexp(x)[0],
    "frexp_exp": lambda x: int(np.frexp(x)[1]), "pow": lambda _, y: np.exp2(np.float64(y)),
    "ldexp": lambda x, n: np.ldexp(x, max(-5000, min(5000, int(n)))),
    "isNAN": np.isnan, "isSignalNAN": is_signalling, "isQuietNAN": lambda x: np.isnan(x) and not is_signalling(x),
    "WAVE_MODE": SimpleNamespace(IEEE=True), "TRAPSTS": SimpleNamespace(), "f32_to_bf16": bfloat,
    "sign": lambda x: bool(np.signbit(x)), "cvtToQuietNAN": lambda x: x, "signext": lambda x: x,
    "u32_to_f32": np.float32, "i32_to_f32": np.float32, "i32_to_f64": np.float64, "f32_to_f64": np.float64,
    "f64_to_f32": np.float32, "f16_to_f32": np.float32, "f32_to_f16": np.float16,
    "f32_to_u32": lambda x: whole(x, 0, 2**32 - 1),
    "s_ff1_i32_b64": lambda x: (x & -x).bit_length() - 1, "s_ff1_i32_b32": lambda x: (x & -x).bit_length() - 1,
}  # fmt: skip
WRITTEN = [  # what is spelled differently in Python
    (r"is(Signal|Quiet|)NAN\(64'F\(([^()]*)\)\)", r"is\1NAN(\2)"),  # NumPy's conversion makes a NaN quiet
    (r"^lambda\((.*?)\) \(", r"lambda \1: ("),
    (r"(\d+)'([UIFB])\(", r"cast('\2', \1, "),
    (r"(\d+)'(0x[0-9a-f]+|\d+)U?", r"Bits(\2, \1)"),
    (r"\b(0x[0-9a-f]+|\d+)(?:ULL|LL|U)\b", r"\1"),
    (r"(\S+) \* 2\.0F? \*\* (\S+)", r"ldexp(\1, \2)"),
    (r"\b(\d+\.\d+)F\b", r"f32(\1)"),
    (r"(?<![(.\d])\b(\d+\.\d+)\b(?!\))", r"f64(\1)"),
    (r"\b(INF|NAN)\.f\d+", r"\1"),
    (r"<>", "!="), (r"&&", " and "), (r"\|\|", " or "), (r"!(?!=)", " not "),
]  # fmt: skip


def _conditions(text: str) -> str:
    """a ? b : c and {a, b}, from the innermost brackets outwards."""
    hidden: list[str] = []

    def choose(inner: str) -> str:
        if "?" not in inner:
            return inner
        condition, rest = inner.split("?", 1)
        yes, no = rest.split(":", 1)
        return f"(({yes.strip()}) if ({condition.strip()}) else ({choose(no).strip()}))"

    def hide(match: re.Match[str]) -> str:
        opening, inner = match[0][0], match[0][1:-1]
        hidden.append({"(": f"({choose(inner)})", "[": match[0], "{": f"join({inner})"}[opening])
        return f"\0{len(hidden) - 1}\0"

    count = 1
    while count:
        text, count = re.subn(r"\([^()\[\]{}]*\)|\[[^()\[\]{}]*\]|\{[^()\[\]{}]*\}", hide, text)
    text = choose(text)
    while "\0" in text:
        text = re.sub(r"\0(\d+)\0", lambda match: hidden[int(match[1])], text)
    return text


def _expression(text: str) -> str:
    for pattern, replacement in WRITTEN:
        text = re.sub(pattern, replacement, text)
    return _conditions(text.strip()).strip()


@functools.cache
def compiled(text: str) -> Any:
    lines, depth = [], 0
    rest = ""
    for line in re.split(r"[;\n]", re.sub(r"//.*", "", text)):
        statement = f"{rest} {line}".strip()
        rest = statement if statement.count("(") > statement.count(")") else ""
        if rest:
            continue
        if match := re.fullmatch(r"(if|elsif) (.*) then", statement):
            depth -= match[1] == "elsif"
            lines.append("    " * depth + f"{match[1].replace('elsif', 'elif')} {_expression(match[2])}:")
            depth += 1
        elif statement == "else":
            lines.append("    " * (depth - 1) + "else:")
        elif statement == "endif":
            depth -= 1
        elif match := re.fullmatch(r"declare (\w+) : .*", statement):
            lines.append("    " * depth + f"{match[1]} = 0")
        elif match := re.fullmatch(r"\{ D1\.u1, D0\.u64 \} = (.*)", statement):
            lines.append(f"D0 = {_expression(match[1])}\nD1 = D0[64]\nD0 = D0[63 : 0]")
        elif match := re.fullmatch(r"([^=]+?) = (.*)", statement):
            lines.append("    " * depth + f"{match[1]} = {_expression(match[2])}")
        elif statement:
            raise SyntaxError(f"not understood: {statement}")
    return compile("\n".join(lines), "<pseudo-code>", "exec")


def execute(text: str, code: dict[str, str], **registers: Any) -> State:
    """The registers after it, those of one lane: laneId is 0."""
    state = State(code, laneId=0, **dict.fromkeys(("tmp", "tmp0", "tmp1"), 0), **registers)
    exec(compiled(text), FUNCTIONS, state)
    return state
