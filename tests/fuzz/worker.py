"""One process of the fuzzer: python -m fuzz.worker SEED FIRST STEP CALLS STATUS, or SEED FIRST-LAST to repeat some.

Worlds FIRST, FIRST + STEP, ... are played until so many calls of matmul_fused were made. STATUS is a small file that
holds the number of the call that is being made, so that the parent can name it whatever happens here; the last line of
stdout is a JSON report. Every choice follows from the seed and the number of the call alone.
"""

from __future__ import annotations

import collections
import ctypes
import gc
import json
import mmap
import os
import struct
import sys
import traceback
import warnings
from pathlib import Path
from random import Random
from typing import Any

import ml_dtypes  # noqa: F401  (without it a bfloat16 result of NumPy operands is refused)
import numpy as np

import matmul_fused as mf

from . import around, hostile, refuse
from .draw import (
    ACTIVATIONS,
    GATED,
    Call,
    assert_same_references,
    check_explained,
    check_prepacked,
    check_valid,
    counted,
    references,
)
from .oracle import tables
from .producers import Capsule
from .world import CALLS, World, pick

# Memory that the second half of a run may leave: caches that fill up, and next to nothing for each call.
LEAK_BYTES, LEAK_RATE = 2 << 20, 0.25


class Player:
    """Makes calls and counts them."""

    def __init__(self, seed: int, talk: bool = False) -> None:
        self.seed, self.talk = seed, talk
        self.world: World | None = None
        self.index = 0
        self.made: collections.Counter[str] = collections.Counter()
        # A kind of refusal that is never made stays at 0, and its parent says so.
        self.rows = collections.Counter(
            dict.fromkeys((row.__name__ for row in refuse.ROWS + hostile.ROWS + around.ROWS), 0)
        )
        self.random = Random()

    @property
    def calls(self) -> int:
        return self.made["valid"] + self.made["refused"]

    def enter(self, number: int) -> None:
        self.world = None
        self.world = World(self.seed, number)
        self.world.enter()

    def play(self, index: int) -> None:
        """Call number index: a valid one, and now and then more of the same world."""
        self.index = index
        rng, world = self.random, self.world
        assert world is not None
        rng.seed(self.seed << 40 | index)
        call = Call(world, rng)
        dice = rng.random()
        if self.talk:
            print(f"call {index}: {describe(world, call)}", flush=True)
        if world.kernel == "cpu_reference" and call.refused_by_reference:
            self.refused(world, call, call.arguments, call.keywords, NotImplementedError, "packed for the reference")
        else:
            check_valid(world, call)
            self.made["valid"] += 1
            if dice < 0.01:
                check_explained(world, call)
                self.made["explain"] += 1
        if dice < 0.02:
            check_prepacked(world, call)
            self.made["prepack"] += 1
        elif dice < 0.22:
            self.fault(world, call, pick(rng, refuse.ROWS), rng)
        elif dice < 0.30:
            self.lie(world, call, pick(rng, hostile.ROWS), rng)
        elif dice < 0.32:
            self.disturb(world, call, around.draw(rng), rng)

    def fault(self, world: World, call: Call, row: refuse.Row, rng: Random) -> None:
        arguments, keywords = list(call.arguments), dict(call.keywords)
        error = row(world, call, arguments, keywords, rng)
        if error is not None:
            self.refused(world, call, arguments, keywords, error, row.__name__)

    def lie(self, world: World, call: Call, row: hostile.Row, rng: Random) -> None:
        name = pick(rng, ("A", refuse.operand(world, call, rng), "out", "preactivation"))
        view = refuse.like(world, call, name) if name != "A" else call.a.array
        capsule = Capsule(view, name in ("out", "preactivation") or rng.random() < 0.7)
        error = row(capsule, view, rng)
        arguments, keywords = list(call.arguments), dict(call.keywords)
        refuse.put(name, capsule, arguments, keywords)
        if error is None:
            return
        if error is not hostile.VALID:
            self.refused(world, call, arguments, keywords, error, row.__name__)
        elif name == "A" and not (world.kernel == "cpu_reference" and call.refused_by_reference):
            call.a = call.a._replace(argument=capsule, kind="capsule")
            call.arguments, call.keywords = arguments, keywords
            if self.talk:
                print(f"  again, {row.__name__}: {capsule.fields}", flush=True)
            check_valid(world, call)
            self.made["valid"] += 1
            self.rows[row.__name__] += 1

    def disturb(self, world: World, call: Call, row: around.Row, rng: Random) -> None:
        if self.talk:
            print(f"  again, {row.__name__}", flush=True)
        if row(world, call, rng):
            self.made["valid"] += 1
            self.rows[row.__name__] += 1

    def refused(
        self, world: World, call: Call, arguments: list[Any], keywords: dict[str, Any], error: Any, name: str
    ) -> None:
        """It must raise just this, write nothing and keep nothing."""
        if self.talk:
            print(f"  {name}: {arguments} {keywords}", flush=True)
        call.prepare()
        before = [output.raw.tobytes() for output in call.outputs]
        items = counted(arguments, keywords)
        counts = references(items)
        wanted = error if isinstance(error, tuple) else (error,)
        text = None
        try:
            mf.matmul_fused(*arguments, **keywords)
        except BaseException as error_raised:  # whatever it is, it is judged
            raised: BaseException | None = error_raised
            text = f"{type(raised).__name__}: {raised}"
            good = type(raised) in wanted and (str(raised) or not isinstance(raised, ValueError | TypeError))
            while raised is not None:  # tracebacks and what they hold must not outlive this
                raised.__traceback__, raised = None, raised.__cause__
        if text is None:
            raise AssertionError(f"{name} was not refused, {error} was wanted")
        assert good, f"{name} gave {text[:500]}, {error} was wanted"
        assert_same_references(items, counts)
        assert [output.raw.tobytes() for output in call.outputs] == before, f"{name}: an output was written"
        for target in ("out", "preactivation"):
            array = keywords.get(target)
            array = array.view if isinstance(array, Capsule) else array
            if isinstance(array, np.ndarray) and all(array is not output.view for output in call.outputs):
                assert not array.any(), f"{name}: {target} was written"
        self.made["refused"] += 1
        self.rows[name] += 1


def describe(world: World, call: Call) -> str:
    kinds = ",".join(form.kind for form in (call.a, *call.b, *call.bias))
    return (
        f"{world.dtype} A {world.a_shape} B {world.b_shape} kernel {world.kernel} threads {world.threads} ({kinds}) "
        f"activation {call.activation} layout {call.layout} alpha {call.alpha!r} C {call.c is not None} x {call.scale} "
        f"multiply {call.multiply is not None} out {call.out and call.out.kind} {call.out_dtype} "
        f"preactivation {call.preactivation and call.preactivation.dtype} in place {call.c_values is not None}"
    )


def live_bytes() -> int | None:
    """Bytes that the process has allocated, by AddressSanitizer's count; None without it."""
    try:
        count = ctypes.CDLL(None).__sanitizer_get_current_allocated_bytes
    except AttributeError:
        return None
    count.restype = ctypes.c_size_t
    gc.collect()
    return int(count())


def silence(path: Path) -> int:
    """Send stdout and stderr to a file, which is to stay empty."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    return file


def leaked(samples: list[tuple[int, int]]) -> tuple[int, int]:
    """Bytes that the second half of a run left behind, and its calls; samples: (calls, live bytes) after each world.

    The least of the last eighth against the least of the middle one: worlds differ, what is left of none grows.
    """
    part = len(samples) // 8
    if part < 2:
        return 0, 0
    middle, last = samples[3 * part : 4 * part], samples[-part:]
    return min(live for _, live in last) - min(live for _, live in middle), last[0][0] - middle[-1][0]


def run(seed: int, first: int, step: int, calls: int, status: Path) -> dict[str, Any]:
    """Play worlds; the report."""
    player, report = Player(seed), {"failure": None}
    with status.open("r+b") as file:
        now = mmap.mmap(file.fileno(), 8)
    output = silence(status.with_suffix(".output"))
    samples, number = [], first
    try:
        while player.calls < calls:
            player.enter(number)
            for index in range(number * CALLS, (number + 1) * CALLS):
                struct.pack_into("=q", now, 0, index)
                player.play(index)
            player.world.leave()
            assert os.fstat(output).st_size == 0, f"something was printed: {os.pread(output, 2000, 0)!r}"
            player.world = None
            live = live_bytes()
            if live is not None:
                samples.append((player.calls, live))
            number += step
        grown, since = leaked(samples)
        assert grown < LEAK_BYTES + LEAK_RATE * since, f"{grown} bytes were left behind by {since} calls"
    except BaseException as error:  # reported, with the number of the call
        text = "".join(traceback.format_exception(error))
        what = describe(player.world, Call(player.world, reseeded(player))) if player.world else ""
        report["failure"] = {"call": player.index, "error": text, "what": what}
    return report | {"made": player.made, "rows": player.rows, "leak": leaked(samples)[0]}


def reseeded(player: Player) -> Random:
    return Random(player.seed << 40 | player.index)


def repeat(seed: int, text: str) -> None:
    """Play the calls FIRST-LAST again, and say what they are."""
    first, _, last = text.partition("-")
    player, number = Player(seed, talk=True), -1
    for index in range(int(first), int(last or first) + 1):
        if index // CALLS != number:
            number = index // CALLS
            player.enter(number)
        player.play(index)
    print(f"{dict(player.made)}: nothing found")


def warm_up() -> None:
    """Take what stays before anything is measured: tables, NumPy's cache of small blocks, the pool's workspace."""
    for activation in ACTIVATIONS + GATED:
        tables(activation, "float32"), tables(activation, "float64")
    for size in range(1, 1025):
        blocks = [np.empty(size, np.uint8) for _ in range(8)]
        del blocks
    mf.set_num_threads(3)
    for dtype in ("float32", "float64"):
        wide = np.zeros((800, 300), dtype)
        mf.matmul_fused(wide.T, wide, activation="swiglu")


def main() -> None:
    np.seterr(all="ignore")
    warnings.simplefilter("ignore")
    warm_up()
    gc.disable()
    gc.freeze()
    if len(sys.argv) == 3:
        repeat(int(sys.argv[1]), sys.argv[2])
        return
    seed, first, step, calls = map(int, sys.argv[1:5])
    stdout = os.dup(1)
    report = run(seed, first, step, calls, Path(sys.argv[5]))
    os.write(stdout, (json.dumps(report) + "\n").encode())
    os._exit(1 if report["failure"] else 0)


if __name__ == "__main__":
    main()
