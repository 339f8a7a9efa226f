/* perdure ckpt reshard: rewrites a checkpoint under another layout. Also the code shared with import. */
#include "ckpt/base/arena.h"
#include "ckpt/base/checked.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/cpu.h"
#include "ckpt/base/fault.h"
#include "ckpt/base/words.h"
#include "ckpt/shard/decompress.h"
#include "resharder/convert/reshard.h"
#include "resharder/formats/perdure.h"
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
    struct pd_ckpt_rewrite rewrite;
    const struct pd_store_entry *entry; /* of the source */
    char directory[4096];               /* of the source */
    struct pd_commit commit;
    struct pd_config config;
    struct pd_model *model;
    struct pd_laid_out laid_out;
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

/* Applies other degrees to the saved configuration, as a training run with this layout would. */
static pd_status ckpt_reshard_lay_out(struct reshard *r, struct pd_error *err)
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
    r->rewrite.codec = codec_of_source(r);
    return pd_ckpt_rewrite_codec(r->options->compression, &r->rewrite.codec, err);
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

/* After reading the source failed with `st` and *err: selects a copy in another tier. PD_OK: that is the source now. */
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

/* Checks before anything is written. */
static pd_status check_target(const struct reshard *r, struct pd_error *err)
{
    const char *path = r->options->paths[1];
    struct pd_ckpt_place target;
    struct stat st;
    if (stat(path, &st) != 0) return PD_OK; /* it will be created */
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
    PD_TRY(pd_ckpt_target_open(r->source.vfs, r->options->paths[1], &r->rewrite.target, err));
    return check_entries(r, &r->rewrite.target.place, err); /* opening it may have completed a killed save */
}

/* ---- the work ---- */

/* Uses as many threads as there are cores, within a rewrite's memory. */
static pd_status ckpt_reshard_run(struct pd_ckpt_rewrite *w, struct pd_import_request *request, struct pd_error *err)
{
    if (!w->codec.pool)
        PD_TRY(pd_thread_pool_new((uint32_t)pd_min_u64(pd_cpu_cores(), COMPRESSORS_MAX), &w->codec.pool, err));
    request->codec = w->codec;
    request->target = w->target.place.store;
    return (request->ours ? pd_reshard : pd_import)(w->target.place.vfs, request, &w->report, err);
}

pd_status pd_ckpt_rewrite(struct pd_ckpt_rewrite *w, struct pd_import_request request, struct pd_error *err)
{
    struct pd_shown_progress progress;
    struct pd_arena *arena = NULL;
    const uint64_t bytes = request.ours ? PD_RESHARD_BUFFER_BYTES : PD_IMPORT_BUFFER_BYTES;
    const struct pd_memory_plan memory = {.bytes = {[PD_MEMORY_BUFFERS] = bytes}};
    PD_TRY(pd_arena_new(&memory, &arena, err));
    request.buffers = pd_arena_take(arena, PD_MEMORY_BUFFERS, bytes);
    request.progress = pd_shown_progress_start(&progress);
    request.context = &progress;
    const pd_status st = ckpt_reshard_run(w, &request, err);
    pd_shown_progress_end(&progress);
    w->seconds = pd_clock_seconds_since(progress.start_ns);
    pd_arena_free(arena);
    return st;
}

pd_status pd_ckpt_rewrite_codec(const char *text, struct pd_shard_codec *codec, struct pd_error *err)
{
    if (!text || !pd_shard_codec_parse(text, codec, err)) return PD_OK;
    PD_FAIL(err, PD_USAGE, "--compression=%s: expected none, or zstd:1 to zstd:%d", text, PD_SHARD_LEVEL_MAX);
}

static pd_status rewrite(struct reshard *r, struct pd_error *err)
{
    const struct pd_import_request request = {.source = r->directory,
                                              .ours = &r->commit,
                                              .tensors = &r->model->tensors,
                                              .layout = &r->laid_out.layout,
                                              .should_stop = pd_signals_say_leave};
    return pd_ckpt_rewrite(&r->rewrite, request, err);
}

/* Tries the copies in all tiers until one is good. */
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

pd_status pd_ckpt_rewrite_print(const struct pd_ckpt_rewrite *w, const char *format, const struct pd_layout *l, bool is_json,
                                struct pd_error *err)
{
    const struct pd_import_report *n = &w->report;
    const struct pd_store_entry *entry = pd_ckpt_target_written(&w->target);
    char path[4096], packed[16] = "none";
    struct rusage usage;
    struct pd_json_writer json;
    if (w->codec.codec != PD_CODEC_NONE) snprintf(packed, sizeof packed, "zstd:%d", w->codec.level);
    pd_store_entry_path(w->target.place.store, entry, path);
    const bool is_ours = strcmp(format, pd_format_perdure.name) == 0;
    if (!is_json) {
        printf("%s: step %" PRIu64 "%s%s, under dp %u, tp %u, pp %u, sp %u, %s in %s, compression %s, %.1f s\n", path,
               entry->step, is_ours ? "" : " from ", is_ours ? "" : format, l->dp, l->tp, l->pp, l->sp,
               pd_text_bytes(entry->bytes).text, pd_counted(n->shards, "shard").text, packed, w->seconds);
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
    pd_ckpt_json_layout(&json, l);
    return pd_output_json(&json, err);
}

pd_status pd_ckpt_reshard(const struct pd_ckpt_options *options, struct pd_error *err)
{
    struct reshard r = {.options = options};
    if (!options->layout) PD_FAIL(err, PD_USAGE, "choose a layout: --layout=dp=4,tp=2; see perdure ckpt reshard --help");
    PD_TRY(pd_fault_configure_env(err));
    PD_TRY(pd_signals_install(err));
    pd_status st = open_source(&r, err);
    if (!st) st = ckpt_reshard_lay_out(&r, err);
    if (!st) st = choose_codec(&r, err);
    if (!st) st = check_target(&r, err);
    if (!st) st = open_target(&r, err);
    if (!st) st = rewrite_any(&r, err);
    if (!st) st = pd_ckpt_rewrite_print(&r.rewrite, "perdure", &r.laid_out.layout, options->json, err);
    pd_thread_pool_free(r.rewrite.codec.pool);
    pd_model_free(r.model);
    pd_config_deinit(&r.config);
    pd_commit_deinit(&r.commit);
    st = pd_ckpt_target_close(&r.rewrite.target, st, err);
    pd_ckpt_place_close(&r.source);
    return st;
}
