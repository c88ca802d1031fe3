"""Every kernel on the case list: the pairwise covering sample, or with --full all cases.

The sample runs as the plan chooses and again with every kernel row forced. A row may refuse a case, for the reason
that explain gives; then it must not have run anything. With --full, every case runs as the plan chooses and with one
of the rows, in turn, in chunks of the list.

With --device, the operands lie on a GPU and the rows are those of GPUs.
On a simulated GPU every row has a sample of its own (gpu_sample), on which it is forced, and what the plan chooses has
a small one; the full list is cut by the size of the products.
"""

import collections
import functools
import itertools
import math
import os
import random
import re
import zlib

import numpy as np
import pytest

import matmul_fused as mf
from matmul_fused.report import device_kernels, families_for, kernels_for
from matmul_fused.testing import all_cases, covering_sample, force_kernel, gpu_sample, run_case
from matmul_fused.testing.cases import Case, edge_cases, space
from matmul_fused.testing.devices import DeviceTransfer
from matmul_fused.testing.gpu_cases import PRESHUFFLE
from matmul_fused.testing.inputs import make_inputs
from matmul_fused.testing.run import NumPyTransfer, call_arguments
from support import takes_no_gate

DEVICE = os.environ["MMF_TEST_DEVICE"]
SIMULATED = os.environ["MMF_TEST_SIMULATED"]  # the part, or ""
SIBLINGS = mf._core.device_manifest()["siblings"]
SIBLING = SIMULATED in SIBLINGS  # it runs objects that another part is swept with
SIBLING_CASES = 6  # of each row that is forced, and ten times as many of the plan's choice
OF_SIBLINGS = ("gemm_wmma", "gemm_gemv")  # forced
SIMULATED_FLOPS = 2_000_000  # of a case of the full list: 85 % of the cases, about half an hour
CHUNK = 150
SHORT = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}
SHOWN = 5  # failures of a chunk that are shown in full


def family_of(kernel):
    return re.split(r"_\d+x", kernel)[0]


def forced_kernels():
    """What is forced, by the name that is shown: a family, and on a simulated GPU a family's tiles one by one."""
    if DEVICE == "cpu":
        return {name: name for name in mf.info().kernels}
    families = families_for("cuda" if DEVICE == "stub" else DEVICE)
    rows = kernels_for(DEVICE) if SIMULATED else ()
    tiles = dict.fromkeys(row.rsplit("_", 2)[0] for row in rows)
    return {tile: ", ".join(row for row in rows if row.startswith(f"{tile}_")) for tile in tiles} or {
        family: family for family in families
    }


ROWS = forced_kernels()
KERNELS = [*ROWS]


@functools.cache
def transfer():
    return NumPyTransfer() if DEVICE == "cpu" else DeviceTransfer(DEVICE)


def runnable(cases):
    most = SIMULATED_FLOPS if SIMULATED else math.inf
    return [case for case in cases if case.flops <= most]


@functools.cache
def sample(seed):
    return runnable(covering_sample(seed))


@functools.cache
def gpu_cases(family, seed, few):
    """Other cases on other parts. Seconds go into them, and every tile of a family asks; a few are just drawn."""
    seed += zlib.crc32(DEVICE.encode())
    rng = random.Random(seed)
    if few:
        return [Case(**space(family).random_row(rng, {})) for _ in range(20 * SIBLING_CASES)]
    return gpu_sample(family, seed)


@functools.cache
def every_case():
    return runnable(all_cases())


def takes(kernel, case):
    try:
        arguments, _ = call_arguments(make_inputs(case, 0), transfer(), mf)
        with force_kernel(ROWS[kernel]):
            mf.explain(**arguments)
    except NotImplementedError:
        return False
    return True


@functools.cache
def here(tile):
    """Has the part a row of the tile?"""
    target = SIBLINGS.get(SIMULATED, SIMULATED).upper()
    targets = {row["instance"]: row["targets"].split(" | ") for row in device_kernels()}
    return not SIMULATED or any(not {"ALL", target}.isdisjoint(targets[row]) for row in ROWS[tile].split(", "))


def fits(tile, case):
    """Is the case of those that a tile of its family may take?"""
    if re.search(r"_\d+x", tile) and f"_{SHORT[case.dtype]}_" not in ROWS[tile]:  # steps of a dtype's size
        return False
    few = re.match(r"gemm_gemv_(?:stream_)?(\d+)x", tile)
    if few:
        return case.m <= int(few[1])
    if case.prepack not in (False, True) and not reads_shuffled(tile, case.dtype):
        return False
    return not (case.gate_layout and takes_no_gate(tile))


@functools.cache
def reads_shuffled(tile, dtype):
    """Does a row of the tile, or of the family, read weights in layout "preshuffle_16x16"?"""
    rows = [row for row in kernels_for(DEVICE) if row.startswith(f"{tile}_") and row.endswith(f"_{SHORT[dtype]}_np")]
    return bool(rows) and part_shuffles(dtype)


@functools.cache
def part_shuffles(dtype):
    try:
        call_arguments(make_inputs(Case(16, 16, 32, dtype=dtype, prepack=PRESHUFFLE), 0), transfer(), mf)
    except NotImplementedError:
        return False
    return True


def dealt(cases, kernel, tiles):
    """The cases of one of the tiles, dealt out among those that take them."""
    mine, turns = [], collections.Counter()
    for case in cases:
        taking = tuple(tile for tile in tiles if fits(tile, case))
        if kernel in taking and taking.index(kernel) == turns[taking] % len(taking):
            mine.append(case)
        turns[taking] += 1
    return mine


def runs_of_the_sample(seed, full):
    """(case, row to force or None) of test_sample."""
    if SIMULATED:
        rows = [(case, None) for case in runnable(covering_sample(seed, 1))]
    else:
        rows = [(case, kernel) for case in sample(seed) for kernel in (None, *KERNELS)]
    few = SIBLING and not full
    if few:
        rows = rows[:: max(1, len(rows) // (10 * SIBLING_CASES))]
    for kernel in () if DEVICE in ("cpu", "stub") else KERNELS:
        if few and not kernel.startswith(OF_SIBLINGS):
            continue
        tiles = [tile for tile in KERNELS if family_of(tile) == family_of(kernel) and (tile == kernel or here(tile))]
        cases = gpu_cases(family_of(kernel), seed, few)
        shuffled = {dtype: reads_shuffled(family_of(kernel), dtype) for dtype in SHORT}
        cases = [case for case in cases if case.prepack in (False, True) or shuffled[case.dtype]]
        if not full:  # among the family's tiles
            cases = dealt(cases, kernel, tiles)
        if few:
            cases = [*itertools.islice((case for case in cases if takes(kernel, case)), SIBLING_CASES)]
            rows += [(case, kernel) for case in cases]
            continue
        kinds = dict.fromkeys((case.dtype, case.layout) for case in cases)
        m = 16 if any(case.m >= 16 for case in cases) else 1
        fixed = {"allow_tf32": all(case.allow_tf32 for case in cases)}
        plain = [Case(m, 16, 16, dtype=dtype, layout=layout, **fixed) for dtype, layout in kinds]
        rows += [(case, kernel) for case in (cases if any(takes(kernel, case) for case in plain) else plain)]
    return rows


chosen = set()  # ids of the sample's cases that ran as the plan chooses
ran = dict.fromkeys(KERNELS, 0)
refusals = {kernel: {} for kernel in KERNELS}  # reason -> cases


def pytest_generate_tests(metafunc):
    config = metafunc.config
    if "chunk" in metafunc.fixturenames:
        count = len(every_case()) if config.getoption("full") else 0
        chunks = [range(i, min(i + CHUNK, count)) for i in range(0, count, CHUNK)]
        metafunc.parametrize("chunk", chunks, ids=[f"{c.start}-{c.stop - 1}" for c in chunks])
    elif "case" in metafunc.fixturenames:
        rows = runs_of_the_sample(config.mmf_seed, config.getoption("full"))
        ids = [f"{kernel or 'chosen'}-{case.id}" for case, kernel in rows]
        metafunc.parametrize(("case", "kernel"), rows, ids=ids)


def run_or_refuse(case, seed, kernel):
    """Run the case. The figures, or None if the forced row refused it, and rightly so."""
    text = None
    try:
        outcome = run_case(case, seed, kernel=kernel and ROWS[kernel], xp=transfer())
    except NotImplementedError as error:
        if kernel is None:
            raise
        text = str(error)
    if text is not None:
        reasons = refusal(case, seed, kernel)
        for reason in reasons:
            assert reason in text, f"{kernel}: the error does not give explain's reason {reason!r}: {text}"
        shown = "; ".join(reasons)
        refusals[kernel][shown] = refusals[kernel].get(shown, 0) + 1
        return None
    if kernel:
        ran[kernel] += 1
    return outcome


def refusal(case, seed, kernel):
    """The reasons that explain gives for the refusal of a case by all that was forced."""
    arguments, _ = call_arguments(make_inputs(case, seed), transfer(), mf)
    explanation = mf.explain(**arguments)
    forced = ROWS[kernel].split(", ")
    rows = [row for row in explanation.candidates if row.family in forced or row.name in forced]
    assert all(row.reason for row in rows), f"{kernel} refuses the case when forced, yet explain lists it"
    return sorted({row.reason for row in rows})


@pytest.mark.device
@pytest.mark.timeout(120)
def test_sample(case, kernel, sweep_seed, accounts):
    outcome = run_or_refuse(case, sweep_seed, kernel)
    if outcome is None or (kernel is not None and not SIMULATED):
        return
    accounts.count(case.topics)
    record(accounts, outcome)
    if not SIMULATED:
        chosen.add(case.id)
        accounts.sample_complete = len(chosen) == len(sample(sweep_seed))


def record(accounts, outcome):
    """Keep the worst ratios of error to bound by dtypes."""
    key = f"{outcome.case.dtype}->{outcome.case.result_dtype}"
    worst = accounts.worst.setdefault(key, {"cases": 0, "elements": 0, "max_ratio": 0.0, "rms_ratio": 0.0})
    worst["cases"] += 1
    worst["elements"] += outcome.out.elements
    worst["max_ratio"] = max(worst["max_ratio"], outcome.out.max_ratio)
    worst["rms_ratio"] = max(worst["rms_ratio"], outcome.out.rms_ratio or 0.0)


@pytest.mark.device
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_full(chunk, sweep_seed, accounts):
    failures = []
    for number in chunk:
        case = every_case()[number]
        accounts.count(case.topics)
        for kernel in (None, KERNELS[number % len(KERNELS)]):
            try:
                outcome = run_or_refuse(case, sweep_seed, kernel)
            except Exception as error:
                failures.append(f"{kernel or 'chosen'}-{case.id}\n{type(error).__name__}: {error}")
                continue
            if kernel is None:
                record(accounts, outcome)
    if failures:
        shown = "\n\n".join(failures[:SHOWN])
        pytest.fail(f"{len(failures)} of {2 * len(chunk)} runs failed:\n\n{shown}", pytrace=False)


@pytest.mark.device
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_row_was_forced(kernel, accounts, full_run):
    """Comes after the sweeps. A row that this machine cannot run says so."""
    if SIBLING and not full_run and not kernel.startswith(OF_SIBLINGS):
        pytest.skip("a few rows alone are forced on a GPU that runs another one's objects")
    if not ran[kernel] and not refusals[kernel]:
        pytest.skip("the sweep was not part of this run")
    for reason, count in sorted(refusals[kernel].items()):
        accounts.say("kernel rows", f"{kernel} refused {count} cases: {reason}")
    accounts.say("kernel rows", f"{kernel} ran {ran[kernel]} cases")
    if not ran[kernel]:
        pytest.skip(f"{kernel} ran nothing: {'; '.join(sorted(refusals[kernel]))}")


@pytest.mark.parametrize("kernel", [None, *KERNELS[:-1]])  # the reference has one thread
def test_same_bits_whatever_the_threads(kernel, sweep_seed):
    threads = mf.get_num_threads()
    edges = list(edge_cases(sweep_seed))
    cases = [case for case in sample(sweep_seed) if case.flops > 200_000 and case not in edges][:40]
    assert len(cases) == 40
    cases += edges
    compared, taken, reasons = 0, len(cases), set()
    try:
        for case in cases:
            results = []
            for count in (1, 2, 3, 7):
                mf.set_num_threads(count)
                inputs = make_inputs(case, sweep_seed)
                try:
                    with force_kernel(kernel):
                        arguments, _ = call_arguments(inputs, NumPyTransfer(), mf)
                        out = mf.matmul_fused(**arguments)
                except NotImplementedError as refusal:
                    assert kernel, case.id
                    assert not results, f"{case.id}: refused with {count} threads"
                    taken -= 1
                    reasons.add(str(refusal))
                    break
                bits = np.array(out, order="C")
                bits[np.isnan(bits)] = np.nan  # one sign and payload: STABILITY.md
                results.append(bits.tobytes())
            assert len(set(results)) <= 1, f"{case.id}: other bits with other numbers of threads"
            compared += len(results) == 4
    finally:
        mf.set_num_threads(threads)
    if not taken:
        pytest.skip(f"{kernel} ran nothing: {'; '.join(sorted(reasons))}")
    assert compared == taken


def test_force_kernel_nests_and_comes_back():
    first, last = KERNELS[0], KERNELS[-1]
    a = np.ones((2, 2), np.float32)
    unforced = mf.explain(a, a).family
    with force_kernel(last):
        assert mf.explain(a, a).family == last
        with force_kernel(first):
            pass
        assert mf.explain(a, a).family == last
        with force_kernel(None):
            assert mf.explain(a, a).family == unforced
        with pytest.raises(ZeroDivisionError), force_kernel(first):
            raise ZeroDivisionError
        assert mf.explain(a, a).family == last
    assert mf.explain(a, a).family == unforced
    with pytest.raises(ValueError, match="no_such"), force_kernel("no_such"):
        pass
    assert mf.explain(a, a).family == unforced
