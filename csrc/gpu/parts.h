/* What is known of a GPU besides what its driver says: rows of parts.def. Path of a call: asked by
 * the cost model and by the grid of a launch. */
#ifndef MMF_GPU_PARTS_H
#define MMF_GPU_PARTS_H

#include "problem/tensor.h"

typedef struct mmf_gpu_part { /* the columns of parts.def */
    const char *arch;
    int die[2];
    double memory, reached, cache, flops[MMF_DTYPE_COUNT], read, flight, hertz;
    int wave, issue;
} mmf_gpu_part;

/* The row of a GPU, or of an architecture as the driver says it; or NULL. */
const mmf_gpu_part *mmf_gpu_part_of(mmf_device device);
const mmf_gpu_part *mmf_gpu_part_named(const char *arch);

/* Bytes a second that it reaches from memory; 0: not known. */
double mmf_gpu_bandwidth(mmf_device device);

/* How many dies deal workgroups out among each other, by the count of compute units: at least 1. A
 * partition has fewer. */
int mmf_gpu_dies(mmf_device device);
int mmf_gpu_dies_of(const mmf_gpu_part *part, int units);

#endif
