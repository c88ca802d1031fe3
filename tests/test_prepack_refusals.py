"""What prepack, unpack and calls with a PackedMatrix refuse, and what lies just beside that."""

import pickle
import sys
import threading
from typing import Any, NamedTuple

import numpy as np
import pytest

import matmul_fused as mf
from support import check, draw, python, same_bits
from test_prepack import GATES

A32, B32 = draw((5, 7)), draw((7, 6))
PACKED = {name: mf.prepack(B32, gate_layout=name) for name in GATES}


@pytest.mark.parametrize(
    ("arguments", "keywords", "error", "text"),
    [
        ((draw((2, 7, 6)),), {}, NotImplementedError, r"B has shape \(2, 7, 6\); prepack takes one matrix, pack each"),
        ((draw(7),), {}, ValueError, r"B has shape \(7,\); prepack takes a matrix \(K, N\)"),
        ((draw(()),), {}, ValueError, r"B has shape \(\); prepack takes a matrix"),
        ((draw((7, 5)),), {"gate_layout": "halves"}, ValueError, r"even number of columns, but B is \(7, 5\)"),
        (
            (B32,),
            {"gate_layout": "thirds"},
            ValueError,
            'unknown gate_layout "thirds"; it is halves, halves_up_first or',
        ),
        ((B32,), {"gate_layout": 2}, TypeError, "gate_layout must be None or a str, got int"),
        (
            (B32,),
            {"layout": "tiles"},
            ValueError,
            'unknown layout "tiles"; on the CPU it is "auto", "panels64", "pairs64" or "columns"',
        ),
        ((B32,), {"layout": None}, TypeError, "layout must be a str"),
        ((B32,), {"gates": 1}, TypeError, r"prepack\(\) got an unexpected keyword argument 'gates'"),
        ((B32, "halves"), {}, TypeError, r"prepack\(\) takes at most 1 positional argument"),
        ((), {}, TypeError, r"prepack\(\) missing required argument 'B'"),
        (([[1.0]],), {}, TypeError, "B is a list, not an array"),
        ((PACKED[None],), {}, TypeError, "B is a PackedMatrix"),
        ((B32.astype(int),), {}, TypeError, "B has dtype int64"),
        ((B32.astype(">f4"),), {}, TypeError, "byte-swapped"),
        (((B32,),), {}, ValueError, r"B is a tuple of 1; a pair is \(gate, up\)"),
        (
            ((B32, B32[:, :4]),),
            {},
            ValueError,
            r"B\[0\] and B\[1\] must have one shape and dtype, got \(7, 6\) float32",
        ),
        (((B32, B32.astype("f8")),), {}, ValueError, r"got \(7, 6\) float32 and \(7, 6\) float64"),
        (((B32, draw((2, 7, 6))),), {}, NotImplementedError, "prepack takes one matrix"),
        (((B32, B32),), {"gate_layout": "halves"}, ValueError, "gate_layout was given but B is a pair"),
        (((B32, PACKED[None]),), {}, TypeError, r"B\[1\] is a PackedMatrix"),
    ],
)
def test_prepack_refuses(arguments, keywords, error, text):
    with pytest.raises(error, match=text) as caught:
        mf.prepack(*arguments, **keywords)
    assert type(caught.value) is error


@pytest.mark.parametrize(
    ("B", "keywords", "error", "text"),
    [
        (
            PACKED[None],
            {"A": draw((5, 7), "float64")},
            TypeError,
            "A and B must have one dtype, got float64 and float32",
        ),
        (PACKED[None], {"A": draw((5, 6))}, ValueError, r"A \(5, 6\) and B \(7, 6\) do not match"),
        (PACKED[None], {"A": draw(())}, ValueError, "each needs at least one axis"),
        (PACKED[None], {"activation": "swiglu"}, ValueError, 'use prepack\\(B, gate_layout="halves"\\)'),
        (PACKED[None], {"gate_layout": "halves"}, ValueError, "gate_layout was given but the activation has no gate"),
        (PACKED["halves"], {}, ValueError, "B was prepacked for a gate but activation none is not gated"),
        (PACKED["halves"], {"activation": "relu"}, ValueError, "prepacked for a gate but activation relu is not gated"),
        (
            PACKED["halves"],
            {"activation": "glu", "gate_layout": "interleaved"},
            ValueError,
            "gate_layout differs from the one that B was prepacked with",
        ),
        ((PACKED[None], B32), {"activation": "glu"}, TypeError, r"B\[0\] and B\[1\] must both be prepacked or both be"),
        ((B32, PACKED[None]), {"activation": "glu"}, TypeError, r"B\[0\] and B\[1\] must both be prepacked or both be"),
        ((PACKED["halves"],) * 2, {"activation": "glu"}, ValueError, r"B\[0\] was prepacked with a gate_layout"),
        (
            (PACKED[None], PACKED["halves"]),
            {"activation": "glu"},
            ValueError,
            r"B\[1\] was prepacked with a gate_layout",
        ),
        ((PACKED[None],) * 2, {}, ValueError, r"B is a pair \(gate, up\) but activation none is not gated"),
        ((PACKED[None],) * 2, {"activation": "glu", "bias": draw(6)}, ValueError, "bias must be None or a pair"),
        ((PACKED[None], mf.prepack(draw((7, 4)))), {"activation": "glu"}, ValueError, "must have one shape"),
        (PACKED[None], {"A": PACKED[None]}, TypeError, "A is a PackedMatrix; only B can be prepacked"),
        (PACKED[None], {"bias": PACKED[None]}, TypeError, "bias is a PackedMatrix; only B can be prepacked"),
        (PACKED[None], {"out": PACKED[None]}, TypeError, "out is a PackedMatrix; only B can be prepacked"),
    ],
)
def test_calls_refuse_packed_weights(B, keywords, error, text):
    with pytest.raises(error, match=text) as caught:
        mf.matmul_fused(**{"A": A32, "B": B} | keywords)
    assert type(caught.value) is error


def test_a_pair_of_biases_for_a_pair_packed_or_not():
    pair, biases = (draw((7, 6)), draw((7, 6), seed=1)), (draw(6), draw(6, seed=1))
    wanted = mf.matmul_fused(A32, pair, biases, "swiglu")
    check(wanted, A32, np.hstack(pair), np.hstack(biases), "swiglu")
    packed = mf.prepack(pair)
    for weight in (packed, pickle.loads(pickle.dumps(packed)), mf.prepack(np.hstack(pair), gate_layout="halves")):
        assert same_bits(mf.matmul_fused(A32, weight, biases, "swiglu"), wanted)
        assert same_bits(mf.matmul_fused(A32, weight, np.hstack(biases), "swiglu"), wanted)
    z = np.full((A32.shape[0], 12), np.nan)
    mf.matmul_fused(A32, packed, biases, "swiglu", C=draw(12), preactivation=z)
    check(z, A32, np.hstack(pair), np.hstack(biases), C=draw(12))


def test_a_namedtuple_is_a_pair():
    class Pair(NamedTuple):
        gate: Any
        up: Any

    pair, biases = Pair(draw((7, 6)), draw((7, 6), seed=1)), Pair(draw(6), draw(6, seed=1))
    for weight in (pair, mf.prepack(pair)):
        check(mf.matmul_fused(A32, weight, biases, "geglu"), A32, np.hstack(pair), np.hstack(biases), "geglu")


def test_unpack_of_a_read_only_weight_is_writable():
    weight = draw((7, 6))
    weight.flags.writeable = False
    for B in (weight, (weight, weight)):
        copy = np.from_dlpack(mf.prepack(B).unpack())
        assert copy.flags.writeable
        out = mf.prepack(weight).unpack()
        assert mf.matmul_fused(draw((7, 7)), draw((7, 6), seed=1), out=out) is out


def test_a_pickle_of_more_columns_than_bytes_can_be_counted_of():
    make, (_, *rest) = mf.prepack(np.zeros((2, 2), np.float32)).__reduce__()
    dtype, gate = rest[-2:]
    for name in ("bfloat16", "float32", str(dtype)):
        with pytest.raises(MemoryError, match=r"no memory for a packed \w+ weight \(0, 9223372036854775807\)"):
            make(b"", 0, 2**63 - 1, name, gate)


@pytest.mark.parametrize("call", ["prepack", "prepack a pair", "unpack", "pickle"])
def test_other_threads_run_while_a_weight_is_copied(call):
    """Threads that want the GIL get it when it is released: here nobody is asked to give it up for 100 s."""
    weight = np.ones((2048, 2048), np.float32)
    packed = mf.prepack(weight)
    function, argument = {
        "prepack": (mf.prepack, weight),
        "prepack a pair": (mf.prepack, (weight, weight)),
        "unpack": (mf.PackedMatrix.unpack, packed),
        "pickle": (mf.PackedMatrix.__reduce__, packed),
    }[call]
    runs = []
    ready, go = threading.Event(), threading.Event()

    def other():
        ready.set()
        go.wait()
        runs.append(True)

    thread = threading.Thread(target=other)
    thread.start()
    ready.wait()
    before = sys.getswitchinterval()
    sys.setswitchinterval(100)
    try:
        go.set()
        for _ in range(100):
            function(argument)
            if runs:
                break
        ran = bool(runs)
    finally:
        sys.setswitchinterval(before)
    thread.join()
    assert ran


def test_the_gate_layout_may_be_repeated():
    for gate_layout in GATES[1:]:
        got = mf.matmul_fused(A32, PACKED[gate_layout], None, "glu", gate_layout=gate_layout)
        check(got, A32, B32, None, "glu", gate_layout=gate_layout)


@pytest.mark.parametrize("columns", [1, 2**57])
def test_a_weight_too_large_to_pack_is_refused(columns):
    """Zero strides make a huge weight of one element; its panels would have 2**64 bytes."""
    code = f"""if True:
        import numpy as np, matmul_fused as mf
        weight = np.broadcast_to(np.float16(1), (2**58 // {columns}, {columns}))
        try:
            mf.prepack(weight)
        except (MemoryError, ValueError):
            print("refused")"""
    assert python("-c", code).stdout == "refused\n"
