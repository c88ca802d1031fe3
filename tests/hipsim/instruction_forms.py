"""Forms of instructions, as the disassembler writes them: their operands, what they do by AMD's pseudo-code, and the
inline assembly that executes them. For test_machine_pseudocode.py.

A form is an opcode with its encoding, modifiers and constants; of registers it knows the role alone. Sources come from
registers x, y, z, the result is d before and after, v the mask bit (VCC, SCC) before.
"""

import functools
import re

import numpy as np

from .pseudocode import execute, from_bits

LITERAL = 0x3FC90FDB
# In the last place, as the documents' notes have it; those of float32 flush subnormal operands and results.
UNITS = {r"v_(s_)?rcp_(iflag_)?f32|v_exp_f32": 1, r"v_rcp_f64": 2**29}
SCALAR = r"s_.*|v_s_.*|v_readfirstlane.*"
SECOND_ONLY = r"v_dual_(add_nc_u32|lshlrev_b32|and_b32)"
CARRY_OUT = r"v_.*_co_(ci_)?u32|v_mad_(co_)?u64_u32|v_div_scale_f\d+"
CARRY_IN = r"v_(addc|subb|subbrev)_co_u32|v_.*_co_ci_u32|v_cndmask_b32"


def opcode(mnemonic):
    return re.sub(r"(_e(32|64))?(_sdwa|_dpp)?$", "", mnemonic)


@functools.cache
def key_of(form):
    """Of constants only the kind tells forms apart."""
    return re.sub(r"(?<![:\[,])-?\b(0x[0-9a-f]+|[\d.]+)\b(?=,|$| )", lambda m: "K" if "x" in m[0] else "#", form)


def form_of(text):
    """(key, form) without the registers, but with their modifiers."""
    mnemonic, _, rest = text.partition(" ")
    form = re.sub(r"\b[vsa](\d+|\[[\d:]+\])|\bttmp\d+|\b(vcc|exec)(_lo)?\b|\bnull\b", "R", rest.strip())
    return (mnemonic, key_of(form)), (mnemonic, form)


class Form:
    """What an instruction does to registers x, y, z, of the bits v, and to d, by its pseudo-code."""

    def __init__(self, mnemonic, text, code, rdna):
        self.rdna, self.name, self.mnemonic, self.text = rdna, opcode(mnemonic), mnemonic, text
        self.code, self.dual, self.second = code[self.name], mnemonic.startswith("v_dual_"), False
        self.table = code
        text, self.tail = re.fullmatch(r"(.*?)((?: \w+:\S+)*)", text).groups()
        self.operands = re.split(r", (?![^\[]*\])", text)
        self.modifiers = dict(re.findall(r"(\w+):(\S+)", self.tail))
        self.compares = self.name.startswith(("v_cmp", "s_cmp", "s_bitcmp"))
        self.roles = self._roles()
        self.kinds = {role: self._kind(role) for role in self.roles if role[0] == "S"}
        self.register = dict(zip(self.kinds, "xyz", strict=False))
        wide = r"D0(\.u32)?\[63|D0\.[uibf]64"
        self.wide = not self.compares and bool(re.search(wide, self.code))
        self.double = any(kind[:2] == ("f", 64) for kind in self.kinds.values())
        floats = re.findall(r"\.f(\d+) = ", self.code)
        self.chunk = int(floats[0]) if floats else 0
        self.units = next((n for pattern, n in UNITS.items() if re.fullmatch(pattern, self.name)), 0)
        self.flushes = self.units and self.chunk == 32

    def _roles(self):
        """Of the operands: D, sources, a mask M, a literal K, or a constant I of 16 bits."""
        roles = ["S0", "S1", "S2"] if "SIMM16" not in self.code else ["I"]
        if self.name.startswith(("v_fmamk", "v_madmk")):
            roles = ["S0", "K", "S1"]
        if "fmaak" in self.name:
            roles = ["S0", "S1", "K"]
        before = ["D"] if not self.compares else ["M"] if self.name.startswith("v_cmp_") else []
        before += ["M"] if re.fullmatch(CARRY_OUT, self.name) else []
        roles = before + roles[: len(self.operands) - len(before)]
        if re.fullmatch(CARRY_IN, self.name):
            roles[-1] = "M"
        return roles

    def _kind(self, role):
        """Letter and bits of the type, and bits of the register."""
        if self.name.startswith("v_readfirstlane"):
            return "u", 32, 32
        letter, width = re.search(rf"{role}(?:\[[^\]]*\])?\.([uibf])(\d+)", self.code).groups()
        tops = [int(top) for top in re.findall(rf"{role}(?:\.u\d+)?\[(\d+)", self.code)]
        wide = int(width) == 64 or max(tops, default=0) > 31 or self.name == "v_pk_mov_b32"
        return letter, int(width), 64 if wide else 32

    def source(self, role, operand, registers):
        """The bits that the pseudo-code's S0 stands for."""
        letter, width, size = self.kinds[role]
        value = registers[self.register[role]] if "R" in operand else constant(operand, letter, width)
        value &= (1 << size) - 1
        k = int(role[1])
        select = self.modifiers.get(f"src{k}_sel", "DWORD")
        value >>= 16 if operand.endswith(".h") or select == "WORD_1" else 0
        value &= 0xFFFF if select.startswith("WORD") else ~0
        if "|" in operand:
            value &= ~(1 << width - 1)
        if re.match(r"-[R|]", operand):
            value ^= 1 << width - 1
        if self.flushes:
            value = flushed(value)
        if size == 64 and width == 32 and self.name != "v_pk_mov_b32":
            low, high = (self.flag("op_sel", k, 0), self.flag("op_sel_hi", k, 1))
            value = (value >> 32 * low & 0xFFFFFFFF) | (value >> 32 * high & 0xFFFFFFFF) << 32
            value ^= self.flag("neg_lo", k, 0) << 31 | self.flag("neg_hi", k, 0) << 63
        return value

    def flag(self, modifier, k, default):
        return int(self.modifiers[modifier].strip("[]").split(",")[k]) if modifier in self.modifiers else default

    def moved(self, lanes, i):
        """The registers of lane i as the instruction reads them: DPP takes S0 of another lane of the wave.

        After the table of DPP controls in the ISA documents. Without such a lane bound_ctrl:1 reads 0.
        """
        if not self.mnemonic.endswith("_dpp"):
            return lanes[i]
        control, value = re.search(r"(quad_perm|row_\w+)(?::(\S+))?", f"{self.operands[-1]}{self.tail}").groups()
        masks = [self.modifiers[name] for name in ("row_mask", "bank_mask", "bound_ctrl")]
        assert masks == ["0xf", "0xf", "1"], f"not stated here: {self.text}"
        if control == "quad_perm":
            source = i & ~3 | int(value.strip("[]").split(",")[i & 3])
        elif control in ("row_mirror", "row_half_mirror"):
            source = i ^ (15 if control == "row_mirror" else 7)
        elif control == "row_bcast":  # the last lane of the 16, or 32, in front
            size = int(value) + 1
            source = (i & ~(size - 1)) - 1 if i % 64 >= size else None
        else:
            raise AssertionError(f"not stated here: {self.text}")
        name = self.register["S0"]
        return lanes[i] | {name: 0 if source is None else lanes[source][name]}

    def expected(self, registers):
        """(d, mask bit) of one lane."""
        named = dict(zip(self.roles, self.operands, strict=True))
        given = {role: self.source(role, named[role], registers) for role in self.kinds}
        before = registers["d"] if self.wide else registers["d"] & 0xFFFFFFFF
        high = named.get("D", "").endswith(".h")
        given["D0"] = before >> 16 if high else before
        if self.name.startswith("v_div_scale"):
            given["D0"] = given["S0"]  # unless it is scaled
        if self.chunk == 16 and not self.rdna:
            given["D0"] = 0  # before gfx10 halves are written with zeros above: LLVM's zeroesHigh16BitsOfDest
        given["OPSEL"] = self.flag("op_sel", 0, 0) | self.flag("op_sel", 1, 0) << 1
        after = execute(
            self.code, self.table, VCC=registers["v"], D1=0, EXEC=1, SIMM32=LITERAL, ROUND_MODE=0,
            BITOP3=int(self.modifiers.get("bitop3", "0"), 0), **given,
        )  # fmt: skip
        if self.compares:
            return 0, (after["EXEC"] if self.name.startswith("v_cmpx") else after["D0"]) & 1
        if self.dual:
            return after["D0"] & 0xFFFFFFFF, before
        mask = after["D1"] if "D1" in self.code else after["VCC"]
        result = after["D0"] & (2**64 - 1 if self.wide else 2**32 - 1)
        if self.flushes:
            result = flushed(result)
        if self.modifiers.get("dst_sel") == "WORD_1":
            high = self.modifiers["dst_unused"] == "UNUSED_PRESERVE"
            result = result if high else (result & 0xFFFF) << 16
        return ((before & 0xFFFF | result << 16) & 0xFFFFFFFF) if high else result, mask & 1

    def assembly(self):
        """Of the operands d, e (the mask bit) and s (EXEC, saved)."""
        vcc = "vcc_lo" if self.rdna else "vcc"
        texts = []
        for role, operand in zip(self.roles, self.operands, strict=True):
            register = "%[d]" if role == "D" else f"%[{self.register.get(role)}]"
            texts.append({"M": vcc, "K": hex(LITERAL)}.get(role, operand.replace("R", register)))
        line = f"{self.mnemonic} {', '.join(texts)}{self.tail}"
        lines = [f"v_cmp_ne_u32_e64 {vcc}, 0, %[v]", "s_nop 4", line, "s_nop 4"]
        if self.dual:
            return self._dual(texts)
        if self.name.startswith("v_cmpx"):
            lines = ["s_mov_b32 %[s], exec_lo", line, "s_nop 4", "s_mov_b32 vcc_lo, exec_lo", "s_mov_b32 exec_lo, %[s]"]
        return [*lines, f"v_cndmask_b32_e64 %[e], 0, 1, {vcc}"]

    def _dual(self, texts):
        """Both halves at once: the other one moves the old d to e. Their registers lie in different banks."""
        fixed = {"%[d]": "v12", "%[x]": "v10", "%[y]": "v15"}
        half = f"{self.mnemonic} {', '.join(fixed.get(text, text) for text in texts)}"
        move = "v_dual_mov_b32 v13, v12"
        lines = [f"v_mov_b32 {fixed[name]}, {name}" for name in dict.fromkeys(texts) if name in fixed]
        lines = list(dict.fromkeys(["v_mov_b32 v12, %[d]", "v_cmp_ne_u32_e64 vcc_lo, 0, %[v]", "s_nop 4", *lines]))
        together = " :: ".join([move, half] if self.second else [half, move])
        return [*lines, together, "v_mov_b32 %[d], v12", "v_mov_b32 %[e], v13"]


def flushed(word):
    return word if word & 0x7F800000 else word & 0x80000000


def constant(text, letter, width):
    if "x" in text:
        return int(text, 16) << 32 if (letter, width) == ("f", 64) else int(text, 16)
    if "." in text:
        size = {16: (np.float16, np.uint16), 64: (np.float64, np.uint64)}.get(width, (np.float32, np.uint32))
        return int(size[0](text).view(size[1]))
    return int(text) & ((1 << max(width, 32)) - 1)


class ScalarForm(Form):
    """Of scalar registers: x, y, d, SCC as v, EXEC as w."""

    def assembly(self):
        size, execute_mask = ("b32", "exec_lo") if self.rdna else ("b64", "exec")
        texts = []
        for role, operand in zip(self.roles, self.operands, strict=True):
            texts.append(operand.replace("R", "%[d]" if role == "D" else f"%[{self.register.get(role)}]"))
        lines = [f"s_mov_{size} %[s], {execute_mask}", f"s_mov_{size} {execute_mask}, %[w]", "s_cmp_lg_u32 %[v], 0"]
        lines += [f"{self.mnemonic} {', '.join(texts)}", "s_nop 4", "s_cselect_b32 %[e], 1, 0"]
        return [*lines, f"s_mov_{size} %[w], {execute_mask}", f"s_mov_{size} {execute_mask}, %[s]"]

    def expected(self, registers):
        """(d, SCC, EXEC) of one wave."""
        named = dict(zip(self.roles, self.operands, strict=True))
        given = {role: self.source(role, named[role], registers) for role in self.kinds}
        lanes = 32 if self.rdna else 64
        mask = registers["w"] & ((1 << lanes) - 1)
        if self.name.startswith("v_readfirstlane"):
            given |= {"VGPR": [[(given["S0"] + lane) & 0xFFFFFFFF] for lane in range(lanes)], "SRC0": 0}
        after = execute(
            self.code,
            self.table,
            D0=registers["d"],
            SCC=registers["v"],
            EXEC=mask,
            EXEC_LO=mask,
            WAVE64=int(lanes == 64),
            SIMM16=int(named.get("I", "0"), 0),
            **given,
        )
        result = after["D0"] & (2**64 - 1 if self.wide else 2**32 - 1)
        return flushed(result) if self.flushes else result, int(after["SCC"]), int(after["EXEC"])


def differs(form, got, want):
    """Bits, but for NaN and units in the last place."""
    if got == want:
        return False
    chunk = form.chunk
    if not chunk:
        return True
    for shift in range(0, 64, chunk):
        raw = [value >> shift & ((1 << chunk) - 1) for value in (got, want)]
        if raw[0] != raw[1]:
            a, b = (from_bits(bits, chunk) for bits in raw)
            if not (np.isnan(a) and np.isnan(b)) and abs(raw[0] - raw[1]) > form.units:
                return True
    return False
