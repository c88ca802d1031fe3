/* matmul_fused(): the table of contents of a call. parse, import, problem, plan, output, run,
 * return. Path of a call: the whole of it. */
#include "binding/call.h"

#include "binding/activations.h"
#include "binding/arguments.h"
#include "binding/device_order.h"
#include "binding/errors.h"
#include "binding/interrupt.h"
#include "binding/libraries/library.h"
#include "binding/output.h"
#include "binding/packed.h"
#include "binding/scalars.h"

#include <stdio.h>

enum { /* positions in the signature: the first names are its keywords */
#define MMF_ARGUMENT(id, name) ARG_##id,
#include "binding/signature.def"
#undef MMF_ARGUMENT
       ARG_COUNT
};

static const mmf_name signature_names[ARG_COUNT] = {
#define MMF_ARGUMENT(id, name) MMF_NAME_##id,
#include "binding/signature.def"
#undef MMF_ARGUMENT
};

/* The operands that are arguments of their own: A and B, then those of the epilogue. */
static const struct {
    uint8_t argument, operand;
} passed[] = {
#define PASSED_ONE(id) {ARG_##id, MMF_##id},
#define PASSED_GATE(id) {ARG_##id, MMF_##id},
#define PASSED_UP(id)
#define MMF_OPERAND(id, name, axes, access, dtypes, stream) PASSED_##stream(id)
#include "problem/operands.def"
#undef MMF_OPERAND
};
enum { FIRST_OF_EPILOGUE = 2, PASSED = sizeof passed / sizeof *passed };

static bool given(PyObject *value)
{
    return value && value != Py_None;
}

/* gate_layout is given, or said by the activation's name: terms has it then. */
static mmf_status parse_gate_layout(PyObject *const *values, mmf_terms *terms)
{
    const mmf_gate_layout said = (mmf_gate_layout)terms->gate_layout;
    mmf_gate_layout layout = MMF_GATE_NONE;
    mmf_status status = MMF_OK;
    if (values[ARG_GATE_LAYOUT])
        status = mmf_parse_gate_layout(values[ARG_GATE_LAYOUT], &layout);
    if (status || !said) {
        terms->gate_layout = (uint8_t)layout;
        return status;
    }
    const char *name = mmf_activation_row_of((mmf_activation)terms->activation)->name;
    if (layout && layout != said)
        return mmf_fail(MMF_VALUE_ERROR,
                        "gate_layout is %s, but the activation is %s with gate_layout %s by its "
                        "name; drop gate_layout or pass \"%s\"",
                        mmf_gate_layout_name(layout), name, mmf_gate_layout_name(said), name);
    if (PyTuple_Check(values[ARG_B]))
        return mmf_fail(MMF_VALUE_ERROR,
                        "the activation is %s with gate_layout %s by its name, but B is a pair "
                        "(gate, up); pass \"%s\"",
                        name, mmf_gate_layout_name(said), name);
    return MMF_OK;
}

static mmf_status parse_terms(mmf_state *state, PyObject *const *values, mmf_terms *terms)
{
    mmf_status status = MMF_OK;
    terms->alpha = 1;
    terms->beta_given = given(values[ARG_BETA]);
    terms->out_dtype = MMF_ABSENT;
    if (values[ARG_ACTIVATION])
        status = mmf_parse_activation(state, values[ARG_ACTIVATION], terms);
    if (!status && values[ARG_ALPHA])
        status = mmf_parse_scalar(values[ARG_ALPHA], "alpha", &terms->alpha);
    if (!status && terms->beta_given)
        status = mmf_parse_scalar(values[ARG_BETA], "beta", &terms->beta);
    if (!status && (terms->gate_layout || values[ARG_GATE_LAYOUT]))
        status = parse_gate_layout(values, terms);
    if (!status && values[ARG_OUT_DTYPE]) {
        mmf_dtype dtype;
        status = mmf_parse_dtype(state, values[ARG_OUT_DTYPE], "out_dtype", &dtype);
        terms->out_dtype = (uint8_t)dtype;
    }
    if (!status && values[ARG_ALLOW_TF32]) {
        bool allow = false;
        status = mmf_parse_flag(values[ARG_ALLOW_TF32], "allow_tf32", &allow);
        terms->allow_tf32 = allow;
    }
    return status;
}

void mmf_call_clear(mmf_call *call)
{
    call->request = (mmf_request){0};
    call->prepared = &call->own;
    call->entry = NULL;
    call->imports = call->numbers = 0;
    call->out = NULL;
    call->packed_memory[0] = call->packed_memory[1] = NULL;
    call->borrowed[0] = call->borrowed[1] = NULL;
    call->workspace = (mmf_output){0};
}

void mmf_call_add_import(mmf_call *call, PyObject *object, const char *name, mmf_operand operand)
{
    mmf_import *import = &call->import[call->imports++];
    mmf_import_init(import, object, name);
    call->request.operand[operand] = &import->tensor;
}

/* B, or one of a pair. A PackedMatrix needs no import, the argument keeps it alive; but its array,
 * where it is borrowed. */
static mmf_status add_weight(mmf_state *state, mmf_call *call, PyObject *object, const char *name,
                             bool up, bool pair)
{
    mmf_request *request = &call->request;
    const mmf_operand operand = up ? MMF_B_UP : MMF_B;
    bool packed = mmf_is_packed(state, object);
    if (up && packed != (request->terms.packed != 0))
        return mmf_fail(MMF_TYPE_ERROR, "B[0] and B[1] must both be prepacked or both be arrays");
    if (!packed) {
        mmf_call_add_import(call, object, name, operand);
        return MMF_OK;
    }
    mmf_packed *weight = (mmf_packed *)object;
    if (pair && weight->gate != MMF_GATE_NONE)
        return mmf_fail(MMF_VALUE_ERROR,
                        "%s was prepacked with a gate_layout; pass it alone, or pack each of the "
                        "pair without",
                        name);
    const mmf_tensor *first = call->borrowed[0] ? &call->borrowed[0]->weight : &call->packed[0];
    const bool one_shape = up && !memcmp(first->shape, weight->weight.shape, 2 * sizeof(int64_t));
    if (one_shape && request->terms.packed != weight->layout) /* else the shapes are refused */
        return mmf_fail(MMF_VALUE_ERROR,
                        "B[0] and B[1] must be prepacked in one layout, got \"%s\" and \"%s\"",
                        mmf_prepack_layout_name(request->terms.packed),
                        mmf_prepack_layout_name(weight->layout));
    if (weight->owner) {
        call->borrowed[up] = weight;
        call->lender[up] = call->imports;
        mmf_call_add_import(call, weight->owner, name, operand);
    } else {
        call->packed[up] = weight->weight;
        call->packed_memory[up] = &weight->memory;
    }
    request->operand[operand] = &call->packed[up];
    request->terms.packed = (uint8_t)weight->layout;
    request->terms.packed_gate = (uint8_t)weight->gate;
    request->panels_up = up ? weight->weight.data : weight->up;
    return MMF_OK;
}

static mmf_status pair_size(PyObject *object, const char *name)
{
    if (PyTuple_Size(object) == 2)
        return MMF_OK;
    return mmf_fail(MMF_VALUE_ERROR, "%s is a tuple of %zd; a pair is (gate, up)", name,
                    PyTuple_Size(object));
}

static mmf_status add_weights(mmf_state *state, mmf_call *call, PyObject *object)
{
    if (mmf_is_known_array(state, object)) {
        mmf_call_add_import(call, object, "B", MMF_B);
        return MMF_OK;
    }
    if (!PyTuple_Check(object))
        return add_weight(state, call, object, "B", false, false);
    mmf_status status = pair_size(object, "B");
    if (!status)
        status = add_weight(state, call, PyTuple_GetItem(object, 0), "B[0]", false, true);
    if (!status)
        status = add_weight(state, call, PyTuple_GetItem(object, 1), "B[1]", true, true);
    return status;
}

/* An array, or a number where the operand may be one. */
static mmf_status add_array(mmf_call *call, PyObject *object, const char *name, mmf_operand operand)
{
    mmf_number *number = &call->number[call->numbers];
    bool is_number = false;
    mmf_status status = MMF_OK;
    if (mmf_immediate(operand))
        status = mmf_parse_number(object, name, number, &is_number);
    if (!status && is_number) {
        call->numbers++;
        call->request.operand[operand] = &number->tensor;
        call->request.terms.immediates |= mmf_immediate(operand);
    } else if (!status) {
        mmf_call_add_import(call, object, name, operand);
    }
    return status;
}

/* An operand of the epilogue; of those with a gate stream, bias may be a pair. */
static mmf_status add_epilogue(mmf_state *state, mmf_call *call, PyObject *object,
                               mmf_operand operand)
{
    const char *name = mmf_operands[operand].name;
    if (mmf_is_known_array(state, object)) {
        mmf_call_add_import(call, object, name, operand);
        return MMF_OK;
    }
    if (operand != MMF_BIAS || !PyTuple_Check(object))
        return add_array(call, object, name, operand);
    mmf_status status = pair_size(object, "bias");
    if (!status)
        status = add_array(call, PyTuple_GetItem(object, 0), "bias[0]", MMF_BIAS);
    if (!status)
        status = add_array(call, PyTuple_GetItem(object, 1), "bias[1]", MMF_BIAS_UP);
    return status;
}

static mmf_status import_operands(mmf_state *state, PyObject *const *values, mmf_call *call)
{
    mmf_call_add_import(call, values[ARG_A], "A", MMF_A);
    mmf_status status = add_weights(state, call, values[ARG_B]);
    for (int i = FIRST_OF_EPILOGUE; !status && i < PASSED; i++)
        if (given(values[passed[i].argument]))
            status = add_epilogue(state, call, values[passed[i].argument],
                                  (mmf_operand)passed[i].operand);
    if (status)
        return status;
    call->out = given(values[ARG_OUT]) ? values[ARG_OUT] : NULL;
    status = mmf_import_tensors(state, call->import, call->imports, &call->stream);
    status = status ? status : mmf_borrowed_view(call);
    if (!status) {
        const mmf_dtype sum = (mmf_dtype)mmf_dtypes[call->import[0].tensor.dtype].sum;
        for (int i = 0; i < call->numbers; i++)
            mmf_number_finish(&call->number[i], sum);
    }
    return status;
}

static mmf_status choose_device(mmf_state *state, mmf_call *call)
{
    if (call->request.operand[MMF_A]->device.type != MMF_CPU)
        return mmf_device_prepare(state, call);
    if (!call->stream.given)
        return MMF_OK;
    return mmf_fail(MMF_VALUE_ERROR, "stream must be None for operands on the CPU");
}

mmf_status mmf_call_begin(mmf_state *state, const char *function, PyObject *const *arguments,
                          Py_ssize_t count, PyObject *keywords, bool runs, mmf_call *call)
{
    const mmf_signature signature = {function, 2, 4, ARG_COUNT, signature_names};
    PyObject *values[ARG_COUNT];
    mmf_call_clear(call);
    if (mmf_parse_arguments(state, &signature, arguments, count, keywords, values))
        return MMF_PYTHON_ERROR;
    call->stream = (mmf_stream){.given = given(values[ARG_STREAM]) ? values[ARG_STREAM] : NULL,
                                .a = call->import,
                                .runs = runs};
    mmf_status status = parse_terms(state, values, &call->request.terms);
    return status ? status : import_operands(state, values, call);
}

mmf_status mmf_call_make(mmf_state *state, mmf_call *call)
{
    mmf_prepared *own = &call->own;
    mmf_status status =
        mmf_problem_make(&call->request, &own->problem, &call->buffers, &own->result);
    if (!status)
        status = choose_device(state, call);
    if (!status)
        mmf_problem_set_out(&own->problem, &call->buffers, &call->request, &own->result);
    return status;
}

mmf_status mmf_call_check_workspace(mmf_call *call)
{
    mmf_no_workspace why_not = MMF_WORKSPACE_ALLOWED;
    mmf_status status = MMF_OK;
    if (call->prepared->plan.config.workspace_bytes)
        status = mmf_workspace_possible(call, &why_not);
    if (status || why_not == MMF_WORKSPACE_ALLOWED)
        return status;
    if (call->entry)
        call->own = *call->prepared;
    call->prepared = &call->own;
    call->own.problem.no_workspace = (uint8_t)why_not;
    return mmf_plan_choose(&call->own.problem, &call->own.plan);
}

/* A checked problem and a plan, those of an earlier call if there was one like this. */
static mmf_status prepare(mmf_state *state, mmf_call *call)
{
    const mmf_request *request = &call->request;
    mmf_status status = mmf_cache_find(&state->plans, request, &call->buffers, &call->entry);
    if (status)
        return status;
    if (call->entry) {
        call->prepared = mmf_cache_prepared(call->entry);
        status = choose_device(state, call);
    } else {
        status = mmf_call_make(state, call);
        if (!status)
            status = mmf_plan_choose(&call->own.problem, &call->own.plan);
        if (!status)
            mmf_cache_keep(&state->plans, request, &call->buffers, &call->own);
    }
    return status ? status : mmf_call_check_workspace(call);
}

void mmf_call_end(mmf_call *call)
{
    if (call->entry)
        mmf_cache_release(call->entry);
    if (call->workspace.object || call->workspace.managed) /* the launch was never reached */
        mmf_output_drop(&call->workspace);
    for (mmf_import *import = call->import + call->imports; import-- > call->import;)
        if (import->versioned || import->legacy)
            mmf_import_release(import);
}

/* Below this many operations the GIL costs more than it frees; a launch may wait for a full queue.
 */
static const double gil_flops = 1e5;

static mmf_status run(const mmf_prepared *prepared, const mmf_buffers *buffers)
{
    const mmf_problem *problem = &prepared->problem;
    const mmf_config *config = &prepared->plan.config;
    const mmf_family *family = prepared->plan.kernel->family;
    if (problem->device.type == MMF_CPU && mmf_plan_flops(problem) < gil_flops &&
        mmf_plan_outputs(problem) < gil_flops / 64)
        return family->run(problem, config, buffers, NULL);
    mmf_unlocked unlocked;
    mmf_unlock(&unlocked);
    mmf_status status = family->run(problem, config, buffers, &unlocked.interrupt);
    return mmf_lock(&unlocked, status);
}

/* A new result, aligned as the plan expects it. */
static mmf_status make_result(mmf_state *state, mmf_call *call, mmf_output *output)
{
    mmf_tensor *result = &call->result;
    *result = call->prepared->result;
    mmf_status status =
        mmf_output_new(state, &call->import[0], result, call->stream.handle, output);
    call->buffers.data[MMF_OUT] = result->data;
    if (!status && result->device.type != MMF_CPU && (uintptr_t)result->data % 64)
        return mmf_fail(MMF_BUFFER_ERROR, "A's library made a result at an address that is no "
                                          "multiple of 64 bytes; pass out=");
    return status;
}

/* The last that may run Python before the kernel; on a GPU, finding the stream and telling the
 * owners of memory of it may have run some already. */
static mmf_status prepare_output(mmf_state *state, mmf_call *call, mmf_output *output)
{
    bool on_gpu = call->prepared->problem.device.type != MMF_CPU;
    mmf_status status = call->out ? MMF_OK : make_result(state, call, output);
    if (!status && on_gpu)
        status = mmf_workspace_new(state, call, call->prepared->plan.config.workspace_bytes,
                                   &call->workspace, &call->buffers.workspace);
    if (!status && on_gpu && !call->out && call->stream.given)
        status = mmf_output_make_object(state, &call->import[0], output);
    if (!status && on_gpu)
        status = mmf_device_await(state, call, output->object);
    if (!status && (call->stream.ran_python || output->ran_python))
        status = mmf_import_recheck(state, call->import, call->imports);
    return status;
}

mmf_status mmf_call_finish(mmf_state *state, mmf_call *call, PyObject *result, mmf_status status)
{
    char text[2048] = "";
    if (status)
        snprintf(text, sizeof text, "%s", mmf_error_text());
    mmf_status finished = mmf_device_finish(state, call, result);
    mmf_status dropped = mmf_workspace_drop(state, call, true, &call->workspace);
    if (!status)
        return dropped ? dropped : finished; /* the text is that of the last error */
    if (finished == MMF_PYTHON_ERROR || dropped == MMF_PYTHON_ERROR)
        PyErr_Clear(); /* lint: the launch's error is the one to tell */
    return mmf_fail(status, "%s", text);
}

/* The call after its operands were imported, and its end. */
static PyObject *compute(mmf_state *state, mmf_call *call, mmf_status status)
{
    mmf_output output = {0};
    PyObject *result = NULL;
    if (!status)
        status = prepare(state, call);
    if (!status)
        status = prepare_output(state, call, &output);
    if (!status) {
        status = run(call->prepared, &call->buffers);
        if (call->prepared->problem.device.type != MMF_CPU)
            status = mmf_call_finish(state, call, output.object, status);
    }
    if (status) {
        mmf_raise(state, status);
        mmf_output_drop(&output);
    } else {
        result =
            call->out ? Py_NewRef(call->out) : mmf_output_finish(state, &call->import[0], &output);
    }
    mmf_call_end(call);
    return result;
}

PyObject *mmf_matmul_fused(PyObject *module, PyObject *const *arguments, Py_ssize_t count,
                           PyObject *keywords)
{
    mmf_state *state = mmf_state_of(module);
    mmf_call call;
    mmf_status status =
        mmf_call_begin(state, "matmul_fused", arguments, count, keywords, true, &call);
    return compute(state, &call, status);
}

/* Exchange the axes of weights (N, K). False: the call is not one for mmf_linear(). */
static bool take_weights(mmf_call *call)
{
    const int last = call->request.operand[MMF_B_UP] ? 2 : 1; /* they follow A */
    bool taken = !call->numbers && !call->request.terms.packed;
    for (int i = 0; i < call->imports; i++)
        taken &= call->import[i].library == &mmf_library_torch;
    for (int i = 1; taken && i <= last; i++)
        if (call->import[i].tensor.ndim == 2)
            mmf_import_transpose(&call->import[i]);
        else
            taken = call->import[i].tensor.ndim < 2;
    return taken;
}

PyObject *mmf_linear(PyObject *module, PyObject *const *arguments, Py_ssize_t count,
                     PyObject *keywords)
{
    mmf_state *state = mmf_state_of(module);
    mmf_call call;
    mmf_status status = mmf_call_begin(state, "linear", arguments, count, keywords, true, &call);
    if (status != MMF_GRADIENTS && (status || take_weights(&call)))
        return compute(state, &call, status);
    mmf_call_end(&call);
    return Py_NewRef(Py_NotImplemented);
}
