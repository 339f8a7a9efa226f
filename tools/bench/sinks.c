#include "tools/bench/sinks.h"

#include "ckpt/base/clock.h"
#include "trainer/run/metrics.h"

#include <dirent.h>
#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define STEPS 8u /* of a measurement */
#define PORT "19473"

struct side {
    struct pd_config config; /* borrows what it points to, but for these */
    char dir[64], file[96];
    struct pd_metrics *metrics;
    double work_s,
        sink_s; /* processor time a step of the last measurement: of all; of handing a line over and of the sinks */
};

struct sinks_bench {
    struct pd_bench_run *run;
    char folder[48];
    struct side sides[2]; /* metrics.jsonl alone; all */
    uint64_t step;
};

static pd_status open_side(struct sinks_bench *b, int number, struct pd_error *err)
{
    struct side *s = &b->sides[number];
    s->config = b->run->config;
    snprintf(s->dir, sizeof s->dir, "%s/%d", b->folder, number);
    snprintf(s->file, sizeof s->file, "%s/%d/run.prom", b->folder, number);
    if (mkdir(s->dir, 0700)) PD_FAIL(err, PD_IO, "%s cannot be made; set TMPDIR to another directory", s->dir);
    s->config.run.dir = s->dir;
    s->config.run.steps = UINT64_MAX;
    s->config.metrics.tensorboard = number;
    static char port[] = PORT, none[] = "";
    s->config.metrics.prometheus_file = number ? s->file : none;
    s->config.metrics.prometheus_listen = number ? port : none;
    const struct pd_metrics_options options = {.config = &s->config, .ranks = 1, .flops_per_token = 1};
    return pd_metrics_open(&options, &s->metrics, err);
}

static double thread_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* False: the file cannot be read, so the thread has ended. */
static bool read_task(const char *task, const char *file, char text[64])
{
    char path[128];
    snprintf(path, sizeof path, "/proc/self/task/%.32s/%s", task, file);
    FILE *f = fopen(path, "re");
    const bool is_read = f && fgets(text, 64, f);
    if (f) fclose(f);
    return is_read;
}

/* Processor time of the sinks' threads, by the names that they give themselves. */
static double sink_threads_seconds(void)
{
    DIR *tasks = opendir("/proc/self/task");
    double seconds = 0;
    for (const struct dirent *task; tasks && (task = readdir(tasks));) {
        char name[64], times[64];
        const bool is_sink =
            read_task(task->d_name, "comm", name) && (strcmp(name, "pd-metrics\n") == 0 || strcmp(name, "pd-http\n") == 0);
        if (is_sink && read_task(task->d_name, "schedstat", times)) seconds += 1e-9 * strtod(times, NULL);
    }
    if (tasks) closedir(tasks);
    return seconds;
}

static pd_status run_steps(struct sinks_bench *b, struct side *s, double *ret_seconds, struct pd_error *err)
{
    const uint64_t start = pd_clock_monotonic_ns(NULL);
    const double work = pd_bench_processor_seconds(), sinks = sink_threads_seconds();
    double handed = 0;
    for (unsigned i = 0; i < STEPS; i++) {
        struct pd_metrics_step m = {.step = ++b->step, .fence = 1, .validation_loss = NAN, .memory_bytes = 1};
        PD_TRY(pd_bench_run_step(b->run, b->step, &m.seconds, &m.result.loss, err));
        m.result.tokens = 1;
        const double before = thread_seconds();
        pd_metrics_write(s->metrics, &m);
        handed += thread_seconds() - before;
    }
    *ret_seconds = pd_clock_seconds_since(NULL, start) / STEPS;
    s->sink_s = (handed + sink_threads_seconds() - sinks) / STEPS;
    s->work_s = (pd_bench_processor_seconds() - work) / STEPS;
    return PD_OK;
}

static pd_status with_all(void *bench, double *ret_seconds, struct pd_error *err)
{
    struct sinks_bench *b = bench;
    return run_steps(b, &b->sides[1], ret_seconds, err);
}

static pd_status with_lines(void *bench, double *ret_seconds, struct pd_error *err)
{
    struct sinks_bench *b = bench;
    return run_steps(b, &b->sides[0], ret_seconds, err);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *walk)
{
    (void)st;
    (void)type;
    (void)walk;
    return remove(path);
}

pd_status pd_bench_sinks(struct pd_bench_run *run, uint64_t pairs, struct pd_sinks_cost *ret_cost, struct pd_error *err)
{
    static struct sinks_bench bench;
    struct pd_pairs clock = {.count = 0}, work = {.count = 0};
    double ignored;
    const char *parent = getenv("TMPDIR");
    bench = (struct sinks_bench){.run = run};
    snprintf(bench.folder, sizeof bench.folder, "%.24s/perdure-sinks-XXXXXX",
             parent && strlen(parent) < 24 ? parent : "/tmp");
    if (!mkdtemp(bench.folder)) PD_FAIL(err, PD_IO, "%s cannot be made; set TMPDIR to another directory", bench.folder);
    setenv("PERDURE_PROGRESS", "off", 1);
    pd_status st = open_side(&bench, 0, err);
    if (!st) st = open_side(&bench, 1, err);
    if (!st) st = with_all(&bench, &ignored, err); /* warms up */
    for (uint64_t i = 0; !st && i < pairs; i++) {
        st = pd_pairs_measure(&clock, &bench, with_all, with_lines, err);
        const double plain_s = bench.sides[0].work_s, sinks_s = bench.sides[1].sink_s - bench.sides[0].sink_s;
        if (!st) pd_pairs_add(&work, plain_s + sinks_s, plain_s);
    }
    for (int i = 0; i < 2; i++)
        pd_metrics_close(bench.sides[i].metrics);
    nftw(bench.folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    if (!st) *ret_cost = (struct pd_sinks_cost){pd_pairs_summarise(&clock), pd_pairs_summarise(&work)};
    return st;
}
