/* Rounding at random on the host: the bits of the CPU backend, for boxes of a tensor cut anywhere. */
#include "tests/simt/simt_fixture.h"

Test(simt_round, bits_of_the_cpu)
{
    static const struct pd_round boxes[] = {
        {.n = 1, .columns = 1, .stride = 1},
        {.n = 1000, .columns = 1000, .stride = 1000, .key = 5, .origin = UINT64_C(1) << 40},
        {.n = 777, .first = 31, .columns = 40, .stride = 96, .key = UINT64_C(0x123456789abcdef0), .origin = 1000003},
    };
    struct fixture f = fixture_new(PD_ISA_AUTO, 1);
    uint64_t seed = 12;
    for (size_t i = 0; i < sizeof boxes / sizeof *boxes; i++) {
        struct room x = room_random(PD_F32, boxes[i].n, 1, 2, &seed);
        struct room got = room_new(PD_BF16, boxes[i].n, 3), want = room_new(PD_BF16, boxes[i].n, 3);
        struct pd_round ours = boxes[i], theirs = boxes[i];
        struct pd_error err;
        if (boxes[i].n > 3) ((float *)x.data)[3] = INFINITY;
        ours.x = theirs.x = x.data;
        ours.out = got.data;
        theirs.out = want.data;
        simt_set_order(i);
        cr_assert_eq(pd_cuda_round(NULL, &ours, &err), PD_OK, "%s", err.message);
        cr_assert_eq(pd_round(f.math, &theirs, &err), PD_OK);
        rooms_equal(&got, &want, "rounding at random");
        room_free(&x), room_free(&got), room_free(&want);
    }
    fixture_free(&f);
}
