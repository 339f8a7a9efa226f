#include "tools/commands/doctor.h"

#include <stdarg.h>
#include <stdio.h>

struct finding *pd_doctor_add(struct findings *findings, const char *what, enum finding_state state, const char *format, ...)
{
    PD_CHECK(findings->count < FINDINGS_MAX);
    struct finding *finding = &findings->items[findings->count++];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(finding->here, sizeof finding->here, format, arguments);
    va_end(arguments);
    finding->what = what;
    finding->state = state;
    finding->advice[0] = '\0';
    return finding;
}

void pd_doctor_limit(struct finding *finding, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(finding->advice, sizeof finding->advice, format, arguments);
    va_end(arguments);
    finding->state = FINDING_LIMITED;
}
