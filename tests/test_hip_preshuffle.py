"""Weights in layout "preshuffle_16x16" on simulated AMD GPUs: prepack makes them, as_prepacked borrows them.

The sweeps and the mutants (--device hip:...) have the kernels that read them; here are the bytes, what is borrowed, the
order of streams, and refusals.
"""

import gc
import pickle
import weakref

import numpy as np
import pytest

import hipsim
import matmul_fused as mf
from hip_support import account, in_child, simulator  # noqa: F401
from matmul_fused.testing import force_kernel
from support import check, draw, same_bits

LAYOUT = "preshuffle_16x16"
SHORT = ("float16", "bfloat16")
GATES = (None, "halves", "halves_up_first", "interleaved")
PARTS = {"float16": ("gfx942", "gfx950"), "bfloat16": ("gfx90a", "gfx942", "gfx950")}


def shuffled(weight):
    """A weight (K, N) as aiter's shuffle_weight(W, (16, 16)) lays W = weight.T out in memory, of 16-bit elements."""
    w = np.ascontiguousarray(weight.T)
    n, k = w.shape
    return w.reshape(n // 16, 16, k // 32, 4, 8).transpose(0, 2, 3, 1, 4).reshape(n, k).copy()


def by_formula(weight):
    """The same, byte by byte, by the offsets that csrc/gpu/kernels/cdna is made for."""
    k, n = weight.shape
    made = np.zeros(2 * k * n, np.uint8)
    columns = np.ascontiguousarray(weight.T).view(np.uint8)  # [n][byte of k]
    for row in range(n):
        for kb in range(2 * k):
            at = (row // 16 * (2 * k // 64) + kb // 64) * 1024 + kb % 64 // 16 * 256 + row % 16 * 16 + kb % 16
            made[at] = columns[row, kb]
    return made


class Holder:
    """Another library's array, which may become another one."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **keywords):
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def overwrite(dev, tensor, values):
    """By a product, whose values are exact."""
    mf.matmul_fused(dev.array(np.eye(len(values), dtype=values.dtype)), dev.array(values), out=tensor)


@pytest.fixture(params=["gfx942", "gfx950"])
def dev(request):
    return hipsim.Device(request.param)


def test_the_shuffle_is_that_of_the_formula():
    weight = draw((96, 48), "float16")
    assert same_bits(shuffled(weight).view(np.uint8).reshape(-1), by_formula(weight))


def sources(dtype, k, n):
    yield draw((k, n), dtype)
    yield draw((n, k), dtype).T
    yield draw((k, n + 3), dtype)[:, :n]
    yield draw((2 * k, 2 * n), dtype)[::-2, ::2]
    yield np.broadcast_to(draw((k, 1), dtype), (k, n))


@pytest.mark.parametrize("gate_layout", GATES)
@pytest.mark.parametrize("dtype", SHORT)
def test_values_are_those_of_the_plain_weight(dtype, gate_layout):
    activation, bias = ("geglu" if gate_layout else "gelu"), draw(96, dtype)
    for dev in map(hipsim.Device, PARTS[dtype]):
        for plain in sources(dtype, 64, 96):
            packed = mf.prepack(dev.array(plain), gate_layout=gate_layout, layout=LAYOUT)
            assert (packed.shape, packed.dtype, packed.layout) == ((64, 96), dtype, LAYOUT)
            assert (packed.gate_layout, packed.nbytes, packed.device) == (
                gate_layout,
                2 * 64 * 96,
                f"rocm:{dev.ordinal}",
            )
            assert same_bits(dev.to_numpy(packed.unpack()), np.ascontiguousarray(plain))
            for rows in (1, 5, 17, 40):
                a = draw((rows, 64), dtype)
                got = mf.matmul_fused(dev.array(a), packed, dev.array(bias), activation)
                check(dev.to_numpy(got), a, plain, bias, activation, gate_layout=gate_layout)


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("shape", [(32, 16), (64, 64), (96, 80), (128, 272), (2048, 16), (32, 528)])
def test_bytes_are_those_of_aiter(dev, shape, dtype):
    """What prepack makes of a weight is read as what the other library makes, and both are unpacked alike."""
    plain = draw(shape, dtype)
    packed, borrowed = mf.prepack(dev.array(plain), layout=LAYOUT), mf.as_prepacked(dev.array(shuffled(plain)), shape)
    a = dev.array(draw((33, shape[0]), dtype))
    assert same_bits(dev.to_numpy(packed.unpack()), plain)
    assert same_bits(dev.to_numpy(borrowed.unpack()), plain)
    assert same_bits(dev.to_numpy(mf.matmul_fused(a, packed)), dev.to_numpy(mf.matmul_fused(a, borrowed)))


@pytest.mark.parametrize("rows", [1, 16, 17, 65, 129, 257])
@pytest.mark.parametrize("dtype", SHORT)
def test_every_number_of_rows_has_a_kernel(dev, dtype, rows):
    a, plain, bias = draw((rows, 96), dtype), draw((96, 144), dtype), draw(144, dtype)
    packed = mf.prepack(dev.array(plain), layout=LAYOUT)
    found = mf.explain(dev.array(a), packed, dev.array(bias), "silu")
    assert found.kernel.endswith("_np")
    assert all(row.reason for row in found.candidates if not row.name.endswith("_np"))
    check(dev.to_numpy(mf.matmul_fused(dev.array(a), packed, dev.array(bias), "silu")), a, plain, bias, "silu")


def test_bits_are_those_of_the_plain_weight(dev):
    """The products of a row of layout NP are those of its like of layout NT, in the same order."""
    a, plain = draw((130, 160), "bfloat16"), draw((144, 160), "bfloat16").T
    x, w = dev.array(a), dev.array(np.ascontiguousarray(plain.T)).mT
    packed = mf.prepack(w, layout=LAYOUT)
    names = [row.name for row in mf.explain(x, packed).candidates if row.reason is None]
    assert len(names) >= 6
    for name in names:
        with force_kernel(name):
            of_packed = dev.to_numpy(mf.matmul_fused(x, packed, activation="silu"))
        with force_kernel(name.removesuffix("np") + "nt"):
            assert same_bits(dev.to_numpy(mf.matmul_fused(x, w, activation="silu")), of_packed), name


def test_pairs(dev):
    a, gate, up = draw((20, 64), "float16"), draw((64, 48), "float16"), draw((64, 48), "float16", seed=1)
    both, x = np.concatenate((gate, up), axis=1), dev.array(a)
    packed = mf.prepack((dev.array(gate), dev.array(up)), layout=LAYOUT)
    assert (packed.shape, packed.gate_layout, packed.layout) == ((64, 96), "halves", LAYOUT)
    assert same_bits(dev.to_numpy(packed.unpack()), both)
    one, other = (mf.as_prepacked(dev.array(shuffled(w)), (64, 48)) for w in (gate, up))
    made = mf.prepack(dev.array(up), layout=LAYOUT)
    for weight in (packed, (one, other), (one, made), (mf.prepack(dev.array(gate), layout=LAYOUT), other)):
        for _ in range(3):  # planned, kept, found
            got = dev.to_numpy(mf.matmul_fused(x, weight, None, "swiglu"))
            check(got, a, both, activation="swiglu")
    with pytest.raises(
        ValueError, match=r'^B\[0\] and B\[1\] must be prepacked in one layout, got "preshuffle_16x16" and'
    ):
        mf.matmul_fused(x, (one, mf.prepack(dev.array(up))), None, "swiglu")


def test_alpha_0_and_empty_sizes(dev):
    nan, c = np.full((32, 16), np.nan, np.float16), draw((5, 16), "float16")
    packed = mf.prepack(dev.array(nan), layout=LAYOUT)
    x = dev.array(np.full((5, 32), np.nan, np.float16))
    for _ in range(3):
        assert same_bits(dev.to_numpy(mf.matmul_fused(x, packed, alpha=0, C=dev.array(c))), c)
    for k, n, m in ((0, 16, 3), (32, 0, 3), (32, 16, 0)):
        plain = draw((k, n), "float16")
        for weight in (
            mf.prepack(dev.array(plain), layout=LAYOUT),
            mf.as_prepacked(dev.array(shuffled(plain)), (k, n)),
        ):
            got = mf.matmul_fused(dev.array(draw((m, k), "float16")), weight, None, "relu")
            assert dev.to_numpy(got).shape == (m, n)
            assert not dev.to_numpy(got).any()
            assert same_bits(dev.to_numpy(weight.unpack()), plain)


def test_a_batch_of_a(dev):
    a, plain = draw((2, 3, 7, 64), "bfloat16"), draw((64, 32), "bfloat16")
    packed = mf.prepack(dev.array(plain), layout=LAYOUT)
    check(dev.to_numpy(mf.matmul_fused(dev.array(a), packed)), a, plain)
    wide = draw((3, 2, 24, 64), "bfloat16")  # rows of a batch lie apart: the axes stay
    x = dev.array(wide).swapaxes(0, 1)[:, :, 3:9]
    check(dev.to_numpy(mf.matmul_fused(x, packed)), wide.swapaxes(0, 1)[:, :, 3:9], plain)


# --- what is borrowed ---


def test_changes_show_through(dev):
    plain, other, a = draw((64, 32), "float16"), draw((64, 32), "float16", seed=1), draw((9, 64), "float16")
    tensor, x = dev.array(shuffled(plain)), dev.array(a)
    borrowed = mf.as_prepacked(tensor, (64, 32))
    for _ in range(3):
        check(dev.to_numpy(mf.matmul_fused(x, borrowed)), a, plain)
    overwrite(dev, tensor, shuffled(other))
    check(dev.to_numpy(mf.matmul_fused(x, borrowed)), a, other)
    assert same_bits(dev.to_numpy(borrowed.unpack()), other)


def test_facts(dev):
    borrowed = mf.as_prepacked(dev.array(draw((4, 512), "bfloat16")), [64, 32])
    assert (borrowed.shape, borrowed.dtype, borrowed.layout, borrowed.gate_layout) == (
        (64, 32),
        "bfloat16",
        LAYOUT,
        None,
    )
    assert (borrowed.nbytes, borrowed.device) == (4096, f"rocm:{dev.ordinal}")
    wanted = f"<matmul_fused.PackedMatrix shape=(64, 32) dtype=bfloat16 device=rocm:{dev.ordinal} layout={LAYOUT}>"
    assert repr(borrowed) == wanted
    with pytest.raises(TypeError, match=r"^a PackedMatrix on rocm:\d cannot be pickled"):
        pickle.dumps(borrowed)


def test_the_array_is_kept_and_let_go(dev):
    plain, a = draw((32, 16), "float16"), draw((3, 32), "float16")
    tensor = Holder(dev.array(shuffled(plain)))
    reference = weakref.ref(tensor)
    borrowed = mf.as_prepacked(tensor, (32, 16))
    del tensor
    gc.collect()
    assert reference() is not None
    assert any(one is reference() for one in gc.get_referents(borrowed))
    check(dev.to_numpy(mf.matmul_fused(dev.array(a), borrowed)), a, plain)
    del borrowed
    gc.collect()
    assert reference() is None


def test_a_cycle_through_the_array_is_found(dev):
    tensor = Holder(dev.array(draw((32, 16), "float16")))
    tensor.packed = mf.as_prepacked(tensor, (32, 16))
    reference = weakref.ref(tensor)
    del tensor
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("seed", range(3))
def test_calls_are_in_the_order_of_streams(dev, seed):
    """The tensor arrives late on a stream of its own; it is read on others and dropped at once."""
    hipsim.configure(seed=seed)
    streams = [dev.stream() for _ in range(3)]
    plain, a = draw((64, 32), "float16"), draw((9, 64), "float16")
    outs = []
    for _ in range(3):
        borrowed = mf.as_prepacked(dev.array(shuffled(plain), stream=streams[0]), (64, 32))
        unpacked = borrowed.unpack()
        for stream in streams:
            x = dev.array(a, stream=stream)
            outs.append((mf.matmul_fused(x, borrowed, activation="silu", stream=stream), stream))
        assert same_bits(dev.to_numpy(unpacked), plain)
        dev.synchronize()
        del borrowed
        gc.collect()
    for out, stream in outs:
        check(dev.to_numpy(out, stream=stream), a, plain, activation="silu")
    hipsim.configure(seed=0)


def test_an_array_of_this_library_may_be_borrowed(dev):
    """Written late by a call on one stream, read on another: an mf.Array knows its uses."""
    first, second = dev.stream(), dev.stream()
    plain, a = draw((32, 16), "float16"), draw((9, 32), "float16")
    eye = np.eye(16, dtype="float16")
    made = mf.matmul_fused(dev.array(eye, stream=first), dev.array(shuffled(plain), stream=first), stream=first)
    borrowed = mf.as_prepacked(made, (32, 16))
    out = mf.matmul_fused(dev.array(a, stream=second), borrowed, stream=second)
    check(dev.to_numpy(out, stream=second), a, plain)


def test_out_may_not_be_the_weight(dev):
    tensor = dev.array(draw((64, 64), "float16"))
    borrowed = mf.as_prepacked(tensor, (64, 64))
    x = dev.array(draw((64, 64), "float16"))
    for _ in range(3):
        with pytest.raises(ValueError, match=r"^out shares memory with B; pass another out$"):
            mf.matmul_fused(x, borrowed, out=tensor)
        mf.matmul_fused(x, borrowed)


def test_an_array_that_changed(dev):
    tensor, x = Holder(dev.array(draw((32, 16), "float16"))), dev.array(draw((3, 32), "float16"))
    borrowed = mf.as_prepacked(tensor, (32, 16))
    tensor.array = dev.array(draw((32, 16), "bfloat16"))
    for use in (lambda: mf.matmul_fused(x, borrowed), lambda: mf.explain(x, borrowed), borrowed.unpack):
        with pytest.raises(
            ValueError, match=r"^(B|the weight) was borrowed by as_prepacked as float16 .* bfloat16 .* now"
        ):
            use()
    tensor.array = dev.array(draw((32, 17), "float16"))
    with pytest.raises(ValueError, match=r"^B has shape \(32, 17\), but a weight"):
        mf.matmul_fused(x, borrowed)


# --- refusals ---


def refuse(error, text, function, *arguments, **keywords):
    with pytest.raises(error, match=text) as caught:
        function(*arguments, **keywords)
    assert type(caught.value) is error


def test_prepack_refuses(dev):
    for shape in ((48, 16), (32, 24), (33, 17)):
        text = f"needs K to be a multiple of 32 and N of 16, but B has K = {shape[0]} and N = {shape[1]};"
        refuse(ValueError, text, mf.prepack, dev.array(draw(shape, "float16")), layout=LAYOUT)
    text = (
        "N of gate and of up each of 16, but B has K = 32 and N = 24 each; pad it with zeros, or pass the plain weight$"
    )
    refuse(ValueError, text, mf.prepack, dev.array(draw((32, 48), "float16")), gate_layout="halves", layout=LAYOUT)
    pair = tuple(dev.array(draw((32, 24), "float16")) for _ in range(2))
    refuse(ValueError, r"but B\[0\] has K = 32 and N = 24;", mf.prepack, pair, layout=LAYOUT)
    for dtype in ("float32", "float64"):
        text = rf'^layout "{LAYOUT}" holds float16 and bfloat16 only, but B is {dtype}$'
        refuse(ValueError, text, mf.prepack, dev.array(draw((32, 16), dtype)), layout=LAYOUT)
    text = r'^unknown layout "panels64"; on an AMD GPU it is "auto", "columns" or "preshuffle_16x16"$'
    refuse(ValueError, text, mf.prepack, dev.array(draw((32, 16))), layout="panels64")


def test_as_prepacked_refuses(dev):
    whole = dev.array(draw((33, 64), "float16"))
    text = rf'^tensor has shape \(33, 64\), but a weight \(K, N\) = \(32, 64\) in layout "{LAYOUT}" has 2048 elements$'
    refuse(ValueError, text, mf.as_prepacked, whole, (32, 64))
    text = "^tensor of shape .* is not C-contiguous; a shuffled weight is read as it lies in memory, pass it as it was"
    refuse(ValueError, text, mf.as_prepacked, dev.array(draw((32, 65), "float16"))[:, :64], (32, 64))
    flat = dev.array(draw(2049, "float16"))
    refuse(
        ValueError, "^tensor lies at an address that is no multiple of 16 bytes", mf.as_prepacked, flat[1:], (32, 64)
    )
    for k, n in ((48, 16), (32, 24)):
        text = rf"^layout .* needs K to be a multiple of 32 and N of 16, but tensor has K = {k} and N = {n};"
        refuse(ValueError, text, mf.as_prepacked, dev.array(draw((k, n), "float16")), (k, n))
    refuse(ValueError, "holds float16 and bfloat16 only, but tensor is float32$", mf.as_prepacked,
           dev.array(draw((32, 16))), (32, 16))  # fmt: skip
    good = dev.array(draw((32, 16), "float16"))
    refuse(ValueError, '^layout "columns" is this library\'s own; use prepack', mf.as_prepacked, good, (32, 16),
           layout="columns")  # fmt: skip
    refuse(ValueError, '^unknown layout "tiles"', mf.as_prepacked, good, (32, 16), layout="tiles")
    refuse(TypeError, "^layout must be a str, got", mf.as_prepacked, good, (32, 16), layout=3)
    for shape in (512, "ab", None):
        refuse(TypeError, r"^shape must be the weight's \(K, N\), got", mf.as_prepacked, good, shape)
    refuse(ValueError, r"^shape must be the weight's \(K, N\), got", mf.as_prepacked, good, (32, 16, 1))
    refuse(TypeError, "float", mf.as_prepacked, good, (32.0, 16))
    for shape in ((-32, 16), (1 << 70, 16)):
        refuse(ValueError, r"^shape must be \(K, N\): two lengths, from 0 on", mf.as_prepacked, good, shape)
    refuse(ValueError, "is of more elements than any memory$", mf.as_prepacked, good, (1 << 40, 1 << 40))
    refuse(TypeError, "^tensor is a PackedMatrix already", mf.as_prepacked, mf.prepack(good), (32, 16))
    refuse(TypeError, "^tensor ", mf.as_prepacked, [1, 2], (32, 16))
    refuse(TypeError, r"missing required argument 'shape'", mf.as_prepacked, good)


def test_calls_that_no_kernel_takes_say_why(dev):
    packed = mf.prepack(dev.array(draw((64, 32), "float16")), layout=LAYOUT)
    for a in (dev.array(draw((64, 9), "float16")).mT, dev.array(draw((9, 65), "float16"))[:, :64]):
        with pytest.raises(NotImplementedError, match=r"^no kernel takes this call \(") as caught:
            mf.matmul_fused(a, packed)
        assert "gemm_simt: does not implement prepacked weights" in str(caught.value)
        assert "gemm_thin: needs A in lines of whole 16 bytes along K" in str(caught.value)
    reasons = {row.name: row.reason for row in mf.explain(dev.array(draw((9, 64), "float16")), packed).candidates}
    assert reasons["gemm_thin_16x32x512_f16_nt"] == "is for plain B, it is preshuffled"
    assert reasons["gemm_thin_16x32x512_f16_np"] is None
    plain = dev.array(draw((32, 64), "float16")).mT
    reasons = {row.name: row.reason for row in mf.explain(dev.array(draw((9, 64), "float16")), plain).candidates}
    assert reasons["gemm_thin_16x32x512_f16_np"] == "is for B in the layout preshuffle_16x16"


def test_other_devices_refuse():
    plain = draw((32, 16), "float16")
    text = rf'this build has no kernel for {{}} that reads float16 in layout "{LAYOUT}", which is of AMD\'s gfx90a'
    for dev in map(hipsim.Device, ("gfx1100", "gfx1201", "gfx90a")):
        there = rf"rocm:{dev.ordinal} \({dev.arch}.*\)"
        refuse(NotImplementedError, "^B: " + text.format(there), mf.prepack, dev.array(plain), layout=LAYOUT)
        refuse(NotImplementedError, "^tensor: " + text.format(there), mf.as_prepacked, dev.array(plain), (32, 16))
        assert mf.prepack(dev.array(plain)).layout == "columns"
    for dtype in ("float16", "bfloat16", "float32"):
        host = draw((32, 16), dtype)
        refuse(NotImplementedError, "^B: this build has no kernel for cpu that", mf.prepack, host, layout=LAYOUT)
        refuse(NotImplementedError, "^tensor: this build has no kernel for cpu", mf.as_prepacked, host, (32, 16))


def test_auto_stays_what_every_kernel_reads(dev):
    for dtype in SHORT:
        assert mf.prepack(dev.array(draw((64, 64), dtype))).layout == "columns"


def test_a_launch_that_fails(dev):
    w, x = dev.array(draw((32, 16), "float16")), dev.array(draw((3, 32), "float16"))
    mf.prepack(w, layout=LAYOUT)
    borrowed = mf.as_prepacked(w, (32, 16))
    mf.matmul_fused(x, borrowed)
    for use in (lambda: mf.prepack(w, layout=LAYOUT), borrowed.unpack, lambda: mf.matmul_fused(x, borrowed)):
        use()
        hipsim.fail_next("hipModuleLaunchKernel", 719)
        with pytest.raises(mf.DeviceError, match=r"^hipModuleLaunchKernel on rocm:\d: hipErrorLaunchFailure"):
            use()


def test_a_graph_that_reads_a_borrowed_weight(dev):
    plain, other, a = draw((64, 32), "float16"), draw((64, 32), "float16", seed=1), draw((9, 64), "float16")
    stream, tensor = dev.stream(), dev.array(shuffled(plain))
    borrowed, x, out = mf.as_prepacked(tensor, (64, 32)), dev.array(a), dev.empty((9, 32), "float16")
    mf.matmul_fused(x, borrowed, out=out, stream=stream)  # loads the kernel
    dev.synchronize()
    with dev.capture(stream) as graph:
        mf.matmul_fused(x, borrowed, out=out, activation="relu", stream=stream)
    overwrite(dev, tensor, shuffled(other))
    dev.synchronize()
    graph.launch(stream)
    check(dev.to_numpy(out, stream=stream), a, other, activation="relu")
    graph.destroy()


def test_nothing_is_left(dev):
    """Borrowing, calls and refusals in a process of its own, whose driver counts what is allocated."""
    code = """
dev = hipsim.Device(0)
x, w = dev.array(draw((5, 64), "float16")), dev.array(draw((64, 32), "float16"))
with hipsim.all_clean("events"):
    for _ in range(20):
        mf.matmul_fused(x, mf.as_prepacked(w, (64, 32)))
        mf.as_prepacked(w, (64, 32)).unpack()
print("done")
"""
    assert in_child(code).endswith("done\n")
