"""python tools/activation_table.py [--check]: docs/activations.md, from the package and what the tests measured.

A column for each back end whose tests ran here: they leave their greatest errors in build/reports/activations.json and
build/reports/<device>/activations.json; a folder of another machine is called after its GPU. --check: exit code 1 if
the rows (all but the errors) are not those of now.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

import matmul_fused as mf

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "activations.md"
REPORTS = ROOT / "build" / "reports"
HEAD = """# Activations

Written by `python tools/activation_table.py` after `python -m pytest tests/test_activations.py` (and, for a device,
`pytest --device DEVICE tests/test_activations_device.py`). An error is the greatest one of those tests, as a share of
the bound that [bound.md](bound.md) derives: below 1 is right. `-`: not measured there.

Used by: a function or class of torch or JAX that is recognised as the activation itself, and names of vLLM 0.33 and of
transformers that are aliases (`tests/test_registries.py` compares the lists; `tests/vllm_activations.json` has vLLM's).

"""
# vLLM 0.33's names, by what stands for them; tests/test_registries.py compares them with the list.
VLLM = {
    "gelu": ("gelu",), "gelu_tanh": ("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "relu": ("relu",),
    "relu_squared": ("relu2",), "silu": ("silu", "swish"), "quick_gelu": ("quick_gelu",), "tanh": ("tanh",),
    "sigmoid": ("sigmoid",), "xielu": ("xielu",), "swiglu": ("silu_and_mul", "mul_and_silu"),
    "geglu": ("gelu_and_mul",), "swiglu_oai": ("swigluoai_and_mul",), "swiglu_clamped": ("silu_and_mul_with_clamp",),
    "situglu": ("situ_and_mul",), "swiglustep": ("swiglustep_and_mul",), "fatreglu": ("fatrelu_and_mul",),
}  # fmt: skip


def callables() -> dict[str, list[str]]:
    """Functions and classes of libraries, by the activation that they are."""
    found = defaultdict(list)
    functional = "torch.nn.functional"
    for line in (ROOT / "csrc/binding/callables.def").read_text().split("\n"):
        if line.startswith(("MMF_FUNCTION(", "MMF_CLASS(")):
            module, name, activation = (x.strip().strip('"') for x in line.partition("(")[2].split(",")[:3])
            found[activation].append(f"{functional if module == 'F' else module}.{name}")
    return found


def errors() -> dict[str, dict[tuple[str, str], float]]:
    """back end -> (activation, dtype) -> greatest error / bound."""
    found = {}
    for path in [REPORTS / "activations.json", *sorted(REPORTS.glob("*/activations.json"))]:
        if not path.exists():
            continue
        device = "CPU" if path.parent == REPORTS else path.parent.name.replace("hip-", "simulated ")
        rows: dict[tuple[str, str], float] = {}
        for row in json.loads(path.read_text()):
            key = row["activation"].partition("(")[0], row["dtype"]
            rows[key] = max(rows.get(key, 0.0), row["ratio"])
        found[device] = rows
    return found


def rows() -> list[list[str]]:
    """name, formula, source, used by."""
    known, table = callables(), []
    for name, _, formula, source, parameters, aliases in mf._core.activation_table():
        said = ", ".join(p if default is None else f"{p}={default:g}" for p, default in parameters)
        by = known.get(name, []) + [user for alias in aliases for user in known.get(alias, [])]
        by += [f"vLLM {x}" for x in VLLM.get(name, ())]
        title = f"`{name}`" + (f" ({said})" if said else "")
        title += "".join(f", `{alias}`" for alias in aliases)
        formula = formula.replace("|", "\\|")
        table.append([title, f"`{formula}`", source or "-", ", ".join(f"`{user}`" for user in by) or "-"])
    return table


def page() -> str:
    measured = errors()
    columns = [(device, dtype) for device, found in measured.items() for dtype in sorted({d for _, d in found})]
    heads = ["activation", "formula", "source", "used by", *(f"{device}, {dtype}" for device, dtype in columns)]
    lines = ["| " + " | ".join(heads) + " |", "| " + " | ".join("---" for _ in heads) + " |"]
    for row in rows():
        name = row[0].split("`")[1]
        shares = [measured[device].get((name, dtype)) for device, dtype in columns]
        lines.append("| " + " | ".join([*row, *("-" if x is None else f"{x:.2f}" for x in shares)]) + " |")
    return HEAD + "\n".join(lines) + "\n"


def main() -> int:
    if sys.argv[1:] == ["--check"]:
        text = PAGE.read_text()
        missing = [row[0] for row in rows() if "| " + " | ".join(row) + " |" not in text]
        print(*missing, sep="\n", end="")
        return 1 if missing else 0
    PAGE.write_text(page())
    print(f"{PAGE.relative_to(ROOT)}: {', '.join(errors()) or 'no errors were measured here'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
