"""The layers that bench_forward.py runs: real classes of transformers at real widths, random weights, no download.

A layer is one decoder or encoder layer as its model runs it, without a KV cache and without a mask.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is fetched
import torch
import transformers as hf

Operands = tuple[tuple[Any, ...], dict[str, Any]]
ATTENTION: dict[str, Any] = {"attn_implementation": "sdpa", "vocab_size": 8}


def _llama(width: int, hidden: int, heads: int, groups: int) -> tuple[Any, Any]:
    sizes = {"hidden_size": width, "intermediate_size": hidden, "num_hidden_layers": 1, "num_attention_heads": heads}
    model = hf.LlamaModel(hf.LlamaConfig(**sizes, **ATTENTION, num_key_value_heads=groups))
    return model.layers[0], model.rotary_emb


def _gpt2(width: int, heads: int) -> tuple[Any, Any]:
    sizes = {"n_embd": width, "n_layer": 1, "n_head": heads, "bos_token_id": 0, "eos_token_id": 0}
    return hf.GPT2Model(hf.GPT2Config(**sizes, **ATTENTION)).h[0], None


def _bert(width: int, hidden: int, heads: int) -> tuple[Any, Any]:
    sizes = {"hidden_size": width, "intermediate_size": hidden, "num_hidden_layers": 1, "num_attention_heads": heads}
    return hf.BertModel(hf.BertConfig(**sizes, **ATTENTION)).encoder.layer[0], None


# name -> makes (the layer, what makes its position embeddings or None)
LAYERS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "tiny Llama": lambda: _llama(64, 128, 4, 2),
    "tiny GPT-2": lambda: _gpt2(64, 4),
    "tiny BERT": lambda: _bert(64, 128, 4),
    "GPT-2": lambda: _gpt2(768, 12),
    "BERT-base": lambda: _bert(768, 3072, 12),
    "Llama-3-8B": lambda: _llama(4096, 14336, 32, 8),
}


@dataclass(frozen=True)
class Case:
    """A layer, a dtype, and the rows that it runs on."""

    layer: str
    dtype: str
    batch: int
    sequence: int

    @property
    def name(self) -> str:
        return f"{self.layer}, {self.dtype}, {self.batch}x{self.sequence}"


# What each device runs, the most telling first: a limit of time cuts the end. (layers, dtypes, batch x sequence)
_ALL, _TINY, _MIDDLE = tuple(LAYERS), tuple(LAYERS)[:3], ("GPT-2", "BERT-base")
_PARTS: dict[str, tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[tuple[int, int], ...]], ...]] = {
    "cpu": (
        (("Llama-3-8B",), ("bfloat16",), ((1, 1), (1, 128))),
        ((*_TINY, *_MIDDLE), ("bfloat16", "float32"), ((1, 128),)),
        (("tiny Llama", "GPT-2"), ("bfloat16", "float32"), ((1, 1),)),
        (("Llama-3-8B",), ("float32",), ((1, 1), (1, 128))),
        (_MIDDLE, ("bfloat16",), ((8, 512),)),
        (("Llama-3-8B",), ("bfloat16",), ((1, 512),)),
        (_MIDDLE, ("float32",), ((8, 512),)),
    ),
    "cuda": (
        (("Llama-3-8B",), ("bfloat16",), ((1, 1), (1, 128), (8, 512))),
        ((*_TINY, *_MIDDLE), ("bfloat16",), ((1, 128),)),
        (_MIDDLE, ("bfloat16",), ((8, 512),)),
        (("tiny Llama", "GPT-2"), ("bfloat16",), ((1, 1),)),
        (_ALL, ("float32",), ((1, 128),)),
        (_MIDDLE, ("float32",), ((8, 512),)),
        (("Llama-3-8B",), ("float32",), ((1, 1),)),
    ),
}


def cases(device: str) -> list[Case]:
    return [
        Case(layer, dtype, *shape)
        for layers, dtypes, shapes in _PARTS[device]
        for layer in layers
        for dtype in dtypes
        for shape in shapes
    ]


def twin(model: Any) -> Any:
    """A copy of its modules on the same parameters: no arm has its weights elsewhere than the others."""
    return copy.deepcopy(model, {id(part): part for part in (*model.parameters(), *model.buffers())})


@dataclass
class Workload:
    """A layer with drawn weights, and what it is called with."""

    case: Case
    model: Any
    positions: Any
    device: str

    def operands(self, seed: int) -> Operands:
        """What the layer of this case is called with."""
        case = self.case
        generator = torch.Generator(self.device).manual_seed(seed)
        shape = (case.batch, case.sequence, self.width)
        x = torch.randn(shape, generator=generator, device=self.device).to(getattr(torch, case.dtype))
        if self.positions is None:
            return (x,), {}
        place = torch.arange(case.sequence, device=self.device)[None]
        return (x,), {"position_embeddings": self.positions(x, place)}

    @property
    def width(self) -> int:
        return next(part for part in self.model.parameters() if part.dim() == 1).shape[0]


def first(result: Any) -> torch.Tensor:
    """The hidden states of what a layer returns."""
    return result if isinstance(result, torch.Tensor) else result[0]


@torch.no_grad()
def workloads(chosen: list[Case], device: str) -> Iterator[Workload]:
    """One for each case; neighbours share a layer where they can."""
    made: tuple[str, str] | None = None
    model = positions = None
    for case in chosen:
        if made != (case.layer, case.dtype):
            model = positions = None  # frees the last one first
            torch.manual_seed(0)
            with torch.device(device):
                model, positions = LAYERS[case.layer]()
                for part in model.parameters():  # values stay near 1 in every layer, whatever its width
                    part.normal_(std=part.shape[-1] ** -0.5 if part.dim() > 1 else 0.5)
            model = model.to(getattr(torch, case.dtype)).eval()
            made = case.layer, case.dtype
        yield Workload(case, model, positions, device)
