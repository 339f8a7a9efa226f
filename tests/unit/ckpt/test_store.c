/* The store on an honest disk: saving, choosing, retention, recycling, exclusion. The campaigns are in tests/crash/store. */
#include "tests/helpers/store_room.h"

#include <criterion/criterion.h>

static void expect(pd_status found, pd_status expected, const struct pd_error *err)
{
    cr_assert_eq(found, expected, "%s (expected %s): %s", pd_status_name(found), pd_status_name(expected), err->message);
}

static const struct {
    uint32_t ranks, hosts;
    bool shared;
} worlds[] = {{1, 1, false}, {2, 1, false}, {4, 2, false}, {4, 2, true}, {5, 3, true}, {5, 3, false}};
#define WORLD_COUNT (sizeof worlds / sizeof *worlds)

/* ---- saving and coming back ---- */

static pd_status save_ten(struct room_rank *rank, struct pd_error *err)
{
    for (uint64_t step = 1; step <= 10; step++) {
        PD_TRY(room_save(rank, step, err));
        PD_TRY(pd_store_prune(rank->store, err));
    }
    if (pd_store_count(rank->store) != 2) PD_FAIL(err, PD_BUG, "%u checkpoints are kept", pd_store_count(rank->store));
    return room_load(rank, pd_store_entry_at(rank->store, 1), err);
}

static pd_status expect_ten(struct room_rank *rank, struct pd_error *err)
{
    if (pd_store_count(rank->store) != 2) PD_FAIL(err, PD_BUG, "%u checkpoints are found", pd_store_count(rank->store));
    for (uint32_t i = 0; i < 2; i++) {
        const struct pd_store_entry *entry = pd_store_entry_at(rank->store, i);
        if (entry->step != 10 - i) PD_FAIL(err, PD_BUG, "entry %u is %s", i, entry->name);
        PD_TRY(room_load(rank, entry, err));
    }
    return PD_OK;
}

Test(store, saves_and_comes_back)
{
    for (size_t i = 0; i < WORLD_COUNT; i++) {
        struct room room;
        struct pd_error err = {0};
        expect(room_new(&room, worlds[i].ranks, worlds[i].hosts, worlds[i].shared, &err), PD_OK, &err);
        expect(room_launch(&room, save_ten, NULL, &err), PD_OK, &err);
        expect(room_launch(&room, expect_ten, NULL, &err), PD_OK, &err);
        struct pd_store_options look = {.keep_last = 1};
        expect(room_launch_with(&room, &look, expect_ten, NULL, &err), PD_OK, &err);
        room_free(&room);
    }
}
