"""Gradients of blocks of Llama and GPT-2, fused and eager: their errors against float64, and the memory kept."""

import copy
import math

import pytest

torch = pytest.importorskip("torch")

from matmul_fused.torch import backend, patch, patching, rewriting  # noqa: E402

nn, F = torch.nn, torch.nn.functional
WIDTH, HEADS, ROWS, SEEDS = 64, 4, 24, 6


def attend(q, k, v):
    q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(2))
        self.down_proj, self.act_fn = nn.Linear(3 * WIDTH, WIDTH, bias=False), nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.first, self.second, self.mlp = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH), Gated()

    def forward(self, x):
        h = self.first(x)
        x = x + self.o(attend(self.q(h), self.k(h), self.v(h)))
        return x + self.mlp(self.second(x))


class Conv1D(nn.Module):
    def __init__(self, k, n):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(k, n) / math.sqrt(k)), nn.Parameter(torch.randn(n) / 10)

    def forward(self, x):
        rows = x.reshape(-1, x.shape[-1])
        return torch.addmm(self.bias, rows, self.weight).view((*x.shape[:-1], self.weight.shape[1]))


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_fc, self.c_proj = Conv1D(WIDTH, 4 * WIDTH), Conv1D(4 * WIDTH, WIDTH)

    def forward(self, x):
        z = self.c_fc(x)
        return self.c_proj(0.5 * z * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (z + 0.044715 * torch.pow(z, 3.0)))))


class GPT2(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn, self.c_proj = Conv1D(WIDTH, 3 * WIDTH), Conv1D(WIDTH, WIDTH)
        self.first, self.second, self.mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), Plain()

    def forward(self, x):
        x = x + self.c_proj(attend(*self.c_attn(self.first(x)).split(WIDTH, dim=-1)))
        return x + self.mlp(self.second(x))


@pytest.fixture(autouse=True)
def _conv1d(monkeypatch):
    monkeypatch.setitem(rewriting._KINDS, f"{__name__}.Conv1D", "conv1d")
    torch._dynamo.reset()
    patching._compiled.clear()


def patched(block):
    fused = copy.deepcopy(block)
    assert [record.fused for record in patch(fused, when="always")] == [True]
    return fused


def compiled(block):
    return torch.compile(
        copy.deepcopy(block), backend=backend, fullgraph=True, options={"when": "always", "inner": "aot_eager"}
    )


def gradients(block, x):
    """Of x and of the parameters, each in float64, of a loss that weighs all results differently."""
    x = x.clone().requires_grad_()
    weights = torch.linspace(-1, 1, x.numel(), dtype=torch.float64).reshape(x.shape).to(x.dtype)
    return [part.double() for part in torch.autograd.grad((block(x) * weights).sum(), [x, *block.parameters()])]


def errors(got, exact):
    """RMS and greatest error, each tensor in units of its exact RMS."""
    parts = [(a - b).flatten() / b.square().mean().sqrt() for a, b in zip(got, exact, strict=True)]
    together = torch.cat(parts)
    return torch.stack((together.square().mean().sqrt(), together.abs().max()))


@pytest.mark.parametrize("way", [patched, compiled])
@pytest.mark.parametrize("make", [Llama, GPT2])
def test_gradients_of_a_block(make, way):
    ours, eager = torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        block, x = make(), torch.randn(2, ROWS, WIDTH)
        exact = gradients(copy.deepcopy(block).double(), x.double())
        ours += errors(gradients(way(block), x), exact)
        eager += errors(gradients(block, x), exact)
    if way is compiled:
        records = [record for frame in patching._compiled.values() for record in frame]
        assert sum(record.fused for record in records) == 3  # two residuals and the MLP
    assert (ours <= 1.10 * eager).all(), (ours / eager).tolist()


def kept(block, x):
    """Bytes that autograd keeps for the backward pass, without the parameters."""
    own = {parameter.untyped_storage().data_ptr() for parameter in block.parameters()}
    sizes = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = block(x.clone().requires_grad_())
    assert result.requires_grad  # the graph lives up to here, so that no address is used twice
    return sum(sizes.values())


@pytest.mark.parametrize("make", [Llama, GPT2])
def test_memory_of_a_block(make):
    torch.manual_seed(0)
    block, x = make(), torch.randn(2, ROWS, WIDTH)
    assert kept(patched(block), x) <= kept(block, x)
