/* How whoever works long shows its progress on stderr: a bar on a terminal, a line every ten seconds elsewhere.
 * PERDURE_PROGRESS=bar, line, line:SECONDS or off says otherwise. */
#pragma once

enum pd_progress_kind { PD_PROGRESS_OFF, PD_PROGRESS_LINE, PD_PROGRESS_BAR };

struct pd_progress_mode {
    enum pd_progress_kind kind;
    double line_seconds; /* between lines */
};
struct pd_progress_mode pd_progress_mode(void);

/* Before what takes the place of a bar, or of nothing: a bar's line has no end. */
#define PD_PROGRESS_CLEAR "\r\033[K"
/* PD_PROGRESS_CLEAR where stderr may show a bar, of this process or of one that it started; else "". */
const char *pd_progress_clear(void);
/* Of the terminal, now; where stderr is none, as COLUMNS says; at least 20, 80 where nobody knows. */
unsigned pd_progress_columns(void);
