"""docs/torch.md and the example of torch say what is true."""

import importlib.util
import re
from pathlib import Path

import pytest

from support import python

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "torch.md").read_text()


def test_the_page_runs_and_shows_its_report(capsys):
    spec = importlib.util.spec_from_file_location("readme", ROOT / "tools" / "readme.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    names = {"__name__": "__readme__"}
    for _, source in tool.blocks(PAGE):
        exec(compile(source, "docs/torch.md", "exec"), names)
    assert names["y"].shape == (8, 2048)
    assert names["h"].shape == (8, 512)
    printed = capsys.readouterr().out.rstrip()
    assert printed.startswith("matmul_fused.torch: 1 fused")
    assert f"```\n{printed}\n```" in PAGE
    assert len(names["report"]()) == 1


def test_the_example_runs():
    lines = python(ROOT / "examples" / "torch_patch.py").stdout.splitlines()
    assert lines[0] == "matmul_fused.torch: 2 fused"
    assert [re.split(r"  +", line.strip())[1] for line in lines[2:4]] == ["linear", "gate/up"]
    difference = float(re.fullmatch(r"greatest difference (\S+)", lines[-1])[1])
    assert 0 <= difference < 1e-5
