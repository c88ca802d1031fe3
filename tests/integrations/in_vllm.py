"""The plugin inside vLLM: real layers of its models, loaded by its own loader (`make test-integrations`)."""

import importlib
import os
import subprocess
import sys

import pytest

os.environ["VLLM_TARGET_DEVICE"] = "cpu"
os.environ["MATMUL_FUSED_VLLM"] = "1"

import torch
import vllm.model_executor.layers.utils
import vllm.plugins
from layers import HIDDEN, WIDTH, assert_as_good, assert_on_page, clear, draw, fused, inputs, opt, run_example
from transformers import FalconConfig, GPT2Config, GPTJConfig
from vllm.config import VllmConfig, get_current_vllm_config, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel

from matmul_fused.integrations import vllm as plugin
from matmul_fused.integrations import vllm_graph

# Operators of its GPU parts, which this build has not; its native forwards run.
OPERATORS = torch.library.Library("_C", "FRAGMENT")
for name in ("gelu_new", "gelu_fast", "gelu_quick"):
    OPERATORS.define(f"{name}(Tensor! out, Tensor input) -> ()")
OPERATORS.define("rotary_embedding(Tensor! query) -> ()")  # whose name a pass of its backend asks for
# On a CPU with AMX, vLLM packs weights by an operator of its CPU build, which this build has not either.
vllm.model_executor.layers.utils.check_cpu_sgl_kernel = lambda n, k, dtype: False

vllm.plugins.load_general_plugins()  # before its models are imported, as vLLM does
MODELS = "vllm.model_executor.models."


# model, class, how one is made
LAYERS = {
    "llama": ("LlamaMLP", lambda m: m.LlamaMLP(WIDTH, HIDDEN, "silu", prefix="layers.0.mlp")),
    "llama bias": ("LlamaMLP", lambda m: m.LlamaMLP(WIDTH, HIDDEN, "silu", bias=True, prefix="layers.0.mlp")),
    "qwen2": ("Qwen2MLP", lambda m: m.Qwen2MLP(WIDTH, HIDDEN, "silu", prefix="layers.0.mlp")),
    "qwen3": ("Qwen2MLP", lambda m: m.Qwen3MLP(WIDTH, HIDDEN, "silu", prefix="layers.0.mlp")),
    "gemma": ("GemmaMLP", lambda m: m.GemmaMLP(WIDTH, HIDDEN, hidden_activation="gelu_pytorch_tanh", prefix="0.mlp")),
    "gemma erf": ("GemmaMLP", lambda m: m.GemmaMLP(WIDTH, HIDDEN, hidden_activation="gelu", prefix="0.mlp")),
    "gemma2": ("Gemma2MLP", lambda m: m.Gemma2MLP(WIDTH, HIDDEN, "gelu_pytorch_tanh", prefix="0.mlp")),
    "mistral": ("MistralMLP", lambda m: m.MistralMLP(WIDTH, HIDDEN, "silu", prefix="0.mlp")),
    "opt": ("OPTDecoderLayer", opt),
    "opt after": ("OPTDecoderLayer", lambda m: opt(m, "gelu", before=False)),
    "gpt2": ("GPT2MLP", lambda m: m.GPT2MLP(HIDDEN, GPT2Config(n_embd=WIDTH), prefix="h.0.mlp")),
}


# Classes that the plugin does not name: compiled by vLLM's own backend.
FALCON = FalconConfig(hidden_size=WIDTH, bias=False)
COMPILED = {
    "falcon": ("gelu", lambda m: m.FalconMLP(FALCON, prefix="h.0.mlp")),
    "gpt_j": ("gelu_tanh", lambda m: m.GPTJMLP(HIDDEN, GPTJConfig(n_embd=WIDTH), prefix="h.0.mlp")),
    "internlm2": ("silu", lambda m: m.InternLM2MLP(WIDTH, HIDDEN, "silu", prefix="0.mlp")),
}


@pytest.fixture(scope="module", autouse=True)
def _vllm(tmp_path_factory):
    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, f"file://{tmp_path_factory.mktemp('store')}/store", 0, "gloo")
        initialize_model_parallel(1, 1)
        yield


@pytest.fixture(autouse=True)
def _clear():
    clear()
    torch._dynamo.reset()
    with torch.inference_mode():
        yield


def made(name, dtype=torch.float32):
    """One layer of a model, with its weights as a loader leaves them."""
    module = importlib.import_module(MODELS + name.split()[0])
    torch.set_default_dtype(dtype)
    try:
        layer = draw((LAYERS | COMPILED)[name][1](module))
    finally:
        torch.set_default_dtype(torch.float32)
    for part in layer.modules():
        if getattr(part, "quant_method", None) is not None:
            part.quant_method.process_weights_after_loading(part)
    return layer


def own(layer, x):
    """By vLLM's own forward."""
    return type(layer)._forward_before_matmul_fused(layer, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_as_good_as_its_own(name, dtype):
    layer, x = made(name, dtype), inputs(65, WIDTH, dtype)
    exact = own(made(name, torch.float64), x.double())
    ours = layer(x)
    assert fused("vllm") == {LAYERS[name][0]: True}
    assert_as_good(ours, own(layer, x), exact)


@pytest.mark.parametrize("name", ["llama", "gemma", "opt", "gpt2"])
def test_compiled_without_a_graph_break(name):
    layer = made(name)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    for rows in (5, 9):
        x = inputs(rows, WIDTH, torch.float32)
        torch.testing.assert_close(compiled(x), own(layer, x), rtol=1e-5, atol=1e-5)
    assert fused("vllm") == {LAYERS[name][0]: True}
    graph = torch._dynamo.explain(layer)(x).graphs[0]
    assert any("matmul_fused" in str(node.target) for node in graph.graph.nodes)


def test_three_axes_and_one_row():
    layer = made("llama")
    x = inputs(12, WIDTH, torch.float32)
    torch.testing.assert_close(layer(x.view(3, 4, WIDTH)).view(12, WIDTH), own(layer, x), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(layer(x[:1]), own(layer, x[:1]), rtol=1e-5, atol=1e-5)
    assert layer(x[:0]).shape == (0, WIDTH)


@pytest.mark.parametrize("compiled", [False, True])
def test_lora_is_left_alone(compiled):
    from vllm.lora.layers import MergedColumnParallelLinearWithLoRA

    layer, x = made("llama"), inputs(3, WIDTH, torch.float32)
    base = layer.gate_up_proj
    layer.gate_up_proj = MergedColumnParallelLinearWithLoRA(base)
    # An adapter that adds 1, without the kernels of LoRA.
    layer.gate_up_proj.apply = lambda x, bias=None: base.quant_method.apply(base, x, bias) + 1
    run = torch.compile(layer, fullgraph=True, backend="eager") if compiled else layer
    assert torch.equal(run(x), own(layer, x))
    layer.gate_up_proj = base
    assert not torch.allclose(own(layer, x), run(x) + 1)
    assert [row.why for row in plugin.report() if not row.fused] == [
        "a layer is a MergedColumnParallelLinearWithLoRA, not a ColumnParallelLinear or MergedColumnParallelLinear"
    ]


def test_lora_that_comes_later_is_not_lost():
    """A compiled layer notices it."""
    layer, x = made("llama"), inputs(3, WIDTH, torch.float32)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    compiled(x)

    class WithAdapter(type(layer.gate_up_proj)):
        def forward(self, x):
            out, bias = super().forward(x)
            return out + 1, bias

    layer.gate_up_proj.__class__ = WithAdapter
    assert torch.equal(compiled(x), own(layer, x))


def quantised(layer):
    class Method(type(layer.gate_up_proj.quant_method)):
        pass

    layer.gate_up_proj.quant_method.__class__ = Method


def quantised_input(layer):
    layer.down_proj._input_quant_key = "fp8"


def packed(layer):
    layer.gate_up_proj.weight.data = torch.empty(0)


def gathered(layer):
    layer.gate_up_proj.gather_output = True


def hooked(layer):
    layer.act_fn.register_forward_hook(lambda module, args, out: out)


def unknown(layer):
    layer.act_fn = torch.nn.Sequential(layer.act_fn)


def replicated(layer):
    layer.down_proj.__class__ = type("Other", (type(layer.down_proj),), {})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (quantised, "its weight belongs to Method"),
        (quantised_input, "RowParallelLinear wants a quantised input"),
        (packed, "its weight is packed"),
        (gathered, "its result is gathered, or its bias is left to others"),
        (hooked, "it has hooks"),
        (unknown, "there is no Sequential here"),
        (replicated, "a layer is a Other, not a RowParallelLinear"),
    ],
)
def test_left_alone(change, why, monkeypatch):
    layer, x = made("llama"), inputs(3, WIDTH, torch.float32)
    layer.gate_up_proj.cpu_linear = None  # what vLLM's own forward needs is not asked for here
    change(layer)
    called = []
    monkeypatch.setattr(type(layer), "forward", plugin._hooked(lambda *_: called.append(1), hook_of(layer)))
    layer(x)
    assert called == [1]
    assert [(row.fused, row.why) for row in plugin.report()] == [(False, why)]


def hook_of(layer):
    from matmul_fused.integrations.seam import Form, around

    return around(plugin._host(), type(layer).__name__, Form("gate_up_proj", "act_fn", "down_proj"))


@pytest.mark.parametrize("compiled", [False, True])
def test_batch_invariance_is_vllms_own(compiled, monkeypatch):
    monkeypatch.setattr(vllm.envs, "VLLM_BATCH_INVARIANT", True, raising=False)
    layer, x = made("llama"), inputs(3, WIDTH, torch.float32)
    run = torch.compile(layer, fullgraph=True, backend="eager") if compiled else layer
    assert torch.equal(run(x), own(layer, x))
    assert [row.why for row in plugin.report()] == ["VLLM_BATCH_INVARIANT asks for kernels of vLLM's own"]


def test_another_dtype_of_the_input_goes_vllms_way():
    layer = made("gpt2")
    seen = []
    layer.c_fc.forward = lambda x: (seen.append(x.dtype), (torch.zeros(len(x), HIDDEN), None))[1]
    layer(inputs(2, WIDTH, torch.bfloat16))
    assert seen == [torch.bfloat16]


def test_two_processes_of_a_tensor_parallel_layer():
    script = os.path.join(os.path.dirname(__file__), "vllm_two_processes.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ranks = sorted(line for line in done.stdout.splitlines() if line.startswith("rank"))
    assert ranks == ["rank 0: 1 fused", "rank 1: 1 fused"], done.stdout


def test_a_second_registration_is_harmless():
    kind = importlib.import_module(MODELS + "llama").LlamaMLP
    before, finders = kind.forward, list(sys.meta_path)
    plugin.register()
    vllm.plugins.plugins_loaded = False
    vllm.plugins.load_general_plugins()
    assert kind.forward is before
    assert sys.meta_path == finders


def test_every_class_of_the_table_is_there_and_changed(caplog):
    for module, kinds in plugin.classes().items():
        models = importlib.import_module(module)
        for kind in kinds:
            assert plugin._ORIGINAL in vars(getattr(models, kind)), kind
    told = [record.getMessage() for record in caplog.records if record.name == "vllm.matmul_fused"]
    assert not [text for text in told if "nothing is changed" in text]


@pytest.mark.parametrize(
    ("kinds", "text"),
    [
        ({"NoSuchMLP": ("a", "b", "c")}, f"vLLM has no {MODELS}llama.NoSuchMLP; nothing is changed there"),
        ({"LlamaModel": ("norm", "fc1", "fc2")}, "LlamaModel.forward has no fc1, fc2; nothing is changed there"),
    ],
)
def test_a_class_that_is_another_is_a_warning(kinds, text, caplog):
    llama = importlib.import_module(MODELS + "llama")
    plugin._change(llama, kinds)
    assert text in [record.getMessage() for record in caplog.records]
    assert plugin._ORIGINAL not in vars(llama.LlamaModel)


UNKNOWN = """
import importlib.metadata, sys
real = importlib.metadata.version
importlib.metadata.version = lambda name: "0.99.1" if name == "vllm" else real(name)
import vllm.plugins
vllm.plugins.load_general_plugins()
from vllm.model_executor.models.llama import LlamaMLP
from matmul_fused.integrations import vllm as plugin
from matmul_fused.integrations import vllm_graph
assert plugin._ORIGINAL not in vars(LlamaMLP)
assert not any(isinstance(finder, plugin._Finder) for finder in sys.meta_path)
"""


def test_an_unknown_version_is_a_warning_and_no_change():
    done = subprocess.run([sys.executable, "-c", UNKNOWN], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "vLLM 0.99.1 was not tried, only 0.33; nothing is changed" in done.stdout + done.stderr


class Model(torch.nn.Module):
    """Without the None that some layers return."""

    def __init__(self, layer):
        super().__init__()
        self.mlp = layer

    def forward(self, x):
        out = self.mlp(x)
        return out[0] if isinstance(out, tuple) else out


def compiled_by_vllm(layer):
    """By the backend that compiles a model at its level 3; the graphs that it was handed."""
    from vllm.compilation import backends, monitor

    monitor.torch_compile_start_time = 0.0
    config = get_current_vllm_config()
    config.compilation_config.compile_sizes = []
    backend, graphs = backends.VllmBackend(config, prefix="model"), []

    def look(graph, inputs):
        run = backend(graph, inputs)
        graphs.append(graph)
        return run

    run = torch.compile(Model(layer), backend=look, fullgraph=True)

    def call(x):
        torch._dynamo.mark_dynamic(x, 0)  # as vLLM does
        return run(x)

    return call, graphs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", COMPILED)
def test_other_classes_are_fused_in_the_graph(name, dtype, tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path))
    layer, exact = made(name, dtype), made(name, torch.float64)
    compiled, graphs = compiled_by_vllm(layer)
    for rows in (65, 9):
        x = inputs(rows, WIDTH, dtype)
        ours, theirs = compiled(x), Model(layer)(x)
        assert_as_good(ours, theirs, Model(exact)(x.double()))
    (graph,) = graphs
    assert sum("matmul_fused" in str(node.target) for node in graph.graph.nodes) == 1
    assert fused("vllm") == {"compiled graph": True}
    (row,) = plugin.report()
    assert row.form == f"compiled graph, {COMPILED[name][0]}"


def test_lora_in_the_graph_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path))
    layer, x = made("gpt_j"), inputs(5, WIDTH, torch.float32)
    base = layer.fc_in.quant_method.apply
    layer.fc_in.quant_method.apply = lambda *arguments: base(*arguments).add_(x.sum(-1, keepdim=True))
    compiled, graphs = compiled_by_vllm(layer)
    torch.testing.assert_close(compiled(x), layer(x))
    assert not any("matmul_fused" in str(node.target) for node in graphs[0].graph.nodes)
    assert plugin.report() == []


def test_a_graph_that_cannot_be_rewritten_is_a_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path))
    calls = []

    def fails(*arguments):
        calls.append(arguments)
        raise RuntimeError("on purpose")

    monkeypatch.setattr(vllm_graph, "fuse", fails)
    layer, x = made("gpt_j"), inputs(5, WIDTH, torch.float32)
    compiled, _ = compiled_by_vllm(layer)
    torch.testing.assert_close(compiled(x), layer(x))
    assert len(calls) == 1
    assert "a graph of vLLM is compiled as it is" in [record.getMessage() for record in caplog.records]


def test_the_caches_of_vllm_name_the_package(monkeypatch):
    """An artifact with our operators is not found without us, nor one of another build of ours."""
    config = VllmConfig()
    own, ours = VllmConfig.compute_hash.__wrapped__(config), config.compute_hash()
    assert own != ours == config.compute_hash()
    assert len(own) == len(ours)

    class Config:
        compute_hash = VllmConfig.compute_hash.__wrapped__

    vllm_graph.key_caches(Config)
    assert Config.compute_hash(config) == ours
    monkeypatch.setattr(vllm_graph, "_installed", lambda: "another")
    Config.compute_hash = VllmConfig.compute_hash.__wrapped__
    vllm_graph.key_caches(Config)
    assert Config.compute_hash(config) not in (own, ours)


def test_the_report():
    layer, x = made("llama"), inputs(3, WIDTH, torch.float32)
    layer(x)
    assert str(plugin.report()).splitlines()[0] == "matmul_fused.vllm: 1 fused"


def test_check_finds_the_seams():
    from matmul_fused.integrations import check

    tried = {(row.package, row.seam): (row.works, row.why) for row in check.seams()}
    assert tried["vllm", "plugin"] == (True, "on by MATMUL_FUSED_VLLM=1")
    assert tried["transformers", "patch"][0]
    assert tried["transformers", "kernel_mapping"][0]


def test_the_example():
    difference, lines = run_example("vllm_plugin.py")
    assert 0 < difference < 1e-5
    assert_on_page("vllm", lines[-3:])
