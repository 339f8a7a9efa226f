/* Axes: a range, round ticks, and the unit in which the numbers are short. Pure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum pd_quantity { PD_QUANTITY_NUMBER, PD_QUANTITY_COUNT, PD_QUANTITY_BYTES, PD_QUANTITY_SECONDS, PD_QUANTITY_SHARE };

#define PD_TICKS_MAX 24u
struct pd_scale {
    double low, high; /* of the data, widened to round numbers */
    bool is_log;
    double unit;           /* ticks are labelled in multiples of it */
    const char *unit_name; /* "GiB", "ms", "%"; "": none */
    uint32_t tick_count;
    double ticks[PD_TICKS_MAX];
    int digits; /* behind the point of a label */
};

/* Room for about `ticks` of them. A logarithmic scale needs low > 0, and is linear otherwise. */
void pd_scale_make(struct pd_scale *ret_scale, enum pd_quantity quantity, double low, double high, uint32_t ticks,
                   bool wants_log, bool is_widened);
/* 0 at low, 1 at high. */
double pd_scale_place(const struct pd_scale *scale, double value);
void pd_scale_label(const struct pd_scale *scale, double tick, char *ret_text, size_t room);
struct pd_quantity_text {
    char text[32];
};
/* A number for people: "1.23 GiB", "4.5 min", "12.3 k", "87 %". */
struct pd_quantity_text pd_quantity_text(enum pd_quantity quantity, double value);

/* Of points in the order of x the ones that a drawing of `columns` pixels needs: of each column the first, the lowest, the
 * highest and the last, in their order. So every spike stays, and a line of any length is a few thousand points.
 *   x, y    (count); what is not finite, or does not count (NULL: all count), is left out
 *   ret     (4 * columns) indices.   returns  how many */
uint64_t pd_thin(const double *x, const double *y, const bool *counts, uint64_t count, double low, double high,
                 uint32_t columns, uint64_t *ret_indices);
