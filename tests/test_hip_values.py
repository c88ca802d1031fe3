"""HIP's numbers and layouts in csrc/gpu, against the lists of the simulated runtime: those are compared with Debian's
headers of 5.2 and AMD's bindings of 6.4, 7.2 and 10 by hipsim/test_abi.py."""

import ctypes
import re

import pytest

from test_device_objects import ROOT

SOURCE = (ROOT / "csrc/gpu/driver_hip.c").read_text() + (ROOT / "csrc/gpu/driver.h").read_text()
LISTS = "".join(path.read_text() for path in sorted((ROOT / "tests/hipsim/runtime").glob("*.def")))
NAMES = {
    "ATTRIBUTE_MULTIPROCESSORS": "hipDeviceAttributeMultiprocessorCount",
    "ATTRIBUTE_SHARED_PER_BLOCK": "hipDeviceAttributeMaxSharedMemoryPerBlock",
    "ATTRIBUTE_WARP_SIZE": "hipDeviceAttributeWarpSize",
    "ATTRIBUTE_MEMORY_POOLS": "hipDeviceAttributeMemoryPoolsSupported",
    "INVALID_VALUE": "hipErrorInvalidValue",
    "NOT_SUPPORTED": "hipErrorNotSupported",
    "MMF_OUT_OF_MEMORY": "hipErrorOutOfMemory",
    "MMF_EVENT_DISABLE_TIMING": "hipEventDisableTiming",
    "MMF_NOT_CAPTURING": "hipStreamCaptureStatusNone",
    "MMF_CAPTURE_IMPLICIT": "hipErrorStreamCaptureImplicit",
    "MMF_CAPTURE_RELAXED": "hipStreamCaptureModeRelaxed",
}
ELSEWHERE = {  # ours, and the offsets of gcnArchName, which every test reads
    "MMF_MAX_DEVICES",
    "PROPERTIES_SIZE",
    "ARCH_OFFSET_R0000",
    "ARCH_OFFSET_R0600",
}


def enumerators():
    found = re.findall(r"\b([A-Z][A-Z0-9_]{3,}) = (\d+)", SOURCE) + re.findall(r"#define (MMF_\w+) (\d+)u", SOURCE)
    return {name: int(value) for name, value in found}


def test_every_number_is_compared():
    assert set(enumerators()) == set(NAMES) | ELSEWHERE


@pytest.mark.parametrize("name", NAMES)
def test_numbers(name):
    (value,) = re.findall(rf"^HIP_\w+\({NAMES[name]}, (\w+)", LISTS, re.MULTILINE)
    assert enumerators()[name] == int(value, 0)


def test_pointer_attributes():
    """The fields in their order, and where the interface has them."""
    body = re.search(r"struct pointer_attributes \{(.*?)\n\} pointer_attributes;", SOURCE, re.DOTALL)[1]
    kinds = {"int": ctypes.c_int, "unsigned": ctypes.c_uint, "char": ctypes.c_char * 64}
    body = re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL)
    fields = [
        (name.strip("*").removesuffix("[64]"), ctypes.c_void_p if "*" in name else kinds[kind])
        for kind, names in re.findall(r"^ *(\w+) ([^;/]+);", body, re.MULTILINE)
        for name in names.split(", ")
    ]
    layout = type("Layout", (ctypes.Structure,), {"_fields_": fields})
    real = re.findall(r"^HIP_FIELD\(hipPointerAttribute_t, (\w+), (\d+)\)", LISTS, re.MULTILINE)
    ours = {"allocationFlags": "flags"}
    for name, offset in real:
        name = ours.get(name, re.sub("[A-Z]", lambda m: "_" + m[0].lower(), name))
        assert getattr(layout, name).offset == int(offset), name
    assert len(real) == 6
    assert ctypes.sizeof(layout) > int(re.search(r"HIP_STRUCT\(hipPointerAttribute_t, (\d+)\)", LISTS)[1])
