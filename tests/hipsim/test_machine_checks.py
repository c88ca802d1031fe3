"""Every check bites: planted bugs, and machine code with its waits, barriers and guards taken out one by one."""

import struct

import numpy as np
import pytest

import hipsim
from hipsim import HipError, Module
from hipsim.compile import object_of

ARCHS = ("gfx942", "gfx950", "gfx1100")
# A product of square matrices through LDS: two loads and two stores in flight, a barrier on both sides of each step.
TILE = """
__device__ inline void barrier()
{
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(256, 256))) tile(
    float *out, const float *a, const float *b, const float *bias, int n)
{
    __shared__ float s[16][17], t[16][17];
    int x = item_x & 15, y = item_x >> 4, row = (group_x >> 2) * 16 + y, column = (group_x & 3) * 16 + x;
    float sum = bias[column];
    for (int k = 0; k < n; k += 16) {
        s[y][x] = row < n && k + x < n ? a[row * n + k + x] : 0;
        t[y][x] = k + y < n && column < n ? b[(k + y) * n + column] : 0;
        barrier();
        for (int i = 0; i < 16; i++)
            sum += s[y][i] * t[i][x];
        barrier();
    }
    if (row < n && column < n)
        out[row * n + column] = sum;
}
"""


@pytest.fixture(params=ARCHS)
def part(request):
    return hipsim.Device(request.param)


def text_of(image):
    """Where .text lies in a code object."""
    sections, count, names = (
        struct.unpack_from(form, image, at)[0] for form, at in (("<Q", 40), ("<H", 60), ("<H", 62))
    )
    headers = [struct.unpack_from("<IIQQQQ", image, sections + 64 * k) for k in range(count)]
    for name, _, _, _, offset, size in headers:
        start = headers[names][4] + name
        if image[start : image.index(b"\0", start)] == b".text":
            return offset, size
    raise ValueError("no .text")


def mutants(image, arch):
    """(what, image) with one s_waitcnt or s_barrier turned into s_nop, or one v_nop-like guard taken out."""
    offset, size = text_of(image)
    rdna = arch.startswith("gfx11")
    kinds = {
        "wait": (0xFFFF0000, 0xBF890000 if rdna else 0xBF8C0000),
        "barrier": (0xFFFFFFFF, 0xBFBD0000 if rdna else 0xBF8A0000),
    }
    end = image[: offset + size].rindex(struct.pack("<I", 0xBFB00000 if rdna else 0xBF810000))  # s_endpgm
    for at in range(offset, end, 4):
        (word,) = struct.unpack_from("<I", image, at)
        for kind, (mask, value) in kinds.items():
            if word & mask == value:
                yield f"{kind} at {at - offset:#x}", image[:at] + struct.pack("<I", 0xBF800000) + image[at + 4 :]


def run_tile(part, image, n, rng):
    a, b = (rng.standard_normal((n, n)).astype(np.float32) for _ in range(2))
    bias = rng.standard_normal(64).astype(np.float32)
    out = part.empty((n, n))
    out_bias = part.array(bias)
    with Module(part, image) as module:
        module["tile"](16, 256, out, part.array(a), part.array(b), out_bias, n)
        got = part.to_numpy(out)
    return np.abs(got - (a.astype(np.float64) @ b + bias[:n])).max() < 1e-4


def test_a_right_kernel_is_clean(part, rng):
    image = object_of(TILE, part.arch)
    for n in (64, 50, 17):
        for seed in range(4):
            hipsim.configure(seed=seed)
            assert run_tile(part, image, n, rng)
            part.assert_clean()


def test_every_wait_and_barrier_is_missed(part, rng, capsys):
    image = object_of(TILE, part.arch)
    flagged, missed = [], []
    for what, mutant in mutants(image, part.arch):
        right = run_tile(part, mutant, 50, rng)
        kinds = sorted({v.kind for v in part.report().violations})
        (flagged if kinds else missed).append((what, kinds, "right" if right else "wrong"))
    with capsys.disabled():
        print(f"\n{part.arch}: {len(flagged)} of {len(flagged) + len(missed)} mutants flagged; missed: {missed}")
    assert len(flagged) >= 6
    assert any("barrier" in what for what, _, _ in flagged)
    # Where paths of the code join the compiler waits for both; on the path taken one wait may have nothing to wait for.
    assert len(missed) <= 1
    assert all(what.startswith("wait") and result == "right" for what, _, result in missed)
    # The point of the checks: most of these still give right numbers.
    assert any(result == "right" for _, _, result in flagged)


def flagged(part, source, kinds, text="", block=64, arguments=None, fault=False):
    """Run kernel `k` and compare the kinds of its violations."""
    out = part.empty(256, np.uint32)
    with Module(part, object_of(source, part.arch)) as module:
        module["k"](1, block, out, *(arguments or ()))
        if fault:
            with pytest.raises(HipError, match="hipErrorIllegalAddress"):
                part.synchronize()
        else:
            part.synchronize()
    violations = part.report().violations
    assert sorted({v.kind for v in violations}) == kinds, violations
    assert text in "\n".join(map(str, violations))


def body(code):
    return f"""
extern "C" __global__ void GROUP(256) k(unsigned *out)
{{
    unsigned x = item_x, y = 0;
    {code}
}}"""


def load(part):
    return "global_load_b32" if part.arch.startswith("gfx11") else "global_load_dword"


@pytest.mark.parametrize("wait", ["s_waitcnt vmcnt(0)", "s_nop 0"])
def test_wait_of_a_register(part, wait):
    code = f'asm volatile("{load(part)} %0, %1, off\\n {wait}\\n v_mov_b32 %0, %0\\n s_waitcnt vmcnt(0)"'
    code += ' : "=&v"(y) : "v"(out + x));'
    clean = wait != "s_nop 0"
    flagged(
        part, body(code + " out[x] = x + (y & 0);"), [] if clean else ["wait"], "" if clean else "was not waited for"
    )


def test_loads_return_in_order(part):
    """vmcnt(1) covers the first of two loads, not the second."""
    text = 'asm volatile("{0} %0, %2, off\\n {0} %1, %2, off\\n s_waitcnt vmcnt(1)\\n v_mov_b32 {1}, {1}\\n'
    text += ' s_waitcnt vmcnt(0)"'
    rest = ' : "=&v"(y), "=&v"(z) : "v"(out + x)); out[x] = x + (y & z & 0);'
    for register, kinds in (("%0", []), ("%1", ["wait"])):
        flagged(part, body("unsigned z; " + text.format(load(part), register) + rest), kinds)


def test_scalar_loads_return_in_any_order(part):
    s_load = "s_load_b32" if part.arch.startswith("gfx11") else "s_load_dword"
    text = f'asm volatile("{s_load} %0, %2, 0x0\\n {s_load} %1, %2, 0x4\\n s_waitcnt lgkmcnt({{}})\\n'
    text += ' s_mov_b32 %0, %0\\n s_waitcnt lgkmcnt(0)"'
    rest = ' : "=&s"(y), "=&s"(z) : "s"(out)); out[x] = x + (y & z & 0);'
    for count, kinds in ((0, []), (1, ["wait"])):
        flagged(part, body("unsigned z; " + text.format(count) + rest), kinds)


SHARED = """__shared__ unsigned raw[256]; typedef __attribute__((address_space(3))) volatile unsigned local;
local *s = (local *)raw; """


def test_race(part):
    flagged(
        part,
        body(
            SHARED
            + "s[x] = 0; __builtin_amdgcn_s_waitcnt(0); __builtin_amdgcn_s_barrier(); s[x] = x; out[x] = s[255 - x];"
        ),
        ["race"],
        "with no barrier between",
        256,
    )
    flagged(part, body(SHARED + "s[x & 63] = x; __builtin_amdgcn_s_barrier(); out[x] = x;"), ["race"], "writes", 256)


def test_write_must_be_complete_at_the_barrier(part):
    write = "ds_store_b32" if part.arch.startswith("gfx11") else "ds_write_b32"
    for wait, kinds in (("s_waitcnt lgkmcnt(0)", []), ("s_nop 0", ["wait"])):
        code = f"""{SHARED} s[x] = 1; __builtin_amdgcn_s_waitcnt(0);
        asm volatile("{write} %0, %1\\n {wait}\\n s_barrier" :: "v"(4 * x), "v"(x) : "memory");
        out[x] = s[255 - x];"""
        flagged(part, body(code), kinds, "" if not kinds else "before the barrier", 256)


def test_bounds(part):
    flagged(part, body("out[x + 256] = 1;"), ["bounds"], "in no allocation", fault=True)
    flagged(part, body("*(unsigned *)(8ul * x) = 1;"), ["bounds"], "in no allocation", fault=True)
    flagged(part, body(SHARED + "s[x] = x; out[x] = s[x + 256];"), ["bounds"], "the workgroup has 1024 bytes", 256)


def test_barriers(part):
    flagged(part, body("if (x < 20) __builtin_amdgcn_s_barrier(); out[x] = x;"), ["barrier"], "divergent", 256)
    source = body("if (__builtin_amdgcn_readfirstlane(x) < 64) return; __builtin_amdgcn_s_barrier(); out[x] = x;")
    flagged(part, source, ["barrier"], "has ended while this wave waits", 256)


def test_uninitialised(part):
    flagged(part, body('asm volatile("" : "=v"(y)); out[x] = y;'), ["uninitialised"], "never given a value")
    flagged(part, body(SHARED + "s[x] = x; out[x] = s[x ^ 64];"), ["uninitialised"], "never written")


@pytest.mark.parametrize(
    ("modifiers", "read"),
    [("op_sel_hi:[1,0]", "low"), ("op_sel:[0,1]", "high"), ("", "both"), ("op_sel:[0,1] op_sel_hi:[1,0]", "both")],
)
@pytest.mark.parametrize("defined", ["low", "high"])
def test_uninitialised_words_of_packed_pairs(modifiers, read, defined):
    """s[30:31] of which one word has a value: clean unless the other one is looked at."""
    part = hipsim.Device("gfx942")
    code = f"s_mov_b32 {'s30' if defined == 'low' else 's31'}, 1.0\\n v_mov_b32 v20, 0\\n v_mov_b32 v21, 0\\n"
    code += f" v_pk_mul_f32 v[20:21], v[20:21], s[30:31] {modifiers}\\n v_or_b32 %0, v20, v21"
    code = f'asm volatile("{code}" : "=v"(y) : : "s30", "s31", "v20", "v21"); out[x] = y;'
    flagged(part, body(code), [] if read == defined else ["uninitialised"])


@pytest.mark.parametrize(
    "move",
    [
        "v_pk_mov_b32 v[20:21], s[30:31], s[30:31] op_sel:[0,1]",
        "v_mov_b64 v[20:21], s[30:31]",
        "s_mov_b64 s[32:33], s[30:31]\\n v_mov_b32 v20, s32\\n v_mov_b32 v21, s33",
    ],
)
def test_uninitialised_words_that_are_moved(move):
    """Each word of the result has a value if its own source has."""
    part = hipsim.Device("gfx942")
    for result, kinds in (("v20", []), ("v21", ["uninitialised"])):
        code = f"s_mov_b32 s30, 1.0\\n {move}\\n v_mov_b32 %0, {result}"
        changed = '"s30", "s31", "s32", "s33", "v20", "v21"'
        flagged(part, body(f'asm volatile("{code}" : "=v"(y) : : {changed}); out[x] = y;'), kinds)


def test_uninitialised_halves_of_a_pair_of_instructions():
    """What one half of a VOPD reads does not matter to the other's result."""
    part = hipsim.Device("gfx1100")
    for result, kinds in (("v20", []), ("v21", ["uninitialised"])):
        code = f"v_dual_mov_b32 v20, 1.0 :: v_dual_mov_b32 v21, v30\\n v_mov_b32 %0, {result}"
        flagged(part, body(f'asm volatile("{code}" : "=v"(y) : : "v20", "v21", "v30"); out[x] = y;'), kinds)


def test_hazards_of_matrix_results():
    """The wait states that LLVM's table asks for between a matrix instruction and who reads its result."""
    for arch, name, registers, needed in (
        ("gfx942", "v_mfma_f32_16x16x16_bf16", 2, 7),
        ("gfx942", "v_mfma_f32_32x32x8_bf16", 2, 11),
        ("gfx950", "v_mfma_f32_16x16x32_bf16", 4, 8),
        ("gfx90a", "v_mfma_f32_16x16x16bf16_1k", 2, 11),
    ):
        part = hipsim.Device(arch)
        size = 16 if "32x32" in name else 4
        for states, kinds in ((needed, []), (needed - 1, ["hazard"])):
            last = 100 + size - 1
            zero = "\\n ".join(f"v_mov_b32 v{r}, 0" for r in range(100, last + 1))
            clobbered = ", ".join(f'"v{r}"' for r in range(100, last + 1))
            code = f"""typedef unsigned V __attribute__((ext_vector_type({registers}))); V v = x;
            asm volatile("{zero}\\n s_nop 15\\n {name} v[100:{last}], %1, %1, v[100:{last}]\\n s_nop {states - 1}\\n"
                         " v_mov_b32 %0, v100" : "=v"(y) : "v"(v) : {clobbered});
            out[x] = y;"""
            flagged(part, body(code), kinds, "wait states" if kinds else "")


def test_unknown_instruction(part):
    with (
        Module(
            part, object_of(body('asm("v_sad_u8 %0, %1, %1, %1" : "=v"(y) : "v"(x)); out[x] = y;'), part.arch)
        ) as module,
        pytest.raises(HipError, match="hipErrorInvalidDeviceFunction"),
    ):
        module["k"](1, 64, part.empty(64, np.uint32))
    assert "opcode v_sad_u8 is unknown" in str(part.report())
