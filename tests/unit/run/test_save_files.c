/* Saves of optimizer state in files: what a checkpoint costs beyond its step, counted at the VFS, and who does it. */
#include "ckpt/io/vfs_ops.h"
#include "tests/helpers/optimizer_read.h"
#include "tests/unit/run/saved_run.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>

enum { STEPS = 4, WARM = 4, HELD_MS = 200 };

/* The VFS's sync, which may be held; it notes who called. */
static struct {
    struct pd_vfs_ops ops;
    const struct pd_vfs_ops *inner;
    pthread_t caller;
    _Atomic int syncs_here, syncs_elsewhere, held_ms, refused; /* refused: syncs of directories that fail from now on */
} watched;

static int watch_sync(struct pd_file *file)
{
    if (atomic_load(&watched.held_ms)) usleep((useconds_t)atomic_load(&watched.held_ms) * 1000);
    atomic_fetch_add(pthread_equal(pthread_self(), watched.caller) ? &watched.syncs_here : &watched.syncs_elsewhere, 1);
    return watched.inner->sync(file);
}

static int watch_sync_dir(struct pd_vfs *vfs, const char *path)
{
    if (atomic_load(&watched.refused) > 0) {
        atomic_fetch_sub(&watched.refused, 1);
        return EIO;
    }
    return watched.inner->sync_dir(vfs, path);
}

static void watch(struct pd_vfs *vfs)
{
    watched.inner = vfs->ops;
    watched.ops = *vfs->ops;
    watched.ops.sync = watch_sync;
    watched.ops.sync_dir = watch_sync_dir;
    watched.caller = pthread_self();
    vfs->ops = &watched.ops;
}

static void run_init(struct run *r, const char *precision, bool is_watched)
{
    char keys[240];
    snprintf(keys, sizeof keys,
             "model: {family: llama, vocab: 256, context: 16, layers: 1, hidden: 384, heads: 2}\n"
             "numerics: {precision: %s}\noffload: {optimizer: nvme, buffer_bytes: 8M}\n",
             precision);
    run_make(r, "/tmp", keys);
    if (is_watched) watch(r->vfs);
    run_open_tier(r, 2);
    OK(pd_state_open(r->whole.engine->state, r->vfs, pd_tiers_store(r->tiers, 0), err));
    OK(pd_state_init(r->whole.engine->state, &r->state.identity, err));
    run_open_saver(r, 1);
}

/* The state before the step is saved beside it. */
static void saved_step(struct run *r)
{
    pd_saver_start(r->saver, &r->state, false);
    run_step(r);
    const struct pd_saver_outcome outcome = run_collect(r);
    cr_assert_eq(outcome.status, PD_OK, "%s", outcome.error.message);
}

static struct pd_vfs_counts count_steps(struct run *r, bool has_saves)
{
    const struct pd_vfs_counts before = pd_vfs_counts(r->vfs);
    for (int i = 0; i < STEPS; i++) {
        if (has_saves)
            saved_step(r);
        else
            run_step(r);
    }
    const struct pd_vfs_counts after = pd_vfs_counts(r->vfs);
    return (struct pd_vfs_counts){.bytes_written = after.bytes_written - before.bytes_written,
                                  .flushes = after.flushes - before.flushes};
}

static uint64_t state_digest(struct run *r)
{
    uint64_t digest = 0;
    OK(optimizer_digest(pd_state_files_store(r->whole.engine->state), &digest, err));
    return digest;
}

/* ---- what it costs ---- */

Test(save_files, a_checkpoint_writes_next_to_nothing_and_flushes_a_few_times)
{
    struct run r;
    run_init(&r, "fp32", false);
    for (int i = 0; i < WARM; i++) /* the index is written, retention has something to remove */
        saved_step(&r);
    const struct pd_vfs_counts without = count_steps(&r, false), with = count_steps(&r, true);
    const uint64_t state_bytes = 12 * r.whole.model->parameter_count;
    cr_assert_geq(without.bytes_written, STEPS * state_bytes * 99 / 100, "a step writes its state: it is counted");
    cr_assert_eq(without.flushes, 0, "a step that is not saved needs no flush");
    cr_assert_gt(with.bytes_written, without.bytes_written);
    cr_assert_lt(with.bytes_written - without.bytes_written, STEPS * state_bytes / 100, "%llu bytes beyond the steps' own",
                 (unsigned long long)(with.bytes_written - without.bytes_written));
    cr_assert_geq(with.flushes, STEPS * 2, "a shard and a record");
    cr_assert_leq(with.flushes, STEPS * (1 + 5), "%llu flushes in %d commits", (unsigned long long)with.flushes, STEPS);
    run_close(&r);
}

/* ---- who does it ---- */

Test(save_files, training_waits_for_no_flush_of_its_own)
{
    struct run r;
    run_init(&r, "fp32", true);
    atomic_store(&watched.syncs_here, 0); /* of opening the store */
    for (int i = 0; i < STEPS; i++)
        saved_step(&r);
    cr_assert_eq(atomic_load(&watched.syncs_here), 0, "files are synced beside the step");
    cr_assert_geq(atomic_load(&watched.syncs_elsewhere), 2 * STEPS);
    run_close(&r);
}

/* An update that began before the flush has ended would write into files that the save still reads and names. */
Test(save_files, a_slow_flush_changes_no_bit)
{
    struct run r;
    uint64_t digests[2];
    for (int is_slow = 0; is_slow < 2; is_slow++) {
        run_init(&r, "fp32", true);
        atomic_store(&watched.held_ms, is_slow ? HELD_MS : 0);
        for (int i = 0; i < 3; i++) {
            if (is_slow)
                saved_step(&r);
            else
                run_step(&r);
        }
        atomic_store(&watched.held_ms, 0);
        digests[is_slow] = state_digest(&r);
        run_close(&r);
    }
    cr_assert_eq(digests[0], digests[1]);
}

static uint32_t count_pool(const struct run *r)
{
    char path[128];
    uint32_t count = 0;
    snprintf(path, sizeof path, "%s/pool-1", r->root);
    DIR *pool = opendir(path);
    cr_assert_not_null(pool, "%s", path);
    for (struct dirent *entry; (entry = readdir(pool));)
        count += strncmp(entry->d_name, "recycle-", 8) == 0 || strncmp(entry->d_name, "generation-", 11) == 0;
    closedir(pool);
    return count;
}

/* The update may have let go of the file before the save that names it failed. */
Test(save_files, saves_that_fail_after_the_link_change_no_bit_and_leave_no_file)
{
    struct run r;
    struct pd_saver_outcome outcome;
    uint64_t digests[2];
    uint32_t files = 0;
    for (int fails = 0; fails < 2; fails++) {
        run_init(&r, "fp32", true);
        for (int i = 0; i < 2 * STEPS; i++) {
            if (fails && i % 2) {
                atomic_store(&watched.refused, 1);
                pd_saver_start(r.saver, &r.state, false);
                run_step(&r);
                pd_saver_wait(r.saver);
                cr_assert(pd_saver_collect(r.saver, pd_saver_finished(r.saver), &outcome));
                cr_assert_neq(outcome.status, PD_OK, "step %d", i);
            } else {
                saved_step(&r);
            }
            if (i == 3) files = count_pool(&r);
        }
        cr_assert_leq(count_pool(&r), files > 4 ? files : 4, "%u files", count_pool(&r));
        digests[fails] = state_digest(&r);
        run_close(&r);
    }
    cr_assert_eq(digests[0], digests[1]);
}

/* What a step began to read is dropped with it: other bits or files that pile up would show. */
Test(save_files, steps_that_are_skipped_change_no_bit_and_leave_no_file)
{
    struct run r;
    uint64_t digests[2];
    for (int skips = 0; skips < 2; skips++) {
        run_init(&r, "fp16", true);
        for (int i = 0; i < 2 * STEPS; i++) {
            const struct pd_run_state before = r.state;
            r.state.loss_scale = 0x1p60;
            if (skips) cr_assert(run_step(&r).skipped);
            r.state = before;
            r.state.loss_scale = 1024;
            pd_saver_start(r.saver, &r.state, false);
            cr_assert_not(run_step(&r).skipped, "step %d", i);
            const struct pd_saver_outcome outcome = run_collect(&r);
            cr_assert_eq(outcome.status, PD_OK, "%s", outcome.error.message);
        }
        cr_assert_leq(count_pool(&r), 4, "%u files", count_pool(&r)); /* one or two, as saves and updates meet */
        digests[skips] = state_digest(&r);
        run_close(&r);
    }
    cr_assert_eq(digests[0], digests[1]);
}
