/* Which part of the result a workgroup computes next, and the row of kernels.def that is being
 * compiled. Path of a call: the first step of every kernel, for each tile. */
#ifndef MMF_TILE_H
#define MMF_TILE_H

#include "gpu/kernels/common/device.h"

/* One type per row: its numbers at compile time. */
enum { LAYOUT_ANY, LAYOUT_NN, LAYOUT_NT, LAYOUT_TN, LAYOUT_TT, LAYOUT_NP };
#define MMF_GPU_KERNEL(name, family, operands_, tile_m_, tile_n_, tile_k_, threads_, lds_,         \
                       layout_, targets)                                                           \
    struct row_##name {                                                                            \
        enum {                                                                                     \
            operands = MMF_GEMM_##operands_,                                                       \
            tile_m = tile_m_,                                                                      \
            tile_n = tile_n_,                                                                      \
            tile_k = tile_k_,                                                                      \
            threads = threads_,                                                                    \
            lds = lds_,                                                                            \
            layout = LAYOUT_##layout_                                                              \
        };                                                                                         \
    };
#define MMF_GPU_STEP MMF_GPU_KERNEL
#include "gpu/kernels/common/kernels.def"
#undef MMF_GPU_KERNEL
#undef MMF_GPU_STEP

/* -DMMF_KERNEL=gemm_simt_64x64x16_f32_any says which row is compiled. */
#define MMF_PASTE_(a, b) a##b
#define MMF_PASTE(a, b) MMF_PASTE_(a, b)
typedef MMF_PASTE(row_, MMF_KERNEL) this_row;

/* A tile of the result. */
struct tile {
    long long batch;  /* index among all batch axes */
    long long m0, n0; /* row and column of out */
    int rows, cols;   /* inside the result: the last tiles of a row or column are cut */
    int columns;      /* of a whole tile: tile_n, gated half of it */
    char **matrices;  /* in shared memory: element [0, 0] of every operand for this batch index */

    __attribute__((device, always_inline)) char *matrix(int operand) const
    {
        return uniform_global(matrices[operand]);
    }
};

enum { TILE_BYTES = 128 }; /* of shared memory at its end, for tile.matrices */
static_assert(MMF_GEMM_OPERANDS * sizeof(char *) <= TILE_BYTES, "one address for every operand");

/* dtype[operand] by a scalar load, of which there are none for bytes. */
MMF_DEVICE int dtype_of(const mmf_gemm_args &args, int operand)
{
    static_assert(__builtin_offsetof(mmf_gemm_args, dtype) % 4 == 0, "dtypes lie in whole words");
    const unsigned word = *(const unsigned *)(args.dtype + operand / 4 * 4);
    return word >> operand % 4 * 8 & 0xff;
}

/* Element [0, 0] of every operand for a batch index; thread i finds that of operand i. */
MMF_DEVICE void find_matrices(const mmf_gemm_args &args, long long batch, char **matrices,
                              int operand = thread_id())
{
    if (operand >= MMF_GEMM_OPERANDS)
        return;
    long long offset = 0;
    MMF_ROLLED
    for (int axis = args.batch_ndim - 1; axis >= 0; axis--) {
        const unsigned long long size = (unsigned long long)args.batch_shape[axis];
        const unsigned long long rest = (unsigned long long)batch / size;
        offset += (batch - (long long)(rest * size)) * args.strides[operand].batch[axis];
        batch = (long long)rest;
    }
    matrices[operand] = (char *)args.data[operand] + offset * element_size(args.dtype[operand]);
}

/* A tile among those of the result, by its number. */
struct place_of_tile {
    unsigned long long batch;
    unsigned m, n; /* in tiles */
};

/* Neighbours in time share rows of A and columns of B in the caches: tiles run down groups of so
 * many rows of tiles. */
MMF_DEVICE place_of_tile find_place(const mmf_gemm_args &args, unsigned long long index,
                                    unsigned rows = MMF_DEAL_ROWS)
{
    const unsigned tiles_m = (unsigned)args.tiles_m, tiles_n = (unsigned)args.tiles_n;
    const unsigned long long per_batch = tiles_m * tiles_n;
    const unsigned long long batch = args.batch_ndim ? index / per_batch : 0;
    const unsigned at = (unsigned)(index - batch * per_batch);
    const unsigned group = tiles_m > rows ? at / (rows * tiles_n) : 0;
    const unsigned within = at - group * rows * tiles_n;
    const unsigned left = tiles_m - group * rows, height = left < rows ? left : rows;
    const unsigned column = within / height;
    return {batch, group * rows + within - column * height, column};
}

/* The tile of this number. */
template <class Row>
MMF_DEVICE tile tile_at(const mmf_gemm_args &args, unsigned long long index, char *shared)
{
    const place_of_tile p = find_place(args, index);
    tile t;
    t.columns = args.gated ? Row::tile_n / 2 : Row::tile_n;
    t.m0 = (long long)p.m * Row::tile_m;
    t.n0 = (long long)p.n * t.columns;
    t.rows = args.m - t.m0 < Row::tile_m ? (int)(args.m - t.m0) : (int)Row::tile_m;
    t.cols = args.n - t.n0 < t.columns ? (int)(args.n - t.n0) : t.columns;
    t.batch = (long long)p.batch;
    t.matrices = (char **)(shared + Row::lds - TILE_BYTES);
    find_matrices(read_again(args), t.batch, t.matrices);
    barrier();
    return t;
}

/* The number of this workgroup's tile. */
MMF_DEVICE unsigned long long index_of_workgroup(const mmf_gemm_args &args)
{
    unsigned long long index = (unsigned long long)args.first_tile + (unsigned)workgroup_id();
#if defined(__gfx942__) || defined(__gfx950__) /* of several dies, each with a cache of its own */
    index = index >> 32 << 32 | mmf_dealt(&args.deal, (unsigned)index);
#endif
    return index;
}

/* The tile of this workgroup. */
template <class Row> MMF_DEVICE tile tile_of_workgroup(const mmf_gemm_args &args, char *shared)
{
    return tile_at<Row>(args, index_of_workgroup(args), shared);
}

/* Its matrices once more, where something else lay meanwhile. */
MMF_DEVICE void find_matrices_again(const mmf_gemm_args &args, const tile &t)
{
    find_matrices(args, t.batch, t.matrices);
    barrier();
}

#endif
