/* Numbers as operands. Path of a call: see numbers.h. */
#include "binding/numbers.h"

#include "binding/errors.h"
#include "binding/libraries/numpy.h"
#include "binding/scalars.h"

#include "problem/float_mode.h"

mmf_status mmf_parse_number(PyObject *object, const char *name, mmf_number *number, bool *is_number)
{
    *is_number = false;
    if (PyBool_Check(object) || mmf_numpy_is_bool(object))
        return mmf_fail(MMF_TYPE_ERROR, "%s is a bool; pass a number or an array", name);
    if (!PyFloat_Check(object) && !PyLong_Check(object) && !mmf_numpy_is_real_scalar(object))
        return MMF_OK;
    *is_number = true;
    return mmf_parse_scalar(object, name, &number->value);
}

void mmf_number_finish(mmf_number *number, mmf_dtype sum)
{
    const uint64_t mode = mmf_float_mode_enter();
    if (sum == MMF_FLOAT64)
        number->rounded.as_double = number->value;
    else
        number->rounded.as_float = (float)number->value;
    mmf_float_mode_leave(mode);
    number->tensor = (mmf_tensor){
        .data = &number->rounded, .dtype = sum, .device = {MMF_CPU, 0}, .readonly = MMF_READONLY};
}
