/* Queues under load: random transfers against a model in memory, on every kind of queue, from several threads. */
#include "ckpt/base/parse.h"
#include "ckpt/io/uring.h"
#include "tests/simulated_disk/simulated_disk.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define OK(expression)                                                             \
    do {                                                                           \
        struct pd_error ok_err_ = {0}, *err = &ok_err_;                            \
        cr_assert_eq((expression), PD_OK, "%s: %s", #expression, ok_err_.message); \
    } while (0)
#define FILE_PAGES 64u
#define BATCH 12u

static uint64_t random_below(uint64_t *state, uint64_t bound)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (z ^ (z >> 31)) % bound;
}

static uint64_t scale(void)
{
    uint64_t value = 1;
    const char *text = getenv("PERDURE_TEST_SCALE");
    if (text) pd_parse_u64(text, &value);
    return value ? value : 1;
}

static void scratch_file(char *path, size_t size, const char *name)
{
    static _Atomic int next;
    snprintf(path, size, "/tmp/perdure-queue-%d-%d-%s", (int)getpid(), next++, name);
}

/* One file, its model, and a queue; transfers of one batch never overlap, since their order is free. */
struct load {
    struct pd_queue *queue;
    struct pd_file *file;
    uint8_t *model, *buffers;
    uint64_t random;
    bool direct;
};

static struct pd_transfer random_transfer(struct load *load, uint64_t index)
{
    uint64_t span = FILE_PAGES / BATCH * 4096, start = index * span; /* this transfer's own part of the file */
    uint64_t unit = load->direct ? 4096 : 1, units = span / unit;
    uint64_t first = random_below(&load->random, units), count = 1 + random_below(&load->random, units - first);
    struct pd_transfer transfer = {
        .file = load->file,
        .data = load->buffers + start + (load->direct ? 0 : random_below(&load->random, 7)),
        .offset = start + first * unit,
        .bytes = count * unit,
        .is_write = random_below(&load->random, 2),
    };
    if (transfer.bytes > span - 8 && !load->direct) transfer.bytes = span - 8;
    for (uint64_t i = 0; transfer.is_write && i < transfer.bytes; i++)
        ((uint8_t *)transfer.data)[i] = (uint8_t)random_below(&load->random, 256);
    return transfer;
}

static void check_done(struct load *load, const struct pd_transfer *done)
{
    OK(pd_transfer_error(done, err));
    if (done->is_write)
        memcpy(load->model + done->offset, done->data, done->bytes);
    else
        cr_assert_arr_eq(done->data, load->model + done->offset, done->bytes);
}

static void run_batch(struct load *load)
{
    struct pd_transfer transfers[BATCH], *list[BATCH], *done[BATCH];
    for (uint32_t i = 0; i < BATCH; i++) {
        transfers[i] = random_transfer(load, i);
        list[i] = &transfers[i];
    }
    uint32_t sent = 0, seen = 0, got = 0;
    while (seen < BATCH) {
        uint32_t more = (uint32_t)random_below(&load->random, BATCH - sent + 1);
        if (sent == seen && more == 0) more = BATCH - sent;
        OK(pd_queue_submit(load->queue, list + sent, more, err));
        sent += more;
        OK(pd_queue_reap(load->queue, done, 1 + (uint32_t)random_below(&load->random, BATCH), &got, err));
        for (uint32_t i = 0; i < got; i++)
            check_done(load, done[i]);
        seen += got;
    }
    OK(pd_queue_reap(load->queue, done, 1, &got, err));
    cr_assert_eq(got, 0);
}

static void run_load(struct pd_vfs *vfs, const char *path, bool direct, uint64_t seed, uint64_t rounds)
{
    const uint64_t bytes = FILE_PAGES * 4096;
    struct load load = {.random = seed, .direct = direct};
    load.model = calloc(1, bytes);
    load.buffers = aligned_alloc(4096, bytes);
    unsigned flags = PD_OPEN_READ | PD_OPEN_WRITE | PD_OPEN_CREATE | PD_OPEN_TRUNCATE | (direct ? PD_OPEN_DIRECT : 0);
    OK(pd_file_open(vfs, path, flags, &load.file, err));
    OK(pd_file_truncate(load.file, bytes, err));
    OK(pd_queue_open(vfs, load.buffers, bytes / 2, &load.queue, err));
    for (uint64_t round = 0; round < rounds; round++)
        run_batch(&load);
    OK(pd_file_read(load.file, 0, load.buffers, bytes, err));
    cr_assert_arr_eq(load.buffers, load.model, bytes);
    pd_queue_close(load.queue);
    OK(pd_file_close(load.file, err));
    OK(pd_vfs_unlink(vfs, path, err));
    free(load.model);
    free(load.buffers);
}

static struct pd_vfs *uring(unsigned refusals)
{
    struct pd_vfs *vfs = NULL;
    OK(pd_vfs_new_uring_refusing(8, refusals, &vfs, err));
    return vfs;
}

Test(queue, random_transfers_equal_a_model_on_every_vfs)
{
    static const unsigned refusals[] = {0,
                                        PD_URING_REFUSE_BUFFERS,
                                        PD_URING_REFUSE_FLAGS,
                                        PD_URING_REFUSE_RING,
                                        PD_URING_REFUSE_LATER,
                                        PD_URING_REFUSE_DIRECT,
                                        PD_URING_REFUSE_MAPPED};
    char path[128];
    scratch_file(path, sizeof path, "model");
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        struct pd_vfs *vfs = uring(refusals[i]);
        run_load(vfs, path, false, i, 40 * scale());
        run_load(vfs, path, true, i + 100, 40 * scale());
        pd_vfs_free(vfs);
    }
}

/* A limit that is raised would change nothing. */
Test(queue, memory_that_an_old_kernel_registers_not_is_told_from_a_small_memlock_limit)
{
    struct pd_vfs *vfs = uring(PD_URING_REFUSE_MAPPED);
    struct pd_queue *queue;
    char *data = aligned_alloc(4096, 1 << 20);
    const bool has_rings = strncmp(pd_vfs_describe(vfs), "io_uring", 8) == 0;
    OK(pd_queue_open(vfs, data, 1 << 20, &queue, err));
    const char *description = pd_vfs_describe(vfs);
    cr_assert(!has_rings || (strstr(description, "Linux 6.5") && !strstr(description, "memlock")), "%s", description);
    pd_queue_close(queue);
    pd_vfs_free(vfs);
    free(data);
}

Test(queue, random_transfers_equal_a_model_when_every_one_is_short)
{
    struct pd_simulated_disk *disk;
    struct pd_vfs *vfs;
    const struct pd_disk_fault fault = {.kind = PD_DISK_FAULT_SHORT, .nth = 1, .persistent = true};
    OK(pd_simulated_disk_new(&(struct pd_disk_options){.seed = 5}, &disk, err));
    OK(pd_simulated_disk_vfs(disk, 0, &vfs, err));
    pd_simulated_disk_set_fault(disk, &fault);
    run_load(vfs, "/f", false, 1, 40 * scale());
    run_load(vfs, "/f", true, 2, 40 * scale());
    cr_assert_gt(pd_simulated_disk_fired(disk), 1000);
    pd_vfs_free(vfs);
    pd_simulated_disk_free(disk);
}

Test(queue, direct_io_refused_at_the_first_transfers_goes_on_buffered)
{
    struct pd_vfs *vfs = uring(PD_URING_REFUSE_DIRECT);
    char path[128];
    scratch_file(path, sizeof path, "refused");
    struct pd_file *file;
    struct pd_queue *queue;
    char *data = aligned_alloc(4096, 32768);
    memset(data, 7, 32768);
    OK(pd_file_open(vfs, path, PD_OPEN_READ | PD_OPEN_WRITE | PD_OPEN_CREATE | PD_OPEN_DIRECT, &file, err));
    cr_assert(pd_file_is_direct(file));
    OK(pd_queue_open(vfs, data, 32768, &queue, err));
    struct pd_transfer parts[8], *list[8];
    for (uint64_t i = 0; i < 8; i++) {
        parts[i] =
            (struct pd_transfer){.file = file, .data = data + i * 4096, .offset = i * 4096, .bytes = 4096, .is_write = true};
        list[i] = &parts[i];
    }
    OK(pd_queue_submit(queue, list, 8, err));
    for (uint32_t seen = 0, got; seen < 8; seen += got)
        OK(pd_queue_reap(queue, list, 8, &got, err));
    for (int i = 0; i < 8; i++)
        OK(pd_transfer_error(&parts[i], err));
    cr_assert(!pd_file_is_direct(file));
    pd_queue_close(queue);
    OK(pd_file_close(file, err));
    OK(pd_vfs_unlink(vfs, path, err));
    pd_vfs_free(vfs);
    free(data);
}

struct worker {
    struct pd_vfs *vfs;
    uint64_t seed;
    pthread_t thread;
};

static void *worker_main(void *argument)
{
    const struct worker *worker = argument;
    char path[128];
    scratch_file(path, sizeof path, "thread");
    run_load(worker->vfs, path, worker->seed % 2, worker->seed, 30 * scale());
    return NULL;
}

Test(queue, threads_share_a_vfs_and_not_a_queue)
{
    static const unsigned refusals[] = {0, PD_URING_REFUSE_RING};
    for (int i = 0; i < 2; i++) {
        struct worker workers[4];
        struct pd_vfs *vfs = uring(refusals[i]);
        for (uint64_t t = 0; t < 4; t++) {
            workers[t] = (struct worker){.vfs = vfs, .seed = t};
            cr_assert_eq(pthread_create(&workers[t].thread, NULL, worker_main, &workers[t]), 0);
        }
        for (int t = 0; t < 4; t++)
            pthread_join(workers[t].thread, NULL);
        pd_vfs_free(vfs);
    }
}

static void write_byte(struct pd_queue *queue, struct pd_file *file, uint64_t offset, char value)
{
    struct pd_transfer transfer = {.file = file, .data = &value, .offset = offset, .bytes = 1, .is_write = true};
    struct pd_transfer *list = &transfer;
    uint32_t got = 0;
    OK(pd_queue_submit(queue, &list, 1, err));
    OK(pd_queue_reap(queue, &list, 1, &got, err));
    cr_assert_eq(got, 1);
    OK(pd_transfer_error(&transfer, err));
}

struct errand {
    struct pd_queue *queue;
    struct pd_file *file;
};

static void *errand_main(void *argument)
{
    struct errand *errand = argument;
    write_byte(errand->queue, errand->file, 1, 'b');
    return NULL;
}

static void run_elsewhere(struct errand errand)
{
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, errand_main, &errand), 0);
    pthread_join(thread, NULL);
}

Test(queue, an_idle_queue_may_move_to_another_thread)
{
    struct pd_vfs *vfs = uring(0);
    struct pd_queue *queue;
    struct pd_file *file;
    char path[128], back[3];
    scratch_file(path, sizeof path, "moves");
    OK(pd_file_open(vfs, path, PD_OPEN_READ | PD_OPEN_WRITE | PD_OPEN_CREATE, &file, err));
    OK(pd_queue_open(vfs, NULL, 0, &queue, err));
    write_byte(queue, file, 0, 'a');
    for (int i = 0; i < 3; i++) /* pthread_t is the same each time, the thread is not */
        run_elsewhere((struct errand){.queue = queue, .file = file});
    write_byte(queue, file, 2, 'c');
    OK(pd_file_read(file, 0, back, 3, err));
    cr_assert_arr_eq(back, "abc", 3);
    pd_queue_close(queue);
    OK(pd_file_close(file, err));
    OK(pd_vfs_unlink(vfs, path, err));
    pd_vfs_free(vfs);
}

Test(queue, a_failing_transfer_fails_alone)
{
    struct pd_simulated_disk *disk;
    struct pd_vfs *vfs;
    struct pd_file *file;
    struct pd_queue *queue;
    char data[8] = "abcdefg";
    const struct pd_disk_fault fault = {.kind = PD_DISK_FAULT_ERROR, .nth = 3, .operations = PD_DISK_MASK(PD_DISK_WRITE)};
    OK(pd_simulated_disk_new(&(struct pd_disk_options){.seed = 5}, &disk, err));
    OK(pd_simulated_disk_vfs(disk, 0, &vfs, err));
    OK(pd_file_open(vfs, "/f", PD_OPEN_WRITE | PD_OPEN_CREATE, &file, err));
    OK(pd_queue_open(vfs, NULL, 0, &queue, err));
    pd_simulated_disk_set_fault(disk, &fault);
    struct pd_transfer parts[8], *list[8];
    for (uint64_t i = 0; i < 8; i++) {
        parts[i] = (struct pd_transfer){.file = file, .data = data + i, .offset = i, .bytes = 1, .is_write = true};
        list[i] = &parts[i];
    }
    OK(pd_queue_submit(queue, list, 8, err));
    for (uint32_t seen = 0, got; seen < 8; seen += got)
        OK(pd_queue_reap(queue, list, 8, &got, err));
    int failed = 0;
    for (int i = 0; i < 8; i++)
        failed += parts[i].status == PD_IO && parts[i].sys_errno == EIO;
    cr_assert_eq(failed, 1);
    pd_queue_close(queue);
    OK(pd_file_close(file, err));
    pd_vfs_free(vfs);
    pd_simulated_disk_free(disk);
}

/* Registered in two pieces: transfers inside each, and one across the seam, which no fixed buffer holds. */
Test(queue, buffers_beyond_one_gibibyte)
{
    if (scale() < 10) cr_skip_test("pins a gibibyte of memory: PERDURE_TEST_SCALE=10 runs it");
    const uint64_t gib = UINT64_C(1) << 30, bytes = gib + 8192;
    struct pd_vfs *vfs = uring(0);
    struct pd_queue *queue;
    struct pd_file *file;
    char path[128], *data = aligned_alloc(4096, bytes), *back = aligned_alloc(4096, 12288);
    scratch_file(path, sizeof path, "seam");
    OK(pd_queue_open(vfs, data, bytes, &queue, err));
    OK(pd_file_open(vfs, path, PD_OPEN_READ | PD_OPEN_WRITE | PD_OPEN_CREATE, &file, err));
    const uint64_t places[] = {0, gib - 8192, gib - 4096, gib, gib + 4096};
    for (size_t i = 0; i < 5; i++) {
        uint64_t length = bytes - places[i] < 8192 ? 4096 : 8192;
        memset(data + places[i], 'a' + (int)i, length);
        struct pd_transfer transfer = {.file = file, .data = data + places[i], .bytes = length, .is_write = true};
        struct pd_transfer *list = &transfer;
        uint32_t got = 0;
        OK(pd_queue_submit(queue, &list, 1, err));
        OK(pd_queue_reap(queue, &list, 1, &got, err));
        OK(pd_transfer_error(&transfer, err));
        OK(pd_file_read(file, 0, back, length, err));
        cr_assert_arr_eq(back, data + places[i], length);
    }
    pd_queue_close(queue);
    OK(pd_file_close(file, err));
    OK(pd_vfs_unlink(vfs, path, err));
    pd_vfs_free(vfs);
    free(data);
    free(back);
}

/* A file size limit gives what a full disk gives: first a short write, then an error. */
Test(queue, a_short_write_is_continued_and_its_error_found)
{
    static const unsigned refusals[] = {0, PD_URING_REFUSE_RING};
    const uint64_t limit = 100 * 1024;
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &(struct rlimit){limit, limit}), 0);
    char *data = calloc(1, 2 * limit), path[128];
    scratch_file(path, sizeof path, "limit");
    for (int i = 0; i < 2; i++) {
        struct pd_vfs *vfs = uring(refusals[i]);
        struct pd_queue *queue;
        struct pd_file *file;
        struct pd_stat st;
        OK(pd_file_open(vfs, path, PD_OPEN_WRITE | PD_OPEN_CREATE | PD_OPEN_TRUNCATE, &file, err));
        OK(pd_queue_open(vfs, NULL, 0, &queue, err));
        struct pd_transfer transfer = {.file = file, .data = data, .bytes = 2 * limit, .is_write = true}, *list = &transfer;
        uint32_t got = 0;
        OK(pd_queue_submit(queue, &list, 1, err));
        OK(pd_queue_reap(queue, &list, 1, &got, err));
        cr_assert(got == 1 && transfer.status == PD_IO && transfer.sys_errno == EFBIG, "%d", transfer.sys_errno);
        OK(pd_file_stat(file, &st, err));
        cr_assert_eq(st.bytes, limit);
        pd_queue_close(queue);
        OK(pd_file_close(file, err));
        OK(pd_vfs_unlink(vfs, path, err));
        pd_vfs_free(vfs);
    }
    free(data);
}
