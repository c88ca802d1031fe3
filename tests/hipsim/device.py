"""A simulated device for tests: arrays, streams, captured graphs, faults and the report."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import library
from .array import Array, Imported, Memory, make_wait, view
from .library import hip, made, try_hip

NON_BLOCKING = 1
HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2
CAPTURE_GLOBAL, CAPTURE_THREAD_LOCAL, CAPTURE_RELAXED = 0, 1, 2
PROPERTIES_SIZE, ARCH_NAME_OFFSET = 1472, 1160


def device_count() -> int:
    count = ctypes.c_int()
    try_hip("hipGetDeviceCount", ctypes.byref(count))
    return count.value


@contextlib.contextmanager
def all_clean(*kinds: str) -> Iterator[None]:
    """The block leaves the devices idle and clean, with no more allocations and handles (of these kinds; none: all)."""
    devices = [Device(i) for i in range(device_count())]
    before = [device.report() for device in devices]
    yield
    gc.collect()
    for device, earlier in zip(devices, before, strict=True):
        report = device.assert_clean()
        kept = report.allocations - earlier.allocations
        assert kept <= 0, f"{device}: {report.allocated_bytes} bytes were not freed"
        assert all(report.handles[kind] <= earlier.handles[kind] for kind in kinds or report.handles), report.handles


@dataclass(frozen=True)
class Violation:
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(frozen=True)
class Report:
    """What a device has to answer for since the last one."""

    violations: list[Violation]
    counters: dict[str, int]
    allocations: int  # of the user, still live
    allocated_bytes: int
    handles: dict[str, int]  # streams, events, modules, graphs that nobody gave back, of the process

    def __str__(self) -> str:
        return "\n".join(map(str, self.violations)) or "no violations"


class Stream:
    """A stream of its own; non-blocking unless told otherwise, as torch makes them."""

    def __init__(self, device: Device, *, blocking: bool = False, priority: int = 0) -> None:
        self.device = device
        with device.current():
            self.handle = made("hipStreamCreateWithPriority", 0 if blocking else NON_BLOCKING, priority)

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle

    def synchronize(self) -> None:
        hip("hipStreamSynchronize", self.handle)

    def done(self) -> bool:
        code = try_hip("hipStreamQuery", self.handle)
        if code not in (0, 600):
            raise library.HipError("hipStreamQuery", code)
        return code == 0

    def wait_for(self, other: Stream | None) -> None:
        """Later work of this stream waits for the present work of the other (None: the default stream)."""
        make_wait((other or self).device, self.handle, other.handle if other else 0)

    def destroy(self) -> None:
        handle, self.handle = self.handle, 0
        hip("hipStreamDestroy", handle)


class Graph:
    """A captured graph, ready for replay."""

    def __init__(self) -> None:
        self.graph = self.exec = 0

    def launch(self, stream: Stream | None = None) -> None:
        hip("hipGraphLaunch", self.exec, stream.handle if stream else 0)

    def destroy(self) -> None:
        hip("hipGraphExecDestroy", self.exec)
        hip("hipGraphDestroy", self.graph)
        self.graph = self.exec = 0


class Device:
    """A handle on one ordinal, by number or by name ("gfx942": the first such part)."""

    def __init__(self, which: int | str = 0) -> None:
        names = [_properties(i)[ARCH_NAME_OFFSET:].split(b"\0")[0].decode() for i in range(device_count())]
        short = [name.split(":")[0] for name in names]
        if isinstance(which, str) and which not in short:
            raise ValueError(f"no simulated {which}: HIPSIM_DEVICES gives {', '.join(short) or 'none'}")
        self.ordinal = short.index(which) if isinstance(which, str) else which
        if not 0 <= self.ordinal < len(names):
            raise ValueError(f"no device {which}: HIPSIM_DEVICES gives {', '.join(short) or 'none'}")
        self.gcn_arch_name = names[self.ordinal]
        self.arch = short[self.ordinal]

    def __repr__(self) -> str:
        return f"hipsim.Device({self.arch}, {self.ordinal})"

    @property
    def properties(self) -> dict[str, Any]:
        raw = _properties(self.ordinal)
        words = {"wave_size": 308, "compute_units": 388, "max_threads_per_block": 320, "major": 360, "minor": 364}
        numbers = {name: int.from_bytes(raw[at : at + 4], "little") for name, at in words.items()}
        sizes = {"memory_bytes": 288, "lds_bytes": 296}
        numbers |= {name: int.from_bytes(raw[at : at + 8], "little") for name, at in sizes.items()}
        return {"name": raw[:256].split(b"\0")[0].decode(), "gcn_arch_name": self.gcn_arch_name, **numbers}

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Make this device current on the thread, and the earlier one afterwards."""
        before = ctypes.c_int()
        hip("hipGetDevice", ctypes.byref(before))
        hip("hipSetDevice", self.ordinal)
        try:
            yield
        finally:
            hip("hipSetDevice", before.value)

    def empty(self, shape: Any, dtype: Any = np.float32, *, stream: Stream | None = None, offset: int = 0) -> Array:
        """Memory that holds NaN (beyond 256 MiB: sparse zeros); offset: bytes of the first element from a page."""
        shape = tuple(shape) if np.iterable(shape) else (shape,)
        size = math.prod(shape) * np.dtype(dtype).itemsize
        return view(Memory(self, size + offset, stream), shape, dtype, None, offset)

    def array(self, values: Any, *, stream: Stream | None = None, offset: int = 0) -> Array:
        """A copy of a NumPy array with its strides, on its way in stream order."""
        values = np.asarray(values)
        low, high = _extent(values.shape, values.strides, values.itemsize)
        memory = Memory(self, high - low + offset, stream)
        if high > low:
            source = values.ctypes.data + low
            handle = stream.handle if stream else 0
            with self.current():
                hip("hipMemcpyAsync", memory.pointer + offset, source, high - low, HOST_TO_DEVICE, handle)
        return view(memory, values.shape, values.dtype, values.strides if high > low else None, offset - low)

    def to_numpy(self, array: Any, *, stream: Stream | None = None) -> np.ndarray:
        """A copy of a device array of any library, made after the work that is in the stream now and no other."""
        source = array if isinstance(array, Array) else Imported(array)
        low, high = _extent(source.shape, source.byte_strides, source.dtype.itemsize)
        raw = np.empty(max(high - low, 1), np.uint8)
        if high > low:
            handle = stream.handle if stream else 0
            with self.current():
                hip("hipMemcpyAsync", raw.ctypes.data, source.pointer + low, high - low, DEVICE_TO_HOST, handle)
                hip("hipStreamSynchronize", handle)
        strides = source.byte_strides if high > low else None
        return np.ndarray(source.shape, source.dtype, raw, -low if high > low else 0, strides).copy()

    def stream(self, *, blocking: bool = False, priority: int = 0) -> Stream:
        return Stream(self, blocking=blocking, priority=priority)

    def synchronize(self) -> None:
        with self.current():
            hip("hipDeviceSynchronize")

    @contextlib.contextmanager
    def capture(self, stream: Stream, mode: int = CAPTURE_GLOBAL) -> Iterator[Graph]:
        """Record what the block puts into the stream; the graph can be launched afterwards."""
        graph = Graph()
        hip("hipStreamBeginCapture", stream.handle, mode)
        try:
            yield graph
        except BaseException:
            unwanted = ctypes.c_void_p()
            if try_hip("hipStreamEndCapture", stream.handle, ctypes.byref(unwanted)) == 0:
                hip("hipGraphDestroy", unwanted)
            raise
        captured = ctypes.c_void_p()
        hip("hipStreamEndCapture", stream.handle, ctypes.byref(captured))
        graph.graph = captured.value or 0
        graph.exec = made("hipGraphInstantiateWithFlags", graph.graph, 0)

    def fail_next(self, name: str, code: int, skip: int = 0) -> None:
        library.fail_next(name, code, skip)

    def report(self, *, reset: bool = True) -> Report:
        """Violations, counters and live memory; the next report starts anew."""
        raw = library.raw_report(self.ordinal, reset)
        violations = [Violation(**entry) for entry in raw["violations"]]
        live = raw["allocations"]
        return Report(violations, raw["counters"], live["count"], live["bytes"], raw["handles"])

    def assert_clean(self) -> Report:
        """Finish all work; AssertionError with every violation, else the report."""
        code = 0
        with self.current():
            code = try_hip("hipDeviceSynchronize")
        report = self.report()
        hidden = report.counters["violations"] - len(report.violations)
        more = f"\n... and {hidden} more" if hidden > 0 else ""
        assert not report.violations, f"{self.arch}:\n{report}{more}"
        assert code == 0, f"hipDeviceSynchronize: {code}"
        return report


def _properties(ordinal: int) -> bytes:
    raw = (ctypes.c_char * PROPERTIES_SIZE)()
    hip("hipGetDevicePropertiesR0600", raw, ordinal)
    return raw.raw


def _extent(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """First and one past the last byte that a strided array reaches, from its first element."""
    if math.prod(shape) == 0:
        return 0, 0
    reach = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
    return sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach) + itemsize
