/* AMD GPUs that run the machine code built for another one, its elder: parts of the same
 * instructions under names of their own. Path of a call: the first one on such a GPU. */
#ifndef MMF_GPU_SIBLINGS_H
#define MMF_GPU_SIBLINGS_H

#include "gpu/objects.h"
#include "problem/status.h"

/* The target whose objects `arch` runs as well, or NULL. */
const char *mmf_gpu_elder(const char *arch);

/* Sibling number index and its elder, or NULL past the end. */
const char *mmf_gpu_sibling(int index, const char **elder);

/* *copy: an elder's object that says it is for `arch`, as the driver takes no other; to be freed.
 * Fails without memory, and if the object is none of its elder's. */
mmf_status mmf_gpu_object_for(const mmf_device_object *object, const char *arch,
                              unsigned char **copy);

#endif
