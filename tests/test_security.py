"""The promises of SECURITY.md, a test for each."""

import ctypes
import os
import pickle
import pickletools
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import matmul_fused as mf
from fake_dlpack import READ_ONLY, Producer
from matmul_fused import _core
from support import draw, python

ROOT = Path(__file__).resolve().parents[1]
A, B, BIAS = draw((9, 7)), draw((7, 5), seed=1), draw(5, seed=2)
CALL = "import numpy as np, matmul_fused as mf; x = np.ones((8, 8), np.float32); mf.matmul_fused(x, x, x[0], 'gelu'); "


def test_every_promise_has_its_test():
    rows = [row.split(" | ") for row in re.findall(r"^\| (.*) \|$", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)]
    named = [set(re.findall(r"`(test_\w+|tests/\w+\.py)`", row[2])) for row in rows[2:]]
    assert len(named) > 5
    assert all(named)
    for test in set().union(*named):
        assert (ROOT / test).is_file() if "/" in test else callable(globals()[test]), test


# Pickles


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_hold_plain_values(protocol):
    """Only our own function is named (before protocol 3, the one by which Python itself spells bytes)."""
    data = pickle.dumps(mf.prepack(draw((7, 6), "float16")), protocol)
    named, texts = set(), []
    for code, value, _ in pickletools.genops(data):
        if code.name == "GLOBAL":
            named.add(value.replace(" ", "."))
        elif code.name == "STACK_GLOBAL":
            named.add(".".join(texts[-2:]))
        elif isinstance(value, str):
            texts.append(value)
    spelled = {"_codecs.encode"} if protocol < 3 else set()
    assert named == {"matmul_fused._core._unpickle_packed"} | spelled


def test_made_up_pickles_are_harmless():
    """Random arguments: refused, or a matrix of just these values."""
    rng = np.random.default_rng(0)
    sizes = (0, 1, 2, 3, 4, 8, -1, 2**31, 2**61, 2**62, 2**63 - 1)
    made = 0
    for _ in range(20_000):
        data = rng.bytes(rng.choice([0, 4, 8, 16, 24, 32]))
        k, n = (sizes[i] for i in rng.integers(0, len(sizes), 2))
        dtype = ("float32", "float64", "float16", "int8", "", None)[rng.integers(6)]
        layout = (None, "halves", "interleaved", "halves_up_first", "x")[rng.integers(5)]
        try:
            packed = _core._unpickle_packed(data, k, n, dtype, layout)
        except (ValueError, TypeError, MemoryError):
            continue
        made += 1
        assert packed.shape == (k, n)
        values = np.frombuffer(data, dtype).reshape(k, n)
        np.testing.assert_array_equal(np.from_dlpack(packed.unpack()), values)  # a NaN may become another
    assert made > 100


# Libraries

MARKED = """
#include <stdio.h>
#include <stdlib.h>
__attribute__((constructor)) static void loaded(void) { FILE *f = fopen(getenv("MARK"), "w"); if (f) fclose(f); }
"""


def marked(folder, name):
    """A library that leaves a file when it is loaded."""
    source = folder / "marked.c"
    source.write_text(MARKED)
    compiler = next(filter(shutil.which, (os.environ.get("CC", "gcc"), "gcc", "cc", "clang")))
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / name, source], check=True)
    return folder / name


@pytest.mark.parametrize(("variable", "name"), [("HIP", "libamdhip64.so"), ("CUDA", "libcuda.so.1")])
def test_a_named_library_is_loaded_on_first_use_only(variable, name, tmp_path):
    library = marked(tmp_path, name)
    mark = tmp_path / "mark"
    given = {f"MATMUL_FUSED_{variable}_LIBRARY": str(library), "MARK": str(mark)}
    python("-c", CALL, environment=given)
    assert not mark.exists()
    later = f"import os; {CALL} os.environ['MATMUL_FUSED_{variable}_LIBRARY'] = {str(library)!r}; mf.info()"
    python("-c", later, environment={"MARK": str(mark)})
    assert not mark.exists()
    said = python("-c", CALL + "print(mf.info())", environment=given).stdout
    assert mark.exists()
    assert str(library) in said


@pytest.mark.parametrize("name", ["libamdhip64.so", "libcuda.so.1", "libcuda.so"])
def test_the_current_folder_is_not_searched(name, tmp_path):
    marked(tmp_path, name)
    mark = tmp_path / "mark"
    python("-c", f"import os; os.chdir({str(tmp_path)!r}); {CALL} mf.info()", environment={"MARK": str(mark)})
    assert not mark.exists()


# Files, network, processes


def test_nothing_is_written(tmp_path):
    """All places that are customary for caches, and the current folder, lie in an empty one."""
    places = dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"), str(tmp_path))
    code = f"import os; os.chdir({str(tmp_path)!r}); {CALL} mf.info(); mf.explain(x, x); mf.prepack(x)"
    python("-B", "-c", code, environment=places)
    assert [path for path in tmp_path.iterdir() if path.name != ".nv"] == []  # that is a real CUDA driver's own


def test_no_source_opens_a_file_for_writing():
    """What a test run cannot show, the sources do: files are only read, and no call starts a process or connects."""
    text = "\n".join(path.read_text() for path in sorted((ROOT / "csrc").rglob("*.c")))
    modes = re.findall(r"\bfopen\([^;]*, \"(\w+)\"\)", text)
    assert set(modes) == {"re"}
    assert len(re.findall(r"\bfopen\(", text)) == len(modes)
    assert (
        re.findall(r"\b(?:open|openat|creat|mkdir|unlink|rename|popen|system|fork|vfork|exec[lv]\w*|socket)\(", text)
        == []
    )


def test_no_connection_and_no_process():
    watch = "import sys; seen = set(); sys.addaudithook(lambda event, args: seen.add(event)); "
    ask = "print(sorted(e for e in seen if e.split('.')[0] in ('socket', 'subprocess') or e.startswith('os.')))"
    events = python("-c", watch + CALL + "mf.info(); mf.explain(x, x); " + ask).stdout
    allowed = {"os.listdir", "os.scandir", "os.putenv", "os.unsetenv"}  # Python's import system; NumPy at its import
    assert set(re.findall(r"'([\w.]+)'", events)) <= allowed


# Code objects


def test_device_code_is_part_of_the_extension():
    objects = _core.device_objects()
    if not objects:
        pytest.skip("this build has no device code")
    extension = Path(_core.__file__).read_bytes()
    for arch, kernel, code in objects:
        assert bytes(code) in extension, (arch, kernel)


# DLPack

LIES = {
    "version": {"version": (2, 0)},
    "name": {"name": b"dltensor_of_another"},
    "device": {"device": (1, 3)},
    "rank": {"change": lambda t: setattr(t, "ndim", 2**31 - 1)},
    "negative rank": {"change": lambda t: setattr(t, "ndim", -1)},
    "length": {"change": lambda t: t.shape.__setitem__(0, -5)},
    "overflow": {"change": lambda t: t.shape.__setitem__(0, 2**62)},
    "stride": {"change": lambda t: t.strides.__setitem__(0, 2**62)},
    "dtype": {"change": lambda t: setattr(t.dtype, "bits", 7)},
    "lanes": {"change": lambda t: setattr(t.dtype, "lanes", 4)},
    "no memory": {"change": lambda t: setattr(t, "data", None)},
    "alignment": {"change": lambda t: setattr(t, "byte_offset", 1)},
    "no shape": {"change": lambda t: setattr(t, "shape", ctypes.POINTER(ctypes.c_int64)())},
}


@pytest.mark.parametrize("argument", ["A", "bias"])
@pytest.mark.parametrize("lie", LIES)
def test_what_a_producer_says_is_checked(lie, argument):
    producer = Producer(A if argument == "A" else BIAS, **LIES[lie])
    out = np.full((9, 5), np.nan, np.float32)
    with pytest.raises((BufferError, TypeError, ValueError, NotImplementedError)):
        mf.matmul_fused(*((producer, B, BIAS) if argument == "A" else (A, B, producer)), out=out)
    assert np.isnan(out).all()
    del out
    assert producer.deleted <= 1


def test_read_only_memory_is_not_written():
    for array in (Producer(np.zeros((9, 5), np.float32), flags=READ_ONLY), np.zeros((9, 5), np.float32)):
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
        with pytest.raises((BufferError, ValueError)):
            mf.matmul_fused(A, B, BIAS, out=array)
        assert not (array if isinstance(array, np.ndarray) else array.array).any()


@pytest.mark.parametrize(
    "wrong",
    [
        {"bias": draw(4)},
        {"activation": "no such"},
        {"beta": 2.0},
        {"C": draw((3, 3))},
        {"multiply": draw((9, 5)).astype(np.int32)},
        {"alpha": "1"},
        {"out_dtype": "float16"},
        {"preactivation": np.zeros((9, 4), np.float32)},
        {"gate_layout": "halves"},
        {"stream": 5},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_refused_call_changes_nothing(wrong):
    out, z = (np.full((9, 5), np.nan, np.float32) for _ in range(2))
    kept = [x.copy() for x in (A, B, BIAS)]
    with pytest.raises((TypeError, ValueError)):
        mf.matmul_fused(A, B, **{"bias": BIAS, "out": out, "preactivation": z} | wrong)
    assert np.isnan(out).all()
    assert np.isnan(z).all()
    assert all((x == y).all() for x, y in zip(kept, (A, B, BIAS), strict=True))
