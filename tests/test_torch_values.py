"""Which activation operators are: by their values, not a usual one that is near; and that nothing moves over writes."""

import pytest

torch = pytest.importorskip("torch")

from matmul_fused.torch import patching, report  # noqa: E402
from matmul_fused.torch.match import Matcher  # noqa: E402
from matmul_fused.torch.values import by_values  # noqa: E402

nn, F = torch.nn, torch.nn.functional


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    torch._dynamo.reset()
    patching._compiled.clear()
    monkeypatch.setattr(patching, "_last", None)  # report() is of the backend alone


def spelled(act):
    """(name, parameters) of what is found, or None."""
    nodes = list(torch.fx.symbolic_trace(act).graph.nodes)
    found = by_values(nodes[1:-1], nodes[0])
    return None if found is None else found[:2]


@pytest.mark.parametrize(
    ("act", "wanted"),
    [
        (lambda z: F.hardshrink(z, 0.501), ("hardshrink", (0.501,))),
        (lambda z: F.hardshrink(F.dropout(z, 0.1, False), 0.501), ("hardshrink", (0.501,))),
        (lambda z: z.clamp(0, 6e4), ("clamp", (0.0, 6e4))),
        (lambda z: F.relu(z).clamp(max=2e4), None),
        (lambda z: F.gelu(z).clamp(-6e4, 6e4), None),
        (lambda z: F.relu(z).clamp(max=3e38), None),
        (lambda z: F.hardshrink(F.relu(z), 1e-5), None),
        (lambda z: F.hardshrink(z * 1.0, 0.55), None),
        (lambda z: z.clamp(min=0), ("relu", ())),
        (lambda z: z.hardshrink(), ("hardshrink", (0.5,))),
    ],
)
def test_by_values(act, wanted):
    assert spelled(act) == wanted


def test_a_guard_against_overflow_stays():
    layer = nn.Linear(8, 8, dtype=torch.float16).requires_grad_(False)
    nn.init.constant_(layer.weight, 6e4)
    compiled = torch.compile(
        lambda x: F.relu(layer(x)).clamp(max=6e4),
        backend="matmul_fused",
        options={"when": "always", "inner": "aot_eager"},
    )
    assert compiled(torch.ones(2, 8, dtype=torch.float16)).unique().tolist() == [6e4]


# --- writes between a linear and its activation ---


@torch.library.custom_op("matmul_fused_tests::doubled_", mutates_args=("x",))
def _doubled(x: torch.Tensor) -> None:
    x.mul_(2)


@torch.library.custom_op("matmul_fused_tests::doubled", mutates_args=())
def _double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


_double.register_fake(torch.empty_like)


def _divide(x):
    x /= 2


def _remainder(x):
    x %= 2


WRITES = {
    "/=": _divide,
    "%=": _remainder,
    "a custom operator": _doubled,
    "by torch.ops": torch.ops.matmul_fused_tests.doubled_,
    "inplace by position": lambda x: F.relu(x, True),
    "inplace as the last one": lambda x: F.hardtanh(x, -0.5, 0.5, True),
    "__imul__": lambda x: x.__imul__(2),
    "a packet of aten": lambda x: torch.ops.aten.mul_(x, 2),
    "out": lambda x: torch.mul(x, 2, out=x),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=list(WRITES))
def test_no_linear_moves_over_a_write(write):
    def forward(x, w):
        x = x.clone()
        z = F.linear(x, w)
        write(x)
        return F.gelu(z) + 0 * x

    torch.manual_seed(0)
    x, w = torch.randn(4, 8), torch.randn(8, 8)
    compiled = torch.compile(forward, backend="matmul_fused", options={"when": "always", "inner": "aot_eager"})
    assert torch.allclose(compiled(x, w), forward(x, w), atol=1e-5)
    assert "something between writes to memory or changes a mode" in [record.why for record in report()]


@pytest.mark.parametrize("between", [lambda x: F.relu(x, False), _double, torch.ops.aten.exp, lambda x: x[0]])
def test_a_linear_moves_over_what_only_reads(between):
    def forward(x, w):
        z = F.linear(x, w)
        other = between(x)
        return F.gelu(z), other

    compiled = torch.compile(forward, backend="matmul_fused", options={"when": "always", "inner": "eager"})
    compiled(torch.randn(4, 8), torch.randn(8, 8))
    assert any(record.fused for record in report())


@pytest.mark.parametrize("writes", [False, True])
def test_a_module_may_write(writes):
    module = nn.ModuleDict({"fc": nn.Linear(8, 8), "act": nn.ReLU(inplace=writes)})
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    z = graph.call_module("fc", (x,))
    graph.call_module("act", (x,))
    graph.output(graph.call_function(F.gelu, (z,)))
    kinds = {"fc": "linear", "act": None}
    assert len(Matcher(graph, kinds.get, lambda name: getattr(module[name], "inplace", False)).sites()) == 1 - writes
