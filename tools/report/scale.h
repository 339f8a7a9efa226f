/* Axes: a range, round ticks, and a unit that keeps the numbers short. Pure functions. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum pd_quantity { PD_QUANTITY_NUMBER, PD_QUANTITY_COUNT, PD_QUANTITY_BYTES, PD_QUANTITY_SECONDS, PD_QUANTITY_SHARE };

#define PD_TICKS_MAX 24u
struct pd_scale {
    double low, high; /* of the data, rounded outwards */
    bool is_log;
    double unit;           /* ticks are labelled in multiples of it */
    const char *unit_name; /* "GiB", "ms", "%"; "": none */
    uint32_t tick_count;
    double ticks[PD_TICKS_MAX];
    int digits; /* decimals of a label */
};

/* Chooses about `ticks` ticks. A logarithmic scale needs low > 0; otherwise it is linear. */
void pd_scale_make(struct pd_scale *ret_scale, enum pd_quantity quantity, double low, double high, uint32_t ticks,
                   bool wants_log, bool is_widened);
/* Position on the axis: 0 at low, 1 at high. */
double pd_scale_place(const struct pd_scale *scale, double value);
void pd_scale_label(const struct pd_scale *scale, double tick, char *ret_text, size_t capacity);
struct pd_quantity_text {
    char text[32];
};
/* Formats a number: "1.23 GiB", "4.5 min", "12.3 k", "87 %". */
struct pd_quantity_text pd_quantity_text(enum pd_quantity quantity, double value);

/* Thins points in x order for a drawing of `columns` pixels: keeps the first, lowest, highest and last point of each
 * column, in their order. So every spike stays, and a line of any length has a few thousand points at most.
 *   x, y    (count); points that are not finite, or do not count (NULL: all count), are left out
 *   ret     (4 * columns) indices.   returns  how many */
uint64_t pd_thin(const double *x, const double *y, const bool *counts, uint64_t count, double low, double high,
                 uint32_t columns, uint64_t *ret_indices);
