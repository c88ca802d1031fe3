/* The tile instructions of AMX that cpu/kernels/tile_amx.inc uses, in C: so that the AMX kernel
 * runs on machines with AVX-512 alone. `make sanitize` includes it before the AMX kernels
 * (MMF_TILE_MODEL).
 *
 * Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, TDPBF16PS: even
 * and odd products of a line are summed apart, subnormal numbers count as 0, rounding is to
 * nearest. What raises #UD there aborts here. */
#ifndef MMF_TILE_MODEL_H
#define MMF_TILE_MODEL_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <immintrin.h>

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig model_loadconfig
#define _tile_release model_release
#define _tile_zero model_zero
#define _tile_loadd model_loadd
#define _tile_stored model_stored
#define _tile_dpbf16ps model_dpbf16ps

typedef float model_floats __attribute__((vector_size(64)));
typedef uint32_t model_bits __attribute__((vector_size(64)));

typedef struct model_tile {
    int rows, bytes;
    model_bits line[16];
} model_tile;

/* From _tile_loadconfig to _tile_release. */
static _Thread_local struct model_tile *model;

static model_tile *model_get(int id)
{
    if (!model || id < 0 || id > 7 || !model[id].rows || !model[id].bytes)
        abort();
    return &model[id];
}

static void model_release(void)
{
    free(model);
    model = NULL;
}

static void model_loadconfig(const void *memory)
{
    const uint8_t *config = memory;
    if (!model && posix_memalign((void **)&model, 64, 8 * sizeof *model))
        abort();
    for (int id = 0; id < 8; id++) {
        uint16_t bytes;
        memcpy(&bytes, config + 16 + 2 * id, sizeof bytes);
        model[id] = (model_tile){config[48 + id], bytes, {{0}}};
        if (config[0] != 1 || bytes > 64 || model[id].rows > 16)
            abort();
    }
}

static void model_zero(int id)
{
    memset(model_get(id)->line, 0, sizeof model->line);
}

static void model_loadd(int id, const void *base, int64_t stride)
{
    model_tile *t = model_get(id);
    model_zero(id);
    for (int r = 0; r < t->rows; r++)
        memcpy(&t->line[r], (const char *)base + r * stride, (size_t)t->bytes);
}

static void model_stored(int id, void *base, int64_t stride)
{
    const model_tile *t = model_get(id);
    for (int r = 0; r < t->rows; r++)
        memcpy((char *)base + r * stride, &t->line[r], (size_t)t->bytes);
}

/* Without subnormal numbers. */
static model_floats model_flushed(model_bits x)
{
    return (model_floats)(x & ((model_bits)((x & 0x7f800000) != 0) | 0x80000000));
}

static model_floats model_sum(model_floats a, model_floats b, model_floats sum)
{
    return model_flushed((model_bits)_mm512_fmadd_round_ps(
        (__m512)a, (__m512)b, (__m512)sum, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

static void model_dpbf16ps(int id, int id_a, int id_b)
{
    model_tile *to = model_get(id);
    const model_tile *a = model_get(id_a), *b = model_get(id_b);
    if (to->rows != a->rows || to->bytes != b->bytes || a->bytes != 4 * b->rows)
        abort();
    for (int m = 0; m < to->rows; m++) {
        model_floats even = {0}, odd = {0};
        for (int k = 0; k < b->rows; k++) {
            const model_bits of_a = (model_bits){0} + a->line[m][k], of_b = b->line[k];
            even = model_sum(model_flushed(of_a << 16), model_flushed(of_b << 16), even);
            odd =
                model_sum(model_flushed(of_a & 0xffff0000), model_flushed(of_b & 0xffff0000), odd);
        }
        const model_floats one = (model_floats){0} + 1, pair = model_sum(even, one, odd);
        to->line[m] = (model_bits)model_sum(model_flushed(to->line[m]), one, pair);
    }
}

#endif
