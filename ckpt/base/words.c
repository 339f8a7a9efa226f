#include "ckpt/base/words.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct pd_counted pd_counted(uint64_t count, const char *noun)
{
    struct pd_counted words;
    const size_t length = strlen(noun);
    const char *plural = length >= 2 && noun[length - 2] == 'c' && noun[length - 1] == 'h' ? "es" : "s";
    if (count == 1)
        snprintf(words.text, sizeof words.text, "1 %s", noun);
    else
        snprintf(words.text, sizeof words.text, "%" PRIu64 " %s%s", count, noun, plural);
    return words;
}

struct pd_bytes_text pd_bytes_text(double bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    struct pd_bytes_text t;
    uint32_t unit = 0;
    for (; bytes >= 1024 && unit < 6; unit++)
        bytes /= 1024;
    snprintf(t.text, sizeof t.text, unit == 0 ? "%.0f %s" : bytes < 10 ? "%.2f %s" : "%.1f %s", bytes, units[unit]);
    return t;
}

void pd_error_append(struct pd_error *err, const char *format, ...)
{
    if (!err) return;
    const size_t used = strlen(err->message);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(err->message + used, sizeof err->message - used, format, arguments);
    va_end(arguments);
}

bool pd_ends_with(const char *text, const char *end)
{
    const size_t bytes = strlen(text), end_bytes = strlen(end);
    return bytes >= end_bytes && strcmp(text + bytes - end_bytes, end) == 0;
}
