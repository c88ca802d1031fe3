"""csrc/xla/ffi_abi.h has the layouts and numbers of the header that jaxlib ships: a C compiler compares both."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ffi = pytest.importorskip("jax.ffi")

CSRC = Path(__file__).resolve().parents[1] / "csrc"
HEADER = (Path(ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h").read_text()
HEAD = {"struct_size": "struct_size", "extensions": "extension_start"}
BUFFERS = {**HEAD, "count": "size", "types": "types"}
# Our struct: XLA's, and each of our fields: XLA's.
STRUCTS = {
    "mmf_ffi_extension": ("XLA_FFI_Extension_Base", {"struct_size": "struct_size", "type": "type", "next": "next"}),
    "mmf_ffi_version": (
        "XLA_FFI_Api_Version",
        {
            "struct_size": "struct_size",
            "extensions": "extension_start",
            "major": "major_version",
            "minor": "minor_version",
        },
    ),
    "mmf_ffi_metadata": (
        "XLA_FFI_Metadata",
        {"struct_size": "struct_size", "version": "api_version", "traits": "traits"},
    ),
    "mmf_ffi_metadata_extension": ("XLA_FFI_Metadata_Extension", {"base": "extension_base", "metadata": "metadata"}),
    "mmf_ffi_error_arguments": (
        "XLA_FFI_Error_Create_Args",
        {"struct_size": "struct_size", "extensions": "extension_start", "message": "message", "code": "errc"},
    ),
    "mmf_ffi_api": (
        "XLA_FFI_Api",
        {
            "struct_size": "struct_size",
            "extensions": "extension_start",
            "version": "api_version",
            "internal": "internal_api",
            "new_error": "XLA_FFI_Error_Create",
            "message_of": "XLA_FFI_Error_GetMessage",
            "drop_error": "XLA_FFI_Error_Destroy",
            "register_handler": "XLA_FFI_Handler_Register",
            "stream": "XLA_FFI_Stream_Get",
            "register_type": "XLA_FFI_Type_Register",
            "user_data": "XLA_FFI_ExecutionContext_Get",
            "set_state": "XLA_FFI_State_Set",
            "get_state": "XLA_FFI_State_Get",
            "allocate": "XLA_FFI_DeviceMemory_Allocate",
            "free": "XLA_FFI_DeviceMemory_Free",
            "schedule": "XLA_FFI_ThreadPool_Schedule",
            "threads": "XLA_FFI_ThreadPool_NumThreads",
            "new_future": "XLA_FFI_Future_Create",
            "set_available": "XLA_FFI_Future_SetAvailable",
            "set_error": "XLA_FFI_Future_SetError",
            "run_id": "XLA_FFI_RunId_Get",
            "ordinal": "XLA_FFI_DeviceOrdinal_Get",
        },
    ),
    "mmf_ffi_drop_arguments": ("XLA_FFI_Error_Destroy_Args", {**HEAD, "error": "error"}),
    "mmf_ffi_stream_arguments": ("XLA_FFI_Stream_Get_Args", {**HEAD, "context": "ctx", "stream": "stream"}),
    "mmf_ffi_allocate_arguments": (
        "XLA_FFI_DeviceMemory_Allocate_Args",
        {**HEAD, "context": "ctx", "bytes": "size", "alignment": "alignment", "data": "data"},
    ),
    "mmf_ffi_free_arguments": (
        "XLA_FFI_DeviceMemory_Free_Args",
        {**HEAD, "context": "ctx", "bytes": "size", "data": "data"},
    ),
    "mmf_ffi_ordinal_arguments": (
        "XLA_FFI_DeviceOrdinal_Get_Args",
        {**HEAD, "context": "ctx", "ordinal": "device_ordinal"},
    ),
    "mmf_ffi_buffer": (
        "XLA_FFI_Buffer",
        {
            "struct_size": "struct_size",
            "extensions": "extension_start",
            "dtype": "dtype",
            "data": "data",
            "rank": "rank",
            "shape": "dims",
        },
    ),
    "mmf_ffi_buffers": ("XLA_FFI_Args", {**BUFFERS, "buffers": "args"}),
    "mmf_ffi_attributes": ("XLA_FFI_Attrs", {**BUFFERS, "names": "names", "values": "attrs"}),
    "mmf_ffi_span": ("XLA_FFI_ByteSpan", {"text": "ptr", "length": "len"}),
    "mmf_ffi_scalar": ("XLA_FFI_Scalar", {"dtype": "dtype", "value": "value"}),
    "mmf_ffi_frame": (
        "XLA_FFI_CallFrame",
        {
            "struct_size": "struct_size",
            "extensions": "extension_start",
            "api": "api",
            "context": "ctx",
            "stage": "stage",
            "arguments": "args",
            "results": "rets",
            "attributes": "attrs",
        },
    ),
}
NUMBERS = {
    "MMF_FFI_MAJOR": "XLA_FFI_API_MAJOR",
    "MMF_FFI_METADATA": "XLA_FFI_Extension_Metadata",
    "MMF_FFI_INVALID_ARGUMENT": "XLA_FFI_Error_Code_INVALID_ARGUMENT",
    "MMF_FFI_RESOURCE_EXHAUSTED": "XLA_FFI_Error_Code_RESOURCE_EXHAUSTED",
    "MMF_FFI_UNIMPLEMENTED": "XLA_FFI_Error_Code_UNIMPLEMENTED",
    "MMF_FFI_INTERNAL": "XLA_FFI_Error_Code_INTERNAL",
    "MMF_FFI_F16": "XLA_FFI_DataType_F16",
    "MMF_FFI_F32": "XLA_FFI_DataType_F32",
    "MMF_FFI_F64": "XLA_FFI_DataType_F64",
    "MMF_FFI_BF16": "XLA_FFI_DataType_BF16",
    "MMF_FFI_BUFFER": "XLA_FFI_ArgType_BUFFER",
    "MMF_FFI_SCALAR": "XLA_FFI_AttrType_SCALAR",
    "MMF_FFI_STRING": "XLA_FFI_AttrType_STRING",
    "sizeof(mmf_ffi_span)": "sizeof(XLA_FFI_ByteSpan)",
    "sizeof(mmf_ffi_scalar)": "sizeof(XLA_FFI_Scalar)",
    "sizeof(mmf_ffi_version)": "sizeof(XLA_FFI_Api_Version)",
    "sizeof(mmf_ffi_extension)": "sizeof(XLA_FFI_Extension_Base)",
    "(int)MMF_FFI_BUFFER": "(int)XLA_FFI_RetType_BUFFER",
    "offsetof(mmf_ffi_buffers, buffers)": "offsetof(XLA_FFI_Rets, rets)",
    "sizeof(mmf_ffi_buffers)": "sizeof(XLA_FFI_Rets)",
    "(MMF_FFI_MINOR >= MMF_FFI_MINOR_LEAST)": "(XLA_FFI_API_MINOR >= MMF_FFI_MINOR_LEAST)",
    "MMF_FFI_SIZE(mmf_ffi_error_arguments, code)": "XLA_FFI_Error_Create_Args_STRUCT_SIZE",
    "MMF_FFI_SIZE(mmf_ffi_drop_arguments, error)": "XLA_FFI_Error_Destroy_Args_STRUCT_SIZE",
    "MMF_FFI_SIZE(mmf_ffi_stream_arguments, stream)": "XLA_FFI_Stream_Get_Args_STRUCT_SIZE",
    "MMF_FFI_SIZE(mmf_ffi_allocate_arguments, data)": "XLA_FFI_DeviceMemory_Allocate_Args_STRUCT_SIZE",
    "MMF_FFI_SIZE(mmf_ffi_free_arguments, data)": "XLA_FFI_DeviceMemory_Free_Args_STRUCT_SIZE",
    "MMF_FFI_SIZE(mmf_ffi_ordinal_arguments, ordinal)": "XLA_FFI_DeviceOrdinal_Get_Args_STRUCT_SIZE",
}


# Names of other versions than that of jaxlib 0.10 (0.3): of 0.5 (0.1), of 0.11 (0.4).
OTHER_NAMES = {
    "XLA_FFI_Type_Register": "XLA_FFI_TypeId_Register",
    "XLA_FFI_Extension_Base": "XLA_FFI_InternalExtension",
    "XLA_FFI_Error_GetMessage": "XLA_FFI_Error_GetDetails",
    "XLA_FFI_ExecutionContext_Get": "XLA_FFI_InvokeContext_Get",
}
LATER = ("XLA_FFI_RunId_Get", "XLA_FFI_DeviceOrdinal_Get")  # not in 0.1


def has(name):
    return re.search(rf"\b{name}\b", HEADER) is not None


def in_header(text):
    """With the names of this header, or None if it is of what that has not."""
    if any(name in text and not has(name) for name in LATER):
        return None
    for name, other in OTHER_NAMES.items():
        if not has(name):
            text = re.sub(rf"\b{name}\b", other, text)
    return text


def wanted():
    for ours, (theirs, fields) in STRUCTS.items():
        for field, other in fields.items():
            yield f"offsetof({ours}, {field})", f"offsetof({theirs}, {other})"
            yield f"sizeof((({ours} *)0)->{field})", f"sizeof((({theirs} *)0)->{other})"
    yield from NUMBERS.items()


def assertions():
    return [(ours, in_header(theirs)) for ours, theirs in wanted() if in_header(theirs)]


def test_only_an_old_header_lacks_something():
    left_out = len(list(wanted())) - len(assertions())
    assert not left_out or int(re.search(r"XLA_FFI_API_MINOR (\d+)", HEADER)[1]) < 3


def compile_both(folder, pairs):
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))), None)
    if not compiler:
        pytest.skip("no C compiler")
    lines = ['#include "xla/ffi/api/c_api.h"', '#include "csrc_ffi_abi.h"']
    lines += [f'_Static_assert({ours} == {theirs}, "{ours}");' for ours, theirs in pairs]
    (folder / "csrc_ffi_abi.h").write_text((CSRC / "xla" / "ffi_abi.h").read_text())  # its folder has XLA's name
    (folder / "compare.c").write_text("\n".join(lines) + "\n")
    command = [compiler, "-std=c11", "-fsyntax-only", f"-I{ffi.include_dir()}", "compare.c"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_layouts_are_those_of_jaxlib(tmp_path):
    done = compile_both(tmp_path, assertions())
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("pair", [("sizeof(mmf_ffi_span)", "8"), ("offsetof(mmf_ffi_frame, stage)", "0")], ids=str)
def test_a_difference_is_seen(tmp_path, pair):
    done = compile_both(tmp_path, [*assertions(), pair])
    assert done.returncode != 0
    assert re.search("static.assert", done.stderr, re.IGNORECASE)


def test_every_struct_and_number_is_compared():
    text = (CSRC / "xla" / "ffi_abi.h").read_text()
    for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\n\} \w+;", text, re.DOTALL):
        fields = re.findall(r"(\w+)(?=[,;)])", re.sub(r"/\*.*?\*/|\(\w+ \*\w+\);", "", body, flags=re.DOTALL))
        assert set(STRUCTS[name][1]) == set(fields), name
    other = {"MMF_FFI_MINOR", "MMF_FFI_MINOR_LEAST", "MMF_FFI_ALIGNMENT"}
    numbers = set(re.findall(r"\b(MMF_FFI_[A-Z0-9_]+)(?= = |,| \d)", text)) - other
    assert numbers <= set(NUMBERS)
    assert len(numbers) == 13
