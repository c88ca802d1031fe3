/* Violations on their way out: each names its instruction, and the same instruction reports the
 * same kind once per launch.
 * Path of a launch: called by the memory instructions and by the checks. */
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>

static const char *const names[HIPSIM_VIOLATION_KINDS] = {
    "wait", "race", "bounds", "hazard", "barrier", "uninitialised", "assertion"};

const char *hipsim_violation_name(enum hipsim_violation_kind kind)
{
    return (unsigned)kind < HIPSIM_VIOLATION_KINDS ? names[kind] : "unknown";
}

bool hipsim_checks_parse(const char *text, uint32_t *checks, const char **unknown)
{
    static const struct {
        const char *name;
        uint32_t checks;
    } table[] = {{"waits", HIPSIM_CHECK_WAITS},
                 {"races", HIPSIM_CHECK_RACES},
                 {"bounds", HIPSIM_CHECK_BOUNDS},
                 {"hazards", HIPSIM_CHECK_HAZARDS},
                 {"barriers", HIPSIM_CHECK_BARRIERS},
                 {"banks", HIPSIM_CHECK_BANKS},
                 {"uninitialised", HIPSIM_CHECK_UNINITIALISED},
                 {"all", HIPSIM_CHECK_ALL},
                 {"none", 0}};
    *checks = 0;
    while (*text) {
        size_t length = strcspn(text, ","), i = 0, rows = sizeof table / sizeof *table;
        while (i < rows &&
               (strlen(table[i].name) != length || strncmp(table[i].name, text, length) != 0))
            i++;
        if (i == rows) {
            *unknown = text;
            return false;
        }
        *checks |= table[i].checks;
        text += length + (text[length] == ',');
    }
    return true;
}

void report(struct wave *w, enum hipsim_violation_kind kind, int lane, const char *format, ...)
{
    struct launch *launch = w->thread->launch;
    const struct op *o = w->op;
    size_t index = (size_t)(o - launch->program->ops);
    uint64_t limit = launch->sink->limit ? launch->sink->limit : 100;
    char sentence[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&launch->report);
    if (!(launch->seen[index] >> kind & 1)) {
        launch->seen[index] |= 1u << kind;
        if (launch->sink->counters)
            launch->sink->counters->violations++;
        uint32_t entry = launch->program->ops[launch->program->entry].pc;
        struct hipsim_violation v = {.kind = kind,
                                     .kernel = launch->kernel->name,
                                     .arch = launch->arch->name,
                                     .pc = launch->kernel->code_address + o->pc,
                                     .offset = o->pc - entry,
                                     .instruction = o->text,
                                     .wave = w->index,
                                     .lane = lane,
                                     .sentence = sentence};
        memcpy(v.workgroup, w->group->id, sizeof v.workgroup);
        if (launch->reported++ < limit && launch->sink->violation)
            launch->sink->violation(launch->sink->context, &v);
    }
    pthread_mutex_unlock(&launch->report);
}

void fault(struct wave *w, const char *format, ...)
{
    struct launch *launch = w->thread->launch;
    va_list arguments;
    char what[256];
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&launch->report);
    if (!launch->faulted)
        snprintf(launch->sentence, sizeof launch->sentence,
                 "kernel %s on %s, code offset 0x%x \"%s\", workgroup %u,%u,%u wave %d: %s",
                 launch->kernel->name, launch->arch->name, w->op->pc, w->op->text, w->group->id[0],
                 w->group->id[1], w->group->id[2], w->index, what);
    launch->faulted = true;
    pthread_mutex_unlock(&launch->report);
    atomic_store(&launch->stop, true);
    w->thread->yield = true;
}
