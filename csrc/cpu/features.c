/* CPUID and XGETBV, asked once. Path of a call: supports() of the blocked kernels; info() prints
 * the names. */
#define _GNU_SOURCE
#include "cpu/features.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cpu/rows.h"

typedef struct features {
    bool avx2, fma, f16c, avx512, avx512_bf16, amd, amx;
    unsigned family;
    int64_t cache2;
    char names[64];
} features;

enum { ZEN_4 = 0x19 }; /* the family that CPUID tells */

static features found;

#if defined(__x86_64__)

#include <cpuid.h>

/* What the operating system saves of the registers (XCR0): a CPU bit alone does not promise that.
 */
enum { SAVES_YMM = 0x6, SAVES_ZMM = 0xe6, SAVES_TILES = 0x60000 };

static unsigned saved_registers(unsigned leaf1_ecx)
{
    const unsigned osxsave = 1u << 27, avx = 1u << 28;
    if ((leaf1_ecx & osxsave) == 0 || (leaf1_ecx & avx) == 0)
        return 0;
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static void detect(void)
{
    unsigned a = 0, b = 0, c = 0, d = 0;
    found.amd = __get_cpuid(0, &a, &b, &c, &d) && b == signature_AMD_ebx &&
                c == signature_AMD_ecx && d == signature_AMD_edx;
    if (!__get_cpuid(1, &a, &b, &c, &d))
        return;
    found.family = (a >> 8 & 15) + (a >> 20 & 255);
    const unsigned saved = saved_registers(c);
    if ((saved & SAVES_YMM) != SAVES_YMM)
        return;
    found.fma = c >> 12 & 1;
    found.f16c = c >> 29 & 1;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return;
    found.avx2 = b >> 5 & 1;
    const unsigned f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31,
                   all = f | dq | bw | vl;
    found.avx512 = (saved & SAVES_ZMM) == SAVES_ZMM && (b & all) == all;
    const unsigned amx_bf16 = 1u << 22, amx_tile = 1u << 24, tiles = amx_bf16 | amx_tile;
    found.amx = (saved & SAVES_TILES) == SAVES_TILES && (d & tiles) == tiles;
#ifdef MMF_TILE_MODEL
    found.amx = true;
    found.amd = !found.amd; /* the orders of reading that other tests do not meet */
#endif
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d))
        found.avx512_bf16 = found.avx512 && (a >> 5 & 1);
}

/* Tiles are 8 KiB of state, which Linux gives to a process that asks. Refused: 0 for ever. */
static bool ask_for_tiles(void)
{
#ifdef MMF_TILE_MODEL
    return true;
#else
    const int request = 0x1023, tile_data = 18; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    return syscall(SYS_arch_prctl, request, tile_data) == 0;
#endif
}

#else

static void detect(void)
{
}

static bool ask_for_tiles(void)
{
    return false;
}

#endif

static void load(void)
{
    detect();
    const long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
    found.cache2 = bytes > 0 ? bytes : 512 << 10;
    snprintf(found.names, sizeof found.names, "%s%s%s%s%s%s", found.avx2 ? " avx2" : "",
             found.fma ? " fma" : "", found.f16c ? " f16c" : "", found.avx512 ? " avx512" : "",
             found.avx512_bf16 ? " avx512_bf16" : "", found.amx ? " amx_bf16" : "");
    memmove(found.names, found.names + (found.names[0] == ' '), strlen(found.names));
}

static const features *get(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    return &found;
}

bool mmf_cpu_has_avx2(void)
{
    const features *f = get();
    return f->avx2 && f->fma && f->f16c;
}

bool mmf_cpu_has_avx512(void)
{
    return mmf_cpu_has_avx2() && get()->avx512;
}

bool mmf_cpu_has_avx512_bf16(void)
{
    return mmf_cpu_has_avx512() && get()->avx512_bf16;
}

double mmf_cpu_avx512_gflops(void)
{
    return get()->amd ? 108 : 175;
}

double mmf_cpu_bf16_gflops(void)
{
    const features *f = get();
    return !f->amd ? 60 : f->family <= ZEN_4 ? 215 : 300;
}

double mmf_cpu_bytes_per_second(void)
{
    return get()->amd && get()->avx512 ? 19e9 : 12.5e9;
}

static bool has_tiles;

static void load_tiles(void)
{
    has_tiles = ask_for_tiles();
}

const char *mmf_cpu_lacks_amx(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (!get()->amx || !mmf_cpu_has_avx512())
        return "AMX for bfloat16 and AVX-512, which this CPU lacks";
    pthread_once(&once, load_tiles);
    return has_tiles ? NULL : "AMX, which the operating system does not let this process use";
}

int64_t mmf_cpu_cache2(void)
{
    return get()->cache2;
}

bool mmf_cpu_fetches_ahead(void)
{
    return get()->amd;
}

const char *mmf_cpu_features(void)
{
    return get()->names;
}
