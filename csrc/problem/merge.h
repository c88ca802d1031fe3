/* Merging of leading axes. Path of a call: last step of problem.c. */
#ifndef MMF_MERGE_H
#define MMF_MERGE_H

#include "problem/problem.h"

/* Drop leading axes of length 1, merge neighbours that every operand steps over evenly, and fold
 * them into the rows where B does not vary. */
void mmf_problem_merge_axes(mmf_problem *problem);

#endif
