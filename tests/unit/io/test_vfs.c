/* One list of expectations, every VFS: io_uring on each rung of its ladder, the thread pool, the simulated disk. */
#include "ckpt/base/trace.h"
#include "ckpt/io/uring.h"
#include "ckpt/io/vfs.h"
#include "tests/simulated_disk/simulated_disk.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define OK(expression)                                                                              \
    do {                                                                                            \
        struct pd_error ok_err_ = {0}, *err = &ok_err_;                                             \
        cr_assert_eq((expression), PD_OK, "%s: %s: %s", current_vfs, #expression, ok_err_.message); \
    } while (0)
#define IS(expected, expression)                                                                              \
    do {                                                                                                      \
        struct pd_error is_err_ = {0}, *err = &is_err_;                                                       \
        pd_status is_st_ = (expression);                                                                      \
        cr_assert_eq(is_st_, (expected), "%s: %s: %s (%s)", current_vfs, #expression, pd_status_name(is_st_), \
                     is_err_.message);                                                                        \
    } while (0)

static const char *current_vfs = "";

static const struct vfs_row {
    const char *name;
    bool is_uring;
    unsigned refusals;
    const char *description;
} rows[] = {
    {"threads", false, 0, "threads (3)"},
    {"uring", true, 0, "io_uring"},
    {"uring without buffers", true, PD_URING_REFUSE_BUFFERS, "io_uring"},
    {"uring of an old kernel", true, PD_URING_REFUSE_FLAGS, "no set-up flags"},
    {"forbidden uring", true, PD_URING_REFUSE_RING, "threads (io_uring: Operation not permitted; "},
    {"uring out of descriptors", true, PD_URING_REFUSE_LATER, "io_uring"},
    {"uring without locked memory", true, PD_URING_REFUSE_MEMORY,
     "threads (io_uring: Cannot allocate memory; raise the memlock limit (ulimit -l))"},
};

static struct pd_vfs *open_row(const struct vfs_row *row)
{
    struct pd_vfs *vfs = NULL;
    current_vfs = row->name;
    if (row->is_uring)
        OK(pd_vfs_new_uring_refusing(8, row->refusals, &vfs, err));
    else
        OK(pd_vfs_new_threads(8, 3, &vfs, err));
    return vfs;
}

static const char *scratch(void)
{
    static char path[64];
    snprintf(path, sizeof path, "/tmp/perdure-VFS-XXXXXX");
    cr_assert_not_null(mkdtemp(path));
    return path;
}

static char *join(const char *dir, const char *name)
{
    static char paths[8][256];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", dir, name);
    return path;
}

static void remove_scratch(const char *dir)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    cr_assert_eq(system(command), 0);
}

static void check_files(struct pd_vfs *vfs, const char *dir)
{
    char *path = join(dir, "file"), text[16] = "0123456789abcde";
    struct pd_file *file = NULL;
    struct pd_stat st;
    IS(PD_NOT_FOUND, pd_file_open(vfs, path, PD_OPEN_READ, &file, err));
    OK(pd_file_open(vfs, path, PD_OPEN_READ | PD_OPEN_WRITE | PD_OPEN_CREATE | PD_OPEN_EXCLUSIVE, &file, err));
    cr_assert(!pd_file_is_direct(file));
    OK(pd_file_write(file, 3, text, 16, err));
    OK(pd_file_stat(file, &st, err));
    cr_assert(st.type == PD_ENTRY_FILE && st.bytes == 19 && st.link_count == 1);
    OK(pd_file_preallocate(file, 8192, err));
    OK(pd_file_stat(file, &st, err));
    cr_assert(st.bytes == 8192 && st.allocated_bytes >= 8192);
    OK(pd_file_truncate(file, 12, err));
    OK(pd_file_sync(file, err));
    char back[12];
    OK(pd_file_read(file, 0, back, 12, err));
    cr_assert_arr_eq(back,
                     "\0\0\0"
                     "012345678",
                     12);
    IS(PD_CORRUPT, pd_file_read(file, 4, text, 12, err));
    IS(PD_INVALID, pd_file_read(file, UINT64_MAX - 3, back, 12, err));
    IS(PD_INVALID, pd_file_write(file, INT64_MAX - 3, back, 12, err));
    IS(PD_INVALID, pd_file_preallocate(file, UINT64_MAX, err));
    IS(PD_INVALID, pd_file_truncate(file, UINT64_MAX, err));
    OK(pd_file_preallocate(file, 0, err)); /* nothing to do */
    OK(pd_file_stat(file, &st, err));
    cr_assert_eq(st.bytes, 12);
    OK(pd_file_close(file, err));
    IS(PD_EXISTS, pd_file_open(vfs, path, PD_OPEN_WRITE | PD_OPEN_CREATE | PD_OPEN_EXCLUSIVE, &file, err));
    OK(pd_file_open(vfs, path, PD_OPEN_READ, &file, err));
    IS(PD_IO, pd_file_write(file, 0, text, 1, err));
    pd_file_close_readonly(file);
    OK(pd_file_open(vfs, path, PD_OPEN_READ | PD_OPEN_WRITE | PD_OPEN_TRUNCATE, &file, err));
    OK(pd_file_stat(file, &st, err));
    cr_assert_eq(st.bytes, 0);
    OK(pd_file_close(file, err));
    IS(PD_IO, pd_file_open(vfs, dir, PD_OPEN_READ, &file, err));
}

static void check_names(struct pd_vfs *vfs, const char *dir)
{
    struct pd_file *file = NULL;
    struct pd_stat st, other;
    struct pd_listing list;
    OK(pd_file_open(vfs, join(dir, "b"), PD_OPEN_WRITE | PD_OPEN_CREATE, &file, err));
    OK(pd_file_close(file, err));
    OK(pd_vfs_mkdir(vfs, join(dir, "a"), err));
    IS(PD_EXISTS, pd_vfs_mkdir(vfs, join(dir, "a"), err));
    IS(PD_NOT_FOUND, pd_vfs_mkdir(vfs, join(dir, "x/y"), err));
    OK(pd_vfs_link(vfs, join(dir, "b"), join(dir, "a/c"), err));
    IS(PD_EXISTS, pd_vfs_link(vfs, join(dir, "b"), join(dir, "a/c"), err));
    OK(pd_vfs_stat(vfs, join(dir, "a/c"), &st, err));
    OK(pd_vfs_stat(vfs, join(dir, "b"), &other, err));
    cr_assert(st.link_count == 2 && st.inode == other.inode && st.device == other.device);
    OK(pd_vfs_rename(vfs, join(dir, "b"), join(dir, "Z"), err));
    IS(PD_NOT_FOUND, pd_vfs_rename(vfs, join(dir, "b"), join(dir, "Z"), err));
    OK(pd_vfs_mkdir(vfs, join(dir, "d"), err));
    IS(PD_EXISTS, pd_vfs_rename(vfs, join(dir, "d"), join(dir, "a"), err));
    IS(PD_EXISTS, pd_vfs_rmdir(vfs, join(dir, "a"), err));
    OK(pd_vfs_sync_dir(vfs, dir, err));
    IS(PD_NOT_FOUND, pd_vfs_sync_dir(vfs, join(dir, "none"), err));
    OK(pd_vfs_list(vfs, dir, &list, err));
    cr_assert(list.count == 4, "%u entries", list.count);
    cr_assert(!strcmp(list.names[0], "Z") && !strcmp(list.names[1], "a") && !strcmp(list.names[2], "d"));
    pd_listing_deinit(&list);
    IS(PD_NOT_FOUND, pd_vfs_list(vfs, join(dir, "none"), &list, err));
    OK(pd_vfs_list(vfs, join(dir, "d"), &list, err));
    cr_assert_eq(list.count, 0);
    pd_listing_deinit(&list);
    OK(pd_vfs_unlink(vfs, join(dir, "a/c"), err));
    IS(PD_NOT_FOUND, pd_vfs_unlink(vfs, join(dir, "a/c"), err));
    IS(PD_IO, pd_vfs_unlink(vfs, join(dir, "a"), err));
    OK(pd_vfs_rmdir(vfs, join(dir, "a"), err));
    OK(pd_vfs_stat(vfs, dir, &st, err));
    cr_assert_eq(st.type, PD_ENTRY_DIRECTORY);
    struct pd_space space;
    OK(pd_vfs_space(vfs, dir, &space, err));
    cr_assert(space.total_bytes >= space.available_bytes && space.total_bytes > 0 && space.type_name[0]);
    IS(PD_NOT_FOUND, pd_vfs_space(vfs, join(dir, "none"), &space, err));
}

static void check_locks(struct pd_vfs *vfs, const char *dir)
{
    struct pd_lock *lock = NULL, *second = NULL;
    OK(pd_vfs_lock(vfs, join(dir, "lock"), &lock, err));
    IS(PD_BUSY, pd_vfs_lock(vfs, join(dir, "lock"), &second, err));
    cr_assert_null(second);
    pd_vfs_unlock(lock);
    OK(pd_vfs_lock(vfs, join(dir, "lock"), &second, err));
    pd_vfs_unlock(second);
    IS(PD_NOT_FOUND, pd_vfs_lock(vfs, join(dir, "none/lock"), &lock, err));
}

struct contest {
    char path[128];
    int is_inside, rounds;
    pthread_mutex_t mutex; /* of what is counted */
    int met;
};

/* Whoever has the lock unlinks it while he holds it, as the end of a launch that leaves nothing does. */
static void *contend(void *argument)
{
    struct contest *c = argument;
    struct pd_vfs *vfs = NULL;
    struct pd_error err = {0};
    if (pd_vfs_new_threads(1, 1, &vfs, &err)) return "no VFS";
    for (int done = 0; done < c->rounds;) {
        struct pd_lock *lock = NULL;
        if (pd_vfs_lock(vfs, c->path, &lock, &err)) continue;
        pthread_mutex_lock(&c->mutex);
        c->met += c->is_inside++;
        pthread_mutex_unlock(&c->mutex);
        sched_yield();
        pthread_mutex_lock(&c->mutex);
        c->is_inside--;
        pthread_mutex_unlock(&c->mutex);
        if (pd_vfs_unlink(vfs, c->path, &err)) c->met++;
        pd_vfs_unlock(lock);
        done++;
    }
    pd_vfs_free(vfs);
    return NULL;
}

Test(vfs, a_lock_that_was_unlinked_is_nobodys)
{
    struct contest c = {.rounds = 300, .mutex = PTHREAD_MUTEX_INITIALIZER};
    pthread_t threads[4];
    const char *dir = scratch();
    snprintf(c.path, sizeof c.path, "%s/lock", dir);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, contend, &c), 0);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(pthread_join(threads[i], NULL), 0);
    cr_assert_eq(c.met, 0, "%d times two had the lock, or somebody else had unlinked it", c.met);
    cr_assert_eq(rmdir(dir), 0);
}

/* Blocks go out in one order and come back in another, through more transfers than the queue is deep. */
static void move_blocks(struct pd_queue *queue, struct pd_file *file, char *data, bool is_write, uint64_t block, int count)
{
    struct pd_transfer transfers[40], *pointers[40], *done[40];
    for (int i = 0; i < count; i++) {
        int at = (i * 7) % count;
        pointers[i] = &transfers[i];
        transfers[i] = (struct pd_transfer){.file = file,
                                            .data = data + (uint64_t)at * block,
                                            .bytes = block,
                                            .offset = (uint64_t)at * block,
                                            .is_write = is_write,
                                            .user = &data[at]};
    }
    OK(pd_queue_submit(queue, pointers, (uint32_t)count, err));
    int seen = 0;
    for (;;) {
        uint32_t got = 0;
        OK(pd_queue_reap(queue, done, 5, &got, err));
        if (got == 0) break;
        for (uint32_t i = 0; i < got; i++) {
            OK(pd_transfer_error(done[i], err));
            cr_assert_eq((char *)done[i]->user - data, (long)(done[i]->offset / block));
        }
        seen += (int)got;
    }
    cr_assert_eq(seen, count);
}

static void check_queue(struct pd_vfs *vfs, const char *dir, unsigned direct)
{
    const uint64_t block = 16384;
    const int count = 37;
    char *out = aligned_alloc(4096, block * 40), *in = aligned_alloc(4096, block * 40);
    for (uint64_t i = 0; i < block * 40; i++)
        out[i] = (char)(i * 2654435761u >> 13);
    struct pd_file *file = NULL;
    struct pd_queue *queue = NULL;
    OK(pd_file_open(vfs, join(dir, "bulk"), PD_OPEN_READ | PD_OPEN_WRITE | PD_OPEN_CREATE | direct, &file, err));
    OK(pd_queue_open(vfs, out, block * 20, &queue, err)); /* half of them lie outside the registered buffers */
    cr_assert_eq(pd_queue_depth(queue), 8);
    move_blocks(queue, file, out, true, block, count);
    OK(pd_file_sync(file, err));
    move_blocks(queue, file, in, false, block, count);
    cr_assert_arr_eq(in, out, block * (uint64_t)count);

    struct pd_transfer past = {
        .file = file, .data = in + 2 * block, .offset = block * (uint64_t)(count - 1), .bytes = 2 * block};
    struct pd_transfer askew = {.file = file, .data = in + 1, .offset = 0, .bytes = 4096};
    struct pd_transfer nothing = {.file = file, .data = in};
    struct pd_transfer *all[3] = {&past, &askew, &nothing}, *done[3];
    OK(pd_queue_submit(queue, all, 3, err));
    uint32_t got = 0, seen = 0;
    do {
        OK(pd_queue_reap(queue, done, 3, &got, err));
        seen += got;
    } while (got);
    cr_assert_eq(seen, 3);
    cr_assert_eq(past.status, PD_CORRUPT);
    cr_assert_eq(nothing.status, PD_OK);
    cr_assert_eq(askew.status, pd_file_is_direct(file) ? PD_UNSUPPORTED : PD_OK);
    struct pd_error message;
    cr_assert_eq(pd_transfer_error(&past, &message), PD_CORRUPT);
    cr_assert(strstr(message.message, "bulk"));
    pd_queue_close(queue);
    OK(pd_file_close(file, err));
    free(out);
    free(in);
}

Test(vfs, every_slot_of_the_simulated_vfs)
{
    struct pd_simulated_disk *disk = NULL;
    struct pd_vfs *vfs = NULL;
    current_vfs = "simulated";
    OK(pd_simulated_disk_new(&(struct pd_disk_options){.seed = 7}, &disk, err));
    OK(pd_simulated_disk_vfs(disk, 0, &vfs, err));
    OK(pd_vfs_mkdir(vfs, "/t", err));
    check_files(vfs, "/t");
    check_names(vfs, "/t");
    check_locks(vfs, "/t");
    check_queue(vfs, "/t", 0);
    check_queue(vfs, "/t", PD_OPEN_DIRECT);
    pd_vfs_free(vfs);
    pd_simulated_disk_free(disk);
}

Test(vfs, every_slot_of_every_vfs)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct pd_vfs *vfs = open_row(&rows[i]);
        const char *dir = scratch();
        cr_assert(strstr(pd_vfs_describe(vfs), rows[i].description), "%s: %s", rows[i].name, pd_vfs_describe(vfs));
        check_files(vfs, dir);
        check_names(vfs, dir);
        check_locks(vfs, dir);
        check_queue(vfs, dir, 0);
        check_queue(vfs, dir, PD_OPEN_DIRECT);
        pd_vfs_free(vfs);
        remove_scratch(dir);
    }
}

/* Whoever opens a pipe waits for its other end, and what reads a device may never end. */
static void is_refused(struct pd_vfs *vfs, const char *path)
{
    static const unsigned ways[] = {PD_OPEN_READ, PD_OPEN_WRITE | PD_OPEN_CREATE, PD_OPEN_READ | PD_OPEN_WRITE};
    struct pd_file *file = NULL;
    struct pd_lock *lock = NULL;
    struct pd_error error = {0};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        cr_assert_eq(pd_file_open(vfs, path, ways[i], &file, &error), PD_IO, "%s: %s, way %zu", current_vfs, path, i);
        cr_assert(strstr(error.message, path) && strstr(error.message, "it is not a regular file"), "%s", error.message);
    }
    cr_assert_eq(pd_vfs_lock(vfs, path, &lock, &error), PD_IO, "%s: %s", current_vfs, path);
    cr_assert(strstr(error.message, "it is not a regular file"), "%s", error.message);
}

Test(vfs, a_path_that_does_not_exist_is_in_memory_if_its_parent_is)
{
    struct pd_vfs *vfs = open_row(&rows[0]);
    struct pd_space space;
    if (pd_vfs_space(vfs, "/dev/shm", &space, NULL) || !space.in_memory || chdir("/dev/shm")) cr_skip("no /dev/shm");
    cr_assert(pd_vfs_is_in_memory(vfs, "/dev/shm/none/deeper"));
    cr_assert(pd_vfs_is_in_memory(vfs, "none/deeper"));
    cr_assert(pd_vfs_is_in_memory(vfs, "none"));
    cr_assert_eq(chdir("/"), 0);
    OK(pd_vfs_space(vfs, "/", &space, err));
    cr_assert_eq(pd_vfs_is_in_memory(vfs, "none"), space.in_memory);
    cr_assert(!pd_vfs_is_in_memory(vfs, "/none"));
    pd_vfs_free(vfs);
}

Test(vfs, only_regular_files_are_opened, .timeout = 20)
{
    const char *dir = scratch();
    cr_assert_eq(mkfifo(join(dir, "pipe"), 0600), 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct pd_vfs *vfs = open_row(&rows[i]);
        is_refused(vfs, join(dir, "pipe"));
        is_refused(vfs, "/dev/zero");
        pd_vfs_free(vfs);
    }
    remove_scratch(dir);
}

Test(vfs, a_ring_refused_later_is_told)
{
    struct pd_vfs *vfs = open_row(&rows[5]);
    struct pd_queue *queue = NULL;
    OK(pd_queue_open(vfs, NULL, 0, &queue, err));
    cr_assert_str_eq(pd_vfs_describe(vfs),
                     "threads (io_uring: Too many open files; raise the limit of open files (ulimit -n))");
    pd_queue_close(queue);
    pd_vfs_free(vfs);
}

Test(vfs, misaligned_direct_io_is_refused_before_it_is_sent)
{
    struct pd_vfs *vfs = open_row(&rows[0]);
    const char *dir = scratch();
    struct pd_file *file = NULL;
    char *page = aligned_alloc(4096, 8192);
    OK(pd_file_open(vfs, join(dir, "f"), PD_OPEN_READ | PD_OPEN_WRITE | PD_OPEN_CREATE | PD_OPEN_DIRECT, &file, err));
    memset(page, 1, 8192);
    OK(pd_file_write(file, 0, page, 4096, err));
    if (pd_file_is_direct(file)) {
        IS(PD_UNSUPPORTED, pd_file_write(file, 512, page, 4096, err));
        IS(PD_UNSUPPORTED, pd_file_write(file, 0, page + 512, 4096, err));
        IS(PD_UNSUPPORTED, pd_file_read(file, 0, page, 100, err));
    }
    OK(pd_file_close(file, err));
    free(page);
    pd_vfs_free(vfs);
    remove_scratch(dir);
}

Test(vfs, counts_that_cannot_be_are_refused)
{
    struct pd_vfs *vfs = NULL;
    current_vfs = "none";
    IS(PD_INVALID, pd_vfs_new_threads(0, 1, &vfs, err));
    IS(PD_INVALID, pd_vfs_new_threads(4097, 1, &vfs, err));
    IS(PD_INVALID, pd_vfs_new_threads(8, 0, &vfs, err));
    IS(PD_INVALID, pd_vfs_new_threads(8, 257, &vfs, err));
    IS(PD_INVALID, pd_vfs_new_uring(0, &vfs, err));
    cr_assert_null(vfs);
    pd_vfs_free(vfs);
    pd_listing_deinit(NULL);
}

/* What moves is in a trace, of files and of queues. */
Test(vfs, a_trace_shows_what_moves)
{
    const char *dir = scratch();
    char text[1 << 16] = "";
    char *path = join(dir, "trace");
    OK(pd_trace_open(path, err));
    struct pd_vfs *vfs = open_row(&rows[0]);
    check_files(vfs, dir);
    check_queue(vfs, dir, 0);
    pd_vfs_free(vfs);
    OK(pd_trace_close(err));
    FILE *f = fopen(path, "re");
    cr_assert(f && fread(text, 1, sizeof text - 1, f) > 0 && fclose(f) == 0);
    static const char *const shown[] = {"\"cat\":\"io\",\"name\":\"read\"", "\"cat\":\"io\",\"name\":\"write\"",
                                        "\"cat\":\"io\",\"name\":\"sync\"", "\"ph\":\"b\""};
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++)
        cr_expect(strstr(text, shown[i]), "%s", shown[i]);
    remove_scratch(dir);
}

Test(vfs, the_environment_chooses)
{
    struct pd_vfs *vfs = NULL;
    setenv("PERDURE_IO", "threads", 1);
    OK(pd_vfs_new_auto(&vfs, err));
    cr_assert_str_eq(pd_vfs_describe(vfs), "threads (8)");
    pd_vfs_free(vfs);
    setenv("PERDURE_IO", "floppy", 1);
    IS(PD_INVALID, pd_vfs_new_auto(&vfs, err));
    static const char *const others[] = {"", "auto", "uring"};
    for (int i = 0; i < 3; i++) {
        setenv("PERDURE_IO", others[i], 1);
        OK(pd_vfs_new_auto(&vfs, err));
        pd_vfs_free(vfs);
    }
    unsetenv("PERDURE_IO");
    OK(pd_vfs_new_auto(&vfs, err));
    pd_vfs_free(vfs);
}
