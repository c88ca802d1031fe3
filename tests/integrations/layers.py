"""Shared by the tests inside vLLM and SGLang: layers with random weights, judged beside the same in float64."""

import os
import re
import subprocess
import sys
from pathlib import Path

import torch
from transformers import OPTConfig

from matmul_fused.integrations import seam

WIDTH, HIDDEN = 192, 512


def draw(module, seed=0):
    """Weights that leave every layer's values near 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            scale = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.5
            values = torch.randn(parameter.shape, generator=generator, dtype=torch.float32) * scale
            parameter.copy_(values.to(torch.bfloat16))  # the same in every dtype
    return module


class NoAttention(torch.nn.Module):
    """In place of an attention that needs a scheduler."""

    def __init__(self, *_, **__):
        super().__init__()

    def forward(self, hidden_states, forward_batch=None):
        return hidden_states


def opt(module, activation="relu", before=True):
    """The decoder layer of the host's module of OPT."""
    module.OPTAttention = NoAttention
    config = OPTConfig(
        hidden_size=WIDTH,
        ffn_dim=HIDDEN,
        num_attention_heads=4,
        activation_function=activation,
        do_layer_norm_before=before,
    )
    return module.OPTDecoderLayer(config, prefix="layers.0")


def inputs(rows, width, dtype):
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, width, generator=generator).to(torch.bfloat16).to(dtype)


def rms(values):
    return values.double().square().mean().sqrt().item()


def assert_as_good(ours, theirs, exact):
    """The same output: within 1.10 times the error of the host's own against float64."""
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    error, allowed = rms(ours - exact), 1.10 * rms(theirs - exact)
    assert 0 < error <= allowed, f"RMS error {error:.3e}, the host's own times 1.10 {allowed:.3e}"


def fused(host):
    """{class: fused} of what ran since the record was cleared."""
    return {row.form.split(",")[0]: row.fused for row in seam.report(host)}


def clear():
    seam._seen.clear()


ROOT = Path(__file__).resolve().parents[2]


def run_example(name, *first):
    """What an example prints: (its last line's difference, the lines before it from the report on)."""
    path = str(ROOT / "examples" / name)
    code = "; ".join([*first, f"import runpy; runpy.run_path({path!r})"])
    command, folder = [sys.executable, "-c", code], Path(__file__).parent
    done = subprocess.run(command, cwd=folder, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    return float(re.fullmatch(r"greatest difference (\S+)", last)[1]), lines


def assert_on_page(host, report):
    """The report stands in the page of its host; the kernel is that of another CPU."""
    masked = [re.sub(r"cpu_\w+ for one row", "cpu_blocked_avx512 for one row", line) for line in report]
    assert "```\n" + "\n".join(masked) + "\n```" in (ROOT / "docs" / f"{host}.md").read_text()
