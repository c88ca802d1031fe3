"""activation(alpha * A @ B + beta * C + bias) in one kernel, for NumPy, torch, JAX and every DLPack array.

The call itself lives in the extension `_core` (csrc/); `report` holds explain and info. Whatever the call does not need
is imported on first use. The stub __init__.pyi has the full texts.
"""

import contextlib
import importlib
import os
import sys

from . import _core
from ._core import (
    Array,
    DeviceError,
    PackedMatrix,
    __version__,
    activations,
    as_prepacked,
    gated_activations,
    get_num_threads,
    matmul_fused,
    prepack,
    set_num_threads,
)

__all__ = [
    "Array",
    "DeviceError",
    "Explanation",
    "Expression",
    "Info",
    "PackedMatrix",
    "Tuning",
    "__version__",
    "activations",
    "as_prepacked",
    "explain",
    "gated_activations",
    "get_num_threads",
    "info",
    "lazy",
    "matmul_fused",
    "num_threads",
    "prepack",
    "set_num_threads",
    "testing",
    "tune",
    "warmup",
]

# name -> the submodule that has it; "testing" is one itself
_LAZY = {
    "Explanation": "report",
    "Expression": "expression",
    "Info": "report",
    "Tuning": "tuning",
    "explain": "report",
    "info": "report",
    "lazy": "expression",
    "testing": "",
    "tune": "tuning",
    "warmup": "tuning",
}


def __getattr__(name):
    if name in activations or name in gated_activations:  # of the lazy form: mf.relu(mf.lazy(A) @ B)
        globals()[name] = importlib.import_module(".expression", __name__).activation(name)
        return globals()[name]
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f".{_LAZY[name] or name}", __name__)
    globals()[name] = getattr(module, name) if _LAZY[name] else module
    return globals()[name]


def __dir__():
    return __all__


@contextlib.contextmanager
def num_threads(n, /):
    """Threads of the CPU back end for calls of this thread within the block: `with mf.num_threads(1): ...`.

    Other threads keep their number. A block must not await: other tasks of the thread would have its number, too.
    """
    before = _core._use_num_threads(n)
    try:
        yield
    finally:
        _core._use_num_threads(before)


def _cache_folder(given):
    """The folder of the tune store: MATMUL_FUSED_CACHE_DIR as it was given, else matmul_fused in XDG's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # then it is to be ignored, says XDG
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return given or os.path.join(base, "matmul_fused")


def _read_tuned(values):
    """Let the plan use what tune() found here, if there is anything."""
    if (values["MATMUL_FUSED_TUNE"] or "").lower() != "off" and os.path.exists(
        os.path.join(_cache_folder(values["MATMUL_FUSED_CACHE_DIR"]), f"tune-{__version__}.json")
    ):
        from . import store

        store.apply(store.default())


def _add_handler(logger, handler):
    """Once in a process: after a reload the logger has it already."""
    handler.set_name(f"{__name__}.{type(handler).__name__}")
    if handler.name in [old.name for old in logger.handlers]:
        return
    logger.addHandler(handler)


def _set_up_logging(level):
    """Give the logger its NullHandler and, where MATMUL_FUSED_LOG is set, a handler on stderr."""
    import logging

    logger = logging.getLogger(__name__)
    _add_handler(logger, logging.NullHandler())
    if level is None:
        return logger
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(name)s: %(levelname)s: %(message)s"))
    _add_handler(logger, handler)
    logger.setLevel(logging.getLevelNamesMapping().get(level.upper(), logging.NOTSET))
    return logger


def _start():
    facts = _core.info()
    values = {name: value for name, _, value in facts["environment"]}
    level = values["MATMUL_FUSED_LOG"]
    _set_up(facts, values, level)
    _read_tuned(values)


def _set_up(facts, values, level):
    """Say what there is to say: only then, or where logging is there already, the logger is made."""
    if level is None and not facts["ignored"] and "logging" not in sys.modules:
        return
    logger = _set_up_logging(level)
    logger.debug("version %(version)s, kernels %(kernels)s, %(threads)d threads", facts)
    if level is None and not facts["ignored"]:
        return
    from .report import ignored, printable

    for name, why in ignored(facts):
        logger.warning("%s=%s: %s", name, printable(values[name]), why)


_start()
