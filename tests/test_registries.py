"""Which activations of torch, jax, transformers and vLLM there are, and why the others are not.

The lists of installed libraries are walked, so that a new release shows what it adds; vLLM's names, which cannot be
installed beside the tests, stand in vllm_activations.json with their source.
"""

import inspect
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import matmul_fused as mf

X, W = np.float32([[1, 2, 3]]), np.float32([[1, -1, 2, 0.5], [0.5, 1, -2, 1], [-1, 0.25, 1, 2]])

WHOLE_ROWS = "needs whole rows of the result"
LEARNT = "has a learnt parameter for each channel"
TORCH_LEFT_OUT = {
    "MultiheadAttention": "a layer", "Softmax": WHOLE_ROWS, "Softmax2d": WHOLE_ROWS, "Softmin": WHOLE_ROWS,
    "LogSoftmax": WHOLE_ROWS, "RReLU": "is random", "PReLU": LEARNT,
}  # fmt: skip
TORCH_ARGUMENTS = {"Threshold": (0.25, -2.0)}
JAX_LEFT_OUT = {
    "softmax": WHOLE_ROWS, "log_softmax": WHOLE_ROWS, "standardize": WHOLE_ROWS, "logmeanexp": WHOLE_ROWS,
    "logsumexp": WHOLE_ROWS, "softplus": "torch's softplus, which is z above 20, differs in float64",
    "squareplus": "nobody serves it", "sparse_plus": "nobody serves it", "sparse_sigmoid": "nobody serves it",
    "log1mexp": "no activation", "one_hot": "no activation", "dot_product_attention": "a layer",
    "scaled_dot_general": "a product", "scaled_matmul": "a product", "get_scaled_dot_general_config": "a setting",
}  # fmt: skip
# What stands for each name of vllm_activations.json; a reason where nothing does.
VLLM = {
    "activations": {
        "gelu": "gelu", "gelu_fast": "gelu_fast", "gelu_new": "gelu_new", "gelu_pytorch_tanh": "gelu_pytorch_tanh",
        "relu": "relu", "relu2": "relu2", "silu": "silu", "swish": "swish", "quick_gelu": "quick_gelu", "tanh": "tanh",
        "sigmoid": "sigmoid", "xielu": "xielu",
    },
    "gates": {
        "gelu": "geglu", "gelu_pytorch_tanh": "geglu_tanh", "silu": "swiglu", "swish": "swiglu", "geglu": "geglu",
        "swigluoai": "swigluoai_and_mul",
    },
    "operations": {
        "gelu": "gelu", "gelu_tanh": "gelu_tanh", "gelu_fast": "gelu_fast", "gelu_new": "gelu_new", "relu2": "relu2",
        "quick_gelu": "quick_gelu", "xielu": "xielu", "silu_and_mul": "silu_and_mul", "mul_and_silu": "mul_and_silu",
        "silu_and_mul_with_clamp": ("silu_and_mul_with_clamp", 7), "gelu_and_mul": "gelu_and_mul",
        "swigluoai_and_mul": "swigluoai_and_mul", "swiglustep_and_mul": "swiglustep_and_mul",
        "fatrelu_and_mul": ("fatrelu_and_mul", 0.5), "situ_and_mul": ("situ_and_mul", 4, 25),
    },
}  # fmt: skip
VLLM_LEFT_OUT = {"gelu_and_mul_sparse": "its threshold is a statistic of the row"}
TRANSFORMERS_LEFT_OUT = {"prelu": LEARNT, "sqrtsoftplus": "scores a router's logits, since transformers 5.23"}


def accepts(activation):
    out = mf.matmul_fused(X, W, activation=activation)
    assert np.isfinite(out).all()
    return out


def test_torchs_modules():
    """Every class of torch.nn.modules.activation gives torch's values, or stands in the list with its reason."""
    torch = pytest.importorskip("torch")
    for name in torch.nn.modules.activation.__all__:
        if name in TORCH_LEFT_OUT:
            continue
        module = getattr(torch.nn, name)(*TORCH_ARGUMENTS.get(name, ()))
        want = module(torch.from_numpy(X @ W)).numpy()
        np.testing.assert_allclose(accepts(module), want, rtol=1e-5, atol=1e-6, err_msg=name)
    assert set(TORCH_LEFT_OUT) <= set(torch.nn.modules.activation.__all__)


def test_torchs_modules_with_their_parameters():
    torch = pytest.importorskip("torch")
    nn = torch.nn
    for module in (nn.GELU("tanh"), nn.LeakyReLU(0.3), nn.ELU(0.5), nn.CELU(2.0), nn.Hardtanh(-0.5, 2), nn.GLU(),
                   nn.Softshrink(0.25), nn.Hardshrink(1.5), nn.Threshold(1, 9), nn.Identity()):  # fmt: skip
        want = module(torch.from_numpy(X @ W)).numpy()
        np.testing.assert_allclose(accepts(module), want, rtol=1e-5, atol=1e-6, err_msg=str(module))


def test_torchs_functions():
    torch = pytest.importorskip("torch")
    names = [
        "relu", "relu6", "gelu", "silu", "sigmoid", "tanh", "leaky_relu", "elu", "selu", "celu", "hardswish",
        "hardtanh", "hardsigmoid", "softplus", "mish", "softsign", "logsigmoid", "softshrink", "hardshrink",
        "tanhshrink", "glu",
    ]  # fmt: skip
    functions = [getattr(torch.nn.functional, name) for name in names]
    functions += [torch.relu, torch.sigmoid, torch.tanh, torch.exp, torch.selu, torch.celu, torch.hardshrink]
    for function in functions:
        want = function(torch.from_numpy(X @ W)).numpy()
        np.testing.assert_allclose(accepts(function), want, rtol=1e-5, atol=1e-6, err_msg=str(function))


def test_jaxs_functions():
    """Every function of jax.nn gives its values, or stands in the list; jax.nn.gelu is the tanh form by default."""
    jax = pytest.importorskip("jax")
    public = {name for name in dir(jax.nn) if name[0] != "_" and callable(getattr(jax.nn, name))}
    for name in sorted(public - {name for name, why in JAX_LEFT_OUT.items() if why}):
        if inspect.ismodule(getattr(jax.nn, name)):
            continue
        want = np.asarray(getattr(jax.nn, name)(X @ W))
        np.testing.assert_allclose(accepts(getattr(jax.nn, name)), want, rtol=1e-5, atol=1e-6, err_msg=name)
    np.testing.assert_array_equal(accepts(jax.nn.gelu), accepts("gelu_tanh"))


def test_vllms_names():
    """Every name of the list is served, or stands with its reason; nothing stands that the list has not."""
    names = json.loads(Path(__file__).with_name("vllm_activations.json").read_text())
    assert "vllm-0.33.0" in names.pop("source")
    assert set(names) == set(VLLM)
    for kind, known in VLLM.items():
        assert set(names[kind]) - set(VLLM_LEFT_OUT) == set(known)
        for activation in known.values():
            accepts(activation)
    assert set(VLLM_LEFT_OUT) <= set(names["operations"])
    for name in VLLM_LEFT_OUT:
        with pytest.raises(ValueError, match="unknown activation"):
            accepts(name)


def test_the_page_has_every_activation():
    """docs/activations.md; its errors are those of the run that wrote it."""
    from support import python

    done = python(Path(__file__).parents[1] / "tools" / "activation_table.py", "--check", check=False)
    assert (done.returncode, done.stdout) == (0, ""), "run python tools/activation_table.py"


def test_transformers_names():
    activations = pytest.importorskip("transformers.activations")
    for name in activations.ACT2CLS:
        if name not in TRANSFORMERS_LEFT_OUT:
            accepts(name)


def test_recognition_keeps_no_module():
    for function in (np.tanh, np.exp):
        mf.matmul_fused(X, W, activation=function)
        before = sys.getrefcount(np)
        for _ in range(50):
            mf.matmul_fused(X, W, activation=function)
        assert sys.getrefcount(np) < before + 50


def test_recognition_imports_nothing_and_survives_mocks():
    """Modules that are stand-ins, or absent, are not known; nobody is imported."""
    from support import python

    done = python(
        "-c",
        "import sys, numpy as np, matmul_fused as mf\n"
        "from unittest.mock import MagicMock\n"
        "a = np.ones((2, 2), 'f4')\n"
        "def refused(f):\n"
        "    try: mf.matmul_fused(a, a, activation=f)\n"
        "    except TypeError as error: return 'activation must be' in str(error)\n"
        "before = set(sys.modules)\n"
        "assert refused(len) and refused(object()) and refused(lambda x: x)\n"
        "assert set(sys.modules) == before\n"
        "for name in ('torch', 'torch.nn', 'torch.nn.functional', 'jax', 'jax.nn', 'jax.numpy'):\n"
        "    sys.modules[name] = MagicMock()\n"
        "assert refused(sys.modules['torch.nn.functional'].gelu) and refused(MagicMock())\n"
        "sys.modules['torch.nn'] = None\n"
        "assert refused(len)\n",
    )
    assert done.returncode == 0
