"""What nvidia-smi tells while a bench runs: SM clocks, the driver. Role: used by bench_gpu.py."""

from __future__ import annotations

import os
import pty
import shutil
import statistics
import subprocess
import sys
import threading
import time
from types import TracebackType

POLL = ("--query-gpu=clocks.sm", "--format=csv,noheader,nounits", "-lms", "20")
# The kernel ends the child with its parent, however that ends: 1 is PR_SET_PDEATHSIG, 9 SIGKILL.
TIED = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"


def _gpu(uuid: str) -> list[str]:
    return [f"--id=GPU-{uuid}"] if uuid else []


def driver(uuid: str = "") -> str:
    """Its version, "not known" without nvidia-smi."""
    command = ["nvidia-smi", *_gpu(uuid), "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return "not known"
    return next(iter(done.stdout.split("\n"))).strip() or "not known"


class Clocks:
    """Polls in a child process for as long as the context lasts."""

    def __init__(self, uuid: str = "") -> None:
        self.uuid, self.since = uuid, 0.0
        self.samples: list[tuple[float, int]] = []  # when, MHz
        self.child: subprocess.Popen[bytes] | None = None
        self.reader: threading.Thread | None = None

    def __enter__(self) -> Clocks:
        program = shutil.which("nvidia-smi")
        if program is None:
            print("nvidia-smi is not in PATH: clocks are not shown\n", flush=True)
            return self
        # To a terminal a program writes line by line, to a pipe perhaps only when its buffer is full.
        ours, theirs = pty.openpty()
        try:
            command = [sys.executable, "-c", TIED, program, *_gpu(self.uuid), *POLL]
            self.child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.DEVNULL)
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        self.reader = threading.Thread(target=self._read, args=(ours,), daemon=True)
        self.reader.start()
        return self

    def _read(self, terminal: int) -> None:
        with os.fdopen(terminal, "r", errors="replace") as lines:
            try:
                for line in lines:
                    if line.strip().isdigit():
                        self.samples.append((time.perf_counter(), int(line)))
            except OSError:
                pass  # so ends what a terminal gives once the child is gone

    def begin(self) -> None:
        """What median() is about begins here."""
        self.since = time.perf_counter()

    def median(self) -> int | None:
        found = [mhz for when, mhz in self.samples if when >= self.since]
        return round(statistics.median(found)) if found else None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self.child:
            self.child.terminate()
            try:
                self.child.wait(5)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()
        if self.reader:
            self.reader.join(5)
            if not self.samples:
                print("nvidia-smi gave no clocks", flush=True)
