#include "tools/commands/progress.h"

#include "ckpt/base/clock.h"
#include "tools/output.h"

#include <stdio.h>
#include <string.h>

#define BAR_CELLS 24
#define BAR_SECONDS 0.2 /* between redraws */

static void show_progress(void *context, uint64_t done_bytes, uint64_t total_bytes)
{
    struct pd_shown_progress *p = context;
    const uint64_t now = pd_clock_monotonic_ns(NULL);
    const double wait = p->mode.kind == PD_PROGRESS_BAR ? BAR_SECONDS : p->mode.line_seconds;
    if (done_bytes > total_bytes) done_bytes = total_bytes;
    if ((double)(now - p->shown_ns) * 1e-9 < wait) return;
    p->shown_ns = now;
    p->is_shown = true;
    double seconds = (double)(now - p->start_ns) * 1e-9;
    const double share = total_bytes ? (double)done_bytes / (double)total_bytes : 1;
    const double rate = seconds > 0 ? (double)done_bytes / seconds : 0;
    const uint64_t left = rate > 0 && done_bytes < total_bytes ? (uint64_t)((double)(total_bytes - done_bytes) / rate) : 0;
    char bar[BAR_CELLS + 4] = "";
    if (p->mode.kind == PD_PROGRESS_BAR) {
        const int filled = (int)(share * BAR_CELLS);
        bar[0] = '[';
        memset(bar + 1, '#', (size_t)filled);
        memset(bar + 1 + filled, '.', (size_t)(BAR_CELLS - filled));
        memcpy(bar + 1 + BAR_CELLS, "] ", 3);
    }
    fprintf(stderr, "%s%s%.0f%%, %s of %s, %s/s, %llu:%02llu left%s", bar[0] ? "\r\033[K" : "", bar, 100 * share,
            pd_text_bytes(done_bytes).text, pd_text_bytes(total_bytes).text, pd_text_bytes((uint64_t)rate).text,
            (unsigned long long)(left / 60), (unsigned long long)(left % 60), bar[0] ? "" : "\n");
}

pd_inspect_progress pd_shown_progress_start(struct pd_shown_progress *p)
{
    p->mode = pd_progress_mode();
    p->start_ns = p->shown_ns = pd_clock_monotonic_ns(NULL);
    p->is_shown = false;
    return p->mode.kind == PD_PROGRESS_OFF ? NULL : show_progress;
}

void pd_shown_progress_end(const struct pd_shown_progress *p)
{
    if (p->is_shown && p->mode.kind == PD_PROGRESS_BAR) fprintf(stderr, "\r\033[K");
}
