"""patch and what a forward depends on besides its argument: branches, values of others, layers that are exchanged."""

import types

import pytest

torch = pytest.importorskip("torch")

from matmul_fused.torch import FusedLinear, patch, unpatch  # noqa: E402
from support import own_store  # noqa: E402

nn, F = torch.nn, torch.nn.functional
X = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
flags, conf, closed = {"raw": False}, types.SimpleNamespace(SCALE=1.0), [False]


class Two(nn.Module):
    """Layers without a forward."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc1, self.act, self.fc2, self.drop = nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8), nn.Dropout(0.5)
        self.activation = F.gelu


@pytest.fixture(autouse=True)
def _store(tmp_path, monkeypatch):
    own_store(tmp_path, monkeypatch)


# --- branches that a trace has one way alone ---


class ByGlobal(Two):
    def forward(self, x):
        h = self.fc1(x)
        if flags["raw"]:
            return h
        return self.act(h)


class ByClosure(Two):
    def forward(self, x, flag=closed):
        h = self.fc1(x)
        if flag[0]:
            return h
        return self.act(h)


class ByGradients(Two):
    def forward(self, x):
        h = self.fc1(x)
        if not torch.is_grad_enabled():
            return h
        return self.act(h)


class ByChild(Two):
    def forward(self, x):
        h = self.fc1(x)
        if self.drop.p == 0:
            return h
        return self.act(h)


def turn(made):
    flags["raw"] = closed[0] = True
    made.drop.p = 0


@pytest.mark.parametrize("kind", [ByGlobal, ByClosure, ByGradients, ByChild])
def test_branches(kind):
    flags["raw"] = closed[0] = False
    made, own = kind().eval(), kind().eval()
    patch(made, "always")
    turn(made), turn(own)
    with torch.no_grad():
        assert torch.equal(made(X), own(X))


# --- values of others ---


class Scaled(Two):
    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x))) * conf.SCALE


def test_a_number_of_another_module():
    made, own = Scaled().eval(), Scaled().eval()
    patch(made, "always")
    conf.SCALE = 3.0
    with torch.no_grad():
        torch.testing.assert_close(made(X), own(X))


def test_nobody_sees_a_module_in_another_mode():
    """Other threads may be in it while it is traced."""
    modes = []

    class Watched(Scaled):
        def __setattr__(self, name, value):
            modes.append(name) if name == "training" else None
            super().__setattr__(name, value)

    made = Watched().eval()
    modes.clear()
    patch(made, "never")
    assert modes == []


# --- sources ---


class Documented(Two):
    def forward(self, x):
        """Two layers.

        Args:
            x: rows of 8
        """
        return self.fc2(F.gelu(self.fc1(x)))


class InPlace(Two):
    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x), inplace=True))


class Stored(Two):
    def forward(self, x):
        return self.fc2(self.activation(self.fc1(x)))


@pytest.mark.parametrize("kind", [Documented, InPlace, Stored])
def test_a_new_forward_of(kind):
    made, own = kind().eval(), kind().eval()
    assert [record.fused for record in patch(made, "always")] == [True]
    with torch.no_grad():
        torch.testing.assert_close(made(X), own(X))
        made.activation = own.activation = F.relu
        torch.testing.assert_close(made(X), own(X))


# --- layers that are exchanged ---


def test_a_layer_in_the_place_of_another():
    made = Documented().eval()
    patch(made, "always")
    made.fc1 = nn.Linear(8, 12).eval()
    with torch.no_grad():
        torch.testing.assert_close(made(X), made.fc2(F.gelu(made.fc1(X))))
    del made.fc1
    unpatch(made)
    assert "forward" not in vars(made)


@pytest.mark.parametrize("when", ["always", "measured"])
def test_a_symbolic_trace(when):
    made = nn.Sequential(nn.Linear(8, 12), nn.GELU()).eval()
    wanted = made(X)
    patch(made, when)
    assert isinstance(made[0], FusedLinear)
    torch.testing.assert_close(torch.fx.symbolic_trace(made)(X), wanted)


class OneByOne(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 12), nn.GELU())

    def forward(self, x):
        for layer in self.net:
            x = layer(x)
        return x


def test_a_sequential_that_nobody_calls():
    assert [record.fused for record in patch(OneByOne().eval(), "always")] == [False]
