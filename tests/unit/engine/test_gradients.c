/* Gradients of whole models, of all families, against central differences of the float64 reference; and the recomputation
 * modes bit for bit against each other. */
#include "reference_model.h"
#include "tests/helpers/families.h"
#include "trainer/model/transformer.h"

#include <criterion/criterion.h>

enum { LENGTH = 21, SEQUENCES = 2 };

struct setup {
    struct pd_model *model;
    struct pd_arena *arena;
    struct pd_thread_pool *pool;
    struct pd_math *math;
    struct pd_transformer *transformer;
    float **weights, **gradients; /* (tensors) dense fp32 */
    float *storage, *gradient_storage, *tied_gradient;
    float *cos_sin, *dstream;
    uint64_t *offset;
};

static struct pd_model_config tiny(uint32_t family, bool bias, bool tied)
{
    struct pd_model_config c;
    cr_assert_eq(pd_model_preset(family == PD_FAMILY_GPT2 ? "gpt2-124m" : "byte-1m", &c, NULL), PD_OK);
    c.family = family;
    c.vocab = 37;
    c.context = 64;
    c.layers = 2;
    c.heads = 4;
    c.kv_heads = family == PD_FAMILY_GPT2 ? 4 : 2;
    c.head_size = family == PD_FAMILY_QWEN3 ? 12 : 8;
    c.hidden = 32;
    c.ffn = 40;
    c.qkv_bias = bias;
    c.tie_embeddings = tied;
    c.init_std = 0.2f;
    return c;
}

static void build(struct setup *s, struct pd_arena *arena, enum pd_recompute recompute)
{
    const struct pd_transformer_options options = {.sequences = SEQUENCES,
                                                   .length = LENGTH,
                                                   .dtype = PD_F32,
                                                   .recompute = recompute,
                                                   .recompute_layers = PD_LAYERS_ALL,
                                                   .separate_documents = true,
                                                   .backward = true,
                                                   .partition = pd_partition_whole()};
    struct pd_error err;
    cr_assert_eq(pd_math_cpu_new(s->pool, 2, PD_ISA_AUTO, arena, &s->math, &err), PD_OK);
    cr_assert_eq(pd_transformer_new(s->model, s->math, &options, arena, &s->transformer, &err), PD_OK);
}

static void start(struct setup *s, const struct pd_model_config *config, enum pd_recompute recompute)
{
    struct pd_error err;
    struct pd_memory_plan plan;
    memset(s, 0, sizeof *s);
    cr_assert_eq(pd_model_new(config, &s->model, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_thread_pool_new(2, &s->pool, &err), PD_OK);
    cr_assert_eq(pd_arena_new_dry(&s->arena, &err), PD_OK);
    build(s, s->arena, recompute);
    pd_arena_usage(s->arena, &plan);
    pd_transformer_free(s->transformer);
    pd_arena_free(s->arena);
    cr_assert_eq(pd_arena_new(&plan, &s->arena, &err), PD_OK);
    build(s, s->arena, recompute);
    uint32_t tensors = s->model->tensors.count;
    s->weights = calloc(tensors, sizeof(float *));
    s->gradients = calloc(tensors, sizeof(float *));
    s->storage = calloc(s->model->parameter_count, sizeof(float));
    s->gradient_storage = calloc(s->model->parameter_count, sizeof(float));
    s->tied_gradient = calloc(pd_tensor_elements(&s->model->tensors.tensors[0]), sizeof(float));
    s->dstream = calloc(1, pd_transformer_gradient_bytes(s->transformer));
    s->cos_sin = calloc(LENGTH * config->head_size, sizeof(float));
    if (config->family != PD_FAMILY_GPT2) pd_model_rope_table(config, LENGTH, s->cos_sin);
    uint64_t offset = 0;
    for (uint32_t t = 0; t < tensors; t++) {
        const struct pd_tensor *tensor = &s->model->tensors.tensors[t];
        struct pd_box whole = pd_box_whole(tensor);
        s->weights[t] = s->storage + offset;
        s->gradients[t] = s->gradient_storage + offset;
        pd_model_init_box(s->model, t, &whole, 7, s->weights[t]);
        for (uint64_t i = 0; i < pd_tensor_elements(tensor); i++) /* biases and norms off their trivial start */
            s->weights[t][i] += 0.02f * (float)((int)((i * 2654435761u + t) >> 7) % 11 - 5);
        offset += pd_tensor_elements(tensor);
    }
    struct pd_micro_batch_input *in = pd_transformer_input(s->transformer, 0);
    for (int i = 0; i < SEQUENCES * LENGTH; i++) {
        int t = i % LENGTH, document = t < 9 ? 0 : 9;
        in->tokens[i] = (i * 7 + i / 3) % (int)config->vocab;
        in->targets[i] = t == 8 ? -1 : (i * 5 + 3) % (int)config->vocab;
        in->positions[i] = t - document;
        in->first[i] = document;
    }
}

static void finish(struct setup *s)
{
    pd_transformer_free(s->transformer);
    pd_math_free(s->math);
    pd_arena_free(s->arena);
    pd_thread_pool_free(s->pool);
    pd_model_free(s->model);
    free(s->weights), free(s->gradients), free(s->storage), free(s->gradient_storage), free(s->tied_gradient),
        free(s->cos_sin), free(s->dstream);
}

static void unit_pointers(struct setup *s, uint32_t unit, void **weights, float **gradients)
{
    uint32_t count = 0;
    for (uint32_t t = s->model->unit_first[unit]; t < s->model->unit_first[unit + 1]; t++, count++) {
        weights[count] = s->weights[t];
        gradients[count] = s->gradients[t];
    }
    if (unit + 1 == s->model->unit_count && s->model->config.tie_embeddings) {
        weights[count] = s->weights[0];
        gradients[count] = s->tied_gradient;
    }
}

static double run(struct setup *s)
{
    void *w[24];
    float *g[24];
    struct pd_error err;
    const uint32_t layers = s->model->config.layers;
    unit_pointers(s, 0, w, g);
    cr_assert_eq(pd_transformer_embed(s->transformer, 0, w, &err), PD_OK);
    for (uint32_t i = 0; i < layers; i++) {
        unit_pointers(s, i + 1, w, g);
        cr_assert_eq(pd_transformer_block_forward(s->transformer, 0, i, w, NULL, &err), PD_OK);
    }
    unit_pointers(s, layers + 1, w, g);
    cr_assert_eq(pd_transformer_head(s->transformer, 0, w, g, 1.0f, s->dstream, &err), PD_OK);
    for (uint32_t i = layers; i-- > 0;) {
        unit_pointers(s, i + 1, w, g);
        cr_assert_eq(pd_transformer_block_backward(s->transformer, 0, i, w, g, s->dstream, &err), PD_OK);
    }
    unit_pointers(s, 0, w, g);
    cr_assert_eq(pd_transformer_embed_backward(s->transformer, 0, g, s->dstream, &err), PD_OK);
    if (s->model->config.tie_embeddings)
        for (uint64_t i = 0; i < pd_tensor_elements(&s->model->tensors.tensors[0]); i++)
            s->gradients[0][i] += s->tied_gradient[i];
    float losses[SEQUENCES * LENGTH];
    cr_assert_eq(pd_transformer_losses(s->transformer, losses, &err), PD_OK);
    double loss = 0;
    for (int i = 0; i < SEQUENCES * LENGTH; i++)
        loss += (double)losses[i];
    return loss;
}

static double total_reference(struct setup *s, double **parameters)
{
    double loss = 0;
    struct pd_micro_batch_input *in = pd_transformer_input(s->transformer, 0);
    for (int q = 0; q < SEQUENCES; q++) {
        struct reference r = {s->model,
                              parameters,
                              LENGTH,
                              in->tokens + q * LENGTH,
                              in->targets + q * LENGTH,
                              in->positions + q * LENGTH,
                              in->first + q * LENGTH,
                              s->cos_sin};
        loss += reference_loss(&r);
    }
    return loss;
}

static void check_family(uint32_t family, bool bias, bool tied)
{
    struct setup s;
    struct pd_model_config config = tiny(family, bias, tied);
    start(&s, &config, PD_RECOMPUTE_NONE);
    double loss = run(&s);
    uint32_t tensors = s.model->tensors.count;
    double **parameters = calloc(tensors, sizeof *parameters);
    for (uint32_t t = 0; t < tensors; t++) {
        uint64_t n = pd_tensor_elements(&s.model->tensors.tensors[t]);
        parameters[t] = calloc(n, sizeof(double));
        for (uint64_t i = 0; i < n; i++)
            parameters[t][i] = s.weights[t][i];
    }
    double expected = total_reference(&s, parameters);
    cr_assert_lt(fabs(loss - expected), 1e-4 * fabs(expected), "loss %.9g, reference %.9g", loss, expected);
    for (uint32_t t = 0; t < tensors; t++) {
        uint64_t n = pd_tensor_elements(&s.model->tensors.tensors[t]);
        double largest = 0.1; /* of gradients that are zero by symmetry only rounding is left */
        for (uint64_t i = 0; i < n; i++)
            largest = fmax(largest, fabs((double)s.gradients[t][i]));
        for (uint64_t k = 0; k < 12; k++) {
            uint64_t i = (k * 7919 + t * 31) % n;
            const double h = 1e-5, old = parameters[t][i];
            parameters[t][i] = old + h;
            double above = total_reference(&s, parameters);
            parameters[t][i] = old - h;
            double below = total_reference(&s, parameters);
            parameters[t][i] = old;
            double difference = (above - below) / (2 * h), have = s.gradients[t][i];
            cr_assert_lt(fabs(difference - have), 2e-3 * fabs(difference) + 2e-4 * largest,
                         "%s[%lu]: gradient %.9g, differences %.9g", s.model->tensors.tensors[t].name, i, have, difference);
        }
    }
    for (uint32_t t = 0; t < tensors; t++)
        free(parameters[t]);
    free(parameters);
    finish(&s);
}

Test(gradients, llama)
{
    check_family(PD_FAMILY_LLAMA, false, false);
}

Test(gradients, llama_with_biases_tied)
{
    check_family(PD_FAMILY_LLAMA, true, true);
}

Test(gradients, gpt2_tied)
{
    check_family(PD_FAMILY_GPT2, true, true);
}

Test(gradients, qwen3)
{
    check_family(PD_FAMILY_QWEN3, false, true);
}

static void check_recompute(uint32_t family, enum pd_recompute recompute)
{
    struct setup kept, again;
    struct pd_model_config config = tiny(family, family == PD_FAMILY_GPT2, true);
    start(&kept, &config, PD_RECOMPUTE_NONE);
    start(&again, &config, recompute);
    run(&kept);
    run(&again);
    cr_assert_eq(memcmp(kept.gradient_storage, again.gradient_storage, kept.model->parameter_count * sizeof(float)), 0);
    cr_assert_eq(memcmp(kept.dstream, again.dstream, pd_transformer_gradient_bytes(kept.transformer)), 0);
    finish(&kept);
    finish(&again);
}

Test(gradients, recomputation_has_the_same_bits)
{
    for (int family = PD_FAMILY_LLAMA; family <= PD_FAMILY_QWEN3; family++) {
        check_recompute((uint32_t)family, PD_RECOMPUTE_SELECTIVE);
        check_recompute((uint32_t)family, PD_RECOMPUTE_FULL);
    }
}
