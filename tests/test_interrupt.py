"""A long call ends soon after a signal whose handler raises, and goes on, unharmed, after one whose handler returns."""

import importlib

import pytest

from support import ISOLATED, KERNELS, python

WAYS = (
    "tiles",
    "tiles of float16",
    "tiles of float64",
    "tiles of bfloat16",
    "a gate",
    "a batch of small ones",
    "dots",
    "long dots",
    "lines",
    "lines of float16",
    "a strip",
    "no products",
)
PACKING = ("prepack", "prepack of W.T", "prepack of float16", "prepack of pairs", "unpack", "pickle")


@pytest.fixture(autouse=True)
def libraries():
    pytest.importorskip("ml_dtypes")


def run(*arguments):
    """The lines that isolated/interrupt.py prints, but for the last one."""
    *lines, done = python(ISOLATED / "interrupt.py", *arguments).stdout.splitlines()
    assert done == "done"
    return [float(line) for line in lines]


def assert_soon(seconds):
    """Within 0.2 s; of three, as other processes may have had the CPU."""
    assert len(seconds) == 3
    assert min(seconds) < 0.2, seconds
    assert max(seconds) < 2, seconds


@pytest.mark.parametrize(("kernel", "threads"), [(KERNELS[0], 1), *((kernel, 2) for kernel in KERNELS)])
@pytest.mark.parametrize("way", WAYS)
def test_a_call_ends_soon(way, kernel, threads):
    assert_soon(run("latency", kernel, threads, way))


@pytest.mark.parametrize("way", PACKING)
def test_packing_ends_soon(way):
    assert_soon(run("latency", "", 2, way))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_handler_may_call(kernel, threads):
    assert run("nested", kernel, threads) == []


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_a_handler_raises_ends_the_call(kernel):
    assert run("raises", kernel, 2) == []


def test_a_call_on_another_thread_goes_on():
    assert run("other_thread", "", 2) == []


@pytest.mark.parametrize("threads", [1, 2])
def test_a_handler_may_fork(threads):
    assert run("forks", "", threads) == []


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_handler_has_a_float_mode_of_its_own(kernel):
    pytest.importorskip("torch")
    assert run("modes", kernel, 2) == []


def test_the_bench_prints_median_and_worst(capsys, monkeypatch):
    """Its exit code is that of a quiet machine: here other tests compute."""
    monkeypatch.syspath_prepend(ISOLATED.parents[1] / "bench")
    bench_interrupt = importlib.import_module("bench_interrupt")
    assert bench_interrupt.main(["--samples", "3", "--threads", "1", "tiles"]) in (0, 1)
    head, row = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["way", "samples", "median", "worst"]
    name, samples, median, unit, worst, _ = row.split()
    assert (name, samples, unit) == ("tiles", "3", "ms")
    assert 0 < float(median) <= float(worst) < 2000


def test_a_timer_may_be_faster_than_its_handler():
    """The stack of a call on this row is large enough to end a small one in 100 levels."""
    assert run("storm", "cpu_blocked", 1) == []
