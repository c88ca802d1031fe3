/* Owner of the thread-local error text: allocated at a thread's first error, freed at its end. Path
 * of a call: only where it fails. */
#include "problem/status.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#define TEXT_SIZE 3072

static MMF_THREAD_LOCAL char *error_text;
static pthread_key_t key;
static bool has_key;

static void free_text(void *memory)
{
    free(memory);
    error_text = NULL;
}

static void make_key(void)
{
    has_key = pthread_key_create(&key, free_text) == 0;
}

static bool has_text(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_key);
    if (!error_text && has_key) {
        error_text = malloc(TEXT_SIZE);
        if (error_text && pthread_setspecific(key, error_text) != 0)
            free_text(error_text);
    }
    return error_text != NULL;
}

mmf_status mmf_fail(mmf_status status, const char *format, ...)
{
    va_list arguments;
    if (!has_text())
        return MMF_NO_MEMORY;
    va_start(arguments, format);
    vsnprintf(error_text, TEXT_SIZE, format, arguments);
    va_end(arguments);
    return status;
}

const char *mmf_error_text(void)
{
    return error_text ? error_text : "no memory, not even for the text of this error";
}
