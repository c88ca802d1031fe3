"""Which activation operators are: by their values, not a usual one that is near; and that nothing moves over writes."""

import pytest

torch = pytest.importorskip("torch")

from matmul_fused.torch import patching, report  # noqa: E402
from matmul_fused.torch.values import by_values  # noqa: E402

nn, F = torch.nn, torch.nn.functional


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    torch._dynamo.reset()
    patching._compiled.clear()
    monkeypatch.setattr(patching, "_last", None)  # report() is of the backend alone


def spelled(act):
    """(name, parameters) of what is found, or None."""
    nodes = list(torch.fx.symbolic_trace(lambda z: act(z)).graph.nodes)
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
        (F.hardshrink, ("hardshrink", (0.5,))),
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
