/* Parsing of the arguments that are no arrays. Path of a call: part of the first stop. */
#include "binding/scalars.h"

#include "binding/errors.h"
#include "binding/libraries/numpy.h"
#include "binding/libraries/torch.h"

#include "problem/float_mode.h"

mmf_status mmf_parse_scalar(PyObject *object, const char *name, double *value)
{
    char type[MMF_PRINTABLE];
    if (!PyFloat_Check(object) && !PyLong_Check(object) && !mmf_numpy_is_real_scalar(object))
        return mmf_fail(MMF_TYPE_ERROR, "%s must be a float, an int or a real NumPy scalar, got %s",
                        name, mmf_describe(object, type));
    const uint64_t mode = mmf_float_mode_enter(); /* NumPy converts its scalars in this mode */
    *value = PyFloat_AsDouble(object);
    mmf_float_mode_leave(mode);
    if (*value != -1 || !PyErr_Occurred())
        return MMF_OK;
    return mmf_raise_from((mmf_state *)NULL,
                          mmf_fail(MMF_VALUE_ERROR, "%s is too large for a float", name));
}

/* Is the name of its type that of torch.dtype? -1 with an exception. */
static int is_torch_dtype(PyObject *object)
{
    PyObject *name = PyType_GetName(Py_TYPE(object));
    const int is = name ? PyUnicode_CompareWithASCIIString(name, "dtype") == 0 : -1;
    Py_XDECREF(name);
    return is;
}

mmf_status mmf_parse_dtype(mmf_state *state, PyObject *object, const char *name, mmf_dtype *dtype)
{
    char text[MMF_PRINTABLE];
    *dtype = MMF_ABSENT;
    if (object == Py_None)
        return MMF_OK;
    for (int i = 0; PyUnicode_Check(object) && i < MMF_DTYPE_COUNT; i++)
        if (PyUnicode_CompareWithASCIIString(object, mmf_dtypes[i].name) == 0) {
            *dtype = (mmf_dtype)i;
            return MMF_OK;
        }
    const int torch = is_torch_dtype(object);
    mmf_status status = torch < 0   ? MMF_PYTHON_ERROR
                        : torch > 0 ? mmf_torch_dtype(object, dtype, text)
                                    : mmf_numpy_dtype(state, object, dtype, text);
    if (status == MMF_TYPE_ERROR)
        return mmf_fail(MMF_TYPE_ERROR,
                        "%s is %s; it must be float32, float64, float16 or bfloat16", name, text);
    if (status == MMF_PYTHON_ERROR)
        return mmf_raise_from(state,
                              mmf_fail(MMF_TYPE_ERROR,
                                       "%s is no dtype; it must be float32, float64, float16 or "
                                       "bfloat16",
                                       name));
    return status;
}

mmf_status mmf_parse_flag(PyObject *object, const char *name, bool *flag)
{
    char type[MMF_PRINTABLE];
    if (!PyBool_Check(object))
        return mmf_fail(MMF_TYPE_ERROR, "%s must be True or False, got %s", name,
                        mmf_describe(object, type));
    *flag = object == Py_True;
    return MMF_OK;
}
