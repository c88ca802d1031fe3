"""Matrix instructions against A @ B + C, packed into lanes by the layouts of the published documents.

The formulas here are written from the matrix instruction calculator's words, not from the simulator's code; small whole
numbers make every result exact, so that one wrong element shows.
"""

import itertools

import ml_dtypes
import numpy as np
import pytest

import hipsim
from hipsim import Module
from hipsim.compile import object_of

BF16, F16 = ml_dtypes.bfloat16, np.float16
BYTES = {
    "gfx942": {"fp8": ml_dtypes.float8_e4m3fnuz, "bf8": ml_dtypes.float8_e5m2fnuz},
    "gfx950": {"fp8": ml_dtypes.float8_e4m3fn, "bf8": ml_dtypes.float8_e5m2},
}
CDNA3 = ("gfx942", "gfx950")
MFMA = [  # name, rows and columns, K, type of A, type of B, type of D, parts
    ("v_mfma_f32_16x16x16_bf16", 16, 16, BF16, BF16, np.float32, CDNA3),
    ("v_mfma_f32_32x32x8_bf16", 32, 8, BF16, BF16, np.float32, CDNA3),
    ("v_mfma_f32_16x16x16_f16", 16, 16, F16, F16, np.float32, CDNA3),
    ("v_mfma_f32_32x32x8_f16", 32, 8, F16, F16, np.float32, CDNA3),
    ("v_mfma_f32_16x16x4_f32", 16, 4, np.float32, np.float32, np.float32, CDNA3),
    ("v_mfma_f32_32x32x2_f32", 32, 2, np.float32, np.float32, np.float32, CDNA3),
    ("v_mfma_f32_16x16x8_xf32", 16, 8, np.float32, np.float32, np.float32, ("gfx942",)),
    ("v_mfma_f32_32x32x4_xf32", 32, 4, np.float32, np.float32, np.float32, ("gfx942",)),
    ("v_mfma_i32_16x16x32_i8", 16, 32, np.int8, np.int8, np.int32, CDNA3),
    ("v_mfma_i32_32x32x16_i8", 32, 16, np.int8, np.int8, np.int32, CDNA3),
    ("v_mfma_f64_16x16x4_f64", 16, 4, np.float64, np.float64, np.float64, CDNA3),
    ("v_mfma_f32_16x16x32_bf16", 16, 32, BF16, BF16, np.float32, ("gfx950",)),
    ("v_mfma_f32_32x32x16_bf16", 32, 16, BF16, BF16, np.float32, ("gfx950",)),
    ("v_mfma_f32_16x16x32_f16", 16, 32, F16, F16, np.float32, ("gfx950",)),
    ("v_mfma_f32_32x32x16_f16", 32, 16, F16, F16, np.float32, ("gfx950",)),
    ("v_mfma_i32_16x16x64_i8", 16, 64, np.int8, np.int8, np.int32, ("gfx950",)),
    ("v_mfma_i32_32x32x32_i8", 32, 32, np.int8, np.int8, np.int32, ("gfx950",)),
    ("v_mfma_i32_16x16x16i8", 16, 16, np.int8, np.int8, np.int32, ("gfx90a",)),
    ("v_mfma_i32_32x32x8i8", 32, 8, np.int8, np.int8, np.int32, ("gfx90a",)),
    ("v_mfma_f32_16x16x16bf16_1k", 16, 16, BF16, BF16, np.float32, ("gfx90a",)),
    ("v_mfma_f32_32x32x8bf16_1k", 32, 8, BF16, BF16, np.float32, ("gfx90a",)),
    ("v_mfma_f32_16x16x16f16", 16, 16, F16, F16, np.float32, ("gfx90a",)),
    ("v_wmma_f32_16x16x16_bf16", 16, 16, BF16, BF16, np.float32, ("gfx1100", "gfx1201")),
    ("v_wmma_f32_16x16x16_f16", 16, 16, F16, F16, np.float32, ("gfx1100", "gfx1201")),
]
MFMA += [
    (f"v_mfma_f32_{shape}_{a}_{b}", int(shape[:2]), k, types[a], types[b], np.float32, (part,))
    for part, types in BYTES.items()
    for shape, k in (("16x16x32", 32), ("32x32x16", 16))
    for a, b in itertools.product(types, repeat=2)
]
CASES = [pytest.param(*row[:6], part, id=f"{part}-{row[0]}") for row in MFMA for part in row[6]]


def element_place(part, lane, e, size, k_count):
    """(row, k) of element e of a lane of A; of B: (column, k)."""
    if part == "gfx1100":
        return lane % 16, e
    if part == "gfx1201":
        return lane % 16, 8 * (e // 4) + 4 * (lane // 16) + e % 4
    return lane % size, k_count // (64 // size) * (lane // size) + e


def result_place(part, lane, r, size, kind):
    if part == "gfx1100":
        return 2 * r + lane // 16, lane % 16
    if part == "gfx1201":
        return 8 * (lane // 16) + r, lane % 16
    if kind == np.float64:
        return 4 * r + lane // 16, lane % 16
    if size == 16:
        return 4 * (lane // 16) + r, lane % 16
    return 8 * (r // 4) + 4 * (lane // 32) + r % 4, lane % 32


def pack(part, matrix, lanes, size, k_count):
    """Registers [lane][register] of the operand whose rows lie in `matrix`."""
    each = k_count if part == "gfx1100" else k_count * size // lanes
    out = np.zeros((lanes, each), matrix.dtype)
    for lane in range(lanes):
        for e in range(each):
            out[lane, e] = matrix[element_place(part, lane, e, size, k_count)]
    return out.view(np.uint8).reshape(lanes, -1).view(np.uint32)


def kernel(name, a, b, d):
    return f"""
typedef unsigned A __attribute__((ext_vector_type({max(a, 2)}))), B __attribute__((ext_vector_type({max(b, 2)})));
typedef unsigned D __attribute__((ext_vector_type({d})));
extern "C" __global__ void GROUP(64) matrix(unsigned *out, const unsigned *a, const unsigned *b, const unsigned *c)
{{
    {"A" if a > 1 else "unsigned"} x; {"B" if b > 1 else "unsigned"} y; D z;
    {" ".join(f"x{f'[{i}]' if a > 1 else ''} = a[item_x * {a} + {i}];" for i in range(a))}
    {" ".join(f"y{f'[{i}]' if b > 1 else ''} = b[item_x * {b} + {i}];" for i in range(b))}
    {" ".join(f"z[{i}] = c[item_x * {d} + {i}];" for i in range(d))}
    asm volatile("s_nop 4\\n {name} %0, %1, %2, %0\\n s_nop 15\\n s_nop 15" : "+v"(z) : "v"(x), "v"(y));
    {" ".join(f"out[item_x * {d} + {i}] = z[{i}];" for i in range(d))}
}}"""


def multiplied(name, part, a, b, c):
    """a @ b.T + c by one instruction."""
    (size, k_count), type_d = a.shape, c.dtype.type
    device = hipsim.Device(part)
    lanes = device.properties["wave_size"]
    packed = [pack(part, x, lanes, size, k_count) for x in (a, b)]
    registers = size * size // lanes
    places = [[result_place(part, lane, r, size, type_d) for r in range(registers)] for lane in range(lanes)]
    c_packed = np.array([[c[place] for place in row] for row in places], type_d).view(np.uint32)
    words = c_packed.shape[1]
    source = kernel(name, packed[0].shape[1], packed[1].shape[1], words)
    out = device.empty((lanes, words), np.uint32)
    with Module(device, object_of(source, part)) as module:
        module["matrix"](1, lanes, out, *(device.array(x) for x in (*packed, c_packed)))
        got_packed = device.to_numpy(out).view(type_d)
    report = device.assert_clean()
    assert report.counters["matrix"] == 1
    assert sorted(place for row in places for place in row) == [(m, n) for m in range(size) for n in range(size)]
    got = np.zeros((size, size), type_d)
    for row, values in zip(places, got_packed, strict=True):
        for place, value in zip(row, values, strict=True):
            got[place] = value
    return got


@pytest.mark.parametrize(("name", "size", "k_count", "type_a", "type_b", "type_d", "part"), CASES)
def test_layout(name, size, k_count, type_a, type_b, type_d, part, rng):
    a = rng.integers(-8, 9, (size, k_count)).astype(type_a)
    b = rng.integers(-8, 9, (size, k_count)).astype(type_b)  # B transposed: a row for each column
    c = rng.integers(-100, 100, (size, size)).astype(type_d)
    got = multiplied(name, part, a, b, c)
    assert np.array_equal(got, a.astype(np.float64) @ b.astype(np.float64).T + c)


@pytest.mark.parametrize(("name", "part", "kept"), [
    ("v_mfma_f32_16x16x16f16", "gfx90a", False),
    ("v_mfma_f32_16x16x16bf16_1k", "gfx90a", False),
    ("v_mfma_f32_32x32x8bf16_1k", "gfx90a", False),
    ("v_mfma_f32_16x16x4f32", "gfx90a", True),
    ("v_mfma_f32_16x16x16_f16", "gfx942", True),
    ("v_mfma_f32_16x16x16_bf16", "gfx942", True),
])  # fmt: skip
def test_subnormals(name, part, kept):
    """Of A, of B and of the sum, beside the least normal number: MI200 has those of 16 bits as 0."""
    size, k_count, dtype = {row[0]: row[1:4] for row in MFMA if part in row[6]}.get(name, (16, 4, np.float32))
    least = float(ml_dtypes.finfo(dtype).smallest_normal)
    a, b, c = np.zeros((size, k_count), dtype), np.zeros((size, k_count), dtype), np.zeros((size, size), np.float32)
    a[0, 0], a[1, 1], a[2, 2], a[3, 3] = least, -least / 2, least, 1
    b[4, :3] = 1
    b[5, 3] = -least / 4
    c[6, 7] = 2.0**-127
    wanted = (a.astype(np.float64) @ b.astype(np.float64).T + c).astype(np.float32)
    assert (wanted[0, 4], wanted[1, 4], wanted[3, 5], wanted[6, 7]) == (least, -least / 2, -least / 4, 2.0**-127)
    if not kept:
        wanted[1, 4] = wanted[3, 5] = wanted[6, 7] = 0
    assert np.array_equal(multiplied(name, part, a, b, c), wanted)


@pytest.mark.parametrize(("way", "units"), [("nearest", (0, 0, 2, 2, 4)), ("truncate", (0, 0, 1, 2, 3))])
def test_inputs_of_xf32(way, units):
    """Their last bits, a quarter, a half (twice: beside an odd number and an even one) and three quarters of a unit."""
    a, b = np.zeros((16, 8), np.float32), np.zeros((16, 8), np.float32)
    a[:5, 3] = 1 + np.array((0, 0.25, 1.5, 2.5, 3.75)) * 2.0**-10
    b[:, 3] = 1
    hipsim.configure(xf32=way)
    try:
        got = multiplied("v_mfma_f32_16x16x8_xf32", "gfx942", a, b, np.zeros((16, 16), np.float32))
    finally:
        hipsim.configure(xf32="nearest")
    assert (got[:5] == 1 + np.array(units)[:, None] * 2.0**-10).all()


def test_gfx11_wants_both_halves_equal(rng):
    device = hipsim.Device("gfx1100")
    a, b = (rng.integers(1, 2**15, (32, 8)).astype(np.uint32) for _ in range(2))
    b[16:] = b[:16]
    out = device.empty((32, 8), np.uint32)
    with Module(device, object_of(kernel("v_wmma_f32_16x16x16_f16", 8, 8, 8), "gfx1100")) as module:
        module["matrix"](1, 32, out, device.array(a), device.array(b), device.array(np.zeros((32, 8), np.uint32)))
        device.synchronize()
    violations = device.report().violations
    assert [v.kind for v in violations] == ["assertion"]
    assert "operand 0 differs between lanes 0 and 16" in str(violations[0])
