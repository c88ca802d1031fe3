/* The checks that hardware does not have, as the loop and the memory instructions call them. None
 * of them changes what is computed. waits.c, races.c, hazards.c and defined.c hold one check each;
 * checks.c calls them in turn.
 *
 * Nothing of this runs where the launch asks for no check. */
#ifndef HIPSIM_CHECKS_H
#define HIPSIM_CHECKS_H

#include "internal.h"

/* Memory of a host thread's checks; false if there is none. */
bool checks_make(struct thread *thread);
void checks_free(struct thread *thread);
void check_group_start(struct group *group);
void check_wave_start(struct wave *w);

void check_before(struct wave *w, const struct op *o);
void check_after(struct wave *w, const struct op *o);
/* The instruction that just ran is a wait that had something to wait for. */
bool check_waited(const struct wave *w);
/* Every wave has arrived, none has left. */
void check_barrier(struct group *group);
/* Bytes of LDS that the running instruction reads or writes in `lanes`. */
void check_lds(struct wave *w, const uint32_t *address, uint64_t lanes, unsigned bytes, bool write);
void check_lds_dma(struct wave *w, const uint32_t *address, uint64_t lanes, unsigned bytes);

#endif
