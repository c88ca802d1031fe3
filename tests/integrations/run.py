"""`make test-integrations`: the plugins inside the real packages.

Makes the environment of each host (environments.py) and runs its tests there. A host whose packages cannot be fetched
is skipped, and listed; everything else that goes wrong is a failure. Hosts run side by side, one for each processor.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from environments import RECIPES, NotFetched, make

HERE = Path(__file__).parent
TESTS = {"vllm": ["in_vllm.py", "in_transformers.py"], "sglang": ["in_sglang.py"]}


def run(host: str) -> bool:
    """Did the tests of a host pass? NotFetched: they cannot run."""
    start = time.perf_counter()
    python = make(host)
    made = time.perf_counter()
    files = [str(HERE / name) for name in TESTS[host]]
    command = [str(python), "-m", "pytest", "-W", "default", "--disable-warnings", *files]
    environment = os.environ | {"PYTHONPATH": str(HERE.parent)}
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    took = f"{host}: environment {made - start:.0f} s, tests {time.perf_counter() - made:.0f} s"
    print(f"{done.stdout}{done.stderr}{took}", flush=True)
    return done.returncode == 0


def main(hosts: list[str]) -> int:
    skipped, failed = [], []
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        jobs = {host: pool.submit(run, host) for host in hosts or RECIPES}
    for host, job in jobs.items():
        try:
            if not job.result():
                failed.append(host)
        except NotFetched as why:
            skipped.append(f"{host}: {why}")
    for line in skipped:
        print(f"skipped: {line}")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
