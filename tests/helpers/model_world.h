/* A micro-batch through a model on ranks that are threads, cut by heads, ffn columns, vocabulary rows and token pieces: what it
 * leaves behind, and how many exchanges it made. */
#pragma once

#include "tests/helpers/device_math.h"
#include "tests/helpers/families.h"
#include "trainer/model/transformer.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NO_TERM INT64_MIN
#define TERMS_OF_ONE 0x1p44

enum { RANKS_MAX = 8, TENSORS_MAX = 40, BOXES_MAX = 8 };

struct test_case {
    uint32_t family;
    uint32_t heads, kv_heads, vocab, length, sequences;
    bool bias, tied, documents;
    enum pd_dtype dtype;
    enum pd_recompute recompute;
    uint32_t tp, sp, virtual_tp, virtual_sp;
    bool on_device; /* in memory that the host cannot touch */
    uint32_t logits_columns;
    enum pd_dtype logits_dtype;
};

/* Exchanges that the first tp rank started, and those of them behind which it multiplied; its thread alone counts. */
enum { ON_THEIR_WAY = 8 };
static uint32_t exchange_count, hidden_count, product_count;
static struct {
    const struct pd_comm_op *op;
    uint32_t products; /* before it */
} on_its_way[ON_THEIR_WAY];
static struct pd_comm_ops counting;
static const struct pd_comm_ops *counted;
static struct pd_math_ops counting_math;

static pd_status count_start(struct pd_comm *comm, struct pd_comm_op *op, struct pd_error *err)
{
    int free = 0;
    while (on_its_way[free].op)
        cr_assert_lt(++free, ON_THEIR_WAY);
    on_its_way[free].op = op;
    on_its_way[free].products = product_count;
    exchange_count++;
    return counted->start(comm, op, err);
}

static pd_status count_wait(struct pd_comm *comm, struct pd_comm_op *op, struct pd_error *err)
{
    for (int i = 0; i < ON_THEIR_WAY; i++)
        if (on_its_way[i].op == op) {
            hidden_count += product_count > on_its_way[i].products;
            on_its_way[i].op = NULL;
        }
    return counted->wait(comm, op, err);
}

static pd_status count_product(struct pd_math *math, const struct pd_gemm *gemm, struct pd_error *err)
{
    product_count++;
    return far_gemm(math, gemm, err);
}

static void count_exchanges(struct pd_comm *tp)
{
    exchange_count = hidden_count = product_count = 0;
    counted = tp->ops;
    counting = *tp->ops;
    counting.start = count_start;
    counting.wait = count_wait;
    tp->ops = &counting;
}

static struct pd_math *count_products(struct pd_math *math)
{
    counting_math = *math->ops;
    counting_math.gemm = count_product;
    math->ops = &counting_math;
    return math;
}

/* What a run leaves behind; rows in the order (sequence, position). */
struct outcome {
    float *losses;
    char *dstream;
    float *gradients; /* (parameters, then the tied table) */
};

struct world {
    struct test_case c;
    struct pd_model *model;
    uint64_t offset[TENSORS_MAX + 2]; /* of tensors, then of the tied table, in the outcome's gradients */
    float *weights;                   /* (parameters) */
    struct outcome out;
    int64_t *parts[RANKS_MAX]; /* gradients of each rank in terms, NO_TERM elsewhere */
    struct device_memory *far; /* (ranks), or NULL */
    uint32_t exchanges[2];     /* of the first block, in forward and in backward */
    uint32_t hidden[3];        /* of these, behind products; and of the head's */
};

static struct pd_model *model_of(const struct test_case *c)
{
    struct pd_model_config m;
    struct pd_model *model;
    struct pd_error err;
    cr_assert_eq(pd_model_preset(c->family == PD_FAMILY_GPT2 ? "gpt2-124m" : "byte-1m", &m, NULL), PD_OK);
    m.family = c->family;
    m.vocab = c->vocab;
    m.context = 64;
    m.layers = 2;
    m.heads = c->heads;
    m.kv_heads = c->kv_heads;
    m.head_size = c->family == PD_FAMILY_QWEN3 ? 6 : 4;
    m.hidden = c->family == PD_FAMILY_GPT2 ? c->heads * 4 : 24;
    m.ffn = 40;
    m.qkv_bias = c->bias;
    m.tie_embeddings = c->tied;
    m.init_std = 0.2f;
    cr_assert_eq(pd_model_new(&m, &model, &err), PD_OK, "%s", err.message);
    return model;
}

static void world_init(struct world *w, const struct test_case *c)
{
    memset(w, 0, sizeof *w);
    w->c = *c;
    w->model = model_of(c);
    const uint32_t tensors = w->model->tensors.count;
    for (uint32_t t = 0; t < tensors; t++)
        w->offset[t + 1] = w->offset[t] + pd_tensor_elements(&w->model->tensors.tensors[t]);
    uint64_t all = w->offset[tensors] + pd_tensor_elements(&w->model->tensors.tensors[0]);
    w->offset[tensors + 1] = all;
    w->weights = calloc(w->offset[tensors], sizeof(float));
    for (uint32_t t = 0; t < tensors; t++) {
        struct pd_box whole = pd_box_whole(&w->model->tensors.tensors[t]);
        pd_model_init_box(w->model, t, &whole, 7, w->weights + w->offset[t]);
        for (uint64_t i = w->offset[t]; i < w->offset[t + 1]; i++)
            w->weights[i] += 0.02f * (float)((int)((i * 2654435761u + t) >> 7) % 11 - 5);
    }
    uint64_t rows = (uint64_t)c->sequences * c->length;
    w->out.losses = calloc(rows, sizeof(float));
    w->out.dstream = calloc(rows * w->model->config.hidden, sizeof(float));
    w->out.gradients = calloc(all, sizeof(float));
    for (uint32_t r = 0; r < c->tp * c->sp; r++) {
        w->parts[r] = malloc(all * sizeof *w->parts[r]);
        for (uint64_t i = 0; i < all; i++)
            w->parts[r][i] = NO_TERM;
    }
}

static void world_deinit(struct world *w)
{
    for (int r = 0; r < RANKS_MAX; r++)
        free(w->parts[r]);
    free(w->weights), free(w->out.losses), free(w->out.dstream), free(w->out.gradients);
    pd_model_free(w->model);
}

/* One rank. */
struct rank {
    struct world *w;
    struct pd_partition p;
    bool is_first;
    struct pd_comm *tp, *sp;
    struct pd_arena *arena;
    struct pd_math *math, *cpu;
    struct device_memory *far; /* or NULL */
    struct device_math device_math;
    struct pd_arena_source source;
    struct pd_transformer *transformer;
    char *weights;    /* boxes needed, one behind the other */
    float *gradients; /* boxes computed */
    float *tied;
    int64_t *terms, *tied_terms; /* sums of these over pieces */
    void *weight[TENSORS_MAX];
    float *gradient[TENSORS_MAX];
    void *dstream;
};

/* Sums over pieces and over ranks are exact, as a trainer's: of integers. */
static pd_status take_piece(void *context, uint32_t source, const float *gradient, uint64_t n, struct pd_error *err)
{
    struct rank *r = context;
    const uint64_t tied = pd_tensor_elements(&r->w->model->tensors.tensors[0]);
    const bool is_tied = gradient >= r->tied && gradient < r->tied + tied;
    int64_t *terms = is_tied ? r->tied_terms + (gradient - r->tied) : r->terms + (gradient - r->gradients);
    (void)source, (void)err;
    if (r->far) far_open(r->far);
    for (uint64_t i = 0; i < n; i++)
        terms[i] += llrint(gradient[i] * TERMS_OF_ONE);
    if (r->far) far_close(r->far);
    return PD_OK;
}

static void recipe(struct rank *r, struct pd_arena *arena)
{
    const struct test_case *c = &r->w->c;
    bool dry = pd_arena_is_dry(arena);
    const struct pd_transformer_options options = {.sequences = c->sequences,
                                                   .length = c->length,
                                                   .dtype = c->dtype,
                                                   .recompute = c->recompute,
                                                   .recompute_layers = PD_LAYERS_ALL,
                                                   .separate_documents = c->documents,
                                                   .backward = true,
                                                   .take_piece = take_piece,
                                                   .take_context = r,
                                                   .logits_columns = c->logits_columns,
                                                   .logits_dtype = c->logits_dtype,
                                                   .on_device = c->on_device,
                                                   .partition = r->p,
                                                   .tp = dry ? NULL : r->tp,
                                                   .sp = dry ? NULL : r->sp};
    struct pd_error err;
    r->math = NULL;
    if (!dry) r->math = r->far ? device_math_init(&r->device_math, r->cpu, r->far) : r->cpu;
    if (!dry && r->far && r->is_first) count_products(r->math);
    cr_assert_eq(pd_transformer_new(r->w->model, r->math, &options, arena, &r->transformer, &err), PD_OK);
}

/* Copies a box out of, or into, a dense tensor; elements of dtype on the box's side. */
static void box_out(const struct pd_tensor *t, const struct pd_box *b, const float *dense, float *dst)
{
    uint64_t columns = t->ndim == 2 ? t->shape[1] : 1, n = t->ndim == 2 ? b->count[1] : 1;
    for (uint64_t i = 0; i < b->count[0]; i++)
        memcpy(dst + i * n, dense + (b->start[0] + i) * columns + (t->ndim == 2 ? b->start[1] : 0), n * sizeof(float));
}

static void box_in(const struct pd_tensor *t, const struct pd_box *b, const int64_t *src, int64_t *dense)
{
    uint64_t columns = t->ndim == 2 ? t->shape[1] : 1, n = t->ndim == 2 ? b->count[1] : 1;
    for (uint64_t i = 0; i < b->count[0]; i++)
        memcpy(dense + (b->start[0] + i) * columns + (t->ndim == 2 ? b->start[1] : 0), src + i * n, n * sizeof *dense);
}

static uint64_t box_elements(const struct pd_box *b)
{
    return b->count[0] * (b->count[1] ? b->count[1] : 1);
}

static void *memory_of(const struct rank *r, uint64_t bytes)
{
    return r->far ? far_new(r->far, bytes) : calloc(1, bytes);
}

static void let_go(const struct rank *r, void *memory)
{
    if (r->far)
        far_delete(r->far, memory);
    else
        free(memory);
}

static void fill_weights(struct rank *r)
{
    struct world *w = r->w;
    const uint64_t bytes = pd_dtype_bytes(w->c.dtype), all = w->offset[w->model->tensors.count];
    struct pd_error err;
    float *dense = calloc(all, sizeof(float));
    r->weights = memory_of(r, (all + 1) * sizeof(float));
    r->gradients = memory_of(r, (all + 1) * sizeof(float));
    const uint64_t tied = pd_tensor_elements(&w->model->tensors.tensors[0]);
    r->tied = memory_of(r, tied * sizeof(float));
    r->terms = calloc(all + 1, sizeof *r->terms);
    r->tied_terms = calloc(tied, sizeof *r->tied_terms);
    uint64_t at = 0, gradient_at = 0;
    for (uint32_t t = 0; t < w->model->tensors.count; t++) {
        const struct pd_tensor *tensor = &w->model->tensors.tensors[t];
        struct pd_box boxes[BOXES_MAX];
        uint32_t count = pd_partition_needed(w->model, &r->p, t, boxes, BOXES_MAX);
        r->weight[t] = r->weights + at * bytes;
        r->gradient[t] = r->gradients + gradient_at;
        for (uint32_t b = 0; b < count; at += box_elements(&boxes[b]), b++)
            box_out(tensor, &boxes[b], w->weights + w->offset[t], dense + at);
        count = pd_partition_computed(w->model, &r->p, t, boxes, BOXES_MAX);
        for (uint32_t b = 0; b < count; b++)
            gradient_at += box_elements(&boxes[b]);
    }
    if (r->far) far_open(r->far);
    cr_assert_eq(pd_cast(r->cpu, at, w->c.dtype, r->weights, PD_F32, dense, &err), PD_OK);
    if (r->far) far_close(r->far);
    free(dense);
}

/* Row of (sequence, position) in the micro-batch's global order, for every row of this rank. */
static uint64_t global_row(const struct rank *r, uint64_t row)
{
    const struct test_case *c = &r->w->c;
    for (uint32_t place = 0;; place++) {
        struct pd_range piece = pd_partition_piece(&r->p, c->length, pd_partition_piece_at(&r->p, place));
        uint64_t n = piece.end - piece.begin;
        if (row < n * c->sequences) return row / n * c->length + piece.begin + row % n;
        row -= n * c->sequences;
    }
}

static void fill_input(struct rank *r)
{
    const struct test_case *c = &r->w->c;
    struct pd_micro_batch_input *in = pd_transformer_input(r->transformer, 0);
    for (uint64_t row = 0; row < pd_transformer_rows(r->transformer); row++) {
        const uint64_t i = global_row(r, row), t = i % c->length,
                       second = 9 + i / c->length % 4; /* in other places of others */
        const uint64_t document = !c->documents || t < second ? 0 : t < 20 ? second : 20;
        in->tokens[row] = (int32_t)((i * 7 + i / 3) % c->vocab);
        in->targets[row] = t == 8 ? -1 : (int32_t)((i * 5 + 3) % c->vocab);
        in->positions[row] = (int32_t)(t - document);
        in->first[row] = (int32_t)document;
    }
}

static void unit_pointers(struct rank *r, uint32_t unit, void **weights, float **gradients)
{
    const struct pd_model *model = r->w->model;
    uint32_t count = 0;
    for (uint32_t t = model->unit_first[unit]; t < model->unit_first[unit + 1]; t++, count++) {
        weights[count] = r->weight[t];
        gradients[count] = r->gradient[t];
    }
    if (unit + 1 == model->unit_count && model->config.tie_embeddings) {
        weights[count] = r->weight[0];
        gradients[count] = r->tied;
    }
}

static pd_status run_micro_batch(struct rank *r, struct pd_error *err)
{
    void *w[24];
    float *g[24];
    const uint32_t layers = r->w->model->config.layers;
    struct pd_transformer *t = r->transformer;
    struct pd_micro_batch_input in;
    PD_TRY(pd_transformer_input_begin(t, 0, &in, err)); /* fill_input has filled it */
    PD_TRY(pd_transformer_input_filled(t, 0, err));
    unit_pointers(r, 0, w, g);
    PD_TRY(pd_transformer_embed(t, 0, w, err));
    for (uint32_t i = 0; i < layers; i++) {
        unit_pointers(r, i + 1, w, g);
        const uint32_t before = exchange_count, hidden = hidden_count;
        PD_TRY(pd_transformer_block_forward(t, 0, i, w, NULL, err));
        if (i == 0 && r->is_first) r->w->exchanges[0] = exchange_count - before;
        if (i == 0 && r->is_first) r->w->hidden[0] = hidden_count - hidden;
    }
    unit_pointers(r, layers + 1, w, g);
    const uint32_t hidden_before = hidden_count;
    PD_TRY(pd_transformer_head(t, 0, w, g, r->w->c.dtype == PD_F16 ? 64.0f : 1.0f, r->dstream, err));
    if (r->is_first) r->w->hidden[2] = hidden_count - hidden_before;
    for (uint32_t i = layers; i-- > 0;) {
        unit_pointers(r, i + 1, w, g);
        const uint32_t before = exchange_count, hidden = hidden_count;
        PD_TRY(pd_transformer_block_backward(t, 0, i, w, g, r->dstream, err));
        if (i == 0 && r->is_first) r->w->exchanges[1] = exchange_count - before;
        if (i == 0 && r->is_first) r->w->hidden[1] = hidden_count - hidden;
    }
    unit_pointers(r, 0, w, g);
    return pd_transformer_embed_backward(t, 0, g, r->dstream, err);
}

/* Every tp rank has all rows of its pieces: they must agree. */
static void keep_rows(struct rank *r, const float *losses)
{
    struct world *w = r->w;
    const uint64_t bytes = w->model->config.hidden * pd_dtype_bytes(w->c.dtype);
    if (r->p.tp_rank) return;
    for (uint64_t row = 0; row < pd_transformer_rows(r->transformer); row++) {
        w->out.losses[global_row(r, row)] = losses[row];
        memcpy(w->out.dstream + global_row(r, row) * bytes, (char *)r->dstream + row * bytes, bytes);
    }
}

static void keep_gradients(struct rank *r, int64_t *part)
{
    struct world *w = r->w;
    const uint32_t tensors = w->model->tensors.count;
    for (uint32_t t = 0; t <= tensors; t++) {
        const uint32_t index = t < tensors ? t : 0;
        const int64_t *src = t < tensors ? r->terms + (r->gradient[t] - r->gradients) : r->tied_terms;
        struct pd_box boxes[BOXES_MAX];
        uint32_t count = pd_partition_computed(w->model, &r->p, index, boxes, BOXES_MAX);
        if (t == tensors && !w->c.tied) continue;
        for (uint32_t b = 0; b < count; src += box_elements(&boxes[b]), b++)
            box_in(&w->model->tensors.tensors[index], &boxes[b], src, part + w->offset[t]);
    }
}

static pd_status arena_new(struct rank *r, const struct pd_memory_plan *plan, struct pd_error *err)
{
    if (!r->far) return pd_arena_new(plan, &r->arena, err);
    r->source = far_source(r->far);
    return pd_arena_new_on(plan, &r->source, &r->arena, err);
}

static void keep(struct rank *r, int64_t *part)
{
    float *losses = calloc(pd_transformer_rows(r->transformer), sizeof *losses);
    struct pd_error err;
    cr_assert_eq(pd_transformer_losses(r->transformer, losses, &err), PD_OK, "%s", err.message);
    if (r->p.virtual_sp == 1) {
        const struct pd_model *model = r->w->model;
        (void)!take_piece(r, 0, r->gradients, model->parameter_count, &err);
        (void)!take_piece(r, 0, r->tied, pd_tensor_elements(&model->tensors.tensors[0]), &err);
    }
    if (r->far) far_open(r->far);
    keep_rows(r, losses);
    if (r->far) far_close(r->far);
    keep_gradients(r, part);
    free(losses);
}

static pd_status rank_main(struct pd_comm *comm, void *context, struct pd_error *err)
{
    struct world *w = context;
    const struct test_case *c = &w->c;
    struct pd_memory_plan plan, used;
    struct pd_arena *workspace;
    struct rank r = {.w = w, .far = w->far ? &w->far[comm->rank] : NULL};
    const struct pd_comm_memory hook = r.far ? far_hook(r.far) : (struct pd_comm_memory){0};
    pd_comm_use_memory(comm, &hook);
    r.p = (struct pd_partition){c->tp, comm->rank % c->tp, c->virtual_tp, c->sp, comm->rank / c->tp, c->virtual_sp};
    if (c->tp > 1) PD_TRY(pd_comm_split(comm, r.p.sp_rank, r.p.tp_rank, &r.tp, err));
    r.is_first = comm->rank == 0;
    if (r.is_first && c->tp > 1) count_exchanges(r.tp);
    if (c->sp > 1) PD_TRY(pd_comm_split(comm, c->sp + r.p.tp_rank, r.p.sp_rank, &r.sp, err));
    PD_TRY(far_near_new(&workspace, &r.cpu, err));
    PD_TRY(pd_arena_new_dry(&r.arena, err));
    recipe(&r, r.arena);
    pd_arena_usage(r.arena, &plan);
    pd_transformer_free(r.transformer);
    pd_arena_free(r.arena);
    PD_TRY(arena_new(&r, &plan, err));
    recipe(&r, r.arena);
    pd_arena_usage(r.arena, &used);
    cr_assert_eq(memcmp(&plan, &used, sizeof plan), 0);
    r.dstream = memory_of(&r, pd_transformer_gradient_bytes(r.transformer) + 1);
    fill_weights(&r);
    fill_input(&r);
    pd_status st = run_micro_batch(&r, err);
    if (!st) keep(&r, w->parts[comm->rank]);
    pd_transformer_free(r.transformer);
    pd_math_free(r.cpu);
    pd_arena_free(workspace);
    pd_arena_free(r.arena);
    pd_comm_free(r.tp);
    pd_comm_free(r.sp);
    free(r.terms), free(r.tied_terms);
    let_go(&r, r.weights), let_go(&r, r.gradients), let_go(&r, r.tied), let_go(&r, r.dstream);
    return st;
}

/* Boxes of tp ranks together, equal where two have the same; then the sum over sp ranks. */
static void assemble(struct world *w)
{
    const struct test_case *c = &w->c;
    const uint64_t all = w->offset[w->model->tensors.count + (c->tied ? 1 : 0)];
    for (uint64_t i = 0; i < all; i++) {
        int64_t sum = 0;
        for (uint32_t sp = 0; sp < c->sp; sp++) {
            int64_t own = NO_TERM;
            for (uint32_t tp = 0; tp < c->tp; tp++) {
                const int64_t x = w->parts[sp * c->tp + tp][i];
                if (x == NO_TERM) continue;
                cr_assert(own == NO_TERM || x == own, "element %lu differs between tp ranks", i);
                own = x;
            }
            cr_assert_neq(own, NO_TERM, "nobody has element %lu", i);
            sum += own;
        }
        w->out.gradients[i] = (float)((double)sum / TERMS_OF_ONE);
    }
}

static void run_world(struct world *w, const struct test_case *c)
{
    struct pd_error err;
    world_init(w, c);
    if (c->on_device) w->far = far_world_new(c->tp * c->sp);
    cr_assert_eq(pd_comm_run_local(c->tp * c->sp, 1, rank_main, w, &err), PD_OK, "tp %u sp %u: %s", c->tp, c->sp,
                 err.message);
    if (c->on_device) far_world_free(w->far, c->tp * c->sp);
    assemble(w);
}

static void expect_same(const struct world *a, const struct world *b)
{
    const struct test_case *c = &b->c;
    const uint64_t rows = (uint64_t)c->sequences * c->length, hidden = a->model->config.hidden;
    for (uint64_t i = 0; i < rows; i++)
        cr_assert_eq(memcmp(&a->out.losses[i], &b->out.losses[i], sizeof(float)), 0, "tp %u sp %u: loss %lu: %.9g %.9g",
                     c->tp, c->sp, i, a->out.losses[i], b->out.losses[i]);
    for (uint32_t t = a->model->tensors.count + (c->tied ? 1 : 0); t-- > 0;)
        for (uint64_t i = a->offset[t]; i < a->offset[t + 1]; i++)
            cr_assert_eq(memcmp(&a->out.gradients[i], &b->out.gradients[i], sizeof(float)), 0,
                         "tp %u sp %u (virtual %u %u, %u heads of %u): gradient of %s [%lu]: %.9g %.9g", c->tp, c->sp,
                         c->virtual_tp, c->virtual_sp, c->kv_heads, c->heads,
                         t < a->model->tensors.count ? a->model->tensors.tensors[t].name : "tied", i - a->offset[t],
                         a->out.gradients[i], b->out.gradients[i]);
    cr_assert_eq(memcmp(a->out.dstream, b->out.dstream, rows * hidden * pd_dtype_bytes(c->dtype)), 0, "dstream");
}

/* One rank with the case's numerics, then every cut of them; on_device: of the cuts. */
static void check_cuts(struct test_case c)
{
    const bool on_device = c.on_device;
    struct world one, many;
    c.tp = c.sp = 1;
    c.on_device = false;
    run_world(&one, &c);
    c.on_device = on_device;
    for (c.tp = 1; c.tp <= c.virtual_tp; c.tp *= 2)
        for (c.sp = 1; c.sp <= c.virtual_sp; c.sp *= 2) {
            if (c.tp * c.sp == 1 || c.tp * c.sp > RANKS_MAX) continue;
            run_world(&many, &c);
            expect_same(&one, &many);
            world_deinit(&many);
        }
    world_deinit(&one);
}

#define UNCUT .tp = 1, .sp = 1, .virtual_tp = 1, .virtual_sp = 1
static const struct test_case llama = {.family = PD_FAMILY_LLAMA,
                                       .heads = 6,
                                       .kv_heads = 3,
                                       .vocab = 61,
                                       .length = 24,
                                       .sequences = 2,
                                       .bias = true,
                                       .documents = true,
                                       .dtype = PD_F32,
                                       UNCUT};
static const struct test_case gpt2 = {.family = PD_FAMILY_GPT2,
                                      .heads = 6,
                                      .kv_heads = 6,
                                      .vocab = 61,
                                      .length = 30,
                                      .sequences = 2,
                                      .bias = true,
                                      .tied = true,
                                      .dtype = PD_F32,
                                      UNCUT};

static const struct test_case qwen3 = {.family = PD_FAMILY_QWEN3,
                                       .heads = 6,
                                       .kv_heads = 3,
                                       .vocab = 61,
                                       .length = 24,
                                       .sequences = 2,
                                       .documents = true,
                                       .dtype = PD_F32,
                                       UNCUT};

static struct test_case with(struct test_case c, uint32_t virtual_tp, uint32_t virtual_sp)
{
    c.virtual_tp = virtual_tp;
    c.virtual_sp = virtual_sp;
    return c;
}
