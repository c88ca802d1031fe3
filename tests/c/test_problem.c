/* Operands that are numbers of the call, from the request to the plan. */
#include "plan/plan.h"

#include <stdio.h>
#include <string.h>

static int passed, failed;

static void check(bool ok, const char *what)
{
    passed += ok;
    failed += !ok;
    if (!ok)
        printf("%s\n", what);
}

static mmf_tensor matrix(float *data, int64_t rows, int64_t columns)
{
    mmf_tensor t = {.data = data, .dtype = MMF_FLOAT32, .ndim = 2, .shape = {rows, columns}};
    mmf_tensor_set_compact(&t);
    return t;
}

typedef struct call {
    float a[6], b[12], c[8], number;
    mmf_tensor tensor[3], scalar;
    mmf_request request;
    mmf_problem problem;
    mmf_buffers buffers;
} call;

/* A 2 x 3, B 3 x 4 and a number as one operand; false if that is an error. */
static bool make(call *c, mmf_operand operand, mmf_activation activation, double beta)
{
    mmf_tensor result;
    *c = (call){.number = 3};
    c->tensor[0] = matrix(c->a, 2, 3);
    c->tensor[1] = matrix(c->b, 3, 4);
    c->scalar = (mmf_tensor){.data = &c->number, .dtype = MMF_FLOAT32};
    c->request.operand[MMF_A] = &c->tensor[0];
    c->request.operand[MMF_B] = &c->tensor[1];
    c->request.operand[operand] = &c->scalar;
    c->request.terms.alpha = 1;
    c->request.terms.beta = beta;
    c->request.terms.beta_given = operand == MMF_C;
    c->request.terms.activation = (uint8_t)activation;
    c->request.terms.out_dtype = MMF_ABSENT;
    c->request.terms.immediates = mmf_immediate(operand);
    if (mmf_problem_make(&c->request, &c->problem, &c->buffers, &result))
        return false;
    result.data = c->c;
    mmf_problem_set_out(&c->problem, &c->buffers, &c->request, &result);
    return true;
}

static const mmf_strides none;

static bool is_number(const call *c, mmf_operand operand)
{
    return c->problem.immediates & mmf_immediate(operand) &&
           c->buffers.data[operand] == &c->number && c->problem.dtype[operand] == MMF_FLOAT32 &&
           memcmp(&c->problem.strides[operand], &none, sizeof none) == 0;
}

/* Every kernel implements it: one that did not would refuse it. */
static void check_taken(const call *c)
{
    mmf_plan plan;
    check(c->problem.features >> MMF_FEATURE_IMMEDIATES & 1, "the feature is missing");
    for (int i = 0; i < MMF_KERNELS; i++)
        check(mmf_kernel_at(i)->family->features >> MMF_FEATURE_IMMEDIATES & 1,
              mmf_kernel_at(i)->name);
    check(mmf_plan_choose(&c->problem, &plan) == MMF_OK, mmf_error_text());
}

int main(void)
{
    static const mmf_operand operands[] = {MMF_BIAS, MMF_C, MMF_MULTIPLY};
    call c;
    mmf_plan plan;
    for (int i = 0; i < 3; i++) {
        check(make(&c, operands[i], MMF_ACT_RELU, 0.5), mmf_error_text());
        check(is_number(&c, operands[i]), "not a number");
        check_taken(&c);
    }
    check(make(&c, MMF_BIAS, MMF_ACT_SWIGLU, 0), mmf_error_text());
    check(is_number(&c, MMF_BIAS) && is_number(&c, MMF_BIAS_UP), "both streams have the number");
    check_taken(&c);

    check(make(&c, MMF_C, MMF_ACT_NONE, 0), mmf_error_text());
    check(c.problem.immediates == 0, "C is not read where beta is 0");
    check(mmf_plan_choose(&c.problem, &plan) == MMF_OK, "nothing is asked for");
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
