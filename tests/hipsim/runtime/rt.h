/* The runtime half of the simulated GPU: devices, memory, modules, streams and graphs behind the
 * entry points of libamdhip64. Path of a call: entry.c takes the lock, counts the call, injects a
 * fault if one waits, and calls rt_<name>; work goes into a queue (queue.c) and runs at a
 * synchronisation, kernels through machine/machine.h. All state of this file lives under one lock,
 * held during every call and while a kernel runs. */
#ifndef HIPSIM_RT_H
#define HIPSIM_RT_H

#include "hip_abi.h"
#include "machine/machine.h"

#include <pthread.h>

#define RT_EXPORT __attribute__((visibility("default")))
#define RT_PRINTF(text, first) __attribute__((format(printf, text, first)))
#define RT_MAX_DEVICES 16
#define RT_PCI_BUS(ordinal) (3 + 16 * (ordinal))
#define RT_DEFAULT_VERSION 70253211 /* ROCm 7.2 */

/* --- memory.c: the address range and its allocations --- */

enum rt_owner { RT_USER, RT_MODULE, RT_INTERNAL }; /* only user allocations can be freed, or leak */

struct rt_allocation {
    uint64_t base;
    size_t size;
    size_t mapped;               /* whole pages; 0: a part */
    struct rt_allocation *whole; /* of a part */
    uint64_t opened;             /* the call that made it accessible */
    int device;
    int type; /* hipMemoryTypeDevice, ...Host, ...Managed */
    unsigned flags;
    enum rt_owner owner;
    bool writable;
    bool live;         /* false before the stream reaches hipMallocAsync */
    bool ordered;      /* of hipMallocAsync */
    bool free_pending; /* hipFreeAsync is in a queue */
};

bool rt_memory_init(void);
/* What an allocation holds, accessible from now to the end of the call; NULL if the system refuses.
 */
unsigned char *rt_bytes(struct rt_allocation *allocation);
bool rt_memory_open(void); /* all of them, for a kernel */
void rt_memory_close(void);
struct rt_allocation *rt_allocate(int device, int type, size_t size, enum rt_owner owner);
/* A part of an allocation as an allocation of its own; the whole then covers nothing but keeps the
 * pages, and is released after its parts. */
struct rt_allocation *rt_carve(struct rt_allocation *whole, size_t offset, size_t size,
                               bool writable);
void rt_release(struct rt_allocation *allocation);
/* The allocation, live or not, that holds the address. */
struct rt_allocation *rt_find(uint64_t address);
/* Host bytes of [address, address + bytes): of an allocation that is live and holds all of it, or
 * the address itself if no allocation and not the device range has it. NULL: a device address that
 * is not usable; a violation says so. */
unsigned char *rt_host_bytes(const void *address, size_t bytes, const char *what);
bool rt_in_device_range(uint64_t address);
/* For hipsim_memory; context is the struct rt_device that runs. */
bool rt_machine_find(void *context, uint64_t address, struct hipsim_allocation *found);
size_t rt_live_allocations(int device, size_t *bytes);

/* --- modules --- */

struct rt_argument {
    uint32_t offset, size;
    int hidden; /* an index of launch.c's table, -1: explicit */
};

struct rt_kernel {
    struct hipsim_kernel machine;
    struct rt_module *module;
    char *name, *symbol;
    struct rt_argument *arguments;
    size_t argument_count, explicit_count;
    uint32_t explicit_end; /* bytes of the kernarg segment up to the last explicit argument */
    uint32_t static_lds, private_bytes, vgprs;
    uint64_t *executed; /* of each instruction, if a mutation test counts; mutate.c */
};

struct rt_symbol {
    char *name;
    uint64_t address;
    size_t size;
};

struct rt_module {
    struct rt_module *next;
    int references; /* the handle, and every queued launch */
    bool unloaded;
    int device;
    struct rt_allocation *image, **segments;
    size_t segment_count;
    struct rt_kernel *kernels;
    size_t kernel_count;
    struct rt_symbol *symbols; /* of data */
    size_t symbol_count;
};

void rt_module_release(struct rt_module *module);
struct rt_kernel *rt_kernel_of(hipFunction_t handle);
int rt_hidden_argument(const char *value_kind); /* launch.c: -1 if unknown */

/* bundle.c: the code object for a device in an image, which is one or a bundle of them. */
hipError_t rt_code_object_find(const void *image, int device, const unsigned char **object);
/* elf.c: segments into device memory, kernels and symbols. On failure the module is as the caller
 * must release it. */
hipError_t rt_code_object_load(struct rt_module *module, const unsigned char *object);
/* metadata.c: fill module->kernels but for addresses; false: damaged. */
bool rt_metadata_parse(struct rt_module *module, const unsigned char *note, size_t size);

/* --- queue.c: work in stream order --- */

enum rt_kind {
    RT_KERNEL,
    RT_COPY,
    RT_FILL,
    RT_HOST,
    RT_RECORD,
    RT_WAIT,
    RT_MAKE_LIVE,
    RT_FREE,
    RT_GRAPH,
    RT_EMPTY
};

struct rt_dispatch {
    struct rt_kernel *kernel;
    uint32_t grid[3], block[3], dynamic_lds;
    unsigned char *kernarg;
};

struct rt_op {
    enum rt_kind kind;
    struct rt_op *next;
    uint64_t sequence;
    union {
        struct rt_dispatch dispatch;
        struct {
            void *to;
            const void *from;
            unsigned char *staged; /* the bytes of pageable host memory, taken at the call */
            size_t bytes;
        } copy;
        struct {
            void *to;
            uint32_t value;
            int width;
            size_t count;
        } fill;
        struct {
            hipHostFn_t function;
            hipStreamCallback_t callback;
            hipStream_t stream;
            void *data;
        } host;
        struct {
            struct rt_event *event;
            uint64_t generation;
        } event;
        uint64_t address;
        struct rt_exec *exec;
    };
};

struct rt_stream {
    struct rt_stream *next;
    int device;
    unsigned flags;
    int priority;
    bool null, per_thread, destroyed, running;
    struct rt_op *head, *tail;
    uint64_t enqueued; /* sequence of the newest operation */
    struct rt_capture *capture;
    struct rt_node **last; /* captured nodes that the next one depends on */
    size_t last_count;
};

struct rt_event {
    struct rt_event *next;
    unsigned flags;
    int device;
    int references; /* the handle, and every queued operation */
    bool destroyed;
    uint64_t recorded, completed; /* generations */
    double milliseconds;          /* of the newest completed record */
    struct rt_capture *capture;   /* the capture in which it was recorded last */
    struct rt_node **nodes;
    size_t node_count;
};

/* Takes over what op owns, also on failure. */
hipError_t rt_enqueue(struct rt_stream *stream, const struct rt_op *op);
void rt_op_clear(struct rt_op *op);
bool rt_op_clone(struct rt_op *to, const struct rt_op *from);
/* Run one operation that is at the head of its stream, or is a node of a graph. */
void rt_execute(struct rt_stream *stream, struct rt_op *op);
/* Run ready work, in an order drawn from the seed, until done(context). */
hipError_t rt_run_until(bool (*done)(const void *context), const void *context);
hipError_t rt_sync_stream(struct rt_stream *stream);
hipError_t rt_sync_device(int device);
hipError_t rt_take_error(int device); /* of work that failed since the last synchronisation */
uint64_t rt_random(uint64_t bound);
double rt_clock(void);
/* stream.c */
struct rt_stream *rt_stream_of(hipStream_t handle); /* NULL: no such stream (a violation) */
void rt_stream_reap(struct rt_stream *stream);      /* free it if it is destroyed and idle */
/* event.c */
struct rt_event *rt_event_of(hipEvent_t handle); /* NULL: no such event (a violation) */
void rt_event_unref(struct rt_event *event);
/* launch.c */
hipError_t rt_dispatch_make(struct rt_dispatch *dispatch, int device, struct rt_kernel *kernel,
                            const uint32_t grid[3], const uint32_t block[3], uint32_t lds,
                            void **parameters, void **extra);
void rt_dispatch_run(const struct rt_dispatch *dispatch);

/* --- capture.c, graph.c --- */

struct rt_node {
    struct rt_op op;
    struct rt_node **dependencies;
    size_t dependency_count, index;
};

struct rt_graph {
    struct rt_graph *next;
    struct rt_node **nodes; /* in the order of capture, which is topological */
    size_t count;
    int device;
};

struct rt_capture {
    struct rt_capture *next;
    struct rt_stream *origin;
    pthread_t thread;
    int mode;
    bool invalid;
    uint64_t id;
    struct rt_graph *graph;
};

struct rt_exec {
    struct rt_exec *next;
    int references; /* the handle, and every queued launch */
    bool destroyed;
    struct rt_graph graph;
    struct rt_graph *source;
};

/* If the stream records, append op to the graph (taking it over) and set *captured. */
hipError_t rt_capture_op(struct rt_stream *stream, struct rt_op *op, bool *captured);
/* The error of a call that capture forbids (and which invalidates the captures), or hipSuccess. */
hipError_t rt_capture_forbids(void);      /* unsafe calls: allocation, module load */
hipError_t rt_capture_forbids_sync(void); /* device-wide synchronisation */
hipError_t rt_capture_implicit(void);     /* synchronous copies on the legacy stream */
hipError_t rt_capture_ongoing(struct rt_stream *stream); /* waiting for a stream */
hipError_t
rt_capture_refuses(struct rt_stream *stream); /* calls that a capturing stream cannot record */
void rt_capture_leave(struct rt_stream *stream);
hipError_t rt_capture_record(struct rt_stream *stream, struct rt_event *event);
hipError_t rt_capture_wait(struct rt_stream *stream, struct rt_event *event, bool *captured);
void rt_graph_clear(struct rt_graph *graph);
bool rt_graph_clone(struct rt_graph *to, const struct rt_graph *from);
void rt_exec_unref(struct rt_exec *exec);
void rt_exec_run(struct rt_stream *stream, struct rt_exec *exec);

/* --- report.c: violations and counters of a device; sentences about the process go to device 0 ---
 */
RT_PRINTF(3, 4) void rt_violation(int device, const char *kind, const char *format, ...);
void rt_machine_violation(void *context,
                          const struct hipsim_violation *violation); /* context: rt_device */

struct rt_violation_entry {
    char *kind, *text;
};

struct rt_device {
    const struct hipsim_arch *arch;
    int ordinal;
    size_t used;
    struct rt_stream *null_stream;
    bool peer[RT_MAX_DEVICES];
    hipError_t error; /* of asynchronous work, told at the next synchronisation */
    uint64_t release_threshold;
    struct rt_allocation *kernarg, *packet; /* of the launch that runs */
    struct hipsim_counters counters;
    uint64_t launches;
    struct rt_violation_entry *violations;
    size_t violation_count;
};

/* --- entry.c: the state, made by the first call --- */

enum rt_entry_point {
#define HIP_ENTRY(name, parameters, arguments) RT_##name,
#define HIP_ENTRY_NEW HIP_ENTRY
#include "entry_points.def"
#undef HIP_ENTRY
    RT_ENTRY_POINTS
};

#define HIP_ENTRY(name, parameters, arguments) hipError_t rt_##name parameters;
#include "entry_points.def"
#undef HIP_ENTRY
#undef HIP_ENTRY_NEW

struct rt_state {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a host function ended */
    bool ready, broken;
    int device_count;
    struct rt_device devices[RT_MAX_DEVICES];
    int version;
    uint32_t checks;
    bool truncate_xf32;
    uint64_t seed, random, instruction_limit;
    bool early; /* work runs as soon as it may, not at a synchronisation */
    int threads;
    uint64_t sequence;
    struct rt_stream *streams;
    struct rt_event *events;
    struct rt_module *modules;
    struct rt_graph *graphs;
    struct rt_exec *execs;
    struct rt_capture *captures;
    uint64_t captures_begun;
};

struct rt_thread {
    int device;
    hipError_t last_error, last_result;
    int capture_mode;
    struct rt_stream *streams[RT_MAX_DEVICES]; /* hipStreamPerThread */
};

extern struct rt_state rt;
extern _Thread_local struct rt_thread rt_thread;

/* fault.c */
hipError_t rt_fault(enum rt_entry_point entry);
/* settings.c */
bool rt_settings_read(void);

#endif
