"""The fuzzer of `make fuzz` judges rightly: it passes the library, and sees each kind of bug that is put into it here.

Bugs in the C sources themselves are planted by `make sanitize` (tests/sanitize/planted.py); here they need only fit.
"""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from random import Random

import numpy as np
import pytest

import matmul_fused as mf
from fuzz import around, hostile, refuse
from fuzz.draw import Call
from fuzz.worker import Player, describe, leaked
from fuzz.world import CALLS, World
from matmul_fused import _core
from sanitize import planted
from sanitize.toolchain import ROOT

WORLDS = 12
real = mf.matmul_fused


@pytest.fixture(autouse=True)
def quiet():
    """Calls of the fuzzer overflow and use what is deprecated, on purpose; kernels and threads are the process's."""
    threads = mf.get_num_threads()
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    _core.force_kernel(None)
    mf.set_num_threads(threads)


def play(seed, worlds=WORLDS):
    player = Player(seed)
    for number in range(worlds):
        player.enter(number)
        for index in range(number * CALLS, (number + 1) * CALLS):
            player.play(index)
        player.world.leave()
    return player


def test_the_library_passes(sweep_seed):
    player = play(sweep_seed)
    assert player.made["valid"] > WORLDS * CALLS * 0.9
    assert player.made["refused"] > WORLDS * CALLS * 0.15
    assert min(player.made["explain"], player.made["prepack"]) > 0
    assert len(+player.rows) > len(player.rows) * 0.8
    assert len(player.rows) >= len(refuse.ROWS + hostile.ROWS + around.ROWS)


def test_a_call_follows_from_seed_and_number():
    texts = []
    for _ in range(2):
        player = Player(5)
        player.enter(3)
        player.random.seed(5 << 40 | 3 * CALLS + 7)
        texts.append(describe(player.world, refuse.Call(player.world, player.random)))
        player.world.leave()
    assert texts[0] == texts[1]
    worlds = [World(5, 3), World(5, 3)]
    assert worlds[0].a[0].array.tobytes() == worlds[1].a[0].array.tobytes()


def one_element_wrong(*arguments, **keywords):
    result = real(*arguments, **keywords)
    if isinstance(result, np.ndarray) and result.size > 40:
        result[(-1,) * result.ndim] += 2
    return result


def keeps_a_reference(*arguments, kept=[], **keywords):  # noqa: B006
    kept.append(arguments[:1])
    return real(*arguments, **keywords)


def writes_when_it_refuses(*arguments, **keywords):
    try:
        return real(*arguments, **keywords)
    except ValueError:
        if isinstance(keywords.get("out"), np.ndarray) and keywords["out"].flags.writeable:
            keywords["out"][...] = 1
        raise


def writes_beside_the_output(*arguments, **keywords):
    result = real(*arguments, **keywords)
    out = keywords.get("out")
    if isinstance(out, np.ndarray) and out.base is not None and out.base.ndim == 1:
        out.base[...] = 3
    return result


def writes_an_input(*arguments, **keywords):
    result = real(*arguments, **keywords)
    if arguments and isinstance(arguments[0], np.ndarray) and arguments[0].flags.writeable:
        arguments[0][...] = 1
    return result


def leaves_an_element(*arguments, **keywords):
    result = real(*arguments, **keywords)
    out = keywords.get("out")
    if isinstance(out, np.ndarray) and out.size:
        out[(0,) * out.ndim] = np.nan
    return result


def raises_something_else(*arguments, **keywords):
    try:
        return real(*arguments, **keywords)
    except BufferError as error:
        raise RuntimeError(str(error)) from None


def accepts_everything(*arguments, **keywords):
    try:
        return real(*arguments, **keywords)
    except TypeError:
        return None


def returns_another_object(*arguments, **keywords):
    result = real(*arguments, **keywords)
    return result.copy() if isinstance(result, np.ndarray) and "out" in keywords else result


BUGS = {
    one_element_wrong: r"^out\[.*\] is .*, not ",
    keeps_a_reference: "reference counts changed",
    writes_when_it_refuses: "was written",
    writes_beside_the_output: "^out|memory beside an output",
    writes_an_input: "an input of kind .* was written|^out|^preactivation",
    leaves_an_element: "^out.* is .*nan",
    raises_something_else: "gave RuntimeError",
    accepts_everything: "was not refused",
    returns_another_object: "another object returned",
}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_is_seen(bug, monkeypatch):
    monkeypatch.setattr(mf, "matmul_fused", bug)
    with pytest.raises(AssertionError, match=BUGS[bug]):
        play(1)


def disturb(row, enough):
    """Calls of some worlds, made again under one row until it applied often enough."""
    rng, times = Random(3), 0
    for number in range(400):
        world = World(4, number)
        world.enter()
        for _ in range(20):
            times += row(world, Call(world, rng), rng)
        world.leave()
        if times >= enough:
            return
    raise RuntimeError(f"{row.__name__} applied {times} times")


@pytest.mark.parametrize("row", around.ROWS, ids=lambda row: row.__name__)
def test_what_happens_around_a_call_changes_nothing(row):
    modules, threads = dict(sys.modules), mf.get_num_threads()
    disturb(row, 5)
    mf.set_num_threads(threads)
    kept = {name for name in modules if name.partition(".")[0] in ("torch", "jax", "cupy", "ml_dtypes", "matmul_fused")}
    assert {name: sys.modules.get(name) for name in kept} == {name: modules[name] for name in kept}
    assert os.sched_getaffinity(0) == around.CPUS


def escapes_its_affinity(*arguments, **keywords):
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), around.CPUS)
    return real(*arguments, **keywords)


def leaves_another_float_mode(*arguments, **keywords):
    result = real(*arguments, **keywords)
    around.float_mode(0x5F80)
    return result


def rounds_as_the_thread_does(*arguments, **keywords):
    down = around.float_mode() & 0x6000 == 0x2000
    result = real(*arguments, **keywords)
    if down and isinstance(result, np.ndarray) and result.size:
        result[(0,) * result.ndim] -= 1
    return result


def leaves_its_number_of_threads(*arguments, **keywords):
    result = real(*arguments, **keywords)
    _core._use_num_threads(7)
    return result


def asks_a_mock(*arguments, **keywords):
    getattr(sys.modules.get("torch"), "Tensor", None) is None or sys.modules["torch"].Tensor.mro()
    return real(*arguments, **keywords)


def keeps_modules(*arguments, kept=[], **keywords):  # noqa: B006
    kept.append(sys.modules.get("torch.nn.functional"))
    return real(*arguments, **keywords)


def reads_what_it_wrote(*arguments, **keywords):
    result = real(*arguments, **keywords)
    others = [keywords[name] for name in ("C", "multiply") if isinstance(keywords.get(name), np.ndarray)]
    if isinstance(result, np.ndarray) and any(np.may_share_memory(other, result) for other in others):
        result += 1
    return result


AROUND = {
    "affinity": (escapes_its_affinity, "left the CPUs"),
    "float_modes": (leaves_another_float_mode, "float mode .* became"),
    "float_modes ": (rounds_as_the_thread_does, "^out"),
    "num_threads": (leaves_its_number_of_threads, "changed the number"),
    "mocked": (asks_a_mock, "has no attribute"),
    "callables": (keeps_modules, "references to modules were kept"),
    "interleaved": (reads_what_it_wrote, "has other values"),
}


@pytest.mark.parametrize("name", AROUND)
def test_a_bug_around_a_call_is_seen(name, monkeypatch):
    bug, text = AROUND[name]
    if name == "affinity" and len(around.CPUS) < 2:
        pytest.skip("one CPU")
    row = getattr(around, name.strip())
    monkeypatch.setattr(mf, "matmul_fused", bug)
    usual = around.float_mode()
    try:
        with pytest.raises((AssertionError, AttributeError), match=text):
            disturb(row, 100)
    finally:
        around.float_mode(usual)
        _core._use_num_threads(None)


def test_a_pickle_that_is_taken_wrongly_is_seen(monkeypatch):
    weight = mf.prepack(np.ones((3, 4), np.float32))
    for bug, wrong in (
        (lambda *arguments: weight.nonsense, around.Wrong),
        (lambda *arguments: type("Odd", (), {"shape": (3, 4), "dtype": "int8"})(), AssertionError),
    ):
        bug.__module__, bug.__qualname__ = "matmul_fused._core", "_unpickle_packed"
        monkeypatch.setattr(_core, "_unpickle_packed", bug)
        with pytest.raises(wrong):
            disturb(around.pickles, 20)


def test_a_process_reports_its_finding(tmp_path):
    """The worker's report names the call, here of one that prints."""
    code = (
        "import sys, matmul_fused as mf\n"
        "from fuzz import worker\n"
        "real = mf.matmul_fused\n"
        "mf.matmul_fused = lambda *a, **k: (print('here') or real(*a, **k))\n"
        "worker.main()"
    )
    status = tmp_path / "status"
    status.write_bytes(bytes(8))
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-u", "-c", code, "1", "0", "1", "1000", str(status)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})
    assert done.returncode == 1, done.stderr
    failure = json.loads(done.stdout.strip().split("\n")[-1])["failure"]
    assert "something was printed: b'here" in failure["error"]
    assert failure["call"] == int.from_bytes(status.read_bytes(), sys.byteorder) == CALLS - 1


def test_what_leaks_is_seen():
    rng = Random(1)
    steady = [(100 * i, 10**7 + rng.randrange(10**6)) for i in range(1000)]
    assert abs(leaked(steady)[0]) < 10**5
    growing = [(calls, live + 8 * calls) for calls, live in steady]
    grown, since = leaked(growing)
    assert since > 100 * 370
    assert grown > 8 * since - 10**5


@pytest.mark.parametrize("bug", planted.BUGS, ids=lambda bug: bug.name)
def test_planted_bugs_fit_the_sources(bug):
    assert planted.text_with(bug, ROOT) != (ROOT / bug.file).read_text()
