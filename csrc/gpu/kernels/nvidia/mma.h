/* Matrix instructions of sm_80 and later: sums of 16 x 8, 32 bytes of k at a time (float64: 64),
 * and their fragments from a stage. Path of a call: the main loop of gemm_mma.hip. Which lane has
 * which element: the PTX ISA, mma.m16n8k16, m16n8k8 (tf32), m8n8k4 and m16n8k8 (f64); the sums
 * always lie as four a lane, columns 2 (lane % 4) and the next of rows lane / 4 and lane / 4 + 8.
 */
#ifndef MMF_NVIDIA_MMA_H
#define MMF_NVIDIA_MMA_H

#include "gpu/kernels/nvidia/cluster.h"
#include "gpu/kernels/nvidia/stage_forms.h"

/* A fragment of A has 16 lines, one of B two times 8. Words: 32 bits, of float64 64. */
template <int Dtype> struct matrices;

template <> struct matrices<MMF_GEMM_FLOAT16> {
    typedef unsigned word;
    enum { A_WORDS = 4, B_WORDS = 2, K = 16, IN_LANES = 0 };
    static __attribute__((device, always_inline)) void add_to(float (&sum)[4], const word *a,
                                                              const word *b)
    {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
    static __attribute__((device, always_inline)) word rounded(word bits)
    {
        return bits;
    }
};

template <> struct matrices<MMF_GEMM_BFLOAT16> : matrices<MMF_GEMM_FLOAT16> {
    static __attribute__((device, always_inline)) void add_to(float (&sum)[4], const word *a,
                                                              const word *b)
    {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
};

/* float32 rounded to 11 bits. */
template <> struct matrices<MMF_GEMM_FLOAT32> {
    typedef unsigned word;
    enum { A_WORDS = 4, B_WORDS = 2, K = 8, IN_LANES = 1 };
    static __attribute__((device, always_inline)) void add_to(float (&sum)[4], const word *a,
                                                              const word *b)
    {
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
    static __attribute__((device, always_inline)) word rounded(word bits)
    {
        unsigned tf32;
        asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(tf32) : "f"(float_of(bits)));
        return tf32;
    }
};

template <> struct matrices<MMF_GEMM_FLOAT64> {
    typedef double word;
    enum { K = 8, A_WORDS = 4, B_WORDS = 2, IN_LANES = 1 };
    static __attribute__((device, always_inline)) void add_to(double (&sum)[4], const word *a,
                                                              const word *b)
    {
#if __CUDA_ARCH__ >= 900
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+d"(sum[0]), "+d"(sum[1]), "+d"(sum[2]), "+d"(sum[3])
                     : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
#else
        MMF_UNROLL
        for (int i = 0; i < A_WORDS; i++)
            asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, "
                         "{%0, %1};"
                         : "+d"(sum[i % 2 * 2]), "+d"(sum[i % 2 * 2 + 1])
                         : "d"(a[i]), "d"(b[i / 2]));
#endif
    }
    static __attribute__((device, always_inline)) word rounded(word value)
    {
        return value;
    }
};

/* Four 8 x 8 matrices of 16 bits (8 x 4 of 32), a row of each at the address of one of 32 lanes. */
template <bool Transposed> MMF_DEVICE void load_matrices(unsigned address, unsigned *word)
{
    if (Transposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                     : "r"(address)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                     : "r"(address)
                     : "memory");
}

MMF_DEVICE void load_word(unsigned address, unsigned &word)
{
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
}

MMF_DEVICE void load_word(unsigned address, double &word)
{
    asm volatile("ld.shared.f64 %0, [%1];" : "=d"(word) : "r"(address) : "memory");
}

/* Fragments from Lines lines of a stage, whose neighbours lie along k or along the lines. */
template <int Dtype, int Lines, bool AlongK> struct mma_reader {
    typedef matrices<Dtype> form;
    typedef typename form::word word;
    enum {
        SIZE = sizeof(typename element<Dtype>::type),
        BY_MATRIX = SIZE == 2 || (SIZE == 4 && AlongK),
        CHUNK = 16 / SIZE, /* k */
    };

    static __attribute__((device, always_inline)) unsigned at(unsigned stage, int line, int k)
    {
        return stage + slot<SIZE, Lines, AlongK>(line, k);
    }

    /* Four matrices: `first` says whether the second one is the next eight lines, not the next k.
     */
    static __attribute__((device, always_inline)) void
    read_matrices(unsigned stage, int line, int k, int lane, bool next_lines, unsigned *to)
    {
        const int low = lane >> 3 & 1, high = lane >> 4, lines = next_lines ? low : high,
                  chunks = next_lines ? high : low;
        if (AlongK)
            load_matrices<false>(at(stage, line + lines * 8 + (lane & 7), k + chunks * CHUNK), to);
        else
            load_matrices<true>(at(stage, line + lines * 8, k + chunks * 8 + (lane & 7)), to);
    }

    /* 16 lines of A. */
    static __attribute__((device, always_inline)) void read_a(unsigned stage, int line, int k,
                                                              int lane, word *to)
    {
        read_by<BY_MATRIX>::a(stage, line, k, lane, to);
        MMF_UNROLL
        for (int w = 0; w < form::A_WORDS; w++)
            to[w] = form::rounded(to[w]);
    }

    /* Two times 8 lines of B. */
    static __attribute__((device, always_inline)) void read_b(unsigned stage, int line, int k,
                                                              int lane, word *to)
    {
        read_by<BY_MATRIX>::b(stage, line, k, lane, to);
        MMF_UNROLL
        for (int w = 0; w < 2 * form::B_WORDS; w++)
            to[w] = form::rounded(to[w]);
    }

    template <bool ByMatrix, class = void> struct read_by {
        static __attribute__((device, always_inline)) void a(unsigned stage, int line, int k,
                                                             int lane, unsigned *to)
        {
            read_matrices(stage, line, k, lane, true, to);
        }
        static __attribute__((device, always_inline)) void b(unsigned stage, int line, int k,
                                                             int lane, unsigned *to)
        {
            read_matrices(stage, line, k, lane, false, to);
        }
    };

    template <class Unused> struct read_by<false, Unused> {
        static __attribute__((device, always_inline)) void a(unsigned stage, int line, int k,
                                                             int lane, word *to)
        {
            MMF_UNROLL
            for (int w = 0; w < form::A_WORDS; w++)
                load_word(at(stage, line + w % 2 * 8 + lane / 4, k + w / 2 * 4 + lane % 4), to[w]);
        }
        static __attribute__((device, always_inline)) void b(unsigned stage, int line, int k,
                                                             int lane, word *to)
        {
            MMF_UNROLL
            for (int w = 0; w < 2 * form::B_WORDS; w++)
                load_word(at(stage, line + w / form::B_WORDS * 8 + lane / 4,
                             k + w % form::B_WORDS * 4 + lane % 4),
                          to[w]);
        }
    };
};

/* Fragments from `line` of a stage on, `below` lines further, a multiple of 16. */
template <int Dtype, int Lines, bool AlongK> struct fragments {
    typedef mma_reader<Dtype, Lines, AlongK> reader;
    typedef typename reader::word word;
    unsigned stage;
    int line, lane, own_lane;

    __attribute__((device, always_inline)) void find(int line_, int lane_)
    {
        line = line_;
        own_lane = lane_;
    }
    /* Addresses are computed at each stage: kept, they would need too many registers. */
    __attribute__((device, always_inline)) void start(unsigned stage_)
    {
        stage = stage_;
        lane = own_lane;
        asm volatile("" : "+r"(lane));
    }
    __attribute__((device, always_inline)) void read_a(int below, int k, word *to) const
    {
        reader::read_a(stage, line + below, k, lane, to);
    }
    __attribute__((device, always_inline)) void read_b(int below, int k, word *to) const
    {
        reader::read_b(stage, line + below, k, lane, to);
    }
};

/* Of float64: slot() as few addresses, to which that of a stage is added, and what is known before.
 */
template <int Lines, bool AlongK> struct fragments<MMF_GEMM_FLOAT64, Lines, AlongK> {
    typedef matrices<MMF_GEMM_FLOAT64> form;
    enum { PLACES = 2 };
    unsigned at[PLACES]; /* of four k each, which change places after 8 k; else of 8 lines each */

    __attribute__((device, always_inline)) void find(unsigned memory, int line, int lane)
    {
        const unsigned down = (unsigned)lane / 4, k = (unsigned)lane % 4;
        const unsigned first =
            AlongK ? (line + down) * MMF_MMA_LINE + (down & 3) * 32 + k * 8
                   : k * Lines * 8 + line * 8 + ((down / 2 ^ k << 1) << 4) + down % 2 * 8;
        MMF_UNROLL
        for (unsigned i = 0; i < PLACES; i++)
            at[i] = memory + (first ^ i * (AlongK ? 32 : 64));
    }
    /* What follows from the places is not kept: sums need the registers. */
    __attribute__((device, always_inline)) void forget()
    {
        asm volatile("" : "+r"(at[0]), "+r"(at[1]));
    }
    __attribute__((device, always_inline)) void read(unsigned stage, int below, int eight, int k,
                                                     double &word) const
    {
        load_word(stage + (AlongK
                               ? (at[k / 4 % 2] ^ (k & 8) * 8) + (below + eight * 8) * MMF_MMA_LINE
                               : at[eight] + below * 8 + k * Lines * 8),
                  word);
    }
    __attribute__((device, always_inline)) void read_a(unsigned stage, int below, int k,
                                                       double *to) const
    {
        MMF_UNROLL
        for (int w = 0; w < form::A_WORDS; w++)
            read(stage, below, w % 2, k + w / 2 * 4, to[w]);
    }
    __attribute__((device, always_inline)) void read_b(unsigned stage, int below, int k,
                                                       double *to) const
    {
        MMF_UNROLL
        for (int w = 0; w < 2 * form::B_WORDS; w++)
            read(stage, below, w / form::B_WORDS, k + w % form::B_WORDS * 4, to[w]);
    }
};

#endif
