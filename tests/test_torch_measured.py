"""when="measured": which form of a site runs, by a clock that the test sets; nothing here is timed."""

import copy
import pickle
import types
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

from matmul_fused import _core  # noqa: E402
from matmul_fused.torch import Record, functional, measure, modules, patch, report, rewriting, unpatch  # noqa: E402
from support import own_store  # noqa: E402

nn = torch.nn
make_fx = torch.fx.experimental.proxy_tensor.make_fx


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    """A store of this test's own, and nothing known."""
    made = own_store(tmp_path, monkeypatch)
    measure.forget()
    yield made
    measure.forget()


# --- patched models ---

X = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))


class Gated(nn.Module):
    """The MLP of Llama."""

    def __init__(self, bias=False):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(8, 12, bias=bias), nn.Linear(8, 12, bias=False)
        self.down_proj, self.act_fn = nn.Linear(12, 8), nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), Gated()).eval()


@pytest.fixture
def race(monkeypatch):
    """What the forms are said to take; race.run counts the times that a site was measured."""

    class Race:
        ours, theirs, run = 0.001, 0.002, 0

    def fake(ours, theirs, *_):
        Race.run += 1
        assert torch.is_grad_enabled() == Race.grad
        theirs()
        ours()
        return Race.ours, Race.theirs

    Race.grad = True
    monkeypatch.setattr(measure, "_race", fake)
    return Race


def fused_calls(monkeypatch):
    """The calls of the extension from now on."""
    calls = []

    def counted(real):
        def call(*arguments, **keywords):
            calls.append(arguments)
            return real(*arguments, **keywords)

        return call

    real = modules._core
    core = types.SimpleNamespace(matmul_fused=counted(real.matmul_fused), prepack=real.prepack)
    monkeypatch.setattr(modules, "_core", core)
    monkeypatch.setattr(functional, "_linear", counted(functional._linear))
    return calls


def test_measured_is_the_default(race):
    made = model()
    wanted = made(X)
    first = patch(made)
    assert [record.why for record in first] == [
        "0 + 1, not measured yet",
        "gate_proj + up_proj + act_fn, not measured yet",
    ]
    assert race.run == 0
    race.grad = False
    with torch.no_grad():
        for _ in range(3):
            assert torch.allclose(made(X), wanted, atol=1e-5)
    assert race.run == 2
    assert report(made) == [
        Record("", "linear", "relu", True, "0 + 1, M <= 8, float32, cpu", 0.001, 0.002),
        Record("2", "gate/up", "silu", True, "gate_proj + up_proj + act_fn, M <= 8, float32, cpu", 0.001, 0.002),
    ]
    lines = repr(report(made)).splitlines()
    assert lines[0] == "matmul_fused.torch: 2 fused"
    assert lines[1].split() == ["site", "form", "activation", "ours", "theirs", "why"]
    assert "1 ms  2 ms" in lines[2]


def test_what_lost_is_left_and_said(race, monkeypatch):
    race.ours, race.grad = 0.003, False
    made = model()
    wanted = made(X)
    patch(made)
    with torch.no_grad():
        made(X)
        calls = fused_calls(monkeypatch)
        assert torch.equal(made(X), wanted)
    assert calls == []
    assert [record.fused for record in report(made)] == [False, False]
    assert report(made)[0].why == "left: slower, 0 + 1, M <= 8, float32, cpu"
    assert all(part._packed._packed is None for part in made.modules() if hasattr(part, "_packed"))
    assert "left" in repr(report(made)).splitlines()[2]
    unpatch(made)
    assert type(made[0]) is nn.Linear
    assert [vars(part).keys() for part in made.modules()] == [vars(part).keys() for part in model().modules()]


def test_always_and_never_time_nothing(race):
    for when, fused in (("always", True), ("never", False)):
        made = model()
        patch(made, when=when)
        with torch.no_grad():
            made(X)
        assert [record.fused for record in report(made)] == [fused, fused]
        assert [record.ours for record in report(made)] == [None, None]
    assert race.run == 0


def test_rows_go_by_powers_of_two(race):
    race.grad = False
    made = model()[:2]
    patch(made)
    with torch.no_grad():
        for rows in (5, 6, 7, 8, 5):
            made(X[:1].expand(rows, 8))
        assert race.run == 1
        made(X[:1].expand(9, 8))
        made(X[:1].expand(2, 3, 8))
        made(X[:1].expand(0, 8))
    assert race.run == 2
    assert [record.why.split(", ")[1] for record in report(made)] == ["M <= 8", "M <= 16"]


def test_equal_sites_are_measured_once(race):
    race.grad = False
    made = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU()).eval()
    patch(made)
    with torch.no_grad():
        made(X)
    assert race.run == 1
    assert [record.ours for record in report(made)] == [0.001, 0.001]


@pytest.mark.parametrize("ours", [0.001, 0.003])
@pytest.mark.parametrize("bias", [False, True])
def test_with_gradients_both_ways_are_timed(race, ours, bias):
    race.ours = ours
    made = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), Gated(bias))
    plain = copy.deepcopy(made)
    seen = []
    patch(made)
    made[0].weight.register_hook(seen.append)
    x = X.clone().requires_grad_()
    result = made(x)
    assert race.run == 2
    assert seen == []
    assert made[0].weight.grad is None
    result.sum().backward()
    assert len(seen) == 1
    y = X.clone().requires_grad_()
    plain(y).sum().backward()
    assert torch.allclose(x.grad, y.grad, atol=1e-5)
    for a, b in zip(made.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, atol=1e-4)
    assert all(record.why.endswith("float32, cpu, with gradients") for record in report(made))
    race.grad = False
    with torch.no_grad():
        made(X)
    assert race.run == 4


@pytest.mark.timeout(60)  # a deadlock
@pytest.mark.parametrize("ours", [0.001, 0.003])
def test_checkpoints(race, ours):
    """They run the model again where a backward pass asks for what was saved."""
    race.ours = ours
    made = model().train()
    wanted = torch.autograd.grad(made(X).sum(), list(made.parameters()))
    patch(made)
    result = torch.utils.checkpoint.checkpoint(made, X, use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(result.sum(), list(made.parameters())), wanted)
    assert race.run == 2


def test_hooks_of_other_children_see_one_call(race):
    made = Gated()
    seen = []
    patch(made)
    made.down_proj.register_forward_hook(lambda *_: seen.append(1))
    made(X)
    assert race.run == 1
    assert len(seen) == 1


@pytest.mark.parametrize("hooked", [False, True])
def test_a_gate_is_timed_with_its_module(monkeypatch, hooked):
    """With what modules cost; alone where a hook would see it."""
    columns = []

    def race(ours, theirs, *_):
        both = ours()
        columns.append([(both[-1] if isinstance(both, tuple) else both).shape[-1], theirs().shape[-1]])
        return 0.001, 0.002

    monkeypatch.setattr(measure, "_race", race)
    made = Gated().eval()
    patch(made)
    if hooked:
        made.down_proj.register_forward_hook(lambda *_: None)
    with torch.no_grad():
        made(X)
    assert columns == [[12, 12] if hooked else [8, 8]]


def test_compiled_models_are_not_timed(race):
    made = model()
    wanted = made(X)
    patch(made)
    torch._dynamo.reset()
    compiled = torch.compile(made, backend="aot_eager", fullgraph=True)
    assert torch.allclose(compiled(X), wanted, atol=1e-5)
    assert race.run == 0
    assert [record.fused for record in report(made)] == [True, True]


@pytest.mark.parametrize("ours", [0.001, 0.003])
def test_traces_run_the_form_decided_before(race, monkeypatch, ours):
    made = model()[:2]
    patch(made)
    race.grad = False
    with torch.no_grad():
        traced = make_fx(made)(X)
        assert report(made)[0].why == "0 + 1, not measured: inside a trace"
        assert "matmul_fused" in traced.code
        race.ours = ours
        made(X)
        again = make_fx(made)(X.expand(3, 5, 8))
        assert ("matmul_fused" in again.code) == (ours < race.theirs)
        torch._dynamo.reset()
        graphs = []

        def keep(graph, inputs):
            graphs.append(graph.code)
            return graph

        assert torch.allclose(torch.compile(made, backend=keep, fullgraph=True)(X), made(X), atol=1e-5)
        assert ("matmul_fused" in graphs[0]) == (ours < race.theirs)
    assert race.run == 1


def test_under_autocast(race):
    race.grad = False
    made = model()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        wanted = made(X)
        patch(made)
        assert torch.allclose(made(X), wanted, atol=0.05)
        assert made(X).dtype == wanted.dtype
    assert race.run == 2
    assert all("autocast to bfloat16" in record.why for record in report(made))


@pytest.mark.parametrize("x", [X[:, :3], X.double(), X.sum(), 3], ids=["width", "dtype", "number", "int"])
def test_wrong_operands_get_the_words_of_a_form(x):
    made, fused = model(), model()
    patch(fused, when="always")
    words = set()
    for other in (made, fused):
        with torch.no_grad(), pytest.raises((TypeError, RuntimeError, ValueError)) as caught:
            other(x)
        words.add(str(caught.value))
    patch(made)
    with torch.no_grad(), pytest.raises((TypeError, RuntimeError, ValueError)) as caught:
        made(x)
    assert str(caught.value) in words
    assert all("not measured" in record.why for record in report(made))


def test_a_call_that_ours_refuses_is_left(race, monkeypatch):
    def refuses(*_):
        raise NotImplementedError("no kernel takes this call")

    monkeypatch.setattr(measure, "_race", refuses)
    made = model()[:2]
    wanted = made(X)
    patch(made)
    assert torch.equal(made(X), wanted)
    assert report(made) == [
        Record(
            "", "linear", "relu", False, "left: no kernel takes this call, 0 + 1, M <= 8, float32, cpu, with gradients"
        )
    ]


def test_copies_and_pickles_measure_for_themselves(race):
    race.grad = False
    made = model()
    wanted = made(X)
    patch(made)
    with torch.no_grad():
        made(X)
        for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
            assert report(other)[0].why == "0 + 1, not measured yet"
            assert torch.allclose(other(X), wanted, atol=1e-5)
            assert report(other)[0].ours == 0.001
            unpatch(other)
            assert torch.equal(other(X), wanted)
    assert race.run == 2


def test_real_times():
    """Nothing is replaced: either form may win, and both are right."""
    made = model()
    wanted = made(X)
    patch(made)
    with torch.no_grad():
        assert torch.allclose(made(X), wanted, atol=1e-5)
    assert all(record.ours > 0 and record.theirs > 0 for record in report(made))


def test_threads_measure_a_site_once(race):
    race.grad = False
    made = model()
    wanted = made(X)
    patch(made)

    def call(_):
        with torch.no_grad():
            return torch.allclose(made(X), wanted, atol=1e-5)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(call, range(40)))
    assert race.run == 2


# --- new forwards ---


class Halves(nn.Module):
    """The MLP of Phi-3: one weight for gate and up, which needs a new forward."""

    def __init__(self):
        super().__init__()
        self.gate_up_proj, self.down_proj = nn.Linear(8, 24, bias=False), nn.Linear(12, 8, bias=False)

    def forward(self, hidden_states):
        gate, up = self.gate_up_proj(hidden_states).chunk(2, dim=-1)
        return self.down_proj(up * nn.functional.silu(gate))


def halves():
    torch.manual_seed(0)
    return Halves().eval()


@pytest.mark.parametrize("ours", [0.001, 0.003])
def test_a_new_forward_is_measured_as_a_whole(race, monkeypatch, ours):
    race.ours, race.grad = ours, False
    made = halves()
    wanted = made(X)
    (record,) = patch(made)
    assert (record.fused, record.why.rpartition(", ")[2]) == (True, "not measured yet")
    with torch.no_grad():
        assert torch.allclose(made(X), wanted, atol=1e-5)
        assert torch.allclose(made(hidden_states=X), wanted, atol=1e-5)
    assert race.run == 1
    (record,) = report(made)
    assert (record.form, record.fused, record.ours, record.theirs) == ("packed", ours < 0.002, ours, 0.002)
    calls = []
    core = types.SimpleNamespace(matmul_fused=lambda *a, **k: calls.append(a) or _core.matmul_fused(*a, **k))
    monkeypatch.setattr(rewriting, "_core", core)
    with torch.no_grad():
        assert torch.allclose(made(X), wanted, atol=1e-5)
    assert len(calls) == (ours < 0.002)
    assert (vars(made.gate_up_proj)[rewriting._PACKED]._packed is None) == (ours > 0.002)
    unpatch(made)
    assert vars(made).keys() == vars(halves()).keys()
    assert vars(made.gate_up_proj).keys() == vars(halves().gate_up_proj).keys()


def test_in_training_the_old_forward_runs(race):
    made = halves().train()
    wanted = made(X)
    patch(made)
    assert torch.equal(made(X), wanted)
    made.eval()
    assert torch.equal(made(X), wanted)  # gradients are recorded
    assert race.run == 0
    (record,) = report(made)
    assert "not measured: in training" in record.why


@pytest.mark.parametrize("make", [model, halves], ids=["model", "new forward"])
def test_without_memory(race, make):
    made = make().to("meta")
    patch(made)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            result = made(X.to("meta"))
        assert (result.is_meta, result.shape) == (True, X.shape)
    assert race.run == 0


class Outer(nn.Module):
    """A module with a new forward that has another site."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.inner = nn.Linear(8, 12), nn.Linear(12, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def forward(self, x):
        return self.inner(self.fc2(nn.functional.gelu(self.fc1(x))))


@pytest.mark.timeout(60)  # a deadlock
def test_a_site_inside_of_a_module_that_is_measured():
    made = Outer().eval()
    wanted = made(X)
    patch(made)
    with torch.no_grad():
        assert torch.allclose(made(X), wanted, atol=1e-5)
    records = report(made)
    assert [record.site for record in records] == ["", "inner"]
    assert all(record.ours > 0 and record.theirs > 0 for record in records)


def test_parts_with_hooks_are_not_run_twice(race):
    made = halves()
    patch(made)
    seen = []
    made.down_proj.register_forward_hook(lambda *_: seen.append(1))
    with torch.no_grad():
        made(X)
    assert seen == [1]
    assert race.run == 0


def test_copies_of_a_measured_new_forward(race):
    race.grad = False
    made = halves()
    wanted = made(X)
    patch(made)
    with torch.no_grad():
        for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
            assert torch.allclose(other(X), wanted, atol=1e-5)
            unpatch(other)
            assert torch.equal(other(X), wanted)
