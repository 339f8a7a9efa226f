#include "tools/library/notes.h"

#include <stdarg.h>
#include <stdio.h>

void pd_note(const struct pd_notes *notes, const char *format, ...)
{
    char text[4096];
    va_list arguments;
    if (!notes || !notes->note) return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    notes->note(notes->context, text);
}
