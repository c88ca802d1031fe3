"""XLA's handler for GPUs on simulated AMD GPUs, by frames made by hand: results of machine code beside float64.

Memory of the device cannot be read by the host here, and work runs late: a number that is read too early, an order
that is missing or memory given back too soon is a crash, a wrong result or a violation.
"""

import numpy as np
import pytest

import hipsim
from hip_support import account, simulator  # noqa: F401
from hipsim.array import Memory
from matmul_fused.testing import force_kernel
from support import DTYPES, check, draw, dtype_of
from xla_frames import INTERNAL, Buffer, Xla, axes


def buffer(array):
    return Buffer(array.pointer, array.shape, array.dtype.name)


class Run:
    """A part with a stream of its own, on which operands are sent, computed with and fetched."""

    def __init__(self, part="gfx942"):
        self.dev = hipsim.Device(part)
        self.stream = self.dev.stream()
        self.xla = Xla("ROCM", self.stream.handle, self.dev.ordinal)
        self.memory = {}
        self.xla.allocate, self.xla.free = self.allocate, self.memory.pop

    def allocate(self, size):
        """From a caching allocator: what is given back is free in the order of the stream."""
        memory = Memory(self.dev, size, self.stream)
        self.memory[memory.pointer] = memory
        return memory.pointer

    def send(self, array):
        return self.dev.array(np.ascontiguousarray(array), stream=self.stream)

    def empty(self, shape, dtype="float32"):
        return self.dev.empty(shape, dtype_of(dtype), stream=self.stream)

    def fetch(self, array):
        return self.dev.to_numpy(array, stream=self.stream)

    def call(self, operands, *results, **attributes):
        return self.xla.call({n: buffer(array) for n, array in operands.items()}, *map(buffer, results), **attributes)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["gelu", ("elu", 0.75)], ids=str)
def test_results(dtype, activation):
    run = Run()
    a, b, bias = draw((9, 72), dtype), draw((72, 20), dtype), draw((1, 20), dtype)
    out = run.empty((9, 20), dtype)
    operands = {"A": run.send(a), "B": run.send(b), "bias": run.send(bias)}
    assert run.call(operands, out, activation=activation) is None
    check(run.fetch(out), a, b, bias, activation=activation)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_numbers_are_arrays_on_the_device(dtype):
    """As jax.jit brings them: one element in the type of the sums."""
    run = Run()
    a, b = draw((9, 72), dtype), draw((72, 20), dtype)
    numbers = {name: run.send(np.float32([[value]])) for name, value in (("bias", 0.1), ("C", 3), ("multiply", -0.7))}
    out, z = run.empty((9, 20), dtype), run.empty((9, 20), dtype)
    assert run.call({"A": run.send(a), "B": run.send(b), **numbers}, out, z, activation="tanh", beta=0.5) is None
    bias, c, multiply = np.float32([0.1]), np.float32([[3]]), np.float32([[-0.7]])
    check(run.fetch(out), a, b, bias, activation="tanh", C=c, beta=0.5, multiply=multiply)
    check(run.fetch(z), a, b, bias, C=c, beta=0.5)


@pytest.mark.parametrize("layout", ["halves", "halves_up_first", "interleaved"])
def test_gates(layout):
    run = Run()
    a, b, bias = draw((9, 72), "float16"), draw((72, 40), "float16"), draw((1, 40), "float16")
    out = run.empty((9, 20), "float16")
    operands = {"A": run.send(a), "B": run.send(b), "bias": run.send(bias)}
    assert run.call(operands, out, activation="swiglu", gate_layout=layout) is None
    check(run.fetch(out), a, b, bias, activation="swiglu", gate_layout=layout)


def test_a_pair_and_its_preactivation():
    run = Run()
    a, gate, up = draw((9, 72), "float16"), draw((72, 20), "float16"), draw((72, 20), "float16", seed=1)
    out, z = run.empty((9, 20), "float16"), run.empty((9, 40), "float32")
    operands = {"A": run.send(a), "B": run.send(gate), "B[1]": run.send(up)}
    assert run.call(operands, out, z, activation="geglu") is None
    check(run.fetch(out), a, (gate, up), activation="geglu")
    check(run.fetch(z), a, np.concatenate((gate, up), 1))


def test_vmap_over_the_bias_alone():
    """A has one of the axes, the result three."""
    run = Run()
    a, b, bias = draw((9, 72)), draw((20, 72)), draw((3, 1, 20))
    out = run.empty((3, 9, 20))
    operands = {"A": run.send(axes(a, 3)), "B.T": run.send(axes(b, 3)), "bias": run.send(bias)}
    assert run.call(operands, out, activation="relu") is None
    for i, result in enumerate(run.fetch(out)):
        check(result, a, b.T, bias[i], activation="relu")


@pytest.mark.parametrize("seed", range(4))
def test_calls_follow_each_other_on_the_stream(seed):
    """The second reads what the first writes; each has a workspace, which the first gives back before it has run."""
    hipsim.configure(seed=seed)
    run = Run()
    a, b, c = draw((9, 300)), draw((300, 280)), draw((280, 20))
    x, y, w, between, out = run.send(a), run.send(b), run.send(c), run.empty((9, 280)), run.empty((9, 20))
    with force_kernel("gemm_simt_splitk"):
        assert run.call({"A": x, "B": y}, between, activation="relu") is None
        assert run.call({"A": between, "B": w}, out, activation="tanh") is None
    assert run.xla.asked.count("allocate") == run.xla.asked.count("free") == 2
    assert run.memory == {}
    first = run.fetch(between)
    check(first, a, b, activation="relu")
    check(run.fetch(out), first, c, activation="tanh")


def test_a_workspace_at_an_odd_address():
    """XLA promises 16 bytes; what is written begins at a multiple of 256 that lies inside."""
    run, given = Run(), []
    a, b, out = draw((9, 300)), draw((300, 20)), run.empty((9, 20))

    def allocate(size):
        given.append(run.send(np.full(size + 512, 0x5A, np.uint8)))
        return given[0].pointer + 16

    run.xla.allocate, run.xla.free = allocate, lambda at: None
    with force_kernel("gemm_simt_splitk"):
        assert run.call({"A": run.send(a), "B": run.send(b)}, out) is None
    check(run.fetch(out), a, b)
    words = run.fetch(given[0]).view(np.uint32)
    written = np.flatnonzero(words != 0x5A5A5A5A) * 4
    assert (given[0].pointer + written[0]) % 256 == 0
    assert 16 <= written[0] <= written[-1] < words.nbytes - 512 + 16


def test_the_gpu_is_that_of_the_stream():
    """Two gfx942 are there, the first and the last; XLA's number is another one."""
    run = Run(hipsim.device_count() - 1)
    run.xla.ordinal = 0
    a, b, out = draw((9, 72)), draw((72, 20)), run.empty((9, 20))
    assert run.call({"A": run.send(a), "B": run.send(b)}, out) is None
    check(run.fetch(out), a, b)


def test_a_launch_that_fails():
    run = Run()
    operands, out = {"A": run.send(draw((9, 72))), "B": run.send(draw((72, 20)))}, run.empty((9, 20))
    hipsim.fail_next("hipModuleLaunchKernel", 719)
    error = run.call(operands, out)
    assert error.code == INTERNAL
    assert error.text.startswith(f"hipModuleLaunchKernel on rocm:{run.dev.ordinal}: hipErrorLaunchFailure")
    assert run.call(operands, out) is None
