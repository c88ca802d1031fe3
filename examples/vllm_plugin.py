"""What the plugin does inside vLLM, seen on one layer of Llama: loaded as vLLM loads it, and its report.

MATMUL_FUSED_VLLM=1 python examples/vllm_plugin.py      (a server needs no more: MATMUL_FUSED_VLLM=1 vllm serve MODEL)
"""

import tempfile

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.model_executor.models.llama import LlamaMLP
from vllm.plugins import load_general_plugins

from matmul_fused.integrations.vllm import report

load_general_plugins()  # vLLM does this in each of its processes

with tempfile.TemporaryDirectory() as folder, set_current_vllm_config(VllmConfig()), torch.inference_mode():
    init_distributed_environment(1, 0, f"file://{folder}/store", 0, "gloo")
    initialize_model_parallel(1, 1)
    mlp = LlamaMLP(256, 688, "silu", prefix="model.layers.0.mlp")
    for parameter in mlp.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    for part in (mlp.gate_up_proj, mlp.down_proj):
        part.quant_method.process_weights_after_loading(part)

    x = torch.randn(32, 256)
    hidden, _ = mlp.gate_up_proj(x)
    expected, _ = mlp.down_proj(mlp.act_fn(hidden))
    difference = (mlp(x) - expected).abs().max()

print(report())
print(f"greatest difference {difference:.1e}")
