/* What a device offers besides kernels: prepacked weights, threads, facts; of a GPU, its own checks
 * and memory as they are. Path of a call: the checks and the memory of GPUs; else off it: prepack,
 * info and set_num_threads. */
#ifndef MMF_BACKENDS_H
#define MMF_BACKENDS_H

#include "gpu/describe.h"
#include "gpu/memory.h"
#include "gpu/preflight.h"
#include "gpu/siblings.h"
#include "problem/problem.h"

/* The id of a prepacked layout for a weight (K, N), or for one that holds two streams, by name
 * ("auto": the best for the device, and on the CPU for the kernels that may run), or VALUE_ERROR;
 * NOT_IMPLEMENTED where the device cannot pack. argument: what errors call the weight. */
mmf_status mmf_prepack_layout(const mmf_tensor *weight, int streams, const char *argument,
                              const char *name, int *layout);
const char *mmf_prepack_layout_name(int layout);

/* Can bytes of a K x N weight be counted in any layout? Not of some broadcast views. */
bool mmf_prepack_has_size(int64_t k, int64_t n);

/* Bytes that a K x N weight that has a size takes in a layout, a multiple of 64. */
int64_t mmf_prepack_bytes(int layout, mmf_dtype dtype, int64_t k, int64_t n);

/* Set the strides of a tensor (K, N) to those that kernels see, if the layout has strides; those of
 * the memory, if that is compact. */
void mmf_prepack_strides(int layout, mmf_tensor *tensor);

/* The first address of a weight that another library prepared must be a multiple of so many bytes;
 * 0: of this layout none may be borrowed. */
int mmf_prepack_borrowed_align(int layout);

/* Bring a weight into a layout (64-byte aligned), and back, without rounding; on a GPU in the order
 * of the weight's stream. Nothing happens where K or N is 0. */
mmf_status mmf_prepack(int layout, const mmf_weight *weight, void *packed);
mmf_status mmf_unpack(int layout, const mmf_weight *weight, const void *packed);

/* Read the environment, once per process: at import, before anything else here is called. */
void mmf_read_environment(void);

/* --- devices --- */

/* Compute units of a GPU, 0 if it cannot be used. */
int mmf_device_units(mmf_device device);

/* Bytes a second that all units of a GPU reach from memory, 0 if that is not known. */
double mmf_device_bandwidth(mmf_device device);

#define MMF_HOST_THREADS 1024 /* the most that can be asked for */

/* What a GPU and its driver are called, cut to size; "" of the CPU, and of a GPU that cannot be
 * used. */
void mmf_device_identity(mmf_device device, char *text, size_t size);

/* Bytes a second that a thread reads from memory. */
double mmf_host_bandwidth(void);

const char *mmf_host_features(void);
int mmf_host_get_threads(void);
void mmf_host_set_threads(int threads);
int mmf_host_use_threads(int threads); /* of this thread, 0: as all; returns what it was */
void mmf_host_join_threads(void); /* run on the OpenMP threads of this process, if it has any */

#endif
