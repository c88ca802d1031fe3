/* Prepacked weights, layouts "panels64", "pairs64" and "columns". Path of a call: mf.prepack() and
 * PackedMatrix.unpack(), through the binding. */
#include <string.h>

#include "cpu/ask.h"
#include "cpu/convert.h"
#include "cpu/interrupt.h"
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

/* What is moved between two questions whether the call is to end: so many k (a multiple of 32) of
 * so many panels; and the multiply-adds that an element counts as. */
enum { PIECE = 4096, GROUP = 4, COST = 16 };

/* As they are: blocked kernels widen them. */
static void pack_panels_16(int64_t k, int64_t n, const uint16_t *from, int64_t row, int64_t col,
                           uint16_t *panels, int64_t pitch)
{
    for (int64_t first = 0; first < n; first += PANEL_FLOATS, panels += pitch)
        for (int64_t i = 0; i < k; i++)
            for (int64_t j = 0; j < PANEL_FLOATS; j++)
                panels[i * PANEL_FLOATS + j] =
                    first + j < n ? from[i * row + (first + j) * col] : 0;
}

static void unpack_panels_16(int64_t k, int64_t n, const uint16_t *from, int64_t row, int64_t col,
                             uint16_t *to)
{
    for (int64_t i = 0; i < k; i++, from += PANEL_FLOATS)
        for (int64_t j = 0; j < n; j++)
            to[i * row + j * col] = from[j];
}

void mmf_cpu_pack_panels(mmf_dtype dtype, int64_t k, int64_t n, const void *data, int64_t row,
                         int64_t col, void *panels, mmf_interrupt *interrupt)
{
    const int64_t size = mmf_element_size(dtype);
    const int64_t columns = dtype == MMF_FLOAT64 ? PANEL_DOUBLES : PANEL_FLOATS;
    for (int64_t j = 0; j < n; j += GROUP * columns)
        for (int64_t i = 0; i < k; i += PIECE) {
            const int64_t depth = mmf_min(PIECE, k - i), width = mmf_min(GROUP * columns, n - j);
            const char *from = (const char *)data + (i * row + j * col) * size;
            char *to = (char *)panels + (j * k + i * columns) * size;
            if (mmf_ends(interrupt, 0, COST * depth * width))
                return;
            if (dtype == MMF_FLOAT64)
                pack_panels_double(dtype, depth, width, from, row, col, (double *)to, k * columns);
            else if (dtype == MMF_FLOAT32)
                pack_panels_float(dtype, depth, width, from, row, col, (float *)to, k * columns);
            else
                pack_panels_16(depth, width, (const uint16_t *)from, row, col, (uint16_t *)to,
                               k * columns);
        }
}

void mmf_cpu_unpack_panels(mmf_dtype dtype, int64_t k, int64_t n, const void *panels, int64_t row,
                           int64_t col, void *data, mmf_interrupt *interrupt)
{
    const int64_t size = mmf_element_size(dtype);
    const int64_t columns = dtype == MMF_FLOAT64 ? PANEL_DOUBLES : PANEL_FLOATS;
    for (int64_t j = 0; j < n; j += columns)
        for (int64_t i = 0; i < k; i += PIECE) {
            const int64_t depth = mmf_min(PIECE, k - i), width = mmf_min(columns, n - j);
            const char *from = (const char *)panels + (j * k + i * columns) * size;
            char *to = (char *)data + (i * row + j * col) * size;
            if (mmf_ends(interrupt, 0, COST * depth * width))
                return;
            if (dtype == MMF_FLOAT64)
                unpack_panels_double(dtype, depth, width, (const double *)from, row, col, to);
            else if (dtype == MMF_FLOAT32)
                unpack_panels_float(dtype, depth, width, (const float *)from, row, col, to);
            else
                unpack_panels_16(depth, width, (const uint16_t *)from, row, col, (uint16_t *)to);
        }
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

/* k of one panel from pair_at(k, 0) on, and the zeros that follow the last one. */
static void pack_pair_panel(int64_t k, int64_t n, const uint16_t *from, int64_t row, int64_t col,
                            uint16_t *to)
{
    for (int64_t i = 0; i < padded_depth(k); i += 2, to += 2 * PANEL_FLOATS)
        for (int64_t j = 0; j < PANEL_FLOATS; j++)
            for (int64_t odd = 0; odd < 2; odd++)
                to[2 * j + odd] = j < n && i + odd < k ? from[(i + odd) * row + j * col] : 0;
}

void mmf_cpu_pack_pairs(mmf_dtype dtype, int64_t k, int64_t n, const void *data, int64_t row,
                        int64_t col, void *panels, mmf_interrupt *interrupt)
{
    const uint16_t *from = data;
    uint16_t *to = panels;
    (void)dtype;
    for (int64_t first = 0; first < n; first += PANEL_FLOATS, to += padded_depth(k) * PANEL_FLOATS)
        for (int64_t i = 0; i < k; i += PIECE) {
            if (mmf_ends(interrupt, 0, COST * PIECE * PANEL_FLOATS))
                return;
            pack_pair_panel(mmf_min(PIECE, k - i), n - first, from + i * row + first * col, row,
                            col, to + pair_at(i, 0));
        }
}

void mmf_cpu_unpack_pairs(mmf_dtype dtype, int64_t k, int64_t n, const void *panels, int64_t row,
                          int64_t col, void *data, mmf_interrupt *interrupt)
{
    const uint16_t *from = panels;
    uint16_t *to = data;
    (void)dtype;
    for (int64_t first = 0; first < n;
         first += PANEL_FLOATS, from += padded_depth(k) * PANEL_FLOATS)
        for (int64_t i = 0; i < k; i++) {
            if (i % PIECE == 0 && mmf_ends(interrupt, 0, COST * PIECE * PANEL_FLOATS))
                return;
            for (int64_t j = 0; j < PANEL_FLOATS && first + j < n; j++)
                to[i * row + (first + j) * col] = from[pair_at(i, j)];
        }
}

#define COPY(type)                                                                                 \
    for (int64_t i = begin; i < end; i++)                                                          \
    ((type *)to)[i * to_row + j * to_col] = ((const type *)from)[i * from_row + j * from_col]

void mmf_cpu_copy_columns(mmf_dtype dtype, int64_t k, int64_t n, const void *from, int64_t from_row,
                          int64_t from_col, void *to, int64_t to_row, int64_t to_col,
                          mmf_interrupt *interrupt)
{
    const int64_t size = mmf_element_size(dtype);
    for (int64_t j = 0; j < n; j++)
        for (int64_t begin = 0; begin < k; begin += PIECE) {
            const int64_t end = mmf_min(begin + PIECE, k);
            if (mmf_ends(interrupt, 0, COST * (end - begin)))
                return;
            if (size == 8)
                COPY(uint64_t);
            else if (size == 4)
                COPY(uint32_t);
            else
                COPY(uint16_t);
        }
}

#undef COPY
