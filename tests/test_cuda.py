"""On a real NVIDIA GPU (--device cuda): torch, CuPy and JAX arrays, streams, graphs, threads. Else not collected."""

import os
import threading

import numpy as np
import pytest

import matmul_fused as mf
from matmul_fused.testing import force_kernel
from support import check, draw

pytestmark = pytest.mark.device

ORDINAL = int(os.environ["MMF_TEST_DEVICE"].partition(":")[2] or 0)
A, B = draw((65, 130), seed=1), draw((130, 96), seed=2)
BIAS = draw(96, seed=3)


@pytest.fixture(scope="module")
def torch():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    torch.cuda.set_device(ORDINAL)  # whose streams it captures
    return torch


@pytest.fixture
def send(torch):
    return lambda array: torch.from_numpy(np.ascontiguousarray(array)).to(f"cuda:{ORDINAL}")


def busy(torch, matrix, rounds=60):
    """Work that keeps the current stream busy for a while."""
    for _ in range(rounds):
        matrix = torch.mm(matrix, matrix).clamp(-1, 1)
    return matrix


# torch


def test_torch_result(torch, send):
    y = mf.matmul_fused(send(A), send(B), send(BIAS), "gelu")
    assert isinstance(y, torch.Tensor)
    assert y.device == torch.device("cuda", ORDINAL)
    check(y.cpu().numpy(), A, B, BIAS, activation="gelu")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_torch_dtypes_and_views(torch, send, dtype):
    x, w = send(A).to(getattr(torch, dtype)), send(B.T).to(getattr(torch, dtype))
    y = mf.matmul_fused(x, w.T, activation="silu", out_dtype="float32")
    real = torch.float64 if dtype == "float64" else torch.float32  # holds the operands exactly
    check(y.cpu().numpy(), x.to(real).cpu().numpy(), w.T.to(real).cpu().numpy(), activation="silu")


def test_a_dispatch_mode_that_resizes_an_operand_during_the_allocation(torch, send):
    from torch.utils._python_dispatch import TorchDispatchMode

    x, weight = send(A), send(B)

    class Resizing(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            if "empty" in str(function):
                weight.data = torch.zeros(4, 4, device=weight.device)
            return function(*arguments, **(keywords or {}))

    with Resizing(), pytest.raises(BufferError, match="B changed its memory or shape during the call"):
        mf.matmul_fused(x, weight)


@pytest.mark.parametrize("split", [False, True])  # with a workspace of torch's, and without
def test_a_given_stream_is_told_to_torch(torch, send, split):
    x, weight = (send(draw((16, 8192))), send(draw((8192, 64)))) if split else (send(A), send(B))
    side = torch.cuda.Stream(ORDINAL)
    side.wait_stream(torch.cuda.current_stream(ORDINAL))
    for _ in range(20):
        y = mf.matmul_fused(x, weight, stream=side)
        del y  # torch may hand its memory to the next only after the side stream
        torch.full_like(x, float("nan"))
    y = mf.matmul_fused(x, weight, stream=side)
    side.synchronize()
    assert torch.isfinite(y).all()


def test_linear_takes_the_weight_as_it_lies(torch, send):
    from matmul_fused.torch import linear

    x, weight, bias = send(A), send(B.T), send(BIAS)
    assert torch.equal(linear(x, weight, bias, "gelu"), mf.matmul_fused(x, weight.t(), bias, "gelu"))
    gate, up = weight[:48], weight[48:]
    assert torch.equal(linear(x, (gate, up), None, "swiglu"), mf.matmul_fused(x, (gate.t(), up.t()), None, "swiglu"))
    trained = weight.clone().requires_grad_()
    linear(x, trained, bias, "gelu").sum().backward()
    assert trained.grad.shape == weight.shape


def test_parameters_without_grad(torch, send):
    layer = torch.nn.Linear(130, 96).to(f"cuda:{ORDINAL}")
    x = send(A)
    with pytest.raises(ValueError, match="B requires grad"):
        mf.matmul_fused(x, layer.weight.T)
    with torch.no_grad():
        y = mf.matmul_fused(x, layer.weight.T, layer.bias, "relu")
        weight, bias = (p.cpu().numpy() for p in layer.parameters())
        check(y.cpu().numpy(), A, weight.T, bias, "relu")


def test_current_stream_of_torch(torch, send):
    """On a side stream behind slow work; no synchronisation but the copy back."""
    side, noise = torch.cuda.Stream(ORDINAL), send(draw((2048, 2048)))
    late = torch.zeros_like(send(A))
    side.wait_stream(torch.cuda.current_stream(ORDINAL))
    with torch.cuda.stream(side):
        busy(torch, noise)
        late.copy_(send(A))
        y = mf.matmul_fused(late, send(B))
        got = y.cpu().numpy()
    check(got, A, B)


@pytest.mark.parametrize("as_int", [False, True])
def test_given_stream(torch, send, as_int):
    side, a, b = torch.cuda.Stream(ORDINAL), send(A), send(B)
    torch.cuda.synchronize()
    results = []
    for _ in range(20):
        y = mf.matmul_fused(a, b, stream=side.cuda_stream if as_int else side)
        side.synchronize()
        results.append(y.cpu().numpy())
        del y  # its memory may come back at once
    for got in results:
        check(got, A, B)


def test_graph_replays_with_new_inputs(torch, send):
    x, b, bias = send(A), send(B), send(BIAS)
    square = b[:96, :96].contiguous()
    first = mf.matmul_fused(x, b, bias, "silu")  # kernels are loaded before the capture
    mf.matmul_fused(first, square, C=first, beta=0.5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = mf.matmul_fused(x, b, bias, "silu")  # torch's graph pool serves it
        z = mf.matmul_fused(y, square, C=y, beta=0.5)
    for seed in (5, 6):
        new = draw(A.shape, seed=seed)
        x.copy_(torch.from_numpy(new))
        graph.replay()
        middle = y.cpu().numpy()
        check(middle, new, B, BIAS, activation="silu")
        check(z.cpu().numpy(), middle, B[:96, :96], C=middle, beta=0.5)


def test_graphs_with_workspaces(torch, send):
    """Split-K in two graphs, each with a workspace of its own in torch's pool, replayed in turn and at once."""
    a, b = draw((65, 5000), seed=4), draw((5000, 96), seed=5)
    x, w = send(a), send(b)
    graphs, results = [torch.cuda.CUDAGraph() for _ in range(2)], []
    with force_kernel("gemm_simt_splitk"):
        mf.matmul_fused(x, w)
        assert len(mf.explain(x, w).launches) == 2
        for graph, activation in zip(graphs, ("relu", "silu"), strict=True):
            with torch.cuda.graph(graph):
                results.append(mf.matmul_fused(x, w, activation=activation))
    streams = [torch.cuda.Stream(ORDINAL) for _ in graphs]
    for seed in (7, 8, 9):
        new = draw(a.shape, seed=seed)
        x.copy_(torch.from_numpy(new))
        torch.cuda.synchronize()
        for _ in range(3):
            for graph, stream in zip(graphs, streams, strict=True):
                with torch.cuda.stream(stream):
                    graph.replay()
        torch.cuda.synchronize()
        for got, activation in zip(results, ("relu", "silu"), strict=True):
            check(got.cpu().numpy(), new, b, activation=activation)


def test_first_call_in_a_capture(torch):
    """Refused, and the process goes on: in a child, where nothing is loaded yet."""
    from support import python

    code = f"""
import torch, matmul_fused as mf
a = torch.ones(8, 8, device="cuda:{ORDINAL}")
graph = torch.cuda.CUDAGraph()
out = torch.empty_like(a)
try:
    with torch.cuda.graph(graph):
        mf.matmul_fused(a, a, out=out)
except mf.DeviceError as error:
    print("gemm_simt_64x64x16_f32_any is not loaded yet" in str(error))
torch.cuda.synchronize()
print(float(mf.matmul_fused(a, a)[0, 0]))
"""
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, __import__("sys").path))}
    assert python("-c", code, environment=paths).stdout.split() == ["True", "8.0"]


def test_two_threads(torch, send):
    errors = []

    def work(seed):
        try:
            a = draw(A.shape, seed=seed)
            with torch.cuda.stream(torch.cuda.Stream(ORDINAL)):
                x, b = send(a), send(B)
                for _ in range(50):
                    got = mf.matmul_fused(x, b, activation="relu").cpu().numpy()
            check(got, a, B, activation="relu")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_operands_on_the_cpu_and_the_gpu(torch, send):
    with pytest.raises(ValueError, match=f"B is on cpu but A is on cuda:{ORDINAL}; move it to A's device"):
        mf.matmul_fused(send(A), torch.from_numpy(B))


def test_another_device_than_the_current_one(torch):
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU only")
    other = (ORDINAL + 1) % torch.cuda.device_count()
    x, b = (torch.from_numpy(array).to(f"cuda:{other}") for array in (A, B))
    with torch.cuda.device(ORDINAL):
        y = mf.matmul_fused(x, b)
        assert torch.cuda.current_device() == ORDINAL
    check(y.cpu().numpy(), A, B)


# CuPy, JAX, mf.Array


def test_cupy(torch, send):
    cupy = pytest.importorskip("cupy")
    with cupy.cuda.Device(ORDINAL):
        a, b = cupy.asarray(A), cupy.asarray(B)
        y = mf.matmul_fused(a, b, activation="relu")
        assert isinstance(y, cupy.ndarray)
        check(y.get(), A, B, activation="relu")
        stream = cupy.cuda.Stream(non_blocking=True)
        stream.wait_event(cupy.cuda.get_current_stream().record())
        with stream:
            y = mf.matmul_fused(a, b)
            got = y.get(stream=stream)
        check(got, A, B)
        out = cupy.empty((65, 96), np.float32)
        assert mf.matmul_fused(a, send(B), out=out) is out  # a weight of torch's
        check(out.get(), A, B)


def test_cupy_and_torch_on_streams_of_their_own(torch, send):
    """A is CuPy's, so its stream is the call's: it waits for torch's, where B is late."""
    cupy = pytest.importorskip("cupy")
    side, noise, late = torch.cuda.Stream(ORDINAL), send(draw((2048, 2048))), torch.zeros_like(send(B))
    torch.cuda.synchronize()
    with cupy.cuda.Device(ORDINAL):
        a, out = cupy.asarray(A), cupy.empty((65, 96), np.float32)
        cupy.cuda.get_current_stream().synchronize()
        with torch.cuda.stream(side):
            busy(torch, noise)
            late.copy_(send(B))
            mf.matmul_fused(a, late, out=out)
        check(out.get(), A, B)


@pytest.mark.parametrize("stream", [0, 1, 2])
def test_names_of_default_streams(torch, send, stream):
    a, b = send(A), send(B)
    torch.cuda.synchronize()
    y = mf.matmul_fused(a, b, stream=stream)
    torch.cuda.synchronize()
    check(y.cpu().numpy(), A, B)


def test_jax():
    jax = pytest.importorskip("jax")
    try:
        device = jax.devices("gpu")[ORDINAL]
    except RuntimeError:
        pytest.skip("this jax has no CUDA")
    y = mf.matmul_fused(jax.device_put(A, device), jax.device_put(B, device), None, "tanh")
    assert isinstance(y, jax.Array)
    check(np.asarray(y), A, B, activation="tanh")


def test_array_goes_to_torch_and_back(torch, send):
    from matmul_fused.testing.devices import Device

    device = Device(f"cuda:{ORDINAL}")
    y = mf.matmul_fused(device.array(A), device.array(B))
    assert isinstance(y, mf.Array)
    t = torch.from_dlpack(y)
    assert t.data_ptr()
    check(t.cpu().numpy(), A, B)
    with torch.cuda.stream(torch.cuda.Stream(ORDINAL)):
        z = mf.matmul_fused(t, send(np.eye(96, dtype=np.float32)), C=y)
        got = z.cpu().numpy()
    np.testing.assert_allclose(got, 2 * t.cpu().numpy(), rtol=1e-5)
