/* explain, info, threads, force_kernel. Path of a call: off it; explain walks the same steps and
 * runs nothing. */
#include "binding/report.h"

#include "binding/call.h"
#include "binding/errors.h"
#include "plan/backends.h"
#include "plan/plan.h"
#include "problem/environment.h"

#include <string.h>

/* Every row before the chosen one, and why it refused: [(name, reason), ...]. */
static PyObject *refusals(const mmf_problem *problem, const mmf_kernel_row *chosen)
{
    PyObject *list = PyList_New(0);
    const mmf_kernel_row *row;
    for (int i = 0; list && (row = mmf_kernel_list(i)) && row != chosen; i++) {
        char reason[MMF_REASON_TEXT] = "";
        mmf_plan_accepts(row, problem, reason);
        PyObject *pair = Py_BuildValue("(ss)", row->name, reason);
        if (!pair || PyList_Append(list, pair))
            Py_CLEAR(list);
        Py_XDECREF(pair);
    }
    return list;
}

static PyObject *problem_text(const mmf_call *call)
{
    const mmf_problem *p = &call->own.problem;
    const mmf_activation_row *activation = mmf_activation_row_of((mmf_activation)p->activation);
    char shape[MMF_SHAPE_TEXT], device[24];
    return PyUnicode_FromFormat(
        "%s %s on %s, activation %s; as the kernel sees it: M=%lld N=%lld K=%lld, %d leading axes",
        mmf_shape_text(call->own.result.ndim, call->own.result.shape, shape),
        mmf_dtypes[call->own.result.dtype].name, mmf_device_name(p->device, device),
        activation->name, (long long)p->m, (long long)p->n, (long long)p->k, (int)p->batch_ndim);
}

PyObject *mmf_explain(PyObject *module, PyObject *const *arguments, Py_ssize_t count,
                      PyObject *keywords)
{
    mmf_state *state = mmf_state_of(module);
    mmf_call call;
    mmf_plan plan;
    PyObject *result = NULL;
    mmf_status status = mmf_call_begin(state, "explain", arguments, count, keywords, &call);
    if (!status)
        status = mmf_call_make(state, &call);
    if (!status)
        status = mmf_plan_choose(&call.own.problem, &plan);
    if (status) {
        mmf_raise(state, status);
    } else {
        PyObject *refused = refusals(&call.own.problem, plan.row),
                 *problem = refused ? problem_text(&call) : NULL;
        if (problem)
            result = Py_BuildValue(
                "{sOsss(iii)sisdsdsOsO}", "problem", problem, "kernel", plan.row->name, "tile",
                plan.config.tile_m, plan.config.tile_n, plan.config.tile_k, "threads",
                plan.config.threads, "flops", mmf_plan_flops(&call.own.problem), "seconds",
                mmf_plan_seconds(&call.own.problem, &plan), "rows_independent_of_m",
                plan.row->rows_independent_of_m ? Py_True : Py_False, "refused", refused);
        Py_XDECREF(problem);
        Py_XDECREF(refused);
    }
    mmf_call_end(&call);
    return result;
}

static PyObject *kernel_names(bool gpu)
{
    PyObject *list = PyList_New(0);
    const mmf_kernel_row *row;
    for (int i = 0; list && (row = mmf_kernel_list(i)); i++) {
        if (mmf_kernel_list_is_gpu(i) != gpu)
            continue;
        PyObject *name = PyUnicode_FromString(row->name);
        if (!name || PyList_Append(list, name))
            Py_CLEAR(list);
        Py_XDECREF(name);
    }
    return list;
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
    PyObject *kernels = kernel_names(false), *gpu_kernels = kernels ? kernel_names(true) : NULL;
    PyObject *variables = gpu_kernels ? environment() : NULL, *result = NULL;
    PyObject *ignored = variables ? complaints() : NULL;
    (void)module;
    (void)unused;
    if (ignored)
        result = Py_BuildValue("{sssOsOsssisOsO}", "version", MMF_VERSION, "kernels", kernels,
                               "gpu_kernels", gpu_kernels, "cpu_features", mmf_host_features(),
                               "threads", mmf_host_get_threads(), "environment", variables,
                               "ignored", ignored);
    Py_XDECREF(ignored);
    Py_XDECREF(variables);
    Py_XDECREF(gpu_kernels);
    Py_XDECREF(kernels);
    return result;
}

PyObject *mmf_set_num_threads(PyObject *module, PyObject *threads)
{
    mmf_state *state = mmf_state_of(module);
    char type[MMF_PRINTABLE];
    mmf_type_name(threads, type); /* before there is an exception, which repr() may not meet */
    bool index = !PyBool_Check(threads) && PyIndex_Check(threads);
    PyObject *number = index ? PyNumber_Index(threads) : NULL;
    if (!number) {
        mmf_raise_from(state, mmf_fail(MMF_TYPE_ERROR, "n must be an int, got %s", type));
        return NULL;
    }
    int overflow;
    long long count = PyLong_AsLongLongAndOverflow(number, &overflow);
    Py_DECREF(number);
    if (overflow)
        return mmf_raise(state, mmf_fail(MMF_VALUE_ERROR, "n must be from 1 to %d, got far %s",
                                         MMF_HOST_THREADS, overflow > 0 ? "more" : "less"));
    if (count < 1 || count > MMF_HOST_THREADS)
        return mmf_raise(state, mmf_fail(MMF_VALUE_ERROR, "n must be from 1 to %d, got %lld",
                                         MMF_HOST_THREADS, count));
    mmf_host_set_threads((int)count);
    return Py_NewRef(Py_None);
}

PyObject *mmf_get_num_threads(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyLong_FromLong(mmf_host_get_threads());
}

PyObject *mmf_force_kernel(PyObject *module, PyObject *name)
{
    const char *previous = NULL;
    char text[MMF_PRINTABLE];
    if (name != Py_None && !PyUnicode_Check(name))
        return mmf_raise(mmf_state_of(module),
                         mmf_fail(MMF_TYPE_ERROR, "name must be None or a str, got %s",
                                  mmf_type_name(name, text)));
    if (name != Py_None && !mmf_printable(name, text))
        return NULL;
    mmf_status status = mmf_plan_force(name != Py_None ? text : NULL, &previous);
    if (status)
        return mmf_raise(mmf_state_of(module), status);
    return previous ? PyUnicode_FromString(previous) : Py_NewRef(Py_None);
}
