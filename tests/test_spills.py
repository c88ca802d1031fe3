"""Inner loops of AVX2, AVX-512 and AMX, in the disassembly of the extension: compilers keep sums in registers.

A loop that stores a sum to the stack and loads it again in every turn waits for both: tiles of three rows by two
panels took 1.6 times as long on AVX2. What counts is a vector that a turn stores to the stack and loads whole.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

import pytest

import matmul_fused._core

# Loops that may spill, and vectors that they may: dot products and lines of two and three rows, two tiles of GCC.
MOST = {"ymm": (6, 10), "zmm": (6, 10), "tmm": (0, 0)}
LEAST = {"ymm": 80, "zmm": 150, "tmm": 1}  # loops that are found
LONGEST = 8192  # bytes of a loop
LINE = re.compile(r"^\s+([0-9a-f]+):\s+(\S+)\s*([^#<]*)")
PRODUCT = re.compile(r"(vfn?madd\d+p[sd]|vdpbf16ps|tdpbf16ps)$")
# Instructions of products, loads, stores and addresses. Loops with others are activations and conversions.
PLAIN = re.compile(
    r"vfn?madd\d+p|vmov|mov|vbroadcast|vadd|vdpbf16ps$|tdpbf16ps$|tile|vcvtph2ps$|vpmovzxwd$|vpslld$|vpand|vandp"
    r"|vp?x?or|vperm|prefetch|add$|sub$|lea|cmp|j|inc|dec|xor|nop|test|neg|cs$|data16$|shl$|imul|and$|or$|cmov|cltq"
)
SLOT = re.compile(r"(-?(?:0x)?[0-9a-f]*\(%r[sb]p[^)]*\))")

Instruction = tuple[int, str, str]


def instructions(text: str) -> list[Instruction]:
    return [(int(m[1], 16), m[2], m[3].strip()) for m in map(LINE.match, text.split("\n")) if m]


def inner_loops(code: Sequence[Instruction]) -> list[Sequence[Instruction]]:
    """What lies between a jump backwards and its target, unless another loop lies in it."""
    addresses = [address for address, _, _ in code]
    found = []
    for at, (address, name, operand) in enumerate(code):
        target = re.match(r"[0-9a-f]+", operand) if name.startswith("j") else None
        if target and 0 <= address - int(target[0], 16) <= LONGEST:
            found.append((bisect_left(addresses, int(target[0], 16)), at))
    found.sort(key=lambda loop: loop[1] - loop[0])
    inner: list[tuple[int, int]] = []
    taken = [False] * len(code)
    for begin, end in found:
        if not any(taken[begin : end + 1]):
            inner.append((begin, end))
        taken[begin : end + 1] = [True] * (end + 1 - begin)
    return [code[begin : end + 1] for begin, end in inner]


def spills(loop: Sequence[Instruction]) -> int:
    """Vectors that a turn stores to a place on the stack and loads whole from there."""
    stored, loaded = set(), set()
    for _, name, operands in loop:
        slot = SLOT.search(operands)
        if not slot or not re.search(r"%[xyz]mm", operands) or name.startswith("vbroadcast"):
            continue
        (stored if name.startswith("vmov") and operands.endswith(slot[0]) else loaded).add(slot[0])
    return len(stored & loaded)


def count(text: str) -> tuple[Counter[str], Counter[str], Counter[str], list[str]]:
    """Of each kind of register: loops of products, those that spill, vectors that they spill; and where."""
    loops, spilling, spilled, where = Counter[str](), Counter[str](), Counter[str](), []
    for loop in inner_loops(instructions(text)):
        products = [operands for _, name, operands in loop if PRODUCT.match(name)]
        if len(products) < 4 or not all(PLAIN.match(name) for _, name, _ in loop):
            continue
        kind = next(kind for kind in ("tmm", "zmm", "ymm", "xmm") if any(kind in operands for operands in products))
        loops[kind] += 1
        if n := spills(loop):
            spilling[kind] += 1
            spilled[kind] += n
            where.append(f"{loop[0][0]:x}: {kind}, {len(products)} products, {n} spilled")
    return loops, spilling, spilled, where


SUMS = "\n".join(f" {0x10 + 4 * i:x}:\tvfmadd231ps %ymm{i},%ymm8,%ymm{i + 9}" for i in range(4))


def test_a_spill_is_counted() -> None:
    begin, end = " 8:\tvmovups 0x40(%rsp),%ymm9\n", "\n 20:\tvmovups %ymm9,0x40(%rsp)\n 24:\tjne    8 <x>\n"
    assert count(begin + SUMS + end)[:2] == ({"ymm": 1}, {"ymm": 1})
    assert count(begin + SUMS + end)[2] == {"ymm": 1}
    other = end.replace("0x40", "0x80")  # not what is loaded
    assert count(begin + SUMS + other)[:2] == ({"ymm": 1}, {})
    division = "\n 20:\tvdivps %ymm1,%ymm2,%ymm3\n 24:\tjne    8 <x>\n"  # an activation
    assert count(begin + SUMS + division)[:2] == ({}, {})


@pytest.mark.skipif(platform.machine() != "x86_64", reason="loops of x86-64")
def test_inner_loops_keep_sums_in_registers() -> None:
    objdump = shutil.which("objdump")
    if not objdump:
        pytest.skip("objdump (binutils) is not here")
    command = [objdump, "-d", "--no-show-raw-insn", "-j", ".text", matmul_fused._core.__file__]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    loops, spilling, spilled, where = count(text)
    missing = [kind for kind, least in LEAST.items() if loops[kind] < least]
    assert not missing, f"loops are missing: {loops}"
    over = [kind for kind, (most, vectors) in MOST.items() if spilling[kind] > most or spilled[kind] > vectors]
    assert not over, "\n".join(where)
