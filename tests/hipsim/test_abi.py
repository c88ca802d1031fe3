"""The simulated interface against other statements of it: Debian's headers (5.2), AMD's bindings (6.4, 7.2, 10)
as text, as enumerators and as a client that runs, and Debian's real runtime on a machine without a GPU."""

import ctypes
import functools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hipsim
from hipsim.abi import fetch
from hipsim.compile import ADD, object_of

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / "build" / "hipsim" / "abi"
VERSIONS = tuple(fetch.BINDINGS)


def fetched(function, *arguments):
    try:
        return function(*arguments, CACHE)
    except fetch.Unreachable as reason:
        pytest.skip(f"cannot be fetched: {reason}")


@functools.cache
def rows(file, *macros):
    """Arguments of every MACRO(...) of a list in runtime/, split at the outer commas."""
    text = re.sub(r"/\*.*?\*/", "", (HERE / "runtime" / file).read_text(), flags=re.DOTALL)
    found = []
    for match in re.finditer(rf"^(?:{'|'.join(macros)})\((.*?)\)$", text, flags=re.DOTALL | re.MULTILINE):
        parts, depth, part = [], 0, ""
        for c in " ".join(match[1].split()):
            depth += (c == "(") - (c == ")")
            if c == "," and depth == 0:
                parts.append(part.strip())
                part = ""
            else:
                part += c
        found.append((*parts, part.strip()))
    assert found
    return found


def compiles(headers, runtime):
    command = [shutil.which("cc") or "cc", "-std=c11", "-fsyntax-only", "-w", "-D__HIP_PLATFORM_AMD__"]
    command += ["-isystem", str(headers), "-I", str(runtime), str(HERE / "abi" / "check_headers.c")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_headers_agree():
    done = compiles(fetched(fetch.headers), HERE / "runtime")
    assert done.returncode == 0, done.stderr


# file, what is written there, what is put in its place, a word of the complaint
PLANTED = [
    ("errors.def", "hipErrorNoDevice, 100", "hipErrorNoDevice, 101", "hipErrorNoDevice"),
    ("values.def", "hipMemcpyDefault, 4", "hipMemcpyDefault, 5", "hipMemcpyDefault"),
    ("properties.def", "warpSize, int, 276", "warpSize, int, 280", "warpSize"),
    ("properties.def", "totalConstMem, size_t", "totalConstMem, int", "totalConstMem"),
    ("structs.def", "func, 24", "func, 16", "func"),
    ("entry_points.def", "hipMalloc, (void **ptr, size_t size)", "hipMalloc, (void **ptr, int size)", "hipMalloc"),
]


@pytest.mark.parametrize(("file", "right", "wrong", "word"), PLANTED)
def test_a_planted_difference_is_found(tmp_path, file, right, wrong, word):
    headers = fetched(fetch.headers)
    copy = shutil.copytree(HERE / "runtime", tmp_path / "runtime")
    text = (copy / file).read_text()
    assert text.count(right) == 1
    (copy / file).write_text(text.replace(right, wrong))
    done = compiles(headers, copy)
    assert done.returncode != 0
    assert word in done.stderr


SAME = {"unsigned long": "size_t", "hipDeviceptr_t": "void *", "unsigned": "unsigned int", "hipUUID_t": "hipUUID"}
SAME |= {"hipDeviceProp_tR0600": "hipDeviceProp_t", "hipDevice_t": "int"}


def types(parameters):
    """The types of a parameter list; names, const, enum and struct dropped, spellings unified."""
    result = []
    for parameter in parameters.strip().split(",") if parameters.strip() not in ("", "void") else []:
        parameter = re.sub(r"\b(?:const|enum|struct)\b", " ", parameter)
        stars = "*" * parameter.count("*")
        words = parameter.replace("*", " ").split()
        base = (
            " ".join(words[:-1])
            if len(words) > 1 and words[-1] not in ("int", "long", "char", "short")
            else " ".join(words)
        )
        base = SAME.get(base, base)
        result.append(base.replace("void *", "void" + "*") + stars)
    return result


@functools.cache
def declared(version):
    text = fetch.declarations(version, CACHE)
    return {
        name: types(body)
        for name, body in re.findall(r"^cdef hipError_t (\w+)\((.*)\) except", text, flags=re.MULTILINE)
    }


ALIASES = {"hipGetDevicePropertiesR0600": "hipGetDeviceProperties"}  # what the headers call it
ONLY_HERE = {"hipGetDevicePropertiesR0000", "hipGetDeviceProperties"}  # kept for programs of HIP 5


@pytest.mark.parametrize("version", VERSIONS)
def test_signatures(version):
    known = fetched(lambda cache: declared(version))
    compared = 0
    for name, parameters, _ in rows("entry_points.def", "HIP_ENTRY", "HIP_ENTRY_NEW"):
        if name in ONLY_HERE:
            continue
        assert types(parameters.strip()[1:-1]) == known[ALIASES.get(name, name)], name
        compared += 1
    assert compared > 90


FIELD_TYPES = {
    "char": ctypes.c_char,
    "int": ctypes.c_int,
    "unsigned int": ctypes.c_uint,
    "size_t": ctypes.c_size_t,
    "unsigned long": ctypes.c_size_t,
    "hipUUID_t": ctypes.c_char * 16,
    "hipUUID": ctypes.c_char * 16,
    "hipDeviceArch_t": ctypes.c_uint,
    "unsigned int *": ctypes.c_void_p,
}


def layout(version):
    """hipDeviceProp_t as its declared fields lay it out."""
    text = fetch.declarations(version, CACHE)
    body = re.search(r'cdef struct hipDeviceProp_t "hipDeviceProp_tR0600":\n((?:        .*\n)+)', text)[1]
    fields = []
    for line in body.strip().splitlines():
        count = re.search(r"\[(\d+)\]", line)
        kind, name = re.sub(r"\[\d+\]", "", line).strip().rsplit(" ", 1)
        kind = FIELD_TYPES[kind.strip()]
        fields.append((name, kind * int(count[1]) if count else kind))
    return type("Properties", (ctypes.Structure,), {"_fields_": fields})


@pytest.mark.parametrize("version", VERSIONS)
def test_property_layout(version):
    struct = fetched(lambda cache: layout(version))
    assert ctypes.sizeof(struct) == 1472
    offsets = {row[0]: (row[1], int(row[3])) for row in rows("properties.def", "HIP_PROPERTY")}
    offsets |= {row[0]: (row[1], int(row[2])) for row in rows("properties.def", "HIP_PROPERTY_NEW")}
    offsets |= {"gcnArchName": ("char[256]", 1160), "maxThreadsDim": ("int[3]", 324), "maxGridSize": ("int[3]", 336)}
    sizes = {"int": 4, "size_t": 8, "char[256]": 256, "int[3]": 12}
    for name, (kind, offset) in offsets.items():
        field = getattr(struct, name)
        assert (field.offset, field.size) == (offset, sizes[kind]), name


@functools.cache
def client(version):
    """What the bindings say, and what they do with the simulated driver in their own process."""
    folder = fetch.bindings(version, CACHE)
    shim = CACHE / f"shim-{os.getpid()}"
    shim.mkdir(parents=True, exist_ok=True)
    link = shim / "libamdhip64.so"
    link.unlink(missing_ok=True)
    link.symlink_to(os.environ["MATMUL_FUSED_HIP_LIBRARY"])
    code_object = shim / "add.co"
    code_object.write_bytes(object_of(ADD, "gfx1100"))
    names = [row[0] for file in ("errors.def", "values.def") for row in rows(file, r"HIP_\w+")]
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "LD_LIBRARY_PATH": str(shim),
        "ROCM_PATH": str(shim),
        "HIPSIM_DEVICES": "gfx1100,gfx942",
    }
    command = [sys.executable, str(HERE / "abi" / "client.py"), str(code_object), *names]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=300)
    shutil.rmtree(shim)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("version", VERSIONS)
def test_enumerators(version):
    known = fetched(lambda cache: client(version))["enumerators"]
    expected = {row[0]: int(row[1], 0) for row in rows("errors.def", "HIP_ERROR")}
    expected |= {row[0]: int(row[1], 0) for row in rows("values.def", "HIP_VALUE", "HIP_VALUE_NEW")}
    if version == "6.4":
        del expected["hipDeviceAttributeNumberOfXccs"]  # younger
    assert known == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_client(version):
    answer = fetched(lambda cache: client(version))
    assert answer["devices"] == 2
    assert answer["runtime"] == 70253211
    assert answer["error"] == 0.0  # the sum of two vectors
    assert answer["refused"] == 101  # hipSetDevice(99)
    told, own = answer["properties"], hipsim.Device("gfx1100").properties
    assert told["sizeof"] == 1472
    assert (told["name"], told["gcnArchName"]) == (own["name"], own["gcn_arch_name"])
    same = {"multiProcessorCount": "compute_units", "warpSize": "wave_size", "totalGlobalMem": "memory_bytes"}
    same |= {"sharedMemPerBlock": "lds_bytes", "major": "major", "minor": "minor"}
    assert {name: told[name] for name in same} == {name: own[key] for name, key in same.items()}
    assert told["maxThreadsDim"] == [1024] * 3


REAL = """
import ctypes, sys
lib = ctypes.CDLL(sys.argv[1])
lib.hipGetErrorName.restype = ctypes.c_char_p
count = ctypes.c_int(-1)
print(lib.hipInit(0), lib.hipGetDeviceCount(ctypes.byref(count)), count.value)
print(lib.hipGetErrorName(100).decode())
"""


def test_the_real_runtime_without_a_device():
    """What the extension meets with ROCm and no GPU; the simulated runtime says hipErrorNoDevice to both."""
    if os.path.exists("/dev/kfd"):
        pytest.skip("this machine has an AMD GPU")
    folder = fetched(fetch.runtime)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    command = [sys.executable, "-c", REAL, str(folder / "libamdhip64.so.5")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if "cannot open shared object" in done.stderr:
        pytest.skip(f"cannot be fetched: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["101", "100", "0", "hipErrorNoDevice"]  # hipErrorInvalidDevice, hipErrorNoDevice


def test_exported_symbols():
    """Every entry point is exported, and nothing else but the tests' own functions."""
    nm = shutil.which("nm")
    if not nm:
        pytest.skip("nm is not installed")
    library = os.environ["MATMUL_FUSED_HIP_LIBRARY"]
    done = subprocess.run([nm, "-D", "--defined-only", library], capture_output=True, text=True, check=True)
    exported = {line.split()[-1] for line in done.stdout.splitlines() if " T " in line}
    errors = {"hipGetErrorName", "hipGetErrorString", "hipGetLastError", "hipPeekAtLastError", "hipExtGetLastError"}
    foreign = {name for name in exported if not name.startswith("hipsim_")}
    assert foreign == set(hipsim.entry_points()) | errors
