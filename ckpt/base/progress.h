/* How long operations show progress on stderr: a bar on a terminal, else a line every ten seconds. PERDURE_PROGRESS=bar,
 * line, line:SECONDS or off overrides it. */
#pragma once

enum pd_progress_kind { PD_PROGRESS_OFF, PD_PROGRESS_LINE, PD_PROGRESS_BAR };

struct pd_progress_mode {
    enum pd_progress_kind kind;
    double line_seconds; /* between lines */
};
struct pd_progress_mode pd_progress_mode(void);

/* Print this before other output on stderr: it erases the bar, which does not end its line. */
#define PD_PROGRESS_CLEAR "\r\033[K"
/* Returns PD_PROGRESS_CLEAR if this process or its child may be showing a bar on stderr; else "". */
const char *pd_progress_clear(void);
/* Current width of the terminal; COLUMNS if stderr is not a terminal; 80 if unknown. At least 20. */
unsigned pd_progress_columns(void);
