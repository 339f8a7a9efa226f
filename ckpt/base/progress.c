#include "ckpt/base/progress.h"

#include "ckpt/base/parse.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct pd_progress_mode pd_progress_mode(void)
{
    struct pd_progress_mode mode = {PD_PROGRESS_LINE, 10};
    const char *text = getenv("PERDURE_PROGRESS");
    double seconds;
    if (!text)
        mode.kind = isatty(STDERR_FILENO) ? PD_PROGRESS_BAR : PD_PROGRESS_LINE;
    else if (!strcmp(text, "bar"))
        mode.kind = PD_PROGRESS_BAR;
    else if (!strcmp(text, "off"))
        mode.kind = PD_PROGRESS_OFF;
    else if (!strncmp(text, "line:", 5) && pd_parse_double(text + 5, &seconds) && seconds >= 0)
        mode.line_seconds = seconds;
    return mode;
}
