"""`make fuzz`: random calls in several processes under AddressSanitizer; exit code 1 on a finding.

FUZZ_SEED: the seed (default: from the clock). FUZZ_CALLS: calls of matmul_fused in all. FUZZ_JOBS: processes.
FUZZ_CALL=N or N-M: make only these calls again, and say what they are.
"""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sanitize import toolchain

STALLED = 300  # seconds without a new call


def start(seed: int, first: int, step: int, calls: int, folder: Path, environment: dict[str, str]) -> Any:
    status = folder / f"status{first}"
    status.write_bytes(bytes(8))
    arguments = map(str, (seed, first, step, calls, status))
    command = [*toolchain.interpreter("address"), "-m", "fuzz.worker", *arguments]
    with (folder / f"report{first}").open("wb") as report:
        process = subprocess.Popen(command, env=environment, stdout=report, stdin=subprocess.DEVNULL, cwd=folder)
    return process, status, folder / f"report{first}"


def watch(workers: list[Any]) -> None:
    """Wait for all; one that makes no call for a long time is stopped."""
    seen = {process.pid: (b"", time.monotonic()) for process, *_ in workers}
    while any(process.poll() is None for process, *_ in workers):
        time.sleep(0.5)
        for process, status, _ in workers:
            now = status.read_bytes()
            if now != seen[process.pid][0]:
                seen[process.pid] = now, time.monotonic()
            elif process.poll() is None and time.monotonic() - seen[process.pid][1] > STALLED:
                process.kill()


def outcome(worker: Any) -> dict[str, Any]:
    """A worker's report; one that died has none, but its status says where."""
    process, status, report = worker
    lines = report.read_text(errors="replace").split("\n")
    if process.returncode in (0, 1) and len(lines) > 1:
        return json.loads(lines[-2])
    output = status.with_suffix(".output")  # where UBSan reports, which knows no log_path
    said = output.read_text(errors="replace")[-6000:] if output.exists() else ""
    failure = {
        "call": int.from_bytes(status.read_bytes(), sys.byteorder),
        "what": "",
        "error": f"the process ended with {process.returncode} (-9: it stood still for {STALLED} s)\n{said}",
    }
    return {"failure": failure, "made": {}, "rows": {}, "leak": 0}


def fuzz(seed: int, calls: int, jobs: int, site: Path) -> tuple[list[str], dict[str, Any]]:
    """Run the workers: what was found, and the figures of all."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = toolchain.environment(site, folder / "finding")
        workers = [start(seed, i, jobs, -(-calls // jobs), folder, environment) for i in range(jobs)]
        try:
            watch(workers)
        finally:
            for process, *_ in workers:
                if process.poll() is None:
                    process.kill()
        reports = [outcome(worker) for worker in workers]
        found = [
            f"call {failure['call']}: {failure['what']}\n{failure['error']}\n"
            f"again: make fuzz FUZZ_SEED={seed} FUZZ_CALL={failure['call']}"
            for failure in (report["failure"] for report in reports)
            if failure
        ]
        found += toolchain.findings(folder / "finding")
    made, rows = collections.Counter[str](), collections.Counter[str]()
    for report in reports:
        made.update(report["made"])
        rows.update(report["rows"])
    return found, {"made": made, "rows": rows, "leak": max(report["leak"] for report in reports)}


def main() -> int:
    seed = int(os.environ.get("FUZZ_SEED") or time.time_ns() // 1000 % 2**31)
    calls = int(os.environ.get("FUZZ_CALLS") or 2_000_000)
    jobs = int(os.environ.get("FUZZ_JOBS") or len(os.sched_getaffinity(0)))
    site = toolchain.build("address")
    if os.environ.get("FUZZ_CALL"):
        with tempfile.TemporaryDirectory() as folder:
            environment = toolchain.environment(site, Path(folder) / "finding")
            command = [*toolchain.interpreter("address"), "-m", "fuzz.worker", str(seed), os.environ["FUZZ_CALL"]]
            code = subprocess.run(command, env=environment, check=False).returncode
            found = toolchain.findings(Path(folder) / "finding")
        print(*found, sep="\n")
        return 1 if code or found else 0
    print(f"fuzz: FUZZ_SEED={seed} FUZZ_CALLS={calls} FUZZ_JOBS={jobs}", flush=True)
    begin = time.monotonic()
    found, figures = fuzz(seed, calls, jobs, site)
    made, seconds = figures["made"], time.monotonic() - begin
    total = made["valid"] + made["refused"]
    print(
        f"fuzz: {total} calls of matmul_fused ({made['valid']} valid, {made['refused']} refused; "
        f"{len(+figures['rows'])} kinds of refusals and of what happens around a call), "
        f"{made['explain']} of explain, {made['prepack']} of prepack, {seconds:.0f} s; "
        f"{figures['leak']} bytes left by the second half; findings: {len(found)}"
    )
    if not found and total >= 200_000:
        found += [f"the kind of call {name} was never made" for name, n in figures["rows"].items() if not n]
    if not found and total < calls:
        found.append(f"only {total} of {calls} calls were made")
    for text in found:
        print(f"\n{text}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
