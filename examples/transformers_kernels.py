"""Fused MLPs in a model of transformers, through the kernels package.

python examples/transformers_kernels.py
"""

import torch
from kernels import Mode, kernelize, use_kernel_mapping
from transformers import LlamaConfig, LlamaModel

from matmul_fused.integrations.transformers import kernel_mapping

torch.manual_seed(0)
config = LlamaConfig(vocab_size=64, hidden_size=128, intermediate_size=344, num_hidden_layers=2, num_attention_heads=4)
model = LlamaModel(config).eval()
ids = torch.arange(16)[None]

with torch.no_grad():
    before = model(ids).last_hidden_state
    with use_kernel_mapping(kernel_mapping(), inherit_mapping=False):
        kernelize(model, mode=Mode.INFERENCE, device="cpu")
    after = model(ids).last_hidden_state

print(f"fused {sum('forward' in vars(layer.mlp) for layer in model.layers)} of {len(model.layers)} MLPs")
print(f"greatest difference {(after - before).abs().max():.1e}")
