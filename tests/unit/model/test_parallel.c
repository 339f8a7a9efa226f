/* One micro-batch through a model cut by heads, ffn columns, vocabulary rows and token pieces: ranks as threads against one
 * rank with the same numerics, bit for bit; and the numerics against one another by value. */
#include "tests/helpers/device_math.h"
#include "trainer/model/transformer.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS_MAX = 8, TENSORS_MAX = 40, BOXES_MAX = 8 };

struct test_case {
    enum pd_family family;
    uint32_t heads, kv_heads, vocab, length, sequences;
    bool bias, tied, documents;
    enum pd_dtype dtype;
    enum pd_recompute recompute;
    uint32_t tp, sp, virtual_tp, virtual_sp;
    bool on_device; /* in memory that the host cannot touch */
    uint32_t logits_columns;
    bool halves;
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
    float *parts[RANKS_MAX];   /* gradients of each rank, NaN elsewhere */
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
        w->parts[r] = malloc(all * sizeof(float));
        memset(w->parts[r], 0xFF, all * sizeof(float));
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
    void *weight[TENSORS_MAX];
    float *gradient[TENSORS_MAX];
    void *dstream;
};

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
                                                   .logits_columns = c->logits_columns,
                                                   .on_device = c->on_device,
                                                   .halves = c->halves,
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

static void box_in(const struct pd_tensor *t, const struct pd_box *b, const float *src, float *dense)
{
    uint64_t columns = t->ndim == 2 ? t->shape[1] : 1, n = t->ndim == 2 ? b->count[1] : 1;
    for (uint64_t i = 0; i < b->count[0]; i++)
        memcpy(dense + (b->start[0] + i) * columns + (t->ndim == 2 ? b->start[1] : 0), src + i * n, n * sizeof(float));
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
    r->tied = memory_of(r, pd_tensor_elements(&w->model->tensors.tensors[0]) * sizeof(float));
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

static void keep_gradients(struct rank *r, float *part)
{
    struct world *w = r->w;
    const uint32_t tensors = w->model->tensors.count;
    for (uint32_t t = 0; t <= tensors; t++) {
        const uint32_t index = t < tensors ? t : 0;
        const float *src = t < tensors ? r->gradient[t] : r->tied;
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

static void keep(struct rank *r, float *part)
{
    float *losses = calloc(pd_transformer_rows(r->transformer), sizeof *losses);
    struct pd_error err;
    cr_assert_eq(pd_transformer_losses(r->transformer, losses, &err), PD_OK, "%s", err.message);
    if (r->far) far_open(r->far);
    keep_rows(r, losses);
    keep_gradients(r, part);
    if (r->far) far_close(r->far);
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
    let_go(&r, r.weights), let_go(&r, r.gradients), let_go(&r, r.tied), let_go(&r, r.dstream);
    return st;
}

static bool is_written(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits != 0xFFFFFFFFu;
}

/* Boxes of tp ranks together, equal where two have the same; then the tree over sp ranks. */
static void assemble(struct world *w)
{
    const struct test_case *c = &w->c;
    const uint64_t all = w->offset[w->model->tensors.count + (c->tied ? 1 : 0)];
    for (uint64_t i = 0; i < all; i++) {
        float sums[RANKS_MAX];
        for (uint32_t sp = 0; sp < c->sp; sp++) {
            bool found = false;
            for (uint32_t tp = 0; tp < c->tp; tp++) {
                float x = w->parts[sp * c->tp + tp][i];
                if (!is_written(x)) continue;
                cr_assert(!found || !memcmp(&x, &sums[sp], sizeof x), "element %lu differs between tp ranks", i);
                sums[sp] = x;
                found = true;
            }
            cr_assert(found, "nobody has element %lu", i);
        }
        for (uint32_t width = 1; width < c->sp; width *= 2)
            for (uint32_t sp = 0; sp + width < c->sp; sp += 2 * width)
                sums[sp] += sums[sp + width];
        w->out.gradients[i] = sums[0];
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

Test(transformer_parallel, tensor_llama)
{
    for (uint32_t virtual_tp = 2; virtual_tp <= 8; virtual_tp *= 2)
        check_cuts(with(llama, virtual_tp, 1));
}

Test(transformer_parallel, tensor_gpt2)
{
    for (uint32_t virtual_tp = 2; virtual_tp <= 8; virtual_tp *= 2)
        check_cuts(with(gpt2, virtual_tp, 1));
}

/* Key-value heads over more ranks than there are of them, and ranks without any head. */
Test(transformer_parallel, shared_key_value_heads)
{
    static const uint32_t heads[][2] = {{12, 3}, {6, 1}, {5, 5}, {3, 3}, {8, 2}, {3, 1}};
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        struct test_case c = llama;
        c.heads = heads[i][0];
        c.kv_heads = heads[i][1];
        c.tied = i % 2;
        for (uint32_t virtual_tp = 4; virtual_tp <= 8; virtual_tp *= 2)
            check_cuts(with(c, virtual_tp, 1));
    }
}

/* The weights of norms of heads are sums over the heads of all ranks: of some that have none, of chunks whose key-value heads
 * another computes. */
Test(transformer_parallel, norms_of_heads)
{
    static const uint32_t heads[][2] = {{6, 3}, {12, 3}, {6, 1}, {5, 5}, {3, 3}};
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        struct test_case c = qwen3;
        c.heads = heads[i][0];
        c.kv_heads = heads[i][1];
        for (uint32_t virtual_tp = 2; virtual_tp <= 8; virtual_tp *= 2)
            check_cuts(with(c, virtual_tp, 1));
    }
    check_cuts(with(qwen3, 1, 4));
    struct test_case c = qwen3;
    c.dtype = PD_BF16;
    c.recompute = PD_RECOMPUTE_SELECTIVE;
    check_cuts(with(c, 4, 2));
    c.on_device = true;
    c.recompute = PD_RECOMPUTE_FULL;
    check_cuts(with(c, 2, 2));
}

Test(transformer_parallel, sequence_llama)
{
    for (uint32_t virtual_sp = 2; virtual_sp <= 8; virtual_sp *= 2)
        check_cuts(with(llama, 1, virtual_sp));
}

Test(transformer_parallel, sequence_gpt2)
{
    for (uint32_t virtual_sp = 2; virtual_sp <= 4; virtual_sp *= 2)
        check_cuts(with(gpt2, 1, virtual_sp));
}

/* As many key-value heads as ranks: rows are exchanged for heads. With 8 ranks there are too few. */
Test(transformer_parallel, sequence_by_heads)
{
    struct test_case c = llama;
    c.heads = 8;
    c.kv_heads = 4;
    c.length = 32;
    for (uint32_t virtual_sp = 2; virtual_sp <= 8; virtual_sp *= 2)
        check_cuts(with(c, 1, virtual_sp));
    check_cuts(with(c, 2, 2));
    c.documents = false;
    c.sequences = 1;
    c.dtype = PD_BF16;
    c.recompute = PD_RECOMPUTE_SELECTIVE;
    check_cuts(with(c, 4, 2));
    c.family = PD_FAMILY_QWEN3;
    c.bias = false;
    c.documents = true;
    c.sequences = 2;
    c.on_device = true;
    c.recompute = PD_RECOMPUTE_FULL;
    c.heads = 16; /* a chunk has half of the queries of a key-value head */
    check_cuts(with(c, 8, 2));
    c.kv_heads = 16;
    check_cuts(with(c, 2, 4));
}

Test(transformer_parallel, both)
{
    struct test_case c = llama;
    c.heads = 12;
    check_cuts(with(c, 2, 2));
    check_cuts(with(c, 4, 2));
    check_cuts(with(gpt2, 2, 4));
}

Test(transformer_parallel, half_precision)
{
    for (int dtype = 0; dtype < 2; dtype++) {
        struct test_case c = llama;
        c.heads = 12;
        c.dtype = dtype ? PD_F16 : PD_BF16;
        check_cuts(with(c, 4, 1));
        check_cuts(with(c, 2, 2));
    }
}

Test(transformer_parallel, recomputed)
{
    struct test_case c = llama;
    c.recompute = PD_RECOMPUTE_FULL;
    check_cuts(with(c, 2, 2));
    c.recompute = PD_RECOMPUTE_SELECTIVE;
    check_cuts(with(c, 2, 2));
}

/* Ranks whose memory the host cannot touch: only operations and communicators go there. */
Test(transformer_parallel, far)
{
    struct test_case c = llama;
    c.on_device = true;
    c.heads = 12;
    check_cuts(with(c, 4, 2));
    c.kv_heads = 1;
    c.dtype = PD_BF16;
    check_cuts(with(c, 2, 2));
    c = gpt2;
    c.on_device = true;
    c.recompute = PD_RECOMPUTE_SELECTIVE;
    check_cuts(with(c, 8, 1));
    check_cuts(with(c, 2, 4));
}

/* Fewer rows than ranks. */
Test(transformer_parallel, few_rows)
{
    struct test_case c = llama;
    c.sequences = 1;
    c.length = 5;
    check_cuts(with(c, 8, 1));
    check_cuts(with(c, 4, 2));
}

/* Rows that go window by window, and other windows with other ranks. */
Test(transformer_parallel, windows)
{
    struct test_case c = llama;
    c.sequences = 250;
    check_cuts(with(c, 8, 1));
}

/* A device's window is the whole micro-batch: rows to all, terms to those who keep the rows, twice. Recomputed in full, forward
 * comes again but for its end. Gradients of weights are multiplied behind three of those of backward, and one of the head's. */
Test(transformer_parallel, a_block_makes_four_exchanges_each_way)
{
    static const uint32_t in_backward[] = {[PD_RECOMPUTE_NONE] = 4, [PD_RECOMPUTE_SELECTIVE] = 4, [PD_RECOMPUTE_FULL] = 7};
    for (int recompute = PD_RECOMPUTE_NONE; recompute <= PD_RECOMPUTE_FULL; recompute++) {
        struct test_case c = with(llama, 8, 1);
        struct world w;
        c.heads = c.kv_heads = 8;
        c.on_device = true;
        c.recompute = (enum pd_recompute)recompute;
        c.tp = 8;
        run_world(&w, &c);
        cr_expect_eq(w.exchanges[0], 4, "%u", w.exchanges[0]);
        cr_expect_eq(w.exchanges[1], in_backward[recompute], "%d: %u", recompute, w.exchanges[1]);
        cr_expect_eq(w.hidden[0], 0, "%d: %u", recompute, w.hidden[0]);
        cr_expect_eq(w.hidden[1], 3, "%d: %u", recompute, w.hidden[1]);
        cr_expect_eq(w.hidden[2], 1, "%d: %u", recompute, w.hidden[2]);
        world_deinit(&w);
    }
}

/* By halves there are twice as many exchanges. In forward nothing is multiplied behind the first half's first and the second
 * half's last; with one sequence, whose attention needs both halves, nor behind the terms of the first half's attention. In
 * backward all but the last of the MLP's have something. */
Test(transformer_parallel, halves_hide_exchanges)
{
    for (uint32_t sequences = 1; sequences <= 3; sequences++) {
        struct test_case c = with(llama, 8, 1);
        struct world w;
        c.heads = c.kv_heads = 8;
        c.on_device = c.halves = true;
        c.sequences = sequences;
        c.length = 40;
        c.tp = 8;
        run_world(&w, &c);
        cr_expect_eq(w.exchanges[0], 8, "%u: %u", sequences, w.exchanges[0]);
        cr_expect_eq(w.exchanges[1], 8, "%u: %u", sequences, w.exchanges[1]);
        cr_expect_eq(w.hidden[0], sequences == 1 ? 5 : 6, "%u: %u", sequences, w.hidden[0]);
        cr_expect_eq(w.hidden[1], 7, "%u: %u", sequences, w.hidden[1]);
        world_deinit(&w);
    }
}

/* One sequence, an even number and an odd one; on a CPU several windows a half; pieces of sequences; all that forward does. */
Test(transformer_parallel, halves)
{
    struct test_case c = llama;
    c.halves = true;
    c.heads = 12;
    for (uint32_t sequences = 1; sequences <= 4; sequences++)
        for (int on_device = 0; on_device < 2; on_device++) {
            c.sequences = sequences;
            c.on_device = on_device;
            c.recompute = (enum pd_recompute)(sequences % 3);
            check_cuts(with(c, 4, 1));
            check_cuts(with(c, 2, 2));
        }
    c.on_device = false;
    c.sequences = 251;
    check_cuts(with(c, 8, 1));
    c = qwen3;
    c.halves = c.on_device = true;
    c.sequences = 5;
    c.dtype = PD_BF16;
    c.recompute = PD_RECOMPUTE_FULL;
    check_cuts(with(c, 4, 1));
    c = gpt2;
    c.halves = c.on_device = true;
    c.length = 5;
    c.sequences = 1; /* too few rows for halves */
    check_cuts(with(c, 8, 1));
    c.sequences = 2;
    check_cuts(with(c, 8, 1));
}

/* Logits of one rank do not fit at once, those of two do. */
Test(transformer_parallel, runs_of_logits)
{
    struct test_case c = llama;
    c.sequences = 30;
    c.vocab = 50257;
    check_cuts(with(c, 2, 1));
}

/* Logits that exist for some columns at a time: chunks of one, of several, with a remainder, empty ones; several runs of rows. */
Test(transformer_parallel, logits_of_columns)
{
    static const uint32_t columns[] = {5, 8, 400};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        struct test_case c = llama;
        c.logits_columns = columns[i];
        check_cuts(with(c, 8, 1));
        c.on_device = true;
        check_cuts(with(c, 4, 2));
        c = gpt2;
        c.logits_columns = columns[i];
        check_cuts(with(c, 2, 4));
        c.vocab = 5; /* of 8 chunks */
        check_cuts(with(c, 8, 1));
    }
    struct test_case c = llama;
    c.sequences = 30;
    c.vocab = 50257;
    c.logits_columns = PD_LOGITS_COLUMNS;
    check_cuts(with(c, 2, 1));
}

static void expect_same_numerics(struct test_case a, struct test_case b)
{
    struct world one, other;
    run_world(&one, &a);
    run_world(&other, &b);
    expect_same(&one, &other);
    world_deinit(&one);
    world_deinit(&other);
}

/* On a CPU nothing else makes a difference but the sums of exponentials, which have one part then. */
Test(transformer_parallel, logits_of_all_columns_have_the_bits_of_rows)
{
    const struct test_case *all[] = {&llama, &gpt2, &qwen3};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct test_case c = *all[i];
        c.logits_columns = c.vocab;
        expect_same_numerics(*all[i], c);
        c.logits_columns = 8192;
        expect_same_numerics(*all[i], c);
    }
}

/* Other numerics round elsewhere and compute the same. */
static void check_same_values(const struct test_case *c, const struct test_case *other)
{
    struct world whole, cut;
    const uint32_t virtual_tp = other->virtual_tp, virtual_sp = other->virtual_sp;
    run_world(&whole, c);
    run_world(&cut, other);
    for (uint64_t i = 0; i < (uint64_t)c->sequences * c->length; i++)
        cr_assert_float_eq(whole.out.losses[i], cut.out.losses[i], 2e-5, "loss %lu", i);
    const uint32_t tensors = whole.model->tensors.count;
    for (uint32_t t = 0; t < tensors + (c->tied ? 1 : 0); t++) {
        float largest = 0.1f;
        for (uint64_t i = whole.offset[t]; i < whole.offset[t + 1]; i++)
            largest = fmaxf(largest, fabsf(whole.out.gradients[i]));
        for (uint64_t i = whole.offset[t]; i < whole.offset[t + 1]; i++)
            cr_assert_lt(fabsf(whole.out.gradients[i] - cut.out.gradients[i]), 2e-5f * largest,
                         "virtual %u %u: tensor %u [%lu]: %.9g %.9g", virtual_tp, virtual_sp, t, i - whole.offset[t],
                         whole.out.gradients[i], cut.out.gradients[i]);
    }
    world_deinit(&whole);
    world_deinit(&cut);
}

static void check_values(const struct test_case *c, uint32_t virtual_tp, uint32_t virtual_sp)
{
    struct test_case other = with(*c, virtual_tp, virtual_sp);
    check_same_values(c, &other);
    for (other.logits_columns = 3; other.logits_columns < 80; other.logits_columns *= 5)
        check_same_values(c, &other);
}

Test(transformer_parallel, values)
{
    static const uint32_t numerics[][2] = {{2, 1}, {8, 1}, {1, 2}, {1, 8}, {4, 4}};
    for (size_t i = 0; i < sizeof numerics / sizeof numerics[0]; i++) {
        check_values(&llama, numerics[i][0], numerics[i][1]);
        check_values(&gpt2, numerics[i][0], numerics[i][1]);
        check_values(&qwen3, numerics[i][0], numerics[i][1]);
    }
}
