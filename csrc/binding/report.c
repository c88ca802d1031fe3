/* explain, info, threads, force_kernel. Not on the path of a call: explain walks the same steps and
 * runs nothing. */
#include "binding/report.h"

#include "binding/call.h"
#include "binding/errors.h"
#include "plan/backends.h"
#include "plan/plan.h"
#include "plan/tuned.h"
#include "problem/checks.h"
#include "problem/environment.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Modelled seconds of a kernel that takes the problem. */
static double predict(const mmf_problem *problem, const mmf_kernel *kernel)
{
    mmf_plan plan = {.kernel = kernel};
    double units = mmf_plan_units(problem->device);
    if (problem->device.type == MMF_CPU) {
        kernel->family->configure(kernel, problem, &plan.config);
        units = plan.config.threads;
    }
    return mmf_plan_seconds(problem, kernel, units, mmf_plan_bytes(problem));
}

/* Every kernel for the device: [(name, family, modelled seconds or None, None or why not, does it
 * give the bits of the model's choice), ...]. */
static PyObject *candidates(const mmf_problem *problem, const mmf_kernel *modelled)
{
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < MMF_KERNELS; i++) {
        const mmf_kernel *kernel = mmf_kernel_at(i);
        char reason[MMF_REASON_TEXT] = "";
        if (!mmf_kernel_is_for(kernel, problem->device))
            continue;
        PyObject *row =
            mmf_plan_accepts(i, problem, reason)
                ? Py_BuildValue("(ssdOO)", kernel->name, kernel->family->name,
                                predict(problem, kernel), Py_None,
                                mmf_plan_same_bits(kernel, modelled) ? Py_True : Py_False)
                : Py_BuildValue("(ssOsO)", kernel->name, kernel->family->name, Py_None, reason,
                                Py_False);
        if (!row || PyList_Append(list, row))
            Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

/* Append a name. False with an exception. */
static bool add_name(PyObject *list, const char *text)
{
    PyObject *name = PyUnicode_FromString(text);
    bool added = name && PyList_Append(list, name) == 0;
    Py_XDECREF(name);
    return added;
}

/* The names of a plan's launches. */
static PyObject *launches(const mmf_plan *plan)
{
    PyObject *list = PyList_New(0);
    const char *name;
    for (int i = 0; list && (name = mmf_plan_launch(plan, i)); i++)
        if (!add_name(list, name))
            Py_CLEAR(list);
    return list;
}

static PyObject *problem_text(const mmf_call *call)
{
    const mmf_problem *p = &call->own.problem;
    const mmf_activation_row *activation = mmf_activation_row_of((mmf_activation)p->activation);
    char shape[MMF_SHAPE_TEXT], device[24], numbers[64] = "";
    for (int i = MMF_BIAS; i <= MMF_MULTIPLY; i++)
        if (call->request.terms.immediates & mmf_immediate((mmf_operand)i)) {
            const size_t length = strlen(numbers);
            snprintf(numbers + length, sizeof numbers - length, "%s%s", length ? ", " : "",
                     mmf_operand_name(&call->request, (mmf_operand)i));
        }
    return PyUnicode_FromFormat(
        "%s %s on %s, activation %s%s%s; as the kernel sees it: M=%lld N=%lld K=%lld, %d leading "
        "axes",
        mmf_shape_text(call->own.result.ndim, call->own.result.shape, shape),
        mmf_dtypes[call->own.result.dtype].name, mmf_device_name(p->device, device),
        activation->name, numbers[0] ? ", numbers as " : "", numbers, (long long)p->m,
        (long long)p->n, (long long)p->k, (int)p->batch_ndim);
}

/* What a measured choice for the problem is kept under. */
static PyObject *tuned_key(const mmf_problem *problem)
{
    const mmf_tuned_key key = mmf_tuned_key_of(problem);
    char text[40];
    snprintf(text, sizeof text, "%016llx%016llx", (unsigned long long)key.word[0],
             (unsigned long long)key.word[1]);
    return PyUnicode_FromString(text);
}

PyObject *mmf_explain(PyObject *module, PyObject *const *arguments, Py_ssize_t count,
                      PyObject *keywords)
{
    mmf_state *state = mmf_state_of(module);
    mmf_call call;
    PyObject *result = NULL;
    mmf_status status = mmf_call_begin(state, "explain", arguments, count, keywords, false, &call);
    if (!status)
        status = mmf_call_make(state, &call);
    if (!status)
        status = mmf_plan_choose(&call.own.problem, &call.own.plan);
    if (!status)
        status = mmf_call_check_workspace(&call);
    if (status) {
        mmf_raise(state, status);
    } else {
        const mmf_problem *p = &call.prepared->problem;
        const mmf_plan *plan = &call.prepared->plan;
        const mmf_kernel *modelled = mmf_plan_modelled(p);
        char device[24];
        PyObject *list = candidates(p, modelled), *problem = list ? problem_text(&call) : NULL;
        PyObject *steps = problem ? launches(plan) : NULL;
        if (steps)
            result =
                Py_BuildValue("{sOsssss(iii)sisOsLsdsdsOsOsssdsNss}", "problem", problem, "kernel",
                              plan->kernel->name, "family", plan->kernel->family->name, "tile",
                              plan->config.tile_m, plan->config.tile_n, plan->config.tile_k,
                              "threads", plan->config.threads, "launches", steps, "workspace",
                              (long long)plan->config.workspace_bytes, "flops", mmf_plan_flops(p),
                              "seconds", predict(p, plan->kernel), "rows_independent_of_m",
                              plan->kernel->family->rows_independent_of_m ? Py_True : Py_False,
                              "candidates", list, "modelled", modelled->name, "tuned", plan->tuned,
                              "key", tuned_key(p), "device", mmf_device_name(p->device, device));
        Py_XDECREF(steps);
        Py_XDECREF(problem);
        Py_XDECREF(list);
    }
    mmf_call_end(&call);
    return result;
}

/* Kernels of the CPU or of GPUs, or their families, best first. */
static PyObject *kernel_names(bool gpu, bool families)
{
    PyObject *list = PyList_New(0);
    const mmf_family *before = NULL;
    for (int i = 0; list && i < MMF_KERNELS; i++) {
        const mmf_kernel *kernel = mmf_kernel_at(i);
        const bool again = families && kernel->family == before;
        before = kernel->family;
        if (gpu == (kernel->devices >> MMF_CPU & 1) || again)
            continue;
        if (!add_name(list, families ? kernel->family->name : kernel->name))
            Py_CLEAR(list);
    }
    return list;
}

/* A set of kernels as the text that makes it, or None if it is empty. */
static PyObject *set_text(const mmf_kernel_set *set)
{
    PyObject *list = PyList_New(0), *separator = list ? PyUnicode_FromString(", ") : NULL;
    PyObject *text = NULL;
    const char *name;
    for (int index = 0; separator && list && (name = mmf_kernel_set_next(set, &index));)
        if (!add_name(list, name))
            Py_CLEAR(list);
    if (separator && list)
        text = PyList_Size(list) ? PyUnicode_Join(separator, list) : Py_NewRef(Py_None);
    Py_XDECREF(separator);
    Py_XDECREF(list);
    return text;
}

static PyObject *environment(void)
{
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < MMF_ENV_COUNT; i++) {
        const char *text = mmf_environment((mmf_variable)i);
        PyObject *value = text ? PyUnicode_DecodeFSDefault(text) : Py_NewRef(Py_None);
        PyObject *row =
            value ? Py_BuildValue("(ssO)", mmf_variables[i].name, mmf_variables[i].meaning, value)
                  : NULL;
        Py_XDECREF(value);
        if (!row || PyList_Append(list, row))
            Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

/* [(variable, why its value or a part of it is ignored), ...]. */
static PyObject *complaints(void)
{
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < MMF_ENV_COUNT; i++) {
        const char *text = mmf_environment_complaint((mmf_variable)i);
        if (!text)
            continue;
        PyObject *why = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "surrogateescape");
        PyObject *row = why ? Py_BuildValue("(sO)", mmf_variables[i].name, why) : NULL;
        Py_XDECREF(why);
        if (!row || PyList_Append(list, row))
            Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

PyObject *mmf_info(PyObject *module, PyObject *unused)
{
    PyObject *kernels = kernel_names(false, false);
    PyObject *gpu_kernels = kernels ? kernel_names(true, false) : NULL;
    PyObject *gpu_families = gpu_kernels ? kernel_names(true, true) : NULL;
    PyObject *variables = gpu_families ? environment() : NULL, *result = NULL;
    PyObject *ignored = variables ? complaints() : NULL;
    (void)module;
    (void)unused;
    if (ignored)
        result = Py_BuildValue(
            "{sssOsOsOsssisOsO}", "version", MMF_VERSION, "kernels", kernels, "gpu_kernels",
            gpu_kernels, "gpu_families", gpu_families, "cpu_features", mmf_host_features(),
            "threads", mmf_host_get_threads(), "environment", variables, "ignored", ignored);
    Py_XDECREF(ignored);
    Py_XDECREF(variables);
    Py_XDECREF(gpu_families);
    Py_XDECREF(gpu_kernels);
    Py_XDECREF(kernels);
    return result;
}

/* A number of threads. False with an exception. */
static bool parse_threads(mmf_state *state, PyObject *threads, int *n)
{
    char type[MMF_PRINTABLE];
    mmf_describe(threads, type); /* before there is an exception, which repr() may not meet */
    bool index = !PyBool_Check(threads) && PyIndex_Check(threads);
    PyObject *number = index ? PyNumber_Index(threads) : NULL;
    if (!number) {
        mmf_raise_from(state, mmf_fail(MMF_TYPE_ERROR, "n must be an int, got %s", type));
        return false;
    }
    int overflow;
    long long count = PyLong_AsLongLongAndOverflow(number, &overflow);
    Py_DECREF(number);
    if (overflow)
        mmf_raise(state, mmf_fail(MMF_VALUE_ERROR, "n must be from 1 to %d, got far %s",
                                  MMF_HOST_THREADS, overflow > 0 ? "more" : "less"));
    else if (count < 1 || count > MMF_HOST_THREADS)
        mmf_raise(state, mmf_fail(MMF_VALUE_ERROR, "n must be from 1 to %d, got %lld",
                                  MMF_HOST_THREADS, count));
    else
        *n = (int)count;
    return !PyErr_Occurred();
}

PyObject *mmf_set_num_threads(PyObject *module, PyObject *threads)
{
    int n;
    if (!parse_threads(mmf_state_of(module), threads, &n))
        return NULL;
    mmf_host_set_threads(n);
    return Py_NewRef(Py_None);
}

PyObject *mmf_use_num_threads(PyObject *module, PyObject *threads)
{
    int n = 0;
    if (threads != Py_None && !parse_threads(mmf_state_of(module), threads, &n))
        return NULL;
    const int before = mmf_host_use_threads(n);
    return before ? PyLong_FromLong(before) : Py_NewRef(Py_None);
}

PyObject *mmf_get_num_threads(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyLong_FromLong(mmf_host_get_threads());
}

/* A list of names as C has it; one with characters that no name has, escaped. NULL with an
 * exception. */
static const char *names_text(PyObject *names, char text[MMF_PRINTABLE])
{
    Py_ssize_t length = 0;
    const char *list = PyUnicode_AsUTF8AndSize(names, &length);
    bool plain = list != NULL;
    for (Py_ssize_t i = 0; plain && i < length; i++)
        plain = list[i] >= ' ' && list[i] <= '~';
    if (plain)
        return list;
    PyErr_Clear(); /* lint: a lone surrogate is no UTF-8, and is escaped */
    return mmf_printable(names, text);
}

PyObject *mmf_force_kernel(PyObject *module, PyObject *names)
{
    mmf_kernel_set previous;
    const char *list = NULL;
    char text[MMF_PRINTABLE];
    if (names != Py_None && !PyUnicode_Check(names))
        return mmf_raise(mmf_state_of(module),
                         mmf_fail(MMF_TYPE_ERROR, "name must be None or a str, got %s",
                                  mmf_describe(names, text)));
    if (names != Py_None && !(list = names_text(names, text)))
        return NULL;
    mmf_status status = mmf_plan_force(list, &previous);
    return status ? mmf_raise(mmf_state_of(module), status) : set_text(&previous);
}

/* ((name, default or None), ...) */
static PyObject *parameters_of(const mmf_activation_row *row)
{
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < MMF_MAX_PARAMETERS && row->parameter[i].name; i++) {
        const mmf_parameter *p = &row->parameter[i];
        PyObject *pair = isnan(p->value) ? Py_BuildValue("(sO)", p->name, Py_None)
                                         : Py_BuildValue("(sd)", p->name, p->value);
        if (!pair || PyList_Append(list, pair))
            Py_CLEAR(list);
        Py_XDECREF(pair);
    }
    PyObject *tuple = list ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    return tuple;
}

/* Its names but the first. */
static PyObject *aliases_of(mmf_activation id)
{
    PyObject *list = PyList_New(0);
    for (int i = MMF_ACT_COUNT; list && i < MMF_ACTIVATION_NAMES; i++)
        if (mmf_activation_names[i].id == id && !add_name(list, mmf_activation_names[i].name))
            Py_CLEAR(list);
    PyObject *tuple = list ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    return tuple;
}

PyObject *mmf_activation_table(PyObject *module, PyObject *unused)
{
    PyObject *list = PyList_New(0);
    (void)module;
    (void)unused;
    for (int i = 0; list && i < MMF_ACT_COUNT; i++) {
        const mmf_activation_row *row = mmf_activation_row_of((mmf_activation)i);
        PyObject *parameters = parameters_of(row);
        PyObject *aliases = parameters ? aliases_of((mmf_activation)i) : NULL;
        PyObject *item = aliases
                             ? Py_BuildValue("(sOssOO)", row->name, row->gated ? Py_True : Py_False,
                                             row->formula, row->source, parameters, aliases)
                             : NULL;
        if (!item || PyList_Append(list, item))
            Py_CLEAR(list);
        Py_XDECREF(item);
        Py_XDECREF(aliases);
        Py_XDECREF(parameters);
    }
    return list;
}
