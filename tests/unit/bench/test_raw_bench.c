#include "tests/simulated_disk/simulated_disk.h"
#include "tools/bench/raw_bench.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

static struct pd_simulated_disk *disk;
static struct pd_vfs *vfs;
static struct pd_raw_bench *bench;

static void setup(void)
{
    cr_assert_eq(pd_simulated_disk_new(&(struct pd_disk_options){.seed = 1}, &disk, NULL), PD_OK);
    cr_assert_eq(pd_simulated_disk_vfs(disk, 0, &vfs, NULL), PD_OK);
    cr_assert_eq(pd_raw_bench_new(vfs, 8192, 5, &bench, NULL), PD_OK);
}

static void teardown(void)
{
    pd_raw_bench_free(bench);
    pd_vfs_free(vfs);
    pd_simulated_disk_free(disk);
}

TestSuite(raw_bench, .init = setup, .fini = teardown);

Test(raw_bench, writes_every_byte_and_makes_it_durable)
{
    double seconds = -1;
    struct pd_file *file;
    static char data[102400];
    for (int state = PD_RAW_FRESH; state <= PD_RAW_RECYCLED; state++) {
        cr_assert_eq(pd_raw_bench_write(bench, "/f", 100000, (enum pd_raw_state)state, &seconds, NULL), PD_OK);
        cr_assert_gt(seconds, 0);
        cr_assert_eq(pd_file_open(vfs, "/f", PD_OPEN_READ, &file, NULL), PD_OK);
        cr_assert_eq(pd_file_read(file, 0, data, sizeof data, NULL), PD_OK); /* rounded up to whole pages */
        pd_file_close_readonly(file);
        for (size_t page = 0; page < sizeof data; page += 4096) {
            bool empty = true;
            for (size_t i = 0; i < 4096; i++)
                empty = empty && data[page + i] == 0;
            cr_assert(!empty, "page %zu", page / 4096);
        }
    }
    cr_assert_eq(pd_vfs_sync_dir(vfs, "/", NULL), PD_OK);
    pd_simulated_disk_crash(disk, 0, 4);
    struct pd_vfs *after;
    cr_assert_eq(pd_simulated_disk_vfs(disk, 0, &after, NULL), PD_OK);
    char survived[4096];
    cr_assert_eq(pd_file_open(after, "/f", PD_OPEN_READ, &file, NULL), PD_OK);
    cr_assert_eq(pd_file_read(file, 98304, survived, 4096, NULL), PD_OK);
    pd_file_close_readonly(file);
    pd_vfs_free(after);
    cr_assert_arr_eq(survived, data + 98304, 4096);
}

Test(raw_bench, says_what_failed)
{
    double seconds = -1;
    struct pd_error err;
    cr_assert_eq(pd_raw_bench_write(bench, "/f", 40960, PD_RAW_FRESH, &seconds, NULL), PD_OK);
    seconds = -1;
    cr_assert_eq(pd_raw_bench_read(bench, "/f", 50000, &seconds, &err), PD_CORRUPT);
    cr_assert_eq(pd_raw_bench_read(bench, "/none", 4096, &seconds, &err), PD_NOT_FOUND);
    const struct pd_disk_fault fault = {
        .kind = PD_DISK_FAULT_ERROR, .nth = 3, .operations = PD_DISK_MASK(PD_DISK_WRITE), .sys_errno = ENOSPC};
    pd_simulated_disk_set_fault(disk, &fault);
    cr_assert_eq(pd_raw_bench_write(bench, "/f", 40960, PD_RAW_FRESH, &seconds, &err), PD_NO_SPACE);
    cr_assert_eq(seconds, -1);
    struct pd_raw_bench *odd;
    cr_assert_eq(pd_raw_bench_new(vfs, 1000, 4, &odd, &err), PD_INVALID);
}

Test(raw_bench, what_cannot_be_is_refused)
{
    struct pd_raw_bench *other = NULL;
    struct pd_error err = {0};
    double seconds = -1;
    cr_assert_eq(pd_raw_bench_new(vfs, UINT64_C(1) << 62, 8, &other, &err), PD_INVALID);
    cr_assert_eq(pd_raw_bench_write(bench, "/f", UINT64_MAX, PD_RAW_FRESH, &seconds, &err), PD_INVALID);
    cr_assert_eq(pd_raw_bench_read(bench, "/f", UINT64_MAX, &seconds, &err), PD_INVALID);
    cr_assert_eq(pd_raw_bench_mixed(bench, "/f", "/g", UINT64_MAX, &seconds, &err), PD_INVALID);
    cr_assert(strstr(err.message, "too many bytes"), "%s", err.message);
    cr_assert_eq(pd_vfs_mkdir(vfs, "/directory", &err), PD_OK);
    cr_assert_neq(pd_raw_bench_mixed(bench, "/directory", "/g", 8192, &seconds, &err), PD_OK);
    cr_assert_neq(pd_raw_bench_mixed(bench, "/f", "/directory", 8192, &seconds, &err), PD_OK);
    cr_assert_eq(seconds, -1);
    pd_raw_bench_free(NULL);
    cr_assert_eq(pd_raw_bench_new(vfs, 4096, 4000, &other, &err), PD_OK); /* more than the queue holds */
    cr_assert_eq(pd_raw_bench_mixed(other, "/f", "/g", 8192, &seconds, &err), PD_OK);
    pd_raw_bench_free(other);
    cr_assert_gt(seconds, 0);
}
