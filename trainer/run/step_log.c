#include "trainer/run/step_log.h"

#include "ckpt/base/heartbeat.h"
#include "ckpt/base/log.h"
#include "ckpt/base/regular_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MODULE "worker"
#define LINES 2u
#define LINE_BYTES 88u

static void set_path(const char *run_dir, char ret_path[4200])
{
    snprintf(ret_path, 4200, "%.4000s/last-steps", run_dir);
}

static void print_line(const struct pd_step_line *line, char ret_text[LINE_BYTES + 1])
{
    char text[160];
    snprintf(text, sizeof text, "%016" PRIx64 " %16" PRIu64 " %16" PRIu64 " %16" PRIu64 " %16.3f", line->run, line->fence,
             line->step, line->kept, line->time);
    snprintf(ret_text, LINE_BYTES + 1, "%-*.*s\n", (int)LINE_BYTES - 1, (int)LINE_BYTES - 1, text);
}

/* Rejects a line of another step's place, and a truncated one. */
static bool parse_line(const char *text, uint64_t place, struct pd_step_line *ret)
{
    char line[LINE_BYTES + 1];
    snprintf(line, sizeof line, "%.*s", (int)LINE_BYTES, text);
    return line[0] && line[LINE_BYTES - 1] == '\n' &&
           sscanf(line, "%" SCNx64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %lf", &ret->run, &ret->fence, &ret->step,
                  &ret->kept, &ret->time) == 5 &&
           ret->run && ret->step % LINES == place;
}

static bool is_newer(const struct pd_step_line *a, const struct pd_step_line *b)
{
    if (a->run != b->run) return a->run && (!b->run || a->time > b->time);
    return a->fence != b->fence ? a->fence > b->fence : a->step > b->step;
}

/* (LINES * LINE_BYTES), empty if there is no file; malloc'ed, NULL: no memory. */
static char *read_text(const char *run_dir)
{
    char path[4200];
    char *text = calloc(LINES, LINE_BYTES);
    set_path(run_dir, path);
    FILE *f = text ? pd_regular_fopen(path, false) : NULL;
    if (f) {
        (void)!fread(text, LINE_BYTES, LINES, f);
        (void)fclose(f);
    }
    return text;
}

/* The newest line of one host. */
static void read_newest(const char *run_dir, struct pd_step_line *ret_newest)
{
    struct pd_step_line line;
    char *text = read_text(run_dir);
    for (size_t i = 0; text && i < LINES; i++)
        if (parse_line(text + i * LINE_BYTES, i, &line) && is_newer(&line, ret_newest)) *ret_newest = line;
    free(text);
}

pd_status pd_step_log_newest(struct pd_group *group, const char *run_dir, struct pd_step_line *ret_line,
                             struct pd_error *err)
{
    struct pd_step_line mine = {.run = 0}, newest = {.run = 0};
    void *all = NULL;
    if (run_dir) PD_ON_STORAGE(read_newest(run_dir, &mine));
    PD_TRY(pd_group_gather_all(group, &mine, sizeof mine, &all, err));
    for (uint32_t r = 0; r < group->size; r++)
        if (is_newer((struct pd_step_line *)all + r, &newest)) newest = ((struct pd_step_line *)all)[r];
    free(all);
    *ret_line = newest;
    return PD_OK;
}

/* Replaces the file by a new one with the same content, so as not to write into a linked file. Returns 0 or the errno. */
static int make_file(const char *run_dir, const char *path, int *ret_file)
{
    char beside[4300];
    char *before = read_text(run_dir);
    snprintf(beside, sizeof beside, "%s.new", path);
    (void)unlink(beside);
    int number = before ? pd_regular_open(beside, O_RDWR | O_CREAT | O_EXCL, ret_file) : ENOMEM;
    const bool is_made = before && !number;
    if (is_made && pwrite(*ret_file, before, LINES * LINE_BYTES, 0) != (ssize_t)(LINES * LINE_BYTES)) number = ENOSPC;
    if (is_made && !number && rename(beside, path)) number = errno;
    if (is_made && number) {
        close(*ret_file);
        (void)unlink(beside);
    }
    free(before);
    return number;
}

static int step_log_open_file(const char *run_dir, const struct pd_step_line *first, struct pd_step_log *ret_log)
{
    char path[4200];
    struct pd_step_log log = {.is_open = true, .line = *first};
    set_path(run_dir, path);
    const int number = make_file(run_dir, path, &log.file);
    if (number) return number;
    pd_step_log_write(&log);
    *ret_log = log;
    return 0;
}

static bool has_line(const char *run_dir, const struct pd_step_line *line)
{
    struct pd_step_line newest = {.run = 0};
    read_newest(run_dir, &newest);
    return newest.run == line->run && newest.fence == line->fence;
}

pd_status pd_step_log_open(struct pd_group *group, const char *run_dir, const struct pd_step_line *first,
                           struct pd_step_log *ret_log, struct pd_error *err)
{
    const bool is_root = group->rank == 0;
    int number = 0;
    if (is_root) PD_ON_STORAGE(number = step_log_open_file(run_dir, first, ret_log));
    if (number)
        pd_log_warn(MODULE, "%s/last-steps: after a loss nobody will know how many steps are lost: %s", run_dir,
                    strerror(number));
    PD_TRY(pd_group_barrier(group, err));
    if (!is_root && run_dir) PD_ON_STORAGE(if (!has_line(run_dir, first))(void) step_log_open_file(run_dir, first, ret_log));
    return PD_OK;
}

void pd_step_log_write(const struct pd_step_log *log)
{
    char text[LINE_BYTES + 1];
    if (!log->is_open) return;
    print_line(&log->line, text);
    PD_ON_STORAGE((void)!pwrite(log->file, text, LINE_BYTES, (off_t)(log->line.step % LINES * LINE_BYTES)));
}

void pd_step_log_close(struct pd_step_log *log)
{
    if (log->is_open) close(log->file);
    log->is_open = false;
}
