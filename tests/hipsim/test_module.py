"""Code objects: which images load on which part, what they contain, and what damaged ones answer."""

import ctypes
import struct

import numpy as np
import pytest

import hipsim
from hipsim import HipError, Module, hip, made, try_hip
from hipsim.compile import ADD, object_of

ARCHS = ("gfx942", "gfx950", "gfx1100")
INVALID_IMAGE, NO_BINARY, NOT_FOUND, INVALID_HANDLE = 200, 209, 500, 400


def load_code(image):
    module = ctypes.c_void_p()
    code = try_hip("hipModuleLoadData", ctypes.byref(module), image)
    if code == 0:
        hip("hipModuleUnload", module)
    return code


def bundle(entries):
    """clang's offload bundle: {target id: code object}."""
    header = 32 + sum(24 + len(name) for name in entries)
    offset = (header + 4095) & ~4095
    head, body = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(entries)), b""
    for name, image in entries.items():
        head += struct.pack("<QQQ", offset + len(body) if image else 0, len(image), len(name)) + name.encode()
        body += image + bytes(-len(image) % 4096)
    return head + bytes(offset - len(head)) + body


@pytest.mark.parametrize("arch", ARCHS)
def test_an_object_loads_on_its_part_only(arch):
    image = object_of(ADD, arch)
    for index in range(hipsim.device_count()):
        device = hipsim.Device(index)
        with device.current():
            assert load_code(image) == (0 if device.arch == arch else NO_BINARY)


def test_bundles(dev):
    images = {f"hipv4-amdgcn-amd-amdhsa--{arch}": object_of(ADD, arch) for arch in ARCHS}
    host = {"host-x86_64-unknown-linux--": b""}
    for arch in ARCHS:
        with hipsim.Device(arch).current():
            assert load_code(bundle(host | images)) == 0
    with hipsim.Device("gfx90a").current():
        assert load_code(bundle(host | images)) == INVALID_IMAGE
        hipsim.configure(version=60443484)
        assert load_code(bundle(host | images)) == NO_BINARY
    hipsim.configure(version=70253211)
    with Module(dev, bundle(host | images)) as module:
        assert module["add"].handle


@pytest.mark.parametrize(("features", "fits"), [(":xnack-", True), (":sramecc+:xnack-", True), (":xnack+", False)])
def test_target_features_must_agree(dev, features, fits):
    image = object_of(ADD, "gfx942")
    assert (load_code(bundle({f"hipv4-amdgcn-amd-amdhsa--gfx942{features}": image})) == 0) == fits


def test_features_fixed_in_an_object(dev):
    image = bytearray(object_of(ADD, "gfx942"))
    flags = struct.unpack_from("<I", image, 48)[0]
    for xnack, expected in ((0x100, 0), (0x200, 0), (0x300, NO_BINARY)):  # any, off, on; an MI300X has it off
        struct.pack_into("<I", image, 48, flags & ~0x300 | xnack)
        assert load_code(bytes(image)) == expected


def test_what_is_no_code_object(dev):
    image = object_of(ADD, "gfx942")
    assert try_hip("hipModuleLoadData", ctypes.byref(ctypes.c_void_p()), None) == 1
    assert load_code(b"__global__ void add(float *)" + bytes(64)) == INVALID_IMAGE
    assert load_code(bytes(64)) == INVALID_IMAGE
    assert load_code(image[:7] + b"\0" + image[8:]) == INVALID_IMAGE  # the ABI of another system
    assert load_code(image[:18] + struct.pack("<H", 62) + image[20:]) == INVALID_IMAGE  # x86-64
    assert load_code(b"CCOB" + bytes(64)) == INVALID_IMAGE
    assert "compressed" in str(dev.report())


def test_damaged_metadata_never_crashes(dev, rng):
    """Any bytes in the note: an error or a module, no crash; the section is found by its name in the file."""
    image = object_of(ADD, "gfx942")
    start = image.index(b"AMDGPU\0\0") + 8
    size = struct.unpack_from("<I", image, start - 16)[0]
    for _ in range(3000):
        damaged = bytearray(image)
        for _ in range(rng.integers(1, 4)):
            damaged[start + int(rng.integers(size))] = int(rng.integers(256))
        assert load_code(bytes(damaged)) in (0, INVALID_IMAGE)


def test_files(dev, tmp_path):
    path = tmp_path / "add.co"
    path.write_bytes(object_of(ADD, "gfx942"))
    hip("hipModuleUnload", made("hipModuleLoad", str(path).encode()))
    path.write_bytes(b"")
    module = ctypes.c_void_p()
    assert try_hip("hipModuleLoad", ctypes.byref(module), str(path).encode()) == INVALID_IMAGE
    path.write_bytes(b"\x7fELF")
    assert try_hip("hipModuleLoad", ctypes.byref(module), str(path).encode()) == INVALID_IMAGE
    assert try_hip("hipModuleLoad", ctypes.byref(module), str(tmp_path / "none").encode()) == 301  # file not found


@pytest.mark.parametrize("arch", ARCHS)
def test_functions_and_variables(arch):
    device = hipsim.Device(arch)
    with Module(device, object_of(ADD, arch)) as module, device.current():
        assert module["add"].handle == module["add"].handle
        with pytest.raises(HipError, match="hipErrorNotFound"):
            module["subtract"]
        address, size = ctypes.c_void_p(), ctypes.c_size_t()
        arguments = (ctypes.byref(address), ctypes.byref(size), ctypes.c_void_p(module.handle))
        hip("hipModuleGetGlobal", *arguments, b"counter")
        assert size.value == 4
        host = np.zeros(1, np.int32)
        hip("hipMemcpyAsync", host.ctypes.data, address.value, 4, 2, 0)
        assert host[0] == 7
        assert try_hip("hipModuleGetGlobal", *arguments, b"add") == NOT_FOUND


def test_function_attributes(dev):
    with Module(dev, object_of(ADD, "gfx942")) as module:
        value = ctypes.c_int()
        function = ctypes.c_void_p(module["add"].handle)
        for attribute, expected in ((0, 256), (1, 0), (3, 0), (8, 65536)):  # threads, LDS, scratch, dynamic LDS
            hip("hipFuncGetAttribute", ctypes.byref(value), attribute, function)
            assert value.value == expected
        hip("hipFuncGetAttribute", ctypes.byref(value), 4, function)
        assert 0 < value.value < 64  # registers
        assert try_hip("hipFuncGetAttribute", ctypes.byref(value), 99, function) == 1


def test_a_module_belongs_to_the_device_that_was_current(dev):
    with Module(dev, object_of(ADD, "gfx942")) as module, hipsim.Device(5).current():  # another gfx942
        function = ctypes.c_void_p()
        arguments = (ctypes.byref(function), module.handle, b"add")
        assert try_hip("hipModuleGetFunction", *arguments) == NOT_FOUND


def test_stale_modules(dev):
    module = Module(dev, object_of(ADD, "gfx942"))
    handle, function = module.handle, module["add"]
    module.unload()
    assert try_hip("hipModuleUnload", handle) == INVALID_HANDLE
    assert try_hip("hipModuleGetFunction", ctypes.byref(ctypes.c_void_p()), handle, b"add") == INVALID_HANDLE
    with pytest.raises(HipError) as caught:
        function(1, 64, 0, 0, 0, 0)
    assert caught.value.code == INVALID_HANDLE
    assert [v.kind for v in dev.report().violations] == ["handle"]


POKE = """
__device__ int variable = 7;
__attribute__((constant, used)) int fixed = 7;
extern "C" __global__ void poke(int *p) { *p = 9; }
"""


@pytest.mark.parametrize("arch", ARCHS)
def test_constants_are_read_only(arch):
    device = hipsim.Device(arch)
    with Module(device, object_of(POKE, arch)) as module, device.current():
        for name, code, value in ((b"variable", 0, 9), (b"fixed", 700, 7)):
            address, size = ctypes.c_void_p(), ctypes.c_size_t()
            hip("hipModuleGetGlobal", ctypes.byref(address), ctypes.byref(size), ctypes.c_void_p(module.handle), name)
            module["poke"](1, 1, address)
            assert try_hip("hipDeviceSynchronize") == code
            assert bool(device.report().violations) == bool(code)
            host = np.zeros(1, np.int32)
            hip("hipMemcpyAsync", host.ctypes.data, address.value, 4, 2, 0)
            assert host[0] == value


def test_unknown_hidden_arguments_are_refused(dev):
    image = object_of(ADD, "gfx942")
    assert b"hidden_block_count_x" in image
    assert load_code(image.replace(b"hidden_block_count_x", b"hidden_block_colour_")) == INVALID_IMAGE
