#include "ckpt/hdf5/h5.h"
#include "tests/unit/shard/shard_fixture.h"

#include <pthread.h>

static void store_pages(const struct pd_h5_pages *pages, const char *path)
{
    unsigned char *data = calloc(1, pages->bytes);
    pd_h5_pages_read(pages, 0, data, pages->bytes);
    FILE *file = fopen(path, "wb");
    cr_assert(file && fwrite(data, 1, pages->bytes, file) == pages->bytes && fclose(file) == 0);
    free(data);
}

Test(h5, pages_keep_what_was_written)
{
    struct pd_h5_pages pages = {0};
    unsigned char mirror[65536] = {0}, got[sizeof mirror];
    uint64_t random = 9;
    for (int i = 0; i < 500; i++) {
        uint64_t offset = fixture_random(&random) % 60000, bytes = fixture_random(&random) % 5000;
        unsigned char piece[5000];
        memset(piece, (int)(random >> 8), sizeof piece);
        memcpy(mirror + offset, piece, bytes);
        OK(pd_h5_pages_write(&pages, offset, piece, bytes, err));
    }
    pd_h5_pages_read(&pages, 0, got, sizeof got);
    cr_assert_eq(memcmp(got, mirror, sizeof got), 0);
    for (uint64_t p = 1; p < pages.count; p++)
        cr_assert_lt(pages.pages[p - 1].number, pages.pages[p].number);
    cr_assert_null(pd_h5_pages_find(&pages, 1000));
    pd_h5_pages_deinit(&pages);
}

/* Places are whole pages from a page on, never overlap, and metadata stays off them. */
Test(h5, datasets_lie_apart)
{
    struct pd_h5_file *file = NULL;
    struct pd_h5_pages pages = {0};
    enum { COUNT = 600 };
    uint64_t offsets[COUNT], sizes[COUNT], random = 4;
    OK(pd_h5_new(&file, err));
    for (int i = 0; i < COUNT; i++) {
        char path[64];
        uint64_t elements = 1 + fixture_random(&random) % (i % 3 ? 900 : 9000);
        snprintf(path, sizeof path, "/param/t%d", i);
        sizes[i] = elements * 4;
        OK(pd_h5_dataset(file, path, PD_H5_F32, 1, &elements, &offsets[i], err));
    }
    OK(pd_h5_finish(file, &pages, err));
    unsigned char *owned = calloc(1, pages.bytes + 4096);
    for (int i = 0; i < COUNT; i++) {
        bool owns_pages = sizes[i] >= 4096;
        cr_assert(!owns_pages || offsets[i] % 4096 == 0);
        uint64_t bytes = owns_pages ? (sizes[i] + 4095) / 4096 * 4096 : sizes[i];
        for (uint64_t b = 0; b < bytes; b++)
            cr_assert_eq(owned[offsets[i] + b]++, 0);
    }
    for (uint64_t p = 0; p < pages.count; p++)
        for (uint64_t b = 0; b < 4096; b++)
            cr_assert(pages.pages[p].data[b] == 0 || !owned[pages.pages[p].number * 4096 + b]);
    free(owned);
    pd_h5_pages_deinit(&pages);
}

Test(h5, brain_floats_are_printed)
{
    if (system("h5dump --version >/dev/null 2>&1") != 0) cr_skip_test("h5dump is not installed: apt-get install hdf5-tools");
    struct pd_h5_file *file = NULL;
    struct pd_h5_pages pages = {0};
    const uint16_t brain[4] = {0x3f80, 0xc020, 0x4049, 0x0000}, half[4] = {0x3c00, 0xc100, 0x4248, 0x0001};
    uint64_t count = 4, brain_offset = 0, half_offset = 0;
    OK(pd_h5_new(&file, err));
    OK(pd_h5_dataset(file, "/b", PD_H5_BF16, 1, &count, &brain_offset, err));
    OK(pd_h5_dataset(file, "/h", PD_H5_F16, 1, &count, &half_offset, err));
    OK(pd_h5_finish(file, &pages, err));
    OK(pd_h5_pages_write(&pages, brain_offset, brain, sizeof brain, err));
    OK(pd_h5_pages_write(&pages, half_offset, half, sizeof half, err));
    char path[] = "/tmp/perdure-h5-XXXXXX", command[128], text[4096] = "";
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    close(fd);
    store_pages(&pages, path);
    snprintf(command, sizeof command, "h5dump -y %s", path);
    FILE *pipe = popen(command, "r");
    cr_assert(pipe && fread(text, 1, sizeof text - 1, pipe) > 0 && pclose(pipe) == 0);
    cr_assert_not_null(strstr(text, "1, -2.5, 3.14062, 0"), "%s", text);
    cr_assert_not_null(strstr(text, "1, -2.5, 3.14062, 5.96046e-08"), "%s", text);
    unlink(path);
    pd_h5_pages_deinit(&pages);
}

Test(h5, its_errors_end_in_ours)
{
    struct pd_h5_file *file = NULL;
    struct pd_error error = {0};
    uint64_t count = 4, offset = 77;
    OK(pd_h5_new(&file, err));
    OK(pd_h5_dataset(file, "/a/b", PD_H5_F32, 1, &count, &offset, err));
    uint64_t before = offset;
    cr_assert_eq(pd_h5_dataset(file, "/a/b", PD_H5_F32, 1, &count, &offset, &error), PD_BUG);
    cr_assert_eq(offset, before);
    cr_assert(strstr(error.message, "/a/b") && strstr(error.message, "exists"), "%s", error.message);
    pd_h5_free(file);
}

static void *build_some(void *context)
{
    for (int i = 0; i < 20; i++) {
        struct pd_h5_file *file = NULL;
        struct pd_h5_pages pages = {0};
        uint64_t count = 5000, offset = 0;
        OK(pd_h5_new(&file, err));
        OK(pd_h5_dataset(file, "/x/y", PD_H5_F32, 1, &count, &offset, err));
        OK(pd_h5_finish(file, &pages, err));
        pd_h5_pages_deinit(&pages);
    }
    return context;
}

Test(h5, threads_take_turns)
{
    pthread_t threads[4];
    for (int t = 0; t < 4; t++)
        cr_assert_eq(pthread_create(&threads[t], NULL, build_some, NULL), 0);
    for (int t = 0; t < 4; t++)
        cr_assert_eq(pthread_join(threads[t], NULL), 0);
}
