/* The device code of this build: machine code (AMD) and PTX or cubins (NVIDIA), embedded as raw
 * bytes by cmake/device_code.cmake, which also writes what is declared here. Path of a call: the
 * first one on a GPU loads what it needs. */
#ifndef MMF_GPU_OBJECTS_H
#define MMF_GPU_OBJECTS_H

typedef struct mmf_device_object {
    const char *arch;                 /* "gfx942", "sm_90a" */
    const char *file;                 /* of kernels.def: "gemm_simt_64x64x16_f32_any" */
    const unsigned char *begin, *end; /* PTX: with its NUL */
} mmf_device_object;

extern const mmf_device_object mmf_device_objects[];
extern const int mmf_device_object_count;

/* "", or why this build has no device code. */
extern const char mmf_device_build_note[];

/* The generic kernel as one text for hipRTC; "" in a build without device code. */
extern const char mmf_device_source_simt[];

#endif
