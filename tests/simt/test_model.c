/* A whole model on the GPU's table, its kernels running on the host: forward, loss, backward and AdamW of a tiny transformer
 * beside the CPU's. Attention on tensor cores and the loss have sums of their own; what differs in the last bit there is
 * some hundred times as much behind the norms of so small a model. */
#include "ckpt/base/half.h"
#include "offload/cpu_adam.h"
#include "tests/helpers/families.h"
#include "tests/helpers/scale.h"
#include "tests/unit/math/fixture.h"
#include "trainer/math/cuda/kernels.h"
#include "trainer/math/math_cuda.h"
#include "trainer/model/transformer_internal.h"

enum { LENGTH = 37, SEQUENCES = 2, ROWS = LENGTH * SEQUENCES, STEPS = 3, UNIT_TENSORS = 32 };

/* Of the models that are made from now on. */
static uint32_t logits_columns, experts_per_token;
static bool logits_as_activations, fp8_linears;

struct side {
    bool is_simt;
    enum pd_dtype dtype;
    struct pd_model *model;
    struct pd_thread_pool *pool;
    struct pd_arena *arena;
    struct pd_math *math;
    struct pd_transformer *transformer;
    float *state[PD_KIND_COUNT], *gradient, *tied;
    char *weights; /* of dtype */
    void *dstream;
    uint64_t offset[96];
    double loss[STEPS];
};

static struct pd_model_config tiny(uint32_t family)
{
    struct pd_model_config c;
    cr_assert_eq(pd_model_preset(family == PD_FAMILY_GPT2 ? "gpt2-124m" : "byte-1m", &c, NULL), PD_OK);
    c.family = family;
    c.vocab = 61;
    c.context = 64;
    c.layers = 2;
    c.heads = 2;
    c.kv_heads = family == PD_FAMILY_GPT2 ? 2 : 1;
    c.head_size = 64;
    c.hidden = 128;
    c.ffn = 72;
    c.qkv_bias = family == PD_FAMILY_GPT2;
    c.tie_embeddings = family == PD_FAMILY_GPT2;
    c.init_std = 0.1f;
    if (!pd_family_at(family)->router) return c;
    c.experts = 4;
    c.experts_per_token = experts_per_token;
    c.expert_ffn = 40;
    c.router_groups = c.router_groups_kept = 1;
    if (family != PD_FAMILY_GLM4_MOE) c.balance_loss = 0.1f;
    c.z_loss = 0.01f;
    c.routed_scale = 1;
    c.renormalise = true;
    if (family == PD_FAMILY_GLM4_MOE) c.shared_experts = 1, c.rotated = 32, c.dense_blocks = 1;
    return c;
}

static void build(struct side *s, struct pd_arena *arena)
{
    const struct pd_model_config *c = &s->model->config;
    const struct pd_attention largest = {.sequences = SEQUENCES,
                                         .length = LENGTH,
                                         .heads = c->heads,
                                         .kv_heads = c->kv_heads,
                                         .head_size = c->head_size,
                                         .dtype = s->dtype};
    const struct pd_math_cuda_options cuda = {.mode = PD_NUMERICS_INVARIANT, .attention = &largest};
    const struct pd_transformer_options options = {.sequences = SEQUENCES,
                                                   .length = LENGTH,
                                                   .dtype = s->dtype,
                                                   .separate_documents = true,
                                                   .backward = true,
                                                   .may_add = true,
                                                   .logits_columns = logits_columns,
                                                   .logits_dtype = logits_as_activations ? s->dtype : PD_F32,
                                                   .fp8_linears = fp8_linears,
                                                   .partition = pd_partition_whole()};
    struct pd_error err;
    cr_assert_eq(s->is_simt ? pd_math_cuda_new(&cuda, arena, &s->math, &err)
                            : pd_math_cpu_new(s->pool, 1, PD_ISA_AUTO, arena, &s->math, &err),
                 PD_OK, "%s", err.message);
    cr_assert_eq(pd_transformer_new(s->model, s->math, &options, arena, &s->transformer, &err), PD_OK);
}

static void refresh(struct side *s)
{
    struct pd_error err;
    cr_assert_eq(pd_cast(s->math, s->model->parameter_count, s->dtype, s->weights, PD_F32, s->state[PD_PARAM], &err), PD_OK,
                 "%s", err.message);
}

static void fill(struct side *s)
{
    uint64_t offset = 0;
    for (uint32_t t = 0; t < s->model->tensors.count; t++) {
        const struct pd_tensor *tensor = &s->model->tensors.tensors[t];
        const struct pd_box whole = pd_box_whole(tensor);
        s->offset[t] = offset;
        pd_model_init_box(s->model, t, &whole, 7, s->state[PD_PARAM] + offset);
        for (uint64_t i = 0; i < pd_tensor_elements(tensor); i++) /* biases and norms off their trivial start */
            s->state[PD_PARAM][offset + i] += 0.02f * (float)((int)((i * 2654435761u + t) >> 7) % 11 - 5);
        offset += pd_tensor_elements(tensor);
    }
    struct pd_micro_batch_input *in = pd_transformer_input(s->transformer, 0);
    for (int i = 0; i < ROWS; i++) {
        const int t = i % LENGTH, document = t < 9 ? 0 : 9;
        in->tokens[i] = (i * 7 + i / 3) % (int)s->model->config.vocab;
        in->targets[i] = t == 8 ? -1 : (i * 5 + 3) % (int)s->model->config.vocab;
        in->positions[i] = t - document;
        in->first[i] = document;
    }
    refresh(s);
}

static void start(struct side *s, bool is_simt, uint32_t family, enum pd_dtype dtype)
{
    const struct pd_model_config config = tiny(family);
    struct pd_memory_plan plan;
    struct pd_error err;
    *s = (struct side){.is_simt = is_simt, .dtype = dtype};
    cr_assert_eq(pd_model_new(&config, &s->model, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_thread_pool_new(1, &s->pool, &err), PD_OK);
    cr_assert_eq(pd_arena_new_dry(&s->arena, &err), PD_OK);
    build(s, s->arena);
    pd_arena_usage(s->arena, &plan);
    pd_transformer_free(s->transformer);
    pd_arena_free(s->arena);
    cr_assert_eq(pd_arena_new(&plan, &s->arena, &err), PD_OK);
    build(s, s->arena);
    const uint64_t n = s->model->parameter_count;
    for (int kind = 0; kind < PD_KIND_COUNT; kind++)
        s->state[kind] = calloc(n, sizeof(float));
    s->gradient = malloc(n * sizeof(float));
    memset(s->gradient, 0xff, n * sizeof(float)); /* NaN: every element is written */
    s->tied = calloc(pd_tensor_elements(&s->model->tensors.tensors[0]), sizeof(float));
    s->weights = aligned_alloc(256, (n * sizeof(float) + 255) / 256 * 256);
    s->dstream = aligned_alloc(256, (pd_transformer_gradient_bytes(s->transformer) + 255) / 256 * 256);
    fill(s);
}

static void finish(struct side *s)
{
    pd_transformer_free(s->transformer);
    pd_math_free(s->math);
    pd_arena_free(s->arena);
    pd_thread_pool_free(s->pool);
    pd_model_free(s->model);
    for (int kind = 0; kind < PD_KIND_COUNT; kind++)
        free(s->state[kind]);
    free(s->gradient), free(s->tied), free(s->weights), free(s->dstream);
}

/* ---- a step ---- */

static void unit_pointers(struct side *s, uint32_t unit, void **weights, float **gradients)
{
    const uint64_t bytes = pd_dtype_bytes(s->dtype);
    uint32_t count = 0;
    for (uint32_t t = s->model->unit_first[unit]; t < s->model->unit_first[unit + 1]; t++, count++) {
        weights[count] = s->weights + s->offset[t] * bytes;
        gradients[count] = s->gradient + s->offset[t];
    }
    if (unit + 1 < s->model->unit_count || !s->model->config.tie_embeddings) return;
    weights[count] = s->weights;
    gradients[count] = s->tied;
}

#define DONE(call) cr_assert_eq(call, PD_OK, "%s: %s", #call, err.message)

static double forward_and_backward(struct side *s)
{
    void *w[UNIT_TENSORS];
    float *g[UNIT_TENSORS];
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
    for (uint32_t i = layers; i-- > 0;) {
        unit_pointers(s, i + 1, w, g);
        DONE(pd_transformer_block_backward(s->transformer, 0, i, w, g, s->dstream, &err));
    }
    unit_pointers(s, 0, w, g);
    DONE(pd_transformer_embed_backward(s->transformer, 0, g, s->dstream, &err));
    if (s->model->config.tie_embeddings)
        DONE(pd_add(s->math, pd_tensor_elements(&s->model->tensors.tensors[0]), s->gradient, s->tied, &err));
    float losses[ROWS];
    DONE(pd_transformer_losses(s->transformer, losses, &err));
    double loss = 0;
    for (int i = 0; i < ROWS; i++)
        loss += (double)losses[i];
    return loss / ROWS;
}

static void update(struct side *s, uint64_t step)
{
    const struct pd_update_config config = {
        .rate = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .scale = 1.0 / ROWS, .step = step};
    const struct pd_adam_step factors = pd_adam_step_make(&config);
    const struct pd_update_range range = {.n = s->model->parameter_count,
                                          .decay = true,
                                          .param = s->state[PD_PARAM],
                                          .exp_avg = s->state[PD_EXP_AVG],
                                          .exp_avg_sq = s->state[PD_EXP_AVG_SQ],
                                          .grad = s->gradient,
                                          .copy = s->weights,
                                          .copy_dtype = s->dtype};
    struct pd_error err;
    if (s->is_simt)
        DONE(pd_cuda_adam(NULL, &factors, &range, &err));
    else
        pd_cpu_adam(s->pool, s->math->isa, &factors, &range);
}

static double norm(const float *a, uint64_t n)
{
    double sum = 0;
    for (uint64_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)a[i];
    return sqrt(sum);
}

/* How far b is from a, relative to a or to `least` an element, whichever is more: what cancels to nothing is all rounding.
 */
static double distance(const float *a, const float *b, uint64_t n, double least)
{
    double apart = 0;
    for (uint64_t i = 0; i < n; i++)
        apart += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sqrt(apart) / fmax(norm(a, n), least * sqrt((double)n));
}

/* From the second step on parameters differ too: AdamW makes as much of a small gradient as of a large one. */
static void compare(const struct side *cpu, const struct side *simt, double tolerance, uint32_t step)
{
    const uint64_t all = cpu->model->parameter_count;
    const double least = 1e-3 * norm(cpu->gradient, all) / sqrt((double)all);
    if (step) tolerance *= 10;
    for (uint32_t t = 0; t < cpu->model->tensors.count; t++) {
        const uint64_t n = pd_tensor_elements(&cpu->model->tensors.tensors[t]), at = cpu->offset[t];
        const double apart = distance(cpu->gradient + at, simt->gradient + at, n, least);
        if (strstr(cpu->model->tensors.tensors[t].name, "k_proj.bias")) continue; /* soft-max does not see it */
        cr_assert(apart <= tolerance, "step %u, %s: gradients %g apart, at most %g", step,
                  cpu->model->tensors.tensors[t].name, apart, tolerance);
    }
    const double state = distance(cpu->state[PD_PARAM], simt->state[PD_PARAM], all, 0);
    cr_assert(state <= tolerance, "step %u: parameters %g apart, at most %g", step, state, tolerance);
    cr_assert(fabs(cpu->loss[step] - simt->loss[step]) <= tolerance * fabs(cpu->loss[step]), "step %u: loss %.9g and %.9g",
              step, cpu->loss[step], simt->loss[step]);
}

/* Compares 16-bit gradients with an fp32 pass over the same weights. Both sides differ more from fp32 than from each other.
 * The simulated GPU must not differ much more than the CPU. q_proj and k_proj differ most: the backward pass of softmax
 * subtracts nearly equal numbers that were rounded to 16 bits. */
static void compare_to_fp32(const struct side *cpu, const struct side *simt, uint32_t family, enum pd_dtype dtype)
{
    struct side exact;
    start(&exact, false, family, PD_F32);
    const uint64_t all = exact.model->parameter_count;
    float *weights = (float *)(void *)exact.weights;
    for (uint64_t i = 0; i < all; i++) {
        const float value = exact.state[PD_PARAM][i];
        weights[i] = dtype == PD_F16 ? pd_f32_from_f16(pd_f16_from_f32(value)) : pd_f32_from_bf16(pd_bf16_from_f32(value));
    }
    (void)forward_and_backward(&exact);
    const double least = 1e-3 * norm(exact.gradient, all) / sqrt((double)all), unit = dtype == PD_F16 ? 0x1p-11 : 0x1p-8;
    for (uint32_t t = 0; t < cpu->model->tensors.count; t++) {
        const uint64_t n = pd_tensor_elements(&cpu->model->tensors.tensors[t]), at = cpu->offset[t];
        const double here = distance(exact.gradient + at, simt->gradient + at, n, least),
                     there = distance(exact.gradient + at, cpu->gradient + at, n, least);
        cr_assert(here <= 3 * there + 2 * unit, "%s: gradients differ from fp32 by %g, on the CPU by %g",
                  cpu->model->tensors.tensors[t].name, here, there);
    }
    finish(&exact);
}

static void check(uint32_t family, enum pd_dtype dtype, double tolerance)
{
    struct side cpu, simt, again;
    start(&cpu, false, family, dtype);
    start(&simt, true, family, dtype);
    start(&again, true, family, dtype);
    for (uint32_t step = 0; step < STEPS; step++) {
        struct side *sides[] = {&cpu, &simt, &again};
        for (int i = 0; i < 3; i++)
            sides[i]->loss[step] = forward_and_backward(sides[i]);
        if (dtype != PD_F32 && !step) compare_to_fp32(&cpu, &simt, family, dtype);
        for (int i = 0; i < 3; i++)
            update(sides[i], step + 1);
        compare(&cpu, &simt, tolerance, step);
    }
    cr_assert_lt(cpu.loss[STEPS - 1], cpu.loss[0], "nothing is learnt");
    cr_assert_arr_eq(simt.state[PD_PARAM], again.state[PD_PARAM], simt.model->parameter_count * sizeof(float),
                     "two runs differ");
    cr_assert_arr_eq(simt.loss, again.loss, sizeof simt.loss);
    finish(&cpu);
    finish(&simt);
    finish(&again);
}

Test(simt_model, llama_fp32)
{
    check(PD_FAMILY_LLAMA, PD_F32, 5e-4);
}

Test(simt_model, llama_bf16)
{
    check(PD_FAMILY_LLAMA, PD_BF16, 3e-2);
}

Test(simt_model, gpt2_fp32)
{
    check(PD_FAMILY_GPT2, PD_F32, 5e-4);
}

Test(simt_model, gpt2_fp16)
{
    check(PD_FAMILY_GPT2, PD_F16, 5e-3);
}

Test(simt_model, qwen3_fp32)
{
    check(PD_FAMILY_QWEN3, PD_F32, 5e-4);
}

Test(simt_model, qwen3_bf16)
{
    check(PD_FAMILY_QWEN3, PD_BF16, 3e-2);
}

/* In 16 bits rounding would turn a choice now and then, so there all experts are chosen. */
Test(simt_model, mixtral)
{
    experts_per_token = 2;
    check(PD_FAMILY_MIXTRAL, PD_F32, 5e-4);
    experts_per_token = 4;
    check(PD_FAMILY_MIXTRAL, PD_BF16, 3e-2);
}

Test(simt_model, glm4_moe)
{
    experts_per_token = 2;
    check(PD_FAMILY_GLM4_MOE, PD_F32, 5e-4);
    experts_per_token = 4;
    check(PD_FAMILY_GLM4_MOE, PD_F16, 2e-2); /* q_proj and k_proj of the second block: 1.5e-2 */
}

/* A code may be the next one where the last bit of an operand differs: 1/16 of an element. */
Test(simt_model, experts_fp8)
{
    experts_per_token = 2;
    fp8_linears = true;
    check(PD_FAMILY_MIXTRAL, PD_F32, 3e-2);
    check(PD_FAMILY_GLM4_MOE, PD_F32, 3e-2);
}

/* A vocabulary of 61 in parts, the last shorter than the others. */
Test(simt_model, logits_of_columns)
{
    logits_columns = 16;
    if (test_has_turn(0, 3)) check(PD_FAMILY_LLAMA, PD_F32, 5e-4);
    if (test_has_turn(1, 3)) check(PD_FAMILY_GPT2, PD_F16, 5e-3);
    if (test_has_turn(2, 3)) check(PD_FAMILY_QWEN3, PD_BF16, 3e-2);
}

Test(simt_model, logits_of_16_bits)
{
    logits_as_activations = true;
    check(PD_FAMILY_LLAMA, PD_BF16, 3e-2);
    check(PD_FAMILY_GPT2, PD_F16, 5e-3);
    logits_columns = 16;
    check(PD_FAMILY_LLAMA, PD_BF16, 3e-2);
}

/* ---- micro-batches that are added where sums lie ---- */

static void check_adding(bool is_simt, uint32_t family, enum pd_dtype dtype, bool has_runs)
{
    struct side apart, added;
    struct pd_error err;
    start(&apart, is_simt, family, dtype);
    start(&added, is_simt, family, dtype);
    const uint64_t n = apart.model->parameter_count;
    const struct pd_model_config *c = &apart.model->config;
    float *sum = calloc(n, sizeof *sum), *matrix = calloc(c->vocab * c->hidden, sizeof *matrix);
    if (has_runs) { /* as of a micro-batch whose logits are too many for one run */
        apart.transformer->logits_rows = added.transformer->logits_rows = 32;
        added.transformer->matrix = matrix;
    }
    for (int micro_batch = 0; micro_batch < 3; micro_batch++) {
        struct side *sides[] = {&apart, &added};
        pd_transformer_set_adds(added.transformer, micro_batch > 0);
        for (int i = 0; i < 2; i++) {
            struct pd_micro_batch_input *in = pd_transformer_input(sides[i]->transformer, 0);
            for (int r = 0; r < ROWS; r++)
                in->tokens[r] = (in->tokens[r] + micro_batch * (r % 5)) % 40; /* there are tokens that no micro-batch has */
            forward_and_backward(sides[i]);
        }
        if (micro_batch == 0) memcpy(sum, apart.gradient, n * sizeof *sum);
        if (micro_batch > 0) DONE(pd_add(apart.math, n, sum, apart.gradient, &err));
    }
    for (uint32_t t = c->tie_embeddings; t < apart.model->tensors.count; t++)
        cr_assert_arr_eq(sum + apart.offset[t], added.gradient + apart.offset[t],
                         pd_tensor_elements(&apart.model->tensors.tensors[t]) * sizeof(float), "%s",
                         apart.model->tensors.tensors[t].name);
    free(sum), free(matrix);
    finish(&apart);
    finish(&added);
}

/* But for a tied table, whose two sums are added up once a step and here once a micro-batch. */
Test(simt_model, micro_batches_are_added_in_place)
{
    check_adding(true, PD_FAMILY_LLAMA, PD_BF16, false);
    check_adding(true, PD_FAMILY_LLAMA, PD_F32, true);
    check_adding(true, PD_FAMILY_GPT2, PD_F16, false);
    check_adding(true, PD_FAMILY_QWEN3, PD_F32, false);
    check_adding(false, PD_FAMILY_LLAMA, PD_BF16, true);
    check_adding(false, PD_FAMILY_GPT2, PD_F32, false);
    logits_columns = 16;
    check_adding(true, PD_FAMILY_LLAMA, PD_BF16, false);
    check_adding(true, PD_FAMILY_LLAMA, PD_F32, true);
    check_adding(false, PD_FAMILY_QWEN3, PD_BF16, true);
}
