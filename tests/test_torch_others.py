"""patch and what other code does: measuring disturbs nothing; hooks, wrappers, threads, pickles, reports of parts."""

import copy
import functools
import pickle
import threading

import pytest

torch = pytest.importorskip("torch")

from matmul_fused.torch import FusedLinear, measure, patch, report, unpatch  # noqa: E402
from support import own_store  # noqa: E402

nn, F = torch.nn, torch.nn.functional
X = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))


class Two(nn.Module):
    """Layers without a forward."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc1, self.act, self.fc2 = nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8)
        self.register_buffer("calls", torch.zeros(()))
        self.scale, self.branch, self.log, self.child = 1.0, True, [], Child()


class Child(nn.Module):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return x


class Called(Two):
    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x)))


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.gate, self.up, self.down, self.act = nn.Linear(8, 12), nn.Linear(8, 12), nn.Linear(12, 8), nn.SiLU()

    def forward(self, hidden_states):
        return self.down(self.act(self.gate(hidden_states)) * self.up(hidden_states))


def sequential():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.GELU())


@pytest.fixture(autouse=True)
def _store(tmp_path, monkeypatch):
    own_store(tmp_path, monkeypatch)
    measure.forget()
    yield
    measure.forget()


def close(got, wanted):
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


# --- what measuring does ---


class Calls(Two):
    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(self.child(x))))


def test_a_child_of_an_unknown_class_is_not_run_to_be_measured():
    made = Calls().eval()
    (record,) = patch(made)
    assert record.why == "child is a test_torch_others.Child, which may not run to be measured"
    with torch.no_grad():
        made(X)
    assert made.child.calls == 1


class Inplace(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.first = nn.Hardtanh(0.1, 0.5, inplace=True)

    def forward(self, x):
        return F.gelu(self.fc(F.dropout(self.first(x), 0.1)))


def test_measuring_leaves_the_input_and_the_random_numbers():
    made, x, y = Inplace().eval(), X.clone(), X.clone()
    plain = copy.deepcopy(made)
    assert patch(made)[0].fused
    with torch.no_grad():
        torch.manual_seed(1)
        got = made(x)
        torch.manual_seed(1)
        close(got, plain(y))
    assert torch.equal(x, y)
    assert report(made)[0].ours > 0


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.fc = nn.BatchNorm1d(8), nn.Linear(8, 8)

    def forward(self, x):
        return F.gelu(self.fc(self.norm(x)))


def test_a_child_in_training_is_not_run_to_be_measured():
    made = Normed().eval()
    made.norm.train()
    assert patch(made)[0].fused
    with torch.no_grad():
        made(X)
    assert made.norm.num_batches_tracked == 1


# --- hooks and wrappers that come later ---


def two():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))


@pytest.mark.parametrize("when", ["measured", "always"])
@pytest.mark.parametrize("place", [0, 1])
def test_a_hook_sees_what_torch_computes(place, when):
    seen, wanted = [], []
    made, plain = two(), two()
    patch(made, when)
    for model, found in ((made, seen), (copy.deepcopy(made), []), (plain, wanted)):
        model[place].register_forward_pre_hook(lambda module, x, found=found: found.extend(x))
        model[place].register_forward_hook(lambda module, x, y, found=found: found.append(y))
        model[place].register_full_backward_hook(lambda module, dx, dy, found=found: found.extend((*dx, *dy)))
        model(X.clone().requires_grad_()).sum().backward()
    close(seen, wanted)
    assert not report(made)[0].fused
    unpatch(made)
    assert [type(part) for part in made] == [type(part) for part in plain]
    made(X)
    assert len(seen) == 6


def test_hooks_of_a_copy_leave_the_model():
    made = two()
    patch(made, "always")
    copied = copy.deepcopy(made)
    copied[0].register_forward_hook(lambda *_: None)
    assert type(made[0]) is FusedLinear
    assert type(copied[0]) is nn.Linear
    close(copied(X), made(X))


@pytest.mark.parametrize("kind", [Called, Gated])
@pytest.mark.parametrize("name", ["register_module_forward_hook", "register_module_full_backward_hook"])
def test_global_hooks_see_all_modules(kind, name):
    register = getattr(nn.modules.module, name)
    made, plain = kind(), kind()
    assert patch(made, "always")[0].fused
    counts = []
    for model in (made, plain):
        seen = []
        handle = register(lambda module, *_, seen=seen: seen.append(module))
        try:
            model(X.clone().requires_grad_()).sum().backward()
        finally:
            handle.remove()
        counts.append(len(seen))
    assert counts[0] == counts[1] > 2


@pytest.mark.parametrize(("kind", "name"), [(Called, "fc1"), (Gated, "gate"), (Gated, "up"), (Gated, "act")])
@pytest.mark.parametrize("way", ["register_full_backward_hook", "register_forward_hook", "forward"])
def test_hooks_of_what_a_new_forward_replaces(kind, name, way):
    made = kind()
    patch(made, "always")
    seen, part = [], made.get_submodule(name)
    if way == "forward":
        part.forward = lambda x, own=part.forward: (seen.append(1), own(x))[1]
    else:
        getattr(part, way)(lambda *_: seen.append(1))
    made(X.clone().requires_grad_()).sum().backward()
    assert seen == [1]


class Dropped(Gated):
    def forward(self, x):
        return self.down(F.dropout(self.act(self.gate(x)) * self.up(x), 0.1, self.training))


@pytest.mark.parametrize("kind", [Gated, Dropped])
def test_another_activation_in_its_place(kind):
    made = kind().eval()
    patch(made, "always")
    made.act = nn.ReLU()
    assert torch.equal(made(X), kind.forward(made, X))


@pytest.mark.parametrize("kind", [Called, Gated])
def test_a_wrapper_outlives_unpatch(kind):
    made, calls = kind(), []
    wanted = made(X)
    patch(made, "always")
    own = made.forward

    @functools.wraps(own)
    def wrapped(*arguments, **keywords):
        calls.append(1)
        return own(*arguments, **keywords)

    made.forward = wrapped
    assert report(made)[0].fused
    close(made(X), wanted)
    unpatch(made)
    assert made.forward is wrapped
    assert torch.equal(made(X), wanted)
    assert len(calls) == 2
    assert not any(record.fused for record in patch(made, "always"))


def test_a_wrapper_of_a_fused_layer_keeps_it_fused():
    made = two()
    wanted = made(X)
    patch(made, "always")
    own = made[0].forward
    made[0].forward = lambda *x: own(*x)  # noqa: PLW0108  # not the method itself
    unpatch(made)
    close(made(X), wanted)
    del made[0].forward
    unpatch(made)
    assert type(made[0]) is nn.Linear
    assert torch.equal(made(X), wanted)


def test_the_argument_of_a_gate_by_its_name():
    made = Gated()
    wanted = made(X)
    patch(made, "always")
    close(made(hidden_states=X), wanted)
    for arguments, keywords in (((), {}), ((X,), {"hidden_states": X}), ((), {"x": X})):
        with pytest.raises(TypeError, match="argument"):
            made(*arguments, **keywords)


@pytest.mark.parametrize("again", [unpatch, lambda made: patch(made, "always")])
@pytest.mark.parametrize("make", [two, Gated])
def test_a_parametrization_that_came_later(make, again):
    made, plain = make(), make()
    patch(made, "always")
    name = "0" if make is two else "gate"
    for model in (made, plain):
        nn.utils.parametrizations.weight_norm(model.get_submodule(name))
    copied = copy.deepcopy(made)
    again(made)
    close(made(X), plain(X))
    close(copied(X), plain(X))
    unpatch(made)
    nn.utils.parametrize.remove_parametrizations(made.get_submodule(name), "weight")
    assert type(made.get_submodule(name)) is nn.Linear
    close(made(X), plain(X))


# --- threads, pickles, reports ---


class Waits(Two):
    go, done = threading.Event(), threading.Event()

    def forward(self, x):
        self.go.set()
        assert self.done.wait(60)
        return self.fc2(self.act(self.fc1(x)))


def test_other_models_run_while_one_is_traced():
    other, found = nn.Sequential(nn.Linear(8, 8), nn.PReLU()), []

    def call():
        Waits.go.wait(60)
        try:
            found.append(other(X))
        finally:
            Waits.done.set()

    thread = threading.Thread(target=call)
    thread.start()
    patch(Waits(), "always")
    thread.join()
    assert torch.equal(found[0], other(X))


@pytest.mark.parametrize("kind", [Called, Gated])
def test_a_pickle_says_that_it_has_no_new_forward(kind):
    made = kind()
    wanted = made(X)
    patch(made, "always")
    loaded = pickle.loads(pickle.dumps(made))
    assert torch.equal(loaded(X), wanted)
    assert [record.fused for record in report(loaded)] == [False]
    assert patch(loaded, "always")[0].fused
    close(loaded(X), wanted)
    unpatch(loaded)
    assert "forward" not in vars(loaded)


def test_reports_of_parts():
    made = nn.Sequential(Gated(), two())
    patch(made[1], "always")
    unpatch(made)
    assert report(made[1]) == []
    patch(made, "always")
    unpatch(made[1])
    assert [record.fused for record in report(made)] == [True, False]
