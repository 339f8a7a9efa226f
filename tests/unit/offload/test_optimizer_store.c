/* Optimizer state in files: the bits of AdamW in memory, whatever the ring, the threads, the VFS and the kernel refuse. */
#include "ckpt/base/half.h"
#include "ckpt/io/uring.h"
#include "tests/unit/offload/optimizer_rig.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

static void make_directory(char directory[64])
{
    snprintf(directory, 64, "/tmp/perdure-test-XXXXXX");
    cr_assert_not_null(mkdtemp(directory));
}

static void remove_directory(const char *directory)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", directory);
    cr_assert_eq(system(command), 0);
}
/* Three updates and one that is skipped. */
static void exercise_kept(struct pd_vfs *vfs, uint64_t buffer_bytes, unsigned threads, enum pd_dtype moments)
{
    struct state state;
    struct rig rig;
    char directory[64];
    state_init_kept(&state, moments);
    make_directory(directory);
    rig_init(&rig, &state, vfs, directory, buffer_bytes, threads);
    OK(rig_fill(&rig, 1, err));
    OK(rig_compare(&rig, err));
    for (uint64_t step = 2; step < 6; step++) {
        bool skipped = step == 4;
        if (!skipped) state_update(&state);
        OK(rig_update(&rig, step, skipped ? 0 : state.updates, NULL, err));
        OK(rig_compare(&rig, err));
        cr_assert_eq(pd_optimizer_store_identity(rig.store)->step, step);
    }
    rig_deinit(&rig);
    remove_directory(directory);
    state_deinit(&state);
}

static void exercise(struct pd_vfs *vfs, uint64_t buffer_bytes, unsigned threads)
{
    exercise_kept(vfs, buffer_bytes, threads, PD_F32);
}

static struct pd_vfs *uring(unsigned refusals)
{
    struct pd_vfs *vfs;
    OK(pd_vfs_new_uring_refusing(128, refusals, &vfs, err));
    return vfs;
}

Test(optimizer_store, bits_of_memory_for_any_ring_and_threads)
{
    const struct {
        uint64_t buffer_bytes;
        unsigned threads;
    } cases[] = {{BUFFERS, 1}, {BUFFERS + (1u << 20), 2}, {UINT64_C(64) << 20, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pd_vfs *vfs = uring(0);
        exercise(vfs, cases[i].buffer_bytes, cases[i].threads);
        exercise_kept(vfs, cases[i].buffer_bytes, cases[i].threads, PD_BF16);
        pd_vfs_free(vfs);
    }
}

Test(optimizer_store, bits_of_memory_through_threads)
{
    struct pd_vfs *vfs;
    OK(pd_vfs_new_threads(3, 2, &vfs, err)); /* a queue less deep than a slot has requests */
    exercise(vfs, BUFFERS, 2);
    pd_vfs_free(vfs);
}

/* ---- what a kernel or a file system may refuse ---- */

Test(optimizer_store, bits_of_memory_whatever_is_refused)
{
    const unsigned cases[] = {PD_URING_REFUSE_BUFFERS, PD_URING_REFUSE_FLAGS, PD_URING_REFUSE_RING, PD_URING_REFUSE_LATER,
                              PD_URING_REFUSE_DIRECT};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pd_vfs *vfs = uring(cases[i]);
        exercise(vfs, BUFFERS, 2);
        pd_vfs_free(vfs);
    }
}

Test(optimizer_store, bits_of_memory_under_a_small_memlock_limit)
{
    const struct rlimit small = {65536, 65536};
    cr_assert_eq(setrlimit(RLIMIT_MEMLOCK, &small), 0);
    if (geteuid() == 0) cr_assert_eq(setresuid(65534, 65534, 65534), 0); /* root may lock what it likes */
    struct pd_vfs *vfs = uring(0);
    bool has_rings = strncmp(pd_vfs_describe(vfs), "io_uring", 8) == 0;
    exercise(vfs, BUFFERS, 2);
    cr_assert(!has_rings || strstr(pd_vfs_describe(vfs), "raise the memlock limit"), "%s", pd_vfs_describe(vfs));
    pd_vfs_free(vfs);
}

Test(optimizer_store, bits_of_memory_where_a_filter_forbids_io_uring)
{
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog filter = {sizeof program / sizeof *program, program};
    cr_assert_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    cr_assert_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
    struct pd_vfs *vfs = uring(0);
    cr_assert(strstr(pd_vfs_describe(vfs), "threads (io_uring: Operation not permitted; "));
    exercise(vfs, BUFFERS, 2);
    pd_vfs_free(vfs);
}

/* ---- on a simulated disk ---- */

Test(optimizer_store, bits_of_memory_on_file_systems_that_lack_something)
{
    const unsigned cases[] = {PD_DISK_NO_DIRECT_OPEN, PD_DISK_NO_DIRECT_TRANSFER, PD_DISK_NO_PREALLOCATE};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct scene scene;
        scene_init(&scene, cases[i]);
        OK(rig_compare(&scene.rig, err));
        scene_deinit(&scene);
    }
}

Test(optimizer_store, copies_are_the_new_parameters_rounded)
{
    struct scene scene;
    scene_init(&scene, 0);
    for (uint32_t b = 0; b < scene.state.box_count; b++) {
        if (scene.state.boxes[b].kind != PD_PARAM) continue;
        for (uint64_t i = 0; i < elements_of(&scene.state, b); i++)
            cr_assert_eq(scene.rig.copies[b][i], pd_bf16_from_f32(scene.state.data[b][i]), "box %u, element %llu", b,
                         (unsigned long long)i);
    }
    scene_deinit(&scene);
}

/* ---- beginning ---- */

Test(optimizer_store, beginning_again_replaces_what_was_begun_and_what_was)
{
    struct scene scene;
    const struct pd_identity identity = identity_of(8);
    scene_init(&scene, 0);
    OK(pd_optimizer_store_begin(scene.rig.store, &identity, err)); /* and left */
    for (uint32_t b = 0; b < scene.state.box_count; b++)
        for (uint64_t i = 0; i < elements_of(&scene.state, b); i++)
            scene.state.data[b][i] += 1;
    OK(rig_fill(&scene.rig, 9, err));
    OK(rig_compare(&scene.rig, err));
    cr_assert_eq(pd_optimizer_store_identity(scene.rig.store)->step, 9);
    scene_deinit(&scene);
}

Test(optimizer_store, boxes_that_are_no_three_kinds_are_refused)
{
    struct state state;
    struct pd_error failure = {0};
    struct pd_optimizer_groups groups;
    state_init(&state);
    state.boxes[2].box.count[0]--; /* exp_avg_sq of "embedding" */
    cr_assert_eq(pd_optimizer_groups_init(&state.tensors, state.boxes, state.box_count, &groups, &failure), PD_INVALID);
    cr_assert_str_eq(failure.message, "tensor embedding: box 0 has no exp_avg_sq");
    state.boxes[2].box.count[0]++;
    cr_assert_eq(pd_optimizer_groups_init(&state.tensors, state.boxes + 1, state.box_count - 1, &groups, &failure),
                 PD_INVALID);
    state_deinit(&state);
}

Test(optimizer_store, the_plan_is_what_it_takes)
{
    struct state state;
    struct rig rig;
    struct pd_vfs *vfs = uring(0);
    char directory[64];
    uint64_t file;
    state_init(&state);
    make_directory(directory);
    OK(pd_optimizer_store_plan(&state.tensors, state.boxes, state.box_count, &file, err));
    const uint64_t most = pd_optimizer_store_most_bytes(&state.tensors, state.boxes, state.box_count, BUFFERS);
    rig_init(&rig, &state, vfs, directory, BUFFERS, 1);
    cr_assert_eq(file, pd_optimizer_store_file_bytes(rig.store));
    pd_optimizer_store_free(rig.store);
    const size_t before = mallinfo2().uordblks;
    rig_open(&rig, BUFFERS);
    OK(rig_fill(&rig, 1, err));
    OK(rig_update(&rig, 2, 1, NULL, err));
    const uint64_t taken = mallinfo2().uordblks - before;
    cr_assert(taken > most / 2 && taken < most, "planned %lu, taken %lu", most, taken);
    rig_deinit(&rig);
    pd_vfs_free(vfs);
    remove_directory(directory);
    state_deinit(&state);
}
