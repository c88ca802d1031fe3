"""The comparison that this project was asked for: act(x @ W.T + b) in one call against torch's F.linear in float32
followed by torch's activation.

float16 and bfloat16: the RMS error of the fused call, against float64, is at most 1.05 times that of the float32
sequence rounded once. float32 and float64: every element is within the derived bound, and torch's own error is
reported beside ours. Operands and results are torch tensors, weights are views (W.T) as in torch.nn.Linear.
"""

import functools
import statistics

import numpy as np
import pytest

import matmul_fused as mf
from matmul_fused.testing import covering_sample, expect, run_case
from matmul_fused.testing.formulas import ACTIVATIONS, GATED, is_gated, resolve
from matmul_fused.testing.reference import assert_close
from matmul_fused.testing.rounding import DTYPES, numpy_dtype

torch = pytest.importorskip("torch")
F = torch.nn.functional

# M, K, N of layers of GPT-2, Whisper, SigLIP, gpt-oss, Llama (N cut), and odd sizes
SHAPES = [
    (1, 768, 3072), (7, 768, 2304), (197, 384, 1536), (16, 1152, 1076), (64, 2880, 360), (5, 4096, 896),
    (33, 65, 17), (257, 512, 264), (128, 576, 768),
]  # fmt: skip
PLAIN = [None] + [(name, *row.usual) if row.required else name for name, row in ACTIVATIONS.items() if name != "none"]


def as_numpy(tensor):
    """The tensor as a NumPy array with the same strides; bfloat16 through its bits."""
    if tensor.dtype != torch.bfloat16:
        return tensor.numpy()
    return tensor.view(torch.int16).numpy().view(numpy_dtype("bfloat16"))


def torch_dtype(name):
    return getattr(torch, name)


def rms(x):
    return float(np.sqrt(np.mean(np.square(x.astype(np.float64)))))


@functools.lru_cache(len(SHAPES) * len(DTYPES))  # drawing them takes a third of a test
def operands(shape, dtype, seed, gated):
    m, k, n = shape
    generator = torch.Generator().manual_seed(seed % 2**31)
    columns = 2 * (n // 2) if gated else n

    def normal(*size):
        return torch.randn(*size, generator=generator, dtype=torch.float64).to(torch_dtype(dtype))

    return normal(m, k), normal(columns, k) * torch.tensor(1.5 / k**0.5, dtype=torch_dtype(dtype)), normal(columns)


def chain(x, weight, bias, activation, layout):
    """torch: F.linear in float32 (float64 for float64), then the activation, then one rounding."""
    real = torch.float64 if x.dtype == torch.float64 else torch.float32
    z = F.linear(x.to(real), weight.to(real), bias.to(real))
    _, row, parameters = resolve(activation)
    if is_gated(activation):
        half = z.shape[-1] // 2
        gate, up = {
            "interleaved": (z[..., ::2], z[..., 1::2]),
            "halves_up_first": (z[..., half:], z[..., :half]),
        }.get(layout, (z[..., :half], z[..., half:]))
        y = row.torch(torch, gate, up, *parameters)
    else:
        y = row.torch(torch, z, *parameters)
    return y.to(x.dtype)


def name_of(activation):
    return "-".join(map(str, activation)) if isinstance(activation, tuple) else str(activation).lower()


CASES = [(activation, None) for activation in PLAIN] + [
    ((name, *row.usual) if row.required else name, layout)
    for name, row in GATED.items()
    for layout in (None, "halves_up_first", "interleaved")
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("activation", "layout"), CASES, ids=name_of)
def test_fused_is_as_precise_as_linear_then_activation(activation, layout, dtype, sweep_seed, accounts):
    for number, shape in enumerate(SHAPES):
        if dtype == "float64" and np.prod(shape) > 13_000_000:
            continue  # its reference is in long double
        x, weight, bias = operands(shape, dtype, sweep_seed + number, is_gated(activation))
        fused = mf.matmul_fused(x, weight.T, bias, activation, gate_layout=layout)
        assert type(fused) is torch.Tensor
        assert fused.dtype == x.dtype
        rival = chain(x, weight, bias, activation, layout)
        assert fused.shape == rival.shape
        exact, _ = expect(
            as_numpy(x), as_numpy(weight).T, as_numpy(bias), activation, gate_layout=layout
        )  # fmt: skip
        assert_close(as_numpy(fused), exact, dtype, f"{shape}")
        results = (as_numpy(y).astype(np.float64).astype(exact.value.dtype) for y in (fused, rival))
        nearest = ((result, exact.nearest(result, dtype).value) for result in results)  # on the same side of a jump
        ours, theirs = (rms(result - value) for result, value in nearest)
        ratio = ours / theirs if theirs else 1.0 if ours == 0 else np.inf
        accounts.record(
            "linear",
            {
                "dtype": dtype, "activation": name_of(activation), "gate_layout": layout, "shape": shape,
                "rms_error": ours, "rms_error_torch": theirs, "ratio": ratio,
            },
        )  # fmt: skip
        if dtype in ("float16", "bfloat16"):
            assert ratio <= 1.05, f"{shape}: RMS error {ours:.4g}, torch's sequence in float32 {theirs:.4g}"


@pytest.mark.parametrize("dtype", DTYPES)
def test_ratios_are_reported(dtype, accounts):
    """Comes last: RMS error of the fused call / of F.linear in float32 + activation, by dtype."""
    rows = [row for row in accounts.reports.get("linear", []) if row["dtype"] == dtype]
    if not rows:
        pytest.skip("the comparison was not part of this run")
    ratios = [row["ratio"] for row in rows]
    worst = max(rows, key=lambda row: row["ratio"])
    accounts.say(
        "RMS error of matmul_fused / of F.linear (float32; float64 for float64) + torch's activation",
        f"{dtype}: median {statistics.median(ratios):.4f}, least {min(ratios):.4f}, greatest {worst['ratio']:.4f} "
        f"({worst['activation']}, {worst['shape']}), {len(rows)} results",
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_module_with_leading_axes(dtype, sweep_seed):
    """The weight and bias of a torch.nn.Linear, a batch of sequences, and out=."""
    generator = torch.Generator().manual_seed(sweep_seed % 2**31)
    x = torch.randn(2, 9, 40, generator=generator, dtype=torch.float64).to(torch_dtype(dtype))
    linear = torch.nn.Linear(40, 24, dtype=torch_dtype(dtype))
    with torch.no_grad():
        fused = mf.matmul_fused(x, linear.weight.T, linear.bias, "gelu")
        out = torch.empty(2, 9, 24, dtype=torch_dtype(dtype))
        assert mf.matmul_fused(x, linear.weight.T, linear.bias, "gelu", out=out) is out
        weight, bias = (as_numpy(p.detach()) for p in (linear.weight, linear.bias))
    assert torch.equal(out, fused)
    exact, _ = expect(as_numpy(x), weight.T, bias, "gelu")
    assert_close(as_numpy(fused), exact, dtype)


class TorchTransfer:
    """Operands as torch tensors over the same memory."""

    def send(self, operand):
        bits = operand.buffer.view(f"i{operand.buffer.itemsize}")
        name = operand.buffer.dtype.name
        return torch.from_numpy(bits).view(torch_dtype(name)).as_strided(operand.shape, operand.strides, operand.offset)

    def fetch(self, operand, array):
        pass

    def to_numpy(self, array):
        assert type(array) is torch.Tensor
        return as_numpy(array)


def test_sample_with_torch_operands(sweep_seed):
    """Every fourth case of the sweep that torch can hold (it has no negative strides)."""
    cases = [case for case in covering_sample(sweep_seed) if "negative" not in case.id][::4]
    assert len(cases) > 40
    for case in cases:
        run_case(case, sweep_seed, xp=TorchTransfer())
