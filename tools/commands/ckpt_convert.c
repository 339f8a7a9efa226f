/* perdure ckpt reshard, import and export: what they print. */
#include "ckpt/base/clock.h"
#include "ckpt/base/fault.h"
#include "ckpt/base/log.h"
#include "ckpt/base/words.h"
#include "resharder/formats/perdure.h"
#include "tools/commands/ckpt.h"
#include "tools/library/convert.h"
#include "tools/library/upload.h"
#include "tools/output.h"
#include "trainer/run/signals.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

struct converting {
    const struct pd_ckpt_options *options;
    struct pd_shown_progress shown;
    pd_inspect_progress show;
};

static void convert_begin(void *context)
{
    struct converting *c = context;
    c->show = pd_shown_progress_start(&c->shown);
}

static void convert_progress(void *context, uint64_t done, uint64_t total)
{
    struct converting *c = context;
    if (c->show) c->show(&c->shown, done, total);
}

static void convert_end(void *context)
{
    pd_shown_progress_end(&((struct converting *)context)->shown);
}

void pd_ckpt_json_layout(struct pd_json_writer *w, const struct pd_layout *l)
{
    pd_json_object_begin(w, "layout");
    PD_JSON_U64S(w, {"dp", l->dp}, {"tp", l->tp}, {"pp", l->pp}, {"sp", l->sp}, {"ep", pd_layout_ep(l)},
                 {"virtual_tp", l->virtual_tp}, {"virtual_sp", l->virtual_sp}, {"zero_stage", l->zero_stage},
                 {"zero_shard", l->zero_shard}, {"interleave", l->interleave});
    pd_json_array_begin(w, "first_unit");
    for (uint32_t i = 0; i < l->stage_count; i++)
        pd_json_u64(w, NULL, l->first_unit[i]);
    pd_json_array_end(w);
    pd_json_object_end(w);
}

/* Both sides of an import or export; what is missing has been refused. */
static void print_experts(const struct pd_expert_count *n)
{
    if (!n) return;
    printf("experts: %s, %s in; %s, %s out; the same %s elements\n", pd_counted(n->in.tensors, "tensor").text,
           pd_text_bytes(n->in.bytes).text, pd_counted(n->out.tensors, "tensor").text, pd_text_bytes(n->out.bytes).text,
           pd_text_count(n->in.elements).text);
}

static void json_experts(struct pd_json_writer *w, const struct pd_expert_count *n)
{
    if (!n) return;
    pd_json_object_begin(w, "experts");
    PD_JSON_U64S(w, {"tensors_in", n->in.tensors}, {"bytes_in", n->in.bytes}, {"elements_in", n->in.elements},
                 {"tensors_out", n->out.tensors}, {"bytes_out", n->out.bytes}, {"elements_out", n->out.elements});
    pd_json_object_end(w);
}

static pd_status rewrite_print(const struct pd_rewritten *result, bool is_json, struct pd_error *err)
{
    const struct pd_ckpt_rewrite *w = result->rewrite;
    const struct pd_layout *l = result->layout;
    const char *format = result->format;
    const struct pd_import_report *n = &w->report;
    const struct pd_store_entry *entry = pd_ckpt_target_written(&w->target);
    char path[4096], packed[16] = "none", spread[16] = "";
    struct rusage usage;
    struct pd_json_writer json;
    if (w->codec.codec != PD_CODEC_NONE) snprintf(packed, sizeof packed, "zstd:%d", w->codec.level);
    pd_store_entry_path(w->target.place.store, entry, path);
    const bool is_ours = strcmp(format, pd_format_perdure.name) == 0;
    if (l->ep > 1) snprintf(spread, sizeof spread, ", ep %u", l->ep);
    if (!is_json) {
        printf("%s: step %" PRIu64 "%s%s, under dp %u, tp %u, pp %u, sp %u%s, %s in %s, compression %s, %.1f s\n", path,
               entry->step, is_ours ? "" : " from ", is_ours ? "" : format, l->dp, l->tp, l->pp, l->sp, spread,
               pd_text_bytes(entry->bytes).text, pd_counted(n->shards, "shard").text, packed, w->seconds);
        print_experts(result->experts);
        if (n->zeroed) printf("%s of moments begin at zero\n", pd_counted(n->zeroed, "array").text);
        if (!n->has_index)
            fprintf(stderr, "without index.h5 (a view for people), which would take too much memory for so many boxes; a "
                            "run that resumes here writes one with its next checkpoint\n");
        return PD_OK;
    }
    (void)getrusage(RUSAGE_SELF, &usage);
    pd_json_writer_init_object(&json, 2);
    PD_JSON_STRINGS(&json, {"checkpoint", path}, {"format", format}, {"compression", packed});
    PD_JSON_U64S(&json, {"step", entry->step}, {"shards", n->shards}, {"bytes", entry->bytes}, {"bytes_read", n->bytes_read},
                 {"bytes_written", n->bytes_written}, {"bytes_read_back", n->bytes_read_back}, {"zeroed", n->zeroed},
                 {"peak_rss_bytes", (uint64_t)usage.ru_maxrss * 1024});
    pd_json_double(&json, "seconds", w->seconds);
    pd_json_bool(&json, "index", n->has_index);
    json_experts(&json, result->experts);
    pd_ckpt_json_layout(&json, l);
    return pd_output_json(&json, err);
}

/* Says that weights are stored exactly, but computed with in the configuration's type. */
static pd_status print_rewritten(void *context, const struct pd_rewritten *r, struct pd_error *err)
{
    const struct pd_ckpt_options *options = ((struct converting *)context)->options;
    PD_TRY(rewrite_print(r, options->json, err));
    if (r->stored && !options->json)
        printf("weights are %s; train, sample and eval compute in %s (numerics.precision, --precision)\n", r->stored,
               r->computed);
    return PD_OK;
}

static pd_status print_exported(void *context, const struct pd_exported *x, struct pd_error *err)
{
    const struct pd_ckpt_options *options = ((struct converting *)context)->options;
    struct rusage usage;
    struct pd_json_writer w;
    if (!options->json) {
        printf("%s: %s, %s in %s, %s, %.1f s\n", x->path, x->format, pd_counted(x->report->tensors, "tensor").text,
               pd_counted(x->report->files, "file").text, pd_text_bytes(x->report->bytes_written).text, x->seconds);
        print_experts(x->experts);
        return PD_OK;
    }
    (void)getrusage(RUSAGE_SELF, &usage);
    pd_json_writer_init_object(&w, 2);
    PD_JSON_STRINGS(&w, {"path", x->path}, {"format", x->format});
    PD_JSON_U64S(&w, {"step", x->step}, {"tensors", x->report->tensors}, {"files", x->report->files},
                 {"bytes_read", x->report->bytes_read}, {"bytes_written", x->report->bytes_written},
                 {"bytes_read_back", x->report->bytes_read_back}, {"peak_rss_bytes", (uint64_t)usage.ru_maxrss * 1024});
    pd_json_double(&w, "seconds", x->seconds);
    json_experts(&w, x->experts);
    return pd_output_json(&w, err);
}

static pd_status print_mapping(void *context, const struct pd_ckpt_mapping *mapping, struct pd_error *err)
{
    return pd_ckpt_print_mapping(mapping, ((struct converting *)context)->options->json, err);
}

typedef pd_status conversion(const struct pd_convert *, const struct pd_convert_watch *, struct pd_error *);

static pd_status convert_run(const struct pd_ckpt_options *o, conversion *body, struct pd_error *err)
{
    struct converting c = {.options = o};
    const struct pd_convert convert = {.source = o->paths[0],
                                       .destination = o->paths[1],
                                       .step = o->step,
                                       .layout = o->layout,
                                       .compression = o->compression,
                                       .format = o->format,
                                       .dtype = o->dtype,
                                       .only = o->only,
                                       .config_file = o->config_file,
                                       .experts = o->experts,
                                       .prefix = o->prefix,
                                       .dry_run = o->dry_run,
                                       .fresh_optimizer = o->fresh_optimizer};
    const struct pd_convert_watch watch = {.notes = &pd_ckpt_notes,
                                           .plain_notes = &pd_ckpt_plain_notes,
                                           .should_stop = pd_signals_stop(),
                                           .context = &c,
                                           .begin = convert_begin,
                                           .progress = convert_progress,
                                           .end = convert_end,
                                           .rewritten = print_rewritten,
                                           .exported = print_exported,
                                           .mapping = print_mapping};
    PD_TRY(pd_fault_configure_env(err));
    PD_TRY(pd_signals_install(err));
    return body(&convert, &watch, err);
}

pd_status pd_ckpt_import(const struct pd_ckpt_options *options, struct pd_error *err)
{
    return convert_run(options, pd_convert_import, err);
}

pd_status pd_ckpt_export(const struct pd_ckpt_options *options, struct pd_error *err)
{
    return convert_run(options, pd_convert_export, err);
}

pd_status pd_ckpt_reshard(const struct pd_ckpt_options *options, struct pd_error *err)
{
    if (!options->layout) PD_FAIL(err, PD_USAGE, "choose a layout: --layout=dp=4,tp=2; see perdure ckpt reshard --help");
    return convert_run(options, pd_convert_reshard, err);
}

/* ---- upload ---- */

static bool send_progress(void *context, uint64_t done, uint64_t total)
{
    convert_progress(context, done, total);
    return pd_stop_asked(pd_signals_stop());
}

static pd_status print_sent(const struct pd_ckpt_options *o, const struct pd_ckpt_uploaded *sent, double seconds,
                            struct pd_error *err)
{
    struct pd_json_writer w;
    if (!o->json) {
        if (sent->was_there)
            printf("%s has step %" PRIu64 " already\n", o->paths[1], sent->step);
        else
            printf("%s: step %" PRIu64 ", %s, %.1f s\n", o->paths[1], sent->step, pd_bytes_text((double)sent->bytes).text,
                   seconds);
        return PD_OK;
    }
    pd_json_writer_init(&w, 2);
    pd_json_object_begin(&w, NULL);
    pd_json_u64(&w, "step", sent->step);
    pd_json_u64(&w, "bytes", sent->bytes);
    pd_json_bool(&w, "was_there", sent->was_there);
    pd_json_double(&w, "seconds", seconds);
    pd_json_object_end(&w);
    return pd_output_json(&w, err);
}

pd_status pd_ckpt_send(const struct pd_ckpt_options *o, struct pd_error *err)
{
    struct converting c = {.options = o};
    struct pd_group alone;
    struct pd_ckpt_uploaded sent = {0};
    const struct pd_ckpt_upload upload = {.source = o->paths[0],
                                          .bucket = o->paths[1],
                                          .step = o->step,
                                          .keep_last = o->keep_last,
                                          .memory = o->memory,
                                          .bytes_per_second = o->bandwidth,
                                          .notes = &pd_ckpt_notes,
                                          .progress = send_progress,
                                          .context = &c};
    if (!pd_vfs_is_remote(o->paths[1]))
        PD_FAIL(err, PD_USAGE, "%s does not name a bucket; write s3://bucket/prefix, or copy with cp -r", o->paths[1]);
    PD_TRY(pd_fault_configure_env(err));
    PD_TRY(pd_signals_install(err));
    pd_group_init_single(&alone);
    const uint64_t start = pd_clock_monotonic_ns(NULL);
    convert_begin(&c);
    const pd_status st = pd_ckpt_upload(&upload, &alone, &sent, err);
    convert_end(&c);
    return st ? st : print_sent(o, &sent, pd_clock_seconds_since(start), err);
}

/* For a run: logs, where a command prints. */
static pd_status log_rewritten(void *context, const struct pd_rewritten *r, struct pd_error *err)
{
    (void)context, (void)err;
    if (r->stored)
        pd_log_info("init", "weights are %s; training computes in %s (numerics.precision)", r->stored, r->computed);
    return PD_OK;
}

pd_status pd_ckpt_import_for_run(const struct pd_config *config, const char *directory, pd_should_stop should_stop,
                                 struct pd_error *err)
{
    struct converting c = {0};
    const struct pd_convert_watch watch = {.notes = &pd_ckpt_notes,
                                           .plain_notes = &pd_ckpt_plain_notes,
                                           .should_stop = should_stop,
                                           .context = &c,
                                           .begin = convert_begin,
                                           .progress = convert_progress,
                                           .end = convert_end,
                                           .rewritten = log_rewritten};
    return pd_convert_import_for_run(config, directory, &watch, err);
}
