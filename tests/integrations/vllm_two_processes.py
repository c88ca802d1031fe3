"""A Llama MLP of vLLM in two processes, tensor parallel over gloo; run by in_vllm.py. Prints what each fused."""

import os
import tempfile
from pathlib import Path

import torch
from torch.nn import functional

WIDTH, HIDDEN = 64, 128


def run(rank: int, store: str) -> None:
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import (
        destroy_distributed_environment,
        destroy_model_parallel,
        init_distributed_environment,
        initialize_model_parallel,
    )
    from vllm.model_executor.models.llama import LlamaMLP
    from vllm.plugins import load_general_plugins

    from matmul_fused.integrations.vllm import report

    load_general_plugins()
    with set_current_vllm_config(VllmConfig()), torch.inference_mode():
        init_distributed_environment(2, rank, f"file://{store}", rank, "gloo")
        initialize_model_parallel(2, 1)
        mlp = LlamaMLP(WIDTH, HIDDEN, "silu", prefix="layers.0.mlp")
        generator = torch.Generator().manual_seed(0)
        gate, up, down = (
            torch.randn(shape, generator=generator) * 0.1
            for shape in ((HIDDEN, WIDTH), (HIDDEN, WIDTH), (WIDTH, HIDDEN))
        )
        first, last = mlp.gate_up_proj, mlp.down_proj
        for shard, weight in enumerate((gate, up)):
            first.weight_loader_v2(first.weight, weight, shard)
        last.weight_loader_v2(last.weight, down)
        for part in (first, last):
            part.quant_method.process_weights_after_loading(part)
        assert first.weight.shape == (HIDDEN, WIDTH)  # half of gate and half of up
        x = torch.randn(5, WIDTH, generator=generator)
        expected = functional.linear(functional.silu(functional.linear(x, gate)) * functional.linear(x, up), down)
        torch.testing.assert_close(mlp(x), expected, rtol=1e-5, atol=1e-5)
        (record,) = report()
        # Lines of two processes could meet in one pipe.
        Path(f"{store}.{rank}").write_text(f"rank {rank}: {record.layers} {'fused' if record.fused else record.why}")
        # A process that ends with threads of gloo, or without its peer, may abort.
        torch.distributed.barrier()
        destroy_model_parallel()
        destroy_distributed_environment()


if __name__ == "__main__":
    os.environ |= {"VLLM_TARGET_DEVICE": "cpu", "MATMUL_FUSED_VLLM": "1"}
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(run, (f"{folder}/store",), nprocs=2, start_method="spawn")
        for rank in range(2):
            print(Path(f"{folder}/store.{rank}").read_text())
