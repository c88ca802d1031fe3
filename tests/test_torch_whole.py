"""The torch.compile backend, after its sites are decided: which graphs run to be measured, what they leave as it was,
what is said, and how Inductor calls the operators."""

import pytest

torch = pytest.importorskip("torch")

from matmul_fused.torch import measure, patching, report, whole  # noqa: E402
from support import own_store  # noqa: E402

nn, F = torch.nn, torch.nn.functional
GRAPH = whole.SAMPLE  # what tells the race of a graph from that of a site


@pytest.fixture(autouse=True)
def _fresh(tmp_path, monkeypatch):
    own_store(tmp_path, monkeypatch)
    torch._dynamo.reset()
    measure.forget()
    patching._compiled.clear()
    monkeypatch.setattr(patching, "_last", None)  # report() is of the backend alone
    yield
    measure.forget()


@pytest.fixture
def races(monkeypatch):
    """Every site wins, and its graph takes races.times; races.pairs has what the forms of a graph returned."""

    class Races:
        times, pairs = (0.001, 0.002), []

    def race(ours, theirs, *more):
        if more[-1] != GRAPH:
            return 0.001, 0.002
        Races.pairs.append((ours(), theirs()))
        return Races.times

    Races.pairs.clear()
    monkeypatch.setattr(measure, "_race", race)
    return Races


class Block(nn.Module):
    """A site, a dropout that drops in training, and what extra does to x, the result or a buffer."""

    def __init__(self, extra=lambda self, x, y: y):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.drop, self.norm = nn.Linear(8, 12), nn.Dropout(0.5), nn.BatchNorm1d(12)
        self.register_buffer("count", torch.zeros(3))
        for name, start in (("on", [1]), ("low", [-1.0]), ("high", [1.0]), ("scale", [1.0])):
            self.register_buffer(name, torch.tensor(start))
        self.register_buffer("zero", torch.zeros(1, dtype=torch.int32))
        self.extra = extra

    def forward(self, x):
        return self.extra(self, x, self.drop(F.gelu(self.up(x))))


def compiled(module, inner="aot_eager", **options):
    return torch.compile(module, backend="matmul_fused", options={"inner": inner, **options})


def x_of(rows=5):
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("recorded", [False, True])
def test_the_graph_decides_last(races, recorded):
    races.times = (0.002, 0.001)
    module, x = Block().eval(), x_of()
    with torch.set_grad_enabled(recorded):
        got, wanted = compiled(module)(x), module(x)
    assert torch.equal(got, wanted)  # torch's own operators ran
    (record,) = report()
    assert (record.fused, record.ours, record.theirs) == (False, 0.001, 0.002)
    assert record.why == "left: slower as a whole graph, 2 ms, without 1 ms, up + gelu"
    ((ours, theirs),) = races.pairs
    assert len(ours) == (2 if recorded else 1)  # the gradients of weight and bias
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    assert module.up.weight.grad is None


def test_a_graph_is_measured_once(races):
    made = []

    def inner(graph, inputs):
        made.append(graph)
        return graph.forward

    x = x_of()
    for again in (False, True):
        torch._dynamo.reset()
        if again:
            measure.forget()  # as another process: from the file
        with torch.no_grad():
            compiled(Block().eval(), inner)(x)
        assert len(races.pairs) == 1
        assert report()[0].fused
    assert len(made) == 2 + 1  # both forms, then the one that is known to win
    races.times = (0.002, 0.001)
    torch._dynamo.reset()
    with torch.no_grad():
        compiled(Block().eval(), inner)(torch.cat([x, x]))
    assert not report()[-1].fused


def test_the_faster_form_by_little_is_taken_again_from_the_store(races):
    races.times = (0.00099, 0.001)
    for again in (False, True):
        torch._dynamo.reset()
        if again:
            measure.forget()
        with torch.no_grad():
            compiled(Block().eval())(x_of())
        assert report()[0].fused
    assert len(races.pairs) == 1


def test_a_graph_that_cannot_run_keeps_its_sites(monkeypatch):
    def race(ours, theirs, *more):
        if more[-1] == GRAPH:
            raise torch.OutOfMemoryError("no room for both")
        return 0.001, 0.002

    monkeypatch.setattr(measure, "_race", race)
    with torch.no_grad():
        x, module = x_of(), Block().eval()
        assert torch.allclose(compiled(module)(x), module(x), atol=1e-5)
    assert report()[0].fused


def test_whole_can_be_turned_off(races):
    with torch.no_grad():
        compiled(Block().eval(), whole=False)(x_of())
        compiled(Block().eval(), when="always")(x_of(3))
    assert not races.pairs


WRITES = {
    "a buffer": lambda self, x, y: y + self.count.add_(1).sum(),
    "a view of x": lambda self, x, y: (x[0].mul_(2), y)[1],
    "x.data": lambda self, x, y: (x.data.mul_(2), y)[1],
    "out": lambda self, x, y: (torch.add(x, 1, out=x), y)[1],
    "running statistics": lambda self, x, y: F.batch_norm(
        y, self.norm.running_mean, self.norm.running_var, None, None, True
    ),
    "a list": lambda self, x, y: (torch._foreach_add_([self.count], 1.0), y)[1],
    "an observer": lambda self, x, y: torch.fused_moving_avg_obs_fake_quant(
        y, self.on, self.on, self.low, self.high, self.scale, self.zero, 0.01, 0, 255, 0
    ),
    "a graph within": lambda self, x, y: torch.utils.checkpoint.checkpoint(torch.exp, y, use_reentrant=False),
}


@pytest.mark.parametrize("extra", WRITES.values(), ids=list(WRITES))
def test_a_graph_that_writes_does_not_run_before_its_time(races, extra):
    twins = [Block(extra), Block(extra)]
    inputs = [x_of(), x_of()]
    for module in twins:
        module.drop.eval()
    with torch.no_grad():
        wanted, got = twins[0](inputs[0]), compiled(twins[1])(inputs[1])
    assert not races.pairs
    assert report()[0].fused
    assert torch.allclose(got, wanted, atol=1e-5)
    assert torch.equal(*inputs)
    for a, b in zip(twins[0].buffers(), twins[1].buffers(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_what_may_run_leaves_everything_as_it_was(races):
    """Random numbers, writes to what the graph made itself, a constant, hooks, gradients."""
    module = Block(lambda self, x, y: y.mul_(torch.tensor([2.0])))
    x, seen = x_of().requires_grad_(), []
    x.register_hook(seen.append)
    call = compiled(module)
    torch.manual_seed(3)
    got = call(x)
    after = torch.get_rng_state()
    torch.manual_seed(3)
    assert torch.allclose(got, module(x), atol=1e-5)
    assert torch.equal(after, torch.get_rng_state())
    assert len(races.pairs) == 1
    assert not seen
    assert all(part.grad is None for part in (x, *module.parameters()))


def test_a_graph_of_other_functions_or_processes_does_not_run():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["example_value"] = torch.ones(2)
    graph.output((graph.call_function(own_store, (x,)),))
    made = torch.fx.GraphModule({}, graph)
    assert whole.why_not(made, [torch.ones(2)]) == "it calls own_store"
    assert whole.why_not(made, [torch.ones(2, device="meta")]) == "an input is a Tensor"
    assert whole.why_not(made, ["x"]) == "an input is a str"
    assert not whole._known(torch.ops.higher_order.cond)
    assert not whole._known(type("Own", (torch.autograd.Function,), {}).apply)
    assert not whole._known(torch.distributed.is_available)
    assert whole._known(torch.add)
    assert whole._known(torch.ops.aten.add.Tensor)


def test_any_number_of_rows(races):
    call = torch.compile(Block().eval(), backend="matmul_fused", dynamic=True, options={"inner": "aot_eager"})
    with torch.no_grad():
        for rows in (5, 7):
            assert torch.allclose(call(x_of(rows)), Block().eval()(x_of(rows)), atol=1e-5)
    assert len(races.pairs) == 1


# --- how Inductor calls the operators ---


class Forms(nn.Module):
    """Each operator, with and without bias, on weights (N, K) and (K, N)."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        sizes = {"first": (12, 8), "turned": (12, 8), "gate": (12, 8), "up": (12, 8), "down": (8, 12)}
        for name, size in sizes.items():
            self.register_parameter(name, nn.Parameter(torch.randn(size) / 3))
        self.bias = nn.Parameter(torch.randn(12))

    def forward(self, x):
        y = F.leaky_relu(F.linear(x, self.first, self.bias), 0.1)
        y = F.gelu(y @ self.turned) @ self.first.t()
        gated = F.silu(F.linear(x, self.gate, self.bias)) * F.linear(x, self.up)
        both = F.silu(F.linear(x, self.gate, self.bias)) * F.linear(x, self.up, self.bias)
        return x + F.linear(gated + both, self.down), y


def test_inductor_calls_them_directly(monkeypatch):
    space, calls = torch.ops.matmul_fused, []

    def counted(name, real):
        def call(*operands, out, **words):
            assert all(torch.is_tensor(part) for part in operands)
            out.fill_(float("nan"))
            calls.append((name, words["turned"]))
            real(*operands, out=out, **words)

        return call

    for name in ("linear_into", "pair_into", "add_into"):
        monkeypatch.setattr(space, name, counted(name, getattr(space, name)))
    module, x = Forms().eval(), torch.randn(2, 3, 8)
    with torch.no_grad():
        got = compiled(module, "inductor", when="always")(x)
        for a, b in zip(got, module(x), strict=True):
            assert torch.allclose(a, b, atol=1e-5)
    assert sorted(calls) == [
        ("add_into", False),
        ("linear_into", False),
        ("linear_into", True),
        ("pair_into", False),
    ]
