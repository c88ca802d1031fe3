"""The tune store: what is written, and that what is damaged, foreign or unwritable is harmless; tune() and warmup()."""

import dataclasses
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import matmul_fused as mf
from matmul_fused import _core, store, tuning
from matmul_fused.testing import force_kernel
from support import KERNELS, draw, own_store, same_bits

ROOT = Path(__file__).resolve().parents[1]
DEVICE = "cpu: tested"


@pytest.fixture
def made(tmp_path):
    return store.Store(tmp_path / "cache" / "matmul_fused", "1.2.3")


def again(made):
    """As another process finds it."""
    return store.Store(made.folder, "1.2.3")


# --- the file ---


def test_what_is_put_is_found_by_another_process(made):
    made.put("kernels", DEVICE, {"a": ["x", 1.0]})
    made.put("sites", DEVICE, {"b": [1.0, 2.0]})
    made.put("kernels", DEVICE, {"c": ["y", 1.0]})
    for reader in (made, again(made)):
        assert reader.get("kernels", DEVICE) == {"a": ["x", 1.0], "c": ["y", 1.0]}
        assert reader.get("sites", DEVICE) == {"b": [1.0, 2.0]}
        assert reader.get("kernels", "cpu: another") == {}
    made.put("kernels", DEVICE, {"a": None, "never put": None})
    assert again(made).get("kernels", DEVICE) == {"c": ["y", 1.0]}


def test_folder_and_file_are_private(made):
    before = os.umask(0)
    try:
        made.put("sites", DEVICE, {"b": [1.0, 2.0]})
    finally:
        os.umask(before)
    assert stat.S_IMODE(made.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o600
    assert sorted(path.name for path in made.folder.iterdir()) == ["lock", "tune-1.2.3.json"]


def test_nothing_is_made_by_reading(made):
    assert made.get("kernels", DEVICE) == {}
    assert not made.folder.parent.exists()


def damage(made, text):
    made.put("sites", DEVICE, {"b": [1.0, 2.0]})
    made.path.write_text(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is damaged: Expecting value"),
        ('{"format": 1, "version": "1.2.3", "kernels": {', "it is damaged: Expecting"),
        ("[" * 100_000, "it is damaged: "),
        ("[]", "another version wrote it"),
        ('{"format": 2, "version": "1.2.3", "kernels": {}, "sites": {}}', "another version wrote it"),
        ('{"format": 1, "version": "1.2.2", "kernels": {}, "sites": {}}', "another version wrote it"),
        ('{"format": 1, "version": "1.2.3", "kernels": {}}', "it is damaged: not a table of tables"),
        ('{"format": 1, "version": "1.2.3", "kernels": {"x": 3}, "sites": {}}', "it is damaged: not a table of"),
        ('"\udcff"', "it is damaged: "),
    ],
)
def test_damaged_files_are_ignored_with_one_line(made, caplog, text, why):
    damage(made, "")
    made.path.write_bytes(text.encode("utf-8", "surrogateescape"))
    reader = again(made)
    assert reader.get("sites", DEVICE) == {}
    assert reader.get("kernels", DEVICE) == {}
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{made.path} is ignored: {why}")
    again(made).put("sites", DEVICE, {"b": [3.0, 4.0]})
    assert again(made).get("sites", DEVICE) == {"b": [3.0, 4.0]}


def test_files_that_others_may_write_are_ignored(made, caplog):
    made.put("sites", DEVICE, {"b": [1.0, 2.0]})
    made.path.chmod(0o622)
    assert again(made).get("sites", DEVICE) == {}
    assert caplog.records[0].getMessage().endswith("it may be written by others (mode 0622)")


def test_files_of_another_owner_are_ignored(made, caplog, monkeypatch):
    made.put("sites", DEVICE, {"b": [1.0, 2.0]})
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert again(made).get("sites", DEVICE) == {}
    assert caplog.records[0].getMessage().endswith(f"its folder belongs to user {owner}, not to {owner + 1}")
    with pytest.raises(PermissionError, match=f"belongs to user {owner}, not to {owner + 1}; set MATMUL_FUSED_CACHE_"):
        made.put("sites", DEVICE, {"b": [1.0, 2.0]})


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/etc/hostname", path)])
def test_no_files(made, caplog, make):
    made.folder.mkdir(parents=True, mode=0o700)
    make(made.path)
    assert made.get("sites", DEVICE) == {}
    assert len(caplog.records) == 1


def test_large_files_are_not_read(made, caplog, monkeypatch):
    made.put("sites", DEVICE, {"b": [1.0, 2.0]})
    monkeypatch.setattr(store, "_MOST_BYTES", 10)
    assert again(made).get("sites", DEVICE) == {}
    assert caplog.records[0].getMessage().endswith("more than 10")


def test_folders_that_others_may_write_are_refused(made, caplog):
    made.put("sites", DEVICE, {"b": [1.0, 2.0]})
    made.folder.chmod(0o770)
    assert again(made).get("sites", DEVICE) == {}
    assert caplog.records[0].getMessage().endswith("its folder may be written by others (mode 0770)")
    with pytest.raises(PermissionError, match=r"may be written by others \(mode 0770\); set MATMUL_FUSED_CACHE_DIR"):
        made.put("sites", DEVICE, {"b": [1.0, 2.0]})


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file" / "below", tmp_path / "file"):
        with pytest.raises(OSError, match=r"set MATMUL_FUSED_CACHE_DIR to (a folder of yours|one)"):
            store.Store(folder).put("sites", DEVICE, {})


def test_a_write_that_fails_leaves_the_old_file(made, monkeypatch):
    made.put("sites", DEVICE, {"b": [1.0, 2.0]})

    def fails(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="No space left on device; set MATMUL_FUSED_CACHE_DIR"):
        made.put("sites", DEVICE, {"b": [3.0, 4.0]})
    assert again(made).get("sites", DEVICE) == made.get("sites", DEVICE) == {"b": [1.0, 2.0]}
    assert sorted(path.name for path in made.folder.iterdir()) == ["lock", "tune-1.2.3.json"]


def test_processes_that_write_at_once_lose_nothing(made):
    code = (
        "import sys; from pathlib import Path; from matmul_fused import store\n"
        "made = store.Store(Path(sys.argv[1]), '1.2.3')\n"
        "for i in range(20): made.put('sites', 'd', {f'{sys.argv[2]} {i}': [1.0, 1.0]})\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", code, str(made.folder), name]) for name in "abc"]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    assert len(made.get("sites", "d")) == 60
    assert json.loads(made.path.read_text())["version"] == "1.2.3"


# --- tune() and warmup() ---

A, B, BIAS = (draw(shape) for shape in ((9, 65), (65, 33), (33,)))
KERNEL = mf.explain(A, B).kernel
OTHERS = [name for name in KERNELS if name != KERNEL]


@pytest.fixture
def tuned(tmp_path, monkeypatch):
    """A store of this test's own for tune(); the plan forgets it in the end."""
    made = own_store(tmp_path, monkeypatch)
    yield made
    _core._set_tuned([])


def takes(monkeypatch, seconds, others=1.0):
    """Let the kernels take these seconds."""
    called = []

    def race(arms, budget, wait):
        for run in arms.values():
            run(1)
        wait()
        called.append(tuple(arms))
        return {name: seconds.get(name, others) for name in arms}

    monkeypatch.setattr(tuning, "race", race)
    return called


def test_other_bits_need_consent(tuned, monkeypatch):
    called = takes(monkeypatch, {OTHERS[0]: 0.5})
    result = mf.tune([(A, B)])
    assert set(called[0]) >= {KERNEL, OTHERS[0]}
    assert (result[0].kernel, result[0].modelled) == (KERNEL, KERNEL)
    assert tuned.get("kernels", store.device_name("cpu")) == {}
    assert "faster, with other bits: allow_different_bits=True takes it" in repr(result)
    before = mf.matmul_fused(A, B)
    result = mf.tune([(A, B)], allow_different_bits=True)
    assert (result[0].kernel, result[0].modelled) == (OTHERS[0], KERNEL)
    with force_kernel(OTHERS[0]):
        assert same_bits(mf.matmul_fused(A, B), forced := mf.matmul_fused(A, B))
    for _ in range(3):
        assert same_bits(mf.matmul_fused(A, B), forced)
    mf.tune([(A, B)])  # takes it back
    for _ in range(3):
        assert same_bits(mf.matmul_fused(A, B), before)
    assert mf.explain(A, B).tuned is None


def test_cached_plans_are_dropped(tuned):
    """The store's choice runs in calls whose plan was kept before, and no longer than it is there."""
    for _ in range(3):
        before = mf.matmul_fused(A, B)
    with force_kernel("cpu_reference"):
        reference = mf.matmul_fused(A, B)
    assert not same_bits(before, reference)
    assert _core._set_tuned([(mf.explain(A, B).key, "cpu_reference", 1e-6)]) == 1
    for _ in range(3):
        assert same_bits(mf.matmul_fused(A, B), reference)
        assert same_bits(mf.matmul_fused(A, B, alpha=2.0), np.float32(2) * reference)
    assert mf.explain(A, B, alpha=2.0).kernel == "cpu_reference"
    _core._set_tuned([])
    for _ in range(3):
        assert same_bits(mf.matmul_fused(A, B), before)


def test_a_choice_is_for_its_call_alone(tuned):
    _core._set_tuned([(mf.explain(A, B).key, "cpu_reference", 1e-6)])
    explained = mf.explain(A, B)
    assert (explained.kernel, explained.modelled, explained.tuned) == ("cpu_reference", KERNEL, 1e-6)
    assert "1 us, measured by tune" in repr(explained)
    others = [(A, B, BIAS), (A, B, None, "relu"), (A[:8], B), (A.astype("float64"), B.astype("float64"))]
    others += [(np.asfortranarray(A), B)]
    for other in others:
        assert mf.explain(*other).tuned is None
        assert mf.explain(*other).key != explained.key
    with force_kernel(KERNEL):
        assert mf.explain(A, B).kernel == KERNEL


def test_packed_weights_are_refused_by_a_choice_that_cannot(tuned):
    packed = mf.prepack(B)
    _core._set_tuned([(mf.explain(A, packed).key, "cpu_reference", 1e-6)])
    assert mf.explain(A, packed).kernel == KERNEL
    assert mf.explain(A, packed).tuned is None


def test_kernels_that_the_build_lacks_are_left_out(tuned):
    key = mf.explain(A, B).key
    assert _core._set_tuned([(key, "no_such", 1.0)]) == 0
    assert mf.explain(A, B).tuned is None
    for wrong in ([("x", KERNEL, 1.0)], [(key + "0", KERNEL, 1.0)], [(key,)], 3, [3]):
        with pytest.raises((TypeError, ValueError, SystemError)):
            _core._set_tuned(wrong)


def test_hopeless_kernels_are_not_measured(tuned, monkeypatch):
    called = takes(monkeypatch, {})
    big = np.zeros((256, 512), np.float32), np.zeros((512, 256), np.float32)
    result = mf.tune([big])
    assert "cpu_reference" not in called[0]
    assert "not measured: modelled at more than 20 times the model's choice" in repr(result)


def test_noise_changes_nothing(tuned, monkeypatch):
    takes(monkeypatch, {OTHERS[0]: 0.98})
    assert mf.tune([(A, B)], allow_different_bits=True)[0].kernel == KERNEL


def test_a_family_with_one_order_needs_no_consent():
    row = mf.explain(A, B).candidates[0]
    candidates = [
        dataclasses.replace(row, name=name, seconds=1.0, reason=None, same_bits=same)
        for name, same in (("modelled", True), ("same", True), ("other", False))
    ]
    explained = dataclasses.replace(mf.explain(A, B), candidates=tuple(candidates), modelled="modelled")
    seconds = {"modelled": 3.0, "same": 2.0, "other": 1.0}
    assert tuning._choose(explained, seconds, False)[0] == "same"
    assert tuning._choose(explained, seconds, True)[0] == "other"


def test_same_bits_of_the_cpu():
    assert [row.name for row in mf.explain(A, B).candidates if row.same_bits] == [KERNEL]


def test_real_times(tuned):
    """Nothing is replaced: what is asserted does not depend on the times."""
    result = mf.tune([(A, B), {"A": A, "B": B, "bias": BIAS, "activation": "gelu"}], seconds=0.001)
    assert [row.problem for row in result] == [mf.explain(A, B).problem, mf.explain(A, B, BIAS, "gelu").problem]
    assert all(row.seconds > 0 for tuned in result for row in tuned.candidates if "not measured" not in row.why)
    assert [sum(row.why == "" for row in tuned.candidates) for tuned in result] == [1, 1]
    assert repr(result).startswith(f"matmul_fused.tune: 2 problems, stored in {tuned.path}\n")


def test_a_store_that_is_off(tuned, monkeypatch):
    monkeypatch.setattr(store, "enabled", lambda: False)
    takes(monkeypatch, {OTHERS[0]: 0.5})
    assert "not stored: MATMUL_FUSED_TUNE is off" in repr(mf.tune([(A, B)], allow_different_bits=True))
    assert not tuned.folder.exists()
    assert mf.explain(A, B).tuned is None


def test_a_folder_that_cannot_be_used_is_said_first(tuned, monkeypatch):
    called = takes(monkeypatch, {})
    tuned.folder.mkdir(mode=0o777)
    tuned.folder.chmod(0o777)
    with pytest.raises(PermissionError, match="may be written by others"):
        mf.tune([(A, B)])
    assert called == []


WANTED = "a list of calls of matmul_fused: each a tuple of its arguments, or a dict of them by name"


@pytest.mark.parametrize(
    ("problems", "kind", "text"),
    [
        (3, TypeError, f"problems is a int; it must be {WANTED}"),
        ({"A": A, "B": B}, TypeError, f"problems is a dict; it must be {WANTED}"),
        ("AB", TypeError, "problems is a str; it must be"),
        ([A], TypeError, f"problems[0] is a ndarray; problems must be {WANTED}"),
        ([(A, B), {3: A}], TypeError, "problems[1] is a dict; problems must be"),
        ([(A,)], TypeError, "B"),
        ([(A, A)], ValueError, "B"),
    ],
)
def test_bad_problems(tuned, problems, kind, text):
    for function in (mf.tune, mf.warmup):
        with pytest.raises(kind, match=re.escape(text)):
            function(problems)


def test_errors_name_the_problem(tuned):
    for function in (mf.tune, mf.warmup):
        with pytest.raises(ValueError, match="B") as caught:
            function([(A, B), (A, A)])
        assert caught.value.__notes__ == ["in problems[1]"]


@pytest.mark.parametrize("seconds", [0, -1, 61, float("nan"), "1", True])
def test_bad_seconds(seconds):
    with pytest.raises(ValueError, match=r"seconds is .*; it must be a number above 0, up to 60"):
        mf.tune([], seconds=seconds)


def test_nothing_to_tune(tuned):
    assert repr(mf.tune([])).splitlines()[0] == f"matmul_fused.tune: 0 problems, stored in {tuned.path}"


def test_warmup_makes_the_calls():
    out = np.zeros((9, 33), np.float32)
    assert mf.warmup([(A, B), {"A": A, "B": B, "out": out}]) is None
    assert same_bits(out, mf.matmul_fused(A, B))


# --- other processes ---

READS = "import numpy as np, matmul_fused as mf; A = np.ones((3, 5), np.float32); e = mf.explain(A, A.T)"


def child(folder, code, **environment):
    environment = {"MATMUL_FUSED_CACHE_DIR": str(folder), "MATMUL_FUSED_TUNE": "", **environment}
    done = subprocess.run(
        [sys.executable, "-c", f"{READS}; {code}"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.strip(), done.stderr


def stored(folder, device=None):
    ones = np.ones((3, 5), np.float32)
    device = device or store.device_name("cpu")
    store.Store(folder).put("kernels", device, {mf.explain(ones, ones.T).key: ["cpu_reference", 1e-6]})


def test_other_processes_read_the_store_at_import(tmp_path):
    stored(tmp_path)
    assert child(tmp_path, "print(e.kernel, e.tuned)") == ("cpu_reference 1e-06", "")
    assert child(tmp_path, "print(e.tuned)", MATMUL_FUSED_TUNE="off") == ("None", "")
    assert child(tmp_path / "none", "print(e.tuned)") == ("None", "")
    text, said = child(tmp_path, "print(e.tuned)", MATMUL_FUSED_TUNE="on", MATMUL_FUSED_LOG="warning")
    assert text == "1e-06"
    assert said.strip() == 'matmul_fused: WARNING: MATMUL_FUSED_TUNE=on: ignored, the one value is "off"'


def test_the_store_lies_where_xdg_says(tmp_path):
    stored(tmp_path / "matmul_fused")
    code = "print(e.tuned)"
    assert child("", code, XDG_CACHE_HOME=str(tmp_path))[0] == "1e-06"
    assert child("", code, XDG_CACHE_HOME="relative", HOME=str(tmp_path))[0] == "None"
    stored(tmp_path / ".cache" / "matmul_fused")
    assert child("", code, XDG_CACHE_HOME="relative", HOME=str(tmp_path))[0] == "1e-06"


def test_the_store_of_another_cpu_is_not_used(tmp_path):
    stored(tmp_path, "cpu: another; avx9")
    assert child(tmp_path, "print(e.tuned)") == ("None", "")


@pytest.mark.parametrize("row", ['["cpu_reference"]', "3", "[3, 1.0]", '["cpu_reference", "x"]', '["x", NaN]'])
def test_rows_that_make_no_sense_are_left_out(tmp_path, row):
    stored(tmp_path)
    path = store.Store(tmp_path).path
    path.write_text(re.sub(r"\[\s*\"cpu_reference\",\s*1e-06\s*\]", row, path.read_text()))
    assert row in path.read_text()
    assert child(tmp_path, "print(e.tuned)") == ("None", "")


def test_a_damaged_store_is_said_once(tmp_path):
    stored(tmp_path)
    store.Store(tmp_path).path.write_text("{")
    assert child(tmp_path, "print(e.tuned)") == ("None", "")
    text, said = child(tmp_path, "print(e.tuned)", MATMUL_FUSED_LOG="warning")
    assert text == "None"
    assert len(said.strip().splitlines()) == 1
    assert "is ignored: it is damaged" in said


def test_threads_and_children_may_tune(tmp_path):
    """Two threads tune while a third calls, then children do."""
    code = """
import os, threading
C = np.ones((5, 7), np.float32)
def work(): mf.tune([(A, C), (A, A.T)], seconds=0.001, allow_different_bits=True)
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads: thread.start()
while any(thread.is_alive() for thread in threads): assert (mf.matmul_fused(A, C) == 5).all()
for _ in range(2):
    child = os.fork()
    if not child:
        work()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
print('done')
"""
    path = tmp_path / "code.py"
    path.write_text(code)
    text, said = child(tmp_path / "cache", f"exec(open({str(path)!r}).read())")
    assert (text, said) == ("done", "")


def test_the_page_runs(tuned, capsys, monkeypatch):
    takes(monkeypatch, {})
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "tuning.md").read_text(), re.DOTALL)
    exec(compile(code, "docs/tuning.md", "exec"), {})
    assert capsys.readouterr().out.startswith("matmul_fused.tune: 2 problems, stored in ")
