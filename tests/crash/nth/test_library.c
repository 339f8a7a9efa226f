/* A program saves tensors that it lists, on one rank and on three. Every call fails once, and from then on: an error on all
 * ranks, no leak, and the same save gets through the next time. Then power fails at every operation: what is newest
 * afterwards is the step before or the new one, whole. */
#include "ckpt/base/log.h"
#include "ckpt/inspect/inspect.h"
#include "ckpt/store/store.h"
#include "tests/helpers/failing_sweep.h"
#include "tests/helpers/local_group.h"
#include "tools/library/writer.h"

enum { ROWS = 900, COLUMNS = 50, SEEDS = 6 };

struct work {
    struct pd_simulated_disk *disk;
    uint32_t ranks;
    uint64_t step;      /* that the next save saves */
    pd_status ended[3]; /* of each rank */
};

static void swallow(void *context, const char *line, size_t bytes)
{
    (void)context, (void)line, (void)bytes;
}

static pd_status save_rank(struct pd_group *group, void *context, struct pd_error *err)
{
    struct work *w = context;
    struct pd_vfs *vfs = NULL;
    struct perdure_writer *writer = NULL;
    struct perdure_writer_options options = PERDURE_WRITER_OPTIONS;
    struct perdure_save save = PERDURE_SAVE;
    const uint64_t begin = ROWS * (uint64_t)group->rank / group->size, rows = ROWS * (group->rank + 1) / group->size - begin;
    static float values[3][ROWS * COLUMNS]; /* of each rank */
    for (uint64_t i = 0; i < rows * COLUMNS; i++)
        values[group->rank][i] = (float)(w->step * 100000 + begin * COLUMNS + i);
    const struct perdure_piece pieces[] = {{.name = "w",
                                            .ndim = 2,
                                            .shape = {ROWS, COLUMNS},
                                            .start = {begin},
                                            .count = {rows, COLUMNS},
                                            .data = values[group->rank]},
                                           {.name = "step", .dtype = PERDURE_U64, .data = &w->step}};
    options.keep_last = 2;
    save.step = w->step, save.pieces = pieces, save.piece_count = group->rank ? 1 : 2;
    pd_status st = pd_group_agree(group, pd_simulated_disk_vfs(w->disk, 0, &vfs, err), err);
    if (!st) st = pd_writer_open(vfs, group, "/dir", &options, &writer, err);
    if (!st) st = pd_writer_save(writer, &save, err);
    perdure_writer_close(writer);
    pd_vfs_free(vfs);
    return w->ended[group->rank] = st;
}

/* All ranks end with one status, where all had begun and could still speak to each other. */
static pd_status act(void *state, struct pd_error *err)
{
    struct work *w = state;
    w->step++;
    for (uint32_t r = 0; r < w->ranks; r++)
        w->ended[r] = PD_STATUS_COUNT;
    const pd_status st = pd_group_run_local(w->ranks, 1, save_rank, w, err);
    for (uint32_t r = 0; r < w->ranks; r++)
        if (w->ended[r] == PD_STATUS_COUNT || failing_breaks_group()) return st;
    for (uint32_t r = 0; r < w->ranks; r++)
        if (w->ended[r] != st)
            return pd_error_context(err, pd_error_change(err, PD_BUG), "rank %u ends with %s", r,
                                    pd_status_name(w->ended[r]));
    return st;
}

static struct pd_simulated_disk *base_of(uint32_t ranks)
{
    static struct pd_simulated_disk *bases[4];
    const struct pd_disk_options options = {.seed = 3};
    struct pd_error err = {0};
    if (bases[ranks]) return bases[ranks];
    struct work w = {.ranks = ranks};
    pd_log_set_sink(swallow, NULL);
    cr_assert_eq(pd_simulated_disk_new(&options, &w.disk, &err), PD_OK);
    cr_assert_eq(act(&w, &err), PD_OK, "%s", err.message);
    return bases[ranks] = w.disk;
}

static void *set_up(const void *context)
{
    struct pd_error err = {0};
    struct work *w = calloc(1, sizeof *w);
    *w = (struct work){.ranks = *(const uint32_t *)context, .step = 1};
    cr_assert_eq(pd_simulated_disk_clone(base_of(w->ranks), &w->disk, &err), PD_OK);
    return w;
}

static void tear_down(void *state)
{
    struct work *w = state;
    pd_simulated_disk_free(w->disk);
    free(w);
}

static struct pd_simulated_disk *disk_of(void *state)
{
    return ((struct work *)state)->disk;
}

static pd_status check_values(struct pd_vfs *vfs, const char *path, uint64_t step, struct pd_error *err)
{
    struct pd_inspect *inspect = NULL;
    struct pd_damage_list list = {0};
    PD_TRY(pd_inspect_open(vfs, path, &inspect, err));
    pd_status st = pd_inspect_verify(inspect, NULL, NULL, (pd_should_stop){0}, &list, err);
    if (!st && list.count) st = pd_error_set(err, PD_BUG, PD_WHERE, 0, "%s", list.items[0].text);
    const struct pd_commit *commit = pd_inspect_commit(inspect);
    for (uint32_t s = 0; !st && s < commit->shard_count; s++) {
        char shard_path[4200];
        struct pd_shard *shard = NULL;
        static float values[PD_SHARD_BLOCK_BYTES / 4];
        snprintf(shard_path, sizeof shard_path, "%s/shard-%05u.h5", path, s);
        st = pd_shard_open(vfs, shard_path, &commit->state.identity, &commit->shards[s], &shard, err);
        if (!st) st = pd_shard_read_blocks(shard, 0, 0, 1, values, err);
        const uint64_t begin = ROWS * (uint64_t)s / commit->shard_count;
        if (!st && values[1] != (float)(step * 100000 + begin * COLUMNS + 1))
            st = pd_error_set(err, PD_BUG, PD_WHERE, 0, "shard %u has values of another step", s);
        pd_shard_close(shard);
    }
    pd_damage_list_deinit(&list);
    pd_inspect_close(inspect);
    return st;
}

/* The newest checkpoint, on one rank that opens the directory as the next program would. ret_step: of it. */
static pd_status look(struct work *w, uint64_t *ret_step, struct pd_error *err)
{
    const struct pd_store_options options = {.writable = true, .keep_last = 9, .quarantine_bytes_max = 1 << 20};
    struct pd_group group;
    struct pd_vfs *vfs = NULL;
    struct pd_store *store = NULL;
    char path[4096];
    pd_group_init_single(&group);
    PD_TRY(pd_simulated_disk_vfs(w->disk, 0, &vfs, err));
    pd_status st = pd_store_open(vfs, "/dir", &options, &group, &store, err);
    if (!st && !pd_store_count(store)) st = pd_error_set(err, PD_BUG, PD_WHERE, 0, "no checkpoint is left");
    if (!st) {
        *ret_step = pd_store_entry_at(store, 0)->step;
        pd_store_entry_path(store, pd_store_entry_at(store, 0), path);
        st = check_values(vfs, path, *ret_step, err);
    }
    pd_store_close(store);
    pd_vfs_free(vfs);
    return st;
}

static pd_status check(void *state, struct pd_error *err)
{
    struct work *w = state;
    uint64_t step = 0;
    PD_TRY(look(w, &step, err));
    if (step == w->step) return PD_OK;
    PD_FAIL(err, PD_BUG, "the newest is step %lu, not %lu", (unsigned long)step, (unsigned long)w->step);
}

static void sweep(uint32_t ranks)
{
    static uint32_t contexts[4];
    contexts[ranks] = ranks;
    const struct failing_case c = {
        ranks == 1 ? "one rank" : "three ranks", true, set_up, act, check, tear_down, disk_of, &contexts[ranks]};
    failing_sweep(&c);
}

Test(library, every_call_of_one_rank_fails)
{
    sweep(1);
}

Test(library, every_call_of_three_ranks_fails)
{
    sweep(3);
}

static void lose_power(uint32_t ranks)
{
    uint64_t nth = 1, after[2] = {0};
    const uint64_t stride = test_scale() < 10 ? 3 : 1;
    for (bool fired = true; fired; nth += stride) {
        struct pd_error err = {0};
        struct work *w = set_up(&ranks);
        pd_simulated_disk_set_fault(w->disk, &(struct pd_disk_fault){.kind = PD_DISK_FAULT_POWER, .nth = nth});
        const pd_status saved = act(w, &err);
        fired = pd_simulated_disk_fired(w->disk) > 0;
        for (uint64_t seed = 0; fired && seed < SEEDS; seed++) {
            struct work then = *w;
            uint64_t step = 0;
            cr_assert_eq(pd_simulated_disk_clone(w->disk, &then.disk, &err), PD_OK);
            pd_simulated_disk_crash(then.disk, PD_DISK_ALL_HOSTS, nth * 31 + seed);
            const pd_status st = look(&then, &step, &err);
            cr_assert_eq(st, PD_OK, "operation %lu, seed %lu: %s", (unsigned long)nth, (unsigned long)seed, err.message);
            cr_assert(step == 2 || (step == 1 && saved), "operation %lu: step %lu", (unsigned long)nth, (unsigned long)step);
            after[step - 1]++;
            pd_simulated_disk_free(then.disk);
        }
        tear_down(w);
    }
    cr_assert(after[0] && after[1], "power failed before and after the commit");
}

Test(library, power_fails_at_every_operation)
{
    lose_power(1);
    lose_power(3);
}
