/* Weights in the layouts of prepack on a GPU. Not on the path of a call: prepack() and unpack().
 *
 * "columns": columns of k, each padded to a multiple of 64 bytes. To a kernel it is a matrix with
 * strides, whose columns begin where the widest loads and tensor copies want them.
 *
 * "preshuffle_16x16", of two-byte elements for AMD's matrix kernels: as FlyDSL and aiter shuffle
 * weights by (16, 16). Element (k, n) is at n/16 * 16 K + k/8 * 128 + n%16 * 8 + k%8: a wave reads
 * a fragment of 16 columns by 32 k as 1 KB without a gap. */
#ifndef MMF_GPU_REORDER_H
#define MMF_GPU_REORDER_H

#include "problem/problem.h"

/* Layout id of "columns". */
#define MMF_GPU_COLUMNS (MMF_PACKED_STRIDED | 1)

/* And of "preshuffle_16x16"; what K, and N of each stream, are multiples of; what the first element
 * of a weight is aligned to, in bytes. */
#define MMF_GPU_PRESHUFFLED (MMF_PACKED_COMPACT | 1)
enum { MMF_PRESHUFFLED_K = 32, MMF_PRESHUFFLED_N = 16, MMF_PRESHUFFLED_ALIGN = 16 };

/* Elements between columns, and bytes of all n of them. */
int64_t mmf_gpu_columns_pitch(mmf_dtype dtype, int64_t k);
int64_t mmf_gpu_columns_bytes(mmf_dtype dtype, int64_t k, int64_t n);

int64_t mmf_gpu_preshuffled_bytes(mmf_dtype dtype, int64_t k, int64_t n);

/* NOT_IMPLEMENTED where this build has no code for the GPU; of preshuffled weights, none that reads
 * them. name: the argument's. */
mmf_status mmf_gpu_check_columns(mmf_device device, mmf_dtype dtype, const char *name);
mmf_status mmf_gpu_check_preshuffled(mmf_device device, mmf_dtype dtype, const char *name);

/* Enqueue a copy of the K x N matrix into the layout, and the reverse. K and N are not 0. */
mmf_status mmf_gpu_pack_columns(const mmf_weight *weight, void *columns);
mmf_status mmf_gpu_unpack_columns(const mmf_weight *weight, const void *columns);
mmf_status mmf_gpu_preshuffle(const mmf_weight *weight, void *shuffled);
mmf_status mmf_gpu_unshuffle(const mmf_weight *weight, const void *shuffled);

#endif
