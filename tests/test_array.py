"""mf.Array, the result for unknown libraries: what it says of itself, and how long its memory lives."""

import sys

import numpy as np
import pytest

import matmul_fused as mf
from support import DTYPES, Generic, check, draw, reuse_memory, same_bits


def new_array():
    A, B = draw((30, 40)), draw((40, 50))
    return mf.matmul_fused(Generic(A), B), mf.matmul_fused(A, B)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_consumers_keep_an_array_alive(library):
    consumer = pytest.importorskip(library)
    array, wanted = new_array()
    address = np.from_dlpack(array).ctypes.data
    taken = consumer.from_dlpack(array)
    view = taken[3:, ::2]
    del array, taken
    others = reuse_memory()
    np.testing.assert_array_equal(np.asarray(view), wanted[3:, ::2])
    assert address not in [np.from_dlpack(other).ctypes.data for other in others]


@pytest.mark.parametrize("keywords", [{}, {"max_version": (1, 0)}, {"max_version": (0, 8)}, {"max_version": None}])
def test_a_capsule_keeps_an_array_alive(keywords):
    array, wanted = new_array()
    references = sys.getrefcount(array)
    capsule = array.__dlpack__(**keywords)
    versioned = keywords.get("max_version", None) == (1, 0)
    assert f'"dltensor{"_versioned" * versioned}"' in repr(capsule)
    assert sys.getrefcount(array) == references + 1
    producer = type("Given", (), {"__dlpack__": lambda s, **k: capsule, "__dlpack_device__": lambda s: (1, 0)})()
    del array
    others = reuse_memory()
    np.testing.assert_array_equal(np.from_dlpack(producer), wanted)
    assert len(others) == 20


def test_a_dropped_capsule_lets_the_array_go():
    array, _ = new_array()
    references = sys.getrefcount(array)
    capsules = [array.__dlpack__(max_version=(1, 0)) for _ in range(5)] + [array.__dlpack__() for _ in range(5)]
    assert sys.getrefcount(array) == references + 10
    del capsules
    assert sys.getrefcount(array) == references


def test_consumers_share_the_memory_of_an_array():
    array, wanted = new_array()
    first, second = np.from_dlpack(array), np.from_dlpack(array)
    assert np.shares_memory(first, second)
    first[0, 0] = 7
    assert second[0, 0] == 7
    copied = np.from_dlpack(array, copy=True)
    assert not np.shares_memory(first, copied)
    copied[0, 0] = 9
    assert second[0, 0] == 7
    assert first.ctypes.data % 64 == 0
    assert same_bits(second[1:], wanted[1:])


def test_an_array_says_what_it_is():
    for dtype in DTYPES[:3]:
        array = mf.matmul_fused(Generic(draw((2, 5, 7), dtype)), draw((7, 6), dtype))
        assert (array.shape, array.dtype, array.device) == ((2, 5, 6), dtype, "cpu")
        assert repr(array) == f"<matmul_fused.Array shape=(2, 5, 6) dtype={dtype} device=cpu>"
        assert array.__dlpack_device__() == (1, 0)
        check(np.from_dlpack(array), draw((2, 5, 7), dtype), draw((7, 6), dtype))
    with pytest.raises(TypeError, match="cannot create"):
        mf.Array()
    with pytest.raises(AttributeError):
        array.shape = (1,)


@pytest.mark.parametrize(
    ("keywords", "error", "text"),
    [
        ({"stream": 1}, BufferError, "stream must be None on the CPU"),
        ({"dl_device": (2, 0)}, BufferError, "this Array is on the CPU"),
        ({"dl_device": (1, 1)}, BufferError, "this Array is on the CPU"),
        ({"max_version": 1}, TypeError, "max_version must be None or a pair"),
        ({"max_version": (1, 0, 0)}, TypeError, "max_version must be None or a pair"),
        ({"max_version": ("1", 0)}, TypeError, "int"),
        ({"copy": "yes"}, TypeError, "copy must be None, True or False"),
        ({"kopy": True}, TypeError, "unexpected keyword argument 'kopy'"),
    ],
)
def test_dlpack_export_refuses_bad_arguments(keywords, error, text):
    array, _ = new_array()
    references = sys.getrefcount(array)
    with pytest.raises(error, match=text):
        array.__dlpack__(**keywords)
    assert sys.getrefcount(array) == references
