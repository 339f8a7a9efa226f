/* Real shards, loaded by local ranks under another layout: every element arrives, nothing is read twice, what is not wanted
 * is not read, and what is not this model's is refused by name. */
#include "resharder/load/load.h"

#include "ckpt/shard/decompress.h"
#include "tests/helpers/failing_submit.h"
#include "tests/helpers/limited_disk.h"
#include "tests/helpers/local_group.h"
#include "tests/helpers/scale.h"
#include "tests/unit/resharder/state_fixture.h"

struct loading {
    struct state *state;
    const struct pd_commit *commit;
    const struct pd_tensor_table *tensors;
    const struct pd_layout *wanted;
    uint32_t kinds;
    const bool *tensor_wanted;
    uint64_t buffer_bytes;
    unsigned threads; /* of each rank's pool; 0: none */
    struct pd_load_report reports[64];
    uint64_t differing;
};

struct owned {
    struct pd_shard_box *boxes;
    float **data;
    uint32_t count;
};

static void *destination(void *context, uint32_t tensor, enum pd_kind kind, uint32_t box)
{
    struct owned *o = context;
    for (uint32_t b = 0; b < o->count; b++)
        if (o->boxes[b].tensor == tensor && o->boxes[b].kind == kind && !box--) return o->data[b];
    return NULL;
}

static void take_owned(const struct loading *l, uint32_t rank, struct owned *o)
{
    OK(pd_layout_shard_boxes(l->wanted, l->tensors, rank, &o->boxes, &o->count, err));
    o->data = calloc(o->count + 1, sizeof *o->data);
    for (uint32_t b = 0; b < o->count; b++)
        o->data[b] = malloc(pd_box_elements(&o->boxes[b].box) * 4); /* on no page boundary */
}

static bool is_wanted(const struct loading *l, const struct pd_shard_box *b)
{
    return (l->kinds >> b->kind & 1) && (!l->tensor_wanted || l->tensor_wanted[b->tensor]);
}

static void widen(float *values, uint64_t count)
{
    uint16_t *narrow = malloc(count * sizeof *narrow);
    memcpy(narrow, values, count * sizeof *narrow);
    pd_widen_bf16(values, narrow, count);
    free(narrow);
}

static void compare(struct loading *l, struct owned *o)
{
    for (uint32_t b = 0; b < o->count; b++) {
        const uint64_t count = pd_box_elements(&o->boxes[b].box);
        const enum pd_dtype dtype = pd_tensor_dtype(&l->tensors->tensors[o->boxes[b].tensor], o->boxes[b].kind);
        float *values = malloc(count * sizeof *values);
        state_fill(l->state, &o->boxes[b], values);
        if (dtype == PD_BF16 || (o->boxes[b].kind != PD_PARAM && l->commit->state.moments == PD_BF16))
            pd_narrow_bf16(values, values, count);
        if (dtype == PD_F32 && o->boxes[b].kind != PD_PARAM && l->commit->state.moments == PD_BF16) widen(values, count);
        if (is_wanted(l, &o->boxes[b]) && memcmp(values, o->data[b], count * pd_dtype_bytes(dtype)))
            __atomic_fetch_add(&l->differing, 1, __ATOMIC_RELAXED);
        free(values);
        free(o->data[b]);
    }
    free(o->data);
    free(o->boxes);
}

static pd_status load_rank(struct pd_group *group, void *context, struct pd_error *err)
{
    struct loading *l = context;
    struct owned o;
    take_owned(l, group->rank, &o);
    void *buffers = aligned_alloc(PD_VFS_ALIGN, l->buffer_bytes);
    struct pd_thread_pool *pool = NULL;
    if (l->threads) PD_TRY(pd_thread_pool_new(l->threads, &pool, err));
    const struct pd_load_request request = {.directory = "/stored",
                                            .commit = l->commit,
                                            .tensors = l->tensors,
                                            .wanted = l->wanted,
                                            .kinds = l->kinds,
                                            .tensor_wanted = l->tensor_wanted,
                                            .buffers = buffers,
                                            .buffer_bytes = l->buffer_bytes,
                                            .pool = pool,
                                            .destination = destination,
                                            .context = &o};
    pd_status st = pd_load(l->state->vfs, group, &request, &l->reports[group->rank], err);
    if (st) l->kinds = 0;
    compare(l, &o);
    pd_thread_pool_free(pool);
    free(buffers);
    return st;
}

/* Bytes of stored blocks that hold anything wanted; with whole boxes wanted these are the boxes. */
static uint64_t wanted_bytes(const struct loading *l, uint64_t *ret_boxes)
{
    const struct pd_layout *stored = &l->commit->state.layout;
    uint64_t bytes = 0;
    *ret_boxes = 0;
    for (uint32_t s = 0; s < pd_layout_world(stored); s++) {
        struct pd_shard_box *boxes;
        uint32_t count;
        OK(pd_layout_shard_boxes(stored, l->tensors, s, &boxes, &count, err));
        for (uint32_t b = 0; b < count; b++) {
            if (!is_wanted(l, &boxes[b])) continue;
            bytes += pd_box_elements(&boxes[b].box) * 4;
            ++*ret_boxes;
        }
        free(boxes);
    }
    return bytes;
}

static void check_bytes(const struct loading *l)
{
    const uint32_t world = pd_layout_world(l->wanted);
    uint64_t boxes, wanted = wanted_bytes(l, &boxes), useful = 0, read = 0, most = 0;
    for (uint32_t r = 0; r < world; r++) {
        useful += l->reports[r].bytes_wanted;
        read += l->reports[r].bytes_read;
        if (l->reports[r].bytes_wanted > most) most = l->reports[r].bytes_wanted;
    }
    cr_assert_eq(useful, wanted);
    cr_assert_leq(read, wanted + boxes * 2 * PD_VFS_ALIGN, "whole pages, and nothing else");
    cr_assert_leq(most, wanted / world + PD_SHARD_BLOCK_BYTES + boxes * PD_VFS_ALIGN, "an even share");
}

Test(load, any_layout_to_any_layout)
{
    const uint64_t seeds = test_scale() >= 10 ? 25 : 12;
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        struct state s;
        struct pd_commit commit;
        bool tensor_wanted[STATE_TENSORS];
        state_init_lacking(&s, seed, seed % 4 < 2 ? PD_DISK_NO_DIRECT_OPEN : 0);
        struct pd_layout stored = state_layout(&s, 4), wanted = state_layout(&s, state_random(&s, 4) ? 4 : 8);
        s.compresses = seed % 2;
        state_save(&s, &stored, "/stored", &commit);
        for (uint32_t t = 0; t < STATE_TENSORS; t++)
            tensor_wanted[t] = state_random(&s, 2);
        struct loading l = {.state = &s, .commit = &commit, .tensors = &s.table, .wanted = &wanted, .kinds = 7};
        l.buffer_bytes = 8 * PD_SHARD_BLOCK_BYTES * (1 + state_random(&s, 8));
        OK(pd_group_run_local(pd_layout_world(&wanted), 1, load_rank, &l, err));
        cr_assert_eq(l.differing, 0, "seed %lu", seed);
        check_bytes(&l);
        l.kinds = 1 + (uint32_t)state_random(&s, 6); /* parts of it */
        l.tensor_wanted = tensor_wanted;
        OK(pd_group_run_local(pd_layout_world(&wanted), 1, load_rank, &l, err));
        cr_assert_eq(l.differing, 0, "seed %lu, in part", seed);
        check_bytes(&l);
        pd_commit_deinit(&commit);
        state_deinit(&s);
    }
}

/* Moments as they are stored, narrowed and widened, under other layouts. */
Test(load, moments_are_kept_otherwise_than_stored)
{
    const enum pd_dtype dtypes[][2] = {{PD_BF16, PD_BF16}, {PD_F32, PD_BF16}, {PD_BF16, PD_F32}};
    for (uint64_t seed = 1; seed <= 12; seed++) {
        struct state s, kept;
        struct pd_commit commit;
        state_init_lacking(&s, seed, seed % 4 < 2 ? PD_DISK_NO_DIRECT_OPEN : 0);
        struct pd_layout stored = state_layout(&s, 4), wanted = state_layout(&s, 4);
        s.compresses = seed % 2;
        state_keep(&s, dtypes[seed % 3][0]);
        state_save(&s, &stored, "/stored", &commit);
        kept = s;
        kept.table.tensors = kept.tensors;
        state_keep(&kept, dtypes[seed % 3][1]);
        struct loading l = {.state = &s, .commit = &commit, .tensors = &kept.table, .wanted = &wanted, .kinds = 7};
        l.buffer_bytes = 8 * PD_SHARD_BLOCK_BYTES * (1 + state_random(&s, 8));
        OK(pd_group_run_local(pd_layout_world(&wanted), 1, load_rank, &l, err));
        cr_assert_eq(l.differing, 0, "seed %lu", seed);
        pd_commit_deinit(&commit);
        state_deinit(&s);
    }
}

/* The record says how moments are stored: a shard that says otherwise is not the record's. */
Test(load, a_shard_that_keeps_moments_otherwise_than_its_record_is_damage)
{
    struct state s;
    struct pd_commit commit;
    struct pd_error err_;
    state_init(&s, 5);
    state_keep(&s, PD_BF16);
    struct pd_layout stored = state_layout(&s, 4);
    state_save(&s, &stored, "/stored", &commit);
    commit.state.moments = PD_F32;
    struct loading l = {.state = &s, .commit = &commit, .tensors = &s.table, .wanted = &stored, .kinds = 7};
    l.buffer_bytes = 1 << 20;
    cr_assert_eq(pd_group_run_local(pd_layout_world(&stored), 1, load_rank, &l, &err_), PD_CORRUPT);
    cr_assert(strstr(err_.message, "keeps moments in bf16 where the record says fp32"), "%s", err_.message);
    pd_commit_deinit(&commit);
    state_deinit(&s);
}

Test(load, one_tensor_reads_its_blocks_only)
{
    struct state s;
    struct pd_commit commit;
    bool tensor_wanted[STATE_TENSORS] = {0};
    struct pd_layout whole;
    state_init(&s, 3);
    struct pd_layout stored = state_layout(&s, 4);
    pd_layout_init_dp(&whole, 1);
    state_save(&s, &stored, "/stored", &commit);
    for (uint32_t t = 0; t < STATE_TENSORS; t++) {
        tensor_wanted[t] = true;
        struct loading l = {.state = &s,
                            .commit = &commit,
                            .tensors = &s.table,
                            .wanted = &whole,
                            .kinds = 1u << PD_PARAM,
                            .tensor_wanted = tensor_wanted,
                            .buffer_bytes = 1 << 20};
        OK(pd_group_run_local(1, 1, load_rank, &l, err));
        cr_assert_eq(l.differing, 0);
        cr_assert_eq(l.reports[0].bytes_wanted, pd_tensor_elements(&s.tensors[t]) * 4);
        check_bytes(&l);
        tensor_wanted[t] = false;
    }
    pd_commit_deinit(&commit);
    state_deinit(&s);
}

/* Boxes of some KiB lie close together among HDF5's pages: one read brings many. The buffers are small, so the ring ends in
 * all sorts of places. */
Test(load, small_boxes_are_read_together)
{
    static struct pd_tensor tensors[STATE_MANY];
    struct state s;
    struct pd_commit commit;
    struct pd_layout stored, wanted;
    struct limited_disk disk;
    state_init(&s, 3);
    state_crowd(&s, tensors);
    pd_layout_init_dp(&stored, 2);
    pd_layout_init_dp(&wanted, 2);
    stored.tp = 2;
    stored.virtual_tp = wanted.virtual_tp = 2;
    state_save(&s, &stored, "/stored", &commit);
    for (uint64_t pages = 512; pages < 1024; pages += 23) {
        struct loading l = {.state = &s,
                            .commit = &commit,
                            .tensors = &s.table,
                            .wanted = &wanted,
                            .kinds = 7,
                            .buffer_bytes = pages * PD_VFS_ALIGN};
        limited_disk_begin(&disk, s.vfs, 0);
        OK(pd_group_run_local(2, 1, load_rank, &l, err));
        limited_disk_end(&disk);
        uint64_t boxes;
        (void)wanted_bytes(&l, &boxes);
        cr_assert_eq(l.differing, 0, "%lu pages", pages);
        check_bytes(&l);
        cr_assert_lt(atomic_load(&disk.reads), boxes / 2, "%lu reads of %lu boxes", atomic_load(&disk.reads), boxes);
    }
    pd_commit_deinit(&commit);
    state_deinit(&s);
}

/* ---- boxes in chunks ---- */

/* Stored bytes are read once, but for chunks at the edge between two readers; what was counted was read. */
static void check_chunk_bytes(const struct loading *l, const struct limited_disk *disk, uint64_t opened)
{
    const uint32_t world = pd_layout_world(l->wanted);
    uint64_t stored = 0, read = 0;
    for (uint32_t r = 0; r < world; r++) {
        stored += l->reports[r].bytes_stored;
        read += l->reports[r].bytes_read;
    }
    cr_assert_leq(read, stored + (world - 1) * (uint64_t)(1 << 20) + 2 * PD_VFS_ALIGN * 100 * world, "%lu of %lu", read,
                  stored);
    if (disk) cr_assert_eq(atomic_load(&disk->bytes_read) - opened, read);
}

Test(load, chunks_are_read_ahead_and_once, .timeout = 1200)
{
    const uint64_t seeds = test_scale() >= 10 ? 8 : 4;
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        struct state s;
        struct pd_commit commit;
        state_init(&s, seed);
        state_enlarge(&s);
        struct pd_layout stored = state_layout(&s, 4), wanted = state_layout(&s, 4);
        s.compresses = s.compresses_all = true;
        s.compresses_all = seed % 4 != 0;
        state_save(&s, &stored, "/stored", &commit);
        struct loading l = {.state = &s, .commit = &commit, .tensors = &s.table, .wanted = &wanted, .kinds = 7};
        for (l.buffer_bytes = 5 << 20; l.buffer_bytes <= 40 << 20; l.buffer_bytes *= 2) {
            l.threads = (unsigned)(seed + l.buffer_bytes / (5 << 20)) % 4;
            OK(pd_group_run_local(pd_layout_world(&wanted), 1, load_rank, &l, err));
            cr_assert_eq(l.differing, 0, "seed %lu, %lu bytes", seed, l.buffer_bytes);
            if (l.buffer_bytes >= 10 << 20) check_chunk_bytes(&l, NULL, 0);
        }
        l.buffer_bytes = 20 << 20;
        l.kinds = 1 + (uint32_t)state_random(&s, 6);
        OK(pd_group_run_local(pd_layout_world(&wanted), 1, load_rank, &l, err));
        cr_assert_eq(l.differing, 0, "seed %lu, in part", seed);
        check_chunk_bytes(&l, NULL, 0);
        pd_commit_deinit(&commit);
        state_deinit(&s);
    }
}

/* One reader of much: at most a twentieth is read twice, by what the disk counts. */
Test(load, chunks_cost_what_they_store)
{
    struct state s;
    struct pd_commit commit;
    struct pd_layout whole;
    struct limited_disk disk;
    state_init(&s, 2);
    state_enlarge(&s);
    struct pd_layout stored = state_layout(&s, 4);
    pd_layout_init_dp(&whole, 1);
    s.compresses = s.compresses_all = true;
    state_save(&s, &stored, "/stored", &commit);
    struct loading l = {
        .state = &s, .commit = &commit, .tensors = &s.table, .wanted = &whole, .kinds = 7, .buffer_bytes = 16 << 20};
    limited_disk_begin(&disk, s.vfs, 0);
    OK(pd_group_run_local(1, 1, load_rank, &l, err));
    cr_assert_eq(l.differing, 0);
    const uint64_t stored_bytes = l.reports[0].bytes_stored, read = atomic_load(&disk.bytes_read);
    cr_assert_gt(l.reports[0].rounds, 20u, "many rounds");
    cr_assert_lt(stored_bytes, l.reports[0].bytes_wanted * 95 / 100);
    cr_assert_leq(l.reports[0].bytes_read, stored_bytes + 64 * PD_VFS_ALIGN, "nothing twice");
    cr_assert_leq((double)read, 1.05 * (double)stored_bytes, "with tables and metadata: %lu of %lu", read, stored_bytes);
    limited_disk_end(&disk);
    pd_commit_deinit(&commit);
    state_deinit(&s);
}

/* A chunk at the edge between two readers is read by both, and each opens the shards that it reads: a small share pays for
 * that by more than a large one. By what the disk counts, in all. */
Test(load, small_shares_pay_for_their_edges)
{
    struct state s;
    struct pd_commit commit;
    struct limited_disk disk;
    state_init(&s, 2);
    state_enlarge(&s);
    struct pd_layout stored = state_layout(&s, 4);
    s.compresses = s.compresses_all = true;
    state_save(&s, &stored, "/stored", &commit);
    limited_disk_begin(&disk, s.vfs, 0);
    for (uint32_t readers = 1; readers <= 8; readers *= 2) {
        struct pd_layout wanted;
        pd_layout_init_dp(&wanted, readers);
        struct loading l = {
            .state = &s, .commit = &commit, .tensors = &s.table, .wanted = &wanted, .kinds = 7, .buffer_bytes = 16 << 20};
        atomic_store(&disk.bytes_read, 0);
        OK(pd_group_run_local(readers, 1, load_rank, &l, err));
        uint64_t bytes = 0, read = atomic_load(&disk.bytes_read);
        for (uint32_t r = 0; r < readers; r++)
            bytes += l.reports[r].bytes_stored;
        cr_log_info("%u readers of %lu bytes each: %.3f of what is stored is read", readers, bytes / readers,
                    (double)read / (double)bytes);
        cr_assert_leq((double)read, 1.05 * (double)bytes + (readers - 1.0) * PD_SHARD_CHUNK_MAX / 4);
    }
    limited_disk_end(&disk);
    pd_commit_deinit(&commit);
    state_deinit(&s);
}

static void flip(struct state *s, uint64_t at)
{
    struct pd_file *file;
    unsigned char byte;
    OK(pd_file_open(s->vfs, "/stored/shard-00000.h5", PD_OPEN_READ | PD_OPEN_WRITE, &file, err));
    OK(pd_file_read(file, at, &byte, 1, err));
    byte ^= 4;
    OK(pd_file_write(file, at, &byte, 1, err));
    OK(pd_file_close(file, err));
}

/* A bit that is misread once is no damage, wherever it is; one that stays wrong names its chunk. */
Test(load, misread_chunks_are_read_again)
{
    struct state s;
    struct pd_commit commit;
    struct pd_layout stored, wanted;
    struct pd_error failed = {0};
    state_init(&s, 2);
    state_enlarge(&s);
    pd_layout_init_dp(&stored, 1);
    pd_layout_init_dp(&wanted, 2);
    s.compresses = s.compresses_all = true;
    state_save(&s, &stored, "/stored", &commit);
    struct loading l = {.state = &s,
                        .commit = &commit,
                        .tensors = &s.table,
                        .wanted = &wanted,
                        .kinds = 7,
                        .buffer_bytes = 16 << 20,
                        .threads = 2};
    for (uint64_t nth = test_first(0, 3); nth < 200; nth += 3 + nth / 4) {
        pd_simulated_disk_set_fault(s.disk, &(struct pd_disk_fault){.kind = PD_DISK_FAULT_FLIP, .nth = nth});
        OK(pd_group_run_local(2, 1, load_rank, &l, err));
        cr_assert_eq(l.differing, 0, "read %lu", nth);
    }
    pd_simulated_disk_set_fault(s.disk, NULL);
    struct pd_shard *shard = NULL;
    struct pd_shard_chunk chunk;
    OK(pd_shard_open(s.vfs, "/stored/shard-00000.h5", &s.identity, &commit.shards[0], &shard, err));
    pd_shard_chunk_at(shard, 0, 5 << 20, &chunk);
    pd_shard_close(shard);
    flip(&s, chunk.offset + chunk.page_bytes - 1); /* zeros behind what is stored, which no block covers */
    cr_assert_eq(pd_group_run_local(2, 1, load_rank, &l, &failed), PD_CORRUPT, "%s", failed.message);
    cr_assert(strstr(failed.message, "padding"), "%s", failed.message);
    flip(&s, chunk.offset + chunk.page_bytes - 1);
    l.kinds = 7;
    OK(pd_group_run_local(2, 1, load_rank, &l, err));
    flip(&s, chunk.offset + 77);
    cr_assert_eq(pd_group_run_local(2, 1, load_rank, &l, &failed), PD_CORRUPT, "%s", failed.message);
    cr_assert(strstr(failed.message, "shard-00000.h5: tensor layers.") && strstr(failed.message, "chunk "), "%s",
              failed.message);
    pd_commit_deinit(&commit);
    state_deinit(&s);
}

/* The same of boxes that lie as they are, verified by several threads: of two bad blocks the first in the file is named. */
static void misread_blocks(unsigned lacks)
{
    struct state s;
    struct pd_commit commit;
    struct pd_layout stored, wanted;
    struct pd_error failed = {0};
    state_init_lacking(&s, 2, lacks);
    state_enlarge(&s);
    pd_layout_init_dp(&stored, 1);
    pd_layout_init_dp(&wanted, 2);
    state_save(&s, &stored, "/stored", &commit);
    struct loading l = {.state = &s,
                        .commit = &commit,
                        .tensors = &s.table,
                        .wanted = &wanted,
                        .kinds = 7,
                        .buffer_bytes = 16 << 20,
                        .threads = 3};
    for (uint64_t nth = test_first(0, 3); nth < 200; nth += 3 + nth / 4) {
        pd_simulated_disk_set_fault(s.disk, &(struct pd_disk_fault){.kind = PD_DISK_FAULT_FLIP, .nth = nth});
        OK(pd_group_run_local(2, 1, load_rank, &l, err));
        cr_assert_eq(l.differing, 0, "read %lu", nth);
    }
    pd_simulated_disk_set_fault(s.disk, NULL);
    struct pd_shard *shard = NULL;
    OK(pd_shard_open(s.vfs, "/stored/shard-00000.h5", &s.identity, &commit.shards[0], &shard, err));
    const uint64_t box = pd_shard_box_offset(shard, 0);
    pd_shard_close(shard);
    flip(&s, box + 5 * PD_SHARD_BLOCK_BYTES);
    flip(&s, box + 13 * PD_SHARD_BLOCK_BYTES);
    for (int i = 0; i < 20; i++, l.kinds = 7) {
        cr_assert_eq(pd_group_run_local(2, 1, load_rank, &l, &failed), PD_CORRUPT, "%s", failed.message);
        cr_assert(strstr(failed.message, "block 5 of"), "%s", failed.message);
    }
    pd_commit_deinit(&commit);
    state_deinit(&s);
}

Test(load, misread_blocks_are_read_again)
{
    misread_blocks(0);
}

/* Read straight to their places: nothing stays there unverified. */
Test(load, misread_blocks_are_read_again_without_direct_io)
{
    misread_blocks(PD_DISK_NO_DIRECT_OPEN);
}

/* A server stores an object in parts, and a read of two of them costs it more: none touches two. */
Test(load, reads_end_where_parts_do)
{
    struct state s;
    struct pd_commit commit;
    struct pd_layout stored, whole;
    struct limited_disk disk;
    state_init(&s, 2);
    state_enlarge(&s);
    pd_layout_init_dp(&stored, 1);
    pd_layout_init_dp(&whole, 1);
    state_save(&s, &stored, "/stored", &commit);
    struct loading l = {
        .state = &s, .commit = &commit, .tensors = &s.table, .wanted = &whole, .kinds = 7, .buffer_bytes = 40 << 20};
    limited_disk_begin(&disk, s.vfs, 0);
    OK(pd_group_run_local(1, 1, load_rank, &l, err));
    cr_assert_eq(l.differing, 0);
    cr_assert_gt(atomic_load(&disk.bytes_read), UINT64_C(40) << 20);
    cr_assert_eq(atomic_load(&disk.crossings), 0u, "%lu reads touch two parts", atomic_load(&disk.crossings));
    limited_disk_end(&disk);
    pd_commit_deinit(&commit);
    state_deinit(&s);
}

/* A queue that fails to submit may have taken the transfer, and it cannot be closed before that one is back. */
Test(load, a_submit_that_fails_leaves_nothing_in_flight)
{
    struct state s;
    struct pd_commit commit;
    struct pd_layout wanted;
    struct failing_submit failing;
    state_init(&s, 12);
    struct pd_layout stored = state_layout(&s, 4);
    pd_layout_init_dp(&wanted, 1);
    state_save(&s, &stored, "/stored", &commit);
    failing_submit_begin(&failing, s.vfs);
    bool fired = true;
    for (uint64_t nth = 1; fired; nth++) {
        struct loading l = {
            .state = &s, .commit = &commit, .tensors = &s.table, .wanted = &wanted, .kinds = 7, .buffer_bytes = 1 << 20};
        struct pd_error error = {0};
        failing_submit_arm(&failing, nth);
        pd_status st = pd_group_run_local(1, 1, load_rank, &l, &error);
        fired = failing_submit_fired(&failing);
        cr_assert_eq(st, fired ? PD_IO : PD_OK, "submit %lu: %s", nth, error.message);
    }
    failing_submit_end(&failing);
    pd_commit_deinit(&commit);
    state_deinit(&s);
}

/* ---- refusals ---- */

static void refuse(struct state *s, const struct pd_commit *commit, const struct pd_tensor_table *tensors,
                   const char *sentence)
{
    struct pd_layout wanted;
    struct pd_error err = {0};
    pd_layout_init_dp(&wanted, 2);
    struct loading l = {
        .state = s, .commit = commit, .tensors = tensors, .wanted = &wanted, .kinds = 7, .buffer_bytes = 1 << 20};
    cr_assert_eq(pd_group_run_local(2, 1, load_rank, &l, &err), PD_INVALID, "%s", err.message);
    cr_assert(strstr(err.message, sentence), "%s", err.message);
    for (int r = 0; r < 2; r++)
        cr_assert_eq(l.reports[r].bytes_read, 0, "before any work");
}

Test(load, another_model_is_refused_by_name)
{
    struct state s;
    struct pd_commit commit;
    struct pd_tensor other[STATE_TENSORS + 1];
    state_init(&s, 9);
    struct pd_layout stored = state_layout(&s, 4);
    state_save(&s, &stored, "/stored", &commit);

    struct pd_tensor_table fewer = {.tensors = s.tensors, .count = STATE_TENSORS - 1};
    refuse(&s, &commit, &fewer, "it holds layers.7.weight, which this model does not have");

    memcpy(other, s.tensors, sizeof s.tensors);
    other[STATE_TENSORS] = s.tensors[0];
    snprintf(other[STATE_TENSORS].name, sizeof other[0].name, "bias");
    struct pd_tensor_table more = {.tensors = other, .count = STATE_TENSORS + 1};
    refuse(&s, &commit, &more, "it lacks bias, which this model has");

    snprintf(other[3].name, sizeof other[0].name, "layers.3.bias");
    struct pd_tensor_table renamed = {.tensors = other, .count = STATE_TENSORS};
    refuse(&s, &commit, &renamed, "layers.3.");

    memcpy(other, s.tensors, sizeof s.tensors);
    other[5].shape[0] += other[5].tp_unit;
    struct pd_tensor_table reshaped = {.tensors = other, .count = STATE_TENSORS};
    refuse(&s, &commit, &reshaped, "layers.5.weight is ");
    pd_commit_deinit(&commit);
    state_deinit(&s);
}

/* Whole shards of this model, and a record that puts their boxes elsewhere. */
Test(load, a_record_that_is_not_its_shards_is_damage)
{
    struct state s;
    struct pd_commit commit;
    struct pd_layout stored;
    struct pd_error failed = {0};
    state_init(&s, 9);
    pd_layout_init_dp(&stored, 2);
    state_save(&s, &stored, "/stored", &commit);
    struct loading l = {.state = &s, .commit = &commit, .tensors = &s.table, .wanted = &stored, .kinds = 7};
    l.buffer_bytes = 1 << 20;
    commit.state.layout.zero_shard = 1; /* everything is the first rank's */
    cr_assert_eq(pd_group_run_local(2, 1, load_rank, &l, &failed), PD_CORRUPT, "%s", failed.message);
    cr_assert(strstr(failed.message, ".h5: its boxes are not where the layout puts them"), "%s", failed.message);
    pd_commit_deinit(&commit);
    state_deinit(&s);
}
