"""The commands that a user with an AMD GPU runs first, on simulated GPUs: `info`, `check --device rocm`, its report.

Times are asked for on small problems, to see that every kernel gets one; what they are means nothing here.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hipsim.build
import matmul_fused as mf
from matmul_fused import testing
from matmul_fused.report import device_kernels, families_for

HIPSIM = Path(os.environ["MATMUL_FUSED_HIP_LIBRARY"])  # of conftest.py
KILLED = """
import os, signal, sys
from matmul_fused import __main__ as cli, testing
run_case, calls = testing.run.run_case, []
def fault(case, *arguments):
    calls.append(case)
    if len(calls) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return run_case(case, *arguments)
testing.run.run_case = fault
cli.main(sys.argv[1:])
"""
TIMED = """
import sys
from matmul_fused import __main__ as cli, testing
from matmul_fused.testing import devices, speed
cases = testing.covering_sample(0, strength=1)[:4]
testing.covering_sample = lambda *_, **__: cases
devices.Device.simulated = False
small, times_of = speed.problems(32, 16), speed.times_of
speed.problems, speed.times_of = lambda: small, lambda *arguments: times_of(*arguments, seconds=0)
{more}
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.fixture
def command(tmp_path):
    """Run Python with these arguments in an empty folder, on simulated devices."""
    hipsim.build.build(HIPSIM.parent)

    def run(*arguments, devices="gfx942,gfx1100"):
        path = os.pathsep.join(filter(None, sys.path))
        environment = os.environ | {"HIPSIM_DEVICES": devices, "PYTHONPATH": path}
        command = [sys.executable, "-W", "error", *arguments]
        return subprocess.run(
            command, check=False, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=600
        )

    return run


def test_info(command):
    done = command("-m", "matmul_fused", "info")
    lines = [line.split(maxsplit=1) for line in done.stdout.replace("AMD GPUs", "AMD").splitlines()]
    rows = {line[0]: line[1] for line in lines if len(line) == 2}
    assert rows["AMD"].startswith("on: HIP 7.")
    assert rows["AMD"].endswith(str(HIPSIM))
    assert rows["rocm:0"] == "AMD Instinct MI300X, gfx942, 304 compute units, wave 64; code for gfx942"
    assert rows["rocm:1"].endswith(", gfx1100, 48 compute units, wave 32; code for gfx1100")


@pytest.mark.parametrize(("device", "kernels"), [("rocm", {"gemm_mfma", "gemm_simt"}), ("rocm:1", {"gemm_simt"})])
def test_check_writes_a_report(command, tmp_path, device, kernels):
    done = command("-m", "matmul_fused", "check", "--device", device, "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "written to matmul_fused-check.json: please attach it to a report\nOK: all of " in done.stdout
    assert done.stdout.startswith("simulated: not timed\n")
    report = json.loads((tmp_path / "matmul_fused-check.json").read_text())
    cases = testing.covering_sample(0, strength=1)
    counts = report["topics"]["all"]
    assert counts["passed"] + counts["refused"] == len(cases) * len(families_for(device))
    assert counts["passed"] > len(cases) * len(kernels) / 2
    assert report["failures"] == []
    assert report["seconds"] > 0
    assert (report["timing"], report["times"]) == ("simulated: not timed", [])
    assert "running" not in report
    assert report["device"] == device
    assert {"rocm:0", "rocm:1"} <= {name for name, _ in report["devices"]}
    assert report["environment"]["MATMUL_FUSED_HIP_LIBRARY"] == str(HIPSIM)


def test_check_finds_what_is_wrong(command, tmp_path):
    """A launch that fails, as the report has it; its line repeats the case on that device."""
    arm = "import sys, hipsim; hipsim.fail_next('hipModuleLaunchKernel', 719)\n"
    arm += "from matmul_fused import __main__ as cli; sys.exit(cli.main(sys.argv[1:]))"
    done = command("-c", arm, "check", "--device", "rocm", "--quick", "--json", "mine.json")
    assert done.returncode == 1, done.stdout + done.stderr
    (failure,) = json.loads((tmp_path / "mine.json").read_text())["failures"]
    assert failure["error"].startswith("DeviceError: hipModuleLaunchKernel on rocm:0: hipErrorLaunchFailure (")
    line = failure["error"].splitlines()[-1].removeprefix("repeat: ")
    assert line.endswith(", xp=matmul_fused.testing.DeviceTransfer('rocm:0'))")
    assert command("-c", f"import matmul_fused; from matmul_fused.testing import Case; {line}").returncode == 0


def test_a_process_that_dies_leaves_its_case(command, tmp_path):
    """A GPU's fault ends the process without an exception."""
    done = command("-c", KILLED, "check", "--device", "rocm", "--quick")
    assert done.returncode == -9
    report = json.loads((tmp_path / "matmul_fused-check.json").read_text())
    fourth = testing.covering_sample(0, strength=1)[3]
    assert report["running"] == {"case": fourth.id, "kernel": mf.info().gpu_families[0]}
    assert sum(report["topics"]["all"].values()) == 3
    assert "seconds" not in report


def test_check_without_a_gpu(command, tmp_path):
    done = command("-m", "matmul_fused", "check", "--device", "rocm", devices="none")
    assert done.returncode == 2
    assert f"there is no device rocm:0: AMD GPUs off: {HIPSIM} finds no AMD GPU (" in done.stderr
    assert not any(tmp_path.iterdir())


def test_check_times_every_kernel_of_the_device(command, tmp_path):
    """On a GPU that is not simulated; here it is said to be none."""
    done = command("-c", TIMED.format(more=""), "check", "--device", "rocm", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "matmul_fused-check.json").read_text())
    kernels = {row["instance"] for row in device_kernels() if row["gemm"] and re.search("ALL|GFX942", row["targets"])}
    assert {row["kernel"] for row in report["times"]} == kernels
    assert all(row["seconds"] > 0 and row["modelled"] > 0 for row in report["times"])
    lines = [line.split() for line in done.stdout.split("OK: all of")[0].splitlines()]
    assert {line[0] for line in lines if line} >= kernels
    assert "simulated" not in done.stdout + report["timing"]


def test_a_time_that_cannot_be_had_is_a_failure(command, tmp_path):
    more = """
def broken(device, problem, families):
    if problem.dtype == "float64":
        raise RuntimeError("no memory")
    return []
speed.times_of = broken
"""
    arguments = ("check", "--device", "rocm", "--quick", "--kernel", "gemm_thin")
    done = command("-c", TIMED.format(more=more), *arguments)
    assert done.returncode == 1, done.stdout + done.stderr
    failures = json.loads((tmp_path / "matmul_fused-check.json").read_text())["failures"]
    assert [(row["case"], row["error"]) for row in failures] == [
        (f"{problem} float64 {layout}", "RuntimeError: no memory")
        for problem, layouts in (("16x32x32", ("NT", "NN")), ("16x16x16", ("NT", "NN", "TN", "TT")))
        for layout in layouts
    ]
    assert "FAILED: 6 of " in done.stdout
