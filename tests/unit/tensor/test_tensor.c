#include "ckpt/tensor/tensor.h"
#include "tests/helpers/box_copy.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static struct pd_tensor tensor_of(uint64_t a, uint64_t b, uint64_t c)
{
    struct pd_tensor t = {.name = "t", .ndim = 3, .shape = {a, b, c, 1}, .tp_dim = -1, .tp_unit = 1};
    return t;
}

static float *random_floats(uint64_t count, unsigned seed)
{
    float *data = malloc(count * sizeof *data);
    cr_assert_not_null(data);
    srand(seed);
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)rand() ^ (uint32_t)rand() << 16;
        memcpy(data + i, &bits, sizeof bits);
    }
    return data;
}

/* The formula of FORMAT.md, written a second time, one element at a time. */
static uint64_t reference_mix(uint64_t index, uint32_t bits)
{
    uint64_t x = (index + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ (bits * UINT64_C(0x100000001));
    uint64_t y = (x >> 32 | x << 32) + (uint64_t)(uint32_t)x * (uint32_t)(x >> 32);
    y ^= y >> 29;
    return (y >> 32 | y << 32) + (uint64_t)(uint32_t)y * UINT64_C(0x85ebca6b);
}

static uint64_t reference_digest(const float *data, uint64_t count)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, data + i, sizeof bits);
        sum += reference_mix(i, bits);
    }
    return sum;
}

Test(tensor, names)
{
    cr_assert_str_eq(pd_dtype_name(PD_BF16), "bf16");
    cr_assert_eq(pd_dtype_bytes(PD_F32), 4);
    cr_assert_eq(pd_dtype_bytes(PD_F16), 2);
    cr_assert_str_eq(pd_kind_name(PD_EXP_AVG_SQ), "exp_avg_sq");
}

Test(tensor, intersection)
{
    struct pd_box a = {{0, 2, 0, 0}, {4, 4, 1, 1}}, b = {{2, 4, 0, 0}, {4, 4, 1, 1}}, c = {{9, 9, 9, 9}, {1, 1, 1, 1}},
                  r = c;
    cr_assert(pd_box_intersect(&a, &b, &r));
    cr_assert_eq(r.start[0], 2);
    cr_assert_eq(r.count[0], 2);
    cr_assert_eq(r.start[1], 4);
    cr_assert_eq(r.count[1], 2);
    b.start[0] = 4; /* touches, does not overlap */
    r = c;
    cr_assert_not(pd_box_intersect(&a, &b, &r));
    cr_assert_eq(memcmp(&r, &c, sizeof r), 0);
}

Test(tensor, empty_box_has_no_elements)
{
    struct pd_box empty = {{0}, {0, 5, 1, 1}};
    cr_assert_eq(pd_box_elements(&empty), 0);
}

/* Every element of every part of a small tensor lands where index arithmetic says. */
Test(tensor, copy_moves_each_element_to_its_place)
{
    struct pd_tensor t = tensor_of(4, 5, 3);
    struct pd_box whole = pd_box_whole(&t);
    float source[60];
    for (int i = 0; i < 60; i++)
        source[i] = (float)i;
    srand(7);
    for (int trial = 0; trial < 2000; trial++) {
        struct pd_box part = {{0}, {1, 1, 1, 1}};
        for (int d = 0; d < 3; d++) {
            part.start[d] = (uint64_t)rand() % t.shape[d];
            part.count[d] = 1 + (uint64_t)rand() % (t.shape[d] - part.start[d]);
        }
        float dense[60], back[60];
        for (int i = 0; i < 60; i++)
            dense[i] = back[i] = -1;
        pd_box_copy(dense, &part, source, &whole, &part, sizeof(float));
        pd_box_copy(back, &whole, dense, &part, &part, sizeof(float));
        uint64_t n = 0;
        for (uint64_t i = 0; i < 4; i++) {
            for (uint64_t j = 0; j < 5; j++) {
                for (uint64_t k = 0; k < 3; k++) {
                    bool in = i >= part.start[0] && i < part.start[0] + part.count[0] && j >= part.start[1] &&
                              j < part.start[1] + part.count[1] && k >= part.start[2] && k < part.start[2] + part.count[2];
                    uint64_t at = (i * 5 + j) * 3 + k;
                    if (in) cr_assert_eq(dense[n++], (float)at);
                    cr_assert_eq(back[at], in ? (float)at : -1.0f);
                }
            }
        }
        cr_assert_eq(n, pd_box_elements(&part));
    }
}

Test(tensor, digest_equals_the_formula)
{
    for (uint64_t n = 1; n < 70; n++) {
        struct pd_tensor t = tensor_of(n, 1, 1);
        struct pd_box whole = pd_box_whole(&t);
        float *data = random_floats(n, (unsigned)n);
        cr_assert_eq(pd_tensor_digest(&t, &whole, PD_F32, data), reference_digest(data, n), "n = %llu",
                     (unsigned long long)n);
        free(data);
    }
}

Test(tensor, digest_of_any_cut_adds_up)
{
    struct pd_tensor t = tensor_of(37, 53, 1);
    struct pd_box whole = pd_box_whole(&t);
    float *data = random_floats(37 * 53, 3), *piece = malloc(37 * 53 * sizeof *piece);
    uint64_t expected = reference_digest(data, 37 * 53);
    cr_assert_eq(pd_tensor_digest(&t, &whole, PD_F32, data), expected);
    for (uint64_t rows = 1; rows <= 37; rows += 3) {
        for (uint64_t columns = 1; columns <= 53; columns += 4) {
            uint64_t sum = 0;
            for (uint64_t i = 0; i < 37; i += rows) {
                for (uint64_t j = 0; j < 53; j += columns) {
                    struct pd_box box = {{i, j, 0, 0}, {rows, columns, 1, 1}};
                    cr_assert(pd_box_intersect(&box, &whole, &box));
                    pd_box_copy(piece, &box, data, &whole, &box, sizeof(float));
                    sum += pd_tensor_digest(&t, &box, PD_F32, piece);
                }
            }
            cr_assert_eq(sum, expected);
        }
    }
    free(data);
    free(piece);
}

Test(tensor, digest_sees_flips_swaps_and_the_sign_of_zero)
{
    struct pd_tensor t = tensor_of(1000, 1, 1);
    struct pd_box whole = pd_box_whole(&t);
    float *data = random_floats(1000, 11);
    uint64_t expected = pd_tensor_digest(&t, &whole, PD_F32, data);
    for (unsigned bit = 0; bit < 32000; bit += 7) {
        unsigned char *byte = (unsigned char *)data + bit / 8;
        *byte ^= (unsigned char)(1u << bit % 8);
        cr_assert_neq(pd_tensor_digest(&t, &whole, PD_F32, data), expected);
        *byte ^= (unsigned char)(1u << bit % 8);
    }
    for (int i = 0; i + 1 < 1000; i++) {
        float a = data[i], b = data[i + 1];
        if (memcmp(&a, &b, sizeof a) == 0) continue;
        memcpy(data + i, &b, sizeof b);
        memcpy(data + i + 1, &a, sizeof a);
        cr_assert_neq(pd_tensor_digest(&t, &whole, PD_F32, data), expected);
        memcpy(data + i, &a, sizeof a);
        memcpy(data + i + 1, &b, sizeof b);
    }
    struct pd_tensor one = tensor_of(1, 1, 1);
    struct pd_box whole_one = pd_box_whole(&one);
    float plus = 0.0f, minus = -0.0f;
    cr_assert_neq(pd_tensor_digest(&one, &whole_one, PD_F32, &plus), pd_tensor_digest(&one, &whole_one, PD_F32, &minus));
    free(data);
}
