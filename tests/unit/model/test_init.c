#include "trainer/model/init.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Known answers published with Random123 (kat_vectors, philox4x32 10). */
Test(philox, known_answers)
{
    static const struct {
        uint32_t counter[4], key[2], words[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t words[4];
        pd_philox4x32(cases[i].counter, cases[i].key[0] | (uint64_t)cases[i].key[1] << 32, words);
        for (int w = 0; w < 4; w++)
            cr_assert_eq(words[w], cases[i].words[w], "case %zu word %d: %08x", i, w, words[w]);
    }
}

/* The formula of init.c through libm: ours must agree to fp32 rounding. */
static float reference(uint64_t seed, uint64_t stream, double std, uint64_t element)
{
    uint64_t quad = element / 4;
    uint32_t counter[4] = {(uint32_t)quad, (uint32_t)(quad >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)}, w[4];
    pd_philox4x32(counter, seed, w);
    int pair = element % 4 >= 2 ? 2 : 0;
    double radius = sqrt(-2.0 * log((2.0 * w[pair] + 1.0) / 0x1p33)), angle = 2.0 * M_PI * w[pair + 1] / 0x1p32;
    return (float)(std * radius * (element % 2 ? sin(angle) : cos(angle)));
}

Test(normal, agrees_with_libm)
{
    struct pd_normal normal = {.seed = 42, .stream = pd_normal_stream("model.norm.weight"), .std = 0.02};
    enum { COUNT = 200000 };
    float *values = malloc(COUNT * sizeof *values);
    uint64_t first = UINT64_C(0x3fffffff00); /* quads beyond 32 bits */
    pd_normal_fill(&normal, first, COUNT, values);
    for (uint64_t i = 0; i < COUNT; i++) {
        float expected = reference(normal.seed, normal.stream, normal.std, first + i);
        cr_assert_float_eq(values[i], expected, fabsf(expected) * 1.2e-7f + 1e-12f, "element %lu: %.9g, not %.9g", i,
                           values[i], expected);
    }
    free(values);
}

Test(normal, same_bits_without_vector_instructions)
{
    struct pd_normal normal = {.seed = UINT64_C(0x123456789abcdef0), .stream = 7, .std = 1};
    enum { COUNT = 10007 };
    float *vector = malloc(COUNT * sizeof *vector), *portable = malloc(COUNT * sizeof *portable);
    pd_normal_fill(&normal, 3, COUNT, vector);
    normal.portable = true;
    pd_normal_fill(&normal, 3, COUNT, portable);
    cr_assert(memcmp(vector, portable, COUNT * sizeof *vector) == 0);
    free(vector);
    free(portable);
}

Test(normal, bits_are_pinned)
{
    /* Runs made by an earlier build must start the same: these bits never change. */
    struct pd_normal normal = {.seed = 1, .stream = pd_normal_stream("transformer.wte.weight"), .std = 0.02f};
    float v[6];
    uint32_t bits[6];
    pd_normal_fill(&normal, 0, 6, v);
    memcpy(bits, v, sizeof bits);
    static const uint32_t expected[6] = {0xbd2b3fe0, 0xbbc78ba7, 0xbbb84608, 0x38f27c55, 0xbc08fe49, 0x3ac8bbb0};
    for (int i = 0; i < 6; i++)
        cr_assert_eq(bits[i], expected[i], "element %d: %08x (%g)", i, bits[i], v[i]);
}

Test(normal, moments_and_tails)
{
    struct pd_normal normal = {.seed = 9, .stream = 3, .std = 1};
    enum { COUNT = 1 << 20 };
    float *v = malloc(COUNT * sizeof *v);
    pd_normal_fill(&normal, 0, COUNT, v);
    double sum[5] = {0};
    uint64_t beyond2 = 0;
    for (int i = 0; i < COUNT; i++) {
        double x = v[i], power = 1;
        for (int k = 1; k <= 4; k++)
            sum[k] += power *= x;
        beyond2 += fabs(x) > 2;
    }
    free(v);
    cr_assert_float_eq(sum[1] / COUNT, 0, 0.005);
    cr_assert_float_eq(sum[2] / COUNT, 1, 0.008);
    cr_assert_float_eq(sum[3] / COUNT, 0, 0.015);
    cr_assert_float_eq(sum[4] / COUNT, 3, 0.05);
    cr_assert_float_eq((double)beyond2 / COUNT, 0.0455, 0.001);
}

static struct pd_model *small_model(void)
{
    struct pd_model_config config;
    struct pd_model *model;
    cr_assert_eq(pd_model_preset("byte-1m", &config, NULL), PD_OK);
    config.hidden = 36; /* runs of columns that are no multiple of 4 */
    config.heads = 6;
    config.kv_heads = 3;
    config.head_size = 6;
    cr_assert_eq(pd_model_new(&config, &model, NULL), PD_OK);
    return model;
}

/* Any box of a tensor holds the bits that the whole has there. */
Test(init, any_cut_has_the_same_bits)
{
    struct pd_model *model = small_model();
    srand(5);
    for (uint32_t i = 0; i < model->tensors.count; i++) {
        const struct pd_tensor *t = &model->tensors.tensors[i];
        struct pd_box whole = pd_box_whole(t);
        float *all = malloc(pd_tensor_elements(t) * sizeof *all), *part = malloc(pd_tensor_elements(t) * sizeof *part);
        pd_model_init_box(model, i, &whole, 77, all);
        for (int trial = 0; trial < 20; trial++) {
            struct pd_box box = whole;
            for (uint32_t d = 0; d < t->ndim; d++) {
                box.start[d] = (uint64_t)rand() % t->shape[d];
                box.count[d] = 1 + (uint64_t)rand() % (t->shape[d] - box.start[d]);
            }
            pd_model_init_box(model, i, &box, 77, part);
            for (uint64_t r = 0; r < box.count[0]; r++) {
                const float *expected = all + (box.start[0] + r) * t->shape[1] + box.start[1];
                cr_assert(memcmp(part + r * box.count[1], expected, box.count[1] * sizeof *part) == 0, "%s", t->name);
            }
        }
        free(all);
        free(part);
    }
    pd_model_free(model);
}

Test(init, streams_differ_by_tensor_and_seed)
{
    struct pd_model *model = small_model();
    float a[8], b[8], c[8];
    int64_t q = pd_tensor_table_find(&model->tensors, "model.layers.0.self_attn.q_proj.weight");
    int64_t q1 = pd_tensor_table_find(&model->tensors, "model.layers.1.self_attn.q_proj.weight");
    cr_assert(q >= 0 && q1 >= 0);
    struct pd_box box = {{0, 0, 0, 0}, {1, 8, 1, 1}};
    pd_model_init_box(model, (uint32_t)q, &box, 1, a);
    pd_model_init_box(model, (uint32_t)q1, &box, 1, b);
    pd_model_init_box(model, (uint32_t)q, &box, 2, c);
    for (int i = 0; i < 8; i++)
        cr_assert(a[i] != b[i] && a[i] != c[i]);
    pd_model_free(model);
}
