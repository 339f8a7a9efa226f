/* A finished generation of state in files is a shard, byte for byte, and every step can be a checkpoint. */
#include "tests/unit/offload/optimizer_rig.h"

/* ---- whole shards ---- */

static void *read_whole(struct pd_vfs *vfs, const char *path, uint64_t bytes)
{
    struct pd_file *file;
    void *data = aligned_alloc(PD_VFS_ALIGN, bytes);
    OK(pd_file_open(vfs, path, PD_OPEN_READ, &file, err));
    OK(pd_file_read(file, 0, data, bytes, err));
    pd_file_close_readonly(file);
    return data;
}

/* The same file as a save from memory makes. */
static void check_shard(struct scene *scene, const char *path, uint64_t step, const struct pd_shard_summary *summary)
{
    struct pd_shard_writer *writer;
    struct pd_shard_summary expected;
    const struct pd_identity identity = identity_of(step);
    void *buffers = aligned_alloc(PD_VFS_ALIGN, BUFFERS);
    OK(pd_shard_writer_new(scene->vfs, &scene->state.tensors, scene->state.boxes, scene->state.box_count, buffers, BUFFERS,
                           NULL, &writer, err));
    OK(pd_shard_write(writer, "/state/expected.h5", &identity, 3, (const void *const *)scene->state.data, &expected, err));
    cr_assert_eq(memcmp(summary, &expected, sizeof expected), 0);
    void *a = read_whole(scene->vfs, path, expected.file_bytes);
    void *b = read_whole(scene->vfs, "/state/expected.h5", expected.file_bytes);
    cr_assert_eq(memcmp(a, b, expected.file_bytes), 0);
    cr_assert_eq(pd_optimizer_store_file_bytes(scene->rig.store), expected.file_bytes);
    pd_shard_writer_free(writer);
    free(buffers);
    free(a);
    free(b);
}

static void check_finished_generations(enum pd_dtype moments)
{
    struct scene scene;
    scene_init_kept(&scene, 0, moments);
    for (uint64_t step = 3; step < 7; step++) {
        struct pd_shard_summary summary, again;
        uint32_t slot, slot_again;
        char path[64];
        state_update(&scene.state);
        OK(rig_update(&scene.rig, step, scene.state.updates, NULL, err));
        OK(pd_optimizer_store_finish(scene.rig.store, &summary, &slot, err));
        OK(pd_optimizer_store_finish(scene.rig.store, &again, &slot_again, err));
        cr_assert(slot == slot_again && memcmp(&summary, &again, sizeof again) == 0);
        snprintf(path, sizeof path, "/state/generation-00003-%u.h5", slot);
        check_shard(&scene, path, step, &summary);
        OK(rig_compare(&scene.rig, err)); /* it is still read */
    }
    scene_deinit(&scene);
}

Test(optimizer_shards, a_finished_generation_is_the_shard_of_its_state)
{
    check_finished_generations(PD_F32);
    check_finished_generations(PD_BF16);
}

/* Fills the page behind the data of a box, in every generation's file that is there. */
static void spoil_padding(struct scene *scene, uint32_t box)
{
    struct pd_shard_writer *writer;
    void *buffers = aligned_alloc(PD_VFS_ALIGN, BUFFERS);
    const uint64_t bytes = elements_of(&scene->state, box) * sizeof(float);
    OK(pd_shard_writer_new(scene->vfs, &scene->state.tensors, scene->state.boxes, scene->state.box_count, buffers, BUFFERS,
                           NULL, &writer, err));
    const uint64_t end = pd_shard_writer_box_offset(writer, box) + bytes;
    for (uint32_t slot = 0; slot < 3; slot++) {
        struct pd_file *file;
        char path[64];
        snprintf(path, sizeof path, "/state/generation-00003-%u.h5", slot);
        if (pd_file_open(scene->vfs, path, PD_OPEN_WRITE, &file, NULL) != PD_OK) continue;
        OK(pd_file_write(file, end, "dirt", 4, err));
        OK(pd_file_close(file, err));
    }
    pd_shard_writer_free(writer);
    free(buffers);
}

static uint32_t box_of(const struct state *state, const char *name)
{
    for (uint32_t b = 0; b < state->box_count; b++)
        if (strcmp(state->tensors.tensors[state->boxes[b].tensor].name, name) == 0) return b;
    cr_assert_fail("no tensor %s", name);
    return 0;
}

Test(optimizer_shards, padding_is_zero_whatever_lay_there)
{
    struct scene scene;
    struct pd_shard_summary summary;
    uint32_t slot;
    char path[64];
    scene_init(&scene, 0);
    for (uint64_t step = 3; step < 5; step++) {
        memset(scene.rig.buffers, 0xff, BUFFERS);
        spoil_padding(&scene, box_of(&scene.state, "odd"));
        state_update(&scene.state);
        if (step == 3)
            OK(rig_update(&scene.rig, step, scene.state.updates, NULL, err));
        else
            OK(rig_fill(&scene.rig, step, err));
        OK(pd_optimizer_store_finish(scene.rig.store, &summary, &slot, err));
        snprintf(path, sizeof path, "/state/generation-00003-%u.h5", slot);
        check_shard(&scene, path, step, &summary);
    }
    scene_deinit(&scene);
}

Test(optimizer_shards, one_that_cannot_be_finished_is_no_checkpoint_and_state_goes_on)
{
    struct scene scene;
    scene_init(&scene, 0);
    uint64_t step = 3, nth = 1;
    for (;; nth++, step++) {
        struct pd_error failure = {0}, same = {0};
        struct pd_shard_summary summary;
        uint32_t slot;
        set_fault(&scene, PD_DISK_FAULT_ERROR, PD_DISK_MASK(PD_DISK_WRITE) | PD_DISK_MASK(PD_DISK_SYNC), nth);
        pd_status st = pd_optimizer_store_finish(scene.rig.store, &summary, &slot, &failure);
        bool fired = pd_simulated_disk_fired(scene.disk) > 0;
        pd_simulated_disk_set_fault(scene.disk, NULL);
        cr_assert_eq(st, fired ? PD_IO : PD_OK);
        if (!fired) break;
        cr_assert_eq(pd_optimizer_store_finish(scene.rig.store, &summary, &slot, &same), PD_IO);
        cr_assert_str_eq(failure.message, same.message);
        OK(rig_compare(&scene.rig, err));
        state_update(&scene.state);
        OK(rig_update(&scene.rig, step, scene.state.updates, NULL, err));
        OK(rig_compare(&scene.rig, err));
    }
    cr_assert_gt(nth, 3);
    scene_deinit(&scene);
}

/* ---- generations of a store: every step a checkpoint ---- */

static struct pd_run_state run_state(const struct scene *scene, const struct pd_store *store, uint64_t step)
{
    static char config[] = "test: true\n";
    return (struct pd_run_state){.identity = identity_of(step),
                                 .fence = pd_store_fence(store),
                                 .loss_scale = 1,
                                 .layout = {.dp = 1,
                                            .tp = 1,
                                            .pp = 1,
                                            .sp = 1,
                                            .virtual_tp = 1,
                                            .virtual_sp = 1,
                                            .zero_shard = 1,
                                            .interleave = 1,
                                            .small_bytes = 65536,
                                            .stage_count = 1},
                                 .tensor_count = scene->state.tensors.count,
                                 .created_by = "test",
                                 .config = config};
}

static void save(struct scene *scene, struct pd_store *store, uint64_t step)
{
    struct pd_shard_summary summary;
    const struct pd_identity identity = identity_of(step);
    const struct pd_run_state state = run_state(scene, store, step);
    uint32_t slot;
    OK(pd_optimizer_store_finish(scene->rig.store, &summary, &slot, err));
    OK(pd_store_begin_generation(store, &identity, slot, scene->rig.buffers, BUFFERS, err));
    OK(pd_store_commit(store, PD_OK, &summary, &state, err));
    OK(pd_store_prune(store, err));
}

/* The newest checkpoint's shard, whole, with the bits of memory. */
static void check_newest(struct scene *scene, struct pd_store *store, uint64_t step)
{
    char path[4096], *buffers = aligned_alloc(PD_VFS_ALIGN, BUFFERS);
    struct pd_commit commit;
    struct pd_shard *shard;
    const struct pd_store_entry *entry = pd_store_entry_at(store, 0);
    cr_assert_eq(entry->step, step);
    OK(pd_store_read_commit(store, entry, &commit, err));
    pd_store_entry_path(store, entry, path);
    snprintf(path + strlen(path), 32, "/shard-00000.h5");
    OK(pd_shard_open(scene->vfs, path, &commit.state.identity, &commit.shards[0], &shard, err));
    OK(pd_shard_verify(shard, buffers, BUFFERS, err));
    for (uint32_t b = 0; b < scene->state.box_count; b++) {
        const uint64_t bytes = pd_shard_box_bytes(shard, b);
        char *data = malloc(bytes);
        OK(pd_shard_read_blocks(shard, b, 0, pd_shard_block_count(shard, b), data, err));
        cr_assert_eq(memcmp(data, scene->state.data[b], bytes), 0, "box %u", b);
        free(data);
    }
    pd_shard_close(shard);
    pd_commit_deinit(&commit);
    free(buffers);
}

static uint32_t files_in_pool(struct scene *scene)
{
    struct pd_listing listing;
    uint32_t count = 0;
    OK(pd_vfs_list(scene->vfs, "/store/pool-1", &listing, err));
    for (uint32_t i = 0; i < listing.count; i++)
        count += strncmp(listing.names[i], "generation-", 11) == 0 || strncmp(listing.names[i], "recycle-", 8) == 0;
    pd_listing_deinit(&listing);
    return count;
}

Test(optimizer_shards, every_step_can_be_a_checkpoint_that_costs_no_copy)
{
    struct scene scene = {0};
    struct pd_group group;
    struct pd_store *store;
    const struct pd_disk_options disk = {.seed = 6};
    const struct pd_store_options options = {.writable = true, .keep_last = 2, .generations = true};
    pd_group_init_single(&group);
    OK(pd_simulated_disk_new(&disk, &scene.disk, err));
    OK(pd_simulated_disk_vfs(scene.disk, 0, &scene.vfs, err));
    OK(pd_vfs_mkdir(scene.vfs, "/store", err));
    OK(pd_store_open(scene.vfs, "/store", &options, &group, &store, err));
    cr_assert(pd_store_links_generations(store));
    state_init(&scene.state);
    rig_init(&scene.rig, &scene.state, scene.vfs, "", BUFFERS, 2);
    pd_optimizer_store_free(scene.rig.store);
    scene.rig.generations = store;
    rig_open(&scene.rig, BUFFERS);
    OK(rig_fill(&scene.rig, 1, err));
    for (uint64_t step = 2; step < 12; step++) {
        state_update(&scene.state);
        OK(rig_update(&scene.rig, step, scene.state.updates, NULL, err));
        if (step % 4 == 0) continue; /* and steps that are none */
        save(&scene, store, step);
        check_newest(&scene, store, step);
        cr_assert_leq(files_in_pool(&scene), pd_store_generations_needed(&options, true));
    }
    OK(rig_compare(&scene.rig, err));
    rig_deinit(&scene.rig);
    state_deinit(&scene.state);
    pd_store_close(store);
    pd_vfs_free(scene.vfs);
    pd_simulated_disk_free(scene.disk);
}
