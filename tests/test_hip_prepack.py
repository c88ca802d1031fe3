"""Prepacked weights on simulated AMD GPUs: values, the order of streams, captures, and refusals.

The sweeps (--device hip:...) have prepacked weights of all dtypes and gates; what is here is what they cannot vary.
"""

import copy
import gc
import pickle

import numpy as np
import pytest

import hipsim
import matmul_fused as mf
from hip_support import A, B, account, simulator  # noqa: F401
from support import DTYPES, check, draw, same_bits


@pytest.fixture
def dev():
    return hipsim.Device("gfx942")


def sources(dtype):
    yield draw((33, 70), dtype)
    yield draw((70, 33), dtype).T
    yield draw((33, 73), dtype)[:, :70]
    yield draw((66, 140), dtype)[::-2, ::2]
    yield np.broadcast_to(draw((33, 1), dtype), (33, 70))


@pytest.mark.parametrize("gate_layout", [None, "halves", "halves_up_first", "interleaved"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_are_those_of_the_plain_weight(dev, dtype, gate_layout):
    a, bias = draw((5, 33), dtype), draw(70, dtype)
    for plain in sources(dtype):
        packed = mf.prepack(dev.array(plain), gate_layout=gate_layout)
        assert (packed.shape, packed.dtype, packed.layout) == ((33, 70), np.dtype(plain.dtype).name, "columns")
        assert packed.device == f"rocm:{dev.ordinal}"
        assert same_bits(dev.to_numpy(packed.unpack()), np.ascontiguousarray(plain))
        activation = "geglu" if gate_layout else "gelu"
        got = mf.matmul_fused(dev.array(a), packed, dev.array(bias), activation)
        check(dev.to_numpy(got), a, plain, bias, activation, gate_layout=gate_layout)


@pytest.mark.parametrize("shape", [(0, 6), (7, 0), (1, 1), (64, 64), (65, 130)])
def test_sizes_around_the_tiles(dev, shape):
    a, plain = draw((3, shape[0])), draw(shape)
    packed = mf.prepack(dev.array(plain))
    assert packed.nbytes == -(-4 * shape[0] // 64) * 64 * shape[1]
    assert same_bits(dev.to_numpy(packed.unpack()), plain)
    check(dev.to_numpy(mf.matmul_fused(dev.array(a), packed, None, "relu")), a, plain, activation="relu")


def test_a_pair_becomes_one_weight(dev):
    a, gate, up = draw((4, 9)), draw((9, 5)), draw((9, 5))
    packed = mf.prepack((dev.array(gate), dev.array(up)))
    both = np.concatenate((gate, up), axis=1)
    assert (packed.shape, packed.gate_layout) == ((9, 10), "halves")
    assert same_bits(dev.to_numpy(packed.unpack()), both)
    check(dev.to_numpy(mf.matmul_fused(dev.array(a), packed, None, "swiglu")), a, both, activation="swiglu")
    with pytest.raises(ValueError, match=r"^B\[0\] is on cpu but B\[1\] is on rocm:0; pass both on one device$"):
        mf.prepack((gate, dev.array(up)))


def test_a_weight_that_matrix_kernels_refuse_runs_on_them(dev):
    """An interleaved gate, whose columns step by two, and lines that begin anywhere."""
    a, plain = draw((40, 64), "bfloat16"), draw((64, 66), "bfloat16")
    x, w = dev.array(a), dev.array(plain)
    gate = {"activation": "swiglu", "gate_layout": "interleaved"}
    assert mf.explain(x, w, **gate).family == "gemm_simt"
    packed = mf.prepack(w, gate_layout="interleaved")
    assert mf.explain(x, packed, activation="swiglu").family == "gemm_thin"
    check(dev.to_numpy(mf.matmul_fused(x, packed, None, "swiglu")), a, plain, **gate)


@pytest.mark.parametrize("seed", range(4))
def test_work_on_several_streams_is_ordered(dev, seed):
    """The weight arrives late on a stream of its own; the packed one is used on others and dropped at once."""
    hipsim.configure(seed=seed)
    streams = [dev.stream() for _ in range(3)]
    a, plain = draw((9, 40)), draw((40, 12))
    outs = []
    for _ in range(4):
        w = dev.array(plain, stream=streams[0])
        packed = mf.prepack(w)
        unpacked = packed.unpack()
        for stream in streams:
            x = dev.array(a, stream=stream)
            outs.append((mf.matmul_fused(x, packed, activation="silu", stream=stream), stream))
        del packed
        gc.collect()
        assert same_bits(dev.to_numpy(unpacked), plain)
    for out, stream in outs:
        check(dev.to_numpy(out, stream=stream), a, plain, activation="silu")
    hipsim.configure(seed=0)


def test_streams_that_read_a_packed_weight_do_not_wait_for_each_other(dev):
    first, second, packed = dev.stream(), dev.stream(), mf.prepack(dev.array(B))
    x, outs = dev.array(A), [dev.empty((9, 12)) for _ in range(2)]
    dev.synchronize()
    for out, stream in zip(outs, (first, second), strict=True):
        mf.matmul_fused(x, packed, out=out, stream=stream)
    second.synchronize()
    assert not first.done()
    del packed  # given back behind both
    gc.collect()
    dev.synchronize()


def test_a_graph_that_reads_a_packed_weight(dev):
    stream, packed = dev.stream(), mf.prepack(dev.array(B))
    x, out = dev.array(A), dev.empty((9, 12))
    mf.matmul_fused(x, packed, out=out, stream=stream)  # loads the kernel
    dev.synchronize()  # as docs/gpu.md asks before the first replay
    with dev.capture(stream) as graph:
        mf.matmul_fused(x, packed, out=out, activation="relu", stream=stream)
    graph.launch(stream)
    check(dev.to_numpy(out, stream=stream), A, B, activation="relu")
    graph.destroy()


def test_a_launch_that_fails(dev):
    w, x = dev.array(B), dev.array(A)
    mf.prepack(w)  # loads the kernel
    for name in ("hipModuleLaunchKernel", "hipMallocAsync", "hipEventRecord"):
        hipsim.fail_next(name, 719)
        with pytest.raises(mf.DeviceError, match=f"^{name} on rocm:0: hipErrorLaunchFailure"):
            mf.prepack(w)
    hipsim.fail_next("hipModuleLaunchKernel", 719, skip=1)
    with pytest.raises(mf.DeviceError, match=r"^hipModuleLaunchKernel on rocm:0: hipErrorLaunchFailure"):
        mf.prepack(w, gate_layout="interleaved")
    packed = mf.prepack(w)
    hipsim.fail_next("hipModuleLaunchKernel", 719)
    with pytest.raises(mf.DeviceError, match=r"^hipModuleLaunchKernel on rocm:0: hipErrorLaunchFailure"):
        packed.unpack()
    check(dev.to_numpy(mf.matmul_fused(x, packed)), A, B)


def test_refusals(dev):
    w, packed = dev.array(B), mf.prepack(dev.array(B))
    with pytest.raises(
        ValueError, match=r'^unknown layout "panels64"; on an AMD GPU it is "auto", "columns" or "preshuffle_16x16"$'
    ):
        mf.prepack(w, layout="panels64")
    with pytest.raises(ValueError, match=r"^B is on rocm:0 but A is on cpu; move it to A's device$"):
        mf.matmul_fused(A, packed)
    with pytest.raises(TypeError, match=r"^a PackedMatrix on rocm:0 cannot be pickled; pickle its unpack"):
        pickle.dumps(packed)
    with pytest.raises(TypeError, match=r"^a PackedMatrix is no array, but .* the plain one, on the same GPU$"):
        np.asarray(packed)
    assert copy.copy(packed) is copy.deepcopy(packed) is packed
    blocking = dev.stream(blocking=True)  # the default stream would wait for it
    with dev.capture(blocking) as graph, pytest.raises(mf.DeviceError, match=r"capturing blocking stream"):
        mf.prepack(w)
    graph.destroy()
    with pytest.raises(ValueError, match=r"^activation swiglu needs a weight prepacked for its gate"):
        mf.matmul_fused(dev.array(A), packed, None, "swiglu")
