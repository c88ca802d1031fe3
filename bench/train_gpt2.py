"""The picture of a training run, docs/train_gpt2.svg: `python bench/train_gpt2.py` trains a tiny GPT-2 twice.

200 steps on synthetic text, eager and with the backend of torch.compile, from the same weights and on the same batches:
the losses in one picture. Needs transformers; nothing is timed.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is fetched
import torch
import transformers as hf

import matmul_fused.torch as fused

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "train_gpt2.svg"
STEPS, BATCH, LENGTH, LETTERS = 200, 16, 32, 48
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 800, 360, 56, 20, 64, 56  # pixels
EAGER, OURS, INK, FAINT = "#e08214", "#2166ac", "#222", "#ddd"


def text(steps: int) -> torch.Tensor:
    """(steps, BATCH, LENGTH) letters of a Markov chain: each letter has three that may follow."""
    torch.manual_seed(1)
    follow = torch.randint(LETTERS, (LETTERS, 3))
    letters = [torch.randint(LETTERS, (steps, BATCH))]
    for _ in range(LENGTH - 1):
        letters.append(follow[letters[-1], torch.randint(3, (steps, BATCH))])
    return torch.stack(letters, -1)


def gpt2() -> Any:
    torch.manual_seed(0)
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": LENGTH, "vocab_size": LETTERS}
    drops = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return hf.GPT2LMHeadModel(hf.GPT2Config(**sizes, **drops, bos_token_id=0, eos_token_id=0, use_cache=False))


def train(model: Any, call: Any, batches: torch.Tensor) -> list[float]:
    """The loss of every step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for batch in batches:
        loss = call(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def both(steps: int = STEPS) -> tuple[list[float], list[float], int]:
    """Losses eager and fused, and the number of fused sites."""
    batches, model = text(steps), gpt2().train()
    twin = copy.deepcopy(model)
    torch._dynamo.reset()
    fused.patch(torch.nn.Identity(), when="never")  # report() has nothing of before
    compiled = torch.compile(twin, backend=fused.backend, options={"when": "always", "inner": "aot_eager"})
    eager, ours = train(model, model, batches), train(twin, compiled, batches)
    return eager, ours, sum(record.fused for record in fused.report())


def draw(eager: list[float], ours: list[float], sites: int) -> str:
    high = max(*eager, *ours) * 1.05
    across, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(step: float, loss: float) -> str:
        return f"{LEFT + across * step / (len(eager) - 1):.1f} {TOP + down * (1 - loss / high):.1f}"

    def curve(losses: list[float], colour: str, more: str) -> str:
        path = "L".join(place(step, loss) for step, loss in enumerate(losses))
        return f'<path d="M{path}" fill="none" stroke="{colour}" {more}/>'

    def words(x: float, y: float, said: str, size: int = 11, anchor: str = "start", colour: str = INK) -> str:
        return f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="{colour}">{said}</text>'

    apart = max(abs(a - b) for a, b in zip(eager, ours, strict=True))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        words(12, 20, "Loss of a tiny GPT-2 on synthetic text, eager and with fused layers", 14),
        words(12, 40, "eager (wide line)", colour=EAGER),
        words(130, 40, f'backend="matmul_fused", {sites} sites fused', colour=OURS),
    ]
    for loss in range(int(high) + 1):
        start = place(0, loss)
        lines.append(f'<path d="M{start}H{WIDTH - RIGHT}" stroke="{FAINT}"/>')
        lines.append(words(LEFT - 8, float(start.split()[1]) + 4, str(loss), anchor="end"))
    for step in range(0, len(eager) + 1, 50):
        x = LEFT + across * min(step, len(eager) - 1) / (len(eager) - 1)
        lines.append(words(round(x, 1), HEIGHT - BOTTOM + 18, str(step), anchor="middle"))
    lines += [curve(eager, EAGER, 'stroke-width="5" opacity="0.6"'), curve(ours, OURS, 'stroke-width="1.5"')]
    said = f"{len(eager)} steps of AdamW, float32, torch {torch.__version__}, transformers {hf.__version__}, CPU"
    lines.append(
        words(12, HEIGHT - 12, f"{said}; losses differ by at most {apart:.1e}; python bench/train_gpt2.py", 10)
    )
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(draw(*both()))
