/* Runs as files say them: starts, what was lost, where the time went. */
#include "tools/report/history.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[] = "/tmp/perdure-history-XXXXXX";

static void make_folder(void)
{
    cr_assert(mkdtemp(folder));
}

static void append(const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "a");
    fputs(text, f);
    fclose(f);
}

static void remove_folder(void)
{
    char path[128];
    const char *const names[] = {"metrics.jsonl", "events.jsonl"};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

static void add_row(int step, int fence, double time, double seconds)
{
    char line[200];
    snprintf(line, sizeof line,
             "{\"step\":%d,\"loss\":%d.5,\"seconds\":%g,\"fence\":%d,\"time\":%g,\"gradient_norm\":null}\n", step, 10 - step,
             seconds, fence, time);
    append("metrics.jsonl", line);
}

static void open_history(struct pd_history *h)
{
    struct pd_error err = {0};
    cr_assert_eq(pd_history_open(folder, h, &err), PD_OK, "%s", err.message);
}

/* Three steps, a kill behind the third whose save is of step 1, two seconds of nothing, three steps. */
static void write_run(void)
{
    append("events.jsonl",
           "{\"event\":\"start\",\"time\":100,\"restart\":0,\"ranks\":2,\"from_step\":null}\n"
           "{\"event\":\"open\",\"time\":101,\"fence\":1,\"step\":0,\"ranks\":2,\"dp\":2,\"tp\":1,\"pp\":1,\"sp\":1,"
           "\"planned_bytes\":77,\"tiers\":[{\"dir\":\"a\"},{\"dir\":\"b\"}]}\n");
    for (int i = 0; i < 3; i++)
        add_row(i + 1, 1, 103 + i, 1);
    append("events.jsonl",
           "{\"event\":\"end\",\"time\":106,\"exit_code\":75,\"cause\":\"rank 1 died\",\"restarts\":true}\n"
           "{\"event\":\"start\",\"time\":108,\"restart\":1,\"ranks\":1,\"from_step\":1}\n"
           "{\"event\":\"open\",\"time\":109,\"fence\":2,\"step\":1,\"ranks\":1,\"dp\":1,\"tp\":1,\"pp\":1,\"sp\":1}\n");
    for (int i = 0; i < 3; i++)
        add_row(i + 2, 2, 110 + i, 0.5);
    append("events.jsonl", "{\"event\":\"end\",\"time\":113,\"exit_code\":0,\"cause\":\"\",\"restarts\":false}\n");
}

/* A launch that was asked to leave, and another an hour later: nobody failed, and nobody ran in between. */
Test(history, leaving_is_no_failure_and_the_hour_is_idle, .init = make_folder, .fini = remove_folder)
{
    struct pd_history h;
    struct pd_history_life life;
    append("events.jsonl", "{\"event\":\"start\",\"time\":100,\"ranks\":1,\"from_step\":0}\n"
                           "{\"event\":\"open\",\"time\":101,\"fence\":1,\"step\":0,\"ranks\":1}\n");
    add_row(1, 1, 102, 1);
    append("events.jsonl",
           "{\"event\":\"leave\",\"step\":1}\n"
           "{\"event\":\"end\",\"time\":103,\"exit_code\":75,\"cause\":\"asked to leave\",\"restarts\":false}\n"
           "{\"event\":\"start\",\"time\":3703,\"ranks\":1,\"from_step\":1}\n"
           "{\"event\":\"open\",\"time\":3704,\"fence\":2,\"step\":1,\"ranks\":1}\n");
    add_row(2, 2, 3705, 1);
    append("events.jsonl", "{\"event\":\"end\",\"time\":3706,\"exit_code\":0,\"cause\":\"\",\"restarts\":false}\n");
    open_history(&h);
    pd_history_life(&h, &life);
    cr_assert_eq(life.failures, 0);
    cr_assert_float_eq(life.idle, 3600, 1e-9);
    cr_assert_float_eq(life.goodput, 2.0 / 6, 1e-9);
    pd_history_close(&h);
}

Test(history, a_restart_and_what_it_computed_again, .init = make_folder, .fini = remove_folder)
{
    struct pd_history h;
    struct pd_history_life life;
    const bool counts[] = {true, false, false, true, true, true};
    write_run();
    open_history(&h);
    cr_assert_eq(h.rows, 6);
    cr_assert_eq(h.start_count, 2);
    cr_assert_arr_eq(h.counts, counts, sizeof counts);
    cr_assert_eq(h.starts[0].lost_steps, 2);
    cr_assert_eq(h.starts[0].last_step, 3);
    cr_assert_eq(h.starts[1].lost_steps, 0);
    cr_assert_eq(h.starts[1].from_step, 1);
    cr_assert_eq(h.starts[0].planned_bytes, 77);
    cr_assert_str_eq(h.starts[0].cause, "rank 1 died");
    cr_assert(!h.starts[0].is_over && h.starts[1].is_over);
    cr_assert(isnan(h.columns[PD_COLUMN_GRADIENT_NORM][0]) && h.columns[PD_COLUMN_LOSS][0] == 9.5);
    pd_history_life(&h, &life);
    cr_assert_float_eq(life.whole, 13, 1e-9);
    cr_assert_float_eq(life.useful, 1 + 1.5, 1e-9);
    cr_assert_float_eq(life.lost, 2, 1e-9);
    cr_assert_float_eq(life.down, 2, 1e-9);
    cr_assert_float_eq(life.opening, 2 + 1.5, 1e-9);
    cr_assert_float_eq(life.goodput, 2.5 / 13, 1e-9);
    cr_assert_float_eq(life.useful + life.lost + life.saving + life.opening + life.down + life.other, life.whole, 1e-9);
    cr_assert_eq(life.failures, 1);
    pd_history_close(&h);
}

Test(history, goes_on_where_it_stopped, .init = make_folder, .fini = remove_folder)
{
    struct pd_history h;
    add_row(1, 1, 100, 1);
    append("metrics.jsonl", "{\"step\":2,\"loss\":8.5,\"fen");
    open_history(&h);
    cr_assert_eq(h.rows, 1, "a line that is being written is none yet");
    append("metrics.jsonl", "ce\":1,\"time\":101,\"seconds\":1}\n{\"step\":3,\"lo\n\n{\"loss\":1}\n");
    add_row(4, 1, 103, 1);
    cr_assert_eq(pd_history_refresh(&h, NULL), PD_OK);
    cr_assert_eq(h.rows, 3);
    cr_assert_eq(h.damaged_lines, 2);
    cr_assert_eq(h.columns[PD_COLUMN_STEP][2], 4);
    cr_assert_eq(h.start_count, 1, "a run without events has the starts of its lines");
    cr_assert_eq(h.starts[0].rows, 3);
    pd_history_close(&h);
}

Test(history, stages_and_tiers, .init = make_folder, .fini = remove_folder)
{
    struct pd_history h;
    append("metrics.jsonl", "{\"step\":1,\"fence\":1,\"stages\":{\"forward\":1,\"backward\":2,\"sums\":3,\"update\":4},"
                            "\"tiers\":[{\"newest\":7},{\"newest\":5,\"failures\":2,\"cause\":\"full\",\"skipped\":1}]}\n");
    open_history(&h);
    for (uint32_t i = 0; i < PD_HISTORY_STAGES; i++)
        cr_assert_eq(h.columns[PD_COLUMN_STAGE + i][0], i + 1);
    cr_assert_eq(h.tier_count, 2);
    cr_assert_eq(h.columns[PD_COLUMN_TIER + 1][0], 5);
    cr_assert_eq(h.tiers[1].failures, 2);
    cr_assert_str_eq(h.tiers[1].cause, "full");
    pd_history_close(&h);
}

Test(history, losses_that_are_not_finite_and_steps_that_were_skipped, .init = make_folder, .fini = remove_folder)
{
    struct pd_history h;
    char text[64];
    append("metrics.jsonl", "{\"step\":1,\"loss\":5.5}\n");
    open_history(&h);
    cr_assert(pd_history_not_finite_since(&h, text, sizeof text) == 0 && text[0] == '\0', "%s", text);
    append("metrics.jsonl", "{\"step\":2,\"loss\":null,\"skipped\":1}\n{\"step\":3,\"loss\":null,\"skipped\":2}\n");
    cr_assert_eq(pd_history_refresh(&h, NULL), PD_OK);
    cr_assert_eq(pd_history_not_finite_since(&h, text, sizeof text), 2);
    cr_assert_str_eq(text, "not finite since step 2; 2 skipped");
    append("metrics.jsonl", "{\"step\":4,\"loss\":4.5,\"skipped\":2}\n");
    cr_assert_eq(pd_history_refresh(&h, NULL), PD_OK);
    cr_assert_eq(pd_history_not_finite_since(&h, text, sizeof text), 0);
    pd_history_close(&h);
}

/* The second start finds less in the second tier than there was: it had lost it. */
Test(history, saves_of_each_tier, .init = make_folder, .fini = remove_folder)
{
    struct pd_history h;
    double steps[16];
    const double first[] = {2, 4, 3, 5};
    append("events.jsonl", "{\"event\":\"open\",\"fence\":1,\"tiers\":[{\"newest\":0},{\"newest\":1}]}\n"
                           "{\"event\":\"end\",\"exit_code\":75,\"restarts\":true}\n"
                           "{\"event\":\"open\",\"fence\":2,\"tiers\":[{\"newest\":2},{\"newest\":0}]}\n"
                           "{\"event\":\"leave\",\"step\":5,\"tiers\":[{\"newest\":5},{\"newest\":5}]}\n");
    append("metrics.jsonl", "{\"step\":2,\"fence\":1,\"tiers\":[{\"newest\":2},{\"newest\":1}]}\n"
                            "{\"step\":4,\"fence\":1,\"tiers\":[{\"newest\":4},{\"newest\":1}]}\n"
                            "{\"step\":3,\"fence\":2,\"tiers\":[{\"newest\":3},{\"newest\":0}]}\n"
                            "{\"step\":4,\"fence\":2,\"tiers\":[{\"newest\":3},{\"newest\":0}]}\n");
    open_history(&h);
    cr_assert_eq(pd_history_saves(&h, 0, steps), 4);
    cr_assert_arr_eq(steps, first, sizeof first);
    cr_assert_eq(pd_history_saves(&h, 1, NULL), 1);
    cr_assert_eq(h.tiers[0].newest, 5);
    pd_history_close(&h);
}

Test(history, the_last_step_is_that_of_the_leave_where_lines_are_missing, .init = make_folder, .fini = remove_folder)
{
    struct pd_history h;
    append("events.jsonl", "{\"event\":\"open\",\"fence\":1,\"ranks\":1}\n");
    add_row(7, 1, 100, 1);
    append("events.jsonl", "{\"event\":\"leave\",\"step\":9}\n{\"event\":\"end\",\"exit_code\":0}\n");
    open_history(&h);
    cr_assert_eq(h.start_count, 1);
    cr_assert_eq(h.starts[0].last_step, 9);
    pd_history_close(&h);
}

Test(history, what_is_no_run_is_refused, .init = make_folder, .fini = remove_folder)
{
    struct pd_history h;
    struct pd_error err = {0};
    cr_assert_eq(pd_history_open(folder, &h, &err), PD_NOT_FOUND);
    cr_assert(strstr(err.message, "neither metrics.jsonl nor events.jsonl"), "%s", err.message);
    cr_assert_eq(pd_history_open("/nowhere", &h, &err), PD_NOT_FOUND);
    append("metrics.jsonl", "");
    open_history(&h);
    cr_assert_eq(h.rows, 0);
    cr_assert(isnan(pd_history_last(&h, PD_COLUMN_LOSS)) &&
              isnan(pd_history_quantile(&h, PD_COLUMN_LOSS, 0, h.rows - 1, 0.5)));
    pd_history_close(&h);
}
