/* Ranks of store_cluster.h whose state lies in generations: each step reads the one before, writes the next out of place, and
 * may become a checkpoint. */
#pragma once

#include "tests/helpers/store_cluster.h"

#define GENERATION_BYTES 8192u /* of tensor "w" with its padding */

struct generation {
    struct cluster_rank *rank;
    /* Of this one and of the one before, in turn. */
    struct pd_shard_writer *writers[2];
    struct pd_shard_stream *stream; /* until it is finished */
    unsigned turn;
    uint64_t step;
    uint32_t slot;
    bool is_there, is_bad;
    pd_status finished;
    struct pd_shard_summary summary;
    char path[4096];
};

static inline struct pd_store_options generation_options(void)
{
    struct pd_store_options options = cluster_options();
    options.generations = true;
    return options;
}

static inline pd_status generation_init(struct generation *g, struct cluster_rank *rank, struct pd_error *err)
{
    pd_status st = PD_OK;
    *g = (struct generation){.rank = rank};
    for (unsigned i = 0; i < 2; i++)
        if (st == PD_OK)
            st = pd_shard_writer_new(rank->vfs, &rank->table, rank->boxes, 2, rank->buffers, CLUSTER_BUFFER_BYTES, NULL,
                                     &g->writers[i], err);
    return pd_group_agree(rank->group, st, err);
}

static inline void generation_abort(struct generation *g)
{
    pd_shard_stream_abort(g->stream);
    g->stream = NULL;
}

/* As the end of a process does: nothing is given back to the store. */
static inline void generation_deinit(struct generation *g)
{
    generation_abort(g);
    for (unsigned i = 0; i < 2; i++)
        pd_shard_writer_free(g->writers[i]);
}

/* The state of the current step, read as an update does. */
static inline pd_status generation_read(struct generation *g, struct pd_error *err)
{
    struct cluster_rank *rank = g->rank;
    struct pd_file *file = NULL;
    PD_TRY(pd_file_open(rank->vfs, g->path, PD_OPEN_READ | PD_OPEN_DIRECT, &file, err));
    pd_status st =
        pd_file_read(file, pd_shard_writer_box_offset(g->writers[g->turn], 0), rank->buffers, GENERATION_BYTES, err);
    pd_file_close_readonly(file);
    PD_TRY(st);
    cluster_fill(rank->values, 0, g->step, rank->group->rank);
    if (memcmp(rank->buffers, rank->values, CLUSTER_ROWS * 3 * sizeof *rank->values) != 0)
        PD_FAIL(err, PD_BUG, "rank %u: the state of step %llu was overwritten in %s", rank->group->rank,
                (unsigned long long)g->step, g->path);
    return PD_OK;
}

static inline pd_status generation_fill(struct generation *g, struct pd_shard_stream *stream, uint64_t step,
                                        struct pd_error *err)
{
    struct cluster_rank *rank = g->rank;
    const uint64_t bytes = CLUSTER_ROWS * 3 * sizeof *rank->values;
    cluster_fill(rank->values, 0, step, rank->group->rank);
    memset(rank->buffers, 0, GENERATION_BYTES);
    memcpy(rank->buffers, rank->values, bytes);
    pd_shard_stream_block(stream, 0, 0, rank->values, bytes);
    pd_shard_stream_block(stream, 1, 0, rank->values + CLUSTER_ROWS * 3, CLUSTER_SMALL * sizeof *rank->values);
    return pd_file_write(pd_shard_stream_file(stream), pd_shard_writer_box_offset(g->writers[!g->turn], 0), rank->buffers,
                         GENERATION_BYTES, err);
}

static inline void generation_drop(struct generation *g)
{
    generation_abort(g);
    if (g->is_there) pd_store_generation_release(g->rank->store, g->slot, g->is_bad);
    g->is_there = false;
}

/* The file of the shard; a failure gives it back. */
static inline pd_status generation_write_shard(struct generation *g, uint64_t step, struct generation *next,
                                               struct pd_error *err)
{
    struct cluster_rank *rank = g->rank;
    struct pd_identity identity = cluster_identity(0, step);
    PD_TRY(pd_store_generation_take(rank->store, &next->slot, next->path, err));
    pd_status st = pd_shard_stream_begin(g->writers[!g->turn], next->path, &identity, rank->group->rank, &next->stream, err);
    if (st == PD_OK) st = generation_fill(g, next->stream, step, err);
    if (st == PD_OK) return PD_OK;
    pd_shard_stream_abort(next->stream);
    next->stream = NULL;
    pd_store_generation_release(rank->store, next->slot, true);
    return st;
}

/* The next generation, of this rank alone. A failure leaves the one before as it was, and current. */
static inline pd_status generation_write(struct generation *g, uint64_t step, struct pd_error *err)
{
    struct generation *next = calloc(1, sizeof *next);
    pd_status st = next ? PD_OK : pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory");
    if (st == PD_OK) st = generation_write_shard(g, step, next, err);
    if (st != PD_OK) {
        free(next);
        return st;
    }
    generation_drop(g);
    g->turn = !g->turn;
    g->stream = next->stream;
    g->slot = next->slot;
    memcpy(g->path, next->path, sizeof g->path);
    free(next);
    g->step = step;
    g->is_there = true;
    g->is_bad = false;
    return PD_OK;
}

static inline pd_status generation_finish(struct generation *g, struct pd_error *err)
{
    if (!g->stream && g->finished != PD_OK) PD_FAIL(err, g->finished, "could not be finished before");
    if (!g->stream) return PD_OK;
    g->finished = pd_shard_stream_finish(g->stream, &g->summary, err);
    g->stream = NULL;
    g->is_bad = g->finished != PD_OK;
    return g->finished;
}

/* The current generation becomes a checkpoint; the outcome is the same on every rank. */
static inline pd_status generation_save(struct generation *g, struct pd_error *err)
{
    struct cluster_rank *rank = g->rank;
    struct pd_identity identity = cluster_identity(0, g->step);
    struct pd_run_state state;
    PD_TRY(pd_group_agree(rank->group, generation_finish(g, err), err));
    PD_TRY(pd_store_begin_generation(rank->store, &identity, g->slot, rank->buffers, CLUSTER_BUFFER_BYTES, err));
    cluster_state(rank, &state, 0, g->step);
    return pd_store_commit(rank->store, PD_OK, &g->summary, &state, err);
}

/* A whole step, on every rank: read, write, save, prune. */
static inline pd_status generation_step(struct generation *g, uint64_t step, struct pd_error *err)
{
    pd_status st = g->is_there ? generation_read(g, err) : PD_OK;
    if (st == PD_OK) st = generation_write(g, step, err);
    PD_TRY(pd_group_agree(g->rank->group, st, err));
    PD_TRY(generation_save(g, err));
    return pd_store_prune(g->rank->store, err);
}

/* SIGKILL of every process: what follows in them, such as closing the store, does nothing any more. */
static inline pd_status generation_kill_all(struct cluster_rank *rank, struct pd_error *err)
{
    PD_TRY(pd_group_barrier(rank->group, err));
    for (uint32_t host = 0; rank->group->rank == 0 && host < rank->cluster->hosts; host++)
        pd_simulated_disk_kill(rank->cluster->disk, host);
    return pd_group_barrier(rank->group, err);
}
