/* Generations, and others who are there too: workers that outlive their launch and write on into files they have open,
 * writes that the kernel finishes after a worker's death, a second launcher, a host that is away. Whatever they do, the
 * newest committed step loads, whole, and the launch that owns the store goes on. With links and without. */
#include "ckpt/io/vfs_ops.h"
#include "tests/helpers/generation_cluster.h"
#include "tests/helpers/store_expect.h"

TestSuite(store_zombies, .init = set_up);

/* Where state may lie; every test goes over all. */
static const struct place {
    unsigned lacks;
} places[] = {{0}, {PD_DISK_NO_LINKS}};
#define PLACE_COUNT (sizeof places / sizeof *places)

static struct cluster cluster_at(const struct place *place, uint32_t ranks, uint32_t hosts, bool shared, unsigned lacks)
{
    struct pd_disk_options options = {.seed = 1, .host_count = hosts + 1}; /* nobody's death reaches the last one */
    options.mounts[0] = (struct pd_disk_mount){.path = "/", .lacks = place->lacks | lacks, .shared = shared};
    struct cluster cluster = {.ranks = ranks, .hosts = hosts, .shared = shared};
    struct pd_error err = {0};
    expect(pd_simulated_disk_new(&options, &cluster.disk, &err), PD_OK, &err);
    return cluster;
}

/* ---- those who write on ---- */

#define HAUNTS_MAX 16u

/* Everything that may still be written through: files of late writes, generations of zombies. */
struct haunt {
    struct pd_file *files[HAUNTS_MAX];
    struct pd_vfs *vfs;
    uint32_t file_count;
    struct generation *zombies[HAUNTS_MAX];
    uint32_t zombie_count;
    uint64_t step;    /* of what zombies write */
    uint64_t written; /* successful writes */
    uint64_t newest;  /* that the launch has committed */
};

static void scribble(struct haunt *haunt, struct pd_file *file)
{
    static _Alignas(PD_VFS_ALIGN) char garbage[GENERATION_BYTES];
    memset(garbage, 0xee, sizeof garbage);
    for (uint64_t at = 0; at < 5 * sizeof garbage; at += sizeof garbage)
        haunt->written += pd_file_write(file, at, garbage, sizeof garbage, NULL) == PD_OK;
    (void)!pd_file_sync(file, NULL);
}

static void scribble_stream(struct haunt *haunt, const struct generation *g)
{
    if (g->stream) scribble(haunt, pd_shard_stream_file(g->stream));
}

/* Zombies write into what they hold, release it, take the next and write that too. */
static void haunt_once(struct haunt *haunt)
{
    for (uint32_t i = 0; i < haunt->file_count; i++)
        scribble(haunt, haunt->files[i]);
    haunt->step++;
    for (uint32_t i = 0; i < haunt->zombie_count; i++) {
        struct generation *g = haunt->zombies[i];
        scribble_stream(haunt, g);
        (void)!generation_write(g, haunt->step, NULL);
        scribble_stream(haunt, g);
    }
}

static void keep_open_in(struct haunt *haunt, const char *root)
{
    struct pd_listing listing = {0};
    struct pd_error err = {0};
    char pool[64];
    snprintf(pool, sizeof pool, "%.40s/pool-1", root);
    expect(pd_vfs_list(haunt->vfs, pool, &listing, &err), PD_OK, &err);
    for (uint32_t i = 0; i < listing.count; i++) {
        char path[256];
        if (strncmp(listing.names[i], "generation-", 11) != 0) continue;
        snprintf(path, sizeof path, "%s/%.150s", pool, listing.names[i]);
        cr_assert_lt(haunt->file_count, HAUNTS_MAX);
        expect(pd_file_open(haunt->vfs, path, PD_OPEN_WRITE | PD_OPEN_DIRECT, &haunt->files[haunt->file_count++], &err),
               PD_OK, &err);
    }
    pd_listing_deinit(&listing);
}

/* The files that workers hold, open for writing by somebody whom their death does not reach. */
static void keep_open(struct haunt *haunt, struct cluster *cluster)
{
    struct pd_error err = {0};
    expect(pd_simulated_disk_vfs(cluster->disk, cluster->hosts, &haunt->vfs, &err), PD_OK, &err);
    keep_open_in(haunt, CLUSTER_ROOT);
}

static void lay_to_rest(struct haunt *haunt)
{
    for (uint32_t i = 0; i < haunt->file_count; i++)
        (void)!pd_file_close(haunt->files[i], NULL);
    if (haunt->vfs) pd_vfs_free(haunt->vfs);
}

/* ---- the launch that is haunted ---- */

static pd_status load_all(struct cluster_rank *rank, struct pd_error *err)
{
    for (uint32_t i = 0; i < pd_store_count(rank->store); i++)
        PD_TRY(cluster_load(rank, pd_store_entry_at(rank->store, i), err));
    return PD_OK;
}

static pd_status haunted_step(struct generation *g, struct haunt *haunt, uint64_t step, struct pd_error *err)
{
    struct pd_group *group = g->rank->group;
    if (group->rank == 0) haunt_once(haunt);
    PD_TRY(pd_group_barrier(group, err));
    PD_TRY(pd_group_agree(group, generation_write(g, step, err), err));
    if (group->rank == 0) haunt_once(haunt);
    PD_TRY(pd_group_barrier(group, err));
    PD_TRY(pd_group_agree(group, generation_read(g, err), err));
    PD_TRY(generation_save(g, err));
    if (group->rank == 0) haunt_once(haunt);
    PD_TRY(pd_group_barrier(group, err));
    PD_TRY(load_all(g->rank, err));
    return pd_store_prune(g->rank->store, err);
}

/* Six steps on top of what is there, which is `newest`. */
static pd_status be_haunted(struct generation *g, struct haunt *haunt, struct pd_error *err)
{
    struct cluster_rank *rank = g->rank;
    uint64_t step = pd_store_count(rank->store) ? pd_store_entry_at(rank->store, 0)->step : 0;
    if (step != haunt->newest) PD_FAIL(err, PD_BUG, "step %llu is the newest", (unsigned long long)step);
    PD_TRY(load_all(rank, err));
    for (uint64_t next = step + 10; next < step + 16; next++)
        PD_TRY(haunted_step(g, haunt, next, err));
    PD_TRY(load_all(rank, err));
    if (rank->group->rank == 0) haunt->newest = step + 15;
    return pd_group_barrier(rank->group, err);
}

static pd_status haunted_script(struct cluster_rank *rank, struct pd_error *err)
{
    struct generation *g = calloc(1, sizeof *g);
    if (!g) PD_FAIL(err, PD_NO_MEMORY, "no memory");
    pd_status st = generation_init(g, rank, err);
    if (st == PD_OK) st = be_haunted(g, rank->context, err);
    generation_deinit(g);
    free(g);
    return st;
}

static pd_status launch_haunted(struct cluster *cluster, struct haunt *haunt, struct pd_error *err)
{
    struct pd_store_options options = generation_options();
    struct cluster own = *cluster;
    return cluster_launch_with(&own, &options, haunted_script, haunt, err);
}

/* ---- writes that the kernel finishes after a worker's death ---- */

struct first_launch {
    struct haunt *haunt;
    pd_status (*then)(struct generation *g, struct haunt *haunt, struct pd_error *err);
};

/* Steps 1 to 3 are committed, ranks are at 4, 5 and 6. */
static pd_status first_steps(struct generation *g, struct pd_error *err)
{
    for (uint64_t step = 1; step <= 3; step++)
        PD_TRY(generation_step(g, step, err));
    for (uint64_t step = 4; step <= 4 + g->rank->group->rank % 3; step++)
        PD_TRY(generation_write(g, step, err));
    return pd_group_barrier(g->rank->group, err);
}

static pd_status first_script(struct cluster_rank *rank, struct pd_error *err)
{
    const struct first_launch *first = rank->context;
    struct generation *g = calloc(1, sizeof *g);
    if (!g) PD_FAIL(err, PD_NO_MEMORY, "no memory");
    pd_status st = generation_init(g, rank, err);
    if (st == PD_OK) st = first_steps(g, err);
    if (st == PD_OK) st = first->then(g, first->haunt, err);
    generation_deinit(g);
    free(g);
    return st;
}

static void run_first(struct cluster *cluster, struct haunt *haunt,
                      pd_status (*then)(struct generation *, struct haunt *, struct pd_error *))
{
    struct pd_store_options options = generation_options();
    struct first_launch first = {haunt, then};
    struct pd_error err = {0};
    haunt->newest = 3;
    expect(cluster_launch_with(cluster, &options, first_script, &first, &err), PD_OK, &err);
}

static pd_status die_with_writes_in_flight(struct generation *g, struct haunt *haunt, struct pd_error *err)
{
    if (g->rank->group->rank == 0) keep_open(haunt, g->rank->cluster);
    return generation_kill_all(g->rank, err);
}

Test(store_zombies, writes_that_land_after_the_death_of_their_worker)
{
    for (unsigned i = 0; i < 3 * PLACE_COUNT; i++) {
        const unsigned world = i % 3;
        struct cluster cluster = cluster_at(&places[i / 3], world ? 4 : 1, world == 2 ? 2 : 1, true, 0);
        struct haunt haunt = {0};
        struct pd_error err = {0};
        run_first(&cluster, &haunt, die_with_writes_in_flight);
        cr_assert_eq(haunt.file_count, cluster.ranks);
        expect(launch_haunted(&cluster, &haunt, &err), PD_OK, &err);
        cr_assert_gt(haunt.written, 0u, "nobody wrote");
        lay_to_rest(&haunt);
        cluster_free(&cluster);
    }
}

/* ---- workers that outlive their launch ---- */

static pd_status outlive_rank_zero(struct generation *g, struct haunt *haunt, struct pd_error *err)
{
    struct pd_group *group = g->rank->group;
    if (group->rank >= 2) haunt->zombies[group->rank - 2] = g;
    PD_TRY(pd_group_barrier(group, err));
    pd_status st = PD_OK;
    if (group->rank == 0) {
        haunt->zombie_count = 2;
        haunt->step = 1000;
        pd_simulated_disk_kill(g->rank->cluster->disk, 0);
        st = launch_haunted(g->rank->cluster, haunt, err);
    }
    return pd_group_agree(group, st, err);
}

/* Host 0 is dead, the workers on host 1 live, hold their locks and write on into the shared directory. */
Test(store_zombies, workers_on_another_host_live_on)
{
    for (size_t i = 0; i < PLACE_COUNT; i++) {
        struct cluster cluster = cluster_at(&places[i], 4, 2, true, 0);
        struct haunt haunt = {0};
        struct pd_error err = {0};
        run_first(&cluster, &haunt, outlive_rank_zero);
        cr_assert_gt(haunt.written, 100u, "the zombies could not write");
        haunt.zombie_count = 0;
        expect(launch_haunted(&cluster, &haunt, &err), PD_OK, &err);
        cluster_free(&cluster);
    }
}

/* Where locks do not work a second launch comes in beside the first, which may do nothing any more but does not know yet. */
static pd_status be_overtaken(struct generation *g, struct haunt *haunt, struct pd_error *err)
{
    struct pd_group *group = g->rank->group;
    haunt->zombies[group->rank] = g;
    PD_TRY(pd_group_barrier(group, err));
    pd_status st = PD_OK;
    if (group->rank == 0) {
        haunt->zombie_count = group->size;
        haunt->step = 1000;
        st = launch_haunted(g->rank->cluster, haunt, err);
    }
    PD_TRY(pd_group_agree(group, st, err));
    if (!g->is_there) return PD_OK; /* its pool is gone, and its files with it */
    st = generation_save(g, err);
    if (st != PD_BUSY && st != PD_NOT_FOUND) PD_FAIL(err, PD_BUG, "a zombie that saves gets %s", pd_status_name(st));
    return PD_OK;
}

Test(store_zombies, a_launch_that_was_overtaken)
{
    for (unsigned i = 0; i < 3 * PLACE_COUNT; i++) {
        const unsigned world = i % 3;
        struct cluster cluster = cluster_at(&places[i / 3], world ? 4 : 1, world ? 2 : 1, world == 2, PD_DISK_NO_LOCKS);
        struct haunt haunt = {0};
        struct pd_error err = {0};
        run_first(&cluster, &haunt, be_overtaken);
        cr_assert_gt(haunt.written, 0u, "nobody wrote");
        haunt.zombie_count = 0;
        expect(launch_haunted(&cluster, &haunt, &err), PD_OK, &err);
        cluster_free(&cluster);
    }
}

/* Overtaken between linking and sealing: what was prepared is cleared, and the zombie's file is its own again. */
static pd_status overtaken_while_saving(struct generation *g, struct haunt *haunt, struct pd_error *err)
{
    struct cluster_rank *rank = g->rank;
    struct pd_identity identity = cluster_identity(0, g->step);
    struct pd_run_state state;
    PD_TRY(generation_finish(g, err));
    PD_TRY(pd_store_begin_generation(rank->store, &identity, g->slot, rank->buffers, CLUSTER_BUFFER_BYTES, err));
    PD_TRY(launch_haunted(rank->cluster, haunt, err));
    cluster_state(rank, &state, 0, g->step);
    pd_status st = pd_store_commit(rank->store, PD_OK, &g->summary, &state, err);
    if (st != PD_BUSY) PD_FAIL(err, PD_BUG, "a zombie that seals gets %s", pd_status_name(st));
    haunt->zombies[0] = g;
    haunt->zombie_count = 1;
    haunt->step = 1000;
    return launch_haunted(rank->cluster, haunt, err);
}

Test(store_zombies, a_launch_that_was_overtaken_between_link_and_seal)
{
    for (size_t i = 0; i < PLACE_COUNT; i++) {
        struct cluster cluster = cluster_at(&places[i], 1, 1, false, PD_DISK_NO_LOCKS);
        struct haunt haunt = {0};
        run_first(&cluster, &haunt, overtaken_while_saving);
        cr_assert_eq(haunt.newest, 33u);
        cluster_free(&cluster);
    }
}

/* ---- a launcher that takes over and dies before it has cleared anything ---- */

struct successor {
    uint64_t nth; /* operation of its open from which on all fail */
    bool fired, has_fence;
};

/* From a host of its own, where locks do not work. What it leaves of its open is all that stands against a commit. */
static pd_status take_over_and_die(struct cluster_rank *rank, struct successor *successor, struct pd_error *err)
{
    const struct pd_store_options options = cluster_options();
    struct pd_simulated_disk *disk = rank->cluster->disk;
    struct pd_store *store = NULL;
    struct pd_group alone;
    struct pd_vfs *vfs;
    struct pd_stat stat;
    pd_group_init_single(&alone);
    PD_TRY(pd_simulated_disk_vfs(disk, rank->cluster->hosts, &vfs, err));
    pd_simulated_disk_set_fault(
        disk, &(struct pd_disk_fault){.kind = PD_DISK_FAULT_ERROR, .nth = successor->nth, .persistent = true, .vfs = vfs});
    if (pd_store_open(vfs, CLUSTER_ROOT, &options, &alone, &store, NULL) == PD_OK) pd_store_close(store);
    successor->fired = pd_simulated_disk_fired(disk) > 0;
    pd_simulated_disk_set_fault(disk, NULL);
    successor->has_fence = pd_vfs_stat(rank->vfs, CLUSTER_ROOT "/fence-2", &stat, NULL) == PD_OK;
    pd_vfs_free(vfs);
    return PD_OK;
}

/* Everything of step 4 is written but its record. */
static pd_status overtaken_before_the_commit(struct cluster_rank *rank, struct pd_error *err)
{
    struct successor *successor = rank->context;
    struct pd_identity identity = cluster_identity(0, 4);
    struct pd_shard_summary summary;
    struct pd_run_state state;
    struct pd_error why;
    char path[4096];
    for (uint64_t step = 1; step <= 3; step++)
        PD_TRY(cluster_save(rank, step, err));
    PD_TRY(pd_store_begin(rank->store, &identity, path, err));
    cluster_fill(rank->values, 0, 4, rank->group->rank);
    const void *data[2] = {rank->values, rank->values + CLUSTER_ROWS * 3};
    PD_TRY(pd_shard_write(rank->writer, path, &identity, rank->group->rank, data, &summary, err));
    PD_TRY(pd_group_barrier(rank->group, err));
    const pd_status died = rank->group->rank == 0 ? take_over_and_die(rank, successor, err) : PD_OK;
    PD_TRY(pd_group_agree(rank->group, died, err));
    cluster_state(rank, &state, 0, 4);
    const pd_status st = pd_store_commit(rank->store, PD_OK, &summary, &state, &why);
    if (st != (successor->has_fence ? PD_BUSY : PD_OK))
        PD_FAIL(err, PD_BUG, "operation %llu, %s fence: the commit gets %s: %s", (unsigned long long)successor->nth,
                successor->has_fence ? "with a newer" : "without a newer", pd_status_name(st), why.message);
    return PD_OK;
}

static pd_status load_step(struct cluster_rank *rank, struct pd_error *err)
{
    uint64_t step = 0;
    uint32_t damaged = 0;
    PD_TRY(cluster_load_newest(rank, &step, &damaged, err));
    if (damaged || step != *(const uint64_t *)rank->context)
        PD_FAIL(err, PD_BUG, "step %llu loads", (unsigned long long)step);
    return PD_OK;
}

Test(store_zombies, a_successor_that_dies_while_it_opens)
{
    for (uint32_t ranks = 1; ranks <= 4; ranks += 3) {
        struct successor successor = {.fired = true};
        uint64_t fences = 0;
        while (successor.fired) {
            struct cluster cluster = cluster_at(&places[0], ranks, ranks > 1 ? 2 : 1, true, PD_DISK_NO_LOCKS);
            struct pd_error err = {0};
            successor.nth++;
            expect(cluster_launch(&cluster, overtaken_before_the_commit, &successor, &err), PD_OK, &err);
            fences += successor.fired && successor.has_fence;
            expect(cluster_launch(&cluster, load_step, &(uint64_t){successor.has_fence ? 3 : 4}, &err), PD_OK, &err);
            cluster_free(&cluster);
        }
        cr_assert_gt(fences, 10u, "it died behind its fence %llu times", (unsigned long long)fences);
        cr_assert_gt(successor.nth, fences + 5, "and before it");
    }
}

/* ---- one that is overtaken between the record and the name ---- */

static struct {
    const struct pd_vfs_ops *ops; /* of the disk */
    struct cluster *cluster;
    pd_status took; /* what the launch that came in between got */
    uint64_t found; /* the step that it went on from */
} between;

static pd_status go_on(struct cluster_rank *rank, struct pd_error *err)
{
    uint32_t damaged;
    return cluster_load_newest(rank, &between.found, &damaged, err);
}

/* A whole launch comes and goes before the directory that is being committed gets its name. */
static int rename_too_late(struct pd_vfs *vfs, const char *from, const char *to)
{
    const size_t length = strlen(from);
    if (length > 4 && strcmp(from + length - 4, ".tmp") == 0 && between.cluster) {
        struct cluster own = *between.cluster;
        struct pd_error err;
        between.cluster = NULL;
        between.took = cluster_launch(&own, go_on, NULL, &err);
    }
    return between.ops->rename(vfs, from, to);
}

static pd_status commit_too_late(struct cluster_rank *rank, struct pd_error *err)
{
    struct pd_vfs_ops late = *rank->vfs->ops;
    struct pd_error why = {0};
    PD_TRY(cluster_save(rank, 1, err));
    between.ops = rank->vfs->ops;
    between.cluster = rank->cluster;
    late.rename = rename_too_late;
    rank->vfs->ops = &late;
    const pd_status st = cluster_save(rank, 2, &why);
    rank->vfs->ops = between.ops;
    if (st != PD_BUSY) PD_FAIL(err, PD_BUG, "it gets %s: %s", pd_status_name(st), why.message);
    return PD_OK;
}

/* The record was durable, so the launch that has taken over goes on from that step, and who was overtaken takes nothing away. */
Test(store_zombies, a_launch_that_was_overtaken_between_record_and_name)
{
    struct cluster cluster = cluster_at(&places[0], 1, 1, false, PD_DISK_NO_LOCKS);
    struct pd_error err = {0};
    expect(cluster_launch(&cluster, commit_too_late, NULL, &err), PD_OK, &err);
    expect(between.took, PD_OK, &err);
    cr_assert_eq(between.found, 2u);
    expect(cluster_launch(&cluster, load_step, &(uint64_t){2}, &err), PD_OK, &err);
    cluster_free(&cluster);
}

/* ---- a second launcher ---- */

static pd_status meet_a_second_launcher(struct generation *g, struct haunt *haunt, struct pd_error *err)
{
    struct pd_group *group = g->rank->group;
    for (uint64_t step = 20; step < 24; step++) {
        pd_status st = PD_OK;
        if (group->rank == 0) {
            struct pd_error why = {0};
            pd_status second = launch_haunted(g->rank->cluster, haunt, &why);
            if (second != PD_BUSY)
                st = pd_error_set(err, PD_BUG, PD_WHERE, 0, "a second launch gets %s", pd_status_name(second));
        }
        PD_TRY(pd_group_agree(group, st, err));
        PD_TRY(pd_group_agree(group, generation_read(g, err), err));
        PD_TRY(generation_step(g, step, err));
    }
    return load_all(g->rank, err);
}

Test(store_zombies, a_second_launcher_is_refused_and_harms_nothing)
{
    for (unsigned i = 0; i < 2 * PLACE_COUNT; i++) {
        struct cluster cluster = cluster_at(&places[i / 2], 4, 2, i % 2, 0);
        struct haunt haunt = {0};
        struct pd_error err = {0};
        run_first(&cluster, &haunt, meet_a_second_launcher);
        haunt.newest = 23;
        expect(launch_haunted(&cluster, &haunt, &err), PD_OK, &err);
        cluster_free(&cluster);
    }
}

/* ---- a host that is away ---- */

static pd_status die(struct generation *g, struct haunt *haunt, struct pd_error *err)
{
    (void)haunt;
    return generation_kill_all(g->rank, err);
}

/* Half of everything is out of sight: nothing is offered, and steps that are taken meanwhile cost nothing that was committed.
 */
static pd_status make_do(struct cluster_rank *rank, struct pd_error *err)
{
    struct generation *g = calloc(1, sizeof *g);
    if (!g) PD_FAIL(err, PD_NO_MEMORY, "no memory");
    pd_status st = generation_init(g, rank, err);
    if (st == PD_OK && pd_store_count(rank->store)) st = pd_error_set(err, PD_BUG, PD_WHERE, 0, "half of it is offered");
    for (uint64_t step = 50; st == PD_OK && step < 55; step++)
        st = generation_write(g, step, err);
    if (st == PD_OK) st = generation_kill_all(rank, err);
    generation_deinit(g);
    free(g);
    return st;
}

Test(store_zombies, a_host_with_its_disk_is_away)
{
    for (uint64_t seed = 0; seed < 4 * PLACE_COUNT; seed++) {
        struct cluster cluster = cluster_at(&places[seed / 4], 4, 2, false, 0), alone;
        struct pd_store_options options = generation_options();
        struct haunt haunt = {0};
        struct pd_error err = {0};
        run_first(&cluster, &haunt, die);
        alone = cluster;
        alone.ranks = 2;
        alone.hosts = 1;
        expect(cluster_launch_with(&alone, &options, make_do, NULL, &err), PD_OK, &err);
        pd_simulated_disk_crash(cluster.disk, seed % 2 ? 0 : PD_DISK_ALL_HOSTS, seed);
        expect(launch_haunted(&cluster, &haunt, &err), PD_OK, &err);
        cluster_free(&cluster);
    }
}

/* On a shared disk the other host takes its ranks over. */
Test(store_zombies, a_host_is_gone_for_good)
{
    for (size_t i = 0; i < PLACE_COUNT; i++) {
        struct cluster cluster = cluster_at(&places[i], 4, 2, true, 0);
        struct haunt haunt = {0};
        struct pd_error err = {0};
        run_first(&cluster, &haunt, die);
        cluster.hosts = 1;
        expect(launch_haunted(&cluster, &haunt, &err), PD_OK, &err);
        expect(launch_haunted(&cluster, &haunt, &err), PD_OK, &err);
        cluster_free(&cluster);
    }
}
