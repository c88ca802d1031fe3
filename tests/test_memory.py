"""Every failure to allocate is a MemoryError, leaks nothing and says nothing: isolated/no_memory.py in a process whose
allocator fails on demand (c/failing_malloc.c)."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from support import ISOLATED, python

SOURCE = Path(__file__).parent / "c" / "failing_malloc.c"


@pytest.fixture(scope="module")
def failing_malloc(tmp_path_factory):
    """The library to preload."""
    compiler = next(filter(shutil.which, (os.environ.get("CC", "gcc"), "gcc", "cc", "clang")), None)
    if compiler is None:
        pytest.skip("no C compiler")
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("no glibc")
    path = tmp_path_factory.mktemp("malloc") / "failing_malloc.so"
    options = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-fno-builtin", "-shared", "-fPIC"]
    subprocess.run([compiler, *options, "-o", path, SOURCE], check=True)
    return path


@pytest.mark.parametrize("allocator", ["malloc", "pymalloc"])
@pytest.mark.parametrize("how", ["any", "aligned", "threads"])
def test_no_memory(failing_malloc, how, allocator):
    environment = {"LD_PRELOAD": str(failing_malloc), "PYTHONMALLOC": allocator}
    done = python("-W", "error", ISOLATED / "no_memory.py", how, environment=environment)
    assert (done.stdout, done.stderr) == ("done\n", "")
