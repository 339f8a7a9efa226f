/* A store over that state, in a directory or on a simulated disk, and its comparison with memory. */
#pragma once

#include "tests/helpers/optimizer_read.h"
#include "tests/simulated_disk/simulated_disk.h"
#include "tests/unit/offload/optimizer_state.h"

#define BUFFERS PD_OPTIMIZER_STORE_BUFFERS_MIN

struct rig {
    const struct state *state;
    struct pd_vfs *vfs;
    struct pd_thread_pool *pool;
    struct pd_optimizer_store *store;
    struct pd_store *generations; /* NULL: files of its own */
    void *buffers;
    void *kept; /* (kept_bytes) NULL: none */
    uint64_t kept_bytes;
    char directory[64];
    float *gradients[BOXES_MAX];
    uint16_t *copies[BOXES_MAX];
    uint64_t asked_box, asked_element; /* callbacks come in ascending order */
    uint64_t update;
};

static inline struct pd_identity identity_of(uint64_t step)
{
    return (struct pd_identity){{11, 22}, 1, step};
}

static inline void rig_open(struct rig *rig, uint64_t buffer_bytes)
{
    enum pd_isa isa;
    OK(pd_isa_resolve(PD_ISA_AUTO, &isa, err));
    const struct pd_optimizer_store_options options = {.vfs = rig->vfs,
                                                       .store = rig->generations,
                                                       .directory = rig->directory,
                                                       .tensors = &rig->state->tensors,
                                                       .boxes = rig->state->boxes,
                                                       .box_count = rig->state->box_count,
                                                       .rank = rig->generations ? 0 : 3,
                                                       .pool = rig->pool,
                                                       .isa = isa,
                                                       .buffers = rig->buffers,
                                                       .buffer_bytes = buffer_bytes,
                                                       .kept = rig->kept,
                                                       .kept_bytes = rig->kept_bytes};
    OK(pd_optimizer_store_new(&options, &rig->store, err));
}

static inline void rig_init(struct rig *rig, const struct state *state, struct pd_vfs *vfs, const char *directory,
                            uint64_t buffer_bytes, unsigned threads)
{
    *rig = (struct rig){.state = state, .vfs = vfs, .buffers = aligned_alloc(PD_VFS_ALIGN, buffer_bytes)};
    snprintf(rig->directory, sizeof rig->directory, "%s", directory);
    for (uint32_t b = 0; b < state->box_count; b++) {
        rig->gradients[b] = calloc(elements_of(state, b), sizeof(float));
        rig->copies[b] = calloc(elements_of(state, b), sizeof(uint16_t));
    }
    OK(pd_thread_pool_new(threads, &rig->pool, err));
    rig_open(rig, buffer_bytes);
}

static inline void rig_deinit(struct rig *rig)
{
    pd_optimizer_store_free(rig->store);
    pd_thread_pool_free(rig->pool);
    for (uint32_t b = 0; b < rig->state->box_count; b++) {
        free(rig->gradients[b]);
        free(rig->copies[b]);
    }
    free(rig->buffers);
}

static inline pd_status rig_fill(struct rig *rig, uint64_t step, struct pd_error *err)
{
    const struct pd_identity identity = identity_of(step);
    PD_TRY(pd_optimizer_store_begin(rig->store, &identity, err));
    for (uint32_t b = 0; b < rig->state->box_count; b++) {
        const uint64_t n = elements_of(rig->state, b), half = n / 2 / 32768 * 32768;
        if (half) PD_TRY(pd_optimizer_store_put(rig->store, b, 0, rig->state->data[b], half, err));
        const char *rest = (const char *)rig->state->data[b] + half * element_bytes_of(rig->state, b);
        PD_TRY(pd_optimizer_store_put(rig->store, b, half, rest, n - half, err));
    }
    return pd_optimizer_store_end(rig->store, err);
}

static inline pd_status meet(void *context, uint32_t box, uint64_t first, uint64_t n, const float **ret_gradient,
                             void **ret_copy, struct pd_error *err)
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

static inline struct pd_optimizer_store_step rig_step(struct rig *rig, uint64_t step)
{
    rig->asked_box = rig->asked_element = 0;
    return (struct pd_optimizer_store_step){
        .identity = identity_of(step), .copy_dtype = PD_BF16, .context = rig, .by_unit = step % 2 == 0, .meet = meet};
}

static inline void rig_fill_gradients(struct rig *rig, uint64_t update)
{
    for (uint32_t b = 0; b < rig->state->box_count; b++)
        if (rig->state->boxes[b].kind == PD_PARAM) fill_gradient(rig->gradients[b], update, b, elements_of(rig->state, b));
}

/* As a step does it: gradients and factors are there once the update has begun. Update 0: none. */
static inline pd_status rig_update(struct rig *rig, uint64_t step, uint64_t update, struct pd_ring_report *ret_report,
                                   struct pd_error *err)
{
    const struct pd_optimizer_store_step how = rig_step(rig, step);
    if (!update) return pd_optimizer_store_update(rig->store, &how, ret_report, err);
    const struct pd_update_step applied = update_step(update);
    PD_TRY(pd_optimizer_store_update_begin(rig->store, &how, err));
    rig_fill_gradients(rig, update);
    return pd_optimizer_store_update_end(rig->store, &applied, ret_report, err);
}

struct comparing {
    const struct state *state;
    uint64_t seen[BOXES_MAX];
};

static inline pd_status compare(void *context, uint32_t box, uint64_t first, const void *data, uint64_t n, uint64_t bytes,
                                struct pd_error *err)
{
    struct comparing *c = context;
    if (c->seen[box] != first) PD_FAIL(err, PD_BUG, "box %u: element %llu out of turn", box, (unsigned long long)first);
    if (memcmp((const char *)c->state->data[box] + first * element_bytes_of(c->state, box), data, bytes) != 0)
        PD_FAIL(err, PD_BUG, "box %u of %s, %s, from element %llu: other bits", box,
                c->state->tensors.tensors[c->state->boxes[box].tensor].name, pd_kind_name(c->state->boxes[box].kind),
                (unsigned long long)first);
    c->seen[box] += n;
    return PD_OK;
}

static inline pd_status rig_compare(struct rig *rig, struct pd_error *err)
{
    struct comparing c = {.state = rig->state};
    PD_TRY(optimizer_read(rig->store, &c, compare, err));
    for (uint32_t b = 0; b < rig->state->box_count; b++)
        if (c.seen[b] != elements_of(rig->state, b))
            PD_FAIL(err, PD_BUG, "box %u was seen up to element %llu", b, (unsigned long long)c.seen[b]);
    return PD_OK;
}

/* ---- one state on a simulated disk, after its first update ---- */

struct scene {
    struct pd_simulated_disk *disk;
    struct pd_vfs *vfs;
    struct state state;
    struct rig rig;
};

static inline void scene_init_kept(struct scene *scene, unsigned lacks, enum pd_dtype moments)
{
    const struct pd_disk_options options = {.seed = 5, .mounts = {{.path = "/state", .lacks = lacks}}};
    OK(pd_simulated_disk_new(&options, &scene->disk, err));
    OK(pd_simulated_disk_vfs(scene->disk, 0, &scene->vfs, err));
    state_init_kept(&scene->state, moments);
    rig_init(&scene->rig, &scene->state, scene->vfs, "/state", BUFFERS, 2);
    OK(rig_fill(&scene->rig, 1, err));
    state_update(&scene->state);
    OK(rig_update(&scene->rig, 2, 1, NULL, err));
}

static inline void scene_init(struct scene *scene, unsigned lacks)
{
    scene_init_kept(scene, lacks, PD_F32);
}

static inline void scene_deinit(struct scene *scene)
{
    rig_deinit(&scene->rig);
    state_deinit(&scene->state);
    pd_vfs_free(scene->vfs);
    pd_simulated_disk_free(scene->disk);
}

static inline void set_fault(struct scene *scene, enum pd_disk_fault_kind kind, unsigned operations, uint64_t nth)
{
    const struct pd_disk_fault fault = {.kind = kind, .operations = operations, .nth = nth};
    pd_simulated_disk_set_fault(scene->disk, &fault);
}
