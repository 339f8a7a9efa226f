/* perdure ckpt reshard: a checkpoint, written again under another layout. */
#include "ckpt/base/arena.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/cpu.h"
#include "ckpt/base/fault.h"
#include "ckpt/base/words.h"
#include "ckpt/shard/decompress.h"
#include "resharder/convert/reshard.h"
#include "tools/commands/ckpt.h"
#include "tools/commands/ckpt_place.h"
#include "tools/output.h"
#include "trainer/model/model.h"
#include "trainer/plan/auto_layout.h"
#include "trainer/run/signals.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#define COMPRESSORS_MAX 4

struct reshard {
    const struct pd_ckpt_options *options;
    struct pd_ckpt_place source;
    struct pd_ckpt_target target;
    const struct pd_store_entry *entry; /* of the source */
    char directory[4096];               /* of the source */
    struct pd_commit commit;
    struct pd_config config;
    struct pd_model *model;
    struct pd_laid_out laid_out;
    struct pd_shard_codec codec; /* of the new shards */
    char compression[16];        /* the same, as it is written */
    struct pd_import_report report;
    double seconds;
};

/* A checkpoint keeps its virtual degrees. */
static pd_status check_degree(const char *name, uint64_t degree, uint64_t virtual_degree, struct pd_error *err)
{
    if (virtual_degree % degree == 0) return PD_OK;
    PD_FAIL(err, PD_INVALID,
            "--layout: %s=%" PRIu64 " does not divide numerics.virtual_%s of the checkpoint, %" PRIu64
            ", on which its bits depend; take a divisor of it",
            name, degree, name, virtual_degree);
}

/* The saved configuration with other degrees, as a training run with this layout would take it. */
static pd_status lay_out(struct reshard *r, struct pd_error *err)
{
    struct pd_ckpt_layout degrees;
    const char *overrides[PD_CKPT_LAYOUT_TEXTS];
    const struct pd_layout *stored = &r->commit.state.layout;
    PD_TRY(pd_ckpt_layout_parse(r->options->layout, &degrees, err));
    PD_TRY(check_degree("tp", degrees.tp, stored->virtual_tp, err));
    PD_TRY(check_degree("sp", degrees.sp, stored->virtual_sp, err));
    for (int i = 0; i < PD_CKPT_LAYOUT_TEXTS; i++)
        overrides[i] = degrees.texts[i];
    PD_TRY(pd_config_parse_saved(r->commit.state.config, overrides, PD_CKPT_LAYOUT_TEXTS, &r->config, err));
    PD_TRY(pd_model_new(&r->config.model, &r->model, err));
    pd_model_set_moments(r->model, r->commit.state.moments);
    PD_TRY(pd_lay_out(&r->config, r->model, (uint32_t)degrees.world, &r->laid_out, err));
    r->laid_out.layout.small_bytes = r->commit.state.layout.small_bytes;
    return PD_OK;
}

/* ---- --compression ---- */

/* Without --compression: as in the first shard of the source. If that cannot be opened, the rewrite reports it. */
static struct pd_shard_codec codec_of_source(const struct reshard *r)
{
    struct pd_shard_codec codec = {.codec = PD_CODEC_NONE};
    struct pd_shard *shard = NULL;
    char path[4096 + 32];
    snprintf(path, sizeof path, "%s/shard-00000.h5", r->directory);
    if (pd_shard_open(r->source.vfs, path, &r->commit.state.identity, &r->commit.shards[0], &shard, NULL)) return codec;
    codec = pd_shard_codec_of(shard);
    pd_shard_close(shard);
    return codec;
}

static pd_status choose_codec(struct reshard *r, struct pd_error *err)
{
    const char *text = r->options->compression;
    pd_status st = text ? pd_shard_codec_parse(text, &r->codec, err) : PD_OK;
    if (st) PD_FAIL(err, PD_USAGE, "--compression=%s: expected none, or zstd:1 to zstd:%d", text, PD_SHARD_LEVEL_MAX);
    if (!text) r->codec = codec_of_source(r);
    if (r->codec.codec == PD_CODEC_NONE)
        snprintf(r->compression, sizeof r->compression, "none");
    else
        snprintf(r->compression, sizeof r->compression, "zstd:%d", r->codec.level);
    return PD_OK;
}

/* ---- source and target ---- */

static pd_status read_record(struct reshard *r, struct pd_error *err)
{
    pd_commit_deinit(&r->commit);
    r->commit = (struct pd_commit){0};
    PD_TRY(pd_store_read_commit(r->source.store, r->entry, &r->commit, err));
    pd_store_entry_path(r->source.store, r->entry, r->directory);
    return PD_OK;
}

/* After reading the source failed with `st` and *err: turns to a copy in another tier. PD_OK: that is the source now. */
static pd_status take_copy(struct reshard *r, pd_status st, struct pd_error *err)
{
    while (pd_ckpt_place_next_copy(&r->source, err, &r->entry))
        if ((st = read_record(r, err)) == PD_OK) return PD_OK;
    return st;
}

static pd_status open_source(struct reshard *r, struct pd_error *err)
{
    PD_TRY(pd_ckpt_place_open(r->options->paths[0], NULL, &r->source, err));
    PD_TRY(pd_ckpt_place_choose(&r->source, r->options->step, &r->entry, err));
    pd_status st = read_record(r, err);
    return st ? take_copy(r, st, err) : PD_OK;
}

static pd_status check_entry(const struct reshard *r, const struct pd_ckpt_place *target, const struct pd_store_entry *entry,
                             struct pd_error *err)
{
    const struct pd_identity *mine = &r->commit.state.identity;
    struct pd_commit there = {0};
    PD_TRY(pd_store_read_commit(target->store, entry, &there, err));
    const bool other_run = memcmp(there.state.identity.run_id, mine->run_id, sizeof mine->run_id) != 0;
    pd_commit_deinit(&there);
    if (other_run) PD_FAIL(err, PD_INVALID, "%s holds checkpoints of another run; name another directory", target->root);
    if (entry->lineage == mine->lineage && entry->step == mine->step)
        PD_FAIL(err, PD_USAGE, "%s holds step %" PRIu64 " of this run already, as %s; name another directory", target->root,
                entry->step, entry->name);
    return PD_OK;
}

static pd_status check_entries(const struct reshard *r, const struct pd_ckpt_place *target, struct pd_error *err)
{
    for (uint32_t i = 0; i < pd_store_count(target->store); i++)
        PD_TRY(check_entry(r, target, pd_store_entry_at(target->store, i), err));
    return PD_OK;
}

/* Looks before anything is written. */
static pd_status check_target(const struct reshard *r, struct pd_error *err)
{
    const char *path = r->options->paths[1];
    struct pd_ckpt_place target;
    struct stat st;
    if (stat(path, &st) != 0) return PD_OK; /* it will be made */
    if (!S_ISDIR(st.st_mode)) PD_FAIL(err, PD_INVALID, "%s is not a directory; name one to put the new checkpoint in", path);
    PD_TRY(pd_ckpt_place_open(path, NULL, &target, err));
    pd_status status = PD_OK;
    if (target.named[0])
        status =
            pd_error_set(err, PD_USAGE, PD_WHERE, 0, "%s is one checkpoint; name a directory to put the new one in", path);
    if (!status) status = check_entries(r, &target, err);
    pd_ckpt_place_close(&target);
    return status;
}

static pd_status open_target(struct reshard *r, struct pd_error *err)
{
    PD_TRY(pd_ckpt_target_open(r->source.vfs, r->options->paths[1], &r->target, err));
    return check_entries(r, &r->target.place, err); /* opening it may have finished a save that was killed */
}

/* ---- the work ---- */

/* As many as it has processors, within the memory that a rewrite takes. */
static unsigned compressors(void)
{
    const uint32_t cores = pd_cpu_cores();
    return cores < COMPRESSORS_MAX ? cores : COMPRESSORS_MAX;
}

static pd_status rewrite(struct reshard *r, struct pd_error *err)
{
    struct pd_shown_progress progress;
    struct pd_arena *arena = NULL;
    const struct pd_memory_plan memory = {.bytes = {[PD_MEMORY_BUFFERS] = PD_RESHARD_BUFFER_BYTES}};
    if (!r->codec.pool) PD_TRY(pd_thread_pool_new(compressors(), &r->codec.pool, err));
    PD_TRY(pd_arena_new(&memory, &arena, err));
    struct pd_import_request request = {.source = r->directory,
                                        .ours = &r->commit,
                                        .tensors = &r->model->tensors,
                                        .layout = &r->laid_out.layout,
                                        .codec = r->codec,
                                        .target = r->target.place.store,
                                        .buffers = pd_arena_take(arena, PD_MEMORY_BUFFERS, PD_RESHARD_BUFFER_BYTES),
                                        .should_stop = pd_signals_say_leave,
                                        .progress = pd_shown_progress_start(&progress),
                                        .context = &progress};
    pd_status st = pd_reshard(r->target.place.vfs, &request, &r->report, err);
    pd_shown_progress_end(&progress);
    r->seconds = pd_clock_seconds_since(progress.start_ns);
    pd_arena_free(arena);
    return st;
}

/* Every copy that lies in a tier, until one is whole. */
static pd_status rewrite_any(struct reshard *r, struct pd_error *err)
{
    pd_status st;
    do {
        st = rewrite(r, err);
    } while (st == PD_CORRUPT && (st = take_copy(r, st, err)) == PD_OK);
    return pd_ckpt_add_advice(st, err);
}

void pd_ckpt_json_layout(struct pd_json_writer *w, const struct pd_layout *l)
{
    pd_json_object_begin(w, "layout");
    PD_JSON_U64S(w, {"dp", l->dp}, {"tp", l->tp}, {"pp", l->pp}, {"sp", l->sp}, {"virtual_tp", l->virtual_tp},
                 {"virtual_sp", l->virtual_sp}, {"zero_stage", l->zero_stage}, {"zero_shard", l->zero_shard},
                 {"interleave", l->interleave});
    pd_json_array_begin(w, "first_unit");
    for (uint32_t i = 0; i < l->stage_count; i++)
        pd_json_u64(w, NULL, l->first_unit[i]);
    pd_json_array_end(w);
    pd_json_object_end(w);
}

static pd_status print(const struct reshard *r, struct pd_error *err)
{
    const struct pd_layout *l = &r->laid_out.layout;
    const struct pd_store_entry *entry = pd_store_entry_at(r->target.place.store, 0);
    char path[4096];
    struct rusage usage;
    struct pd_json_writer w;
    for (uint32_t i = 0; i < pd_store_count(r->target.place.store); i++)
        if (pd_store_entry_at(r->target.place.store, i)->fence == pd_store_fence(r->target.place.store))
            entry = pd_store_entry_at(r->target.place.store, i);
    pd_store_entry_path(r->target.place.store, entry, path);
    if (!r->options->json) {
        printf("%s: step %" PRIu64 " under dp %u, tp %u, pp %u, sp %u, %s in %s%s%s, %.1f s\n", path, entry->step, l->dp,
               l->tp, l->pp, l->sp, pd_text_bytes(entry->bytes).text, pd_counted(r->report.shards, "shard").text,
               r->codec.codec == PD_CODEC_NONE ? "" : ", ", r->codec.codec == PD_CODEC_NONE ? "" : r->compression,
               r->seconds);
        if (!r->report.has_index)
            fprintf(stderr, "without index.h5 (a view for people), which would take too much memory for so many boxes; a "
                            "run that resumes here writes one with its next checkpoint\n");
        return PD_OK;
    }
    (void)getrusage(RUSAGE_SELF, &usage);
    pd_json_writer_init_object(&w, 2);
    pd_json_string(&w, "checkpoint", path);
    PD_JSON_U64S(&w, {"step", entry->step}, {"shards", r->report.shards}, {"bytes", entry->bytes});
    pd_json_string(&w, "compression", r->compression);
    PD_JSON_U64S(&w, {"bytes_read", r->report.bytes_read}, {"bytes_written", r->report.bytes_written});
    pd_json_double(&w, "seconds", r->seconds);
    pd_json_bool(&w, "index", r->report.has_index);
    pd_json_u64(&w, "peak_rss_bytes", (uint64_t)usage.ru_maxrss * 1024);
    pd_ckpt_json_layout(&w, l);
    return pd_output_json(&w, err);
}

pd_status pd_ckpt_reshard(const struct pd_ckpt_options *options, struct pd_error *err)
{
    struct reshard r = {.options = options};
    if (!options->layout) PD_FAIL(err, PD_USAGE, "choose a layout: --layout=dp=4,tp=2; see perdure ckpt reshard --help");
    PD_TRY(pd_fault_configure_env(err));
    PD_TRY(pd_signals_install(err));
    pd_status st = open_source(&r, err);
    if (!st) st = lay_out(&r, err);
    if (!st) st = choose_codec(&r, err);
    if (!st) st = check_target(&r, err);
    if (!st) st = open_target(&r, err);
    if (!st) st = rewrite_any(&r, err);
    if (!st) st = print(&r, err);
    pd_thread_pool_free(r.codec.pool);
    pd_model_free(r.model);
    pd_config_deinit(&r.config);
    pd_commit_deinit(&r.commit);
    st = pd_ckpt_target_close(&r.target, st, err);
    pd_ckpt_place_close(&r.source);
    return st;
}
