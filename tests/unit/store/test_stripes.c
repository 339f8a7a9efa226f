/* Shards on drives of their own: what lies where, and what drives that are absent, moved, swapped or somebody else's do. The
 * misfortunes of single operations are in tests/crash/store. */
#include "ckpt/base/log.h"
#include "ckpt/inspect/inspect.h"
#include "tests/helpers/store_expect.h"
#include "tests/helpers/store_room.h"

#define DRIVE_1 "/drive-1/run"
#define DRIVE_2 "/drive-2/run"

static struct pd_vfs *vfs_of(struct room *room)
{
    struct pd_vfs *vfs;
    struct pd_error err = {0};
    expect(pd_simulated_disk_vfs(room->disk, 0, &vfs, &err), PD_OK, &err);
    return vfs;
}

/* One file system, so that a test may move drives about. */
static struct room new_room(uint32_t ranks)
{
    struct room room;
    struct pd_error err = {0};
    expect(pd_log_configure("error", &err), PD_OK, &err);
    expect(room_new(&room, ranks, 1, false, &err), PD_OK, &err);
    room.drives = 2;
    struct pd_vfs *vfs = vfs_of(&room);
    expect(pd_vfs_mkdir(vfs, "/drive-1", &err), PD_OK, &err);
    expect(pd_vfs_mkdir(vfs, "/drive-2", &err), PD_OK, &err);
    pd_vfs_free(vfs);
    return room;
}

static void launch(struct room *room, room_script *script, void *context)
{
    struct pd_error err = {0};
    expect(room_launch(room, script, context, &err), PD_OK, &err);
}

static void move(struct room *room, const char *from, const char *to)
{
    struct pd_error err = {0};
    struct pd_vfs *vfs = vfs_of(room);
    expect(pd_vfs_rename(vfs, from, to, &err), PD_OK, &err);
    pd_vfs_free(vfs);
}

/* Step directories of a drive. */
static uint32_t steps_on(struct room *room, const char *drive)
{
    struct pd_vfs *vfs = vfs_of(room);
    struct pd_listing listing = {0};
    struct pd_error err = {0};
    uint32_t count = 0;
    expect(pd_vfs_list(vfs, drive, &listing, &err), PD_OK, &err);
    for (uint32_t i = 0; i < listing.count; i++)
        count += strncmp(listing.names[i], "step-", 5) == 0;
    pd_listing_deinit(&listing);
    pd_vfs_free(vfs);
    return count;
}

static pd_status save_four(struct room_rank *rank, struct pd_error *err)
{
    const uint64_t *first = rank->context;
    for (uint64_t step = *first; step < *first + 4; step++) {
        PD_TRY(room_save(rank, step, err));
        PD_TRY(pd_store_prune(rank->store, err));
    }
    return PD_OK;
}

struct seen {
    uint64_t newest;
    uint32_t whole, unusable;
};

static pd_status look(struct room_rank *rank, struct pd_error *err)
{
    struct seen *seen = rank->context;
    uint64_t step = 0;
    uint32_t damaged = 0;
    const uint32_t whole = pd_store_count(rank->store), unusable = pd_store_unusable_count(rank->store);
    if (whole) PD_TRY(room_load_newest(rank, &step, &damaged, err));
    if (damaged) PD_FAIL(err, PD_BUG, "damaged");
    if (rank->group->rank == 0) *seen = (struct seen){step, whole, unusable};
    return PD_OK;
}

Test(store_stripes, drives_hold_what_is_kept)
{
    struct room room = new_room(2);
    struct seen seen;
    struct pd_stat st;
    struct pd_error err = {0};
    launch(&room, save_four, &(uint64_t){1});
    cr_assert_eq(steps_on(&room, DRIVE_1), 2u, "keep_last is 2: pruning empties drives too");
    cr_assert_eq(steps_on(&room, DRIVE_2), 2u);
    launch(&room, look, &seen);
    cr_assert(seen.newest == 4 && seen.whole == 2 && seen.unusable == 0);
    struct pd_vfs *vfs = vfs_of(&room);
    expect(pd_vfs_stat(vfs, DRIVE_1 "/step-000000000004-1/shard-00004.h5", &st, &err), PD_OK, &err);
    expect(pd_vfs_stat(vfs, DRIVE_2 "/step-000000000004-1/shard-00005.h5", &st, &err), PD_OK, &err);
    pd_vfs_free(vfs);
    room_free(&room);
}

/* As with an absent host: passed over, said, nothing of it is touched, and whole again once the drive is back. */
Test(store_stripes, a_drive_that_is_gone)
{
    struct room room = new_room(2);
    struct seen seen;
    launch(&room, save_four, &(uint64_t){1});
    move(&room, DRIVE_1, "/drive-1/away");
    launch(&room, look, &seen); /* and an empty one is mounted in its place */
    cr_assert(seen.whole == 0 && seen.unusable == 2);
    cr_assert_eq(steps_on(&room, DRIVE_2), 2u);
    move(&room, DRIVE_1, "/drive-1/empty");
    move(&room, "/drive-1/away", DRIVE_1);
    launch(&room, look, &seen);
    cr_assert(seen.newest == 4 && seen.whole == 2 && seen.unusable == 0);
    room_free(&room);
}

/* What a root directory that was renamed or moved away for a while means on drives stays there, too. */
Test(store_stripes, a_step_that_is_renamed_or_moved_away)
{
    struct room room = new_room(2);
    struct seen seen;
    launch(&room, save_four, &(uint64_t){1});
    move(&room, ROOM_ROOT "/step-000000000004-1", ROOM_ROOT "/old");
    launch(&room, look, &seen);
    cr_assert(seen.newest == 3 && seen.whole == 1 && seen.unusable == 1);
    move(&room, ROOM_ROOT "/step-000000000003-1", "/away");
    launch(&room, look, &seen); /* nothing is whole */
    cr_assert(seen.whole == 0 && seen.unusable == 1);
    move(&room, "/away", ROOM_ROOT "/step-000000000003-1");
    move(&room, ROOM_ROOT "/old", ROOM_ROOT "/step-000000000004-1");
    launch(&room, look, &seen);
    cr_assert(seen.newest == 4 && seen.whole == 2 && seen.unusable == 0);
    room_free(&room);
}

static uint64_t absent(struct room *room, const char *const *stripes)
{
    struct pd_vfs *vfs = vfs_of(room);
    struct pd_error err = {0};
    uint64_t bits = 77;
    expect(pd_store_absent_stripes(vfs, ROOM_ROOT, stripes, 2, &bits, &err), PD_OK, &err);
    pd_vfs_free(vfs);
    return bits;
}

static void make(struct room *room, const char *dir)
{
    struct pd_vfs *vfs = vfs_of(room);
    struct pd_error err = {0};
    expect(pd_vfs_mkdir(vfs, dir, &err), PD_OK, &err);
    pd_vfs_free(vfs);
}

/* A mount point without its drive is not taken for an empty drive, as long as a checkpoint needs what was there. */
Test(store_stripes, absent_drives_are_told_from_new_ones)
{
    const char *const stripes[] = {DRIVE_1, DRIVE_2}, *const moved[] = {"/drive-1/away", DRIVE_2},
                      *const swapped[] = {DRIVE_2, "/drive-1/away"}, *const others[] = {"/new-1", "/new-2"},
                      *const both[] = {DRIVE_1, "/drive-1/away"}, *const slashes[] = {"/new-1", DRIVE_1 "//"};
    struct room room = new_room(2);
    cr_assert_eq(absent(&room, stripes), 0u, "nothing was ever saved");
    launch(&room, save_four, &(uint64_t){1});
    cr_assert_eq(absent(&room, stripes), 0u);
    move(&room, DRIVE_1, "/drive-1/away");
    cr_assert_eq(absent(&room, stripes), 1u);
    cr_assert_eq(absent(&room, slashes), 2u);
    cr_assert_eq(absent(&room, moved), 0u, "mounted elsewhere");
    cr_assert_eq(absent(&room, swapped), 0u);
    cr_assert_eq(absent(&room, both), 0u, "a new one in its place, and it is elsewhere");
    cr_assert_eq(absent(&room, others), 0u, "none of them is a directory that a checkpoint goes by");
    make(&room, DRIVE_1);
    cr_assert_eq(absent(&room, stripes), 1u, "an empty mount point");
    for (int step = 3; step <= 4; step++) { /* as a crash between record and name leaves it */
        char from[64], to[64];
        snprintf(from, sizeof from, ROOM_ROOT "/step-00000000000%d-1", step);
        snprintf(to, sizeof to, ROOM_ROOT "/step-00000000000%d-1.tmp", step);
        move(&room, from, to);
    }
    cr_assert_eq(absent(&room, stripes), 1u, "committed, and not named yet");
    room.drives = 0;
    launch(&room, save_four, &(uint64_t){5});
    cr_assert_eq(absent(&room, stripes), 0u, "retention has taken what went by it");
    room_free(&room);
}

static pd_status see_cause(struct room_rank *rank, struct pd_error *err)
{
    const struct pd_store_unusable *u = pd_store_unusable_at(rank->store, 1);
    const bool *is_absent = rank->context;
    if (u->is_drive_absent != *is_absent ||
        (strstr(u->cause, DRIVE_1 ", a directory of checkpoint.stripes") != NULL) != *is_absent ||
        !strstr(u->cause, "shard-00001.h5") || strstr(u->cause, "(and 1 more)") == NULL)
        PD_FAIL(err, PD_BUG, "%s", u->cause);
    return PD_OK;
}

/* Of step 4, shards 1 and 4: of an absent drive nothing is known, on one that is there their absence is damage. */
static void expect_findings(struct room *room, bool are_proven, const char *words)
{
    struct pd_vfs *vfs = vfs_of(room);
    struct pd_inspect *inspect = NULL;
    struct pd_damage_list list = {0};
    struct pd_error err = {0};
    expect(pd_inspect_open(vfs, ROOM_ROOT "/step-000000000004-1", &inspect, &err), PD_OK, &err);
    expect(pd_inspect_verify(inspect, NULL, NULL, &list, &err), PD_OK, &err);
    cr_assert_eq(list.count, 2u);
    for (uint32_t i = 0; i < list.count; i++) {
        cr_assert_str_eq(list.items[i].file, i ? "shard-00004.h5" : "shard-00001.h5");
        cr_assert(pd_damage_is_proven(&list.items[i]) == are_proven && strstr(list.items[i].text, words), "%s",
                  list.items[i].text);
    }
    cr_assert_gt(list.bytes_checked, 0u);
    cr_assert_eq(pd_inspect_check_complete(inspect, &err), are_proven ? PD_NOT_FOUND : PD_IO, "%s", err.message);
    pd_damage_list_deinit(&list);
    pd_inspect_close(inspect);
    pd_vfs_free(vfs);
}

Test(store_stripes, the_directory_of_an_absent_drive_is_named)
{
    struct room room = new_room(2);
    struct pd_error err = {0};
    bool is_absent = true;
    launch(&room, save_four, &(uint64_t){1});
    move(&room, DRIVE_1, "/drive-1/away");
    room.drives = 0;
    launch(&room, see_cause, &is_absent);
    expect_findings(&room, false, DRIVE_1 ", a directory of checkpoint.stripes");
    move(&room, "/drive-1/away", DRIVE_1); /* there, and the shards are not */
    struct pd_vfs *vfs = vfs_of(&room);
    for (uint32_t step = 3; step <= 4; step++)
        for (uint32_t shard = 1; shard <= 4; shard += 3) {
            char path[128];
            snprintf(path, sizeof path, DRIVE_1 "/step-00000000000%u-1/shard-%05u.h5", step, shard);
            expect(pd_vfs_unlink(vfs, path, &err), PD_OK, &err);
        }
    pd_vfs_free(vfs);
    is_absent = false;
    launch(&room, see_cause, &is_absent);
    expect_findings(&room, true, "No such file");
    room_free(&room);
}

Test(store_stripes, drives_in_another_order)
{
    struct room room = new_room(2);
    struct seen seen;
    launch(&room, save_four, &(uint64_t){1});
    move(&room, DRIVE_1, "/away");
    move(&room, DRIVE_2, DRIVE_1);
    move(&room, "/away", DRIVE_2);
    launch(&room, look, &seen);
    cr_assert(seen.newest == 4 && seen.whole == 2 && seen.unusable == 0);
    launch(&room, save_four, &(uint64_t){5});
    launch(&room, look, &seen);
    cr_assert(seen.newest == 8 && seen.whole == 2 && seen.unusable == 0);
    room_free(&room);
}

/* Other drives for the same run: what lies on the old ones still loads, and goes from there in time. */
Test(store_stripes, new_drives_beside_old_ones)
{
    struct room room = new_room(2);
    struct seen seen;
    launch(&room, save_four, &(uint64_t){1});
    move(&room, DRIVE_1, "/old");
    struct pd_vfs *vfs = vfs_of(&room);
    struct pd_listing listing = {0};
    struct pd_error err = {0};
    char path[256], first[256] = "";
    /* Where the old drive is mounted now, the user says by its link. */
    expect(pd_vfs_list(vfs, ROOM_ROOT, &listing, &err), PD_OK, &err);
    for (uint32_t i = 0; i < listing.count; i++) {
        struct pd_stat st;
        if (strncmp(listing.names[i], "stripe-", 7) != 0) continue;
        snprintf(path, sizeof path, ROOM_ROOT "/%s", listing.names[i]);
        if (pd_vfs_stat(vfs, path, &st, NULL) == PD_NOT_FOUND) snprintf(first, sizeof first, "%s", path);
    }
    pd_listing_deinit(&listing);
    cr_assert(first[0]);
    expect(pd_vfs_unlink(vfs, first, &err), PD_OK, &err);
    expect(pd_vfs_symlink(vfs, "/old", first, &err), PD_OK, &err);
    pd_vfs_free(vfs);
    launch(&room, look, &seen);
    cr_assert(seen.newest == 4 && seen.whole == 2);
    launch(&room, save_four, &(uint64_t){5});
    launch(&room, look, &seen);
    cr_assert(seen.newest == 8 && seen.whole == 2);
    cr_assert_eq(steps_on(&room, "/old"), 0u);
    cr_assert_eq(steps_on(&room, DRIVE_1), 2u);
    room_free(&room);
}

static pd_status count_two(struct room_rank *rank, struct pd_error *err)
{
    if (pd_store_count(rank->store) != 2) PD_FAIL(err, PD_BUG, "%u are whole", pd_store_count(rank->store));
    return save_four(rank, err);
}

Test(store_stripes, a_run_that_goes_on_without_them)
{
    struct room room = new_room(2);
    launch(&room, save_four, &(uint64_t){1});
    room.drives = 0;
    launch(&room, count_two, &(uint64_t){5});
    cr_assert_eq(steps_on(&room, DRIVE_1), 0u);
    cr_assert_eq(steps_on(&room, DRIVE_2), 0u);
    room_free(&room);
}

Test(store_stripes, a_drive_of_another_run_is_refused)
{
    struct room room = new_room(1), other;
    struct pd_error err = {0};
    launch(&room, save_four, &(uint64_t){1});
    other = room;
    other.root = "/other";
    expect(room_launch(&other, save_four, &(uint64_t){1}, &err), PD_INVALID, &err);
    cr_assert(strstr(err.message, DRIVE_1) && strstr(err.message, "another checkpoint directory than /other"), "%s",
              err.message);
    cr_assert_eq(steps_on(&room, DRIVE_1), 2u);
    room_free(&room);
}

/* Lost to a disk that lied about a sync: the links say whose the drives are. */
Test(store_stripes, a_token_that_was_lost)
{
    struct room room = new_room(1);
    struct seen seen;
    struct pd_error err = {0};
    struct pd_vfs *vfs = vfs_of(&room);
    launch(&room, save_four, &(uint64_t){1});
    expect(pd_vfs_unlink(vfs, ROOM_ROOT "/stripes", &err), PD_OK, &err);
    launch(&room, look, &seen);
    cr_assert(seen.newest == 4 && seen.whole == 2 && seen.unusable == 0);
    launch(&room, save_four, &(uint64_t){5});
    launch(&room, look, &seen);
    cr_assert(seen.newest == 8 && seen.whole == 2 && seen.unusable == 0);
    pd_vfs_free(vfs);
    room_free(&room);
}

static pd_status hold_while_another_opens(struct room_rank *rank, struct pd_error *err)
{
    struct room other = *rank->room;
    struct pd_error why = {0};
    other.root = "/other";
    pd_status st = room_launch(&other, save_four, &(uint64_t){1}, &why);
    if (st == PD_BUSY) return PD_OK;
    PD_FAIL(err, PD_BUG, "%s: %s", pd_status_name(st), why.message);
}

Test(store_stripes, a_drive_in_use_is_busy)
{
    struct room room = new_room(1);
    launch(&room, hold_while_another_opens, NULL);
    room_free(&room);
}

static pd_status find_damage(struct room_rank *rank, struct pd_error *err)
{
    uint64_t *ret_step = rank->context, step = 0;
    uint32_t damaged = 0;
    PD_TRY(room_load_newest(rank, &step, &damaged, err));
    if (damaged != 1) PD_FAIL(err, PD_BUG, "%u were damaged", damaged);
    if (rank->group->rank == 0) *ret_step = step;
    return PD_OK;
}

/* Moved aside its links still lead to the drive, where nobody clears it. */
Test(store_stripes, damage_on_a_drive_goes_to_quarantine)
{
    struct room room = new_room(2);
    struct seen seen;
    uint64_t step = 0;
    struct pd_stat st;
    struct pd_error err = {0};
    launch(&room, save_four, &(uint64_t){1});
    cr_assert(pd_simulated_disk_flip(room.disk, 0, DRIVE_1 "/step-000000000004-1/shard-00001.h5", 20, 7));
    launch(&room, find_damage, &step);
    cr_assert_eq(step, 3u);
    launch(&room, look, &seen);
    cr_assert(seen.newest == 3 && seen.whole == 1);
    struct pd_vfs *vfs = vfs_of(&room);
    expect(pd_vfs_stat(vfs, ROOM_ROOT "/quarantine/step-000000000004-1/shard-00001.h5", &st, &err), PD_OK, &err);
    pd_vfs_free(vfs);
    room_free(&room);
}

struct promised {
    uint64_t nth; /* sync of a directory that fails in the first save */
    bool fired;
    struct pd_simulated_disk *after;
};

static pd_status save_again(struct room_rank *rank, struct pd_error *err)
{
    struct promised *p = rank->context;
    struct pd_error why = {0};
    const struct pd_disk_fault fault = {
        .kind = PD_DISK_FAULT_ERROR, .nth = p->nth, .operations = PD_DISK_MASK(PD_DISK_SYNC_DIR)};
    pd_simulated_disk_set_fault(rank->room->disk, &fault);
    (void)!room_save(rank, 1, &why);
    p->fired = pd_simulated_disk_fired(rank->room->disk) > 0;
    pd_simulated_disk_set_fault(rank->room->disk, NULL);
    PD_TRY(room_save(rank, 2, err));
    return pd_simulated_disk_clone(rank->room->disk, &p->after, err);
}

/* Whatever sync failed in an earlier save, what a later one promised is whole for who only looks, and does not know its drives. */
Test(store_stripes, links_to_drives_outlive_power_loss)
{
    struct promised p = {.fired = true};
    const struct pd_store_options options = {.keep_last = 2};
    for (p.nth = 1; p.fired; p.nth++) {
        struct room room = new_room(1);
        launch(&room, save_again, &p);
        for (uint64_t seed = 0; seed < 16; seed++) {
            struct room later = room;
            struct seen seen = {0};
            struct pd_error err = {0};
            expect(pd_simulated_disk_clone(p.after, &later.disk, &err), PD_OK, &err);
            pd_simulated_disk_crash(later.disk, PD_DISK_ALL_HOSTS, seed);
            expect(room_launch_with(&later, &options, look, &seen, &err), PD_OK, &err);
            cr_assert(seen.newest == 2 && !seen.unusable, "sync %lu, crash %lu: step %lu loads, %u unusable", p.nth, seed,
                      seen.newest, seen.unusable);
            room_free(&later);
        }
        pd_simulated_disk_free(p.after);
        room_free(&room);
    }
}
