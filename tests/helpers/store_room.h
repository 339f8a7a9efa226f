/* A machine room for tests of the store: hosts with simulated disks, launches on them, checkpoints whose every value is
 * known.
 *
 * A launch is `ranks` threads on `hosts` hosts; each rank has a VFS of its own, as a process has. All results are statuses
 * with a message, because a failed assertion in a rank's thread could not be caught.
 */
#pragma once

#include "ckpt/store/store.h"
#include "tests/helpers/local_group.h"
#include "tests/simulated_disk/simulated_disk.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROOM_ROOT "/ckpt"
#define ROOM_ROWS 500u /* of tensor "w", 3 columns, a rank */
#define ROOM_SMALL 7u  /* elements of tensor "b" a rank */
#define ROOM_VALUES (ROOM_ROWS * 3u + ROOM_SMALL)
#define ROOM_BUFFER_BYTES (4u << 20)
#define ROOM_RANKS_MAX 16u

struct room {
    struct pd_simulated_disk *disk; /* NULL: the real one */
    uint32_t ranks, hosts;
    bool shared;         /* one file system for all hosts */
    const char *root;    /* NULL: ROOM_ROOT */
    uint32_t first_host; /* of the disk's, that launches start on */
};

struct room_rank {
    struct room *room;
    struct pd_group *group;
    struct pd_vfs *vfs;
    struct pd_store *store;
    struct pd_shard_writer *writer;
    struct pd_tensor tensors[2];
    struct pd_tensor_table table;
    struct pd_shard_box boxes[2];
    float values[ROOM_VALUES];
    void *buffers;
    void *context; /* of the script */
};

typedef pd_status room_script(struct room_rank *rank, struct pd_error *err);

/* ---- what is saved ---- */

static uint64_t room_run; /* which run saves; set between launches */

static inline struct pd_identity room_identity(uint64_t lineage, uint64_t step)
{
    return (struct pd_identity){.run_id = {0x1234 + room_run, 0x5678}, .lineage = lineage, .step = step};
}

static inline uint64_t room_mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static inline void room_fill(float *values, uint64_t lineage, uint64_t step, uint32_t rank)
{
    for (uint32_t i = 0; i < ROOM_VALUES; i++)
        values[i] = (float)(room_mix(lineage * 1000003 + step * 10007 + rank * 101 + ((uint64_t)i << 40)) % 1000003);
}

/* Kept for the next launch: thousands of them would otherwise mostly fault pages in. */
static inline void *room_buffers(uint32_t rank)
{
    static void *buffers[ROOM_RANKS_MAX];
    if (rank >= ROOM_RANKS_MAX) return NULL;
    if (!buffers[rank]) buffers[rank] = aligned_alloc(PD_VFS_ALIGN, ROOM_BUFFER_BYTES);
    return buffers[rank];
}

static inline pd_status room_set_up(struct room_rank *rank, struct pd_error *err)
{
    uint32_t ranks = rank->group->size, r = rank->group->rank;
    rank->tensors[0] = (struct pd_tensor){
        .name = "w", .ndim = 2, .shape = {ROOM_ROWS * (uint64_t)ranks, 3, 1, 1}, .tp_dim = -1, .tp_unit = 1};
    rank->tensors[1] = (struct pd_tensor){
        .name = "b", .ndim = 1, .shape = {ROOM_SMALL * (uint64_t)ranks, 1, 1, 1}, .tp_dim = -1, .tp_unit = 1};
    rank->table = (struct pd_tensor_table){rank->tensors, 2};
    rank->boxes[0] = (struct pd_shard_box){0, PD_PARAM, {{ROOM_ROWS * (uint64_t)r, 0, 0, 0}, {ROOM_ROWS, 3, 1, 1}}};
    rank->boxes[1] = (struct pd_shard_box){1, PD_EXP_AVG, {{ROOM_SMALL * (uint64_t)r, 0, 0, 0}, {ROOM_SMALL, 1, 1, 1}}};
    rank->buffers = room_buffers(r);
    if (!rank->buffers) PD_FAIL(err, PD_NO_MEMORY, "no buffers");
    return pd_shard_writer_new(rank->vfs, &rank->table, rank->boxes, 2, rank->buffers, ROOM_BUFFER_BYTES, NULL,
                               &rank->writer, err);
}

static inline void room_state(struct room_rank *rank, struct pd_run_state *state, uint64_t lineage, uint64_t step)
{
    *state = (struct pd_run_state){
        .identity = room_identity(lineage, step), .updates = step, .samples = step * 8, .loss_scale = 1};
    state->layout = (struct pd_layout){.dp = rank->group->size,
                                       .tp = 1,
                                       .pp = 1,
                                       .sp = 1,
                                       .virtual_tp = 1,
                                       .virtual_sp = 1,
                                       .zero_shard = rank->group->size,
                                       .interleave = 1,
                                       .stage_count = 1,
                                       .small_bytes = 65536};
    state->tensor_count = 2;
    snprintf(state->created_by, sizeof state->created_by, "test");
    state->config = "key: value\n";
    state->environment = "{}";
}

/* The outcome of begin, write and commit, alike on every rank. */
static inline pd_status room_save_lineage(struct room_rank *rank, uint64_t lineage, uint64_t step, struct pd_error *err)
{
    struct pd_identity identity = room_identity(lineage, step);
    struct pd_shard_summary summary = {0};
    struct pd_run_state state;
    char path[4096];
    PD_TRY(pd_store_begin(rank->store, &identity, path, err));
    room_state(rank, &state, lineage, step);
    const void *data[2] = {rank->values, rank->values + ROOM_ROWS * 3};
    room_fill(rank->values, lineage, step, rank->group->rank);
    const pd_status st = pd_shard_write(rank->writer, path, &identity, rank->group->rank, data, &summary, err);
    return pd_store_commit(rank->store, st, &summary, &state, err);
}

static inline pd_status room_save(struct room_rank *rank, uint64_t step, struct pd_error *err)
{
    return room_save_lineage(rank, 0, step, err);
}

/* ---- what is loaded ---- */

static inline pd_status room_read_box(struct pd_shard *shard, uint32_t box, const float *expected, struct pd_error *err)
{
    uint64_t bytes = pd_shard_box_bytes(shard, box);
    float *values = malloc(bytes);
    if (!values) PD_FAIL(err, PD_NO_MEMORY, "no memory");
    pd_status st = pd_shard_read_blocks(shard, box, 0, pd_shard_block_count(shard, box), values, err);
    if (st == PD_OK && memcmp(values, expected, bytes) != 0)
        st = pd_error_set(err, PD_BUG, PD_WHERE, 0, "box %u verifies and holds other values: a mixture", box);
    free(values);
    return st;
}

static inline pd_status room_load_shard(struct room_rank *rank, const struct pd_store_entry *entry,
                                        const struct pd_commit *commit, uint32_t number, struct pd_error *err)
{
    char path[4096];
    pd_store_entry_path(rank->store, entry, path);
    snprintf(path + strlen(path), 32, "/shard-%05u.h5", number);
    struct pd_identity identity = room_identity(entry->lineage, entry->step);
    struct pd_shard *shard = NULL;
    PD_TRY(pd_shard_open(rank->vfs, path, &identity, &commit->shards[number], &shard, err));
    room_fill(rank->values, entry->lineage, entry->step, number);
    pd_status st = pd_shard_verify(shard, rank->buffers, ROOM_BUFFER_BYTES, err);
    if (st == PD_OK) st = room_read_box(shard, 0, rank->values, err);
    if (st == PD_OK) st = room_read_box(shard, 1, rank->values + ROOM_ROWS * 3, err);
    pd_shard_close(shard);
    return st;
}

/* PD_CORRUPT: damage was found; PD_BUG: what verifies is not what was saved. */
static inline pd_status room_load_mine(struct room_rank *rank, const struct pd_store_entry *entry,
                                       const struct pd_commit *commit, struct pd_error *err)
{
    if (commit->shard_count != rank->group->size || commit->state.identity.step != entry->step ||
        commit->state.updates != entry->step || commit->state.fence != entry->fence)
        PD_FAIL(err, PD_BUG, "the record is not that of %s", entry->name);
    return room_load_shard(rank, entry, commit, rank->group->rank, err);
}

static inline pd_status room_load(struct room_rank *rank, const struct pd_store_entry *entry, struct pd_error *err)
{
    struct pd_commit commit = {0};
    PD_TRY(pd_store_read_commit(rank->store, entry, &commit, err));
    pd_status st = room_load_mine(rank, entry, &commit, err);
    pd_commit_deinit(&commit);
    return pd_group_agree(rank->group, st, err);
}

/* As a resuming trainer does: newest first, damage is put aside. PD_NOT_FOUND when nothing is left. */
static inline pd_status room_load_newest(struct room_rank *rank, uint64_t *ret_step, uint32_t *ret_damaged,
                                         struct pd_error *err)
{
    *ret_damaged = 0;
    while (pd_store_count(rank->store)) {
        const struct pd_store_entry *entry = pd_store_entry_at(rank->store, 0);
        pd_status st = room_load(rank, entry, err);
        if (st == PD_OK) *ret_step = entry->step;
        if (st != PD_CORRUPT) return st;
        ++*ret_damaged;
        PD_TRY(pd_store_quarantine(rank->store, entry, "found by the test", err));
    }
    PD_FAIL(err, PD_NOT_FOUND, "no checkpoint is left");
}

/* ---- launches ---- */

static inline struct pd_store_options room_options(void)
{
    return (struct pd_store_options){.writable = true, .keep_last = 2, .quarantine_bytes_max = 1 << 20};
}

struct room_launch {
    struct room *room;
    room_script *script;
    void *context;
    const struct pd_store_options *options;
};

static inline pd_status room_rank_main(struct pd_group *group, void *context, struct pd_error *err)
{
    const struct room_launch *launch = context;
    struct room_rank *rank = calloc(1, sizeof *rank);
    if (!rank) PD_FAIL(err, PD_NO_MEMORY, "no rank");
    *rank = (struct room_rank){.room = launch->room, .group = group, .context = launch->context};
    const char *root = launch->room->root ? launch->room->root : ROOM_ROOT;
    pd_status st = PD_OK;
    if (launch->room->disk)
        st = pd_simulated_disk_vfs(launch->room->disk, launch->room->first_host + group->host, &rank->vfs, err);
    else
        st = pd_vfs_new_auto(&rank->vfs, err);
    if (st == PD_OK) st = room_set_up(rank, err);
    st = pd_group_agree(group, st, err);
    if (st == PD_OK) st = pd_store_open(rank->vfs, root, launch->options, group, &rank->store, err);
    if (st == PD_OK) st = launch->script(rank, err);
    pd_store_close(rank->store);
    pd_shard_writer_free(rank->writer);
    if (rank->vfs) pd_vfs_free(rank->vfs);
    free(rank);
    return st;
}

static inline pd_status room_launch_with(struct room *room, const struct pd_store_options *options, room_script *script,
                                         void *context, struct pd_error *err)
{
    struct room_launch launch = {room, script, context, options};
    return pd_group_run_local(room->ranks, room->hosts, room_rank_main, &launch, err);
}

static inline pd_status room_launch(struct room *room, room_script *script, void *context, struct pd_error *err)
{
    struct pd_store_options options = room_options();
    return room_launch_with(room, &options, script, context, err);
}

/* lacks: PD_DISK_..., of every disk */
static inline pd_status room_new_lacking(struct room *room, uint32_t ranks, uint32_t hosts, bool shared, unsigned lacks,
                                         struct pd_error *err)
{
    struct pd_disk_options options = {.seed = 1, .host_count = hosts};
    options.mounts[0] = (struct pd_disk_mount){.path = "/", .shared = shared, .lacks = lacks};
    *room = (struct room){.ranks = ranks, .hosts = hosts, .shared = shared};
    return pd_simulated_disk_new(&options, &room->disk, err);
}

static inline pd_status room_new(struct room *room, uint32_t ranks, uint32_t hosts, bool shared, struct pd_error *err)
{
    return room_new_lacking(room, ranks, hosts, shared, 0, err);
}

static inline void room_free(struct room *room)
{
    if (room->disk) pd_simulated_disk_free(room->disk);
    room->disk = NULL;
}
