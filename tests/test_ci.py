"""CI's table of seconds: noise warns, a doubling fails, every step has its row, the workflow's limit leaves room; and
what CI leaves out of `make wheel`; the accounts of several processes.
"""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOOL = ROOT / "tools/seconds.py"


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


seconds, wheel_try = load(TOOL), load(ROOT / "tools/wheel_try.py")

ALLOWED = {"short": 100, "long": 1000, "total": 1000}


@pytest.mark.parametrize(
    ("seen", "well", "says"),
    [
        ({"short": 100, "long": 900}, True, ""),
        ({"short": 130, "long": 800}, True, "warning"),
        ({"short": 120, "long": 1890}, False, "FAILED: over twice"),  # the total
        ({"short": 210, "long": 900}, False, "FAILED: over twice"),
        ({"short": 140, "long": 1170}, True, "warning"),
        ({}, True, ""),
    ],
)
def test_rule(seen, well, says):
    lines, fine = seconds.table(ALLOWED, seen)
    assert fine == well
    assert says in "\n".join(lines)
    assert len(lines) == len(seen) + 2


def test_program(tmp_path):
    allowed, seen = tmp_path / "allowed", tmp_path / "seen"
    allowed.write_text("# a comment\nshort 100 # and here\n\ntotal 150\n")
    for took, status in ((90, 0), (201, 1)):
        seen.write_text(f"short {took}\n")
        done = subprocess.run([sys.executable, TOOL, allowed, seen], check=False, capture_output=True, text=True)
        assert done.returncode == status, done.stderr
        assert f"short {took} 100" in " ".join(done.stdout.split())


def test_rows_are_the_steps():
    rows = seconds.read(ROOT / ".ci/seconds")
    steps = re.findall(r"^ *step (\w+) ", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert [*rows] == [*steps, "total"]
    assert sum(rows[step] for step in steps) <= rows["total"]


def test_the_workflow_is_not_cut_off_before_the_total_fails():
    (minutes,) = re.findall(r"timeout-minutes: (\d+)", (ROOT / ".github/workflows/ci.yml").read_text())
    total = seconds.read(ROOT / ".ci/seconds")["total"]
    assert 1.2 * total <= 60 * int(minutes) <= 1.5 * total


def test_the_oldest_and_the_newest_python_run_the_sweep():
    """In CI (--ends); without it all do."""
    sweep, lifetime = "tests/test_sweep.py", "tests/test_lifetime.py"
    ran = [wheel_try.tests_of(number, 4, ends=True) for number in range(4)]
    assert [sweep in tests for tests in ran] == [True, False, False, True]
    assert [lifetime in tests for tests in ran] == [False, False, False, True]
    assert all(set(wheel_try.API_TESTS) <= set(tests) for tests in ran)
    assert all(sweep in wheel_try.tests_of(number, 4, ends=False) for number in range(4))


def test_accounts_of_two_processes_are_those_of_one():
    """What pytest-xdist's processes send, as JSON, adds up to the accounts of a run in one process."""
    module = load(ROOT / "tests/conftest.py")
    whole, parts = module.Accounts(), [module.Accounts(), module.Accounts()]
    for number, part in enumerate(parts):
        for accounts in (whole, part):
            accounts.record("linear", {"ratio": number})
            accounts.say("title", f"line {number}")
            accounts.count(["layouts", f"topic {number}"])
            accounts.simulated["launches"] = accounts.simulated.get("launches", 0) + 3 + number
    for accounts, cases, ratio in ((parts[0], 2, 0.5), (parts[1], 3, 0.25), (whole, 5, 0.5)):
        accounts.worst["float32->float32"] = {
            "cases": cases,
            "elements": 7 * cases,
            "max_ratio": ratio,
            "rms_ratio": ratio,
        }
    parts[1].sample_complete = whole.sample_complete = True
    joined = module.Accounts()
    for part in parts:
        joined.join(json.loads(json.dumps(vars(part))))
    assert vars(joined) == vars(whole)
