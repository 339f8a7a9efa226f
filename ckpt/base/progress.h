/* How whoever works long shows its progress on stderr: a bar on a terminal, a line every ten seconds elsewhere.
 * PERDURE_PROGRESS=bar, line, line:SECONDS or off says otherwise. */
#ifndef PD_BASE_PROGRESS_H
#define PD_BASE_PROGRESS_H

enum pd_progress_kind { PD_PROGRESS_OFF, PD_PROGRESS_LINE, PD_PROGRESS_BAR };

struct pd_progress_mode {
    enum pd_progress_kind kind;
    double line_seconds; /* between lines */
};
struct pd_progress_mode pd_progress_mode(void);

#endif
