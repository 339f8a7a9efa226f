/* The three rows: `memory`, a GPU's `mirror`, and `files`. What all need is the index of whole tensors, which a commit
 * takes over. */
#include "trainer/run/save_source.h"

#include "ckpt/store/index.h"
#include "resharder/layout.h"
#include "trainer/engine/state_files.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct row;

struct pd_save_source {
    const struct row *row;
    struct pd_tiers *tiers;
    struct pd_group *group;
    struct pd_engine *engine;
    void (*on_copied)(void *context);
    void *context;
    struct pd_shard_box *boxes;
    uint32_t box_count;
    const void *
        *data; /* (box_count) boxes in memory: the saver's thread reads them until on_copied, updates write them after */
    /* Writers of each tier; tiers of equal compression share the first one's. With engine->staging, which they write from,
     * they belong to the saver's thread from pd_save_source_new on: its owner is checked whenever it uses them. */
    struct pd_shard_writer *writers[PD_TIERS_MAX];
    struct pd_thread_pool *pool; /* compresses; NULL where nothing does */
    void *index;
};

struct row {
    enum pd_save_order order;
    pd_status (*write)(struct pd_save_source *, const struct pd_identity *, const struct pd_save_shard *, struct pd_store *,
                       uint32_t tier, pd_status *ret_written, struct pd_shard_summary *, struct pd_error *);
    uint64_t (*file_bytes)(const struct pd_save_source *);
};

/* ---- state in memory ---- */

static pd_status memory_write(struct pd_save_source *s, const struct pd_identity *identity,
                              const struct pd_save_shard *shard, struct pd_store *store, uint32_t tier,
                              pd_status *ret_written, struct pd_shard_summary *ret_summary, struct pd_error *err)
{
    char path[4096];
    (void)shard;
    PD_TRY(pd_store_begin(store, identity, path, err));
    *ret_written = pd_shard_write(s->writers[tier], path, identity, s->group->rank, s->data, ret_summary, err);
    return PD_OK;
}

static uint64_t memory_file_bytes(const struct pd_save_source *s)
{
    uint64_t most = 0;
    for (uint32_t tier = 0; tier < pd_tiers_count(s->tiers); tier++) {
        const uint64_t bytes = pd_shard_writer_file_bytes(s->writers[tier]);
        if (bytes > most) most = bytes;
    }
    return most;
}

static const struct row memory = {PD_SAVE_BESIDE, memory_write, memory_file_bytes};
static const struct row mirror = {PD_SAVE_AFTER_COPY, memory_write, memory_file_bytes};

/* ---- state in files ---- */

/* The first tier links the files, which are whole by now; another tier copies them. */
static pd_status files_write(struct pd_save_source *s, const struct pd_identity *identity, const struct pd_save_shard *shard,
                             struct pd_store *store, uint32_t tier, pd_status *ret_written,
                             struct pd_shard_summary *ret_summary, struct pd_error *err)
{
    struct pd_engine *e = s->engine;
    char path[4096];
    *ret_summary = shard->summary;
    *ret_written = PD_OK;
    if (tier == 0) {
        PD_TRY(pd_store_begin_generation(store, identity, shard->slot, e->staging.data, e->staging.bytes, err));
    } else {
        PD_TRY(pd_store_begin(store, identity, path, err));
        *ret_written = pd_state_files_copy(e->state, path, identity, e->staging.data, e->staging.bytes, err);
    }
    s->on_copied(s->context); /* from here on the checkpoint alone decides about the file */
    return PD_OK;
}

static uint64_t files_file_bytes(const struct pd_save_source *s)
{
    return pd_state_files_file_bytes(s->engine->state);
}

static const struct row files = {PD_SAVE_ALONE, files_write, files_file_bytes};

/* ---- opening ---- */

/* Whole tensors for people: every rank's boxes, from the layout function alone. */
static pd_status build_index(struct pd_save_source *s, struct pd_error *err)
{
    const uint32_t shards = pd_layout_world(&s->engine->grid.layout);
    const struct pd_tensor_table *tensors = &s->engine->options.model->tensors;
    struct pd_index_source *sources = calloc(shards, sizeof *sources);
    char(*names)[32] = calloc(shards, sizeof *names);
    uint64_t bytes = 0;
    pd_status st =
        sources && names ? PD_OK : pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "index: no memory for %u shards", shards);
    for (uint32_t r = 0; !st && r < shards; r++) {
        struct pd_shard_box *boxes = NULL;
        st = pd_layout_shard_boxes(&s->engine->grid.layout, tensors, r, &boxes, &sources[r].box_count, err);
        snprintf(names[r], sizeof names[r], "shard-%05u.h5", r);
        sources[r].file_name = names[r];
        sources[r].boxes = boxes;
    }
    if (!st) st = pd_index_build(tensors, sources, shards, &s->index, &bytes, err);
    (void)malloc_trim(0); /* HDF5 took much more than it leaves */
    if (!st) pd_tiers_set_index(s->tiers, s->index, bytes);
    for (uint32_t r = 0; sources && r < shards; r++)
        free((void *)sources[r].boxes);
    free(sources);
    free(names);
    return st;
}

/* Tiers that save the same bytes have one writer. */
static pd_status plan_tier(struct pd_save_source *s, struct pd_vfs *vfs, uint32_t tier, struct pd_error *err)
{
    const struct pd_engine *e = s->engine;
    struct pd_shard_codec codec = *pd_tiers_codec(s->tiers, tier);
    for (uint32_t i = 0; i < tier; i++) {
        const struct pd_shard_codec *other = pd_tiers_codec(s->tiers, i);
        if (other->codec != codec.codec || other->level != codec.level) continue;
        s->writers[tier] = s->writers[i];
        return PD_OK;
    }
    if (codec.codec != PD_CODEC_NONE && !s->pool) PD_TRY(pd_thread_pool_new(e->options.threads, &s->pool, err));
    codec.pool = s->pool;
    PD_TRY(pd_shard_writer_new(vfs, &e->options.model->tensors, s->boxes, s->box_count, e->staging.data, e->staging.bytes,
                               &codec, &s->writers[tier], err));
    pd_shard_writer_on_copied(s->writers[tier], s->on_copied, s->context);
    return PD_OK;
}

static pd_status list_boxes(struct pd_save_source *s, struct pd_error *err)
{
    const struct pd_tensor_table *tensors = &s->engine->options.model->tensors;
    PD_TRY(pd_layout_shard_boxes(&s->engine->grid.layout, tensors, s->group->rank, &s->boxes, &s->box_count, err));
    s->data = calloc(s->box_count + 1ull, sizeof *s->data);
    if (!s->data) PD_FAIL(err, PD_NO_MEMORY, "save: no memory for %u boxes", s->box_count);
    for (uint32_t b = 0, number = 0; b < s->box_count; b++) {
        const struct pd_shard_box *box = &s->boxes[b];
        bool is_first = b == 0 || box[-1].tensor != box->tensor || box[-1].kind != box->kind;
        number = is_first ? 0 : number + 1;
        s->data[b] = pd_state_box(s->engine->state, box->tensor, box->kind, number);
    }
    return PD_OK;
}

static pd_status build(struct pd_save_source *s, struct pd_vfs *vfs, struct pd_error *err)
{
    if (s->row != &files) {
        PD_TRY(list_boxes(s, err));
        for (uint32_t tier = 0; tier < pd_tiers_count(s->tiers); tier++)
            PD_TRY(plan_tier(s, vfs, tier, err));
    }
    /* A leader of a shared directory places it, and leaders are the first ranks of hosts. */
    const struct pd_comm *comm = s->engine->grid.comm;
    return s->group->rank == 0 || (comm && comm->rank_here == 0) ? build_index(s, err) : PD_OK;
}

pd_status pd_save_source_new(struct pd_vfs *vfs, struct pd_tiers *tiers, struct pd_group *group, struct pd_engine *engine,
                             void (*on_copied)(void *context), void *context, struct pd_save_source **ret_source,
                             struct pd_error *err)
{
    struct pd_save_source *s = calloc(1, sizeof *s);
    if (!s) PD_FAIL(err, PD_NO_MEMORY, "save: no memory");
    *s = (struct pd_save_source){
        .tiers = tiers, .group = group, .engine = engine, .on_copied = on_copied, .context = context};
    s->row = pd_state_is_in_files(engine->state) ? &files : pd_state_is_mirrored(engine->state) ? &mirror : &memory;
    const pd_status st = build(s, vfs, err);
    if (st) {
        pd_save_source_free(s);
        return st;
    }
    *ret_source = s;
    return PD_OK;
}

void pd_save_source_free(struct pd_save_source *s)
{
    if (!s) return;
    for (uint32_t i = 0; i < PD_TIERS_MAX; i++) {
        bool is_shared = false;
        for (uint32_t k = 0; k < i; k++)
            is_shared |= s->writers[k] == s->writers[i];
        if (!is_shared) pd_shard_writer_free(s->writers[i]);
    }
    pd_thread_pool_free(s->pool);
    free(s->boxes);
    free(s->data);
    free(s->index);
    free(s);
}

/* ---- the rows, called ---- */

enum pd_save_order pd_save_source_order(const struct pd_save_source *s)
{
    return s->row->order;
}

uint64_t pd_save_source_file_bytes(const struct pd_save_source *s)
{
    return s->row->file_bytes(s);
}

pd_status pd_save_source_begin(struct pd_save_source *s, const struct pd_identity *identity, struct pd_error *err)
{
    return pd_state_save_begin(s->engine->state, identity, err);
}

pd_status pd_save_source_ready(struct pd_save_source *s, struct pd_save_shard *ret_shard, struct pd_error *err)
{
    return pd_state_save_wait(s->engine->state, &ret_shard->summary, &ret_shard->slot, err);
}

pd_status pd_save_source_write(struct pd_save_source *s, const struct pd_identity *identity,
                               const struct pd_save_shard *shard, struct pd_store *store, uint32_t tier,
                               pd_status *ret_written, struct pd_shard_summary *ret_summary, struct pd_error *err)
{
    pd_owner_acquire(&s->engine->staging.owner, "a save");
    const pd_status st = s->row->write(s, identity, shard, store, tier, ret_written, ret_summary, err);
    pd_owner_release(&s->engine->staging.owner, "a save");
    return st;
}

void pd_save_source_make_file(struct pd_save_source *s)
{
    struct pd_tier_report first;
    pd_tiers_report(s->tiers, 0, &first);
    struct pd_store *store = first.is_left_out ? NULL : pd_tiers_store(s->tiers, 0);
    if (!store) return;
    pd_owner_acquire(&s->engine->staging.owner, "a file made ready");
    pd_store_keep_ready(store, s->row->file_bytes(s), s->engine->staging.data, s->engine->staging.bytes);
    pd_owner_release(&s->engine->staging.owner, "a file made ready");
}
