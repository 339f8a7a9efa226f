/* A checkpoint copied into a bucket, by the functions that a run's tier uses. */
#include "tools/library/upload.h"
#include "ckpt/objects/bucket_store.h"
#include "ckpt/store/paths.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct upload {
    const struct pd_ckpt_upload *options;
    struct pd_group *group;
    char source[4096]; /* the checkpoint's directory */
    struct pd_vfs *vfs;
    struct pd_commit commit;
    struct pd_bucket_store *bucket;
    uint64_t total; /* bytes that this rank sends */
    _Atomic uint64_t sent;
    _Atomic bool stop;
    void *memory;
    bool was_there; /* the same step of the same history */
};

static void upload_wait(void *context)
{
    struct upload *u = context;
    const struct pd_ckpt_upload *o = u->options;
    if (o->progress && o->progress(o->context, atomic_load(&u->sent), u->total)) atomic_store(&u->stop, true);
}

/* The root says which step it is: another rank may see a newer one. */
static pd_status read_source(struct upload *u, uint64_t step, struct pd_error *err)
{
    struct pd_ckpt_place place;
    const struct pd_store_entry *entry = NULL;
    PD_TRY(pd_ckpt_place_open_quiet(u->options->source, u->options->notes, &place, err));
    pd_status st = pd_ckpt_place_choose(&place, step, &entry, err);
    if (!st) st = pd_store_read_commit(place.store, entry, &u->commit, err);
    if (!st) pd_store_entry_path(place.store, entry, u->source);
    pd_ckpt_place_close(&place);
    for (uint32_t i = u->group->rank; !st && i < u->commit.shard_count; i += u->group->size)
        u->total += u->commit.shards[i].file_bytes;
    return st;
}

static pd_status prepare(struct upload *u, struct pd_error *err)
{
    struct pd_identity root;
    const bool is_root = u->group->rank == 0;
    PD_TRY(pd_group_agree(u->group, is_root ? read_source(u, u->options->step, err) : PD_OK, err));
    root = u->commit.state.identity;
    PD_TRY(pd_group_broadcast(u->group, 0, &root, sizeof root, err));
    pd_status st = is_root ? PD_OK : read_source(u, root.step, err);
    if (!st && memcmp(&root, &u->commit.state.identity, sizeof root) != 0)
        st = pd_error_set(err, PD_INVALID, PD_WHERE, 0,
                          "%s is another checkpoint than rank 0 has; name the same one on every rank", u->source);
    if (!st) st = pd_vfs_new_auto(&u->vfs, err);
    if (!st) {
        const uint64_t bytes = u->options->memory / PD_VFS_ALIGN * PD_VFS_ALIGN;
        u->memory = bytes < PD_BUCKET_STORE_MEMORY_LEAST ? NULL : aligned_alloc(PD_VFS_ALIGN, bytes);
        st = PD_ALLOCATED(u->memory, err, "send buffers of %" PRIu64 " bytes; give 8 MiB or more", bytes);
    }
    return pd_group_agree(u->group, st, err);
}

/* What is there decides whose prefix it is, and what retention may delete. */
static pd_status look_at(struct upload *u, struct pd_store *store, struct pd_error *err)
{
    struct pd_commit there;
    const struct pd_identity *mine = &u->commit.state.identity;
    PD_TRY(pd_bucket_store_take(u->bucket, store, err));
    for (uint32_t i = 0; i < pd_store_count(store); i++) {
        const struct pd_store_entry *entry = pd_store_entry_at(store, i);
        u->was_there |= entry->step == mine->step && entry->lineage == mine->lineage;
    }
    if (!pd_store_count(store)) return PD_OK;
    PD_TRY(pd_store_read_commit(store, pd_store_entry_at(store, 0), &there, err));
    const bool is_ours = memcmp(there.state.identity.run_id, mine->run_id, sizeof mine->run_id) == 0;
    pd_commit_deinit(&there);
    if (is_ours) return PD_OK;
    PD_FAIL(err, PD_INVALID, "%s holds checkpoints of another run than %s; name another prefix", u->options->bucket,
            u->source);
}

static pd_status upload_look(struct upload *u, struct pd_error *err)
{
    static const struct pd_store_options quiet = {.quiet = true};
    struct pd_store *store = NULL;
    PD_TRY(pd_store_open(u->vfs, u->options->bucket, &quiet, u->group, &store, err));
    const pd_status st = look_at(u, store, err);
    pd_store_close(store);
    return pd_group_agree(u->group, st, err);
}

static pd_status upload_send(struct upload *u, struct pd_error *err)
{
    const struct pd_ckpt_upload *o = u->options;
    char name[PD_STORE_NAME_MAX];
    const struct pd_bucket_store_options options = {.keep_last = o->keep_last ? o->keep_last : UINT32_MAX,
                                                    .keep_every = o->keep_every,
                                                    .memory = u->memory,
                                                    .memory_bytes = o->memory / PD_VFS_ALIGN * PD_VFS_ALIGN,
                                                    .bytes_per_second = o->bytes_per_second,
                                                    .sent = &u->sent,
                                                    .stop = &u->stop,
                                                    .wait = upload_wait,
                                                    .wait_context = u};
    PD_TRY(pd_bucket_store_open(o->bucket, &options, u->group, &u->bucket, err));
    PD_TRY(upload_look(u, err));
    if (!u->was_there) PD_TRY(pd_bucket_store_save(u->bucket, u->vfs, u->source, &u->commit, name, err));
    return o->keep_last ? pd_bucket_store_prune(u->bucket, err) : PD_OK;
}

pd_status pd_ckpt_upload(const struct pd_ckpt_upload *options, struct pd_group *group, struct pd_ckpt_uploaded *ret_uploaded,
                         struct pd_error *err)
{
    struct upload u = {.options = options, .group = group};
    pd_status st = PD_OK;
    if (!options->source || !pd_vfs_is_remote(options->bucket ? options->bucket : ""))
        st = pd_error_set(err, PD_INVALID, PD_WHERE, 0, "%s does not name a bucket; write s3://bucket/prefix",
                          options->bucket ? options->bucket : "\"\"");
    st = pd_group_agree(group, st, err);
    if (!st) st = prepare(&u, err);
    if (!st) st = upload_send(&u, err);
    if (!st) *ret_uploaded = (struct pd_ckpt_uploaded){u.commit.state.identity.step, atomic_load(&u.sent), u.was_there};
    pd_bucket_store_close(u.bucket);
    pd_commit_deinit(&u.commit);
    pd_vfs_free(u.vfs);
    free(u.memory);
    return st;
}
