/* Saves without end take no more memory, files or descriptors than a few: three tiers on real files, four ranks on two
 * hosts, drains under a cap and compressed, retention, second copies. 100 saves, with PERDURE_TEST_SCALE of 10 or more
 * 1,000. */
#include "ckpt/base/log.h"
#include "tests/helpers/scale.h"
#include "tests/helpers/tier_cluster.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <ftw.h>
#include <malloc.h>
#include <sys/stat.h>
#include <unistd.h>

#define FEW 20u
#define WAITING 32u /* files that may wait to be reused: two a rank in each tier, and of copies */

struct usage {
    unsigned descriptors, files;
    uint64_t file_bytes, heap_bytes;
};

struct growth {
    char root[64];
    uint64_t saves;
    struct usage usage;
};

static struct usage counted;

static int count_entry(const char *path, const struct stat *stat, int type, struct FTW *ftw)
{
    (void)path, (void)ftw;
    counted.files += type == FTW_F;
    counted.file_bytes += type == FTW_F ? (uint64_t)stat->st_size : 0;
    return 0;
}

static int remove_entry(const char *path, const struct stat *stat, int type, struct FTW *ftw)
{
    (void)stat, (void)type, (void)ftw;
    return remove(path);
}

static unsigned count_descriptors(void)
{
    unsigned count = 0;
    DIR *directory = opendir("/proc/self/fd");
    while (directory && readdir(directory))
        count++;
    if (directory) closedir(directory);
    return count;
}

/* Every rank has ended its saves and closed nothing yet. */
static pd_status save_many(struct tier_rank *rank, struct pd_error *err)
{
    struct growth *growth = rank->context;
    PD_TRY(pd_tiers_start(rank->tiers, err));
    for (uint64_t step = 1; step <= growth->saves; step++)
        PD_TRY(tier_save(rank, step, NULL, err));
    PD_TRY(tier_finish(rank, growth->saves, -1, err));
    PD_TRY(pd_group_barrier(&rank->world, err));
    if (rank->world.rank == 0) {
        const struct mallinfo2 heap =
            mallinfo2(); /* large blocks lie in the heap or in maps of their own, by what was freed before */
        counted = (struct usage){.descriptors = count_descriptors(), .heap_bytes = heap.uordblks + heap.hblkhd};
        if (nftw(growth->root, count_entry, 16, FTW_PHYS)) PD_FAIL(err, PD_BUG, "the files cannot be counted");
        growth->usage = counted;
    }
    return pd_group_barrier(&rank->world, err);
}

static struct usage run(uint64_t saves)
{
    static const char *const parts[] = {"", "/host-0", "/host-1", "/all"};
    const struct pd_tiers_options options = {
        .tiers = {{.dir = "/near", .every = 1, .keep_last = 2, .replicas = 1},
                  {.dir = "/middle", .every = 2, .keep_last = 2, .bandwidth = 64 << 20},
                  {.dir = "/net/far", .every = 5, .keep_last = 3, .codec = {.codec = PD_CODEC_ZSTD, .level = 1}}},
        .count = 3,
        .quarantine_bytes_max = 1 << 20};
    struct growth growth = {.root = "/tmp/perdure-growth-XXXXXX", .saves = saves};
    struct cluster cluster = {.ranks = 4, .hosts = 2, .root = growth.root};
    struct pd_error err = {0};
    cr_assert_not_null(mkdtemp(growth.root));
    for (size_t i = 1; i < sizeof parts / sizeof *parts; i++) {
        char path[80];
        snprintf(path, sizeof path, "%s%s", growth.root, parts[i]);
        cr_assert_eq(mkdir(path, 0777), 0);
    }
    pd_status st = tier_run(&cluster, &options, save_many, &growth, &err);
    nftw(growth.root, remove_entry, 16, FTW_PHYS | FTW_DEPTH);
    cr_assert_eq(st, PD_OK, "%s", err.message);
    return growth.usage;
}

Test(tier_growth, many_saves_leave_nothing, .timeout = 900)
{
    struct pd_error err = {0};
    cr_assert_eq(pd_log_configure("error", &err), PD_OK);
    const uint64_t saves = 100 * test_scale();
    const struct usage few = run(FEW), many = run(saves);
    cr_log_info("%u and %lu saves: %u and %u descriptors, %u and %u files of %lu and %lu bytes, %lu and %lu bytes of heap",
                FEW, saves, few.descriptors, many.descriptors, few.files, many.files, few.file_bytes, many.file_bytes,
                few.heap_bytes, many.heap_bytes);
    cr_assert_eq(few.descriptors, many.descriptors);
    cr_assert_leq(many.files, few.files + WAITING, "%u files after %u saves, %u after %lu", few.files, FEW, many.files,
                  saves);
    cr_assert_leq(many.file_bytes, few.file_bytes + (1 << 20));
    cr_assert_leq(many.heap_bytes, few.heap_bytes + (1 << 20));
}
