"""Memory on simulated AMD GPUs that is not what its producer says: of the host, of another device, misaligned."""

import ctypes

import numpy as np
import pytest

import hipsim
import matmul_fused as mf
from fake_dlpack import DLDevice, Producer
from hip_support import A, B, claim, simulator  # noqa: F401
from support import check


@pytest.fixture
def dev():
    return hipsim.Device("gfx942")


def test_host_memory_claimed_as_rocm(dev):
    text = "A says that it is on rocm:0, but the driver knows no such device memory"
    with pytest.raises(BufferError, match=text):
        mf.matmul_fused(claim(A), dev.array(B))
    with pytest.raises(BufferError, match="out says that it is on rocm:0, but"):
        mf.matmul_fused(dev.array(A), dev.array(B), out=claim(np.zeros((9, 12), np.float32)))


def test_memory_of_another_device(dev):
    other = hipsim.Device("gfx950").array(B)
    with pytest.raises(ValueError, match="B is on rocm:1 but A is on rocm:0; move it to A's device"):
        mf.matmul_fused(dev.array(A), other)
    fake = Producer(B, device=(10, 0), change=lambda tensor: moved(tensor, other.pointer))
    with pytest.raises(BufferError, match="B says that it is on rocm:0, but its memory is on rocm:1"):
        mf.matmul_fused(dev.array(A), fake)


def moved(tensor, pointer):
    tensor.device = DLDevice(10, 0)
    tensor.data = pointer


def test_managed_memory_is_of_every_device(dev):
    pointer = ctypes.c_void_p()
    with hipsim.Device("gfx950").current():
        hipsim.hip("hipMallocManaged", ctypes.byref(pointer), B.nbytes, 1)
    ctypes.memmove(pointer, B.ctypes.data, B.nbytes)
    managed = Producer(B, device=(10, 0), change=lambda tensor: moved(tensor, pointer.value))
    check(dev.to_numpy(mf.matmul_fused(dev.array(A), managed)), A, B)
    hipsim.hip("hipFree", pointer)


def test_misaligned_memory(dev):
    x = dev.array(A, offset=2)
    with pytest.raises(ValueError, match="A lies at an address that is no multiple of its item size"):
        mf.matmul_fused(x, dev.array(B))


def test_a_device_that_is_not_there(dev):
    count = hipsim.device_count()
    with pytest.raises(mf.DeviceError, match=rf"there is no device rocm:{count}; HIP finds {count} \("):
        mf.matmul_fused(claim(A, count), claim(B, count))
