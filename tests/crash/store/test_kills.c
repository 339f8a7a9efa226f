/* The store on the real disk: a process dies by SIGKILL at each named place of the protocol, the next one opens and goes on.
 * (A kill proves nothing about syncs; the simulated disk does.) And many saves leak nothing. */
#include "ckpt/base/fault.h"
#include "ckpt/base/log.h"
#include "tests/helpers/generation_cluster.h"
#include "tests/helpers/scale.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <ftw.h>
#include <malloc.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static char root[64];

static int remove_entry(const char *path, const struct stat *stat, int type, struct FTW *ftw)
{
    (void)stat;
    (void)type;
    (void)ftw;
    return remove(path);
}

static void set_up(void)
{
    const char *base = getenv("TMPDIR");
    snprintf(root, sizeof root, "%s/perdure-store-XXXXXX", base ? base : "/tmp");
    cr_assert(mkdtemp(root));
    cr_assert_eq(pd_log_configure("error", NULL), PD_OK);
}

static void tear_down(void)
{
    (void)nftw(root, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

TestSuite(store_kills, .init = set_up, .fini = tear_down);

/* Two steps beyond whatever is there; what it promised is in the status of the process. */
static pd_status save_two(struct cluster_rank *rank, struct pd_error *err)
{
    uint64_t step = pd_store_count(rank->store) ? pd_store_entry_at(rank->store, 0)->step : 0;
    for (unsigned i = 0; i < 2; i++) {
        PD_TRY(cluster_save(rank, ++step, err));
        PD_TRY(pd_store_prune(rank->store, err));
    }
    return PD_OK;
}

/* The same with state in files. Between the two saves a step that is not saved. */
static pd_status step_twice(struct cluster_rank *rank, struct pd_error *err)
{
    struct generation *g = calloc(1, sizeof *g);
    if (!g) PD_FAIL(err, PD_NO_MEMORY, "no memory");
    uint64_t step = pd_store_count(rank->store) ? pd_store_entry_at(rank->store, 0)->step : 0;
    pd_status st = generation_init(g, rank, err);
    if (st == PD_OK) st = generation_step(g, step + 1, err);
    if (st == PD_OK) st = pd_group_agree(rank->group, generation_write(g, step + 1000, err), err);
    if (st == PD_OK) st = generation_step(g, step + 2, err);
    generation_deinit(g);
    free(g);
    return st;
}

/* In a process of its own, which dies at the place if it comes by it often enough. True when it was killed. */
static bool die_at(struct cluster *cluster, cluster_script *script, const char *place, unsigned nth)
{
    struct pd_store_options options = script == step_twice ? generation_options() : cluster_options();
    pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        char spec[128];
        snprintf(spec, sizeof spec, "%s:%u", place, nth);
        pd_status st = pd_fault_configure(spec, NULL, NULL);
        if (st == PD_OK) st = cluster_launch_with(cluster, &options, script, NULL, NULL);
        _exit(st == PD_OK ? 0 : 1);
    }
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    bool was_killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    cr_assert(was_killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0), "%s:%u: status %d", place, nth, status);
    return was_killed;
}

static pd_status load_all(struct cluster_rank *rank, struct pd_error *err)
{
    uint64_t *newest = rank->context;
    for (uint32_t i = 0; i < pd_store_count(rank->store); i++)
        PD_TRY(cluster_load(rank, pd_store_entry_at(rank->store, i), err));
    if (rank->group->rank == 0) *newest = pd_store_count(rank->store) ? pd_store_entry_at(rank->store, 0)->step : 0;
    return PD_OK;
}

static uint64_t newest_step(struct cluster *cluster)
{
    uint64_t newest = 0;
    struct pd_error err = {0};
    cr_assert_eq(cluster_launch(cluster, load_all, &newest, &err), PD_OK, "%s", err.message);
    return newest;
}

static void kill_everywhere(uint32_t ranks, cluster_script *script)
{
    static const struct {
        const char *name;
        bool seals; /* once it is passed, a checkpoint more is there */
    } places[] = {
        {"store.open.fenced", false},      {"store.open.recovered", false}, {"store.begin.made", false},
        {"store.prepare.written", false},  {"store.prepare.synced", false}, {"store.commit.checked", false},
        {"store.commit.recorded", true},   {"store.commit.renamed", true},  {"store.commit.done", true},
        {"store.remove.unrecorded", true}, {"store.remove.hidden", true},   {"store.begin.linked", false},
    };
    struct cluster cluster = {.ranks = ranks, .hosts = 1, .root = root};
    uint64_t before = 0;
    cr_assert_not(die_at(&cluster, script, "store.never.passed", 1));
    before = newest_step(&cluster);
    cr_assert_eq(before, 2);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        if (script != step_twice && strcmp(places[i].name, "store.begin.linked") == 0) continue;
        for (unsigned nth = 1; nth <= 2; nth++) {
            bool was_killed = die_at(&cluster, script, places[i].name, nth);
            if (nth == 1) cr_assert(was_killed, "%s is never passed", places[i].name);
            uint64_t after = newest_step(&cluster), least = before + (places[i].seals && ranks == 1 ? 1 : 0);
            if (!was_killed) least = before + 2;
            cr_assert(after >= least && after <= before + 2, "killed at %s:%u: step %llu after %llu", places[i].name, nth,
                      (unsigned long long)after, (unsigned long long)before);
            before = after;
        }
    }
}

Test(store_kills, one_rank)
{
    kill_everywhere(1, save_two);
}

Test(store_kills, four_ranks)
{
    kill_everywhere(4, save_two);
}

Test(store_kills, one_rank_with_generations)
{
    kill_everywhere(1, step_twice);
}

Test(store_kills, four_ranks_with_generations)
{
    kill_everywhere(4, step_twice);
}

/* ---- at random moments ---- */

struct promise {
    uint64_t step;   /* rank 0 was told that it is committed */
    pd_status found; /* what the last launch made of what the one before had left */
    struct pd_error error;
};

/* Goes on from what is there, which is whole and no older than what was promised, until it is killed. */
static pd_status save_until_killed(struct cluster_rank *rank, struct pd_error *err)
{
    struct promise *promise = rank->context;
    uint64_t step = pd_store_count(rank->store) ? pd_store_entry_at(rank->store, 0)->step : 0;
    const pd_status st = step ? cluster_load(rank, pd_store_entry_at(rank->store, 0), err) : PD_OK;
    PD_TRY(st);
    if (step < promise->step)
        PD_FAIL(err, PD_BUG, "step %llu after a promise of %llu", (unsigned long long)step,
                (unsigned long long)promise->step);
    for (;;) {
        PD_TRY(cluster_save(rank, ++step, err));
        if (rank->group->rank == 0) promise->step = step;
        PD_TRY(pd_store_prune(rank->store, err));
    }
}

static void live_for(struct cluster *cluster, struct promise *promise, uint64_t microseconds)
{
    const pid_t child = fork();
    int status;
    cr_assert_geq(child, 0);
    if (child == 0) {
        promise->found = cluster_launch(cluster, save_until_killed, promise, &promise->error);
        _exit(1);
    }
    usleep((useconds_t)microseconds);
    kill(child, SIGKILL);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFSIGNALED(status), "%s", promise->error.message);
}

Test(store_kills, at_random_moments)
{
    const uint64_t kills = test_scale() >= 10 ? 5000 : 50 * test_scale();
    struct promise *promise = mmap(NULL, sizeof *promise, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct cluster cluster = {.ranks = 2, .hosts = 1, .root = root};
    uint64_t dice = 17;
    cr_assert_neq((void *)promise, MAP_FAILED);
    for (uint64_t i = 0; i < kills; i++)
        live_for(&cluster, promise, (dice = cluster_mix(dice)) % 30000);
    fprintf(stderr, "%llu kills at random moments, step %llu is whole\n", (unsigned long long)kills,
            (unsigned long long)newest_step(&cluster));
    munmap(promise, sizeof *promise);
}

static unsigned open_descriptors(void)
{
    unsigned count = 0;
    DIR *directory = opendir("/proc/self/fd");
    cr_assert(directory);
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

static pd_status save_often(struct cluster_rank *rank, struct pd_error *err)
{
    unsigned *descriptors = rank->context;
    for (uint64_t step = 1; step <= 200; step++) {
        PD_TRY(cluster_save(rank, step, err));
        PD_TRY(pd_store_prune(rank->store, err));
        if (step == 10) descriptors[0] = open_descriptors();
        if (step == 200) descriptors[1] = open_descriptors();
    }
    return PD_OK;
}

Test(store_kills, many_saves_leave_no_descriptors)
{
    struct cluster cluster = {.ranks = 1, .hosts = 1, .root = root};
    struct pd_error err = {0};
    unsigned descriptors[2];
    cr_assert_eq(cluster_launch(&cluster, save_often, descriptors, &err), PD_OK, "%s", err.message);
    cr_assert_eq(descriptors[0], descriptors[1]);
}

struct usage {
    unsigned descriptors, files;
    uint64_t heap_bytes;
};

static unsigned file_count;

static int count_entry(const char *path, const struct stat *stat, int type, struct FTW *ftw)
{
    (void)path;
    (void)stat;
    (void)ftw;
    file_count += type == FTW_F;
    return 0;
}

static struct usage usage_now(void)
{
    file_count = 0;
    cr_assert_eq(nftw(root, count_entry, 16, FTW_PHYS), 0);
    return (struct usage){open_descriptors(), file_count, mallinfo2().uordblks};
}

/* A step between two saves keeps more files in use than saving each step does. */
static pd_status step_often(struct cluster_rank *rank, struct pd_error *err)
{
    struct usage *usage = rank->context;
    struct generation *g = calloc(1, sizeof *g);
    if (!g) PD_FAIL(err, PD_NO_MEMORY, "no memory");
    pd_status st = generation_init(g, rank, err);
    for (uint64_t step = 1; st == PD_OK && step <= 1000; step++) {
        st = generation_write(g, 10000 + step, err);
        if (st == PD_OK) st = generation_step(g, step, err);
        if (step == 10) usage[0] = usage_now();
        if (step == 1000) usage[1] = usage_now();
    }
    generation_deinit(g);
    free(g);
    return st;
}

Test(store_kills, a_thousand_saves_of_generations_leave_nothing)
{
    struct cluster cluster = {.ranks = 1, .hosts = 1, .root = root};
    struct pd_store_options options = generation_options();
    struct pd_error err = {0};
    struct usage usage[2];
    cr_assert_eq(cluster_launch_with(&cluster, &options, step_often, usage, &err), PD_OK, "%s", err.message);
    cr_assert_eq(usage[0].descriptors, usage[1].descriptors);
    cr_assert_eq(usage[0].files, usage[1].files, "%u files after 10 saves, %u after 1000", usage[0].files, usage[1].files);
    cr_assert_leq(usage[1].heap_bytes, usage[0].heap_bytes + (1 << 20));
}

/* `perdure ckpt ls` and `prune` beside a living run: one looks, the other is refused. */
static pd_status be_watched(struct cluster_rank *rank, struct pd_error *err)
{
    struct pd_store_options look = {.keep_last = 1}, prune = {.writable = true, .keep_last = 1};
    struct pd_group alone;
    struct pd_store *store = NULL;
    PD_TRY(cluster_save(rank, 1, err));
    PD_TRY(cluster_save(rank, 2, err));
    pd_group_init_single(&alone);
    PD_TRY(pd_store_open(rank->vfs, root, &look, &alone, &store, err));
    uint32_t seen = pd_store_count(store);
    pd_store_close(store);
    store = NULL;
    if (seen != 2) PD_FAIL(err, PD_BUG, "%u checkpoints are seen", seen);
    pd_status st = pd_store_open(rank->vfs, root, &prune, &alone, &store, err);
    if (st != PD_BUSY) PD_FAIL(err, PD_BUG, "pruning beside a run gets %s", pd_status_name(st));
    return cluster_save(rank, 3, err);
}

Test(store_kills, looking_and_pruning_beside_a_run)
{
    struct cluster cluster = {.ranks = 1, .hosts = 1, .root = root};
    struct pd_error err = {0};
    cr_assert_eq(cluster_launch(&cluster, be_watched, NULL, &err), PD_OK, "%s", err.message);
}
