"""The conditions of a measurement: the machine, its settings, what else ran meanwhile. Role: read by bench_cpu.py."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import matmul_fused as mf
from matmul_fused import _core

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
SETTINGS = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "MATMUL_FUSED_", "TORCHINDUCTOR_")


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _cpuinfo(key: str) -> list[str]:
    lines = (line.partition(":") for line in _read("/proc/cpuinfo").splitlines())
    return [value.strip() for name, _, value in lines if name.strip() == key]


def last_level_cache() -> int:
    """Bytes; 32 MiB where the machine does not tell."""
    sizes = [_read(str(path)) for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(size[:-1]) << 10 for size in sizes if size.endswith("K")), default=32 << 20)


def first_cache() -> int:
    """Bytes for data; 32 KiB where the machine does not tell."""
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        size = _read(f"{index}/size")
        if _read(f"{index}/level") == "1" and _read(f"{index}/type") == "Data" and size.endswith("K"):
            return int(size[:-1]) << 10
    return 32 << 10


def clocks() -> list[int]:
    """MHz of each core now, from cpufreq, else /proc/cpuinfo (on a virtual machine a nominal figure); may be empty."""
    paths = sorted(Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_cur_freq"))
    return [int(_read(str(path))) // 1000 for path in paths] or [round(float(mhz)) for mhz in _cpuinfo("cpu MHz")]


def keep_heap() -> str:
    """Let this process keep memory that is freed, for results up to 32 MiB; what is in force, in words.

    Else large results are new pages in some calls and old ones in others, as the heap's top happens to lie: torch
    eager took 12 ms or 8 ms for one layer, all else the same.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    kept = mallopt is not None and mallopt(M_TRIM_THRESHOLD, 2**31 - 1) and mallopt(M_MMAP_THRESHOLD, 32 << 20)
    return "keeps what is freed" if kept else "is as the C library has it"


def _commit() -> str:
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "not a git checkout"


def kind() -> str:
    """The best instructions for 16-bit products here."""
    found = mf.info().cpu_features.split()
    return next((name for name in ("amx_bf16", "avx512", "avx2") if name in found), "portable").removesuffix("_bf16")


def table() -> str:
    """Which table of CPUs this machine's figures go to: its kind, and its cores where there are more than two."""
    cores = os.cpu_count() or 1
    return kind() + (f" {cores}" if cores > 2 else "")


def about(heap: str) -> dict[str, Any]:
    """Facts that must be equal for two results to share a table. heap: see keep_heap."""
    return {
        "heap": heap,
        "cpu": next(iter(_cpuinfo("model name")), platform.machine()),
        "cores": os.cpu_count(),
        "last_level_cache": last_level_cache(),
        "cpu_features": mf.info().cpu_features,
        "threads": {"matmul_fused": mf.get_num_threads(), "torch": torch.get_num_threads()},
        "versions": {
            "matmul_fused": mf.__version__,
            "torch": torch.__version__,
            "NumPy": np.__version__,
            "Python": platform.python_version(),
            "Linux": platform.release(),
        },
        "build": hashlib.sha256(Path(_core.__file__).read_bytes()).hexdigest()[:12],
        "settings": {name: value for name, value in sorted(os.environ.items()) if name.startswith(SETTINGS)},
    }


def sentence(facts: dict[str, Any]) -> str:
    """The conditions, for under a table."""
    threads, versions, settings = (
        ", ".join(f"{name} {value}" for name, value in facts[key].items())
        for key in ("threads", "versions", "settings")
    )
    cache = f"{facts['last_level_cache'] >> 20} MiB of last-level cache"
    parts = f"{facts['cpu']}, {facts['cores']} cores, {facts['cpu_features']}, {cache}", f"threads: {threads}", versions
    parts = *parts, f"settings: {settings or 'none'}", f"the heap {facts['heap']}", f"build {facts['build']}"
    return "; ".join(parts)


def quartiles(samples: Sequence[float]) -> tuple[float, float]:
    low, _, high = statistics.quantiles(samples, n=4)
    return low, high


def _ticks() -> list[int]:
    """Time of all cores since the start: user, nice, system, idle, iowait, irq, softirq, steal."""
    return [int(word) for word in _read("/proc/stat").split("\n", 1)[0].split()[1:9]]


class Snapshot:
    """Taken before a measurement, to tell afterwards what else the machine did."""

    def __init__(self) -> None:
        self.ticks, self.start, self.cpu = _ticks(), time.perf_counter(), time.process_time()

    def until_now(self) -> dict[str, Any]:
        seconds, own = time.perf_counter() - self.start, time.process_time() - self.cpu
        spent = [now - then for now, then in zip(_ticks(), self.ticks, strict=True)]
        used = sum(spent[:3] + spent[5:7]) / os.sysconf("SC_CLK_TCK")
        return {
            "commit": _commit(),
            "when": time.strftime("%Y-%m-%d %H:%M:%S %z"),
            "seconds": seconds,
            "clocks_mhz": clocks(),
            "load": os.getloadavg()[0],
            "others_cpu_share": max(0.0, used - own) / (seconds * (os.cpu_count() or 1)),
            "steal_share": spent[7] / sum(spent) if sum(spent) else 0.0,
        }
