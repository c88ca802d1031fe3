"""tune() and warmup(): the kernels of given calls measured on this machine, and what was found put in the tune store.

Not on the path of a call. What is stored reaches the plan through `store.apply`: at import, and after tune().
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from . import _core, console, report, store
from .report import Candidate, Explanation, engineering
from .testing import force_kernel
from .testing.timing import race

SECONDS = 0.2  # for a candidate
_HOPELESS = 20  # times the model's choice, as modelled: not measured, a call may take minutes
_WORTH = 0.97  # of the time of the model's choice: what is no faster than that is noise


@dataclass(frozen=True)
class Measured:
    """A kernel that takes a call, and its time."""

    kernel: str
    modelled: float
    seconds: float | None
    """Seconds of a call; None: not measured, see why."""
    same_bits: bool
    """True if it gives the bits of the model's choice, whatever the values."""
    why: str
    """Why it is not the choice; "" for the choice."""


@dataclass(frozen=True)
class Tuned:
    """What tune() found for a call."""

    problem: str
    """The problem in words, as explain says it."""
    device: str
    kernel: str
    """The kernel that runs from now on."""
    modelled: str
    """The kernel of the cost model."""
    candidates: tuple[Measured, ...]
    """Every kernel that takes the call, fastest first."""


class Tuning(list[Tuned]):
    """The calls of tune(), in their order. Prints as a table."""

    stored: str = ""
    """Where the choices are, or why they are nowhere."""

    def __repr__(self) -> str:
        rows = [("problem", "kernel", "measured", "modelled", "")]
        for tuned in self:
            name = tuned.problem.partition(";")[0]
            for row in tuned.candidates:
                measured = "" if row.seconds is None else engineering(row.seconds, "s")
                rows.append((name, row.kernel, measured, engineering(row.modelled, "s"), row.why or "chosen"))
                name = ""
        return report.table(rows, f"matmul_fused.tune: {len(self)} problems, {self.stored}")


def _calls(problems: Any) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """(arguments, keywords) of every problem."""
    wanted = "a list of calls of matmul_fused: each a tuple of its arguments, or a dict of them by name"
    if isinstance(problems, (str, bytes, Mapping)) or not isinstance(problems, Iterable):
        raise TypeError(f"problems is a {type(problems).__qualname__}; it must be {wanted}")
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    for number, problem in enumerate(problems):
        if isinstance(problem, tuple):
            calls.append((problem, {}))
        elif isinstance(problem, Mapping) and all(isinstance(name, str) for name in problem):
            calls.append(((), dict(problem)))
        else:
            raise TypeError(f"problems[{number}] is a {type(problem).__qualname__}; problems must be {wanted}")
    return calls


@contextmanager
def _named(number: int) -> Iterator[None]:
    """What is raised inside says which problem it is about."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in problems[{number}]")
        raise


def _wait_for(device: str) -> Callable[[], object]:
    if device == "cpu":
        return lambda: None
    from .testing.devices import Device

    return Device(device).synchronize


def _forced(kernel: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Callable[[int], None]:
    def run(calls: int) -> None:
        with force_kernel(kernel):
            for _ in range(calls):
                _core.matmul_fused(*arguments, **keywords)

    return run


def _choose(explained: Explanation, seconds: Mapping[str, float], different: bool) -> tuple[str, list[Measured]]:
    """The kernel to run, and every candidate with what is against it."""
    rows = [row for row in explained.candidates if row.reason is None]
    allowed = {row.name: seconds[row.name] for row in rows if row.name in seconds and (row.same_bits or different)}
    best = min(allowed, key=allowed.__getitem__)
    if allowed[best] > _WORTH * seconds[explained.modelled]:
        best = explained.modelled

    def why(row: Candidate) -> str:
        if row.name == best:
            return ""
        if row.name not in seconds:
            return f"not measured: modelled at more than {_HOPELESS} times the model's choice"
        if row.name not in allowed and seconds[row.name] < allowed[best]:
            return "faster, with other bits: allow_different_bits=True takes it"
        if not row.same_bits:
            return "other bits"
        return "not 3 % faster" if seconds[row.name] < allowed[best] else "slower"

    measured = [Measured(row.name, row.seconds or 0.0, seconds.get(row.name), row.same_bits, why(row)) for row in rows]
    return best, sorted(measured, key=lambda row: (row.seconds is None, row.seconds or row.modelled))


def _measure(
    arguments: tuple[Any, ...], keywords: dict[str, Any], seconds: float, different: bool
) -> tuple[Explanation, Tuned]:
    explained = report.explain(*arguments, **keywords)
    taking = [row for row in explained.candidates if row.reason is None]
    limit = _HOPELESS * next(row.seconds or 0.0 for row in taking if row.name == explained.modelled)
    arms = {
        row.name: _forced(row.name, arguments, keywords)
        for row in taking
        if (row.seconds or 0.0) <= limit or row.name == explained.modelled
    }
    times = race(arms, seconds * len(arms), wait=_wait_for(explained.device))
    kernel, rows = _choose(explained, times, different)
    return explained, Tuned(explained.problem, explained.device, kernel, explained.modelled, tuple(rows))


_tuning = threading.Lock()


def _after_fork() -> None:
    global _tuning
    _tuning = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def tune(
    problems: Iterable[tuple[Any, ...] | Mapping[str, Any]],
    *,
    allow_different_bits: bool = False,
    seconds: float = SECONDS,
) -> Tuning:
    """Measure every kernel that takes these calls, and keep the fastest one for calls like them in the tune store.

    problems: calls of matmul_fused, each a tuple of its arguments or a dict of them by name, with real arrays: device,
    dtypes, shapes, strides, alignment and epilogue are those of the calls to come (values and numbers such as alpha do
    not matter). The calls are made, and write to their out. seconds: about what a kernel is measured for.

    Kept are kernels that give the same bits as the cost model's choice, whatever the values: the same accumulator, and
    sums over K cut and ordered alike. allow_different_bits=True keeps the fastest one, whose results may differ within
    the bound. The CPU's kernels all have bits of their own.

    The store is a file in MATMUL_FUSED_CACHE_DIR (default: matmul_fused in XDG_CACHE_HOME or ~/.cache), for this
    device, driver and version; every process reads it at import, unless MATMUL_FUSED_TUNE=off. Same values, shapes,
    strides, alignment, device, version and tune store give the same bits. OSError: the folder is another user's or
    cannot be written; nothing is measured then.
    """
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not 0 < seconds <= 60:
        raise ValueError(f"seconds is {seconds!r}; it must be a number above 0, up to 60")
    calls = _calls(problems)
    made = Tuning()
    kept = store.default() if store.enabled() else None
    if kept is not None:
        kept.check()
    found: dict[str, dict[str, Any]] = {}
    with _tuning:
        for number, (arguments, keywords) in enumerate(console.progress(calls, "tune")):
            with _named(number):
                explained, tuned = _measure(arguments, keywords, float(seconds), bool(allow_different_bits))
            made.append(tuned)
            best = next(row for row in tuned.candidates if row.kernel == tuned.kernel)
            stays = tuned.kernel == tuned.modelled
            found.setdefault(explained.device, {})[explained.key] = None if stays else [tuned.kernel, best.seconds]
        if kept is None:
            made.stored = "not stored: MATMUL_FUSED_TUNE is off"
            return made
        for device, choices in found.items():
            kept.put("kernels", store.device_name(device), choices)
        made.stored = f"stored in {kept.path}"
        store.apply(kept)
    return made


def warmup(problems: Iterable[tuple[Any, ...] | Mapping[str, Any]]) -> None:
    """Make these calls ready: their plans are made and cached, the CPU's threads started, a GPU's code loaded.

    problems: as for tune(). Every call is made twice, and writes to its out; on a GPU the device is waited for.
    """
    devices = set()
    for number, (arguments, keywords) in enumerate(_calls(problems)):
        with _named(number):
            devices.add(report.explain(*arguments, **keywords).device)
            for _ in range(2):  # a plan is kept when it is made for the second time
                _core.matmul_fused(*arguments, **keywords)
    for device in sorted(devices):
        _wait_for(device)()
