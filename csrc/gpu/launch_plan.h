/* What a call puts on a GPU's stream: up to three launches with their arguments, made once and kept
 * by the plan cache. Path of a call: made by configure() of a family, run by its run(). */
#ifndef MMF_GPU_LAUNCH_PLAN_H
#define MMF_GPU_LAUNCH_PLAN_H

#include "gpu/devices.h"

enum { MMF_ARGUMENT_ALIGN = 64 };
enum { MMF_ARGUMENT_BYTES = MMF_CONFIG_BYTES - 256 }; /* of all launches of a plan */

typedef struct mmf_launch {
    int16_t instance; /* of kernels.def; its row has the threads of a workgroup */
    /* The argument, one struct passed by value, lies at this offset of the plan's arguments. */
    uint16_t argument;
    uint32_t dynamic_bytes; /* of LDS or shared memory, besides the row's static ones */
    uint32_t cluster;       /* workgroups of a cluster along x; 0: no clusters */
    bool overlaps;          /* may begin before the kernel before it is done; only with clusters */
    uint32_t grid_y, grid_z;
    /* Workgroups along x. More than MMF_MAX_GRID are several launches, where first says at which
     * offset of the argument the index of their first workgroup stands, an int64; 0: nowhere. */
    int64_t grid_x;
    uint32_t first;
} mmf_launch;

/* Workgroups of one launch along x: times 1024 threads they stay below the 2^32 that HIP counts. */
enum { MMF_MAX_GRID = 1 << 21 };

typedef struct mmf_launch_plan {
    /* Put the addresses of a call, and what is made of them (tensor maps), into a copy of the
     * arguments. */
    mmf_status (*bind)(const struct mmf_launch_plan *plan, const mmf_problem *problem,
                       const mmf_buffers *buffers, unsigned char *arguments);
    int launches;       /* 0: there is nothing to compute */
    int argument_bytes; /* in use */
    mmf_launch launch[MMF_MAX_LAUNCHES];
    _Alignas(MMF_ARGUMENT_ALIGN) unsigned char arguments[MMF_ARGUMENT_BYTES];
} mmf_launch_plan;

_Static_assert(sizeof(mmf_launch_plan) <= MMF_CONFIG_BYTES, "configure() hands it to run()");

/* Begin a plan without launches in config->own. */
mmf_launch_plan *mmf_launch_plan_begin(mmf_config *config);

/* Add a launch of an instance with an argument of so many bytes, which are 0 and to be filled; the
 * grid is one workgroup. */
mmf_launch *mmf_launch_plan_add(mmf_launch_plan *plan, int instance, size_t bytes);

static inline void *mmf_launch_argument(mmf_launch_plan *plan, const mmf_launch *launch)
{
    return plan->arguments + launch->argument;
}

/* Names of the instances that a plan launches, in their order, or NULL past the last one. */
const char *mmf_launch_plan_name(const mmf_config *config, int launch);

/* Let config's run() load the instances of another plan too. */
void mmf_launch_plan_spare(mmf_config *config, const mmf_config *other);

/* Can a call have so many bytes of workspace? False with the reason. Asked by supports() of
 * families whose plans need one. */
bool mmf_launch_plan_workspace(const mmf_problem *problem, int64_t bytes, char *reason);

/* Enqueue the launches on buffers->stream, in their order; does not wait. All kernels are loaded
 * before the first is launched. */
mmf_status mmf_launch_plan_run(const mmf_problem *problem, const mmf_config *config,
                               const mmf_buffers *buffers);

#endif
