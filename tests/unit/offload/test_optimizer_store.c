/* Optimizer state in files: the bits of AdamW in memory, whatever the ring, the threads, the door and the kernel refuse; a
 * failure leaves the generation before; what lies on disk is checked before it is used; a finished generation is a shard. */
#include "ckpt/base/half.h"
#include "ckpt/io/simulated_disk.h"
#include "ckpt/io/uring.h"
#include "offload/optimizer_store.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define OK(expression)                                                                                           \
    do {                                                                                                         \
        struct pd_error err_ = {0}, *err = &err_;                                                                \
        pd_status status_ = (expression);                                                                        \
        cr_assert_eq(status_, PD_OK, "%s:%d %s: %s", __FILE__, __LINE__, pd_status_name(status_), err_.message); \
    } while (0)

#define TENSORS 7u
#define BOXES_MAX 48u
#define BUFFERS PD_OPTIMIZER_STORE_BUFFERS_MIN

/* A model with what matters to the store: a tensor of several extents, one of many boxes of a block and more, one whose last
 * page is not full, boxes that stay in memory with and without pages of their own. */
struct state {
    struct pd_tensor_table tensors;
    struct pd_shard_box boxes[BOXES_MAX];
    float *data[BOXES_MAX]; /* what AdamW in memory made of it */
    uint32_t box_count;
    uint64_t updates;
};

static void add_tensor(struct state *s, const char *name, uint64_t rows, uint64_t columns, uint32_t cuts, bool decay)
{
    const uint32_t t = s->tensors.count++;
    struct pd_tensor *tensor = &s->tensors.tensors[t];
    *tensor = (struct pd_tensor){.ndim = 2, .shape = {rows, columns, 1, 1}, .tp_dim = -1, .tp_unit = 1, .decay = decay};
    snprintf(tensor->name, sizeof tensor->name, "%s", name);
    for (int kind = 0; kind < PD_KIND_COUNT; kind++)
        for (uint32_t cut = 0; cut < cuts; cut++) {
            struct pd_box box = {{rows * cut / cuts, 0, 0, 0}, {rows / cuts, columns, 1, 1}};
            cr_assert_lt(s->box_count, BOXES_MAX);
            s->boxes[s->box_count++] = (struct pd_shard_box){t, (enum pd_kind)kind, box};
        }
}

static uint64_t elements_of(const struct state *s, uint32_t box)
{
    return pd_box_elements(&s->boxes[box].box);
}

/* A value of its own for every element, step and purpose; second moments are positive. */
static float value_of(uint64_t purpose, uint32_t box, uint64_t element)
{
    uint64_t z = (purpose * 1000003u + box) * UINT64_C(0x9e3779b97f4a7c15) + element * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 30) * UINT64_C(0x94d049bb133111eb);
    return (float)((double)((z ^ z >> 31) >> 11) * 0x1p-53 - (purpose == PD_EXP_AVG_SQ ? 0.0 : 0.5));
}

static void state_init(struct state *s)
{
    *s = (struct state){.tensors.tensors = calloc(TENSORS, sizeof(struct pd_tensor))};
    add_tensor(s, "embedding", 700, 1000, 1, true); /* 2.8 MB a kind: cut by every slot of the smallest ring */
    add_tensor(s, "norm", 1, 100, 1, false);        /* less than a page */
    add_tensor(s, "parts", 400, 512, 8, true);      /* 8 boxes of 100 KiB */
    add_tensor(s, "bias", 3, 1000, 1, false);       /* pages of its own, less than a block */
    add_tensor(s, "odd", 129, 257, 1, false);       /* ends inside a page */
    add_tensor(s, "exact", 16, 1024, 1, true);      /* one block */
    add_tensor(s, "scalar", 1, 1, 1, false);
    cr_assert_eq(s->tensors.count, TENSORS);
    for (uint32_t b = 0; b < s->box_count; b++) {
        s->data[b] = malloc(elements_of(s, b) * sizeof(float));
        for (uint64_t i = 0; i < elements_of(s, b); i++)
            s->data[b][i] = value_of((uint64_t)s->boxes[b].kind, b, i);
    }
}

static void state_deinit(struct state *s)
{
    for (uint32_t b = 0; b < s->box_count; b++)
        free(s->data[b]);
    pd_tensor_table_deinit(&s->tensors);
}

static struct pd_adam_step adam_step(uint64_t update)
{
    const struct pd_adam_config config = {
        .rate = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .scale = 0.5, .step = update};
    return pd_adam_step_make(&config);
}

/* The moment of the same part as a parameter's box: as many boxes on as the tensor has. */
static uint32_t moment_of(const struct state *s, uint32_t param, enum pd_kind kind)
{
    uint32_t cuts = 0;
    for (uint32_t b = 0; b < s->box_count; b++)
        cuts += s->boxes[b].tensor == s->boxes[param].tensor && s->boxes[b].kind == PD_PARAM;
    return param + cuts * (uint32_t)kind;
}

static void fill_gradient(float *gradient, uint64_t update, uint32_t box, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        gradient[i] = value_of(100 + update, box, i);
}

/* One update in memory: what files must equal. */
static void state_update(struct state *s)
{
    const struct pd_adam_step step = adam_step(++s->updates);
    for (uint32_t b = 0; b < s->box_count; b++) {
        if (s->boxes[b].kind != PD_PARAM) continue;
        const uint64_t n = elements_of(s, b);
        float *gradient = malloc(n * sizeof *gradient);
        fill_gradient(gradient, s->updates, b, n);
        const struct pd_adam_range range = {.n = n,
                                            .decay = s->tensors.tensors[s->boxes[b].tensor].decay,
                                            .param = s->data[b],
                                            .exp_avg = s->data[moment_of(s, b, PD_EXP_AVG)],
                                            .exp_avg_sq = s->data[moment_of(s, b, PD_EXP_AVG_SQ)],
                                            .grad = gradient};
        pd_cpu_adam(NULL, PD_ISA_PORTABLE, &step, &range);
        free(gradient);
    }
}

/* ---- a store over it ---- */

struct rig {
    const struct state *state;
    struct pd_door *door;
    struct pd_thread_pool *pool;
    struct pd_optimizer_store *store;
    struct pd_store *generations; /* NULL: files of its own */
    void *buffers;
    char directory[64];
    float *gradients[BOXES_MAX];
    uint16_t *copies[BOXES_MAX];
    uint64_t asked_box, asked_element; /* callbacks come in ascending order */
    uint64_t update;
};

static struct pd_identity identity_of(uint64_t step)
{
    return (struct pd_identity){{11, 22}, 1, step};
}

static void rig_open(struct rig *rig, uint64_t buffer_bytes)
{
    enum pd_isa isa;
    OK(pd_isa_resolve(PD_ISA_AUTO, &isa, err));
    const struct pd_optimizer_store_options options = {.door = rig->door,
                                                       .store = rig->generations,
                                                       .directory = rig->directory,
                                                       .tensors = &rig->state->tensors,
                                                       .boxes = rig->state->boxes,
                                                       .box_count = rig->state->box_count,
                                                       .rank = rig->generations ? 0 : 3,
                                                       .pool = rig->pool,
                                                       .isa = isa,
                                                       .buffers = rig->buffers,
                                                       .buffer_bytes = buffer_bytes};
    OK(pd_optimizer_store_new(&options, &rig->store, err));
}

static void rig_init(struct rig *rig, const struct state *state, struct pd_door *door, const char *directory,
                     uint64_t buffer_bytes, unsigned threads)
{
    *rig = (struct rig){.state = state, .door = door, .buffers = aligned_alloc(PD_DOOR_ALIGN, buffer_bytes)};
    snprintf(rig->directory, sizeof rig->directory, "%s", directory);
    for (uint32_t b = 0; b < state->box_count; b++) {
        rig->gradients[b] = calloc(elements_of(state, b), sizeof(float));
        rig->copies[b] = calloc(elements_of(state, b), sizeof(uint16_t));
    }
    OK(pd_thread_pool_new(threads, &rig->pool, err));
    rig_open(rig, buffer_bytes);
}

static void rig_deinit(struct rig *rig)
{
    pd_optimizer_store_free(rig->store);
    pd_thread_pool_free(rig->pool);
    for (uint32_t b = 0; b < rig->state->box_count; b++) {
        free(rig->gradients[b]);
        free(rig->copies[b]);
    }
    free(rig->buffers);
}

static pd_status rig_fill(struct rig *rig, uint64_t step, struct pd_error *err)
{
    const struct pd_identity identity = identity_of(step);
    PD_TRY(pd_optimizer_store_begin(rig->store, &identity, err));
    for (uint32_t b = 0; b < rig->state->box_count; b++) {
        const uint64_t n = elements_of(rig->state, b), half = n / 2 / 16384 * 16384;
        if (half) PD_TRY(pd_optimizer_store_put(rig->store, b, 0, rig->state->data[b], half, err));
        PD_TRY(pd_optimizer_store_put(rig->store, b, half, rig->state->data[b] + half, n - half, err));
    }
    return pd_optimizer_store_end(rig->store, err);
}

static pd_status meet(void *context, uint32_t box, uint64_t first, uint64_t n, const float **ret_gradient, void **ret_copy,
                      struct pd_error *err)
{
    (void)err;
    struct rig *rig = context;
    cr_assert_eq(rig->state->boxes[box].kind, PD_PARAM);
    cr_assert(box > rig->asked_box || (box == rig->asked_box && first == rig->asked_element));
    rig->asked_box = box;
    rig->asked_element = first + n;
    *ret_gradient = rig->gradients[box] + first;
    *ret_copy = rig->copies[box] + first;
    return PD_OK;
}

static pd_status rig_update(struct rig *rig, uint64_t step, uint64_t update, struct pd_ring_report *ret_report,
                            struct pd_error *err)
{
    const struct pd_adam_step adam = adam_step(update ? update : 1);
    for (uint32_t b = 0; b < rig->state->box_count; b++)
        if (rig->state->boxes[b].kind == PD_PARAM) fill_gradient(rig->gradients[b], update, b, elements_of(rig->state, b));
    rig->asked_box = rig->asked_element = 0;
    const struct pd_optimizer_store_step how = {.identity = identity_of(step),
                                                .adam = update ? &adam : NULL,
                                                .copy_dtype = PD_BF16,
                                                .context = rig,
                                                .by_unit = step % 2 == 0,
                                                .meet = meet};
    return pd_optimizer_store_update(rig->store, &how, ret_report, err);
}

struct comparing {
    const struct state *state;
    uint64_t seen[BOXES_MAX];
    uint32_t kinds;
};

static pd_status compare(void *context, uint32_t box, uint64_t first, const float *data, uint64_t n, struct pd_error *err)
{
    struct comparing *c = context;
    if (!(c->kinds >> c->state->boxes[box].kind & 1)) PD_FAIL(err, PD_BUG, "box %u was not asked for", box);
    if (c->seen[box] != first) PD_FAIL(err, PD_BUG, "box %u: element %llu out of turn", box, (unsigned long long)first);
    if (memcmp(c->state->data[box] + first, data, n * sizeof *data) != 0)
        PD_FAIL(err, PD_BUG, "box %u of %s, %s, from element %llu: other bits", box,
                c->state->tensors.tensors[c->state->boxes[box].tensor].name, pd_kind_name(c->state->boxes[box].kind),
                (unsigned long long)first);
    c->seen[box] += n;
    return PD_OK;
}

static pd_status rig_compare_kinds(struct rig *rig, uint32_t kinds, struct pd_error *err)
{
    struct comparing c = {.state = rig->state, .kinds = kinds};
    PD_TRY(pd_optimizer_store_read(rig->store, kinds, &c, compare, err));
    for (uint32_t b = 0; b < rig->state->box_count; b++)
        if (c.seen[b] != (kinds >> rig->state->boxes[b].kind & 1 ? elements_of(rig->state, b) : 0))
            PD_FAIL(err, PD_BUG, "box %u was seen up to element %llu", b, (unsigned long long)c.seen[b]);
    return PD_OK;
}

static pd_status rig_compare(struct rig *rig, struct pd_error *err)
{
    return rig_compare_kinds(rig, 7, err);
}

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
static void exercise(struct pd_door *door, uint64_t buffer_bytes, unsigned threads)
{
    struct state state;
    struct rig rig;
    char directory[64];
    state_init(&state);
    make_directory(directory);
    rig_init(&rig, &state, door, directory, buffer_bytes, threads);
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

static struct pd_door *uring(unsigned refusals)
{
    struct pd_door *door;
    OK(pd_door_new_uring_refusing(128, refusals, &door, err));
    return door;
}

Test(optimizer_store, bits_of_memory_for_any_ring_and_threads)
{
    const struct {
        uint64_t buffer_bytes;
        unsigned threads;
    } cases[] = {{BUFFERS, 1}, {BUFFERS + (1u << 20), 2}, {UINT64_C(64) << 20, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pd_door *door = uring(0);
        exercise(door, cases[i].buffer_bytes, cases[i].threads);
        pd_door_free(door);
    }
}

Test(optimizer_store, bits_of_memory_through_threads)
{
    struct pd_door *door;
    OK(pd_door_new_threads(3, 2, &door, err)); /* a queue less deep than a slot has requests */
    exercise(door, BUFFERS, 2);
    pd_door_free(door);
}

/* ---- what a kernel or a file system may refuse ---- */

Test(optimizer_store, bits_of_memory_whatever_is_refused)
{
    const unsigned cases[] = {PD_URING_REFUSE_BUFFERS, PD_URING_REFUSE_FILES, PD_URING_REFUSE_FLAGS,
                              PD_URING_REFUSE_RING,    PD_URING_REFUSE_LATER, PD_URING_REFUSE_DIRECT};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pd_door *door = uring(cases[i]);
        exercise(door, BUFFERS, 2);
        pd_door_free(door);
    }
}

Test(optimizer_store, bits_of_memory_under_a_small_memlock_limit)
{
    const struct rlimit small = {65536, 65536};
    cr_assert_eq(setrlimit(RLIMIT_MEMLOCK, &small), 0);
    if (geteuid() == 0) cr_assert_eq(setresuid(65534, 65534, 65534), 0); /* root may lock what it likes */
    struct pd_door *door = uring(0);
    bool has_rings = strstr(pd_door_describe(door), "io_uring, ") != NULL;
    exercise(door, BUFFERS, 2);
    cr_assert(!has_rings || strstr(pd_door_describe(door), "raise the memlock limit"), "%s", pd_door_describe(door));
    pd_door_free(door);
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
    struct pd_door *door = uring(0);
    cr_assert_str_eq(pd_door_describe(door), "threads (io_uring: Operation not permitted)");
    exercise(door, BUFFERS, 2);
    pd_door_free(door);
}

/* ---- one state on a simulated disk, after its first update ---- */

struct scene {
    struct pd_simulated_disk *disk;
    struct pd_door *door;
    struct state state;
    struct rig rig;
};

static void scene_init(struct scene *scene, unsigned lacks)
{
    const struct pd_disk_options options = {.seed = 5, .mounts = {{.path = "/state", .lacks = lacks}}};
    OK(pd_simulated_disk_new(&options, &scene->disk, err));
    OK(pd_simulated_disk_door(scene->disk, 0, &scene->door, err));
    state_init(&scene->state);
    rig_init(&scene->rig, &scene->state, scene->door, "/state", BUFFERS, 2);
    OK(rig_fill(&scene->rig, 1, err));
    state_update(&scene->state);
    OK(rig_update(&scene->rig, 2, 1, NULL, err));
}

static void scene_deinit(struct scene *scene)
{
    rig_deinit(&scene->rig);
    state_deinit(&scene->state);
    pd_door_free(scene->door);
    pd_simulated_disk_free(scene->disk);
}

static void set_fault(struct scene *scene, enum pd_disk_fault_kind kind, unsigned operations, uint64_t nth)
{
    const struct pd_disk_fault fault = {.kind = kind, .operations = operations, .nth = nth};
    pd_simulated_disk_set_fault(scene->disk, &fault);
}

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

Test(optimizer_store, reads_the_kinds_that_are_asked_for)
{
    struct scene scene;
    scene_init(&scene, 0);
    for (uint32_t kinds = 0; kinds < 8; kinds++)
        OK(rig_compare_kinds(&scene.rig, kinds, err));
    scene_deinit(&scene);
}

/* Every operation of an update fails once: the state is as it was and the next update is right. */
Test(optimizer_store, an_update_that_fails_leaves_the_generation_before)
{
    struct scene scene;
    scene_init(&scene, 0);
    uint64_t failures = 0;
    for (uint64_t nth = 1;; nth++) {
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
    cr_assert_gt(failures, 20);
    state_update(&scene.state);
    OK(rig_compare(&scene.rig, err)); /* the one that went through */
    scene_deinit(&scene);
}

/* ---- damage ---- */

Test(optimizer_store, a_block_that_reads_wrongly_is_read_once_more)
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

Test(optimizer_store, a_damaged_block_is_named_and_nothing_goes_on_from_it)
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
Test(optimizer_store, writes_that_never_happened_are_found)
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

/* ---- whole shards ---- */

static void *read_whole(struct pd_door *door, const char *path, uint64_t bytes)
{
    struct pd_file *file;
    void *data = aligned_alloc(PD_DOOR_ALIGN, bytes);
    OK(pd_file_open(door, path, PD_OPEN_READ, &file, err));
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
    void *buffers = aligned_alloc(PD_DOOR_ALIGN, BUFFERS);
    OK(pd_shard_writer_new(scene->door, &scene->state.tensors, scene->state.boxes, scene->state.box_count, buffers, BUFFERS,
                           &writer, err));
    OK(pd_shard_write(writer, "/state/expected.h5", &identity, 3, (const void *const *)scene->state.data, &expected, err));
    cr_assert_eq(memcmp(summary, &expected, sizeof expected), 0);
    void *a = read_whole(scene->door, path, expected.file_bytes);
    void *b = read_whole(scene->door, "/state/expected.h5", expected.file_bytes);
    cr_assert_eq(memcmp(a, b, expected.file_bytes), 0);
    cr_assert_eq(pd_optimizer_store_file_bytes(scene->rig.store), expected.file_bytes);
    pd_shard_writer_free(writer);
    free(buffers);
    free(a);
    free(b);
}

Test(optimizer_store, a_finished_generation_is_the_shard_of_its_state)
{
    struct scene scene;
    scene_init(&scene, 0);
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

/* Fills the page behind the data of a box, in every generation's file that is there. */
static void spoil_padding(struct scene *scene, uint32_t box)
{
    struct pd_shard_writer *writer;
    void *buffers = aligned_alloc(PD_DOOR_ALIGN, BUFFERS);
    const uint64_t bytes = elements_of(&scene->state, box) * sizeof(float);
    OK(pd_shard_writer_new(scene->door, &scene->state.tensors, scene->state.boxes, scene->state.box_count, buffers, BUFFERS,
                           &writer, err));
    const uint64_t end = pd_shard_writer_box_offset(writer, box) + bytes;
    for (uint32_t slot = 0; slot < 3; slot++) {
        struct pd_file *file;
        char path[64];
        snprintf(path, sizeof path, "/state/generation-00003-%u.h5", slot);
        if (pd_file_open(scene->door, path, PD_OPEN_WRITE, &file, NULL) != PD_OK) continue;
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

Test(optimizer_store, padding_is_zero_whatever_lay_there)
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

Test(optimizer_store, one_that_cannot_be_finished_is_no_checkpoint_and_state_goes_on)
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
    uint64_t heap, file;
    state_init(&state);
    state.boxes[2].box.count[0]--; /* exp_avg_sq of "embedding" */
    cr_assert_eq(pd_optimizer_store_plan(&state.tensors, state.boxes, state.box_count, BUFFERS, &heap, &file, &failure),
                 PD_INVALID);
    cr_assert_str_eq(failure.message, "tensor embedding: box 0 has no exp_avg_sq");
    state.boxes[2].box.count[0]++;
    cr_assert_eq(
        pd_optimizer_store_plan(&state.tensors, state.boxes + 1, state.box_count - 1, BUFFERS, &heap, &file, &failure),
        PD_INVALID);
    state_deinit(&state);
}

Test(optimizer_store, the_plan_is_what_it_takes)
{
    struct state state;
    struct rig rig;
    struct pd_door *door = uring(0);
    char directory[64];
    uint64_t heap, file;
    state_init(&state);
    make_directory(directory);
    OK(pd_optimizer_store_plan(&state.tensors, state.boxes, state.box_count, BUFFERS, &heap, &file, err));
    rig_init(&rig, &state, door, directory, BUFFERS, 1);
    cr_assert_eq(file, pd_optimizer_store_file_bytes(rig.store));
    pd_optimizer_store_free(rig.store);
    const size_t before = mallinfo2().uordblks;
    rig_open(&rig, BUFFERS);
    OK(rig_fill(&rig, 1, err));
    OK(rig_update(&rig, 2, 1, NULL, err));
    const double taken = (double)(mallinfo2().uordblks - before), planned = (double)heap;
    cr_assert(taken > 0.95 * planned && taken < 1.05 * planned, "planned %.0f, taken %.0f", planned, taken);
    rig_deinit(&rig);
    pd_door_free(door);
    remove_directory(directory);
    state_deinit(&state);
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
    char path[4096], *buffers = aligned_alloc(PD_DOOR_ALIGN, BUFFERS);
    struct pd_commit commit;
    struct pd_shard *shard;
    const struct pd_store_entry *entry = pd_store_entry_at(store, 0);
    cr_assert_eq(entry->step, step);
    OK(pd_store_read_commit(store, entry, &commit, err));
    pd_store_entry_path(store, entry, path);
    snprintf(path + strlen(path), 32, "/shard-00000.h5");
    OK(pd_shard_open(scene->door, path, &commit.state.identity, &commit.shards[0], &shard, err));
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
    OK(pd_door_list(scene->door, "/store/pool-1", &listing, err));
    for (uint32_t i = 0; i < listing.count; i++)
        count += strncmp(listing.names[i], "generation-", 11) == 0 || strncmp(listing.names[i], "recycle-", 8) == 0;
    pd_listing_deinit(&listing);
    return count;
}

Test(optimizer_store, every_step_can_be_a_checkpoint_that_costs_no_copy)
{
    struct scene scene = {0};
    struct pd_group group;
    struct pd_store *store;
    const struct pd_disk_options disk = {.seed = 6};
    const struct pd_store_options options = {.writable = true, .keep_last = 2, .generations = true};
    pd_group_init_single(&group);
    OK(pd_simulated_disk_new(&disk, &scene.disk, err));
    OK(pd_simulated_disk_door(scene.disk, 0, &scene.door, err));
    OK(pd_door_mkdir(scene.door, "/store", err));
    OK(pd_store_open(scene.door, "/store", &options, &group, &store, err));
    cr_assert(pd_store_links_generations(store));
    state_init(&scene.state);
    rig_init(&scene.rig, &scene.state, scene.door, "", BUFFERS, 2);
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
    pd_door_free(scene.door);
    pd_simulated_disk_free(scene.disk);
}
