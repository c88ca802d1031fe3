/* Numbers as bias, C or multiply. Path of a call: parsed where an array would be imported. */
#ifndef MMF_NUMBERS_H
#define MMF_NUMBERS_H

#include "binding/state.h"
#include "problem/problem.h"

/* An operand without axes whose one element is a number of the call. */
typedef struct mmf_number {
    mmf_tensor tensor;
    double value;
    union {
        float as_float;
        double as_double;
    } rounded; /* tensor.data */
} mmf_number;

/* Is an argument a Python int or float or a NumPy scalar? Then *number has its value. TypeError for
 * a bool. */
mmf_status mmf_parse_number(PyObject *object, const char *name, mmf_number *number,
                            bool *is_number);

/* Make it an operand of the type of the sums, rounded once. */
void mmf_number_finish(mmf_number *number, mmf_dtype sum);

#endif
