"""matmul_fused.torch.measure: which of two forms is faster, by a clock that the test sets, and what is kept."""

import logging

import pytest

torch = pytest.importorskip("torch")

from matmul_fused import store  # noqa: E402
from matmul_fused.torch import measure  # noqa: E402
from support import own_store  # noqa: E402

make_fx = torch.fx.experimental.proxy_tensor.make_fx


class Clock:
    """Counts the seconds that its calls are said to take."""

    def __init__(self):
        self.now = 0.0
        self.calls = []

    def __call__(self):
        return self.now

    def form(self, name, seconds, first=None):
        def call():
            self.now += first if first is not None and name not in self.calls else seconds
            self.calls.append(name)

        return call


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    """A store of this test's own, and nothing known."""
    made = own_store(tmp_path, monkeypatch)
    measure.forget()
    yield made
    measure.forget()


def decide(ours, theirs, key="site", budget=0.05, clock=None, first=None):
    clock = clock or Clock()
    return measure.decide(
        key, clock.form("ours", ours, first), clock.form("theirs", theirs), clock=clock, budget=budget
    )


def test_the_faster_form_wins():
    assert decide(0.001, 0.002, "a") == measure.Decision(True, pytest.approx(0.001), pytest.approx(0.002), "")
    lost = decide(0.002, 0.001, "b")
    assert lost == measure.Decision(False, pytest.approx(0.002), pytest.approx(0.001), "left: slower")


@pytest.mark.parametrize(("ours", "why"), [(0.00094, ""), (0.00099, "left: no faster"), (0.00101, "left: slower")])
def test_a_tie_is_left(ours, why):
    decision = decide(ours, 0.001)
    assert (decision.fused, decision.why) == (not why, why)


def test_the_first_call_does_not_count():
    assert decide(0.001, 0.002, first=0.02).fused


@pytest.mark.parametrize("seconds", [1e-6, 1e-4, 0.003])
def test_within_the_budget(seconds):
    clock = Clock()
    decide(seconds, seconds, clock=clock)
    assert clock.now <= 0.05
    assert min(clock.calls.count("ours"), clock.calls.count("theirs")) > 2


def test_long_calls_run_twice_each():
    clock = Clock()
    assert decide(1.0, 2.0, clock=clock).fused
    assert clock.calls == ["theirs", "ours", "theirs", "ours"]


@pytest.mark.timeout(60)  # a deadlock
def test_a_site_inside_of_a_form():
    """It is decided in the form's first call; what that takes is none of the form's time, nor of its budget."""
    clock, inner = Clock(), []

    def outer(name, seconds):
        form = clock.form(name, seconds)

        def call():
            inner.append(decide(0.002, 0.001, "inner", clock=clock))
            form()

        return call

    made = measure.decide("outer", outer("new", 0.001), outer("old", 0.002), clock=clock, budget=0.05)
    assert made == measure.Decision(True, pytest.approx(0.001), pytest.approx(0.002), "")
    assert min(clock.calls.count("new"), clock.calls.count("old")) > 2
    assert all(found is inner[0] for found in inner)
    assert set(clock.calls[: clock.calls.index("old")]) == {"ours", "theirs"}
    assert not {"ours", "theirs"} & set(clock.calls[clock.calls.index("old") :])


def test_saved_tensor_hooks_see_no_timing():
    seen = []
    x = torch.ones(2, requires_grad=True)

    def form():
        return torch.autograd.grad(x.exp().sum(), x)

    with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t) or t, lambda t: seen.append(t) or t):
        measure.decide("site", form, form, clock=Clock())
        assert seen == []
        form()
    assert len(seen) == 2


@pytest.mark.parametrize(("threads", "slowed", "fused"), [(2, 0, True), (2, 15e-6, False), (1, 15e-6, True)])
def test_between_calls_of_torch(monkeypatch, threads, slowed, fused):
    """In eager code ours pays for what theirs takes longer around it; with one thread there is nobody to wait for."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(measure, "_other_operators", lambda device: lambda: None)  # the clock would not see them
    clock, last = Clock(), []

    def call(name, seconds):
        def run():
            clock.now += seconds + (slowed if last[-1:] not in ([], [name]) and threads > 1 else 0)
            last.append(name)

        return run

    made = measure.decide("site", call("ours", 1e-5), call("theirs", 2e-5), clock=clock, eager=True)
    assert made.fused is fused
    if not slowed:
        assert (made.ours, made.theirs) == (pytest.approx(1e-5), pytest.approx(2e-5))


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize(("seconds", "fused"), [(1e-5, False), (0.002, True)])
def test_between_other_operators(monkeypatch, seconds, fused, device):
    """In eager code a short form starts with the caches full of others' code; a long one does not notice."""
    on_gpu = device != "cpu"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8 if on_gpu else 1)
    monkeypatch.setattr(measure, "_wait_for", lambda device: lambda: None)
    monkeypatch.setattr(measure.store, "enabled", lambda: False)
    clock, last, asked = Clock(), ["theirs"], []
    clock.now = -1.0 if on_gpu else 0.0

    def call(name, seconds, cold):
        def run():
            clock.now = max(clock.now, 0.0)  # the first call on a GPU takes a second
            clock.now += cold if last[-1] == "others" else seconds
            last.append(name)

        return run

    def others(device):
        asked.append(str(device))
        return call("others", 1e-4, 1e-4)

    monkeypatch.setattr(measure, "_other_operators", others)
    ours, theirs = call("ours", seconds, 3 * seconds), call("theirs", 2 * seconds, 2 * seconds)
    made = measure.decide("site", ours, theirs, device=device, clock=clock, eager=True)
    assert asked == ([] if fused else [device])
    assert made.fused is fused
    assert (made.ours, made.theirs) == (pytest.approx(seconds * (1 if fused else 3)), pytest.approx(2 * seconds))
    assert ("others" in last) is not fused


def test_other_operators_are_torchs():
    calls = []

    class Seen(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            calls.append(function)
            return function(*args, **(kwargs or {}))

    run = measure._other_operators(torch.device("cpu"))
    with Seen():
        run()
    assert len(set(calls)) > 8


def test_a_site_is_measured_once(kept):
    clock = Clock()
    first = decide(0.001, 0.002, clock=clock)
    calls = len(clock.calls)
    assert decide(0.001, 0.002, clock=clock) is first
    measure.forget()  # another process: from the file
    assert decide(0.001, 0.002, clock=clock) == first
    assert len(clock.calls) == calls
    measure.forget()
    kept.path.unlink()
    store.default()._read = None
    decide(0.001, 0.002, clock=clock)
    assert len(clock.calls) > calls


@pytest.mark.parametrize("kept_text", [[1.0], [0.0, 1.0], ["x", 1.0], 3, [float("nan"), 1.0]])
def test_nonsense_of_the_file_is_measured_again(kept, kept_text):
    kept.put("sites", store.device_name("cpu"), {"site": kept_text})
    assert decide(0.001, 0.002).ours == pytest.approx(0.001)


def test_a_store_that_is_off(kept, monkeypatch):
    monkeypatch.setattr(store, "enabled", lambda: False)
    assert decide(0.001, 0.002).fused
    assert not kept.folder.exists()


def test_a_store_that_cannot_be_written(kept, caplog, monkeypatch):
    monkeypatch.setattr(measure, "_complained", False)
    kept.folder.write_text("")
    with caplog.at_level(logging.WARNING):
        assert decide(0.001, 0.002, "a").fused
        assert not decide(0.002, 0.001, "b").fused
    lines = [record.getMessage() for record in caplog.records if "not kept for other processes" in record.getMessage()]
    assert len(lines) == 1
    assert decide(0.002, 0.001, "a").fused  # known in this process


def test_a_refusal_of_ours_leaves_the_site(kept):
    def refuses():
        raise NotImplementedError("no kernel takes this call")

    clock = Clock()
    decision = measure.decide("site", refuses, clock.form("theirs", 0.001), clock=clock)
    assert decision == measure.Decision(False, None, None, "left: no kernel takes this call")
    assert kept.get("sites", store.device_name("cpu")) == {}


def test_other_errors_pass_and_nothing_is_known():
    def fails():
        raise RuntimeError("shapes")

    with pytest.raises(RuntimeError, match="shapes"):
        measure.decide("site", lambda: None, fails)
    assert decide(0.001, 0.002).fused


def test_keys():
    def key(**changes):
        site = {"m": 5, "k": 8, "n": 12, "dtype": torch.float32, "device": torch.device("cpu"), **changes}
        return measure.site_key("linear", "gelu", **site)

    assert key(m=5) == key(m=8)
    assert len({key(), key(m=9), key(k=9), key(n=9), key(dtype=torch.bfloat16), key(more="grad")}) == 6
    assert [measure.rows(m) for m in (0, 1, 2, 3, 4, 5, 1024, 1025)] == [0, 1, 2, 4, 4, 8, 1024, 2048]


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
def test_nothing_is_timed_inside_traces():
    x = torch.ones(2)
    assert measure.why_not(x) is None
    assert measure.why_not(torch.ones(2, device="meta")) == "not measured: a tensor without memory"
    said = []

    def f(y):
        said.append(measure.why_not(y))
        return y

    torch.func.vmap(f)(x)
    torch.jit.trace(f, x, check_trace=False)
    make_fx(f)(x)
    with torch._subclasses.fake_tensor.FakeTensorMode():
        f(torch.ones(2))
    assert None not in said
    assert len(said) == 4
