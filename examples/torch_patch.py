"""Turn fusion on in a torch model as it stands: one line, and a report of what it did.

python examples/torch_patch.py
"""

import torch

from matmul_fused.torch import patch, unpatch


class Mlp(torch.nn.Module):
    """The MLP of Llama."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj = torch.nn.Linear(width, hidden, bias=False)
        self.up_proj = torch.nn.Linear(width, hidden, bias=False)
        self.down_proj = torch.nn.Linear(hidden, width, bias=False)
        self.act_fn = torch.nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
        return y


torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(64, 64), torch.nn.GELU(), Mlp(64, 176), torch.nn.LayerNorm(64), torch.nn.Linear(64, 64)
).eval()
x = torch.randn(32, 64)

with torch.no_grad():
    before = model(x)
    print(patch(model))
    after = model(x)
    unpatch(model)

print(f"greatest difference {(after - before).abs().max():.1e}")
