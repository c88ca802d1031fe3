/* Checks of operands against each other: dtypes, devices, gate layout, shared memory. Path of a
 * call: asked by problem.c. */
#ifndef MMF_CHECKS_H
#define MMF_CHECKS_H

#include "problem/problem.h"

/* The name of an operand in errors; of a pair, B[0] and B[1]. */
const char *mmf_operand_name(const mmf_request *request, mmf_operand operand);

/* *result gets the dtype of the result. */
mmf_status mmf_check_types_and_devices(const mmf_request *request, mmf_dtype *result);

/* Gate layout and activation against the form of B and bias; *gate is MMF_GATE_NONE if the
 * activation is not gated. */
mmf_status mmf_check_gate(const mmf_request *request, mmf_gate_layout *gate);

/* An output may share no element with anything else of the call, but out may be C itself. */
mmf_status mmf_check_aliasing(const mmf_request *request, bool reads_products, bool reads_c);

#endif
