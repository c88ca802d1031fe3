/* Prepacked weights, layouts "panels64" and "pairs64". Path of a call: mf.prepack() and
 * PackedMatrix.unpack(), through the binding. */
#include <string.h>

#include "cpu/convert.h"
#include "cpu/shuffle.h"
#include "cpu/view.h"

/* each needs what stands before it */
/* clang-format off */
#include "cpu/real_float.h"
#include "cpu/move.inc"
#include "cpu/pack.inc"
#include "cpu/real_end.h"

#include "cpu/real_double.h"
#include "cpu/move.inc"
#include "cpu/pack.inc"
#include "cpu/real_end.h"
/* clang-format on */

#define PANEL_FLOATS (MMF_PANEL_BYTES / 4)
#define PANEL_DOUBLES (MMF_PANEL_BYTES / 8)

int64_t mmf_cpu_panels_bytes(mmf_dtype dtype, int64_t k, int64_t n)
{
    const int64_t columns = dtype == MMF_FLOAT64 ? PANEL_DOUBLES : PANEL_FLOATS;
    const int64_t bytes = (n + columns - 1) / columns * k * columns * mmf_element_size(dtype);
    return (bytes + 63) / 64 * 64;
}

/* As they are: blocked rows widen them. */
static void pack_panels_16(int64_t k, int64_t n, const uint16_t *from, int64_t row, int64_t col,
                           uint16_t *to)
{
    for (int64_t first = 0; first < n; first += PANEL_FLOATS, from += PANEL_FLOATS * col)
        for (int64_t i = 0; i < k; i++, to += PANEL_FLOATS)
            for (int64_t j = 0; j < PANEL_FLOATS; j++)
                to[j] = first + j < n ? from[i * row + j * col] : 0;
}

static void unpack_panels_16(int64_t k, int64_t n, const uint16_t *from, int64_t row, int64_t col,
                             uint16_t *to)
{
    for (int64_t first = 0; first < n; first += PANEL_FLOATS, to += PANEL_FLOATS * col)
        for (int64_t i = 0; i < k; i++, from += PANEL_FLOATS)
            for (int64_t j = 0; j < PANEL_FLOATS && first + j < n; j++)
                to[i * row + j * col] = from[j];
}

void mmf_cpu_pack_panels(mmf_dtype dtype, int64_t k, int64_t n, const void *data, int64_t row,
                         int64_t col, void *panels)
{
    if (dtype == MMF_FLOAT64)
        pack_panels_double(dtype, k, n, data, row, col, panels, k * PANEL_DOUBLES);
    else if (dtype == MMF_FLOAT32)
        pack_panels_float(dtype, k, n, data, row, col, panels, k * PANEL_FLOATS);
    else
        pack_panels_16(k, n, data, row, col, panels);
}

void mmf_cpu_unpack_panels(mmf_dtype dtype, int64_t k, int64_t n, const void *panels, int64_t row,
                           int64_t col, void *data)
{
    if (dtype == MMF_FLOAT64)
        unpack_panels_double(dtype, k, n, panels, row, col, data);
    else if (dtype == MMF_FLOAT32)
        unpack_panels_float(dtype, k, n, panels, row, col, data);
    else
        unpack_panels_16(k, n, panels, row, col, data);
}

/* Of layout "pairs64": k of a panel, and element (k, j) of a panel. */
static int64_t padded_depth(int64_t k)
{
    return (k + 31) / 32 * 32;
}

static int64_t pair_at(int64_t k, int64_t j)
{
    return (k / 2 * PANEL_FLOATS + j) * 2 + k % 2;
}

int64_t mmf_cpu_pairs_bytes(mmf_dtype dtype, int64_t k, int64_t n)
{
    (void)dtype;
    return (n + PANEL_FLOATS - 1) / PANEL_FLOATS * padded_depth(k) * PANEL_FLOATS * 2;
}

void mmf_cpu_pack_pairs(mmf_dtype dtype, int64_t k, int64_t n, const void *data, int64_t row,
                        int64_t col, void *panels)
{
    const uint16_t *from = data;
    uint16_t *to = panels;
    (void)dtype;
    for (int64_t first = 0; first < n; first += PANEL_FLOATS)
        for (int64_t i = 0; i < padded_depth(k); i += 2, to += 2 * PANEL_FLOATS)
            for (int64_t j = 0; j < PANEL_FLOATS; j++)
                for (int64_t odd = 0; odd < 2; odd++)
                    to[2 * j + odd] = first + j < n && i + odd < k
                                          ? from[(i + odd) * row + (first + j) * col]
                                          : 0;
}

void mmf_cpu_unpack_pairs(mmf_dtype dtype, int64_t k, int64_t n, const void *panels, int64_t row,
                          int64_t col, void *data)
{
    const uint16_t *from = panels;
    uint16_t *to = data;
    (void)dtype;
    for (int64_t first = 0; first < n;
         first += PANEL_FLOATS, from += padded_depth(k) * PANEL_FLOATS)
        for (int64_t i = 0; i < k; i++)
            for (int64_t j = 0; j < PANEL_FLOATS && first + j < n; j++)
                to[i * row + (first + j) * col] = from[pair_at(i, j)];
}
