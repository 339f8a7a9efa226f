/* Optimizer state in files: the bits of AdamW in memory, whatever the ring, the threads, the door and the kernel refuse; a
 * failure leaves the generation before; what lies on disk is checked before it is used; a finished generation is a shard. */
#include "ckpt/io/simulated_disk.h"
#include "ckpt/io/uring.h"
#include "offload/optimizer_store.h"

#include <criterion/criterion.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
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
#define ROWS_CUT 40u
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
    add_tensor(s, "odd", 129, 257, 1, true);        /* ends inside a page */
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

static void rig_init(struct rig *rig, const struct state *state, struct pd_door *door, const char *directory,
                     uint64_t buffer_bytes, unsigned threads)
{
    *rig = (struct rig){.state = state, .door = door, .buffers = aligned_alloc(PD_DOOR_ALIGN, buffer_bytes)};
    snprintf(rig->directory, sizeof rig->directory, "%s", directory);
    for (uint32_t b = 0; b < state->box_count; b++) {
        rig->gradients[b] = calloc(elements_of(state, b), sizeof(float));
        rig->copies[b] = calloc(elements_of(state, b), sizeof(uint16_t));
    }
    enum pd_isa isa;
    OK(pd_isa_resolve(PD_ISA_AUTO, &isa, err));
    OK(pd_thread_pool_new(threads, &rig->pool, err));
    const struct pd_optimizer_store_options options = {.door = door,
                                                       .directory = rig->directory,
                                                       .tensors = &state->tensors,
                                                       .boxes = state->boxes,
                                                       .box_count = state->box_count,
                                                       .rank = 3,
                                                       .pool = rig->pool,
                                                       .isa = isa,
                                                       .buffers = rig->buffers,
                                                       .buffer_bytes = buffer_bytes};
    OK(pd_optimizer_store_new(&options, &rig->store, err));
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
