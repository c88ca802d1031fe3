/* The epilogue in registers on sums as a warpgroup's matrix instructions leave them: a thread has
 * pairs of neighbouring columns in two rows of every eight columns. What it implements is what
 * common/epilogue_registers.h does; of AUXILIARY multiply, preactivation and C before an
 * activation, too. gpu/epilogue_form.c says when. Path of a call: the last step of a tile of
 * gemm_wgmma and its ping-pong kernels, from the sums to global memory by way of lines in shared
 * memory, swizzled where they are of 128 bytes. C may be out: its elements under a tile are read
 * before the tile's columns are stored. */
#ifndef MMF_FRAGMENT_EPILOGUE_H
#define MMF_FRAGMENT_EPILOGUE_H

#include "gpu/kernels/common/activations.h"
#include "gpu/kernels/common/tile.h"
#include "gpu/kernels/nvidia/fragment_pairs.h"
#include "gpu/kernels/nvidia/ring.h"

/* The code that an epilogue has. Two halves of a tile, 64 rows each, leave no registers for gates,
 * nor for a bias per row during the products. PLAIN: a bias per column and an activation, whose
 * tiles take up to 6 % longer with the code of C among theirs; AUXILIARY: all but gates. */
enum fragment_code { EVERYTHING, PLAIN, AUXILIARY };

template <int Dtype, int Columns, fragment_code Code = EVERYTHING> struct fragment_epilogue {
    enum {
        FULL = Code == EVERYTHING,
        HALVES = FULL ? 1 : 2,
        CHUNK = MMF_WGMMA_STORED_COLUMNS(Columns),  /* of a line of shared memory, and of a store */
        SWIZZLED = Columns % 64 == 0,               /* lines */
        ONE_BUFFER = !SWIZZLED && CHUNK == Columns, /* for both consumers */
        LINE_BYTES = CHUNK * 2,
        STORE_BYTES = ONE_BUFFER ? 0 /* from one consumer's buffers to the other's */
        : SWIZZLED               ? 2 * MMF_WGMMA_STORE_BYTES
                                 : 64 * LINE_BYTES,
        /* Columns that are finished at once. */
        PIECE = !SWIZZLED   ? (int)CHUNK
        : Columns % 128     ? CHUNK / 2
        : Code == AUXILIARY ? (int)CHUNK
                            : 2 * CHUNK,
        PIECES = Columns / PIECE,
        SUMS = Columns / 2,
        BIAS_PITCH = (Columns / 4 + 31) / 32 * 32 + 4, /* floats: 16 bytes past a turn of banks */
    };
    static_assert(Columns % 16 == 0, "two blocks at once");
    static_assert(4 * BIAS_PITCH * 4 <= MMF_WGMMA_BIAS_BYTES, "bias_at()");
    static_assert(!FULL || Columns / 2 % CHUNK == 0, "gates are whole chunks");
    const mmf_wgmma_args &args;
    const tile &t;
    unsigned loaded[2][2]; /* the bias: of two columns, or of two rows, of gate and up */
    mmf_float2 row_bias[2];
    float alpha;
    int thread, first_row; /* of the tile */
    unsigned stores, biases;

    __attribute__((device, always_inline)) bool has(int operand) const
    {
        return args.gemm.dtype[operand] != MMF_GEMM_ABSENT;
    }

    __attribute__((device, always_inline)) int column() const /* in a block */
    {
        return thread % 4 * 2;
    }

    __attribute__((device, always_inline)) int row(int eight) const
    {
        return first_row + thread / 32 * 16 + thread % 32 / 4 + 8 * eight;
    }

    /* Type: unsigned for float32, else unsigned short. */
    template <class Type> __attribute__((device, always_inline)) void load_bias()
    {
        const mmf_gemm_args &gemm = args.gemm;
        if (Code == AUXILIARY && gemm.epilogue == MMF_EPILOGUE_REGISTERS_ROW_BIAS)
            return; /* add_row_bias() */
        if (FULL && gemm.epilogue == MMF_EPILOGUE_REGISTERS_ROW_BIAS) {
            MMF_UNROLL
            for (int g = 0; g < 2; g++) {
                const int operand = MMF_GEMM_BIAS + (gemm.gated ? g : 0);
                const Type *const at = (const Type *)t.matrix(operand);
                const long long step = gemm.strides[operand].row;
                MMF_UNROLL
                for (int eight = 0; eight < 2; eight++)
                    if (row(eight) < t.rows)
                        loaded[g][eight] = at[(t.m0 + row(eight)) * step];
            }
            return;
        }
        const int up = FULL && gemm.gated && 2 * thread >= Columns / 2;
        const int col = 2 * thread - up * Columns / 2;
        const Type *const at = (const Type *)t.matrix(MMF_GEMM_BIAS + up) + t.n0 + col;
        if (2 * thread < Columns && col < t.cols) {
            loaded[0][0] = *(const unsigned *)at;
            if (sizeof(Type) == 4)
                loaded[0][1] = *(const unsigned *)(at + 1);
        }
    }

    /* Before the main loop, which hides what the loads take: nothing uses what they bring before
     * its end. */
    __attribute__((device, always_inline)) void start()
    {
        alpha = (float)args.gemm.alpha;
        MMF_UNROLL
        for (int i = 0; i < 4; i++)
            loaded[i / 2][i % 2] = 0;
        if (args.gemm.dtype[MMF_GEMM_BIAS] == MMF_GEMM_FLOAT32)
            load_bias<unsigned>();
        else if (args.gemm.dtype[MMF_GEMM_BIAS] != MMF_GEMM_ABSENT)
            load_bias<unsigned short>();
    }

    __attribute__((device, always_inline)) float bias_of(unsigned bits) const
    {
        return loaded_bias<Dtype>(args.gemm, bits);
    }

    /* Where a column's bias is shared: those of a thread follow each other, and the threads of
     * eight columns read from different banks. */
    __attribute__((device, always_inline)) unsigned bias_at(int col) const
    {
        return biases + (col % 8 / 2 * BIAS_PITCH + col / 8 * 2) * 4;
    }

    /* z of a piece from its sums, where column 0 of the piece is `first`; Up: of the up columns. */
    template <int Up, int Width>
    __attribute__((device, always_inline)) void scale(const float *from, float *z, int first) const
    {
        if (FULL && args.gemm.epilogue == MMF_EPILOGUE_REGISTERS_ROW_BIAS) {
            float factor = alpha;
            asm volatile("" : "+f"(factor)); /* or all pieces are scaled first */
            MMF_UNROLL
            for (int i = 0; i < Width / 2; i++)
                z[i] = fused(from[i], factor, row_bias[Up][i / 2 % 2]);
            return;
        }
        MMF_UNROLL
        for (int b = 0; b < Width / 8; b += 2) {
            mmf_float4 four; /* of two blocks */
            asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(four.x), "=f"(four.y), "=f"(four.z), "=f"(four.w)
                         : "r"(bias_at(first + column() + 8 * b)));
            MMF_UNROLL
            for (int i = 0; i < 8; i++)
                z[4 * b + i] = fused(from[4 * b + i], alpha, four[i / 4 * 2 + i % 2]);
        }
    }

    /* Of a piece; as registers have no index, the code of each piece names its own. */
    __attribute__((device, always_inline)) void take(const float (&sum)[HALVES][SUMS], int half,
                                                     int piece, float *z) const
    {
        MMF_UNROLL
        for (int h = 0; h < HALVES; h++) {
            MMF_UNROLL
            for (int p = 0; p < PIECES; p++)
                if (half == h && piece == p)
                    scale<0, PIECE>(sum[h] + p * PIECE / 2, z, p * PIECE);
        }
    }

    template <int Id, int Width>
    __attribute__((device, always_inline)) void activate(float *of_gate, const float *of_up) const
    {
        MMF_UNROLL
        for (int i = 0; i < Width / 2; i += 8) {
            mmf_float2 z[4], up[4];
            MMF_UNROLL
            for (int p = 0; p < 4; p++) {
                z[p] = (mmf_float2){of_gate[i + 2 * p], of_gate[i + 2 * p + 1]};
                up[p] = (mmf_float2){of_up[i + 2 * p], of_up[i + 2 * p + 1]};
            }
            activated<Id, 4>::run(z, up);
            MMF_UNROLL
            for (int p = 0; p < 4; p++) {
                of_gate[i + 2 * p] = z[p].x;
                of_gate[i + 2 * p + 1] = z[p].y;
            }
        }
    }

    __attribute__((device, always_inline)) void add_c(float *sum, int piece) const
    {
        const float beta = (float)args.gemm.beta;
        const long long pitch = args.gemm.strides[MMF_GEMM_C].row;
        const int first = piece * PIECE + column();
        MMF_UNROLL
        for (int eight = 0; eight < 2; eight++) {
            if (row(eight) >= t.rows)
                continue;
            const unsigned short *const line =
                (const unsigned short *)t.matrix(MMF_GEMM_C) + (t.m0 + row(eight)) * pitch + t.n0;
            MMF_UNROLL
            for (int b = 0; b < PIECE / 8; b++) {
                if (first + 8 * b >= t.cols)
                    continue;
                const mmf_float2 c = unpack_pair<Dtype>(*(const unsigned *)(line + first + 8 * b));
                float *const z = sum + 4 * b + 2 * eight;
                z[0] = fused(c.x, beta, z[0]);
                z[1] = fused(c.y, beta, z[1]);
            }
        }
    }

    /* Where an operand has the first of a thread's elements in a piece; above: their row. */
    __attribute__((device, always_inline)) unsigned short *under(int operand, int above,
                                                                 int piece) const
    {
        return (unsigned short *)t.matrix(operand) +
               (t.m0 + above) * args.gemm.strides[operand].row + t.n0 + piece * PIECE + column();
    }

    __attribute__((device, always_inline)) int row_above(int half) const
    {
        int above = 64 * half + row(0);
        asm volatile("" : "+r"(above)); /* no address is kept for all pieces */
        return above;
    }

    __attribute__((device, always_inline)) bool is_inside(int above, int piece, int i) const
    {
        return above + i % 2 * 8 < t.rows && piece * PIECE + column() + i / 2 * 8 < t.cols;
    }

    /* Pair i of an operand is under z[2 * i]: those of two rows alternate. All loads are under way
     * before one is used, which EVERYTHING has no registers for: add_c(). */
    __attribute__((device, always_inline)) void load_pairs(int operand, int half, int piece,
                                                           unsigned (&pairs)[PIECE / 4]) const
    {
        const int above = row_above(half);
        const unsigned short *const at = under(operand, above, piece);
        const long long eight_rows = 8 * args.gemm.strides[operand].row;
        MMF_UNROLL
        for (int i = 0; i < PIECE / 4; i++) {
            pairs[i] = 0;
            if (is_inside(above, piece, i))
                pairs[i] = *(const unsigned *)(at + i % 2 * eight_rows + i / 2 * 8);
        }
    }

    __attribute__((device, always_inline)) void add_loaded_c(float *z, int half, int piece) const
    {
        const float beta = (float)args.gemm.beta;
        unsigned pairs[PIECE / 4];
        load_pairs(MMF_GEMM_C, half, piece, pairs);
        MMF_UNROLL
        for (int i = 0; i < PIECE / 4; i++) {
            const mmf_float2 c = unpack_pair<Dtype>(pairs[i]);
            z[2 * i] = fused(c.x, beta, z[2 * i]);
            z[2 * i + 1] = fused(c.y, beta, z[2 * i + 1]);
        }
    }

    __attribute__((device, always_inline)) void multiply(float *z, int half, int piece) const
    {
        unsigned pairs[PIECE / 4];
        load_pairs(MMF_GEMM_MULTIPLY, half, piece, pairs);
        MMF_UNROLL
        for (int i = 0; i < PIECE / 4; i++) {
            const mmf_float2 other = unpack_pair<Dtype>(pairs[i]);
            z[2 * i] *= other.x;
            z[2 * i + 1] *= other.y;
        }
    }

    __attribute__((device, always_inline)) void store_preactivation(const float *z, int half,
                                                                    int piece) const
    {
        const int above = row_above(half);
        unsigned short *const at = under(MMF_GEMM_PREACTIVATION, above, piece);
        const long long eight_rows = 8 * args.gemm.strides[MMF_GEMM_PREACTIVATION].row;
        MMF_UNROLL
        for (int i = 0; i < PIECE / 4; i++) {
            if (is_inside(above, piece, i))
                *(unsigned *)(at + i % 2 * eight_rows + i / 2 * 8) =
                    pack_pair<Dtype>((mmf_float2){z[2 * i], z[2 * i + 1]});
        }
    }

    /* With a bias per row that of columns, in shared memory, is 0. */
    __attribute__((device, always_inline)) void add_row_bias(float *z, int half) const
    {
        const int above = row_above(half);
        const bool wide = args.gemm.dtype[MMF_GEMM_BIAS] == MMF_GEMM_FLOAT32;
        float bias[2];
        MMF_UNROLL
        for (int eight = 0; eight < 2; eight++) {
            const long long at = (t.m0 + above + 8 * eight) * args.gemm.strides[MMF_GEMM_BIAS].row;
            unsigned bits = 0;
            if (above + 8 * eight < t.rows)
                bits = wide ? ((const unsigned *)t.matrix(MMF_GEMM_BIAS))[at]
                            : ((const unsigned short *)t.matrix(MMF_GEMM_BIAS))[at];
            bias[eight] = bias_of(bits);
        }
        asm volatile("" : "+f"(bias[0]), "+f"(bias[1])); /* or each sum finds its own */
        MMF_UNROLL
        for (int i = 0; i < PIECE / 2; i++)
            z[i] += bias[i / 2 % 2];
    }

    /* Chunks of a tile that were written, and where the newest one goes. */
    struct chunks {
        int count, x, y;
    };

    /* A warp's 16 rows of a piece to its own part of the buffers of its chunks, where column 0 of
     * the piece is `first`. Of tiles of 128 and 256 columns two chunks are sent at once: waits and
     * fences take longer than their stores. */
    template <int Width>
    __attribute__((device, always_inline)) void store(const float *z, int half, bool last_half,
                                                      int first, chunks &c, int batch) const
    {
        enum { PART = Width < CHUNK ? Width : (int)CHUNK }; /* of a chunk */
        const unsigned buffers = stores + thread / 32 * (MMF_WGMMA_WARP_ROWS * LINE_BYTES);
        const int lane = thread % 32, line = lane % 16;
        MMF_UNROLL
        for (int i = 0; i < Width; i += PART) {
            const int at = first + i;
            const int second = !SWIZZLED ? 0 : Width > CHUNK ? i / CHUNK : c.count % 2;
            const unsigned buffer = buffers + second * MMF_WGMMA_STORE_BYTES;
            if (at % CHUNK == 0 && !second) {
                if (is_elected())
                    wait_for_stores();
                meet_warp();
            }
            MMF_UNROLL
            for (int b = 0; b < PART / 8; b += 2) {
                unsigned bits[4];
                MMF_UNROLL
                for (int j = 0; j < 4; j++) {
                    const float *const pair = z + i / 2 + 4 * b + 2 * j;
                    bits[j] = pack_pair<Dtype>((mmf_float2){pair[0], pair[1]});
                }
                const int unit = at % CHUNK / 8 + b + lane / 16;
                store_matrices(buffer + line * LINE_BYTES +
                                   ((SWIZZLED ? unit ^ (line & 7) : unit) << 4),
                               bits);
            }
            const int end = at + PART;
            if (end % CHUNK)
                return;
            const int x = (int)t.n0 + end - CHUNK;
            const int y = (int)t.m0 + first_row + half * 64 + thread / 32 * 16;
            const bool last = last_half && end >= t.cols;
            if (!SWIZZLED || second || (Width <= CHUNK && last)) {
                publish_to_copies();
                meet_warp();
                if (is_elected()) {
                    if (second)
                        store_box(args.out, buffers, c.x, c.y, batch);
                    store_box(args.out, buffer, x, y, batch);
                }
            }
            c = {c.count + 1, x, y};
        }
    }

    /* The bias of start() for all threads of the warpgroup; not while one of them finishes. */
    __attribute__((device, always_inline)) void share_bias()
    {
        MMF_UNROLL
        for (int g = 0; g < 2 && FULL; g++)
            row_bias[g] = (mmf_float2){bias_of(loaded[g][0]), bias_of(loaded[g][1])};
        const bool wide = args.gemm.dtype[MMF_GEMM_BIAS] == MMF_GEMM_FLOAT32;
        int col = 2 * thread;
        if (Code == AUXILIARY)
            asm volatile("" : "+r"(col)); /* no register holds the address across products */
        if (col < Columns)
            asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(bias_at(col)),
                         "f"(bias_of(loaded[0][0])),
                         "f"(bias_of(wide ? loaded[0][1] : loaded[0][0] >> 16))
                         : "memory");
    }

    template <bool Gated, int Width>
    __attribute__((device, always_inline)) void activate_as(float *z, const float *up) const
    {
        switch (args.gemm.activation) {
#define MMF_HOT(id)                                                                                \
    case ACT_##id:                                                                                 \
        if (Gated == activation<ACT_##id>::gated)                                                  \
            activate<ACT_##id, Width>(z, up);                                                      \
        break;
#include "problem/activations.def"
        }
    }

    /* In the registers of the sums. */
    __attribute__((device, always_inline)) void finish_gates(float (&sum)[SUMS], int batch) const
    {
        float *const up = sum + SUMS / 2;
        chunks c = {};
        MMF_UNROLL
        for (int n = 0; n < Columns / 2; n += CHUNK) {
            scale<0, CHUNK>(sum + n / 2, sum + n / 2, n);
            scale<1, CHUNK>(up + n / 2, up + n / 2, Columns / 2 + n);
            activate_as<true, CHUNK>(sum + n / 2, up + n / 2);
            store<CHUNK>(sum + n / 2, 0, true, n, c, batch);
            if (n + CHUNK >= t.cols)
                return;
        }
    }

    /* After share_bias() and meet_group(), halves `first` to end - 1: piece by piece, in registers
     * of their own. */
    __attribute__((device, always_inline)) void finish(float (&sum)[HALVES][SUMS], int batch,
                                                       int first = 0, int end = HALVES) const
    {
        if (FULL && args.gemm.gated)
            return finish_gates(sum[0], batch);
        chunks c = {};
        MMF_ROLLED
        for (int half = first; half < end; half++) {
            MMF_ROLLED
            for (int piece = 0; piece * PIECE / CHUNK * CHUNK < t.cols; piece++) {
                float z[PIECE / 2];
                take(sum, half, piece, z);
                if (FULL && has(MMF_GEMM_C))
                    add_c(z, piece);
                if (Code == AUXILIARY && args.gemm.epilogue == MMF_EPILOGUE_REGISTERS_ROW_BIAS)
                    add_row_bias(z, half);
                if (Code == AUXILIARY && has(MMF_GEMM_C))
                    add_loaded_c(z, half, piece);
                if (Code == AUXILIARY && has(MMF_GEMM_PREACTIVATION))
                    store_preactivation(z, half, piece);
                activate_as<false, PIECE>(z, z);
                if (Code == AUXILIARY && has(MMF_GEMM_MULTIPLY))
                    multiply(z, half, piece);
                store<PIECE>(z, half, half + 1 == end, piece * PIECE, c, batch);
            }
        }
    }
};

#endif
