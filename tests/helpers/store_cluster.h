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

#define CLUSTER_ROOT "/ckpt"
#define CLUSTER_ROWS 500u /* of tensor "w", 3 columns, a rank */
#define CLUSTER_SMALL 7u  /* elements of tensor "b" a rank */
#define CLUSTER_VALUES (CLUSTER_ROWS * 3u + CLUSTER_SMALL)
#define CLUSTER_BUFFER_BYTES (4u << 20)
#define CLUSTER_RANKS_MAX 16u

struct cluster {
    struct pd_simulated_disk *disk; /* NULL: the real one */
    uint32_t ranks, hosts;
    bool shared;         /* one file system for all hosts */
    const char *root;    /* NULL: CLUSTER_ROOT */
    uint32_t first_host; /* of the disk's, that launches start on */
};

struct cluster_rank {
    struct cluster *cluster;
    struct pd_group *group;
    struct pd_vfs *vfs;
    struct pd_store *store;
    struct pd_shard_writer *writer;
    struct pd_tensor tensors[2];
    struct pd_tensor_table table;
    struct pd_shard_box boxes[2];
    float values[CLUSTER_VALUES];
    void *buffers;
    void *context; /* of the script */
};

typedef pd_status cluster_script(struct cluster_rank *rank, struct pd_error *err);

/* ---- what is saved ---- */

static uint64_t cluster_run; /* which run saves; set between launches */

static inline struct pd_identity cluster_identity(uint64_t lineage, uint64_t step)
{
    return (struct pd_identity){.run_id = {0x1234 + cluster_run, 0x5678}, .lineage = lineage, .step = step};
}

static inline uint64_t cluster_mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static inline void cluster_fill(float *values, uint64_t lineage, uint64_t step, uint32_t rank)
{
    for (uint32_t i = 0; i < CLUSTER_VALUES; i++)
        values[i] = (float)(cluster_mix(lineage * 1000003 + step * 10007 + rank * 101 + ((uint64_t)i << 40)) % 1000003);
}

/* Kept for the next launch: thousands of them would otherwise mostly fault pages in. */
static inline void *cluster_buffers(uint32_t rank)
{
    static void *buffers[CLUSTER_RANKS_MAX];
    if (rank >= CLUSTER_RANKS_MAX) return NULL;
    if (!buffers[rank]) buffers[rank] = aligned_alloc(PD_VFS_ALIGN, CLUSTER_BUFFER_BYTES);
    return buffers[rank];
}

static inline pd_status cluster_set_up(struct cluster_rank *rank, struct pd_error *err)
{
    uint32_t ranks = rank->group->size, r = rank->group->rank;
    rank->tensors[0] = (struct pd_tensor){
        .name = "w", .ndim = 2, .shape = {CLUSTER_ROWS * (uint64_t)ranks, 3, 1, 1}, .tp_dim = -1, .tp_unit = 1};
    rank->tensors[1] = (struct pd_tensor){
        .name = "b", .ndim = 1, .shape = {CLUSTER_SMALL * (uint64_t)ranks, 1, 1, 1}, .tp_dim = -1, .tp_unit = 1};
    rank->table = (struct pd_tensor_table){.tensors = rank->tensors, .count = 2};
    rank->boxes[0] = (struct pd_shard_box){0, PD_PARAM, {{CLUSTER_ROWS * (uint64_t)r, 0, 0, 0}, {CLUSTER_ROWS, 3, 1, 1}}};
    rank->boxes[1] =
        (struct pd_shard_box){1, PD_EXP_AVG, {{CLUSTER_SMALL * (uint64_t)r, 0, 0, 0}, {CLUSTER_SMALL, 1, 1, 1}}};
    rank->buffers = cluster_buffers(r);
    if (!rank->buffers) PD_FAIL(err, PD_NO_MEMORY, "no buffers");
    return pd_shard_writer_new(rank->vfs, &rank->table, rank->boxes, 2, rank->buffers, CLUSTER_BUFFER_BYTES, NULL,
                               &rank->writer, err);
}

static inline void cluster_state(struct cluster_rank *rank, struct pd_run_state *state, uint64_t lineage, uint64_t step)
{
    *state = (struct pd_run_state){
        .identity = cluster_identity(lineage, step), .updates = step, .samples = step * 8, .loss_scale = 1};
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
static inline pd_status cluster_save_lineage(struct cluster_rank *rank, uint64_t lineage, uint64_t step,
                                             struct pd_error *err)
{
    struct pd_identity identity = cluster_identity(lineage, step);
    struct pd_shard_summary summary = {0};
    struct pd_run_state state;
    char path[4096];
    PD_TRY(pd_store_begin(rank->store, &identity, path, err));
    cluster_state(rank, &state, lineage, step);
    const void *data[2] = {rank->values, rank->values + CLUSTER_ROWS * 3};
    cluster_fill(rank->values, lineage, step, rank->group->rank);
    const pd_status st = pd_shard_write(rank->writer, path, &identity, rank->group->rank, data, &summary, err);
    return pd_store_commit(rank->store, st, &summary, &state, err);
}

static inline pd_status cluster_save(struct cluster_rank *rank, uint64_t step, struct pd_error *err)
{
    return cluster_save_lineage(rank, 0, step, err);
}

/* ---- what is loaded ---- */

static inline pd_status cluster_read_box(struct pd_shard *shard, uint32_t box, const float *expected, struct pd_error *err)
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

static inline pd_status cluster_load_shard(struct cluster_rank *rank, const struct pd_store_entry *entry,
                                           const struct pd_commit *commit, uint32_t number, struct pd_error *err)
{
    char path[4096];
    pd_store_entry_path(rank->store, entry, path);
    snprintf(path + strlen(path), 32, "/shard-%05u.h5", number);
    struct pd_identity identity = cluster_identity(entry->lineage, entry->step);
    struct pd_shard *shard = NULL;
    PD_TRY(pd_shard_open(rank->vfs, path, &identity, &commit->shards[number], &shard, err));
    cluster_fill(rank->values, entry->lineage, entry->step, number);
    pd_status st = pd_shard_verify(shard, rank->buffers, CLUSTER_BUFFER_BYTES, err);
    if (st == PD_OK) st = cluster_read_box(shard, 0, rank->values, err);
    if (st == PD_OK) st = cluster_read_box(shard, 1, rank->values + CLUSTER_ROWS * 3, err);
    pd_shard_close(shard);
    return st;
}

/* PD_CORRUPT: damage was found; PD_BUG: what verifies is not what was saved. */
static inline pd_status cluster_load_mine(struct cluster_rank *rank, const struct pd_store_entry *entry,
                                          const struct pd_commit *commit, struct pd_error *err)
{
    if (commit->shard_count != rank->group->size || commit->state.identity.step != entry->step ||
        commit->state.updates != entry->step || commit->state.fence != entry->fence)
        PD_FAIL(err, PD_BUG, "the record belongs to another entry than %s", entry->name);
    return cluster_load_shard(rank, entry, commit, rank->group->rank, err);
}

static inline pd_status cluster_load(struct cluster_rank *rank, const struct pd_store_entry *entry, struct pd_error *err)
{
    struct pd_commit commit = {0};
    PD_TRY(pd_store_read_commit(rank->store, entry, &commit, err));
    pd_status st = cluster_load_mine(rank, entry, &commit, err);
    pd_commit_deinit(&commit);
    return pd_group_agree(rank->group, st, err);
}

/* As a resuming trainer does: newest first, damage is put aside. PD_NOT_FOUND when nothing is left. */
static inline pd_status cluster_load_newest(struct cluster_rank *rank, uint64_t *ret_step, uint32_t *ret_damaged,
                                            struct pd_error *err)
{
    *ret_damaged = 0;
    while (pd_store_count(rank->store)) {
        const struct pd_store_entry *entry = pd_store_entry_at(rank->store, 0);
        pd_status st = cluster_load(rank, entry, err);
        if (st == PD_OK) *ret_step = entry->step;
        if (st != PD_CORRUPT) return st;
        ++*ret_damaged;
        PD_TRY(pd_store_quarantine(rank->store, entry, "found by the test", err));
    }
    PD_FAIL(err, PD_NOT_FOUND, "no checkpoint is left");
}

/* ---- launches ---- */

static inline struct pd_store_options cluster_options(void)
{
    return (struct pd_store_options){.writable = true, .keep_last = 2, .quarantine_bytes_max = 1 << 20};
}

struct cluster_launch {
    struct cluster *cluster;
    cluster_script *script;
    void *context;
    const struct pd_store_options *options;
};

static inline pd_status cluster_rank_main(struct pd_group *group, void *context, struct pd_error *err)
{
    const struct cluster_launch *launch = context;
    struct cluster_rank *rank = calloc(1, sizeof *rank);
    if (!rank) PD_FAIL(err, PD_NO_MEMORY, "no rank");
    *rank = (struct cluster_rank){.cluster = launch->cluster, .group = group, .context = launch->context};
    const char *root = launch->cluster->root ? launch->cluster->root : CLUSTER_ROOT;
    pd_status st = PD_OK;
    if (launch->cluster->disk)
        st = pd_simulated_disk_vfs(launch->cluster->disk, launch->cluster->first_host + group->host, &rank->vfs, err);
    else
        st = pd_vfs_new_auto(&rank->vfs, err);
    if (st == PD_OK) st = cluster_set_up(rank, err);
    st = pd_group_agree(group, st, err);
    if (st == PD_OK) st = pd_store_open(rank->vfs, root, launch->options, group, &rank->store, err);
    if (st == PD_OK) st = launch->script(rank, err);
    pd_store_close(rank->store);
    pd_shard_writer_free(rank->writer);
    if (rank->vfs) pd_vfs_free(rank->vfs);
    free(rank);
    return st;
}

static inline pd_status cluster_launch_with(struct cluster *cluster, const struct pd_store_options *options,
                                            cluster_script *script, void *context, struct pd_error *err)
{
    struct cluster_launch launch = {cluster, script, context, options};
    return pd_group_run_local(cluster->ranks, cluster->hosts, cluster_rank_main, &launch, err);
}

static inline pd_status cluster_launch(struct cluster *cluster, cluster_script *script, void *context, struct pd_error *err)
{
    struct pd_store_options options = cluster_options();
    return cluster_launch_with(cluster, &options, script, context, err);
}

/* lacks: PD_DISK_..., of every disk */
static inline pd_status cluster_new_lacking(struct cluster *cluster, uint32_t ranks, uint32_t hosts, bool shared,
                                            unsigned lacks, struct pd_error *err)
{
    struct pd_disk_options options = {.seed = 1, .host_count = hosts};
    options.mounts[0] = (struct pd_disk_mount){.path = "/", .shared = shared, .lacks = lacks};
    *cluster = (struct cluster){.ranks = ranks, .hosts = hosts, .shared = shared};
    return pd_simulated_disk_new(&options, &cluster->disk, err);
}

static inline pd_status cluster_new(struct cluster *cluster, uint32_t ranks, uint32_t hosts, bool shared,
                                    struct pd_error *err)
{
    return cluster_new_lacking(cluster, ranks, hosts, shared, 0, err);
}

static inline void cluster_free(struct cluster *cluster)
{
    if (cluster->disk) pd_simulated_disk_free(cluster->disk);
    cluster->disk = NULL;
}
