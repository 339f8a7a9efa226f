#include "tools/report/scale.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- ticks ---- */

static void check_ticks(enum pd_quantity quantity, double low, double high, const char *unit, const char *labels)
{
    struct pd_scale s;
    char all[400] = "", text[32];
    pd_scale_make(&s, quantity, low, high, 4, false, true);
    cr_assert_str_eq(s.unit_name, unit);
    for (uint32_t i = 0; i < s.tick_count; i++) {
        pd_scale_label(&s, s.ticks[i], text, sizeof text);
        strncat(strncat(all, i ? " " : "", 2), text, 32);
    }
    cr_assert_str_eq(all, labels);
    cr_assert(s.low <= low && s.high >= high);
}

Test(scale, ticks_are_round_and_say_their_unit)
{
    check_ticks(PD_QUANTITY_NUMBER, 2.1, 9.8, "", "2 4 6 8 10");
    check_ticks(PD_QUANTITY_NUMBER, 0, 0.0003, "", "0.0000 0.0001 0.0002 0.0003");
    check_ticks(PD_QUANTITY_COUNT, 0, 10000, "k", "0 5 10");
    check_ticks(PD_QUANTITY_COUNT, 0, 30, "", "0 10 20 30");
    check_ticks(PD_QUANTITY_BYTES, 0, 4.8 * (1 << 30), "GiB", "0 2 4 6");
    check_ticks(PD_QUANTITY_SECONDS, 0, 0.025, "ms", "0 10 20 30");
    check_ticks(PD_QUANTITY_SECONDS, 0, 7200, "h", "0.0 0.5 1.0 1.5 2.0");
    check_ticks(PD_QUANTITY_SHARE, 0, 0.73, "%", "0 20 40 60 80");
    check_ticks(PD_QUANTITY_NUMBER, 3, 3, "", "2.8 2.9 3.0 3.1 3.2");
}

Test(scale, places_are_in_order_and_ends_are_inside)
{
    for (int is_log = 0; is_log < 2; is_log++) {
        struct pd_scale s;
        pd_scale_make(&s, PD_QUANTITY_NUMBER, 0.4, 900, 5, is_log, true);
        cr_assert_eq(s.is_log, is_log);
        cr_assert(s.tick_count >= 3 && s.tick_count <= 12);
        double before = -1;
        for (double v = 0.4; v <= 900; v *= 1.1) {
            const double place = pd_scale_place(&s, v);
            cr_assert(place > before && place >= 0 && place <= 1);
            before = place;
        }
    }
}

/* What damaged lines may hold: a scale has ticks, an end, and a place for each number. */
Test(scale, any_range_has_an_axis)
{
    const double all[][2] = {{1e17, 1e17 + 32}, {1e17, 1e17},   {0, 5e-324}, {-1e308, 1e308},
                             {5e-324, 1},       {1e308, 1e308}, {NAN, 1}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int mode = 0; mode < 4; mode++) {
            struct pd_scale s;
            pd_scale_make(&s, mode & 2 ? PD_QUANTITY_SECONDS : PD_QUANTITY_NUMBER, all[i][0], all[i][1], 5, mode & 1,
                          mode & 2);
            cr_assert(s.tick_count && s.tick_count <= PD_TICKS_MAX && s.low < s.high, "range %zu, mode %d", i, mode);
            cr_assert(isfinite(pd_scale_place(&s, s.high)), "range %zu, mode %d", i, mode);
        }
}

Test(scale, numbers_for_people)
{
    const struct {
        enum pd_quantity quantity;
        double value;
        const char *text;
    } all[] = {{PD_QUANTITY_COUNT, 122900, "123 k"},        {PD_QUANTITY_COUNT, 58, "58"},
               {PD_QUANTITY_BYTES, 1224 << 10, "1.2 MiB"},  {PD_QUANTITY_BYTES, 0, "0 B"},
               {PD_QUANTITY_SECONDS, 1.259, "1.26 s"},      {PD_QUANTITY_SECONDS, 5400, "1.5 h"},
               {PD_QUANTITY_SHARE, 0.7359, "73.6 %"},       {PD_QUANTITY_NUMBER, NAN, "–"},
               {PD_QUANTITY_SHARE, 7.82e-9, "under 0.01 %"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        cr_assert_str_eq(pd_quantity_text(all[i].quantity, all[i].value).text, all[i].text);
}

/* ---- thinning ---- */

/* A spike of one step stays wherever it is, and the lowest and highest of every column do; what is drawn is bounded. */
Test(thin, every_spike_stays)
{
    enum { COUNT = 100000, COLUMNS = 600 };
    double *x = malloc(COUNT * sizeof *x), *y = malloc(COUNT * sizeof *y);
    uint64_t *kept = malloc(4 * COLUMNS * sizeof *kept);
    uint32_t seed = 1;
    for (int i = 0; i < COUNT; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = i;
        y[i] = 3 + (seed >> 8) / 1e8;
    }
    for (int round = 0; round < 50; round++) {
        seed = seed * 1664525u + 1013904223u;
        const uint64_t at = seed % COUNT;
        const double before = y[at];
        y[at] = round % 2 ? 99 : -99;
        const uint64_t count = pd_thin(x, y, NULL, COUNT, 0, COUNT - 1, COLUMNS, kept);
        bool found = false;
        cr_assert_leq(count, 4 * COLUMNS);
        for (uint64_t i = 0; i < count; i++) {
            found |= kept[i] == at;
            cr_assert(i == 0 || kept[i] > kept[i - 1], "points are drawn in their order, each once");
        }
        cr_assert(found, "the spike at %lu is not drawn", (unsigned long)at);
        cr_assert(kept[0] == 0 && kept[count - 1] == COUNT - 1);
        y[at] = before;
    }
    free(x);
    free(y);
    free(kept);
}

Test(thin, what_does_not_count_or_is_no_number_is_left_out)
{
    const double x[] = {1, 2, 3, 2, 3, 4, 5}, y[] = {1, NAN, 9, 2, INFINITY, 4, 5};
    const bool counts[] = {true, true, false, true, true, true, true};
    uint64_t kept[40];
    const uint64_t count = pd_thin(x, y, counts, 7, 1, 5, 10, kept), expected[] = {0, 3, 5, 6};
    cr_assert_eq(count, 4);
    cr_assert_arr_eq(kept, expected, sizeof expected);
}
