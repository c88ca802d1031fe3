/* How the kernel gemm_gemv_stream lays out its dynamic shared memory: read by the host (C11) and by
 * device code (C++). Its argument is mmf_gemm_args. Path of a call: from configure() of
 * gpu/gemm_gemv.c to the kernel. */
#ifndef MMF_STREAM_ARGS_H
#define MMF_STREAM_ARGS_H

/* Stages in memory at once: two workgroups fit on a unit, so that one begins while another ends. */
enum { MMF_STREAM_STAGES = 5 };

/* Lines of B of a stage, a warp each. */
enum { MMF_STREAM_LINES = 8 };

/* Of a stage: as many k of these lines, and of the row of A. */
#define MMF_STREAM_STAGE_BYTES(tile_k, size) ((MMF_STREAM_LINES + 1) * (tile_k) * (size))
#define MMF_STREAM_BYTES(tile_k, size) (MMF_STREAM_STAGES * MMF_STREAM_STAGE_BYTES(tile_k, size))

#endif
