#include "trainer/data/order.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

Test(order, is_a_permutation_of_every_size)
{
    static unsigned char seen[5000];
    for (uint64_t n = 1; n <= 5000; n += n < 300 ? 1 : 97) {
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            memset(seen, 0, sizeof seen);
            for (uint64_t i = 0; i < n; i++) {
                uint64_t image = pd_order_permute(n, 7, 1, epoch, i);
                cr_assert_lt(image, n);
                cr_assert_not(seen[image], "n %lu, epoch %lu: %lu twice", n, epoch, image);
                seen[image] = 1;
            }
        }
    }
}

Test(order, large_sizes_stay_in_range_and_differ)
{
    static const uint64_t sizes[] = {(1ull << 32) - 1, (1ull << 32) + 1, 1ull << 40, (1ull << 62) - 3, 1ull << 62};
    for (unsigned s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        uint64_t last = UINT64_MAX;
        for (uint64_t i = 0; i < 1000; i++) {
            uint64_t image = pd_order_permute(sizes[s], 1, 0, 0, i);
            cr_assert_lt(image, sizes[s]);
            cr_assert_neq(image, last);
            last = image;
        }
    }
}

/* Never to change: samples of runs that are under way would come twice or not at all. */
Test(order, is_what_it_always_was)
{
    static const uint64_t expected[] = {860, 431, 787, 780, 692, 792, 29, 145};
    for (uint64_t i = 0; i < 8; i++)
        cr_assert_eq(pd_order_permute(1000, 42, 3, 5, i), expected[i], "%lu: %lu", i, pd_order_permute(1000, 42, 3, 5, i));
}

static unsigned agreement(uint64_t n, uint64_t seed, uint64_t stream, uint64_t epoch)
{
    unsigned same = 0;
    for (uint64_t i = 0; i < n; i++)
        same += pd_order_permute(n, seed, stream, epoch, i) == pd_order_permute(n, 1, 1, 1, i);
    return same;
}

Test(order, depends_on_every_part_of_the_key)
{
    cr_assert_eq(agreement(10000, 1, 1, 1), 10000);
    cr_assert_lt(agreement(10000, 2, 1, 1), 12); /* one is expected by chance */
    cr_assert_lt(agreement(10000, 1, 2, 1), 12);
    cr_assert_lt(agreement(10000, 1, 1, 2), 12);
}

/* Where i lands, and how far from i - 1, is spread evenly: chi-square over 64 cells, 1 in 10^6 for the bound. */
Test(order, is_spread_evenly)
{
    enum { N = 65536 + 777, CELLS = 64 };
    for (uint64_t epoch = 0; epoch < 8; epoch++) {
        double place[CELLS] = {0}, step[CELLS] = {0};
        uint64_t before = pd_order_permute(N, 99, 0, epoch, N - 1);
        for (uint64_t i = 0; i < N; i++) {
            uint64_t image = pd_order_permute(N, 99, 0, epoch, i);
            if (i < N / 4) place[image * CELLS / N]++;
            step[(image + N - before) % N * CELLS / N]++;
            before = image;
        }
        double chi_place = 0, chi_step = 0;
        for (int c = 0; c < CELLS; c++) {
            chi_place += pow(place[c] - N / 4.0 / CELLS, 2) / (N / 4.0 / CELLS);
            chi_step += pow(step[c] - (double)N / CELLS, 2) / ((double)N / CELLS);
        }
        cr_assert_lt(chi_place, 129, "%g", chi_place);
        cr_assert_lt(chi_step, 129, "%g", chi_step);
        cr_assert_gt(chi_step, 22, "%g", chi_step);
    }
}

Test(blend, every_source_gets_its_share_and_its_samples_in_turn)
{
    static const double weights[] = {0.7, 0.2, 0.05, 0.05, 1e-9};
    struct pd_blend *blend = malloc(sizeof *blend);
    pd_blend_init(blend, weights, 5);
    uint64_t next[5] = {0};
    for (uint64_t i = 0; i < 3 * PD_BLEND_CYCLE + 1234; i++) {
        uint32_t source = 99;
        uint64_t k = 99;
        pd_blend_locate(blend, i, &source, &k);
        cr_assert_lt(source, 5);
        cr_assert_eq(k, next[source], "sample %lu of source %u", i, source);
        next[source]++;
        /* never more than about one sample away from the line */
        for (int s = 0; s < 4; s++)
            cr_assert_lt(fabs((double)next[s] - weights[s] * (double)(i + 1)), 2.5 + (double)i / PD_BLEND_CYCLE);
    }
    cr_assert_geq(next[4], 3);
    free(blend);
}

Test(blend, extremes)
{
    struct pd_blend *blend = malloc(sizeof *blend);
    static double weights[PD_BLEND_SOURCES_MAX];
    for (uint32_t s = 0; s < PD_BLEND_SOURCES_MAX; s++)
        weights[s] = s == 5 ? 1e308 : 1e-308;
    pd_blend_init(blend, weights, PD_BLEND_SOURCES_MAX);
    uint32_t total = 0;
    for (uint32_t s = 0; s < PD_BLEND_SOURCES_MAX; s++) {
        cr_assert_geq(blend->share[s], 1);
        total += blend->share[s];
    }
    cr_assert_eq(total, PD_BLEND_CYCLE);
    cr_assert_eq(blend->share[5], PD_BLEND_CYCLE - PD_BLEND_SOURCES_MAX + 1);
    pd_blend_init(blend, weights + 5, 1);
    cr_assert_eq(blend->share[0], PD_BLEND_CYCLE);
    free(blend);
}
