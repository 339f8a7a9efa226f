/* A rewritten checkpoint is, byte for byte, what a run under the new layout would have written; a rewrite that stops at any
 * operation of the disk leaves a store without it or with it whole, and can be done again. */
#include "ckpt/shard/decompress.h"
#include "resharder/convert/reshard.h"
#include "tests/helpers/failing_submit.h"
#include "tests/helpers/limited_disk.h"
#include "tests/helpers/scale.h"
#include "tests/unit/resharder/state_fixture.h"

#include "ckpt/io/vfs_ops.h"
#include "resharder/convert/chunk_stream.h"

static struct pd_store *open_store(struct pd_vfs *vfs, struct pd_group *group)
{
    const struct pd_store_options options = {.writable = true, .keep_last = 10, .quarantine_bytes_max = UINT64_MAX};
    struct pd_store *store = NULL;
    OK(pd_store_open(vfs, "/target", &options, group, &store, err));
    return store;
}

static void *buffers(void)
{
    static void *memory;
    if (!memory) memory = aligned_alloc(PD_VFS_ALIGN, PD_RESHARD_BUFFER_BYTES);
    cr_assert_not_null(memory);
    return memory;
}

static struct pd_import_request request_of(const struct state *s, const struct pd_commit *commit,
                                           const struct pd_layout *layout, struct pd_store *store)
{
    return (struct pd_import_request){
        .source = "/stored", .ours = commit, .tensors = &s->table, .layout = layout, .target = store, .buffers = buffers()};
}

static void read_whole(struct pd_vfs *vfs, const char *path, void **ret_data, uint64_t *ret_bytes)
{
    struct pd_file *file;
    struct pd_stat st;
    OK(pd_file_open(vfs, path, PD_OPEN_READ, &file, err));
    OK(pd_file_stat(file, &st, err));
    *ret_data = malloc(st.bytes + 1);
    *ret_bytes = st.bytes;
    OK(pd_file_read(file, 0, *ret_data, st.bytes, err));
    pd_file_close_readonly(file);
}

static void same_files(struct pd_vfs *vfs, const char *left, const char *right)
{
    void *a, *b;
    uint64_t a_bytes, b_bytes;
    read_whole(vfs, left, &a, &a_bytes);
    read_whole(vfs, right, &b, &b_bytes);
    cr_assert_eq(a_bytes, b_bytes, "%s", right);
    cr_assert_eq(memcmp(a, b, a_bytes), 0, "%s and %s differ", left, right);
    free(a);
    free(b);
}

/* Shards as a run would have written them, and everything of the record but layout, shards and fence. */
static void check_target(struct state *s, struct pd_vfs *vfs, struct pd_store *store, const struct pd_layout *layout,
                         const struct pd_commit *commit)
{
    struct pd_commit there;
    char directory[4096], path[4200];
    cr_assert_eq(pd_store_count(store), 1u);
    pd_store_entry_path(store, pd_store_entry_at(store, 0), directory);
    OK(pd_store_read_commit(store, pd_store_entry_at(store, 0), &there, err));
    cr_assert_eq(there.shard_count, pd_layout_world(layout));
    cr_assert_eq(memcmp(&there.state.layout, layout, sizeof *layout), 0);
    cr_assert_eq(memcmp(&there.state.identity, &s->identity, sizeof s->identity), 0);
    cr_assert_eq(there.state.updates, commit->state.updates);
    cr_assert_str_eq(there.state.config, commit->state.config);
    OK(pd_vfs_mkdir(vfs, "/expected", err));
    for (uint32_t r = 0; r < there.shard_count; r++) {
        struct pd_shard_summary summary;
        char expected[64];
        snprintf(expected, sizeof expected, "/expected/shard-%05u.h5", r);
        snprintf(path, sizeof path, "%s/shard-%05u.h5", directory, r);
        struct pd_vfs *own = s->vfs;
        s->vfs = vfs;
        state_save_shard(s, layout, r, expected, &summary);
        s->vfs = own;
        same_files(vfs, expected, path);
        cr_assert_eq(memcmp(&summary.digest, &there.shards[r].digest, sizeof summary.digest), 0);
        cr_assert_eq(summary.writer_rank, there.shards[r].writer_rank);
    }
    pd_commit_deinit(&there);
}

Test(reshard, any_layout_to_any_layout)
{
    for (uint64_t seed = 1; seed <= 16; seed++) {
        struct state s;
        struct pd_commit commit;
        struct pd_group group;
        struct pd_import_report report;
        state_init(&s, seed);
        state_keep(&s, seed % 3 ? PD_F32 : PD_BF16);
        const uint32_t virtual_tp = 1u << state_random(&s, 4);
        struct pd_layout stored = state_layout(&s, virtual_tp), layout = state_layout(&s, virtual_tp);
        s.compresses = seed % 4 == 1;
        state_save(&s, &stored, "/stored", &commit);
        s.compresses = false;
        pd_group_init_single(&group);
        OK(pd_vfs_mkdir(s.vfs, "/target", err));
        struct pd_store *store = open_store(s.vfs, &group);
        const struct pd_import_request request = request_of(&s, &commit, &layout, store);
        OK(pd_reshard(s.vfs, &request, &report, err));
        cr_assert_eq(report.shards, pd_layout_world(&layout));
        check_target(&s, s.vfs, store, &layout, &commit);
        pd_store_close(store);
        pd_commit_deinit(&commit);
        state_deinit(&s);
    }
}

/* Stored bytes are read once: at most a twentieth more, and the pages around small boxes. */
static void check_read(const struct pd_commit *commit, uint64_t bytes_read)
{
    uint64_t stored = 0, boxes = 0;
    for (uint32_t r = 0; r < commit->shard_count; r++) {
        stored += commit->shards[r].data_bytes;
        boxes += commit->shards[r].box_count;
    }
    cr_assert_leq(bytes_read, stored + stored / 20 + boxes * 2 * PD_VFS_ALIGN, "%lu of %lu", bytes_read, stored);
}

/* Boxes of some KiB are read many at a time, and verified one by one. */
Test(reshard, small_boxes_are_read_together)
{
    static struct pd_tensor tensors[STATE_MANY];
    struct state s;
    struct pd_commit commit;
    struct pd_group group;
    struct pd_layout stored, layout;
    struct limited_disk disk;
    struct pd_import_report report;
    state_init(&s, 3);
    state_crowd(&s, tensors);
    pd_layout_init_dp(&stored, 2);
    pd_layout_init_dp(&layout, 1);
    stored.tp = 2;
    layout.tp = 4;
    stored.virtual_tp = layout.virtual_tp = 4;
    state_save(&s, &stored, "/stored", &commit);
    pd_group_init_single(&group);
    OK(pd_vfs_mkdir(s.vfs, "/target", err));
    struct pd_store *store = open_store(s.vfs, &group);
    const struct pd_import_request request = request_of(&s, &commit, &layout, store);
    limited_disk_begin(&disk, s.vfs, 0);
    OK(pd_reshard(s.vfs, &request, &report, err));
    limited_disk_end(&disk);
    cr_assert_lt(atomic_load(&disk.reads), STATE_MANY * 2, "%lu reads of %d boxes", atomic_load(&disk.reads),
                 STATE_MANY * 12);
    check_read(&commit, report.bytes_read);
    check_target(&s, s.vfs, store, &layout, &commit);
    pd_store_close(store);
    pd_commit_deinit(&commit);
    state_deinit(&s);
}

struct packing {
    uint64_t seed;
    bool is_large;
    unsigned threads;
    bool source_is_compressed;
};

static void check_packing(const struct packing *p)
{
    struct state s;
    struct pd_commit commit;
    struct pd_group group;
    struct pd_import_report report;
    state_init(&s, p->seed);
    if (p->is_large) state_enlarge(&s);
    const uint32_t virtual_tp = 1u << state_random(&s, 4);
    struct pd_layout stored = state_layout(&s, virtual_tp), layout = state_layout(&s, virtual_tp);
    s.compresses = p->source_is_compressed;
    s.compresses_all = p->seed % 2;
    state_save(&s, &stored, "/stored", &commit);
    s.compresses = s.compresses_all = true;
    pd_group_init_single(&group);
    OK(pd_vfs_mkdir(s.vfs, "/target", err));
    struct pd_store *store = open_store(s.vfs, &group);
    struct pd_import_request request = request_of(&s, &commit, &layout, store);
    request.codec = (struct pd_shard_codec){.codec = PD_CODEC_ZSTD, .level = 1};
    if (p->threads) OK(pd_thread_pool_new(p->threads, &request.codec.pool, err));
    OK(pd_reshard(s.vfs, &request, &report, err));
    cr_assert_eq(report.shards, pd_layout_world(&layout));
    if (!p->source_is_compressed) check_read(&commit, report.bytes_read);
    check_target(&s, s.vfs, store, &layout, &commit);
    pd_thread_pool_free(request.codec.pool);
    pd_store_close(store);
    pd_commit_deinit(&commit);
    state_deinit(&s);
}

/* Byte for byte what a run with that level would have written, whatever threads there are. */
Test(reshard, targets_are_compressed, .timeout = 1200)
{
    const uint64_t seeds = test_scale() >= 10 ? 16 : 8; /* eight have every pair of choices */
    for (uint64_t seed = 30; seed < 30 + seeds; seed++)
        check_packing(&(struct packing){
            .seed = seed, .is_large = seed % 2, .threads = (unsigned)(seed / 2 % 4), .source_is_compressed = seed / 2 % 2});
}

static const struct pd_vfs_ops *whole_ops;
static uint64_t room;

static int little_space(struct pd_vfs *vfs, const char *path, struct pd_space *ret_space)
{
    const int result = whole_ops->space(vfs, path, ret_space);
    ret_space->available_bytes = room;
    return result;
}

static pd_status rewrite_in(struct state *s, const struct pd_import_request *request, uint64_t bytes, struct pd_error *err)
{
    struct pd_vfs_ops ops = *s->vfs->ops;
    whole_ops = s->vfs->ops;
    ops.space = little_space;
    room = bytes;
    s->vfs->ops = &ops;
    pd_status st = pd_reshard(s->vfs, request, NULL, err);
    s->vfs->ops = whole_ops;
    return st;
}

/* What is compressed and stays so needs the room that it takes; where nobody knows how small it gets, that is said. */
Test(reshard, room_is_asked_for_as_far_as_it_is_known)
{
    struct state s;
    struct pd_commit commit;
    struct pd_group group;
    struct pd_error err = {0};
    state_init(&s, 31);
    state_enlarge(&s);
    struct pd_layout stored = state_layout(&s, 4), layout = state_layout(&s, 4);
    s.compresses = s.compresses_all = true;
    state_save(&s, &stored, "/stored", &commit);
    pd_group_init_single(&group);
    cr_assert_eq(pd_vfs_mkdir(s.vfs, "/target", &err), PD_OK);
    struct pd_store *store = open_store(s.vfs, &group);
    struct pd_import_request request = request_of(&s, &commit, &layout, store);
    uint64_t takes = 0, plain = 0;
    for (uint32_t r = 0; r < commit.shard_count; r++) {
        takes += commit.shards[r].file_bytes;
        plain += commit.shards[r].data_bytes;
    }
    cr_assert_lt(takes + takes / 8, plain);
    cr_assert_eq(rewrite_in(&s, &request, takes + takes / 8, &err), PD_NO_SPACE);
    cr_assert_null(strstr(err.message, "not known before"), "%s", err.message);
    request.codec = (struct pd_shard_codec){.codec = PD_CODEC_ZSTD, .level = 1};
    cr_assert_eq(rewrite_in(&s, &request, takes, &err), PD_NO_SPACE);
    cr_assert_eq(rewrite_in(&s, &request, takes + takes / 8, &err), PD_OK, "%s", err.message);
    for (uint32_t r = 0; r < commit.shard_count; r++)
        commit.shards[r].file_bytes = plain; /* as a plain source has them */
    cr_assert_eq(rewrite_in(&s, &request, plain, &err), PD_NO_SPACE);
    cr_assert_not_null(strstr(err.message, "compressed shards may take less, but how much is not known before"), "%s",
                       err.message);
    pd_store_close(store);
    pd_commit_deinit(&commit);
    state_deinit(&s);
}

/* Every element of every tensor lies in one range, at the places where the two layouts have it. */
Test(reshard, ranges_cover_everything_once)
{
    for (uint64_t seed = 100; seed < 160; seed++) {
        struct state s;
        state_init(&s, seed);
        struct pd_layout source = state_layout(&s, 8), target = state_layout(&s, 8);
        const uint32_t shards = pd_layout_world(&target), middle = shards / 2;
        uint64_t bytes = 0, all = 0;
        for (uint32_t half = 0; half < 2; half++) {
            struct pd_chunk_stream_cursor c = {.tensors = &s.table,
                                               .source = &source,
                                               .target = &target,
                                               .shard_begin = half ? middle : 0,
                                               .shard_end = half ? shards : middle};
            struct pd_chunk_range range;
            while (pd_chunk_stream_next(&c, &range)) {
                cr_assert(range.target.shard >= c.shard_begin && range.target.shard < c.shard_end);
                cr_assert_leq(range.target.offset + range.bytes, range.target.box_bytes);
                cr_assert_leq(range.source.offset + range.bytes, range.source.box_bytes);
                cr_assert_gt(range.bytes, 0);
                bytes += range.bytes;
            }
        }
        for (uint32_t t = 0; t < STATE_TENSORS; t++)
            all += pd_tensor_elements(&s.tensors[t]) * 4 * PD_KIND_COUNT;
        cr_assert_eq(bytes, all);
        state_deinit(&s);
    }
}

Test(reshard, numerics_stay)
{
    struct state s;
    struct pd_commit commit;
    struct pd_group group;
    struct pd_error refusal = {0};
    state_init(&s, 5);
    struct pd_layout stored = state_layout(&s, 4), layout = state_layout(&s, 8);
    state_save(&s, &stored, "/stored", &commit);
    pd_group_init_single(&group);
    OK(pd_vfs_mkdir(s.vfs, "/target", err));
    struct pd_store *store = open_store(s.vfs, &group);
    const struct pd_import_request request = request_of(&s, &commit, &layout, store);
    cr_assert_eq(pd_reshard(s.vfs, &request, NULL, &refusal), PD_INVALID);
    cr_assert(strstr(refusal.message, "virtual_tp 4"), "%s", refusal.message);
    cr_assert_eq(pd_store_count(store), 0u);
    pd_store_close(store);
    pd_commit_deinit(&commit);
    state_deinit(&s);
}

/* Tensors whose rows all ranks of such a layout hold some of, and others that one rank holds. */
static struct pd_layout wide_layout(struct state *s, uint32_t ranks, uint64_t columns)
{
    struct pd_layout l;
    for (uint32_t t = 0; t < STATE_TENSORS; t++) {
        struct pd_tensor *tensor = &s->tensors[t];
        tensor->ndim = t < 2 ? 2 : 1;
        tensor->shape[0] = t < 2 ? 600 : 3;
        tensor->shape[1] = t < 2 ? columns : 1;
        tensor->tp_dim = -1;
    }
    pd_layout_init_dp(&l, ranks);
    l.small_bytes = 0;
    return l;
}

static void rewrite_wide(uint32_t from, uint32_t to, uint64_t columns)
{
    struct state s;
    struct pd_commit commit;
    struct pd_group group;
    struct pd_import_report report;
    state_init(&s, 70);
    struct pd_layout stored = wide_layout(&s, from, columns), layout = wide_layout(&s, to, columns);
    state_save(&s, &stored, "/stored", &commit);
    pd_group_init_single(&group);
    OK(pd_vfs_mkdir(s.vfs, "/target", err));
    struct pd_store *store = open_store(s.vfs, &group);
    const struct pd_import_request request = request_of(&s, &commit, &layout, store);
    OK(pd_reshard(s.vfs, &request, &report, err));
    cr_assert_eq(report.shards, to);
    check_target(&s, s.vfs, store, &layout, &commit);
    pd_store_close(store);
    pd_commit_deinit(&commit);
    state_deinit(&s);
}

/* Those that were read longest ago are closed, and opened again when their turn comes. */
Test(reshard, from_more_shards_than_are_open_at_once)
{
    rewrite_wide(520, 1, 2);
}

/* Each begins its boxes before the others have filled a slot: then somebody's goes to the disk as it is. */
Test(reshard, to_more_shards_than_there_are_slots)
{
    rewrite_wide(1, 100, 1500);
}

/* ---- what is refused ---- */

struct refusal {
    struct state s;
    struct pd_commit commit;
    struct pd_layout stored, layout;
};

static void refuse(struct refusal *x, pd_status status, const char *says)
{
    struct pd_group group;
    struct pd_error refusal = {0};
    pd_group_init_single(&group);
    OK(pd_vfs_mkdir(x->s.vfs, "/target", err));
    struct pd_store *store = open_store(x->s.vfs, &group);
    const struct pd_import_request request = request_of(&x->s, &x->commit, &x->layout, store);
    cr_assert_eq(pd_reshard(x->s.vfs, &request, NULL, &refusal), status, "%s", refusal.message);
    cr_assert(strstr(refusal.message, says), "%s, not %s", refusal.message, says);
    cr_assert_eq(pd_store_count(store), 0u);
    pd_store_close(store);
    pd_commit_deinit(&x->commit);
    state_deinit(&x->s);
}

static void store_two(struct refusal *x)
{
    state_init(&x->s, 71);
    x->stored = wide_layout(&x->s, 2, 4);
    x->layout = wide_layout(&x->s, 1, 4);
    state_save(&x->s, &x->stored, "/stored", &x->commit);
}

Test(reshard, a_request_that_does_not_fit_its_record_is_refused)
{
    struct refusal x;
    store_two(&x);
    x.layout.zero_shard = 2;
    refuse(&x, PD_INVALID, "zero_shard is 2");
    store_two(&x);
    x.commit.state.tensor_count++;
    refuse(&x, PD_INVALID, "/stored holds 9 tensors where its configuration gives 8");
}

/* Whole, and of this checkpoint, and yet not what the configuration says. */
Test(reshard, shards_of_another_model_are_refused)
{
    static const char says[] = "its shards do not hold what its configuration gives";
    struct refusal x;
    store_two(&x);
    x.s.tensors[1].name[0] = 'L';
    refuse(&x, PD_CORRUPT, says);
    store_two(&x);
    x.s.tensors[1].shape[1]++;
    refuse(&x, PD_CORRUPT, says);
}

/* A queue that fails to submit may have taken the transfer, and it cannot be closed before that one is back. */
static bool fail_submit(uint64_t nth, bool is_compressed, uint32_t *failed)
{
    struct state s;
    struct pd_commit commit;
    struct pd_group group;
    struct failing_submit failing;
    struct pd_error error = {0};
    state_init(&s, 12);
    struct pd_layout stored = state_layout(&s, 4);
    s.compresses = s.compresses_all = is_compressed;
    state_save(&s, &stored, "/stored", &commit);
    pd_group_init_single(&group);
    OK(pd_vfs_mkdir(s.vfs, "/target", err));
    failing_submit_begin(&failing, s.vfs);
    struct pd_store *store = open_store(s.vfs, &group);
    struct pd_import_request request = request_of(&s, &commit, &stored, store);
    if (is_compressed) request.codec = (struct pd_shard_codec){.codec = PD_CODEC_ZSTD, .level = 1};
    failing_submit_arm(&failing, nth);
    pd_status st = pd_reshard(s.vfs, &request, NULL, &error);
    const bool fired = failing_submit_fired(&failing);
    cr_assert(st == PD_OK || (fired && st == PD_IO), "submit %lu: %s", nth, error.message);
    *failed += st != PD_OK;
    pd_store_close(store);
    failing_submit_end(&failing);
    pd_commit_deinit(&commit);
    state_deinit(&s);
    return fired;
}

Test(reshard, a_submit_that_fails_leaves_nothing_in_flight)
{
    for (int is_compressed = 0; is_compressed < 2; is_compressed++) {
        uint64_t nth = 1;
        uint32_t failed = 0;
        while (fail_submit(nth, is_compressed, &failed))
            nth++;
        cr_assert(failed >= 6 && failed + 2 >= nth - 1, "%u of %lu", failed, nth - 1); /* a first look may fail */
    }
}

/* ---- a stop at every operation ---- */

struct attempt {
    struct state *s;
    const struct pd_commit *commit;
    const struct pd_layout *layout;
    struct pd_shard_codec codec;
};

/* *ret_fired: the fault, before the store was closed. */
static pd_status attempt(const struct attempt *a, struct pd_simulated_disk *disk, bool *ret_fired, struct pd_error *err)
{
    const struct pd_store_options options = {.writable = true, .keep_last = 10, .quarantine_bytes_max = UINT64_MAX};
    struct pd_vfs *vfs = NULL;
    struct pd_store *store = NULL;
    struct pd_group group;
    pd_group_init_single(&group);
    PD_TRY(pd_simulated_disk_vfs(disk, 0, &vfs, err));
    pd_status st = pd_store_open(vfs, "/target", &options, &group, &store, err);
    if (!st && pd_store_count(store) == 0) { /* as the tool: never beside one that is there */
        struct pd_import_request request = request_of(a->s, a->commit, a->layout, store);
        request.codec = a->codec;
        st = pd_reshard(vfs, &request, NULL, err);
    }
    *ret_fired = pd_simulated_disk_fired(disk) > 0;
    pd_store_close(store);
    pd_vfs_free(vfs);
    return st;
}

/* What lies there after a stop is nothing, or the checkpoint; once more, and it is the checkpoint. */
static void go_on(const struct attempt *a, struct pd_simulated_disk *disk)
{
    struct pd_group group;
    struct pd_vfs *vfs;
    bool fired;
    OK(attempt(a, disk, &fired, err));
    OK(pd_simulated_disk_vfs(disk, 0, &vfs, err));
    pd_group_init_single(&group);
    struct pd_store *store = open_store(vfs, &group);
    check_target(a->s, vfs, store, a->layout, a->commit);
    cr_assert_eq(pd_store_unusable_count(store), 0u);
    pd_store_close(store);
    pd_vfs_free(vfs);
}

static void must_be_there(struct pd_simulated_disk *disk, uint64_t nth)
{
    struct pd_group group;
    struct pd_vfs *vfs;
    pd_group_init_single(&group);
    OK(pd_simulated_disk_vfs(disk, 0, &vfs, err));
    struct pd_store *store = open_store(vfs, &group);
    cr_assert_eq(pd_store_count(store), 1u, "operation %lu", nth);
    pd_store_close(store);
    pd_vfs_free(vfs);
}

static bool stop_at(const struct attempt *a, uint64_t nth, enum pd_disk_fault_kind kind)
{
    struct pd_simulated_disk *disk;
    struct pd_error failed = {0};
    OK(pd_simulated_disk_clone(a->s->disk, &disk, err));
    pd_simulated_disk_set_fault(disk, &(struct pd_disk_fault){.kind = kind, .nth = nth});
    bool fired_before;
    pd_status st = attempt(a, disk, &fired_before, &failed);
    const bool fired = pd_simulated_disk_fired(disk) > 0;
    if (kind == PD_DISK_FAULT_POWER && fired) pd_simulated_disk_crash(disk, 0, nth);
    pd_simulated_disk_set_fault(disk, NULL);
    if (fired_before && !st) must_be_there(disk, nth); /* what came after the seal is nobody's business */
    go_on(a, disk);
    pd_simulated_disk_free(disk);
    return fired;
}

static void stop_everywhere(bool is_compressed)
{
    static const enum pd_disk_fault_kind kinds[] = {PD_DISK_FAULT_POWER, PD_DISK_FAULT_ERROR};
    struct state s;
    struct pd_commit commit;
    state_init(&s, 12);
    struct pd_layout stored = state_layout(&s, 4), layout = stored;
    layout.dp = 2;
    layout.zero_shard = 2;
    layout.tp = 2;
    memset(layout.first_unit, 0, sizeof layout.first_unit);
    layout.sp = layout.pp = layout.interleave = layout.stage_count = 1;
    s.compresses = s.compresses_all = is_compressed;
    state_save(&s, &stored, "/stored", &commit);
    OK(pd_vfs_mkdir(s.vfs, "/target", err));
    OK(pd_vfs_sync_dir(s.vfs, "/stored", err));
    OK(pd_vfs_sync_dir(s.vfs, "/", err));
    const struct attempt a = {
        &s, &commit, &layout, {.codec = is_compressed ? PD_CODEC_ZSTD : PD_CODEC_NONE, .level = is_compressed}};
    for (unsigned k = 0; k < 2; k++)
        for (uint64_t nth = 1; stop_at(&a, nth, kinds[k]); nth += 1 + nth / 6)
            continue;
    pd_commit_deinit(&commit);
    state_deinit(&s);
}

Test(reshard, stopped_anywhere_it_can_be_done_again)
{
    stop_everywhere(false);
}

Test(reshard, stopped_anywhere_compressed_ones_too)
{
    stop_everywhere(true);
}

/* ---- chunks that come wrong ---- */

static void turn_a_bit(struct pd_vfs *vfs, const char *path, uint64_t at)
{
    struct pd_file *file;
    unsigned char byte;
    OK(pd_file_open(vfs, path, PD_OPEN_READ | PD_OPEN_WRITE, &file, err));
    OK(pd_file_read(file, at, &byte, 1, err));
    byte ^= 4;
    OK(pd_file_write(file, at, &byte, 1, err));
    OK(pd_file_close(file, err));
}

/* Of the first box that lies in chunks. */
static struct pd_shard_chunk first_chunk(struct pd_vfs *vfs, const struct state *s, const struct pd_commit *commit)
{
    struct pd_shard *shard = NULL;
    struct pd_shard_chunk chunk;
    uint32_t box = 0;
    OK(pd_shard_open(vfs, "/stored/shard-00000.h5", &s->identity, &commit->shards[0], &shard, err));
    while (!pd_shard_box_is_in_chunks(shard, box))
        box++;
    pd_shard_chunk_at(shard, box, 0, &chunk);
    pd_shard_close(shard);
    return chunk;
}

/* The store has a VFS of its own, so that reads of the source are counted alone. */
static pd_status rewrite_misread(const struct attempt *a, uint64_t nth, bool *ret_fired, struct pd_error *failed)
{
    struct pd_simulated_disk *disk;
    struct pd_vfs *vfs, *of_store;
    struct pd_group group;
    OK(pd_simulated_disk_clone(a->s->disk, &disk, err));
    OK(pd_simulated_disk_vfs(disk, 0, &vfs, err));
    OK(pd_simulated_disk_vfs(disk, 0, &of_store, err));
    pd_group_init_single(&group);
    struct pd_store *store = open_store(of_store, &group);
    const struct pd_import_request request = request_of(a->s, a->commit, a->layout, store);
    pd_simulated_disk_set_fault(disk, &(struct pd_disk_fault){.kind = PD_DISK_FAULT_FLIP, .nth = nth, .vfs = vfs});
    const pd_status st = pd_reshard(vfs, &request, NULL, failed);
    *ret_fired = pd_simulated_disk_fired(disk) > 0;
    pd_simulated_disk_set_fault(disk, NULL);
    if (!st) check_target(a->s, of_store, store, a->layout, a->commit);
    pd_store_close(store);
    pd_vfs_free(of_store);
    pd_vfs_free(vfs);
    pd_simulated_disk_free(disk);
    return st;
}

/* A bit that is misread once is no damage, wherever it is; one that stays wrong names its chunk. */
Test(reshard, misread_chunks_are_read_again)
{
    struct state s;
    struct pd_commit commit;
    struct pd_layout stored, layout;
    struct pd_error failed = {0};
    bool fired = true;
    state_init(&s, 12);
    pd_layout_init_dp(&stored, 2);
    pd_layout_init_dp(&layout, 3);
    s.compresses = s.compresses_all = true;
    state_save(&s, &stored, "/stored", &commit);
    s.compresses = s.compresses_all = false;
    OK(pd_vfs_mkdir(s.vfs, "/target", err));
    const struct attempt a = {&s, &commit, &layout, {.codec = PD_CODEC_NONE}};
    for (uint64_t nth = 1; fired; nth++)
        OK(rewrite_misread(&a, nth, &fired, err));
    turn_a_bit(s.vfs, "/stored/shard-00000.h5", first_chunk(s.vfs, &s, &commit).offset + 77);
    cr_assert_eq(rewrite_misread(&a, UINT64_MAX, &fired, &failed), PD_CORRUPT, "%s", failed.message);
    cr_assert(strstr(failed.message, "shard-00000.h5: tensor layers.") && strstr(failed.message, "chunk "), "%s",
              failed.message);
    pd_commit_deinit(&commit);
    state_deinit(&s);
}
