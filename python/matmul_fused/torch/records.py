"""What `patch` and the backend of torch.compile say of each site: records, and the table they print as."""

from __future__ import annotations

from dataclasses import dataclass

from matmul_fused.report import engineering, table


@dataclass(frozen=True)
class Record:
    """What became of one site."""

    site: str
    """Name of the module within the model; "" is the model itself."""
    form: str
    """ "linear" (with its activation), "gate/up", "packed" (one weight for both), or "residual" (and an addition)."""
    activation: str
    fused: bool
    why: str
    """What was done, or why the site was left alone."""
    ours: float | None = None
    """Seconds of the fused form as they were measured; None: not measured."""
    theirs: float | None = None
    """Seconds of the form that it replaces."""


class Report(list[Record]):
    """Records of the sites of a model, in its order. Prints as a table."""

    def __repr__(self) -> str:
        rows: list[tuple[str, ...]] = [("site", "form", "activation", "", "ours", "theirs", "why")]
        for record in self:
            times = ("" if time is None else engineering(time, "s") for time in (record.ours, record.theirs))
            done = "fused" if record.fused else "left"
            rows.append((record.site or "(model)", record.form, record.activation, done, *times, record.why))
        if not any(record.ours for record in self):  # two empty columns
            rows = [(*row[:4], row[6]) for row in rows]
        return table(rows, f"matmul_fused.torch: {sum(record.fused for record in self)} fused")
