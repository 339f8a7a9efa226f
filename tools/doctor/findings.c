#include "tools/doctor/findings.h"

#include <stdarg.h>
#include <stdio.h>

struct pd_finding *pd_findings_add(struct pd_findings *findings, const char *what, enum pd_finding_state state,
                                   const char *format, ...)
{
    PD_CHECK(findings->count < PD_FINDINGS_MAX);
    struct pd_finding *finding = &findings->items[findings->count++];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(finding->here, sizeof finding->here, format, arguments);
    va_end(arguments);
    finding->what = what;
    finding->state = state;
    finding->advice[0] = '\0';
    return finding;
}

void pd_finding_advise(struct pd_finding *finding, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(finding->advice, sizeof finding->advice, format, arguments);
    va_end(arguments);
}
