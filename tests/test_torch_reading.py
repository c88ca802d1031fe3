"""patch where no trace can be made: what the source of a forward says of its layers, and what it does not."""

import pytest

torch = pytest.importorskip("torch")

from matmul_fused.torch import Record  # noqa: E402
from test_torch_patch import Attention, Plain, X, check, patch  # noqa: E402

nn = torch.nn


class Decoder(Plain):
    """As a layer of OPT: no trace can be made of it."""

    def forward(self, x, mask=None):
        if x.dtype == torch.float16:
            x = x.clamp(-1e4, 1e4)
        if mask is None:
            residual = x
            x = self.fc1(x)
            x = self.act(x)
            x = residual + self.fc2(x)
        return x


class Encoder(Plain):
    """As a layer of Whisper."""

    def forward(self, x, mask=None, *, scale=1.0):
        h = nn.functional.dropout(self.act(self.fc1(x)), 0.1, self.training)
        return x + scale * self.fc2(h)


class KeepsTheLinear(Plain):
    def forward(self, x, mask=None):
        z = self.fc1(x)
        y = self.act(z)
        return self.fc2(y + z)


class Between(Plain):
    def forward(self, x, mask=None):
        h = self.fc1(x)
        h = h + 1
        h = self.act(h)
        return self.fc2(h)


class Again(Plain):
    def forward(self, x, mask=None):
        h = self.act(self.fc1(x))
        return self.fc2(h if mask is None else self.fc1(x))


class AnotherMethod(Plain):
    def forward(self, x, mask=None):
        h = self.act(self.fc1(x))
        return self.fc2(h) if mask is None else self.gate(x)

    def gate(self, x):
        return getattr(self, "act")(x)  # noqa: B009


class Property(AnotherMethod):
    def gate(self, x):
        return self.weight

    @property
    def weight(self):
        return self.fc1.weight


class CallsTheBase(Plain):
    def forward(self, x, mask=None):
        return self.fc2(self.act(self.fc1(x))) if mask is None else self.other(x)

    def other(self, x):
        return super().forward(x)


class Handler(Plain):
    def forward(self, x, mask=None):
        h = x
        try:
            h = self.fc1(x)
            h = self.act(h)
        except ZeroDivisionError:
            pass
        return self.fc2(h)


class Shared(Plain):
    def forward(self, x, mask=None):
        h = None

        def spy():
            nonlocal h
            return h

        h = self.fc1(x)
        h = self.act(h)
        return self.fc2(h)


class Inherits(Encoder):
    def forward(self, x, mask=None):
        return super().forward(x, mask)


@pytest.mark.parametrize("made", [Decoder, Encoder])
def test_what_is_read_in_the_source(made):
    (record,) = check(nn.Sequential(made(), nn.Linear(8, 8)))
    assert record == Record("0", "linear", "gelu", True, "fc1 + act")
    compiled, plain = made().eval(), X.clone()
    wanted = compiled(plain)
    patch(compiled)
    assert torch.allclose(torch.compile(compiled, backend="aot_eager", fullgraph=True)(plain), wanted, atol=1e-5)


@pytest.mark.parametrize(
    "made",
    [KeepsTheLinear, Between, Again, AnotherMethod, Property, CallsTheBase, Handler, Shared, Inherits, Attention],
)
def test_what_is_not_said_by_the_source(made):
    (record,) = check(made())
    assert not record.fused
    assert record.why == "its forward takes more than one argument"


def test_no_source():
    names = {"Plain": Plain, "__name__": "nowhere"}
    exec(
        "class Made(Plain):\n    def forward(self, x, mask=None):\n        return self.fc2(self.act(self.fc1(x)))",
        names,
    )
    (record,) = check(names["Made"]())
    assert not record.fused
