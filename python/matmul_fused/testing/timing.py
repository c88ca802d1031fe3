"""Timing of rival ways to do the same, side by side in one run.

Role: the protocol of every bench; tests assert and never time. Arms are interleaved round by round, so
that a change of the machine's clock meets all of them, in an order drawn anew, so that none always runs after the same
one; each arm goes through copies of its data that together outgrow the cache; medians are compared within a round.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

T = TypeVar("T")
Call = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """One arm. Times are seconds per call."""

    name: str
    median: float
    best: float
    spread: float  # (third quartile - first) / median: what a ratio of two arms is worth
    ratio: float  # median over the rounds of (this arm / first arm): below 1 is faster than the first
    calls: int  # timed calls in all
    samples: tuple[float, ...]  # one per round

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def rotate(make: Callable[[int], T], nbytes: int, cache_bytes: int = 64 << 20, most: int = 64) -> list[T]:
    """Copies of an arm's data, made by make(0), make(1), ..., that together outgrow the cache.

    nbytes: of one copy. cache_bytes: of the last-level cache, or more. most: copies at most.
    """
    return [make(i) for i in range(min(most, 1 + math.ceil(cache_bytes / max(nbytes, 1))))]


def settle(least: float = 0.01, most: float = 0.5) -> None:
    """Sleep until the threads of this process rest: those of OpenMP and OpenBLAS spin on after a call is done.

    least: seconds at a time. most: seconds in all.
    """
    start = before = time.perf_counter()
    busy = True
    while busy and before - start < most:
        used = time.process_time()
        time.sleep(least)
        now = time.perf_counter()
        busy = time.process_time() - used > 0.1 * (now - before)
        before = now


def measure(
    arms: Mapping[str, Sequence[Call]],
    *,
    rounds: int = 15,
    sample_seconds: float = 0.01,
    warm_up_seconds: float = 0.05,
    budget_seconds: float = math.inf,
    between: Call | None = None,
    synchronise: Call | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Timing]:
    """Time the arms; the first is what ratios are relative to.

    arms: name -> calls without arguments that do the same work on different copies (see rotate).
    rounds: samples per arm; five at least, fewer than rounds once they took budget_seconds.
    sample_seconds: least length of a sample. between: runs before every sample, untimed, such as settle.
    synchronise: waits for the device.
    """
    pause, wait = between or (lambda: None), synchronise or (lambda: None)
    turn = dict.fromkeys(arms, 0)

    def run(name: str, calls: int) -> float:
        copies = arms[name]
        first = turn[name]
        turn[name] = (first + calls) % len(copies)
        todo = [copies[(first + i) % len(copies)] for i in range(calls)]
        pause()
        wait()
        start = clock()
        for call in todo:
            call()
        wait()
        return clock() - start

    repeats = {}
    for name in arms:
        run(name, 1)
        calls, spent = 1, run(name, 1)
        total = spent
        while spent < sample_seconds or total < warm_up_seconds:
            if spent < sample_seconds:
                calls = max(calls + 1, math.ceil(calls * min(10.0, 1.2 * sample_seconds / max(spent, 1e-9))))
            spent = run(name, calls)
            total += spent
        repeats[name] = calls
    names, order = list(arms), random.Random(0)
    samples: dict[str, list[float]] = {name: [] for name in names}
    begin = clock()
    for number in range(rounds):
        if number >= 5 and clock() - begin > budget_seconds:
            break
        order.shuffle(names)
        for name in names:
            samples[name].append(run(name, repeats[name]) / repeats[name])
    first = samples[next(iter(arms))]
    return [_summary(name, samples[name], first, repeats[name]) for name in arms]


def race(
    arms: Mapping[str, Callable[[int], object]], budget_seconds: float, *, wait: Call = lambda: None
) -> dict[str, float]:
    """Seconds of a call of each arm, for a decision rather than a report: medians of what take_turns() gives."""
    samples = take_turns(arms, budget_seconds, wait=wait)
    return {name: max(statistics.median(taken), 1e-9) for name, taken in samples.items()}


def take_turns(
    arms: Mapping[str, Callable[[int], object]],
    budget_seconds: float,
    *,
    rounds: int = 25,
    sample_seconds: float = 0.0005,
    wait: Call = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of a call of each arm, round by round.

    arms: name -> what makes so many calls. Each makes one that does not count, then one that does; more samples follow
    while they fit into the budget.
    """

    def sample(run: Callable[[int], object], calls: int) -> float:
        wait()
        start = clock()
        run(calls)
        wait()
        return (clock() - start) / calls

    begin = clock()
    for run in arms.values():
        run(1)
    samples = {name: [sample(run, 1)] for name, run in arms.items()}
    calls = {name: max(1, math.ceil(sample_seconds / max(taken[0], 1e-7))) for name, taken in samples.items()}
    for _ in range(rounds):
        if clock() - begin + sum(calls[name] * taken[-1] for name, taken in samples.items()) > budget_seconds:
            break
        for name, run in arms.items():
            samples[name].append(sample(run, calls[name]))
    return samples


def _summary(name: str, own: list[float], first: list[float], calls: int) -> Timing:
    median = statistics.median(own)
    quartiles = statistics.quantiles(own, n=4) if len(own) > 1 else (median, median, median)
    ratio = statistics.median(x / y for x, y in zip(own, first, strict=True))
    spread = (quartiles[2] - quartiles[0]) / median
    return Timing(name, median, min(own), spread, ratio, calls * len(own), tuple(own))
