/* Which of a kernel's two epilogues a problem takes: that in registers (kernels/common/
 * epilogue_registers.h; kernels/nvidia/fragment_epilogue.h), if its conditions hold, else the
 * general one. Path of a call: asked by gemm.c and gemm_wgmma.c, and by the models of times. */
#include "gpu/epilogue_form.h"

#include "gpu/gemm.h"

/* RUN: bytes that a thread stores at once. Rows of a tile (at most 512), MAX_PITCH bytes apart, lie
 * within 2^31 bytes. */
enum { RUN = 16, MAX_PITCH = 1 << 22 };

static const bool hot[MMF_ACT_COUNT] = {
#define MMF_HOT(id) [MMF_ACT_##id] = true,
#include "problem/activations.def"
};

/* What the epilogue in registers implements; form_of() has more for one family. */
static const uint32_t features = MMF_HAS(MMF_A) | MMF_HAS(MMF_B) | MMF_HAS(MMF_B_UP) |
                                 MMF_HAS(MMF_BIAS) | MMF_HAS(MMF_BIAS_UP) | MMF_HAS(MMF_C) |
                                 MMF_HAS(MMF_C_UP) | MMF_HAS(MMF_OUT) | MMF_HAS(MMF_FEATURE_GATED) |
                                 MMF_HAS(MMF_FEATURE_PACKED);

static bool present(const mmf_problem *p, int operand)
{
    return p->dtype[operand] != MMF_ABSENT;
}

/* Rows of whole runs: contiguous, each at a multiple of 16 bytes, 0 or more bytes apart. */
static bool in_runs(const mmf_problem *p, int operand)
{
    const mmf_strides *s = &p->strides[operand];
    int64_t size = mmf_dtypes[p->dtype[operand]].size;
    return p->dtype[operand] == p->dtype[MMF_A] && s->col == 1 && mmf_gpu_aligned(p, operand) &&
           (p->m == 1 || (s->row >= 0 && s->row <= MAX_PITCH / size && s->row * size % RUN == 0));
}

/* Is a bias constant along the rows (then in whole runs) or along the columns? by_row: which. */
static bool takes_bias(const mmf_problem *p, int operand, bool *by_row)
{
    const mmf_strides *s = &p->strides[operand];
    int64_t size = mmf_dtypes[p->dtype[operand]].size;
    if (p->dtype[operand] != p->dtype[MMF_A] && p->dtype[operand] != MMF_FLOAT32)
        return false;
    *by_row = s->col == 0;
    if (*by_row)
        return p->m == 1 || (s->row >= 0 && s->row <= MAX_PITCH / size);
    return s->col == 1 && (p->m == 1 || s->row == 0) && mmf_gpu_aligned(p, operand);
}

/* auxiliary: with multiply, preactivation, and C before an activation. */
static int form_of(const mmf_problem *p, bool auxiliary)
{
    const uint32_t more =
        auxiliary ? MMF_HAS(MMF_MULTIPLY) | MMF_HAS(MMF_PREACTIVATION) : (uint32_t)0;
    bool by_row = false, up_by_row = false;
    mmf_dtype dtype = p->dtype[MMF_A];
    if (dtype == MMF_FLOAT64 || !hot[p->activation] || p->features & ~(features | more))
        return MMF_EPILOGUE_GENERAL;
    if (p->n * mmf_dtypes[dtype].size % RUN || !in_runs(p, MMF_OUT))
        return MMF_EPILOGUE_GENERAL;
    if (present(p, MMF_C) && ((p->activation != MMF_ACT_NONE && !auxiliary) || !in_runs(p, MMF_C)))
        return MMF_EPILOGUE_GENERAL;
    if ((present(p, MMF_MULTIPLY) && !in_runs(p, MMF_MULTIPLY)) ||
        (present(p, MMF_PREACTIVATION) && !in_runs(p, MMF_PREACTIVATION)))
        return MMF_EPILOGUE_GENERAL;
    if (present(p, MMF_BIAS) && !takes_bias(p, MMF_BIAS, &by_row))
        return MMF_EPILOGUE_GENERAL;
    if (present(p, MMF_BIAS_UP) &&
        (!takes_bias(p, MMF_BIAS_UP, &up_by_row) || up_by_row != by_row ||
         p->dtype[MMF_BIAS_UP] != p->dtype[MMF_BIAS]))
        return MMF_EPILOGUE_GENERAL;
    return by_row ? MMF_EPILOGUE_REGISTERS_ROW_BIAS : MMF_EPILOGUE_REGISTERS;
}

int mmf_gpu_epilogue_form(const mmf_problem *p, bool general)
{
    return general ? MMF_EPILOGUE_GENERAL : form_of(p, false);
}

int mmf_gpu_auxiliary_form(const mmf_problem *p, bool general)
{
    return general ? MMF_EPILOGUE_GENERAL : form_of(p, true);
}
