"""Every kind of bad input, the exact error it gets, and that nothing is written.

The table is docs/errors.md; `python tests/test_errors.py` writes it anew.
"""

from __future__ import annotations

import array
import importlib.util
import pathlib
import re
import sys
from typing import Any

import numpy as np
import pytest

import matmul_fused as mf
from error_rows import ROWS
from matmul_fused.testing.formulas import ACTIVATIONS, GATED

HERE = pathlib.Path(__file__).parent
TABLE = HERE.parent / "docs" / "errors.md"


class ArrayProtocolOnly:
    def __array__(self, *arguments: Any, **keywords: Any) -> np.ndarray:
        return np.ones((5, 7), np.float32)


def torch_objects() -> dict[str, Any]:
    """The torch tensors that the table names."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    class Dispatching(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, function, types, arguments=(), keywords=None):  # type: ignore[no-untyped-def]
            raise AssertionError("never dispatched")

    with FakeTensorMode():
        fake = torch.randn(5, 7)
    return {
        "torch": torch,
        "t": torch.arange(35, dtype=torch.float32).reshape(5, 7),
        "fake_tensor": fake,
        "dispatching_subclass": torch.ones(5, 7).as_subclass(Dispatching),
    }


def make_dtensor() -> Any:
    """A DTensor on a group of one process."""
    import torch.distributed as dist
    from torch.distributed.tensor import Replicate, distribute_tensor, init_device_mesh

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    import torch

    return distribute_tensor(torch.ones(5, 7), init_device_mesh("cpu", (1,)), [Replicate()])


def make_namespace(call: str) -> dict[str, Any]:
    """Fresh operands for one row."""
    data = np.arange(64, dtype=np.float32)
    raw = np.zeros(29 * 5 + 8, np.uint8)
    readonly = np.full((5, 6), np.nan, np.float32)
    readonly.flags.writeable = False
    names: dict[str, Any] = {
        "np": np,
        "mf": mf,
        "f": mf.matmul_fused,
        "A": data[:35].reshape(5, 7).copy(),
        "B": data[:42].reshape(7, 6).copy(),
        "b": data[:6].copy(),
        "square": data[:25].reshape(5, 5).copy(),
        "buffer": np.full((6, 6), np.nan, np.float32),
        "out": np.full((5, 6), np.nan, np.float32),
        "readonly": readonly,
        "overlapping": np.lib.stride_tricks.as_strided(data.copy(), (5, 6), (4, 4)),
        "strided": lambda shape, strides: np.ndarray(shape, np.float32, np.empty(256, np.float32), 0, strides),
        "odd_stride": np.ndarray((5, 7), np.float32, raw.data, 0, (29, 4)),
        "misaligned": np.ndarray((5, 7), np.float32, raw.data, 1, (28, 4)),
        "as_strided": np.lib.stride_tricks.as_strided,
        "ArrayProtocolOnly": ArrayProtocolOnly,
        "array": array,
    }
    if "torch" in call:
        names |= torch_objects()
    if "dtensor" in call:
        names["dtensor"] = make_dtensor()
    if "jax" in call:
        import jax

        names["jax"] = jax
    if "scipy" in call:
        import scipy.sparse

        names["scipy"] = scipy
    return names


def message(text: str) -> str:
    names = [name for name in (*ACTIVATIONS, *GATED) if name != "none"]
    return text.replace("{names}", ", ".join(names))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("section", "call", "text"), ROWS, ids=[call for _, call, _ in ROWS])
def test_error(section: str, call: str, text: str) -> None:
    for library in ("torch", "jax", "scipy"):
        if library in call:
            pytest.importorskip(library)
    names = make_namespace(call)
    before = {k: v.copy() for k, v in names.items() if isinstance(v, np.ndarray)}
    with pytest.raises(Exception) as caught:  # noqa: PT011 (type and text are compared below)
        eval(call, names)
    assert f"{caught.type.__name__}: {caught.value}" == message(text)
    for key, value in before.items():
        np.testing.assert_array_equal(names[key], value, err_msg=f"{key} was written")


def hint(name: str) -> str | None:
    """The name that the error of an unknown activation offers."""
    with pytest.raises(ValueError, match="unknown activation") as caught:
        mf.matmul_fused(np.ones((1, 1)), np.ones((1, 1)), activation=name)
    found = re.search(r'did you mean "(\w+)"', str(caught.value))
    return found and found[1]


def test_every_activation_is_suggested_for_its_own_typo() -> None:
    for name in mf.activations + mf.gated_activations:
        assert hint(name + "~") == name


def test_a_hint_never_names_another_function() -> None:
    """Where several functions are as near, or a digit makes the difference, there is none."""
    for name in ("relu7", "silu2", "helu", "gelu_11", "gelu_erf", "prelu", "fast_gelu", "softmax", "none_"):
        assert hint(name) in (None, "none"), name
    assert (hint("GELUU"), hint("quikc_gelu"), hint("gelu_tan")) == ("gelu", "quick_gelu", "gelu_tanh")


def make_table() -> str:
    """docs/errors.md."""
    lines = [
        "# What bad input gets",
        "",
        "`f` is `matmul_fused`; `A` is (5, 7), `B` (7, 6), `b` (6,), `out` (5, 6), all float32; `t` is `A` in torch.",
        "Nothing is written before everything is checked. Written and checked by `tests/test_errors.py`; errors of",
        "DLPack producers (BufferError) stand in `tests/test_dlpack.py`.",
    ]
    section = ""
    for name, call, text in ROWS:
        if name != section:
            section = name
            lines += ["", f"## {section}", "", "| call | error |", "|---|---|"]
        call = call.removesuffix("  # torch").replace("|", "\\|")
        kind, _, rest = text.partition(": ")
        rest = rest.replace("{names}", "...").replace("|", "\\|")
        lines.append(f"| `{call}` | {kind}: {rest} |")
    return "\n".join(lines) + "\n"


def test_documentation_shows_this_table() -> None:
    assert TABLE.read_text() == make_table()


if __name__ == "__main__":
    assert importlib.util.find_spec("matmul_fused")
    TABLE.write_text(make_table())
    sys.stdout.write(f"{TABLE.name}: {len(ROWS)} rows\n")
