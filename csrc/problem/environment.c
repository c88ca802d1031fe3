/* Owner of the copies of the environment variables. Not on the path of a call: read once, at
 * import.
 */
#include "problem/environment.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const mmf_variable_row mmf_variables[MMF_ENV_COUNT] = {
    [MMF_ENV_NUM_THREADS] = {"MATMUL_FUSED_NUM_THREADS", "threads of the CPU back end, 1 to 1024"},
    [MMF_ENV_KERNEL] = {"MATMUL_FUSED_KERNEL",
                        "the only kernels that may run, or families of them (names from explain), "
                        "separated by commas; a device for which none is named is unaffected"},
    [MMF_ENV_DISABLE] = {"MATMUL_FUSED_DISABLE", "kernels that may not run, separated by commas"},
    [MMF_ENV_HIP_LIBRARY] = {"MATMUL_FUSED_HIP_LIBRARY",
                             "the libamdhip64 to use, instead of the one that is found"},
    [MMF_ENV_CUDA_LIBRARY] = {"MATMUL_FUSED_CUDA_LIBRARY",
                              "the libcuda to use, instead of the one that is found"},
    [MMF_ENV_CACHE_DIR] = {"MATMUL_FUSED_CACHE_DIR",
                           "the folder of the tune store, instead of matmul_fused in "
                           "XDG_CACHE_HOME or ~/.cache"},
    [MMF_ENV_TUNE] = {"MATMUL_FUSED_TUNE", "\"off\": the tune store is neither read nor written"},
    [MMF_ENV_LOG] = {"MATMUL_FUSED_LOG",
                     "level of the logger \"matmul_fused\", written to stderr: debug, info, ..."},
};

static char *values[MMF_ENV_COUNT];
static char complaints[MMF_ENV_COUNT][1280];

static void load(void)
{
    for (int i = 0; i < MMF_ENV_COUNT; i++) {
        const char *value = getenv(mmf_variables[i].name);
        values[i] = value && *value ? strdup(value) : NULL;
        if (value && *value && !values[i])
            mmf_environment_complain((mmf_variable)i, "ignored, no memory to copy it");
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

void mmf_environment_complain(mmf_variable variable, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(complaints[variable], sizeof complaints[variable], format, arguments);
    va_end(arguments);
}

const char *mmf_environment_complaint(mmf_variable variable)
{
    return complaints[variable][0] ? complaints[variable] : NULL;
}
