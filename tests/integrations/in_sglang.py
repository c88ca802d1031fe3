"""The plugin inside SGLang: real layers of its models, loaded by its own loader (`make test-integrations`)."""

import importlib
import os
import subprocess
import sys
from unittest import mock

import pytest

os.environ["MATMUL_FUSED_SGLANG"] = "1"

import gpu_stubs  # noqa: F401  # before SGLang
import sglang.srt.plugins as plugins
import torch
from layers import HIDDEN, WIDTH, assert_as_good, assert_on_page, clear, draw, fused, inputs, opt, run_example
from transformers import GPT2Config

from matmul_fused.integrations import seam
from matmul_fused.integrations import sglang as plugin

plugins.load_plugins()
MODELS = "sglang.srt.models."


# model: the site in the report, how a layer is made
LAYERS = {
    "llama": ("DualGemm", lambda m: m.LlamaMLP(WIDTH, HIDDEN, "silu", prefix="layers.0.mlp")),
    "qwen2": ("DualGemm", lambda m: m.Qwen2MLP(WIDTH, HIDDEN, "silu", prefix="layers.0.mlp")),
    "qwen3": ("DualGemm", lambda m: m.Qwen3MLP(WIDTH, HIDDEN, "silu", prefix="layers.0.mlp")),
    "gemma": ("GemmaMLP", lambda m: m.GemmaMLP(WIDTH, HIDDEN, prefix="0.mlp")),
    "gemma2": ("Gemma2MLP", lambda m: m.Gemma2MLP(WIDTH, HIDDEN, "gelu_pytorch_tanh", "gelu_pytorch_tanh")),
    "opt": ("OPTDecoderLayer", opt),
    "opt after": ("OPTDecoderLayer", lambda m: opt(m, "gelu", before=False)),
    "gpt2": ("GPT2MLP", lambda m: m.GPT2MLP(HIDDEN, GPT2Config(n_embd=WIDTH), prefix="h.0.mlp")),
}


@pytest.fixture(scope="module", autouse=True)
def _sglang(tmp_path_factory):
    from sglang.srt.distributed import parallel_state
    from sglang.srt.runtime_context import SpawnRanks, get_parallel, publish, reset_context
    from sglang.srt.server_args import ServerArgs

    store = f"file://{tmp_path_factory.mktemp('store')}/store"
    parallel_state.init_distributed_environment(
        world_size=1, rank=0, distributed_init_method=store, local_rank=0, backend="gloo"
    )
    reset_context()
    publish(
        ServerArgs(model_path="dummy", tp_size=1, ep_size=1, pp_size=1, device="cpu"),
        role="test",
        ranks=SpawnRanks(world_rank=0),
    )
    get_parallel().override_permanently(world_group=parallel_state._WORLD)
    parallel_state.initialize_model_parallel(backend="gloo")


@pytest.fixture(autouse=True)
def _clear():
    clear()
    torch._dynamo.reset()
    with torch.inference_mode():
        yield


def made(name, dtype=torch.float32):
    """One layer of a model."""
    module = importlib.import_module(MODELS + name.split()[0])
    torch.set_default_dtype(dtype)
    try:
        return draw(LAYERS[name][1](module))
    finally:
        torch.set_default_dtype(torch.float32)


def call(layer, x):
    return layer(x, None) if type(layer).__name__ == "OPTDecoderLayer" else layer(x)


def own(layer, x):
    """By SGLang's own forward."""
    with mock.patch.object(seam, "may_fuse", return_value=False) as asked:
        out = call(layer, x)
    assert asked.call_count == 1
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_as_good_as_its_own(name, dtype):
    layer, x = made(name, dtype), inputs(65, WIDTH, dtype)
    exact = own(made(name, torch.float64), x.double())
    ours = call(layer, x)
    assert fused("sglang") == {LAYERS[name][0]: True}
    assert_as_good(ours, own(layer, x), exact)


@pytest.mark.parametrize("name", ["llama", "gemma", "opt", "gpt2"])
def test_compiled_without_a_graph_break(name):
    layer = made(name)
    x = inputs(5, WIDTH, torch.float32)
    expected = own(layer, x)
    compiled = torch.compile(lambda x: call(layer, x), fullgraph=True, dynamic=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), expected, rtol=1e-5, atol=1e-5)
    assert fused("sglang") == {LAYERS[name][0]: True}
    graph = torch._dynamo.explain(lambda x: call(layer, x))(x).graphs[0]
    assert any("matmul_fused" in str(node.target) for node in graph.graph.nodes)


def test_lora_is_left_alone():
    from sglang.srt.lora.layers import MergedColumnParallelLinearWithLoRA

    for name in ("llama", "gemma"):
        clear()
        layer, x = made(name), inputs(3, WIDTH, torch.float32)
        base = layer.gate_up_proj

        class WithAdapter(MergedColumnParallelLinearWithLoRA):
            """An adapter that adds 1, without the kernels of LoRA."""

            def __init__(self, base):
                torch.nn.Module.__init__(self)
                self.base_layer, self.weight, self.quant_method = base, base.weight, base.quant_method

            def forward(self, x):
                out, bias = self.base_layer(x)
                return out + 1, bias

        layer.gate_up_proj = WithAdapter(base)
        assert torch.equal(layer(x), own(layer, x))
        layer.gate_up_proj = base
        assert not torch.allclose(own(layer, x), layer(x) + 1)
        assert [row.why for row in plugin.report() if not row.fused] == [
            "a layer is a WithAdapter, not a ColumnParallelLinear or MergedColumnParallelLinear"
        ]


def quantised(layer):
    class Method(type(layer.gate_up_proj.quant_method)):
        pass

    layer.gate_up_proj.quant_method.__class__ = Method


def quantised_down(layer):
    class Method(type(layer.down_proj.quant_method)):
        pass

    layer.down_proj.quant_method = Method()


def packed(layer):
    layer.gate_up_proj.use_intel_amx_backend = True


def gathered(layer):
    layer.gate_up_proj.gather_output = True


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (quantised, "its weight belongs to Method"),
        (quantised_down, "RowParallelLinear wants a quantised input"),
        (packed, "its weight is packed"),
        (gathered, "its result is gathered, or its bias is left to others"),
    ],
)
@pytest.mark.parametrize("name", ["llama", "gemma"])
def test_left_alone(name, change, why):
    layer, x = made(name), inputs(3, WIDTH, torch.float32)
    change(layer)
    seen = []
    layer.gate_up_proj.forward = lambda x: (seen.append(1), (torch.zeros(len(x), 2 * HIDDEN), None))[1]
    assert not layer(x).any()
    assert seen == [1]
    assert [(row.fused, row.why) for row in plugin.report()] == [(False, why)]


def test_sglangs_own_kernel_goes_first():
    layer, x = made("llama"), inputs(3, WIDTH, torch.float32)
    base = type(layer.dual_gemm).__mro__[1]
    with (
        mock.patch.object(base, "can_run", return_value=True),
        mock.patch.object(base, "__call__", lambda self, x, layer: torch.zeros(len(x), HIDDEN)),
    ):
        assert not layer(x).any()
    assert layer(x).any()


@pytest.mark.parametrize("name", ["llama", "gemma"])
def test_deterministic_inference_is_sglangs_own(name):
    from sglang.srt import runtime_context

    layer, x = made(name), inputs(3, WIDTH, torch.float32)
    bag = mock.Mock(deterministic=mock.Mock(enable_deterministic_inference=True, rl_on_policy_target=None))
    with mock.patch.object(runtime_context, "get_exec", return_value=bag):
        layer(x)
    assert [row.why for row in plugin.report()] == ["SGLang's deterministic inference asks for kernels of its own"]


def test_a_second_registration_is_harmless():
    gemma, dual = importlib.import_module(MODELS + "gemma"), importlib.import_module("sglang.srt.layers.dual_gemm")
    before, kind = gemma.GemmaMLP.forward, dual.DualGemm
    plugin.register()
    plugins._plugins_loaded = False
    plugins.load_plugins()
    assert gemma.GemmaMLP.forward is before
    assert dual.DualGemm is kind
    assert importlib.import_module(MODELS + "llama").DualGemm is kind


def test_every_class_of_the_table_is_changed():
    from sglang.srt.plugins.hook_registry import HookRegistry

    assert {plugin.DUAL_GEMM, *(f"{path}.forward" for path in plugin.classes())} <= HookRegistry._patched


UNKNOWN = """
import importlib.metadata
import gpu_stubs  # noqa: F401  # before SGLang
real = importlib.metadata.version
importlib.metadata.version = lambda name: "0.99.1" if name == "sglang" else real(name)
import sglang.srt.plugins
sglang.srt.plugins.load_plugins()
from sglang.srt.layers.dual_gemm import DualGemm
assert DualGemm.__module__ == "sglang.srt.layers.dual_gemm"
assert not sglang.srt.plugins.HookRegistry._hooks
"""


def test_an_unknown_version_is_a_warning_and_no_change():
    done = subprocess.run(
        [sys.executable, "-c", UNKNOWN], cwd=os.path.dirname(__file__), stderr=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "SGLang 0.99.1 was not tried, only 0.5.23; nothing is changed" in done.stderr


def test_the_report():
    layer, x = made("gemma"), inputs(3, WIDTH, torch.float32)
    layer(x)
    assert str(plugin.report()).splitlines()[0] == "matmul_fused.sglang: 1 fused"


def test_check_finds_the_seams():
    from matmul_fused.integrations import check

    tried = {(row.package, row.seam): (row.works, row.why) for row in check.seams()}
    assert tried["sglang", "plugin"] == (True, "on by MATMUL_FUSED_SGLANG=1")


def test_the_example():
    difference, lines = run_example("sglang_plugin.py", "import gpu_stubs")
    assert 0 < difference < 1e-5
    assert_on_page("sglang", lines[-3:])
