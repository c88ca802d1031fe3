/* Random problems through every CPU kernel, against a loop in long double and the bound of
 * docs/bound.md. */
#include "check.h"
#include "cpu/interrupt.h"
#include "problem/float_mode.h"

static const mmf_kernel *const rows[] = {MMF_CPU_KERNELS(ROW)};

#define GUARD 8

/* Memory of one operand; `element` is [0, 0, 0]. */
typedef struct buffer {
    char *memory, *element, *before;
    int64_t elements;
} buffer;

typedef struct test_case {
    mmf_problem problem;
    mmf_buffers at;
    buffer buffers[MMF_OPERANDS];
    void *panels[2];
    bool in_place;
} test_case;

static int pick_size(void)
{
    static const int sizes[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  12, 13, 15,
                                16, 17, 31, 32, 33, 47, 48, 63, 64, 65, 67};
    return sizes[random_below((int)(sizeof sizes / sizeof *sizes))];
}

/* Choose strides for a batch x rows x cols operand and fill it. kind: 0 rows contiguous, 1 columns
 * contiguous, 2 backwards, 3 every second column, 4 columns contiguous and apart, 5 one line for
 * all rows, 6 one value per row, 7 one value. */
static void make_operand(test_case *t, int operand, int dtype, int64_t m, int64_t n, int kind,
                         bool one_batch)
{
    mmf_strides *s = &t->problem.strides[operand];
    const int64_t pad = random_below(3);
    int64_t low = 0, high = 0, size = element_size(dtype);
    *s = (mmf_strides){.row = n + pad, .col = 1};
    if (kind == 1 || kind == 4)
        *s = (mmf_strides){.row = 1, .col = m + (kind == 4 ? 37 : 0)};
    if (kind == 2)
        *s = (mmf_strides){.row = -(n + pad), .col = random_below(2) ? -1 : 1};
    if (kind == 3)
        *s = (mmf_strides){.row = 2 * n + pad, .col = 2};
    if (kind >= 5)
        *s = (mmf_strides){.row = kind == 6 ? 1 : 0, .col = kind == 5 ? 1 : 0};
    const int64_t along_m = s->row * (m > 0 ? m - 1 : 0), along_n = s->col * (n > 0 ? n - 1 : 0);
    low += along_m < 0 ? along_m : 0;
    low += along_n < 0 ? along_n : 0;
    high += along_m > 0 ? along_m : 0;
    high += along_n > 0 ? along_n : 0;
    int64_t pitch = high - low + 1;
    for (int axis = t->problem.batch_ndim - 1; axis >= 0; axis--) {
        s->batch[axis] = one_batch ? 0 : pitch;
        high += s->batch[axis] * (t->problem.batch_shape[axis] - 1);
        pitch *= t->problem.batch_shape[axis];
    }
    buffer *b = &t->buffers[operand];
    b->elements = high - low + 1 + 2 * GUARD;
    b->memory = malloc((size_t)(b->elements * size));
    b->before = malloc((size_t)(b->elements * size));
    const bool written = operand >= MMF_PREACTIVATION;
    for (int64_t i = 0; i < b->elements; i++)
        (written ? store_nan : store_random)(dtype, b->memory + i * size);
    b->element = b->memory + (GUARD - low) * size;
    t->problem.dtype[operand] = (uint8_t)dtype;
    t->at.data[operand] = b->element;
}

static int64_t offset_of(const mmf_problem *p, int operand, const int64_t *batch, int64_t i,
                         int64_t j)
{
    const mmf_strides *s = &p->strides[operand];
    int64_t offset = i * s->row + j * s->col;
    for (int axis = 0; axis < p->batch_ndim; axis++)
        offset += batch[axis] * s->batch[axis];
    return offset;
}

/* The element before run(): inputs and the old contents of C under out. */
static double input(const test_case *t, int operand, const int64_t *batch, int64_t i, int64_t j)
{
    const buffer *b = &t->buffers[operand];
    const int dtype = t->problem.dtype[operand];
    return decode(dtype, b->before + (b->element - b->memory) +
                             offset_of(&t->problem, operand, batch, i, j) * element_size(dtype));
}

static const char *describe(const test_case *t, const mmf_kernel *row, int threads)
{
    static char text[400];
    const mmf_problem *p = &t->problem;
    snprintf(text, sizeof text,
             "%s m %d n %d k %d act %d dtypes A %d bias %d C %d mul %d pre %d out %d A (%d,%d) B "
             "(%d,%d) out (%d,%d) "
             "packed %d batch %d in place %d threads %d",
             row->name, (int)p->m, (int)p->n, (int)p->k, p->activation, p->dtype[MMF_A],
             p->dtype[MMF_BIAS], p->dtype[MMF_C], p->dtype[MMF_MULTIPLY],
             p->dtype[MMF_PREACTIVATION], p->dtype[MMF_OUT], (int)p->strides[MMF_A].row,
             (int)p->strides[MMF_A].col, (int)p->strides[MMF_B].row, (int)p->strides[MMF_B].col,
             (int)p->strides[MMF_OUT].row, (int)p->strides[MMF_OUT].col, p->packed, p->batch_ndim,
             t->in_place, threads);
    return text;
}

typedef struct exact {
    long double z, error;
} exact;

/* What rounds to infinity from here on. */
static long double largest(int dtype)
{
    return dtype == MMF_FLOAT64   ? 0x1.fffffffffffff8p1023L
           : dtype == MMF_FLOAT16 ? 65520
           : dtype == MMF_FLOAT32 ? 0x1.ffffffp127L
                                  : 0x1.ffp127L;
}

static exact exact_z(const test_case *t, int second, const int64_t *batch, int64_t i, int64_t j)
{
    const mmf_problem *p = &t->problem;
    const double u = p->dtype[MMF_A] == MMF_FLOAT64 ? 0x1p-53 : 0x1p-24;
    long double sum = 0, size = 0, z;
    for (int64_t k = 0; k < p->k; k++) {
        long double product =
            (long double)input(t, MMF_A, batch, i, k) * input(t, MMF_B + second, batch, k, j);
        sum += product;
        size += fabsl(product);
    }
    z = p->k ? p->alpha * sum : 0;
    size *= fabs(p->alpha);
    if (p->dtype[MMF_C] != MMF_ABSENT) {
        long double c = (long double)p->beta * input(t, MMF_C + second, batch, i, j);
        z += c, size += fabsl(c);
    }
    if (p->dtype[MMF_BIAS] != MMF_ABSENT) {
        long double bias = input(t, MMF_BIAS + second, batch, i, j);
        z += bias, size += fabsl(bias);
    }
    return (exact){z, (long double)(p->k + 8) * u * size};
}

/* Compare out and preactivation at one element. */
static bool element_is_right(const test_case *t, const int64_t *batch, int64_t i, int64_t j)
{
    const mmf_problem *p = &t->problem;
    const double u = p->dtype[MMF_A] == MMF_FLOAT64 ? 0x1p-53 : 0x1p-24;
    const bool gated = is_gated(p->activation);
    const exact gate = exact_z(t, 0, batch, i, j),
                up = gated ? exact_z(t, 1, batch, i, j) : (exact){1, 0};
    for (int s = 0; s < (gated ? 2 : 1); s++) {
        const int operand = MMF_PREACTIVATION + s, dtype = p->dtype[operand];
        if (dtype == MMF_ABSENT)
            continue;
        const exact *z = s ? &up : &gate;
        double got = decode(dtype, t->buffers[operand].element +
                                       offset_of(p, operand, batch, i, j) * element_size(dtype));
        if (!(fabsl(got - z->z) <= unit_in_last_place(dtype, (double)z->z) + z->error))
            return false;
    }
    const double slope =
        lipschitz(p->activation, (double)(fabsl(gate.z) + gate.error), p->parameters);
    const long double gate_error = slope * (gate.error + 8 * u * shift_of(p->activation));
    const bool multiplies = p->dtype[MMF_MULTIPLY] != MMF_ABSENT;
    const long double by = multiplies ? input(t, MMF_MULTIPLY, batch, i, j) : 1;
    const long double of_up = gated ? exact_up(p->activation, up.z, p->parameters) : 1;
    const int dtype = p->dtype[MMF_OUT];
    const double got = decode(dtype, t->buffers[MMF_OUT].element +
                                         offset_of(p, MMF_OUT, batch, i, j) * element_size(dtype));
    long double branches[2] = {exact_gate(p->activation, gate.z, p->parameters)};
    const int count =
        1 + other_branch(p->activation, gate.z, gate.error, p->parameters, &branches[1]);
    for (int branch = 0; branch < count; branch++) { /* of an activation that jumps, either */
        const long double of_gate = branches[branch], ref = of_gate * of_up * by;
        const long double error =
            gate_error * (fabsl(of_up) + up.error) + fabsl(of_gate) * up.error;
        const long double allowed =
            unit_in_last_place(dtype, (double)ref) + error * fabsl(by) + 8 * u * fabsl(ref);
        if (fabsl(got - ref) <= allowed ||
            (isinf(got) && copysignl(1, got) * ref + allowed >= largest(dtype)))
            return true;
    }
    return false;
}

static int64_t batches_of(const mmf_problem *p)
{
    int64_t count = 1;
    for (int axis = 0; axis < p->batch_ndim; axis++)
        count *= p->batch_shape[axis];
    return count;
}

static void batch_index(const mmf_problem *p, int64_t index, int64_t *batch)
{
    for (int axis = p->batch_ndim - 1; axis >= 0; axis--) {
        batch[axis] = index % p->batch_shape[axis];
        index /= p->batch_shape[axis];
    }
}

/* Nothing but the elements of a written operand has changed. */
static bool guards_hold(const test_case *t, int operand)
{
    const buffer *b = &t->buffers[operand];
    const mmf_problem *p = &t->problem;
    const int dtype = p->dtype[operand];
    const int64_t origin = (b->element - b->memory) / element_size(dtype);
    bool *ours = calloc((size_t)b->elements, 1), hold = true;
    for (int64_t x = 0; operand >= MMF_PREACTIVATION && x < batches_of(p); x++) {
        int64_t batch[MMF_MAX_BATCH];
        batch_index(p, x, batch);
        for (int64_t i = 0; i < p->m; i++)
            for (int64_t j = 0; j < p->n; j++)
                ours[origin + offset_of(p, operand, batch, i, j)] = true;
    }
    for (int64_t e = 0; e < b->elements; e++)
        hold = hold && (ours[e] || same_bits(dtype, b->memory + e * element_size(dtype),
                                             b->before + e * element_size(dtype)));
    free(ours);
    return hold;
}

static void restore(test_case *t)
{
    for (int o = 0; o < MMF_OPERANDS; o++)
        if (t->buffers[o].memory)
            memcpy(t->buffers[o].memory, t->buffers[o].before,
                   (size_t)(t->buffers[o].elements * element_size(t->problem.dtype[o])));
}

/* A product of another call on this thread, by the same row: it takes the workspace, and sets what
 * registers the row has for itself. */
static void disturb(const mmf_kernel *row)
{
    static uint16_t a[64 * 64], b[64 * 64];
    static float out[64 * 64];
    const int dtype = row->operands & MMF_DTYPE_BIT(MMF_FLOAT16) ? MMF_FLOAT16 : MMF_BFLOAT16;
    mmf_problem p = {.m = 33, .n = 50, .k = 64, .alpha = 1};
    mmf_buffers at = {.data = {[MMF_A] = a, [MMF_B] = b, [MMF_OUT] = out}};
    mmf_config config;
    memset(p.dtype, MMF_ABSENT, sizeof p.dtype);
    p.dtype[MMF_A] = p.dtype[MMF_B] = (uint8_t)dtype;
    p.dtype[MMF_OUT] = MMF_FLOAT32;
    for (int o = 0; o < MMF_OPERANDS; o++)
        p.strides[o] = (mmf_strides){.row = 64, .col = 1};
    set_features(&p);
    row->family->configure(row, &p, &config);
    check(takes(row, &p) && row->family->run(&p, &config, &at, NULL) == MMF_OK, "a call in a call");
}

/* Is asked at every opportunity, and ends the call at the last of `left`. */
typedef struct asker {
    mmf_interrupt interrupt;
    const mmf_kernel *row;
    int left, asked;
} asker;

static bool ask_always(mmf_interrupt *interrupt)
{
    asker *own = (asker *)interrupt;
    if (own->asked++ < 4)
        disturb(own->row);
    interrupt->due = 1;
    interrupt->work = MMF_LOOK_WORK;
    return --own->left == 0;
}

/* The same bits with other calls in the middle; and an end at any opportunity. */
static void run_asked(test_case *t, const mmf_kernel *row, const mmf_config *config,
                      const void *once, size_t bytes)
{
    for (int last = 0, asked = 0; last < 2; last++) {
        asker own = {.interrupt = {.ask = ask_always,
                                   .float_mode = mmf_float_mode_get(),
                                   .work = MMF_LOOK_WORK,
                                   .due = 1},
                     .row = row,
                     .left = last == 0 ? -1 : 1 + random_below(asked + 1)};
        const int left = own.left;
        restore(t);
        check(row->family->run(&t->problem, config, &t->at, &own.interrupt) == MMF_OK, "%s: asked",
              describe(t, row, config->threads));
        const bool ended = last && left <= asked;
        check(mmf_cancelled(&own.interrupt) == ended && (!ended || own.asked == left),
              "%s: ended when told to", describe(t, row, config->threads));
        check(ended || memcmp(once, t->buffers[MMF_OUT].memory, bytes) == 0,
              "%s: other bits with calls in between", describe(t, row, config->threads));
        for (int o = 0; o < MMF_OPERANDS; o++)
            if (t->buffers[o].memory && !(t->in_place && o == MMF_C))
                check(guards_hold(t, o), "%s: wrote outside of operand %d when ended",
                      describe(t, row, config->threads), o);
        asked = own.asked;
    }
}

static void run_row(test_case *t, const mmf_kernel *row)
{
    const mmf_problem *p = &t->problem;
    mmf_config config;
    set_features(&t->problem);
    if (!takes(row, p))
        return;
    mmf_cpu_set_threads(1);
    row->family->configure(row, p, &config);
    restore(t);
    if (!check(row->family->run(p, &config, &t->at, NULL) == MMF_OK, "%s: status",
               describe(t, row, 1)))
        return;
    for (int o = 0; o < MMF_OPERANDS; o++)
        if (t->buffers[o].memory && !(t->in_place && (o == MMF_C)))
            check(guards_hold(t, o), "%s: wrote outside of operand %d", describe(t, row, 1), o);
    for (int64_t x = 0; x < batches_of(p); x++) {
        int64_t batch[MMF_MAX_BATCH];
        batch_index(p, x, batch);
        bool right = true;
        for (int64_t i = 0; i < p->m && right; i++)
            for (int64_t j = 0; j < p->n && right; j++)
                if (!(right = element_is_right(t, batch, i, j)))
                    check(false, "%s: element %d %d of batch %d", describe(t, row, 1), (int)i,
                          (int)j, (int)x);
        check(right, "%s", describe(t, row, 1));
    }
    /* the same bits on more threads */
    const size_t bytes = (size_t)(t->buffers[MMF_OUT].elements * element_size(p->dtype[MMF_OUT]));
    void *once = malloc(bytes);
    memcpy(once, t->buffers[MMF_OUT].memory, bytes);
    mmf_cpu_set_threads(2 + random_below(3));
    row->family->configure(row, p, &config);
    restore(t);
    check(row->family->run(p, &config, &t->at, NULL) == MMF_OK &&
              memcmp(once, t->buffers[MMF_OUT].memory, bytes) == 0,
          "%s: other bits than on one thread", describe(t, row, config.threads));
    mmf_cpu_set_threads(1);
    row->family->configure(row, p, &config);
    run_asked(t, row, &config, once, bytes);
    free(once);
}

static void make_products(test_case *t, bool gated)
{
    mmf_problem *p = &t->problem;
    const int dtype = random_below(4), kind = random_below(5), a_kind = random_below(6);
    const bool shared = random_below(2);
    const bool pairs = dtype == MMF_BFLOAT16 && random_below(2);
    p->packed = p->k == 0 || random_below(5) > 0 ? 0 : pairs ? MMF_CPU_PAIRS64 : MMF_CPU_PANELS64;
    make_operand(t, MMF_A, dtype, p->m, p->k, a_kind == 5 ? 0 : a_kind, false);
    for (int s = 0; s < (gated ? 2 : 1); s++) {
        const int b = MMF_B + s;
        make_operand(t, b, dtype, p->k, p->n, kind, shared || p->packed);
        if (p->packed) {
            const bool in_pairs = p->packed == MMF_CPU_PAIRS64;
            const int64_t bytes = (in_pairs ? mmf_cpu_pairs_bytes
                                            : mmf_cpu_panels_bytes)((mmf_dtype)dtype, p->k, p->n);
            t->panels[s] = aligned_alloc(64, (size_t)bytes);
            (in_pairs ? mmf_cpu_pack_pairs : mmf_cpu_pack_panels)(
                (mmf_dtype)dtype, p->k, p->n, t->at.data[b], p->strides[b].row, p->strides[b].col,
                t->panels[s], NULL);
            t->at.data[b] = t->panels[s];
        }
    }
    if (p->k == 0) /* alpha is 0 or K is: nothing may be read */
        t->at.data[MMF_A] = t->at.data[MMF_B] = t->at.data[MMF_B_UP] = NULL;
}

static void make_epilogue(test_case *t, bool gated)
{
    mmf_problem *p = &t->problem;
    const bool bias = random_below(2), c = random_below(3) == 0, pre = random_below(4) == 0;
    const int bias_kind = random_below(8), bias_dtype = random_below(4),
              out_dtype = random_below(4);
    const int c_kind = random_below(4), c_dtype = random_below(4), out_kind = random_below(5),
              pre_dtype = random_below(4);
    t->in_place = c && !gated && random_below(2);
    for (int s = 0; s < (gated ? 2 : 1); s++) {
        if (bias)
            make_operand(t, MMF_BIAS + s, bias_dtype, p->m, p->n, bias_kind, random_below(2));
        if (c && !t->in_place)
            make_operand(t, MMF_C + s, c_dtype, p->m, p->n, c_kind, false);
        if (pre)
            make_operand(t, MMF_PREACTIVATION + s, pre_dtype, p->m, p->n, out_kind, false);
    }
    if (random_below(4) == 0)
        make_operand(t, MMF_MULTIPLY, c_dtype, p->m, p->n, c_kind, false);
    make_operand(t, MMF_OUT, out_dtype, p->m, p->n, out_kind, false);
    if (t->in_place) {
        for (int64_t e = 0; e < t->buffers[MMF_OUT].elements; e++)
            store_random(out_dtype, t->buffers[MMF_OUT].memory + e * element_size(out_dtype));
        p->dtype[MMF_C] = (uint8_t)out_dtype;
        p->strides[MMF_C] = p->strides[MMF_OUT];
        t->at.data[MMF_C] = t->at.data[MMF_OUT];
    }
}

static void make_case(test_case *t, int64_t m, int64_t n, int64_t k)
{
    memset(t, 0, sizeof *t);
    mmf_problem *p = &t->problem;
    memset(p->dtype, MMF_ABSENT, sizeof p->dtype);
    p->m = m, p->n = n, p->k = k;
    p->batch_ndim = random_below(4) == 0 ? 1 + random_below(2) : 0;
    for (int axis = 0; axis < p->batch_ndim; axis++)
        p->batch_shape[axis] = 1 + random_below(3);
    p->activation = (uint8_t)random_below(MMF_ACT_COUNT);
    test_parameters(p->activation, p->parameters);
    const bool gated = is_gated(p->activation);
    p->gate_layout = gated ? MMF_GATE_PAIR : MMF_GATE_NONE;
    p->alpha = random_below(2) ? 1 : -0.37;
    p->beta = random_below(2) ? 1 : 0.81;
    make_products(t, gated);
    make_epilogue(t, gated);
    for (int o = 0; o < MMF_OPERANDS; o++)
        if (t->buffers[o].memory)
            memcpy(t->buffers[o].before, t->buffers[o].memory,
                   (size_t)(t->buffers[o].elements * element_size(p->dtype[o])));
    if (t->in_place)
        t->buffers[MMF_C] = t->buffers[MMF_OUT];
}

static void free_case(test_case *t)
{
    if (t->in_place)
        t->buffers[MMF_C] = (buffer){0};
    for (int o = 0; o < MMF_OPERANDS; o++) {
        free(t->buffers[o].memory);
        free(t->buffers[o].before);
    }
    free(t->panels[0]);
    free(t->panels[1]);
}

void test_rows(int cases)
{
    static const int larger[][3] = {{1, 300, 900},  {5, 130, 1200}, {200, 210, 400}, {37, 193, 800},
                                    {300, 2, 700},  {12, 400, 390}, {13, 17, 2000},  {385, 20, 30},
                                    {2, 1000, 100}, {100, 100, 385}};
    for (int c = 0; c < cases; c++) {
        test_case t;
        if (c % 100 == 99) {
            const int *size = larger[c / 100 % 10];
            make_case(&t, size[0], size[1], size[2]);
        } else {
            make_case(&t, pick_size(), pick_size(), random_below(12) == 0 ? 0 : pick_size());
        }
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
            run_row(&t, rows[r]);
        free_case(&t);
    }
    mmf_cpu_set_threads(0);
}
