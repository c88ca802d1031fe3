"""`python -m matmul_fused` and its commands, with rich and without."""

import json
import re
import subprocess
import sys

import pytest

import matmul_fused as mf
import stub_cuda
from matmul_fused import __main__ as cli
from matmul_fused import console, testing
from matmul_fused.report import device_kernels

WITHOUT_RICH = (
    "import sys; sys.modules['rich'] = None; from matmul_fused.__main__ import main; sys.exit(main(sys.argv[1:]))"
)


def command(*arguments, rich=True):
    start = ("-m", "matmul_fused") if rich else ("-c", WITHOUT_RICH)
    return subprocess.run(
        [sys.executable, "-W", "error", *start, *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        cwd="/",
        timeout=600,
    )


def test_info():
    done = command("info")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"matmul_fused {mf.__version__}\n")
    assert ", ".join(mf.info().kernels) in done.stdout


def test_help_without_a_command():
    done = command()
    assert (done.returncode, done.stderr) == (0, "")
    assert all(name in done.stdout for name in ("info", "check", "bench", "activations", "report"))


def test_version():
    assert command("--version").stdout == f"matmul_fused {mf.__version__}\n"


def test_activations():
    text = command("activations").stdout
    for name, _, formula, source, parameters, aliases in mf._core.activation_table()[1:]:
        line = next(line for line in text.splitlines() if f'"{name}"' in line)
        assert all(word in line for word in (formula, source, *(p for p, _ in parameters), *aliases)), line


def test_report(tmp_path):
    path = tmp_path / "report.txt"
    call = "np.ones((4, 8), 'f4'), np.ones((3, 8), 'f4'), activation='gelu'"
    assert command("report", "--output", path, "--call", call).returncode == 0
    text = path.read_text()
    assert "an (N, K) weight? pass B.T" in text
    assert str(mf.info().version) in text
    assert command("report", "--output", path, "--call", call.replace("(3, 8)", "(8, 3)")).returncode == 0
    assert "modelled" in path.read_text()


def test_info_names_the_instruction_sets():
    text = command("info").stdout
    used = mf.info().cpu_features
    assert f"{used or 'none'} used by kernels; not used: " in text
    assert not set(used.split()) & set(mf.info().cpu_unused.split())


def test_info_for_a_reader_that_has_seen_enough(tmp_path):
    """`info --objects DIR | head`: no traceback, and the objects are written."""
    arguments = [sys.executable, "-m", "matmul_fused", "info", "--objects", str(tmp_path)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/")
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(timeout=600) == 1
    assert len(list(tmp_path.glob("*/*"))) == len(mf._core.device_objects())


@pytest.mark.parametrize("rich", [True, False])
def test_check(tmp_path, rich):
    if rich:
        pytest.importorskip("rich")
    done = command("check", "--quick", "--seed", 7, "--json", tmp_path / "check.json", rich=rich)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    written = json.loads((tmp_path / "check.json").read_text())
    cases = len(testing.covering_sample(7, strength=1))
    counts = written["topics"]["all"]
    assert counts["passed"] + counts.get("refused", 0) == cases * len(mf.info().kernels)
    assert set(written["topics"]) == {*testing.TOPICS, "all"}
    assert written["failures"] == []
    assert all(topic in done.stdout for topic in testing.TOPICS)


def test_check_of_one_kernel(capsys):
    kernel = mf.info().kernels[-1]
    assert cli.main(["check", "--quick", "--kernel", kernel]) == 0
    text = capsys.readouterr().out
    assert f"cases on each of {kernel}; seed 0" in text
    assert re.search(r"^OK: all of \d+ runs; \d+ were refused by their kernel$", text, re.MULTILINE)


def test_check_fails_loudly(capsys, monkeypatch):
    def wrong(case, seed, kernel, xp=None):
        raise AssertionError(f"out is wrong\nrepeat: {testing.repeat(case, seed, kernel)}")

    monkeypatch.setattr(testing.run, "run_case", wrong)
    assert cli.main(["check", "--quick"]) == 1
    text = capsys.readouterr().out
    assert "AssertionError: out is wrong\nrepeat: matmul_fused.testing.run_case(Case.parse('" in text
    assert "more; --json FILE writes them all" in text
    assert re.search(r"^FAILED: (\d+) of \1 runs;", text, re.MULTILINE)


def test_check_that_checks_nothing_fails(capsys, monkeypatch):
    def refuse(case, seed, kernel, xp=None):
        raise NotImplementedError

    monkeypatch.setattr(testing.run, "run_case", refuse)
    assert cli.main(["check", "--quick"]) == 1
    assert "nothing was checked" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["check", "--kernel", "cpu_magic"], "unknown kernel 'cpu_magic'; this build has cpu_"),
        (["check", "--quick", "--json", "/nonexistent/x.json"], "No such file"),
    ],
)
def test_bad_arguments(capsys, arguments, text):
    assert cli.main(arguments) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("device", "text"),
    [
        ("cuda:7", "there is no device cuda:7: "),
        ("tpu", "unknown device 'tpu'; it is cuda, rocm, or one of them with a number, such as rocm:1"),
        ("cuda:x", "unknown device 'cuda:x'"),
    ],
)
def test_check_of_a_device_that_is_not_there(capsys, device, text):
    assert cli.main(["check", "--quick", "--device", device]) == 2
    assert text in capsys.readouterr().err


def test_check_of_a_gpu(tmp_path, capsys):
    stub_cuda.build()
    path = tmp_path / "check.json"
    assert cli.main(["check", "--quick", "--device", "cuda:1", "--json", str(path)]) == 0
    assert "cases on each of gemm_" in capsys.readouterr().out
    written = json.loads(path.read_text())
    assert written["topics"]["all"]["passed"] > 10
    assert ["cuda:1", dict(mf.info().devices)["cuda:1"]] in written["devices"]


def test_info_writes_the_device_code(tmp_path, capsys):
    assert cli.main(["info", "--objects", str(tmp_path)]) == 0
    written = {(path.parent.name, path.stem, path.read_bytes()) for path in tmp_path.glob("*/*")}
    objects = mf._core.device_objects()
    assert written == {(arch, kernel, code if code[:4] == b"\x7fELF" else code[:-1]) for arch, kernel, code in objects}
    assert all(kernel.encode() in code for _, kernel, code in objects)
    capsys.readouterr()


def test_facts_of_gpu_kernels():
    families = mf.info().gpu_families
    assert len(set(families)) == len(families)  # rows of a family follow each other in kernels.def
    names = [row["instance"] for row in device_kernels()]
    assert len({*names}) == len(names) == mf._core.device_manifest()["kernels"]
    for index in (-1, len(names), 1 << 70):
        with pytest.raises(IndexError):
            mf._core.device_kernel(index)
    with pytest.raises(TypeError):
        mf._core.device_kernel("0")


@pytest.mark.parametrize("rich", [True, False])
def test_bench(tmp_path, rich):
    if rich:
        pytest.importorskip("rich")
    done = command("bench", "--quick", "--json", tmp_path / "bench.json", rich=rich)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    arms = {
        (result["problem"], result["name"]) for result in json.loads((tmp_path / "bench.json").read_text())["results"]
    }
    problem = "numpy 1x64 @ 64x64 float32 relu"
    for arm in ("matmul_fused", "matmul_fused, out=", "matmul_fused, prepacked", "NumPy"):
        assert (problem, arm) in arms
        assert arm in done.stdout
    assert f"matmul_fused {mf.get_num_threads()}" in done.stdout


def test_bench_draws_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    assert cli.main(["bench", "--quick", "--plot", str(tmp_path / "bench.png")]) == 0
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_a_terminal_gets_a_drawn_table(capsys, monkeypatch):
    pytest.importorskip("rich")
    rows = [("bias", "12", "a word"), ("gated", "3", "another")]
    console.show("topics", ("topic", "passed", "note"), rows)
    plain = capsys.readouterr().out
    assert plain == "topics\n  topic  passed  note\n  bias   12      a word\n  gated  3       another\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    console.show("topics", ("topic", "passed", "note"), rows)
    assert "│ bias  │     12 │ a word  │" in capsys.readouterr().out


def test_progress_is_for_terminals_only(capsys, monkeypatch):
    assert list(console.progress([1, 2], "count")) == [1, 2]
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert list(console.progress([1, 2], "count")) == [1, 2]
    assert capsys.readouterr().err.endswith("\rcount 2 of 2\n")
