/* Saving tensors of any names. It saves as a run does (ckpt/store: prepare, commit), with shards that list their boxes.
 *
 * What does not change from save to save, the shard's plan and the index, is kept: a training program saves the same
 * tensors again and again. */
#include "tools/library/writer.h"
#include "ckpt/base/checked.h"
#include "ckpt/base/cpu.h"
#include "ckpt/base/fault.h"
#include "ckpt/store/store.h"
#include "resharder/catalog/model_directory.h"
#include "tools/library/group.h"
#include "tools/library/handle.h"
#include "tools/library/listed.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define BUFFER_BYTES (UINT64_C(32) << 20)
#define THREADS_MAX 8u

struct perdure_writer {
    struct pd_library_group theirs; /* of a caller of perdure.h */
    struct pd_group *group;
    struct pd_vfs *vfs, *own_vfs; /* own_vfs: made here, or NULL */
    struct pd_store *store;
    struct pd_thread_pool *pool;
    struct pd_shard_codec codec;
    void *buffers;             /* (BUFFER_BYTES) */
    bool removes;              /* older checkpoints */
    struct pd_identity newest; /* of the checkpoints there; the same on every rank */
    bool has_newest;
    /* Of the tensors saved last. */
    struct pd_listed listed;
    struct pd_shard_writer *plan; /* NULL: none */
    struct pd_listed_whole whole; /* of the root */
};

/* ---- opening ---- */

/* The newest checkpoint of `store` decides whose checkpoints these are. Nothing changes if it has none. */
static pd_status adopt_newest(struct perdure_writer *w, struct pd_store *store, const char *place, struct pd_error *err)
{
    struct pd_commit commit = {0};
    if (!pd_store_count(store)) {
        if (!pd_store_unusable_count(store)) return PD_OK;
        PD_FAIL(err, PD_CORRUPT, "%s holds checkpoints, and none is whole: %s; look with perdure ckpt verify %s", place,
                pd_store_unusable_at(store, 0)->cause, place);
    }
    PD_TRY(pd_store_read_commit(store, pd_store_entry_at(store, 0), &commit, err));
    const bool is_listed = commit.state.layout.is_listed;
    w->newest = commit.state.identity;
    w->has_newest = true;
    pd_commit_deinit(&commit);
    if (is_listed) return PD_OK;
    PD_FAIL(err, PD_INVALID, "%s holds the checkpoints of a run of perdure; name another place", place);
}

/* Collective. */
static pd_status adopt_copies(struct perdure_writer *w, const char *place, struct pd_error *err)
{
    static const struct pd_store_options quiet = {.quiet = true};
    struct pd_store *store = NULL;
    pd_status st = pd_store_open(w->vfs, place, &quiet, w->group, &store, err);
    if (st == PD_NOT_FOUND) return PD_OK; /* nothing has been copied there */
    PD_TRY(st);
    st = adopt_newest(w, store, place, err);
    pd_store_close(store);
    return pd_group_agree(w->group, st, err);
}

static pd_status adopt(struct perdure_writer *w, const char *directory, const char *continues, struct pd_error *err)
{
    PD_TRY(pd_group_agree(w->group, adopt_newest(w, w->store, directory, err), err));
    if (!w->has_newest && continues) PD_TRY(adopt_copies(w, continues, err));
    if (!w->has_newest && getrandom(w->newest.run_id, sizeof w->newest.run_id, 0) < 0)
        PD_FAIL(err, PD_IO, "%s: the system gives no random number for a new run; try again", directory);
    return PD_OK;
}

static pd_status open_store(struct perdure_writer *w, const char *directory, const struct perdure_writer_options *options,
                            struct pd_error *err)
{
    struct pd_group *group = w->group;
    const struct pd_store_options how = {.writable = true,
                                         .keep_last = options->keep_last ? options->keep_last : UINT32_MAX,
                                         .keep_every = options->keep_every,
                                         .quarantine_bytes_max = UINT64_MAX,
                                         .leaves_nothing = group->size == 1};
    pd_status st = pd_vfs_is_remote(directory)
                       ? pd_error_set(err, PD_UNSUPPORTED, PD_WHERE, 0,
                                      "%s: a save goes to a disk first; name a directory, and copy from there", directory)
                       : pd_formats_explain_above(pd_vfs_mkdir(w->vfs, directory, err), directory, err);
    if (st == PD_EXISTS && !pd_formats_is_directory(w->vfs, directory))
        st = pd_error_set(err, PD_INVALID, PD_WHERE, 0, "%s is not a directory; name one for checkpoints", directory);
    PD_TRY(pd_group_agree(group, st == PD_EXISTS ? PD_OK : st, err));
    PD_TRY(pd_store_open(w->vfs, directory, &how, group, &w->store, err));
    PD_TRY(pd_group_agree(group, adopt(w, directory, options->continues, err), err));
    return pd_group_broadcast(group, 0, &w->newest, sizeof w->newest, err); /* a new run's number is rank 0's */
}

static pd_status prepare_writer(struct perdure_writer *w, const char *directory,
                                const struct perdure_writer_options *options, struct pd_error *err)
{
    if (!w->vfs) PD_TRY(pd_vfs_new_auto(&w->own_vfs, err));
    if (!w->vfs) w->vfs = w->own_vfs;
    if (options->compression && pd_shard_codec_parse(options->compression, &w->codec, err))
        PD_FAIL(err, PD_INVALID, "compression is \"%s\"; expected none, or zstd:1 to zstd:%d", options->compression,
                PD_SHARD_LEVEL_MAX);
    if (w->codec.codec != PD_CODEC_NONE || pd_vfs_is_in_memory(w->vfs, directory)) {
        const uint32_t threads = options->threads ? options->threads : (uint32_t)pd_min_u64(pd_cpu_cores(), THREADS_MAX);
        PD_TRY(pd_thread_pool_new(threads, &w->pool, err));
        w->codec.pool = w->pool;
    }
    w->removes = options->keep_last != 0;
    w->buffers = aligned_alloc(PD_VFS_ALIGN, BUFFER_BYTES);
    return PD_ALLOCATED(w->buffers, err, "no memory for %u MiB of buffers", (unsigned)(BUFFER_BYTES >> 20));
}

static pd_status open_writer(struct perdure_writer *w, const char *directory, const struct perdure_writer_options *options,
                             struct pd_error *err)
{
    PD_TRY(pd_group_agree(w->group, prepare_writer(w, directory, options, err), err));
    return open_store(w, directory, options, err);
}

pd_status pd_writer_open(struct pd_vfs *vfs, struct pd_group *group, const char *directory,
                         const struct perdure_writer_options *options, struct perdure_writer **ret_writer,
                         struct pd_error *err)
{
    struct perdure_writer *w = calloc(1, sizeof *w);
    pd_status st = PD_ALLOCATED(w, err, "no memory for a writer");
    if (group) st = pd_group_agree(group, st, err);
    if (st) {
        free(w);
        return st;
    }
    w->vfs = vfs;
    w->group = group ? group : &w->theirs.group;
    if (!group) st = pd_library_group_init(&w->theirs, NULL, err);
    if (!st) st = open_writer(w, directory, options, err);
    if (st)
        perdure_writer_close(w);
    else
        *ret_writer = w;
    return st;
}

enum perdure_status perdure_writer_open(const char *directory, const struct perdure_writer_options *options,
                                        const struct perdure_group *group, struct perdure_writer **ret_writer,
                                        struct perdure_error *err)
{
    struct perdure_writer_options mine = PERDURE_WRITER_OPTIONS;
    struct pd_error own = {0};
    pd_library_begin();
    pd_library_options(&mine, sizeof mine, options, options ? options->size : 0);
    struct perdure_writer *w = calloc(1, sizeof *w);
    pd_status st = PD_ALLOCATED(w, &own, "no memory for a writer");
    if (!st) {
        w->group = &w->theirs.group;
        st = pd_library_group_init(&w->theirs, group, &own);
    }
    if (!st) st = open_writer(w, directory, &mine, &own);
    if (st)
        perdure_writer_close(w);
    else
        *ret_writer = w;
    return pd_library_end(st, &own, err);
}

static void forget_plan(struct perdure_writer *w)
{
    pd_shard_writer_free(w->plan);
    w->plan = NULL;
    pd_listed_deinit(&w->listed);
    if (w->store) pd_store_set_index(w->store, NULL, 0);
    pd_listed_whole_deinit(&w->whole);
}

void perdure_writer_close(struct perdure_writer *w)
{
    if (!w) return;
    forget_plan(w);
    pd_store_close(w->store);
    pd_thread_pool_free(w->pool);
    pd_vfs_free(w->own_vfs);
    free(w->buffers);
    free(w);
}

/* ---- saving ---- */

/* Plans anew if any rank's tensors differ from those that it saved last. Takes *listed. */
static pd_status plan_save(struct perdure_writer *w, struct pd_listed *listed, struct pd_error *err)
{
    struct pd_group *group = w->group;
    uint32_t is_new = !w->plan || w->listed.digest != listed->digest, *all = NULL;
    PD_TRY(pd_group_gather_all(group, &is_new, sizeof is_new, (void **)&all, err));
    for (uint32_t r = 0; r < group->size; r++)
        is_new |= all[r];
    free(all);
    if (!is_new) return PD_OK;
    forget_plan(w);
    w->listed = *listed;
    *listed = (struct pd_listed){0};
    PD_TRY(pd_listed_unite(group, &w->listed, &w->whole, err));
    if (w->whole.index) pd_store_set_index(w->store, w->whole.index, w->whole.index_bytes);
    return pd_group_agree(group,
                          pd_shard_writer_new(w->vfs, &w->listed.tensors, w->listed.boxes, w->listed.count, w->buffers,
                                              BUFFER_BYTES, &w->codec, &w->plan, err),
                          err);
}

/* A program that goes back to an earlier step rewrites history: its checkpoints are newer than checkpoints of later steps. */
static struct pd_identity next_identity(const struct perdure_writer *w, uint64_t step)
{
    struct pd_identity identity = w->newest;
    if (w->has_newest && step <= w->newest.step) identity.lineage++;
    identity.step = step;
    return identity;
}

static void describe_run(const struct perdure_writer *w, const struct perdure_save *save, struct pd_run_state *ret)
{
    static char nothing[] = "";
    *ret = (struct pd_run_state){.updates = save->step,
                                 .loss_scale = 1,
                                 .last_loss = NAN,
                                 .best_validation_loss = NAN,
                                 .tensor_count = w->whole.tensor_count,
                                 .parameter_count = w->whole.parameter_count,
                                 .config = save->metadata ? (char *)(uintptr_t)save->metadata : nothing,
                                 .environment = w->whole.shapes ? w->whole.shapes : nothing};
    pd_layout_init_listed(&ret->layout, w->group->size);
    snprintf(ret->created_by, sizeof ret->created_by, "%s",
             save->created_by ? save->created_by : "libperdure " PERDURE_VERSION);
}

/* Whether any rank's caller wants to stop. */
static pd_status writer_ask(struct perdure_writer *w, const struct perdure_save *save, uint64_t done, uint64_t total,
                            struct pd_error *err)
{
    return pd_group_agree(w->group, pd_library_progress(save->watch, done, total, err), err);
}

struct writing {
    const struct perdure_watch *watch;
    uint64_t total;
};

static pd_status writer_wrote(void *context, uint64_t bytes, struct pd_error *err)
{
    const struct writing *writing = context;
    return pd_library_progress(writing->watch, bytes, writing->total, err);
}

static pd_status write_shard(struct perdure_writer *w, const struct perdure_save *save, const char *path,
                             const struct pd_identity *identity, struct pd_shard_summary *ret, struct pd_error *err)
{
    const void **data = calloc((size_t)w->listed.count + 1, sizeof *data);
    if (!data) PD_FAIL(err, PD_NO_MEMORY, "no memory for %u pieces", w->listed.count);
    uint32_t boxes = 0;
    for (uint64_t i = 0; i < save->piece_count; i++)
        if (pd_listed_elements(&save->pieces[i])) data[boxes++] = save->pieces[i].data;
    PD_CHECK(boxes == w->listed.count);
    struct writing writing = {save->watch, pd_shard_writer_file_bytes(w->plan)};
    pd_shard_writer_on_written(w->plan, writer_wrote, &writing);
    const pd_status st = pd_shard_write(w->plan, path, identity, w->group->rank, data, ret, err);
    pd_shard_writer_on_written(w->plan, NULL, NULL);
    free(data);
    return st;
}

static pd_status save_step(struct perdure_writer *w, const struct perdure_save *save, struct pd_error *err)
{
    struct pd_group *group = w->group;
    struct pd_shard_summary summary = {0};
    struct pd_run_state state;
    struct pd_error own = {0};
    char path[4096];
    const struct pd_identity identity = next_identity(w, save->step);
    const uint64_t bytes = pd_shard_writer_file_bytes(w->plan);
    PD_TRY(writer_ask(w, save, 0, bytes, err));
    PD_TRY(pd_store_begin(w->store, &identity, path, err));
    pd_status st = write_shard(w, save, path, &identity, &summary, &own);
    if (!st) st = pd_library_progress(save->watch, bytes, bytes, &own);
    pd_fault_point("library.save.written");
    describe_run(w, save, &state);
    if (st) (void)pd_error_pass(err, st, &own);
    PD_TRY(pd_store_commit(w->store, st, &summary, &state, err));
    w->newest = identity;
    w->has_newest = true;
    if (!w->removes) return PD_OK;
    st = pd_store_prune(w->store, &own);
    const struct pd_notes notes = pd_library_notes(save->watch);
    if (st && group->rank == 0)
        pd_note(&notes, "step %" PRIu64 " is saved, and older ones stay: %s", save->step, own.message);
    return st == PD_PEER_LOST ? pd_error_pass(err, st, &own) : PD_OK;
}

/* What a rank can find wrong alone. */
static pd_status check_save(const struct perdure_save *save, struct pd_listed *ret_listed, struct pd_error *err)
{
    if (save->step > UINT64_C(1000000000000000))
        PD_FAIL(err, PD_INVALID, "step %" PRIu64 " is too large; use one up to 10^15", save->step);
    for (uint64_t i = 0; i < save->piece_count; i++)
        if (!save->pieces[i].name) PD_FAIL(err, PD_INVALID, "piece %" PRIu64 " has no name; give it one", i);
    PD_TRY(pd_listed_init(save->pieces, save->piece_count, ret_listed, err));
    for (uint64_t i = 0; i < save->piece_count; i++)
        if (!save->pieces[i].data && pd_listed_elements(&save->pieces[i]))
            PD_FAIL(err, PD_INVALID, "tensor %s: a piece has no data; give it", save->pieces[i].name);
    return PD_OK;
}

/* Ranks that save different steps would seal a checkpoint of both. */
static pd_status check_step(struct perdure_writer *w, uint64_t step, struct pd_error *err)
{
    uint64_t root = step;
    PD_TRY(pd_group_broadcast(w->group, 0, &root, sizeof root, err));
    pd_status st = PD_OK;
    if (root != step)
        st = pd_error_set(err, PD_INVALID, PD_WHERE, 0,
                          "it saves step %" PRIu64 " where rank 0 saves step %" PRIu64 "; give one", step, root);
    return pd_group_agree(w->group, st, err);
}

pd_status pd_writer_save(struct perdure_writer *w, const struct perdure_save *save, struct pd_error *err)
{
    struct pd_listed listed = {0};
    pd_status st = pd_group_agree(w->group, check_save(save, &listed, err), err);
    if (!st) st = check_step(w, save->step, err);
    if (!st) st = plan_save(w, &listed, err);
    pd_listed_deinit(&listed);
    if (!st) return save_step(w, save, err);
    if (!w->plan) forget_plan(w); /* a half-made one */
    return st;
}

enum perdure_status perdure_save(struct perdure_writer *w, const struct perdure_save *save, struct perdure_error *err)
{
    struct perdure_save mine = PERDURE_SAVE;
    struct pd_error own = {0};
    pd_library_options(&mine, sizeof mine, save, save->size);
    return pd_library_end(pd_writer_save(w, &mine, &own), &own, err);
}
