/* State in files of which memory keeps a part: the same bits, that part not read again, and files that have all of it. */
#include "tests/unit/offload/optimizer_rig.h"

#define PAGE UINT64_C(4096)
#define ALL UINT64_MAX

struct kept_scene {
    struct pd_simulated_disk *disk;
    struct pd_vfs *vfs;
    struct state state;
    struct rig rig;
    uint64_t streamed; /* bytes that an update without kept memory reads, and each writes */
};

static uint64_t streamed_bytes(const struct state *s)
{
    uint64_t bytes = 0;
    for (uint32_t b = 0; b < s->box_count; b++)
        if (elements_of(s, b) * sizeof(float) >= PD_SHARD_BLOCK_BYTES)
            bytes += (elements_of(s, b) * sizeof(float) + PAGE - 1) / PAGE * PAGE;
    return bytes;
}

static void init(struct kept_scene *k, uint64_t budget)
{
    const struct pd_disk_options disk = {.seed = 5, .mounts = {{.path = "/state"}}};
    OK(pd_simulated_disk_new(&disk, &k->disk, err));
    OK(pd_simulated_disk_vfs(k->disk, 0, &k->vfs, err));
    state_init(&k->state);
    k->streamed = streamed_bytes(&k->state);
    uint64_t kept;
    OK(pd_optimizer_store_kept_bytes(&k->state.tensors, k->state.boxes, k->state.box_count, budget, &kept, err));
    cr_assert_leq(kept, budget);
    rig_init(&k->rig, &k->state, k->vfs, "/state", BUFFERS, 2);
    pd_optimizer_store_free(k->rig.store);
    k->rig.kept_bytes = kept;
    k->rig.kept = kept ? aligned_alloc(PAGE, kept) : NULL;
    if (kept) memset(k->rig.kept, 0xff, kept); /* NaN: used before it was read, it shows */
    rig_open(&k->rig, BUFFERS);
    OK(rig_fill(&k->rig, 1, err));
}

static void deinit(struct kept_scene *k)
{
    rig_deinit(&k->rig);
    free(k->rig.kept);
    state_deinit(&k->state);
    pd_vfs_free(k->vfs);
    pd_simulated_disk_free(k->disk);
}

static void update(struct kept_scene *k, uint64_t step, uint64_t expected_read)
{
    struct pd_ring_report report;
    state_update(&k->state);
    OK(rig_update(&k->rig, step, k->state.updates, &report, err));
    cr_expect_eq(report.bytes_read, expected_read, "step %lu read %lu bytes, expected %lu", step, report.bytes_read,
                 expected_read);
    cr_expect_eq(report.bytes_written, k->streamed, "every update writes all, so that a checkpoint costs nothing");
    OK(rig_compare(&k->rig, err));
}

static uint64_t left_to_read(const struct kept_scene *k)
{
    return k->streamed - k->rig.kept_bytes;
}

Test(optimizer_kept, what_fits_is_read_once_whatever_the_budget)
{
    static const uint64_t budgets[] = {0,  PAGE, UINT64_C(200000), UINT64_C(400000), UINT64_C(3000000), UINT64_C(9000000),
                                       ALL};
    uint64_t before = 0;
    for (size_t i = 0; i < sizeof budgets / sizeof *budgets; i++) {
        struct kept_scene k;
        init(&k, budgets[i]);
        cr_expect_geq(k.rig.kept_bytes, before, "a larger budget keeps no less");
        before = k.rig.kept_bytes;
        update(&k, 2, k.streamed);
        for (uint64_t step = 3; step < 6; step++)
            update(&k, step, left_to_read(&k));
        if (budgets[i] == ALL) cr_expect_eq(k.rig.kept_bytes, k.streamed);
        deinit(&k);
    }
}

/* ---- what may happen between two updates ---- */

/* The same state under another identity: what is kept is written too. */
static void skip_a_step(struct kept_scene *k)
{
    struct pd_ring_report report;
    OK(rig_update(&k->rig, 3, 0, &report, err));
    cr_expect_eq(report.bytes_read, left_to_read(k));
}

/* Memory was worked on in place: what is right lies in the files of the generation before. */
static void fail_to_write(struct kept_scene *k)
{
    struct pd_error error;
    const struct pd_disk_fault fault = {.kind = PD_DISK_FAULT_ERROR, .operations = PD_DISK_MASK(PD_DISK_WRITE), .nth = 5};
    pd_simulated_disk_set_fault(k->disk, &fault);
    cr_assert_neq(rig_update(&k->rig, 3, 2, NULL, &error), PD_OK);
    pd_simulated_disk_set_fault(k->disk, NULL);
}

static void abandon_an_update(struct kept_scene *k)
{
    const struct pd_optimizer_store_step how = rig_step(&k->rig, 3);
    OK(pd_optimizer_store_update_begin(k->rig.store, &how, err));
    pd_optimizer_store_update_abandon(k->rig.store);
}

/* A state that replaces all is not what memory keeps. */
static void put_another_state(struct kept_scene *k)
{
    for (uint32_t b = 0; b < k->state.box_count; b++)
        k->state.data[b][0] = 0.5f;
    OK(rig_fill(&k->rig, 3, err));
}

/* A checkpoint of a generation whose state is kept is a whole shard. */
static void finish_a_checkpoint(struct kept_scene *k)
{
    struct pd_shard_summary summary;
    uint32_t slot;
    OK(pd_optimizer_store_finish(k->rig.store, &summary, &slot, err));
}

static const struct {
    const char *what;
    void (*happens)(struct kept_scene *);
    bool is_read_again; /* what is kept comes from the files once more */
} between[] = {
    {"a skipped step", skip_a_step, false},
    {"a write that fails", fail_to_write, true},
    {"an abandoned update", abandon_an_update, false},
    {"another state", put_another_state, true},
    {"a checkpoint", finish_a_checkpoint, false},
};

static void check_between(size_t i, uint64_t budget)
{
    struct kept_scene k;
    init(&k, budget);
    cr_assert_gt(k.rig.kept_bytes, 0);
    update(&k, 2, k.streamed);
    between[i].happens(&k);
    OK(rig_compare(&k.rig, err));
    update(&k, 4, between[i].is_read_again ? k.streamed : left_to_read(&k));
    update(&k, 5, left_to_read(&k));
    deinit(&k);
}

Test(optimizer_kept, what_memory_holds_is_what_the_files_hold)
{
    for (size_t i = 0; i < sizeof between / sizeof *between; i++) {
        cr_log_info("%s", between[i].what);
        check_between(i, 3000000);
        check_between(i, ALL);
    }
}

/* Damage would stay in memory for good. */
Test(optimizer_kept, what_is_read_to_stay_is_verified)
{
    const struct pd_disk_fault flips = {.kind = PD_DISK_FAULT_FLIP, .nth = 1, .persistent = true};
    struct kept_scene k;
    struct pd_error error = {0};
    init(&k, ALL);
    cr_assert_eq(left_to_read(&k), 0);
    pd_simulated_disk_set_fault(k.disk, &flips);
    cr_expect_eq(rig_update(&k.rig, 2, 1, NULL, &error), PD_CORRUPT, "%s", error.message);
    pd_simulated_disk_set_fault(k.disk, NULL);
    OK(rig_compare(&k.rig, err));
    update(&k, 3, k.streamed);
    deinit(&k);
}
