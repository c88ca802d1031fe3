/* Weights in the layout "columns" of prepack on a GPU: columns of k, each padded to a multiple of
 * 64 bytes. To a kernel it is a matrix with strides, whose columns begin where the widest loads and
 * tensor copies want them. Not on the path of a call: prepack() and unpack(). */
#ifndef MMF_GPU_REORDER_H
#define MMF_GPU_REORDER_H

#include "problem/problem.h"

/* Layout id of "columns". */
#define MMF_GPU_COLUMNS (MMF_PACKED_STRIDED | 1)

/* Elements between columns, and bytes of all n of them. */
int64_t mmf_gpu_columns_pitch(mmf_dtype dtype, int64_t k);
int64_t mmf_gpu_columns_bytes(mmf_dtype dtype, int64_t k, int64_t n);

/* NOT_IMPLEMENTED where this build has no code for the GPU. */
mmf_status mmf_gpu_check_columns(mmf_device device, mmf_dtype dtype);

/* Enqueue a copy of the K x N matrix into columns, and the reverse. K and N are not 0. */
mmf_status mmf_gpu_pack_columns(const mmf_weight *weight, void *columns);
mmf_status mmf_gpu_unpack_columns(const mmf_weight *weight, const void *columns);

#endif
