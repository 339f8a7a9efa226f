/* Extents through the ring: every byte goes where it belongs, in order, on every VFS; whatever fails is named and nothing
 * stays in flight. PERDURE_TEST_SCALE multiplies the random jobs. */
#include "ckpt/io/vfs_ops.h"
#include "offload/ring.h"
#include "tests/simulated_disk/simulated_disk.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OK(expression)                                                                                           \
    do {                                                                                                         \
        struct pd_error err_ = {0}, *err = &err_;                                                                \
        pd_status status_ = (expression);                                                                        \
        cr_assert_eq(status_, PD_OK, "%s:%d %s: %s", __FILE__, __LINE__, pd_status_name(status_), err_.message); \
    } while (0)

#define PAGE PD_VFS_ALIGN
#define SLOT (UINT64_C(64) << 10)
#define FILES 2u

static uint64_t seed;

static uint64_t next(uint64_t below)
{
    seed += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = seed;
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (z ^ z >> 31) % below;
}

/* A job over random pieces, and the files as memory knows them. */
struct plan {
    struct pd_vfs *vfs;
    struct pd_ring *ring;
    void *buffers;
    struct pd_file *from[FILES], *to[FILES];
    unsigned char *source[FILES], *target[FILES];
    uint64_t file_bytes, slot_bytes;
    struct pd_ring_extent *extents;
    uint64_t extent_count, described, worked;
    uint64_t bytes_read, bytes_written;
    uint64_t fail_at; /* extent whose work fails; UINT64_MAX: none */
};

static void describe(void *context, uint64_t i, struct pd_ring_extent *ret_extent)
{
    struct plan *plan = context;
    cr_assert_eq(i, plan->described++);
    cr_assert(i < plan->worked + PD_RING_SLOTS);
    const struct pd_ring_extent *extent = &plan->extents[i];
    ret_extent->count = extent->count;
    ret_extent->user = plan;
    memcpy(ret_extent->pieces, extent->pieces, extent->count * sizeof *extent->pieces);
}

static unsigned char changed(unsigned char byte, uint64_t extent)
{
    return (unsigned char)(byte ^ (0x5a + extent));
}

static unsigned file_number(struct pd_file *const *files, const struct pd_file *file)
{
    return file == files[0] ? 0 : 1;
}

static pd_status work(void *context, uint64_t i, struct pd_ring_extent *extent, struct pd_error *err)
{
    struct plan *plan = context;
    cr_assert_eq(i, plan->worked++);
    cr_assert_eq(extent->user, plan);
    if (i == plan->fail_at) PD_FAIL(err, PD_CORRUPT, "extent %llu is not liked", (unsigned long long)i);
    for (uint32_t p = 0; p < extent->count; p++) {
        struct pd_ring_piece *piece = &extent->pieces[p];
        unsigned char *data = piece->data;
        if (piece->from)
            cr_assert_arr_eq(data, plan->source[file_number(plan->from, piece->from)] + piece->from_offset, piece->bytes);
        else
            memset(data, (int)i, piece->bytes);
        for (uint64_t b = 0; b < piece->bytes; b++)
            data[b] = changed(data[b], i);
        if (piece->to) memcpy(plan->target[file_number(plan->to, piece->to)] + piece->to_offset, data, piece->bytes);
    }
    return PD_OK;
}

static void open_files(struct plan *plan, const char *directory)
{
    for (unsigned f = 0; f < FILES; f++) {
        char path[128];
        plan->source[f] = aligned_alloc(PAGE, plan->file_bytes);
        plan->target[f] = aligned_alloc(PAGE, plan->file_bytes);
        for (uint64_t b = 0; b < plan->file_bytes; b++)
            plan->source[f][b] = (unsigned char)next(256);
        memset(plan->target[f], 0, plan->file_bytes);
        const unsigned flags = PD_OPEN_READ | PD_OPEN_WRITE | PD_OPEN_CREATE | PD_OPEN_DIRECT;
        snprintf(path, sizeof path, "%s/from-%u", directory, f);
        OK(pd_file_open(plan->vfs, path, flags, &plan->from[f], err));
        OK(pd_file_write(plan->from[f], 0, plan->source[f], plan->file_bytes, err));
        snprintf(path, sizeof path, "%s/to-%u", directory, f);
        OK(pd_file_open(plan->vfs, path, flags, &plan->to[f], err));
        OK(pd_file_write(plan->to[f], 0, plan->target[f], plan->file_bytes, err));
    }
}

/* Pieces of one to many pages, neighbours or not; every page of a target belongs to one piece at most. */
static void plan_extents(struct plan *plan, uint64_t slot_pages)
{
    const uint64_t pages = plan->file_bytes / PAGE;
    uint64_t at[FILES] = {0};
    plan->extents = calloc(2 * pages, sizeof *plan->extents);
    while (at[0] < pages || at[1] < pages) {
        struct pd_ring_extent *extent = &plan->extents[plan->extent_count++];
        uint64_t room = slot_pages, wanted = next(4) ? PD_RING_PIECES_MAX : next(6);
        while (extent->count < wanted && room > 0 && (at[0] < pages || at[1] < pages)) {
            unsigned f = at[0] == pages || (at[1] < pages && next(8) == 0) ? 1 : 0;
            uint64_t count = 1 + next(next(3) ? 3 : 40);
            if (next(4) == 0 && at[f] + 1 < pages) at[f]++;
            if (count > room) count = room;
            if (count > pages - at[f]) count = pages - at[f];
            struct pd_ring_piece *piece = &extent->pieces[extent->count++];
            *piece = (struct pd_ring_piece){.from_offset = at[f] * PAGE, .to_offset = at[f] * PAGE, .bytes = count * PAGE};
            if (next(10)) piece->from = plan->from[f];
            if (next(10)) piece->to = plan->to[f];
            if (piece->from) plan->bytes_read += piece->bytes;
            if (piece->to) plan->bytes_written += piece->bytes;
            at[f] += count;
            room -= count;
        }
    }
}

static void plan_init(struct plan *plan, struct pd_vfs *vfs, const char *directory, uint64_t file_bytes, uint64_t slot_bytes)
{
    *plan = (struct plan){.vfs = vfs, .file_bytes = file_bytes, .slot_bytes = slot_bytes, .fail_at = UINT64_MAX};
    plan->buffers = aligned_alloc(PAGE, PD_RING_SLOTS * slot_bytes + PAGE);
    OK(pd_ring_new(vfs, plan->buffers, PD_RING_SLOTS * slot_bytes + PAGE, &plan->ring, err));
    cr_assert_eq(pd_ring_slot_bytes(plan->ring), slot_bytes);
    open_files(plan, directory);
    plan_extents(plan, slot_bytes / PAGE);
}

static void plan_deinit(struct plan *plan)
{
    pd_ring_free(plan->ring);
    for (unsigned f = 0; f < FILES; f++) {
        pd_file_close_readonly(plan->from[f]);
        pd_file_close_readonly(plan->to[f]);
        free(plan->source[f]);
        free(plan->target[f]);
    }
    free(plan->buffers);
    free(plan->extents);
}

static pd_status plan_run(struct plan *plan, struct pd_ring_report *ret_report, struct pd_error *err)
{
    const struct pd_ring_job job = {plan->extent_count, plan, describe, work};
    plan->described = plan->worked = 0;
    if (plan->extent_count % 2) return pd_ring_run(plan->ring, &job, ret_report, err);
    PD_TRY(pd_ring_begin(plan->ring, &job, err));
    cr_assert_eq(plan->worked, 0);
    return pd_ring_end(plan->ring, ret_report, err);
}

static void check_targets(const struct plan *plan)
{
    unsigned char *data = aligned_alloc(PAGE, plan->file_bytes);
    for (unsigned f = 0; f < FILES; f++) {
        OK(pd_file_read(plan->to[f], 0, data, plan->file_bytes, err));
        cr_assert_arr_eq(data, plan->target[f], plan->file_bytes);
    }
    free(data);
}

static void run_and_check(struct plan *plan)
{
    struct pd_ring_report report;
    OK(plan_run(plan, &report, err));
    cr_assert_eq(plan->worked, plan->extent_count);
    cr_assert_eq(report.bytes_read, plan->bytes_read);
    cr_assert_eq(report.bytes_written, plan->bytes_written);
    check_targets(plan);
}

static unsigned scale(void)
{
    const char *text = getenv("PERDURE_TEST_SCALE");
    unsigned value = 1;
    if (text && sscanf(text, "%u", &value) != 1) value = 1;
    return value ? value : 1;
}

static void exercise(struct pd_vfs *vfs)
{
    char directory[] = "/tmp/perdure-test-XXXXXX", command[64];
    cr_assert_not_null(mkdtemp(directory));
    for (unsigned i = 0; i < 4 * scale(); i++) {
        struct plan plan;
        seed = 100 + i;
        plan_init(&plan, vfs, directory, (i % 2 ? 3 : 1) * (UINT64_C(1) << 20), SLOT * (1 + next(30)));
        run_and_check(&plan);
        run_and_check(&plan); /* again with the same ring */
        plan_deinit(&plan);
    }
    snprintf(command, sizeof command, "rm -rf %s", directory);
    cr_assert_eq(system(command), 0);
    pd_vfs_free(vfs);
}

Test(ring, moves_every_byte_through_io_uring)
{
    struct pd_vfs *vfs;
    OK(pd_vfs_new_uring(128, &vfs, err));
    exercise(vfs);
}

Test(ring, moves_every_byte_through_few_threads_and_a_short_queue)
{
    struct pd_vfs *vfs;
    OK(pd_vfs_new_threads(2, 2, &vfs, err));
    exercise(vfs);
}

/* A queue that is done with everything at once. */
static int submit_at_once(struct pd_queue *queue, struct pd_transfer *const *transfers, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct pd_transfer *t = transfers[i];
        uint64_t moved;
        pd_queue_finish(queue, t, pd_file_move(t->file, t->is_write, t->offset, t->data, t->bytes, &moved));
    }
    return 0;
}

static int reap_nothing(struct pd_queue *queue, bool wait)
{
    (void)queue, (void)wait;
    return 0;
}

static void close_nothing(struct pd_queue *queue)
{
    (void)queue;
}

static const struct pd_queue_ops at_once_ops = {
    .name = "at once", .submit = submit_at_once, .reap = reap_nothing, .close = close_nothing};

static int open_at_once(struct pd_queue *queue, void *buffers, uint64_t buffer_bytes)
{
    (void)buffers, (void)buffer_bytes;
    queue->ops = &at_once_ops;
    return 0;
}

struct pace {
    uint64_t described, extents;
    struct pd_file *file;
};

static void describe_page(void *context, uint64_t i, struct pd_ring_extent *ret_extent)
{
    struct pace *pace = context;
    pace->described++;
    ret_extent->count = 1;
    ret_extent->pieces[0] = (struct pd_ring_piece){
        .from = pace->file, .from_offset = i * PAGE, .to = pace->file, .to_offset = i * PAGE, .bytes = PAGE};
}

/* Of the extents before, the last one may still be on its way out. */
static pd_status check_pace(void *context, uint64_t i, struct pd_ring_extent *extent, struct pd_error *err)
{
    const struct pace *pace = context;
    const uint64_t ahead = i + PD_RING_SLOTS - 1;
    (void)extent;
    if (pace->described >= (ahead < pace->extents ? ahead : pace->extents)) return PD_OK;
    PD_FAIL(err, PD_BUG, "extent %llu is worked on, and only %llu are on their way", (unsigned long long)i,
            (unsigned long long)pace->described);
}

/* Where reads are quicker than work, they must not wait until there is nothing to work on. */
Test(ring, reads_go_on_while_extents_wait_to_be_worked_on)
{
    struct pd_vfs *vfs;
    struct pd_ring *ring;
    struct pace pace = {.extents = 5 * PD_RING_SLOTS};
    void *buffers = aligned_alloc(PAGE, PD_RING_SLOTS * SLOT);
    struct pd_simulated_disk *disk;
    const struct pd_disk_options options = {.seed = 8};
    OK(pd_simulated_disk_new(&options, &disk, err));
    OK(pd_simulated_disk_vfs(disk, 0, &vfs, err));
    struct pd_vfs_ops ops = *vfs->ops;
    ops.queue_open = open_at_once;
    vfs->ops = &ops;
    OK(pd_file_open(vfs, "/pages", PD_OPEN_READ | PD_OPEN_WRITE | PD_OPEN_CREATE, &pace.file, err));
    OK(pd_file_truncate(pace.file, pace.extents * PAGE, err));
    OK(pd_ring_new(vfs, buffers, PD_RING_SLOTS * SLOT, &ring, err));
    const struct pd_ring_job job = {pace.extents, &pace, describe_page, check_pace};
    OK(pd_ring_run(ring, &job, NULL, err));
    pd_ring_free(ring);
    pd_file_close_readonly(pace.file);
    pd_vfs_free(vfs);
    pd_simulated_disk_free(disk);
    free(buffers);
}

Test(ring, an_empty_job_is_done)
{
    struct pd_vfs *vfs;
    struct pd_ring *ring;
    void *buffers = aligned_alloc(PAGE, PD_RING_SLOTS * SLOT);
    OK(pd_vfs_new_threads(2, 1, &vfs, err));
    OK(pd_ring_new(vfs, buffers, PD_RING_SLOTS * SLOT, &ring, err));
    const struct pd_ring_job job = {0, NULL, describe, work};
    OK(pd_ring_run(ring, &job, NULL, err));
    pd_ring_free(ring);
    pd_vfs_free(vfs);
    free(buffers);
}

/* ---- failures ---- */

static struct pd_simulated_disk *new_disk(struct pd_vfs **ret_vfs)
{
    struct pd_simulated_disk *disk;
    const struct pd_disk_options options = {.seed = 7};
    OK(pd_simulated_disk_new(&options, &disk, err));
    OK(pd_simulated_disk_vfs(disk, 0, ret_vfs, err));
    return disk;
}

Test(ring, what_fails_is_named_and_nothing_stays_in_flight)
{
    struct pd_vfs *vfs;
    struct pd_simulated_disk *disk = new_disk(&vfs);
    struct plan plan;
    seed = 3;
    plan_init(&plan, vfs, "", 256 * PAGE, SLOT);
    uint64_t nth = 1;
    for (;; nth++) {
        struct pd_error err = {0};
        const struct pd_disk_fault fault = {
            .kind = PD_DISK_FAULT_ERROR, .nth = nth, .operations = PD_DISK_MASK(PD_DISK_READ) | PD_DISK_MASK(PD_DISK_WRITE)};
        pd_simulated_disk_set_fault(disk, &fault);
        pd_status st = plan_run(&plan, NULL, &err);
        bool fired = pd_simulated_disk_fired(disk) > 0;
        pd_simulated_disk_set_fault(disk, NULL);
        if (!fired) {
            cr_assert_eq(st, PD_OK);
            break;
        }
        cr_assert_eq(st, PD_IO, "operation %llu: %s", (unsigned long long)nth, pd_status_name(st));
        bool named = strstr(err.message, "read /from-") || strstr(err.message, "write /to-");
        cr_assert(named && strstr(err.message, "Input/output error"), "%s", err.message);
        if (nth % 16 == 1) run_and_check(&plan); /* the ring is as new */
    }
    cr_assert_gt(nth, 20);
    plan_deinit(&plan);
    pd_vfs_free(vfs);
    pd_simulated_disk_free(disk);
}

Test(ring, short_transfers_are_continued)
{
    struct pd_vfs *vfs;
    struct pd_simulated_disk *disk = new_disk(&vfs);
    struct plan plan;
    seed = 4;
    plan_init(&plan, vfs, "", 256 * PAGE, SLOT);
    const struct pd_disk_fault fault = {.kind = PD_DISK_FAULT_SHORT, .nth = 1, .persistent = true};
    pd_simulated_disk_set_fault(disk, &fault);
    OK(plan_run(&plan, NULL, err));
    cr_assert_gt(pd_simulated_disk_fired(disk), 0);
    pd_simulated_disk_set_fault(disk, NULL);
    check_targets(&plan);
    plan_deinit(&plan);
    pd_vfs_free(vfs);
    pd_simulated_disk_free(disk);
}

static void begin_and_leave(struct plan *plan)
{
    const struct pd_ring_job job = {plan->extent_count, plan, describe, work};
    plan->described = plan->worked = 0;
    OK(pd_ring_begin(plan->ring, &job, err));
    pd_ring_abandon(plan->ring);
    cr_assert(plan->described > 0 && plan->worked == 0);
}

Test(ring, a_job_that_is_left_leaves_nothing_in_flight)
{
    struct pd_vfs *vfs;
    struct pd_simulated_disk *disk = new_disk(&vfs);
    struct plan plan;
    seed = 6;
    plan_init(&plan, vfs, "", 256 * PAGE, SLOT);
    pd_ring_abandon(plan.ring); /* nothing was begun */
    const struct pd_disk_fault fault = {
        .kind = PD_DISK_FAULT_ERROR, .nth = 3, .operations = PD_DISK_MASK(PD_DISK_READ), .persistent = true};
    pd_simulated_disk_set_fault(disk, &fault);
    begin_and_leave(&plan);
    cr_assert_gt(pd_simulated_disk_fired(disk), 0, "reads were sent, and reaped");
    pd_simulated_disk_set_fault(disk, NULL);
    memset(plan.buffers, 0xff, PD_RING_SLOTS * SLOT);
    run_and_check(&plan);
    const struct pd_ring_job job = {plan.extent_count, &plan, describe, work};
    plan.described = plan.worked = 0;
    OK(pd_ring_begin(plan.ring, &job, err)); /* and put away */
    plan_deinit(&plan);
    pd_vfs_free(vfs);
    pd_simulated_disk_free(disk);
}

Test(ring, work_that_fails_ends_the_job)
{
    struct pd_vfs *vfs;
    struct plan plan;
    char directory[] = "/tmp/perdure-test-XXXXXX", command[64];
    cr_assert_not_null(mkdtemp(directory));
    OK(pd_vfs_new_uring(16, &vfs, err));
    seed = 5;
    plan_init(&plan, vfs, directory, UINT64_C(1) << 20, SLOT);
    for (plan.fail_at = 0; plan.fail_at < plan.extent_count; plan.fail_at++) {
        struct pd_error err = {0};
        char expected[64];
        snprintf(expected, sizeof expected, "extent %llu is not liked", (unsigned long long)plan.fail_at);
        cr_assert_eq(plan_run(&plan, NULL, &err), PD_CORRUPT);
        cr_assert_str_eq(err.message, expected);
        cr_assert_eq(plan.worked, plan.fail_at + 1);
    }
    plan.fail_at = UINT64_MAX;
    run_and_check(&plan);
    plan_deinit(&plan);
    pd_vfs_free(vfs);
    snprintf(command, sizeof command, "rm -rf %s", directory);
    cr_assert_eq(system(command), 0);
}
