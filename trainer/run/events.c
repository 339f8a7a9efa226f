#include "trainer/run/events.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "ckpt/base/regular_file.h"
#include "trainer/run/internal.h"
#include "trainer/run/launched.h"
#include "trainer/run/recorded.h"
#include "trainer/run/resume.h"
#include "trainer/status/channel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void pd_event_begin(struct pd_json_writer *ret_writer, const char *event)
{
    pd_json_writer_init(ret_writer, 0);
    pd_json_object_begin(ret_writer, NULL);
    pd_json_string(ret_writer, "event", event);
    pd_json_double(ret_writer, "time", (double)(pd_clock_wall_ns(NULL) / 1000000) / 1000);
}

static int append(const char *run_dir, const char *text, size_t bytes)
{
    char path[4200];
    int file;
    snprintf(path, sizeof path, "%.4000s/events.jsonl", run_dir);
    int number = pd_regular_open(path, O_RDWR | O_CREAT | O_APPEND, &file);
    if (number) return number;
    number = pd_regular_append(file, text, bytes);
    close(file);
    return number;
}

/* A run.dir that is gone has its own message; what is not a file the launcher, which writes first, has said. */
static void say_once(const char *run_dir, int number)
{
    static atomic_bool is_said;
    if (number == ENOENT || (number == ENXIO && getenv(PD_CHANNEL_ENV_ADDRESSES))) return;
    if (atomic_exchange(&is_said, true)) return;
    pd_log_warn("events", "%s/events.jsonl: starts and ends of this run are not recorded: %s", run_dir,
                number == ENXIO ? "it is not a regular file; move it away" : strerror(number));
}

void pd_event_end(struct pd_json_writer *w, const char *run_dir)
{
    const char *text;
    size_t bytes;
    const int number = pd_json_writer_finish(w, &text, &bytes, NULL) ? ENOMEM : append(run_dir, text, bytes);
    if (number) say_once(run_dir, number);
    pd_json_writer_deinit(w);
}

static void add_tiers(struct pd_json_writer *w, const struct run *r)
{
    pd_json_array_begin(w, "tiers");
    for (uint32_t i = 0; i < pd_tiers_count(r->tiers); i++) {
        struct pd_tier_report report;
        pd_tiers_report(r->tiers, i, &report);
        pd_json_object_begin(w, NULL);
        pd_json_string(w, "dir", report.dir);
        pd_json_u64(w, "newest", report.newest_step);
        pd_json_bool(w, "in_memory", report.in_memory);
        if (report.is_left_out) pd_json_bool(w, "left_out", true);
        pd_json_object_end(w);
    }
    pd_json_array_end(w);
}

pd_status pd_event_open(struct run *r, const struct pd_resume_report *report, double gemm_flops_per_second,
                        struct pd_error *err)
{
    uint64_t bytes = pd_saver_file_bytes(r->saver);
    struct pd_json_writer w;
    char run_id[PD_RUN_ID_BYTES];
    PD_TRY(pd_comm_all_reduce(r->comm, &bytes, 1, PD_REDUCE_SUM_U64, err));
    if (r->comm->rank) return PD_OK;
    pd_event_begin(&w, "open");
    pd_recorded_run_id(r->state.identity.run_id, run_id);
    pd_json_string(&w, "run_id", run_id);
    PD_JSON_U64S(&w, {"fence", r->state.fence}, {"step", r->state.identity.step}, {"lineage", r->state.identity.lineage});
    pd_json_bool(&w, "resumed", report->resumed);
    if (report->resumed) {
        pd_json_double(&w, "resume_seconds", report->seconds);
        pd_json_u64(&w, "resume_tier", report->from_tier);
        if (report->whence.hosts[0]) pd_json_string(&w, "read_on", report->whence.hosts);
        pd_json_u64(&w, "lost_hosts", report->whence.lost_hosts);
        pd_json_u64(&w, "lost_steps", report->whence.lost.steps);
        pd_json_double(&w, "lost_seconds", report->whence.lost.seconds);
    }
    pd_json_u64(&w, "damaged", report->damaged);
    const struct pd_layout *layout = &r->engine->grid.layout;
    PD_JSON_U64S(&w, {"ranks", r->comm->size}, {"hosts", r->comm->host_count}, {"threads", r->threads}, {"dp", layout->dp},
                 {"tp", layout->tp}, {"pp", layout->pp}, {"sp", layout->sp}, {"zero_stage", layout->zero_stage});
    pd_json_string(&w, "device", r->device.dev ? r->device.dev->description : "CPU");
    pd_json_u64(&w, "parameters", r->model->parameter_count);
    /* Of the process of rank 0: where ranks are threads, of all of them. */
    struct pd_memory_plan used;
    const uint64_t ranks = r->is_thread ? r->comm->size : 1;
    pd_arena_usage(r->arena, &used);
    pd_json_u64(&w, "planned_bytes", r->planned_bytes * ranks);
    pd_json_object_begin(&w, "memory");
    for (int i = 0; i < PD_MEMORY_CATEGORY_COUNT; i++)
        pd_json_u64(&w, pd_memory_category_name((enum pd_memory_category)i), used.bytes[i] * ranks);
    pd_json_object_end(&w);
    pd_json_u64(&w, "checkpoint_bytes", bytes);
    pd_json_double(&w, "gemm_flops_per_second", gemm_flops_per_second);
    pd_json_double(&w, "flops_per_token", pd_model_flops_per_token(r->model, r->config->batch.context));
    add_tiers(&w, r);
    pd_event_end(&w, r->config->run.dir);
    return PD_OK;
}

void pd_event_leave(struct run *r)
{
    struct pd_json_writer w;
    if (r->comm->rank) return;
    pd_event_begin(&w, "leave");
    pd_json_u64(&w, "step", r->state.identity.step);
    add_tiers(&w, r);
    pd_event_end(&w, r->config->run.dir);
}
