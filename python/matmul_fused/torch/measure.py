"""Which of two forms of a site is faster here: timed once, then kept in the tune store.

Used by patch() and by the torch.compile backend. Both forms give right results, so that a decision changes time, and
bits within the bound. Nothing is timed inside a trace or a capture of a CUDA graph.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch

from matmul_fused import get_num_threads, store
from matmul_fused.testing.timing import take_turns

BUDGET = 0.05  # seconds for a site
WORTH = 0.97  # of theirs is what ours has to stay below: a tie is a loss, by noise or by what calls it
SHORT = 0.001  # seconds of a form that notices what ran before it

Form = Callable[[], object]


@dataclass(frozen=True)
class Decision:
    """Which form of a site runs."""

    fused: bool
    ours: float | None
    """Seconds of the fused form as they were measured; None: not measured."""
    theirs: float | None
    """Seconds of the form that it replaces."""
    why: str
    """ "" for what was measured; "left: slower" or "left: no faster" where the fused form lost; else why not."""


def rows(m: int) -> int:
    """The rows that a decision for m rows is made for: the next power of two."""
    return 1 << (m - 1).bit_length() if m > 0 else 0


def site_key(
    form: str, activation: str, *, m: int, k: int, n: int, dtype: torch.dtype, device: torch.device, more: str = ""
) -> str:
    """What a decision is kept under: equal sites share one. form: of the site and of what would be replaced.

    m, k, n: of the product; m goes by powers of two. more: what else matters, such as bias or recorded gradients.
    """
    words: tuple[str, ...] = (form, activation, f"M<={rows(m)} N={n} K={k}", str(dtype).removeprefix("torch."), more)
    return " ".join(word for word in words if word) + surroundings(device)


def surroundings(device: torch.device) -> str:
    """The end of a key: what every decision on a device depends on."""
    threads = f", threads {get_num_threads()} and {torch.get_num_threads()}" if device.type == "cpu" else ""
    return f"; torch {torch.__version__}{threads}{_precision(device)}"


def _precision(device: torch.device) -> str:
    """What torch makes of float32 products where that is not float32; ours are exact."""
    try:
        found = torch.get_float32_matmul_precision()
    except RuntimeError:  # it was set by the newer names
        backend = torch.backends.cuda.matmul if device.type == "cuda" else torch.backends.mkldnn.matmul
        found = backend.fp32_precision
    return "" if found in ("highest", "ieee", "none") else f", float32 {found}"


def why_not(*tensors: torch.Tensor) -> str | None:
    """Why nothing may be timed at this moment; None if it may."""
    if torch.compiler.is_compiling():
        return "not measured: inside torch.compile"
    if any(tensor.is_meta or torch._subclasses.fake_tensor.is_fake(tensor) for tensor in tensors):
        return "not measured: a tensor without memory"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "not measured: inside torch.func"
    if torch._C._len_torch_dispatch_stack() or torch.jit.is_tracing():
        return "not measured: inside a trace"
    if any(tensor.device.type == "cuda" for tensor in tensors) and torch.cuda.is_current_stream_capturing():
        return "not measured: inside the capture of a CUDA graph"
    return None


def device_of(device: torch.device) -> str:
    """A device of torch as matmul_fused names it."""
    if device.type != "cuda":
        return str(device.type)
    number = torch.cuda.current_device() if device.index is None else device.index
    return f"{'rocm' if torch.version.hip else 'cuda'}:{number}"


def decide(
    key: str,
    ours: Form,
    theirs: Form,
    *,
    device: torch.device | str = "cpu",
    budget: float = BUDGET,
    eager: bool = False,
    sample_seconds: float = 0.0005,
    worth: float = WORTH,
    clock: Callable[[], float] = time.perf_counter,
) -> Decision:
    """The faster form for a key: known in this process, else from the tune store, else timed now and stored.

    ours, theirs: calls without arguments and without lasting effects, that do the same on real tensors. Ask why_not()
    first. Both run once, then by turns, for sample_seconds each, within budget seconds, or once more each where that
    takes longer. ours wins below worth of theirs. eager: between operators of torch, see _race(). A
    NotImplementedError of ours leaves the site; every other exception passes. One thread measures at a time. A site
    inside of a form is decided in the form's first call, and what that takes is none of the form's time.
    """
    global _inner
    device = torch.device(device)
    found = known(key, device, worth)
    if found is not None:
        return found

    def own() -> float:
        return clock() - _inner

    with _measuring, _unseen():
        found = known(key, device, worth)
        if found is None:
            start = own()
            around = device if eager else None
            race = partial(_race, ours, theirs, _wait_for(device), budget, own, around, sample_seconds)
            found = _known[device_of(device), key] = _timed(key, race, device, worth)
            _inner += own() - start
    return found


def known(key: str, device: torch.device, worth: float = WORTH) -> Decision | None:
    """What was decided for a key before: in this process, or as the tune store has it."""
    site = device_of(device), key
    found = _known.get(site)
    if found is None and store.enabled():
        kept = store.default().get("sites", store.device_name(site[0])).get(key)
        if isinstance(kept, list) and len(kept) == 2 and all(store.is_time(seconds) for seconds in kept):
            found = _known[site] = _decision(kept[0], kept[1], worth)
    return found


def forget() -> None:
    """Drop what this process knows; the file stays."""
    _known.clear()


_known: dict[tuple[str, str], Decision] = {}  # by device and key
_measuring = threading.RLock()  # a form may have sites
_inner = 0.0  # seconds of all measurements until now: what an outer one leaves out
_complained = False


def _after_fork() -> None:
    global _measuring
    _measuring = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _unseen() -> AbstractContextManager[object]:
    """What is timed is none of the saved-tensor hooks' business: a checkpoint's would call the site again."""
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is None:
        return nullcontext()
    unseen: AbstractContextManager[object] = torch.autograd.graph.saved_tensors_hooks(_same, _same)
    return unseen


def _timed(key: str, race: Callable[[], tuple[float, float]], device: torch.device, worth: float) -> Decision:
    try:
        decision = _decision(*race(), worth)
    except NotImplementedError as error:
        return Decision(False, None, None, f"left: {error}")
    if store.enabled():
        _keep(store.device_name(device_of(device)), key, decision)
    return decision


def _decision(ours: float, theirs: float, worth: float) -> Decision:
    why = "left: slower" if ours > theirs else "left: no faster" if ours > worth * theirs else ""
    return Decision(not why, ours, theirs, why)


def _keep(name: str, key: str, decision: Decision) -> None:
    """In the file; where that cannot be, in this process alone, and said once."""
    global _complained
    try:
        store.default().put("sites", name, {key: [decision.ours, decision.theirs]})
    except OSError as error:
        if not _complained:
            store.log.warning("what is measured is not kept for other processes: %s", error)
        _complained = True


def _wait_for(device: torch.device) -> Callable[[], None]:
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    return lambda: None


def _undisturbed(samples: list[float]) -> float:
    """The first quartile: what else the machine does adds time, in some of the samples."""
    return max(sorted(samples)[(len(samples) - 1) // 4], 1e-9)


def _race(
    ours: Form,
    theirs: Form,
    wait: Callable[[], None],
    budget: float,
    clock: Callable[[], float],
    around: torch.device | None,
    sample_seconds: float,
) -> tuple[float, float]:
    """Seconds of a call of each form.

    around: the device of the operators that run before and behind a site in a model; None: none does. Their code takes
    the place of a short form's in the caches of the host, and on a CPU with several threads torch's are busy, and wait
    actively as ours do. What that costs either form is a part of its time. So each call follows one of theirs, on a
    CPU with several threads, and other operators where theirs is short.
    """

    def seconds() -> float:
        start = clock()
        theirs()
        wait()
        return clock() - start

    before: list[Form] = []
    short = False
    if around is not None:
        # Again on a GPU: the first call may load something, or wait for what was queued before it.
        short = seconds() < SHORT or (around.type != "cpu" and seconds() < SHORT)
        threads = around.type == "cpu" and torch.get_num_threads() > 1
        before = [*([theirs] if threads else []), *([_other_operators(around)] if short else [])]

    def repeat(*forms: Form) -> Callable[[int], None]:
        def run(calls: int) -> None:
            for _ in range(calls):
                for form in forms:
                    form()

        return run

    # theirs first: what is wrong with the operands, the form that the user wrote shall say
    arms = {"theirs": repeat(*before, theirs), "ours": repeat(*before, ours)}
    if short:
        arms["before"] = repeat(*before)
    times = take_turns(arms, budget, sample_seconds=sample_seconds, wait=wait, clock=clock)
    if not before:
        return _undisturbed(times["ours"]), _undisturbed(times["theirs"])

    def over(arm: str, other: str) -> float:  # within a round: what disturbs one arm disturbs the next one, too
        return statistics.median(x - y for x, y in zip(times[arm], times[other], strict=True))

    own = over("theirs", "before") if short else _undisturbed(times["theirs"]) / 2
    rest = own + over("ours", "theirs")
    tie = max(own, 1e-9)  # by noise alone
    return (rest, own) if min(own, rest) > 0 else (tie, tie)


def _other_operators(device: torch.device) -> Form:
    """What a layer runs around its linears, on a few elements."""
    x, weight = (torch.ones(rows, 64, device=device, dtype=torch.float32) for rows in (4, 64))

    def run() -> None:
        with torch.no_grad():
            normed = torch.nn.functional.layer_norm(x, (64,))
            normed = normed * torch.rsqrt(normed.pow(2).mean(-1, keepdim=True) + 1e-6)
            heads = torch.nn.functional.linear(normed, weight).view(1, 4, 4, 16).transpose(1, 2)
            turned = torch.cat((-heads[..., 8:], heads[..., :8]), -1) * 0.5 + heads
            found = torch.softmax(turned @ heads.transpose(-1, -2), -1) @ heads
            torch.add(x, found.transpose(1, 2).reshape(4, 64))

    return run
