"""Facts from the machine code of every shipped AMD object, without running it: registers, memory, spills, the hot loop.

    python bench/amd_static.py [--objects DIR] [--json FILE] [--write]
    python bench/amd_static.py --build DIR [--json FILE]

Objects are those embedded in the installed package, or of a folder as `python -m matmul_fused info --objects` writes
it. --write puts the table into docs/amd_objects.md, which tests/test_device_objects.py compares with the build. Needs
msgpack and pyelftools (notes of a code object) and rocm-llvm-python (LLVM's disassembler).

--build: what device code costs instead, seconds and KB of every object, from a build folder with ninja's log
(pip install -C build-dir=DIR); for all targets. Seconds are of a machine that may have done more besides.

The hot loop is the innermost loop with a barrier that has the most products (of gemm_gemv, without barriers: with many
loads). Its columns: products (matrix instructions, else fused multiply-adds), their share of the loop's instructions,
then the other instructions by unit.
Matrix kernels besides: matrix cycles M of a wave (cycles of amd_kernels' tables), M / (4 n) for n instructions (RDNA:
M / n; > 1: one wave can keep the matrix core busy) and the instructions beside each matrix instruction.
"""

from __future__ import annotations

import argparse
import ctypes
import io
import json
import re
import sys
from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import msgpack
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import NoteSection

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "amd_objects.md"
NT_AMDGPU_METADATA = 32
# Cycles on a SIMD of the matrix instructions in use: AMD's matrix instruction calculator, for gfx950 AMD's blog.
MATRIX_CYCLES = {
    "v_mfma_f32_16x16x16f16": 32,  # gfx90a
    "v_mfma_f32_16x16x16bf16": 32,
    "v_mfma_f32_16x16x16_f16": 16,
    "v_mfma_f32_16x16x16_bf16": 16,
    "v_mfma_f32_16x16x32_f16": 16,
    "v_mfma_f32_16x16x32_bf16": 16,
    "v_mfma_f32_16x16x4f32": 32,  # gfx90a
    "v_mfma_f32_16x16x4_f32": 32,
    "v_mfma_f32_16x16x8_xf32": 16,
    "v_mfma_f64_16x16x4f64": 32,  # gfx90a
    "v_mfma_f64_16x16x4_f64": 32,
}
WMMA_CYCLES = {"gfx11": 32, "gfx12": 16}  # of 16x16x16 by 16 bits
MANY_LOADS = 16  # of gemm_gemv, whose loop has neither barriers nor matrix instructions
HALF_RATE = {("gfx950", "v_mfma_f64_16x16x4_f64")}
UNITS = {  # the first that matches
    "matrix": r"v_mfma_|v_wmma_|v_smfmac_",
    "fma": r"v_(?:pk_)?(?:dual_)?fm(?:a|ac|aak|amk)_",
    "moves": r"v_accvgpr_",
    "lds": r"ds_",
    "memory": r"(?:global|buffer|flat|scratch)_(?:load|store|atomic)",
    "scalar_memory": r"s_load|s_buffer_load",
    "waits": r"s_wait|s_delay_alu|s_nop|s_clause",
    "barriers": r"s_barrier",
    "scalar": r"s_",
    "vector": r"v_",
}
FORBIDDEN = re.compile(r"scratch_(?:load|store)|flat_(?:load|store|atomic)")


@dataclass(frozen=True)
class Instruction:
    address: int
    size: int
    text: str
    word: int  # its first four bytes

    @cached_property
    def name(self) -> str:
        return self.text.split(maxsplit=1)[0] if self.text else "?"

    @property
    def target(self) -> int | None:
        """Where a branch goes: 16 bits, in words from the next instruction."""
        if not self.text.startswith(("s_branch", "s_cbranch")):
            return None
        words = self.word & 0xFFFF
        return self.address + 4 + 4 * (words - (words >> 15 << 16))


@dataclass
class Loop:
    """Instructions of the hot loop by unit."""

    instructions: int = 0
    units: dict[str, int] = field(default_factory=dict)
    matrix_cycles: int = 0

    @property
    def products(self) -> int:
        return self.units.get("matrix", 0) or self.units.get("fma", 0)

    @property
    def rank(self) -> tuple[bool, int, bool, int, int]:
        """Workgroups meet in the loop over k, not in those of the epilogue; where they do not and no matrix core works,
        it is the one with many loads. Of two loops with the same products the shorter one: the other is for misaligned
        operands."""
        meet, matrix = self.units.get("barriers", 0) > 0, self.units.get("matrix", 0)
        loads = not meet and not matrix and self.units.get("memory", 0) >= MANY_LOADS
        return meet, matrix, loads, self.products, -self.instructions


@dataclass
class Facts:
    """One object: what its notes say, and its hot loop."""

    arch: str
    kernel: str
    bytes: int
    vgpr: int
    agpr: int
    sgpr: int
    lds: int
    threads: int
    arguments: int
    hidden_arguments: int
    spills: int
    scratch: int
    wave: int
    code: int
    forbidden: list[str]  # instructions that no kernel may have
    compiler: str
    loop: Loop

    @property
    def issue(self) -> int:
        """Cycles from an instruction of a wave to its next one."""
        return 4 if self.arch.startswith("gfx9") else 1

    @property
    def waves_per_simd(self) -> int:
        """That registers and shared memory allow, on four SIMDs: 512 registers a lane (RDNA: 1536 in granules of 24)
        and 64 KB a CU (gfx950: 160, RDNA: 128 a pair of CUs)."""
        if self.arch.startswith("gfx9"):
            by_registers = min(8, 512 // (-(-(self.vgpr + self.agpr) // 8) * 8))
            kilobytes = 160 if self.arch == "gfx950" else 64
        else:
            by_registers = min(16, 1536 // (-(-self.vgpr // 24) * 24))
            kilobytes = 128
        groups = kilobytes * 1024 // max(self.lds, 1)
        return min(by_registers, groups * self.threads // self.wave // 4)


@cache
def disassembler() -> Any:
    """LLVM's C library with the AMDGPU target ready."""
    import rocm.llvm

    library = ctypes.CDLL(str(Path(next(iter(rocm.llvm.__path__))) / "librocmllvm.so"))
    for part in ("TargetInfo", "TargetMC", "Disassembler"):
        getattr(library, f"LLVMInitializeAMDGPU{part}")()
    library.LLVMCreateDisasmCPU.restype = ctypes.c_void_p
    library.LLVMDisasmInstruction.restype = ctypes.c_size_t
    pointer, number = ctypes.c_void_p, ctypes.c_uint64
    library.LLVMDisasmInstruction.argtypes = [pointer, pointer, number, number, ctypes.c_char_p, ctypes.c_size_t]
    return library


def disassemble(arch: str, code: bytes, address: int) -> list[Instruction]:
    library = disassembler()
    context = ctypes.c_void_p(library.LLVMCreateDisasmCPU(b"amdgcn-amd-amdhsa", arch.encode(), None, 0, None, None))
    if not context:
        raise RuntimeError(f"LLVM does not know {arch}")
    text, found, at = ctypes.create_string_buffer(512), [], 0
    copy = ctypes.create_string_buffer(code, len(code))
    first = ctypes.addressof(copy)
    while at < len(code):
        size = library.LLVMDisasmInstruction(
            context, first + at, min(32, len(code) - at), address + at, text, len(text)
        )
        word = int.from_bytes(code[at : at + 4], "little")
        if size == 0:  # padding behind the last instruction
            size = 4
        else:
            found.append(Instruction(address + at, size, text.value.decode().strip(), word))
        at += size
    library.LLVMDisasmDispose(context)
    return found


def matrix_cycles(arch: str, body: list[Instruction]) -> int:
    names = [i.name.removesuffix("_1k") for i in body if i.name.startswith("v_mfma")]
    cycles = sum(MATRIX_CYCLES[name] * (2 if (arch, name) in HALF_RATE else 1) for name in names)
    return cycles + sum(WMMA_CYCLES[arch[:5]] for i in body if i.name.startswith("v_wmma"))


@cache
def unit_of(name: str) -> str:
    return next(unit for unit, pattern in {**UNITS, "other": ""}.items() if re.match(pattern, name))


def loop_of(arch: str, body: list[Instruction]) -> Loop:
    units = Counter(unit_of(i.name) for i in body)
    return Loop(len(body), dict(units), matrix_cycles(arch, body))


def hot_body(arch: str, instructions: list[Instruction]) -> list[Instruction]:
    """Instructions of the hot loop."""
    index = {instruction.address: i for i, instruction in enumerate(instructions)}
    loops = sorted(
        (index[i.target], at) for at, i in enumerate(instructions) if i.target is not None and i.target <= i.address
    )
    innermost = [a for a in loops if not any(a != b and a[0] <= b[0] and b[1] <= a[1] for b in loops)]
    bodies = [instructions[first : last + 1] for first, last in innermost]
    return max(bodies, key=lambda body: loop_of(arch, body).rank, default=[])


def code_of(arch: str, image: bytes) -> list[Instruction]:
    text = ELFFile(io.BytesIO(image)).get_section_by_name(".text")
    return disassemble(arch, text.data(), text["sh_addr"])


def facts_of(arch: str, kernel: str, image: bytes) -> Facts:
    elf = ELFFile(io.BytesIO(image))
    notes = [n for s in elf.iter_sections() if isinstance(s, NoteSection) for n in s.iter_notes()]
    note = next(n for n in notes if n["n_name"] == "AMDGPU" and n["n_type"] == NT_AMDGPU_METADATA)
    metadata = msgpack.unpackb(note["n_descdata"])["amdhsa.kernels"]
    if [entry[".name"] for entry in metadata] != [kernel]:
        raise ValueError(f"{arch} {kernel}: the object holds {[entry['.name'] for entry in metadata]}")
    entry = metadata[0]
    instructions = code_of(arch, image)
    return Facts(
        arch=arch,
        kernel=kernel,
        bytes=len(image),
        vgpr=entry[".vgpr_count"],
        agpr=entry.get(".agpr_count", 0),
        sgpr=entry[".sgpr_count"],
        lds=entry[".group_segment_fixed_size"],
        threads=entry[".max_flat_workgroup_size"],
        arguments=entry[".kernarg_segment_size"],
        hidden_arguments=sum(a[".value_kind"].startswith("hidden") for a in entry[".args"]),
        spills=entry[".vgpr_spill_count"] + entry[".sgpr_spill_count"],
        scratch=entry[".private_segment_fixed_size"] + bool(entry.get(".uses_dynamic_stack")),
        wave=entry[".wavefront_size"],
        code=sum(i.size for i in instructions),
        forbidden=sorted({i.name for i in instructions if FORBIDDEN.match(i.name)}),
        compiler=re.search(rb"clang version [^\0]*", elf.get_section_by_name(".comment").data())[0].decode(),
        loop=loop_of(arch, hot_body(arch, instructions)),
    )


def embedded() -> list[tuple[str, str, bytes]]:
    from matmul_fused import _core

    return [(arch, kernel, image) for arch, kernel, image in _core.device_objects() if arch.startswith("gfx")]


def of_folder(folder: Path) -> list[tuple[str, str, bytes]]:
    return [(path.parent.name, path.stem, path.read_bytes()) for path in sorted(folder.glob("gfx*/*.co"))]


COLUMNS = (
    "arch", "kernel", "KB", "VGPR", "AGPR", "SGPR", "LDS", "spills", "scratch", "waves", "| loop", "products", "share",
    "lds", "mem", "vector", "scalar", "waits", "bar", "M/4n", "other/M",
)  # fmt: skip


def line(f: Facts) -> list[str]:
    loop, units = f.loop, Counter(f.loop.units)
    matrix = units["matrix"]
    return [str(x) for x in (
        f.arch, f.kernel, f"{f.bytes / 1024:.0f}", f.vgpr, f.agpr, f.sgpr, f.lds, f.spills, f.scratch, f.waves_per_simd,
        f"| {loop.instructions}", loop.products, f"{loop.products / max(loop.instructions, 1):.2f}",
        units["lds"], units["memory"], units["vector"] + units["moves"] + (units["fma"] if matrix else 0),
        units["scalar"] + units["scalar_memory"], units["waits"], units["barriers"],
        f"{loop.matrix_cycles / (f.issue * loop.instructions):.2f}" if matrix else "-",
        f"{(loop.instructions - matrix) / matrix:.2f}" if matrix else "-",
    )]  # fmt: skip


def table(all_facts: list[Facts]) -> str:
    rows = [list(COLUMNS), *map(line, all_facts)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def documentation(all_facts: list[Facts]) -> str:
    """docs/amd_objects.md."""
    rows = [list(COLUMNS), ["---", "---", *["---:"] * (len(COLUMNS) - 2)], *map(line, all_facts)]
    table = ["| " + " | ".join(cell.lstrip("| ") for cell in row) + " |" for row in rows]
    intro = f"""# The shipped AMD objects, read without running them

Written by `python bench/amd_static.py --write`, compared with the build by `tests/test_device_objects.py`. Compiler:
{", ".join(sorted({f.compiler for f in all_facts}))}. Registers, spills, bytes of LDS and of scratch as the objects'
own notes have them; waves: at once on a SIMD, as far as registers and LDS allow. From "loop" on: the instructions of
the loop over k by kind (the head of `bench/amd_static.py` says more). No object may spill
or use scratch. Nothing here is a timing.
"""
    return "\n".join([intro, *table]) + "\n"


def cost_of_build(folder: Path) -> list[dict[str, Any]]:
    """Seconds and bytes of every object of a build; machine code made from PTX is a row of its own."""
    spent = {}
    for record in (folder / ".ninja_log").read_text().splitlines()[1:]:
        start, end, _, output, _ = record.split("\t")
        spent[(folder / output).resolve()] = (int(end) - int(start)) / 1000
    objects = [path for kind in ("co", "ptx", "cubin") for path in sorted(folder.glob(f"device/*/*.{kind}"))]
    return [
        {"object": f"{path.parent.name}/{path.name}", "bytes": path.stat().st_size, "seconds": spent[path.resolve()]}
        for path in objects
    ]


def report_build(folder: Path, output: Path | None) -> int:
    rows = cost_of_build(folder)
    if not rows:
        sys.exit(f"{folder} has no device code")
    for row in rows:
        print(f"{row['object']:52}{row['bytes'] / 1024:6.0f} KB{row['seconds']:7.1f} s")
    seconds, size = sum(row["seconds"] for row in rows), sum(row["bytes"] for row in rows)
    print(f"{f'{len(rows)} objects':52}{size / 1024:6.0f} KB{seconds:7.1f} s")
    if output:
        output.write_text(json.dumps(rows, indent=1))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=Path, help="a folder of objects instead of the embedded ones")
    parser.add_argument("--build", type=Path, help="seconds and KB of the objects of this build folder instead")
    parser.add_argument("--json", type=Path, help="write the facts here, too")
    parser.add_argument("--write", action="store_true", help=f"write the table into {DOCUMENT.name}, too")
    options = parser.parse_args()
    if options.build:
        return report_build(options.build, options.json)
    objects = of_folder(options.objects) if options.objects else embedded()
    if not objects:
        sys.exit('there is no AMD object: see the line "GPU code" of python -m matmul_fused info')
    found = [facts_of(*one) for one in objects]
    print(table(found))
    print(f"{len(found)} objects, {sum(f.bytes for f in found) / 1e6:.2f} MB")
    if options.json:
        options.json.write_text(json.dumps([asdict(f) for f in found], indent=1))
    if options.write:
        DOCUMENT.write_text(documentation(found))
    return int(any(f.spills or f.scratch or f.forbidden for f in found))


if __name__ == "__main__":
    sys.exit(main())
