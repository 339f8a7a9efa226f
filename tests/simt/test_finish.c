/* Parts become one with the CPU's bits, whichever parts there are. */
#include "simt_fixture.h"

enum { ROWS = 5, PARTS_MAX = 16 };

struct scene {
    uint32_t parts, present; /* a bit for each place */
    size_t columns, ld;
    float scale;
    int bias, residual; /* dtype, or -1 */
    enum pd_dtype out;
    bool in_place;
};

static void check(struct fixture *f, const struct scene *s)
{
    uint64_t seed = s->present * 7 + s->columns;
    struct buffer part[PARTS_MAX], own = {0};
    const float *parts[PARTS_MAX];
    for (uint32_t p = 0; p < s->parts; p++) {
        part[p] = buffer_random(PD_F32, ROWS * s->ld, 0, 1, &seed);
        parts[p] = s->present >> p & 1u ? part[p].data : NULL;
    }
    struct buffer bias = buffer_random(s->bias < 0 ? PD_F32 : (enum pd_dtype)s->bias, s->columns, 0, 1, &seed);
    struct buffer residual = buffer_random(s->residual < 0 ? PD_F32 : (enum pd_dtype)s->residual, ROWS * s->ld, 0, 1, &seed);
    struct buffer want = buffer_new(s->out, ROWS * s->ld, 0), got = buffer_new(s->out, ROWS * s->ld, 0);
    struct pd_finish finish = {.rows = ROWS,
                               .columns = s->columns,
                               .part_count = s->parts,
                               .parts = parts,
                               .ld_parts = s->ld,
                               .scale = s->scale,
                               .bias = s->bias < 0 ? NULL : bias.data,
                               .bias_dtype = bias.dtype,
                               .residual = {s->residual < 0 ? NULL : residual.data, residual.dtype, s->ld},
                               .out = {want.data, s->out, s->ld}};
    MUST(pd_finish(f->math, &finish, &err));
    if (s->in_place) { /* what lies between the rows of a part stays */
        own = buffer_copy(&part[0]);
        for (size_t r = 0; r < ROWS; r++)
            memcpy((float *)own.data + r * s->ld, (float *)want.data + r * s->ld, s->columns * sizeof(float));
        finish.out.data = part[0].data;
    } else {
        finish.out.data = got.data;
    }
    MUST(pd_cuda_finish(NULL, &finish, &err));
    buffers_equal(s->in_place ? &part[0] : &got, s->in_place ? &own : &want, "finish");
    for (uint32_t p = 0; p < s->parts; p++)
        buffer_free(&part[p]);
    buffer_free(&bias), buffer_free(&residual), buffer_free(&want), buffer_free(&got), buffer_free(&own);
}

Test(finish, any_parts)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 1);
    for (uint32_t parts = 1; parts <= PARTS_MAX; parts *= 2)
        for (uint32_t present = 0; present < 1u << parts; present += parts < 16 ? 1 : 1237)
            check(&f, &(struct scene){parts, present, 6, 7, 1.0f, -1, -1, PD_F32, false});
    fixture_free(&f);
}

Test(finish, epilogues)
{
    static const size_t sizes[][2] = {{1, 1}, {7, 9}, {64, 64}, {260, 264}, {1100, 1100}};
    struct fixture f = fixture_new(PD_ISA_AUTO, 1);
    for (size_t z = 0; z < 5; z++)
        for (int bias = -1; bias < 3; bias++)
            for (int out = 0; out < 3; out++)
                check(&f, &(struct scene){4, 13, sizes[z][0], sizes[z][1], bias % 2 ? 0.3f : 1.0f, bias, 1 - bias,
                                          (enum pd_dtype)out, false});
    check(&f, &(struct scene){4, 15, 40, 44, 0.5f, 0, 1, PD_F32, true});
    check(&f, &(struct scene){2, 1, 33, 37, 0.5f, 2, -1, PD_F32, true});
    fixture_free(&f);
}

Test(finish, too_many_parts_are_refused)
{
    enum { MANY = 512 };
    const float *parts[MANY];
    float x = 1, out = 0;
    for (size_t p = 0; p < MANY; p++)
        parts[p] = &x;
    struct pd_finish finish = {
        .rows = 1, .columns = 1, .part_count = MANY, .parts = parts, .scale = 1, .out = {&out, PD_F32, 1}};
    struct pd_error err;
    cr_assert_eq(pd_cuda_finish(NULL, &finish, &err), PD_UNSUPPORTED);
    cr_assert(strstr(err.message, "numerics.virtual_tp"));
}
