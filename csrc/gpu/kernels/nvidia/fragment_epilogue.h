/* The epilogue in registers on sums as a warpgroup's matrix instructions leave them: a thread has
 * pairs of neighbouring columns in two rows of every eight columns. What it implements is what
 * common/epilogue_registers.h does; gpu/epilogue_form.c says when.
 * Path of a call: the last step of a tile of gemm_wgmma and gemm_wgmma_pingpong, from the sums to
 * global memory by way of swizzled lines in shared memory. C may be out: its elements under a tile
 * are read before the tile's columns are stored. */
#ifndef MMF_FRAGMENT_EPILOGUE_H
#define MMF_FRAGMENT_EPILOGUE_H

#include "gpu/kernels/common/activations.h"
#include "gpu/kernels/common/tile.h"
#include "gpu/kernels/nvidia/ring.h"

/* Two floats as a pair of 16-bit elements, and back. */
template <int Dtype> MMF_DEVICE unsigned pack_pair(mmf_float2 value)
{
    unsigned pair;
    if (Dtype == MMF_GEMM_FLOAT16)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(value.y), "f"(value.x));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(value.y), "f"(value.x));
    return pair;
}

template <int Dtype> MMF_DEVICE mmf_float2 unpack_pair(unsigned pair)
{
    typedef element<Dtype> form;
    return (mmf_float2){form::template load<float>((unsigned short)pair),
                        form::template load<float>((unsigned short)(pair >> 16))};
}

/* Four 8 x 8 matrices of 16-bit elements, a row of each to the address of one of the 32 lanes. */
MMF_DEVICE void store_matrices(unsigned address, const unsigned bits[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                 "r"(bits[0]), "r"(bits[1]), "r"(bits[2]), "r"(bits[3])
                 : "memory");
}

MMF_DEVICE void meet_warp()
{
    asm volatile("bar.warp.sync 0xffffffff;" ::: "memory");
}

/* The warpgroup, and no other. */
MMF_DEVICE void meet_group(int consumer)
{
    if (consumer)
        named_barrier<3, 128>();
    else
        named_barrier<2, 128>();
}

/* Plain: no gates, no bias per row and no C, which leaves registers for more columns. */
template <int Dtype, int Columns, bool Plain = false> struct fragment_epilogue {
    enum {
        CHUNK = 64,         /* columns that are finished at once: a line of shared memory */
        BLOCKS = CHUNK / 8, /* of eight columns */
        SUMS = Columns / 2,
        UP = SUMS / 2, /* gated: where the sums of the up columns begin */
    };
    const mmf_wgmma_args &args;
    const tile &t;
    mmf_float2 bias;        /* of two columns; -0: none, changes nothing */
    mmf_float2 row_bias[2]; /* of two rows, of gate and up */
    float alpha;
    int thread, first_row; /* of the tile */
    unsigned stores, biases;
    int consumer;

    __attribute__((device, always_inline)) int column() const /* in a block */
    {
        return thread % 4 * 2;
    }

    __attribute__((device, always_inline)) int row(int half) const
    {
        return first_row + thread / 32 * 16 + thread % 32 / 4 + 8 * half;
    }

    template <int Bias>
    __attribute__((device, always_inline)) mmf_float2 load_pair(const char *at) const
    {
        if (Bias == MMF_GEMM_FLOAT32)
            return *(const mmf_float2 *)at;
        return unpack_pair<Bias>(*(const unsigned *)at);
    }

    /* Before the main loop, which hides what the loads take. */
    template <int Bias> __attribute__((device, always_inline)) void load_bias()
    {
        typedef typename element<Bias>::type type;
        const mmf_gemm_args &gemm = args.gemm;
        if (!Plain && gemm.epilogue == MMF_EPILOGUE_REGISTERS_ROW_BIAS) {
            MMF_UNROLL
            for (int g = 0; g < 2; g++) {
                const int operand = MMF_GEMM_BIAS + (gemm.gated ? g : 0);
                const type *const at = (const type *)t.matrix(operand);
                const long long step = gemm.strides[operand].row;
                MMF_UNROLL
                for (int half = 0; half < 2; half++)
                    if (row(half) < t.rows)
                        row_bias[g][half] =
                            element<Bias>::template load<float>(at[(t.m0 + row(half)) * step]);
            }
            return;
        }
        const int up = !Plain && gemm.gated && 2 * thread >= Columns / 2;
        const int col = 2 * thread - up * Columns / 2;
        if (2 * thread < Columns && col < t.cols)
            bias = load_pair<Bias>(t.matrix(MMF_GEMM_BIAS + up) + (t.n0 + col) * sizeof(type));
    }

    __attribute__((device, always_inline)) void start()
    {
        alpha = (float)args.gemm.alpha;
        bias = -0.f;
        row_bias[0] = row_bias[1] = -0.f;
        if (args.gemm.dtype[MMF_GEMM_BIAS] == MMF_GEMM_FLOAT32)
            load_bias<MMF_GEMM_FLOAT32>();
        else if (args.gemm.dtype[MMF_GEMM_BIAS] != MMF_GEMM_ABSENT)
            load_bias<Dtype>();
    }

    /* z of the first chunk, where its sums were; Up: of the up columns. */
    template <int Up>
    __attribute__((device, always_inline)) void scale(float (&sum)[SUMS], int chunk) const
    {
        const int first = chunk * CHUNK + (Up ? Columns / 2 : 0) + column();
        float *const z = sum + Up * UP;
        if (!Plain && args.gemm.epilogue == MMF_EPILOGUE_REGISTERS_ROW_BIAS) {
            MMF_UNROLL
            for (int i = 0; i < 4 * BLOCKS; i++)
                z[i] = fused(z[i], alpha, row_bias[Up][i / 2 % 2]);
            return;
        }
        MMF_UNROLL
        for (int b = 0; b < BLOCKS; b++) {
            mmf_float2 pair;
            asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                         : "=f"(pair.x), "=f"(pair.y)
                         : "r"(biases + (first + 8 * b) * 4));
            MMF_UNROLL
            for (int i = 4 * b; i < 4 * b + 4; i++)
                z[i] = fused(z[i], alpha, i % 2 ? pair.y : pair.x);
        }
    }

    template <int Id> __attribute__((device, always_inline)) void activate(float (&sum)[SUMS]) const
    {
        MMF_UNROLL
        for (int i = 0; i < 4 * BLOCKS; i += 8) {
            mmf_float2 z[4], up[4];
            MMF_UNROLL
            for (int p = 0; p < 4; p++) {
                z[p] = (mmf_float2){sum[i + 2 * p], sum[i + 2 * p + 1]};
                up[p] = (mmf_float2){sum[UP + i + 2 * p], sum[UP + i + 2 * p + 1]};
            }
            activated<Id, 4>::run(z, up);
            MMF_UNROLL
            for (int p = 0; p < 4; p++) {
                sum[i + 2 * p] = z[p].x;
                sum[i + 2 * p + 1] = z[p].y;
            }
        }
    }

    __attribute__((device, always_inline)) void add_c(float (&sum)[SUMS], int chunk) const
    {
        const float beta = (float)args.gemm.beta;
        const long long pitch = args.gemm.strides[MMF_GEMM_C].row;
        const int first = chunk * CHUNK + column();
        MMF_UNROLL
        for (int half = 0; half < 2; half++) {
            if (row(half) >= t.rows)
                continue;
            const unsigned short *const line =
                (const unsigned short *)t.matrix(MMF_GEMM_C) + (t.m0 + row(half)) * pitch + t.n0;
            MMF_UNROLL
            for (int b = 0; b < BLOCKS; b++) {
                if (first + 8 * b >= t.cols)
                    continue;
                const mmf_float2 c = unpack_pair<Dtype>(*(const unsigned *)(line + first + 8 * b));
                float *const z = sum + 4 * b + 2 * half;
                z[0] = fused(c.x, beta, z[0]);
                z[1] = fused(c.y, beta, z[1]);
            }
        }
    }

    /* A warp's 16 rows of a chunk, by way of its own part of a buffer. */
    __attribute__((device, always_inline)) void store_chunk(const float (&sum)[SUMS], int chunk,
                                                            int batch) const
    {
        const unsigned buffer =
            stores + chunk % 2 * MMF_WGMMA_STORE_BYTES + thread / 32 * (16 * 128);
        const int lane = thread % 32, line = lane % 16;
        if (lane == 0 && chunk == 0)
            wait_for_stores<0>(); /* the last tile's newest store may be from either buffer */
        else if (lane == 0)
            wait_for_stores<1>();
        meet_warp();
        MMF_UNROLL
        for (int b = 0; b < BLOCKS; b += 2) {
            unsigned bits[4];
            MMF_UNROLL
            for (int i = 0; i < 4; i++)
                bits[i] =
                    pack_pair<Dtype>((mmf_float2){sum[4 * b + 2 * i], sum[4 * b + 2 * i + 1]});
            store_matrices(buffer + line * 128 + (((b + lane / 16) ^ (line & 7)) << 4), bits);
        }
        publish_to_copies();
        meet_warp();
        if (lane == 0)
            store_box(args.out, buffer, (int)t.n0 + chunk * CHUNK,
                      (int)t.m0 + first_row + thread / 32 * 16, batch);
    }

    template <int Id, bool HasC>
    __attribute__((device, always_inline)) void finish_as(float (&sum)[SUMS], int batch) const
    {
        MMF_ROLLED
        for (int chunk = 0; chunk * CHUNK < t.cols; chunk++) {
            scale<0>(sum, chunk);
            if (activation<Id>::gated)
                scale<1>(sum, chunk);
            if (HasC)
                add_c(sum, chunk);
            activate<Id>(sum);
            store_chunk(sum, chunk, batch);
            MMF_UNROLL
            for (int i = 4 * BLOCKS; i < SUMS; i++)
                sum[i - 4 * BLOCKS] = sum[i];
        }
    }

    /* The bias of start() for all threads of the warpgroup; not while one of them finishes. */
    __attribute__((device, always_inline)) void share_bias() const
    {
        if (2 * thread < Columns)
            asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(biases + thread * 8), "f"(bias.x),
                         "f"(bias.y)
                         : "memory");
    }

    __attribute__((device, always_inline)) void finish(float (&sum)[SUMS], int batch)
    {
        const mmf_gemm_args &gemm = args.gemm;
        meet_group(consumer); /* the bias is shared */
        if (!Plain && gemm.dtype[MMF_GEMM_C] != MMF_GEMM_ABSENT)
            return finish_as<ACT_NONE, true>(sum, batch);
        switch (gemm.activation) {
#define MMF_HOT(id)                                                                                \
    case ACT_##id:                                                                                 \
        if (!Plain || !activation<ACT_##id>::gated)                                                \
            finish_as<ACT_##id, false>(sum, batch);                                                \
        break;
#include "problem/activations.def"
        }
    }
};

#endif
