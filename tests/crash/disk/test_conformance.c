/* The simulated disk against a real file system: random operations are made on the first, their trace is replayed on the
 * second, and every result, every byte read and the final trees must be equal. What a crash keeps cannot be compared, so
 * this proves the part of the model that can be: what processes see while power is on. */
#include "ckpt/base/digest.h"
#include "ckpt/base/parse.h"
#include "tests/simulated_disk/disk_trace.h"
#include "tests/simulated_disk/simulated_disk.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OPEN_MAX 6
#define STEPS 400

struct scene {
    uint64_t random;
    struct pd_vfs *vfs;
    struct pd_file *open[OPEN_MAX];
    struct pd_lock *lock;
    char *page; /* 64 KiB, aligned */
};

static uint64_t below(struct scene *scene, uint64_t bound)
{
    uint64_t z = scene->random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (z ^ (z >> 31)) % bound;
}

/* Few names, so that they collide often: files where directories are wanted, ancestors renamed into themselves. */
static const char *any_path(struct scene *scene)
{
    static char paths[4][64];
    static int next;
    static const char *const names[] = {"a", "b", "c", "a b", "%"};
    char *path = paths[next++ % 4];
    int at = 0;
    for (uint64_t depth = 1 + below(scene, 3); depth > 0; depth--)
        at += snprintf(path + at, 64 - (size_t)at, "/%s", names[below(scene, 5)]);
    return path;
}

static void open_or_close(struct scene *scene)
{
    static const unsigned flags[] = {
        PD_OPEN_READ,
        PD_OPEN_READ | PD_OPEN_WRITE | PD_OPEN_CREATE,
        PD_OPEN_WRITE | PD_OPEN_CREATE | PD_OPEN_EXCLUSIVE,
        PD_OPEN_READ | PD_OPEN_WRITE | PD_OPEN_CREATE | PD_OPEN_DIRECT,
        PD_OPEN_WRITE | PD_OPEN_TRUNCATE,
        PD_OPEN_READ | PD_OPEN_WRITE | PD_OPEN_CREATE | PD_OPEN_TRUNCATE,
    };
    struct pd_file **file = &scene->open[below(scene, OPEN_MAX)];
    if (*file) {
        cr_assert_eq(pd_file_close(*file, NULL), PD_OK);
        *file = NULL;
        return;
    }
    pd_status unused = pd_file_open(scene->vfs, any_path(scene), flags[below(scene, 6)], file, NULL);
    (void)unused;
}

static pd_status touch_file(struct scene *scene, struct pd_file *file, struct pd_error *err)
{
    bool direct = pd_file_is_direct(file);
    uint64_t unit = direct ? 4096 : 1 + below(scene, 700), offset = unit * below(scene, 9), bytes = unit * below(scene, 7);
    struct pd_stat st;
    switch (below(scene, 7)) {
    case 0:
    case 1:
    case 2:
        for (uint64_t i = 0; i < bytes; i++)
            scene->page[i] = (char)below(scene, 256);
        return pd_file_write(file, offset, scene->page, bytes, err);
    case 3:
        return pd_file_read(file, offset, scene->page, bytes, err);
    case 4:
        return pd_file_truncate(file, below(scene, 20000), err);
    case 5:
        return pd_file_preallocate(file, 1 + below(scene, 20000), err);
    default:
        return below(scene, 2) ? pd_file_sync(file, err) : pd_file_stat(file, &st, err);
    }
}

static pd_status touch_lock(struct scene *scene, struct pd_error *err)
{
    if (!scene->lock || below(scene, 2)) {
        struct pd_lock *lock = NULL;
        PD_TRY(pd_vfs_lock(scene->vfs, any_path(scene), &lock, err));
        pd_vfs_unlock(scene->lock);
        scene->lock = lock;
        return PD_OK;
    }
    pd_vfs_unlock(scene->lock);
    scene->lock = NULL;
    return PD_OK;
}

static pd_status touch_name(struct scene *scene, struct pd_error *err)
{
    struct pd_vfs *vfs = scene->vfs;
    struct pd_listing listing = {0};
    struct pd_stat st;
    struct pd_space space;
    pd_status status;
    switch (below(scene, 12)) {
    case 0:
    case 1:
        return pd_vfs_mkdir(vfs, any_path(scene), err);
    case 2:
    case 3:
    case 4:
        return pd_vfs_rename(vfs, any_path(scene), any_path(scene), err);
    case 5:
        return pd_vfs_link(vfs, any_path(scene), any_path(scene), err);
    case 6:
        return pd_vfs_unlink(vfs, any_path(scene), err);
    case 7:
        return pd_vfs_rmdir(vfs, any_path(scene), err);
    case 8:
        return pd_vfs_sync_dir(vfs, any_path(scene), err);
    case 9:
        return pd_vfs_stat(vfs, any_path(scene), &st, err);
    case 10:
        return pd_vfs_space(vfs, any_path(scene), &space, err);
    default:
        status = pd_vfs_list(vfs, any_path(scene), &listing, err);
        pd_listing_deinit(&listing);
        return status;
    }
}

static void play(struct scene *scene)
{
    for (int step = 0; step < STEPS; step++) {
        struct pd_error err;
        struct pd_file *file = scene->open[below(scene, OPEN_MAX)];
        pd_status unused = PD_OK; /* refusals are part of what is compared */
        uint64_t dice = below(scene, 10);
        if (dice < 2)
            open_or_close(scene);
        else if (dice < 6 && file)
            unused = touch_file(scene, file, &err);
        else if (dice == 9 && below(scene, 4) == 0)
            unused = touch_lock(scene, &err);
        else
            unused = touch_name(scene, &err);
        cr_assert_neq(unused, PD_BUG);
    }
    for (int i = 0; i < OPEN_MAX; i++)
        if (scene->open[i]) cr_assert_eq(pd_file_close(scene->open[i], NULL), PD_OK);
    pd_vfs_unlock(scene->lock);
}

/* Names, sizes, links and digests of everything below a directory. */
static void describe_tree(struct pd_vfs *vfs, const char *root, const char *path, FILE *text)
{
    struct pd_listing listing;
    struct pd_error err;
    char full[4096];
    snprintf(full, sizeof full, "%s%s", root, *path ? path : "/");
    cr_assert_eq(pd_vfs_list(vfs, full, &listing, &err), PD_OK, "%s", err.message);
    for (uint32_t i = 0; i < listing.count; i++) {
        char child[2048];
        struct pd_stat st;
        snprintf(child, sizeof child, "%s/%s", path, listing.names[i]);
        snprintf(full, sizeof full, "%s%s", root, child);
        cr_assert_eq(pd_vfs_stat(vfs, full, &st, &err), PD_OK, "%s", err.message);
        if (st.type == PD_ENTRY_DIRECTORY) {
            fprintf(text, "%s/\n", child);
            describe_tree(vfs, root, child, text);
            continue;
        }
        struct pd_file *file;
        char *data = malloc(st.bytes + 1);
        cr_assert_eq(pd_file_open(vfs, full, PD_OPEN_READ, &file, &err), PD_OK, "%s", err.message);
        cr_assert_eq(pd_file_read(file, 0, data, st.bytes, &err), PD_OK, "%s", err.message);
        fprintf(text, "%s %" PRIu64 " %" PRIu64 " %" PRIx64 "\n", child, st.bytes, st.link_count,
                pd_digest64(data, st.bytes, 0));
        free(data);
        pd_file_close_readonly(file);
    }
    pd_listing_deinit(&listing);
}

static char *tree_text(struct pd_vfs *vfs, const char *root)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    describe_tree(vfs, root, "", stream);
    fclose(stream);
    return text;
}

static void compare(uint64_t seed, struct pd_vfs *real)
{
    struct pd_error err = {0};
    struct pd_simulated_disk *disk;
    struct scene scene = {.random = seed, .page = aligned_alloc(4096, 65536)};
    cr_assert_eq(pd_simulated_disk_new(&(struct pd_disk_options){.seed = seed}, &disk, &err), PD_OK);
    cr_assert_eq(pd_simulated_disk_vfs(disk, 0, &scene.vfs, &err), PD_OK);
    pd_simulated_disk_trace_start(disk);
    play(&scene);
    char *trace = pd_simulated_disk_trace_stop(disk), root[64], command[96];
    bool in_memory = seed % 2 && access("/dev/shm", W_OK) == 0; /* two kinds of file system agree with each other too */
    snprintf(root, sizeof root, "%s/perdure-conformance-XXXXXX", in_memory ? "/dev/shm" : "/tmp");
    cr_assert_not_null(mkdtemp(root));
    uint64_t lines = 0;
    pd_status st = pd_disk_trace_replay(trace, real, root, &lines, &err);
    cr_assert_eq(st, PD_OK, "seed %" PRIu64 ": %s", seed, err.message);
    cr_assert(lines > STEPS / 2);
    char *simulated = tree_text(scene.vfs, ""), *actual = tree_text(real, root);
    cr_assert_str_eq(simulated, actual, "seed %" PRIu64, seed);
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    cr_assert_eq(system(command), 0);
    free(simulated);
    free(actual);
    free(trace);
    free(scene.page);
    pd_vfs_free(scene.vfs);
    pd_simulated_disk_free(disk);
}

/* Makes everything below a directory durable: contents, then names, its own name last by its parent. */
static void sync_tree(struct pd_vfs *vfs, const char *path)
{
    struct pd_listing listing;
    struct pd_error err;
    cr_assert_eq(pd_vfs_list(vfs, *path ? path : "/", &listing, &err), PD_OK, "%s", err.message);
    for (uint32_t i = 0; i < listing.count; i++) {
        char child[2048];
        struct pd_stat st;
        struct pd_file *file;
        snprintf(child, sizeof child, "%s/%s", path, listing.names[i]);
        cr_assert_eq(pd_vfs_stat(vfs, child, &st, &err), PD_OK, "%s", err.message);
        if (st.type == PD_ENTRY_DIRECTORY) {
            sync_tree(vfs, child);
            continue;
        }
        cr_assert_eq(pd_file_open(vfs, child, PD_OPEN_WRITE, &file, &err), PD_OK, "%s", err.message);
        cr_assert_eq(pd_file_sync(file, &err), PD_OK, "%s", err.message);
        cr_assert_eq(pd_file_close(file, &err), PD_OK, "%s", err.message);
    }
    pd_listing_deinit(&listing);
    cr_assert_eq(pd_vfs_sync_dir(vfs, *path ? path : "/", &err), PD_OK, "%s", err.message);
}

/* A disk on which `play` has run; its scene is over. */
static struct pd_simulated_disk *played(uint64_t seed, bool syncs, char **ret_tree)
{
    struct pd_simulated_disk *disk;
    struct scene scene = {.random = seed, .page = aligned_alloc(4096, 65536)};
    cr_assert_eq(pd_simulated_disk_new(&(struct pd_disk_options){.seed = seed}, &disk, NULL), PD_OK);
    cr_assert_eq(pd_simulated_disk_vfs(disk, 0, &scene.vfs, NULL), PD_OK);
    play(&scene);
    if (syncs) sync_tree(scene.vfs, "");
    *ret_tree = tree_text(scene.vfs, "");
    pd_vfs_free(scene.vfs);
    free(scene.page);
    return disk;
}

/* Crashes a copy; the tree that survives, with every link counted. */
static char *tree_after(struct pd_simulated_disk *disk, uint64_t first_seed, uint64_t crashes)
{
    struct pd_simulated_disk *copy;
    struct pd_vfs *vfs;
    cr_assert_eq(pd_simulated_disk_clone(disk, &copy, NULL), PD_OK);
    for (uint64_t i = 0; i < crashes; i++)
        pd_simulated_disk_crash(copy, PD_DISK_ALL_HOSTS, first_seed + i * 1000);
    cr_assert_eq(pd_simulated_disk_vfs(copy, 0, &vfs, NULL), PD_OK);
    char *text = tree_text(vfs, "");
    struct pd_space space;
    cr_assert_eq(pd_vfs_space(vfs, "/", &space, NULL), PD_OK);
    cr_assert(space.available_bytes <= space.total_bytes && space.available_inodes < space.total_inodes);
    pd_vfs_free(vfs);
    pd_simulated_disk_free(copy);
    return text;
}

static uint64_t scale(void)
{
    uint64_t value = 1;
    const char *text = getenv("PERDURE_TEST_SCALE");
    if (text) pd_parse_u64(text, &value);
    return value ? value : 1;
}

Test(conformance, random_operations_give_the_same_results_on_a_real_file_system)
{
    struct pd_vfs *real;
    cr_assert_eq(pd_vfs_new_auto(&real, NULL), PD_OK);
    for (uint64_t seed = 1; seed <= 30 * scale(); seed++)
        compare(seed, real);
    pd_vfs_free(real);
}

Test(conformance, a_trace_that_lies_is_caught)
{
    struct pd_vfs *real;
    struct pd_error err = {0};
    uint64_t lines = 0;
    char root[] = "/tmp/perdure-conformance-XXXXXX", command[64];
    cr_assert_eq(pd_vfs_new_auto(&real, NULL), PD_OK);
    cr_assert_not_null(mkdtemp(root));
    cr_assert_eq(pd_disk_trace_replay("mkdir /a = PD_OK\nmkdir /a = PD_OK\n", real, root, &lines, &err), PD_CORRUPT);
    cr_assert(strstr(err.message, "line 2") && strstr(err.message, "PD_EXISTS"), "%s", err.message);
    cr_assert_eq(
        pd_disk_trace_replay("open 1 7 /f = PD_OK\nwrite 1 0 x6162 = PD_OK 2\nread 1 0 9 = PD_OK 2 0000000000000000\n", real,
                             root, &lines, &err),
        PD_CORRUPT);
    cr_assert_eq(pd_disk_trace_replay("dance /f = PD_OK\n", real, root, &lines, &err), PD_INVALID);
    cr_assert_eq(pd_disk_trace_replay("write 9 0 x00 = PD_OK\n", real, root, &lines, &err), PD_IO);
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    cr_assert_eq(system(command), 0);
    pd_vfs_free(real);
}

Test(conformance, what_was_synced_survives_every_crash)
{
    for (uint64_t seed = 1; seed <= 20 * scale(); seed++) {
        char *before;
        struct pd_simulated_disk *disk = played(seed, true, &before);
        for (uint64_t crash = 0; crash < 10; crash++) {
            char *after = tree_after(disk, crash, 1);
            cr_assert_str_eq(after, before, "seed %" PRIu64 ", crash %" PRIu64, seed, crash);
            free(after);
        }
        free(before);
        pd_simulated_disk_free(disk);
    }
}

/* The tree can be walked, a second power loss changes nothing, and without syncs something is lost for some seed. */
Test(conformance, a_crash_decides_once_and_for_all)
{
    uint64_t different = 0;
    for (uint64_t seed = 1; seed <= 20 * scale(); seed++) {
        char *before;
        struct pd_simulated_disk *disk = played(seed, false, &before);
        for (uint64_t crash = 0; crash < 10; crash++) {
            char *once = tree_after(disk, crash, 1), *thrice = tree_after(disk, crash, 3);
            cr_assert_str_eq(once, thrice, "seed %" PRIu64 ", crash %" PRIu64, seed, crash);
            different += strcmp(once, before) != 0;
            free(once);
            free(thrice);
        }
        free(before);
        pd_simulated_disk_free(disk);
    }
    cr_assert_gt(different, 0);
}
