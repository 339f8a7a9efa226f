/* Generations on an honest disk: who may write which file when, what a checkpoint keeps, what a next launch takes over. The
 * campaigns are in tests/crash/store. */
#include "ckpt/base/log.h"
#include "tests/helpers/generation_cluster.h"
#include "tests/helpers/store_expect.h"

#include <errno.h>
#include <pthread.h>

TestSuite(store_generation, .init = set_up);

static struct cluster cluster_that_lacks(uint32_t ranks, uint32_t hosts, bool shared, unsigned lacks)
{
    struct pd_disk_options options = {.seed = 1, .host_count = hosts};
    options.mounts[0] = (struct pd_disk_mount){.path = "/", .lacks = lacks, .shared = shared};
    struct cluster cluster = {.ranks = ranks, .hosts = hosts, .shared = shared};
    struct pd_error err = {0};
    expect(pd_simulated_disk_new(&options, &cluster.disk, &err), PD_OK, &err);
    return cluster;
}

struct body {
    pd_status (*run)(struct generation *g, void *context, struct pd_error *err);
    void *context;
};

static pd_status run_body(struct cluster_rank *rank, struct pd_error *err)
{
    const struct body *body = rank->context;
    struct generation *g = calloc(1, sizeof *g);
    if (!g) PD_FAIL(err, PD_NO_MEMORY, "no memory");
    pd_status st = generation_init(g, rank, err);
    if (st == PD_OK) st = body->run(g, body->context, err);
    generation_deinit(g);
    free(g);
    return st;
}

static void launch(struct cluster *cluster, pd_status (*run)(struct generation *, void *, struct pd_error *), void *context)
{
    struct pd_store_options options = generation_options();
    struct body body = {run, context};
    struct pd_error err = {0};
    expect(cluster_launch_with(cluster, &options, run_body, &body, &err), PD_OK, &err);
}

static uint64_t inode_of(struct pd_vfs *vfs, const char *path)
{
    struct pd_stat stat = {0};
    return pd_vfs_stat(vfs, path, &stat, NULL) == PD_OK ? stat.inode : 0;
}

static uint32_t links_of(struct pd_vfs *vfs, const char *path)
{
    struct pd_stat stat = {0};
    return pd_vfs_stat(vfs, path, &stat, NULL) == PD_OK ? (uint32_t)stat.link_count : 0;
}

static void shard_path(const struct cluster_rank *rank, uint64_t step, char ret_path[128])
{
    snprintf(ret_path, 128, CLUSTER_ROOT "/step-%012llu-%llu/shard-%05u.h5", (unsigned long long)step,
             (unsigned long long)pd_store_fence(rank->store), rank->group->rank);
}

/* ---- who may write which file ---- */

static pd_status take_and_release(struct generation *g, void *context, struct pd_error *err)
{
    (void)context;
    struct pd_store *store = g->rank->store;
    struct pd_vfs *vfs = g->rank->vfs;
    uint32_t a, b, c;
    char path_a[4096], path_b[4096], path_c[4096];
    PD_TRY(pd_store_generation_take(store, &a, path_a, err));
    PD_TRY(pd_store_generation_take(store, &b, path_b, err));
    if (a != 0 || b != 1 || strcmp(path_a, CLUSTER_ROOT "/pool-1/generation-00000-0.h5") != 0)
        PD_FAIL(err, PD_BUG, "slots %u and %u, %s", a, b, path_a);
    uint64_t inode_a = inode_of(vfs, path_a), inode_b = inode_of(vfs, path_b);
    if (!inode_a || !inode_b || inode_a == inode_b) PD_FAIL(err, PD_BUG, "a slot has no file of its own");
    pd_store_generation_release(store, a, false);
    if (inode_of(vfs, path_a)) PD_FAIL(err, PD_BUG, "%s is still in use", path_a);
    PD_TRY(pd_store_generation_take(store, &c, path_c, err));
    if (c != a || inode_of(vfs, path_c) != inode_a) PD_FAIL(err, PD_BUG, "a free file is not taken");
    pd_store_generation_release(store, c, true);
    PD_TRY(pd_store_generation_take(store, &c, path_c, err));
    if (inode_of(vfs, path_c) == inode_a) PD_FAIL(err, PD_BUG, "a bad file is taken");
    return PD_OK;
}

Test(store_generation, a_file_is_held_waits_or_is_gone)
{
    struct cluster cluster = cluster_that_lacks(1, 1, false, 0);
    launch(&cluster, take_and_release, NULL);
    cluster_free(&cluster);
}

static pd_status lose_the_root_while_saving(struct generation *g, struct pd_error *err)
{
    const struct pd_identity identity = cluster_identity(0, g->step);
    struct cluster_rank *rank = g->rank;
    struct pd_run_state state;
    PD_TRY(pd_store_begin_generation(rank->store, &identity, g->slot, rank->buffers, CLUSTER_BUFFER_BYTES, err));
    PD_TRY(pd_vfs_rename(rank->vfs, CLUSTER_ROOT, "/away", err));
    cluster_state(rank, &state, 0, g->step);
    return pd_store_commit(rank->store, PD_OK, &g->summary, &state, err);
}

/* The file system of the store is unmounted: a storage error that says so, of a step and of a save. */
static pd_status lose_the_root(struct generation *g, void *context, struct pd_error *err)
{
    static const char words[] = CLUSTER_ROOT " no longer holds fence-1 of this launch: is its file system mounted?";
    const bool leaves_mount_point = *(const bool *)context;
    struct pd_vfs *vfs = g->rank->vfs;
    struct pd_error why = {0};
    PD_TRY(generation_step(g, 1, err));
    PD_TRY(generation_write(g, 2, err));
    PD_TRY(generation_finish(g, err));
    pd_status st = lose_the_root_while_saving(g, &why);
    if (st != PD_IO || !strstr(why.message, words)) PD_FAIL(err, PD_BUG, "a save under way: %s", why.message);
    if (leaves_mount_point) PD_TRY(pd_vfs_mkdir(vfs, CLUSTER_ROOT, err));
    st = generation_write(g, 3, &why);
    if (st != PD_IO || !strstr(why.message, words)) PD_FAIL(err, PD_BUG, "a step: %s", why.message);
    st = generation_save(g, &why);
    if (st != PD_IO || !strstr(why.message, words)) PD_FAIL(err, PD_BUG, "a save: %s", why.message);
    if (leaves_mount_point) PD_TRY(pd_vfs_rmdir(vfs, CLUSTER_ROOT, err));
    PD_TRY(pd_vfs_rename(vfs, "/away", CLUSTER_ROOT, err));
    return generation_step(g, 3, err);
}

Test(store_generation, a_store_whose_file_system_is_gone_for_a_while)
{
    for (unsigned leaves_mount_point = 0; leaves_mount_point < 2; leaves_mount_point++) {
        struct cluster cluster = cluster_that_lacks(1, 1, false, 0);
        launch(&cluster, lose_the_root, &(bool){leaves_mount_point});
        cluster_free(&cluster);
    }
}

/* Somebody's file under a name that a slot would have: not ours to write. */
static pd_status meet_a_stranger(struct generation *g, void *context, struct pd_error *err)
{
    (void)context;
    struct pd_file *file = NULL;
    char path[4096], found[8] = {0};
    uint32_t slot;
    PD_TRY(pd_file_open(g->rank->vfs, CLUSTER_ROOT "/pool-1/generation-00000-0.h5", PD_OPEN_WRITE | PD_OPEN_CREATE, &file,
                        err));
    PD_TRY(pd_file_write(file, 0, "mine", 4, err));
    PD_TRY(pd_file_close(file, err));
    PD_TRY(pd_store_generation_take(g->rank->store, &slot, path, err));
    if (slot != 1) PD_FAIL(err, PD_BUG, "slot %u", slot);
    pd_store_generation_release(g->rank->store, slot, false);
    PD_TRY(pd_store_generation_take(g->rank->store, &slot, path, err));
    if (slot != 1) PD_FAIL(err, PD_BUG, "slot %u", slot);
    PD_TRY(pd_file_open(g->rank->vfs, CLUSTER_ROOT "/pool-1/generation-00000-0.h5", PD_OPEN_READ, &file, err));
    pd_status st = pd_file_read(file, 0, found, 4, err);
    pd_file_close_readonly(file);
    if (st == PD_OK && strcmp(found, "mine") != 0) PD_FAIL(err, PD_BUG, "it was overwritten");
    return st;
}

Test(store_generation, a_strangers_file_is_not_taken)
{
    struct cluster cluster = cluster_that_lacks(1, 1, false, 0);
    launch(&cluster, meet_a_stranger, NULL);
    cluster_free(&cluster);
}

/* ---- what a checkpoint keeps ---- */

static pd_status link_and_retire(struct generation *g, void *context, struct pd_error *err)
{
    (void)context;
    struct cluster_rank *rank = g->rank;
    char shard[128], in_use[4096];
    PD_TRY(generation_step(g, 1, err));
    memcpy(in_use, g->path, sizeof in_use);
    shard_path(rank, 1, shard);
    uint64_t first = inode_of(rank->vfs, in_use);
    if (inode_of(rank->vfs, shard) != first || links_of(rank->vfs, shard) != 2)
        PD_FAIL(err, PD_BUG, "the checkpoint has not the file itself");
    PD_TRY(generation_step(g, 2, err));
    if (links_of(rank->vfs, shard) != 1) PD_FAIL(err, PD_BUG, "two names after the state went on");
    PD_TRY(generation_step(g, 3, err)); /* step 1 goes, its file is free */
    if (inode_of(rank->vfs, shard)) PD_FAIL(err, PD_BUG, "step 1 is still there");
    PD_TRY(pd_group_agree(rank->group, generation_write(g, 4, err), err));
    if (inode_of(rank->vfs, g->path) != first) PD_FAIL(err, PD_BUG, "the file of step 1 is not used again");
    return PD_OK;
}

Test(store_generation, a_checkpoint_is_a_link_and_its_file_comes_back)
{
    for (unsigned shared = 0; shared < 2; shared++) {
        struct cluster cluster = cluster_that_lacks(4, 2, shared, 0);
        launch(&cluster, link_and_retire, NULL);
        cluster_free(&cluster);
    }
}

/* cp -l of a checkpoint, and a quarantine: both keep their bytes. */
static pd_status pin_by_links(struct generation *g, void *context, struct pd_error *err)
{
    struct cluster_rank *rank = g->rank;
    const bool *quarantines = context;
    char shard[128];
    PD_TRY(generation_step(g, 1, err));
    shard_path(rank, 1, shard);
    uint64_t kept = inode_of(rank->vfs, shard);
    PD_TRY(generation_step(g, 2, err));
    if (*quarantines)
        PD_TRY(pd_store_quarantine(rank->store, pd_store_entry_at(rank->store, 1), "by the test", err));
    else
        PD_TRY(pd_vfs_link(rank->vfs, shard, "/backup.h5", err));
    for (uint64_t step = 3; step < 10; step++) {
        PD_TRY(generation_step(g, step, err));
        if (inode_of(rank->vfs, g->path) == kept) PD_FAIL(err, PD_BUG, "step %llu overwrites it", (unsigned long long)step);
    }
    return PD_OK;
}

Test(store_generation, backups_and_quarantines_keep_their_bytes)
{
    for (unsigned quarantines = 0; quarantines < 2; quarantines++) {
        struct cluster cluster = cluster_that_lacks(1, 1, false, 0);
        launch(&cluster, pin_by_links, &(bool){quarantines});
        cluster_free(&cluster);
    }
}

struct inodes {
    uint64_t seen[64];
    uint32_t count;
};

static pd_status thousand_steps(struct generation *g, void *context, struct pd_error *err)
{
    struct inodes *inodes = context;
    for (uint64_t step = 1; step <= 1000; step++) {
        if (step % 3 == 0)
            PD_TRY(pd_group_agree(g->rank->group, generation_write(g, step * 10 - 5, err), err)); /* unsaved */
        PD_TRY(generation_step(g, step * 10, err));
        if (g->rank->group->rank != 0) continue;
        uint64_t inode = inode_of(g->rank->vfs, g->path);
        uint32_t i = 0;
        while (i < inodes->count && inodes->seen[i] != inode)
            i++;
        if (i == 64) PD_FAIL(err, PD_BUG, "files pile up");
        inodes->seen[i] = inode;
        if (i == inodes->count) inodes->count++;
    }
    return PD_OK;
}

Test(store_generation, a_thousand_saves_need_four_files)
{
    struct cluster cluster = cluster_that_lacks(2, 1, false, 0);
    struct inodes inodes = {0};
    struct pd_store_options options = generation_options();
    cr_assert_eq(pd_store_generations_needed(&options, true), 4u);
    cr_assert_eq(pd_store_generations_needed(&options, false), 5u);
    options.later_tiers = 2;
    cr_assert_eq(pd_store_generations_needed(&options, true), 6u);
    options.later_tiers = 0;
    options.keep_last = 0;
    cr_assert_eq(pd_store_generations_needed(&options, true), 3u);
    options.keep_last = UINT32_MAX;
    cr_assert_eq(pd_store_generations_needed(&options, true), PD_STORE_GENERATIONS_MAX);
    launch(&cluster, thousand_steps, &inodes);
    cr_assert_leq(inodes.count, 4u);
    struct pd_vfs *vfs;
    struct pd_error err = {0};
    expect(pd_simulated_disk_vfs(cluster.disk, 0, &vfs, &err), PD_OK, &err);
    cr_assert_eq(inode_of(vfs, CLUSTER_ROOT "/pool-1"), 0u, "the pool stays after an orderly end");
    pd_vfs_free(vfs);
    cluster_free(&cluster);
}

/* Counts without ever striking. */
static pd_status count_flushes(struct generation *g, void *context, struct pd_error *err)
{
    (void)context;
    struct cluster_rank *rank = g->rank;
    struct pd_disk_fault never = {.kind = PD_DISK_FAULT_ERROR,
                                  .nth = UINT64_MAX,
                                  .operations = PD_DISK_MASK(PD_DISK_SYNC) | PD_DISK_MASK(PD_DISK_SYNC_DIR)};
    for (uint64_t step = 1; step <= 3; step++)
        PD_TRY(generation_step(g, step, err));
    if (rank->group->rank == 0) pd_simulated_disk_set_fault(rank->cluster->disk, &never);
    PD_TRY(pd_group_barrier(rank->group, err));
    for (uint64_t step = 4; step <= 13; step++)
        PD_TRY(generation_step(g, step, err));
    PD_TRY(pd_group_barrier(rank->group, err));
    uint64_t flushes = pd_simulated_disk_count(rank->cluster->disk);
    if (flushes > 10 * (rank->group->size + 5ull)) PD_FAIL(err, PD_BUG, "%llu flushes", (unsigned long long)flushes);
    return PD_OK;
}

Test(store_generation, a_save_costs_a_flush_a_shard_and_five_more)
{
    struct cluster cluster = cluster_that_lacks(4, 1, false, 0);
    launch(&cluster, count_flushes, NULL);
    cluster_free(&cluster);
}

/* ---- without links ---- */

static pd_status same_bytes(struct pd_vfs *vfs, const char *a, const char *b, struct pd_error *err)
{
    const char *paths[2] = {a, b};
    static char bytes[2][1 << 16];
    struct pd_stat stat[2];
    for (unsigned i = 0; i < 2; i++) {
        struct pd_file *file = NULL;
        PD_TRY(pd_file_open(vfs, paths[i], PD_OPEN_READ, &file, err));
        pd_status st = pd_file_stat(file, &stat[i], err);
        if (st == PD_OK) st = pd_file_read(file, 0, bytes[i], stat[i].bytes, err);
        pd_file_close_readonly(file);
        PD_TRY(st);
    }
    bool is_same = stat[0].bytes == stat[1].bytes && stat[0].inode != stat[1].inode;
    if (!is_same || memcmp(bytes[0], bytes[1], stat[0].bytes) != 0) PD_FAIL(err, PD_BUG, "%s is not a copy of %s", b, a);
    return PD_OK;
}

static pd_status save_copies(struct generation *g, void *context, struct pd_error *err)
{
    (void)context;
    char shard[128];
    if (pd_store_links_generations(g->rank->store)) PD_FAIL(err, PD_BUG, "links are promised");
    for (uint64_t step = 1; step < 8; step++) {
        PD_TRY(generation_step(g, step, err));
        shard_path(g->rank, step, shard);
        pd_status st = g->rank->group->rank == 0 ? same_bytes(g->rank->vfs, g->path, shard, err) : PD_OK;
        PD_TRY(pd_group_agree(g->rank->group, st, err));
        PD_TRY(generation_read(g, err));
        for (uint32_t i = 0; i < pd_store_count(g->rank->store); i++)
            PD_TRY(cluster_load(g->rank, pd_store_entry_at(g->rank->store, i), err));
    }
    return PD_OK;
}

static void count_refusals(void *context, const char *line, size_t bytes)
{
    char text[1024];
    snprintf(text, sizeof text, "%.*s", (int)bytes, line);
    if (strstr(text, CLUSTER_ROOT " refuses hard links (") && strstr(text, "MiB a rank")) ++*(unsigned *)context;
}

/* One line a host says so. */
Test(store_generation, refused_links_are_said_once)
{
    struct cluster cluster = cluster_that_lacks(4, 2, false, PD_DISK_NO_LINKS);
    unsigned refusals = 0;
    cr_assert_eq(pd_log_configure("warn", NULL), PD_OK);
    pd_log_set_sink(count_refusals, &refusals);
    launch(&cluster, save_copies, NULL);
    pd_log_set_sink(NULL, NULL);
    cr_assert_eq(refusals, 2u);
    cluster_free(&cluster);
}

Test(store_generation, refused_links_are_copied)
{
    static const unsigned lacks[] = {PD_DISK_NO_LINKS, PD_DISK_NO_LINKS | PD_DISK_NO_DIRECT_OPEN,
                                     PD_DISK_NO_LINKS | PD_DISK_NO_DIRECT_TRANSFER | PD_DISK_NO_PREALLOCATE};
    for (size_t i = 0; i < sizeof lacks / sizeof *lacks; i++) {
        struct cluster cluster = cluster_that_lacks(4, 2, i == 1, lacks[i]);
        launch(&cluster, save_copies, NULL);
        cluster_free(&cluster);
    }
}

static pd_status link_fails(struct generation *g, void *context, struct pd_error *err)
{
    const int *number = context;
    struct cluster_rank *rank = g->rank;
    struct pd_disk_fault fault = {.kind = PD_DISK_FAULT_ERROR,
                                  .sys_errno = *number,
                                  .nth = 1,
                                  .operations = PD_DISK_MASK(PD_DISK_LINK),
                                  .vfs = rank->vfs};
    if (!pd_store_links_generations(rank->store)) PD_FAIL(err, PD_BUG, "rank %u does not know of links", rank->group->rank);
    PD_TRY(generation_step(g, 1, err));
    if (rank->group->rank == rank->group->size - 1) pd_simulated_disk_set_fault(rank->cluster->disk, &fault);
    PD_TRY(pd_group_barrier(rank->group, err));
    pd_status st = generation_step(g, 2, err);
    if (*number == EMLINK) return st == PD_OK ? cluster_load(rank, pd_store_entry_at(rank->store, 0), err) : st;
    if (st != PD_NO_SPACE) PD_FAIL(err, PD_BUG, "rank %u gets %s", rank->group->rank, pd_status_name(st));
    if (!strstr(err->message, "checkpoint step-000000000002-1: rank 3: link /ckpt/pool-1/generation-00003-1.h5 as"))
        PD_FAIL(err, PD_BUG, "unclear: %s", err->message);
    PD_TRY(generation_read(g, err));
    PD_TRY(generation_step(g, 3, err));
    if (pd_store_count(rank->store) != 2) PD_FAIL(err, PD_BUG, "%u checkpoints", pd_store_count(rank->store));
    return cluster_load(rank, pd_store_entry_at(rank->store, 0), err);
}

Test(store_generation, a_link_that_fails_is_agreed_or_copied)
{
    static const int numbers[] = {EDQUOT, EMLINK};
    for (unsigned i = 0; i < 2; i++) {
        struct cluster cluster = cluster_that_lacks(4, 2, true, 0);
        launch(&cluster, link_fails, (void *)(uintptr_t)&numbers[i]);
        cluster_free(&cluster);
    }
}

/* A save fails, and the disk is too sick to take it back: later that is made up for, or its files would stay linked. */
static pd_status fail_without_clearing(struct generation *g, void *context, struct pd_error *err)
{
    struct cluster_rank *rank = g->rank;
    const unsigned operations = *(const unsigned *)context;
    struct pd_disk_fault fault = {.kind = PD_DISK_FAULT_ERROR, .nth = 1, .persistent = true, .operations = operations};
    PD_TRY(generation_step(g, 1, err));
    for (uint64_t step = 2; step < 20; step++) {
        PD_TRY(pd_group_agree(rank->group, generation_write(g, step, err), err));
        if (rank->group->rank == 0) pd_simulated_disk_set_fault(rank->cluster->disk, step % 3 ? &fault : NULL);
        PD_TRY(pd_group_barrier(rank->group, err));
        pd_status st = generation_save(g, err);
        if ((st != PD_OK) != (step % 3 != 0))
            PD_FAIL(err, PD_BUG, "step %llu gets %s", (unsigned long long)step, pd_status_name(st));
        PD_TRY(pd_group_barrier(rank->group, err));
        if (rank->group->rank == 0) pd_simulated_disk_set_fault(rank->cluster->disk, NULL);
        PD_TRY(pd_group_barrier(rank->group, err));
        if (st == PD_OK) PD_TRY(pd_store_prune(rank->store, err));
    }
    PD_TRY(pd_store_prune(rank->store, err));
    struct pd_listing listing = {0};
    PD_TRY(pd_vfs_list(rank->vfs, CLUSTER_ROOT, &listing, err));
    pd_status st = PD_OK;
    for (uint32_t i = 0; i < listing.count; i++)
        if (strstr(listing.names[i], ".tmp")) st = pd_error_set(err, PD_BUG, PD_WHERE, 0, "%s stays", listing.names[i]);
    pd_listing_deinit(&listing);
    if (pd_store_count(rank->store) != 2) PD_FAIL(err, PD_BUG, "%u checkpoints", pd_store_count(rank->store));
    if (st == PD_OK) st = cluster_load(rank, pd_store_entry_at(rank->store, 0), err);
    return pd_group_agree(rank->group, st, err);
}

Test(store_generation, what_a_failed_save_leaves_goes_with_a_later_one)
{
    static const unsigned sick[] = {PD_DISK_MASK(PD_DISK_LINK) | PD_DISK_MASK(PD_DISK_UNLINK),
                                    PD_DISK_MASK(PD_DISK_SYNC_DIR) | PD_DISK_MASK(PD_DISK_RENAME)};
    for (unsigned i = 0; i < 4; i++) {
        struct cluster cluster = cluster_that_lacks(4, 2, i / 2, 0);
        launch(&cluster, fail_without_clearing, (void *)(uintptr_t)&sick[i % 2]);
        cluster_free(&cluster);
    }
}

/* ---- the next launch ---- */

struct left {
    uint64_t idle[4], in_use[4]; /* inodes, by rank */
};

/* Killed with one file in use, one free, one in the checkpoint. */
static pd_status die_in_a_step(struct generation *g, void *context, struct pd_error *err)
{
    struct left *left = context;
    uint32_t r = g->rank->group->rank;
    char path[128];
    PD_TRY(generation_step(g, 1, err));
    PD_TRY(generation_write(g, 2, err));
    left->idle[r] = inode_of(g->rank->vfs, g->path);
    PD_TRY(generation_write(g, 3, err));
    left->in_use[r] = inode_of(g->rank->vfs, g->path);
    snprintf(path, sizeof path, CLUSTER_ROOT "/pool-1/recycle-%05u-0", r);
    if (inode_of(g->rank->vfs, path) != left->idle[r]) PD_FAIL(err, PD_BUG, "%s is not free", path);
    return generation_kill_all(g->rank, err);
}

static pd_status come_back(struct generation *g, void *context, struct pd_error *err)
{
    const struct left *left = context;
    uint32_t r = g->rank->group->rank;
    PD_TRY(cluster_load(g->rank, pd_store_entry_at(g->rank->store, 0), err));
    PD_TRY(generation_write(g, 2, err));
    if (inode_of(g->rank->vfs, g->path) != left->idle[r]) PD_FAIL(err, PD_BUG, "what was free is not taken over");
    PD_TRY(generation_write(g, 3, err));
    if (inode_of(g->rank->vfs, g->path) == left->in_use[r]) PD_FAIL(err, PD_BUG, "what was in use is taken over");
    if (inode_of(g->rank->vfs, CLUSTER_ROOT "/pool-1")) PD_FAIL(err, PD_BUG, "the pool of the dead launch stays");
    return PD_OK;
}

Test(store_generation, what_waited_is_taken_over_and_what_was_held_is_not)
{
    struct cluster cluster = cluster_that_lacks(4, 2, false, 0);
    struct left left = {0};
    launch(&cluster, die_in_a_step, &left);
    launch(&cluster, come_back, &left);
    cluster_free(&cluster);
}

static pd_status come_back_with_state_in_memory(struct cluster_rank *rank, struct pd_error *err)
{
    const struct left *left = rank->context;
    char path[128];
    PD_TRY(cluster_save(rank, 2, err));
    shard_path(rank, 2, path);
    if (inode_of(rank->vfs, path) != left->idle[rank->group->rank]) PD_FAIL(err, PD_BUG, "what was free is not used");
    return cluster_load(rank, pd_store_entry_at(rank->store, 1), err);
}

Test(store_generation, a_launch_without_generations_uses_what_they_left)
{
    struct cluster cluster = cluster_that_lacks(4, 2, false, 0);
    struct left left = {0};
    struct pd_error err = {0};
    launch(&cluster, die_in_a_step, &left);
    expect(cluster_launch(&cluster, come_back_with_state_in_memory, &left, &err), PD_OK, &err);
    cluster_free(&cluster);
}

/* Ranks 2 and 3 have moved to another host's disk: files of theirs here are nobody's. */
static pd_status count_free(struct cluster_rank *rank, struct pd_error *err)
{
    struct pd_listing listing = {0};
    PD_TRY(pd_vfs_list(rank->vfs, CLUSTER_ROOT "/pool-2", &listing, err));
    uint32_t count = 0;
    for (uint32_t i = 0; i < listing.count; i++)
        count += strncmp(listing.names[i], "recycle-", 8) == 0;
    pd_listing_deinit(&listing);
    pd_status st = PD_OK;
    if (count != (rank->group->host == 0 ? 2u : 0u)) st = pd_error_set(err, PD_BUG, PD_WHERE, 0, "%u files are free", count);
    return pd_group_agree(rank->group, st, err);
}

Test(store_generation, files_of_ranks_that_moved_away_go)
{
    struct cluster cluster = cluster_that_lacks(4, 1, false, 0), moved;
    struct pd_disk_options disk = {.seed = 1, .host_count = 2};
    struct left left = {0};
    struct pd_error err = {0};
    cluster_free(&cluster);
    expect(pd_simulated_disk_new(&disk, &cluster.disk, &err), PD_OK, &err);
    launch(&cluster, die_in_a_step, &left);
    moved = cluster;
    moved.hosts = 2;
    expect(cluster_launch(&moved, count_free, NULL, &err), PD_OK, &err);
    cluster_free(&cluster);
}

Test(store_generation, foreign_names_in_a_dead_pool_stay)
{
    struct cluster cluster = cluster_that_lacks(4, 1, false, 0);
    struct left left = {0};
    struct pd_vfs *vfs;
    struct pd_file *file;
    struct pd_error err = {0};
    launch(&cluster, die_in_a_step, &left);
    expect(pd_simulated_disk_vfs(cluster.disk, 0, &vfs, &err), PD_OK, &err);
    expect(pd_file_open(vfs, CLUSTER_ROOT "/pool-1/generation-7.h5", PD_OPEN_WRITE | PD_OPEN_CREATE, &file, &err), PD_OK,
           &err);
    expect(pd_file_close(file, &err), PD_OK, &err);
    expect(cluster_launch(&cluster, come_back_with_state_in_memory, &left, &err), PD_OK, &err);
    cr_assert_neq(inode_of(vfs, CLUSTER_ROOT "/pool-1/generation-7.h5"), 0u);
    cr_assert_eq(inode_of(vfs, CLUSTER_ROOT "/pool-1/generation-00000-0.h5"), 0u);
    pd_vfs_free(vfs);
    cluster_free(&cluster);
}

/* ---- space ---- */

static pd_status check_cluster(struct generation *g, void *context, struct pd_error *err)
{
    const uint64_t files = *(const uint64_t *)context; /* that must be free, of four */
    struct pd_space space;
    PD_TRY(pd_vfs_space(g->rank->vfs, CLUSTER_ROOT, &space, err));
    uint64_t fits = space.available_bytes / files;
    PD_TRY(pd_store_check_space(g->rank->store, fits, 1, err));
    pd_status st = pd_store_check_space(g->rank->store, fits + 8192, 1, err);
    if (st != PD_NO_SPACE) PD_FAIL(err, PD_BUG, "too much fits: %s", pd_status_name(st));
    if (!strstr(err->message, "generations of")) PD_FAIL(err, PD_BUG, "unclear: %s", err->message);
    return PD_OK;
}

Test(store_generation, space_for_all_generations_is_asked_for)
{
    static const unsigned lacks[] = {0, PD_DISK_NO_LINKS};
    for (unsigned i = 0; i < 2; i++) {
        struct pd_disk_options options = {.seed = 1, .host_count = 1};
        options.mounts[0] = (struct pd_disk_mount){.path = "/", .capacity_bytes = 64 << 20, .lacks = lacks[i]};
        struct cluster cluster = {.ranks = 1, .hosts = 1};
        struct pd_error err = {0};
        expect(pd_simulated_disk_new(&options, &cluster.disk, &err), PD_OK, &err);
        launch(&cluster, check_cluster, &(uint64_t){4 + i});
        cluster_free(&cluster);
    }
}

/* After steps 1 and 2 both committed, one file in use and one free: none is missing. Without the free one, one is. */
static pd_status check_what_is_there(struct generation *g, void *context, struct pd_error *err)
{
    (void)context;
    struct cluster_rank *rank = g->rank;
    for (uint64_t step = 1; step <= 3; step++)
        PD_TRY(generation_step(g, step, err));
    PD_TRY(generation_write(g, 4, err));
    struct pd_stat stat;
    struct pd_space space;
    PD_TRY(pd_vfs_stat(rank->vfs, g->path, &stat, err));
    PD_TRY(pd_vfs_space(rank->vfs, CLUSTER_ROOT, &space, err));
    struct pd_file *ballast = NULL;
    PD_TRY(pd_file_open(rank->vfs, "/ballast", PD_OPEN_WRITE | PD_OPEN_CREATE, &ballast, err));
    pd_status st = pd_file_truncate(ballast, space.available_bytes - stat.bytes - 4096, err);
    pd_file_close_readonly(ballast);
    PD_TRY(st);
    PD_TRY(pd_store_check_space(rank->store, stat.bytes, 1, err));
    generation_drop(g);
    return pd_store_check_space(rank->store, stat.bytes, 1, err);
}

Test(store_generation, what_waits_counts_as_space)
{
    struct pd_disk_options options = {.seed = 1, .host_count = 1};
    options.mounts[0] = (struct pd_disk_mount){.path = "/", .capacity_bytes = 4 << 20};
    struct cluster cluster = {.ranks = 1, .hosts = 1};
    struct pd_error err = {0};
    expect(pd_simulated_disk_new(&options, &cluster.disk, &err), PD_OK, &err);
    launch(&cluster, check_what_is_there, NULL);
    cluster_free(&cluster);
}

/* One checkpoint more than are kept: it goes only after two new files were written. */
static pd_status check_before_pruning(struct generation *g, void *context, struct pd_error *err)
{
    (void)context;
    struct cluster_rank *rank = g->rank;
    struct pd_space space;
    struct pd_file *ballast = NULL;
    uint64_t bytes = pd_shard_writer_file_bytes(g->writers[0]);
    if (pd_store_count(rank->store) != 3) PD_FAIL(err, PD_BUG, "%u checkpoints", pd_store_count(rank->store));
    PD_TRY(pd_vfs_space(rank->vfs, CLUSTER_ROOT, &space, err));
    PD_TRY(pd_file_open(rank->vfs, "/ballast", PD_OPEN_WRITE | PD_OPEN_CREATE, &ballast, err));
    for (unsigned halves = 5; halves > 1; halves--) {
        pd_status st = pd_file_truncate(ballast, space.available_bytes - halves * bytes / 2, err);
        if (st == PD_OK) st = pd_store_check_space(rank->store, bytes, 1, err);
        if (st != (halves > 3 ? PD_OK : PD_NO_SPACE)) PD_FAIL(err, PD_BUG, "%s with %u halves", pd_status_name(st), halves);
    }
    return pd_file_close(ballast, err);
}

static pd_status three_steps(struct cluster_rank *rank, struct pd_error *err)
{
    for (uint64_t step = 1; step <= 3; step++)
        PD_TRY(cluster_save(rank, step, err));
    return PD_OK;
}

Test(store_generation, room_for_two_is_asked_for_beside_what_stays)
{
    struct pd_disk_options options = {.seed = 1, .host_count = 1};
    options.mounts[0] = (struct pd_disk_mount){.path = "/", .capacity_bytes = 4 << 20};
    struct cluster cluster = {.ranks = 1, .hosts = 1};
    struct pd_error err = {0};
    expect(pd_simulated_disk_new(&options, &cluster.disk, &err), PD_OK, &err);
    expect(cluster_launch(&cluster, three_steps, NULL, &err), PD_OK, &err);
    launch(&cluster, check_before_pruning, NULL);
    cluster_free(&cluster);
}

/* At the first start four files, later only what committed checkpoints and those in the pool do not make up for. */
static pd_status reserve(struct generation *g, void *context, struct pd_error *err)
{
    const uint64_t expected = *(const uint64_t *)context; /* pages that it takes, of files of 25 */
    struct cluster_rank *rank = g->rank;
    struct pd_space before, after;
    PD_TRY(pd_vfs_space(rank->vfs, CLUSTER_ROOT, &before, err));
    for (unsigned again = 0; again < 2; again++)
        PD_TRY(pd_store_generations_reserve(rank->store, 100 << 10, err));
    PD_TRY(pd_vfs_space(rank->vfs, CLUSTER_ROOT, &after, err));
    uint64_t taken = (before.available_bytes - after.available_bytes) / 4096;
    if (taken != expected) PD_FAIL(err, PD_BUG, "%llu pages are taken", (unsigned long long)taken);
    for (uint64_t step = 101; step < 110; step++)
        PD_TRY(generation_step(g, step, err));
    return PD_OK;
}

Test(store_generation, files_are_reserved_at_the_start)
{
    static const struct {
        unsigned lacks;
        uint64_t first, second;
    } table[] = {{0, 100, 50}, {PD_DISK_NO_LINKS, 125, 75}, {PD_DISK_NO_PREALLOCATE, 0, 0}};
    for (unsigned i = 0; i < sizeof table / sizeof *table; i++) {
        struct pd_disk_options options = {.seed = 1, .host_count = 1};
        options.mounts[0] = (struct pd_disk_mount){.path = "/", .capacity_bytes = 4 << 20, .lacks = table[i].lacks};
        struct cluster cluster = {.ranks = 1, .hosts = 1};
        struct pd_error err = {0};
        expect(pd_simulated_disk_new(&options, &cluster.disk, &err), PD_OK, &err);
        launch(&cluster, reserve, &(uint64_t){table[i].first});
        launch(&cluster, reserve, &(uint64_t){table[i].second});
        cluster_free(&cluster);
    }
}

static pd_status reserve_too_much(struct generation *g, void *context, struct pd_error *err)
{
    (void)context;
    struct pd_space before, after;
    PD_TRY(pd_vfs_space(g->rank->vfs, CLUSTER_ROOT, &before, err));
    pd_status st = pd_store_generations_reserve(g->rank->store, before.available_bytes / 3, err);
    if (st != PD_NO_SPACE) PD_FAIL(err, PD_BUG, "a full disk gives %s", pd_status_name(st));
    if (!strstr(err->message, "files of 1.3 MiB for the state")) PD_FAIL(err, PD_BUG, "unclear: %s", err->message);
    PD_TRY(pd_vfs_space(g->rank->vfs, CLUSTER_ROOT, &after, err));
    if (after.available_bytes + 3 * (before.available_bytes / 3) + 4096 < before.available_bytes)
        PD_FAIL(err, PD_BUG, "what did not fit stays");
    return PD_OK;
}

Test(store_generation, a_disk_that_is_too_small_shows_at_the_start)
{
    struct pd_disk_options options = {.seed = 1, .host_count = 1};
    options.mounts[0] = (struct pd_disk_mount){.path = "/", .capacity_bytes = 4 << 20};
    struct cluster cluster = {.ranks = 1, .hosts = 1};
    struct pd_error err = {0};
    expect(pd_simulated_disk_new(&options, &cluster.disk, &err), PD_OK, &err);
    launch(&cluster, reserve_too_much, NULL);
    cluster_free(&cluster);
}

/* ---- two threads ---- */

struct committer {
    struct generation *g;
    struct pd_run_state state;
    struct pd_shard_summary summary;
    pd_status st;
    struct pd_error err;
};

static void *commit_and_prune(void *argument)
{
    struct committer *c = argument;
    c->st = pd_store_commit(c->g->rank->store, PD_OK, &c->summary, &c->state, &c->err);
    if (c->st == PD_OK) c->st = pd_store_prune(c->g->rank->store, &c->err);
    return NULL;
}

/* A save ends in the background while the next generations are written. */
static pd_status commit_behind(struct generation *g, void *context, struct pd_error *err)
{
    (void)context;
    struct cluster_rank *rank = g->rank;
    for (uint64_t step = 1; step <= 300; step += 3) {
        struct pd_identity identity = cluster_identity(0, step);
        struct committer c = {.g = g};
        pthread_t thread;
        PD_TRY(generation_write(g, step, err));
        PD_TRY(generation_finish(g, err));
        PD_TRY(pd_store_begin_generation(rank->store, &identity, g->slot, rank->buffers, CLUSTER_BUFFER_BYTES, err));
        c.summary = g->summary;
        cluster_state(rank, &c.state, 0, step);
        if (pthread_create(&thread, NULL, commit_and_prune, &c) != 0) PD_FAIL(err, PD_NO_MEMORY, "no thread");
        pd_status st = generation_write(g, step + 1, err);
        if (st == PD_OK) st = generation_write(g, step + 2, err);
        pthread_join(thread, NULL);
        PD_TRY(st);
        if (c.st != PD_OK) *err = c.err;
        PD_TRY(c.st);
        PD_TRY(generation_read(g, err));
        for (uint32_t i = 0; i < pd_store_count(rank->store); i++)
            PD_TRY(cluster_load(rank, pd_store_entry_at(rank->store, i), err));
    }
    return PD_OK;
}

Test(store_generation, steps_go_on_while_a_save_ends)
{
    struct cluster cluster = cluster_that_lacks(1, 1, false, 0);
    launch(&cluster, commit_behind, NULL);
    cluster_free(&cluster);
}
