/* Rewrites a checkpoint under another layout. Also the code shared with import. */
#include "resharder/convert/reshard.h"
#include "ckpt/base/arena.h"
#include "ckpt/base/checked.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/cpu.h"
#include "ckpt/shard/decompress.h"
#include "tools/library/convert.h"
#include "tools/library/layout.h"
#include "trainer/model/model.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define COMPRESSORS_MAX 4

struct reshard {
    const struct pd_convert *options;
    const struct pd_convert_watch *watch;
    struct pd_ckpt_place source;
    struct pd_ckpt_rewrite rewrite;
    const struct pd_store_entry *entry; /* of the source */
    char directory[4096];               /* of the source */
    struct pd_commit commit;
    struct pd_config config;
    struct pd_model *model;
    struct pd_laid_out laid_out;
};

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
    PD_TRY(pd_ckpt_place_open(r->options->source, NULL, r->watch->notes, &r->source, err));
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
    const char *path = r->options->destination;
    struct pd_ckpt_place target;
    struct stat st;
    if (stat(path, &st) != 0) return PD_OK; /* it will be created */
    if (!S_ISDIR(st.st_mode)) PD_FAIL(err, PD_INVALID, "%s is not a directory; name one to put the new checkpoint in", path);
    PD_TRY(pd_ckpt_place_open(path, NULL, r->watch->notes, &target, err));
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
    PD_TRY(pd_ckpt_target_open(r->source.vfs, r->options->destination, r->watch->notes, &r->rewrite.target, err));
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

pd_status pd_ckpt_rewrite(struct pd_ckpt_rewrite *w, struct pd_import_request request, const struct pd_convert_watch *watch,
                          struct pd_error *err)
{
    const uint64_t start_ns = pd_clock_monotonic_ns(NULL);
    struct pd_arena *arena = NULL;
    const uint64_t bytes = request.ours ? PD_RESHARD_BUFFER_BYTES : PD_IMPORT_BUFFER_BYTES;
    const struct pd_memory_plan memory = {.bytes = {[PD_MEMORY_BUFFERS] = bytes}};
    PD_TRY(pd_arena_new(&memory, &arena, err));
    request.buffers = pd_arena_take(arena, PD_MEMORY_BUFFERS, bytes);
    request.should_stop = watch->should_stop;
    request.progress = watch->progress;
    request.context = watch->context;
    if (watch->begin) watch->begin(watch->context);
    const pd_status st = ckpt_reshard_run(w, &request, err);
    if (watch->end) watch->end(watch->context);
    w->seconds = pd_clock_seconds_since(start_ns);
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
    const struct pd_import_request request = {
        .source = r->directory, .ours = &r->commit, .tensors = &r->model->tensors, .layout = &r->laid_out.layout};
    return pd_ckpt_rewrite(&r->rewrite, request, r->watch, err);
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

pd_status pd_convert_reshard(const struct pd_convert *options, const struct pd_convert_watch *watch, struct pd_error *err)
{
    struct reshard r = {.options = options, .watch = watch};
    if (!options->layout) PD_FAIL(err, PD_USAGE, "choose a layout: --layout=dp=4,tp=2; see perdure ckpt reshard --help");
    pd_status st = open_source(&r, err);
    if (!st) st = pd_ckpt_lay_out(&r.commit, options->layout, &r.config, &r.model, &r.laid_out, err);
    if (!st) st = choose_codec(&r, err);
    if (!st) st = check_target(&r, err);
    if (!st) st = open_target(&r, err);
    if (!st) st = rewrite_any(&r, err);
    const struct pd_rewritten result = {.rewrite = &r.rewrite, .format = "perdure", .layout = &r.laid_out.layout};
    if (!st && watch->rewritten) st = watch->rewritten(watch->context, &result, err);
    pd_thread_pool_free(r.rewrite.codec.pool);
    pd_model_free(r.model);
    pd_config_deinit(&r.config);
    pd_commit_deinit(&r.commit);
    st = pd_ckpt_target_close(&r.rewrite.target, st, err);
    pd_ckpt_place_close(&r.source);
    return st;
}
