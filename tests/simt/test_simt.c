/* The grid on the host keeps CUDA's rules and finds who breaks them. */
#include "ckpt/base/half.h"
#include "tests/simt/exercise.h"
#include "tests/simt/simt_order.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#include <signal.h>
#endif

static const uint64_t orders[] = {0, 1, 2, 12345};

#define EACH_ORDER(call)                                           \
    for (size_t order_ = 0; order_ < 4; order_++) {                \
        simt_set_order(orders[order_]);                            \
        struct pd_error err = {0};                                 \
        cr_assert_eq((call), PD_OK, "%s: %s", #call, err.message); \
    }

#define REFUSED(call, ...)                                                                                    \
    for (size_t order_ = 0; order_ < 4; order_++) {                                                           \
        static const char *const words[] = {__VA_ARGS__};                                                     \
        simt_set_order(orders[order_]);                                                                       \
        struct pd_error err = {0};                                                                            \
        cr_assert_neq((call), PD_OK, "%s went through", #call);                                               \
        for (size_t w_ = 0; w_ < sizeof words / sizeof *words; w_++)                                          \
            cr_assert(strstr(err.message, words[w_]), "%s: no \"%s\" in: %s", #call, words[w_], err.message); \
    }

Test(simt, threads_know_where_they_are)
{
    static unsigned out[24 * 30 * 12];
    EACH_ORDER(exercise_places(out, &err));
    for (unsigned i = 0; i < 24 * 30; i++) {
        const unsigned b = i / 30, t = i % 30, *o = out + 12 * (size_t)i;
        const unsigned want[12] = {t % 2, t / 2 % 5, t / 10, b % 2, b / 2 % 3, b / 6, 2, 5, 3, 2, 3, 4};
        cr_assert_arr_eq(o, want, sizeof want);
    }
}

Test(simt, shared_memory_and_barriers)
{
    float x[200], out[200];
    for (unsigned i = 0; i < 200; i++)
        x[i] = (float)i;
    EACH_ORDER(exercise_reverse(200, x, out, &err));
    for (unsigned i = 0; i < 200; i++) {
        unsigned first = i / 64 * 64, count = 200 - first < 64 ? 200 - first : 64;
        cr_assert_eq(out[i], x[first + count - 1 - (i - first)]);
    }
    struct pd_error err;
    cr_assert_eq(exercise_reverse(0, NULL, NULL, &err), PD_OK, "an empty grid");
}

Test(simt, warp_operations)
{
    int out[64][8];
    EACH_ORDER(exercise_warp(&out[0][0], &err));
    for (int i = 0; i < 64; i++) {
        const int lane = i % 32, base = i - lane;
        const int want[8] = {base + 5,
                             base + (lane ^ 3),
                             lane < 28 ? i + 4 : i,
                             lane >= 4 ? i - 4 : i,
                             base + lane / 8 * 8 + 1,
                             0x49249249,
                             i >= 32,
                             i < 32};
        cr_assert_arr_eq(out[i], want, sizeof want, "thread %d", i);
    }
}

Test(simt, halves_of_a_warp_go_their_own_ways)
{
    int out[32];
    EACH_ORDER(exercise_half_warps(out, &err));
    for (int lane = 0; lane < 32; lane++) {
        int from = lane ^ 16, rounds = from >= 16 ? 9 : 2, pair = from / 2 * 4 + 1;
        cr_assert_eq(out[lane], pair << (rounds - 1), "lane %d", lane);
    }
}

Test(simt, integer_atomics)
{
    unsigned long long out[2];
    EACH_ORDER((memset(out, 0, sizeof out), exercise_atomics(320, out, &err)));
    cr_assert_eq(out[0], 319u * 320u / 2);
    cr_assert_eq(out[1], 319u);
}

Test(simt, a_tensor_core_step)
{
    for (enum pd_dtype dtype = PD_BF16; dtype <= PD_F16; dtype++) {
        uint16_t a[16][16] __attribute__((aligned(16))), b[16][8] __attribute__((aligned(16)));
        float c[16][8], x[16][16], y[16][8];
        for (int i = 0; i < 16; i++) {
            for (int j = 0; j < 16; j++)
                x[i][j] = (float)((7 * i + 3 * j) % 11 - 5);
            for (int j = 0; j < 8; j++)
                y[i][j] = (float)((5 * i + 2 * j) % 13 - 6);
        }
        for (int i = 0; i < 256; i++)
            (&a[0][0])[i] = dtype == PD_BF16 ? pd_bf16_from_f32((&x[0][0])[i]) : pd_f16_from_f32((&x[0][0])[i]);
        for (int i = 0; i < 128; i++)
            (&b[0][0])[i] = dtype == PD_BF16 ? pd_bf16_from_f32((&y[0][0])[i]) : pd_f16_from_f32((&y[0][0])[i]);
        EACH_ORDER(exercise_mma(dtype, &a[0][0], &b[0][0], &c[0][0], &err));
        for (int i = 0; i < 16; i++) {
            for (int j = 0; j < 8; j++) {
                float sum = 0;
                for (int k = 0; k < 16; k++)
                    sum += x[i][k] * y[k][j];
                cr_assert_eq(c[i][j], sum, "(%d,%d)", i, j);
            }
        }
    }
}

Test(simt, asynchronous_copies_arrive_when_waited_for)
{
    uint16_t from[8] __attribute__((aligned(16))) = {1, 2, 3, 4, 5, 6, 7, 8}, out[16];
    for (unsigned wait = 0; wait < 3; wait++) {
        EACH_ORDER(exercise_async(wait, from, out, &err));
        for (unsigned i = 0; i < 16; i++) {
            uint16_t want = i < 8 ? wait < 2 ? from[i] : 0xffff : wait == 0 ? 0 : 0xffff;
            cr_assert_eq(out[i], want, "wait %u, element %u", wait, i);
        }
    }
}

Test(simt, denormals_are_flushed)
{
    float out = 1, smallest = 0x1p-126f;
    EACH_ORDER(exercise_denormal(smallest, &out, &err));
    cr_assert_eq(out, 0.0f);
    volatile float host = smallest;
    host *= 0.5f;
    cr_assert_gt(host, 0.0f, "and only in kernels");
}

Test(simt, who_misses_a_barrier_is_named)
{
    REFUSED(exercise_barrier_after_return(&err), "barrier_after_return", "block (", "thread (0,0,0) waits at __syncthreads",
            "thread (5,0,0)", "returned");
    REFUSED(exercise_barrier_in_branch(&err), "barrier_in_branch", "waits at __syncthreads", "returned");
    REFUSED(exercise_warp_in_branch(&err), "warp_in_branch", "__shfl_sync", "thread (9,0,0)", "returned");
    REFUSED(exercise_two_operations(&err), "two_operations", "__shfl_sync", "__syncwarp");
}

Test(simt, other_broken_rules)
{
    uint16_t from[8] __attribute__((aligned(16))) = {0};
    REFUSED(exercise_never_waits(from, &err), "never_waits", "cp.async");
    REFUSED(exercise_crooked_row(&err), "crooked_row", "16-aligned");
    REFUSED(exercise_too_much_shared(&err), "240000 bytes");
    REFUSED(exercise_too_many_threads(&err), "64 x 32");
    float out[200], x[200] = {0};
    REFUSED(exercise_too_much_shared_together(out, &err), "unwritten", "more than the launch asks for");
    EACH_ORDER(exercise_reverse(200, x, out, &err)); /* abandoned fibers leave nothing behind */
}

Test(simt, unwritten_shared_memory_is_nan)
{
    float out[32];
    EACH_ORDER(exercise_unwritten(out, &err));
    for (int i = 0; i < 32; i++)
        cr_assert_eq(isnan(out[i]) != 0, i == 7);
}

Test(simt, a_missing_barrier_shows_in_some_order)
{
    float out[64];
    bool shows = false;
    EACH_ORDER((exercise_missing_barrier(out, &err)));
    for (size_t order = 0; order < 4; order++) {
        struct pd_error err;
        simt_set_order(orders[order]);
        cr_assert_eq(exercise_missing_barrier(out, &err), PD_OK);
        for (int i = 0; i < 64; i++)
            shows |= isnan(out[i]);
    }
    cr_assert(shows);
}

#if defined(__SANITIZE_ADDRESS__)
Test(simt, beyond_shared_memory_ends_the_process, .exit_code = 1)
{
    float out[32];
    struct pd_error err;
    (void)!exercise_beyond(out, &err);
    _exit(0);
}
#endif
