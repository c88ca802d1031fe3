/* A shared object to preload: to code loaded after it, this x86-64 CPU has AVX2, FMA, F16C and
 * nothing newer. Linux raises SIGSEGV at every CPUID instruction (arch_prctl ARCH_CPUID, where the
 * CPU can: flag cpuid_fault in /proc/cpuinfo, on many Intel CPUs); the handler answers without the
 * newer features. A program's own handler of SIGSEGV stays behind it. For the tests: not a part of
 * the package.
 *
 *     cc -shared -fPIC -O2 -o without_avx512.so tools/without_avx512.c -ldl
 *     LD_PRELOAD=$PWD/without_avx512.so python -m pytest ...
 *
 * torch.compile also reads /proc/cpuinfo, which must say the same:
 *
 *     sed -E 's/ (avx512|avx_vnn|amx)\w+//g' /proc/cpuinfo >cpuinfo
 *     unshare -m sh -c 'mount --bind cpuinfo /proc/cpuinfo && LD_PRELOAD=... python -m pytest ...' */
#define _GNU_SOURCE
#include <cpuid.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { ARCH_SET_CPUID = 0x1012 };

typedef int set_action(int, const struct sigaction *, struct sigaction *);

static struct sigaction theirs; /* of SIGSEGV */
static set_action *real_sigaction;

static long trap(int off)
{
    return syscall(SYS_arch_prctl, ARCH_SET_CPUID, !off ? 1 : 0);
}

/* Bits of Intel's manual, volume 2, CPUID. */
static void answer(unsigned leaf, unsigned sub, unsigned r[4])
{
    trap(0);
    __cpuid_count(leaf, sub, r[0], r[1], r[2], r[3]);
    trap(1);
    if (leaf == 7 && sub == 0) {
        r[1] &= ~(1u << 16 | 1u << 17 | 1u << 21 | 1u << 26 | 1u << 27 | 1u << 28 | 1u << 30 |
                  1u << 31); /* AVX512 F DQ IFMA PF ER CD BW VL */
        r[2] &= ~(1u << 1 | 1u << 6 | 1u << 8 | 1u << 9 | 1u << 10 | 1u << 11 | 1u << 12 |
                  1u << 14); /* AVX512 VBMI VBMI2, GFNI, VAES, VPCLMULQDQ, AVX512 VNNI
                              * BITALG VPOPCNTDQ */
        r[3] &= ~(1u << 2 | 1u << 3 | 1u << 8 | 1u << 22 | 1u << 23 | 1u << 24 |
                  1u << 25); /* AVX512 4VNNIW 4FMAPS VP2INTERSECT FP16, AMX BF16 TILE INT8 */
    } else if (leaf == 7) {
        memset(r, 0, 4 * sizeof *r); /* AVX-VNNI, AVX512_BF16, AMX-FP16, AVX10, ... */
    } else if (leaf == 0xd && sub == 0) {
        r[0] &= 7; /* of the states: x87, SSE, AVX */
        r[1] = r[2] = 0x340;
    } else if (leaf == 0x1d || leaf == 0x1e || leaf == 0x24) {
        memset(r, 0, 4 * sizeof *r); /* tiles, AVX10 */
    }
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
    greg_t *const regs = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *const at = (const unsigned char *)regs[REG_RIP];
    /* A general protection fault has no address; then the instruction can be read. */
    if (info->si_code == SI_KERNEL && !info->si_addr && at[0] == 0x0f && at[1] == 0xa2) {
        unsigned r[4];
        answer((unsigned)regs[REG_RAX], (unsigned)regs[REG_RCX], r);
        regs[REG_RAX] = r[0];
        regs[REG_RBX] = r[1];
        regs[REG_RCX] = r[2];
        regs[REG_RDX] = r[3];
        regs[REG_RIP] += 2;
        return;
    }
    if (theirs.sa_flags & SA_SIGINFO) {
        theirs.sa_sigaction(signal, info, context);
    } else if (theirs.sa_handler != SIG_DFL && theirs.sa_handler != SIG_IGN) {
        theirs.sa_handler(signal);
    } else {
        struct sigaction none = {.sa_handler = SIG_DFL};
        real_sigaction(SIGSEGV, &none, NULL); /* the instruction faults again */
    }
}

static set_action *find_real(void)
{
    if (!real_sigaction)
        real_sigaction = (set_action *)dlsym(RTLD_NEXT, "sigaction");
    return real_sigaction;
}

int sigaction(int signal, const struct sigaction *action, struct sigaction *before)
{
    if (signal != SIGSEGV)
        return find_real()(signal, action, before);
    if (before)
        *before = theirs;
    if (action)
        theirs = *action;
    return 0;
}

void (*signal(int number, void (*handler)(int)))(int)
{
    struct sigaction before, action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    return sigaction(number, &action, &before) ? SIG_ERR : before.sa_handler;
}

__attribute__((constructor)) static void begin(void)
{
    struct sigaction ours = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    find_real()(SIGSEGV, &ours, NULL);
    if (trap(1)) {
        perror("without_avx512: arch_prctl");
        abort();
    }
}
