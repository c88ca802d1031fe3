/* Owner of the copies of the environment variables. */
#include "problem/environment.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

const mmf_variable_row mmf_variables[MMF_ENV_COUNT] = {
    [MMF_ENV_NUM_THREADS] = {"MATMUL_FUSED_NUM_THREADS", "threads of the CPU back end"},
    [MMF_ENV_KERNEL] = {"MATMUL_FUSED_KERNEL",
                        "the only kernel that may run (a name from explain)"},
    [MMF_ENV_DISABLE] = {"MATMUL_FUSED_DISABLE", "kernels that may not run, separated by commas"},
    [MMF_ENV_HIP_LIBRARY] = {"MATMUL_FUSED_HIP_LIBRARY",
                             "the libamdhip64 to use, instead of the one that is found"},
    [MMF_ENV_CUDA_LIBRARY] = {"MATMUL_FUSED_CUDA_LIBRARY",
                              "the libcuda to use, instead of the one that is found"},
    [MMF_ENV_LOG] = {"MATMUL_FUSED_LOG",
                     "level of the logger \"matmul_fused\", written to stderr: debug, info, ..."},
};

static char *values[MMF_ENV_COUNT];

static void load(void)
{
    for (int i = 0; i < MMF_ENV_COUNT; i++) {
        const char *value = getenv(mmf_variables[i].name);
        values[i] = value && *value ? strdup(value) : NULL;
    }
}

void mmf_environment_load(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
}

const char *mmf_environment(mmf_variable variable)
{
    return values[variable];
}
