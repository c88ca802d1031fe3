"""Every form of an instruction in the shipped kernels of a part against AMD's pseudo-code of it, by inline assembly.

A form is the opcode with its encoding, modifiers and constants, as the disassembler writes it. Each runs on random and
special operands, one lane after the other through pseudocode.py. What has no pseudo-code that says its effect on
registers stands in ELSEWHERE, with the test that covers it; so an opcode that is new in a kernel fails here.
"""

import re
from pathlib import Path

import numpy as np
import pytest

import hipsim
from hipsim import Module
from hipsim.abi import fetch
from hipsim.compile import object_of
from hipsim.mutants import Kernel
from hipsim.pseudocode import execute, from_bits, table
from hipsim.test_machine_instructions import N, operands

TESTS = Path(__file__).resolve().parents[1]
CACHE = TESTS.parent / "build" / "hipsim" / "abi"
FAMILY = {"gfx90a": "cdna", "gfx942": "cdna", "gfx950": "cdna", "gfx1100": "rdna3", "gfx1201": "rdna4"}
LITERAL = 0x3FC90FDB

# opcodes -> the test that covers them
ELSEWHERE = {
    r"(global|buffer)_(load|store)_.*|ds_(read|write|load|store)_.*|s_load_.*": "test_sweep.py::test_sample",
    r"v_w?mfma_.*|v_wmma_.*": "hipsim/test_machine_matrix.py::test_layout",
    r"s_wait.*|s_barrier.*": "hipsim/test_machine_checks.py::test_every_wait_and_barrier_is_missed",
    r"s_c?branch.*|s_endpgm": "hipsim/test_launch.py::test_guard_in_the_kernel_is_needed",
    r"s_nop": "hipsim/test_machine_checks.py::test_hazards_of_matrix_results",
    r"v_perm_b32": "hipsim/test_machine_instructions.py::test_integers",
    # hints, and caches that are not modelled: no state of the program
    r"s_clause|s_delay_alu|s_sendmsg|s_set_inst_prefetch_distance|global_inv|buffer_gl0_inv": "test_sweep.py::test_sample",
}
# Where the documents have nothing, after the words of the MI200 ISA; they print no pseudo-code.
ADDED = {
    "v_mac_f32": "D0.f32 = S0.f32 * S1.f32 + D0.f32",
    "v_madmk_f32": "D0.f32 = S0.f32 * SIMM32.f32 + S1.f32",
}
# Where they cannot be meant as printed; what is put in the place of what. The scale that div_fmas undoes is the one
# that div_scale applies; 1 / S1 of a float32 is never subnormal as a float64; a huge denominator cannot be scaled up. The exponent of zero is 0 and that of a
# subnormal number its own, as LLVM folds the intrinsic.
READ_AS = {
    r"v_div_fmas_f(32|64)": [
        (r"2\.0F \*\* 32 \* fma\((.*)\)", r"fma(\1, (exponent(S2.f32) > 127 ? 64 : -64))"),
        (r"2\.0 \*\* 64 \* fma\((.*)\)", r"fma(\1, (exponent(S2.f64) > 1023 ? 128 : -128))"),
    ],
    r"v_div_scale_f(32|64)": [
        (r"1\.0 / 64'F\(S1\.f32\) == DENORM\.f64", "1.0F / S1.f32 == DENORM.f32"),
        (r"(?s)(DENORM\.f\d+\)\) then.*?ldexp\(S0\.f\d+, )", r"\1-"),
    ],
    r"v_div_fixup_f(32|64)": [
        (r"(sign_out \? -abs\(S0\.f(\d+)\) : .*)", r"isNAN(S0.f\2) ? (sign_out ? -INF : +INF) : (\1)"),
    ],
    r"v_frexp_exp_i32_f32": [(r"exponent\(S0\.f32\) - 127 \+ 1", "frexp_exp(S0.f32)")],
    r"s_cmpk_.*": [(r"SIMM16", "S1")],
    r"v_pk_mov_b32": [(r"(S\d)\.u32\[", r"\1[")],
    r"v_bitop3_b32": [(r"\{ INST.*\}", "BITOP3"), (r"\bD\.", "D0.")],
}
# In the last place, as the documents' notes have it; those of float32 flush subnormal operands and results.
UNITS = {r"v_(s_)?rcp_(iflag_)?f32|v_exp_f32": 1, r"v_rcp_f64": 2**29}


@pytest.fixture(params=list(FAMILY))
def part(request):
    return hipsim.Device(request.param)


@pytest.fixture
def code(part):
    """Opcode -> pseudo-code."""
    try:
        found = table(fetch.pseudocode(FAMILY[part.arch], CACHE))
    except fetch.Unreachable as reason:
        pytest.skip(f"cannot be fetched: {reason}")
    for name in [name for name in found if name.startswith("v_")]:
        found.setdefault(name.replace("v_", "v_dual_", 1), found[name])
    for pattern, changes in READ_AS.items():
        for name in filter(re.compile(pattern).fullmatch, found):
            for old, new in changes:
                found[name] = re.sub(old, new, found[name])
    return ADDED | found


def opcode(mnemonic):
    return re.sub(r"(_e(32|64))?(_sdwa|_dpp)?$", "", mnemonic)


def elsewhere(name):
    return next((test for pattern, test in ELSEWHERE.items() if re.fullmatch(pattern, name)), None)


def form_of(text):
    """Registers are lost, but for their modifiers; of constants only the kind tells forms apart: (key, form)."""
    mnemonic, _, rest = text.partition(" ")
    form = re.sub(r"\b[vsa](\d+|\[[\d:]+\])|\bttmp\d+|\b(vcc|exec)(_lo)?\b|\bnull\b", "R", rest.strip())
    key = re.sub(r"(?<![:\[,])-?\b(0x[0-9a-f]+|[\d.]+)\b(?=,|$| )", lambda m: "K" if "x" in m[0] else "#", form)
    return (mnemonic, key), (mnemonic, form)


@pytest.fixture
def forms(part):
    """Every form of an instruction of every kernel that this build ships for the part."""
    core = pytest.importorskip("matmul_fused")._core
    found = {}
    for arch, name, image in core.device_objects():
        if arch != part.arch:
            continue
        with Module(part, image) as module:
            module[name]
            for instruction in Kernel(part.ordinal, name).instructions:
                for half in instruction.text.split(" :: "):
                    key, form = form_of(half)
                    found.setdefault(key, form)
    if not found:
        pytest.skip("gemm_mfma ran nothing: this build has none for this GPU")
    return sorted(found.values())


SCALAR = r"s_.*|v_s_.*|v_readfirstlane.*"
SECOND_ONLY = r"v_dual_(add_nc_u32|lshlrev_b32|and_b32)"
CARRY_OUT = r"v_.*_co_(ci_)?u32|v_mad_(co_)?u64_u32|v_div_scale_f\d+"
CARRY_IN = r"v_(addc|subb|subbrev)_co_u32|v_.*_co_ci_u32|v_cndmask_b32"


class Form:
    """What an instruction does to registers x, y, z, of the bits v, and to d, by its pseudo-code."""

    def __init__(self, mnemonic, text, code, rdna):
        self.rdna, self.name, self.mnemonic, self.text = rdna, opcode(mnemonic), mnemonic, text
        self.code, self.dual, self.second = code[self.name], mnemonic.startswith("v_dual_"), False
        text, self.tail = re.fullmatch(r"(.*?)((?: \w+:\S+)*)", text).groups()
        self.operands = re.split(r", (?![^\[]*\])", text)
        self.modifiers = dict(re.findall(r"(\w+):(\S+)", self.tail))
        self.compares = self.name.startswith(("v_cmp", "s_cmp"))
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
        """Of the operands: D, sources, a mask M, or a literal K."""
        roles = ["S0", "S1", "S2"]
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
            self.code, VCC=registers["v"], D1=0, EXEC=1, SIMM32=LITERAL, ROUND_MODE=0,
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


def words(rng):
    """Registers of 64 bits: two words each; and doubles. A third of y equals x."""
    low, high = (dict(zip("xyz", operands(rng), strict=True)) for _ in range(2))
    out = {name: low[name].astype(np.uint64) | high[name].astype(np.uint64) << np.uint64(32) for name in "xyz"}
    out["y"][::3] = out["x"][::3]
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324, -2e-308, 1.7e308, 1.0, -1.0, 2.0**-1000, 2.0**1000]
    doubles = {}
    for name in "xyz":
        values = rng.standard_normal(N) * 2.0 ** rng.integers(-1060, 1020, N)
        values[N // 2 :] = rng.standard_normal(N - N // 2) * 2.0 ** rng.integers(-40, 40, N - N // 2)
        values[: N // 4] = rng.choice(special, N // 4)
        doubles[name] = values.view(np.uint64)
    doubles["y"][::7] = doubles["x"][::7]
    shared = {"d": rng.integers(0, 2**64, N, dtype=np.uint64), "v": rng.integers(0, 2, N, dtype=np.uint64)}
    return [out | shared, doubles | shared]


def run_vectors(part, forms, inputs):
    """d and e of every form: one kernel."""
    blocks = []
    for k, form in enumerate(forms):
        kind = "unsigned long" if form.wide else "unsigned"
        lines = form.assembly()
        sources = []
        for role, register in form.register.items():
            size = "unsigned long" if form.kinds[role][2] == 64 else "unsigned"
            if f"%[{register}]" in " ".join(lines) and f'[{register}]' not in " ".join(sources):
                sources.append(f'[{register}] "v"(({size}){register}{int(form.double)})')
        inputs_ = ", ".join(['[v] "v"((unsigned)v0)', *sources])
        clobbers = ', "v10", "v12", "v13", "v15"' if form.dual else ""
        joined = "\\n".join(lines)
        blocks.append(
            f"{{ {kind} d = d0; unsigned e = 0, s;"
            f'asm volatile("{joined}" : [d] "+&v"(d), [e] "=&v"(e), [s] "=&s"(s) : {inputs_} : "vcc"{clobbers});'
            f"out[{k * N} + i] = d; flags[{k * N} + i] = e; }}"
        )
    loads = "".join(f"unsigned long {r}{k} = in[{(5 * k + n) * N} + i];" for k in (0, 1) for n, r in enumerate("xyzdv"))
    source = f"""
extern "C" __global__ void GROUP(256) all(unsigned long *out, unsigned *flags, const unsigned long *in)
{{
    int i = group_x * 256 + item_x;
    {loads}
    {" ".join(blocks)}
}}"""
    out, flags = part.empty((len(forms), N), np.uint64), part.empty((len(forms), N), np.uint32)
    stacked = np.stack([values[name] for values in inputs for name in "xyzdv"])
    with Module(part, object_of(source, part.arch)) as module:
        module["all"](N // 256, 256, out, flags, part.array(stacked))
        result = part.to_numpy(out), part.to_numpy(flags)
    part.assert_clean()
    return result


class ScalarForm(Form):
    """Of scalar registers: x, y, d, SCC as v, EXEC as w."""

    def assembly(self):
        size, execute_mask = ("b32", "exec_lo") if self.rdna else ("b64", "exec")
        texts = []
        for role, operand in zip(self.roles, self.operands, strict=True):
            texts.append(operand.replace("R", "%[d]" if role == "D" else f"%[{self.register[role]}]"))
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
            self.code, D0=registers["d"], SCC=registers["v"], EXEC=mask, EXEC_LO=mask, WAVE64=int(lanes == 64), **given
        )
        result = after["D0"] & (2**64 - 1 if self.wide else 2**32 - 1)
        return flushed(result) if self.flushes else result, int(after["SCC"]), int(after["EXEC"])


def run_scalars(part, forms, values):
    """d, SCC and EXEC of every form for every wave: one kernel."""
    wave = 32 if part.arch.startswith("gfx1") else 64
    mask = "unsigned" if wave == 32 else "unsigned long"
    rows, blocks = len(values["x"]), []
    for k, form in enumerate(forms):
        kind = "unsigned long" if form.wide else "unsigned"
        joined, sources = "\\n".join(form.assembly()), ['[v] "s"((unsigned)v)']
        for role, register in form.register.items():
            size = "unsigned long" if form.kinds[role][2] == 64 else "unsigned"
            if f"%[{register}]" in joined:
                lane = form.name.startswith("v_readfirstlane")
                sources.append(f'[{register}] {chr(34) + "vs"[not lane] + chr(34)}(({size}){register} + {int(lane)} * item_x)')
        blocks.append(
            f"{{ {kind} d0 = d; {mask} m = w, s; unsigned e;"
            f'asm volatile("{joined}" : [d] "+&s"(d0), [w] "+&s"(m), [e] "=&s"(e), [s] "=&s"(s)'
            f' : {", ".join(sources)} : "scc");'
            f"if (item_x == 0) {{ long at = {k * rows} + i; out[3 * at] = d0; out[3 * at + 1] = e; out[3 * at + 2] = m; }} }}"
        )
    loads = "".join(f"unsigned long {name} = in[{n * rows} + i];" for n, name in enumerate("xydvw"))
    source = f"""
extern "C" __global__ void GROUP({wave}) all(unsigned long *out, const unsigned long *in)
{{
    int i = group_x;
    {loads}
    {" ".join(blocks)}
}}"""
    out = part.empty((len(forms), rows, 3), np.uint64)
    with Module(part, object_of(source, part.arch)) as module:
        module["all"](rows, wave, out, part.array(np.stack([values[name] for name in "xydvw"])))
        result = part.to_numpy(out)
    part.assert_clean()
    return result


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


def test_vectors(part, code, forms, rng):
    chosen = []
    for mnemonic, text in forms:
        if not mnemonic.startswith("v_") or elsewhere(opcode(mnemonic)) or re.fullmatch(SCALAR, mnemonic):
            continue
        form = Form(mnemonic, text, code, part.arch.startswith("gfx1"))
        chosen.append(form)
        if form.dual:
            form.second = True
            if not re.fullmatch(SECOND_ONLY, mnemonic):
                chosen.append(Form(mnemonic, text, code, part.arch.startswith("gfx1")))
        if form.name.startswith("v_div_scale") and form.operands[2] == "R":  # which of the others S0 is
            form.register["S0"] = form.register["S1"] if form.operands[3] == "R" else form.register["S2"]
            if form.operands[3:] == ["R", "R"]:
                chosen.append(Form(mnemonic, text, code, part.arch.startswith("gfx1")))
                chosen[-1].register["S0"] = chosen[-1].register["S2"]
    inputs = words(rng)
    lanes = [[{name: int(x[i]) for name, x in values.items()} for i in range(N)] for values in inputs]
    got, flags = run_vectors(part, chosen, inputs)
    wrong = []
    for form, row, mask in zip(chosen, got, flags, strict=True):
        for i, registers in enumerate(lanes[form.double]):
            want, bit = form.expected(registers)
            if (not form.compares and differs(form, int(row[i]), want)) or bit != mask[i]:
                shown = {name: hex(value) for name, value in registers.items()}
                wrong.append(f"{form.mnemonic} {form.text} {shown}: {int(row[i]):#x} {mask[i]}, not {want:#x} {bit}")
                break
    assert not wrong, "\n".join(wrong)


def test_every_opcode_is_covered(part, code, forms):
    names = {opcode(mnemonic) for mnemonic, _ in forms}
    missing = {name for name in names if not elsewhere(name) and name not in code}
    assert not missing, f"neither pseudo-code nor a test that covers them: {sorted(missing)}"
    for name in filter(None, map(elsewhere, names)):
        file, _, test = name.partition("::")
        assert f"def {test}(" in (TESTS / file).read_text(), name


def test_scalars(part, code, forms, rng):
    rdna = part.arch.startswith("gfx1")
    chosen = [
        ScalarForm(mnemonic, text, code, rdna)
        for mnemonic, text in forms
        if re.fullmatch(SCALAR, mnemonic) and not elsewhere(opcode(mnemonic))
    ]
    values = {name: x[::4].copy() for name, x in words(rng)[0].items()}
    values["w"] = values.pop("z")
    got = run_scalars(part, chosen, values)
    wrong = []
    for form, rows in zip(chosen, got, strict=True):
        for i, row in enumerate(rows):
            registers = {name: int(x[i]) for name, x in values.items()}
            want = form.expected(registers)
            if differs(form, int(row[0]), want[0]) or tuple(map(int, row[1:])) != want[1:]:
                shown = {name: hex(value) for name, value in registers.items()}
                wrong.append(f"{form.mnemonic} {form.text} {shown}: {list(map(hex, row))}, not {list(map(hex, want))}")
                break
    assert not wrong, "\n".join(wrong)
