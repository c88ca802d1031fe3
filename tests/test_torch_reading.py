"""What patch reads in the source of a class: its layers where no trace can be made, and what a trace does not show."""

import functools

import pytest

torch = pytest.importorskip("torch")

from matmul_fused.torch import Record  # noqa: E402
from test_torch_others import Gated, Two, close  # noqa: E402
from test_torch_patch import Attention, Plain, X, check, patch  # noqa: E402

nn, F = torch.nn, torch.nn.functional
LIMIT = 0.5


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


# --- forwards that do more than a trace shows ---


class Buffer(Two):
    def forward(self, x):
        self.calls.add_(1)
        return self.fc2(F.gelu(self.fc1(x)))


class Autocast(Two):
    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            return self.fc2(F.gelu(self.fc1(x.float())))


class NoGrad(Two):
    def forward(self, x):
        with torch.no_grad():
            return self.fc2(F.gelu(self.fc1(x)))


class Decorated(Two):
    @torch.no_grad()
    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x)))


class Scaled(Two):
    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x))) * self.scale


class Limited(Two):
    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x))) * LIMIT


class Logs(Two):
    def forward(self, x):
        self.log.append(1)
        return self.fc2(F.gelu(self.fc1(x)))


class Seeds(Two):
    def forward(self, x):
        torch.manual_seed(0)
        return self.fc2(F.gelu(self.fc1(x)))


class Writes(Two):
    def forward(self, x):
        x += 1.0
        return self.fc2(F.gelu(self.fc1(x)))


class Kinds(Two):
    def forward(self, x):
        if isinstance(x, torch.Tensor):
            x = 2 * x
        return self.fc2(F.gelu(self.fc1(x)))


class Helper(Two):
    def forward(self, x):
        return self.fc2(self.hidden(x))

    def hidden(self, x):
        return F.gelu(self.fc1(x)) * self.scale


class ByAttribute(Gated):
    def forward(self, x):
        if not self.down.calls:
            return x
        return self.down(self.act(self.gate(x)) * self.up(x))


FORWARDS = [Buffer, Autocast, NoGrad, Decorated, Limited, Logs, Seeds, Writes, Kinds, Helper]


class InPlace(Two):
    """What the first layer is called with changes before its activation is computed."""

    def __init__(self):
        super().__init__()
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        z = self.fc1(x)
        y = self.relu(x)
        return self.fc2(F.gelu(z)) + y


class Partial(Two):
    forward = functools.partial(Two.__call__, 0)  # none of these has a source


def test_a_forward_that_is_no_function():
    made = Partial()
    (record,) = patch(made)
    assert (record.fused, record.why) == (False, "its forward is a partial")


def test_a_forward_of_another_name():
    def run(self, x):
        return self.fc2(F.gelu(self.fc1(x)))

    made = type("Made", (Two,), {"forward": run})()
    assert patch(made)[0].fused


def test_a_layer_is_not_moved_over_a_module_that_writes():
    made, plain = InPlace(), InPlace()
    assert patch(made)[0].form == "linear"
    close(made(X.clone()), plain(X.clone()))


class Switched(Two):
    def forward(self, x):
        h = self.fc1(x)
        y = self.act(h) if self.scale else h
        return self.fc2(y)


class Guarded(Two):
    def forward(self, x):
        h = F.gelu(self.fc1(x))
        return self.fc2(h) if self.branch else h


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (Scaled, "scale", 0.5),
        (Scaled, "scale", 0),
        (Scaled, "scale", torch.zeros(8)),
        (Guarded, "branch", False),
        (Switched, "scale", 0),
    ],
)
def test_the_value_of_an_attribute_may_change(kind, name, value):
    made, plain = kind(), kind()
    assert patch(made)[0].fused
    close(made(X), plain(X))
    setattr(made, name, value)
    setattr(plain, name, value)
    assert torch.equal(made(X), plain(X))


@pytest.mark.parametrize("kind", FORWARDS)
def test_what_a_trace_does_not_show_stays(kind):
    made, plain = kind(), kind()
    (record,) = patch(made)
    assert not record.fused
    assert "forward" not in vars(made)
    assert (made.log, made.calls) == ([], 0)
    with torch.autocast("cpu", torch.bfloat16):
        assert made(X.clone()).dtype == plain(X.clone()).dtype
    x, y = X.clone(), X.clone()
    made.scale = plain.scale = 0.5
    got, wanted = made(x), plain(y)
    assert torch.equal(got, wanted)
    assert torch.equal(x, y)
    assert got.requires_grad == wanted.requires_grad
    assert (made.log, made.calls) == (plain.log, plain.calls)


def test_a_gate_by_an_attribute_stays():
    made = ByAttribute()
    made.down.calls = 1
    (record,) = patch(made)
    assert (record.fused, record.form) == (False, "gate/up")
    made.down.calls = 0
    assert torch.equal(made(X), X)


def test_without_a_source_no_forward_is_replaced():
    names = {"Two": Two, "F": F, "__name__": "nowhere"}
    exec("class Made(Two):\n    def forward(self, x):\n        return self.fc2(F.gelu(self.fc1(x)))", names)
    (record,) = patch(names["Made"]())
    assert (record.fused, record.why) == (False, "its forward has no source")


class Appends(Two):
    def forward(self, x):
        self.log.append(1)
        h = self.fc1(x)
        return self.fc2(self.act(h + 0))


def test_patch_runs_no_forward_that_writes():
    made, plain = Appends(), Appends()
    (record,) = patch(made)
    assert not record.fused
    assert torch.equal(made(X), plain(X))
    assert made.log == plain.log


# --- dtypes ---


class Casts(Gated):
    """The MLP of T5, whose last layer transformers keeps in float32."""

    def forward(self, x):
        h = self.act(self.gate(x)) * self.up(x)
        h = F.dropout(h, 0.1, self.training)
        if (
            isinstance(self.down.weight, torch.Tensor)
            and h.dtype != self.down.weight.dtype
            and self.down.weight.dtype != torch.int8
        ):
            h = h.to(self.down.weight.dtype)
        return self.down(h)


def test_a_cast_to_the_dtype_of_a_layer():
    made = Casts().half().eval()
    made.down.float()
    wanted = made(X.half())
    (record,) = patch(made)
    assert record.form == "linear"  # its own forward runs
    torch.testing.assert_close(made(X.half()), wanted, atol=1e-3, rtol=1e-3)


def test_a_cast_that_comes_later():
    made = Casts().eval()
    wanted = made(X)
    (record,) = patch(made)
    assert record.fused
    close(made(X), wanted)
    made.half().down.float()
    torch.testing.assert_close(made(X.half()), wanted, atol=1e-2, rtol=1e-2)
