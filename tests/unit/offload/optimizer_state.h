/* A model's state for tests of state in files, and AdamW over it in memory: what files must equal. */
#pragma once

#include "offload/optimizer_store.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OK(expression)                                                                                           \
    do {                                                                                                         \
        struct pd_error err_ = {0}, *err = &err_;                                                                \
        pd_status status_ = (expression);                                                                        \
        cr_assert_eq(status_, PD_OK, "%s:%d %s: %s", __FILE__, __LINE__, pd_status_name(status_), err_.message); \
    } while (0)

#define TENSORS 7u
#define BOXES_MAX 48u

/* A model with what matters to the store: a tensor of several extents, one of many boxes of a block and more, one whose last
 * page is not full, boxes that stay in memory with and without pages of their own. */
struct state {
    struct pd_tensor_table tensors;
    struct pd_shard_box boxes[BOXES_MAX];
    float *data[BOXES_MAX]; /* what AdamW in memory made of it; moments in bf16 where they are kept so */
    enum pd_dtype moments;
    uint32_t box_count;
    uint64_t updates;
};

static inline void add_tensor(struct state *s, const char *name, uint64_t rows, uint64_t columns, uint32_t cuts, bool decay)
{
    const uint32_t t = s->tensors.count++;
    struct pd_tensor *tensor = &s->tensors.tensors[t];
    *tensor = (struct pd_tensor){.ndim = 2, .shape = {rows, columns, 1, 1}, .tp_dim = -1, .tp_unit = 1, .decay = decay};
    tensor->moments = s->moments;
    snprintf(tensor->name, sizeof tensor->name, "%s", name);
    for (int kind = 0; kind < PD_KIND_COUNT; kind++)
        for (uint32_t cut = 0; cut < cuts; cut++) {
            struct pd_box box = {{rows * cut / cuts, 0, 0, 0}, {rows / cuts, columns, 1, 1}};
            cr_assert_lt(s->box_count, BOXES_MAX);
            s->boxes[s->box_count++] = (struct pd_shard_box){t, (enum pd_kind)kind, box};
        }
}

static inline uint64_t elements_of(const struct state *s, uint32_t box)
{
    return pd_box_elements(&s->boxes[box].box);
}

static inline uint64_t element_bytes_of(const struct state *s, uint32_t box)
{
    return pd_dtype_bytes(s->boxes[box].kind == PD_PARAM ? PD_F32 : s->moments);
}

/* A value of its own for every element, step and purpose; second moments are positive. */
static inline float value_of(uint64_t purpose, uint32_t box, uint64_t element)
{
    uint64_t z = (purpose * 1000003u + box) * UINT64_C(0x9e3779b97f4a7c15) + element * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 30) * UINT64_C(0x94d049bb133111eb);
    return (float)((double)((z ^ z >> 31) >> 11) * 0x1p-53 - (purpose == PD_EXP_AVG_SQ ? 0.0 : 0.5));
}

static inline void state_init_kept(struct state *s, enum pd_dtype moments)
{
    *s = (struct state){.tensors.tensors = calloc(TENSORS, sizeof(struct pd_tensor)), .moments = moments};
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
        if (element_bytes_of(s, b) == 2) pd_narrow_bf16(s->data[b], s->data[b], elements_of(s, b));
    }
}

static inline void state_init(struct state *s)
{
    state_init_kept(s, PD_F32);
}

static inline void state_deinit(struct state *s)
{
    for (uint32_t b = 0; b < s->box_count; b++)
        free(s->data[b]);
    pd_tensor_table_deinit(&s->tensors);
}

static inline struct pd_update_step update_step(uint64_t update)
{
    const struct pd_update_config config = {
        .rate = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .scale = 0.5, .step = update};
    return pd_adamw.prepare(&config);
}

/* The moment of the same part as a parameter's box: as many boxes on as the tensor has. */
static inline uint32_t moment_of(const struct state *s, uint32_t param, enum pd_kind kind)
{
    uint32_t cuts = 0;
    for (uint32_t b = 0; b < s->box_count; b++)
        cuts += s->boxes[b].tensor == s->boxes[param].tensor && s->boxes[b].kind == PD_PARAM;
    return param + cuts * (uint32_t)kind;
}

static inline void fill_gradient(float *gradient, uint64_t update, uint32_t box, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        gradient[i] = value_of(100 + update, box, i);
}

/* One update in memory: what files must equal. */
static inline void state_update(struct state *s)
{
    const struct pd_update_step step = update_step(++s->updates);
    for (uint32_t b = 0; b < s->box_count; b++) {
        if (s->boxes[b].kind != PD_PARAM) continue;
        const uint64_t n = elements_of(s, b);
        float *gradient = malloc(n * sizeof *gradient);
        fill_gradient(gradient, s->updates, b, n);
        const struct pd_update_range range = {
            .n = n,
            .decay = s->tensors.tensors[s->boxes[b].tensor].decay,
            .state = {s->data[b], s->data[moment_of(s, b, PD_EXP_AVG)], s->data[moment_of(s, b, PD_EXP_AVG_SQ)]},
            .grad = gradient,
            .moments = s->moments,
            .place = pd_update_place_of(&s->tensors.tensors[s->boxes[b].tensor], s->boxes[b].tensor, &s->boxes[b].box)};
        pd_update(NULL, PD_ISA_PORTABLE, &step, &range);
        free(gradient);
    }
}
