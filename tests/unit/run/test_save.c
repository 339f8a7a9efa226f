/* Saves in the background: the bits of a save that nothing overlaps, whatever training does meanwhile; outcomes in order;
 * nothing grows. The group that ranks meet in is a gate here: closed, it holds a save before its first byte is copied. */
#include "ckpt/base/digest.h"
#include "tests/unit/run/saved_run.h"
#include "trainer/run/metrics.h"

#include <dirent.h>
#include <pthread.h>

enum { STEPS = 5, HELD_MS = 200, MANY = 1000, WARM = 200 };
#define GROWTH_MAX (UINT64_C(1) << 20)

/* ---- the gate ---- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t opened;
    bool is_closed;
    pd_status refusal; /* what the next agreement fails with */
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .opened = PTHREAD_COND_INITIALIZER};

static void gate_set(bool is_closed)
{
    pthread_mutex_lock(&gate.lock);
    gate.is_closed = is_closed;
    pthread_cond_broadcast(&gate.opened);
    pthread_mutex_unlock(&gate.lock);
}

static pd_status gate_pass(struct pd_group *group, struct pd_error *err)
{
    (void)group;
    pthread_mutex_lock(&gate.lock);
    while (gate.is_closed)
        pthread_cond_wait(&gate.opened, &gate.lock);
    pd_status refusal = gate.refusal;
    gate.refusal = PD_OK;
    pthread_mutex_unlock(&gate.lock);
    return refusal ? pd_error_set(err, refusal, PD_WHERE, 0, "refused by the test") : PD_OK;
}

static pd_status gate_gather(struct pd_group *group, uint32_t root, const void *send, uint64_t bytes, void *recv,
                             struct pd_error *err)
{
    struct pd_group single;
    PD_TRY(gate_pass(group, err));
    pd_group_init_single(&single);
    return pd_group_gather(&single, root, send, bytes, recv, err);
}

static pd_status gate_broadcast(struct pd_group *group, uint32_t root, void *data, uint64_t bytes, struct pd_error *err)
{
    (void)group, (void)root, (void)data, (void)bytes, (void)err;
    return PD_OK;
}

static pd_status gate_exchange(struct pd_group *group, const struct pd_group_piece *sends, uint32_t send_count,
                               const struct pd_group_piece *recvs, uint32_t recv_count, struct pd_error *err)
{
    struct pd_group single;
    (void)group;
    pd_group_init_single(&single);
    return pd_group_exchange(&single, sends, send_count, recvs, recv_count, err);
}

static const struct pd_group_ops gate_ops = {
    .name = "gate", .barrier = gate_pass, .gather = gate_gather, .broadcast = gate_broadcast, .exchange = gate_exchange};

static void run_init(struct run *r, const char *where, uint32_t hidden, uint32_t keep_last, uint32_t in_flight)
{
    char keys[160];
    snprintf(keys, sizeof keys, "model: {family: gpt2, vocab: 256, context: 16, layers: 2, hidden: %u, heads: 2}\n", hidden);
    run_make(r, where, keys);
    OK(pd_state_init(r->whole.engine->state, NULL, err));
    r->group = (struct pd_group){.ops = &gate_ops, .size = 1, .host_count = 1};
    run_open_tier(r, keep_last);
    run_open_saver(r, in_flight);
}

/* The whole shard of a step: identity is the same in every run here, so files are too. */
static uint64_t shard_digest(const struct run *r, uint64_t number)
{
    char path[192];
    snprintf(path, sizeof path, "%s/step-%012llu-1/shard-00000.h5", r->root, (unsigned long long)number);
    FILE *f = fopen(path, "r");
    cr_assert_not_null(f, "%s", path);
    cr_assert_eq(fseek(f, 0, SEEK_END), 0);
    size_t bytes = (size_t)ftell(f);
    rewind(f);
    void *data = malloc(bytes);
    cr_assert_eq(fread(data, 1, bytes, f), bytes);
    uint64_t digest = pd_digest64(data, bytes, 0);
    free(data);
    fclose(f);
    return digest;
}

/* Digests of the shards of STEPS steps, each saved while nothing else happens. */
static void run_alone(const char *where, uint32_t hidden, uint64_t *ret_digests)
{
    struct run r;
    run_init(&r, where, hidden, STEPS, 1);
    for (int i = 0; i < STEPS; i++) {
        run_step(&r);
        OK(run_save(r.saver, &r.state, err));
        ret_digests[i] = shard_digest(&r, r.state.identity.step);
    }
    run_close(&r);
}

/* ---- bits ---- */

static void check_overlapped(const char *where, uint32_t hidden)
{
    uint64_t alone[STEPS];
    struct run r;
    run_alone(where, hidden, alone);
    run_init(&r, where, hidden, STEPS, 1);
    pd_saver_keep_ready(r.saver);
    for (int i = 0; i < STEPS; i++) {
        run_step(&r);
        pd_saver_start(r.saver, &r.state, false);
        struct pd_saver_outcome outcome;
        while (pd_saver_collect(r.saver, pd_saver_finished(r.saver), &outcome))
            cr_assert_eq(outcome.status, PD_OK, "%s", outcome.error.message);
    }
    pd_saver_wait(r.saver);
    for (uint64_t i = 0; i < STEPS; i++)
        cr_assert_eq(shard_digest(&r, i + 1), alone[i], "step %llu, saved while the next one ran, differs",
                     (unsigned long long)i + 1);
    run_close(&r);
}

Test(save, in_the_background_has_the_same_bits)
{
    check_overlapped("/tmp", 32);  /* a file that is one write */
    check_overlapped("/tmp", 192); /* pieces in flight */
}

/* NULL: there is no room in memory. */
static const char *memory_dir(void)
{
    struct pd_vfs *vfs;
    struct pd_space space;
    OK(pd_vfs_new_auto(&vfs, err));
    pd_status st = pd_vfs_space(vfs, "/dev/shm", &space, NULL);
    pd_vfs_free(vfs);
    return !st && space.in_memory && space.available_bytes > (256u << 20) ? "/dev/shm" : NULL;
}

Test(save, in_memory_has_the_same_bits)
{
    if (!memory_dir()) cr_skip("/dev/shm has no room");
    check_overlapped(memory_dir(), 192);
}

/* ---- the wait ---- */

struct late {
    bool is_stepped;
};

/* Opens the gate once the step is through, which only a step that does not wait comes to; else after a while. */
static void *open_late(void *argument)
{
    struct late *late = argument;
    for (int ms = 0; ms < HELD_MS; ms++) {
        pthread_mutex_lock(&gate.lock);
        bool is_stepped = late->is_stepped;
        pthread_mutex_unlock(&gate.lock);
        if (is_stepped) break;
        usleep(1000);
    }
    gate_set(false);
    return NULL;
}

Test(save, an_update_waits_for_the_copy)
{
    uint64_t alone[STEPS];
    struct run r;
    struct late late = {0};
    pthread_t thread;
    run_alone("/tmp", 32, alone);
    run_init(&r, "/tmp", 32, STEPS, 1);
    run_step(&r);
    gate_set(true);
    pd_saver_start(r.saver, &r.state, false);
    cr_assert_eq(pthread_create(&thread, NULL, open_late, &late), 0);
    run_step(&r);
    pthread_mutex_lock(&gate.lock);
    late.is_stepped = true;
    pthread_mutex_unlock(&gate.lock);
    struct pd_saver_outcome outcome = run_collect(&r);
    pthread_join(thread, NULL);
    cr_assert_eq(outcome.status, PD_OK, "%s", outcome.error.message);
    cr_assert_eq(shard_digest(&r, 1), alone[0], "the update changed what was being saved");
    cr_assert_gt(outcome.stall_seconds, 0);
    run_close(&r);
}

Test(save, two_in_flight_end_in_order)
{
    struct run r;
    struct pd_saver_outcome outcome;
    run_init(&r, "/tmp", 32, STEPS, 2);
    gate_set(true);
    for (int i = 0; i < 2; i++) {
        r.state.identity.step++;
        pd_saver_start(r.saver, &r.state, false);
    }
    cr_assert_eq(pd_saver_finished(r.saver), 0);
    cr_assert_not(pd_saver_collect(r.saver, 0, &outcome));
    gate_set(false);
    pd_saver_wait(r.saver);
    for (uint64_t i = 1; i <= 2; i++) {
        cr_assert(pd_saver_collect(r.saver, 2, &outcome));
        cr_assert_eq(outcome.step, i);
        cr_assert_eq(outcome.status, PD_OK, "%s", outcome.error.message);
    }
    cr_assert_not(pd_saver_collect(r.saver, 2, &outcome));
    run_close(&r);
}

Test(save, one_that_fails_says_so_and_the_next_one_succeeds)
{
    struct run r;
    run_init(&r, "/tmp", 32, STEPS, 1);
    run_step(&r);
    pthread_mutex_lock(&gate.lock);
    gate.refusal = PD_IO;
    pthread_mutex_unlock(&gate.lock);
    pd_saver_start(r.saver, &r.state, false);
    run_step(&r); /* waits for no copy that will never be */
    struct pd_saver_outcome outcome = run_collect(&r);
    cr_assert_eq(outcome.status, PD_IO);
    cr_assert_eq(outcome.step, 1);
    cr_assert(strstr(outcome.error.message, "refused by the test"), "%s", outcome.error.message);
    pd_saver_start(r.saver, &r.state, false);
    outcome = run_collect(&r);
    cr_assert_eq(outcome.status, PD_OK, "%s", outcome.error.message);
    cr_assert_eq(pd_store_count(pd_tiers_store(r.tiers, 0)), 1);
    run_close(&r);
}

/* ---- nothing grows ---- */

struct usage {
    uint64_t resident, files, bytes, descriptors;
};

static void count_files(const char *path, struct usage *usage)
{
    DIR *dir = opendir(path);
    cr_assert_not_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        char below[512];
        struct stat st;
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        snprintf(below, sizeof below, "%s/%s", path, e->d_name);
        cr_assert_eq(lstat(below, &st), 0);
        usage->files++;
        usage->bytes += (uint64_t)st.st_blocks * 512;
        if (S_ISDIR(st.st_mode)) count_files(below, usage);
    }
    closedir(dir);
}

static struct usage usage_of(const struct run *r)
{
    struct usage usage = {.resident = pd_metrics_resident_bytes()}, own = {0};
    count_files(r->root, &usage);
    count_files("/proc/self/fd", &own);
    usage.descriptors = own.files;
    return usage;
}

Test(save, a_thousand_saves_leave_nothing_behind)
{
    struct run r;
    struct usage before = {0}, after;
    run_init(&r, memory_dir() ? memory_dir() : "/tmp", 32, 2, 1); /* a disk under load takes a second a save */
    for (int i = 0; i < MANY + WARM; i++) {
        struct pd_saver_outcome outcome;
        if (i == WARM) before = usage_of(&r);
        if (i % 50 == 0) run_step(&r); /* some of them overlap */
        r.state.identity.step++;
        pd_saver_start(r.saver, &r.state, false);
        while (pd_saver_collect(r.saver, pd_saver_finished(r.saver), &outcome))
            cr_assert_eq(outcome.status, PD_OK, "%s", outcome.error.message);
        if (i + 1 == WARM || i + 1 == MANY + WARM) pd_saver_wait(r.saver);
    }
    after = usage_of(&r);
    cr_assert_leq(after.resident, before.resident + GROWTH_MAX, "%llu bytes resident, %llu before",
                  (unsigned long long)after.resident, (unsigned long long)before.resident);
    cr_assert_eq(after.files, before.files, "%llu files, %llu before", (unsigned long long)after.files,
                 (unsigned long long)before.files);
    cr_assert_leq(after.bytes, before.bytes + GROWTH_MAX);
    cr_assert_eq(after.descriptors, before.descriptors);
    run_close(&r);
}
