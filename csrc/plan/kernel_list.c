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

static _Thread_local const mmf_kernel_row *forced;

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

/* Is name one of the comma-separated names in list? */
static bool listed(const char *list, const char *name)
{
    size_t length = strlen(name);
    while (list) {
        list += strspn(list, " ,");
        if (strncmp(list, name, length) == 0 && strchr(" ,", list[length]))
            return true;
        list = strchr(list, ',');
    }
    return false;
}

mmf_status mmf_plan_force(const char *name, const char **previous)
{
    const mmf_kernel_row *row = name ? find(name) : NULL;
    if (name && !row) {
        char names[256] = "";
        for (int i = 0; i < ROWS; i++)
            snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i ? ", " : "",
                     rows[i]->name);
        return mmf_fail(MMF_VALUE_ERROR, "unknown kernel \"%.64s\"; this build has %s", name,
                        names);
    }
    *previous = forced ? forced->name : NULL;
    forced = row;
    return MMF_OK;
}

bool mmf_plan_accepts(const mmf_kernel_row *row, const mmf_problem *problem, char *reason)
{
    const char *only = mmf_environment(MMF_ENV_KERNEL),
               *disabled = mmf_environment(MMF_ENV_DISABLE);
    if (forced ? row != forced : only && strcmp(only, row->name)) {
        snprintf(reason, MMF_REASON_TEXT, "%s is forced%s", forced ? forced->name : only,
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
