/* matmul_fused(): the table of contents of a call. parse, import, problem, plan, output, run,
 * return. Path of a call: the whole of it. */
#include "binding/call.h"

#include "binding/arguments.h"
#include "binding/device.h"
#include "binding/errors.h"
#include "binding/output.h"
#include "binding/packed.h"
#include "binding/scalars.h"

enum { /* positions in the signature */
       ARG_A,
       ARG_B,
       ARG_BIAS,
       ARG_ACTIVATION,
       ARG_ALPHA,
       ARG_BETA,
       ARG_C,
       ARG_MULTIPLY,
       ARG_PREACTIVATION,
       ARG_GATE_LAYOUT,
       ARG_OUT,
       ARG_OUT_DTYPE,
       ARG_ALLOW_TF32,
       ARG_STREAM,
       ARG_COUNT
};

static const mmf_name signature_names[ARG_COUNT] = {
    MMF_NAME_A,           MMF_NAME_B,        MMF_NAME_BIAS,
    MMF_NAME_ACTIVATION,  MMF_NAME_ALPHA,    MMF_NAME_BETA,
    MMF_NAME_C,           MMF_NAME_MULTIPLY, MMF_NAME_PREACTIVATION,
    MMF_NAME_GATE_LAYOUT, MMF_NAME_OUT,      MMF_NAME_OUT_DTYPE,
    MMF_NAME_ALLOW_TF32,  MMF_NAME_STREAM,
};

static bool given(PyObject *value)
{
    return value && value != Py_None;
}

static mmf_status parse_scalars(mmf_state *state, PyObject *const *values, mmf_request *request)
{
    mmf_status status = MMF_OK;
    request->alpha = 1;
    request->beta_given = given(values[ARG_BETA]);
    request->out_dtype = MMF_ABSENT;
    if (values[ARG_ACTIVATION])
        status = mmf_parse_activation(state, values[ARG_ACTIVATION], request);
    if (!status && values[ARG_ALPHA])
        status = mmf_parse_scalar(values[ARG_ALPHA], "alpha", &request->alpha);
    if (!status && request->beta_given)
        status = mmf_parse_scalar(values[ARG_BETA], "beta", &request->beta);
    if (!status && values[ARG_GATE_LAYOUT])
        status = mmf_parse_gate_layout(values[ARG_GATE_LAYOUT], &request->gate_layout);
    if (!status && values[ARG_OUT_DTYPE])
        status = mmf_parse_dtype(state, values[ARG_OUT_DTYPE], "out_dtype", &request->out_dtype);
    if (!status && values[ARG_ALLOW_TF32])
        status = mmf_parse_flag(values[ARG_ALLOW_TF32], "allow_tf32", &request->allow_tf32);
    return status;
}

/* Give one operand the next free slot of the imports. */
static void add_import(mmf_call *call, PyObject *object, const char *name,
                       const mmf_tensor **tensor)
{
    mmf_import *import = &call->import[call->imports++];
    mmf_import_init(import, object, name);
    *tensor = &import->tensor;
}

/* B, or one of a pair. A PackedMatrix needs no import: the argument keeps it alive. */
static mmf_status add_weight(mmf_state *state, mmf_call *call, PyObject *object, const char *name,
                             bool up, bool pair)
{
    mmf_request *request = &call->request;
    const mmf_tensor **tensor = up ? &request->b_up : &request->b;
    bool packed = Py_TYPE(object) == state->packed_type;
    if (up && packed != (request->packed != 0))
        return mmf_fail(MMF_TYPE_ERROR, "B[0] and B[1] must both be prepacked or both be arrays");
    if (!packed) {
        add_import(call, object, name, tensor);
        return MMF_OK;
    }
    const mmf_packed *weight = (const mmf_packed *)object;
    if (pair && weight->gate != MMF_GATE_NONE)
        return mmf_fail(
            MMF_VALUE_ERROR,
            "%s was prepacked with a gate_layout; pass it alone, or pack each of the pair "
            "without",
            name);
    call->packed[up] = weight->weight;
    *tensor = &call->packed[up];
    request->packed = weight->layout;
    request->packed_gate = weight->gate;
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
    if (!PyTuple_Check(object))
        return add_weight(state, call, object, "B", false, false);
    mmf_status status = pair_size(object, "B");
    if (!status)
        status = add_weight(state, call, PyTuple_GetItem(object, 0), "B[0]", false, true);
    if (!status)
        status = add_weight(state, call, PyTuple_GetItem(object, 1), "B[1]", true, true);
    return status;
}

static mmf_status add_bias(mmf_call *call, PyObject *object)
{
    if (!PyTuple_Check(object)) {
        add_import(call, object, "bias", &call->request.bias);
        return MMF_OK;
    }
    mmf_status status = pair_size(object, "bias");
    if (status)
        return status;
    add_import(call, PyTuple_GetItem(object, 0), "bias[0]", &call->request.bias);
    add_import(call, PyTuple_GetItem(object, 1), "bias[1]", &call->request.bias_up);
    return MMF_OK;
}

static mmf_status import_operands(mmf_state *state, PyObject *const *values, mmf_call *call)
{
    mmf_request *request = &call->request;
    add_import(call, values[ARG_A], "A", &request->a);
    mmf_status status = add_weights(state, call, values[ARG_B]);
    if (!status && given(values[ARG_BIAS]))
        status = add_bias(call, values[ARG_BIAS]);
    if (status)
        return status;
    if (given(values[ARG_C]))
        add_import(call, values[ARG_C], "C", &request->c);
    if (given(values[ARG_MULTIPLY]))
        add_import(call, values[ARG_MULTIPLY], "multiply", &request->multiply);
    if (given(values[ARG_PREACTIVATION]))
        add_import(call, values[ARG_PREACTIVATION], "preactivation", &request->preactivation);
    if (given(values[ARG_OUT])) {
        call->out = values[ARG_OUT];
        add_import(call, call->out, "out", &request->out);
    }
    return mmf_import_tensors(state, call->import, call->imports, &call->stream);
}

static mmf_status choose_device(mmf_state *state, mmf_call *call)
{
    if (call->request.a->device.type != MMF_CPU)
        return mmf_device_prepare(state, call);
    if (!call->stream.given)
        return MMF_OK;
    return mmf_fail(MMF_VALUE_ERROR, "stream must be None for operands on the CPU");
}

mmf_status mmf_call_begin(mmf_state *state, const char *function, PyObject *const *arguments,
                          Py_ssize_t count, PyObject *keywords, mmf_call *call)
{
    const mmf_signature signature = {function, 2, 4, ARG_COUNT, signature_names};
    PyObject *values[ARG_COUNT];
    call->request = (mmf_request){0};
    call->prepared = &call->own;
    call->known = NULL;
    call->imports = 0;
    call->out = NULL;
    if (mmf_parse_arguments(state, &signature, arguments, count, keywords, values))
        return MMF_PYTHON_ERROR;
    call->stream = (mmf_stream){.given = given(values[ARG_STREAM]) ? values[ARG_STREAM] : NULL,
                                .a = call->import};
    mmf_status status = parse_scalars(state, values, &call->request);
    return status ? status : import_operands(state, values, call);
}

mmf_status mmf_call_make(mmf_state *state, mmf_call *call)
{
    mmf_prepared *own = &call->own;
    mmf_status status = mmf_problem_make(&call->request, &own->problem, &own->result);
    if (!status)
        status = choose_device(state, call);
    if (!status)
        mmf_problem_set_out(&own->problem, &call->request, &own->result);
    return status;
}

/* A checked problem and a plan, those of an earlier call if there was one like this. */
static mmf_status prepare(mmf_state *state, mmf_call *call)
{
    const mmf_request *request = &call->request;
    bool kept = request->a->device.type == MMF_CPU && !call->stream.given;
    mmf_status status = kept ? mmf_plan_recall(&state->plans, request, &call->known) : MMF_OK;
    if (status)
        return status;
    if (call->known) {
        call->prepared = mmf_known_call(call->known);
        return MMF_OK;
    }
    status = mmf_call_make(state, call);
    if (!status)
        status = mmf_plan_choose(&call->own.problem, &call->own.plan);
    if (!status && kept)
        mmf_plan_remember(&state->plans, request, &call->own);
    return status;
}

void mmf_call_end(mmf_call *call)
{
    if (call->known)
        mmf_known_release(call->known);
    for (mmf_import *import = call->import + call->imports; import-- > call->import;)
        if (import->versioned || import->legacy)
            mmf_import_release(import);
}

/* Below this many operations the GIL costs more than it frees; a launch may wait for a full queue.
 */
static const double gil_flops = 1e5;

static mmf_status run(const mmf_plan *plan, const mmf_problem *problem)
{
    mmf_status status;
    if (problem->device.type == MMF_CPU && mmf_plan_flops(problem) < gil_flops &&
        mmf_plan_outputs(problem) < gil_flops / 64)
        return plan->row->run(problem, &plan->config);
    PyThreadState *thread = PyEval_SaveThread();
    status = plan->row->run(problem, &plan->config);
    PyEval_RestoreThread(thread);
    return status;
}

/* The last that may run Python before the kernel; on a GPU, finding the stream and telling the
 * owners of memory of it may have run some already. */
static mmf_status prepare_output(mmf_state *state, mmf_call *call, mmf_output *output)
{
    mmf_prepared *prepared = call->prepared;
    bool on_gpu = prepared->problem.device.type != MMF_CPU;
    mmf_status status = MMF_OK;
    if (!call->out) {
        status =
            mmf_output_new(state, &call->import[0], &prepared->result, call->stream.handle, output);
        prepared->problem.data[MMF_OUT] = prepared->result.data;
    }
    if (!status && on_gpu)
        status = mmf_device_await(state, call, output->object);
    if (!status && (call->stream.ran_python || output->ran_python))
        status = mmf_import_recheck(state, call->import, call->imports);
    return status;
}

PyObject *mmf_matmul_fused(PyObject *module, PyObject *const *arguments, Py_ssize_t count,
                           PyObject *keywords)
{
    mmf_state *state = mmf_state_of(module);
    mmf_call call;
    mmf_output output = {0};
    PyObject *result = NULL;
    mmf_status status = mmf_call_begin(state, "matmul_fused", arguments, count, keywords, &call);
    if (!status)
        status = prepare(state, &call);
    if (!status)
        status = prepare_output(state, &call, &output);
    if (!status) {
        const mmf_problem *problem = &call.prepared->problem;
        status = run(&call.prepared->plan, problem);
        if (!status && problem->device.type != MMF_CPU)
            status = mmf_device_finish(state, &call, output.object);
    }
    if (status) {
        mmf_raise(state, status);
        mmf_output_drop(&output);
    } else {
        result =
            call.out ? Py_NewRef(call.out) : mmf_output_finish(state, &call.import[0], &output);
    }
    mmf_call_end(&call);
    return result;
}
