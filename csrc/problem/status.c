/* Owner of the thread-local error text. */
#include "problem/status.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char error_text[2048];

mmf_status mmf_fail(mmf_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error_text, sizeof error_text, format, arguments);
    va_end(arguments);
    return status;
}

const char *mmf_error_text(void)
{
    return error_text;
}
