"""Fused layers of which two processes have a part each; run by test_torch_parallel.py.

`parallel.py RANK STORE DEVICE OUT` is one of the two. It writes {case: "" or the error} to OUT; a case is a function
`check_*`. All is float64 and compared with the same module in one piece.
"""

import copy
import json
import re
import sys
import traceback
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

from matmul_fused.torch import FusedLinear, FusedMLP, functional, linear, mlp, patch, report, unpatch

RANK, STORE, DEVICE, OUT = int(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4])
torch.set_num_threads(1)
if DEVICE == "cuda":
    torch.cuda.set_device(RANK)
dist.init_process_group(
    "nccl" if DEVICE == "cuda" else "gloo",
    store=dist.FileStore(STORE, 2),
    rank=RANK,
    world_size=2,
    timeout=timedelta(seconds=100),
)
MESH = init_device_mesh(DEVICE, (2,))
F = torch.nn.functional
WHOLE = Replicate()


def whole(value):
    """A plain tensor, when it is written."""
    value = value.full_tensor() if isinstance(value, DTensor) else value
    return value.trigger_wait() if isinstance(value, AsyncCollectiveTensor) else value


def close(got, wanted, **bounds):
    torch.testing.assert_close(whole(got), wanted, **({"rtol": 1e-10, "atol": 1e-10} | bounds))


def draw(*shape):
    """The same in both processes: they draw in one order."""
    return torch.randn(*shape, dtype=torch.float64).to(DEVICE)


def refused(kind, words, call):
    with pytest.raises(kind, match=re.escape(words)):
        call()


def compare(module, plan, x=None, before=None, along=None, compiled=False):
    """A module that is sharded by a plan gives what it gave, and its gradients; x is cut along an axis, if any."""
    x = draw(2, 6, 24) if x is None else x
    module = module.to(DEVICE, torch.float64)
    exact = copy.deepcopy(module)
    if before is not None:
        before(module)
    parallelize_module(module, MESH, plan)

    def mine(value):
        return value if along is None else value.chunk(2, along)[RANK]

    part, one = mine(x).clone().requires_grad_(), x.clone().requires_grad_()
    run = torch.compile(module, backend="aot_eager", fullgraph=True) if compiled else module
    got, wanted = run(part), exact(one)
    d = draw(*wanted.shape)
    got.backward(distribute_tensor(d, MESH, got.placements) if isinstance(got, DTensor) else mine(d))
    wanted.backward(d)
    close(got, wanted if isinstance(got, DTensor) else mine(wanted))
    close(part.grad, mine(one.grad))
    parameters = list(zip(module.parameters(), exact.parameters(), strict=True))
    assert parameters
    for ours, theirs in parameters:
        assert isinstance(ours, DTensor)
        close(ours.grad, theirs.grad)
    with torch.no_grad():
        close(module.eval()(mine(x)), wanted if isinstance(got, DTensor) else mine(wanted))
    return module


def megatron(gated, place=WHOLE):
    first = dict.fromkeys(("gate_proj", "up_proj") if gated else ("up_proj",), None)
    return {name: ColwiseParallel(input_layouts=place) for name in first} | {
        "down_proj": RowwiseParallel(output_layouts=place)
    }


def check_mlp():
    for activation in ("swiglu", "geglu_tanh", "gelu", "relu"):
        for hidden in (36, 37, 1):
            module = FusedMLP(24, hidden, activation=activation, bias=True)
            module = compare(module, megatron(module.gated))
            assert module.up_proj.weight.to_local().shape[0] == len(torch.arange(hidden).tensor_split(2)[RANK])


def check_mlp_with_a_sharded_sequence():
    for activation in ("swiglu", "gelu"):
        module = FusedMLP(24, 36, activation=activation, bias=True)
        compare(module, megatron(module.gated, Shard(1)), along=1)


def check_mlp_compiled():
    for activation, place, along in (("swiglu", WHOLE, None), ("swiglu", Shard(1), 1), ("gelu", WHOLE, None)):
        module = FusedMLP(24, 36, activation=activation, bias=True)
        compare(module, megatron(module.gated, place), along=along, compiled=True)


def check_columns():
    for activation in ("silu", "tanh", ("leaky_relu", 0.1), None):
        layer = FusedLinear(24, 10, activation=activation)
        compare(copy.deepcopy(layer), ColwiseParallel(output_layouts=WHOLE))
        module = compare(layer, ColwiseParallel(use_local_output=False))
        assert module(draw(3, 24)).placements == (Shard(1),)


def check_rows():
    for width in (24, 25, 1):
        for bias in (True, False):
            layer = FusedLinear(width, 10, bias=bias)
            compare(copy.deepcopy(layer), RowwiseParallel(input_layouts=WHOLE), draw(2, 6, width))
            compare(layer, RowwiseParallel(input_layouts=WHOLE, use_local_output=False), draw(6, width))


def check_an_activation_does_not_come_before_the_sum():
    layer = parallelize_module(FusedLinear(24, 10, activation="gelu").double(), MESH, RowwiseParallel())
    refused(ValueError, "gelu has to follow the sum", lambda: layer(draw(3, 12)))


def check_a_bias_is_added_once():
    x, weight, bias = draw(3, 24), torch.zeros(10, 24, dtype=torch.float64, device=DEVICE), draw(10)
    rows = [Shard(1)]
    parts = [distribute_tensor(t, MESH, place) for t, place in ((x, rows), (weight, rows), (bias, [WHOLE]))]
    got = linear(*parts)
    assert got.placements == (Partial(),)
    assert torch.equal(whole(got), bias.expand(3, 10))


def check_gates_in_one_weight():
    interleaved = FusedLinear(24, 20, activation="swiglu", gate_layout="interleaved")
    compare(interleaved, ColwiseParallel(output_layouts=WHOLE))
    odd = parallelize_module(
        FusedLinear(24, 18, activation="swiglu", gate_layout="interleaved").to(DEVICE), MESH, ColwiseParallel()
    )
    refused(ValueError, "18 interleaved rows, which 2 processes cannot share", lambda: odd(draw(3, 24).float()))
    for layout in ("halves", "halves_up_first"):
        layer = FusedLinear(24, 20, activation="swiglu", gate_layout=layout)
        compare(copy.deepcopy(layer), SequenceParallel(), along=1)
        parallelize_module(layer.to(DEVICE), MESH, ColwiseParallel())
        refused(ValueError, f"gate and up in one ({layout})", lambda layer=layer: layer(draw(3, 24).float()))


def check_sequence():
    module = compare(FusedLinear(24, 10, activation="gelu"), SequenceParallel(), along=1)
    assert module.weight.grad.placements == (Partial(),)


def direct(x, weight, bias, places, activation=None, mesh=None):
    """linear() of DTensors at some places, with gradients."""
    mesh = mesh or MESH
    plain = [tensor.clone().requires_grad_() for tensor in (x, weight, bias)]
    # distribute_tensor makes no sums: a term is made of the whole, which the sum counts twice.
    parts = [
        (
            DTensor.from_local(tensor.detach() / 2, mesh, place)
            if place == [Partial()]
            else distribute_tensor(tensor.detach(), mesh, place)
        ).requires_grad_()
        for tensor, place in zip(plain, places, strict=True)
    ]
    got, wanted = linear(*parts, activation), linear(*plain, activation)
    d = draw(*wanted.shape)
    got.redistribute(placements=[WHOLE] * mesh.ndim).backward(distribute_tensor(d, mesh, [WHOLE] * mesh.ndim))
    wanted.backward(d)
    close(got, wanted)
    for ours, theirs in zip(parts, plain, strict=True):
        close(ours.grad, theirs.grad)
    return got


def check_calls():
    x, weight, bias = draw(4, 24), draw(10, 24), draw(10)
    cut, rows = [Shard(0)], [Shard(1)]
    assert direct(x, weight, bias, (cut, [WHOLE], [WHOLE]), "gelu").placements == (Shard(0),)
    assert direct(x, weight, bias, ([WHOLE], [WHOLE], [WHOLE]), "gelu").placements == (WHOLE,)
    assert direct(x, weight, bias, (rows, [WHOLE], cut), "gelu").placements == (WHOLE,)
    assert direct(x, weight, bias, ([Partial()], [WHOLE], cut), "gelu").placements == (WHOLE,)
    assert direct(x, weight, bias, (cut, cut, [WHOLE]), "gelu").placements == (Shard(1),)
    assert direct(x, weight, bias, (cut, rows, cut)).placements == (Partial(),)
    assert direct(x, weight, draw(1), (cut, cut, [WHOLE]), "gelu").placements == (Shard(1),)
    assert direct(draw(24), weight, bias, ([WHOLE], cut, [WHOLE]), "silu").placements == (Shard(0),)
    assert direct(draw(5, 24), weight, bias, (cut, [WHOLE], [WHOLE]), "silu").placements == (Shard(0),)


def check_axes_of_a_mesh():
    x, weight, bias = draw(4, 24), draw(10, 24), draw(10)
    for shape in ((2, 1), (1, 2)):
        mesh = init_device_mesh(DEVICE, shape, mesh_dim_names=("data", "tensor"))
        one, both = [WHOLE, WHOLE], [WHOLE, Shard(0)]
        got = direct(x, weight, bias, ([Shard(0), WHOLE], both, both), "gelu", mesh)
        assert got.placements == (Shard(0), Shard(1))
        got = direct(x, weight, bias, (one, [Shard(0), Shard(1)], [Shard(0), WHOLE]), None, mesh)
        assert got.placements == (Shard(1), Partial())


def check_pairs():
    x, gate, up, down, bias = draw(4, 24), draw(10, 24), draw(10, 24), draw(24, 10), draw(10)
    cut, rows = [Shard(0)], [Shard(1)]
    places = ([WHOLE], cut, [WHOLE], rows, cut)
    parts = [distribute_tensor(*pair) for pair in zip((x, gate, up, down, bias), [MESH] * 5, places, strict=True)]
    got = mlp(parts[0], (parts[1], parts[2]), parts[3], "swiglu", gate_up_bias=(parts[4], None))
    assert got.placements == (Partial(),)
    close(got, mlp(x, (gate, up), down, "swiglu", gate_up_bias=(bias, None)))


def check_plain_tensors_between():
    x, weight = draw(4, 24), draw(10, 24)
    there = distribute_tensor(weight, MESH, [Shard(0)])
    refused(TypeError, "x is a plain tensor, but weight is a DTensor", lambda: linear(x, there, None, "gelu"))
    here = distribute_tensor(x, MESH, [WHOLE])
    refused(TypeError, "weight is a plain tensor, but x is a DTensor", lambda: linear(here, weight))
    other = init_device_mesh(DEVICE, (1, 2))
    refused(ValueError, "weight is on DeviceMesh", lambda: linear(here, distribute_tensor(weight, other, [WHOLE] * 2)))


def check_a_collective_that_still_writes():
    x, weight = draw(4, 24), draw(10, 24).requires_grad_()
    there = distribute_tensor(x, MESH, [Shard(0)]).redistribute(placements=[WHOLE], async_op=True).to_local()
    assert isinstance(there, AsyncCollectiveTensor)
    close(linear(there, weight.detach(), None, "gelu"), F.gelu(x @ weight.t()).detach())
    there = distribute_tensor(x, MESH, [Shard(0)]).redistribute(placements=[WHOLE], async_op=True).to_local()
    linear(there, weight, None, "gelu").sum().backward()
    close(weight.grad, torch.autograd.grad(F.gelu(x @ weight.t()).sum(), weight)[0])


def check_autocast():
    module = FusedMLP(24, 36, bias=True).to(DEVICE)
    exact = copy.deepcopy(module)
    parallelize_module(module, MESH, megatron(True))
    x = draw(5, 24).float()
    with torch.autocast(DEVICE, torch.bfloat16):
        got, wanted = module(x), exact(x)
    assert got.dtype == torch.bfloat16
    close(got, wanted, rtol=2e-2, atol=2e-2)


def check_training():
    module, x = FusedMLP(24, 36, bias=True).to(DEVICE, torch.float64), draw(5, 24)
    exact = copy.deepcopy(module)
    parallelize_module(module, MESH, megatron(True))
    for _ in range(3):
        for each in (module, exact):
            optimizer = torch.optim.SGD(each.parameters(), 0.1)
            each(x).square().sum().backward()
            torch.nn.utils.clip_grad_norm_(each.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        close(module(x), exact(x))


class Llama(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = torch.nn.Linear(24, 36), torch.nn.Linear(24, 36)
        self.down_proj, self.act = torch.nn.Linear(36, 24), torch.nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))


def check_patched():
    pair = torch.nn.Sequential(torch.nn.Linear(24, 36), torch.nn.GELU(), torch.nn.Linear(36, 24))
    plans = (Llama(), megatron(True), "gate/up"), (pair, {"0": ColwiseParallel(), "2": RowwiseParallel()}, "linear")
    called = functional._chosen
    for module, plan, form in plans:
        for when in ("always", "measured"):
            seen = []

            def spy(*arguments, seen=seen):
                seen.append(arguments[-1].name)
                return called(*arguments)

            functional._chosen = spy
            try:
                sharded = compare(copy.deepcopy(module), plan, before=lambda m, when=when: patch(m, when=when))
            finally:
                functional._chosen = called
            assert set(seen) >= {"swiglu" if form == "gate/up" else "gelu"}
            (record,) = report(sharded)
            assert (record.form, record.fused) == (form, True)
            assert record.why.endswith("not measured: sharded") == (when == "measured")
            x = draw(2, 24)
            fused = sharded(x)
            unpatch(sharded)
            close(sharded(x), whole(fused))
            assert all(type(part).__module__.startswith("torch.nn") for part in sharded.children())
            assert [record.fused for record in patch(sharded)] == [False]
            assert "DTensor" in report(sharded)[0].why


def check_patched_and_compiled():
    compare(Llama(), megatron(True), before=lambda m: patch(m, when="always"), compiled=True)


def main():
    said = {}
    for name, case in {key: value for key, value in globals().items() if key.startswith("check_")}.items():
        torch.manual_seed(0)
        torch._dynamo.reset()
        try:
            case()
        except (Exception, pytest.fail.Exception):
            said[name] = traceback.format_exc()
            break  # the other process may wait for this one, in a collective of this case
        said[name] = ""
    OUT.write_text(json.dumps(said))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
