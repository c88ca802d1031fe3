"""The checks of the simulated GPU, proved on the kernels that ship: mutants of their machine code must be seen.

Every wait, barrier and guard of a kernel is mutated in turn, and calls that execute it run through the whole extension.
A mutant is seen if a check is violated, the device faults, or the result is wrong. Not counted is a wait that never had
a load or an access to LDS to wait for, in no call: it was idle, or waited for stores, on whose end nothing depends.
Sites, those executed, those counted, and how they were seen go to build/reports/hip-PART/mutants.json, those that were
not seen to mutants_unseen.json.

A guard is needed if no other check protects the access: all of those must be seen. The others are listed with
what they guard: another guard, which says the same of its lanes (that of a loop and that of its body); LDS or
registers, of elements that the guard before the store leaves out.

One kernel of each family, drawn by the seed, its waits, barriers and needed guards; with --full every kernel, with all
guards, waits that are weaker by one, and shorter s_nop.
"""

import collections
import dataclasses
import functools
import gc
import itertools
import math
import os
import random
import re
from pathlib import Path

import numpy as np
import pytest

import hipsim
import matmul_fused as mf
from hipsim.mutants import Kernel, kernel_names
from matmul_fused.testing import Case, force_kernel, gpu_sample, run_case
from matmul_fused.testing.devices import DeviceTransfer
from matmul_fused.testing.gpu_cases import PRESHUFFLE
from matmul_fused.testing.inputs import make_inputs
from matmul_fused.testing.run import call_arguments
from support import DTYPES, same_bits

PART = os.environ["MMF_TEST_SIMULATED"]
DEFINITIONS = Path(__file__).resolve().parents[1] / "csrc/gpu/kernels/common/kernels.def"
LIMIT = 2_000_000  # instructions of a wave
TRIES = 6  # calls on which a mutant is tried at least
LOOPS = 4  # steps of K of the deepest edge: the loop repeats after what stands before it
LEAST = 0.97  # of the waits that had something to wait for
# Barriers that are not needed: find_matrices writes what is read after the first barrier of the band loop; behind the
# last read of a step of k that stands alone, two keep the phases of the waves apart.
REDUNDANT_BARRIERS = {
    "gemm_mfma": 1, "gemm_mfma_f32": 1, "gemm_mfma_xf32": 1, "gemm_mfma_f64": 1,
    "gemm_pingpong": 2, "gemm_pingpong_staged": 1, "gemm_pingpong_splitk": 2, "gemm_pingpong_staged_splitk": 1,
    "gemm_gemv": 1,  # on RDNA one wave adds the parts and, of few columns, is the epilogue
}  # fmt: skip
# Guards that another implies: of a tile of one row, the columns of the result are fewer than a row's threads.
REDUNDANT_GUARDS = {"gemv": 1}
# Copies of a guard that no wave comes to: behind a branch that is taken while a lane has an element of K, as those of
# the first chunk always have.
UNREACHED_GUARDS = {"gemm_pingpong_128x192x64_f16_nn": 1, "gemm_pingpong_128x192x64_bf16_nn": 1}
# At least, of short kernels: one without epilogue, those without K.
WAITS = {
    "simt_splitk": 20, "reduce_splitk": 20, "reorder": 10,
    "thin_splitk": 20, "pingpong_splitk": 15, "pingpong_staged_splitk": 20,
}  # fmt: skip
ROUNDS = ("mfma_xf32",)  # take float32 with allow_tf32 alone
PLANS = {"reduce_splitk": "gemm_simt_splitk", "reorder": "gemm_simt"}  # a step -> a family of calls with it
SHUFFLES = "NP"  # the layout of rows that read, or of steps that make, weights of PRESHUFFLE

pytestmark = pytest.mark.device


def pytest_generate_tests(metafunc):
    config = metafunc.config
    names = kernel_names(DEFINITIONS.read_text(), PART)
    if not config.getoption("full"):
        families = collections.defaultdict(list)
        for name, (family, *_) in names.items():
            families[family].append(name)
        rng = random.Random(f"{config.mmf_seed} {PART}")
        names = {name: names[name] for members in families.values() for name in rng.sample(members, 1)}
    metafunc.parametrize(("name", "what"), names.items(), ids=names)


@functools.cache
def transfer():
    return DeviceTransfer("rocm:0")


@pytest.fixture
def limited():
    hipsim.configure(limit=LIMIT)
    yield hipsim.Device(0)
    hipsim.configure(limit=0)
    gc.collect()


class Call:
    """A case on the device, ready to run again and again."""

    def __init__(self, case, seed, row, unpacks=False):
        self.case, self.seed, self.row, self.unpacks = case, seed, row, unpacks
        self.arguments, self.arrays = call_arguments(make_inputs(case, seed), transfer(), mf)
        self.cost = 0

    def prepack(self):
        B, plain = self.arguments["B"], self.arrays
        layout = "auto" if self.case.prepack is True else self.case.prepack
        if isinstance(B, tuple):
            return mf.prepack(plain["B"], layout=layout), mf.prepack(plain["B_up"], layout=layout)
        return mf.prepack(plain["B"], gate_layout=B.gate_layout, layout=layout)

    def launch(self):
        again = {"B": self.prepack()} if self.case.prepack else {}
        if self.unpacks:
            B = again["B"]
            for packed in B if isinstance(B, tuple) else (B,):
                packed.unpack()
        with force_kernel(self.row):
            result = mf.matmul_fused(**self.arguments | again)
        transfer().device.synchronize()
        return result

    def judge_unpacked(self):
        """Of one weight without a gate: what is stored beyond the end of a row may lie in the next one."""
        if self.unpacks and not self.case.gate_layout:
            plain = make_inputs(self.case, self.seed).operands["B"].view
            assert same_bits(transfer().to_numpy(self.prepack().unpack()), np.ascontiguousarray(plain))

    def flaw(self, device, judged):
        """What is wrong with the call, or None. judged: the results count too."""
        said = None
        try:
            if judged:
                run_case(self.case, self.seed, kernel=self.row, xp=transfer())
                self.judge_unpacked()
            else:
                self.launch()
        except AssertionError:
            said = "wrong result"
        except (RuntimeError, mf.DeviceError):
            said = "fault"
        violations = device.report().violations
        return violations[0].kind if violations else said


def family_of(what, layout=""):
    """The kernel's family, or the one of calls that a step is a launch of."""
    return "gemm_thin" if (what, layout) == ("reorder", SHUFFLES) else PLANS.get(what, f"gemm_{what}")


def forced(name, what):
    """The kernel itself, or the calls that a step is a launch of."""
    return family_of(what[0], what[2]) if what[0] in PLANS else name


def load(name, what):
    """The kernel, once a call has loaded it."""
    family, operands, layout = what
    m = 1 if family == "gemv" else 16
    fixed = {"prepack": family == "reorder", "allow_tf32": family in ROUNDS}
    case = Case(m, 16, 16, dtype=operands, layout="NN" if layout == "ANY" else layout, **fixed)
    if layout == SHUFFLES:
        case = Case(m, 16, 32, dtype=operands, prepack=PRESHUFFLE)
    run_case(case, 0, kernel=forced(name, what), xp=transfer())
    return Kernel(0, name)


def edges(family, operands, layout, deep):
    """What every seed must reach: rows of less than four elements, whose guards are those of single elements, with each
    output and operand in turn; whole steps of K, in whole and in cut tiles, and several of them; the epilogue in
    registers. deep: a K of several steps of the kernel.
    """
    if layout == SHUFFLES:
        yield from edges_of_shuffled(operands, deep)
        return
    layout = "NN" if layout == "ANY" else layout
    few = 8 if family.startswith(("pingpong", "thin", "wmma", "gemv")) else 9  # products: whole chunks, or not
    for m, n, k in ((65, 16, 128), (65, 16, 256), (128, 128, 192), (17, 16, deep)):
        yield Case(m, n, k, dtype=operands, layout=layout)
    for n, other in itertools.product((1, 2, 3, 5, 6, 7), DTYPES):
        case = {"dtype": operands, "layout": layout, "out_dtype": other, "preactivation": other}
        yield Case(5, n, few, bias="row", bias_dtype=other, **case)
    # The epilogue in registers: whole runs, rows and columns that are cut, each of its operands.
    plain = {"dtype": operands, "layout": layout}
    for bias, of_bias in itertools.product(("row", "column"), ("", "float32")):
        yield Case(37, 40, 24, bias=bias, bias_dtype=of_bias, activation="silu", **plain)
        yield Case(37, 40, 24, bias=bias, bias_dtype=of_bias, activation="swiglu", gate_layout="halves", **plain)
    yield Case(37, 40, 24, c="full", beta=0.5, **plain)


def edges_of_shuffled(operands, deep):
    """The same of whole blocks of 16 columns: cut rows, K in steps and in half ones, every output and operand."""
    plain = {"dtype": operands, "prepack": PRESHUFFLE}
    steps = (128, 256, 32, 96, deep)
    for m, n, k in (*((65, 16, k) for k in steps), (128, 128, 192)):
        yield Case(m, n, k, **plain)
    for m, other in itertools.product((1, 3, 5), DTYPES):
        yield Case(m, 16, 32, out_dtype=other, preactivation=other, bias="row", bias_dtype=other, **plain)
    for bias, of_bias in itertools.product(("row", "column"), ("", "float32")):
        yield Case(37, 48, 32, bias=bias, bias_dtype=of_bias, activation="silu", **plain)
        yield Case(37, 48, 32, bias=bias, bias_dtype=of_bias, activation="swiglu", gate_layout="halves", **plain)
    yield Case(37, 48, 32, c="full", beta=0.5, **plain)


def calls_of(kernel, what, seed):
    """Calls that reach the kernel, and what each executes: (call, executed, waited)."""
    family, operands, layout = what
    row = forced(kernel.name, what)
    deep = LOOPS * max(16, int(re.search(r"x(\d+)_", kernel.name)[1]))
    cases = [
        case
        for case in gpu_sample(family_of(family, layout), seed)
        if case.dtype == operands
        and (case.prepack == PRESHUFFLE) == (layout == SHUFFLES)
        and layout in ("ANY", SHUFFLES, case.layout)
    ]
    cases = [case for case in cases if case.values != "special" and case.flops < 20_000_000]
    most = int(row.split("_")[2].partition("x")[0]) if family == "gemv" else math.inf  # rows
    cases += [
        dataclasses.replace(case, m=min(case.m, most), allow_tf32=family in ROUNDS)
        for case in edges(family, operands, layout, deep)
    ]
    if family == "reorder" and layout != SHUFFLES:
        cases = [dataclasses.replace(case, batch="", prepack=True) for case in cases]
    kernel.executed()
    calls = []
    for case in cases:
        call = Call(case, seed, row, unpacks=family == "reorder")
        try:
            call.launch()
        except NotImplementedError:  # strides that the row does not take
            continue
        executed, waited = kernel.executed()
        call.cost = int(executed.sum())
        if call.cost:
            calls.append((call, executed, waited))
    return sorted(calls, key=lambda entry: entry[0].cost)


def covering(calls):
    """Cheap calls that together execute what any call does: each path through the kernel."""
    left = functools.reduce(np.logical_or, (executed > 0 for _, executed, _ in calls))
    chosen = []
    for call, executed, _ in calls:
        if (executed[left] > 0).any():
            chosen.append(call)
            left &= executed == 0
    return chosen


def try_mutant(device, kernel, mutant, calls):
    """How the mutant was seen, or None."""
    with kernel.mutated(mutant):
        for call in calls:
            flaw = call.flaw(device, judged=False)
            if flaw is None and not mutant.kind.startswith("wait"):
                flaw = call.flaw(device, judged=True)
            if flaw:
                return flaw
    return None


def numbers(text):
    return [int(number, 0) for number in re.findall(r"0x[0-9a-f]+|\d+", text)]


def test_mutants_are_what_they_say(name, what):
    """A weakened wait has one count that is higher by one; what else is changed no longer waits, meets or guards."""
    kernel = load(name, what)
    for mutant in {(mutant.kind, mutant.site.text): mutant for mutant in kernel.mutants()}.values():
        with kernel.mutated(mutant):
            text = kernel.instruction(mutant.site.index).text
        if mutant.kind == "wait weakened":
            before, after = numbers(mutant.site.text), numbers(text)
            if len(before) == len(after):  # a wait for two counters may be written as that for one
                assert sum(after) - sum(before) in (1, 0x100), (mutant, text)
        else:
            assert re.match("s_mov_b" if "s_and_saveexec" in mutant.site.text else "s_nop", text), (mutant, text)
    assert Kernel(0, name).instructions == kernel.instructions


@pytest.mark.timeout(3600)
def test_mutants_are_seen(name, what, sweep_seed, full_run, accounts, limited):
    kernel = load(name, what)
    calls = calls_of(kernel, what, sweep_seed)
    paths = covering(calls)
    counts = collections.Counter()
    unseen = []
    for mutant in kernel.mutants():
        kind = f"guard of {kernel.guarded(mutant.site)}" if mutant.kind == "guard dropped" else mutant.kind
        if not full_run and kind not in ("wait dropped", "barrier dropped", "guard of memory"):
            continue
        index, wait = mutant.site.index, mutant.kind.startswith("wait")
        counts[kind, "sites"] += 1
        reach = [entry for entry in calls if entry[1][index]]
        counts[kind, "executed"] += bool(reach)
        times = {call: int((waited if wait else executed)[index]) for call, executed, waited in reach}
        useful = [call for call in times if times[call]]
        if not useful:
            continue
        if kind != "guard of memory":  # the cheapest, those in which it matters most often, one of each path
            often = sorted(useful[TRIES:], key=times.get, reverse=True)[:TRIES]
            useful = dict.fromkeys([*useful[:TRIES], *often, *(call for call in paths if times.get(call))])
        counts[kind, "counted"] += 1
        flaw = try_mutant(limited, kernel, mutant, useful)
        counts[kind, flaw or "unseen"] += 1
        if flaw is None:
            row = {"kernel": name, "kind": kind, "mutant": str(mutant)}
            unseen.append(row | {"times": sum(times.values()), "calls": len(reach)})
    for kind in sorted({kind for kind, _ in counts}):
        row = {what: count for (of, what), count in sorted(counts.items()) if of == kind}
        accounts.record("mutants", {"kernel": name, "kind": kind, **row})
        accounts.say("mutants", f"{name}: {kind}: {row}")
    accounts.reports.setdefault("mutants_unseen", []).extend(unseen)
    counted, missed = counts["wait dropped", "counted"], counts["wait dropped", "unseen"]
    assert counted > WAITS.get(what[0], 50)
    assert counted - missed >= LEAST * counted, unseen
    for kind in ("barrier dropped", "guard of memory"):
        unreached = UNREACHED_GUARDS.get(name, 0) if kind == "guard of memory" else 0
        assert 0 < counts[kind, "counted"] == counts[kind, "sites"] - unreached, kind
    assert counts["guard of memory", "unseen"] <= REDUNDANT_GUARDS.get(what[0], 0), unseen
    assert counts["barrier dropped", "unseen"] <= REDUNDANT_BARRIERS.get(family_of(what[0]), 0), unseen
