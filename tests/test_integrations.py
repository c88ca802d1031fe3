"""The plugins of vLLM and SGLang without either: entry points, inertness, what `accepts` says.

tests/integrations has what runs inside the real packages (`make test-integrations`).
"""

import importlib
import importlib.metadata
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[1]
GROUPS = {"vllm": "vllm.general_plugins", "sglang": "sglang.srt.plugins"}


def entry_point(host):
    (found,) = importlib.metadata.entry_points(group=GROUPS[host], name="matmul_fused")
    return found


@pytest.mark.parametrize("host", GROUPS)
def test_entry_points(host):
    assert entry_point(host).value == f"matmul_fused.integrations.{host}:register"
    assert callable(entry_point(host).load())


@pytest.mark.parametrize("host", GROUPS)
def test_inert_unless_switched_on(host):
    """It imports nothing but itself, neither torch nor the host."""
    code = (
        "import sys, logging; logging.basicConfig(level=logging.INFO); finders = list(sys.meta_path)\n"
        f"from matmul_fused.integrations import {host}\n"
        f"{host}.register()\n"
        f"assert not {{'torch', '{host}'}} & set(sys.modules)\n"
        "assert sys.meta_path == finders\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MATMUL_FUSED_")}
    for value in ({}, {f"MATMUL_FUSED_{host.upper()}": "0"}):
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment | value, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.fixture
def _on(monkeypatch, caplog):
    for host in GROUPS:
        monkeypatch.setenv(f"MATMUL_FUSED_{host.upper()}", "1")
    caplog.set_level(logging.WARNING)
    before = list(sys.meta_path)
    yield
    assert sys.meta_path == before


@pytest.mark.usefixtures("_on")
@pytest.mark.parametrize("host", GROUPS)
def test_without_the_host_it_warns_and_does_not_raise(host, caplog):
    entry_point(host).load()()
    (record,) = caplog.records
    assert record.getMessage() == f"matmul_fused changes nothing in {'vLLM' if host == 'vllm' else 'SGLang'}"
    assert record.exc_info[0] is importlib.metadata.PackageNotFoundError


@pytest.mark.usefixtures("_on")
@pytest.mark.parametrize(
    ("host", "text"),
    [
        ("vllm", "vLLM 7.1.2 was not tried, only 0.33; nothing is changed"),
        ("sglang", "SGLang 7.1.2 was not tried, only 0.5.23; nothing is changed"),
    ],
)
def test_an_unknown_version_is_a_warning(host, text, caplog, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "7.1.2")
    entry_point(host).load()()
    assert [record.getMessage() for record in caplog.records] == [text]


@pytest.mark.usefixtures("_on")
@pytest.mark.parametrize("host", GROUPS)
def test_a_switch_that_means_nothing(host, caplog, monkeypatch):
    monkeypatch.setenv(f"MATMUL_FUSED_{host.upper()}", "yes")
    entry_point(host).load()()
    (record,) = caplog.records
    assert record.getMessage() == f"MATMUL_FUSED_{host.upper()}=yes: it is 1 or 0; nothing is changed"


# --- accepts ---


def spec(**changes):
    torch = pytest.importorskip("torch")
    from matmul_fused.integrations import seam

    operands = {"x": torch.ones(3, 8), "weight": torch.ones(6, 8), "bias": torch.ones(6), "activation": "gelu"}
    made = {name: value(torch) if callable(value) else value for name, value in (operands | changes).items()}
    return seam.accepts(seam.Spec(**made))


def test_accepts():
    import matmul_fused as mf

    fused, kernel = spec()
    assert fused
    assert kernel in mf.info().kernels
    assert spec(activation="swiglu", gate_layout="halves")[0]
    assert spec(residual=lambda torch: torch.ones(3, 6), multiply=lambda torch: torch.ones(3, 6))[0]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"norm": "rms"}, "norm 'rms': no kernel has an epilogue over whole rows"),
        ({"activation": "softmax"}, "softmax"),
        ({"weight": lambda torch: torch.ones(6, 9)}, "A (3, 8) and B (9, 6) do not match"),
        ({"weight": lambda torch: torch.ones(6, 8, dtype=torch.int8)}, "B has dtype int8"),
        ({"weight": lambda torch: torch.ones(6, 8, dtype=torch.float16)}, "must have one dtype"),
        ({"weight": lambda torch: torch.ones(6, 8, device="meta")}, "B"),
        ({"weight": None}, "'NoneType' object has no attribute 't'"),
        ({"residual": lambda torch: torch.ones(4, 6)}, "C"),
        ({"bias": lambda torch: torch.ones(7)}, "bias"),
    ],
)
def test_refuses_with_a_reason(changes, why):
    fused, said = spec(**changes)
    assert not fused
    assert said
    assert "\n" not in said
    assert why in said


def test_activations_are_known_by_their_class_and_folder():
    torch = pytest.importorskip("torch")
    from matmul_fused.integrations import seam

    def named(name, folder="host.activation", **attributes):
        return type(name, (SimpleNamespace,), {"__module__": folder})(**attributes)

    def found(module):
        return seam.activation_of(module, "host.activation")

    assert found(named("SiluAndMul")) == "swiglu"
    assert found(named("GeluAndMul", approximate="tanh")) == "geglu_tanh"
    assert found(named("GeluAndMul", approximate="none")) == "geglu"
    assert found(named("GeluAndMul", approximate="other")) is None
    assert found(named("NewGELU")) == "gelu_tanh"
    assert found(named("SiluAndMul", folder="elsewhere")) is None
    assert found(named("SiluAndMulWithClamp")) is None
    assert [found(torch.nn.GELU()), found(torch.nn.GELU("tanh")), found(torch.nn.ReLU())] == [
        "gelu",
        "gelu_tanh",
        "relu",
    ]
    assert found(torch.nn.LeakyReLU()) is None


# --- check --torch ---


def seams_of(monkeypatch, *rows):
    from matmul_fused.integrations import check

    monkeypatch.setattr(check, "_SEAMS", rows)
    return check.seams()


def test_check_says_what_works(monkeypatch):
    def fails():
        raise RuntimeError("said\nand more")

    rows = seams_of(
        monkeypatch,
        ("numpy", None, "a", lambda: "fine"),
        ("numpy", None, "b", fails),
        ("no_such_package", None, "c", fails),
        ("numpy", "no_such_package", "d", fails),
    )
    assert [(row.seam, row.works, row.why) for row in rows] == [
        ("a", True, "fine"),
        ("b", False, "RuntimeError: said"),
        ("c", None, "no_such_package is not installed"),
        ("d", None, "no_such_package is not installed"),
    ]


def test_check_sees_a_wrong_result(monkeypatch):
    torch = pytest.importorskip("torch")
    from matmul_fused.integrations import check

    monkeypatch.setattr(check, "_theirs", torch.nn.functional.linear)
    (row,) = seams_of(monkeypatch, ("torch", None, "linear", check._torch_linear))
    assert row.works is False
    assert row.why.startswith("ArithmeticError: it differs from torch's by ")


@pytest.mark.parametrize(("works", "code"), [(True, 0), (None, 0), (False, 1)])
def test_check_exit_code(works, code, monkeypatch, capsys):
    from matmul_fused import __main__ as cli
    from matmul_fused.integrations import check

    monkeypatch.setattr(check, "seams", lambda: [check.Seam("torch", "9", "linear", works, "so")])
    assert cli.main(["check", "--torch"]) == code
    assert "linear" in capsys.readouterr().out


def test_check_of_the_torch_here(capsys):
    pytest.importorskip("torch")
    from matmul_fused import __main__ as cli

    assert cli.main(["check", "--torch"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(" works " in line for line in lines) >= 4
    assert any(line.split()[:3] == ["vllm", "-", "plugin"] for line in lines)


# --- make test-integrations ---


@pytest.fixture
def _runner(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "integrations"))
    for name in ("run", "environments"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield
    for name in ("run", "environments"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("_runner")
def test_what_cannot_be_fetched_is_skipped_and_listed(monkeypatch, capsys):
    import environments
    import run

    with pytest.raises(environments.NotFetched, match=r"cannot be fetched: No matching distribution found for vllm==9"):
        environments._pip(Path(sys.executable), "--no-index", "--find-links=", "vllm==9.9.9")
    with pytest.raises(RuntimeError, match="no such option"):
        environments._pip(Path(sys.executable), "--no-such-option")

    def make(host):
        if host == "vllm":
            raise environments.NotFetched("cannot be fetched: a wheel")
        return Path(sys.executable)

    monkeypatch.setattr(run, "make", make)
    monkeypatch.setattr(run, "TESTS", {"sglang": ["no_such_file.py"]})
    assert run.main(["vllm"]) == 0
    assert capsys.readouterr().out == "skipped: vllm: cannot be fetched: a wheel\n"
    assert run.main(["vllm", "sglang"]) == 1
    out = capsys.readouterr().out
    assert "skipped: vllm: cannot be fetched: a wheel\nfailed: sglang\n" in out


# --- documents ---


@pytest.mark.parametrize("host", GROUPS)
def test_the_page_names_every_class(host):
    page = (ROOT / "docs" / f"{host}.md").read_text()
    rows = dict(re.findall(r"^- `([\w, ]+)`: ((?:.|\n  )+)\.$", page, re.MULTILINE))
    classes = {
        ", ".join(form): [name.split(".")[1] for name in names.split()]
        for form, names in importlib.import_module(f"matmul_fused.integrations.{host}")._CLASSES.items()
    }
    assert {form: re.split(r",\s+", names) for form, names in rows.items()} == classes
