"""A program for the simulated driver that shares no line with it: AMD's own Python bindings, of whichever version is on
PYTHONPATH, find libamdhip64.so as they would on a ROCm machine and add two vectors. Run by test_abi.py:

    client.py CODE_OBJECT NAME... < nothing        prints JSON: versions, enumerators, properties, the error of the sum
"""

import ctypes
import enum
import json
import sys

import numpy as np

try:
    from rocm.bindings import hip  # 10 and later
except ImportError:
    from hip import hip

PROPERTIES = (
    "multiProcessorCount warpSize totalGlobalMem sharedMemPerBlock maxThreadsPerBlock major minor regsPerBlock "
)
PROPERTIES += (
    "clockRate memoryClockRate memoryBusWidth l2CacheSize maxThreadsPerMultiProcessor pciBusID concurrentKernels "
)
PROPERTIES += "maxSharedMemoryPerMultiProcessor cooperativeLaunch memPitch textureAlignment managedMemory isLargeBar "
PROPERTIES += (
    "sharedMemPerMultiprocessor unifiedAddressing streamPrioritiesSupported memoryPoolsSupported asyncEngineCount "
)
PROPERTIES += (
    "regsPerMultiprocessor canMapHostMemory totalConstMem clockInstructionRate ECCEnabled pciDomainID pciDeviceID"
)


def check(result):
    code, *values = result
    assert int(code) == 0, (code, hip.hipGetErrorString(code))
    return values[0] if len(values) == 1 else values


def enumerators():
    values = {}
    for name in dir(hip):
        found = getattr(hip, name)
        if isinstance(found, type) and issubclass(found, enum.IntEnum):
            values |= {member: int(value) for member, value in found.__members__.items()}
        elif isinstance(found, int):
            values[name] = found
    return values


def properties(device):
    try:
        found = check(hip.hipGetDeviceProperties(device))
    except TypeError:  # before 10
        found = hip.hipDeviceProp_t()
        check(hip.hipGetDeviceProperties(found, device))
    values = {name: getattr(found, name) for name in PROPERTIES.split()}
    texts = {name: getattr(found, name) for name in ("name", "gcnArchName")}
    texts = {name: text if isinstance(text, str) else text.decode() for name, text in texts.items()}
    dims = {name: list(getattr(found, name)) for name in ("maxThreadsDim", "maxGridSize")}
    return values | texts | dims | {"sizeof": found.c_sizeof()}


def add(code_object):
    """Two vectors through memory, a module, a stream, an event and a launch; the greatest error."""
    n = 5000
    rng = np.random.default_rng(1)
    a, b, out = (rng.standard_normal(n).astype(np.float32) for _ in range(3))
    stream = check(hip.hipStreamCreate())
    event = check(hip.hipEventCreate())
    arrays = [check(hip.hipMalloc(x.nbytes)) for x in (out, a, b)]
    for device, host in zip(arrays, (out, a, b), strict=True):
        check(hip.hipMemcpyAsync(device, host, host.nbytes, hip.hipMemcpyKind.hipMemcpyHostToDevice, stream))
    module = check(hip.hipModuleLoadData(code_object))
    function = check(hip.hipModuleGetFunction(module, b"add"))
    arguments = (*arrays, ctypes.c_int(n))
    check(hip.hipModuleLaunchKernel(function, (n + 255) // 256, 1, 1, 256, 1, 1, 0, stream, None, arguments))
    check(hip.hipEventRecord(event, stream))
    check(hip.hipEventSynchronize(event))
    check(hip.hipMemcpy(out, arrays[0], out.nbytes, hip.hipMemcpyKind.hipMemcpyDeviceToHost))
    for array in arrays:
        check(hip.hipFree(array))
    check(hip.hipModuleUnload(module))
    check(hip.hipEventDestroy(event))
    check(hip.hipStreamDestroy(stream))
    return float(np.abs(out - (a + b)).max())


def main():
    code_object, *names = sys.argv[1:]
    known = enumerators()
    with open(code_object, "rb") as file:
        image = file.read()
    answer = {
        "devices": check(hip.hipGetDeviceCount()),
        "runtime": check(hip.hipRuntimeGetVersion()),
        "enumerators": {name: known[name] for name in names if name in known},
        "properties": properties(0),
        "error": add(image),
        "refused": int(hip.hipSetDevice(99)[0]),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
