/* The checks that hardware does not have, as the loop and the memory instructions call them. None
 * of them changes what is computed. waits.c, races.c, hazards.c and defined.c hold one check each;
 * checks.c calls them in turn.
 *
 * Nothing of this runs where the launch asks for no check. */
#ifndef HIPSIM_CHECKS_H
#define HIPSIM_CHECKS_H

#include "internal.h"

/* Traits of an instruction that the checks need, found by its name, once, by the decoder. */
enum trait {
    TRAIT_F64_MATRIX = 1 << 0,
    TRAIT_F32 = 1 << 1, /* the name ends in _f32 */
    TRAIT_TRANSCENDENTAL = 1 << 2,
    TRAIT_READS_LANE = 1 << 3,
    TRAIT_WRITES_LANE = 1 << 4,
    TRAIT_DIV_FMAS = 1 << 5,
    TRAIT_CMPX = 1 << 6,
    TRAIT_BUFFER = 1 << 7,
    TRAIT_NOP = 1 << 8,
    /* of pairs of results, which word of the sources feeds which: */
    TRAIT_LOW_WORD = 1 << 9,      /* the low result looks at low words only */
    TRAIT_SAME_WORD = 1 << 10,    /* a move of 64 bits */
    TRAIT_OP_SEL_WORD = 1 << 11,  /* op_sel says it of the low result, op_sel_hi of the high one */
    TRAIT_WORD_OF_EACH = 1 << 12, /* a word of the first source, a word of the second, by op_sel */
    TRAIT_WORDS = TRAIT_LOW_WORD | TRAIT_SAME_WORD | TRAIT_OP_SEL_WORD | TRAIT_WORD_OF_EACH,
};
uint16_t traits_of(const char *name);

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
