/* metrics.jsonl and events.jsonl of a run, as report and watch read and draw them. */
#include "tests/fuzz/input/directory.h"
#include "tests/fuzz/input/names.h"
#include "tests/fuzz/target.h"
#include "tools/report/page.h"
#include "tools/report/watch.h"

#include <stdlib.h>
#include <string.h>

static void draw(const struct pd_history *history, FILE *out)
{
    struct pd_report_run run = {.history = *history};
    const struct pd_report_data report = {.count = 1, .runs = &run};
    struct pd_figures figures = {.count = 0};
    struct pd_json_writer writer;
    pd_history_life(history, &run.life);
    pd_tables_summary(out, &report);
    pd_tables_rest(out, &report);
    if (pd_figures_make(history, 1, &figures, NULL)) return;
    for (uint32_t i = 0; i < figures.count; i++)
        pd_chart_draw(out, &figures.charts[i], 720, 300, "");
    pd_lanes_draw(out, "lanes", figures.lanes, figures.lane_count, figures.lanes_end, 720, "");
    pd_figures_deinit(&figures);
    pd_json_writer_init(&writer, 0);
    pd_report_json(&report, &writer);
    pd_json_writer_deinit(&writer);
}

static void watch(const struct pd_watch *w, FILE *out)
{
    struct pd_json_writer writer;
    char *text = NULL, line[256];
    struct pd_error err = {0};
    if (!pd_watch_screen(w, 80, 24, &text, &err)) free(text);
    pd_watch_line(w, line, sizeof line);
    (void)pd_watch_events(w, 0, out);
    pd_json_writer_init(&writer, 0);
    pd_watch_json(w, &writer);
    pd_json_writer_deinit(&writer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const names[] = {"metrics.jsonl", "events.jsonl"};
    struct input_record record;
    static struct pd_watch w;
    struct pd_error err = {0};
    const char *directory = input_names(names, 2);
    for (uint32_t i = 0; i < 2; i++)
        input_name_set(i, NULL, 0);
    while (input_record_take(&data, &bytes, 2, &record))
        input_name_set(record.part, record.data, record.bytes);
    const pd_status st = pd_watch_open(directory, &w, &err);
    if (st && !err.message[0]) abort();
    if (st) return 0;
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    if (!out) abort();
    watch(&w, out);
    draw(&w.history, out);
    fclose(out);
    free(text);
    pd_watch_close(&w);
    return 0;
}
