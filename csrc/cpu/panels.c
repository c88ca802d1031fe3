/* Prepacked weights, layout "panels64". Path of a call: mf.prepack() and PackedMatrix.unpack(),
 * through the binding. */
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

int64_t mmf_cpu_panels_bytes(mmf_dtype dtype, int64_t k, int64_t n)
{
    const int64_t columns = MMF_PANEL_BYTES / (dtype == MMF_FLOAT64 ? 8 : 4);
    return (n + columns - 1) / columns * k * MMF_PANEL_BYTES;
}

void mmf_cpu_pack_panels(mmf_dtype dtype, int64_t k, int64_t n, const void *data, int64_t row,
                         int64_t col, void *panels)
{
    if (dtype == MMF_FLOAT64)
        pack_panels_double(dtype, k, n, data, row, col, panels, k * MMF_PANEL_BYTES / 8);
    else
        pack_panels_float(dtype, k, n, data, row, col, panels, k * MMF_PANEL_BYTES / 4);
}

void mmf_cpu_unpack_panels(mmf_dtype dtype, int64_t k, int64_t n, const void *panels, int64_t row,
                           int64_t col, void *data)
{
    if (dtype == MMF_FLOAT64)
        unpack_panels_double(dtype, k, n, panels, row, col, data);
    else
        unpack_panels_float(dtype, k, n, panels, row, col, data);
}
