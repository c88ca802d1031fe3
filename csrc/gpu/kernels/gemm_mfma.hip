/* Matrix cores of CDNA3 (gfx942) and CDNA4 (gfx950): float16 and bfloat16 inputs, float sums, A and
 * B each with stride 1 along one axis and any stride between 0 and 2^23 along the other.
 * Path of a call: the row before gemm_simt for these GPUs; launched by gpu/launch.c.
 *
 * A workgroup of four waves computes 128 x 128 sums, each wave 64 x 64. 64 columns of A and 64 rows
 * of B, always k along a line of 128 bytes, fill 32 KB of shared memory, so that two workgroups
 * share a CU and one multiplies while the other one fetches. The next step's elements travel to
 * registers meanwhile. Chunks of 16 bytes are permuted within a line against bank conflicts.
 *
 * The last step of k comes first: it alone may be cut, and needs masks. Elements outside of the
 * operands are out of the bounds of a buffer descriptor and come as 0. */
#include "gpu/kernels/epilogue.h"

typedef this_row row;
typedef unsigned chunk __attribute__((ext_vector_type(4))); /* 16 bytes: 8 elements */
typedef unsigned half_chunk __attribute__((ext_vector_type(2)));
typedef __amdgpu_buffer_rsrc_t descriptor;
#define MMF_LOCAL __attribute__((address_space(3)))
typedef MMF_LOCAL char *local;

enum {
    SIZE = 2,                     /* bytes of an element */
    LINE = row::tile_k * SIZE,    /* bytes of a line in shared memory */
    B_LINES = row::tile_m * LINE, /* where B's lines begin */
    HALF = row::tile_m / 2,       /* lines of a descriptor; gated: of a stream */
    LOADS = 4,                    /* chunks of A, and of B, for each thread */
    BLOCKS = 4,                   /* of 16 x 16 sums along each side of a wave's square */
    PITCH = row::tile_n + 4,      /* floats of a line of sums */
    BAND = 32,                    /* lines of sums that the epilogue takes at once */
    A_ALONG_K = row::layout == LAYOUT_NN || row::layout == LAYOUT_NT,
    B_ALONG_K = row::layout == LAYOUT_NT || row::layout == LAYOUT_TT,
};
constexpr unsigned NOWHERE = 1u << 31; /* an offset outside of every descriptor */
constexpr long long MOST_BYTES = 0x7ffffff0;
static_assert(row::tile_m == 128 && row::tile_n == 128 && row::tile_k == 64 && row::threads == 256,
              "2 x 2 waves of 64 x 64");
static_assert(row::lds == 2 * B_LINES && BAND * PITCH * 4 + TILE_BYTES <= row::lds, "kernels.def");

/* All waves meet; nothing moves across. No fence: it would wait for the loads that are under way.
 */
MMF_DEVICE void meet()
{
    __builtin_amdgcn_sched_barrier(0);
    asm volatile("" ::: "memory");
    __builtin_amdgcn_s_barrier();
    asm volatile("" ::: "memory");
    __builtin_amdgcn_sched_barrier(0);
}

/* What this wave wrote to shared memory is there. */
MMF_DEVICE void wait_for_shared()
{
    __builtin_amdgcn_sched_barrier(0);
    __builtin_amdgcn_s_waitcnt(0xc07f); /* lgkmcnt(0); vmcnt and expcnt as they are */
}

/* Up to HALF lines (m of A, n of B) of an operand, from one k on. */
struct region {
    const char *base;
    long long bytes; /* from base to the end of the last element; none: <= 0 */
    unsigned pitch;  /* bytes between lines, or between k */

    __attribute__((device, always_inline)) descriptor describe() const
    {
        const long long size = bytes < 0 ? 0 : bytes > MOST_BYTES ? MOST_BYTES : bytes;
        return __builtin_amdgcn_make_buffer_rsrc((void *)base, 0, (int)size, 0x20000);
    }
};

/* line: the first line of the region; lines: how many of it exist. */
template <bool AlongK>
MMF_DEVICE region region_of(const char *matrix, long long line_step, long long k_step,
                            long long line, int lines, long long all_lines, long long k)
{
    /* Axes of one element have any stride. */
    const long long pitch = AlongK ? (all_lines > 1 ? line_step : 0) : (k > 1 ? k_step : 0);
    region r;
    r.pitch = (unsigned)pitch * SIZE;
    r.base = matrix + line * (AlongK ? pitch : 1) * SIZE;
    r.bytes = lines <= 0 ? 0 : ((AlongK ? lines - 1 : k - 1) * pitch + (AlongK ? k : lines)) * SIZE;
    return r;
}

/* Dwords of a chunk lie at multiples of 4 bytes, and all of a dword inside or outside. */
template <bool AlongK> MMF_DEVICE bool is_even(const region &r, long long run)
{
    return (((unsigned long long)r.base | r.pitch) & 3) == 0 && run % 2 == 0;
}

template <bool Wide> MMF_DEVICE chunk load(descriptor from, unsigned offset, unsigned k_offset)
{
    if (Wide)
        return __builtin_amdgcn_raw_buffer_load_b128(from, (int)offset, (int)k_offset, 0);
    chunk value;
    MMF_UNROLL
    for (int i = 0; i < 4; i++) {
        const unsigned short low =
            __builtin_amdgcn_raw_buffer_load_b16(from, (int)(offset + 4 * i), (int)k_offset, 0);
        const unsigned short high =
            __builtin_amdgcn_raw_buffer_load_b16(from, (int)(offset + 4 * i + 2), (int)k_offset, 0);
        value[i] = low | (unsigned)high << 16;
    }
    return value;
}

/* Carries A or B to shared memory. Only the permutation differs by the axis of stride 1. */
template <bool AlongK, bool Wide> struct carrier;

/* k has stride 1: a thread takes chunk c of the lines thread / 8 + 32 i: two of each region. */
template <bool Wide> struct carrier<true, Wide> {
    region regions[2];
    unsigned offset[LOADS], slot;
    chunk next[LOADS];

    __attribute__((device, always_inline)) void start(const region &low, const region &high)
    {
        regions[0] = low;
        regions[1] = high;
        const unsigned c = thread_id() & 7, line = thread_id() >> 3;
        MMF_UNROLL
        for (int i = 0; i < LOADS; i++)
            offset[i] = regions[i / 2].bytes <= 0
                            ? NOWHERE
                            : (line + i % 2 * 32) * regions[i / 2].pitch + c * 16;
        /* fetch adds k to what the bounds are checked with: they must not be smaller than k. */
        MMF_UNROLL
        for (int i = 0; i < 2; i++)
            if (regions[i].bytes <= 0)
                regions[i].bytes = MOST_BYTES;
        slot = line * LINE + (c ^ (line & 7)) * 16;
    }

    /* The step that begins at k; only the next `left` elements of a line count. */
    __attribute__((device, always_inline)) void fetch_cut(long long k, int left)
    {
        const int mine = left - (int)(thread_id() & 7) * 8;
        MMF_UNROLL
        for (int i = 0; i < LOADS; i++) {
            const unsigned at = offset[i] + (unsigned)k * SIZE;
            next[i] = load<Wide>(regions[i / 2].describe(), mine > 0 ? at : NOWHERE, 0);
            MMF_UNROLL
            for (int d = 0; d < 4; d++) {
                const int inside = mine - 2 * d;
                next[i][d] &= inside > 1 ? 0xffffffff : inside == 1 ? 0xffff : 0;
            }
        }
    }

    __attribute__((device, always_inline)) void fetch(unsigned k)
    {
        MMF_UNROLL
        for (int i = 0; i < LOADS; i++)
            next[i] = load<Wide>(regions[i / 2].describe(), offset[i], k * SIZE);
    }

    __attribute__((device, always_inline)) void put(local lines) const
    {
        MMF_UNROLL
        for (int i = 0; i < LOADS; i++)
            *(MMF_LOCAL chunk *)(lines + slot + i * 32 * LINE) = next[i];
    }
};

/* The lines have stride 1: a thread takes chunk c, eight lines, of four neighbouring k, and
 * transposes. Its wave stays in one region. The bits of the thread are dealt out so that 16
 * neighbours write to 16 different places of the banks. */
template <bool Wide> struct carrier<false, Wide> {
    region begin, at;
    unsigned offset[LOADS], slot;
    chunk next[LOADS];

    static __attribute__((device, always_inline)) unsigned bit(int i)
    {
        return (unsigned)thread_id() >> i & 1;
    }

    static __attribute__((device, always_inline)) unsigned four_k()
    {
        return bit(3) | bit(5) << 1 | bit(7) << 2 | bit(2) << 3;
    }

    __attribute__((device, always_inline)) void start(const region &low, const region &high)
    {
        begin = __builtin_amdgcn_readfirstlane((int)bit(6)) ? high : low;
        at = begin;
        const unsigned c = bit(4) | bit(0) << 1 | bit(1) << 2, k = four_k(), all = c | bit(6) << 3;
        MMF_UNROLL
        for (int i = 0; i < LOADS; i++)
            offset[i] = (k * 4 + i) * begin.pitch + c * 16;
        slot = all * 8 * LINE + ((k >> 1) ^ (all >> 1)) * 16 + (k & 1) * 8;
    }

    __attribute__((device, always_inline)) void go_to(long long k)
    {
        at.base = begin.base + k * begin.pitch;
        at.bytes = begin.bytes - k * begin.pitch;
    }

    __attribute__((device, always_inline)) void fetch_cut(long long k, int left)
    {
        go_to(k);
        MMF_UNROLL
        for (int i = 0; i < LOADS; i++) {
            const bool inside = (int)four_k() * 4 + i < left;
            next[i] = load<Wide>(at.describe(), inside ? offset[i] : NOWHERE, 0);
        }
    }

    __attribute__((device, always_inline)) void fetch(unsigned k)
    {
        go_to(k);
        MMF_UNROLL
        for (int i = 0; i < LOADS; i++)
            next[i] = load<Wide>(at.describe(), offset[i], 0);
    }

    __attribute__((device, always_inline)) void put(local lines) const
    {
        MMF_UNROLL
        for (unsigned e = 0; e < 8; e++) {
            const unsigned pick = e % 2 ? 0x07060302 : 0x05040100; /* high halves, or low */
            half_chunk value;
            value[0] = __builtin_amdgcn_perm(next[1][e / 2], next[0][e / 2], pick);
            value[1] = __builtin_amdgcn_perm(next[3][e / 2], next[2][e / 2], pick);
            *(MMF_LOCAL half_chunk *)(lines + ((slot ^ e * 16) + e * LINE)) = value;
        }
    }
};

typedef four<float> block; /* this lane's part of 16 x 16 sums: 4 columns of a row */

/* Every lane holds 8 k of a row of A and of a column of B. B comes first, so that a lane's sums are
 * neighbours in a row of the result. */
MMF_DEVICE block multiply(chunk b, chunk a, block sum)
{
#if defined(__gfx950__)
    if (row::operands == MMF_GEMM_FLOAT16) {
        typedef _Float16 halves __attribute__((ext_vector_type(8)));
        return __builtin_amdgcn_mfma_f32_16x16x32_f16((halves)b, (halves)a, sum, 0, 0, 0);
    }
    typedef __bf16 brains __attribute__((ext_vector_type(8)));
    return __builtin_amdgcn_mfma_f32_16x16x32_bf16((brains)b, (brains)a, sum, 0, 0, 0);
#else
    MMF_UNROLL
    for (int i = 0; i < 2; i++) {
        const half_chunk low = i ? b.zw : b.xy, up = i ? a.zw : a.xy;
        if (row::operands == MMF_GEMM_FLOAT16) {
            typedef _Float16 halves __attribute__((ext_vector_type(4)));
            sum = __builtin_amdgcn_mfma_f32_16x16x16f16((halves)low, (halves)up, sum, 0, 0, 0);
        } else {
            typedef short brains __attribute__((ext_vector_type(4)));
            sum = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k((brains)low, (brains)up, sum, 0, 0, 0);
        }
    }
    return sum;
#endif
}

/* Where a lane finds its chunks in shared memory: line lane % 16 of every block, chunk lane / 16 of
 * every half of k; the permutation of carrier::put undone. */
template <bool AlongK> struct reader {
    unsigned at[2];

    __attribute__((device, always_inline)) void start(unsigned square)
    {
        const unsigned lane = thread_id() & 63;
        MMF_UNROLL
        for (unsigned half = 0; half < 2; half++) {
            const unsigned c = (half * 4 + lane / 16) ^ (lane & 7) ^ (AlongK ? 0 : square * BLOCKS);
            at[half] = (square * BLOCKS * 16 + lane % 16) * LINE + c * 16;
        }
    }

    __attribute__((device, always_inline)) void read(local lines, int half,
                                                     chunk value[BLOCKS]) const
    {
        MMF_UNROLL
        for (unsigned i = 0; i < BLOCKS; i++) {
            const unsigned from = AlongK ? at[half] : at[half] ^ i * 16;
            value[i] = *(MMF_LOCAL const chunk *)(lines + (from + i * 16 * LINE));
        }
    }
};

/* sum += A B over all of k. */
template <bool Wide>
MMF_DEVICE void sum_products(const region a_regions[2], const region b_regions[2], long long k_end,
                             local lines, unsigned wave, block sum[BLOCKS][BLOCKS])
{
    carrier<A_ALONG_K, Wide> a;
    carrier<B_ALONG_K, Wide> b;
    reader<A_ALONG_K> a_reader;
    reader<B_ALONG_K> b_reader;
    a.start(a_regions[0], a_regions[1]);
    b.start(b_regions[0], b_regions[1]);
    a_reader.start(wave / 2);
    b_reader.start(wave % 2);

    const unsigned k_last = (unsigned)(k_end - 1) / row::tile_k * row::tile_k;
    a.fetch_cut(k_last, (int)(k_end - k_last));
    b.fetch_cut(k_last, (int)(k_end - k_last));
    /* After the last step the one before is fetched once more, rather than branch. */
    const unsigned k_top = k_last ? k_last - row::tile_k : 0;
    MMF_ROLLED
    for (unsigned k = 0; k <= k_last; k += row::tile_k) {
        meet();
        a.put(lines);
        b.put(lines + B_LINES);
        const unsigned k_next = k < k_top ? k : k_top;
        a.fetch(k_next);
        b.fetch(k_next);
        wait_for_shared();
        meet();
        chunk of_a[2][BLOCKS], of_b[2][BLOCKS];
        MMF_UNROLL
        for (int half = 0; half < 2; half++) {
            a_reader.read(lines, half, of_a[half]);
            b_reader.read(lines + B_LINES, half, of_b[half]);
        }
        MMF_UNROLL
        for (int half = 0; half < 2; half++) {
            MMF_UNROLL
            for (int i = 0; i < BLOCKS; i++) {
                MMF_UNROLL
                for (int j = 0; j < BLOCKS; j++)
                    sum[i][j] = multiply(of_b[half][j], of_a[half][i], sum[i][j]);
            }
        }
    }
}

MMF_DEVICE int at_most_half(int lines)
{
    return lines < HALF ? lines : HALF;
}

MMF_DEVICE void find_products(const mmf_gemm_args &args, char *shared, unsigned wave,
                              block sum[BLOCKS][BLOCKS])
{
    const tile t = tile_of_workgroup<row>(args, shared);
    const mmf_gemm_strides &of_a = args.strides[MMF_GEMM_A], &of_b = args.strides[MMF_GEMM_B],
                           &of_up = args.strides[args.gated ? MMF_GEMM_B_UP : MMF_GEMM_B];
    const char *const a_matrix = t.matrix(MMF_GEMM_A), *const b_matrix = t.matrix(MMF_GEMM_B),
                      *const up_matrix = t.matrix(args.gated ? MMF_GEMM_B_UP : MMF_GEMM_B);
    region a[2], b[2];
    a[0] = region_of<A_ALONG_K>(a_matrix, of_a.row, of_a.col, t.m0, at_most_half(t.rows), args.m,
                                args.k);
    a[1] = region_of<A_ALONG_K>(a_matrix, of_a.row, of_a.col, t.m0 + HALF, t.rows - HALF, args.m,
                                args.k);
    b[0] = region_of<B_ALONG_K>(b_matrix, of_b.col, of_b.row, t.n0, at_most_half(t.cols), args.n,
                                args.k);
    b[1] = region_of<B_ALONG_K>(up_matrix, of_up.col, of_up.row, args.gated ? t.n0 : t.n0 + HALF,
                                args.gated ? t.cols : t.cols - HALF, args.n, args.k);
    const long long a_run = A_ALONG_K ? args.k : args.m, b_run = B_ALONG_K ? args.k : args.n;
    const bool wide = is_even<A_ALONG_K>(a[0], a_run) && is_even<B_ALONG_K>(b[0], b_run) &&
                      is_even<B_ALONG_K>(b[1], b_run);
    if (wide)
        sum_products<true>(a, b, args.k, (local)shared, wave, sum);
    else
        sum_products<false>(a, b, args.k, (local)shared, wave, sum);
}

/* The lines of a band: 16 rows of the upper waves, 16 of the lower ones. */
struct band_rows {
    int count, first;

    __attribute__((device, always_inline)) int row(int line) const
    {
        return line / 16 * HALF + first + line % 16;
    }
};

MMF_ENTRY MMF_THREADS(row::threads) MMF_WAVES(2) void MMF_KERNEL(MMF_ARGUMENT mmf_gemm_args args)
{
    MMF_SHARED static char shared[row::lds];
    const unsigned wave = (unsigned)__builtin_amdgcn_readfirstlane(thread_id() >> 6);
    const unsigned lane = thread_id() & 63;
    block sum[BLOCKS][BLOCKS] = {};
    if (args.k > 0)
        find_products(read_again(args), shared, wave, sum);
    barrier();
    const tile t = tile_of_workgroup<row>(read_again(args), shared);
    float *const lines = (float *)shared;
    float *const mine =
        lines + (wave / 2 * 16 + lane % 16) * PITCH + wave % 2 * HALF + lane / 16 * 4;
    MMF_ROLLED
    for (int band = 0; band < BLOCKS; band++) {
        MMF_UNROLL
        for (int j = 0; j < BLOCKS; j++)
            *(block *)(mine + j * 16) = sum[0][j];
        barrier();
        const sums<float, row::threads, PITCH, band_rows> some = {lines, t, {BAND, band * 16}};
        finish<float>(args, some);
        barrier();
        MMF_UNROLL
        for (int i = 1; i < BLOCKS; i++) {
            MMF_UNROLL
            for (int j = 0; j < BLOCKS; j++)
                sum[i - 1][j] = sum[i][j];
        }
    }
}
