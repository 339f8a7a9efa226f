#include "trainer/config/laid_out.h"
#include "ckpt/base/words.h"
#include "resharder/layout.h"
#include "trainer/parallel/grid.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- degrees ---- */

#define STAGES_MAX 256u
#define NAMED_MAX 3u

/* Records without lanes have one per micro-batch. */
static uint32_t lanes_of(const struct pd_config *c)
{
    return c->numerics.lanes ? c->numerics.lanes : c->batch.sequences / c->batch.micro_batch;
}

static bool are_lanes_given(const struct pd_config *c)
{
    return lanes_of(c) < c->batch.sequences / c->batch.micro_batch;
}

static uint32_t or_one(uint32_t degree)
{
    return degree ? degree : 1;
}

static uint32_t interleave_of(const struct pd_config *c, uint32_t pp)
{
    return pp > 1 ? c->layout.interleave : 1;
}

uint32_t pd_degrees_world(const struct pd_degrees *d)
{
    return d->dp * d->tp * d->pp * d->sp;
}

void pd_degrees_text(const struct pd_degrees *d, char *ret, size_t bytes)
{
    const struct {
        const char *name;
        uint32_t value;
    } parts[] = {{"tp", d->tp}, {"pp", d->pp}, {"sp", d->sp}, {"interleave", d->interleave}};
    snprintf(ret, bytes, "dp=%u", d->dp);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        size_t used = strlen(ret);
        if (parts[i].value > 1) snprintf(ret + used, bytes - used, " %s=%u", parts[i].name, parts[i].value);
    }
}

/* ---- valid layouts ---- */

static pd_status check_order(const struct pd_config *c, const struct pd_degrees *d, struct pd_error *err)
{
    if (c->layout.order != PD_ORDER_BREADTH_FIRST || d->pp == 1) return PD_OK;
    PD_FAIL(err, PD_INVALID,
            "layout.order is breadth_first and layout.pp is %u, but pipeline stages take micro-batch after micro-batch; use "
            "layout.pp=1 or layout.order=depth_first",
            d->pp);
}

/* Sums off the device travel once a step breadth first, and once per micro-batch depth first. */
static pd_status check_gradients(const struct pd_config *c, const struct pd_degrees *d, struct pd_error *err)
{
    const bool nvme = c->offload.gradients == PD_PLACE_NVME,
               away = nvme || (c->offload.gradients == PD_PLACE_CPU && c->run.device == PD_DEVICE_GPU);
    const char *place = nvme ? "nvme" : "cpu";
    if (away && d->pp > 1)
        PD_FAIL(err, PD_INVALID,
                "offload.gradients is %s and layout.pp is %u, but pipeline stages take micro-batch after micro-batch, so "
                "that sums would travel once a micro-batch; use layout.pp=1 or offload.gradients=device",
                place, d->pp);
    if (away && (c->layout.order == PD_ORDER_DEPTH_FIRST || (!nvme && c->layout.order == PD_ORDER_AUTO)))
        PD_FAIL(err, PD_INVALID,
                "offload.gradients is %s and layout.order is %s, so that sums would travel once a micro-batch; use "
                "layout.order=breadth_first or offload.gradients=device",
                place, c->layout.order == PD_ORDER_AUTO ? "auto, which is depth_first here" : "depth_first");
    return PD_OK;
}

/* All rules that combine degrees with other settings, for starts, restarts and advice. */
static pd_status check_rules(const struct pd_config *c, const struct pd_degrees *d, struct pd_error *err)
{
    PD_TRY(check_order(c, d, err));
    PD_TRY(check_gradients(c, d, err));
    /* State on nvme is one copy: no two ranks hold the same part. If zero_shard does not divide the dp x sp left by a
     * restart, it is reduced (laid_out.c). */
    const uint32_t shares = d->dp * d->sp, shard = c->layout.zero_shard;
    const bool stage_is_open = c->layout.automatic && !c->layout.zero_stage_given;
    if (c->offload.optimizer != PD_PLACE_NVME || shares == 1) return PD_OK;
    if (c->layout.zero_stage == 0 && !stage_is_open)
        PD_FAIL(err, PD_INVALID,
                "layout.zero_stage is 0, which keeps the whole state on each of %u ranks, and offload.optimizer is nvme, "
                "which keeps it once; use layout.zero_stage=1, or offload.optimizer=device",
                shares);
    if (!shard || shard == shares || shares % shard) return PD_OK;
    PD_FAIL(err, PD_INVALID,
            "layout.zero_shard is %u of dp x sp %u, which keeps the state %u times, and offload.optimizer is nvme, which "
            "keeps it once; use layout.zero_shard=0, or offload.optimizer=device",
            shard, shares, shares / shard);
}

static bool fits(const struct pd_config *c, const struct pd_degrees *d)
{
    const uint64_t stages = (uint64_t)d->pp * d->interleave;
    return c->numerics.virtual_tp % d->tp == 0 && c->numerics.virtual_sp % d->sp == 0 && d->dp <= lanes_of(c) &&
           (d->pp == 1 || stages <= c->model.layers) && stages <= STAGES_MAX && check_rules(c, d, NULL) == PD_OK;
}

uint32_t pd_degrees_list(const struct pd_config *c, uint32_t world, const struct pd_degrees *held, struct pd_degrees *ret,
                         uint32_t capacity)
{
    uint32_t count = 0;
    for (uint32_t tp = 1; tp <= c->numerics.virtual_tp && tp <= world; tp *= 2) {
        if (world % tp || (held->tp && held->tp != tp)) continue;
        for (uint32_t sp = 1; sp <= c->numerics.virtual_sp && sp * tp <= world; sp *= 2) {
            if (world % (tp * sp) || (held->sp && held->sp != sp)) continue;
            const uint32_t rest = world / (tp * sp);
            for (uint32_t pp = 1; pp <= rest && pp <= c->model.layers && pp <= STAGES_MAX; pp++) {
                if (rest % pp || (held->pp && held->pp != pp)) continue;
                const struct pd_degrees d = {
                    .dp = rest / pp, .tp = tp, .pp = pp, .sp = sp, .interleave = interleave_of(c, pp)};
                if ((held->dp && held->dp != d.dp) || !fits(c, &d)) continue;
                if (count < capacity) ret[count] = d;
                count++;
            }
        }
    }
    return count;
}

static double ratio(uint32_t a, uint32_t b)
{
    return fabs(log2((double)a / b));
}

/* Doublings from one to the other; a change of tp or sp weighs more than one of dp, which costs the least to change. */
static double distance(const struct pd_degrees *a, const struct pd_degrees *b)
{
    return ratio(a->dp, b->dp) + 1.01 * ratio(a->pp, b->pp) + 1.02 * ratio(a->sp, b->sp) + 1.03 * ratio(a->tp, b->tp);
}

/* The nearest `count` first. Small counts: selection. */
static void order_by_distance(struct pd_degrees *list, uint32_t total, uint32_t count, const struct pd_degrees *wanted)
{
    for (uint32_t i = 0; i < count && i < total; i++) {
        uint32_t best = i;
        for (uint32_t k = i + 1; k < total; k++)
            if (distance(&list[k], wanted) < distance(&list[best], wanted)) best = k;
        const struct pd_degrees swapped = list[i];
        list[i] = list[best];
        list[best] = swapped;
    }
}

static bool has_any(const struct pd_config *c, uint32_t world)
{
    const struct pd_degrees anything = {0};
    return world > 0 && pd_degrees_list(c, world, &anything, NULL, 0) > 0;
}

/* The nearest number of ranks with a valid layout; on a tie the smaller. One rank is always valid. */
static uint32_t nearest_world(const struct pd_config *c, uint32_t world)
{
    for (uint32_t by = 0; by < world; by++) {
        if (has_any(c, world - by)) return world - by;
        if (has_any(c, world + by)) return world + by;
    }
    return 1;
}

/* "8 ranks fit as dp=8, dp=4 tp=2 or dp=2 tp=4" */
static void name_nearest(const struct pd_config *c, uint32_t world, const struct pd_degrees *wanted, char *ret, size_t bytes)
{
    const struct pd_degrees anything = {0};
    const uint32_t ranks = nearest_world(c, world), total = pd_degrees_list(c, ranks, &anything, NULL, 0);
    struct pd_degrees *list = calloc(total ? total : 1, sizeof *list);
    snprintf(ret, bytes, "%u rank%s", ranks, ranks == 1 ? " fits" : "s fit");
    if (!list) return;
    pd_degrees_list(c, ranks, &anything, list, total);
    order_by_distance(list, total, NAMED_MAX, wanted);
    for (uint32_t i = 0; i < total && i < NAMED_MAX; i++) {
        char text[64];
        size_t used = strlen(ret);
        bool is_last = i + 1 == total || i + 1 == NAMED_MAX;
        pd_degrees_text(&list[i], text, sizeof text);
        snprintf(ret + used, bytes - used, "%s%s", i == 0 ? " as " : is_last ? " or " : ", ", text);
    }
    free(list);
}

/* ---- layout.* by itself ---- */

static pd_status check_divides(const char *name, uint32_t degree, uint32_t virtual, struct pd_error *err)
{
    if (!degree || virtual % degree == 0) return PD_OK;
    uint32_t below = 1u << (31 - __builtin_clz(degree)); /* the power of two up to it */
    char more[160] = "";
    if (below == degree && degree <= 256)
        snprintf(more, sizeof more, ", or set numerics.virtual_%s=%u as well, which gives other bits", name, degree);
    if (below > virtual) below = virtual;
    if (below < degree && 2 * below <= virtual) snprintf(more, sizeof more, " or layout.%s=%u", name, 2 * below);
    PD_FAIL(err, PD_INVALID,
            "layout.%s is %u, and it must divide numerics.virtual_%s, which is %u: the number of parts in which sums are "
            "made, so that "
            "bits do not depend on layout.%s; use layout.%s=%u%s",
            name, degree, name, virtual, name, name, below, more);
}

/* What allows `dp` data ranks. */
static const char *more_lanes(const struct pd_config *c, uint32_t dp, char text[64])
{
    const char *more = dp <= c->batch.sequences / c->batch.micro_batch ? ""
                       : c->batch.micro_batch > 1                      ? "a smaller batch.micro_batch with "
                                                                       : "more batch.sequences with ";
    snprintf(text, 64, "%snumerics.lanes=%u", more, dp);
    return text;
}

static pd_status check_dp(const struct pd_config *c, uint32_t dp, struct pd_error *err)
{
    const uint32_t lanes = lanes_of(c);
    char more[64];
    if (dp <= lanes) return PD_OK;
    PD_FAIL(err, PD_INVALID,
            "layout.dp is %u, but a step has only %s (batch.sequences %u / batch.micro_batch %u); set it to at most %u, or "
            "take %s, which gives other bits",
            dp, pd_counted(lanes, are_lanes_given(c) ? "lane" : "micro-batch").text, c->batch.sequences,
            c->batch.micro_batch, lanes, more_lanes(c, dp, more));
}

static uint32_t stages_limit(const struct pd_config *c)
{
    return c->model.layers < STAGES_MAX ? c->model.layers : STAGES_MAX;
}

/* Every key advised is valid as advised, so advice never leads in a circle. */
static pd_status check_interleave(const struct pd_config *c, struct pd_error *err)
{
    const uint32_t interleave = c->layout.interleave, pp = or_one(c->layout.pp), limit = stages_limit(c);
    if (interleave == 1) return PD_OK;
    if (pp == 1 && !c->layout.automatic)
        PD_FAIL(
            err, PD_INVALID,
            "layout.interleave is %u and layout.pp is 1, so there are no stages to interleave; use layout.interleave=1%s",
            interleave, 2ull * interleave <= limit ? " or layout.pp=2" : "");
    return PD_OK;
}

static pd_status check_stages(const struct pd_config *c, struct pd_error *err)
{
    const uint32_t pp = or_one(c->layout.pp), interleave = c->layout.interleave, limit = stages_limit(c),
                   most = pp < limit ? pp : limit;
    const uint64_t stages = (uint64_t)pp * interleave;
    if (pp == 1 || stages <= limit) return PD_OK;
    const bool is_model = c->model.layers < stages;
    PD_FAIL(err, PD_INVALID,
            "layout.pp %u x layout.interleave %u is %u pipeline stages, but %s %s; use layout.pp=%u at most, "
            "with layout.interleave=%u",
            pp, interleave, (uint32_t)stages, is_model ? "the model has" : "the limit is",
            pd_counted(limit, is_model ? "block" : "stage").text, most, limit / most);
}

static pd_status check_zero_shard(const struct pd_config *c, const struct pd_degrees *d, struct pd_error *err)
{
    const uint32_t parts = c->layout.zero_shard, ranks = d->dp * d->sp;
    if (!parts || ranks % parts == 0) return PD_OK;
    uint32_t below = parts < ranks ? parts : ranks, above = parts;
    while (ranks % below)
        below--;
    while (above < ranks && ranks % above)
        above++;
    char more[48] = "";
    if (above <= ranks && above != below) snprintf(more, sizeof more, " or layout.zero_shard=%u", above);
    PD_FAIL(err, PD_INVALID, "layout.zero_shard is %u and does not divide dp x sp, which is %u; use layout.zero_shard=%u%s",
            parts, ranks, below, more);
}

static uint32_t common_divisor(uint32_t a, uint32_t b)
{
    while (b) {
        const uint32_t rest = a % b;
        a = b, b = rest;
    }
    return a;
}

/* Experts are spread evenly over data ranks that all have the same share of an expert. */
static pd_status check_ep(const struct pd_config *c, const struct pd_degrees *d, struct pd_error *err)
{
    const uint32_t ep = c->layout.ep, ranks = d->dp * d->sp, shard = c->layout.zero_shard;
    const struct {
        const char *name;
        uint32_t value;
    } of[] = {{"model.experts", c->model.experts}, {"dp x sp", ranks}, {"layout.zero_shard", shard ? shard : ranks}};
    const uint32_t whole = common_divisor(of[0].value, common_divisor(of[1].value, of[2].value));
    uint32_t below = ep < whole ? ep : whole, above = ep;
    char more[48] = "";
    if (ep <= 1) return PD_OK;
    if (!c->model.experts)
        PD_FAIL(err, PD_INVALID, "layout.ep is %u, and the model has no experts to spread; use layout.ep=1", ep);
    while (whole % below)
        below--;
    while (above < whole && whole % above)
        above++;
    if (above <= whole && above != below) snprintf(more, sizeof more, " or layout.ep=%u", above);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        if (of[i].value % ep)
            PD_FAIL(err, PD_INVALID, "layout.ep is %u and does not divide %s, which is %u; use layout.ep=%u%s", ep,
                    of[i].name, of[i].value, below, more);
    return PD_OK;
}

pd_status pd_degrees_check(const struct pd_config *c, struct pd_error *err)
{
    struct pd_degrees d;
    PD_TRY(check_divides("tp", c->layout.tp, c->numerics.virtual_tp, err));
    PD_TRY(check_divides("sp", c->layout.sp, c->numerics.virtual_sp, err));
    PD_TRY(check_dp(c, c->layout.dp, err));
    PD_TRY(check_interleave(c, err));
    PD_TRY(check_stages(c, err));
    const struct pd_degrees given = {
        .dp = or_one(c->layout.dp), .tp = or_one(c->layout.tp), .pp = or_one(c->layout.pp), .sp = or_one(c->layout.sp)};
    PD_TRY(check_order(c, &given, err));
    PD_TRY(check_gradients(c, &given, err));
    if (c->layout.automatic) return PD_OK;
    const uint32_t ranks = c->layout.ranks ? c->layout.ranks : c->layout.dp ? pd_degrees_first_world(c, 1) : 0;
    return ranks ? pd_degrees_of(c, ranks, &d, err) : PD_OK;
}

/* ---- for a number of ranks ---- */

static struct pd_degrees wanted_of(const struct pd_config *c, uint32_t world)
{
    struct pd_degrees d = {.tp = or_one(c->layout.tp), .pp = or_one(c->layout.pp), .sp = or_one(c->layout.sp)};
    const uint64_t rest = (uint64_t)d.tp * d.pp * d.sp;
    d.dp = c->layout.dp ? c->layout.dp : world >= rest ? (uint32_t)(world / rest) : 1;
    d.interleave = interleave_of(c, d.pp);
    return d;
}

pd_status pd_degrees_of(const struct pd_config *c, uint32_t world, struct pd_degrees *ret_degrees, struct pd_error *err)
{
    const struct pd_degrees d = wanted_of(c, world);
    const uint64_t product = (uint64_t)d.dp * d.tp * d.pp * d.sp;
    char nearest[256];
    if (product != world) {
        name_nearest(c, world, &d, nearest, sizeof nearest);
        if (c->layout.dp)
            PD_FAIL(err, PD_INVALID, "layout: dp %u x tp %u x pp %u x sp %u is %s, and there are %u; %s", d.dp, d.tp, d.pp,
                    d.sp, pd_counted(product, "rank").text, world, nearest);
        PD_FAIL(err, PD_INVALID, "layout: tp %u x pp %u x sp %u does not divide %s; %s", d.tp, d.pp, d.sp,
                pd_counted(world, "rank").text, nearest);
    }
    if (d.dp > lanes_of(c)) {
        char more[64];
        name_nearest(c, world, &d, nearest, sizeof nearest);
        PD_FAIL(err, PD_INVALID,
                "layout: dp %u of %s is more than the %s of a step (batch.sequences %u / batch.micro_batch %u); %s; or take "
                "%s, which gives other bits",
                d.dp, pd_counted(world, "rank").text,
                pd_counted(lanes_of(c), are_lanes_given(c) ? "lane" : "micro-batch").text, c->batch.sequences,
                c->batch.micro_batch, nearest, more_lanes(c, d.dp, more));
    }
    PD_TRY(check_zero_shard(c, &d, err));
    PD_TRY(check_ep(c, &d, err));
    PD_TRY(check_rules(c, &d, err));
    *ret_degrees = d;
    return PD_OK;
}

uint32_t pd_degrees_first_world(const struct pd_config *c, uint32_t devices)
{
    const uint32_t lanes = lanes_of(c);
    if (c->layout.ranks) return c->layout.ranks;
    if (c->layout.automatic) {
        while (devices > 1 && !has_any(c, devices))
            devices--;
        return devices;
    }
    const struct pd_degrees d = wanted_of(c, devices);
    const uint32_t dp = !c->layout.dp && d.dp > lanes ? lanes : d.dp;
    return dp * d.tp * d.pp * d.sp;
}

bool pd_degrees_fewer(const struct pd_config *c, uint32_t left, const struct pd_degrees *before,
                      struct pd_degrees *ret_degrees)
{
    const struct pd_degrees held = {.tp = before->tp, .pp = before->pp, .sp = before->sp}, anything = {0};
    if (pd_degrees_list(c, left, &held, ret_degrees, 1)) return true;
    while (left > 0 && !has_any(c, left))
        left--;
    const uint32_t total = left ? pd_degrees_list(c, left, &anything, NULL, 0) : 0;
    struct pd_degrees *list = total ? calloc(total, sizeof *list) : NULL;
    if (!list) return false;
    pd_degrees_list(c, left, &anything, list, total);
    order_by_distance(list, total, 1, before);
    *ret_degrees = list[0];
    free(list);
    return true;
}

/* ---- stages ---- */

/* Number of stages if none may cost more than `limit`; blocks + 1 if a single block does. */
static uint32_t stages_needed(const double *costs, uint32_t blocks, double limit)
{
    uint32_t stages = 1;
    double load = 0;
    for (uint32_t b = 0; b < blocks; b++) {
        if (costs[b] > limit) return blocks + 1;
        if (load + costs[b] > limit) {
            stages++;
            load = 0;
        }
        load += costs[b];
    }
    return stages;
}

/* The most even cut with stages of at most `limit`: least sum of squared costs; on a tie the last stages have more, since
 * the first keep activations of more micro-batches. first (stages + 1, blocks + 1): start of the last stage, for that many
 * stages and first blocks; sum (blocks + 1): of costs */
static void cut_evenly(const double *sum, uint32_t blocks, uint32_t stages, double limit, double *best, uint16_t *first)
{
    const uint32_t row = blocks + 1;
    for (uint32_t i = 0; i < (stages + 1) * row; i++)
        best[i] = INFINITY;
    best[0] = 0;
    for (uint32_t s = 1; s <= stages; s++)
        for (uint32_t b = s; b <= blocks; b++)
            for (uint32_t a = b; a-- > s - 1 && sum[b] - sum[a] <= limit;) {
                const double load = sum[b] - sum[a], squares = best[(s - 1) * row + a] + load * load;
                if (squares > best[s * row + b] * (1 + 1e-12)) continue;
                best[s * row + b] = squares;
                first[s * row + b] = (uint16_t)a;
            }
}

static pd_status fill_stages(const double *costs, uint32_t blocks, uint32_t stages, double limit, uint16_t *ret_first_unit,
                             struct pd_error *err)
{
    const uint32_t row = blocks + 1;
    double *sum = calloc(row, sizeof *sum), *best = calloc((size_t)(stages + 1) * row, sizeof *best);
    uint16_t *first = calloc((size_t)(stages + 1) * row, sizeof *first);
    pd_status st =
        sum && best && first ? PD_OK : pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "layout: no memory for stages");
    for (uint32_t b = 0; !st && b < blocks; b++)
        sum[b + 1] = sum[b] + costs[b];
    if (!st) cut_evenly(sum, blocks, stages, limit * (1 + 1e-12), best, first);
    for (uint32_t s = stages, b = blocks; !st && s > 0; s--) {
        PD_CHECK(isfinite(best[s * row + b]));
        b = first[s * row + b];
        ret_first_unit[s - 1] = (uint16_t)(s > 1 ? b + 1 : 0);
    }
    free(sum);
    free(best);
    free(first);
    return st;
}

/* The embedding stays with the first block and the head with the last. */
pd_status pd_balance_stages(const struct pd_model *model, uint32_t length, uint32_t stages, uint16_t *ret_first_unit,
                            struct pd_error *err)
{
    const uint32_t blocks = model->config.layers;
    if (stages > blocks)
        PD_FAIL(err, PD_INVALID,
                "layout: %u pipeline stages for %s; each stage needs one: lower pp or interleave to %s at most", stages,
                pd_counted(blocks, "block").text, pd_counted(blocks, "stage").text);
    double *costs = calloc(blocks, sizeof *costs), low = 0, high = 0;
    if (!costs) PD_FAIL(err, PD_NO_MEMORY, "layout: no memory for %u blocks", blocks);
    for (uint32_t b = 0; b < blocks; b++)
        costs[b] = pd_unit_flops(model, length, b + 1);
    costs[0] += pd_unit_flops(model, length, 0);
    costs[blocks - 1] += pd_unit_flops(model, length, model->unit_count - 1);
    for (uint32_t b = 0; b < blocks; b++)
        high += costs[b];
    for (int i = 0; i < 100 && low < high; i++) {
        const double middle = (low + high) / 2;
        if (stages_needed(costs, blocks, middle) <= stages)
            high = middle;
        else
            low = middle;
    }
    const pd_status st = fill_stages(costs, blocks, stages, high, ret_first_unit, err);
    free(costs);
    return st;
}

/* ---- a layout of given degrees ---- */

bool pd_is_breadth_first(const struct pd_config *c, const struct pd_layout *layout)
{
    const bool by_itself = c->offload.parameters == PD_PLACE_NVME || c->offload.gradients == PD_PLACE_NVME;
    return layout->pp == 1 && (c->layout.order == PD_ORDER_BREADTH_FIRST || (c->layout.order == PD_ORDER_AUTO && by_itself));
}

#define STEP_BYTES_MAX (8.0 * 1024 * 1024 * 1024)

/* Exchanging once a step needs a term per element that a rank computes: not the default if these are many. Breadth first it
 * needs two blocks', like the other exchange. */
static bool is_by_lane(const struct pd_config *config, const struct pd_model *model, const struct pd_layout *l)
{
    const double bytes =
        (config->numerics.terms == PD_TERMS_32 ? 4.0 : 8.0) * (double)model->parameter_count / l->tp / l->pp;
    if (l->dp * l->sp == 1 || (config->layout.exchange == PD_EXCHANGE_AUTO && pd_is_breadth_first(config, l))) return false;
    return config->layout.exchange == PD_EXCHANGE_LANE ||
           (config->layout.exchange == PD_EXCHANGE_AUTO && bytes > STEP_BYTES_MAX);
}

pd_status pd_lay_out_degrees(const struct pd_config *config, const struct pd_model *model, const struct pd_degrees *degrees,
                             struct pd_laid_out *ret_laid_out, struct pd_error *err)
{
    struct pd_layout l;
    pd_layout_init_dp(&l, degrees->dp);
    l.tp = degrees->tp, l.pp = degrees->pp, l.sp = degrees->sp;
    l.virtual_tp = config->numerics.virtual_tp;
    l.virtual_sp = config->numerics.virtual_sp;
    l.interleave = degrees->interleave;
    l.zero_stage = config->layout.zero_stage;
    l.zero_shard = l.dp * l.sp;
    if (config->layout.zero_shard && l.zero_shard % config->layout.zero_shard == 0) l.zero_shard = config->layout.zero_shard;
    l.ep = config->layout.ep ? common_divisor(config->layout.ep, l.zero_shard) : 1;
    l.stage_count = l.pp * l.interleave;
    if (l.stage_count > 1) PD_TRY(pd_balance_stages(model, config->batch.context, l.stage_count, l.first_unit, err));
    PD_TRY(pd_layout_check(&l, err));
    *ret_laid_out = (struct pd_laid_out){.layout = l,
                                         .recompute = config->layout.recompute,
                                         .recompute_layers = config->layout.recompute_layers,
                                         .by_lane = is_by_lane(config, model, &l),
                                         .updates_on_device = config->offload.update == PD_UPDATES_DEVICE};
    return PD_OK;
}

uint32_t pd_laid_out_blocks(const struct pd_laid_out *laid_out, const struct pd_model *model)
{
    const struct pd_layout *l = &laid_out->layout;
    uint32_t most = 0;
    if (l->pp == 1) return model->config.layers;
    for (uint32_t pp = 0; pp < l->pp; pp++) {
        uint32_t blocks = 0;
        for (uint32_t chunk = 0; chunk < l->interleave; chunk++)
            blocks += pd_grid_stage(l, model, pp, chunk).block_count;
        if (blocks > most) most = blocks;
    }
    return most;
}

void pd_recompute_text(enum pd_recompute recompute, uint32_t layers, const char *between, char *ret, size_t bytes)
{
    static const char *const names[] = {"none", "selective", "full"};
    const size_t used = (size_t)snprintf(ret, bytes, "recompute=%s", names[recompute]);
    if (recompute == PD_RECOMPUTE_NONE || layers == PD_LAYERS_ALL || used >= bytes) return;
    snprintf(ret + used, bytes - used, "%srecompute_layers=%u", between, layers);
}

pd_status pd_lay_out_given(const struct pd_config *config, const struct pd_model *model, uint32_t world,
                           struct pd_laid_out *ret_laid_out, struct pd_error *err)
{
    struct pd_degrees degrees;
    PD_CHECK(!config->layout.automatic);
    PD_TRY(pd_degrees_of(config, world, &degrees, err));
    return pd_lay_out_degrees(config, model, &degrees, ret_laid_out, err);
}
