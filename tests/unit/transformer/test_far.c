/* Memory that the host cannot touch stands for a device's: it may be read and written while an operation of the table runs,
 * and at no other time. So a step of a whole model shows that only operations go there, and its bits are those of a step in
 * plain memory. */
#include "ckpt/base/arena.h"
#include "trainer/model/transformer.h"

#include <criterion/criterion.h>
#include <string.h>
#include <sys/mman.h>

enum { LENGTH = 21, SEQUENCES = 2, ROWS = LENGTH * SEQUENCES, REGIONS = 16, UNIT_TENSORS = 24, THREADS = 2 };

/* ---- memory that is there for operations alone ---- */

static struct region {
    void *data;
    uint64_t bytes;
    bool is_host; /* the arena's part of it: no operation but a copy reads it */
} regions[REGIONS];
static uint32_t region_count;

static void protect(int device, int host)
{
    for (uint32_t i = 0; i < region_count; i++)
        cr_assert_eq(mprotect(regions[i].data, regions[i].bytes, regions[i].is_host ? host : device), 0);
}

static void operations_only(void)
{
    protect(PROT_READ | PROT_WRITE, PROT_NONE);
}

static void host_only(void)
{
    protect(PROT_NONE, PROT_READ | PROT_WRITE);
}

static void *memory_of(uint64_t bytes, bool is_host)
{
    bytes = (bytes + 4095) / 4096 * 4096;
    cr_assert_lt(region_count, REGIONS);
    void *data = mmap(NULL, bytes, is_host ? PROT_READ | PROT_WRITE : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(data, MAP_FAILED);
    regions[region_count++] = (struct region){data, bytes, is_host};
    return data;
}

static pd_status far_map(void *context, bool is_host, uint64_t bytes, void **ret_data, struct pd_error *err)
{
    (void)context;
    (void)err;
    *ret_data = memory_of(bytes, is_host);
    return PD_OK;
}

static void far_unmap(void *context, bool is_host, void *data, uint64_t bytes)
{
    (void)context;
    (void)is_host;
    munmap(data, bytes);
}

static const struct pd_arena_source far_source = {far_map, far_unmap, NULL};

/* ---- the CPU's table, which opens it ---- */

static struct pd_math *near_math;

#define FAR_SLOT(name, operands)                                                                  \
    static pd_status far_##name(struct pd_math *math, const operands *what, struct pd_error *err) \
    {                                                                                             \
        (void)math;                                                                               \
        operations_only();                                                                        \
        const pd_status st = near_math->ops->name(near_math, what, err);                          \
        host_only();                                                                              \
        return st;                                                                                \
    }
#define FAR_CALL(name, parameters, ...)                                         \
    static pd_status far_##name parameters                                      \
    {                                                                           \
        (void)math;                                                             \
        operations_only();                                                      \
        const pd_status st = near_math->ops->name(near_math, __VA_ARGS__, err); \
        host_only();                                                            \
        return st;                                                              \
    }

FAR_SLOT(gemm, struct pd_gemm)
FAR_SLOT(rmsnorm_forward, struct pd_norm)
FAR_SLOT(rmsnorm_backward, struct pd_norm)
FAR_SLOT(layernorm_forward, struct pd_norm)
FAR_SLOT(layernorm_backward, struct pd_norm)
FAR_SLOT(rope, struct pd_rope)
FAR_SLOT(attention_forward, struct pd_attention)
FAR_SLOT(attention_backward, struct pd_attention)
FAR_SLOT(attention_delta, struct pd_attention)
FAR_SLOT(attention_backward_queries, struct pd_attention)
FAR_SLOT(attention_backward_keys, struct pd_attention)
FAR_SLOT(finish, struct pd_finish)
FAR_SLOT(embedding_forward, struct pd_embedding)
FAR_SLOT(embedding_backward, struct pd_embedding)
FAR_SLOT(logits_max, struct pd_cross_entropy)
FAR_SLOT(logits_sum, struct pd_cross_entropy)
FAR_SLOT(cross_entropy, struct pd_cross_entropy)
FAR_CALL(swiglu_forward,
         (struct pd_math * math, uint64_t rows, uint64_t columns, enum pd_dtype dtype, const void *gate_up, void *out,
          struct pd_error *err),
         rows, columns, dtype, gate_up, out)
FAR_CALL(swiglu_backward,
         (struct pd_math * math, uint64_t rows, uint64_t columns, enum pd_dtype dtype, const void *gate_up, const void *dout,
          void *dgate_up, struct pd_error *err),
         rows, columns, dtype, gate_up, dout, dgate_up)
FAR_CALL(gelu_forward,
         (struct pd_math * math, uint64_t count, enum pd_dtype dtype, const void *x, void *out, struct pd_error *err), count,
         dtype, x, out)
FAR_CALL(gelu_backward,
         (struct pd_math * math, uint64_t count, enum pd_dtype dtype, const void *x, const void *dout, void *dx,
          struct pd_error *err),
         count, dtype, x, dout, dx)
FAR_CALL(column_sum,
         (struct pd_math * math, uint64_t rows, uint64_t n, uint64_t ld, enum pd_dtype dtype, const void *x, float *out,
          struct pd_error *err),
         rows, n, ld, dtype, x, out)
FAR_CALL(add,
         (struct pd_math * math, uint64_t n, float *sum, enum pd_dtype dtype, const void *piece, bool first,
          struct pd_error *err),
         n, sum, dtype, piece, first)
FAR_CALL(cast,
         (struct pd_math * math, uint64_t n, enum pd_dtype dst_dtype, void *dst, enum pd_dtype src_dtype, const void *src,
          struct pd_error *err),
         n, dst_dtype, dst, src_dtype, src)
FAR_CALL(row_squares,
         (struct pd_math * math, uint64_t rows, uint64_t columns, const float *x, double *sums, struct pd_error *err), rows,
         columns, x, sums)
FAR_CALL(adam,
         (struct pd_math * math, const struct pd_adam_step *step, const struct pd_adam_range *range, struct pd_error *err),
         step, range)
static pd_status far_copy(struct pd_math *math, void *dst, const void *src, uint64_t bytes, struct pd_error *err)
{
    (void)math;
    protect(PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE);
    const pd_status st = near_math->ops->copy(near_math, dst, src, bytes, err);
    host_only();
    return st;
}

static pd_status far_sync(struct pd_math *math, struct pd_error *err)
{
    (void)math;
    (void)err;
    return PD_OK;
}

static void far_free(struct pd_math *math)
{
    (void)math;
}

#define SLOT(name) .name = far_##name
static const struct pd_math_ops far_ops = {.name = "far",
                                           SLOT(gemm),
                                           SLOT(rmsnorm_forward),
                                           SLOT(rmsnorm_backward),
                                           SLOT(layernorm_forward),
                                           SLOT(layernorm_backward),
                                           SLOT(rope),
                                           SLOT(attention_forward),
                                           SLOT(attention_backward),
                                           SLOT(attention_delta),
                                           SLOT(attention_backward_queries),
                                           SLOT(attention_backward_keys),
                                           SLOT(finish),
                                           SLOT(swiglu_forward),
                                           SLOT(swiglu_backward),
                                           SLOT(gelu_forward),
                                           SLOT(gelu_backward),
                                           SLOT(embedding_forward),
                                           SLOT(embedding_backward),
                                           SLOT(logits_max),
                                           SLOT(logits_sum),
                                           SLOT(cross_entropy),
                                           SLOT(column_sum),
                                           SLOT(add),
                                           SLOT(cast),
                                           SLOT(row_squares),
                                           SLOT(adam),
                                           SLOT(copy),
                                           SLOT(sync),
                                           SLOT(free)};

/* ---- a model in either memory ---- */

struct side {
    bool is_far;
    struct pd_model *model;
    struct pd_thread_pool *pool;
    struct pd_arena *arena, *math_arena;
    struct pd_math *cpu, far, *math;
    struct pd_transformer *transformer;
    float *weights, *gradient;
    void *dstream;
};

static struct pd_model_config tiny(enum pd_family family)
{
    struct pd_model_config c;
    cr_assert_eq(pd_model_preset(family == PD_FAMILY_LLAMA ? "byte-1m" : "gpt2-124m", &c, NULL), PD_OK);
    c.family = family;
    c.vocab = 37;
    c.context = 64;
    c.layers = 2;
    c.heads = 4;
    c.kv_heads = family == PD_FAMILY_LLAMA ? 2 : 4;
    c.head_size = 8;
    c.hidden = 32;
    c.ffn = 40;
    c.qkv_bias = family == PD_FAMILY_GPT2;
    c.tie_embeddings = false;
    c.init_std = 0.2f;
    return c;
}

static void make_math(struct side *s)
{
    struct pd_arena *dry;
    struct pd_memory_plan plan;
    cr_assert_eq(pd_arena_new_dry(&dry, NULL), PD_OK);
    cr_assert_eq(pd_math_cpu_new(s->pool, THREADS, PD_NUMERICS_INVARIANT, PD_ISA_AUTO, dry, &s->cpu, NULL), PD_OK);
    pd_arena_usage(dry, &plan);
    pd_arena_free(dry);
    cr_assert_eq(pd_arena_new(&plan, &s->math_arena, NULL), PD_OK);
    cr_assert_eq(pd_math_cpu_new(s->pool, THREADS, PD_NUMERICS_INVARIANT, PD_ISA_AUTO, s->math_arena, &s->cpu, NULL), PD_OK);
    s->far = *s->cpu;
    s->far.ops = &far_ops;
    s->math = s->is_far ? &s->far : s->cpu;
    if (s->is_far) near_math = s->cpu;
}

static void make_transformer(struct side *s, uint32_t virtual_tp, enum pd_recompute recompute)
{
    struct pd_transformer_options options = {.sequences = SEQUENCES,
                                             .length = LENGTH,
                                             .dtype = PD_F32,
                                             .recompute = recompute,
                                             .separate_documents = true,
                                             .backward = true,
                                             .is_far = s->is_far,
                                             .partition = pd_partition_whole()};
    struct pd_arena *dry;
    struct pd_memory_plan plan, used;
    struct pd_error err;
    options.partition.virtual_tp = virtual_tp;
    cr_assert_eq(pd_arena_new_dry(&dry, NULL), PD_OK);
    cr_assert_eq(pd_transformer_new(s->model, NULL, &options, dry, &s->transformer, &err), PD_OK, "%s", err.message);
    pd_arena_usage(dry, &plan);
    pd_transformer_free(s->transformer);
    pd_arena_free(dry);
    cr_assert_eq(s->is_far ? pd_arena_new_on(&plan, &far_source, &s->arena, &err) : pd_arena_new(&plan, &s->arena, &err),
                 PD_OK);
    cr_assert_eq(pd_transformer_new(s->model, s->math, &options, s->arena, &s->transformer, &err), PD_OK, "%s", err.message);
    pd_arena_usage(s->arena, &used);
    cr_assert_eq(memcmp(&plan, &used, sizeof plan), 0, "what was taken is what was planned");
}

static void *memory(const struct side *s, uint64_t bytes)
{
    return s->is_far ? memory_of(bytes, false) : calloc(1, bytes);
}

static void start(struct side *s, bool is_far, enum pd_family family, uint32_t virtual_tp, enum pd_recompute recompute)
{
    const struct pd_model_config config = tiny(family);
    struct pd_error err;
    *s = (struct side){.is_far = is_far};
    cr_assert_eq(pd_model_new(&config, &s->model, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_thread_pool_new(THREADS, &s->pool, &err), PD_OK);
    make_math(s);
    make_transformer(s, virtual_tp, recompute);
    const uint64_t bytes = s->model->parameter_count * sizeof(float);
    float *initial = calloc(1, bytes), *at = initial;
    for (uint32_t t = 0; t < s->model->tensors.count; t++) {
        const struct pd_box whole = pd_box_whole(&s->model->tensors.tensors[t]);
        pd_model_init_box(s->model, t, &whole, 7, at);
        at += pd_box_elements(&whole);
    }
    s->weights = memory(s, bytes);
    s->gradient = memory(s, bytes);
    s->dstream = memory(s, pd_transformer_stream_bytes(s->transformer));
    cr_assert_eq(pd_math_copy(s->math, s->weights, initial, bytes, &err), PD_OK);
    free(initial);
    struct pd_leaf_input *in = pd_transformer_input(s->transformer, 0);
    for (int i = 0; i < ROWS; i++) {
        const int t = i % LENGTH, document = t < 9 ? 0 : 9;
        in->tokens[i] = (i * 7 + i / 3) % (int)config.vocab;
        in->targets[i] = t == 8 ? -1 : (i * 5 + 3) % (int)config.vocab;
        in->positions[i] = t - document;
        in->first[i] = document;
    }
    cr_assert_eq(pd_transformer_input_filled(s->transformer, 0, &err), PD_OK);
}

static void unit_pointers(struct side *s, uint32_t unit, void **weights, float **gradients)
{
    uint64_t offset = 0;
    for (uint32_t t = 0; t < s->model->unit_first[unit]; t++)
        offset += pd_tensor_elements(&s->model->tensors.tensors[t]);
    for (uint32_t t = s->model->unit_first[unit], i = 0; t < s->model->unit_first[unit + 1]; t++, i++) {
        weights[i] = s->weights + offset;
        gradients[i] = s->gradient + offset;
        offset += pd_tensor_elements(&s->model->tensors.tensors[t]);
    }
}

#define DONE(call) cr_assert_eq(call, PD_OK, "%s: %s", #call, err.message)

/* Losses, then gradients, in host memory. */
static float *run(struct side *s)
{
    void *w[UNIT_TENSORS];
    float *g[UNIT_TENSORS], *result = calloc(ROWS + s->model->parameter_count, sizeof *result);
    struct pd_error err;
    const uint32_t layers = s->model->config.layers;
    unit_pointers(s, 0, w, g);
    DONE(pd_transformer_embed(s->transformer, 0, w, &err));
    for (uint32_t i = 0; i < layers; i++) {
        unit_pointers(s, i + 1, w, g);
        DONE(pd_transformer_block_forward(s->transformer, 0, i, w, NULL, &err));
    }
    unit_pointers(s, layers + 1, w, g);
    DONE(pd_transformer_head(s->transformer, 0, w, g, 1.0f, s->dstream, &err));
    DONE(pd_math_sync(s->math, &err));
    memcpy(result, pd_transformer_losses(s->transformer), ROWS * sizeof *result);
    for (uint32_t i = layers; i-- > 0;) {
        unit_pointers(s, i + 1, w, g);
        DONE(pd_transformer_block_backward(s->transformer, 0, i, w, g, s->dstream, &err));
    }
    unit_pointers(s, 0, w, g);
    DONE(pd_transformer_embed_backward(s->transformer, 0, g, s->dstream, &err));
    DONE(pd_math_copy(s->math, result + ROWS, s->gradient, s->model->parameter_count * sizeof *result, &err));
    return result;
}

static void check(enum pd_family family, uint32_t virtual_tp, enum pd_recompute recompute)
{
    struct side near, far;
    start(&near, false, family, virtual_tp, recompute);
    start(&far, true, family, virtual_tp, recompute);
    float *expected = run(&near), *found = run(&far);
    cr_assert_gt(expected[0], 0.0f);
    cr_assert_arr_eq(found, expected, (ROWS + near.model->parameter_count) * sizeof *found);
}

Test(far, llama)
{
    check(PD_FAMILY_LLAMA, 1, PD_RECOMPUTE_NONE);
}

Test(far, gpt2_recomputed)
{
    check(PD_FAMILY_GPT2, 1, PD_RECOMPUTE_FULL);
}

Test(far, chunks_of_one_rank)
{
    check(PD_FAMILY_LLAMA, 2, PD_RECOMPUTE_SELECTIVE);
}

Test(far, what_cannot_be_far_is_refused)
{
    const struct pd_model_config config = tiny(PD_FAMILY_LLAMA);
    struct pd_transformer_options options = {
        .sequences = 1, .length = LENGTH, .dtype = PD_F32, .is_far = true, .partition = pd_partition_whole()};
    struct pd_model *model;
    struct pd_transformer *t;
    struct pd_arena *dry;
    struct pd_error err;
    cr_assert_eq(pd_model_new(&config, &model, &err), PD_OK);
    cr_assert_eq(pd_arena_new_dry(&dry, &err), PD_OK);
    options.activations_in_files = true;
    cr_assert_eq(pd_transformer_new(model, NULL, &options, dry, &t, &err), PD_UNSUPPORTED);
    cr_assert_not_null(strstr(err.message, "offload.activations"));
    options.activations_in_files = false;
    options.partition.tp = options.partition.virtual_tp = 2;
    cr_assert_eq(pd_transformer_new(model, NULL, &options, dry, &t, &err), PD_UNSUPPORTED);
    cr_assert_not_null(strstr(err.message, "layout.tp"));
}
