/* Shared by the machine's files: decoded operations, waves, workgroups, and the helpers with
 * which an instruction reads its sources and writes its result.
 *
 * A register is an array of 64 lanes; an instruction is a loop over lanes that the compiler turns
 * into vector code. Lanes that EXEC disables are computed too and dropped when the result is
 * merged, so an instruction must be harmless for any lane values. */
#ifndef HIPSIM_INTERNAL_H
#define HIPSIM_INTERNAL_H

#include "machine.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define LANES 64
#define VGPRS 512 /* v0..v255, then a0..a255 */
#define AGPR0 256
#define MAX_WAVES 32 /* of a workgroup: 1024 work items of wave32 */

/* Scalar registers by our own number, the same for every part. */
enum {
    SREG_VCC = 106,
    SREG_TTMP0 = 108,
    SREG_M0 = 124,
    SREG_NULL = 125,
    SREG_EXEC = 126,
    SREGS = 128,
};

enum operand_kind { OPERAND_NONE, OPERAND_VGPR, OPERAND_SREG, OPERAND_CONSTANT, OPERAND_BUFFER };
enum operand_half { HALF_WHOLE, HALF_LOW, HALF_HIGH };

struct operand {
    uint8_t kind;
    uint8_t registers; /* 32-bit registers that the text names */
    uint8_t half;      /* v0.l, v0.h, or op_sel of a 16-bit operand */
    bool negate, absolute;
    bool scc; /* src_scc, read as 0 or 1 */
    char type;
    uint16_t first;
    uint64_t value;        /* a constant */
    const uint32_t *splat; /* a constant, 64 lanes, twice for 64 bits; OPERAND_BUFFER: the lanes */
};

struct wave;
struct op;
typedef void (*op_function)(struct wave *w, const struct op *o);

enum op_class {
    CLASS_SALU,
    CLASS_SMEM,
    CLASS_VALU,
    CLASS_LDS,
    CLASS_MEMORY,
    CLASS_MATRIX,
    CLASS_BRANCH,
    CLASS_WAIT,
    CLASS_BARRIER,
    CLASS_OTHER, /* s_nop, s_setprio, s_endpgm */
    CLASSES
};

struct opcode { /* a row of opcodes.def */
    const char *name;
    const char *signature; /* two characters per operand of the text: role, type; see decode.c */
    enum op_class class;
    op_function run;
    int parameter;
};

/* opcode.parameter of vector arithmetic */
enum {
    KEEP_HIGH = 1,  /* a 16-bit result leaves the upper half alone on gfx9 too */
    OWN_OP_SEL = 2, /* the function reads op_sel and op_sel_hi itself */
};

struct register_range {
    uint16_t first; /* scalar registers follow the vector ones: VGPRS + number */
    uint8_t count;
    bool write;
};
#define MAX_RANGES 12
#define SCC_REGISTER (VGPRS + SREGS)
#define TRACKED (VGPRS + SREGS + 1)

struct dpp {
    int8_t from[LANES]; /* the lane that each lane reads; -1: none */
    uint8_t row_mask, bank_mask;
    bool bound_control, fetch_inactive;
};

enum { SDWA_DWORD = 6 };
struct sdwa {
    uint8_t select[2], destination; /* BYTE_0..3, WORD_0..1, DWORD */
    bool sign_extend[2];
    uint8_t unused; /* PAD, SEXT, PRESERVE */
};

struct op {
    op_function run;
    struct operand dst[2], src[5];
    uint8_t class, destinations, sources;
    uint8_t clamp, omod; /* omod: 0, 1 (*2), 2 (*4), 3 (/2) */
    uint8_t op_sel, op_sel_hi, neg_lo, neg_hi;
    int32_t offset, offset1;
    int64_t parameter;
    uint32_t flags;
    const struct opcode *row;
    uint32_t pc, bytes; /* pc: from the first byte of the code */
    int32_t target;     /* of a branch, an index */
    op_function inner;  /* what a DPP or SDWA wrapper runs */
    struct op *other;   /* second half of a VOPD */
    struct dpp *dpp;
    struct sdwa *sdwa;
    struct register_range ranges[MAX_RANGES];
    uint8_t range_count;
    uint8_t counters; /* of enum counter, as bits: those that this instruction increments */
    uint16_t traits;  /* of checks.h */
    char *text;
};

enum { /* op.flags */
       FLAG_OFFEN = 1 << 0,
       FLAG_LDS = 1 << 1, /* global memory straight to LDS */
       FLAG_STORE = 1 << 2,
       FLAG_ATOMIC = 1 << 3,
       FLAG_FLAT = 1 << 4,
};

enum counter { COUNTER_VM, COUNTER_LGKM, COUNTER_EXP, COUNTER_VS, COUNTER_KM, COUNTERS };

struct hipsim_program {
    const struct hipsim_arch *arch;
    uint64_t key[2];
    size_t references;
    struct op *ops;
    size_t count, capacity;
    size_t entry;             /* index */
    struct splat *splats[64]; /* constants by hash */
    struct block *arena;
    struct hipsim_program *next;
};

struct thread;
struct group;
struct checks;

struct wave {
    _Alignas(64) uint32_t v[VGPRS][LANES];
    _Alignas(64) uint32_t lane_mask[LANES]; /* all ones where EXEC is set */
    _Alignas(64) uint32_t temporary[4][LANES];
    uint32_t s[SREGS];
    uint64_t exec;
    bool full; /* EXEC has every lane */
    bool scc;
    bool done, at_barrier;
    int lanes;                  /* 64 or 32 */
    uint64_t all;               /* EXEC with every lane */
    const struct op *op, *next; /* the instruction that executes, and the one after it */
    int index;
    struct group *group;
    struct thread *thread;
    uint64_t executed, initial_exec;
    unsigned scalars_set;       /* the first SGPR that the hardware did not write */
    struct wave_checks *checks; /* NULL: unchecked */
};

struct group {
    uint8_t *lds;
    uint32_t lds_bytes;
    uint32_t id[3];
    int waves;
    struct wave *wave;
    struct thread *thread;
    struct launch *launch;
    uint32_t epoch;            /* barriers passed */
    struct lds_shadow *shadow; /* NULL: unchecked */
};

struct thread {
    struct launch *launch;
    struct group group;
    struct hipsim_counters counters;
    uint64_t classes[CLASSES];
    struct hipsim_allocation cache[8];
    unsigned cache_next;
    uint64_t random;
    bool yield; /* leave the running wave now */
};

struct launch {
    struct hipsim_kernel *kernel;
    const struct hipsim_arch *arch;
    const struct hipsim_launch *request;
    const struct hipsim_memory *memory;
    const struct hipsim_sink *sink;
    struct hipsim_program *program;
    uint32_t checks;
    bool truncate_xf32;
    uint32_t lds_bytes;
    uint32_t rsrc1, rsrc2, rsrc3;
    uint16_t properties, preload;
    int vgprs, accumulators; /* allocated to a wave */
    int lanes, waves_per_group;
    uint32_t threads; /* of a workgroup */
    uint64_t groups;
    _Atomic uint64_t next_group;
    _Atomic bool stop;
    pthread_mutex_t report; /* of what follows */
    uint64_t reported;
    uint32_t *seen; /* a bit per kind of an instruction that was reported */
    bool faulted, out_of_bounds;
    char sentence[512];
};

/* report.c */
__attribute__((format(printf, 4, 5))) void report(struct wave *w, enum hipsim_violation_kind kind,
                                                  int lane, const char *format, ...);
/* A state in which a real GPU hangs or faults; ends the launch. */
__attribute__((format(printf, 2, 3))) void fault(struct wave *w, const char *format, ...);

/* exec.c */
void set_exec(struct wave *w, uint64_t exec);
void write_sreg(struct wave *w, unsigned reg, uint32_t value);

static inline void put_s32(struct wave *w, unsigned reg, uint32_t value)
{
    if (reg >= SREG_NULL)
        write_sreg(w, reg, value);
    else
        w->s[reg] = value;
}

static inline void put_s64(struct wave *w, unsigned reg, uint64_t value)
{
    if (reg == SREG_EXEC) {
        set_exec(w, value);
    } else if (reg != SREG_NULL) {
        w->s[reg] = (uint32_t)value;
        w->s[reg + 1] = (uint32_t)(value >> 32);
    }
}

static inline uint64_t get_s64(const struct wave *w, unsigned reg)
{
    return w->s[reg] | (uint64_t)w->s[reg + 1] << 32;
}

/* A lane mask, of 32 bits in wave32. */
static inline uint64_t get_mask(const struct wave *w, unsigned reg)
{
    return w->lanes == 64 ? get_s64(w, reg) : w->s[reg];
}

static inline void put_mask(struct wave *w, unsigned reg, uint64_t mask)
{
    if (w->lanes == 64)
        put_s64(w, reg, mask);
    else
        put_s32(w, reg, (uint32_t)mask);
}

#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

/* Blocks of 32 lanes, the length a constant: wave32 and wave64 both get vector code. (The indices
 * are 64 bits wide because the build lets an int wrap, and such a loop has no known length.) */
#define FOR_LANES(i)                                                                               \
    for (ptrdiff_t i##_base = 0; i##_base < w->lanes; i##_base += 32)                              \
    INDEPENDENT for (ptrdiff_t i##_k = 0; i##_k < 32;                                              \
                     i##_k++) for (ptrdiff_t i = i##_base + i##_k, i##_once = 1; i##_once;         \
                                   i##_once = 0)

/* `mask` gets a bit per lane for which the condition holds, inactive lanes included. */
#define MASK_LANES(mask, i, condition)                                                             \
    uint64_t mask = 0;                                                                             \
    for (ptrdiff_t i##_base = 0; i##_base < w->lanes; i##_base += 32) {                            \
        uint32_t i##_half = 0;                                                                     \
        for (ptrdiff_t i##_k = 0; i##_k < 32; i##_k++) {                                           \
            ptrdiff_t i = i##_base + i##_k;                                                        \
            i##_half |= (condition) ? UINT32_C(1) << i##_k : 0;                                    \
        }                                                                                          \
        mask |= (uint64_t)i##_half << i##_base;                                                    \
    }

/* The way back: all ones in the lanes of the mask, 0 in the others. */
static inline void spread_mask(uint64_t mask, uint32_t lanes[LANES])
{
    for (int half = 0; half < 2; half++) {
        uint32_t bits = (uint32_t)(mask >> 32 * half), *to = lanes + 32 * half;
        for (int i = 0; i < 32; i++)
            to[i] = bits & UINT32_C(1) << i ? UINT32_MAX : 0;
    }
}

#define FOR_ACTIVE(i)                                                                              \
    for (uint64_t i##_left = w->exec; i##_left; i##_left &= i##_left - 1)                          \
        for (int i = __builtin_ctzll(i##_left), i##_once = 1; i##_once; i##_once = 0)

static inline uint32_t scalar32(const struct wave *w, const struct operand *s)
{
    if (s->kind == OPERAND_CONSTANT)
        return (uint32_t)s->value;
    return s->scc ? w->scc : w->s[s->first];
}

static inline uint64_t scalar64(const struct wave *w, const struct operand *s)
{
    if (s->kind == OPERAND_CONSTANT)
        return s->value;
    return s->scc ? w->scc : get_s64(w, s->first);
}

static inline float as_f32(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static inline uint32_t as_u32(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}

static inline double as_f64(uint64_t bits)
{
    double f;
    memcpy(&f, &bits, 8);
    return f;
}

static inline uint64_t as_u64(double f)
{
    uint64_t bits;
    memcpy(&bits, &f, 8);
    return bits;
}

#endif
