#include "trainer/run/lost_steps.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/json.h"
#include "ckpt/base/regular_file.h"

#include <stdlib.h>
#include <string.h>

#define TAIL_BYTES (4 << 20)

/* The step and the time of a line; false: it is none, or is cut off. */
static bool read_line(const char *line, size_t bytes, uint64_t *ret_step, double *ret_time)
{
    struct pd_json_document *document = NULL;
    if (pd_json_parse("metrics.jsonl", line, bytes, &document, NULL)) return false;
    const struct pd_json_value *root = pd_json_root(document);
    const bool is_read =
        pd_json_is_u64(pd_json_member(root, "step"), ret_step) && pd_json_is_number(pd_json_member(root, "time"), ret_time);
    pd_json_document_free(document);
    return is_read;
}

/* From the end: the last line, and the last one of the step. Steps that a run computed again have more than one. */
static struct pd_lost_steps scan(const char *text, size_t bytes, uint64_t step)
{
    struct pd_lost_steps lost = {.age = -1};
    uint64_t found, last = 0;
    double time, last_time = 0;
    const char *end = memrchr(text, '\n', bytes);
    while (end && lost.age < 0) {
        const char *before = memrchr(text, '\n', (size_t)(end - text)), *line = before ? before + 1 : text;
        if (read_line(line, (size_t)(end - line), &found, &time)) {
            if (!last) {
                last = found;
                last_time = time;
            }
            if (found < step) break; /* it has no line */
            if (found == step) {
                lost.steps = last > step ? last - step : 0;
                lost.seconds = lost.steps ? last_time - time : 0;
                lost.age = (double)pd_clock_wall_ns(NULL) * 1e-9 - time;
            }
        }
        end = before;
    }
    return lost;
}

struct pd_lost_steps pd_lost_steps(const char *metrics_path, uint64_t step)
{
    struct pd_lost_steps lost = {.age = -1};
    char *text = malloc(TAIL_BYTES);
    FILE *f = text ? pd_regular_fopen(metrics_path, false) : NULL;
    if (f) {
        if (fseek(f, -TAIL_BYTES, SEEK_END)) rewind(f);
        lost = scan(text, fread(text, 1, TAIL_BYTES, f), step);
        (void)fclose(f);
    }
    free(text);
    return lost;
}
