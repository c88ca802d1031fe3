"""bench_forward.py on tiny layers: what it refuses, what it says, one run. Nothing asks how fast anything is."""

import dataclasses
import json
import re
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

BENCH = Path(__file__).resolve().parents[1] / "bench"


@pytest.fixture(scope="module")
def forward():
    sys.path.insert(0, str(BENCH))
    try:
        return __import__("bench_forward")
    finally:
        sys.path.remove(str(BENCH))


def workload(forward, layer, dtype="float32", shape=(2, 3)):
    (work,) = forward.forward_cases.workloads([forward.forward_cases.Case(layer, dtype, *shape)], "cpu")
    return work


@pytest.mark.parametrize("layer", ["tiny Llama", "tiny GPT-2", "tiny BERT"])
@torch.no_grad()
def test_layers_run_on_shared_weights_and_a_wrong_arm_is_named(forward, layer):
    work = workload(forward, layer)
    twin = forward.twin(work.model)
    pairs = list(zip(work.model.parameters(), twin.parameters(), strict=True))
    assert pairs
    assert all(a is b for a, b in pairs)
    arguments, keywords = work.operands(0)

    def off(factor):
        return lambda *x, **more: forward.first(work.model(*x, **more)) * factor

    arms = {"eager": work.model, "same": twin, "wrong": off(1 + 1e-4), "not finite": off(float("nan"))}
    assert forward.first(twin(*arguments, **keywords)).shape == (2, 3, 64)
    found = forward.errors(work, arms)
    assert 0 < found["eager"] == found["same"] < 1e-5
    assert forward.wrong(found).keys() == {"wrong", "not finite"}


def test_cases_of_both_devices(forward):
    for device in ("cpu", "cuda"):
        cases = forward.forward_cases.cases(device)
        assert len(set(cases)) == len(cases)
        assert {case.layer for case in cases} == set(forward.forward_cases.LAYERS)
        assert {case.dtype for case in cases} == {"bfloat16", "float32"}
        assert {(case.batch, case.sequence) for case in cases} >= {(1, 1), (1, 128), (8, 512)}


def row(forward, case, **samples):
    names = {"eager": "eager", "compiled": "torch.compile", "patched": "patched", "backend": "backend"}
    left = {"fused": False, "why": "left: slower, c_fc + act, M <= 1, float32, cpu"}
    return {
        "case": case.name,
        **dataclasses.asdict(case),
        "samples_s": {names[name]: values for name, values in samples.items()},
        "skipped": {} if "backend" in samples else {"backend": "error 1.30 of eager's"},
        "sites": {"patched": [left], "backend": [{"fused": True, "why": ""}, left, left]},
    }


def test_the_table_and_its_verdict(forward, tmp_path):
    slow, good = (forward.forward_cases.Case("tiny BERT", "float32", 1, n) for n in (1, 128))
    rows = [
        row(forward, slow, eager=[1e-3, 2e-3, 4e-3], compiled=[1e-3] * 3, patched=[1.04e-3, 2.08e-3, 4.16e-3]),
        row(forward, good, eager=[1e-3] * 3, compiled=[2e-3] * 3, patched=[1.03e-3] * 3, backend=[1e-3] * 3),
    ]
    text = forward.lines(rows)
    assert "| 2 ms | 1 ms | 2.08 ms | error 1.30 of eager's | 1.04 (1.04-1.04) | - |" in text[2]
    assert text[2].endswith("| 0 fused, 1 left: slower | 1 fused, 2 left: slower |")
    assert "| 1.03 (1.03-1.03) | 0.50 (0.50-0.50) |" in text[3]
    assert "patched: 1.035 of eager (geometric mean of 2); above 1.03: tiny BERT, float32, 1x1 (1.04)." in text
    assert "backend: 0.500 of torch.compile (geometric mean of 1); above 1.03: none." in text
    assert "Not timed: backend, tiny BERT, float32, 1x1: error 1.30 of eager's." in text
    pairs = [(each["case"], {arm: forward.ratios(each, arm) for arm in forward.REPLACES}) for each in rows]
    root = xml.etree.ElementTree.fromstring(forward.forward_picture.draw(pairs, "a <machine>; threads: 1"))
    bars = [one for one in root if one.get("fill") in forward.forward_picture.COLOURS.values() and one.get("height")]
    assert len(bars) == 3
    place = forward.forward_picture.place
    assert float(bars[2].get("x")) == place(1)
    assert float(bars[2].get("width")) == pytest.approx(place(2) - place(1), abs=0.11)


def test_cases_are_compiled_first_by_as_many_processes(forward, monkeypatch):
    started, alive = [], []

    class Process:
        def __init__(self, command, **_):
            self.left, self.killed = 3, False
            started.append(command[command.index("--only") + 1 :])
            alive.append(self)
            assert sum(process.left > 0 for process in alive) <= 4

        def poll(self):
            self.left -= 1
            return None if self.left > 0 else 0

        def kill(self):
            self.killed = True

        wait = poll

    monkeypatch.setattr(forward.subprocess, "Popen", Process)
    monkeypatch.setattr(forward.time, "sleep", lambda _: None)
    monkeypatch.setattr(forward.os, "cpu_count", lambda: 8)
    cases = forward.forward_cases.cases("cpu")
    forward.compile_first(cases, "cpu")
    chosen = [[case.name for case in cases if re.search(only, case.name)] for only, _ in started]
    assert chosen == [[case.name] for case in cases]
    assert {flag for _, flag in started} == {"--compile"}
    assert not any(process.killed for process in alive)
    monkeypatch.setattr(forward, "COMPILING", -1.0)
    forward.compile_first(cases, "cpu")
    forward.compile_first(cases[:1], "cpu")
    monkeypatch.setattr(forward.os, "cpu_count", lambda: 2)
    forward.compile_first(cases, "cpu")
    assert len(started) == len(cases)


def test_a_pattern_without_a_match_lists_the_cases(forward, capsys):
    assert forward.main(["--device", "cpu", "--only", "nothing like it"]) == 2
    assert "tiny BERT, float32, 1x128" in capsys.readouterr().out.splitlines()


def test_a_run(tmp_path):
    """In a process of its own."""
    command = [sys.executable, BENCH / "bench_forward.py", "--device", "cpu", "--quick"]
    command += ["--only", "tiny BERT, float32, 1x128", "--json", tmp_path / "f.json"]
    done = subprocess.run([*command, "--picture", tmp_path / "f.svg"], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads((tmp_path / "f.json").read_text())
    (found,) = written["rows"]
    assert found["samples_s"].keys() | found["skipped"].keys() == {"eager", "torch.compile", "patched", "backend"}
    assert all(len(samples) == 3 and min(samples) > 0 for samples in found["samples_s"].values())
    assert max(found["relative_errors"].values()) <= 1.10
    assert [record["form"] for record in found["sites"]["patched"]] == ["linear"]
    assert [record["form"] for record in found["sites"]["backend"]] == ["residual", "linear", "residual"]
    assert all(record["ours"] and record["theirs"] for made in found["sites"].values() for record in made)
    assert "above 1.03: " in done.stdout
    assert written["about"]["cpu"] in done.stdout
    assert (tmp_path / "f.svg").read_text().startswith("<svg")


def test_without_a_file(forward, monkeypatch, capsys):
    monkeypatch.setattr(forward, "compile_first", lambda chosen, device: None)
    forward.main(["--device", "cpu", "--only", "tiny BERT, float32, 1x128", "--limit", "0"])
    assert "tiny BERT, float32, 1x128" in capsys.readouterr().out
