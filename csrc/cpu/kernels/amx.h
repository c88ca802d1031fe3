/* Settings of both kernels on the tile registers of AMX. Not on the path of a call: sets up
 * blocked.inc for blocked_amx.c and blocked_amx_split.c. */
#ifndef MMF_CPU_KERNELS_AMX_H
#define MMF_CPU_KERNELS_AMX_H

#define MMF_MISSING mmf_cpu_lacks_amx()
#define MMF_PAIRS
#define MMF_AMX
#define MMF_VECTOR_BYTES 64
#define MMF_MR 32
#define MMF_PLACED_MR 0 /* every strip is as high as a packed one */
#define MMF_ROW_UNIT 16
#define MMF_DEPTH_UNIT 32
#define MMF_CACHE_BLOCKS
#define MMF_NARROW_PIECES 4
#define MMF_NARROW_LEAST(packed) ((packed) ? 2048 : 512) /* less is done before others wake */
#define MMF_BLOCK_N 1024
#define MMF_LOCAL_M 160
#define MMF_LOCAL_MOST_M 384
#define MMF_SHARED_ROWS_THREADS 1
#define MMF_BLOCK_N_LOCAL 256
#define MMF_GROUP_COLUMNS 64
#define MMF_PACKS_GROUPS true
#define MMF_LOOKS_AHEAD false
#define MMF_STRIPS_SHARE 2
#define MMF_SMALL /* code: what is large is not inlined */
#define MMF_PLAIN_COLUMNS 128

#endif
