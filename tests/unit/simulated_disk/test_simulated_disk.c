/* The model of durability, fault by fault and crash by crash. What may be lost must be seen lost for some seed, and what may
 * not be lost must never be. */
#include "tests/simulated_disk/simulated_disk.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEEDS 60
#define OK(expression)                                                             \
    do {                                                                           \
        struct pd_error ok_err_ = {0}, *err = &ok_err_;                            \
        cr_assert_eq((expression), PD_OK, "%s: %s", #expression, ok_err_.message); \
    } while (0)
#define IS(expected, expression)                                                                               \
    do {                                                                                                       \
        struct pd_error is_err_ = {0}, *err = &is_err_;                                                        \
        pd_status is_st_ = (expression);                                                                       \
        cr_assert_eq(is_st_, (expected), "%s: %s (%s)", #expression, pd_status_name(is_st_), is_err_.message); \
    } while (0)
#define FAULT(...) (&(struct pd_disk_fault){__VA_ARGS__})

static struct pd_simulated_disk *new_disk(const struct pd_disk_options *options)
{
    struct pd_simulated_disk *disk = NULL;
    OK(pd_simulated_disk_new(options ? options : &(struct pd_disk_options){.seed = 1}, &disk, err));
    return disk;
}

static struct pd_vfs *new_vfs(struct pd_simulated_disk *disk, uint32_t host)
{
    struct pd_vfs *vfs = NULL;
    OK(pd_simulated_disk_vfs(disk, host, &vfs, err));
    return vfs;
}

static struct pd_simulated_disk *crashed(struct pd_simulated_disk *disk, uint64_t seed)
{
    struct pd_simulated_disk *clone = NULL;
    OK(pd_simulated_disk_clone(disk, &clone, err));
    pd_simulated_disk_crash(clone, PD_DISK_ALL_HOSTS, seed);
    return clone;
}

/* Writes `bytes` of `fill`; creates. */
static pd_status put(struct pd_vfs *vfs, const char *path, char fill, uint64_t bytes, bool syncs, struct pd_error *err)
{
    struct pd_file *file = NULL;
    char *data = malloc(bytes + 1);
    memset(data, fill, bytes);
    pd_status st = pd_file_open(vfs, path, PD_OPEN_WRITE | PD_OPEN_CREATE, &file, err);
    if (!st) {
        st = pd_file_write(file, 0, data, bytes, err);
        if (!st && syncs) st = pd_file_sync(file, err);
        pd_status closed = pd_file_close(file, st ? NULL : err);
        if (!st) st = closed;
    }
    free(data);
    return st;
}

/* The bytes of a file on a disk that is looked at with a VFS of its own; -1 without such a file. */
static int64_t get(struct pd_simulated_disk *disk, uint32_t host, const char *path, char *ret_data, uint64_t capacity)
{
    struct pd_vfs *vfs = new_vfs(disk, host);
    struct pd_file *file = NULL;
    struct pd_stat st = {0};
    int64_t bytes = -1;
    if (pd_file_open(vfs, path, PD_OPEN_READ, &file, NULL) == PD_OK) {
        OK(pd_file_stat(file, &st, err));
        cr_assert(st.bytes <= capacity);
        OK(pd_file_read(file, 0, ret_data, st.bytes, err));
        pd_file_close_readonly(file);
        bytes = (int64_t)st.bytes;
    }
    pd_vfs_free(vfs);
    return bytes;
}

static bool is_all(const char *data, int64_t bytes, int64_t expected, char fill)
{
    if (bytes != expected) return false;
    for (int64_t i = 0; i < bytes; i++)
        if (data[i] != fill) return false;
    return true;
}

Test(simulated_disk, a_crash_keeps_any_pieces_of_what_was_not_synced)
{
    struct pd_simulated_disk *disk = new_disk(NULL);
    struct pd_vfs *vfs = new_vfs(disk, 0);
    static char data[8192];
    OK(put(vfs, "/f", 'a', 4096, true, err));
    OK(pd_vfs_sync_dir(vfs, "/", err));
    OK(put(vfs, "/f", 'b', 4096, false, err));
    int all_old = 0, all_new = 0, mixed = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct pd_simulated_disk *after = crashed(disk, seed);
        cr_assert_eq(get(after, 0, "/f", data, sizeof data), 4096);
        for (int piece = 0; piece < 4096; piece += 512)
            cr_assert(is_all(data + piece, 512, 512, 'a') || is_all(data + piece, 512, 512, 'b'));
        if (is_all(data, 4096, 4096, 'a'))
            all_old++;
        else if (is_all(data, 4096, 4096, 'b'))
            all_new++;
        else
            mixed++;
        pd_simulated_disk_free(after);
    }
    cr_assert(all_old && all_new && mixed, "%d %d %d", all_old, all_new, mixed);
    pd_vfs_free(vfs);
    pd_simulated_disk_free(disk);
}

Test(simulated_disk, synced_content_and_synced_names_stay)
{
    struct pd_simulated_disk *disk = new_disk(NULL);
    struct pd_vfs *vfs = new_vfs(disk, 0);
    static char data[8192];
    OK(pd_vfs_mkdir(vfs, "/d", err));
    OK(put(vfs, "/d/f", 'a', 5000, true, err));
    int absent = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct pd_simulated_disk *after = crashed(disk, seed);
        int64_t bytes = get(after, 0, "/d/f", data, sizeof data);
        cr_assert(bytes == -1 || is_all(data, bytes, 5000, 'a')); /* a name that survives finds what was synced */
        absent += bytes == -1;
        pd_simulated_disk_free(after);
    }
    cr_assert(absent > 0 && absent < SEEDS, "%d", absent);
    OK(pd_vfs_sync_dir(vfs, "/d", err)); /* not enough: the name of /d itself is in its parent */
    absent = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct pd_simulated_disk *after = crashed(disk, seed);
        absent += get(after, 0, "/d/f", data, sizeof data) == -1;
        pd_simulated_disk_free(after);
    }
    cr_assert(absent > 0);
    OK(pd_vfs_sync_dir(vfs, "/", err));
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct pd_simulated_disk *after = crashed(disk, seed);
        cr_assert(is_all(data, get(after, 0, "/d/f", data, sizeof data), 5000, 'a'));
        pd_simulated_disk_free(after);
    }
    pd_vfs_free(vfs);
    pd_simulated_disk_free(disk);
}

Test(simulated_disk, a_rename_inside_a_directory_is_atomic_and_across_never_loses_the_file)
{
    struct pd_simulated_disk *disk = new_disk(NULL);
    struct pd_vfs *vfs = new_vfs(disk, 0);
    static char data[8192];
    OK(pd_vfs_mkdir(vfs, "/d", err));
    OK(put(vfs, "/old", 'a', 100, true, err));
    OK(put(vfs, "/new", 'b', 100, true, err));
    OK(put(vfs, "/moved", 'c', 100, true, err));
    OK(pd_vfs_sync_dir(vfs, "/", err));
    OK(pd_vfs_rename(vfs, "/new", "/old", err));
    OK(pd_vfs_rename(vfs, "/moved", "/d/moved", err));
    int both = 0, here = 0, there = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct pd_simulated_disk *after = crashed(disk, seed);
        int64_t source = get(after, 0, "/new", data, sizeof data);
        cr_assert(is_all(data, get(after, 0, "/old", data, sizeof data), 100, source == -1 ? 'b' : 'a'));
        bool from = get(after, 0, "/moved", data, sizeof data) == 100;
        bool to = get(after, 0, "/d/moved", data, sizeof data) == 100;
        cr_assert(from || to, "seed %d", (int)seed);
        both += from && to;
        here += from && !to;
        there += to && !from;
        pd_simulated_disk_free(after);
    }
    cr_assert(both && here && there, "%d %d %d", both, here, there);
    OK(pd_vfs_sync_dir(vfs, "/", err)); /* makes the removal durable, and with it the new name */
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct pd_simulated_disk *after = crashed(disk, seed);
        cr_assert_eq(get(after, 0, "/moved", data, sizeof data), -1);
        cr_assert_eq(get(after, 0, "/d/moved", data, sizeof data), 100);
        pd_simulated_disk_free(after);
    }
    pd_vfs_free(vfs);
    pd_simulated_disk_free(disk);
}

Test(simulated_disk, links_and_removals_wait_for_their_directory)
{
    struct pd_simulated_disk *disk = new_disk(NULL);
    struct pd_vfs *vfs = new_vfs(disk, 0);
    static char data[8192];
    OK(pd_vfs_mkdir(vfs, "/d", err));
    OK(put(vfs, "/f", 'a', 10, true, err));
    OK(pd_vfs_sync_dir(vfs, "/", err));
    OK(pd_vfs_link(vfs, "/f", "/d/g", err));
    OK(pd_vfs_unlink(vfs, "/f", err));
    int seen[2][2] = {{0}};
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct pd_simulated_disk *after = crashed(disk, seed);
        seen[get(after, 0, "/f", data, sizeof data) == 10][get(after, 0, "/d/g", data, sizeof data) == 10]++;
        pd_simulated_disk_free(after);
    }
    cr_assert(seen[0][0] && seen[0][1] && seen[1][0] && seen[1][1]);
    pd_vfs_free(vfs);
    pd_simulated_disk_free(disk);
}

Test(simulated_disk, sizes_survive_in_order_and_gaps_are_zero)
{
    struct pd_simulated_disk *disk = new_disk(NULL);
    struct pd_vfs *vfs = new_vfs(disk, 0);
    static char data[16384];
    OK(put(vfs, "/f", 'a', 3000, true, err));
    OK(pd_vfs_sync_dir(vfs, "/", err));
    OK(put(vfs, "/f", 'b', 9000, false, err));
    int sizes[2] = {0}, holes = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct pd_simulated_disk *after = crashed(disk, seed);
        int64_t bytes = get(after, 0, "/f", data, sizeof data);
        cr_assert(bytes == 3000 || bytes == 9000);
        sizes[bytes == 9000]++;
        for (int64_t i = 3072; i < bytes; i++) {
            cr_assert(data[i] == 'b' || data[i] == 0);
            holes += data[i] == 0;
        }
        pd_simulated_disk_free(after);
    }
    cr_assert(sizes[0] && sizes[1] && holes);
    pd_vfs_free(vfs);
    pd_simulated_disk_free(disk);
}

/* The protocol every checkpoint relies on, with one step left out on purpose or none. */
enum omission { NOTHING, FILE_SYNC, DIRECTORY_SYNC };

static pd_status replace(struct pd_vfs *vfs, char fill, enum omission omission, struct pd_error *err)
{
    PD_TRY(put(vfs, "/tmp", fill, 2000, omission != FILE_SYNC, err));
    PD_TRY(pd_vfs_rename(vfs, "/tmp", "/record", err));
    return omission == DIRECTORY_SYNC ? PD_OK : pd_vfs_sync_dir(vfs, "/", err);
}

/* How many crashes, over every operation and many seeds, left something that is neither old nor new, or old after success.
 */
static int count_broken(enum omission omission)
{
    static char data[8192];
    int broken = 0;
    for (uint64_t nth = 1;; nth++) {
        struct pd_simulated_disk *disk = new_disk(NULL);
        struct pd_vfs *vfs = new_vfs(disk, 0);
        OK(replace(vfs, 'a', NOTHING, err));
        pd_simulated_disk_set_fault(disk, FAULT(.kind = PD_DISK_FAULT_POWER, .nth = nth));
        pd_status st = replace(vfs, 'b', omission, NULL);
        bool fired = pd_simulated_disk_fired(disk) > 0;
        cr_assert_eq(fired, st != PD_OK);
        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            struct pd_simulated_disk *after = crashed(disk, seed);
            int64_t bytes = get(after, 0, "/record", data, sizeof data);
            bool is_new = is_all(data, bytes, 2000, 'b'), is_old = is_all(data, bytes, 2000, 'a');
            broken += !(is_new || (is_old && st));
            pd_simulated_disk_free(after);
        }
        pd_vfs_free(vfs);
        pd_simulated_disk_free(disk);
        if (!fired) return broken;
    }
}

Test(simulated_disk, an_atomic_replacement_holds_and_one_without_its_syncs_does_not)
{
    cr_assert_eq(count_broken(NOTHING), 0);
    cr_assert_gt(count_broken(FILE_SYNC), 0);
    cr_assert_gt(count_broken(DIRECTORY_SYNC), 0);
}

Test(simulated_disk, errors_strike_the_nth_operation_once_or_for_good)
{
    struct pd_simulated_disk *disk = new_disk(NULL);
    struct pd_vfs *vfs = new_vfs(disk, 0), *other = new_vfs(disk, 0);
    pd_simulated_disk_set_fault(disk, FAULT(.kind = PD_DISK_FAULT_ERROR, .nth = 2, .sys_errno = ENOSPC));
    OK(pd_vfs_mkdir(vfs, "/a", err));
    IS(PD_NO_SPACE, pd_vfs_mkdir(vfs, "/b", err));
    OK(pd_vfs_mkdir(vfs, "/b", err));
    cr_assert(pd_simulated_disk_fired(disk) == 1 && pd_simulated_disk_count(disk) == 3);
    pd_simulated_disk_set_fault(disk, FAULT(.kind = PD_DISK_FAULT_ERROR, .nth = 1, .persistent = true, .vfs = vfs,
                                            .operations = PD_DISK_MASK(PD_DISK_MKDIR), .sys_errno = EDQUOT));
    IS(PD_NO_SPACE, pd_vfs_mkdir(vfs, "/c", err));
    IS(PD_NO_SPACE, pd_vfs_mkdir(vfs, "/c", err));
    OK(pd_vfs_rename(vfs, "/b", "/d", err));
    OK(pd_vfs_mkdir(other, "/c", err));
    pd_simulated_disk_set_fault(disk, FAULT(.kind = PD_DISK_FAULT_ERROR_APPLIED, .nth = 1));
    IS(PD_IO, pd_vfs_mkdir(vfs, "/e", err));
    IS(PD_EXISTS, pd_vfs_mkdir(vfs, "/e", err));
    pd_vfs_free(vfs);
    pd_vfs_free(other);
    pd_simulated_disk_free(disk);
}

static void write_under(enum pd_disk_fault_kind kind, char *ret_data, uint64_t *ret_fired)
{
    struct pd_simulated_disk *disk = new_disk(NULL);
    struct pd_vfs *vfs = new_vfs(disk, 0);
    OK(put(vfs, "/f", 'a', 8192, true, err));
    pd_simulated_disk_set_fault(disk, FAULT(.kind = kind, .nth = 1, .operations = PD_DISK_MASK(PD_DISK_WRITE)));
    struct pd_file *file = NULL;
    char data[2048];
    memset(data, 'b', sizeof data);
    OK(pd_file_open(vfs, "/f", PD_OPEN_WRITE, &file, err));
    pd_status st = pd_file_write(file, 4096, data, sizeof data, NULL);
    cr_assert_eq(st, kind == PD_DISK_FAULT_ERROR ? PD_IO : PD_OK);
    OK(pd_file_close(file, err));
    *ret_fired = pd_simulated_disk_fired(disk);
    cr_assert_eq(get(disk, 0, "/f", ret_data, 8192), 8192);
    pd_vfs_free(vfs);
    pd_simulated_disk_free(disk);
}

Test(simulated_disk, writes_tear_vanish_and_go_astray)
{
    static char data[8192];
    uint64_t fired;
    for (int kind = PD_DISK_FAULT_NONE; kind < PD_DISK_FAULT_KIND_COUNT; kind++) {
        if (kind == PD_DISK_FAULT_POWER || kind == PD_DISK_FAULT_ERROR_APPLIED || kind == PD_DISK_FAULT_LOST_SYNC) continue;
        if (kind == PD_DISK_FAULT_FLIP) continue;
        write_under((enum pd_disk_fault_kind)kind, data, &fired);
        const char *name = pd_disk_fault_kind_name((enum pd_disk_fault_kind)kind);
        cr_assert_eq(fired, kind != PD_DISK_FAULT_NONE, "%s", name);
        int here = 0, elsewhere = 0;
        for (int i = 0; i < 8192; i++) {
            bool is_place = i >= 4096 && i < 4096 + 2048;
            here += data[i] == 'b' && is_place;
            elsewhere += data[i] == 'b' && !is_place;
        }
        bool whole = kind == PD_DISK_FAULT_NONE || kind == PD_DISK_FAULT_SHORT;
        cr_assert_eq(here == 2048, whole, "%s: %d", name, here);
        cr_assert(here % 512 == 0);
        if (kind == PD_DISK_FAULT_LOST) cr_assert(here == 0 && elsewhere == 0);
        cr_assert_eq(elsewhere > 0, kind == PD_DISK_FAULT_MISDIRECTED, "%s: %d", name, elsewhere);
    }
}

Test(simulated_disk, a_read_may_return_a_wrong_bit_once)
{
    struct pd_simulated_disk *disk = new_disk(NULL);
    struct pd_vfs *vfs = new_vfs(disk, 0);
    struct pd_file *file = NULL;
    char data[1000];
    OK(put(vfs, "/f", 'a', 1000, true, err));
    OK(pd_file_open(vfs, "/f", PD_OPEN_READ, &file, err));
    pd_simulated_disk_set_fault(disk, FAULT(.kind = PD_DISK_FAULT_FLIP, .nth = 1));
    OK(pd_file_read(file, 0, data, 1000, err));
    cr_assert(!is_all(data, 1000, 1000, 'a'));
    OK(pd_file_read(file, 0, data, 1000, err));
    cr_assert(is_all(data, 1000, 1000, 'a'));
    pd_file_close_readonly(file);
    cr_assert(pd_simulated_disk_flip(disk, 0, "/f", 1, 5));
    cr_assert(!pd_simulated_disk_flip(disk, 0, "/none", 1, 5));
    cr_assert_eq(get(disk, 0, "/f", data, 1000), 1000);
    cr_assert(!is_all(data, 1000, 1000, 'a'));
    pd_vfs_free(vfs);
    pd_simulated_disk_free(disk);
}

/* After a failed sync a later one says yes and proves nothing: the kernel has forgotten which pages it owed. */
Test(simulated_disk, a_failed_sync_dooms_and_a_lost_one_lies)
{
    static const enum pd_disk_fault_kind kinds[] = {PD_DISK_FAULT_ERROR, PD_DISK_FAULT_LOST_SYNC};
    static char data[8192];
    for (int i = 0; i < 2; i++) {
        struct pd_simulated_disk *disk = new_disk(NULL);
        struct pd_vfs *vfs = new_vfs(disk, 0);
        struct pd_file *file = NULL;
        OK(put(vfs, "/f", 'a', 4096, true, err));
        OK(pd_vfs_sync_dir(vfs, "/", err));
        pd_simulated_disk_set_fault(disk, FAULT(.kind = kinds[i], .nth = 1,
                                                .operations = PD_DISK_MASK(PD_DISK_SYNC) | PD_DISK_MASK(PD_DISK_SYNC_DIR)));
        IS(i ? PD_OK : PD_IO, put(vfs, "/f", 'b', 4096, true, err));
        if (i == 0) { /* through another handle, since ours refuses */
            OK(pd_file_open(vfs, "/f", PD_OPEN_WRITE, &file, err));
            OK(pd_file_sync(file, err));
            OK(pd_file_close(file, err));
        }
        int lost = 0;
        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            struct pd_simulated_disk *after = crashed(disk, seed);
            lost += !is_all(data, get(after, 0, "/f", data, sizeof data), 4096, 'b');
            pd_simulated_disk_free(after);
        }
        cr_assert_gt(lost, 0);
        pd_vfs_free(vfs);
        pd_simulated_disk_free(disk);
    }
}

Test(simulated_disk, the_vfs_refuses_a_file_whose_sync_failed)
{
    struct pd_simulated_disk *disk = new_disk(NULL);
    struct pd_vfs *vfs = new_vfs(disk, 0);
    struct pd_file *file = NULL;
    struct pd_queue *queue = NULL;
    OK(pd_file_open(vfs, "/f", PD_OPEN_WRITE | PD_OPEN_CREATE, &file, err));
    OK(pd_file_write(file, 0, "x", 1, err));
    pd_simulated_disk_set_fault(disk, FAULT(.kind = PD_DISK_FAULT_ERROR, .nth = 1));
    IS(PD_IO, pd_file_sync(file, err));
    uint64_t before = pd_simulated_disk_count(disk);
    IS(PD_IO, pd_file_sync(file, err));
    IS(PD_IO, pd_file_write(file, 0, "x", 1, err));
    IS(PD_IO, pd_file_truncate(file, 0, err));
    cr_assert_eq(pd_simulated_disk_count(disk), before); /* nothing was even tried */
    OK(pd_queue_open(vfs, NULL, 0, &queue, err));
    char byte = 'x';
    struct pd_transfer transfer = {.file = file, .data = &byte, .bytes = 1, .is_write = true}, *list = &transfer;
    uint32_t count = 0;
    OK(pd_queue_submit(queue, &list, 1, err));
    OK(pd_queue_reap(queue, &list, 1, &count, err));
    cr_assert(count == 1 && transfer.status == PD_IO);
    pd_queue_close(queue);
    OK(pd_file_close(file, err));
    pd_vfs_free(vfs);
    pd_simulated_disk_free(disk);
}

Test(simulated_disk, short_transfers_are_never_noticed)
{
    struct pd_simulated_disk *disk = new_disk(NULL);
    struct pd_vfs *vfs = new_vfs(disk, 0);
    struct pd_file *file = NULL;
    struct pd_queue *queue = NULL;
    pd_simulated_disk_set_fault(disk, FAULT(.kind = PD_DISK_FAULT_SHORT, .nth = 1, .persistent = true));
    char *out = aligned_alloc(4096, 65536), *in = aligned_alloc(4096, 65536);
    for (int i = 0; i < 65536; i++)
        out[i] = (char)(i * 31 >> 3);
    for (unsigned direct = 0; direct <= PD_OPEN_DIRECT; direct += PD_OPEN_DIRECT) {
        OK(pd_file_open(vfs, "/f", PD_OPEN_READ | PD_OPEN_WRITE | PD_OPEN_CREATE | PD_OPEN_TRUNCATE | direct, &file, err));
        OK(pd_queue_open(vfs, NULL, 0, &queue, err));
        struct pd_transfer parts[4], *list[4];
        for (int phase = 0; phase < 2; phase++) {
            for (uint64_t i = 0; i < 4; i++) {
                parts[i] = (struct pd_transfer){.file = file,
                                                .data = (phase ? in : out) + i * 16384,
                                                .offset = i * 16384,
                                                .bytes = 16384,
                                                .is_write = phase == 0};
                list[i] = &parts[i];
            }
            OK(pd_queue_submit(queue, list, 4, err));
            for (uint32_t seen = 0, got; seen < 4; seen += got)
                OK(pd_queue_reap(queue, list, 4, &got, err));
            for (int i = 0; i < 4; i++)
                OK(pd_transfer_error(&parts[i], err));
        }
        cr_assert_arr_eq(in, out, 65536);
        pd_queue_close(queue);
        OK(pd_file_close(file, err));
    }
    cr_assert_gt(pd_simulated_disk_fired(disk), 16);
    free(in);
    free(out);
    pd_vfs_free(vfs);
    pd_simulated_disk_free(disk);
}

Test(simulated_disk, hosts_crash_alone_and_processes_die_without_loss)
{
    const struct pd_disk_options options = {
        .seed = 3, .host_count = 2, .mounts = {{.path = "/shm", .in_memory = true}, {.path = "/share", .shared = true}}};
    struct pd_simulated_disk *disk = new_disk(&options);
    struct pd_vfs *vfss[2] = {new_vfs(disk, 0), new_vfs(disk, 1)};
    static char data[8192];
    for (int host = 0; host < 2; host++) {
        OK(put(vfss[host], "/shm/f", 'm', 100, true, err));
        OK(put(vfss[host], "/local", 'l', 100, true, err));
        OK(pd_vfs_sync_dir(vfss[host], "/shm", err));
    }
    OK(put(vfss[0], "/share/f", 's', 100, false, err));
    cr_assert_eq(get(disk, 1, "/share/f", data, sizeof data), 100);
    IS(PD_UNSUPPORTED, pd_vfs_rename(vfss[0], "/local", "/shm/g", err)); /* EXDEV */
    struct pd_lock *lock = NULL, *second = NULL;
    OK(pd_vfs_lock(vfss[0], "/share/lock", &lock, err));
    IS(PD_BUSY, pd_vfs_lock(vfss[1], "/share/lock", &second, err));

    pd_simulated_disk_kill(disk, 0);
    IS(PD_IO, pd_vfs_mkdir(vfss[0], "/x", err));
    cr_assert_eq(get(disk, 0, "/shm/f", data, sizeof data), 100);
    cr_assert_eq(get(disk, 0, "/local", data, sizeof data), 100);
    OK(pd_vfs_lock(vfss[1], "/share/lock", &second, err));
    pd_vfs_unlock(lock);
    pd_vfs_unlock(second);

    pd_simulated_disk_crash(disk, 0, 1);
    cr_assert_eq(get(disk, 0, "/shm/f", data, sizeof data), -1);
    cr_assert_eq(get(disk, 1, "/shm/f", data, sizeof data), 100);
    cr_assert_eq(get(disk, 1, "/share/f", data, sizeof data), 100);
    OK(pd_vfs_mkdir(vfss[1], "/x", err));
    pd_vfs_free(vfss[0]);
    pd_vfs_free(vfss[1]);
    pd_simulated_disk_free(disk);
}

Test(simulated_disk, space_and_inodes_run_out)
{
    const struct pd_disk_options options = {.mounts = {{.path = "/", .capacity_bytes = 40960, .inode_limit = 4}}};
    struct pd_simulated_disk *disk = new_disk(&options);
    struct pd_vfs *vfs = new_vfs(disk, 0);
    struct pd_space space;
    OK(put(vfs, "/a", 'a', 20000, true, err));
    IS(PD_NO_SPACE, put(vfs, "/b", 'b', 20000, true, err));
    OK(pd_vfs_space(vfs, "/", &space, err));
    cr_assert(space.total_bytes == 40960 && space.available_bytes == 0, "%d", (int)space.available_bytes);
    OK(pd_vfs_unlink(vfs, "/b", err));
    OK(pd_vfs_space(vfs, "/", &space, err));
    cr_assert_eq(space.available_bytes, 40960 - 4096 - 20480);
    OK(put(vfs, "/b", 'b', 10, true, err));
    OK(put(vfs, "/c", 'c', 10, true, err));
    IS(PD_NO_SPACE, pd_vfs_mkdir(vfs, "/d", err));
    pd_vfs_free(vfs);
    pd_simulated_disk_free(disk);
}

Test(simulated_disk, what_a_file_system_lacks_is_refused_or_worked_around)
{
    const struct pd_disk_options options = {
        .mounts = {
            {.path = "/open", .lacks = PD_DISK_NO_DIRECT_OPEN},
            {.path = "/move", .lacks = PD_DISK_NO_DIRECT_TRANSFER},
            {.path = "/ro", .lacks = PD_DISK_READ_ONLY},
            {.path = "/bare", .lacks = PD_DISK_NO_LINKS | PD_DISK_NO_PREALLOCATE | PD_DISK_NO_LOCKS | PD_DISK_NO_SYNC_DIR}}};
    struct pd_simulated_disk *disk = new_disk(&options);
    struct pd_vfs *vfs = new_vfs(disk, 0);
    struct pd_file *file = NULL;
    struct pd_queue *queue = NULL;
    struct pd_lock *lock = NULL;
    char *page = aligned_alloc(4096, 8192);
    memset(page, 'p', 8192);
    const unsigned flags = PD_OPEN_READ | PD_OPEN_WRITE | PD_OPEN_CREATE | PD_OPEN_EXCLUSIVE | PD_OPEN_DIRECT;
    OK(pd_file_open(vfs, "/open/f", flags, &file, err));
    cr_assert(!pd_file_is_direct(file));
    OK(pd_file_write(file, 0, page, 4096, err));
    OK(pd_file_close(file, err));
    OK(pd_file_open(vfs, "/move/f", flags, &file, err));
    cr_assert(pd_file_is_direct(file));
    struct pd_transfer parts[2], *list[2] = {&parts[0], &parts[1]};
    for (uint64_t i = 0; i < 2; i++)
        parts[i] = (struct pd_transfer){.file = file, .data = page, .offset = i * 4096, .bytes = 4096, .is_write = true};
    OK(pd_queue_open(vfs, NULL, 0, &queue, err));
    OK(pd_queue_submit(queue, list, 2, err));
    for (uint32_t seen = 0, got; seen < 2; seen += got)
        OK(pd_queue_reap(queue, list, 2, &got, err));
    OK(pd_transfer_error(&parts[0], err));
    OK(pd_transfer_error(&parts[1], err));
    cr_assert(!pd_file_is_direct(file));
    pd_queue_close(queue);
    OK(pd_file_close(file, err));
    IS(PD_IO, pd_vfs_mkdir(vfs, "/ro/d", err));
    OK(put(vfs, "/bare/f", 'x', 10, true, err));
    IS(PD_UNSUPPORTED, pd_vfs_link(vfs, "/bare/f", "/bare/g", err));
    IS(PD_UNSUPPORTED, pd_vfs_sync_dir(vfs, "/bare", err));
    IS(PD_UNSUPPORTED, pd_vfs_lock(vfs, "/bare/l", &lock, err));
    OK(pd_file_open(vfs, "/bare/f", PD_OPEN_WRITE, &file, err));
    IS(PD_UNSUPPORTED, pd_file_preallocate(file, 4096, err));
    OK(pd_file_close(file, err));
    free(page);
    pd_vfs_free(vfs);
    pd_simulated_disk_free(disk);
}

Test(simulated_disk, equal_seeds_give_equal_disks)
{
    static char first[8192], second[8192];
    int64_t bytes[2] = {0};
    char *data[2] = {first, second};
    for (int i = 0; i < 2; i++) {
        struct pd_simulated_disk *disk = new_disk(&(struct pd_disk_options){.seed = 99});
        struct pd_vfs *vfs = new_vfs(disk, 0);
        OK(put(vfs, "/f", 'a', 6000, true, err));
        OK(pd_vfs_sync_dir(vfs, "/", err));
        pd_simulated_disk_set_fault(disk, FAULT(.kind = PD_DISK_FAULT_TORN, .nth = 1));
        OK(put(vfs, "/f", 'b', 6000, false, err));
        pd_simulated_disk_crash(disk, 0, 12);
        bytes[i] = get(disk, 0, "/f", data[i], 8192);
        pd_vfs_free(vfs);
        pd_simulated_disk_free(disk);
    }
    cr_assert(bytes[0] == 6000 && bytes[1] == 6000);
    cr_assert_arr_eq(first, second, 6000);
}
