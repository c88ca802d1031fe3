"""bench_gpu.py without a GPU: which rows it measures, its arms on the CPU, its means, its section and picture."""

import json
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree
from itertools import pairwise
from types import SimpleNamespace

import pytest

from test_bench import BENCH, load

ARMS = ["mm", "linear", "eager", "addmm", "ours"]
ADDMM = ("relu", "gelu_tanh")  # the activations that torch._addmm_activation has on CUDA
H200 = {"gpu": "NVIDIA H200", "driver": "1.2", "torch": "2.11", "version": "0.1.0", "build": "b1"}


@pytest.fixture(scope="module")
def bench_gpu():
    return load("bench_gpu", "torch")


@pytest.fixture(scope="module")
def gpu_arms():
    return load("gpu_arms", "torch")


@pytest.fixture(scope="module")
def gpu_rows():
    return load("gpu_rows")


@pytest.fixture(scope="module")
def gpu_roofline():
    return load("gpu_roofline")


def row_of(wanted, **us):
    """Three rounds of each arm, a tenth of it apart, at 100 microseconds where nothing else is said."""
    times = {arm: us.get(arm, 100.0) for arm in wanted["arms"] if us.get(arm, 100.0)}
    return {
        **wanted,
        "us": {arm: [0.9 * value, value, 1.1 * value] for arm, value in times.items()},
        "skipped": {arm: "no reason" for arm in wanted["arms"] if arm not in times},
        "kernel": "gemm_wgmma_x",
        "mhz": 1980,
        "when": "2026-11-24 12:00:00 +0000",
        "commit": "abc",
    }


def call(m, n, k, activation, **us):
    asked = {"regime": "burst", "heat": 0.0, "arms": ARMS, "rounds": 3, **H200}
    return row_of({"m": m, "n": n, "k": k, "activation": activation, **asked}, **us)


# --- which rows are measured ---


@pytest.fixture
def run(bench_gpu, monkeypatch, tmp_path):
    """A function that runs the bench with canned times; which calls were measured, and RESULTS_GPU.md."""
    asked = []

    def canned(wanted, clocks):
        asked.append(wanted)
        return row_of(wanted, addmm=90.0 if wanted["activation"] in ADDMM else 0.0, ours=80.0)

    monkeypatch.setattr(bench_gpu, "measured", canned)
    monkeypatch.setattr(bench_gpu, "gpu_uuid", lambda: "")
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, "")
    markers = "".join(f"<!-- gpu {name}: begin -->\nold\n<!-- gpu {name}: end -->\n" for name in ("burst", "sustained"))
    (tmp_path / "R.md").write_text(markers)

    def main(*arguments, **about):
        asked.clear()
        monkeypatch.setattr(bench_gpu, "about", lambda: H200 | about)
        paths = ["--json", str(tmp_path / "new/gpu.json"), "--results", str(tmp_path / "R.md"), "--rounds", "3"]
        assert bench_gpu.main([*paths, *arguments]) == 0
        return [f"{one['m']} {one['activation']}" for one in asked], (tmp_path / "R.md").read_text()

    return main


def test_a_measured_row_is_not_measured_again(run, tmp_path, capsys):
    assert run("--only", "gelu$", "--rows", "1", "16")[0] == ["1 gelu", "16 gelu"]
    written = json.loads((tmp_path / "new/gpu.json").read_text())
    assert [(row["m"], row["regime"], row["gpu"]) for row in written] == [(m, "burst", "NVIDIA H200") for m in (1, 16)]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["gpu.json"]
    capsys.readouterr()
    assert run("--only", "gelu$", "--rows", "1", "16", "64")[0] == ["64 gelu"]
    told = capsys.readouterr().out
    assert "2 rows were measured before, 0 are left for later." in told
    assert "| 1 | 4096 | 1024 | gelu | 100.0 | 100.0 | 100.0 | - | 80.0 | 0.80 (0.80-0.80) | " in told
    assert told.count("nvidia-smi is not in PATH") == 1


@pytest.mark.parametrize(
    ("arguments", "about"),
    [
        (["--sustained"], {}),
        (["--compile"], {}),
        (["--rounds", "4"], {}),
        ([], {"gpu": "NVIDIA H100"}),
        ([], {"torch": "2.12"}),
        ([], {"version": "0.2.0"}),
        ([], {"build": "b2"}),
    ],
)
def test_another_row_is_measured_and_both_are_kept(run, tmp_path, arguments, about):
    some = ["--only", "gelu$", "--rows", "1"]
    run(*some)
    assert run(*some, *arguments, **about)[0] == ["1 gelu"]
    assert run(*some, *arguments, **about)[0] == []
    assert run(*some)[0] == []
    # More rounds replace fewer.
    assert len(json.loads((tmp_path / "new/gpu.json").read_text())) == (1 if "--rounds" in arguments else 2)


def test_no_row_begins_after_the_budget(run, capsys):
    assert run("--budget", "-1", "--only", "gelu$")[0] == []
    assert "0 rows were measured before, 7 are left for later." in capsys.readouterr().out


def test_what_is_compiled_lies_beside_the_json_file(run, tmp_path):
    run("--only", "nothing", "--compile")
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "new/compiled")
    run("--only", "nothing", "--compile", "--cache", str(tmp_path / "other"))
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "other/triton")


def test_rows_of_an_older_file_stay(run, tmp_path):
    (tmp_path / "new").mkdir()
    older = {"m": 1, "n": 4096, "k": 1024, "activation": "gelu", "us": {"mm": [1.0]}}
    (tmp_path / "new/gpu.json").write_text(json.dumps([older]))
    assert run("--only", "gelu$", "--rows", "1")[0] == ["1 gelu"]
    assert older in json.loads((tmp_path / "new/gpu.json").read_text())


# --- the arms ---


@pytest.mark.parametrize("activation", ["relu", "silu", "gelu", "gelu_tanh", "swiglu"])
def test_arms_compute_what_they_say(gpu_arms, activation):
    sets, arms, skipped, plan = gpu_arms.arms_of(5, 32, 64, activation, tuple(ARMS), "cpu")
    left_out = set() if activation in ADDMM else {"addmm"}
    assert arms.keys() == {*ARMS} - left_out
    assert skipped == dict.fromkeys(left_out, f"torch._addmm_activation has no {activation}")
    assert sets == 16
    assert plan.kernel.startswith("cpu_")
    assert arms["ours"](15).shape == (5, 16 if activation == "swiglu" else 32)


def test_arms_with_more_operands_compute_what_they_say():
    operands = load("bench_gpu_operands", "torch")
    for kind in operands.KINDS:
        sets, arms, plan = operands.arms_of(kind, 5, 32, 64, ["cpu_reference", "gemm_simt"], "cpu")
        assert (sets, [*arms]) == (16, ["mm", "eager", "ours", "cpu_reference", "gemm_simt"])
        assert plan.kernel.startswith("cpu_")
        operands.torch.testing.assert_close(arms["ours"](15), arms["eager"](15), rtol=0.02, atol=0.02)


def test_a_rival_that_fails_is_left_out_and_ours_is_an_error(gpu_arms, monkeypatch):
    torch = pytest.importorskip("torch")

    def refuse(layer):
        raise RuntimeError("no compiler\nand more lines")

    monkeypatch.setattr(gpu_arms, "compiled", refuse)
    monkeypatch.setattr(torch, "mm", lambda x, w, out: out.fill_(7))
    _, arms, skipped, _ = gpu_arms.arms_of(5, 32, 64, "relu", (*ARMS, "compile"), "cpu")
    assert arms.keys() == {*ARMS} - {"mm"}
    assert re.fullmatch(r"wrong: Greatest absolute difference: \d.*", skipped.pop("mm"))
    assert skipped == {"compile": "RuntimeError: no compiler"}
    monkeypatch.setattr(gpu_arms.mf, "matmul_fused", lambda *arguments, out: out)
    with pytest.raises(AssertionError, match="not close"):
        gpu_arms.arms_of(5, 32, 64, "relu", ("ours",), "cpu")


# --- the samples ---


class Gpu:
    """Stands in for graphs, events and time: a graph takes as many milliseconds as its number."""

    def __init__(self):
        self.now, self.log = 0.0, []

    def graph(self, number):
        def replay():
            self.now += number * 1e-3
            self.log.append(number)

        return SimpleNamespace(replay=replay)

    def sleep(self, seconds):
        self.now += seconds
        self.log.append("idle")

    def event(self, enable_timing=False):
        one = SimpleNamespace(synchronize=lambda: None)
        one.record = lambda: setattr(one, "when", self.now)
        one.elapsed_time = lambda end: (end.when - one.when) * 1e3
        return one


@pytest.mark.parametrize("heat", [0.0, 0.5])
def test_arms_take_turns_idle_or_hot(bench_gpu, monkeypatch, heat):
    gpu, began = Gpu(), []
    graphs = {"a": gpu.graph(1), "b": gpu.graph(2), "c": gpu.graph(3)}
    monkeypatch.setattr(bench_gpu, "captured", lambda sets, arms, calls: graphs)
    monkeypatch.setattr(bench_gpu, "time", SimpleNamespace(sleep=gpu.sleep, perf_counter=lambda: gpu.now))
    monkeypatch.setattr(bench_gpu.torch.cuda, "Event", gpu.event)
    monkeypatch.setattr(bench_gpu.torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(bench_gpu.torch.cuda, "_sleep", lambda cycles: gpu.log.append("covered"))
    times = bench_gpu.microseconds(
        1, graphs, calls=4, rounds=5, heat=heat, begin_clocks=lambda: began.append((gpu.now, len(gpu.log)))
    )
    assert {name: [pytest.approx(250 * number)] * 5 for number, name in enumerate("abc", 1)} == times
    ((when, done),) = began
    assert when == pytest.approx(heat / 2, abs=0.01)
    if heat:
        assert "idle" not in gpu.log
        assert "covered" not in gpu.log
        turns = gpu.log[-21:]
        assert sum(gpu.log[:-21]) * 1e-3 == pytest.approx(heat, abs=0.02)
        assert done > 0
    else:
        assert gpu.log[::3] == ["idle"] * 21
        assert gpu.log[1::3] == ["covered"] * 21
        turns = gpu.log[2::3]
    assert all(sorted(turns[i : i + 3]) == [1, 2, 3] for i in range(0, 21, 3))
    assert {b for a, b in pairwise(turns) if a == 1} >= {2, 3}


# --- what is said of the rows ---


def test_means_beside_the_bars(gpu_rows):
    rows = [
        call(1, 4096, 1024, "gelu", ours=80.0, addmm=100.0),
        call(64, 8192, 8192, "silu", ours=125.0, addmm=0.0, eager=150.0),
        call(1, 28672, 4096, "swiglu", ours=101.0, addmm=0.0),
    ]
    silu, swiglu = "64x8192x8192 silu.", "1x28672x4096 swiglu."
    assert gpu_rows.summary(rows) == [
        f"relu, silu and gelu, ours / mm, 2 calls: geometric mean 1.000 (at most 1.00 met), "
        f"largest 1.250 (at most 1.10 missed), {silu}",
        f"relu, silu and gelu, ours / best of eager, addmm, 2 calls: geometric mean 0.816 (at most 0.90 met), "
        f"largest 0.833 (at most 1.05 met), {silu}",
        f"swiglu, ours / mm, 1 calls: geometric mean 1.010 (at most 1.02 met), largest 1.010, {swiglu}",
        f"swiglu, ours / best of eager, addmm, 1 calls: geometric mean 1.010, "
        f"largest 1.010 (at most 1.05 met), {swiglu}",
        f"all, ours / best of eager, addmm, 3 calls: geometric mean 0.876 (at most 0.90 met), "
        f"largest 1.010 (at most 1.05 met), {swiglu}",
    ]
    assert gpu_rows.skipped(rows) == ["Left out: addmm; no reason: 64x8192x8192 silu, 1x28672x4096 swiglu."]
    without = call(1, 4096, 1024, "gelu", mm=0.0, eager=0.0, addmm=0.0)
    without["mhz"] = None
    assert gpu_rows.cells(without)[4:] == ("-", "100.0", "-", "-", "100.0", "-", "-", "-", "gemm_wgmma_x")
    assert gpu_rows.summary([without]) == []


def test_of_several_runs_the_median_counts(run, gpu_rows, tmp_path, capsys):
    rows = [call(1, 4096, 1024, "gelu", ours=ours) for ours in (90.0, 80.0, 50.0)]
    assert gpu_rows.summary(rows)[0].startswith(
        "relu, silu and gelu, ours / mm, 1 calls: geometric mean 0.800 (at most 1.00 met), largest 0.800 "
    )
    run("--only", "gelu$")  # 80 microseconds each
    other = tmp_path / "other.json"
    rows = json.loads((tmp_path / "new/gpu.json").read_text())
    other.write_text(json.dumps([row | {"us": row["us"] | {"ours": [60.0, 60.0, 60.0]}} for row in rows]))
    capsys.readouterr()
    run("--only", "gelu$", "--runs", str(other))
    assert "ours / mm, 7 calls: geometric mean 0.700 (at most 1.00 met)" in capsys.readouterr().out
    run("--write", "--runs", str(other))
    assert f"R.md is left as it is: 42 rows of {other} are still to be measured" in capsys.readouterr().out
    other.write_text((tmp_path / "new/gpu.json").read_text())
    _, text = run("--write", "--runs", str(other), str(other))
    assert "of the median of 3 runs for each call; the table is one of them.\n\nrelu, silu and gelu, ours / mm" in text
    with pytest.raises(SystemExit):
        run("--runs", str(tmp_path / "missing.json"))
    assert "--runs takes files of other runs, got " in capsys.readouterr().err


def test_a_full_run_writes_its_section_and_the_picture_shows_it(run, bench_gpu, gpu_roofline, tmp_path, capsys):
    _, text = run("--write", "--only", "gelu$")
    assert text.count("old") == 2
    assert f"42 rows of {tmp_path / 'new/gpu.json'} are still to be measured" in capsys.readouterr().out
    assert gpu_roofline.draw(text) == ""
    measured, text = run("--write")
    assert len(measured) == 42
    assert text.count("\nold\n") == 1
    _, text = run("--write", "--sustained", "--compile", "--commit", "def")
    assert "`python bench/bench_gpu.py --sustained --compile`, commit def, 2026-11-24" in text
    assert "after 0.5 s of all arms back to back" in text
    for regime in ("burst", "sustained"):
        points = gpu_roofline.points(text, regime)
        assert len(points) == 2 * len(bench_gpu.WEIGHTS) * len(bench_gpu.ROWS)
        first = next(point for point in points if point.arm == "mm")
        assert first.rate == pytest.approx(2 * 16384 * 4096 / 100e-6)
        assert first.intensity == pytest.approx(16384 * 4096 / (16384 * 4096 + 4096 + 16384))
        assert [point.arm for point in points[-2:]] == ["ours", "mm"]
        assert points[-2].intensity > points[-1].intensity  # of swiglu half the columns are stored
    root = xml.etree.ElementTree.fromstring(gpu_roofline.draw(text))
    dots = [one for one in root if one.tag.endswith("circle") and one.get("r") == "3"]
    assert len(dots) == 2 * 2 * 49
    said = [one.text for one in root if one.tag.endswith("text")]
    assert "line: published by NVIDIA, 4.8 TB/s and 989 Tflop/s" in said
    assert any(line.startswith("sustained: NVIDIA H200, driver 1.2, torch 2.11, ") for line in said)
    (tmp_path / "R.md").write_text(text)
    gpu_roofline.main(tmp_path / "R.md", tmp_path / "p.svg")
    assert (tmp_path / "p.svg").read_text() == gpu_roofline.draw(text)
    with pytest.raises(ValueError, match="not measured on one of NVIDIA H200"):
        gpu_roofline.draw(text.replace("NVIDIA H200", "NVIDIA H100"))


def test_the_picture_of_this_repository_shows_its_sections(gpu_roofline):
    drawn, picture = gpu_roofline.draw((BENCH / "RESULTS_GPU.md").read_text()), gpu_roofline.PICTURE
    assert (picture.read_text() if picture.exists() else "") == drawn, "run: python bench/gpu_roofline.py"


# --- clocks ---


def fake_nvidia_smi(tmp_path, script):
    path = tmp_path / "nvidia-smi"
    path.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\n{script}\n")
    path.chmod(0o755)


def ended(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def until(true):
    for _ in range(500):
        if true():
            return
        time.sleep(0.02)
    raise AssertionError("it did not come to pass in 10 s")


POLLS = "while :; do echo 1755; sleep 0.01; done"


def polled(clocks):
    until(lambda: len(clocks.samples) > 3)
    clocks.begin()
    assert clocks.median() is None
    until(lambda: clocks.median() is not None)
    assert clocks.median() == 1755
    raise KeyboardInterrupt


def test_clocks_are_polled_and_the_child_ends(tmp_path, monkeypatch):
    nvidia_smi = load("nvidia_smi")
    fake_nvidia_smi(tmp_path, f"echo '[N/A]'; echo 300; {POLLS}")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(KeyboardInterrupt), nvidia_smi.Clocks("some-id") as clocks:
        polled(clocks)
    assert clocks.samples[0][1] == 300
    assert ended(int((tmp_path / "pid").read_text()))


def test_the_child_ends_with_a_process_that_is_killed(tmp_path):
    load("nvidia_smi")
    fake_nvidia_smi(tmp_path, POLLS)
    program = "import nvidia_smi, time\nwith nvidia_smi.Clocks():\n    time.sleep(60)"
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(BENCH)}
    with subprocess.Popen([sys.executable, "-c", program], env=environment) as process:
        until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
        process.kill()
    pid = int((tmp_path / "pid").read_text())
    until(lambda: ended(pid))


def test_a_driver_that_does_not_answer_is_said(tmp_path, monkeypatch, capsys):
    nvidia_smi = load("nvidia_smi")
    fake_nvidia_smi(tmp_path, "echo 580.1\necho 580.1")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert nvidia_smi.driver() == "580.1"
    fake_nvidia_smi(tmp_path, "exit 9")
    assert nvidia_smi.driver() == "not known"
    with nvidia_smi.Clocks() as clocks:
        until(lambda: clocks.child.poll() is not None)
    assert clocks.median() is None
    assert "nvidia-smi gave no clocks" in capsys.readouterr().out
