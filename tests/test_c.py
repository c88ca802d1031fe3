"""The C tests of tests/c, built by the system's compiler: what is below the binding, without Python."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "c" / "build.sh"


def test_cpu(tmp_path):
    compiler = next(filter(shutil.which, (os.environ.get("CC", "gcc"), "gcc", "cc", "clang")), None)
    if compiler is None:
        pytest.skip("no C compiler")
    environment = os.environ | {"CC": compiler, "OUT": str(tmp_path)}
    done = subprocess.run(["sh", str(SCRIPT)], check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", 0 failed" in done.stdout
