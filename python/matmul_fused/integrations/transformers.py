"""A mapping for the `kernels` package: it replaces the forward of transformers' MLPs by fused calls.

    from kernels import Mode, kernelize, use_kernel_mapping
    with use_kernel_mapping(kernel_mapping(), inherit_mapping=False):
        kernelize(model, mode=Mode.INFERENCE, device="cpu")

`kernels` finds a layer by a name that its class bears, and transformers names no MLP: `kernel_mapping` names those
whose forward it knows, word by word, in the models that are imported. matmul_fused.torch.patch needs neither, and fuses
more.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections import Counter
from typing import Any

import torch

from matmul_fused.torch import linear
from matmul_fused.torch.activations import of_module
from matmul_fused.torch.match import GATED_BY
from matmul_fused.torch.patching import _as_checked, _check_hooks, _check_linear
from matmul_fused.torch.sites import Left

_DEVICES = ("cpu", "cuda", "rocm")


def _spelled(module: Any) -> str | None:
    found = of_module(module)
    return None if found is None else found.name


# Layers as `kernels` wants them: a forward alone, without other members, for the modules whose forward it replaces.
# What was added to a module since (LoRA, a hook) sends it back to its own forward.


class GatedMLP(torch.nn.Module):  # type: ignore[misc]
    """The MLP of Llama, Qwen, Mistral, Gemma."""

    can_torch_compile = True

    def forward(self, x: Any) -> Any:
        gate, up = self.gate_proj, self.up_proj
        if not _as_checked(gate) or not _as_checked(up):
            return type(self).forward(self, x)
        bias = None if gate.bias is None else (gate.bias, up.bias)
        return self.down_proj(linear(x, (gate.weight, up.weight), bias, GATED_BY[_spelled(self.act_fn)]))  # type: ignore[index]


class PackedMLP(torch.nn.Module):  # type: ignore[misc]
    """The MLP of Phi-3: one weight for gate and up."""

    can_torch_compile = True

    def forward(self, hidden_states: Any) -> Any:
        packed = self.gate_up_proj
        if not _as_checked(packed):
            return type(self).forward(self, hidden_states)
        activation = GATED_BY[_spelled(self.activation_fn)]  # type: ignore[index]
        return self.down_proj(linear(hidden_states, packed.weight, packed.bias, activation, gate_layout="halves"))


_GATED = "down_proj = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))\nreturn down_proj"
_PACKED = """
up_states = self.gate_up_proj(hidden_states)
gate, up_states = up_states.chunk(2, dim=-1)
up_states = up_states * self.activation_fn(gate)
return self.down_proj(up_states)
"""


def _body(source: str) -> str:
    return ast.dump(ast.parse(source))


# The body of a forward -> (the layer, its linear layers, its activation).
_FORWARDS: dict[str, tuple[type, tuple[str, ...], str]] = {
    _body(_GATED): (GatedMLP, ("gate_proj", "up_proj"), "act_fn"),
    _body(_PACKED): (PackedMLP, ("gate_up_proj",), "activation_fn"),
}


def _form(kind: type) -> tuple[type, tuple[str, ...], str] | None:
    try:
        (function,) = ast.parse(textwrap.dedent(inspect.getsource(kind.__dict__["forward"]))).body
    except (KeyError, OSError, SyntaxError, TypeError, ValueError):
        return None
    assert isinstance(function, ast.FunctionDef)
    return _FORWARDS.get(ast.dump(ast.Module(function.body, [])))


def _fits(module: Any) -> bool:
    """Asked by `kernels` of each module: is it as its class is, without LoRA, quantisation, hooks?"""
    form = _form(type(module))
    if form is None:  # a subclass with a forward of its own
        return False
    _, names, act = form
    linears = [getattr(module, name) for name in names]
    try:
        for name, part in zip(names, linears, strict=True):
            _check_linear(name, part, Counter())
        _check_hooks(act, getattr(module, act))
    except Left:
        return False
    same = len({part.bias is None for part in linears}) == 1
    return same and _spelled(getattr(module, act)) in GATED_BY


class Repository:
    """What `kernels` loads a layer from; this one has it at hand."""

    def __init__(self, layer: type) -> None:
        self.layer_name = layer.__name__
        self._layer = layer

    def load(self) -> type:
        return self._layer

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Repository) and other._layer is self._layer

    def __hash__(self) -> int:
        return hash(self._layer)

    def __str__(self) -> str:
        return f"matmul_fused, layer {self.layer_name}"


def kernel_mapping() -> dict[str, dict[str, Repository]]:
    """The mapping for kernels.use_kernel_mapping or register_kernel_mapping; call it after the model was made.

    It names the MLP classes of the transformers models that are imported, unless they have a name.
    """
    try:
        from kernels import replace_kernel_forward_from_hub
    except ImportError as error:
        raise ImportError("kernel_mapping is for the package kernels, which is not installed") from error

    for name, module in list(sys.modules.items()):
        if not name.startswith("transformers.models.") or ".modeling_" not in name:
            continue
        for kind in list(vars(module).values()):
            if not isinstance(kind, type) or kind.__module__ != name or "MLP" not in kind.__name__:
                continue
            form = _form(kind)
            if form is not None and "kernel_layer_name" not in vars(kind):
                replace_kernel_forward_from_hub(kind, f"matmul_fused.{form[0].__name__}", _fits)
    layers = {layer for layer, _, _ in _FORWARDS.values()}
    return {
        f"matmul_fused.{layer.__name__}": {device: Repository(layer) for device in _DEVICES}
        for layer in sorted(layers, key=lambda layer: layer.__name__)
    }
