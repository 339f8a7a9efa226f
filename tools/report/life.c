/* Where the time of a run went. */
#include "tools/report/history.h"

#include <math.h>

/* When a start ended: as the launcher says, or by its last line. */
static double end_of(const struct pd_history *h, const struct pd_history_start *s)
{
    if (!isnan(s->ended)) return s->ended;
    if (s->rows && !isnan(h->columns[PD_COLUMN_TIME][s->last_row])) return h->columns[PD_COLUMN_TIME][s->last_row];
    return isnan(s->opened) ? s->begun : s->opened;
}

/* A line stands for the steps since the line before it (run.log_every), which took as long as its own; at most the time that
 * has passed. */
static double seconds_of(const struct pd_history *h, const struct pd_history_start *s, uint64_t row)
{
    const double *step = h->columns[PD_COLUMN_STEP], *time = h->columns[PD_COLUMN_TIME],
                 one = h->columns[PD_COLUMN_SECONDS][row];
    if (isnan(one) || row == s->first_row) return isnan(one) ? 0 : one;
    const double all = one * fmax(step[row] - step[row - 1], 1), passed = time[row] - time[row - 1];
    return isnan(passed) ? all : fmin(all, fmax(passed, one));
}

#define PREEMPTED 75 /* exit code */

bool pd_history_failed(const struct pd_history_start *s)
{
    return s->exit_code > 0 && !(s->exit_code == PREEMPTED && s->left_step);
}

void pd_history_life(const struct pd_history *h, struct pd_history_life *ret_life)
{
    struct pd_history_life life = {.begun = NAN, .ended = NAN};
    for (uint64_t i = 0; i < h->start_count; i++) {
        const struct pd_history_start *s = &h->starts[i];
        const double first =
            s->rows ? h->columns[PD_COLUMN_TIME][s->first_row] - h->columns[PD_COLUMN_SECONDS][s->first_row] : end_of(h, s);
        if (isnan(life.begun)) life.begun = s->begun;
        if (!isnan(life.ended) && s->begun > life.ended) *(s[-1].is_over ? &life.idle : &life.down) += s->begun - life.ended;
        if (first > s->begun) life.opening += first - s->begun;
        for (uint64_t row = s->first_row; s->rows && row <= s->last_row; row++) {
            const double seconds = seconds_of(h, s, row), stall = h->columns[PD_COLUMN_STALL_SECONDS][row];
            *(h->counts[row] ? &life.useful : &life.lost) += seconds;
            if (!isnan(stall)) life.saving += stall;
        }
        life.ended = end_of(h, s);
        life.lost_steps += s->lost_steps;
        life.failures += pd_history_failed(s) && s->cause[0];
    }
    life.whole = life.ended > life.begun ? life.ended - life.begun : 0;
    /* Training waits for saves inside of steps: what a step has waited is not useful. */
    life.saving = fmin(life.saving, life.useful);
    life.useful -= life.saving;
    life.other = fmax(life.whole - life.useful - life.lost - life.saving - life.opening - life.down - life.idle, 0);
    life.goodput = life.whole > life.idle ? life.useful / (life.whole - life.idle) : NAN;
    *ret_life = life;
}
