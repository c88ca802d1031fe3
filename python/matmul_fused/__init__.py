"""activation(alpha * A @ B + beta * C + bias) in one kernel, for NumPy, torch, JAX and every DLPack array.

The call itself lives in the extension `_core` (csrc/); `report` holds explain and info. `matmul_fused.testing` is
imported on first use. The stub __init__.pyi has the full texts.
"""

import importlib
import logging

from . import _core
from ._core import (
    Array,
    DeviceError,
    PackedMatrix,
    __version__,
    activations,
    gated_activations,
    get_num_threads,
    matmul_fused,
    prepack,
    set_num_threads,
)
from .report import Explanation, Info, explain, info
from .report import ignored as _ignored
from .report import printable as _printable

__all__ = [
    "Array",
    "DeviceError",
    "Explanation",
    "Info",
    "PackedMatrix",
    "__version__",
    "activations",
    "explain",
    "gated_activations",
    "get_num_threads",
    "info",
    "matmul_fused",
    "prepack",
    "set_num_threads",
    "testing",
]

_LAZY = ("testing",)


def __getattr__(name):
    if name in _LAZY:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return __all__


def _set_up_logging(level):
    """Give the logger its NullHandler and, where MATMUL_FUSED_LOG is set, a handler on stderr."""
    logger = logging.getLogger(__name__)
    logger.addHandler(logging.NullHandler())
    if level is None:
        return logger
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(name)s: %(levelname)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.getLevelNamesMapping().get(level.upper(), logging.NOTSET))
    return logger


def _start():
    facts = _core.info()
    values = {name: value for name, _, value in facts["environment"]}
    logger = _set_up_logging(values["MATMUL_FUSED_LOG"])
    logger.debug("version %(version)s, kernels %(kernels)s, %(threads)d threads", facts)
    for name, why in _ignored(facts):
        logger.warning("%s=%s: %s", name, _printable(values[name]), why)


_start()
