/* The report of a device: violations, counters, leaks. Read by the tests as JSON. */
#include "rt.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_VIOLATIONS = 1000 };

static void add(int device, const char *kind, char *text)
{
    struct rt_device *on = &rt.devices[device];
    on->counters.violations++;
    char *name = on->violation_count < MOST_VIOLATIONS && text ? strdup(kind) : NULL;
    void *entries =
        name ? realloc(on->violations, (on->violation_count + 1) * sizeof *on->violations) : NULL;
    if (!entries) {
        free(name);
        free(text);
        return;
    }
    on->violations = entries;
    on->violations[on->violation_count++] = (struct rt_violation_entry){.kind = name, .text = text};
}

void rt_violation(int device, const char *kind, const char *format, ...)
{
    char *text = NULL;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    add(device, kind, length < 0 ? NULL : text);
}

void rt_machine_violation(void *context, const struct hipsim_violation *v)
{
    const struct rt_device *device = context;
    char *text = NULL;
    char lane[24] = "all lanes";
    if (v->lane >= 0)
        snprintf(lane, sizeof lane, "lane %d", v->lane);
    int length =
        asprintf(&text, "%s on %s at +0x%llx (%s), workgroup %u,%u,%u wave %d %s: %s", v->kernel,
                 v->arch, (unsigned long long)v->offset, v->instruction, v->workgroup[0],
                 v->workgroup[1], v->workgroup[2], v->wave, lane, v->sentence);
    add(device->ordinal, hipsim_violation_name(v->kind), length < 0 ? NULL : text);
    rt.devices[device->ordinal].counters.violations--; /* the machine counts its own */
}

static void put_string(FILE *out, const char *text)
{
    fputc('"', out);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '"' || *c == '\\')
            fprintf(out, "\\%c", *c);
        else if (*c < 0x20 || *c >= 0x7f)
            fprintf(out, "\\u%04x", *c);
        else
            fputc(*c, out);
    }
    fputc('"', out);
}

/* Handles that somebody still holds, of the whole process. */
static void put_handles(FILE *out)
{
    size_t streams = 0, events = 0, modules = 0, graphs = 0, execs = 0;
    for (const struct rt_stream *stream = rt.streams; stream; stream = stream->next)
        streams += !stream->null && !stream->destroyed && !stream->per_thread;
    for (const struct rt_event *event = rt.events; event; event = event->next)
        events += !event->destroyed;
    for (const struct rt_module *module = rt.modules; module; module = module->next)
        modules += !module->unloaded;
    for (const struct rt_graph *graph = rt.graphs; graph; graph = graph->next)
        graphs++;
    for (const struct rt_exec *exec = rt.execs; exec; exec = exec->next)
        execs += !exec->destroyed;
    fprintf(out,
            "{\"streams\": %zu, \"events\": %zu, \"modules\": %zu, \"graphs\": %zu, "
            "\"graph_execs\": %zu}",
            streams, events, modules, graphs, execs);
}

static void put_report(FILE *out, const struct rt_device *device)
{
    const struct hipsim_counters *c = &device->counters;
    const struct {
        const char *name;
        uint64_t value;
    } counters[] = {
        {"launches", device->launches},
        {"instructions", c->instructions},
        {"salu", c->salu},
        {"smem", c->smem},
        {"valu", c->valu},
        {"lds", c->lds},
        {"memory", c->memory},
        {"matrix", c->matrix},
        {"branches", c->branches},
        {"waits", c->waits},
        {"barriers", c->barriers},
        {"bytes_loaded", c->bytes_loaded},
        {"bytes_stored", c->bytes_stored},
        {"bytes_to_lds", c->bytes_to_lds},
        {"lds_bytes_read", c->lds_bytes_read},
        {"lds_bytes_written", c->lds_bytes_written},
        {"lds_conflict_cycles", c->lds_conflict_cycles},
        {"atomics", c->atomics},
        {"matrix_flops", c->matrix_flops},
        {"workgroups", c->workgroups},
        {"waves", c->waves},
        {"violations", c->violations},
    };
    fprintf(out, "{\"counters\": {");
    for (size_t i = 0; i < sizeof counters / sizeof *counters; i++)
        fprintf(out, "%s\"%s\": %llu", i ? ", " : "", counters[i].name,
                (unsigned long long)counters[i].value);
    fprintf(out, "}, \"violations\": [");
    for (size_t i = 0; i < device->violation_count; i++) {
        fprintf(out, "%s{\"kind\": ", i ? ", " : "");
        put_string(out, device->violations[i].kind);
        fprintf(out, ", \"text\": ");
        put_string(out, device->violations[i].text);
        fprintf(out, "}");
    }
    size_t bytes, count = rt_live_allocations(device->ordinal, &bytes);
    fprintf(out, "], \"allocations\": {\"count\": %zu, \"bytes\": %zu}, \"handles\": ", count,
            bytes);
    put_handles(out);
    fputc('}', out);
}

static void clear(struct rt_device *device)
{
    for (size_t i = 0; i < device->violation_count; i++) {
        free(device->violations[i].kind);
        free(device->violations[i].text);
    }
    free(device->violations);
    device->violations = NULL;
    device->violation_count = 0;
    device->counters = (struct hipsim_counters){0};
    device->launches = 0;
}

/* The report of a device as JSON in a new string, for hipsim_free; with `reset` it starts anew, and
 * an error that waits for the next synchronisation is forgotten too. NULL: no such device, or no
 * memory. */
RT_EXPORT char *hipsim_report(int device, int reset);
RT_EXPORT void hipsim_free(void *pointer);

char *hipsim_report(int device, int reset)
{
    char *text = NULL;
    size_t size;
    pthread_mutex_lock(&rt.lock);
    FILE *out = device >= 0 && device < rt.device_count ? open_memstream(&text, &size) : NULL;
    if (out) {
        put_report(out, &rt.devices[device]);
        if (fclose(out) != 0) {
            free(text);
            text = NULL;
        } else if (reset) {
            clear(&rt.devices[device]);
            rt.devices[device].error = hipSuccess;
        }
    }
    pthread_mutex_unlock(&rt.lock);
    return text;
}

void hipsim_free(void *pointer)
{
    free(pointer);
}
