"""What the rest of a process does around the calls: float modes, faults, cpusets, modules that are mocked, reloaded,
imported anew. (Affinity: test_environment; signals: test_interrupt.)
"""

import importlib
import logging
import pickle
import sys

import numpy as np
import pytest

import matmul_fused as mf
from matmul_fused.testing import force_kernel
from support import ISOLATED, KERNELS, check, draw, python, same_bits, to_numpy

TESTS = str(ISOLATED.parent)

# --- float modes ---

TINY = (1e-310, -1e-310, 5e-324)


@pytest.fixture
def flushed():
    """This thread reads and writes subnormals as 0."""
    torch = pytest.importorskip("torch")
    assert torch.set_flush_denormal(True)
    yield
    torch.set_flush_denormal(False)


@pytest.mark.parametrize("tiny", TINY)
@pytest.mark.parametrize("first", ["flushed", "usual"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_alpha_and_beta_are_zero_by_their_bits(kernel, first, tiny):
    """A NaN tells whether A, B and C were read. Calls of both modes share the plans that the first ones made."""
    torch = pytest.importorskip("torch")
    A, B, C = draw((3, 4)), draw((4, 5)), draw((3, 5))
    A[0, 0] = C[1, 1] = np.nan
    operands = (A, B), {"C": C}
    modes = [True, False] if first == "flushed" else [False, True]
    for mode in [m for m in modes for _ in range(4)]:
        torch.set_flush_denormal(mode)
        try:
            with force_kernel(kernel):
                reads_all = mf.matmul_fused(*operands[0], alpha=tiny, beta=-tiny, **operands[1])
                reads_none = mf.matmul_fused(*operands[0], alpha=-0.0, beta=-0.0, **operands[1])
        finally:
            torch.set_flush_denormal(False)
        assert np.isnan(reads_all[0]).all()
        assert np.isnan(reads_all[1, 1])
        assert not np.isnan(reads_none).any()


def test_numbers_of_numpy_are_converted_in_the_usual_mode(flushed):
    A, B = draw((3, 4)), draw((4, 5))
    A[0, 0] = np.nan
    tiny = np.frombuffer(np.uint32(1).tobytes(), np.float32)[0]
    assert np.isnan(mf.matmul_fused(A, B, alpha=tiny)[0]).all()
    limit = np.frombuffer(np.uint32(0x80000001).tobytes(), np.float32)[0]
    with pytest.raises(ValueError, match="its limit must not be negative"):
        mf.matmul_fused(draw((3, 4)), draw((4, 6)), None, ("swiglu_oai", limit))


@pytest.mark.parametrize("name", ["bias", "multiply", "C"])
def test_numbers_as_operands_are_rounded_in_the_usual_mode(flushed, name):
    A, B = np.ones((3, 1), np.float32), np.full((1, 5), name == "multiply", np.float32)
    got = mf.matmul_fused(A, B, **{name: 1e-40})
    assert (got.view(np.uint32) == 71362).all()  # 1e-40 in float32


# --- faults ---


@pytest.mark.parametrize("threads", [1, 2])
def test_a_fault_in_a_worker_is_told(tmp_path, threads):
    """Several times: the worker may be too late for a part of the job. Two that fault at once cut each other short,
    which is rare.
    """
    runs = 1 if threads == 1 else 8
    told = 0
    for _ in range(runs):
        done = python(ISOLATED / "fault.py", tmp_path / "mapped", threads, check=False)
        assert done.returncode == -7, done.stderr
        told += done.stderr.startswith("Fatal Python error: ")
    assert told >= 0.75 * runs, done.stderr


# --- modules ---


@pytest.mark.parametrize("how", ["mocks", "ml_dtypes", "torch", "vanishes", "another_torch"])
def test_mocked_libraries(how):
    if how == "ml_dtypes":
        pytest.importorskip("ml_dtypes")
    if how == "another_torch":
        pytest.importorskip("torch")
    assert python(ISOLATED / "mocked.py", how, environment={"PYTHONPATH": TESTS}).stdout == "done\n"


def test_a_reload_adds_no_handler():
    handlers = list(logging.getLogger("matmul_fused").handlers)
    for _ in range(3):
        importlib.reload(mf)
    assert logging.getLogger("matmul_fused").handlers == handlers
    code = (
        "import importlib, logging, matmul_fused as mf; importlib.reload(mf); print(logging.getLogger('{}').handlers)"
    )
    said = python("-c", code.format("matmul_fused"), environment={"MATMUL_FUSED_LOG": "info"}).stdout
    assert said.count("NullHandler") == said.count("StreamHandler") == 1


@pytest.fixture
def imported_anew():
    """matmul_fused as it is after its modules were removed from sys.modules and imported again."""
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "matmul_fused"}
    yield importlib.import_module("matmul_fused")
    for name in [name for name in sys.modules if name.partition(".")[0] == "matmul_fused"]:
        del sys.modules[name]
    sys.modules.update(before)


def test_a_new_import_takes_what_the_old_one_made(imported_anew):
    new = imported_anew
    assert new.PackedMatrix is not mf.PackedMatrix
    A, B = draw((5, 7)), draw((7, 6))
    packed, gate = mf.prepack(B), mf.prepack(B, gate_layout="halves")
    check(new.matmul_fused(A, packed), A, B)
    check(new.matmul_fused(A, gate, None, "swiglu"), A, B, None, "swiglu")
    check(mf.matmul_fused(A, new.prepack(B)), A, B)
    with pytest.raises(TypeError, match="A is a PackedMatrix; only B can be prepacked"):
        new.matmul_fused(packed, B)
    with pytest.raises(TypeError, match="B is a PackedMatrix already"):
        new.prepack(packed)
    again = pickle.loads(pickle.dumps(packed))
    assert type(again) is new.PackedMatrix
    assert same_bits(to_numpy(again.unpack()), B)
    check(np.from_dlpack(new.matmul_fused(mf.prepack(A).unpack(), B)), A, B)


# --- subclasses of ndarray that mean more than their numbers ---


class Measured(np.ndarray):
    """As a Quantity of astropy: arithmetic keeps a unit."""

    def __array_ufunc__(self, *arguments, **keywords):
        raise AssertionError


class Plain(np.ndarray):
    """As a memmap: numbers with some attributes."""

    def __array_finalize__(self, other):
        self.name = getattr(other, "name", None)


def test_subclasses_with_arithmetic_of_their_own_are_refused():
    A, B = draw((5, 7)), draw((7, 6))
    for name, operands in {"A": (A.view(Measured), B), "B": (A, B.view(Measured))}.items():
        with pytest.raises(
            TypeError, match=rf"^{name} is a \S*Measured, an ndarray with an __array_ufunc__ of its own"
        ):
            mf.matmul_fused(*operands)
    check(mf.matmul_fused(A.view(Plain), B.view(Plain)), A, B)


# --- CPUs ---


def test_the_cpuset_changes_from_outside():
    said = python(ISOLATED / "placement.py", "cpuset").stdout
    if said == "no cpuset\n":
        pytest.skip("no cpuset can be made here")
    assert said == "done\n"
