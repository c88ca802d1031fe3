/* The machine half of the simulated GPU, as the runtime half sees it: architectures, one call that
 * executes a grid of AMD machine code, the memory it asks the runtime for, and what it reports.
 * Path of a launch: hipModuleLaunchKernel (runtime) -> hipsim_run -> decode once -> workgroups over
 * threads -> waves, instruction by instruction. Nothing here knows HIP, ELF or Python.
 *
 * A device address is a host address inside the runtime's reserved range. Everything that a kernel
 * reads must be an allocation of that range, the kernarg segment, the dispatch packet and the
 * loaded code object (its .rodata) included. */
#ifndef HIPSIM_MACHINE_H
#define HIPSIM_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum hipsim_family { HIPSIM_CDNA2, HIPSIM_CDNA3, HIPSIM_CDNA4, HIPSIM_RDNA3, HIPSIM_RDNA4 };

/* One real part. Sizes are what its HIP runtime reports. */
struct hipsim_arch {
    const char *name;           /* "gfx942" */
    const char *gcn_arch_name;  /* "gfx942:sramecc+:xnack-" */
    const char *marketing_name; /* "AMD Instinct MI300X" */
    enum hipsim_family family;
    uint32_t elf_machine; /* EF_AMDGPU_MACH: the low 8 bits of e_flags */
    int major, minor;     /* hipDeviceProp_t.major and .minor: 9 and 4 */
    int wavefront_size;
    int compute_units; /* multiProcessorCount: workgroup processors on RDNA, as HIP counts them */
    int max_threads_per_block, max_threads_per_cu;
    int clock_khz, memory_clock_khz, memory_bus_bits;
    size_t lds_bytes; /* of one workgroup */
    size_t l2_bytes, memory_bytes;
    int registers_per_block; /* 32-bit vector registers of a CU, as regsPerBlock */
    int vgpr_budget;         /* of one lane, accumulation registers included */
};

/* By the name before the first ':' ("gfx942"); NULL if unknown. */
const struct hipsim_arch *hipsim_arch_find(const char *name);
/* The table by index, for listing; NULL past its end. */
const struct hipsim_arch *hipsim_arch_at(int index);

struct hipsim_program; /* decoded code; opaque */

/* A kernel of a loaded code object. The caller fills everything but `program` (start it at NULL)
 * and keeps `name` and the device memory alive until hipsim_program_free. */
struct hipsim_kernel {
    const struct hipsim_arch *arch;
    const char *name;
    uint64_t code_address;            /* device address of the loaded .text segment */
    size_t code_bytes;                /* its size; the kernel's branches and calls stay inside it */
    uint64_t descriptor;              /* device address of the 64-byte kernel descriptor */
    uint32_t kernarg_bytes;           /* from the metadata */
    uint32_t max_flat_workgroup_size; /* from the metadata; 0: 1024 */
    struct hipsim_program *program;   /* made by the first run or hipsim_prepare */
};

enum hipsim_check {
    HIPSIM_CHECK_WAITS = 1 << 0,
    HIPSIM_CHECK_RACES = 1 << 1,
    HIPSIM_CHECK_BOUNDS = 1 << 2,
    HIPSIM_CHECK_HAZARDS = 1 << 3,
    HIPSIM_CHECK_BARRIERS = 1 << 4,
    HIPSIM_CHECK_BANKS = 1 << 5, /* counts, never a violation */
    HIPSIM_CHECK_UNINITIALISED = 1 << 6,
    HIPSIM_CHECK_ALL = (1 << 7) - 1,
};

/* The names that HIPSIM_CHECK takes, comma separated ("all" and "none" too), to a mask;
 * false if a name is unknown, *unknown then points at it inside `names`. */
bool hipsim_checks_parse(const char *names, uint32_t *checks, const char **unknown);

struct hipsim_allocation {
    uint64_t base, size;
    bool writable;
};

/* Callbacks from the machine into the runtime. Called from several threads at once. */
struct hipsim_memory {
    void *context;
    /* The live allocation that holds `address`; false if none does. */
    bool (*find)(void *context, uint64_t address, struct hipsim_allocation *found);
};

struct hipsim_launch {
    uint32_t grid[3];  /* workgroups */
    uint32_t block[3]; /* work items of a workgroup */
    uint32_t dynamic_lds;
    uint64_t kernarg;         /* device address of the filled kernarg segment, hidden args too */
    uint64_t dispatch_packet; /* device address of a filled 64-byte AQL packet */
    uint64_t seed;            /* order of waves and workgroups */
    uint32_t checks;          /* of enum hipsim_check */
    bool truncate_xf32;       /* inputs of xf32, which are rounded to nearest even else */
    int threads;              /* host threads to spread workgroups over; <= 1: the caller's alone */
    uint64_t instruction_limit; /* of one wave, 0: 2^40; a wave past it is reported as hanging */
};

enum hipsim_violation_kind {
    HIPSIM_VIOLATION_WAIT,
    HIPSIM_VIOLATION_RACE,
    HIPSIM_VIOLATION_BOUNDS,
    HIPSIM_VIOLATION_HAZARD,
    HIPSIM_VIOLATION_BARRIER,
    HIPSIM_VIOLATION_UNINITIALISED,
    HIPSIM_VIOLATION_ASSERTION, /* an architecture's rule: operands not replicated, misalignment */
    HIPSIM_VIOLATION_KINDS
};
const char *hipsim_violation_name(enum hipsim_violation_kind kind); /* "wait", "race", ... */

struct hipsim_violation {
    enum hipsim_violation_kind kind;
    const char *kernel, *arch;
    uint64_t pc;             /* device address of the instruction */
    uint64_t offset;         /* from the kernel's entry */
    const char *instruction; /* disassembled */
    uint32_t workgroup[3];
    int wave, lane;       /* lane -1: the whole wave */
    const char *sentence; /* what is wrong */
};

/* Counted over a launch; hipsim_run adds to what is there. */
struct hipsim_counters {
    uint64_t instructions; /* of waves */
    uint64_t salu, smem, valu, lds, memory, matrix, branches, waits, barriers;
    uint64_t bytes_loaded, bytes_stored,
        bytes_to_lds; /* global memory, by lanes that were active */
    uint64_t lds_bytes_read, lds_bytes_written;
    uint64_t lds_conflict_cycles; /* beyond conflict-free; counted only with HIPSIM_CHECK_BANKS */
    uint64_t atomics;
    uint64_t matrix_flops;
    uint64_t workgroups, waves;
    uint64_t violations;
};

struct hipsim_sink {
    void *context;
    /* Called under a lock of the launch, at most `limit` times; strings live for the call only. The
     * same instruction reports the same kind once per launch. */
    void (*violation)(void *context, const struct hipsim_violation *violation);
    uint64_t limit; /* 0: 100 */
    struct hipsim_counters *counters;
    /* How often each instruction of the program executed, by index, in the low 32 bits; in the high
     * ones, how often a wait had a load or an LDS access to wait for. Counted with any check; NULL:
     * not wanted. */
    uint64_t *executed;
};

enum hipsim_status {
    HIPSIM_OK,
    HIPSIM_NO_DECODER, /* LLVM's disassembler was not found: the sentence says what to set */
    HIPSIM_UNDECODED,  /* an unknown instruction, operand or modifier: the launch never started */
    HIPSIM_BAD_LAUNCH, /* sizes that the part or the kernel refuses: nothing ran */
    HIPSIM_FAULT,      /* ran into a state that hangs or faults a real GPU; memory is undefined */
    HIPSIM_NO_MEMORY,
};

/* Decode `kernel` now (hipsim_run does it on first use); `sentence` gets the reason of a failure.
 */
enum hipsim_status hipsim_prepare(struct hipsim_kernel *kernel, char *sentence, size_t bytes);

/* Execute the grid and return when it is done. Safe from several threads, also for one kernel. An
 * access outside every allocation is suppressed (loads give 0), always reported as a bounds
 * violation, whatever `checks` says, and makes the status HIPSIM_FAULT. */
enum hipsim_status hipsim_run(struct hipsim_kernel *kernel, const struct hipsim_launch *launch,
                              const struct hipsim_memory *memory, const struct hipsim_sink *sink,
                              char *sentence, size_t bytes);

/* Static facts of a decoded kernel: the number of instructions and a listing by index. */
size_t hipsim_program_length(const struct hipsim_program *program);
const char *hipsim_program_text(const struct hipsim_program *program, size_t index,
                                uint64_t *offset);

/* Gives back the kernel's program (shared between kernels of equal code, counted); NULL is fine. */
void hipsim_program_free(struct hipsim_program *program);

/* Path of the LLVM library; before the first decode. NULL or no call: HIPSIM_LLVM, then the
 * system's libLLVM of version 20 or later. */
void hipsim_set_llvm(const char *path);

#endif
