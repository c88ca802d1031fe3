"""Floats of 8, 6 and 4 bits: conversions, and the matrix instructions of gfx950 that mix and scale them.

A format here is the list of its values by code, written from the words of the OCP specifications (FP8, and MX for the
smaller ones and E8M0) and of AMD's ISA documents for the FNUZ kinds; rounding looks for the nearest value in the list.
"""

import itertools

import ml_dtypes
import numpy as np
import pytest

import hipsim
from hipsim import Module
from hipsim.compile import object_of

KINDS = ("fp8", "bf8", "fp6", "bf6", "fp4")  # by their number in cbsz and blgp
SHAPES = {"fp8": (4, 3, 7), "bf8": (5, 2, 15), "fp6": (2, 3, 1), "bf6": (3, 2, 3), "fp4": (2, 1, 1)}  # bits, bits, bias
BITS = {kind: 1 + sum(SHAPES[kind][:2]) for kind in KINDS}


def values(kind, fnuz=False):
    """The value of every code; NaN where it stands for none."""
    exponent_bits, digits, bias = SHAPES[kind]
    bias += fnuz
    half = []
    for code in range(1 << exponent_bits + digits):
        exponent, fraction = code >> digits, code & (1 << digits) - 1
        if exponent:
            half.append((1 + fraction / (1 << digits)) * 2.0 ** (exponent - bias))
        else:
            half.append(fraction / (1 << digits) * 2.0 ** (1 - bias))
    if kind == "bf8" and not fnuz:
        half[-4:] = [np.inf, np.nan, np.nan, np.nan]
    if kind == "fp8" and not fnuz:
        half[-1] = np.nan
    both = half + [-x for x in half]
    if fnuz:
        both[len(half)] = np.nan
    return np.array(both)


def rounded(x, kind, fnuz=False):
    """The values of `kind` nearest to x, of two the one whose code is even; beyond them what the format has for it."""
    x = np.asarray(x, float)
    table = values(kind, fnuz)
    half = table[: len(table) // 2]
    half = half[np.isfinite(half)]
    beyond = np.inf if kind == "bf8" and not fnuz else np.nan if BITS[kind] == 8 else half[-1]
    middles = np.append((half[1:] + half[:-1]) / 2, half[-1] + (half[-1] - half[-2]) / 2)
    code = np.searchsorted(middles, np.abs(x))
    tie = middles[np.minimum(code, len(half) - 1)] == np.abs(x)
    code = code + (tie & (code % 2 == 1))
    out = np.append(half, beyond)[code]
    return np.copysign(np.where(np.isnan(x), np.nan if BITS[kind] == 8 else half[-1], out), x)


def is_fnuz(part):
    return part == "gfx942"


def test_values():
    """The lists, beside those of another library."""
    known = {
        ("fp8", False): ml_dtypes.float8_e4m3fn, ("bf8", False): ml_dtypes.float8_e5m2,
        ("fp8", True): ml_dtypes.float8_e4m3fnuz, ("bf8", True): ml_dtypes.float8_e5m2fnuz,
        ("fp6", False): ml_dtypes.float6_e2m3fn, ("bf6", False): ml_dtypes.float6_e3m2fn,
        ("fp4", False): ml_dtypes.float4_e2m1fn,
    }  # fmt: skip
    for (kind, fnuz), dtype in known.items():
        table = values(kind, fnuz)
        assert np.array_equal(table, np.arange(len(table), dtype=np.uint8).view(dtype).astype(float), equal_nan=True)


def run(part, body, inputs, count):
    """The kernel's `body` over 256 work items: inputs a, b, c as x, y, z, outputs d[0] to d[count - 1]."""
    device = hipsim.Device(part)
    source = f"""
typedef unsigned pair __attribute__((ext_vector_type(2)));
extern "C" __global__ void GROUP(256) convert(unsigned *out, const unsigned *a, const unsigned *b, const unsigned *c)
{{
    int i = group_x * 256 + item_x;
    unsigned x = a[i], y = b[i], z = c[i], d[{count}];
    pair p;
    {body}
    for (int k = 0; k < {count}; k++)
        out[i * {count} + k] = d[k];
}}"""
    n = len(inputs[0])
    inputs = [*inputs, *[np.zeros(n, np.uint32)] * (3 - len(inputs))]
    out = device.empty((n, count), np.uint32)
    with Module(device, object_of(source, part)) as module:
        module["convert"](n // 256, 256, out, *(device.array(np.asarray(x, np.uint32)) for x in inputs))
        result = device.to_numpy(out)
    device.assert_clean()
    return result


def asm(text, constraint, *operands):
    return f'asm("{text}" : {constraint} : {", ".join(f"{chr(34)}v{chr(34)}({x})" for x in operands)});'


def words(rng):
    return rng.integers(0, 2**32, 1024, dtype=np.uint32)


def differences(got, want):
    """(place, got, wanted) of what differs; any NaN is like any other."""
    got, want = np.asarray(got, float), np.asarray(want, float)
    wrong = np.flatnonzero(~((got == want) | (np.isnan(got) & np.isnan(want))))
    return [(int(i), float(got[i]), float(want[i])) for i in wrong[:8]]


@pytest.mark.parametrize("kind", ["fp8", "bf8"])
@pytest.mark.parametrize("part", ["gfx942", "gfx950", "gfx1201"])
def test_to_float32(part, kind, rng):
    x = words(rng)
    x[:256] = np.arange(256)
    rdna = part == "gfx1201"
    one = "v_cvt_f32_%s%s %%0, %%1 %s"
    names = [
        one % (kind, "_e64" if rdna else "_sdwa", f"byte_sel:{k}" if rdna else f"src0_sel:BYTE_{k}") for k in range(4)
    ]
    lines = [asm(f"v_cvt_f32_{kind} %0, %1", '"=v"(d[0])', "x")]
    lines += [asm(name, f'"=v"(d[{k + 1}])', "x") for k, name in enumerate(names)]
    for k, half in enumerate(("_e32 %0, %1", "_e64 %0, %1 op_sel:[1,0]" if rdna else "_sdwa %0, %1 src0_sel:WORD_1")):
        lines.append(asm(f"v_cvt_pk_f32_{kind}{half}", '"=v"(p)', "x"))
        lines += [f"d[{5 + 2 * k + n}] = p[{n}];" for n in range(2)]
    got = run(part, "\n".join(lines), [x], 9).view(np.float32)
    table = values(kind, is_fnuz(part))
    bytes_of = x.view(np.uint8).reshape(-1, 4)
    for column, byte in enumerate([0, 0, 1, 2, 3, 0, 1, 2, 3]):
        assert not differences(got[:, column], table[bytes_of[:, byte]]), (column, byte)


def floats(rng, kind, fnuz):
    """Values of the format, those between two of them, and others."""
    finite = np.unique(values(kind, fnuz)[np.isfinite(values(kind, fnuz))])
    between = (finite[1:] + finite[:-1]) / 2
    largest = finite[-1]
    edges = [largest * s * f for s in (1, -1) for f in (1.0, 1.001, 1.03, 1.06, 1.0625, 1.125, 1.2, 1.25, 1.3, 2, 1e6)]
    x = np.concatenate([finite, between, np.nextafter(between.astype(np.float32), np.float32(0)), edges])
    x = np.concatenate([x, [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, -1e-30]]).astype(np.float32)
    more = rng.standard_normal(-len(x) % 256 + 256).astype(np.float32) * np.float32(largest / 8)
    return np.concatenate([x, more])


@pytest.mark.parametrize("kind", ["fp8", "bf8"])
@pytest.mark.parametrize("part", ["gfx942", "gfx950", "gfx1201"])
def test_from_float32(part, kind, rng):
    fnuz = is_fnuz(part)
    x = floats(rng, kind, fnuz)
    y = rng.permutation(x)
    body = "".join(
        f"d[{k}] = z;" + asm(f"v_cvt_pk_{kind}_f32 %0, %1, %2{select}", f'"+v"(d[{k}])', "x", "y")
        for k, select in enumerate(("", " op_sel:[0,0,1]"))
    )
    z = rng.integers(0, 2**32, len(x), dtype=np.uint32)
    got = run(part, body, [x.view(np.uint32), y.view(np.uint32), z], 2)
    assert np.array_equal(got[:, 0] >> 16, z >> 16)
    assert np.array_equal(got[:, 1] & 0xFFFF, z & 0xFFFF)
    table = values(kind, fnuz)
    for source, shift in ((x, 0), (y, 8)):
        want = rounded(source, kind, fnuz)
        for codes in (got[:, 0] >> shift & 255, got[:, 1] >> 16 + shift & 255):
            assert not differences(table[codes], want)
            sign = codes >> 7 == np.signbit(source)
            assert np.all(sign | np.isnan(source) | (want == 0) & fnuz | np.isnan(want))


# SCALED: the field of the register that op_sel names, as compilers write it for fields 0, 1, ...
WORD, BYTE = ("[0,0,0]", "[1,0,0]"), ("[0,0,0]", "[1,0,0]", "[0,1,0]", "[1,1,0]")
SCALES = np.array([2.0**-9, 0.5, 1, 3.99, 2.0**6], np.float32)  # of a scale only the exponent counts


def scale_values(scales):
    return 2.0 ** np.floor(np.log2(scales.astype(float)))


@pytest.mark.parametrize("kind", ["fp8", "bf8", "fp4"])
@pytest.mark.parametrize("type_", ["f32", "f16", "bf16"])
def test_scaled_unpack(kind, type_, rng):
    x, scales = words(rng), rng.choice(SCALES, 1024)
    fields = BYTE if kind == "fp4" else WORD
    lines, bits = [], BITS[kind]
    for k, select in enumerate(fields):
        name = f"v_cvt_scalef32_pk_{type_}_{kind} %0, %1, %2 op_sel:{select}"
        if type_ == "f32":
            lines.append(asm(name, '"=v"(p)', "x", "y"))
            lines += [f"d[{2 * k + n}] = p[{n}];" for n in range(2)]
        else:
            lines.append(asm(name, f'"=v"(d[{k}])', "x", "y"))
    wide = 2 if type_ == "f32" else 1
    got = run("gfx950", "\n".join(lines), [x, scales.view(np.uint32)], wide * len(fields))
    numbers = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}[type_]
    got = np.ascontiguousarray(got).view(numbers).reshape(len(x), -1)
    with np.errstate(over="ignore"):
        for column in range(2 * len(fields)):
            codes = x >> column * bits & (1 << bits) - 1
            want = (values(kind)[codes] * scale_values(scales)).astype(numbers)
            assert not differences(got[:, column], want), column


@pytest.mark.parametrize("kind", ["fp8", "bf8"])
def test_scaled_unpack_of_one(kind, rng):
    x, scales, z = words(rng), rng.choice(SCALES, 1024), words(rng)
    lines = [
        asm(f"v_cvt_scalef32_f32_{kind} %0, %1, %2 op_sel:{s}", f'"=v"(d[{k}])', "x", "y") for k, s in enumerate(BYTE)
    ]
    halves = [s[:-2] + f"{high}]" for s, high in zip(BYTE, (0, 1, 0, 1), strict=True)]
    for k, select in enumerate(halves):
        lines.append(f"d[{4 + k}] = z;")
        lines.append(asm(f"v_cvt_scalef32_f16_{kind} %0, %1, %2 op_sel:{select}", f'"+v"(d[{4 + k}])', "x", "y"))
    got = run("gfx950", "\n".join(lines), [x, scales.view(np.uint32), z], 8)
    for k in range(4):
        want = values(kind)[x >> 8 * k & 255] * scale_values(scales)
        assert not differences(got[:, k].view(np.float32), want)
        half, other = (got[:, 4 + k] >> 16 * at & 0xFFFF for at in (k % 2, 1 - k % 2))
        with np.errstate(over="ignore"):
            assert not differences(half.astype(np.uint16).view(np.float16), want.astype(np.float16))
        assert np.array_equal(other, z >> 16 * (1 - k % 2) & 0xFFFF)


@pytest.mark.parametrize("kind", ["fp8", "bf8", "fp4"])
@pytest.mark.parametrize("type_", ["f32", "f16", "bf16"])
def test_scaled_pack(kind, type_, rng):
    numbers = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}[type_]
    with np.errstate(over="ignore"):
        x = floats(rng, kind, False).astype(numbers)
    y, scales = rng.permutation(x), rng.choice(SCALES, len(x))
    z = rng.integers(0, 2**32, len(x), dtype=np.uint32)
    if type_ == "f32":
        inputs, sources = [x.view(np.uint32), y.view(np.uint32), scales.view(np.uint32)], ("x", "y", "z")
        selects = ["[0,0,0,0]", "[0,0,0,1]"]
    else:
        pairs = np.stack([x, y], 1).view(np.uint32).ravel()
        inputs, sources, selects = [pairs, scales.view(np.uint32), z], ("x", "y"), ["[0,0,0]", "[0,0,1]"]
    if kind == "fp4":
        selects = [f"[0,0,{low},{high}]" for high, low in itertools.product((0, 1), repeat=2)]
    before = "z" if type_ != "f32" else "0x5a5a5a5au"
    sources_text = ", ".join(f"%{k + 1}" for k in range(len(sources)))
    lines = [
        f"d[{k}] = {before};"
        + asm(f"v_cvt_scalef32_pk_{kind}_{type_} %0, {sources_text} op_sel:{select}", f'"+v"(d[{k}])', *sources)
        for k, select in enumerate(selects)
    ]
    got = run("gfx950", "\n".join(lines), inputs, len(selects))
    old = z if type_ != "f32" else np.full(len(x), 0x5A5A5A5A, np.uint32)
    bits, table = BITS[kind], values(kind)
    want = [rounded(u.astype(float) / scale_values(scales), kind) for u in (x, y)]
    for k in range(len(selects)):
        low = 2 * bits * k
        mask = np.uint32(((1 << 2 * bits) - 1) << low)
        assert np.array_equal(got[:, k] & ~mask, old & ~mask)
        for n in range(2):
            assert not differences(table[got[:, k] >> low + n * bits & (1 << bits) - 1], want[n])


# --- matrix instructions ---


def element(kind, size, lane, e):
    """(row, k) of element e of a lane: AMD's blog on matrix cores, composable_kernel's mx_mfma_op.hpp."""
    group, groups = lane // size, 64 // size
    if BITS[kind] == 8:
        return lane % size, 16 * group + e % 16 + (e // 16) * 16 * groups
    return lane % size, 32 * group + e


def pack(kind, codes, size):
    """Registers of the lanes, as numbers of 32 times the bits of an element."""
    out = np.zeros((64, BITS[kind]), np.uint32)
    for lane in range(64):
        number = sum(int(codes[element(kind, size, lane, e)]) << e * BITS[kind] for e in range(32))
        out[lane] = [number >> 32 * r & 0xFFFFFFFF for r in range(BITS[kind])]
    return out


def row_of(size, lane, r):
    return 4 * (lane // 16) + r if size == 16 else 8 * (r // 4) + 4 * (lane // 32) + r % 4


GAP = "s_nop 15\\n s_nop 15"
ALL = list(itertools.product(KINDS, repeat=2))


def byte_of(kind):
    """Of the register with the scale, the byte that the tests' kernels take."""
    return KINDS.index(kind) % 4


def kernel(size, kinds, scaled, gap):
    a, b = (BITS[kind] for kind in kinds)
    scale, last = ("scale_", ", %3, %4") if scaled else ("", "")
    if scaled:
        low, high = ([byte_of(kind) >> bit & 1 for kind in kinds] for bit in (0, 1))
        last += f" op_sel:[{low[0]},{low[1]},0] op_sel_hi:[{high[0]},{high[1]},0]"
    last += f" cbsz:{KINDS.index(kinds[0])} blgp:{KINDS.index(kinds[1])}"
    name = f"v_mfma_{scale}f32_{size}x{size}x{2048 // size}_f8f6f4"
    return f"""
extern "C" __global__ void GROUP(64) {"_".join(kinds)}(words<{size * size // 64}>::t *out, const unsigned *a,
    const unsigned *b, const words<{size * size // 64}>::t *c, const unsigned *scale_a, const unsigned *scale_b)
{{
    words<{a}>::t x; words<{b}>::t y; words<{size * size // 64}>::t z = c[item_x];
    for (int i = 0; i < {a}; i++)
        x[i] = a[item_x * {a} + i];
    for (int i = 0; i < {b}; i++)
        y[i] = b[item_x * {b} + i];
    unsigned s = scale_a[item_x], t = scale_b[item_x];
    asm volatile("s_nop 4\\n {name} %0, %1, %2, %0{last}\\n {gap}" : "+v"(z) : "v"(x), "v"(y), "v"(s), "v"(t));
    out[item_x] = z;
}}"""


def all_kernels(size, scaled, gap=GAP, of=ALL):
    """One object with a kernel for each pair of formats."""
    head = "template <int n> struct words { typedef unsigned t __attribute__((ext_vector_type(n))); };"
    return object_of(head + "".join(kernel(size, kinds, scaled, gap) for kinds in of), "gfx950")


def multiply(module, size, kinds, codes, c, scales=None):
    """D of the instruction, and the device's report."""
    device = hipsim.Device("gfx950")
    registers = size * size // 64
    places = [[(row_of(size, lane, r), lane % size) for r in range(registers)] for lane in range(64)]
    packed = [pack(kind, x, size) for kind, x in zip(kinds, codes, strict=True)]
    for which, kind in enumerate(kinds):
        lanes = np.full(64, 0x11223344, np.uint32)
        for lane in range(64) if scales else ():
            byte, shift = int(scales[which][lane % size, lane // size]), 8 * byte_of(kind)
            lanes[lane] = lanes[lane] & ~np.uint32(255 << shift) | np.uint32(byte << shift)
        packed.append(lanes)
    packed_c = np.array([[c[place] for place in row] for row in places], np.float32)
    out = device.empty((64, registers), np.float32)
    inputs = [device.array(x) for x in (*packed[:2], packed_c, *packed[2:])]
    module["_".join(kinds)](1, 64, out, *inputs)
    lanes_d = device.to_numpy(out)
    d = np.zeros((size, size))
    for row, values_ in zip(places, lanes_d, strict=True):
        for place, value in zip(row, values_, strict=True):
            d[place] = value
    return d, device.report()


def random_codes(rng, kinds, size):
    """Small numbers: every product and sum is exact."""
    few = {kind: [c for c, v in enumerate(values(kind)) if abs(v) <= 4 and (v * 4) % 1 == 0] for kind in KINDS}
    return [rng.choice(few[kind], (size, 2048 // size)) for kind in kinds]


def product(kinds, codes, scales=None):
    a, b = (values(kind)[x] for kind, x in zip(kinds, codes, strict=True))
    if scales:
        a, b = (
            np.asarray(x * np.repeat(2.0 ** (s.astype(float) - 127), 32, 1))
            for x, s in zip((a, b), scales, strict=True)
        )
    return a @ b.T


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("size", [16, 32])
def test_formats(size, scaled, rng):
    c = rng.integers(-100, 100, (size, size)).astype(np.float32)
    with Module(hipsim.Device("gfx950"), all_kernels(size, scaled)) as module:
        for kinds in ALL:
            codes = random_codes(rng, kinds, size)
            scales = [rng.integers(126, 130, (size, 64 // size)) for _ in range(2)] if scaled else None
            d, report = multiply(module, size, kinds, codes, c, scales)
            assert not report.violations
            assert report.counters["matrix"] == 1
            assert np.array_equal(d, product(kinds, codes, scales) + c), kinds


@pytest.mark.parametrize("kind", KINDS)
def test_every_code(kind):
    """Row m of A has code m in a place of K, where B is 1: D is the values, NaN and infinity too."""
    table, one = values(kind), int(np.argmax(values(kind) == 1))
    with Module(hipsim.Device("gfx950"), all_kernels(32, False)) as module:
        for first in range(0, len(table), 32):
            codes = [np.zeros((32, 64), int), np.zeros((32, 64), int)]
            codes[0][:, 37] = (first + np.arange(32)) % len(table)
            codes[1][:, 37] = one
            d, _ = multiply(module, 32, (kind, kind), codes, np.zeros((32, 32)))
            assert not differences(d[:, 5], table[codes[0][:, 37]])


def test_scales_beyond_float32(rng):
    """Only the product of both scales has to be a number; E8M0 255 is NaN, for the rows of its block."""
    kinds, size = ("fp8", "fp4"), 16
    with Module(hipsim.Device("gfx950"), all_kernels(size, True)) as module:
        codes = random_codes(rng, kinds, size)
        scales = [np.full((size, 4), 1), np.full((size, 4), 254)]
        scales[0][8:], scales[1][:] = 5, 250
        d, _ = multiply(module, size, kinds, codes, np.zeros((size, size)), scales)
        assert np.array_equal(d, product(kinds, codes, scales))
        scales = [np.full((size, 4), 127) for _ in range(2)]
        scales[0][3, 2] = 255
        d, _ = multiply(module, size, kinds, codes, np.zeros((size, size)), scales)
        want = product(kinds, codes)
        want[3] = np.nan
        assert not differences(d.ravel(), want.ravel())


PASSES = {
    16: {("fp8", "fp8"): 8, ("fp4", "bf8"): 8, ("fp6", "bf6"): 4, ("fp4", "fp4"): 4},
    32: {("fp8", "bf6"): 16, ("bf6", "fp4"): 8},
}


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(("size", "passes"), [(16, 4), (16, 8), (32, 8), (32, 16)])
def test_passes(size, passes, scaled, rng):
    """A result may be read after as many wait states as clang puts there: passes + 4, and not after one less."""
    of = [kinds for kinds, count in PASSES[size].items() if count == passes]
    scales = [np.full((size, 64 // size), 127)] * 2 if scaled else None
    for states, expected in ((passes + 4, set()), (passes + 3, {"hazard"})):
        gap = f"s_nop {states // 2 - 1}\\n s_nop {states - states // 2 - 1}"
        with Module(hipsim.Device("gfx950"), all_kernels(size, scaled, gap, of)) as module:
            for kinds in of:
                codes = random_codes(rng, kinds, size)
                _, report = multiply(module, size, kinds, codes, np.zeros((size, size)), scales)
                assert {violation.kind for violation in report.violations} == expected, (kinds, states)
