"""Gradients of matmul_fused.torch: against finite differences, against torch, and what autograd may not be asked."""

import gc
import weakref

import pytest

from matmul_fused.testing.formulas import ACTIVATIONS, GATED

torch = pytest.importorskip("torch")

from matmul_fused.torch import FusedLinear, activations, linear, op  # noqa: E402

F = torch.nn.functional
PLAIN = [(name, *row.usual) if row.usual else name for name, row in ACTIVATIONS.items()]
VARIANTS = [(name, *variant) for name, row in ACTIVATIONS.items() for variant in row.variants]
GATES = [(name, *row.usual) if row.usual else name for name, row in GATED.items()]
GATE_VARIANTS = [(name, *row.complete(variant)) for name, row in GATED.items() for variant in row.variants]

SHAPES = ((3, 5), (4, 5), (4, 5), (4,), (4,))


def draw(*shape, seed=0, dtype=torch.float64, scale=1.0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * scale).to(dtype).requires_grad_()


def label(activation):
    return "-".join(map(str, activation)) if isinstance(activation, tuple) else activation


def formula(activation):
    """The activation by torch's operators, as the tests know it."""
    name, *parameters = activation if isinstance(activation, tuple) else (activation,)
    if name in ACTIVATIONS:
        return lambda z: ACTIVATIONS[name].torch(torch, z, *parameters)
    return lambda z: GATED[name].torch(torch, *z.chunk(2, -1), *parameters)


@pytest.mark.parametrize("activation", [*PLAIN, *VARIANTS], ids=label)
def test_gradcheck(activation):
    x, weight, bias = draw(2, 3, 5), draw(4, 5), draw(4)
    assert torch.autograd.gradcheck(lambda *t: linear(*t, activation), (x, weight, bias))
    assert torch.autograd.gradcheck(lambda *t: linear(*t, None, activation), (x, weight))


@pytest.mark.parametrize("layout", [None, "halves_up_first", "interleaved"])
@pytest.mark.parametrize("activation", [*GATES, *GATE_VARIANTS], ids=label)
def test_gradcheck_of_gated_forms(activation, layout):
    x, weight, bias = draw(3, 5), draw(8, 5), draw(8)
    assert torch.autograd.gradcheck(lambda *t: linear(*t, activation, gate_layout=layout), (x, weight, bias))


@pytest.mark.parametrize("activation", ["swiglu", ("swiglu_oai", 1.5, 1.702)], ids=label)
def test_gradcheck_of_pairs(activation):
    x, gate, up, first, second = draw(3, 5), draw(4, 5), draw(4, 5, seed=1), draw(4), draw(4, seed=1)
    assert torch.autograd.gradcheck(
        lambda x, g, u, a, b: linear(x, (g, u), (a, b), activation), (x, gate, up, first, second)
    )
    assert torch.autograd.gradcheck(lambda x, g, u: linear(x, (g, u), None, activation), (x, gate, up))


def test_every_activation_has_a_derivative():
    assert {"none", *activations._OF_RESULT, *activations._OF_Z} == set(ACTIVATIONS)
    assert set(activations.GATED) == set(GATED)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("activation", [*PLAIN, *GATES], ids=label)
def test_gradients_are_as_precise_as_torchs(activation, dtype):
    """RMS error against float64, beside that of torch's linear and activation in the same dtype."""
    shapes = [(40, 64), (48, 64), (48,)]
    operands = [draw(*shape, seed=3, dtype=dtype, scale=0.3) for shape in shapes]
    d = draw(40, 24 if label(activation).split("-")[0] in GATED else 48, seed=4, dtype=dtype).detach()

    def gradients(call, operands):
        result = call(*operands)
        return torch.autograd.grad(result, operands, d.to(result.dtype))

    def unfused(x, weight, bias):
        return formula(activation)(F.linear(x, weight, bias))

    exact = gradients(unfused, [t.detach().double().requires_grad_() for t in operands])
    ours = gradients(lambda *t: linear(*t, activation), operands)
    theirs = gradients(unfused, operands)
    for name, e, o, t in zip(("x", "weight", "bias"), exact, ours, theirs, strict=True):
        assert o.dtype == dtype
        error, beside = ((g.double() - e).square().mean().sqrt().item() for g in (o, t))
        assert error <= 1.10 * beside + 1e-6 * e.abs().max().item(), (name, error, beside)


def test_only_what_is_wanted_is_computed():
    x, weight, bias = draw(3, 5), draw(4, 5), draw(4)
    for wanted in ((x,), (weight,), (bias,), (x, bias)):
        operands = [t if any(t is w for w in wanted) else t.detach() for t in (x, weight, bias)]
        y = linear(*operands, "gelu")
        ours = torch.autograd.grad(y.sum(), wanted)
        theirs = torch.autograd.grad(F.gelu(F.linear(*operands)).sum(), wanted)
        assert all(torch.allclose(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_bias_that_broadcasts_gets_its_own_shape():
    for shape in ((), (1,), (1, 4), (3, 1), (2, 3, 4)):
        x, weight, bias = draw(2, 3, 5), draw(4, 5), draw(*shape)
        assert torch.autograd.gradcheck(lambda *t: linear(*t, "tanh"), (x, weight, bias))


def test_second_derivatives_are_refused():
    x, weight = draw(3, 5), draw(4, 5)
    (first,) = torch.autograd.grad(linear(x, weight, None, "tanh").sum(), x, create_graph=True)
    assert torch.allclose(first, torch.autograd.grad(torch.tanh(F.linear(x, weight)).sum(), x)[0])
    with pytest.raises(NotImplementedError, match=r"no second derivatives; use torch\.nn\.functional\.linear"):
        first.sum().backward()


@pytest.mark.parametrize("activation", ["gelu", "relu", "swiglu"])
@pytest.mark.parametrize("wanted", ["x", "gate", "up", "bias", "up_bias"])
def test_second_derivatives_are_refused_for_every_operand(wanted, activation):
    """Also where the loss is linear, and by functions that take what is not connected for zero."""
    operands = dict(zip(("x", "gate", "up", "bias", "up_bias"), (draw(*s).detach() for s in SHAPES), strict=True))

    def loss(value):
        x, gate, up, bias, up_bias = {**operands, wanted: value}.values()
        if activation == "swiglu":
            return linear(x, (gate, up), (bias, up_bias), activation).sum()
        return linear(x, torch.cat((gate, up)), torch.cat((bias, up_bias)), activation).sum()

    with pytest.raises(NotImplementedError, match="no second derivatives"):
        torch.autograd.functional.hessian(loss, operands[wanted])


def test_second_derivatives_by_the_gradient_of_the_result_are_refused():
    x, weight, d = draw(3, 5), draw(4, 5), draw(3, 4)
    (first,) = torch.autograd.grad(linear(x, weight, None, "gelu"), x, d, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivatives"):
        torch.autograd.grad(first.sum(), d)


def test_an_error_says_which_argument_is_meant():
    """In recorded calls and of pairs, too."""
    for weight, error in (
        (draw(4, 3), ValueError),
        (draw(4, 5, dtype=torch.float32), TypeError),
        ((draw(4, 5), draw(4, 3)), ValueError),
        ((draw(4, 5, dtype=torch.float32), draw(4, 5)), TypeError),
    ):
        for grad in (True, False):
            with torch.set_grad_enabled(grad), pytest.raises(error) as raised:
                linear(draw(2, 5), weight, None, "swiglu")
            assert raised.value.__notes__ == ["in matmul_fused.torch.linear, A is x and B is weight.T"]


def test_a_kept_tensor_that_was_overwritten_is_an_error():
    x, weight = draw(3, 5), draw(4, 5)
    y = linear(x, weight, None, "gelu").sum()
    with torch.no_grad():
        weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_nothing_is_kept_longer_than_the_graph():
    x, weight = draw(300, 50), draw(40, 50)
    y = linear(x, weight, None, "relu")
    kept = weakref.ref(y)
    y.sum().backward()
    del y
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("activation", ["relu", "gelu", "tanh", "swiglu", None], ids=str)
def test_no_more_is_kept_than_by_torch(activation):
    """Bytes of the tensors that a forward pass saves, beside those of torch's linear and activation."""
    x, weight, bias = draw(64, 32), draw(48, 32), draw(48)
    of = formula(activation or "none")

    def saved(call):
        seen = {}

        def pack(tensor):
            seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            result = call()
        assert result.requires_grad
        return sum(seen.values())

    ours = saved(lambda: linear(x, weight, bias, activation))
    theirs = saved(lambda: of(F.linear(x, weight, bias)))
    assert ours <= theirs


def test_a_small_network_learns_the_same():
    """Loss after 30 steps of SGD, fused and not, from the same start, in float64."""

    def run(call):
        torch.manual_seed(0)
        first, second = torch.nn.Linear(8, 32).double(), torch.nn.Linear(32, 1).double()
        parameters = [*first.parameters(), *second.parameters()]
        x = torch.randn(64, 8, dtype=torch.float64)
        y = x.square().sum(1, keepdim=True)
        for _ in range(30):
            loss = (
                (call(call(x, first.weight, first.bias, "silu"), second.weight, second.bias, None) - y).square().mean()
            )
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                parameter.data.sub_(gradient, alpha=0.003)
        return loss.item()

    def unfused(x, weight, bias, activation):
        z = F.linear(x, weight, bias)
        return F.silu(z) if activation else z

    assert run(linear) == pytest.approx(run(unfused), rel=1e-9)


def test_checkpointing():
    x, weight = draw(3, 5), draw(4, 5)
    plain = torch.autograd.grad(linear(x, weight, None, "gelu").sum(), (x, weight))
    y = torch.utils.checkpoint.checkpoint(lambda *t: linear(*t, None, "gelu"), x, weight, use_reentrant=False)
    again = torch.autograd.grad(y.sum(), (x, weight))
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (2, 0, 5)])
def test_gradients_of_nothing(shape):
    x, weight, bias = draw(*shape), draw(4, shape[-1]), draw(4)
    linear(x, weight, bias, "gelu").sum().backward()
    got = [tensor.grad for tensor in (x, weight, bias)]
    wanted = torch.autograd.grad(F.gelu(F.linear(x, weight, bias)).sum(), (x, weight, bias))
    assert all(torch.allclose(a, b) for a, b in zip(got, wanted, strict=True))


@pytest.mark.parametrize("activation", ["gelu", "relu", "none", "swiglu"])
def test_gradcheck_of_the_registered_operators(activation):
    x, weight, bias, up = draw(3, 5), draw(4, 5), draw(4), draw(4, 5, seed=1)
    for operator in (op.linear, lambda *t: op.linear_z(*t)[0]):
        assert torch.autograd.gradcheck(
            lambda *t, f=operator: f(*t, None, None, activation, [], None), (x, weight, bias)
        )
    if activation == "swiglu":
        call = lambda x, g, u: op.linear(x, g, None, u, None, activation, [], None)  # noqa: E731
        assert torch.autograd.gradcheck(call, (x, weight, up))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # torch's own, in make_dual
@pytest.mark.parametrize("make", [lambda: linear, lambda: FusedLinear(5, 4, dtype=torch.float64).eval()])
def test_forward_mode_and_functorch_are_refused(make):
    """Neither loses a derivative in silence."""
    call, x, weight = make(), draw(3, 5).detach(), draw(4, 5).detach()
    arguments = () if isinstance(call, FusedLinear) else (weight,)
    with torch.no_grad(), torch.autograd.forward_ad.dual_level():
        assert call(x, *arguments).shape == (3, 4)
        with pytest.raises(NotImplementedError, match="has no forward-mode gradients"):
            call(torch.autograd.forward_ad.make_dual(x, x), *arguments)
    with pytest.raises(NotImplementedError, match=r"has no rules for torch\.func"):
        torch.func.grad(lambda a: call(a, *arguments).sum())(x)
    with pytest.raises((NotImplementedError, TypeError), match=r"outside of"):
        torch.func.vmap(lambda a: call(a, *arguments))(x)


JIT = [*PLAIN, *[(gate, layout) for gate in GATES for layout in ("halves", "halves_up_first", "interleaved", "pair")]]


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
@pytest.mark.parametrize("case", JIT, ids=str)
def test_traced_by_jit(case):
    """What is traced computes, of another input."""
    activation, layout = case if case in JIT[len(PLAIN) :] else (case, None)
    x, weight, bias = (draw(*shape) for shape in ((3, 5), (8, 5), (8,)))
    y = draw(6, 5, seed=1)

    def call(x, weight, bias):
        if layout == "pair":
            return linear(x, weight.split(4), bias.split(4), activation)
        return linear(x, weight, bias, activation, gate_layout=layout)

    traced = torch.jit.trace(call, (x, weight, bias))
    torch.testing.assert_close(traced(y, weight, bias), call(y, weight, bias))
    assert {node.kind().partition("::")[0] for node in traced.graph.nodes()} <= {"aten", "prim"}
