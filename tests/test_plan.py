"""The choice among kernels: by score, by name, by what a kernel implements; and what the scores may depend on."""

import itertools

import numpy as np
import pytest

import matmul_fused as mf
from matmul_fused import _core
from matmul_fused.testing import force_kernel
from support import KERNELS as RUNNABLE
from support import runs_on

KERNELS = mf.info().kernels
rng = np.random.default_rng(20261122)


def draw(*shape):
    return rng.standard_normal(shape, dtype=np.float32)


SHAPES = [(1, 1, 1), (1, 64, 64), (16, 8, 4096), (300, 200, 100), (7, 5, 0), (0, 5, 7)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_choice_is_the_same_for_every_number_of_threads(shape):
    m, n, k = shape
    A, B, before = draw(m, k), draw(k, n), mf.get_num_threads()
    chosen = set()
    try:
        for threads in (1, 2, 3, 16):
            mf.set_num_threads(threads)
            found = mf.explain(A, B)
            chosen.add(found.kernel)
            assert found.seconds == {row.name: row.seconds for row in found.candidates}[found.kernel]
    finally:
        mf.set_num_threads(before)
    assert len(chosen) == 1


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_no_candidate_is_modelled_faster_than_the_chosen_one(shape):
    m, n, k = shape
    before = mf.get_num_threads()
    try:
        mf.set_num_threads(1)  # what kernels are compared for
        found = mf.explain(draw(m, k), draw(k, n))
    finally:
        mf.set_num_threads(before)
    times = [row.seconds for row in found.candidates if row.seconds is not None]
    assert found.seconds == min(times)
    assert times.index(min(times)) == [row.name for row in found.candidates if row.seconds is not None].index(
        found.kernel
    )


@pytest.mark.parametrize(
    ("shape", "layout", "splits"),
    [
        ((32, 100, 64), "NK", True),
        ((31, 512, 512), "NK", False),
        ((16, 2048, 1024), "NK", True),
        ((15, 2048, 1024), "NK", False),
        ((48, 512, 512), "KN", True),
        ((47, 2048, 1024), "KN", False),
        ((32, 512, 512), "packed", True),
        ((31, 512, 512), "packed", False),
        ((28, 2048, 1024), "packed", True),
        ((27, 2048, 1024), "packed", False),
        ((4096, 31, 1024), "NK", False),
        ((4096, 1024, 63), "NK", False),
    ],
)
def test_the_tiles_of_amx_take_float16_where_splitting_pays(shape, layout, splits):
    m, n, k = shape
    weight = np.zeros((n, k), np.float16).T
    B = {"NK": weight, "KN": np.ascontiguousarray(weight), "packed": mf.prepack(weight)}[layout]
    chosen = mf.explain(np.zeros((m, k), np.float16), B).kernel
    tiles = "cpu_blocked_amx_split"
    assert (chosen == tiles) == (splits and tiles in KERNELS and runs_on(tiles, weight.T, weight))


def test_candidates_are_the_kernels_of_the_device():
    found = mf.explain(draw(3, 4), draw(4, 5))
    assert tuple(row.name for row in found.candidates) == KERNELS
    assert all((row.reason is None) != (row.seconds is None) for row in found.candidates)
    assert {name for name, _ in found.refused} == {row.name for row in found.candidates if row.reason}


@pytest.mark.parametrize("names", list(itertools.permutations(RUNNABLE, 2)), ids="+".join)
def test_several_names_leave_a_choice(names):
    A, B = draw(30, 40), draw(40, 50)
    with force_kernel(" , ".join(names)):
        found = mf.explain(A, B)
    assert found.kernel == min(names, key=KERNELS.index)  # the list has the fastest first
    for name, reason in found.refused:
        assert name not in names
        assert reason.endswith(" is forced")


def test_forced_names_come_back_as_a_text_that_forces_the_same():
    texts = [
        None,
        "general_epilogue",
        "cpu_reference, general_epilogue",
        "gemm_simt",
        KERNELS[-1],
        f"{KERNELS[0]}, {mf.info().gpu_kernels[0]}",
        ", ".join(KERNELS),
    ]
    try:
        for text in texts:
            _core.force_kernel(text)
            again = _core.force_kernel(None)
            _core.force_kernel(again)
            assert _core.force_kernel(None) == again
            assert (again is None) == (text is None)
            assert not text or set(again.split(", ")) == set(text.split(", "))
    finally:
        _core.force_kernel(None)


@pytest.mark.parametrize("name", ["", " , ", "cpu_reference cpu_magic", "CPU_REFERENCE", "gemm_", "\ud800", "a\nb"])
def test_names_of_no_kernel(name):
    with pytest.raises(ValueError, match=r'^unknown kernel "'), force_kernel(name):
        pass


def test_a_name_is_no_other_type():
    for name in (1, b"cpu_reference", ["cpu_reference"]):
        with pytest.raises(TypeError, match="name must be None or a str"):
            _core.force_kernel(name)


def test_what_a_kernel_does_not_implement_is_refused_by_name():
    A, packed = draw(5, 7), mf.prepack(draw(7, 6))
    found = mf.explain(A, packed)
    assert dict(found.refused)["cpu_reference"] == "does not implement prepacked weights"


def test_gpu_instances_are_named_by_their_columns():
    """family_tile_dtype_layout; a family's name is that of its kernels up to the tile. Steps are no candidates."""
    info = mf.info()
    assert info.gpu_steps
    assert not {*info.gpu_steps} & {*info.gpu_kernels}
    for name in info.gpu_kernels + info.gpu_steps:
        family, tile, dtype, layout = name.rsplit("_", 3)
        assert (family in info.gpu_families) == (name in info.gpu_kernels)
        assert [int(size) > 0 for size in tile.split("x")] == [True] * 3
        assert dtype in ("f32", "f64", "f16", "bf16")
        assert layout in ("any", "nn", "nt", "tn", "tt", "np")
