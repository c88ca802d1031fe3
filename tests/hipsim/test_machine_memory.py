"""Every opcode of the shipped kernels that reads or writes memory, by inline assembly, byte for byte.

Each runs with scattered addresses, an immediate offset and a third of the lanes off. What it must do is the words of
the ISA documents: so many bytes from the address on, those of less than a register extended by zeros, or put into one
half of it (d16); lanes that are off keep their register and write nothing; a buffer reads zeros past its records.
"""

import re

import numpy as np
import pytest

import hipsim
from hipsim import Module
from hipsim.compile import object_of
from hipsim.instruction_forms import opcode
from hipsim.test_machine_pseudocode import FAMILY, shipped

LANES, BYTES, OFFSET, RECORDS = 64, 4096, 48, 3000
NARROW = {"ubyte": 1, "u8": 1, "ushort": 2, "u16": 2, "short": 2, "b16": 2}
OPCODE = re.compile(r"(global|buffer|ds|s)_(load|store|read|write)2?_(?:2addr_)?(d16_hi_|d16_)?(dwordx?|b)?(\w+)?")
TRANSPOSED = "ds_read_b64_tr_b16"
TWO = re.compile(r"ds_(read|write)2_.*|ds_(load|store)_2addr_.*")  # elements of LDS, each with an offset


def size_of(name):
    """(space, whether it loads, half, bytes) of an opcode."""
    space, way, half, unit, rest = OPCODE.fullmatch(name).groups()
    if rest and rest.endswith(("_d16", "_d16_hi")):  # of LDS
        rest, _, high = rest.partition("_d16")
        half = f"d16{high}_"
    if unit == "b" and rest != "16":
        size = int(rest.split("_")[0]) // 8 * (2 if TWO.fullmatch(name) else 1)
    elif unit and unit.startswith("dword"):
        size = 4 * int(rest or 1)
    else:
        size = NARROW[(unit or "") + rest]
    return space, way in ("load", "read"), half or "", size


def kernel(part, name):
    """Source of a kernel: in -> registers -> out, by the instruction."""
    space, loads, _, size = size_of(name)
    wait = "s_wait_loadcnt 0\\n s_wait_storecnt 0\\n s_wait_dscnt 0\\n s_wait_kmcnt 0" if part.arch == "gfx1201" else ""
    wait = wait or "s_waitcnt vmcnt(0) lgkmcnt(0)" + ("\\n s_waitcnt_vscnt null, 0" if part.arch == "gfx1100" else "")
    words, unit = max(size // 4, 1), max(size // 2, 1)
    on = "1" if space == "s" or name == TRANSPOSED else "x % 3"
    place = {
        "global": (f"off offset:{OFFSET}", '"v"(base + at[x])'),
        "buffer": (f"%2, {'null' if part.arch == 'gfx1201' else 0} offen offset:{OFFSET}", '"v"(at[x]), "s"(records)'),
        "ds": (f"offset:{OFFSET}", '"v"(at[x])'),
        "two": (f"offset0:{OFFSET // unit} offset1:{OFFSET // unit + 3}", '"v"(at[x])'),
        "s": (f"{OFFSET:#x}", '"s"(base + at[0])'),
    }["two" if TWO.fullmatch(name) else space]
    tail = f", {place[0]}" if space != "ds" else f" {place[0]}"
    kind = "s" if space == "s" else "v"
    operands = f'"+{kind}"(r) : {place[1]}' if loads else f': "v"(r), {place[1]}'
    order = "%0, %1" if loads or space == "buffer" else "%1, %0"
    if TWO.fullmatch(name) and not loads:  # two elements, each with its registers
        halves = ("r.x", "r.y") if words == 2 else ("r.xy", "r.zw")
        operands, order = f': "v"({halves[0]}), "v"({halves[1]}), {place[1]}', "%2, %0, %1"
    text = f'asm volatile("{name} {order}{tail}\\n {wait}" : {operands} : "memory");'
    return f"""
typedef unsigned words {f"__attribute__((ext_vector_type({words})))" if words > 1 else ""};
typedef unsigned four __attribute__((ext_vector_type(4)));
__device__ inline void barrier()
{{
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}}
extern "C" __global__ void GROUP(64) k(char *base, const unsigned *at, words *registers, unsigned *memory)
{{
    __shared__ unsigned lds[{BYTES // 4}];
    unsigned x = item_x;
    four records = {{(unsigned)(unsigned long)base, (unsigned)((unsigned long)base >> 32), {RECORDS}, 0x27000}};
    words r = registers[{"0" if space == "s" else "x"}];
    for (unsigned i = x; i < {BYTES // 4}; i += 64)
        lds[i] = ((unsigned *)base)[i];
    barrier();
    if ({on}) {{ {text} }}
    registers[x] = r;
    barrier();
    for (unsigned i = x; i < {BYTES // 4}; i += 64)
        memory[i] = lds[i];
}}"""


def expected(name, memory, at, registers):
    """(memory, registers) after the instruction."""
    space, loads, half, size = size_of(name)
    memory, registers = memory.copy(), registers.copy()
    before = registers.copy()
    if name == TRANSPOSED:  # 16 lanes hold four rows of 16 elements, four in each lane, and get a column each
        rows = np.stack([memory[int(x) + OFFSET :][:8].view(np.uint16) for x in at]).reshape(-1, 4, 16)
        return memory, np.ascontiguousarray(rows.transpose(0, 2, 1)).reshape(LANES, 4).view(np.uint32)
    for lane in range(LANES):
        if space == "s":
            registers[lane] = np.frombuffer(memory[at[0] + OFFSET :][:size].tobytes().ljust(4, b"\0"), np.uint32)
            continue
        if lane % 3 == 0:
            continue
        place = int(at[lane]) + OFFSET
        if TWO.fullmatch(name):
            parts = [slice(first, first + size // 2) for first in (place, place + 3 * size // 2)]
            if loads:
                registers[lane] = np.concatenate([memory[part] for part in parts]).view(np.uint32)
            else:
                memory[parts[0]], memory[parts[1]] = before[lane].view(np.uint8).reshape(2, -1)
            continue
        shift = 2 if half == "d16_hi_" else 0
        register = before[lane].view(np.uint8)[shift:]
        data = memory[place : place + size].copy()
        part = min(size, 4)
        inside = np.repeat([space != "buffer" or place + at + part <= RECORDS for at in range(0, size, part)], part)
        if not loads:
            memory[place : place + size] = np.where(inside, register[:size], data)
            continue
        data[~inside] = 0
        new = registers[lane].view(np.uint8)
        if half:
            new[shift : shift + 2] = 0
        elif size < 4:
            new[:4] = 0
        new[shift : shift + size] = data
    return memory, registers


@pytest.mark.parametrize("arch", FAMILY)
def test_memory_forms(arch, rng):
    part = hipsim.Device(arch)
    names = sorted({opcode(mnemonic) for mnemonic, _ in shipped(arch)})
    names = [name for name in names if OPCODE.fullmatch(name)]
    if not shipped(arch):
        pytest.skip("this build has no AMD objects")
    assert names
    for name in names:
        space, loads, _, size = size_of(name)
        memory = rng.integers(0, 256, BYTES, np.uint8)
        step = 16 if not loads else max(size, 4) if size >= 4 or space == "s" else size
        at = rng.permutation((BYTES - OFFSET - 2 * size) // step)[:LANES].astype(np.uint32) * np.uint32(step)
        registers = rng.integers(0, 2**32, (LANES, max(size // 4, 1)), np.uint32)
        want = expected(name, memory, at, registers)
        pitch = 4 if registers.shape[1] == 3 else registers.shape[1]  # a vector of three lies in four words
        padded = np.zeros((LANES, pitch), np.uint32)
        padded[:, : registers.shape[1]] = registers
        base, held, shown = part.array(memory), part.array(padded), part.empty(BYTES // 4, np.uint32)
        with Module(part, object_of(kernel(part, name), arch)) as module:
            module["k"](1, 64, base, part.array(at), held, shown)
            got = part.to_numpy(held)[:, : registers.shape[1]]
        part.assert_clean()
        after = part.to_numpy(shown).view(np.uint8) if space == "ds" else part.to_numpy(base)
        assert np.array_equal(got, want[1]), f"{name}: registers"
        assert np.array_equal(after, want[0]), f"{name}: memory"
