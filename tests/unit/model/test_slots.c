/* Micro-batches in several slots over pipeline chunks, any number of blocks recomputed: the same bits as micro-batch after
 * micro-batch through the whole model, and no more computed again than was asked for. */
#include "tests/helpers/families.h"
#include "trainer/model/transformer.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 5, LENGTH = 11, SEQUENCES = 2, MICRO_BATCHES = 5, ROWS = LENGTH * SEQUENCES };

struct setup {
    struct pd_model *model;
    struct pd_thread_pool *pool;
    float **weights;
    uint64_t *offset; /* of tensors in a micro-batch's gradients, then of the tied table, then the end */
};

struct recomputed {
    enum pd_recompute how;
    uint32_t layers; /* of a rank */
};

struct stage {
    struct pd_arena *arena;
    struct pd_math *math;
    struct pd_transformer *transformer;
};

static void setup_init(struct setup *s, uint32_t family)
{
    struct pd_model_config c;
    struct pd_error err;
    cr_assert_eq(pd_model_preset(family == PD_FAMILY_GPT2 ? "gpt2-124m" : "byte-1m", &c, NULL), PD_OK);
    c.family = family;
    c.vocab = 37;
    c.context = 64;
    c.layers = LAYERS;
    c.heads = 4;
    c.kv_heads = family == PD_FAMILY_GPT2 ? 4 : 2;
    c.head_size = 8;
    c.hidden = 32;
    c.ffn = 40;
    c.tie_embeddings = true;
    c.init_std = 0.2f;
    cr_assert_eq(pd_model_new(&c, &s->model, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_thread_pool_new(1, &s->pool, &err), PD_OK);
    const uint32_t tensors = s->model->tensors.count;
    s->weights = calloc(tensors, sizeof *s->weights);
    s->offset = calloc(tensors + 2, sizeof *s->offset);
    for (uint32_t t = 0; t <= tensors; t++) {
        const struct pd_tensor *tensor = &s->model->tensors.tensors[t < tensors ? t : 0];
        struct pd_box whole = pd_box_whole(tensor);
        s->offset[t + 1] = s->offset[t] + pd_tensor_elements(tensor);
        if (t == tensors) break;
        s->weights[t] = calloc(pd_tensor_elements(tensor), sizeof(float));
        pd_model_init_box(s->model, t, &whole, 3, s->weights[t]);
    }
}

static void setup_deinit(struct setup *s)
{
    for (uint32_t t = 0; t < s->model->tensors.count; t++)
        free(s->weights[t]);
    free(s->weights), free(s->offset);
    pd_thread_pool_free(s->pool);
    pd_model_free(s->model);
}

/* What is computed again is counted by two operations of a block's forward: attention in full, SwiGLU or GELU in any way. */
static const struct pd_math_ops *real;
static struct pd_math_ops counting;
static uint64_t attentions, activations;

static pd_status count_attention(struct pd_math *math, const struct pd_attention *a, struct pd_error *err)
{
    attentions++;
    return real->attention_forward(math, a, err);
}

static pd_status count_swiglu(struct pd_math *math, uint64_t rows, uint64_t columns, enum pd_dtype dtype,
                              const void *gate_up, void *out, struct pd_error *err)
{
    activations++;
    return real->swiglu_forward(math, rows, columns, dtype, gate_up, out, err);
}

static pd_status count_gelu(struct pd_math *math, uint64_t count, enum pd_dtype dtype, const void *x, void *out,
                            struct pd_error *err)
{
    activations++;
    return real->gelu_forward(math, count, dtype, x, out, err);
}

static void count_operations(struct pd_math *math)
{
    if (!real) real = math->ops;
    counting = *real;
    counting.attention_forward = count_attention;
    counting.swiglu_forward = count_swiglu;
    counting.gelu_forward = count_gelu;
    math->ops = &counting;
}

static void recipe(struct stage *g, const struct setup *s, const struct pd_transformer_options *options)
{
    struct pd_error err;
    cr_assert_eq(pd_math_cpu_new(s->pool, 1, PD_ISA_AUTO, g->arena, &g->math, &err), PD_OK);
    cr_assert_eq(pd_transformer_new(s->model, g->math, options, g->arena, &g->transformer, &err), PD_OK);
}

static void stage_init(struct stage *g, const struct setup *s, const struct pd_stage *chunks, const uint32_t *depth,
                       uint32_t count, struct recomputed recomputed, uint64_t *ret_bytes)
{
    const struct pd_transformer_options options = {.sequences = SEQUENCES,
                                                   .length = LENGTH,
                                                   .dtype = PD_F32,
                                                   .recompute = recomputed.how,
                                                   .recompute_layers = recomputed.layers,
                                                   .backward = true,
                                                   .partition = pd_partition_whole(),
                                                   .chunk_count = count,
                                                   .chunks = chunks,
                                                   .depth = depth};
    struct pd_memory_plan plan, used;
    struct pd_error err;
    cr_assert_eq(pd_arena_new_dry(&g->arena, &err), PD_OK);
    recipe(g, s, &options);
    pd_arena_usage(g->arena, &plan);
    pd_transformer_free(g->transformer);
    pd_arena_free(g->arena);
    cr_assert_eq(pd_arena_new(&plan, &g->arena, &err), PD_OK);
    recipe(g, s, &options);
    pd_arena_usage(g->arena, &used);
    cr_assert_eq(memcmp(&plan, &used, sizeof plan), 0);
    count_operations(g->math);
    *ret_bytes += pd_memory_plan_total(&plan);
}

static void stage_deinit(struct stage *g)
{
    pd_transformer_free(g->transformer);
    pd_math_free(g->math);
    pd_arena_free(g->arena);
}

static void fill(struct stage *g, const struct setup *s, uint32_t slot, uint32_t micro_batch)
{
    struct pd_micro_batch_input *in = pd_transformer_input(g->transformer, slot);
    const uint32_t vocab = s->model->config.vocab;
    for (uint32_t i = 0; i < ROWS; i++) {
        in->tokens[i] = (int32_t)((i * 7 + micro_batch * 11) % vocab);
        in->targets[i] = (int32_t)((i * 5 + micro_batch * 3 + 1) % vocab);
        in->positions[i] = (int32_t)(i % LENGTH);
        in->first[i] = 0;
    }
}

static void unit_of(const struct setup *s, uint32_t unit, float *micro_batch, void **weights, float **gradients)
{
    const struct pd_model *model = s->model;
    uint32_t count = 0;
    for (uint32_t t = model->unit_first[unit]; t < model->unit_first[unit + 1]; t++, count++) {
        weights[count] = s->weights[t];
        gradients[count] = micro_batch + s->offset[t];
    }
    if (unit < LAYERS + 1) return;
    weights[count] = s->weights[0];
    gradients[count] = micro_batch + s->offset[model->tensors.count];
}

/* Forward of a chunk; what it hands to the next chunk goes to `out`. */
static void forward(struct stage *g, const struct setup *s, const struct pd_stage *chunk, uint32_t slot, void *out)
{
    void *w[24];
    float *unused[24], micro_batch;
    struct pd_error err;
    unit_of(s, 0, &micro_batch, w, unused);
    if (chunk->has_embedding) cr_assert_eq(pd_transformer_embed(g->transformer, slot, w, &err), PD_OK);
    for (uint32_t i = 0; i < chunk->block_count; i++) {
        uint32_t block = chunk->first_block + i;
        bool last = i + 1 == chunk->block_count && !chunk->has_head;
        unit_of(s, block + 1, &micro_batch, w, unused);
        cr_assert_eq(pd_transformer_block_forward(g->transformer, slot, block, w, last ? out : NULL, &err), PD_OK);
    }
}

static void backward(struct stage *g, const struct setup *s, const struct pd_stage *chunk, uint32_t slot, void *dstream,
                     float *micro_batch, float *losses)
{
    void *w[24];
    float *gr[24];
    struct pd_error err;
    if (chunk->has_head) {
        unit_of(s, LAYERS + 1, micro_batch, w, gr);
        cr_assert_eq(pd_transformer_head(g->transformer, slot, w, gr, 1.0f, dstream, &err), PD_OK);
        cr_assert_eq(pd_transformer_losses(g->transformer, losses, &err), PD_OK);
    }
    for (uint32_t i = chunk->block_count; i-- > 0;) {
        unit_of(s, chunk->first_block + i + 1, micro_batch, w, gr);
        cr_assert_eq(pd_transformer_block_backward(g->transformer, slot, chunk->first_block + i, w, gr, dstream, &err),
                     PD_OK);
    }
    unit_of(s, 0, micro_batch, w, gr);
    if (chunk->has_embedding) cr_assert_eq(pd_transformer_embed_backward(g->transformer, slot, gr, dstream, &err), PD_OK);
}

/* Micro-batch after micro-batch through one stage of everything. Returns the bytes it takes. */
static uint64_t run_whole(const struct setup *s, struct recomputed recomputed, float **micro_batches, float (*losses)[ROWS])
{
    struct stage g;
    uint64_t bytes = 0;
    const struct pd_stage all = {0, LAYERS, true, true};
    stage_init(&g, s, NULL, NULL, 0, recomputed, &bytes);
    void *dstream = calloc(1, pd_transformer_gradient_bytes(g.transformer));
    for (uint32_t micro_batch = 0; micro_batch < MICRO_BATCHES; micro_batch++) {
        fill(&g, s, 0, micro_batch);
        forward(&g, s, &all, 0, NULL);
        backward(&g, s, &all, 0, dstream, micro_batches[micro_batch], losses[micro_batch]);
    }
    free(dstream);
    stage_deinit(&g);
    return bytes;
}

/* Two ranks of two chunks each, 0 and 2 on the first, 1 and 3 on the second. Each chunk is a micro-batch behind the one
 * before; when the last has a micro-batch, that micro-batch's backward runs at once, while younger ones are between forward
 * and backward. */
static uint64_t run_pipeline(const struct setup *s, struct recomputed recomputed, float **micro_batches,
                             float (*losses)[ROWS])
{
    static const struct pd_stage chunk[4] = {
        {0, 2, true, false}, {2, 1, false, false}, {3, 1, false, false}, {4, 1, false, true}};
    const struct pd_stage first[2] = {chunk[0], chunk[2]}, second[2] = {chunk[1], chunk[3]};
    const uint32_t first_depth[2] = {4, 2}, second_depth[2] = {3, 1};
    struct stage ranks[2];
    uint64_t taken = 0;
    stage_init(&ranks[0], s, first, first_depth, 2, recomputed, &taken);
    stage_init(&ranks[1], s, second, second_depth, 2, recomputed, &taken);
    const uint64_t bytes = pd_transformer_stream_bytes(ranks[0].transformer);
    char *dstream = calloc(1, bytes), *wire = calloc(4, bytes);
    for (uint32_t step = 0; step < MICRO_BATCHES + 3; step++) {
        for (uint32_t c = 4; c-- > 0;) {
            const uint32_t micro_batch = step - c;
            struct stage *rank = &ranks[c % 2];
            if (step < c || micro_batch >= MICRO_BATCHES) continue;
            if (c < 2) fill(rank, s, micro_batch, micro_batch);
            void *stream;
            struct pd_error err;
            cr_assert_eq(pd_transformer_stream(rank->transformer, micro_batch, chunk[c].first_block, &stream, &err), PD_OK);
            if (c > 0) memcpy(stream, wire + (c - 1) * bytes, bytes);
            forward(rank, s, &chunk[c], micro_batch, wire + c * bytes);
        }
        if (step < 3) continue;
        for (uint32_t c = 4; c-- > 0;)
            backward(&ranks[c % 2], s, &chunk[c], step - 3, dstream, micro_batches[step - 3], losses[step - 3]);
    }
    free(dstream), free(wire);
    stage_deinit(&ranks[0]);
    stage_deinit(&ranks[1]);
    return taken;
}

/* Two stages in two ranks, 1F1B: the first has a micro-batch more in flight than the second, which has one. */
static uint64_t run_stages(const struct setup *s, struct recomputed recomputed, float **micro_batches, float (*losses)[ROWS])
{
    static const struct pd_stage chunk[2] = {{0, 3, true, false}, {3, 2, false, true}};
    static const uint32_t depth[2] = {2, 1};
    struct stage ranks[2];
    uint64_t taken = 0;
    for (int i = 0; i < 2; i++)
        stage_init(&ranks[i], s, &chunk[i], &depth[i], 1, recomputed, &taken);
    char *dstream = calloc(1, pd_transformer_gradient_bytes(ranks[0].transformer));
    for (uint32_t micro_batch = 0; micro_batch <= MICRO_BATCHES; micro_batch++) {
        void *out;
        struct pd_error err;
        for (int i = 0; micro_batch < MICRO_BATCHES && i < 2; i++)
            fill(&ranks[i], s, micro_batch, micro_batch);
        cr_assert_eq(pd_transformer_stream(ranks[1].transformer, micro_batch, 3, &out, &err), PD_OK);
        if (micro_batch < MICRO_BATCHES) forward(&ranks[0], s, &chunk[0], micro_batch, out);
        if (micro_batch > 0)
            backward(&ranks[0], s, &chunk[0], micro_batch - 1, dstream, micro_batches[micro_batch - 1], NULL);
        if (micro_batch == MICRO_BATCHES) break;
        forward(&ranks[1], s, &chunk[1], micro_batch, NULL);
        backward(&ranks[1], s, &chunk[1], micro_batch, dstream, micro_batches[micro_batch], losses[micro_batch]);
    }
    free(dstream);
    stage_deinit(&ranks[0]);
    stage_deinit(&ranks[1]);
    return taken;
}

typedef uint64_t run_fn(const struct setup *s, struct recomputed recomputed, float **micro_batches, float (*losses)[ROWS]);

struct results {
    float *micro_batches[MICRO_BATCHES], losses[MICRO_BATCHES][ROWS];
};

static uint64_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Any number of blocks that are recomputed has the bits of none, and one more never takes more memory. blocks: of the first
 * rank; the second, if there is one, has the others. */
static void check_layers(const struct setup *s, run_fn *run, uint32_t blocks, enum pd_recompute how,
                         const struct results *expected, struct results *got)
{
    const uint64_t all = s->offset[s->model->tensors.count + 1];
    uint64_t before = UINT64_MAX;
    for (uint32_t layers = 0; layers <= LAYERS; layers++) {
        const uint64_t again = MICRO_BATCHES * (least(layers, blocks) + least(layers, LAYERS - blocks));
        attentions = activations = 0;
        const uint64_t bytes = run(s, (struct recomputed){how, layers}, got->micro_batches, got->losses);
        cr_expect_eq(activations, MICRO_BATCHES * LAYERS + again, "%u blocks recomputed", layers);
        cr_expect_eq(attentions, MICRO_BATCHES * LAYERS + (how == PD_RECOMPUTE_FULL ? again : 0), "%u blocks recomputed",
                     layers);
        cr_expect_leq(bytes, before, "%u blocks recomputed take more than %u", layers, layers - 1);
        if (blocks == LAYERS && layers && layers < LAYERS)
            cr_expect_lt(bytes, before, "micro-batch after micro-batch each block counts");
        before = bytes;
        for (int i = 0; i < MICRO_BATCHES; i++) {
            cr_assert_arr_eq(got->losses[i], expected->losses[i], sizeof got->losses[i], "%u: losses of micro-batch %d",
                             layers, i);
            cr_assert_arr_eq(got->micro_batches[i], expected->micro_batches[i], all * sizeof(float),
                             "%u: gradients of micro-batch %d", layers, i);
            memset(got->micro_batches[i], 0, all * sizeof(float));
        }
    }
    cr_expect_lt(before, run(s, (struct recomputed){how, 0}, got->micro_batches, got->losses));
}

static void check(uint32_t family)
{
    struct setup s;
    struct results expected, got;
    setup_init(&s, family);
    const uint64_t all = s.offset[s.model->tensors.count + 1];
    for (int i = 0; i < MICRO_BATCHES; i++) {
        expected.micro_batches[i] = calloc(all, sizeof(float));
        got.micro_batches[i] = calloc(all, sizeof(float));
    }
    run_whole(&s, (struct recomputed){PD_RECOMPUTE_NONE, PD_LAYERS_ALL}, expected.micro_batches, expected.losses);
    for (int how = PD_RECOMPUTE_SELECTIVE; how <= PD_RECOMPUTE_FULL; how++) {
        check_layers(&s, run_whole, LAYERS, (enum pd_recompute)how, &expected, &got);
        check_layers(&s, run_pipeline, 3, (enum pd_recompute)how, &expected, &got);
        check_layers(&s, run_stages, 3, (enum pd_recompute)how, &expected, &got);
    }
    for (int i = 0; i < MICRO_BATCHES; i++)
        free(expected.micro_batches[i]), free(got.micro_batches[i]);
    setup_deinit(&s);
}

Test(transformer_slots, llama)
{
    check(PD_FAMILY_LLAMA);
}

Test(transformer_slots, gpt2)
{
    check(PD_FAMILY_GPT2);
}

Test(transformer_slots, qwen3)
{
    check(PD_FAMILY_QWEN3);
}
