/* When a writer says that data is copied it has stopped reading it; and a file in memory has the bytes of one on a disk,
 * however many threads write it. */
#include "tests/unit/shard/shard_fixture.h"

#include <signal.h>
#include <sys/resource.h>

enum { BOXES = 5 };
#define MEMORY "/dev/shm"

static void make(struct fixture *f, bool is_small)
{
    static const uint64_t elements[BOXES] = {100, 20000, 300001, 262145, 2100000}, shifts[BOXES] = {0, 4, 0, 12, 0};
    fixture_init(f, BOXES, BOXES);
    for (uint32_t t = 0; t < (is_small ? 2u : BOXES); t++) {
        char name[32];
        snprintf(name, sizeof name, "layer.%u.weight", t);
        fixture_tensor(f, t, name, 1, elements[t], 1);
        fixture_box(f, t, PD_PARAM, pd_box_whole(&f->tensors.tensors[t]), shifts[t]);
    }
    f->tensors.count = f->box_count;
}

struct copied {
    struct fixture *f;
    uint32_t calls;
};

static void spoil(void *context)
{
    struct copied *c = context;
    c->calls++;
    for (uint32_t b = 0; b < c->f->box_count; b++)
        memset(c->f->data[b], 0xa5, pd_box_elements(&c->f->boxes[b].box) * sizeof(float));
}

static unsigned char *write_shard(struct fixture *f, const char *directory, unsigned threads, bool spoils, size_t *ret_bytes)
{
    char path[256];
    struct pd_shard_codec codec = {.codec = PD_CODEC_NONE};
    struct pd_shard_writer *writer = NULL;
    struct pd_shard_summary summary;
    struct copied copied = {.f = f};
    snprintf(path, sizeof path, "%s/s.h5", directory);
    if (threads) OK(pd_thread_pool_new(threads, &codec.pool, err));
    OK(pd_shard_writer_new(f->vfs, &f->tensors, f->boxes, f->box_count, f->buffers, FIXTURE_BUFFER_BYTES, &codec, &writer,
                           err));
    if (spoils) pd_shard_writer_on_copied(writer, spoil, &copied);
    OK(pd_shard_write(writer, path, &f->identity, 0, (const void *const *)f->data, &summary, err));
    pd_shard_writer_free(writer);
    pd_thread_pool_free(codec.pool);
    cr_assert_eq(copied.calls, spoils);
    FILE *file = fopen(path, "r");
    unsigned char *data = malloc(summary.file_bytes);
    cr_assert(file && fread(data, 1, summary.file_bytes, file) == summary.file_bytes && fgetc(file) == EOF);
    fclose(file);
    unlink(path);
    *ret_bytes = summary.file_bytes;
    return data;
}

static void check(const char *directory, unsigned threads, bool is_small)
{
    struct fixture f;
    size_t bytes = 0, again_bytes = 0;
    make(&f, is_small);
    unsigned char *whole = write_shard(&f, f.directory, 0, false, &bytes);
    unsigned char *again = write_shard(&f, directory ? directory : f.directory, threads, true, &again_bytes);
    cr_assert_eq(again_bytes, bytes);
    cr_assert_eq(memcmp(again, whole, bytes), 0, "data was read after it was said to be copied, or lies elsewhere");
    free(whole);
    free(again);
    fixture_deinit(&f);
}

Test(shard_copied, data_may_change_from_there_on)
{
    check(NULL, 0, true);  /* a file that is one write */
    check(NULL, 0, false); /* staged, and zero-copy */
}

static bool make_directory_in_memory(char *directory)
{
    struct fixture f;
    struct pd_space space;
    fixture_init(&f, 0, 0);
    pd_status st = pd_vfs_space(f.vfs, MEMORY, &space, NULL);
    fixture_deinit(&f);
    return !st && space.in_memory && space.available_bytes >= (64u << 20) && mkdtemp(directory);
}

Test(shard_copied, in_memory_the_same_bytes_at_once)
{
    char directory[] = MEMORY "/perdure-test-XXXXXX";
    if (!make_directory_in_memory(directory)) cr_skip(MEMORY " has no room");
    for (unsigned threads = 0; threads <= 3; threads++) {
        check(directory, threads, true);
        check(directory, threads, false);
    }
    cr_assert_eq(rmdir(directory), 0);
}

Test(shard_copied, a_thread_that_cannot_write_ends_the_write)
{
    char directory[] = MEMORY "/perdure-test-XXXXXX", path[256];
    const struct rlimit limit = {4u << 20, RLIM_INFINITY};
    struct pd_shard_codec codec = {.codec = PD_CODEC_NONE};
    struct pd_shard_writer *writer = NULL;
    struct pd_shard_summary summary;
    struct pd_error error = {0};
    struct fixture f;
    if (!make_directory_in_memory(directory)) cr_skip(MEMORY " has no room");
    make(&f, false);
    snprintf(path, sizeof path, "%s/s.h5", directory);
    OK(pd_thread_pool_new(3, &codec.pool, err));
    OK(pd_shard_writer_new(f.vfs, &f.tensors, f.boxes, f.box_count, f.buffers, FIXTURE_BUFFER_BYTES, &codec, &writer, err));
    OK(pd_shard_write(writer, path, &f.identity, 0, (const void *const *)f.data, &summary, err));
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0); /* the file exists whole, so that only its writes fail */
    cr_assert_neq(pd_shard_write(writer, path, &f.identity, 0, (const void *const *)f.data, &summary, &error), PD_OK);
    cr_assert(strstr(error.message, path) && strstr(error.message, ": 262144 bytes at "), "%s", error.message); /* a piece */
    unlink(path);
    cr_assert_eq(rmdir(directory), 0);
    pd_shard_writer_free(writer);
    pd_thread_pool_free(codec.pool);
    fixture_deinit(&f);
}
