"""explain() and info(): records and tables made of the facts that `_core` returns."""

from __future__ import annotations

import inspect
import logging
import math
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import _core


def table(rows: Sequence[tuple[str, ...]], title: str = "") -> str:
    """Rows of text as aligned columns, below a title."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([title, *("  " + line for line in lines)] if title else lines)


def engineering(value: float, unit: str) -> str:
    """1.2e-05, "s" -> "12 us"; 3.4e9, "flop" -> "3.4 Gflop"."""
    power = min(max(math.floor(math.log10(value) / 3), -3), 4) if value > 0 else 0
    return f"{value / 1000.0**power:.3g} {'num kMGT'[power + 3].strip()}{unit}"


@dataclass(frozen=True)
class Candidate:
    """A kernel of the operands' device, and what it would do with a call."""

    name: str
    family: str
    seconds: float | None
    """Time that the cost model predicts: modelled, not measured; None if the kernel does not take the call."""
    reason: str | None
    """Why the kernel does not take the call; None if it does."""
    same_bits: bool
    """True if it gives the bits of the cost model's choice, whatever the values."""


@dataclass(frozen=True, repr=False)
class Explanation:
    """What would run for a call. Prints as a table."""

    problem: str
    """The problem in words: shapes, dtypes, layouts and epilogue."""
    kernel: str
    """Name of the kernel that runs; testing.force_kernel knows it by this name."""
    family: str
    """Its family: kernels that share their host code, and differ in tile, dtype and layout; also a name to force."""
    tile: tuple[int, int, int]
    """Elements of m, n and k that the kernel works on at a time."""
    threads: int
    launches: tuple[str, ...]
    """On a GPU: the kernels that are launched, in their order; none if there is nothing to compute."""
    workspace: int
    """On a GPU: bytes of scratch memory of the call, which A's library allocates, else this one."""
    flops: float
    """Floating point operations of the products."""
    seconds: float
    """Time that the cost model predicts: modelled, not measured."""
    rows_independent_of_m: bool
    """True if a row of the result has the same bits whatever M is."""
    candidates: tuple[Candidate, ...]
    """Every kernel of this build for the device of the operands."""
    modelled: str
    """The kernel that the cost model chooses; another one than `kernel` where tune() found a faster one."""
    tuned: float | None
    """Seconds that tune() measured, if the kernel was chosen by the tune store; else None."""
    key: str
    """What the tune store keeps a choice for such calls under."""
    device: str

    @property
    def refused(self) -> tuple[tuple[str, str], ...]:
        """(name, reason) of every candidate that does not take the call."""
        return tuple((row.name, row.reason) for row in self.candidates if row.reason is not None)

    def __repr__(self) -> str:
        rows = [
            ("problem", self.problem),
            ("kernel", self.kernel),
            *([("tuned", f"{engineering(self.tuned, 's')}, measured by tune")] if self.tuned else []),
            ("tile", "{} x {} x {} (m, n, k)".format(*self.tile)),
            ("threads", str(self.threads)),
            *([("launches", ", ".join(self.launches))] if self.launches[1:] else []),
            *([("workspace", f"{self.workspace} bytes")] if self.workspace else []),
            ("work", engineering(self.flops, "flop")),
            ("time", engineering(self.seconds, "s") + ", modelled"),
            ("a row's bits", "independent of M" if self.rows_independent_of_m else "may depend on M"),
            *(
                (f"or {row.name}", engineering(row.seconds, "s") + ", modelled")
                for row in self.candidates
                if row.seconds is not None and row.name != self.kernel
            ),
            *((f"not {name}", reason) for name, reason in self.refused),
        ]
        return table(rows, "matmul_fused.explain")


@dataclass(frozen=True, repr=False)
class Info:
    """The state of the package on this machine. Prints as a table."""

    version: str
    backends: tuple[tuple[str, str], ...]
    """(back end, "on" or why it is off)."""
    devices: tuple[tuple[str, str], ...]
    """(GPU such as "rocm:0", what it is and which code runs on it)."""
    device_code: str
    """The GPU architectures that this build has code for, or why there are none."""
    kernels: tuple[str, ...]
    """Every CPU kernel of this build, best first."""
    gpu_kernels: tuple[str, ...]
    """Every GPU kernel of this build."""
    gpu_families: tuple[str, ...]
    """Their families, best first."""
    gpu_steps: tuple[str, ...]
    """Further kernels for GPUs, which are no GEMM: launches in the plans of those."""
    cpu_features: str
    """Instruction sets found that kernels use."""
    cpu_unused: str
    """Instruction sets for products that this CPU has and no kernel uses."""
    threads: int
    """Threads of the CPU back end, the calling thread included."""
    libraries: tuple[tuple[str, str | None, str | None], ...]
    """(array library, version installed or None, its folder or None); none of them is imported to find out."""
    environment: tuple[tuple[str, str, str | None], ...]
    """(variable, meaning, value at import or None)."""
    ignored: tuple[tuple[str, str], ...]
    """(variable, why its value or a part of it is ignored)."""

    def __repr__(self) -> str:
        why = dict(self.ignored)
        variables = (
            (name, f"not set: {meaning}" if value is None else printable(value))
            for name, meaning, value in self.environment
        )
        variables = ((name, f"{text} ({why[name]})" if name in why else text) for name, text in variables)
        rows = [
            ("Python", f"{platform.python_version()}, {platform.platform()}"),
            *self.backends,
            *self.devices,
            ("GPU code", self.device_code),
            ("CPU features", f"{self.cpu_features or 'none'} used by kernels; not used: {self.cpu_unused or 'none'}"),
            ("threads", str(self.threads)),
            ("kernels", ", ".join(self.kernels)),
            ("GPU kernels", ", ".join(self.gpu_families)),
            ("GPU steps", ", ".join(dict.fromkeys(name.rsplit("_", 3)[0] for name in self.gpu_steps))),
            *(
                (name, f"{version} in {where}" if version else "not installed")
                for name, version, where in self.libraries
            ),
            *variables,
        ]
        return table(rows, f"matmul_fused {self.version}")


def device_kernels() -> list[dict[str, Any]]:
    """The facts of every GPU kernel of this build."""
    return [_core.device_kernel(i) for i in range(_core.device_manifest()["kernels"])]


def _rows_for(device: str) -> list[dict[str, Any]]:
    prefix = "SM_" if device.startswith("cuda") else "GFX"
    return [row for row in device_kernels() if row["gemm"] and (row["targets"] == "ALL" or prefix in row["targets"])]


def kernels_for(device: str) -> tuple[str, ...]:
    """The kernels for a kind of GPU, "cuda" or "rocm:1": another's are not candidates there."""
    return tuple(row["instance"] for row in _rows_for(device))


def families_for(device: str) -> tuple[str, ...]:
    """Their families."""
    return tuple(dict.fromkeys(row["family"] for row in _rows_for(device)))


def explain(*args: object, **kwargs: object) -> Explanation:
    """What matmul_fused would run for these arguments: every kernel of the device with its time, or why not.

    Takes the arguments of matmul_fused, raises what it would raise, computes nothing and writes nothing.
    """
    facts = _core.explain(*args, **kwargs)
    candidates = tuple(Candidate(*row) for row in facts["candidates"])
    facts |= {"launches": tuple(facts["launches"]), "candidates": candidates, "tuned": facts["tuned"] or None}
    return Explanation(**facts)


explain.__signature__ = inspect.signature(_core.explain)  # type: ignore[attr-defined]


def _installed(name: str) -> tuple[str, str | None, str | None]:
    """(name, version, folder) of a library; no version and no folder where it cannot be found for an import."""
    import importlib.metadata  # 40 ms: not at import
    import importlib.util

    try:
        version, found = importlib.metadata.version(name), importlib.util.find_spec(name)
    except (ImportError, ValueError):  # PackageNotFoundError is an ImportError
        found = None
    return (name, version, os.path.dirname(found.origin)) if found and found.origin else (name, None, None)


def printable(text: str) -> str:
    """Text with escapes for what a terminal cannot show or would obey."""
    return repr(text)[1:-1]


def ignored(facts: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """What the environment says in vain: (variable, why)."""
    level = next(value for name, _, value in facts["environment"] if name == "MATMUL_FUSED_LOG")
    rows = [(name, printable(why)) for name, why in facts["ignored"]]
    if level is not None and level.upper() not in logging.getLevelNamesMapping():
        rows.append(("MATMUL_FUSED_LOG", "ignored, the levels of logging are debug, info, warning, error and critical"))
    return tuple(rows)


# Of /proc/cpuinfo, what multiplies matrices or converts their elements.
_INSTRUCTION_SETS = (
    "avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_fp16", "avx512_vnni", "avx_vnni", "amx_tile", "amx_bf16",
    "amx_int8", "amx_fp16", "asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2",
)  # fmt: skip
_USED_AS = {"avx512": "avx512f", "amx_bf16": "amx_tile"}


def _unused(used: list[str]) -> str:
    """Names of the CPU's instruction sets that are not among the used ones."""
    try:
        with open("/proc/cpuinfo") as file:
            lines = [line for line in file if line.lower().startswith(("flags", "features"))]
    except OSError:
        return ""
    has = set(lines[0].split()) if lines else set()
    taken = {*used, *(_USED_AS.get(name, name) for name in used)}
    if platform.machine() == "aarch64":
        taken.add("asimd")  # of the baseline
    return " ".join(name for name in _INSTRUCTION_SETS if name in has and name not in taken)


def info() -> Info:
    """Back ends, devices, kernels, libraries and environment variables as matmul_fused sees them. Opens GPU drivers."""
    facts, gpus = _core.info(), _core.gpus()
    return Info(
        version=facts["version"],
        backends=(("CPU", "on"), *gpus["backends"]),
        devices=tuple(gpus["devices"]),
        device_code=gpus["code"],
        kernels=tuple(facts["kernels"]),
        gpu_kernels=tuple(facts["gpu_kernels"]),
        gpu_families=tuple(facts["gpu_families"]),
        gpu_steps=tuple(row["instance"] for row in device_kernels() if not row["gemm"]),
        cpu_features=facts["cpu_features"],
        cpu_unused=_unused(facts["cpu_features"].split()),
        threads=facts["threads"],
        libraries=tuple(map(_installed, ("numpy", "torch", "jax", "ml_dtypes"))),
        environment=tuple(facts["environment"]),
        ignored=ignored(facts),
    )
