/* The ordered list of kernels, best first, and the choice among them: the only file that names
 * rows. Path of a call: after problem/; what it returns is run by the binding. */
#include "plan/plan.h"

#include "cpu/rows.h"
#include "gpu/rows.h"
#include "problem/environment.h"

#include <stdio.h>
#include <string.h>

static const mmf_kernel_row *const rows[] = {
#if defined(__x86_64__)
    &mmf_cpu_blocked_avx2,
#endif
    &mmf_cpu_blocked,      &mmf_cpu_reference, &mmf_gpu_mfma, &mmf_gpu_simt,
};

enum { ROWS = sizeof rows / sizeof *rows, GPU_ROWS = 2 }; /* those of GPUs are the last */

static MMF_THREAD_LOCAL const mmf_kernel_row *forced;
static const mmf_kernel_row *only; /* of MATMUL_FUSED_KERNEL; set once, at import */

const mmf_kernel_row *mmf_kernel_list(int index)
{
    return index < ROWS ? rows[index] : NULL;
}

bool mmf_kernel_list_is_gpu(int index)
{
    return index >= ROWS - GPU_ROWS;
}

static const mmf_kernel_row *find(const char *name)
{
    for (int i = 0; i < ROWS; i++)
        if (strcmp(rows[i]->name, name) == 0)
            return rows[i];
    return NULL;
}

/* "cpu_a, cpu_b": every row. */
static const char *all_names(char text[256])
{
    text[0] = 0;
    for (int i = 0; i < ROWS; i++)
        snprintf(text + strlen(text), 256 - strlen(text), "%s%s", i ? ", " : "", rows[i]->name);
    return text;
}

/* The next of the names in a list, which blanks and commas separate; *length is 0 at its end. */
static const char *next_name(const char *list, size_t *length)
{
    list += strspn(list, " ,");
    *length = strcspn(list, " ,");
    return list;
}

static bool listed(const char *list, const char *name)
{
    size_t length;
    for (list = next_name(list, &length); length; list = next_name(list + length, &length))
        if (strlen(name) == length && memcmp(list, name, length) == 0)
            return true;
    return false;
}

static bool is_name(const char *text, size_t length)
{
    for (int i = 0; i < ROWS; i++)
        if (strlen(rows[i]->name) == length && memcmp(rows[i]->name, text, length) == 0)
            return true;
    return false;
}

void mmf_plan_read_environment(void)
{
    const char *name = mmf_environment(MMF_ENV_KERNEL), *list = mmf_environment(MMF_ENV_DISABLE);
    char names[256];
    size_t length;
    only = name ? find(name) : NULL;
    if (name && !only)
        mmf_environment_complain(MMF_ENV_KERNEL, "ignored, the kernels of this build are %s",
                                 all_names(names));
    for (list = next_name(list ? list : "", &length); length;
         list = next_name(list + length, &length))
        if (!is_name(list, length))
            mmf_environment_complain(MMF_ENV_DISABLE,
                                     "\"%.*s\" is ignored, the kernels of this build are %s",
                                     (int)(length < 64 ? length : 64), list, all_names(names));
}

mmf_status mmf_plan_force(const char *name, const char **previous)
{
    const mmf_kernel_row *row = name ? find(name) : NULL;
    if (name && !row) {
        char names[256];
        return mmf_fail(MMF_VALUE_ERROR, "unknown kernel \"%s\"; this build has %s", name,
                        all_names(names));
    }
    *previous = forced ? forced->name : NULL;
    forced = row;
    return MMF_OK;
}

const mmf_kernel_row *mmf_plan_forced(void)
{
    return forced;
}

bool mmf_plan_accepts(const mmf_kernel_row *row, const mmf_problem *problem, char *reason)
{
    const mmf_kernel_row *wanted = forced ? forced : only;
    const char *disabled = mmf_environment(MMF_ENV_DISABLE);
    if (wanted && row != wanted) {
        snprintf(reason, MMF_REASON_TEXT, "%s is forced%s", wanted->name,
                 forced ? "" : " by MATMUL_FUSED_KERNEL");
        return false;
    }
    if (disabled && listed(disabled, row->name)) {
        snprintf(reason, MMF_REASON_TEXT, "disabled by MATMUL_FUSED_DISABLE");
        return false;
    }
    return row->supports(problem, reason);
}

/* Rows of the other kind of device would refuse, but not for nothing: they are passed over. */
static void range_of(const mmf_problem *problem, int *first, int *end)
{
    bool gpu = problem->device.type != MMF_CPU;
    *first = gpu ? ROWS - GPU_ROWS : 0;
    *end = gpu ? ROWS : ROWS - GPU_ROWS;
}

/* The refusal of a problem, with the reason of every row that may have been meant. */
__attribute__((cold)) static mmf_status refuse(const mmf_problem *problem)
{
    char reasons[ROWS * (MMF_REASON_TEXT + 32)] = "", *text = reasons;
    int first, end;
    range_of(problem, &first, &end);
    for (int i = 0; i < ROWS; i++) {
        char reason[MMF_REASON_TEXT] = "";
        if ((i < first || i >= end) && rows[i] != forced)
            continue;
        mmf_plan_accepts(rows[i], problem, reason);
        text += sprintf(text, "%s%s: %s", *reasons ? "; " : "", rows[i]->name, reason);
    }
    return mmf_fail(MMF_NOT_IMPLEMENTED, "no kernel takes this call (%s)", reasons);
}

mmf_status mmf_plan_choose(const mmf_problem *problem, mmf_plan *plan)
{
    int first, end;
    range_of(problem, &first, &end);
    for (int i = first; i < end; i++) {
        char reason[MMF_REASON_TEXT];
        if (mmf_plan_accepts(rows[i], problem, reason)) {
            plan->row = rows[i];
            rows[i]->configure(problem, &plan->config);
            return MMF_OK;
        }
    }
    return refuse(problem);
}
