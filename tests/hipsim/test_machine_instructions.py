"""One instruction after the other, by inline assembly, against an independent statement of its meaning in NumPy.

Random and special operands; every form runs on all 64 (32) lanes. Statements are written from the ISA documents' words.
"""

import itertools

import numpy as np
import pytest

import hipsim
from hipsim import Module
from hipsim.compile import object_of
from hipsim.pseudocode import fma

N = 512
SPECIAL = np.array(  # zeros, infinities, NaN, subnormals, limits of the types and of the conversions
    [0, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 1, 0x807FFFFF, 0x00800000, 0x7F7FFFFF, 0x3F800000, 0xBF800000,
     0xFFFFFFFF, 0x7FFFFFFF, 31, 32, 0x4F000000, 0xCF000000, 0x4F7FFFFF, 0x477FE000, 0x33000001, 0x38000000, 65536],
    np.uint32,
)  # fmt: skip
U32, U64, I32, F32, F64 = np.uint32, np.uint64, np.int32, np.float32, np.float64


def f(x):
    return x.view(F32)


def i(x):
    return x.view(I32)


def wide(x):
    return x.astype(U64)


def low(x):
    return (x & U64(0xFFFFFFFF)).astype(U32)


def bits(x):
    return np.asarray(x, F32).view(U32)


def half(x):
    """Bits of float32 rounded to float16."""
    return x.astype(np.float16).view(np.uint16).astype(U32)


def bfloat(x):
    u = wide(bits(x))
    rounded = ((u + U64(0x7FFF) + ((u >> U64(16)) & U64(1))) >> U64(16)).astype(U32)
    return np.where(np.isnan(x), (bits(x) >> 16) | 0x40, rounded).astype(U32)


def saturate(x, least, most):
    return np.where(np.isnan(x), 0, np.clip(np.trunc(x), least, most))


def number(pick, a, b):
    return np.where(np.isnan(a), b, np.where(np.isnan(b), a, pick(a, b)))


def field(x, offset, width):
    offset, width = offset & 31, width & 31
    return low((wide(x) >> wide(offset)) & ((U64(1) << wide(width)) - U64(1)))


def byte_permute(a, b, c):
    data = np.concatenate([b.view(np.uint8).reshape(-1, 4), a.view(np.uint8).reshape(-1, 4)], axis=1)
    out = np.zeros((len(a), 4), np.uint8)
    for k, selector in enumerate(c.view(np.uint8).reshape(-1, 4).T):
        out[:, k] = np.where(selector < 8, data[np.arange(len(a)), selector & 7], 0)
        sign = data[np.arange(len(a)), 2 * (selector & 3) + 1] >> 7
        out[:, k] = np.where((selector >= 8) & (selector < 12), sign * 255, out[:, k])
        out[:, k] = np.where(selector > 12, 255, out[:, k])
    return out.view(U32).ravel()


# name (gfx11's after a slash; "-": only gfx9, "+": only gfx11), sources, meaning of bits a, b, c
INTEGER = [
    ("v_add_u32/v_add_nc_u32", 2, lambda a, b: a + b),
    ("v_sub_u32/v_sub_nc_u32", 2, lambda a, b: a - b),
    ("v_subrev_u32/v_subrev_nc_u32", 2, lambda a, b: b - a),
    ("v_and_b32", 2, lambda a, b: a & b),
    ("v_or_b32", 2, lambda a, b: a | b),
    ("v_xor_b32", 2, lambda a, b: a ^ b),
    ("v_lshlrev_b32", 2, lambda a, b: b << (a & 31)),
    ("v_lshrrev_b32", 2, lambda a, b: b >> (a & 31)),
    ("v_ashrrev_i32", 2, lambda a, b: (i(b) >> i(a & 31)).view(U32)),
    ("v_min_u32", 2, np.minimum),
    ("v_max_u32", 2, np.maximum),
    ("v_min_i32", 2, lambda a, b: np.minimum(i(a), i(b)).view(U32)),
    ("v_max_i32", 2, lambda a, b: np.maximum(i(a), i(b)).view(U32)),
    ("v_mul_lo_u32", 2, lambda a, b: low(wide(a) * wide(b))),
    ("v_mul_hi_u32", 2, lambda a, b: low((wide(a) * wide(b)) >> U64(32))),
    ("v_mul_hi_i32", 2, lambda a, b: ((i(a).astype(np.int64) * i(b).astype(np.int64)) >> 32).astype(I32).view(U32)),
    ("v_mul_u32_u24", 2, lambda a, b: low(wide(a & 0xFFFFFF) * wide(b & 0xFFFFFF))),
    ("v_bcnt_u32_b32", 2, lambda a, b: np.array([int(x).bit_count() for x in a], U32) + b),
    ("v_bfm_b32", 2, lambda a, b: low(((U64(1) << wide(a & 31)) - U64(1)) << wide(b & 31))),
    ("v_add3_u32", 3, lambda a, b, c: a + b + c),
    ("v_or3_b32", 3, lambda a, b, c: a | b | c),
    ("v_and_or_b32", 3, lambda a, b, c: (a & b) | c),
    ("v_lshl_add_u32", 3, lambda a, b, c: (a << (b & 31)) + c),
    ("v_add_lshl_u32", 3, lambda a, b, c: (a + b) << (c & 31)),
    ("v_lshl_or_b32", 3, lambda a, b, c: (a << (b & 31)) | c),
    ("v_xad_u32", 3, lambda a, b, c: (a ^ b) + c),
    ("v_bfe_u32", 3, field),
    ("v_bfi_b32", 3, lambda a, b, c: (a & b) | (~a & c)),
    ("v_perm_b32", 3, byte_permute),
    ("v_alignbit_b32", 3, lambda a, b, c: low(((wide(a) << U64(32)) | wide(b)) >> wide(c & 31))),
    ("v_mad_u32_u24", 3, lambda a, b, c: low(wide(a & 0xFFFFFF) * wide(b & 0xFFFFFF)) + c),
    ("v_med3_i32", 3, lambda a, b, c: np.median([i(a), i(b), i(c)], axis=0).astype(np.int64).astype(I32).view(U32)),
    ("v_mov_b32", 1, lambda a: a),
    ("v_not_b32", 1, lambda a: ~a),
    ("v_bfrev_b32", 1, lambda a: np.array([int(f"{x:032b}"[::-1], 2) for x in a], U32)),
    ("v_ffbh_u32/v_clz_i32_u32", 1, lambda a: np.array([32 - int(x).bit_length() if x else 2**32 - 1 for x in a], U32)),
    ("v_cvt_f32_u32", 1, lambda a: bits(a.astype(F32))),
    ("v_cvt_f32_i32", 1, lambda a: bits(i(a).astype(F32))),
    ("v_cvt_f32_ubyte0", 1, lambda a: bits((a & 255).astype(F32))),
    ("v_cvt_f32_ubyte3", 1, lambda a: bits((a >> 24).astype(F32))),
    ("v_cvt_u32_f32", 1, lambda a: saturate(f(a).astype(F64), 0, 2**32 - 1).astype(U32)),
    ("v_cvt_i32_f32", 1, lambda a: saturate(f(a).astype(F64), -(2**31), 2**31 - 1).astype(I32).view(U32)),
]
# the result is a float32: any NaN stands for any other
FLOAT = [
    ("v_add_f32", 2, lambda a, b: f(a) + f(b)),
    ("v_sub_f32", 2, lambda a, b: f(a) - f(b)),
    ("v_mul_f32", 2, lambda a, b: f(a) * f(b)),
    ("v_min_f32", 2, lambda a, b: number(np.minimum, f(a), f(b))),
    ("v_max_f32", 2, lambda a, b: number(np.maximum, f(a), f(b))),
    ("v_med3_f32", 3, lambda a, b, c: np.where(np.isnan(f(a) + f(b) + f(c)), np.nan, np.median([f(a), f(b), f(c)], 0))),
    ("v_trunc_f32", 1, lambda a: np.trunc(f(a))),
    ("v_floor_f32", 1, lambda a: np.floor(f(a))),
    ("v_ceil_f32", 1, lambda a: np.ceil(f(a))),
    ("v_rndne_f32", 1, lambda a: np.rint(f(a))),
    ("v_frexp_mant_f32", 1, lambda a: np.where(np.isfinite(f(a)), np.frexp(f(a))[0], f(a))),
    ("v_cvt_f32_f16", 1, lambda a: (a & 0xFFFF).astype(np.uint16).view(np.float16).astype(F32)),
    ("v_ldexp_f32", 2, lambda a, b: np.ldexp(f(a), np.clip(i(b), -400, 400))),
]
# compared to 2 units in the last place; subnormal results are flushed
APPROXIMATE = [
    ("v_rcp_f32", lambda x: 1 / x),
    ("v_rsq_f32", lambda x: 1 / np.sqrt(x)),
    ("v_sqrt_f32", np.sqrt),
    ("v_exp_f32", np.exp2),
    ("v_log_f32", np.log2),
]


def spelled(name, rdna):
    parts = name.split("/")
    return parts[-1] if rdna else parts[0]


def operands(rng):
    out = []
    for k in range(3):
        x = rng.integers(0, 2**32, N, dtype=np.uint32)
        x[N // 2 :] = rng.standard_normal(N // 2).astype(F32).view(U32)
        special = np.roll(np.tile(SPECIAL, 20), 7 * k)[: N // 4]
        out.append(
            np.concatenate([special, x[N // 4 :]]) if k < 2 else np.concatenate([rng.permutation(special), x[N // 4 :]])
        )
    return out


def run(part, rows, inputs, suffix=""):
    """Every row's instruction over the inputs, its own modifiers last: one kernel, an output row for each."""
    lines = []
    for k, (name, count, *modifiers) in enumerate(rows):
        sources = ", ".join(f"%{n + 1}" for n in range(count))
        registers = ", ".join(f'"v"({x})' for x in "xyz"[:count])
        lines.append(
            f'asm("{name} %0, {sources}{suffix}{"".join(modifiers)}" : "=&v"(d) : {registers}); out[{k} * {N} + i] = d;'
        )
    source = f"""
extern "C" __global__ void GROUP(256) all(unsigned *out, const unsigned *a, const unsigned *b, const unsigned *c)
{{
    int i = group_x * 256 + item_x;
    unsigned x = a[i], y = b[i], z = c[i], d;
    {" ".join(lines)}
}}"""
    out = part.empty((len(rows), N), np.uint32)
    with Module(part, object_of(source, part.arch)) as module:
        module["all"](N // 256, 256, out, *(part.array(x) for x in inputs))
        result = part.to_numpy(out)
    part.assert_clean()
    return result


@pytest.fixture(params=["gfx942", "gfx950", "gfx90a", "gfx1100", "gfx1201"])
def part(request):
    return hipsim.Device(request.param)


def is_rdna(part):
    return part.arch.startswith("gfx1")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_integers(part, rng):
    inputs = operands(rng)
    got = run(part, [(spelled(name, is_rdna(part)), count) for name, count, _ in INTEGER], inputs)
    for row, (name, count, meaning) in zip(got, INTEGER, strict=True):
        expected = meaning(*inputs[:count])
        wrong = np.flatnonzero(row != expected)
        assert not len(wrong), (
            f"{name}{[hex(x[wrong[0]]) for x in inputs]}: {row[wrong[0]]:#x}, {expected[wrong[0]]:#x}"
        )


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_floats(part, rng):
    inputs = operands(rng)
    table = FLOAT if part.arch != "gfx1201" else [row for row in FLOAT if row[0][:5] not in ("v_min", "v_max", "v_med")]
    got = run(part, [(spelled(name, is_rdna(part)), count) for name, count, _ in table], inputs)
    for row, (name, count, meaning) in zip(got, table, strict=True):
        expected = np.asarray(meaning(*inputs[:count]), F32)
        unordered = np.isnan(expected)
        if name == "v_med3_f32":  # of a NaN the documents say more than this statement
            row, expected, unordered = row[~unordered], expected[~unordered], unordered[~unordered]
        same = np.where(unordered, np.isnan(f(row)), f(row) == expected)
        wrong = np.flatnonzero(~same)
        assert not len(wrong), f"{name}{[hex(x[wrong[0]]) for x in inputs]}: {f(row)[wrong[0]]}, {expected[wrong[0]]}"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_approximations(part, rng):
    inputs = operands(rng)
    got = run(part, [(name, 1) for name, _ in APPROXIMATE], inputs)
    x = f(inputs[0]).astype(F64)
    x = np.where(np.abs(x) < 2.0**-126, np.copysign(0, x), x)  # subnormal operands count as zero
    for row, (name, meaning) in zip(got, APPROXIMATE, strict=True):
        expected = meaning(x)
        normal = np.isfinite(expected) & (np.abs(expected) >= 2.0**-126) & (np.abs(expected) < 2.0**127)
        error = np.abs(f(row)[normal] - expected[normal]) / np.spacing(np.abs(expected[normal]).astype(F32))
        assert error.max() <= 2, name
        assert np.array_equal(np.isnan(f(row)), np.isnan(expected)), name
        small = np.abs(expected) < 2.0**-126
        assert np.all(f(row)[small] == 0), name


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_conversions_to_halves(part, rng):
    inputs = operands(rng)
    names = ["v_cvt_pkrtz_f16_f32", "v_pack_b32_f16"]
    if is_rdna(part):
        names[0] = "v_cvt_pk_rtz_f16_f32"
    names += ["v_cvt_pk_bf16_f32", "v_cvt_pk_f16_f32"] if part.arch == "gfx950" else []
    got = dict(zip(names, run(part, [(name, 2) for name in names], inputs), strict=True))
    a, b = inputs[:2]
    assert np.array_equal(got["v_pack_b32_f16"], (a & 0xFFFF) | (b << 16))
    toward_zero = got[names[0]].view(np.float16).reshape(-1, 2).T
    for result, x in zip(toward_zero, (f(a), f(b)), strict=True):
        number_ = ~np.isnan(x)
        assert np.all(np.isnan(result[~number_]))
        r, size = np.abs(result[number_]).astype(F64), np.abs(x[number_]).astype(F64)
        above = np.nextafter(np.abs(result[number_]), np.float16(np.inf)).astype(F64)
        assert np.all((r <= size) & ((above > size) | np.isinf(size)))
    if part.arch == "gfx950":
        for x, shift in ((f(a), 0), (f(b), 16)):
            exact = ~np.isnan(x)
            pair = {name: (got[name] >> shift) & 0xFFFF for name in names[2:]}
            assert np.array_equal(pair["v_cvt_pk_bf16_f32"][exact], bfloat(x)[exact])
            assert np.array_equal(pair["v_cvt_pk_f16_f32"][exact], half(x)[exact])
            assert np.all((pair["v_cvt_pk_bf16_f32"][~exact] & 0x7FFF) > 0x7F80)


# -> what they make of the float32 and of the bits of the result's register before
MIXED = {
    "v_fma_mix_f32": lambda x, before: bits(x),
    "v_fma_mixlo_f16": lambda x, before: (before & 0xFFFF0000) | half(x),
    "v_fma_mixhi_f16": lambda x, before: (before & 0xFFFF) | half(x) << 16,
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", MIXED)
def test_mixed_precision(part, rng, name):
    """fma(a, b, c), each a float32, or the low or the high half of its register as a float16."""
    inputs = operands(rng)
    halves = [[(x & 0xFFFF), x >> 16] for x in inputs]
    choices = [[f(x), *(h.astype(np.uint16).view(np.float16).astype(F32) for h in pair)]
               for x, pair in zip(inputs, halves, strict=True)]  # fmt: skip
    picks = list(itertools.product(range(3), repeat=3))
    rows = []
    for pick in picks:
        high, is_half = ([int(k == 2) for k in pick], [int(k > 0) for k in pick])
        rows.append((f"v_mov_b32 %0, %1\\n s_nop 4\\n {name}", 3, f" op_sel:[{high[0]},{high[1]},{high[2]}]"
                     f" op_sel_hi:[{is_half[0]},{is_half[1]},{is_half[2]}]"))  # fmt: skip
    for row, pick in zip(run(part, rows, inputs), picks, strict=True):
        sources = [values[k] for values, k in zip(choices, pick, strict=True)]
        exact = np.array([fma(*terms) for terms in zip(*sources, strict=True)], F32)
        expected, number = MIXED[name](exact, inputs[0]), ~np.isnan(exact)
        same = np.where(number, row == expected, np.isnan(f(row)) | (name != "v_fma_mix_f32"))
        assert same.all(), f"{pick}, {[x[~same][0] for x in sources]}: {row[~same][0]:#x}, {expected[~same][0]:#x}"


@pytest.mark.parametrize("part", ["gfx1100", "gfx1201"], indirect=True)
def test_permutation_of_rows(part, rng):
    """v_permlane16 takes a lane of its own row of 16, v_permlanex16 one of the row next to it."""
    inputs = operands(rng)
    selects = rng.integers(0, 2**32, (4, 2))
    rows = []
    for first, second in selects:  # the result keeps its value where no lane is read, so it needs one
        before = f"s_mov_b32 s90, {first:#x}\\n s_mov_b32 s91, {second:#x}\\n v_mov_b32 %0, 0\\n"
        rows += [(f"{before} v_permlane{x}16_b32", 1, ", s90, s91") for x in ("", "x")]
    lanes = np.arange(N)
    expected = []
    for first, second in selects:
        chosen = (int(second) << 32 | int(first)) >> 4 * (lanes % 16).astype(object) & 15
        expected += [inputs[0][(lanes & ~15 ^ other) + chosen.astype(int)] for other in (0, 16)]
    np.testing.assert_array_equal(run(part, rows, inputs), expected)


COMPARE = {
    "lt": np.less, "eq": np.equal, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lg": lambda a, b: (a < b) | (a > b), "o": lambda a, b: (a == a) & (b == b), "u": lambda a, b: (a != a) | (b != b),
    "nge": lambda a, b: ~(a >= b), "ngt": lambda a, b: ~(a > b), "nle": lambda a, b: ~(a <= b), "neq": np.not_equal,
    "nlt": lambda a, b: ~(a < b), "nlg": lambda a, b: ~((a < b) | (a > b)),
}  # fmt: skip


def test_comparisons(part, rng):
    a, b, _ = operands(rng)
    b[::3] = a[::3]
    vcc = "vcc_lo" if is_rdna(part) else "vcc"
    rows, expected = [], []
    for kind, view in (("f32", F32), ("u32", U32), ("i32", I32)):
        for name, meaning in COMPARE.items():
            if kind != "f32" and name not in ("lt", "eq", "le", "gt", "ge"):
                continue
            rows.append((f"v_cmp_{name}_{kind} {vcc}, %1, %2\\n s_nop 4\\n v_cndmask_b32", 2))
            expected.append(meaning(a.view(view), b.view(view)).astype(U32))
    lines = []
    for k, (text, _) in enumerate(rows):
        lines.append(
            f'asm volatile("{text} %0, 0, 1, {vcc}" : "=v"(d) : "v"(x), "v"(y) : "vcc"); out[{k} * {N} + i] = d;'
        )
    source = f"""
extern "C" __global__ void GROUP(256) all(unsigned *out, const unsigned *a, const unsigned *b)
{{
    int i = group_x * 256 + item_x;
    unsigned x = a[i], y = b[i], d;
    {" ".join(lines)}
}}"""
    out = part.empty((len(rows), N), np.uint32)
    with Module(part, object_of(source, part.arch)) as module:
        module["all"](N // 256, 256, out, part.array(a), part.array(b))
        got = part.to_numpy(out)
    part.assert_clean()
    for row, want, (text, _) in zip(got, expected, rows, strict=True):
        assert np.array_equal(row, want), text


def test_arithmetic_of_the_compiler(part, rng):
    """What clang makes of plain C: division, fma, 64-bit integers, float64, conversions: exact by IEEE and C."""
    source = """
extern "C" __global__ void GROUP(256) all(float *out, double *wide, long *whole, const float *a, const float *b,
                                          const double *x, const double *y, const long *p, const long *q)
{
    int i = group_x * 256 + item_x, n = 512;
    out[i] = a[i] / b[i];
    out[n + i] = __builtin_sqrtf(__builtin_fabsf(a[i]));
    out[2 * n + i] = __builtin_fmaf(a[i], b[i], -a[i] * b[i]);
    out[3 * n + i] = (float)(_Float16)a[i];
    out[4 * n + i] = (float)((_Float16)a[i] * (_Float16)b[i]);
    out[5 * n + i] = (float)x[i];
    out[6 * n + i] = (float)p[i];
    wide[i] = x[i] / y[i];
    wide[n + i] = __builtin_sqrt(__builtin_fabs(x[i]));
    wide[2 * n + i] = __builtin_fma(x[i], y[i], -x[i] * y[i]);
    wide[3 * n + i] = __builtin_floor(x[i]) + __builtin_rint(y[i]);
    wide[4 * n + i] = (double)p[i];
    whole[i] = p[i] * q[i];
    whole[n + i] = p[i] / q[i];
    whole[2 * n + i] = p[i] >> (q[i] & 63);
    whole[3 * n + i] = (unsigned long)p[i] << (q[i] & 63);
    whole[4 * n + i] = p[i] < q[i] ? p[i] + q[i] : p[i] - q[i];
}"""
    a, b = (rng.standard_normal(N).astype(F32) * F32(2) ** rng.integers(-60, 60, N).astype(F32) for _ in range(2))
    x, y = (rng.standard_normal(N) * 2.0 ** rng.integers(-500, 500, N) for _ in range(2))
    p, q = (rng.integers(-(2**63), 2**63 - 1, N) >> rng.integers(0, 60, N) for _ in range(2))
    q[q == 0] = 1
    out, wide_out, whole = part.empty((7, N)), part.empty((5, N), F64), part.empty((5, N), np.int64)
    with Module(part, object_of(source, part.arch, "-ffp-contract=off")) as module:
        module["all"](N // 256, 256, out, wide_out, whole, *(part.array(v) for v in (a, b, x, y, p, q)))
        got, got_wide, got_whole = (part.to_numpy(v) for v in (out, wide_out, whole))
    part.assert_clean()
    residue = a.astype(np.longdouble) * b - (a * b).astype(np.longdouble)
    with np.errstate(all="ignore"):
        halves = a.astype(np.float16), b.astype(np.float16)
        expected = [a / b, np.sqrt(np.abs(a)), residue.astype(F32), halves[0].astype(F32)]
        expected += [(halves[0] * halves[1]).astype(F32), x.astype(F32), p.astype(F32)]
        for k, want in enumerate(expected):
            assert np.array_equal(got[k], want, equal_nan=True), k
        expected = [x / y, np.sqrt(np.abs(x)), None, np.floor(x) + np.rint(y), p.astype(F64)]
        for k, want in enumerate(expected):
            assert want is None or np.array_equal(got_wide[k], want), k
        product = x * y
    inside = (np.abs(product) > 1e-250) & (np.abs(product) < 1e300)
    exact = [
        float(_fraction(u) * _fraction(v) - _fraction(w))
        for u, v, w in zip(x, y, product, strict=True)
        if abs(w) < 1e300
    ]
    assert np.array_equal(
        got_wide[2][np.abs(product) < 1e300][inside[np.abs(product) < 1e300]],
        np.array(exact)[inside[np.abs(product) < 1e300]],
    )
    truncated = np.array(
        [abs(int(u)) // abs(int(v)) * (1 if (u < 0) == (v < 0) else -1) for u, v in zip(p, q, strict=True)]
    )
    with np.errstate(over="ignore"):
        wanted = [p * q, truncated, p >> (q & 63), p << (q & 63), np.where(p < q, p + q, p - q)]
    for k, want in enumerate(wanted):
        assert np.array_equal(got_whole[k], want), k


def _fraction(x):
    from fractions import Fraction

    return Fraction(float(x))
