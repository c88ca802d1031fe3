"""The mapping for the kernels package, on models of transformers with random weights (`make test-integrations`)."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import copy

import kernels
import pytest
import torch
import transformers
from kernels import Mode, kernelize, use_kernel_mapping
from layers import assert_as_good, draw, run_example

from matmul_fused.integrations.transformers import GatedMLP, PackedMLP, kernel_mapping

TINY = {
    "vocab_size": 64,
    "hidden_size": 96,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "pad_token_id": 0,
}
MODELS = {
    "Llama": (GatedMLP, {}),
    "Llama bias": (GatedMLP, {"mlp_bias": True}),
    "Mistral": (GatedMLP, {}),
    "Qwen2": (GatedMLP, {}),
    "Qwen3": (GatedMLP, {}),
    "Gemma": (GatedMLP, {}),
    "Phi3": (PackedMLP, {}),
}
IDS = torch.randint(1, 64, (3, 11), generator=torch.Generator().manual_seed(0))


def made(name, dtype=torch.float32):
    name, changes = name.split()[0], MODELS[name][1]
    config = getattr(transformers, f"{name}Config")(**TINY, **changes)
    return draw(getattr(transformers, f"{name}Model")(config)).to(dtype).eval()


def kernelized(model, mode=Mode.INFERENCE):
    with use_kernel_mapping(kernel_mapping(), inherit_mapping=False):
        return kernelize(copy.deepcopy(model), mode=mode, device="cpu")


def mlps(model):
    return [layer.mlp for layer in model.layers]


def replaced(mlp):
    return getattr(mlp.forward, "__func__", None) in (GatedMLP.forward, PackedMLP.forward)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_as_good_as_its_own(name, dtype):
    model = made(name, dtype)
    fused = kernelized(model)
    assert all(mlp.forward.__func__ is MODELS[name][0].forward for mlp in mlps(fused))
    x = torch.randn(65, 96, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    with torch.no_grad():
        exact = mlps(made(name, torch.float64))[0](x.double())
        assert_as_good(mlps(fused)[0](x.to(dtype)), mlps(model)[0](x.to(dtype)), exact)
        whole = [one(IDS).last_hidden_state.float() for one in (fused, model)]
        rough = {"rtol": 0.05, "atol": 0.1} if dtype.itemsize == 2 else {"rtol": 1e-4, "atol": 1e-4}
        torch.testing.assert_close(*whole, **rough)


@pytest.mark.parametrize("name", ["Llama", "Phi3"])
def test_compiled_without_a_graph_break(name):
    model = made(name)
    fused = kernelized(model, Mode.INFERENCE | Mode.TORCH_COMPILE)
    x = torch.randn(3, 5, 96)
    with torch.no_grad():
        compiled = torch.compile(mlps(fused)[0], fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x), mlps(model)[0](x), rtol=1e-4, atol=1e-5)


def test_gradients():
    model = made("Llama")
    fused = kernelized(model, Mode.TRAINING)
    assert all(replaced(mlp) for mlp in mlps(fused))
    gradients = []
    for one in (model, fused):
        one(IDS).last_hidden_state.square().sum().backward()
        gradients.append([parameter.grad for parameter in one.parameters()])
    for theirs, ours in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3 * float(theirs.abs().max()))


class Adapter(torch.nn.Module):
    """As peft wraps a layer."""

    def __init__(self, base):
        super().__init__()
        self.base_layer, self.weight, self.bias = base, base.weight, base.bias

    def forward(self, x):
        return self.base_layer(x) + 1


def test_wrapped_layers_are_left_alone():
    model = made("Llama")
    mlp = mlps(model)[0]
    mlp.up_proj = Adapter(mlp.up_proj)
    fused = kernelized(model)
    assert [replaced(one) for one in mlps(fused)] == [False, True]


def test_an_adapter_that_comes_later_is_not_lost():
    model, x = made("Llama"), torch.randn(3, 96)
    fused = kernelized(model)
    for one in (model, fused):
        mlps(one)[0].up_proj = Adapter(mlps(one)[0].up_proj)
    with torch.no_grad():
        assert torch.equal(mlps(fused)[0](x), mlps(model)[0](x))


def test_a_second_mapping_is_harmless():
    made("Llama")
    first, second = kernel_mapping(), kernel_mapping()
    assert first == second
    assert set(first) == {"matmul_fused.GatedMLP", "matmul_fused.PackedMLP"}


def test_other_names_stay():
    norm = type(made("Llama").layers[0].input_layernorm)
    assert norm.kernel_layer_name == "RMSNorm"
    assert kernels.__version__


def test_the_example():
    difference, lines = run_example("transformers_kernels.py")
    assert lines[-1] == "fused 2 of 2 MLPs"
    assert 0 < difference < 1e-4
