"""Calls of a program that uses torch run on the threads of torch's OpenMP runtime (csrc/cpu/team.h)."""

import pytest

from support import ISOLATED, python

pytest.importorskip("torch")


@pytest.mark.parametrize("what", ["shared", "first", "fewer", "several", "fork", "fork_before", "fork_inside", "mode"])
def test_team(what):
    done = python(ISOLATED / "team.py", what)
    assert (done.stdout, done.stderr) == ("done\n", "")
