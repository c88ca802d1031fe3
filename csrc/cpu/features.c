/* CPUID and XGETBV, asked once. Path of a call: supports() of the blocked rows; info() prints the
 * names. */
#include "cpu/features.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "cpu/rows.h"

typedef struct features {
    bool avx2, fma, f16c;
    char names[64];
} features;

static features found;

#if defined(__x86_64__)

#include <cpuid.h>

/* The operating system saves xmm and ymm (XCR0 bits 1 and 2): a CPU bit alone does not promise
 * that. */
static bool saves_ymm(unsigned leaf1_ecx)
{
    const unsigned osxsave = 1u << 27, avx = 1u << 28;
    if ((leaf1_ecx & osxsave) == 0 || (leaf1_ecx & avx) == 0)
        return false;
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & 6) == 6;
}

static void detect(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !saves_ymm(c))
        return;
    found.fma = c >> 12 & 1;
    found.f16c = c >> 29 & 1;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d))
        found.avx2 = b >> 5 & 1;
}

#else

static void detect(void)
{
}

#endif

static void load(void)
{
    detect();
    snprintf(found.names, sizeof found.names, "%s%s%s", found.avx2 ? " avx2" : "",
             found.fma ? " fma" : "", found.f16c ? " f16c" : "");
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

const char *mmf_cpu_features(void)
{
    return get()->names;
}
