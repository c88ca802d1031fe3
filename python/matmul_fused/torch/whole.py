"""Is a compiled graph faster with its fused sites? The backend asks after it has decided for each of them.

A site that won alone may lose in its graph: there, what Inductor makes of its neighbours and the threads of two
libraries meet. So the graph is compiled in both forms, and both run on the inputs that it is compiled for. Role on the
path of a call: none; it runs while a model is compiled.
"""

from __future__ import annotations

import hashlib
import logging
import types
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import fx

from . import measure, op
from .operators import word

BUDGET = 0.25  # seconds for a graph, besides its second compilation
WORTH = 1.0  # both forms are compiled: the faster one is taken
SAMPLE = 0.005  # seconds: threads of one library spin on for a while after a call, as they do between forwards

# What writes to an operand without counting its version up.
_UNCOUNTED = ("batch_norm", "instance_norm", "_get_data_attr", "_foreach_", "_fused_", "moving_avg_obs")
_MODULES = ("_operator", "math", "builtins", "torch")

_log = logging.getLogger("matmul_fused")

Compile = Callable[[fx.GraphModule, list[Any]], Any]


def copy_of(graph: fx.GraphModule) -> fx.GraphModule:
    """The graph as it is now, on the same attributes."""
    kept = fx.Graph(tracer_cls=graph.graph._tracer_cls)
    kept.set_codegen(graph.graph._codegen)
    kept.output(kept.graph_copy(graph.graph, {}))
    copied = fx.GraphModule(graph, kept)
    copied.meta.update(graph.meta)
    return copied


# --- may it run? ---


def _known(target: Any) -> bool:
    """A function of torch or Python that does nothing but what its result says, besides random numbers."""
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace in ("aten", "prims", "matmul_fused")
    if isinstance(target, torch._ops.OperatorBase | torch._ops.OpOverloadPacket):
        return False
    owner = getattr(target, "__self__", None)
    if isinstance(owner, type) and issubclass(owner, torch.autograd.Function):  # the user's code
        return False
    module = getattr(target, "__module__", None)
    if module is None:
        return isinstance(target, types.BuiltinFunctionType | types.MethodDescriptorType)
    return module.split(".")[0] in _MODULES and not module.startswith("torch.distributed")


def _why_not_node(node: fx.Node) -> str | None:
    if node.op == "placeholder":
        value = node.meta.get("example_value")
        if isinstance(value, torch.Tensor) and value._version:
            return "it writes to its inputs"
    elif node.op == "get_attr":
        return None if isinstance(_attribute(node), torch.Tensor) else "it has graphs within"
    elif node.op == "call_module" or (node.op == "call_function" and not _known(node.target)):
        return f"it calls {word(node)}"
    elif isinstance(node.kwargs.get("out"), list | tuple) or any(name in word(node) for name in _UNCOUNTED):
        return f"{word(node)} may write to its inputs"
    return None


def _attribute(node: fx.Node) -> Any:
    value: Any = node.graph.owning_module
    for name in str(node.target).split("."):
        value = getattr(value, name, None)
    return value


def why_not(graph: fx.GraphModule, inputs: list[Any]) -> str | None:
    """Why the graph may not run before its time; None if it may: it changes nothing, and is of this process alone."""
    for value in inputs:
        if isinstance(value, torch.Tensor):
            if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.is_meta:
                return f"an input is a {type(value).__qualname__}"
        elif number(value) is None:
            return f"an input is a {type(value).__qualname__}"
    return next((why for node in graph.graph.nodes if (why := _why_not_node(node))), None)


def number(value: Any) -> Any:
    """A number as it is, or of the example that is compiled for; None where that is unknown, or it is none."""
    if isinstance(value, int | float):
        return value
    return value.node.hint if isinstance(value, torch.SymInt | torch.SymFloat) else None


# --- which form is faster? ---


def _key(graphs: list[fx.GraphModule], inputs: list[Any], words: str, device: torch.device) -> str:
    parts = [graph.code for graph in graphs]
    for value in inputs:
        if isinstance(value, torch.Tensor):
            sizes = [number(size) for size in (*value.shape, *value.stride())]
            parts.append(f"{value.dtype} {value.device} {sizes} {value.requires_grad}")
        else:
            parts.append(str(number(value)))
    parts += [words, op.VERSION, str(torch.is_grad_enabled())]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]
    return f"graph {digest}{measure.surroundings(device)}"


def _aliases(inputs: list[Any]) -> list[Any]:
    """Of the same memory; no hook and no .grad sees them."""
    made: dict[int, Any] = {}
    for value in inputs:
        if isinstance(value, torch.Tensor):
            made.setdefault(id(value), value.detach().requires_grad_(value.requires_grad))
    return [made[id(value)] if isinstance(value, torch.Tensor) else number(value) for value in inputs]


def _form(compiled: Any, inputs: list[Any]) -> Callable[[], object]:
    """A call, with the backward pass where gradients are recorded."""
    leaves = [value for value in inputs if isinstance(value, torch.Tensor) and value.requires_grad]

    def run() -> object:
        results = compiled(*inputs)
        ends = [value for value in results if isinstance(value, torch.Tensor) and value.requires_grad]
        if not ends or not leaves:
            return results
        return torch.autograd.grad(ends, leaves, [torch.ones_like(end) for end in ends], allow_unused=True)

    return run


def faster(
    fused: fx.GraphModule, plain: fx.GraphModule, inputs: list[Any], device: torch.device, words: str, compiler: Compile
) -> tuple[measure.Decision | None, Any]:
    """(the decision, or None where the graph may not run, or cannot; the form that it names, compiled)

    words: what else the key is made of, such as the inner backend and its options.
    """
    if why_not(plain, inputs) is not None:
        return None, compiler(fused, inputs)
    key = _key([fused, plain], inputs, words, device)
    found = measure.known(key, device, WORTH)
    if found is not None:
        return found, compiler(fused if found.fused else plain, inputs)
    with torch._functorch.config.patch(force_non_lazy_backward_lowering=True):
        pair = [compiler(graph, inputs) for graph in (fused, plain)]
    with ExitStack() as stack:  # real tensors, in the middle of a compilation
        stack.enter_context(torch._guards.tracing(None))
        stack.enter_context(torch._subclasses.fake_tensor.unset_fake_temporarily())
        stack.enter_context(torch.random.fork_rng([device] if device.type == "cuda" else []))
        aliases = _aliases(inputs)
        forms = [_form(compiled, aliases) for compiled in pair]
        try:
            found = measure.decide(key, *forms, device=device, budget=BUDGET, sample_seconds=SAMPLE, worth=WORTH)
        except RuntimeError as error:  # no memory for both forms, a backward pass that the user may never ask for
            _log.debug("a graph was not timed as a whole: %s", error)
            return None, pair[0]
    return found, pair[not found.fused]
