/* metrics.prometheus_file, for node_exporter's textfile collector: replaced by rename, so that nobody reads half of it, at most
 * once a second. */
#include "trainer/run/prometheus.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/regular_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PERIOD_SECONDS 1.0

struct prometheus_file {
    struct pd_prometheus prometheus;
    char path[4096], temporary[4200];
    uint64_t written_ns; /* 0: not yet */
    char *pending;       /* of the newest line, where its turn has not come; NULL: none */
};

static pd_status replace(const struct prometheus_file *p, const char *text, struct pd_error *err)
{
    const size_t bytes = strlen(text);
    const int file = open(p->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (file < 0) PD_FAIL_ERRNO(err, errno, "%s: making it", p->temporary);
    const ssize_t written = write(file, text, bytes);
    int number = written < 0 ? errno : written != (ssize_t)bytes ? ENOSPC : 0;
    if (close(file) && !number) number = errno;
    if (!number && rename(p->temporary, p->path)) number = errno;
    if (!number) return PD_OK;
    unlink(p->temporary);
    PD_FAIL_ERRNO(err, number, "%s: replacing it", p->path);
}

static bool file_is_wanted(const struct pd_config *config)
{
    return config->metrics.prometheus_file[0];
}

static pd_status file_open(const struct pd_metrics_options *options, void **ret_sink, struct pd_error *err)
{
    const char *path = options->config->metrics.prometheus_file;
    if (pd_regular_is_other(path))
        PD_FAIL(err, PD_INVALID, "%s is not a regular file, and would be replaced by one; name another", path);
    struct prometheus_file *p = calloc(1, sizeof *p);
    if (!p) PD_FAIL(err, PD_NO_MEMORY, "metrics: no memory");
    pd_prometheus_init(&p->prometheus, options);
    snprintf(p->path, sizeof p->path, "%s", path);
    /* Collectors read *.prom alone. A draft that a killed rank left is the next rank's to overwrite. */
    snprintf(p->temporary, sizeof p->temporary, "%s.tmp", p->path);
    *ret_sink = p;
    return PD_OK;
}

static pd_status file_write(void *sink, const struct pd_metrics_line *line, struct pd_error *err)
{
    struct prometheus_file *p = sink;
    free(p->pending);
    p->pending = NULL;
    PD_TRY(pd_prometheus_text(&p->prometheus, line, &p->pending, err));
    if (p->written_ns && pd_clock_seconds_since(NULL, p->written_ns) < PERIOD_SECONDS) return PD_OK;
    PD_TRY(replace(p, p->pending, err));
    free(p->pending);
    p->pending = NULL;
    p->written_ns = pd_clock_monotonic_ns(NULL);
    return PD_OK;
}

static void file_close(void *sink)
{
    struct prometheus_file *p = sink;
    if (p->pending && p->written_ns) (void)replace(p, p->pending, NULL);
    free(p->pending);
    free(p);
}

const struct pd_metrics_sink pd_metrics_prometheus_file = {"metrics.prometheus_file", .is_wanted = file_is_wanted,
                                                           .open = file_open, .write = file_write, .close = file_close};
