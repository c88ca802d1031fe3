"""Cases, the float64 reference with its derived bounds, and timing: for `python -m matmul_fused check`,
the benches, the tests, and anybody who wants to prove a machine. NumPy only; ml_dtypes for bfloat16.

    from matmul_fused.testing import Case, covering_sample, force_kernel, run_case
    run_case(Case(17, 33, 65, dtype="float16", bias="row", activation="gelu"), seed=0)

Submodules are imported on first use, so that `force_kernel` costs nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_HOMES = {
    "cases": ("Case", "FEATURES", "TOPICS", "all_cases", "covering_sample", "gpu_sample", "space"),
    "devices": ("DeviceTransfer",),
    "inputs": ("Inputs", "Operand", "embed", "make_inputs", "result_shape"),
    "reference": ("Expected", "Figures", "assert_close", "bound", "compare", "expect"),
    "run": ("Outcome", "Transfer", "check", "expected_results", "repeat", "run_case"),
    "timing": ("Timing", "measure", "rotate"),
    "speed": (),
    "rounding": ("round_to", "ulp"),
    "formulas": ("ACTIVATIONS", "GATED"),
    "covering": (),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}
__all__ = [*_HOME, "force_kernel"]  # noqa: PLE0604


@contextmanager
def force_kernel(name: str | None) -> Iterator[None]:
    """Let only the named kernels run on this thread; None: any.

    Names of kernels or families, several separated by commas; a device that none of them is for is unaffected. Calls
    that the kernels cannot do raise NotImplementedError with the reasons; an unknown name is a ValueError. Nests: what
    was forced before comes back at the end.
    """
    from matmul_fused import _core

    previous = _core.force_kernel(name)
    try:
        yield
    finally:
        _core.force_kernel(previous)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return importlib.import_module(f".{name}", __name__)
    if name in _HOME:
        return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *_HOMES]
