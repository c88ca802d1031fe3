/* The plan of a problem, which configure() hands to run(), and what the tasks of a call share. Path
 * of a call: plan_job() in cut.inc fills a job; run_job() in blocked.inc and run_split() in
 * split_k.inc follow it; the loops read both. */
#ifndef MMF_CPU_KERNELS_JOB_H
#define MMF_CPU_KERNELS_JOB_H

#include "cpu/interrupt.h"
#include "cpu/view.h"

/* What dots and lines.inc ask memory for, ahead of its use: for the first cache, for the second.
 * Dots that ask for nothing read in an order that the processor foresees. */
enum { ASKS_NEAR = 1, ASKS_FAR = 2 };
#define MMF_PANEL_NEAR 4096 /* bytes of a panel to ask for ahead, for the first cache */
#define MMF_PANEL_FAR 12288 /* and for the second */

/* How one problem is cut. A unit is one block of the result of one batch index. */
typedef struct job {
    bool dots, swapped;    /* dot.inc; swapped: the few lines are columns of B */
    bool lines;            /* lines.inc */
    bool packs_a, packs_b; /* packs_b: into the workspace of a task, or of all (chunk > 0) */
    bool packs_strips;     /* packs_a, and B comes in panels */
    bool owns_b;           /* packs_b, all columns, by each thread for its rows; chunk is 0 */
    bool packs_ahead;      /* the next chunk of B, by tasks among those of this one's blocks */
    bool widens_a;         /* dots, rows of A widened by each task */
    uint8_t asks;          /* dots, lines: ASKS_NEAR, ASKS_FAR, both or neither */
    bool looks_ahead;      /* tiles ask memory for the columns that are packed next */
    bool strip;            /* run_strip(), which kernels of pairs have not */
    bool plain;            /* is_plain() */
    bool turned;           /* B^T A^T is computed: turned.inc says when */
    bool panel_rows;       /* turned: rows of A are columns of prepacked panels */
    uint8_t streams, a_streams, b_streams; /* of sums; of rows of A and columns of B for them */
    uint8_t form;                          /* of panels */
    uint8_t planes; /* of partial sums: 0 if K is one piece, 2 if they are compensated */
    int64_t depth, chain, block_m, block_n, blocks_m, blocks_n;
    int64_t shared_a; /* bytes of all strips of A, which are packed once for all tasks, or 0 */
    int64_t copied;   /* bytes of lines that columns of B are copied to, or 0: columns.inc */
    int64_t more_n;   /* columns that the first blocks of rows have more than block_n */
    int64_t chunk;    /* columns of B that are packed at once for all tasks */
    int64_t wide;     /* columns that a task packs at once beside all rows of A, or 0 */
    int64_t slices;   /* of one to three rows of lines: pieces of K that tasks sum apart, or 0 */
    int64_t split;    /* pieces of K, which the problem has as a batch, or 0: split_k.inc */
    int64_t last;     /* K of the last of them */
    int64_t whole_k;  /* K before it is split, which panels have */
    int threads;
    int64_t a_bytes, b_bytes,     /* of one thread */
        plane;                    /* elements */
    int64_t pitch;                /* bytes of one thread */
} __attribute__((may_alias)) job; /* lies in mmf_config.own */

/* What the tasks of one phase share: columns [column, column + columns) of one batch index, or all
 * columns of all of them. */
typedef struct work {
    const job *job;
    const mmf_problem *problem; /* as the loops see it: turned, or the same as `called` */
    const mmf_problem *called;
    const mmf_buffers *buffers;
    mmf_interrupt *interrupt;
    char *workspace; /* of every thread, job->pitch apart */
    void *panels;    /* the packed chunk, streams one after the other; NULL if B is not shared */
    void *strips;    /* all of A, pieces of K one after the other; NULL if A is not shared */
    void *sums;      /* of slices or pieces of K that are added later, or NULL */
    mmf_view view;   /* of the batch index of what is shared */
    int64_t batch, column, columns;
    void *next_panels; /* the chunk that is being packed: where, of which columns */
    int64_t next_column, next_columns;
    int packs; /* tasks that pack it: alone, or beside blocks; or 0 */
    int64_t per_batch, units, units_per_task, panels_per_task, columns_per_task;
} work;

_Static_assert(sizeof(job) <= sizeof(((mmf_config *)0)->own), "configure() hands the job to run()");

#endif
