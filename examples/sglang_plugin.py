"""What the plugin does inside SGLang, seen on one layer of Llama: loaded as SGLang loads it, and its report.

MATMUL_FUSED_SGLANG=1 python examples/sglang_plugin.py
(a server needs no more: MATMUL_FUSED_SGLANG=1 python -m sglang.launch_server --model-path MODEL)
"""

import tempfile

import torch
from sglang.srt.distributed import parallel_state
from sglang.srt.models.llama import LlamaMLP
from sglang.srt.plugins import load_plugins
from sglang.srt.runtime_context import SpawnRanks, get_parallel, publish
from sglang.srt.server_args import ServerArgs

from matmul_fused.integrations.sglang import report

load_plugins()  # SGLang does this in each of its processes

with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
    parallel_state.init_distributed_environment(
        world_size=1, rank=0, distributed_init_method=f"file://{folder}/store", local_rank=0, backend="gloo"
    )
    arguments = ServerArgs(model_path="dummy", tp_size=1, ep_size=1, pp_size=1, device="cpu")
    publish(arguments, role="test", ranks=SpawnRanks(world_rank=0))
    get_parallel().override_permanently(world_group=parallel_state._WORLD)
    parallel_state.initialize_model_parallel(backend="gloo")
    mlp = LlamaMLP(256, 688, "silu", prefix="model.layers.0.mlp")
    for parameter in mlp.parameters():
        torch.nn.init.normal_(parameter, std=0.05)

    x = torch.randn(32, 256)
    hidden, _ = mlp.gate_up_proj(x)
    expected, _ = mlp.down_proj(mlp.act_fn(hidden))
    difference = (mlp(x) - expected).abs().max()

print(report())
print(f"greatest difference {difference:.1e}")
