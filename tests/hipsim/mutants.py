"""Mutants of a loaded kernel: one word of its machine code changed on the simulated device, its uses unchanged.

A site is an instruction that may be mutated: a wait (dropped, or one of its counters weakened by one), a barrier
(dropped), a guard (EXEC is saved but not narrowed), an s_nop against a hazard (shortened)."""

from __future__ import annotations

import contextlib
import ctypes
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .library import library

S_NOP = 0xBF800000
EXEC = 126
S_MOV = {"b64": 1, "b32": 0}  # opcodes of SOP1, the same on all parts


@dataclass(frozen=True)
class Instruction:
    index: int
    offset: int
    text: str


@dataclass(frozen=True)
class Mutant:
    site: Instruction
    kind: str  # "wait dropped", "wait weakened", "barrier dropped", "guard dropped", "nop shortened"
    words: tuple[int, ...]  # in place of the instruction

    def __str__(self) -> str:
        return f"0x{self.site.offset:x} {self.site.text}: {self.kind}"


class Kernel:
    """A kernel that the extension has loaded."""

    def __init__(self, device: int, name: str) -> None:
        self.device, self.name, self._key = device, name, (device, name.encode())
        count = library().hipsim_instructions(*self._key)
        if not count:
            raise ValueError(f"no kernel {name} is loaded on device {device}")
        self.instructions = [self.instruction(index) for index in range(count)]

    def instruction(self, index: int) -> Instruction:
        """As it is now."""
        offset = ctypes.c_uint64()
        text = library().hipsim_instruction(*self._key, index, ctypes.byref(offset))
        return Instruction(index, offset.value, text.decode())

    def executed(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Since the last call, by instruction: how often it executed; how often as a wait that was not idle."""
        counts = np.zeros(len(self.instructions), np.uint64)
        if library().hipsim_executed(*self._key, counts.ctypes.data):
            raise MemoryError
        return counts & 0xFFFFFFFF, counts >> np.uint64(32)

    def _patch(self, offset: int, word: int) -> int:
        before = ctypes.c_uint32()
        if library().hipsim_patch(*self._key, offset, word, ctypes.byref(before)):
            raise ValueError(f"{self.name} has no code at {offset}")
        return before.value

    def words(self, site: Instruction) -> tuple[int, ...]:
        """The instruction's own words."""
        after = site.index + 1
        end = self.instructions[after].offset if after < len(self.instructions) else site.offset + 4
        offsets = range(site.offset, min(end, site.offset + 12), 4)
        found = tuple(self._patch(offset, 0) for offset in offsets)
        for offset, word in zip(offsets, found, strict=True):
            self._patch(offset, word)
        return found

    def guarded(self, guard: Instruction) -> str:
        """What the lanes that a guard turns off would reach first, as far as its block goes: "memory", "a guard" before
        it, or no memory but "LDS" or "registers"."""
        saved = re.match(r"s_and_saveexec_b\d+ ([^,]+),|", guard.text)[1]
        touched, memory = "registers", "memory"
        for at in self.instructions[guard.index + 1 :]:
            if re.match(r"s_(or|mov)_b\d+ exec", at.text) and (saved is None or at.text.endswith(saved)):
                break
            if re.match(r"s_and_saveexec|v_cmpx", at.text):
                memory = "a guard"
            if re.match(r"global_|buffer_|flat_", at.text):
                return memory
            touched = "LDS" if at.text.startswith("ds_") else touched
        return touched

    @contextlib.contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """The kernel is the mutant inside of the block."""
        offset = mutant.site.offset
        before = [self._patch(offset + 4 * i, word) for i, word in enumerate(mutant.words)]
        try:
            yield
        finally:
            for i, word in enumerate(before):
                self._patch(offset + 4 * i, word)

    def mutants(self) -> Iterator[Mutant]:
        gfx = 12 if any(i.text.startswith("s_wait_dscnt") for i in self.instructions) else 9
        gfx = 11 if any(i.text.startswith("s_waitcnt_depctr") for i in self.instructions) else gfx
        for site in self.instructions:
            if re.match(r"s_waitcnt (?!depctr)|s_wait_(load|store|ds|km)cnt", site.text):
                (word,) = self.words(site)
                yield Mutant(site, "wait dropped", (S_NOP,))
                yield from (Mutant(site, "wait weakened", (w,)) for w in _weakened(gfx, word, site.text))
            elif re.match(r"s_barrier\b|s_barrier_signal", site.text):
                drop = (S_NOP,)
                if site.text.startswith("s_barrier_signal"):  # and the s_barrier_wait behind it
                    drop = _without_wait(self, site)
                yield Mutant(site, "barrier dropped", drop)
            elif match := re.match(r"s_and_saveexec_(b32|b64)", site.text):
                (word,) = self.words(site)
                yield Mutant(site, "guard dropped", (word & ~0xFFFF | S_MOV[match[1]] << 8 | EXEC,))
            elif site.text.startswith("v_cmpx_"):
                yield Mutant(site, "guard dropped", tuple(S_NOP for _ in self.words(site)))
            elif (match := re.match(r"s_nop (\d+)", site.text)) and int(match[1]):
                yield Mutant(site, "nop shortened", (S_NOP + int(match[1]) - 1,))


def _without_wait(kernel: Kernel, site: Instruction) -> tuple[int, ...]:
    """The words from an s_barrier_signal to its s_barrier_wait, without either."""
    index = site.index
    while not kernel.instructions[index].text.startswith("s_barrier_wait"):
        index += 1
    words = [word for i in kernel.instructions[site.index : index + 1] for word in kernel.words(i)]
    return (S_NOP, *words[1:-1], S_NOP)


# Where a counter lies in the 16 bits of a wait: parts of (shift, bits), the lowest first.
_FIELDS = {
    9: {"vmcnt": ((0, 4), (14, 2)), "lgkmcnt": ((8, 4),)},
    11: {"vmcnt": ((10, 6),), "lgkmcnt": ((4, 6),)},
}


def _weakened(gfx: int, word: int, text: str) -> Iterator[int]:
    """The instruction with one of its counters one higher."""
    if gfx == 12:
        fields = {"load": ((8, 6),), "ds": ((0, 6),)} if "loadcnt_dscnt" in text else {"cnt": ((0, 6),)}
    else:
        fields = {name: parts for name, parts in _FIELDS[gfx].items() if f"{name}(" in text}
    for parts in fields.values():
        value = shift = 0
        for at, bits in parts:
            value |= (word >> at & (1 << bits) - 1) << shift
            shift += bits
        if value + 1 >= 1 << shift:
            continue
        value, new = value + 1, word
        for at, bits in parts:
            mask = (1 << bits) - 1
            new = new & ~(mask << at) | (value & mask) << at
            value >>= bits
        yield new


def kernel_names(definitions: str, arch: str) -> dict[str, tuple[str, str, str]]:
    """name -> (family, operands, layout) of the rows of kernels.def for a part; a step's family is its source."""
    pattern = r"^MMF_GPU_(?:KERNEL|STEP)\((\w+), (\w+), (\w+), (?:\d+, ){5}(\w+), ([\w |]+)\)$"
    rows = re.findall(pattern, definitions, re.MULTILINE)
    return {n: (f, o.lower(), lay) for n, f, o, lay, to in rows if to == "ALL" or arch.upper() in to.split(" | ")}
