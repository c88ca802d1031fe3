"""patch leaves a layer that other code calls, or that another method uses, as it is."""

import pytest

torch = pytest.importorskip("torch")

from matmul_fused.torch import FusedLinear, measure  # noqa: E402
from support import own_store  # noqa: E402
from test_torch_others import close, sequential  # noqa: E402
from test_torch_patch import X, patch, patching  # noqa: E402

nn, F = torch.nn, torch.nn.functional


@pytest.fixture
def _ours_is_faster(tmp_path, monkeypatch):
    own_store(tmp_path, monkeypatch)
    measure.forget()
    monkeypatch.setattr(measure, "_race", lambda *_: (0.001, 0.002))
    yield
    measure.forget()


class Logits(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.act = nn.Linear(8, 8), nn.GELU()

    def forward(self, x):
        return self.act(self.fc(x))

    def logits(self, x):
        return self.fc(x)


class Around(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = sequential()


class Iterates(Around):
    def forward(self, x):
        found = []
        for layer in self.net:
            x = layer(x)
            found.append(x)
        return found


class Takes(Around):
    def forward(self, x):
        return self.net(x), self.net[0](x), self.net[:1](x)


class Hands(Around):
    def forward(self, x):
        return [layer(x) for layer in getattr(self, "net")]  # noqa: B009


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.nets = nn.ModuleList([sequential()])

    def forward(self, x):
        return self.nets[0](x), self.nets[0][0](x)


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = Logits()

    def forward(self, x):
        return self.body(x), self.body.fc(x)


@pytest.mark.parametrize("when", ["measured", "always"])
@pytest.mark.parametrize("kind", [Iterates, Takes, Hands, Listed, Parts])
@pytest.mark.usefixtures("_ours_is_faster")
def test_a_layer_that_others_call(kind, when):
    torch.manual_seed(0)
    made = kind().eval()
    with torch.no_grad():
        wanted = made(X)
        patching.patch(made, when)
        for _ in range(2):
            for got, want in zip(made(X), wanted, strict=True):
                close(got, want)


@pytest.mark.parametrize("when", ["measured", "always"])
@pytest.mark.usefixtures("_ours_is_faster")
def test_a_layer_of_another_method(when):
    made = Logits().eval()
    with torch.no_grad():
        wanted = made(X), made.logits(X)
        (record,) = patching.patch(made, when)
        assert record.fused  # by a new forward
        for _ in range(2):
            close((made(X), made.logits(X)), wanted)


class Whole(Around):
    def forward(self, x):
        return self.net(x)


@pytest.mark.parametrize("make", [Whole, lambda: nn.Sequential(sequential(), sequential())])
def test_a_sequential_that_is_called_whole(make):
    made = make()
    assert all(record.fused for record in patch(made))
    assert any(type(part) is FusedLinear for part in made.modules())
