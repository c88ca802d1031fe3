"""The benches' own logic, on problems that are small: nothing here asks how fast anything is."""

import dataclasses
import importlib.util
import json
import random
import subprocess
import sys
import types
import xml.etree.ElementTree
from pathlib import Path

import pytest

import matmul_fused as mf
from matmul_fused.testing import timing

ROOT = Path(__file__).resolve().parents[1]
BENCH = ROOT / "bench"


def load(name, *needed):
    """A module of bench/, which is no package."""
    for package in needed:
        pytest.importorskip(package)
    sys.path.insert(0, str(BENCH))
    try:
        return __import__(name)
    finally:
        sys.path.remove(str(BENCH))


@pytest.fixture(scope="module")
def results():
    return load("results")


@pytest.fixture(scope="module")
def bench_cpu():
    return load("bench_cpu", "torch", "ml_dtypes")


@pytest.fixture(scope="module")
def rivals():
    return load("rivals", "torch", "ml_dtypes")


# --- the protocol ---


class Time:
    """A clock that goes on by sleep only; another thread uses the processor until `busy_until`."""

    def __init__(self, busy_until=0.0):
        self.now, self.busy_until = 0.0, busy_until

    def perf_counter(self):
        return self.now

    def process_time(self):
        return min(self.now, self.busy_until)

    def sleep(self, seconds):
        self.now += seconds


@pytest.mark.parametrize(
    ("busy_until", "most", "until"), [(0, 1, 0.01), (0.005, 1, 0.02), (0.1, 1, 0.11), (9, 0.5, 0.5)]
)
def test_settle_waits_for_threads_that_spin(monkeypatch, busy_until, most, until):
    clock = Time(busy_until)
    monkeypatch.setattr(timing, "time", clock)
    timing.settle(most=most)
    assert clock.now == pytest.approx(until, abs=0.0101)
    assert clock.now >= until - 1e-9


def test_rounds_end_with_the_budget_and_pauses_are_not_timed():
    clock = Time()
    arms = {"first": [lambda: clock.sleep(1)], "second": [lambda: clock.sleep(3)]}
    limits = {
        "sample_seconds": 0,
        "warm_up_seconds": 0,
        "clock": clock.perf_counter,
        "between": lambda: clock.sleep(10),
    }
    for budget, rounds in ((0, 5), (6 * 24, 7), (1e9, 15)):
        first, second = timing.measure(arms, budget_seconds=budget, **limits)
        assert (first.samples, second.samples) == ((1,) * rounds, (3,) * rounds)
        assert second.ratio == 3


def test_no_arm_always_follows_the_same_one():
    clock, log = Time(), []

    def arm(name):
        return [lambda: (log.append(name), clock.sleep(1))]

    limits = {"sample_seconds": 0, "warm_up_seconds": 0, "clock": clock.perf_counter}
    found = timing.measure({name: arm(name) for name in "abc"}, rounds=12, **limits)
    assert [timed.name for timed in found] == ["a", "b", "c"]
    rounds = [log[i : i + 3] for i in range(len(log) - 36, len(log), 3)]
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds)
    after = {(one[i], one[i + 1]) for one in rounds for i in (0, 1)}
    assert len(after) == 6


# --- the ways of a problem ---


def shrunk(problem):
    """The same kind of problem, small and ragged."""
    return dataclasses.replace(
        problem, m=min(problem.m, 9), n=min(problem.n, 34), k=min(problem.k, 40), batch=min(problem.batch, 3)
    )


def test_problems_have_names_of_their_own_and_the_goals(bench_cpu):
    """The project's list, in three dtypes, and what it asks for on each kind of machine."""
    names = [problem.name for problem in bench_cpu.PROBLEMS]
    assert len(set(names)) == len(names)
    listed = [problem for problem in bench_cpu.PROBLEMS if problem.listed]
    assert {(p.m, p.n, p.k) for p in listed} == {
        *((m, 3072, 768) for m in (1, 16, 128, 1024)), (128, 768, 3072), *((m, 8192, 2048) for m in (1, 16, 256)),
        (64, 16384, 4096), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 1024, 64), (333, 777, 555),
    }  # fmt: skip
    assert len(listed) == 13 * 3
    goals = {kind: {d: (g.mean, g.least) for d, g in found.items()} for kind, found in bench_cpu.GOALS.items()}
    assert goals["avx512"] == {"float32": (1.05, 0.95), "bfloat16": (1.6, 0.9), "float16": (1.05, 0.9)}
    assert goals["amx"] == {"float32": (1.05, 0.95), "bfloat16": (1.15, 0.9), "float16": (1.05, 0.9)}
    assert goals["avx2"] == {"float32": (1.2, 1), "bfloat16": (6, 0.9), "float16": (6, 0.9)}
    assert bench_cpu.GOALS["amx"]["bfloat16"].prepacked == 1.5
    assert bench_cpu.GOALS.keys() == {*load("picture").KINDS, "portable"}


def refuse(problem):
    raise RuntimeError("no C++ compiler\nand more lines")


def test_every_way_computes_the_same(bench_cpu, rivals, monkeypatch):
    """Of every problem's kind, also in a copy; compiled by nobody, which is told."""
    monkeypatch.setattr(rivals, "_compiled_layer", refuse)
    for problem in {shrunk(problem) for problem in bench_cpu.PROBLEMS}:
        first = rivals.Operands(problem)
        ways = rivals.ways(problem, first)
        assert ways.calls.keys() | ways.skipped.keys() == {
            "matmul_fused", "matmul_fused, out=", "matmul_fused, prepacked", "matmul_fused, prepacked, out=",
            "torch eager", "torch.compile", "NumPy",
        }  # fmt: skip
        assert not ways.calls.keys() & ways.skipped.keys()
        assert ways.skipped["torch.compile"] == "RuntimeError: no C++ compiler"
        assert ("NumPy" in ways.calls) == (problem.dtype in ("float32", "float64") and problem.activation != "gelu")
        copy = rivals.Operands(problem, first)
        assert not {t.data_ptr() for t in first.tensors()} & {t.data_ptr() for t in copy.tensors()}
        for operands in (first, copy):
            errors = rivals.check(problem, operands, ways.calls)
            assert errors.keys() == ways.calls.keys()
        loop = rivals.alternating(problem)
        copy.x = loop["layer_norm alone"](first)
        ours, torchs = loop["layer_norm, matmul_fused"](first), loop["layer_norm, torch eager"](first)
        results = {"matmul_fused": ours, "torch eager": torchs}
        rivals.check(problem, copy, {way: lambda o, result=result: result for way, result in results.items()})


@pytest.mark.parametrize("way", ["torch eager", "NumPy", "matmul_fused", "matmul_fused, out="])
def test_a_wrong_way_is_not_timed(rivals, way):
    problem = rivals.Problem("test", 9, 33, 40)
    operands = rivals.Operands(problem)

    def wrong(o):
        result = rivals.torch_layer(problem)(*o.tensors())
        result[3, 5] += 0.01
        return result

    with pytest.raises(AssertionError, match=f"9x33x40 float32 silu, {way}"):
        rivals.check(problem, operands, {way: wrong})


def test_out_that_is_not_written_is_seen(rivals):
    problem = rivals.Problem("test", 9, 33, 40)
    with pytest.raises(AssertionError, match="out="):
        rivals.check(problem, rivals.Operands(problem), {"matmul_fused, out=": lambda o: o.out})


# --- a run ---


def test_quick_run(bench_cpu, tmp_path):
    """In a process of its own, compiled by torch.compile if that can."""
    results = tmp_path / "RESULTS.md"
    results.write_text("as it is\n")
    name = "128x128x128 float32 relu"
    command = [sys.executable, BENCH / "bench_cpu.py", "--quick", "--only", f"small: {name}$", "--results", results]
    command += ["--json", tmp_path / "new/cpu.json", "--plot", tmp_path / "cpu.png"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads((tmp_path / "new/cpu.json").read_text())
    assert written["about"]["threads"].keys() == {"matmul_fused", "torch"}
    assert written["about"]["heap"] == "keeps what is freed"
    assert written["results"].keys() == {name}
    row = written["results"][name]
    assert (row["regime"], row["copies"], row["quick"]) == ("hot", 1, True)
    arms = {arm["name"]: arm for arm in row["arms"]}
    assert next(iter(arms)) == "matmul_fused"
    assert {"matmul_fused, out=", "matmul_fused, prepacked", "torch eager", "NumPy"} < arms.keys()
    assert ("torch.compile" in arms) != ("torch.compile" in row["skipped"])
    assert row["relative_errors"].keys() == arms.keys()
    assert [arm["name"] for arm in row["loop"]] == [
        "layer_norm, matmul_fused", "layer_norm, torch eager", "layer_norm alone",
    ]  # fmt: skip
    for arm in [*row["arms"], *row["loop"]]:
        low, high = arm["quartiles_s"]
        assert 0 < arm["best_s"] <= arm["median_s"]
        assert low <= arm["median_s"] <= high
        assert arm["gflops"] == pytest.approx(2 * 128**3 / arm["median_s"] / 1e9)
        assert len(arm["samples_s"]) == 3
    assert name in done.stdout
    assert "RESULTS.md is left as it is: a quick run" in done.stdout
    assert results.read_text() == "as it is\n"
    assert (tmp_path / "cpu.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def two_problems(bench_cpu, rivals, monkeypatch, tmp_path):
    """A function that runs the bench on two problems with canned times: ours 2, 2.5 and 3 ms, torch's twice those."""
    problems = (
        rivals.Problem("a", 2, 3, 4, listed=True),
        rivals.Problem("b", 5, 6, 7, activation="swiglu", listed=True),
    )

    def canned(problem, quick, seconds):
        def arm(name, factor):
            samples = [factor * x for x in (0.002, 0.0025, 0.003)]
            return {"name": name, "median_s": samples[1], "gflops": 1.0, "samples_s": samples}

        return {
            "problem": {"name": problem.name, **dataclasses.asdict(problem)},
            "regime": "hot",
            "arms": [
                arm("matmul_fused", 1),
                arm("torch eager", 2 if problem.group == "a" else 4.5),
                arm("matmul_fused, out=", 0.5),
                arm("matmul_fused, prepacked", 0.5),
                arm("NumPy, product alone", 0.8),
            ],
            "loop": [arm("layer_norm, matmul_fused", 3), arm("layer_norm, torch eager", 1.5)],
            "skipped": {"NumPy": "no reason"},
            "quick": quick,
            **bench_cpu.machine.Snapshot().until_now(),
        }

    monkeypatch.setattr(bench_cpu, "PROBLEMS", problems)
    monkeypatch.setattr(bench_cpu, "run", canned)
    monkeypatch.setattr(bench_cpu.machine, "kind", lambda: "avx512")
    monkeypatch.setattr(bench_cpu.machine, "table", lambda: "avx512")
    goal = bench_cpu.results.Goal(2.9, 2.1, prepacked=7)
    monkeypatch.setitem(bench_cpu.GOALS, "avx512", {"float32": goal, "float16": goal})
    (tmp_path / "R.md").write_text("above\n<!-- cpu avx512: begin -->\nold\n<!-- cpu avx512: end -->\nbelow\n")

    def run(*arguments):
        paths = ["--json", str(tmp_path / "cpu.json"), "--results", str(tmp_path / "R.md")]
        assert bench_cpu.main([*paths, *arguments]) == 0
        return (tmp_path / "R.md").read_text(), json.loads((tmp_path / "cpu.json").read_text())["results"]

    return run


def test_a_run_in_pieces_fills_the_section(two_problems, capsys):
    text, found = two_problems("--only", "^a:")
    assert "\nold\n" in text
    assert "1 problems are still to be measured" in capsys.readouterr().out
    text, found = two_problems("--only", "^b:")
    assert found.keys() == {"2x3x4 float32 silu", "5x6x7 float32 swiglu"}
    assert text.startswith("above\n<!-- cpu avx512: begin -->\n`python bench/bench_cpu.py`, commit ")
    assert text.endswith("\n<!-- cpu avx512: end -->\nbelow\n")
    assert "old" not in text
    first, second = (line for line in text.splitlines() if line.startswith(("| 2x3x4", "| 5x6x7")))
    times = "2.00 (2.00-2.00) | 4.00 (4.00-4.00) | 4.00 (4.00-4.00) | - | - | 0.50 (0.50-0.50)"
    assert first == f"| 2x3x4 float32 silu | hot | 2.5 ms | 1 | {times} |"
    assert "| 4.50 (4.50-4.50) | 9.00" in second
    assert (
        "float32, 2 listed problems, torch eager: mean 3.00 (2.9 met), least by its upper quartile 2.00 (2.1 missed), "
        "2x3x4 float32 silu; prepacked: mean 6.00 (7 missed)." in text
    )
    assert (
        "float32, 2 listed problems, NumPy's product alone / our call with its bias and activation: mean 0.80 "
        "(1 missed), least by its upper quartile 0.80 (0.9 missed)." in text
    )
    assert "swiglu, 1 problems, torch eager: mean 4.50 (1.4 met)." in text
    assert "float16, " not in text
    assert "Not run: NumPy; no reason: 2x3x4 float32 silu, 5x6x7 float32 swiglu." in text


def test_pieces_of_other_conditions_are_dropped(bench_cpu, two_problems, monkeypatch):
    two_problems("--quick", "--only", "^a:")
    _, found = two_problems("--only", "^b:")
    assert found.keys() == {"5x6x7 float32 swiglu"}
    about = bench_cpu.machine.about
    monkeypatch.setattr(bench_cpu.machine, "about", lambda heap: {**about(heap), "build": "another"})
    text, found = two_problems("--only", "^a:")
    assert found.keys() == {"2x3x4 float32 silu"}
    assert "\nold\n" in text


def test_a_pattern_without_a_match_lists_the_problems(bench_cpu, capsys):
    assert bench_cpu.main(["--only", "nothing like it"]) == 2
    assert capsys.readouterr().out.splitlines()[0] == f"square: {bench_cpu.PROBLEMS[0].name}"


# --- RESULTS.md ---


def test_sections_are_replaced_one_at_a_time(results, tmp_path):
    gpu, cpu = ("gpu burst", "gpu sustained"), ("cpu amx", "cpu avx512", "cpu avx2")
    for file, names in (("RESULTS_GPU.md", gpu), ("RESULTS.md", (*cpu, *results.SECTIONS))):
        text = (BENCH / file).read_text()
        for name in names:
            assert text.count(f"\n<!-- {name}: begin -->\n") == text.count(f"\n<!-- {name}: end -->\n") == 1
    path = tmp_path / "R.md"
    path.write_text(text)
    results.write_section(path, "wheel", "new\n")
    before, _, rest = text.partition("<!-- wheel: begin -->\n")
    assert (
        path.read_text()
        == before + "<!-- wheel: begin -->\nnew\n<!-- wheel: end -->\n" + rest.partition("wheel: end -->\n")[2]
    )
    with pytest.raises(ValueError, match="no section between <!-- absent: begin -->"):
        results.write_section(path, "absent", "new")


def test_reports_become_sections(results, tmp_path, capsys):
    path = tmp_path / "R.md"
    path.write_text("".join(f"<!-- {name}: begin -->\nold {name}\n<!-- {name}: end -->\n" for name in results.SECTIONS))
    rows = [{"kernel": "k", "threads": 2, "calls": 5, "bytes": 3 << 20, "allowed": 10 << 20, "at": "1x2x3"}]
    (tmp_path / "workspace.json").write_text(json.dumps(rows))
    assert results.main(path, tmp_path) == 0
    assert "wheel: left as it is, there is no " in capsys.readouterr().out
    assert "old wheel" in path.read_text()
    assert "| k | 2 | 5 | 3.00 MiB | 10 MiB | 1x2x3 |" in path.read_text()
    figures = {"install_s": 1.25, "install_with_numpy_s": 9, "import_ms": 10.5, "passed": 77}
    report = {"wheel": "a.whl", "bytes": 2048, "pythons": {"3.12.1 (prefix)": figures}}
    (tmp_path / "wheel.json").write_text(json.dumps(report))
    assert results.main(path, tmp_path) == 0
    assert "a.whl, 2 KiB" in path.read_text()
    assert "| 3.12.1 | 1.2 | 9.0 | 10.5 | 77 |" in path.read_text()
    assert "prefix" not in path.read_text()


def test_host_cost_beside_another_build(capsys):
    """bench_call.py --against: two extension modules in one process, every arm of each, ratios per round."""
    bench_call = load("bench_call")
    site = str(Path(mf.__file__).parents[1])
    run = bench_call.measure_both([site, site], rounds=2, calls=3, swap=True)
    arms = [arm for arm in bench_call.OURS if importlib.util.find_spec("torch") or not arm.startswith("torch")]
    assert set(run) >= {prefix + arm for arm in arms for prefix in (bench_call.HERE, bench_call.THERE)}
    assert all(len(samples) == 2 and min(samples) > 0 for samples in run.values())
    fixed = [{arm: [1.0] * 3 for arm in run} | {bench_call.HERE + "NumPy": [n, 1.5, 9.0]} for n in (1.0, 2.0)]
    assert bench_call.ratios(fixed, bench_call.HERE + "NumPy", bench_call.THERE + "NumPy") == (1.5, 1.75, 2.0)
    bench_call.print_against(fixed, "REV")
    assert f"{'1.750':>12}   1.500 ... 2.000" in capsys.readouterr().out


def test_the_pictures_show_the_tables():
    picture = load("picture")
    drawn = 0
    for kind in picture.KINDS:
        rows, source = picture.read((BENCH / "RESULTS.md").read_text(), kind)
        if rows:
            assert picture.draw(rows, source) == picture.path(kind).read_text(), "run: python bench/picture.py"
            assert len(rows) > 10
            assert "commit" in source
            drawn += 1
    assert drawn
    slower = picture.Row("1x1x1 <none>", "float32", 0.5, 0.1, 0.7, 20.0)
    text = picture.draw([slower], source)
    root = xml.etree.ElementTree.fromstring(text)
    (bar,) = (
        r for r in root if r.get("fill") == picture.COLOURS["float32"] and r.get("height") == str(picture.BAR - 1)
    )
    assert float(bar.get("x")) == picture.LEFT  # from 0.5, the left end of the scale, to 1
    assert float(bar.get("width")) == picture.place(1) - picture.LEFT
    assert source in " ".join(line.text for line in root if line.get("font-size") == "9")


# --- explain beside the clock ---


@pytest.fixture(scope="module")
def bench_explain(bench_cpu):
    return load("bench_explain")


@pytest.mark.parametrize(
    ("ratios", "holds"),
    [
        ([1.0] * 10, [True, True, True]),
        ([1.0] * 9 + [1.9], [True, True, True]),
        ([1.0] * 8 + [1.9] * 2, [False, True, True]),
        ([1.0] * 9 + [2.1], [True, False, True]),
        ([1.2] * 10, [True, True, False]),
        ([0.6] * 10, [False, True, False]),
    ],
)
def test_verdict(bench_explain, ratios, holds):
    assert [line.endswith(": yes") for line in bench_explain.verdict(ratios)] == holds


def test_explain_beside_the_clock(bench_explain, tmp_path, capsys):
    path = tmp_path / "explain.json"
    assert bench_explain.main(["--quick", "--only", "small: 128x128x128 float32", "--json", str(path)]) == 0
    (row,) = json.loads(path.read_text())["rows"]
    assert row["problem"] == "small: 128x128x128 float32 relu"
    assert row["predicted"] > 0
    assert row["measured"] > 0
    assert "wanted 90 %" in capsys.readouterr().out


def test_decoding_beside_a_bare_loop(bench_cpu, tmp_path, capsys):
    bench, path = load("bench_decode", "torch"), tmp_path / "decode.json"
    assert bench.main(["--quick", "--only", "1x768x768 float32", "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [row["regime"] for row in rows] == ["rotated", "hot"]
    assert all(share > 0 for row in rows for way in bench.WAYS for share in row["shares"][way])
    assert "lines reach 0.90" in capsys.readouterr().out


def test_random_problems_beside_torch(bench_cpu, tmp_path, capsys):
    bench, path = load("bench_scan", "torch"), tmp_path / "scan.json"
    assert bench.main(["--quick", "--seconds", "1", "--rows", "1", "5", "--show", "2", "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert rows == sorted(rows, key=lambda row: row["ratio"])
    assert all(row["seconds"] > 0 and row["problem"][:2] in ("1x", "5x") for row in rows)
    shown = capsys.readouterr().out
    assert all(row["problem"] in shown for row in rows[:2])
    draws = [bench.draw(random.Random(7)) for _ in range(2)]
    assert draws[0] == draws[1]
    slow = [bench.Row("p", "float32", "W.T", True, 1.0, ratio) for ratio in (0.5, 0.95, 2.0)]
    assert bench.summary(slow) == [("W.T", "float32", "3", "2", "1", "0.95")]


def test_what_linear_costs():
    bench = load("bench_linear", "torch")
    for recorded, columns in ((False, 3), (True, 2)):
        size, *words = bench.row((2, 8, 4), recorded, rounds=5, seconds=1e-6).split()
        assert size == "2x8x4"
        assert all(float(word) > 0 for word in words[:columns])
    samples = {"linear": (2.0, 4.0, 9.0), "bare": (1.0, 2.0, 6.0)}
    found = {name: types.SimpleNamespace(samples=times) for name, times in samples.items()}
    assert bench.within(found, "bare", lambda ours, theirs: ours - theirs) == (1.0, 2.0, 3.0)
