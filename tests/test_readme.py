"""The README says what is true: its examples run, its tables are those of the package."""

import copy
import doctest
import importlib.util
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import matmul_fused as mf
from support import check

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def _load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TOOL = _load(ROOT / "tools" / "readme.py")
BLOCKS = TOOL.blocks(README)
EXAMPLES = [source for language, source in BLOCKS if language == "python"]
SESSIONS = [source for language, source in BLOCKS if language == "pycon"]


def run(source):
    names = {"__name__": "__readme__"}
    exec(compile(source, "README.md", "exec"), names)
    return names


def table_row(label):
    return next(line for line in README.splitlines() if line.startswith(f"| {label} |"))


def test_numpy_example(capsys):
    names = run(EXAMPLES[0])
    assert names["y"].shape == (4, 2048)
    assert names["h"].shape == (4, 1024)
    assert "modelled" in capsys.readouterr().out


def test_torch_example():
    pytest.importorskip("torch")
    names = run(EXAMPLES[0] + EXAMPLES[1])
    weight, bias = (p.numpy() for p in names["layer"].parameters())
    check(names["t"].numpy(), np.ones((4, 512), np.float32), weight.T, bias, "relu")


def test_recipe_for_torch_modules(capsys):
    torch = pytest.importorskip("torch")
    TOOL.main(ROOT / "docs" / "prepack.md")
    assert capsys.readouterr().out.endswith("\nran\n\n")
    ((_, source),) = TOOL.blocks((ROOT / "docs" / "prepack.md").read_text())
    names = run(source)
    layer, x, y = (names[name] for name in ("layer", "x", "y"))
    assert set(layer.state_dict()) == {"weight", "bias"}
    assert torch.equal(copy.deepcopy(layer)(x), y)
    check(
        layer.to(torch.float16)(x.half()).numpy(),
        *(t.detach().half().numpy() for t in (x, layer.weight.T, layer.bias)),
        "gelu",
    )


def test_demo_runs_every_example(capsys, monkeypatch):
    """What `make demo` calls: it says of a block whose library is missing that it did not run."""
    pytest.importorskip("torch")
    TOOL.main(ROOT / "README.md")
    assert capsys.readouterr().out.count("\nran\n") == len(EXAMPLES)
    monkeypatch.setattr(TOOL.importlib.util, "find_spec", lambda name: None if name == "torch" else name)
    TOOL.main(ROOT / "README.md")
    text = capsys.readouterr().out
    assert text.count("\nran\n") == len(EXAMPLES) - 1
    assert "not run: torch is not installed here" in text


def test_version():
    assert f"Version {mf.__version__}" in README


def test_every_argument_is_explained():
    named = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", README, re.MULTILINE)))
    optional = set(inspect.signature(mf.matmul_fused).parameters) - {"A", "B", "activation", "allow_tf32", "stream"}
    assert optional <= set(named)


def test_every_example_is_tested():
    assert (len(EXAMPLES), len(SESSIONS)) == (2, 1)


def test_error_is_the_real_one(capsys):
    session = doctest.DocTestParser().get_doctest(SESSIONS[0], run(EXAMPLES[0]), "README.md", "README.md", 0)
    assert session.examples
    results = doctest.DocTestRunner().run(session, clear_globs=False)
    assert results.failed == 0, capsys.readouterr().out


def test_environment_table():
    rows = re.findall(r"^\| `(MATMUL_FUSED_\w+)` \| (.*) \|$", README, re.MULTILINE)
    assert rows == [(name, meaning) for name, meaning, _ in mf.info().environment]


@pytest.mark.parametrize(("label", "names"), [("activations", mf.activations), ("gated", mf.gated_activations)])
def test_activation_rows(label, names):
    words = re.findall(r"\w+", table_row(label))
    aliases = {alias for *_, others in mf._core.activation_table() for alias in others} | {"swiglu_clamped"}
    assert [name for name in names if name not in words and name not in aliases] == []


def test_gated_row_has_the_layouts():
    assert all(layout in table_row("gated") for layout in ("halves", "halves_up_first", "interleaved", "pair"))


def test_one_screen():
    assert len(README.splitlines()) <= 80
