"""Fault injection reaches every entry point, and environment settings are refused when they are not understood."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hipsim
from hipsim import HipError, hip, made, try_hip

TESTS = Path(__file__).resolve().parents[1]


def test_every_entry_point_can_fail(dev):
    names = hipsim.entry_points()
    assert len(names) == len(set(names)) > 90
    for name in names:
        hipsim.fail_next(name, 719)
        function = getattr(hipsim.library(), name)
        kinds = function.argtypes if function.argtypes is not None else [ctypes.c_void_p] * 11
        nothing = [None if kind in (ctypes.c_void_p, ctypes.c_char_p) else 0 for kind in kinds]
        assert try_hip(name, *nothing) == 719, name
        assert not hipsim.fault_waits(name)
    assert try_hip("hipGetLastError") == 719


def test_a_fault_may_wait(dev):
    hipsim.fail_next("hipMalloc", 2, skip=2)
    pointers = [made("hipMalloc", 8) for _ in range(2)]
    with pytest.raises(HipError, match="out of memory"):
        made("hipMalloc", 8)
    pointers.append(made("hipMalloc", 8))
    for pointer in pointers:
        hip("hipFree", pointer)
    hipsim.fail_next("hipMalloc", 2)
    hipsim.fail_next("hipMalloc", 0)  # taken back
    hip("hipFree", made("hipMalloc", 8))
    with pytest.raises(ValueError, match="hipNothing"):
        hipsim.fail_next("hipNothing", 1)


def test_calls_are_counted(dev):
    before = hipsim.calls("hipMalloc")
    hip("hipFree", made("hipMalloc", 8))
    assert hipsim.calls("hipMalloc") == before + 1
    assert hipsim.calls()["hipMalloc"] == before + 1


def child(script, **environment):
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=TESTS,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


COUNT = "import hipsim; print(hipsim.try_hip('hipInit', 0), hipsim.device_count())"


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"HIPSIM_DEVICES": "gfx1100,gfx942,gfx942"}, "0 3"),
        ({"HIPSIM_DEVICES": "none"}, "100 0"),  # hipErrorNoDevice
        ({"HIPSIM_DEVICES": "gfx7"}, "3 0"),  # hipErrorNotInitialized: a typing error is not a machine without GPU
        ({"HIPSIM_SEED": "seven"}, "3 0"),
        ({"HIPSIM_ORDER": "never"}, "3 0"),
        ({"HIPSIM_CHECK": "bogus"}, "3 0"),
        ({"HIPSIM_THREADS": "0"}, "3 0"),
        ({"HIPSIM_CHECK": "waits,bounds", "HIPSIM_SEED": "0x7", "HIPSIM_ORDER": "early"}, "0 6"),
    ],
)
def test_settings(environment, said):
    assert child(COUNT, **environment) == said


def test_refused_settings_say_why(dev):
    with pytest.raises(ValueError, match="HIPSIM_CHECK=bogus"):
        hipsim.configure(checks="bogus")
    with pytest.raises(ValueError, match="colour=red"):
        hipsim.configure(colour="red")
    with pytest.raises(ValueError, match="after the first call"):
        hipsim.configure(devices="gfx942")


def test_a_forked_child_has_no_device(dev):
    script = """
import os, hipsim
hipsim.Device(0)
pid = os.fork()
if pid == 0:
    os._exit(hipsim.try_hip("hipSetDevice", 0))
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert child(script) == "3"  # hipErrorNotInitialized
