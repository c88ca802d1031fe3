"""The picture of bench_forward.py: time of what is replaced / time of ours, a bar for each arm of a case."""

from __future__ import annotations

import math

from picture import FAINT, INK, WIDTH, notes, words

LEFT, RIGHT, TOP, LINE, BAR = 230, 30, 64, 27, 9  # pixels; LINE: of one case
LOW, HIGH = 0.8, 8.0
TICKS = (0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
COLOURS = {"patched": "#2166ac", "backend": "#e08214"}
NAMES = {"patched": "patched, beside eager", "backend": "backend, beside torch.compile"}

Ratios = tuple[float, float, float]


def place(ratio: float) -> float:
    """The x of a ratio, logarithmic; what is beyond the scale lies at its end."""
    share = math.log(min(max(ratio, LOW), HIGH) / LOW) / math.log(HIGH / LOW)
    return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)


def draw(rows: list[tuple[str, dict[str, Ratios | None]]], source: str) -> str:
    """rows: of each case median and quartiles of ours / what it replaces, None where an arm was not timed."""
    bottom = TOP + LINE * len(rows)
    foot = notes(source, bottom + 20)
    height = bottom + 18 + 13 * len(foot)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        words(12, 20, "One forward: time of what is replaced / time of ours, above 1 ours is faster", size=14),
        *(words(12 + 190 * n, 38, said, size=11, colour=COLOURS[arm]) for n, (arm, said) in enumerate(NAMES.items())),
        words(12 + 190 * len(NAMES) + 40, 38, "line: quartiles of the rounds", size=11),
    ]
    for tick in TICKS:
        lines.append(f'<path d="M{place(tick)} {TOP - 4}V{bottom}" stroke="{INK if tick == 1 else FAINT}"/>')
        lines.append(words(place(tick), TOP - 8, f"{tick:g}", "middle", 11))
    for number, (case, found) in enumerate(rows):
        y = TOP + LINE * number + 4
        lines.append(words(LEFT - 8, y + BAR + 3, case, "end", 11))
        for bar, (arm, colour) in enumerate(COLOURS.items()):
            ratio = found.get(arm)
            if ratio is None:
                continue
            one, end, top = place(1), place(1 / ratio[0]), y + bar * (BAR + 1)
            low, high = place(1 / ratio[2]), place(1 / ratio[1])
            lines.append(
                f'<rect x="{min(one, end)}" y="{top}" width="{abs(end - one):.1f}" height="{BAR}" fill="{colour}"/>'
            )
            lines.append(f'<path d="M{low} {top + BAR / 2}H{high}" stroke="{INK}"/>')
    return "\n".join([*lines, *foot, "</svg>", ""])
