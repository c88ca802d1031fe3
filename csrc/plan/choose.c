/* The choice among the kernels: what none of them may lack is checked here, and scores decide. Path
 * of a call: after problem/; what it returns is run by the binding. */
#include "plan/plan.h"

#include "gpu/launch_plan.h"
#include "plan/tuned.h"
#include "problem/environment.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static MMF_THREAD_LOCAL mmf_kernel_set forced;
static mmf_kernel_set only, disabled; /* of the environment; set once, at import */

void mmf_plan_read_environment(void)
{
    const mmf_kernel_set all = mmf_kernel_set_all();
    const struct {
        mmf_variable variable;
        mmf_kernel_set *set;
    } lists[] = {{MMF_ENV_KERNEL, &only}, {MMF_ENV_DISABLE, &disabled}};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        const char *names = mmf_environment(lists[i].variable), *unknown;
        char text[1024];
        size_t length;
        while (names) {
            names = mmf_kernel_set_add(lists[i].set, names, &unknown, &length);
            if (length && !mmf_environment_complaint(lists[i].variable))
                mmf_environment_complain(lists[i].variable,
                                         "\"%.*s\" is ignored, the kernels of this build are %s",
                                         (int)(length < 64 ? length : 64), unknown,
                                         mmf_kernel_set_text(&all, text, sizeof text));
        }
    }
    const char *tune = mmf_environment(MMF_ENV_TUNE);
    if (tune && strcasecmp(tune, "off") != 0)
        mmf_environment_complain(MMF_ENV_TUNE, "ignored, the one value is \"off\"");
}

enum { NAME_TEXT = 64 * 10 }; /* of 64 characters, all of them escaped: \U0001d173 */

mmf_status mmf_plan_force(const char *names, mmf_kernel_set *previous)
{
    mmf_kernel_set set = {{0}};
    const char *unknown = "", *left = names;
    size_t length = 0;
    while (left && !length)
        left = mmf_kernel_set_add(&set, left, &unknown, &length);
    if (length || (names && !mmf_kernel_set_any(&set))) {
        const mmf_kernel_set all = mmf_kernel_set_all();
        char text[1024];
        return mmf_fail(MMF_VALUE_ERROR, "unknown kernel \"%.*s\"; this build has %s",
                        (int)(length < NAME_TEXT ? length : NAME_TEXT), unknown,
                        mmf_kernel_set_text(&all, text, sizeof text));
    }
    *previous = forced;
    forced = set;
    return MMF_OK;
}

const mmf_kernel_set *mmf_plan_forced(void)
{
    return &forced;
}

/* Append to a text of size bytes, as much as there is room for. */
__attribute__((format(printf, 3, 4))) static void append(char *text, size_t size,
                                                         const char *format, ...)
{
    const size_t length = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + length, size - length, format, arguments);
    va_end(arguments);
}

/* MMF_DTYPE_BIT() of the dtypes of A and B that some kernel of the family takes. */
static uint32_t operands_of(const mmf_family *family)
{
    uint32_t operands = 0;
    for (int i = 0; i < MMF_KERNELS; i++)
        if (mmf_kernel_at(i)->family == family)
            operands |= mmf_kernel_at(i)->operands;
    return operands;
}

/* Does the family implement everything that the problem needs, for every dtype? */
static bool implements(const mmf_kernel *kernel, const mmf_problem *problem, char *reason)
{
    const uint32_t missing = problem->features & ~kernel->family->features;
    const char *separator = "";
    if (missing) {
        snprintf(reason, MMF_REASON_TEXT, "does not implement ");
        for (int i = 0; i < MMF_FEATURES; i++)
            if (missing & MMF_HAS(i)) {
                append(reason, MMF_REASON_TEXT, "%s%s", separator, mmf_feature_name(i));
                separator = ", ";
            }
        return false;
    }
    if (!(kernel->operands & MMF_DTYPE_BIT(problem->dtype[MMF_A]))) {
        const uint32_t all = operands_of(kernel->family),
                       own = MMF_DTYPE_BIT(problem->dtype[MMF_A]);
        snprintf(reason, MMF_REASON_TEXT, "takes ");
        for (int i = 0; i < MMF_DTYPE_COUNT; i++)
            if ((all & own ? kernel->operands : all) & MMF_DTYPE_BIT(i)) {
                append(reason, MMF_REASON_TEXT, "%s%s", separator, mmf_dtypes[i].name);
                separator = " and ";
            }
        append(reason, MMF_REASON_TEXT, " only");
        return false;
    }
    for (int i = 0; i < MMF_OPERANDS; i++)
        if (problem->dtype[i] != MMF_ABSENT &&
            !(kernel->family->dtypes & MMF_DTYPE_BIT(problem->dtype[i]))) {
            snprintf(reason, MMF_REASON_TEXT, "does not take %s of dtype %s", mmf_operands[i].name,
                     mmf_dtypes[problem->dtype[i]].name);
            return false;
        }
    return true;
}

/* The kernels that force_kernel, else the environment, asks for on a device; NULL: any. */
static const mmf_kernel_set *wanted_on(mmf_device device)
{
    return mmf_kernel_set_concerns(&forced, device) ? &forced
           : mmf_kernel_set_concerns(&only, device) ? &only
                                                    : NULL;
}

/* May a kernel for a device run on it, whatever the problem? wanted: of wanted_on(). */
static bool permitted(int index, const mmf_kernel_set *wanted)
{
    return (!wanted || mmf_kernel_set_has(wanted, index)) && !mmf_kernel_set_has(&disabled, index);
}

static bool takes(const mmf_kernel *kernel, const mmf_problem *problem, char *reason)
{
    return implements(kernel, problem, reason) && kernel->family->supports(kernel, problem, reason);
}

bool mmf_plan_accepts(int index, const mmf_problem *problem, char *reason)
{
    const mmf_kernel *kernel = mmf_kernel_at(index);
    char text[MMF_REASON_TEXT - 48], device[24];
    if (!mmf_kernel_is_for(kernel, problem->device)) {
        snprintf(reason, MMF_REASON_TEXT, "does not run on %s",
                 mmf_device_name(problem->device, device));
        return false;
    }
    const mmf_kernel_set *wanted = wanted_on(problem->device);
    if (!permitted(index, wanted)) {
        if (wanted && !mmf_kernel_set_has(wanted, index))
            snprintf(reason, MMF_REASON_TEXT, "%s is forced%s",
                     mmf_kernel_set_text(wanted, text, sizeof text),
                     wanted == &forced ? "" : " by MATMUL_FUSED_KERNEL");
        else
            snprintf(reason, MMF_REASON_TEXT, "disabled by MATMUL_FUSED_DISABLE");
        return false;
    }
    return takes(kernel, problem, reason);
}

/* The refusal of a problem, with the reason of every kernel for its device; instances of a family
 * that have one reason are named by the family. */
__attribute__((cold)) static mmf_status refuse(const mmf_problem *problem)
{
    char reasons[2800] = "", reason[MMF_REASON_TEXT], last[MMF_REASON_TEXT] = "";
    const mmf_family *family = NULL;
    for (int i = 0; i < MMF_KERNELS; i++) {
        const mmf_kernel *kernel = mmf_kernel_at(i);
        if (!mmf_kernel_is_for(kernel, problem->device))
            continue;
        mmf_plan_accepts(i, problem, reason);
        if (kernel->family == family && strcmp(reason, last) == 0)
            continue;
        append(reasons, sizeof reasons, "%s%s: %s", *reasons ? "; " : "", kernel->family->name,
               reason);
        family = kernel->family;
        memcpy(last, reason, sizeof last);
    }
    return mmf_fail(MMF_NOT_IMPLEMENTED, "no kernel takes this call (%s)", reasons);
}

const mmf_kernel *mmf_plan_modelled(const mmf_problem *problem)
{
    const double units = mmf_plan_units(problem->device), bytes = mmf_plan_bytes(problem);
    const mmf_kernel_set *wanted = wanted_on(problem->device);
    const mmf_kernel *found = NULL;
    double best = 0, rate = 0;
    for (int i = mmf_kernel_begin(problem->device); i < mmf_kernel_end(problem->device); i++) {
        char reason[MMF_REASON_TEXT];
        const mmf_kernel *kernel = mmf_kernel_at(i);
        if (!mmf_kernel_is_for(kernel, problem->device) || !permitted(i, wanted) ||
            !takes(kernel, problem, reason))
            continue;
        const double score = mmf_plan_seconds(problem, kernel, units, bytes);
        const double gflops = mmf_plan_gflops(problem, kernel);
        if (found && (score > best || (score == best && gflops <= rate)))
            continue;
        found = kernel;
        best = score, rate = gflops;
    }
    return found;
}

bool mmf_plan_same_bits(const mmf_kernel *a, const mmf_kernel *b)
{
    return a == b || (a->family == b->family && a->family->same_bits);
}

static void configure(const mmf_kernel *kernel, const mmf_problem *problem, mmf_config *config)
{
    config->workspace_bytes = 0;
    config->spares = 0;
    config->general_epilogue = mmf_kernel_set_has(&forced, MMF_SET_GENERAL);
    kernel->family->configure(kernel, problem, config);
}

/* What would run if the call could have no workspace, to be loaded with the plan. */
static void add_spare(const mmf_problem *problem, mmf_config *config)
{
    mmf_problem without = *problem;
    mmf_config other;
    without.no_workspace = MMF_WORKSPACE_CAPTURED;
    const mmf_kernel *kernel = mmf_plan_modelled(&without);
    if (!kernel)
        return;
    configure(kernel, &without, &other);
    mmf_launch_plan_spare(config, &other);
}

mmf_status mmf_plan_choose(const mmf_problem *problem, mmf_plan *plan)
{
    char reason[MMF_REASON_TEXT];
    const mmf_tuned *tuned = mmf_tuned_find(problem);
    if (tuned && !mmf_plan_accepts(tuned->kernel, problem, reason))
        tuned = NULL;
    plan->tuned = tuned ? tuned->seconds : 0;
    plan->kernel = tuned ? mmf_kernel_at(tuned->kernel) : mmf_plan_modelled(problem);
    if (!plan->kernel)
        return refuse(problem);
    configure(plan->kernel, problem, &plan->config);
    if (plan->config.workspace_bytes)
        add_spare(problem, &plan->config);
    return MMF_OK;
}

double mmf_plan_layout_seconds(mmf_dtype dtype, int layout)
{
    enum { SIZE = 1024 };
    mmf_problem problem = {.m = SIZE, .n = SIZE, .k = SIZE, .alpha = 1};
    problem.packed = (uint8_t)layout;
    problem.features =
        MMF_HAS(MMF_A) | MMF_HAS(MMF_B) | MMF_HAS(MMF_OUT) | MMF_HAS(MMF_FEATURE_PACKED);
    memset(problem.dtype, MMF_ABSENT, sizeof problem.dtype);
    for (int o = 0; o < MMF_OPERANDS; o++)
        if (problem.features & MMF_HAS(o)) {
            problem.dtype[o] = (uint8_t)dtype;
            problem.strides[o] = (mmf_strides){.row = SIZE, .col = 1};
        }
    const mmf_kernel *kernel = mmf_plan_modelled(&problem);
    return kernel ? mmf_plan_seconds(&problem, kernel, 1, mmf_plan_bytes(&problem)) : INFINITY;
}

const char *mmf_plan_launch(const mmf_plan *plan, int launch)
{
    const bool on_gpu = !(plan->kernel->devices >> MMF_CPU & 1);
    return on_gpu ? mmf_launch_plan_name(&plan->config, launch) : NULL;
}
