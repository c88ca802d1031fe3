/* Exact overlap of strided layouts by arithmetic progressions, in bytes. Path of a call: asked by
 * problem.c. */
#include "problem/overlap.h"

#include <stdlib.h>

typedef struct axis {
    int64_t count, step; /* step > 0 in bytes */
} axis;

/* A tensor as sorted positive axes from its lowest address: axis[0] has the smallest step. */
typedef struct layout {
    int64_t base;
    int64_t item;
    int ndim;
    axis axes[MMF_MAX_RANK];
} layout;

static int by_step(const void *x, const void *y)
{
    int64_t a = ((const axis *)x)->step, b = ((const axis *)y)->step;
    return (a > b) - (a < b);
}

static layout layout_of(const mmf_tensor *tensor)
{
    layout result = {.base = mmf_tensor_extent(tensor).begin,
                     .item = mmf_dtypes[tensor->dtype].size};
    for (int i = 0; i < tensor->ndim; i++) {
        if (tensor->shape[i] != 1)
            result.axes[result.ndim++] =
                (axis){tensor->shape[i], llabs(tensor->strides[i] * result.item)};
    }
    qsort(result.axes, (size_t)result.ndim, sizeof(axis), by_step);
    return result;
}

static int64_t floor_divide(int64_t a, int64_t b)
{
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

static int64_t divisor_of(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* The search for two elements of one address: index differences, at most count - 1 along each axis,
 * whose steps add up to nothing. */
typedef struct search {
    const axis *axes;
    int64_t reach[MMF_MAX_RANK], divisor[MMF_MAX_RANK]; /* of this axis and all smaller ones */
    int left;                                           /* steps until it gives up */
} search;

/* Can the axes up to `last` add up to distance? */
static mmf_answer adds_up(search *s, int last, int64_t distance)
{
    if (llabs(distance) > s->reach[last] || distance % s->divisor[last] != 0)
        return MMF_NO;
    if (last == 0)
        return MMF_YES;
    int64_t step = s->axes[last].step, count = s->axes[last].count, below = s->reach[last - 1];
    int64_t first = -floor_divide(below - distance, step),
            end = floor_divide(below + distance, step);
    first = first < 1 - count ? 1 - count : first;
    end = end > count - 1 ? count - 1 : end;
    for (int64_t i = first; i <= end; i++) {
        mmf_answer answer =
            s->left-- > 0 ? adds_up(s, last - 1, distance - step * i) : MMF_UNDECIDED;
        if (answer != MMF_NO)
            return answer;
    }
    return MMF_NO;
}

/* At least two axes, of positive steps. */
static mmf_answer search_overlap(const layout *t)
{
    search s = {.axes = t->axes, .left = 1000000};
    for (int i = 0; i < t->ndim; i++) {
        s.reach[i] = t->axes[i].step * (t->axes[i].count - 1) + (i ? s.reach[i - 1] : 0);
        s.divisor[i] = divisor_of(t->axes[i].step, i ? s.divisor[i - 1] : 0);
    }
    for (int i = 1; i < t->ndim; i++) /* the largest axis along which the two differ */
        for (int64_t x = 1; x < t->axes[i].count && t->axes[i].step * x <= s.reach[i - 1]; x++) {
            mmf_answer answer =
                s.left-- > 0 ? adds_up(&s, i - 1, t->axes[i].step * x) : MMF_UNDECIDED;
            if (answer != MMF_NO)
                return answer;
        }
    return MMF_NO;
}

mmf_answer mmf_tensor_overlaps_itself(const mmf_tensor *tensor)
{
    int64_t compact = 1;
    bool is_compact = true;
    for (int i = tensor->ndim - 1; i >= 0; i--) {
        is_compact &= tensor->shape[i] == 1 || tensor->strides[i] == compact;
        compact *= tensor->shape[i];
    }
    if (is_compact || compact == 0)
        return MMF_NO;
    layout t = layout_of(tensor);
    int64_t extent = t.item;
    bool nested = true;
    for (int i = 0; i < t.ndim; i++) {
        if (t.axes[i].step < t.item)
            return MMF_YES;
        nested &= t.axes[i].step >= extent;
        extent += t.axes[i].step * (t.axes[i].count - 1);
    }
    if (nested)
        return MMF_NO;
    if (t.ndim > 2)
        return search_overlap(&t);
    /* Steps are multiples of the item here (strides count elements): a*i == b*j has a solution
     * inside the axes? */
    int64_t a = t.axes[0].step, b = t.axes[1].step, divisor = divisor_of(a, b);
    return b / divisor < t.axes[0].count && a / divisor < t.axes[1].count ? MMF_YES : MMF_NO;
}

/* Drop zero steps, merge axes that continue each other and fold a dense inner axis into the item.
 */
static void merge(layout *t)
{
    int kept = 0;
    for (int i = 0; i < t->ndim; i++) {
        axis next = t->axes[i];
        if (next.step == 0)
            continue;
        if (kept == 0 && next.step == t->item)
            t->item *= next.count;
        else if (kept && next.step == t->axes[kept - 1].step * t->axes[kept - 1].count)
            t->axes[kept - 1].count *= next.count;
        else
            t->axes[kept++] = next;
    }
    t->ndim = kept;
}

/* Do items of two progressions touch, the second one starting distance bytes after the first? */
static bool progressions_touch(axis x, int64_t x_item, axis y, int64_t y_item, int64_t distance)
{
    if (x.step == y.step) { /* only the difference of the indices counts */
        int64_t difference = floor_divide(distance - x_item, x.step) + 1;
        difference = difference < 1 - y.count ? 1 - y.count : difference;
        return difference < x.count && x.step * difference < distance + y_item;
    }
    /* Walk the shorter one; for each of its items the other's candidates follow by division. */
    if (x.count > y.count)
        return progressions_touch(y, y_item, x, x_item, -distance);
    for (int64_t i = 0; i < x.count; i++) {
        int64_t low = x.step * i - distance - y_item +
                      1; /* first start of a y item that reaches x's item i */
        int64_t high = x.step * i - distance + x_item - 1;
        int64_t j = low <= 0 ? 0 : floor_divide(low - 1, y.step) + 1;
        if (j < y.count && y.step * j <= high)
            return true;
    }
    return false;
}

/* Two layouts of at most two axes: walk the outer axis of both, only over pairs of rows whose
 * ranges meet. */
static bool rectangles_touch(const layout *x, const layout *y)
{
    const axis one = {1, 1};
    axis x_in = x->ndim > 0 ? x->axes[0] : one, x_out = x->ndim > 1 ? x->axes[1] : one;
    axis y_in = y->ndim > 0 ? y->axes[0] : one, y_out = y->ndim > 1 ? y->axes[1] : one;
    int64_t x_width = x_in.step * (x_in.count - 1) + x->item,
            y_width = y_in.step * (y_in.count - 1) + y->item;
    for (int64_t i = 0; i < x_out.count; i++) {
        int64_t start = x->base + x_out.step * i;
        int64_t first = floor_divide(start - y_width - y->base, y_out.step) + 1;
        int64_t last = floor_divide(start + x_width - 1 - y->base, y_out.step);
        first = first < 0 ? 0 : first;
        last = last >= y_out.count ? y_out.count - 1 : last;
        for (int64_t j = first; j <= last; j++)
            if (progressions_touch(x_in, x->item, y_in, y->item, y->base + y_out.step * j - start))
                return true;
    }
    return false;
}

bool mmf_tensors_overlap(const mmf_tensor *a, const mmf_tensor *b)
{
    if (!mmf_extents_meet(mmf_tensor_extent(a), mmf_tensor_extent(b)))
        return false;
    layout x = layout_of(a), y = layout_of(b);
    merge(&x);
    merge(&y);
    return x.ndim > 2 || y.ndim > 2 || rectangles_touch(&x, &y);
}
