#include "ckpt/base/progress.h"

#include "ckpt/base/parse.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
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

const char *pd_progress_clear(void)
{
    return pd_progress_mode().kind == PD_PROGRESS_BAR ? PD_PROGRESS_CLEAR : "";
}

unsigned pd_progress_columns(void)
{
    struct winsize size;
    uint64_t columns = 0;
    const char *text = getenv("COLUMNS");
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col)
        columns = size.ws_col;
    else if (!text || !pd_parse_u64(text, &columns) || columns > 100000)
        columns = 80;
    return columns < 20 ? 20 : (unsigned)columns;
}
