"""DLPack's C exchange API of other libraries, right and wrong ones; and mf.Array as a producer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import matmul_fused as mf
from fake_dlpack import Producer, capsule_name, make_library
from test_dlpack import A, B, check_product


def test_exchange_api_of_another_library() -> None:
    library = make_library()
    result = mf.matmul_fused(library(A), library(B))
    assert type(result) is library
    check_product(result.array)
    assert type(mf.matmul_fused(A, library(B))) is np.ndarray


def test_exchange_api_result_without_elements() -> None:
    """Its strides mean nothing: NumPy's are not those of other libraries."""
    library = make_library()
    result = mf.matmul_fused(library(np.ones((2, 0, 7), np.float32)), library(B[:, :1]))
    assert result.array.shape == (2, 0, 1)


def test_exchange_api_out() -> None:
    library = make_library()
    out = library(np.full((5, 6), np.nan, np.float32))
    assert mf.matmul_fused(A, B, out=out) is out
    check_product(out.array)


@pytest.mark.parametrize(
    "keywords",
    [
        {"major": 2},
        {"has_view": False},
        {"has_allocator": False},
        {"has_to_object": False},
        {"capsule": b"another_name"},
    ],
    ids=["other major", "no view function", "no allocator", "no object function", "other capsule"],
)
def test_unusable_exchange_api_falls_back_to_capsules(keywords: dict[str, Any]) -> None:
    library = make_library(**keywords)
    result = mf.matmul_fused(library(A), library(B))
    assert isinstance(result, mf.Array)
    check_product(result)


def test_exchange_api_view_fails() -> None:
    library = make_library(view_fails=True)
    with pytest.raises(BufferError, match="A: its DLPack exchange API gave no view"):
        mf.matmul_fused(library(A), B)


@pytest.mark.parametrize(
    ("mode", "error", "text"),
    [
        ("allocator_fails", MemoryError, "A's library failed .MemoryError: pool is empty"),
        ("allocator_silent", MemoryError, "the allocator of A's library failed"),
        ("to_object_fails", BufferError, "A's library made no object"),
    ],
)
def test_exchange_api_output_fails(mode: str, error: type[Exception], text: str) -> None:
    library = make_library(**{mode: True})
    with pytest.raises(error, match=text):
        mf.matmul_fused(library(A), B)
    assert library.deleted == 0  # a library that makes no object has taken the memory over all the same


# --- mf.Array as a producer ---


def test_array_export() -> None:
    array = mf.matmul_fused(Producer(A), B)
    assert isinstance(array, mf.Array)
    assert (array.shape, array.dtype, array.device) == ((5, 6), "float32", "cpu")
    assert array.__dlpack_device__() == (1, 0)
    assert capsule_name(array.__dlpack__()) == "dltensor"
    assert capsule_name(array.__dlpack__(max_version=(0, 8))) == "dltensor"
    assert capsule_name(array.__dlpack__(max_version=(1, 0))) == "dltensor_versioned"
    view = np.from_dlpack(array)
    view[0, 0] = 7
    assert np.from_dlpack(array)[0, 0] == 7
    assert np.from_dlpack(array, copy=True)[0, 0] == 7
    copy = np.from_dlpack(array, copy=True)
    copy[0, 0] = 8
    assert view[0, 0] == 7
    check_product(mf.matmul_fused(array, np.eye(6, dtype=np.float32)), view, np.eye(6))


@pytest.mark.parametrize(
    ("keywords", "error"),
    [
        ({"stream": 1}, BufferError),
        ({"dl_device": (2, 0)}, BufferError),
        ({"max_version": 1}, TypeError),
        ({"max_version": ("1", 0)}, TypeError),
        ({"foo": 1}, TypeError),
    ],
)
def test_array_export_refusals(keywords: dict[str, Any], error: type[Exception]) -> None:
    array = mf.matmul_fused(Producer(A), B)
    with pytest.raises(error):
        array.__dlpack__(**keywords)


def test_array_and_packed_matrix_cannot_be_made_by_hand() -> None:
    for kind in (mf.Array, mf.PackedMatrix):
        with pytest.raises(TypeError, match="cannot create"):
            kind()
