"""The table of Hugging Face models, docs/torch_models.md: what it says, and that it is so (needs transformers)."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "torch_models.md").read_text()
BOUND = 1.10


def table(columns):
    """The rows of the page with that many columns, without the head."""
    lines = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines if len(line) == columns][2:]


def test_the_page():
    sites, errors = table(4), table(8)
    assert len(sites) == 18
    assert all(row[3] == "0" for row in sites)
    assert [row[0] for row in errors] == [row[0] for row in sites] * 2
    for row in errors:
        assert max(float(row[place]) for place in (3, 4, 6, 7)) <= BOUND, row
    assert [row[0] for row in sites if row[1].startswith("left") or row[1] == "none"] == []


@pytest.fixture(scope="module")
def bench():
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    spec = importlib.util.spec_from_file_location("torch_models", ROOT / "bench" / "torch_models.py")
    module = sys.modules["torch_models"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["torch_models"]


@pytest.mark.filterwarnings("ignore")  # transformers and Dynamo have their own
@pytest.mark.parametrize("name", [row[0] for row in table(4)])
def test_models(bench, name):
    row = bench.measure(name, bench.torch.float32, seeds=4)
    said = next(line for line in table(4) if line[0] == name)
    assert [bench.said(row.backend), bench.said(row.patch)] == said[1:3]
    assert row.breaks == row.own_breaks  # 0, but in older releases of transformers
    eager = row.errors["eager"].rms
    assert max(row.errors[way].rms for way in ("backend", "patch")) <= BOUND * eager


@pytest.mark.filterwarnings("ignore")
def test_a_training_run(tmp_path):
    """bench/train_gpt2.py: the losses of both runs stay together, and fall."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    spec = importlib.util.spec_from_file_location("train_gpt2", ROOT / "bench" / "train_gpt2.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    eager, ours, sites = module.both(20)
    assert sites == 6
    assert eager[-1] < 0.9 * eager[0]
    assert max(abs(a - b) for a, b in zip(eager, ours, strict=True)) < 1e-3
    assert module.draw(eager, ours, sites).startswith("<svg")


def test_the_picture():
    text = (ROOT / "docs" / "train_gpt2.svg").read_text()
    assert text.count("<path") >= 4
    assert "200 steps" in text
    assert "6 sites fused" in text
