"""Every form of an instruction in the shipped kernels of a part against AMD's pseudo-code of it, by inline assembly.

Each form (instruction_forms.py) runs on random and special operands; what it left in registers, and in VCC, SCC or
EXEC, is compared with the evaluated pseudo-code (pseudocode.py), lane by lane. What has no pseudo-code that says its
effect is listed in ELSEWHERE, with the test that covers it; so an opcode that is new in a kernel fails here.
"""

import functools
import re
from pathlib import Path

import numpy as np
import pytest

import hipsim
from hipsim import Module
from hipsim.abi import fetch
from hipsim.compile import object_of
from hipsim.instruction_forms import SCALAR, SECOND_ONLY, Form, ScalarForm, differs, form_of, opcode
from hipsim.mutants import Kernel
from hipsim.pseudocode import table
from hipsim.test_machine_instructions import N, operands

TESTS = Path(__file__).resolve().parents[1]
CACHE = TESTS.parent / "build" / "hipsim" / "abi"
FAMILY = {"gfx90a": "cdna", "gfx942": "cdna", "gfx950": "cdna", "gfx1100": "rdna3", "gfx1201": "rdna4"}

# opcodes -> the test that covers them
ELSEWHERE = {
    r"(global|buffer)_(load|store)_.*|ds_(read|write|load|store)2?_.*|s_load_.*": (
        "hipsim/test_machine_memory.py::test_memory_forms"
    ),
    r"v_mfma_.*|v_wmma_.*": "hipsim/test_machine_matrix.py::test_layout",
    r"s_wait.*|s_barrier.*": "hipsim/test_machine_checks.py::test_every_wait_and_barrier_is_missed",
    r"s_c?branch.*|s_endpgm": "hipsim/test_launch.py::test_guard_in_the_kernel_is_needed",
    r"s_nop": "hipsim/test_machine_checks.py::test_hazards_of_matrix_results",
    r"v_permlanex?16_b32": "hipsim/test_machine_instructions.py::test_permutation_of_rows",
    r"v_perm_b32": "hipsim/test_machine_instructions.py::test_integers",
    r"v_fma_mix_f32|v_fma_mix(lo|hi)_f16": "hipsim/test_machine_instructions.py::test_mixed_precision",
    # hints, and caches that are not modelled: no state of the program
    r"s_clause|s_delay_alu|s_sendmsg|s_set_inst_prefetch_distance|s_setprio": "test_sweep.py::test_sample",
    r"global_inv|buffer_gl0_inv": "test_sweep.py::test_sample",
}
# Where the documents have nothing, after the words of the MI200 ISA; they print no pseudo-code.
ADDED = {
    "v_mac_f32": "D0.f32 = S0.f32 * S1.f32 + D0.f32",
    "v_madmk_f32": "D0.f32 = S0.f32 * SIMM32.f32 + S1.f32",
}
# Where they cannot be meant as printed: what is put in the place of what. div_fmas undoes the scale that div_scale
# applies, and div_fixup mends a quotient that overflowed on the way (so reads it tinygrad's emulator, too); 1 / S1 of a
# float32 is never subnormal as a float64; a huge denominator cannot be scaled up; the exponent of zero is 0 and that of
# a subnormal number its own, as LLVM folds the intrinsic. The others are slips of the pen.
READ_AS = {
    r"v_div_fmas_f(32|64)": [
        (r"2\.0F \*\* 32 \* fma\((.*)\)", r"fma(\1, (exponent(S2.f32) > 127 ? 64 : -64))"),
        (r"2\.0 \*\* 64 \* fma\((.*)\)", r"fma(\1, (exponent(S2.f64) > 1023 ? 128 : -128))"),
    ],
    r"v_div_scale_f(32|64)": [
        (r"1\.0 / 64'F\(S1\.f32\) == DENORM\.f64", "1.0F / S1.f32 == DENORM.f32"),
        (r"(?s)(DENORM\.f\d+\)\) then.*?ldexp\(S0\.f\d+, )", r"\1-"),
    ],
    r"v_(min|max)_f64": [  # the zeros by their signs
        (r"\(S(\d)\.f64 == \+0\.0\)", r"(S\1.u64 == 0)"),
        (r"\(S(\d)\.f64 == -0\.0\)", r"(S\1.u64 == 0x8000000000000000)"),
    ],
    r"v_div_fixup_f(32|64)": [
        (r"(sign_out \? -abs\(S0\.f(\d+)\) : .*)", r"isNAN(S0.f\2) ? (sign_out ? -INF : +INF) : (\1)"),
    ],
    r"v_frexp_exp_i32_f32": [(r"exponent\(S0\.f32\) - 127 \+ 1", "frexp_exp(S0.f32)")],
    r"s_cmpk_.*": [(r"SIMM16", "S1")],
    r"v_pk_mov_b32": [(r"(S\d)\.u32\[", r"\1[")],
    r"v_bitop3_b32": [(r"\{ INST.*\}", "BITOP3"), (r"\bD\.", "D0.")],
}


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


def elsewhere(name):
    return next((test for pattern, test in ELSEWHERE.items() if re.fullmatch(pattern, name)), None)


@functools.cache
def shipped(arch):
    """Every form of an instruction of every kernel that this build has for a part."""
    part, found = hipsim.Device(arch), {}
    for target, name, image in pytest.importorskip("matmul_fused")._core.device_objects():
        if target != arch:
            continue
        with Module(part, image) as module:
            module[name]  # is decoded
            for instruction in Kernel(part.ordinal, name).instructions:
                for half in instruction.text.split(" :: "):
                    key, form = form_of(half)
                    found.setdefault(key, form)
    return sorted(found.values())


@pytest.fixture
def forms(part):
    if not shipped(part.arch):
        pytest.skip("this build has no AMD objects")
    return shipped(part.arch)


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
            if f"%[{register}]" in " ".join(lines) and f"[{register}]" not in " ".join(sources):
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
                lane = form.name == "v_readfirstlane_b32"
                sources.append(
                    f'[{register}] "v"((unsigned){register} + item_x)'
                    if lane
                    else f'[{register}] "s"(({size}){register})'
                )
        blocks.append(
            f"{{ {kind} d0 = d; {mask} m = w, s; unsigned e;"
            f'asm volatile("{joined}" : [d] "+&s"(d0), [w] "+&s"(m), [e] "=&s"(e), [s] "=&s"(s)'
            f' : {", ".join(sources)} : "scc");'
            f"if (item_x == 0) {{ long at = {k * rows} + i; "
            f"out[3 * at] = d0; out[3 * at + 1] = e; out[3 * at + 2] = m; }} }}"
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


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
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
        for i in range(N):
            registers = form.moved(lanes[form.double], i)
            want, bit = form.expected(registers)
            if (not form.compares and differs(form, int(row[i]), want)) or bit != mask[i]:
                shown = {name: hex(value) for name, value in registers.items()}
                wrong.append(f"{form.mnemonic} {form.text} {shown}: {int(row[i]):#x} {mask[i]}, not {want:#x} {bit}")
                break
    assert not wrong, "\n".join(wrong)


def test_every_opcode_is_covered(part, code, forms):
    names = {opcode(mnemonic) for mnemonic, _ in forms}
    missing = {name for name in names if not elsewhere(name) and not (name in code and name.startswith(("v_", "s_")))}
    assert not missing, f"neither compared here nor by a test that is named: {sorted(missing)}"
    for name in filter(None, map(elsewhere, names)):
        file, _, test = name.partition("::")
        assert f"def {test}(" in (TESTS / file).read_text(), name


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_scalars(part, code, forms, rng):
    rdna = part.arch.startswith("gfx1")
    chosen = [
        ScalarForm(mnemonic, re.sub("^m0", "R", text), code, rdna)  # what writes M0 writes any register alike
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
