/* The argument of the step repack, by value: read by the host (C11) and by device code (C++). Path
 * of a call: from gpu/repack.c to the kernel, before a gemm_wgmma. */
#ifndef MMF_REPACK_ARGS_H
#define MMF_REPACK_ARGS_H

enum {
    MMF_REPACK_PARTS = 3, /* A, B and the up stream's B at most */
    MMF_REPACK_THREADS = 256,
    MMF_REPACK_LINES = 16,  /* of a tile MMF_REPACK_THREADS wide along k */
    MMF_REPACK_TURNED = 64, /* of a square one, where neighbours in memory are lines */
};

/* One operand: its elements, `line`, `k` and `batch` apart, to lines along k. In elements. */
typedef struct mmf_repack_part {
    const void *from;
    void *to;
    long long line, k, batch;         /* strides, of any sign */
    long long pitch, matrix;          /* of the copy: from a line, from a matrix to the next */
    long long lines, length;          /* of a matrix */
    unsigned tiles, tiles_k, tiles_m; /* all; of a matrix along k, along its lines */
    unsigned turned;                  /* 0, 1 */
} mmf_repack_part;

/* Workgroups take the tiles of the parts one after the other. A part that is not there has none. */
typedef struct mmf_repack_args {
    mmf_repack_part part[MMF_REPACK_PARTS];
} mmf_repack_args;

#endif
