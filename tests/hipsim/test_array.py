"""hipsim.Array: views like NumPy's, DLPack capsules, whose deleters run exactly once, and stream rules of ROCm."""

import ctypes
import gc
import itertools

import numpy as np
import pytest

import hipsim
from fake_dlpack import Legacy, Versioned, capsule_name
from hipsim import hip

INDICES = [
    (slice(None), slice(None, None, -1)),
    (slice(1, 5, 2), slice(7, None, -3)),
    (1,),
    (..., 1),
    (None, slice(2), 1),
    (slice(0, 0),),
    (-1, -1),
]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32])
def test_views_are_numpys(dev, rng, dtype):
    values = (100 * rng.standard_normal((2, 6, 9))).astype(dtype)
    x = dev.array(values)
    pairs = [(x, values), (x.mT, values.swapaxes(-1, -2)), (x.T, values.T)]
    pairs.append((x.transpose(1, 2, 0), values.transpose(1, 2, 0)))
    pairs.append((x.reshape(12, 9), values.reshape(12, 9)))
    pairs.append((x.broadcast_to((3, 2, 6, 9)), np.broadcast_to(values, (3, 2, 6, 9))))
    for (device, host), index in itertools.product(pairs, [(), *INDICES]):
        view, expected = device[index], host[index]
        assert view.shape == expected.shape
        assert view.byte_strides == expected.strides or 0 in expected.shape
        assert np.array_equal(dev.to_numpy(view), expected)


@pytest.mark.parametrize("function", ["hipEventRecord", "hipStreamWaitEvent"])
def test_a_failed_export_leaves_no_event_behind(dev, function):
    """`account` counts them."""
    x, consumer = dev.array(np.ones(3, np.float32)), dev.stream()
    hipsim.fail_next(function, 719)
    with pytest.raises(hipsim.HipError, match=function):
        x.__dlpack__(stream=consumer.handle)
    consumer.destroy()


def test_layouts_are_copied_as_they_are(dev, rng):
    base = rng.standard_normal((8, 10)).astype(np.float32)
    for host in (base.T, base[::-1, 1::3], base[:, ::-1], np.broadcast_to(base[0], (4, 10)), base[2:3, 4:5]):
        x = dev.array(host)
        assert x.byte_strides == host.strides
        assert np.array_equal(dev.to_numpy(x), host)


def test_misaligned_on_request(dev):
    x = dev.array(np.arange(5, dtype=np.float32), offset=2)
    assert x.pointer % 4096 == 2
    assert dev.to_numpy(x).tolist() == [0, 1, 2, 3, 4]


def test_what_numpy_would_read_is_refused(dev):
    x = dev.empty(4)
    with pytest.raises(TypeError, match="to_numpy"):
        np.asarray(x)
    with pytest.raises(TypeError):
        x[[0, 1]]
    with pytest.raises(TypeError):
        x[np.ones(4, bool)]
    with pytest.raises(ValueError, match="copy"):
        dev.array(np.zeros((4, 4), np.float32)).mT.reshape(16)


def take(capsule):
    """Do what a consumer does: rename, read, and give the deleter to call."""
    name = capsule_name(capsule)
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = get(capsule, name.encode())
    managed = (Versioned if "versioned" in name else Legacy).from_address(address)
    set_name = ctypes.pythonapi.PyCapsule_SetName
    set_name.argtypes = [ctypes.py_object, ctypes.c_char_p]
    set_name(capsule, b"used_dltensor_versioned" if "versioned" in name else b"used_dltensor")
    deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(managed.deleter)
    return managed, lambda: deleter(address)


@pytest.mark.parametrize("keywords", [{}, {"max_version": (1, 3)}, {"max_version": (1, 0), "stream": -1}])
def test_capsules(dev, keywords):
    x = dev.array(np.zeros((4, 6), np.float32))[::2, ::-1]
    assert x.__dlpack_device__() == (10, dev.ordinal)
    capsule = x.__dlpack__(**keywords)
    assert x.exports == [keywords]
    assert capsule_name(capsule) == ("dltensor_versioned" if "max_version" in keywords else "dltensor")
    managed, delete = take(capsule)
    tensor = managed.dl_tensor
    assert (tensor.device.device_type, tensor.device.device_id, tensor.ndim) == (10, dev.ordinal, 2)
    assert (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes) == (2, 32, 1)
    assert [tensor.shape[i] for i in range(2)] == [2, 6]
    assert [tensor.strides[i] for i in range(2)] == [12, -1]
    assert tensor.data == x.pointer
    assert hipsim.live_exports() == 1
    del x, capsule, tensor
    gc.collect()
    assert dev.report().allocations == 1  # the tensor keeps the memory
    delete()
    assert hipsim.live_exports() == 0


def test_an_unused_capsule_frees_its_tensor(dev):
    x = dev.empty(4)
    capsule = x.__dlpack__()
    assert hipsim.live_exports() == 1
    del capsule
    assert hipsim.live_exports() == 0


def test_a_second_delete_is_seen(dev, monkeypatch):
    import hipsim.array

    monkeypatch.setattr(hipsim.array, "_deleted_twice", [])
    _, delete = take(dev.empty(4).__dlpack__(max_version=(1, 0)))
    delete()
    delete()
    with pytest.raises(AssertionError, match="twice"):
        hipsim.live_exports()


def test_bfloat16_and_read_only(dev):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = dev.array(np.ones((3, 3), ml_dtypes.bfloat16))
    managed, delete = take(x.__dlpack__(max_version=(1, 0)))
    assert (managed.dl_tensor.dtype.code, managed.dl_tensor.dtype.bits, managed.flags) == (4, 16, 0)
    delete()
    x.read_only = True
    managed, delete = take(x.__dlpack__(max_version=(1, 0)))
    assert managed.flags == 1
    delete()
    with pytest.raises(BufferError):
        x.__dlpack__()


def test_other_devices_and_copies_are_refused(dev):
    x = dev.empty(4)
    with pytest.raises(BufferError):
        x.__dlpack__(dl_device=(1, 0))
    with pytest.raises(BufferError):
        x.__dlpack__(copy=True)
    with pytest.raises(TypeError):
        x.__dlpack__(version=3)


def test_stream_rules(dev):
    x = dev.empty(4)
    for forbidden in (1, 2, -2):
        with pytest.raises(ValueError, match="not a ROCm stream"):
            x.__dlpack__(stream=forbidden)
    events = hipsim.calls("hipEventRecord")
    for same in (None, 0, -1):
        x.__dlpack__(stream=same)
    assert hipsim.calls("hipEventRecord") == events


@pytest.mark.parametrize("ordered", [True, False])
def test_a_consumers_stream_waits_for_the_producers(dev, ordered):
    seen = set()
    for seed in range(16):
        hipsim.configure(seed=seed)
        own, other = dev.stream(), dev.stream()
        x = dev.array(np.full(4, 7, np.uint8), stream=own)
        y = dev.empty(4, np.uint8, stream=other)
        x.__dlpack__(stream=other.handle if ordered else -1)
        hip("hipMemcpyAsync", y.pointer, x.pointer, 4, 3, other.handle)
        seen.add(int(dev.to_numpy(y, stream=other)[0]))
        dev.synchronize()
        del x, y
        dev.synchronize()
        own.destroy(), other.destroy()
    assert seen == ({7} if ordered else {7, 255})


def test_import_of_any_producer(dev):
    class Producer:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **keywords):
            return self.array.__dlpack__(**keywords)

    values = np.arange(12, dtype=np.float64).reshape(3, 4)
    assert np.array_equal(dev.to_numpy(Producer(dev.array(values).mT)), values.T)


def test_names_and_ordinals():
    assert [hipsim.Device(i).arch for i in range(3)] == ["gfx942", "gfx950", "gfx1100"]
    assert hipsim.Device("gfx950").ordinal == 1
    with pytest.raises(ValueError, match="no simulated gfx908"):
        hipsim.Device("gfx908")
    with pytest.raises(ValueError, match="no device 99"):
        hipsim.Device(99)
