#include "trainer/save.h"

#include "ckpt/base/log.h"
#include "ckpt/index.h"
#include "resharder/layout.h"

#include <stdio.h>
#include <stdlib.h>

struct pd_saver {
    struct pd_store *store;
    struct pd_group *group;
    struct pd_engine *engine;
    struct pd_shard_box *boxes;
    uint32_t box_count;
    const void **data; /* (box_count) */
    struct pd_shard_writer *writer;
    void *index;
};

/* Whole tensors for people: every rank's boxes, from the layout function alone. */
static pd_status build_index(struct pd_saver *s, struct pd_error *err)
{
    const uint32_t world = pd_layout_world(&s->engine->grid.layout);
    const struct pd_tensor_table *tensors = &s->engine->options.model->tensors;
    struct pd_index_source *sources = calloc(world, sizeof *sources);
    char(*names)[32] = calloc(world, sizeof *names);
    uint64_t bytes = 0;
    pd_status st =
        sources && names ? PD_OK : pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "index: no memory for %u shards", world);
    for (uint32_t r = 0; !st && r < world; r++) {
        struct pd_shard_box *boxes = NULL;
        st = pd_layout_shard_boxes(&s->engine->grid.layout, tensors, r, &boxes, &sources[r].box_count, err);
        snprintf(names[r], sizeof names[r], "shard-%05u.h5", r);
        sources[r].file_name = names[r];
        sources[r].boxes = boxes;
    }
    if (!st) st = pd_index_build(tensors, sources, world, &s->index, &bytes, err);
    if (!st) pd_store_set_index(s->store, s->index, bytes);
    for (uint32_t r = 0; sources && r < world; r++)
        free((void *)sources[r].boxes);
    free(sources);
    free(names);
    return st;
}

static pd_status prepare(struct pd_saver *s, struct pd_door *door, struct pd_error *err)
{
    const struct pd_tensor_table *tensors = &s->engine->options.model->tensors;
    PD_TRY(pd_layout_shard_boxes(&s->engine->grid.layout, tensors, s->group->rank, &s->boxes, &s->box_count, err));
    s->data = calloc(s->box_count + 1ull, sizeof *s->data);
    if (!s->data) PD_FAIL(err, PD_NO_MEMORY, "save: no memory for %u boxes", s->box_count);
    for (uint32_t b = 0, number = 0; b < s->box_count; b++) {
        const struct pd_shard_box *box = &s->boxes[b];
        bool is_first = b == 0 || box[-1].tensor != box->tensor || box[-1].kind != box->kind;
        number = is_first ? 0 : number + 1;
        s->data[b] = pd_engine_box_data(s->engine, box->tensor, box->kind, number);
    }
    PD_TRY(pd_shard_writer_new(door, tensors, s->boxes, s->box_count, s->engine->io_buffers, s->engine->io_bytes, &s->writer,
                               err));
    return s->group->rank == 0 || s->group->host_count > 1 ? build_index(s, err) : PD_OK;
}

pd_status pd_saver_new(struct pd_door *door, struct pd_store *store, struct pd_group *group, struct pd_engine *engine,
                       struct pd_saver **ret_saver, struct pd_error *err)
{
    struct pd_saver *s = calloc(1, sizeof *s);
    if (!s) PD_FAIL(err, PD_NO_MEMORY, "save: no memory");
    s->store = store;
    s->group = group;
    s->engine = engine;
    pd_status st = prepare(s, door, err);
    if (st) {
        pd_saver_free(s);
        return st;
    }
    *ret_saver = s;
    return PD_OK;
}

void pd_saver_free(struct pd_saver *s)
{
    if (!s) return;
    pd_shard_writer_free(s->writer);
    free(s->boxes);
    free(s->data);
    free(s->index);
    free(s);
}

uint64_t pd_saver_file_bytes(const struct pd_saver *s)
{
    return pd_shard_writer_file_bytes(s->writer);
}

pd_status pd_saver_save(struct pd_saver *s, const struct pd_run_state *state, struct pd_error *err)
{
    char path[4096];
    struct pd_shard_summary summary = {0};
    PD_TRY(pd_store_begin(s->store, &state->identity, path, err));
    pd_status written = pd_shard_write(s->writer, path, &state->identity, s->group->rank, s->data, &summary, err);
    summary.host = s->group->host;
    PD_TRY(pd_store_commit(s->store, written, &summary, state, err));
    pd_status pruned = pd_store_prune(s->store, err);
    if (!pruned || pruned == PD_PEER_LOST || pruned == PD_BUSY) return pruned;
    if (s->group->rank == 0)
        pd_log(PD_LOG_WARN, "save", "step %llu is saved, but older checkpoints could not be removed: %s",
               (unsigned long long)state->identity.step, err ? err->message : "");
    return PD_OK;
}
