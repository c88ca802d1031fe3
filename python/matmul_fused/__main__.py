"""`python -m matmul_fused info | check | bench | activations | report`.

The state of this machine, a correctness sweep, timings, all formulas, a file for a bug report.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _core, info
from .console import progress, show
from .report import device_kernels, families_for, table

if TYPE_CHECKING:
    from .testing.devices import Device

_SHOWN_FAILURES = 10
_REPORT = "matmul_fused-check.json"
_BUG_REPORT = "matmul_fused-report.txt"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m matmul_fused", description=__doc__)
    parser.add_argument("--version", action="version", version=f"matmul_fused {_core.__version__}")
    commands = parser.add_subparsers(dest="command")

    state = commands.add_parser("info", help="back ends, devices, kernels, libraries found, environment")
    state.add_argument(
        "--objects", metavar="DIR", type=Path, help="also write the device code of this build to DIR/<architecture>/"
    )

    check = commands.add_parser(
        "check", help="compare every kernel with the float64 reference, and time a GPU's; exit code 1 on a failure"
    )
    check.add_argument(
        "--device", default="cpu", help="the device to check: cpu, or a GPU as info names it: rocm, rocm:1, cuda"
    )
    check.add_argument("--kernel", help="check this kernel only, e.g. one that info lists")
    check.add_argument(
        "--torch",
        action="store_true",
        help="instead: try the installed torch, transformers, vLLM and SGLang, and say which ways into them work here",
    )
    check.add_argument("--quick", action="store_true", help="every value of every feature once, instead of every pair")
    check.add_argument("--seed", type=int, default=0, help="another seed gives other cases and values (default 0)")
    check.add_argument(
        "--json",
        metavar="FILE",
        type=Path,
        help=f"also write the figures and failures there (default for a GPU: {_REPORT}), to be attached to a report; "
        "should the process die, it says in which case",
    )

    bench = commands.add_parser("bench", help="time the call beside NumPy and, if it is installed, torch")
    bench.add_argument("--quick", action="store_true", help="few rounds, to see that it works")
    bench.add_argument("--json", metavar="FILE", type=Path, help="also write the figures there")
    bench.add_argument("--plot", metavar="FILE.png", type=Path, help="also draw a picture there (needs matplotlib)")

    commands.add_parser("activations", help="formula, parameters, source and other names of every activation")

    report = commands.add_parser("report", help="write one file for a bug report: versions, info, a call explained")
    report.add_argument(
        "--call",
        metavar="ARGUMENTS",
        help="arguments of the call that fails, as Python with np (and torch, jax); it is explained, not run: "
        "\"np.ones((4, 8), 'f4'), np.ones((8, 3), 'f4'), activation='gelu'\"",
    )
    report.add_argument("--output", metavar="FILE", type=Path, default=Path(_BUG_REPORT), help=f"default {_BUG_REPORT}")
    return parser


def _activations() -> None:
    """Print the table of activations: every formula, with its parameters."""
    for gated in (False, True):
        rows = []
        for name, is_gated, formula, source, parameters, aliases in _core.activation_table():
            if is_gated != gated or name == "none":
                continue
            given = "".join(f", {p}" if default is None else f", {p}={default:g}" for p, default in parameters)
            rows.append((f'("{name}"{given})' if parameters else f'"{name}"', formula, source, ", ".join(aliases)))
        title = "gated activations f(g, u) of the gate and up columns" if gated else "activations f(z)"
        print(table([("activation", "formula", "source", "other names"), *rows], title))


def _explained(call: str) -> str:
    """What a call would run, or the error that it gets. Shapes and dtypes alone: no data."""
    import numpy as np

    import matmul_fused

    names: dict[str, Any] = {"np": np, "mf": matmul_fused, "explain": matmul_fused.explain}
    for library in ("torch", "jax", "ml_dtypes"):
        if library in call:
            names[library] = importlib.import_module(library)
    try:
        return str(eval(f"explain({call})", names))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _bug_report(path: Path, call: str | None) -> None:
    """Write versions, info and the explanation of a call."""
    parts = [
        f"matmul_fused {_core.__version__}, Python {platform.python_version()}, {platform.platform()}",
        str(info()),
        f"call: {call}\n{_explained(call)}" if call else "no call was given; --call adds one",
    ]
    path.write_text("\n\n".join(parts) + "\n")
    print(f"written to {path}: please attach it to a report")


def _facts() -> dict[str, Any]:
    """What a reader of figures must know of the machine."""
    facts = info()
    return {
        "version": facts.version,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu_features": facts.cpu_features,
        "threads": facts.threads,
        "backends": facts.backends,
        "devices": facts.devices,
        "device_code": facts.device_code,
        "environment": {name: value for name, _, value in facts.environment if value is not None},
    }


def _write_json(path: Path | None, content: dict[str, Any]) -> None:
    if path:
        path.write_text(json.dumps(content, indent=1) + "\n")


def _write_objects(folder: Path) -> None:
    """The device code of this build as plain files: DIR/gfx942/KERNEL.co, DIR/sm_90a/KERNEL.ptx (.cubin).

    DIR/manifest.json has what another program needs to launch them: for every object the facts of its kernel, and the
    layout of the argument that all take by value, whose arrays are indexed by operands, dtypes and activations.
    """
    manifest = _core.device_manifest()
    del manifest["kernels"]
    facts = {row["instance"]: row for row in device_kernels()}
    objects = []
    for arch, kernel, code in _core.device_objects():
        machine_code = code.startswith(b"\x7fELF")
        ending = "ptx" if not machine_code else "co" if arch.startswith("gfx") else "cubin"
        path = folder / arch / f"{kernel}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(code if machine_code else code.rstrip(b"\0"))
        objects.append({"file": f"{arch}/{path.name}", "arch": arch, **facts[kernel]})
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "manifest.json", {"version": _core.__version__, **manifest, "objects": objects})


def _time(device: Device, families: list[str], path: Path | None, report: dict[str, Any]) -> None:
    """Print the time of every kernel and add it to the report; what fails joins the report's failures."""
    from .testing import speed

    report |= {"timing": speed.SIMULATED if device.simulated else speed.METHOD, "times": []}
    if device.simulated:
        print(speed.SIMULATED)
        return
    times: list[speed.Time] = []
    for problem in progress(speed.problems(), "time"):
        _write_json(path, {**report, "running": {"timed": problem.name}})
        try:
            times += speed.times_of(device, problem, families)
        except Exception as error:
            failure = {"case": problem.name, "kernel": ", ".join(families), "error": f"{type(error).__name__}: {error}"}
            report["failures"].append(failure)
    times.sort(key=lambda one: one.kernel)
    report["times"] = [one.as_dict() for one in times]
    show(speed.METHOD, speed.HEADER, [one.row() for one in times])


def _check(options: argparse.Namespace) -> int:
    from .testing import TOPICS, DeviceTransfer, covering_sample, repeat, run_case

    on_gpu = options.device != "cpu"
    kernels = list(families_for(options.device) if on_gpu else info().kernels)
    transfer = DeviceTransfer(options.device) if on_gpu else None
    path = options.json or (Path(_REPORT) if on_gpu else None)
    if options.kernel:
        if options.kernel not in kernels:
            raise ValueError(f"unknown kernel {options.kernel!r}; this build has {', '.join(kernels)}")
        kernels = [options.kernel]
    cases = covering_sample(options.seed, strength=1 if options.quick else 2)
    counts: dict[str, Counter[str]] = {topic: Counter() for topic in (*TOPICS, "all")}
    failures: list[dict[str, str]] = []
    report = {**_facts(), "device": options.device, "seed": options.seed, "topics": counts, "failures": failures}
    start = time.perf_counter()
    for kernel, case in progress([(kernel, case) for kernel in kernels for case in cases], "check"):
        if on_gpu:  # whose faults end the process
            _write_json(path, {**report, "running": {"case": case.id, "kernel": kernel}})
        try:
            run_case(case, options.seed, kernel, transfer)
            outcome = "passed"
        except NotImplementedError:
            outcome = "refused"
        except Exception as error:
            outcome = "failed"
            told = isinstance(error, AssertionError)
            again = "" if told else f"\nrepeat: {repeat(case, options.seed, kernel, transfer)}"
            failures.append({"case": case.id, "kernel": kernel, "error": f"{type(error).__name__}: {error}{again}"})
        for topic in (*case.topics, "all"):
            counts[topic][outcome] += 1
    seconds = time.perf_counter() - start
    if transfer:
        _time(transfer.device, kernels, path, report)
        counts["all"]["failed"] = len(failures)
    _write_json(path, {**report, "seconds": seconds})

    outcomes = ("passed", "refused", "failed")
    rows = [(topic, *(str(count[outcome]) for outcome in outcomes)) for topic, count in counts.items()]
    title = f"{len(cases)} cases on each of {', '.join(kernels)}; seed {options.seed}, {seconds:.0f} s"
    show(title, ("topic", "passed", "refused by the kernel", "failed"), rows)
    for failure in failures[:_SHOWN_FAILURES]:
        print(f"\n{failure['kernel']}: {failure['error']}")
    if len(failures) > _SHOWN_FAILURES:
        print(f"\n... and {len(failures) - _SHOWN_FAILURES} more; --json FILE writes them all")
    if on_gpu:
        print(f"written to {path}: please attach it to a report")
    total = counts["all"]
    if not total["passed"] and not failures:
        print("nothing was checked: every kernel refused every case")
        return 1
    verdict = f"FAILED: {total['failed']} of" if failures else "OK: all of"
    print(f"{verdict} {total['passed'] + total['failed']} runs; {total['refused']} were refused by their kernel")
    return 1 if failures else 0


def _check_torch() -> int:
    from .integrations import check

    found = check.seams()
    print(check.show(found))
    return 1 if any(row.works is False for row in found) else 0


def _bench(options: argparse.Namespace) -> int:
    from . import benchmark

    results = []
    for problem in progress(benchmark.PROBLEMS, "bench"):
        results += benchmark.run(problem, quick=options.quick)
    show("median time of a call, arms interleaved", benchmark.HEADER, benchmark.rows(results))
    print(benchmark.conditions())
    _write_json(options.json, {**_facts(), "results": [result.as_dict() for result in results]})
    if options.plot:
        benchmark.plot(results, options.plot)
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 0
    try:
        if options.command == "activations":
            _activations()
            code = 0
        elif options.command == "report":
            _bug_report(options.output, options.call)
            code = 0
        elif options.command == "check" and options.torch:
            code = _check_torch()
        elif options.command == "info":
            if options.objects:
                _write_objects(options.objects)
            print(info())
            code = 0
        else:
            for path in filter(None, (options.json, getattr(options, "plot", None))):
                path.touch()  # a path that cannot be written is told before the work
            code = _check(options) if options.command == "check" else _bench(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader, `head` for one, has seen enough: what is left goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ImportError, OSError, ValueError) as error:
        print(f"matmul_fused {options.command}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
