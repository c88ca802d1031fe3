#include "checks.h"
bool checks_make(struct thread *t)
{
    (void)t;
    return true;
}
void checks_free(struct thread *t)
{
    (void)t;
}
void check_group_start(struct group *g)
{
    (void)g;
}
void check_wave_start(struct wave *w)
{
    (void)w;
}
void check_before(struct wave *w, const struct op *o)
{
    (void)w, (void)o;
}
void check_after(struct wave *w, const struct op *o)
{
    (void)w, (void)o;
}
void check_barrier(struct group *g)
{
    (void)g;
}
void check_lds(struct wave *w, const uint32_t *a, uint64_t l, unsigned b, bool x)
{
    (void)w, (void)a, (void)l, (void)b, (void)x;
}
void check_lds_dma(struct wave *w, const uint32_t *a, uint64_t l, unsigned b)
{
    (void)w, (void)a, (void)l, (void)b;
}
