/* A save that fails in the first tier goes to the next one in its own step while the state is as it was, and only then. The
 * VFS's sync of directories is a gate: in the first tier it fails, at once or when the test lets it. */
#include "ckpt/base/digest.h"
#include "ckpt/io/vfs_ops.h"
#include "tests/unit/run/saved_run.h"

#include <errno.h>
#include <pthread.h>

enum { SAVES = 4, SLOW_MS = 100 };

static struct {
    struct pd_vfs_ops ops;
    const struct pd_vfs_ops *inner;
    char first[96];                            /* the first tier */
    _Atomic bool fails, is_held, has_moved_on; /* has_moved_on: the second tier is being written */
    _Atomic int slow_ms;                       /* of the second tier */
} gate;

static int gate_sync_dir(struct pd_vfs *vfs, const char *path)
{
    const bool is_first = strncmp(path, gate.first, strlen(gate.first)) == 0;
    while (is_first && atomic_load(&gate.is_held))
        usleep(1000);
    if (is_first && atomic_load(&gate.fails)) return EIO;
    return gate.inner->sync_dir(vfs, path);
}

static int gate_mkdir(struct pd_vfs *vfs, const char *path)
{
    if (strncmp(path, gate.first, strlen(gate.first)) != 0) {
        atomic_store(&gate.has_moved_on, true);
        usleep((useconds_t)atomic_load(&gate.slow_ms) * 1000);
    }
    return gate.inner->mkdir(vfs, path);
}

struct two {
    struct run run;
    struct pd_group groups[2];
    char far[96];
};

static void open_two(struct two *t, const char *place)
{
    struct run *r = &t->run;
    char keys[200];
    snprintf(keys, sizeof keys,
             "model: {family: llama, vocab: 256, context: 16, layers: 1, hidden: 128, heads: 2}\n"
             "offload: {optimizer: %s, buffer_bytes: 8M}\n",
             place);
    run_make(r, "/tmp", keys);
    snprintf(t->far, sizeof t->far, "%s/far", r->folder);
    cr_assert_eq(mkdir(t->far, 0777), 0);
    snprintf(gate.first, sizeof gate.first, "%s", r->root);
    gate.inner = r->vfs->ops;
    gate.ops = *r->vfs->ops;
    gate.ops.sync_dir = gate_sync_dir;
    gate.ops.mkdir = gate_mkdir;
    r->vfs->ops = &gate.ops;
    pd_group_init_single(&t->groups[0]);
    pd_group_init_single(&t->groups[1]);
    run_open_tiers(r, &(struct pd_tiers_options){.tiers = {{.dir = r->root, .every = 1, .keep_last = SAVES},
                                                           {.dir = t->far, .every = 0, .keep_last = SAVES}},
                                                 .count = 2,
                                                 .groups = {&t->groups[0], &t->groups[1]}});
    if (r->config.offload.optimizer == PD_PLACE_NVME) {
        OK(pd_state_open(r->whole.engine->state, r->vfs, pd_tiers_store(r->tiers, 0), err));
        OK(pd_state_init(r->whole.engine->state, &r->state.identity, err));
    } else {
        OK(pd_state_init(r->whole.engine->state, NULL, err));
    }
    OK(pd_tiers_start(r->tiers, err));
    run_open_saver(r, 1);
}

/* Of the shard of a step; 0: it is not there. */
static uint64_t shard_digest(const char *root, uint64_t step)
{
    char path[192];
    snprintf(path, sizeof path, "%s/step-%012llu-1/shard-00000.h5", root, (unsigned long long)step);
    FILE *f = fopen(path, "r");
    if (!f) return 0;
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

static void save_undisturbed(const char *place, uint64_t digests[SAVES])
{
    struct two t;
    open_two(&t, place);
    for (int i = 0; i < SAVES; i++) {
        run_step(&t.run);
        pd_saver_start(t.run.saver, &t.run.state, false);
        cr_assert_eq(run_collect(&t.run).status, PD_OK);
        digests[i] = shard_digest(t.run.root, t.run.state.identity.step);
    }
    run_close(&t.run);
}

static void check_same_step(const char *place)
{
    uint64_t expected[SAVES];
    struct two t;
    save_undisturbed(place, expected);
    open_two(&t, place);
    for (int i = 0; i < SAVES; i++) {
        run_step(&t.run);
        atomic_store(&gate.fails, i % 2 == 0);
        pd_saver_start(t.run.saver, &t.run.state, false);
        const struct pd_saver_outcome outcome = run_collect(&t.run);
        cr_assert_eq(outcome.status, PD_OK, "%s: %s", place, outcome.error.message);
        cr_assert_eq(shard_digest(i % 2 ? t.run.root : t.far, t.run.state.identity.step), expected[i], "%s, step %d", place,
                     i + 1);
    }
    atomic_store(&gate.fails, false);
    run_close(&t.run);
}

static pd_status collect_one(struct run *r)
{
    pd_saver_wait(r->saver);
    struct pd_saver_outcome outcome;
    cr_assert(pd_saver_collect(r->saver, pd_saver_finished(r->saver), &outcome));
    return outcome.status;
}

static void *let_fail(void *argument)
{
    (void)argument;
    usleep(SLOW_MS * 1000);
    atomic_store(&gate.is_held, false);
    return NULL;
}

/* An update that has begun changes what a save would read: held until then, the failure loses the step, and the next one
 * goes to the next tier. One that comes while the failed save is being made again waits. */
static void check_race(const char *place, bool updates_first)
{
    uint64_t expected[SAVES];
    struct two t;
    pthread_t thread;
    save_undisturbed(place, expected);
    open_two(&t, place);
    run_step(&t.run);
    atomic_store(&gate.fails, true);
    atomic_store(&gate.slow_ms, SLOW_MS);
    atomic_store(&gate.is_held, updates_first);
    atomic_store(&gate.has_moved_on, false);
    pd_saver_start(t.run.saver, &t.run.state, false);
    while (!updates_first && !atomic_load(&gate.has_moved_on))
        usleep(1000);
    run_step(&t.run);
    cr_assert_eq(pthread_create(&thread, NULL, let_fail, NULL), 0);
    const pd_status st = collect_one(&t.run);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    cr_assert_eq(st, updates_first ? PD_IO : PD_OK, "%s: %s", place, pd_status_name(st));
    cr_assert_eq(shard_digest(t.far, 1), updates_first ? 0 : expected[0], "%s", place);
    pd_saver_start(t.run.saver, &t.run.state, false);
    cr_assert_eq(collect_one(&t.run), PD_OK);
    cr_assert_eq(shard_digest(t.far, 2), expected[1], "%s: the step after it", place);
    atomic_store(&gate.fails, false);
    atomic_store(&gate.slow_ms, 0);
    run_close(&t.run);
}

Test(save_next_tier, takes_the_same_step)
{
    check_same_step("device");
    check_same_step("nvme");
}

Test(save_next_tier, not_after_an_update_has_begun)
{
    check_race("device", true);
}

Test(save_next_tier, keeps_the_update_waiting)
{
    check_race("device", false);
    check_race("nvme", false);
}
