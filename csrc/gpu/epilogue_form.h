/* Which of a kernel's two epilogues a problem takes. Path of a call: asked by gemm.c. */
#ifndef MMF_GPU_EPILOGUE_FORM_H
#define MMF_GPU_EPILOGUE_FORM_H

#include "problem/problem.h"

/* One of MMF_EPILOGUE_...; general: the general one, whatever the problem. For the others the
 * operands after A and B must begin at multiples of 16 bytes. */
int mmf_gpu_epilogue_form(const mmf_problem *problem, bool general);

/* The same of gemm_wgmma_pingpong_aux, whose epilogue in registers has multiply, preactivation, and
 * C before an activation, too. */
int mmf_gpu_auxiliary_form(const mmf_problem *problem, bool general);

#endif
