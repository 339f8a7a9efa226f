/* Updates of state in files that fail or are left: the generation before stays, what lies on disk is checked before it is
 * used, nothing stays in flight. */
#include "tests/helpers/scale.h"
#include "tests/unit/offload/optimizer_rig.h"

/* Every operation of an update fails once, in three shares: the state is as it was and the next update is right. */
Test(optimizer_failures, an_update_that_fails_leaves_the_generation_before)
{
    struct scene scene;
    scene_init(&scene, 0);
    const uint64_t step = test_scale() > 1 ? 1 : 3;
    uint64_t failures = 0;
    for (uint64_t nth = test_first(0, step);; nth += step) {
        struct pd_error failure = {0};
        set_fault(&scene, PD_DISK_FAULT_ERROR, 0, nth);
        pd_status st = rig_update(&scene.rig, 3, 2, NULL, &failure);
        bool fired = pd_simulated_disk_fired(scene.disk) > 0;
        pd_simulated_disk_set_fault(scene.disk, NULL);
        if (!fired) break;
        if (st == PD_OK) { /* a close for reading that fails harms nobody: begin again from here */
            scene_deinit(&scene);
            scene_init(&scene, 0);
            continue;
        }
        failures++;
        cr_assert(strstr(failure.message, "/state/generation-00003-"), "%s", failure.message);
        cr_assert_eq(pd_optimizer_store_identity(scene.rig.store)->step, 2);
        OK(rig_compare(&scene.rig, err));
    }
    cr_assert_gt(failures, 20 / step);
    state_update(&scene.state);
    OK(rig_compare(&scene.rig, err)); /* the one that went through */
    scene_deinit(&scene);
}

/* ---- updates that are begun and left ---- */

static uint32_t count_files(struct scene *scene)
{
    struct pd_listing listing;
    OK(pd_vfs_list(scene->vfs, "/state", &listing, err));
    const uint32_t count = listing.count;
    pd_listing_deinit(&listing);
    return count;
}

static void begin_and_leave(struct scene *scene, uint64_t step)
{
    const struct pd_optimizer_store_step how = rig_step(&scene->rig, step);
    OK(pd_optimizer_store_update_begin(scene->rig.store, &how, err));
    pd_optimizer_store_update_abandon(scene->rig.store);
    pd_optimizer_store_update_abandon(scene->rig.store);
    memset(scene->rig.buffers, 0xff, BUFFERS); /* nobody else's any more */
    cr_assert_eq(pd_optimizer_store_identity(scene->rig.store)->step, step - 1);
}

Test(optimizer_failures, an_update_that_is_left_changes_nothing)
{
    struct scene scene;
    scene_init(&scene, 0);
    for (uint64_t step = 3; step < 8; step++) {
        begin_and_leave(&scene, step);
        OK(rig_compare(&scene.rig, err));
        begin_and_leave(&scene, step);
        state_update(&scene.state);
        OK(rig_update(&scene.rig, step, scene.state.updates, NULL, err));
        OK(rig_compare(&scene.rig, err));
        cr_assert_leq(count_files(&scene), 3);
    }
    const struct pd_optimizer_store_step how = rig_step(&scene.rig, 8);
    OK(pd_optimizer_store_update_begin(scene.rig.store, &how, err)); /* and all is put away */
    scene_deinit(&scene);
}

Test(optimizer_failures, reads_are_sent_before_the_factors_are_known)
{
    struct scene scene;
    scene_init(&scene, 0);
    set_fault(&scene, PD_DISK_FAULT_ERROR, PD_DISK_MASK(PD_DISK_READ), UINT64_MAX);
    begin_and_leave(&scene, 3);
    cr_assert_gt(pd_simulated_disk_count(scene.disk), 0);
    scene_deinit(&scene);
}

/* Whatever is read in vain may fail as well: only an update asks. */
Test(optimizer_failures, reads_that_fail_before_an_update_is_left_are_nobodys_concern)
{
    struct scene scene;
    scene_init(&scene, 0);
    for (uint64_t nth = 1; nth < 2 * PD_RING_SLOTS; nth += 3) {
        set_fault(&scene, PD_DISK_FAULT_ERROR, PD_DISK_MASK(PD_DISK_READ), nth);
        begin_and_leave(&scene, 3);
        pd_simulated_disk_set_fault(scene.disk, NULL);
        OK(rig_compare(&scene.rig, err));
    }
    state_update(&scene.state);
    OK(rig_update(&scene.rig, 3, scene.state.updates, NULL, err));
    OK(rig_compare(&scene.rig, err));
    scene_deinit(&scene);
}

/* ---- damage ---- */

Test(optimizer_failures, a_block_that_reads_wrongly_is_read_once_more)
{
    struct scene scene;
    scene_init(&scene, 0);
    const uint64_t reads = 12;
    for (uint64_t nth = 1; nth <= reads; nth++) {
        set_fault(&scene, PD_DISK_FAULT_FLIP, PD_DISK_MASK(PD_DISK_READ), nth);
        state_update(&scene.state);
        OK(rig_update(&scene.rig, 2 + nth, scene.state.updates, NULL, err));
        cr_assert_eq(pd_simulated_disk_fired(scene.disk), 1, "read %llu", (unsigned long long)nth);
        pd_simulated_disk_set_fault(scene.disk, NULL);
        OK(rig_compare(&scene.rig, err));
    }
    scene_deinit(&scene);
}

Test(optimizer_failures, a_damaged_block_is_named_and_nothing_goes_on_from_it)
{
    struct scene scene;
    struct pd_error failure = {0};
    scene_init(&scene, 0);
    /* Begun with slot 0, updated once: slot 1 is current. Many bits: at least one in data that is read. */
    cr_assert(pd_simulated_disk_flip(scene.disk, 0, "/state/generation-00003-1.h5", 50, 1));
    for (int again = 0; again < 2; again++) {
        cr_assert_eq(rig_update(&scene.rig, 3, 2, NULL, &failure), PD_CORRUPT);
        cr_assert(strstr(failure.message, "/state/generation-00003-1.h5: tensor embedding, "), "%s", failure.message);
        cr_assert(strstr(failure.message, "block ") && strstr(failure.message, "does not match its checksum"), "%s",
                  failure.message);
        cr_assert_eq(pd_optimizer_store_identity(scene.rig.store)->step, 2);
    }
    cr_assert_eq(rig_compare(&scene.rig, &failure), PD_CORRUPT);
    scene_deinit(&scene);
}

/* A disk that says it wrote and did not leaves whole blocks of an older generation: their checksums were seeded otherwise.
 */
Test(optimizer_failures, writes_that_never_happened_are_found)
{
    static const enum pd_disk_fault_kind kinds[] = {PD_DISK_FAULT_LOST, PD_DISK_FAULT_MISDIRECTED, PD_DISK_FAULT_TORN};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        struct scene scene;
        struct pd_error failure = {0};
        scene_init(&scene, 0);
        for (uint64_t step = 3; step < 5; step++) { /* all files were written */
            state_update(&scene.state);
            OK(rig_update(&scene.rig, step, scene.state.updates, NULL, err));
        }
        set_fault(&scene, kinds[k], PD_DISK_MASK(PD_DISK_WRITE), 3);
        state_update(&scene.state);
        OK(rig_update(&scene.rig, 5, scene.state.updates, NULL, err));
        cr_assert_eq(pd_simulated_disk_fired(scene.disk), 1);
        pd_simulated_disk_set_fault(scene.disk, NULL);
        cr_assert_eq(rig_compare(&scene.rig, &failure), PD_CORRUPT, "%s", pd_disk_fault_kind_name(kinds[k]));
        scene_deinit(&scene);
    }
}
