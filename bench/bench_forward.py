"""Wall time of one forward of a transformer layer: eager, torch.compile, and ours in the place of either.

    python bench/bench_forward.py [--device cpu|cuda] [--only PATTERN] [--limit S] [--always] [--graphs] [--json FILE]

On a CPU of four cores or more, everything is compiled first, by several processes into Inductor's cache: one after the
other, compilations took more time than what is measured.

Arms, in one interleaved run, on the same weights and input, without gradients:

    eager           the layer of transformers
    torch.compile   the same through Inductor
    patched         matmul_fused.torch.patch(layer), when="measured": in the place of eager
    backend         torch.compile(layer, backend="matmul_fused"), when="measured": in the place of torch.compile

--always adds both of ours with when="always". Before anything is timed, each arm's RMS error against the layer in
float64 is compared with eager's; an arm above 1.10 of it is named and not timed. A sample is several forwards and one
wait for the device, so what the host does counts; --graphs replays CUDA graphs instead. On a CPU each sample starts
when the threads of the arm before rest; on a GPU samples are short and many, since the speed of a host that launches
kernels changes while one looks on. Shown are medians of the rounds, and medians and quartiles of the ratio within a
round: above 1.03 of what it replaces is an arm that should have been left. Decisions are made anew in every run, in a
tune store of its own, unless MATMUL_FUSED_CACHE_DIR names one. A case that does not start within --limit is named, not
run.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import forward_cases
import forward_picture
import machine
import torch
from forward_cases import Workload, first, twin
from torch_models import AllDouble

import matmul_fused.torch as fused
from matmul_fused import store
from matmul_fused.report import engineering
from matmul_fused.testing.timing import measure, settle
from matmul_fused.torch import measure as decisions

ALLOWED_ERROR, ALLOWED_TIME = 1.10, 1.03
LIMITS = {"cpu": 420.0, "cuda": 160.0}  # seconds, in which cases are begun
ROUNDS = {"cpu": 21, "cuda": 121}
SAMPLES: dict[str, dict[str, Any]] = {
    "cpu": {"sample_seconds": 0.02, "between": settle},
    "cuda": {"sample_seconds": 0.004, "synchronise": torch.cuda.synchronize},
}
COMPILERS, COMPILING = 8, 150.0  # processes at most that compile first, and seconds in which they do
LEAST_ELEMENTS, MOST_DRAWS = 1 << 14, 64  # of the error's RMS: of a few elements it is luck
REPLACES = {"patched": "eager", "backend": "torch.compile"}
PAIRS = {**REPLACES, "patched, always": "eager", "backend, always": "torch.compile"}
Arms = dict[str, Callable[..., Any]]


# --- the arms ---


def _compiled(model: Any, **how: Any) -> Any:
    return torch.compile(twin(model), dynamic=False, **how)


def arms_of(work: Workload, always: bool) -> tuple[Arms, dict[str, list[Any]], dict[str, float]]:
    """The arms after their first calls, what the reports of ours say, and the seconds of those first calls."""
    arms: Arms = {"eager": work.model}
    records: dict[str, list[Any]] = {}
    seconds: dict[str, float] = {}
    arguments, keywords = work.operands(0)

    def begin(name: str, call: Any) -> None:
        start = time.perf_counter()
        call(*arguments, **keywords)
        if work.device == "cuda":
            torch.cuda.synchronize()
        seconds[name], arms[name] = time.perf_counter() - start, call

    begin("eager", work.model)
    begin("torch.compile", _compiled(work.model))
    for when, more in (("measured", ""), ("always", ", always"))[: 1 + always]:
        patched = twin(work.model)
        fused.patch(patched, when=when)
        begin(f"patched{more}", patched)
        records[f"patched{more}"] = list(fused.report(patched))
        fused.patch(torch.nn.Identity(), when="never")  # report() has nothing of before
        begin(f"backend{more}", _compiled(work.model, backend=fused.backend, options={"when": when}))
        records[f"backend{more}"] = list(fused.report())
    return arms, records, seconds


def in_double(model: Any) -> Any:
    return copy.deepcopy(model).double()


def errors(work: Workload, arms: Arms) -> dict[str, float]:
    """RMS errors against the layer in float64, over so many inputs that their RMS is no luck."""
    exact = in_double(work.model)
    (x,), _ = work.operands(0)
    draws = min(MOST_DRAWS, math.ceil(LEAST_ELEMENTS / x[0].numel()))
    squares = dict.fromkeys(arms, 0.0)
    for seed in range(draws):
        (x,), keywords = work.operands(seed)
        wide = {name: tuple(part.double() for part in value) for name, value in keywords.items()}
        with AllDouble():
            wanted = first(exact(x[:1].double(), **wide))
        for name, arm in arms.items():
            squares[name] += float((first(arm(x, **keywords))[:1].double() - wanted).square().mean())
    return {name: math.sqrt(square / draws) for name, square in squares.items()}


def wrong(found: dict[str, float]) -> dict[str, float]:
    """The arms above the bound, with their error in units of eager's."""
    ratios = {name: error / found["eager"] for name, error in found.items()}
    return {name: ratio for name, ratio in ratios.items() if not ratio <= ALLOWED_ERROR}  # not a number is wrong, too


def _captured(call: Callable[[], Any]) -> Callable[[], Any]:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        call()
    return graph.replay  # type: ignore[no-any-return]


# --- a case ---


def run(work: Workload, options: argparse.Namespace) -> dict[str, Any]:
    torch._dynamo.reset()  # eight versions of one forward are all that Dynamo makes
    decisions.forget()
    before = machine.Snapshot()
    arms, records, first_calls = arms_of(work, options.always)
    found = errors(work, arms)
    bad = wrong(found)
    arguments, keywords = work.operands(0)
    calls: dict[str, Callable[[], Any]] = {}
    skipped = {name: f"error {ratio:.2f} of eager's" for name, ratio in bad.items()}
    for name, arm in arms.items():
        if name in bad:
            continue
        call = lambda arm=arm: arm(*arguments, **keywords)  # noqa: E731
        try:
            calls[name] = _captured(call) if options.graphs else call
        except RuntimeError as error:
            skipped[name] = f"no capture: {str(error).splitlines()[0]}"
    limits = {
        **SAMPLES[work.device],
        "rounds": options.rounds or ROUNDS[work.device],
        "budget_seconds": options.seconds,
    }
    if options.quick:
        limits |= {"rounds": 3, "sample_seconds": 0.0, "warm_up_seconds": 0.0}
    timings = measure({name: [call] for name, call in calls.items()}, **limits)
    return {
        "case": work.case.name,
        **vars(work.case),
        "samples_s": {timing.name: timing.samples for timing in timings},
        "skipped": skipped,
        "relative_errors": {name: error / found["eager"] for name, error in found.items()},
        "sites": {name: [vars(record) for record in made] for name, made in records.items()},
        "first_call_s": first_calls,
        **before.until_now(),
    }


# --- before the cases ---


def compile_first(chosen: list[forward_cases.Case], device: str) -> None:
    """Fill Inductor's cache. What a process does not finish in time is compiled when its case is run."""
    at_once = min(COMPILERS, (os.cpu_count() or 1) // 2)
    if device != "cpu" or at_once < 2 or len(chosen) < 2:
        return
    start, running, todo = time.perf_counter(), [], list(chosen)
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "TORCHINDUCTOR_COMPILE_THREADS": "2"}
    environment["MATMUL_FUSED_TUNE"] = "off"  # times of a loaded machine are not kept
    while (todo or running) and time.perf_counter() - start < COMPILING:
        running = [process for process in running if process.poll() is None]
        while todo and len(running) < at_once:
            only = f"^{re.escape(todo.pop(0).name)}$"
            command = [sys.executable, __file__, "--device", device, "--only", only, "--compile"]
            running.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL))
        time.sleep(0.1)
    for process in running:
        process.kill()
        process.wait()
    print(f"{time.perf_counter() - start:4.0f} s  compiled, {len(todo) + len(running)} cases not", file=sys.stderr)


def compile_only(chosen: list[forward_cases.Case], device: str) -> int:
    for work in forward_cases.workloads(chosen, device):
        torch._dynamo.reset()
        decisions.forget()
        arms_of(work, always=True)  # or a site that loses here leaves its form to be compiled
    return 0


# --- what is shown ---


def ratios(row: dict[str, Any], arm: str) -> tuple[float, float, float] | None:
    """Median and quartiles of an arm's time in units of what it replaces, round by round."""
    samples = row["samples_s"]
    if arm not in samples or PAIRS[arm] not in samples:
        return None
    values = [ours / theirs for ours, theirs in zip(samples[arm], samples[PAIRS[arm]], strict=True)]
    return (statistics.median(values), *machine.quartiles(values))


def sites(records: list[dict[str, Any]]) -> str:
    """How many sites run fused, and why the others do not; the places of one reason are a number."""
    done = sum(record["fused"] for record in records)
    why = [record["why"].split(", ")[0] for record in records if not record["fused"]]
    return ", ".join([f"{done} fused", *(f"{why.count(reason)} {reason}" for reason in dict.fromkeys(why))])


def cells(row: dict[str, Any], arms: list[str]) -> list[str]:
    def seconds(arm: str) -> str:
        found = row["samples_s"].get(arm)
        return engineering(statistics.median(found), "s") if found else row["skipped"].get(arm, "-")

    def ratio(arm: str) -> str:
        found = ratios(row, arm)
        return f"{found[0]:.2f} ({found[1]:.2f}-{found[2]:.2f})" if found else "-"

    ours = [arm for arm in arms if arm in PAIRS]
    head = [row["layer"], row["dtype"], f"{row['batch']}x{row['sequence']}"]
    return [*head, *map(seconds, arms), *map(ratio, ours), *(sites(row["sites"].get(arm, [])) for arm in REPLACES)]


def lines(rows: list[dict[str, Any]], always: bool = False) -> list[str]:
    """The table in Markdown, with its verdict."""
    arms = ["eager", "torch.compile", *(list(PAIRS) if always else list(REPLACES))]
    ours = [f"{arm} / {PAIRS[arm]}" for arm in arms if arm in PAIRS]
    header = ["layer", "dtype", "batch x sequence", *arms, *ours, "sites, patched", "sites, backend"]
    table = [header, ["---"] * len(header), *(cells(row, arms) for row in rows)]
    text = [f"| {' | '.join(line)} |" for line in table]
    text.append("")
    for arm, replaced in REPLACES.items():
        found = {row["case"]: ratios(row, arm) for row in rows}
        known = {case: ratio[0] for case, ratio in found.items() if ratio}
        above = [f"{case} ({ratio:.2f})" for case, ratio in known.items() if ratio > ALLOWED_TIME]
        if known:
            mean = statistics.geometric_mean(known.values())
            text.append(
                f"{arm}: {mean:.3f} of {replaced} (geometric mean of {len(known)}); above {ALLOWED_TIME}: "
                f"{', '.join(above) or 'none'}."
            )
    for row in rows:
        text += [f"Not timed: {arm}, {row['case']}: {why}." for arm, why in row["skipped"].items()]
    return text


def about(options: argparse.Namespace, heap: str) -> dict[str, Any]:
    facts = {**machine.about(heap), "device": options.device, "graphs": options.graphs}
    facts["versions"]["transformers"] = forward_cases.hf.__version__
    if options.device == "cuda":
        facts["gpu"] = torch.cuda.get_device_name()
        facts["versions"]["CUDA of torch"] = torch.version.cuda or torch.version.hip
    return facts


def sentence(facts: dict[str, Any]) -> str:
    gpu = f"{facts['gpu']}{', CUDA graphs' if facts['graphs'] else ''}; host: " if "gpu" in facts else ""
    return gpu + machine.sentence(facts)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", metavar="PATTERN", default="", help="a regular expression for the names of --list")
    parser.add_argument("--limit", metavar="S", type=float, help="seconds in which cases are begun (420, on a GPU 160)")
    parser.add_argument("--rounds", type=int, help="21, on a GPU 121")
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="of a case's rounds, of which five are made at least"
    )
    parser.add_argument("--always", action="store_true", help='two more arms, with when="always"')
    parser.add_argument("--graphs", action="store_true", help="every arm as a CUDA graph")
    parser.add_argument("--quick", action="store_true", help="three rounds of one forward, to see that it works")
    parser.add_argument("--json", metavar="FILE", type=Path, help="everything; its rows of other cases are kept")
    parser.add_argument("--picture", metavar="FILE.svg", type=Path, help="the ratios as a picture")
    parser.add_argument("--compile", action="store_true", help="compile into Inductor's cache, and no more")
    parser.add_argument("--list", action="store_true", help="the cases, and no more")
    return parser.parse_args(arguments)


def merged(path: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """The rows in the file that were measured under the same conditions as those of this run."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        before = json.loads(path.read_text())
        if before["about"] == json.loads(json.dumps(facts)):
            return {row["case"]: row for row in before["rows"]}
    return {}


@contextlib.contextmanager
def own_store() -> Iterator[None]:
    """A tune store that is empty, unless the user named one."""
    before = store._default
    with tempfile.TemporaryDirectory() as folder:
        if not os.environ.get("MATMUL_FUSED_CACHE_DIR"):
            store._default = store.Store(Path(folder))
        try:
            yield
        finally:
            store._default = before


@torch.no_grad()
@own_store()
def main(arguments: list[str] | None = None, heap: str = "is as the C library has it") -> int:
    options = parse(arguments)
    chosen = [case for case in forward_cases.cases(options.device) if re.search(options.only, case.name)]
    if options.list or not chosen:
        print("\n".join(case.name for case in forward_cases.cases(options.device)))
        return 0 if options.list else 2
    if options.compile:
        return compile_only(chosen, options.device)
    limit = LIMITS[options.device] if options.limit is None else options.limit
    start, facts = time.perf_counter(), about(options, heap)
    found, late = merged(options.json, facts) if options.json else {}, []
    compile_first(chosen, options.device)
    todo = iter(forward_cases.workloads(chosen, options.device))
    for case in chosen:
        if time.perf_counter() - start > limit:
            late.append(case.name)
            continue
        began = time.perf_counter()
        found[case.name] = run(next(todo), options)
        gc.collect()  # the arms of a case are cycles, and their weights are large
        print(
            f"{time.perf_counter() - start:4.0f} s  {case.name}: {time.perf_counter() - began:.1f} s", file=sys.stderr
        )
        if options.json:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps({"about": facts, "rows": list(found.values())}, indent=1) + "\n")
    rows = [found[case.name] for case in forward_cases.cases(options.device) if case.name in found]
    print("\n".join(lines(rows, options.always)))
    if late:
        print(f"Not begun within {limit:.0f} s: {'; '.join(late)}.")
    print(f"\n{sentence(facts)}\n{time.perf_counter() - start:.0f} s")
    if options.picture:
        pairs = [(row["case"], {arm: ratios(row, arm) for arm in REPLACES}) for row in rows]
        options.picture.write_text(forward_picture.draw(pairs, sentence(facts)))
    return 0


if __name__ == "__main__":
    sys.exit(main(heap=machine.keep_heap()))
