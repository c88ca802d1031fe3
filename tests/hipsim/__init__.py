"""A simulated AMD GPU behind the HIP runtime's own entry points, for tests (NumPy only).

    MATMUL_FUSED_HIP_LIBRARY=FOLDER/libamdhip64_sim.so HIPSIM_DEVICES=gfx942,gfx1100 pytest ...

    import hipsim
    dev = hipsim.Device("gfx942")
    x = dev.array(numpy_array)                 # device memory with the array's strides; DLPack device (10, ordinal)
    y = mf.matmul_fused(x, w.mT, b, "silu")    # the extension found the same library
    dev.to_numpy(y)
    dev.assert_clean()                         # AssertionError with what the checks found; counters otherwise
    hipsim.fail_next("hipModuleLaunchKernel", 719)

runtime/settings.c lists the environment variables; `python -m hipsim.build FOLDER` builds the library.
"""

from .array import Array, live_exports
from .device import (
    CAPTURE_GLOBAL,
    CAPTURE_RELAXED,
    CAPTURE_THREAD_LOCAL,
    Device,
    Graph,
    Report,
    Stream,
    Violation,
    all_clean,
    device_count,
)
from .library import HipError, calls, configure, entry_points, fail_next, fault_waits, hip, library, made, try_hip
from .module import Function, Module

__all__ = [
    "CAPTURE_GLOBAL",
    "CAPTURE_RELAXED",
    "CAPTURE_THREAD_LOCAL",
    "Array",
    "Device",
    "Function",
    "Graph",
    "HipError",
    "Module",
    "Report",
    "Stream",
    "Violation",
    "all_clean",
    "calls",
    "configure",
    "device_count",
    "entry_points",
    "fail_next",
    "fault_waits",
    "hip",
    "library",
    "live_exports",
    "made",
    "try_hip",
]
