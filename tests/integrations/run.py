"""`make test-integrations`: the plugins inside the real packages.

Makes the environment of each host (environments.py) and runs its tests there. A host whose packages cannot be fetched
is skipped, and listed; everything else that goes wrong is a failure.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from environments import RECIPES, NotFetched, make

HERE = Path(__file__).parent
TESTS = {"vllm": ["in_vllm.py", "in_transformers.py"], "sglang": ["in_sglang.py"]}


def main(hosts: list[str]) -> int:
    skipped, failed = [], []
    for host in hosts or RECIPES:
        start = time.perf_counter()
        try:
            python = make(host)
        except NotFetched as why:
            skipped.append(f"{host}: {why}")
            continue
        made = time.perf_counter()
        files = [str(HERE / name) for name in TESTS[host]]
        command = [str(python), "-m", "pytest", "-W", "default", "--disable-warnings", *files]
        done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(HERE.parent)}, check=False)
        if done.returncode:
            failed.append(host)
        print(f"{host}: environment {made - start:.0f} s, tests {time.perf_counter() - made:.0f} s", flush=True)
    for line in skipped:
        print(f"skipped: {line}")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
