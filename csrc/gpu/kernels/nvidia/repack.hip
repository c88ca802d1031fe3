/* Operands copied to lines along k, each at a multiple of 64 bytes, where tensor copies can read
 * them (sm_90a). No GEMM: elements are moved as bits, the row's operands say of how many bytes they
 * are. Path of a call: the launch before gemm_wgmma, for operands that it cannot read; set up by
 * gpu/repack.c.
 *
 * Neighbours along k: a thread has one k of 16 lines, so that a warp reads and writes neighbours.
 * Else neighbours are lines, and a tile of 64 by 64 is turned in shared memory. */
#include "gpu/kernels/common/tile.h"
#include "gpu/kernels/nvidia/repack_args.h"
#include "gpu/kernels/nvidia/ring.h"

typedef this_row row;
typedef element<row::operands>::type bits;

enum {
    TURNED = MMF_REPACK_TURNED,
    PITCH = TURNED + (sizeof(bits) == 2 ? 2 : 1), /* of a line in shared memory: other banks */
    EACH = 16,                                    /* elements of a thread */
    APART = row::threads / TURNED,
};
static_assert(row::threads == MMF_REPACK_THREADS && EACH == MMF_REPACK_LINES, "repack_args.h");
static_assert(row::tile_m == TURNED && row::tile_n == TURNED && EACH * APART == TURNED,
              "kernels.def");
static_assert(row::lds == TURNED * PITCH * (int)sizeof(bits), "kernels.def");

/* Beyond the end the last line is read once more. */
MMF_DEVICE void copy_lines(const mmf_repack_part &p, const bits *from, bits *to, long long line,
                           long long k)
{
    const long long left = p.lines - line;
    const int count = left < EACH ? (int)left : (int)EACH;
    bits value[EACH];
    if (k >= p.length)
        return;
    from += line * p.line + k * p.k;
    to += line * p.pitch + k;
    MMF_UNROLL
    for (int i = 0; i < EACH; i++) {
        value[i] = *from;
        from += i + 1 < count ? p.line : 0;
    }
    MMF_UNROLL
    for (int i = 0; i < EACH; i++) {
        if (i < count)
            *to = value[i];
        to += p.pitch;
    }
}

/* Beyond the end the last line and the last k are read once more. */
MMF_DEVICE void turn_tile(const mmf_repack_part &p, const bits *from, bits *to, long long line,
                          long long k, bits *shared)
{
    const int fast = thread_id() % TURNED, slow = thread_id() / TURNED;
    const long long lines = p.lines - line, ks = p.length - k;
    const int last_line = lines < TURNED ? (int)lines - 1 : TURNED - 1,
              last_k = ks < TURNED ? (int)ks - 1 : TURNED - 1;
    bits value[EACH];
    from += (line + (fast < last_line ? fast : last_line)) * p.line +
            (k + (slow < last_k ? slow : last_k)) * p.k;
    to += (line + slow) * p.pitch + k + fast;
    MMF_UNROLL
    for (int i = 0; i < EACH; i++) {
        const int left = last_k - slow - i * APART, step = left < APART ? left : (int)APART;
        value[i] = *from;
        from += (step > 0 ? step : 0) * p.k;
    }
    MMF_UNROLL
    for (int i = 0; i < EACH; i++)
        shared[(slow + i * APART) * PITCH + fast] = value[i];
    barrier();
    if (fast > last_k)
        return;
    MMF_UNROLL
    for (int i = 0; i < EACH; i++) {
        const int mine = slow + i * APART;
        if (mine <= last_line)
            *to = shared[fast * PITCH + mine];
        to += APART * p.pitch;
    }
}

MMF_ENTRY MMF_THREADS_AT_ONCE(row::threads, 6) void MMF_KERNEL(MMF_ARGUMENT mmf_repack_args args)
{
    MMF_SHARED static char shared[row::lds];
    unsigned index = (unsigned)workgroup_id();
    int which = 0;
    MMF_ROLLED
    while (which < MMF_REPACK_PARTS - 1 && index >= args.part[which].tiles)
        index -= args.part[which++].tiles;
    const mmf_repack_part &p = args.part[which];
    const unsigned of_matrix = p.tiles_k * p.tiles_m, batch = index / of_matrix;
    const unsigned at = index - batch * of_matrix;
    const bits *const from = (const bits *)p.from + batch * p.batch;
    bits *const to = (bits *)p.to + batch * p.matrix;
    wait_for_kernel_before();
    let_next_kernel_begin();
    if (p.turned) { /* neighbours in time are neighbours in memory */
        const long long along = at / p.tiles_m, line = at - along * p.tiles_m;
        turn_tile(p, from, to, line * TURNED, along * TURNED, (bits *)shared);
    } else {
        const long long line = at / p.tiles_k, along = at - line * p.tiles_k;
        copy_lines(p, from, to, line * EACH, along * row::threads + thread_id());
    }
}
