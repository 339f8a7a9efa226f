/* Memory that the host cannot touch stands for a device's: it may be read and written while an operation of the table runs,
 * and at no other time. So a step of a whole model shows that only operations go there, and its bits are those of a step in
 * plain memory. */
#include "tests/helpers/device_math.h"
#include "tests/helpers/families.h"
#include "trainer/model/transformer.h"

#include <criterion/criterion.h>

enum { LENGTH = 21, SEQUENCES = 2, ROWS = LENGTH * SEQUENCES, UNIT_TENSORS = 24, THREADS = 2 };

static struct device_memory memory_of_device = DEVICE_MEMORY_INIT;

/* ---- a model in either memory ---- */

struct side {
    bool on_device;
    struct pd_model *model;
    struct pd_thread_pool *pool;
    struct pd_arena *arena, *math_arena;
    struct pd_math *cpu, *math;
    struct device_math far;
    struct pd_transformer *transformer;
    float *weights, *gradient;
    void *dstream;
};

static struct pd_model_config tiny(uint32_t family)
{
    struct pd_model_config c;
    cr_assert_eq(pd_model_preset(family == PD_FAMILY_GPT2 ? "gpt2-124m" : "byte-1m", &c, NULL), PD_OK);
    c.family = family;
    c.vocab = 37;
    c.context = 64;
    c.layers = 2;
    c.heads = 4;
    c.kv_heads = family == PD_FAMILY_GPT2 ? 4 : 2;
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
    cr_assert_eq(pd_math_cpu_new(s->pool, THREADS, PD_ISA_AUTO, dry, &s->cpu, NULL), PD_OK);
    pd_arena_usage(dry, &plan);
    pd_arena_free(dry);
    cr_assert_eq(pd_arena_new(&plan, &s->math_arena, NULL), PD_OK);
    cr_assert_eq(pd_math_cpu_new(s->pool, THREADS, PD_ISA_AUTO, s->math_arena, &s->cpu, NULL), PD_OK);
    s->math = s->on_device ? device_math_init(&s->far, s->cpu, &memory_of_device) : s->cpu;
}

static void make_transformer(struct side *s, uint32_t virtual_tp, enum pd_recompute recompute)
{
    struct pd_transformer_options options = {.sequences = SEQUENCES,
                                             .length = LENGTH,
                                             .dtype = PD_F32,
                                             .recompute = recompute,
                                             .recompute_layers = PD_LAYERS_ALL,
                                             .separate_documents = true,
                                             .backward = true,
                                             .on_device = s->on_device,
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
    static struct pd_arena_source source;
    source = far_source(&memory_of_device);
    cr_assert_eq(s->on_device ? pd_arena_new_on(&plan, &source, &s->arena, &err) : pd_arena_new(&plan, &s->arena, &err),
                 PD_OK);
    cr_assert_eq(pd_transformer_new(s->model, s->math, &options, s->arena, &s->transformer, &err), PD_OK, "%s", err.message);
    pd_arena_usage(s->arena, &used);
    cr_assert_eq(memcmp(&plan, &used, sizeof plan), 0, "what was taken is what was planned");
}

static void *memory(const struct side *s, uint64_t bytes)
{
    return s->on_device ? far_new(&memory_of_device, bytes) : calloc(1, bytes);
}

static void start(struct side *s, bool on_device, uint32_t family, uint32_t virtual_tp, enum pd_recompute recompute)
{
    const struct pd_model_config config = tiny(family);
    struct pd_error err;
    *s = (struct side){.on_device = on_device};
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
    s->dstream = memory(s, pd_transformer_gradient_bytes(s->transformer));
    cr_assert_eq(pd_math_copy(s->math, s->weights, initial, bytes, &err), PD_OK);
    free(initial);
    struct pd_micro_batch_input in;
    cr_assert_eq(pd_transformer_input_begin(s->transformer, 0, &in, &err), PD_OK);
    for (int i = 0; i < ROWS; i++) {
        const int t = i % LENGTH, document = t < 9 ? 0 : 9;
        in.tokens[i] = (i * 7 + i / 3) % (int)config.vocab;
        in.targets[i] = t == 8 ? -1 : (i * 5 + 3) % (int)config.vocab;
        in.positions[i] = t - document;
        in.first[i] = document;
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
    DONE(pd_transformer_losses(s->transformer, result, &err));
    for (uint32_t i = layers; i-- > 0;) {
        unit_pointers(s, i + 1, w, g);
        DONE(pd_transformer_block_backward(s->transformer, 0, i, w, g, s->dstream, &err));
    }
    unit_pointers(s, 0, w, g);
    DONE(pd_transformer_embed_backward(s->transformer, 0, g, s->dstream, &err));
    DONE(pd_math_copy(s->math, result + ROWS, s->gradient, s->model->parameter_count * sizeof *result, &err));
    return result;
}

static void check(uint32_t family, uint32_t virtual_tp, enum pd_recompute recompute)
{
    struct side near, far;
    memory_of_device.hides_host = true;
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

Test(far, qwen3)
{
    check(PD_FAMILY_QWEN3, 2, PD_RECOMPUTE_NONE);
}
