"""The table of docs/torch_models.md: 18 Hugging Face models with fused layers, `python bench/torch_models.py --write`.

Tiny random configurations, each eager, patched and compiled by the backend, against the same module in float64. Errors
only: nothing is timed. Needs transformers; tests/test_torch_models.py runs a part of it where that is installed.
"""

from __future__ import annotations

import argparse
import copy
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is fetched
import torch
import transformers as hf
from torch.overrides import TorchFunctionMode

import matmul_fused.torch as fused

PAGE = Path(__file__).resolve().parents[1] / "docs" / "torch_models.md"
SEEDS = 24
DTYPES = (torch.float32, torch.bfloat16)

SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TEXT = {**SMALL, **TOKENS, "vocab_size": 96, "max_position_embeddings": 64}
GROUPED = {**TEXT, "num_key_value_heads": 2}
IMAGE = {**SMALL, "image_size": 16, "patch_size": 4}
WORDS = {**TOKENS, "vocab_size": 96}


def _whisper() -> Any:
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in {"layers": 2, "attention_heads": 4, "ffn_dim": 128}.items()
    }
    sizes = {"d_model": 64, "max_source_positions": 32, "max_target_positions": 32, "num_mel_bins": 8}
    return hf.WhisperModel(hf.WhisperConfig(**sides, **sizes, **WORDS, decoder_start_token_id=3))


def _t5() -> Any:
    sizes = {"d_model": 64, "d_ff": 128, "d_kv": 16, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
    return hf.T5Model(hf.T5Config(**sizes, vocab_size=96, feed_forward_proj="gated-gelu"))


def _distilbert() -> Any:
    return hf.DistilBertModel(hf.DistilBertConfig(dim=64, hidden_dim=128, n_layers=2, n_heads=4, vocab_size=96))


def _gpt2() -> Any:
    return hf.GPT2Model(hf.GPT2Config(n_embd=64, n_layer=2, n_head=4, n_positions=64, **WORDS))


def _falcon() -> Any:
    return hf.FalconModel(hf.FalconConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, **WORDS))


MODELS: dict[str, Callable[[], Any]] = {
    "GPT-2": _gpt2,
    "OPT": lambda: hf.OPTModel(hf.OPTConfig(**TEXT, ffn_dim=128, word_embed_proj_dim=64)),
    "BERT": lambda: hf.BertModel(hf.BertConfig(**TEXT)),
    "DistilBERT": _distilbert,
    "ViT": lambda: hf.ViTModel(hf.ViTConfig(**IMAGE)),
    "CLIP": lambda: hf.CLIPModel(hf.CLIPConfig(vision_config=IMAGE, text_config=TEXT, projection_dim=64)),
    "SigLIP": lambda: hf.SiglipModel(hf.SiglipConfig(vision_config=IMAGE, text_config={**TEXT, "projection_size": 64})),
    "Whisper": _whisper,
    "Phi": lambda: hf.PhiModel(hf.PhiConfig(**GROUPED)),
    "Phi-3": lambda: hf.Phi3Model(hf.Phi3Config(**GROUPED)),
    "Falcon": _falcon,
    "GPT-NeoX": lambda: hf.GPTNeoXModel(hf.GPTNeoXConfig(**TEXT)),
    "T5 gated": _t5,
    "Llama": lambda: hf.LlamaModel(hf.LlamaConfig(**GROUPED)),
    "Qwen3": lambda: hf.Qwen3Model(hf.Qwen3Config(**GROUPED, head_dim=16)),
    "Mistral": lambda: hf.MistralModel(hf.MistralConfig(**GROUPED)),
    "Gemma3": lambda: hf.Gemma3TextModel(hf.Gemma3TextConfig(**GROUPED, head_dim=16)),
    "Mixtral": lambda: hf.MixtralModel(hf.MixtralConfig(**GROUPED, num_local_experts=4)),
}


def inputs(name: str, dtype: Any) -> dict[str, Any]:
    """What a model is called with."""
    ids = torch.randint(3, 96, (2, 12))
    image = torch.randn(2, 3, 16, 16).to(dtype)
    if name == "ViT":
        return {"pixel_values": image}
    if name in ("CLIP", "SigLIP"):
        return {"input_ids": ids, "pixel_values": image}
    if name == "Whisper":
        return {"input_features": torch.randn(2, 8, 64).to(dtype), "decoder_input_ids": ids}
    if name == "T5 gated":
        return {"input_ids": ids, "decoder_input_ids": ids}
    return {"input_ids": ids}


class AllDouble(TorchFunctionMode):
    """Casts to float32 that models make in themselves go to float64."""

    def __torch_function__(self, function: Any, kinds: Any, arguments: Any = (), keywords: Any = None) -> Any:
        def wide(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        if function is torch.Tensor.float:
            function = torch.Tensor.double
        return function(*map(wide, arguments), **{name: wide(value) for name, value in (keywords or {}).items()})


def outputs(model: Any, operands: dict[str, Any]) -> list[Any]:
    return [value.double() for value in model(**operands).values() if isinstance(value, torch.Tensor)]


@dataclass
class Errors:
    """Errors of a way to run a model, in units of the RMS of each exact output."""

    squares: float = 0.0
    count: int = 0
    greatest: list[float] = field(default_factory=list)

    def add(self, got: list[Any], exact: list[Any]) -> None:
        errors = [(a - b) / b.square().mean().sqrt() for a, b in zip(got, exact, strict=True)]
        self.squares += sum(float(error.square().sum()) for error in errors)
        self.count += sum(error.numel() for error in errors)
        self.greatest.append(max(float(error.abs().max()) for error in errors))

    @property
    def rms(self) -> float:
        return math.sqrt(self.squares / self.count)

    @property
    def maximum(self) -> float:
        """The mean over the seeds of each one's greatest error: that of all is one element's luck."""
        return sum(self.greatest) / len(self.greatest)


@dataclass
class Row:
    """A model in one dtype."""

    model: str
    dtype: Any
    backend: Any
    patch: Any
    breaks: int
    own_breaks: int  # of the model under Dynamo without us
    errors: dict[str, Errors]


def graph_breaks(compiled: Any, operands: dict[str, Any]) -> int:
    """How many a first call has, after which it is compiled."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled(**operands)
    return sum(torch._dynamo.utils.counters["graph_break"].values())


@torch.no_grad()
def measure(name: str, dtype: Any, seeds: int = SEEDS) -> Row:
    """Run a model in every way, with other weights and inputs for every seed."""
    torch.manual_seed(0)
    model = MODELS[name]().to(dtype).eval()
    patched, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    exact.config._experts_implementation = "eager"  # grouped_mm takes no float64
    by_patch = fused.patch(patched, when="always")
    own_breaks = graph_breaks(torch.compile(model, backend="eager"), inputs(name, dtype))
    compiled = torch.compile(model, backend=fused.backend, options={"when": "always", "inner": "aot_eager"})
    breaks = graph_breaks(compiled, inputs(name, dtype))
    errors = {way: Errors() for way in ("eager", "backend", "patch")}
    for seed in range(seeds):
        torch.manual_seed(seed)
        state = MODELS[name]().to(dtype).state_dict()
        for copied in (model, patched, exact):
            copied.load_state_dict(state)
        operands = inputs(name, dtype)
        wide = {key: value.double() if value.is_floating_point() else value for key, value in operands.items()}
        with AllDouble():
            wanted = outputs(exact, wide)
        for way, call in (("eager", model), ("backend", compiled), ("patch", patched)):
            errors[way].add(outputs(call, operands), wanted)
    by_backend = fused.report()[len(by_patch) :]  # those of the last patch come first
    return Row(name, dtype, by_backend, by_patch, breaks, own_breaks, errors)


def said(records: Iterable[Any]) -> str:
    """Sites by form and activation; a number of left ones behind a minus."""
    words = []
    for done, sign in ((True, ""), (False, "left: ")):
        counts = Counter(
            record.form if record.form == "residual" else f"{record.form} {record.activation}"
            for record in records
            if record.fused is done
        )
        words += [f"{sign}{count} {form}" for form, count in counts.items()]
    return ", ".join(words) or "none"


def page(rows: list[Row]) -> str:
    lines = [
        "# Hugging Face models with fused layers",
        "",
        f"`python bench/torch_models.py --write`; torch {torch.__version__}, transformers {hf.__version__}, CPU. Tiny",
        'random configurations, every site fused (`when="always"`); the backend hands over to `aot_eager`, so that all',
        "else is computed as in eager mode. Nothing is timed here.",
        "",
        "## Sites",
        "",
        "| model | by the backend | by patch | graph breaks |",
        "|---|---|---|---|",
    ]
    first = [row for row in rows if row.dtype == rows[0].dtype]
    lines += [f"| {row.model} | {said(row.backend)} | {said(row.patch)} | {row.breaks} |" for row in first]
    lines += [
        "",
        "`residual` is the addition behind a linear layer, which `patch` does not see: it is in the forward of the",
        "layer around it. Mixtral's experts have 3-D weights and stay unfused.",
        "",
        "## Errors",
        "",
        f"Against the module in float64 with the same weights, {SEEDS} seeds of weights and inputs, relative to the",
        "RMS of the exact output: the RMS error over all seeds, and each seed's greatest error, averaged. The bound is",
        "1.10 of eager's.",
        "",
        "| model | dtype | eager RMS | backend | patch | eager max | backend | patch |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        eager = row.errors["eager"]
        ours = [row.errors[way] for way in ("backend", "patch")]
        cells = [f"{eager.rms:.2e}", *(f"{way.rms / eager.rms:.2f}" for way in ours)]
        cells += [f"{eager.maximum:.2e}", *(f"{way.maximum / eager.maximum:.2f}" for way in ours)]
        lines.append(f"| {row.model} | {str(row.dtype).removeprefix('torch.')} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name} instead of printing it")
    write = parser.parse_args().write
    text = page([measure(name, dtype) for dtype in DTYPES for name in MODELS])
    if write:
        PAGE.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
