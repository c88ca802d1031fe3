"""A roofline: rate against arithmetic intensity, both logarithmic. Role: drawn on by amd_roofline, cpu_roofline."""

from __future__ import annotations

import math
from dataclasses import dataclass

from picture import FAINT, INK, words


@dataclass(frozen=True)
class Plane:
    """Pixels: left, top, base and width. Operations a second; a tick of the rates is so many of them."""

    left: float
    top: float
    base: float
    width: float
    intensities: tuple[float, float]
    rates: tuple[float, float]
    tick: float

    def point(self, intensity: float, rate: float) -> tuple[float, float]:
        x = self.left + _place(intensity, self.intensities, self.width)
        return round(x, 1), round(self.base - _place(rate, self.rates, self.base - self.top), 1)

    def roof(self, compute: float, memory: float, style: str = "", colour: str = INK) -> str:
        """Bytes a second up to where `compute` is less."""
        x0, y0 = self.point(self.intensities[0], memory * self.intensities[0])
        x1, y1 = self.point(compute / memory, compute)
        x2, _ = self.point(self.intensities[1], compute)
        return f'<path d="M{x0} {y0}L{x1} {y1}H{x2}" fill="none" stroke="{colour}"{style}/>'

    def axes(self) -> list[str]:
        lines = []
        for intensity in _decades(self.intensities):
            x, _ = self.point(intensity, self.rates[0])
            lines.append(f'<path d="M{x} {self.top}V{self.base}" stroke="{FAINT}"/>')
            lines.append(words(x, self.base + 14, f"{intensity:g}", "middle", 11))
        for rate in _decades((self.rates[0] / self.tick, self.rates[1] / self.tick)):
            _, y = self.point(self.intensities[0], rate * self.tick)
            lines.append(f'<path d="M{self.left} {y}H{self.left + self.width}" stroke="{FAINT}"/>')
            lines.append(words(self.left - 5, y + 4, f"{rate:g}", "end", 11))
        lines.append(words(self.left + self.width / 2, self.base + 32, "operations / byte", "middle", 11))
        return lines


def _place(x: float, limits: tuple[float, float], pixels: float) -> float:
    """Pixels from the low end."""
    return math.log(x / limits[0]) / math.log(limits[1] / limits[0]) * pixels


def _decades(limits: tuple[float, float]) -> list[int]:
    return [10**i for i in range(9) if limits[0] <= 10**i <= limits[1]]
