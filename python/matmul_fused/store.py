"""The tune store: what was measured on this machine, one JSON file of a version in CACHE_DIR.

Its two parts are tables of tables, device -> key -> outcome: "kernels", what tune() found, and "sites", what
matmul_fused.torch timed. Not on the path of a call: read once, at import if the file is there, and written by who
measured.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import _cache_folder, _core, _set_up_logging

FORMAT = 1
PARTS = ("kernels", "sites")
_MOST_BYTES = 16 << 20  # of a file; an entry has about 200

Table = dict[str, dict[str, Any]]


def _environment(name: str) -> str | None:
    value: str | None = {variable: value for variable, _, value in _core.info()["environment"]}[name]
    return value


log = _set_up_logging(_environment("MATMUL_FUSED_LOG"))


def enabled() -> bool:
    """Is the store used? MATMUL_FUSED_TUNE=off says no."""
    return (_environment("MATMUL_FUSED_TUNE") or "").lower() != "off"


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith(("model name", "CPU part"))]
    except OSError:
        names = []
    return f"{names[0] if names else platform.machine()}; {_core.info()['cpu_features'] or 'baseline'}"


def device_name(device: str) -> str:
    """The device as the store has it, with its driver: what was measured there holds there alone."""
    kind = device.partition(":")[0]
    if kind == "cpu":
        return f"cpu: {_cpu()}"
    facts = _core.gpus()
    driver = dict(facts["backends"])["NVIDIA GPUs" if kind == "cuda" else "AMD GPUs"].rpartition(", ")[0]
    number = device if ":" in device else f"{device}:0"
    return f"{kind}: {dict(facts['devices']).get(number, 'unknown')}; {driver}"


class Store:
    """The file of one folder. Threads may share it; processes that write take turns by a lock file."""

    def __init__(self, folder: Path, version: str = _core.__version__) -> None:
        self.folder = folder
        self.path = folder / f"tune-{version}.json"
        self._version = version
        self._lock = threading.Lock()
        self._read: dict[str, Table] | None = None  # what the file said when it was read first, and what was put since

    def _after_fork(self) -> None:
        self._lock = threading.Lock()  # another thread of the parent may hold it

    # --- reading ---

    def _why_foreign(self, facts: os.stat_result) -> str | None:
        if facts.st_uid != os.geteuid():
            return f"belongs to user {facts.st_uid}, not to {os.geteuid()}"
        if facts.st_mode & 0o022:
            return f"may be written by others (mode {stat.S_IMODE(facts.st_mode):04o})"
        return None

    def _parse(self) -> dict[str, Table]:
        """The tables of the file. ValueError or OSError: why there are none."""
        why = self._why_foreign(os.stat(self.folder))
        if why:
            raise ValueError(f"its folder {why}")
        with open(os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode):
                raise ValueError("it is no file")
            why = self._why_foreign(facts)
            if why:
                raise ValueError(f"it {why}")
            if facts.st_size > _MOST_BYTES:
                raise ValueError(f"it has {facts.st_size} bytes, more than {_MOST_BYTES}")
            text = file.read(_MOST_BYTES + 1)
        try:
            said = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"it is damaged: {error}") from None
        if not isinstance(said, dict) or said.get("format") != FORMAT or said.get("version") != self._version:
            raise ValueError("another version wrote it")
        tables: dict[str, Any] = {part: said.get(part) for part in PARTS}
        for table in tables.values():
            if not isinstance(table, dict) or not all(isinstance(rows, dict) for rows in table.values()):
                raise ValueError("it is damaged: not a table of tables")
        return tables

    def _load(self) -> dict[str, Table]:
        """With one log line where there is a file that is of no use."""
        try:
            return self._parse()
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            said = error.strerror if isinstance(error, OSError) else error
            log.warning("%s is ignored: %s", self.path, said)
        return {part: {} for part in PARTS}

    def devices(self, part: str) -> Table:
        """The outcomes of a part by device. Reads the file the first time."""
        with self._lock:
            if self._read is None:
                self._read = self._load()
            return {device: dict(rows) for device, rows in self._read[part].items()}

    def get(self, part: str, device: str) -> dict[str, Any]:
        """The outcomes for a device (see device_name)."""
        return self.devices(part).get(device, {})

    # --- writing ---

    def check(self) -> None:
        """Make the folder. OSError, with a sentence, unless it is ours alone to write."""
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                self.folder.mkdir(mode=0o700)
            facts = os.stat(self.folder)
        except OSError as error:
            raise OSError(
                error.errno, f"{error.strerror}; set MATMUL_FUSED_CACHE_DIR to a folder of yours", str(self.folder)
            ) from None
        if not stat.S_ISDIR(facts.st_mode):
            raise NotADirectoryError(f"{self.folder} is no folder; set MATMUL_FUSED_CACHE_DIR to one")
        if not os.access(self.folder, os.W_OK | os.X_OK):
            raise PermissionError(f"{self.folder} cannot be written; set MATMUL_FUSED_CACHE_DIR to a folder of yours")
        why = self._why_foreign(facts)
        if why:
            raise PermissionError(f"{self.folder} {why}; set MATMUL_FUSED_CACHE_DIR to a folder of yours, mode 0700")

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """While no other process writes."""
        import fcntl

        handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def put(self, part: str, device: str, outcomes: dict[str, Any]) -> None:
        """Add outcomes to the file, or replace those of their keys; None takes one out. OSError, with a sentence."""
        with self._lock:
            self.check()
            try:
                with self._alone():
                    tables = self._load()
                    rows = {**tables[part].get(device, {}), **outcomes}
                    tables[part][device] = {key: row for key, row in rows.items() if row is not None}
                    self._write(tables)
            except OSError as error:
                raise OSError(
                    error.errno, f"{error.strerror}; set MATMUL_FUSED_CACHE_DIR to a folder of yours", str(self.path)
                ) from None
            self._read = tables

    def _write(self, tables: dict[str, Table]) -> None:
        """Readers see the old file or the new one."""
        import tempfile  # slow, and no reader needs it

        text = json.dumps({"format": FORMAT, "version": self._version, **tables}, indent=1, sort_keys=True)
        handle, name = tempfile.mkstemp(dir=self.folder, prefix="tune-")  # mode 0600
        try:
            with open(handle, "w") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, self.path)
        except BaseException:
            os.unlink(name)
            raise


def is_time(seconds: Any) -> bool:
    return type(seconds) is float and math.isfinite(seconds) and seconds > 0


_default = Store(Path(_cache_folder(_environment("MATMUL_FUSED_CACHE_DIR"))))
os.register_at_fork(after_in_child=_default._after_fork)


def default() -> Store:
    """The store of this process."""
    return _default


def apply(kept: Store) -> None:
    """Let the plan use what the store has; choices for other CPUs are left out, a GPU's carry its name in their key."""
    choices = []
    for device, rows in kept.devices("kernels").items():
        if not device.startswith("cpu:") or device == device_name("cpu"):
            choices += [(key, *choice) for key, choice in rows.items() if _is_choice(key, choice)]
    _core._set_tuned(choices)


def _is_choice(key: str, choice: Any) -> bool:
    if not (isinstance(choice, list) and len(choice) == 2):
        return False
    name, seconds = choice
    return isinstance(name, str) and is_time(seconds) and len(key) == 32 and set(key) <= set("0123456789abcdef")
