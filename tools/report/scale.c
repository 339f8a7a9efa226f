#include "tools/report/scale.h"

#include <math.h>
#include <stdio.h>

#define LARGEST 1e100 /* largest bound: differences and quotients of two such numbers are finite */

struct unit {
    double size;
    const char *name;
};
static const struct unit of_numbers[] = {{1, ""}, {0, NULL}};
static const struct unit of_counts[] = {{1, ""}, {1e3, "k"}, {1e6, "M"}, {1e9, "G"}, {1e12, "T"}, {0, NULL}};
static const struct unit of_bytes[] = {
    {1, "B"}, {1024, "KiB"}, {1048576, "MiB"}, {1073741824, "GiB"}, {1099511627776, "TiB"}, {0, NULL}};
static const struct unit of_seconds[] = {{1e-6, "µs"}, {1e-3, "ms"}, {1, "s"}, {60, "min"},
                                         {3600, "h"},  {86400, "d"}, {0, NULL}};
static const struct unit of_shares[] = {{0.01, "%"}, {0, NULL}};
static const struct unit *const units[] = {of_numbers, of_counts, of_bytes, of_seconds, of_shares};

/* Returns the largest unit of which `value` is at least `least`. */
static struct unit unit_of(enum pd_quantity quantity, double value, double least)
{
    const struct unit *unit = units[quantity];
    while (unit[1].size && fabs(value) >= least * unit[1].size)
        unit++;
    return *unit;
}

static double round_step(double span, uint32_t ticks)
{
    const double rough = span / (ticks ? ticks : 1), power = pow(10, floor(log10(rough))), part = rough / power;
    return power * (part <= 1 ? 1 : part <= 2 ? 2 : part <= 5 ? 5 : 10);
}

static void add_tick(struct pd_scale *s, double value)
{
    if (s->tick_count < PD_TICKS_MAX) s->ticks[s->tick_count++] = value;
}

/* Powers of ten, plus 2 and 5 in between if there are few. */
static void make_log(struct pd_scale *s, double low, double high, uint32_t ticks)
{
    const double decades = log10(high / low);
    const int stride = (int)fmax(1, ceil(decades / ticks));
    s->is_log = true;
    s->low = low;
    s->high = high;
    for (int e = (int)floor(log10(low)); e <= (int)ceil(log10(high)); e += stride)
        for (int i = 0; i < 3; i++) {
            const double tick = (double[]){1, 2, 5}[i] * pow(10, e);
            if (tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9) && (i == 0 || decades < 2.5)) add_tick(s, tick);
        }
    s->digits = -1;
}

void pd_scale_make(struct pd_scale *ret_scale, enum pd_quantity quantity, double low, double high, uint32_t ticks,
                   bool wants_log, bool is_widened)
{
    struct pd_scale s = {.low = low, .high = high};
    if (!(fabs(low) < LARGEST && fabs(high) < LARGEST)) low = 0, high = 1;
    if (high - low <= fmax(1e-9 * fmax(fabs(low), fabs(high)), 1 / LARGEST)) {
        const double half =
            fabs(high) > 1 / LARGEST && quantity == PD_QUANTITY_NUMBER ? fabs(high) * 0.05 : fmax(0.5, fabs(high) * 1e-8);
        high += half;
        low -= low > 0 || quantity == PD_QUANTITY_NUMBER ? half : 0;
    }
    const struct unit unit = unit_of(quantity, fmax(fabs(low), fabs(high)), 1.5);
    s.unit = unit.size;
    s.unit_name = unit.name;
    if (wants_log && low > 1 / LARGEST)
        make_log(&s, low, high, ticks);
    else {
        const double step = round_step((high - low) / s.unit, ticks) * s.unit;
        s.low = is_widened ? floor(low / step + 1e-9) * step : low;
        s.high = is_widened ? ceil(high / step - 1e-9) * step : high;
        for (double n = ceil(s.low / step - 1e-6); n * step <= s.high + step * 1e-6; n++)
            add_tick(&s, n * step);
        s.digits = (int)fmax(0, -floor(log10(step / s.unit) + 1e-9));
    }
    *ret_scale = s;
}

double pd_scale_place(const struct pd_scale *s, double value)
{
    if (s->is_log) return log(value / s->low) / log(s->high / s->low);
    return (value - s->low) / (s->high - s->low);
}

void pd_scale_label(const struct pd_scale *s, double tick, char *ret_text, size_t capacity)
{
    const double value = tick / s->unit;
    if (s->digits < 0 || s->digits > 4)
        snprintf(ret_text, capacity, "%.3g", fabs(value) < 1e-12 ? 0 : value);
    else
        snprintf(ret_text, capacity, "%.*f", s->digits, fabs(value) < 1e-12 ? 0 : value);
}

struct pd_quantity_text pd_quantity_text(enum pd_quantity quantity, double value)
{
    struct pd_quantity_text t;
    const struct unit unit = unit_of(quantity, value, 1);
    const double number = value / unit.size;
    const bool is_whole = (unit.size == 1 && (quantity == PD_QUANTITY_COUNT || quantity == PD_QUANTITY_BYTES)) ||
                          (fabs(number) >= 1000 && fabs(number) < 1e6);
    if (isnan(value))
        snprintf(t.text, sizeof t.text, "–");
    else if (quantity == PD_QUANTITY_SHARE && value > 0 && value < 1e-4)
        snprintf(t.text, sizeof t.text, "under 0.01 %%");
    else
        snprintf(t.text, sizeof t.text, is_whole ? "%.0f%s%s" : "%.3g%s%s", number, *unit.name ? " " : "", unit.name);
    return t;
}

/* ---- thinning ---- */

struct column {
    uint64_t first, lowest, highest, last;
    bool has_any;
};

static uint64_t scale_flush(const struct column *c, uint64_t *ret, uint64_t used)
{
    const uint64_t earlier = c->lowest < c->highest ? c->lowest : c->highest;
    const uint64_t later = c->lowest < c->highest ? c->highest : c->lowest;
    const uint64_t all[] = {c->first, earlier, later, c->last};
    for (int i = 0; c->has_any && i < 4; i++)
        if (i == 0 || all[i] != all[i - 1]) ret[used++] = all[i];
    return used;
}

uint64_t pd_thin(const double *x, const double *y, const bool *counts, uint64_t count, double low, double high,
                 uint32_t columns, uint64_t *ret_indices)
{
    uint64_t used = 0;
    int64_t at = -1;
    struct column c = {.has_any = false};
    for (uint64_t i = 0; i < count; i++) {
        if (!isfinite(x[i]) || !isfinite(y[i]) || (counts && !counts[i]) || x[i] < low || x[i] > high) continue;
        int64_t column = high > low ? (int64_t)((x[i] - low) / (high - low) * columns) : 0;
        if (column >= columns) column = (int64_t)columns - 1;
        if (column < at) continue; /* out of order */
        if (column > at) {
            used = scale_flush(&c, ret_indices, used);
            c = (struct column){i, i, i, i, true};
            at = column;
        }
        c.last = i;
        if (y[i] < y[c.lowest]) c.lowest = i;
        if (y[i] > y[c.highest]) c.highest = i;
    }
    return scale_flush(&c, ret_indices, used);
}
