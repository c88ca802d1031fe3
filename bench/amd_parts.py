"""The table csrc/gpu/parts.def, for the programs that model AMD GPUs."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

TABLE = Path(__file__).resolve().parents[1] / "csrc/gpu/parts.def"


@dataclass(frozen=True)
class Part:
    """The columns of the table, in their order."""

    arch: str
    die: int
    other_die: int
    memory: float
    reached: float
    cache: float
    flops_f16: float
    flops_bf16: float
    flops_f32: float
    flops_f64: float
    read: float
    flight: float
    hertz: float
    wave: int
    issue: int


@cache
def parts() -> dict[str, Part]:
    """By architecture."""
    found = {}
    for row in re.findall(r"^MMF_GPU_PART\((.*)\)$", TABLE.read_text(), re.MULTILINE):
        arch, *numbers = row.split(", ")
        if len(numbers) != len(fields(Part)) - 1:
            raise ValueError(f"{TABLE}: {row} has other columns than {Part.__name__}")
        found[arch.strip('"')] = Part(arch.strip('"'), *map(float, numbers))  # type: ignore[arg-type]
    return found
