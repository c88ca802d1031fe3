/* How this thread's floating-point unit rounds and what it does with subnormals. A program may
 * change that for a thread (torch.set_flush_denormal); results must not depend on it, nor on which
 * thread took a task. Path of a call: around the tasks in cpu/pool.c and the reference, and around
 * conversions of the call's numbers. */
#ifndef MMF_FLOAT_MODE_H
#define MMF_FLOAT_MODE_H

#include <stdint.h>

#if defined(__x86_64__)

#include <xmmintrin.h>

/* All exceptions masked, to nearest, subnormals kept; the low six bits are sticky flags. */
#define MMF_FLOAT_MODE 0x1f80u
#define MMF_FLOAT_FLAGS 0x3fu

static inline uint64_t mmf_float_mode_get(void)
{
    return _mm_getcsr();
}

static inline void mmf_float_mode_set(uint64_t mode)
{
    _mm_setcsr((unsigned)mode);
}

#elif defined(__aarch64__)

#define MMF_FLOAT_MODE 0u
#define MMF_FLOAT_FLAGS 0u

static inline uint64_t mmf_float_mode_get(void)
{
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
}

static inline void mmf_float_mode_set(uint64_t mode)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(mode) : "memory");
}

#endif

/* Take IEEE 754's default mode; returns the one to leave with. Reading costs a nanosecond, writing
 * ten times that. */
static inline uint64_t mmf_float_mode_enter(void)
{
    uint64_t mode = mmf_float_mode_get();
    if ((mode & ~(uint64_t)MMF_FLOAT_FLAGS) != MMF_FLOAT_MODE)
        mmf_float_mode_set(MMF_FLOAT_MODE);
    return mode;
}

static inline void mmf_float_mode_leave(uint64_t mode)
{
    if ((mode & ~(uint64_t)MMF_FLOAT_FLAGS) != MMF_FLOAT_MODE)
        mmf_float_mode_set(mode);
}

#endif
