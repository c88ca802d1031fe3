"""`make sanitize`: the C tests, and the Python tests that matter, under AddressSanitizer with UBSan and under
ThreadSanitizer; then the planted bugs. Exit code 1 on a finding, on a failing test, or on a bug that nobody saw.

Arguments: names of chains to run (address, thread, planted); none: all. The two sanitizers run side by side.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sanitize import planted, toolchain

ADDRESS_TESTS = (
    "dlpack",
    "exchange_api",
    "errors",
    "aliasing",
    "overlap",
    "prepack",
    "prepack_refusals",
    "array",
    "plan_cache",
)
LIFETIME = "leave_the_cache or keeps_its_module or immutable or outlives or pickled or damaged or live_objects"
C_CASES = {"address": "600", "thread": "100"}  # random problems of the C tests; most of them take one thread
GPU_FILES = ("gpu_host", "gpu_library", "gpu_process", "workspace", "xla_host")
LEFT_OUT = ("--deselect", "tests/test_xla_host.py::test_tensor_maps_and_clusters")  # this build has no sm_90a
THREADS = (
    "share_one_weight or changes_while or do_not_mix or belong_to_their or forced_kernel_is_the or forked"
    " or gates_in_chunks"
)
_print = threading.Lock()


class Chain:
    """The steps of one sanitizer, in order."""

    def __init__(self, sanitizer: str) -> None:
        self.sanitizer = sanitizer
        self.failures: list[str] = []
        self.site = toolchain.BUILD

    def say(self, text: str) -> None:
        with _print:
            print(f"sanitize, {self.sanitizer}: {text}", flush=True)

    def step(self, name: str, command: list[str], instrumented: bool = False) -> None:
        """Run Python with these arguments, or an instrumented program: exit code and reports count."""
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            logs = Path(folder) / "finding"
            given = toolchain.environment(self.site, logs)
            start = toolchain.launcher() if instrumented else toolchain.interpreter(self.sanitizer)
            done = subprocess.run(
                [*start, *command],
                env={**given, "MMF_TEST_SEED": os.environ.get("MMF_TEST_SEED", "0")},
                cwd=toolchain.ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                check=False,
                timeout=1800,
            )
            found = toolchain.findings(logs)
        last = (done.stdout.strip().split("\n") or [""])[-1]
        self.say(f"{name}: {last} ({time.monotonic() - begin:.0f} s, findings: {len(found)})")
        if found or done.returncode:
            self.failures.append("\n".join([f"{self.sanitizer}, {name}: exit {done.returncode}", done.stdout, *found]))

    def build(self) -> None:
        begin = time.monotonic()
        self.site = toolchain.build(self.sanitizer)
        where = [*toolchain.interpreter(self.sanitizer), "-c", "import matmul_fused as mf; print(mf.__file__)"]
        environment = toolchain.environment(self.site, self.site / "finding")
        done = subprocess.run(where, env=environment, capture_output=True, text=True, check=False)
        assert str(self.site) in done.stdout, f"another matmul_fused is imported: {done.stdout}{done.stderr}"
        self.say(f"built ({time.monotonic() - begin:.0f} s)")

    def c_tests(self) -> None:
        program = toolchain.BUILD / self.sanitizer / "objects" / "test_cpu"
        self.step("C tests", [str(program), C_CASES[self.sanitizer]], instrumented=True)

    def gpu_tests(self) -> None:
        """The host path of GPU calls on the stand-in driver: first calls of threads, forks, every failure."""
        files = [f"tests/test_{name}.py" for name in GPU_FILES]
        self.step("pytest, GPU host", [*toolchain.PYTEST, *LEFT_OUT, *files])


def address(chain: Chain) -> None:
    chain.build()
    chain.c_tests()
    files = [f"tests/test_{name}.py" for name in ADDRESS_TESTS]
    chain.step("pytest", [*toolchain.PYTEST, *files])
    chain.step("pytest, lifetimes", [*toolchain.PYTEST, "tests/test_lifetime.py", "-k", LIFETIME])
    chain.step("pytest, few columns", [*toolchain.PYTEST, "tests/test_narrow.py", "-k", "weight_stored_by_rows"])
    chain.step("sweep", ["-m", "matmul_fused", "check", "--quick"])
    amx = ["tests/test_sweep.py", "tests/test_blocks.py", "-k", "cpu_blocked_amx"]
    chain.step("modelled AMX", [*toolchain.PYTEST, *amx])
    chain.gpu_tests()


def thread(chain: Chain) -> None:
    chain.build()
    chain.c_tests()
    for seed in range(4):
        chain.step(f"first calls, {seed}", ["tests/sanitize/stress.py", str(seed)])
    chain.step("pytest", [*toolchain.PYTEST, "tests/test_threads.py", "-k", THREADS])
    chain.gpu_tests()


def bugs(chain: Chain) -> None:
    """Every planted bug of this sanitizer must be seen."""
    for bug in planted.BUGS:
        if bug.sanitizer == chain.sanitizer:
            begin = time.monotonic()
            seen = planted.seen(bug)
            chain.say(f"planted bug, {bug.name}: {'seen' if seen else 'NOT SEEN'} ({time.monotonic() - begin:.0f} s)")
            if not seen:
                chain.failures.append(f"the planted bug was not seen: {bug.name}")


CHAINS: dict[str, list[tuple[str, Callable[[Chain], None]]]] = {
    "address": [("address", address)],
    "thread": [("thread", thread)],
    "planted": [("address", bugs), ("thread", bugs)],
}


def guarded(sanitizer: str, function: Callable[[Chain], None]) -> list[str]:
    chain = Chain(sanitizer)
    function(chain)
    return chain.failures


def main() -> int:
    names = sys.argv[1:] or [*CHAINS]
    begin, failures = time.monotonic(), []
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(guarded, *job) for name in names for job in CHAINS[name]]
        for job in jobs:
            failures += job.result()
    for text in failures:
        print(f"\n{text}")
    print(f"sanitize: {len(failures)} failures, {time.monotonic() - begin:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
