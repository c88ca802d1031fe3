/* Lengths and limits of what reads B where it lies, and of what does not: dot products of lines
 * that are contiguous in k, sums of lines that are contiguous in n. The file of an instruction set
 * may set its own. Path of a call: blocked.inc; in_place.inc chooses by them. */
#ifndef MMF_CPU_KERNELS_IN_PLACE_H
#define MMF_CPU_KERNELS_IN_PLACE_H

#define MMF_DOT_ROWS_ALONE 8
#ifndef MMF_DOT_ROWS
#define MMF_DOT_ROWS MMF_DOT_ROWS_ALONE
#endif
#ifdef MMF_DOT_BLOCKS
/* K for more than MMF_DOT_ROWS_ALONE rows, at least (a quarter of it for four to eight) and at
 * most: of n blocks of c products in each lane, (c + n) / lanes + log2(lanes) stays below
 * MMF_CHAIN, for the 8 lanes of double too. */
#define MMF_DOT_LEAST MMF_CPU_DOT_LEAST
#define MMF_DOT_BLOCKS_DEPTH MMF_CPU_DOT_MOST
#define MMF_DOT_PIECE 1024 /* K of a piece, at least: whole blocks of dot_rows.inc */
#define MMF_DOT_NARROW 64  /* lines of A and of B, at most, where K has pieces */
#endif
#define MMF_DOT_COLUMNS MMF_CPU_FEW_COLUMNS
#define MMF_DOT_MANY 64    /* lines of B at once */
#define MMF_DOT_MOST 256   /* against few rows: longer runs of memory */
#define MMF_DOT_SWAPPED 16 /* rows of A: 4 columns of them are activated as one line */
#define MMF_FAR_BYTES (INT64_C(4) << 20)      /* of an operand that comes from memory, at least */
#define MMF_DOT_WIDE_BYTES (INT64_C(1) << 20) /* of rows that a task widens */
#define MMF_DOT_DEPTH (INT64_C(1) << 18)      /* products in a row, at most */
/* Few rows against lines of B: p pieces of n sums of eight products; n / p + p is at most
 * MMF_CHAIN for MMF_LINE_PIECES pieces up to MMF_LINE_DEPTH. Of a longer K, each MMF_LINE_PIECES
 * are such a sum, and these are added. */
#define MMF_LINE_ROWS 3
#ifndef MMF_LINE_LEAST
#define MMF_LINE_LEAST (MMF_LINE_ROWS + 1) /* rows that line_rows.inc takes, at least */
#endif
#ifndef MMF_LINE_MANY
#define MMF_LINE_MANY(size) MMF_LINE_ROWS /* rows that go by lines, at most */
#endif
#ifndef MMF_LINE_WIDENED
#define MMF_LINE_WIDENED 16 /* rows for which lines of 16 bits pay from any cache, at most */
#endif
#ifndef MMF_LINE_NARROW
#define MMF_LINE_NARROW(m) ((m) < 6 ? 0 : 16) /* columns of 16 bits that tiles take, at most */
#endif
#ifndef MMF_LINE_ROW_BYTES
#define MMF_LINE_ROW_BYTES(size) ((size) == 2 ? 49152 : 196608) /* of B for a row, at least */
#endif
#define MMF_LINE_RUN 8192   /* bytes of a line, at least, for 4 to 16 rows of more than 16 bits */
#define MMF_LINE_SUMS 32768 /* of a block of so many rows, in the second cache */
#define MMF_LINES 8         /* whose products are a sum */
#define MMF_LINE_PIECES 12
#define MMF_LINE_DEPTH 13824
#ifndef MMF_LINE_LONGEST
#define MMF_LINE_LONGEST MMF_LINE_DEPTH /* K, at most: see line_pieces() */
#endif
#define MMF_LINE_UNIT 32 /* elements: rows of A begin at multiples */
#define MMF_LINE_N 4096  /* columns of a block of B that is not prepacked, at most */
#define MMF_SLICED_BYTES (INT64_C(1) << 20) /* that three rows share by pieces of K, at least */
#define MMF_SLICED_N 8192                   /* columns of it, at most: parts of more are long */
#ifndef MMF_LINE_BYTES
#define MMF_LINE_BYTES                                                                             \
    (INT64_C(16) << 20) /* of a B that tiles could read; from caches they are faster */
#endif

#endif
