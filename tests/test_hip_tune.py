"""tune() and warmup() on simulated AMD GPUs: one code for every device, and what a family says of its bits."""

import numpy as np
import pytest

import hipsim
import matmul_fused as mf
from hip_support import account, simulator  # noqa: F401
from matmul_fused import _core, store, tuning
from matmul_fused.testing import force_kernel
from support import check, draw, own_store, same_bits

A, B, BIAS = draw((70, 200), "float16", 1), draw((200, 96), "float16", 2), draw((96,), "float16", 3)


@pytest.fixture
def tuned(tmp_path, monkeypatch):
    made = own_store(tmp_path, monkeypatch)
    yield made
    _core._set_tuned([])


def operands(dev):
    return dev.array(A), dev.array(B), dev.array(BIAS)


def takes(monkeypatch, seconds):
    def race(arms, budget, wait):
        for run in arms.values():
            run(1)
        wait()
        return {name: seconds.get(name, 1.0) for name in arms}

    monkeypatch.setattr(tuning, "race", race)


ORDERED = [  # of one order: part, family, its tiles, dtype
    ("gfx950", "gemm_pingpong", 7, "float16"),
    ("gfx942", "gemm_pingpong_staged", 7, "float16"),
    ("gfx90a", "gemm_mfma", 2, "float16"),
    ("gfx942", "gemm_mfma_f32", 2, "float32"),
    ("gfx942", "gemm_mfma_xf32", 2, "float32"),
    ("gfx942", "gemm_mfma_f64", 2, "float64"),
]


@pytest.mark.parametrize(("part", "family", "tiles", "dtype"), ORDERED)
@pytest.mark.parametrize("general", [False, True])
def test_families_with_one_order_give_the_same_bits(part, family, tiles, dtype, general):
    """Of all their tiles that take a call."""
    dev, a, b, added = hipsim.Device(part), *(operand.astype(dtype) for operand in (A, B, BIAS))
    call = dev.array(a), dev.array(np.ascontiguousarray(b.T)).mT, dev.array(added), "silu"
    keywords = {"allow_tf32": family == "gemm_mfma_xf32"}
    rows = [row for row in mf.explain(*call, **keywords).candidates if row.family == family and row.reason is None]
    results = []
    for row in rows:
        with force_kernel(f"{row.name}, general_epilogue" if general else row.name):
            results.append(dev.to_numpy(mf.matmul_fused(*call, **keywords)))
    assert len(results) == tiles
    assert all(same_bits(results[0], result) for result in results)
    check(results[0], a, b, added, activation="silu", **keywords)


def test_a_choice_is_for_its_kind_of_device(tuned, monkeypatch):
    devices = [hipsim.Device(part) for part in ("gfx950", "gfx942", "gfx90a")]
    calls = [operands(dev) for dev in devices]
    modelled = mf.explain(*calls[0])
    other = next(row.name for row in modelled.candidates if row.reason is None and row.family == "gemm_simt")
    takes(monkeypatch, {other: 0.5})
    assert mf.tune([calls[0]])[0].kernel == modelled.kernel
    assert mf.tune([calls[0]], allow_different_bits=True)[0].kernel == other
    assert [mf.explain(*call).tuned for call in calls] == [0.5, None, None]
    (name,) = tuned.devices("kernels")
    assert name.startswith("rocm: AMD")
    assert "gfx950" in name
    assert "HIP" in name
    for _ in range(3):
        check(devices[0].to_numpy(mf.matmul_fused(*calls[0])), A, B, BIAS)
    _core._set_tuned([])
    store.apply(store.Store(tuned.folder))  # as another process
    assert mf.explain(*calls[0]).kernel == other


def test_two_devices_of_a_kind_share_a_choice(tuned, monkeypatch):
    first = mf.explain(*operands(hipsim.Device(0)))
    second = mf.explain(*operands(hipsim.Device(5)))
    assert (first.device, second.device) == ("rocm:0", "rocm:5")
    assert first.key == second.key


def test_real_times(tuned):
    """Nothing is replaced: the device is waited for, the choice may be any."""
    (row,) = mf.tune([operands(hipsim.Device("gfx950"))], seconds=0.001)
    assert row.device.startswith("rocm:")
    assert [candidate.same_bits for candidate in row.candidates if candidate.kernel == row.kernel] == [True]


def test_warmup_loads_the_code():
    dev = hipsim.Device("gfx942")
    mf.warmup([operands(dev)])
    dev.synchronize()
