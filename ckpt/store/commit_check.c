/* Checks the numbers of a commit record. Its digests show that nobody damaged it, not that its numbers make sense, yet
 * they become sizes, indexes and divisors everywhere. So each is checked against the others once, here: after decoding
 * and before encoding. */
#include "ckpt/store/commit.h"

#include "ckpt/base/checked.h"
#include "ckpt/shard/table.h"
#include "ckpt/store/paths.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define WORLD_MAX (UINT64_C(1) << 20)
#define LOSS_SCALE_MAX 0x1p24         /* a step never raises it above this, nor lowers it below the inverse */
#define TOTAL_MAX (UINT64_C(1) << 62) /* of samples, tokens, parameters and bytes: sums of two do not wrap */

static bool is_power_of_two(uint32_t x)
{
    return x && !(x & (x - 1));
}

/* Returns the nearest degree below `degree` that divides a power of two. */
static uint32_t admitted(uint32_t degree, uint32_t power)
{
    return (uint32_t)pd_min_u64(power, UINT32_C(1) << (31 - __builtin_clz(degree)));
}

pd_status pd_layout_check(const struct pd_layout *layout, struct pd_error *err)
{
    const struct {
        const char *name;
        uint32_t value;
    } degrees[] = {{"dp", layout->dp}, {"tp", layout->tp}, {"pp", layout->pp}, {"sp", layout->sp}};
    uint64_t world = 1;
    for (unsigned i = 0; i < 4; i++) {
        if (degrees[i].value < 1 || degrees[i].value > 65536)
            PD_FAIL(err, PD_INVALID, "layout: %s is %u and must be between 1 and 65536", degrees[i].name, degrees[i].value);
        world *= degrees[i].value;
        if (world > WORLD_MAX) PD_FAIL(err, PD_INVALID, "layout: more than 1048576 ranks; lower %s", degrees[i].name);
    }
    if (!is_power_of_two(layout->virtual_tp) || layout->virtual_tp > 256)
        PD_FAIL(err, PD_INVALID, "layout: virtual_tp is %u and must be a power of two up to 256", layout->virtual_tp);
    if (!is_power_of_two(layout->virtual_sp) || layout->virtual_sp > 256)
        PD_FAIL(err, PD_INVALID, "layout: virtual_sp is %u and must be a power of two up to 256", layout->virtual_sp);
    if (layout->virtual_tp % layout->tp)
        PD_FAIL(err, PD_INVALID, "layout: tp %u does not divide virtual_tp %u; the nearest admitted tp is %u", layout->tp,
                layout->virtual_tp, admitted(layout->tp, layout->virtual_tp));
    if (layout->virtual_sp % layout->sp)
        PD_FAIL(err, PD_INVALID, "layout: sp %u does not divide virtual_sp %u; the nearest admitted sp is %u", layout->sp,
                layout->virtual_sp, admitted(layout->sp, layout->virtual_sp));
    if (layout->zero_shard < 1 || layout->zero_shard > layout->dp * layout->sp)
        PD_FAIL(err, PD_INVALID, "layout: zero_shard is %u and must be between 1 and dp*sp = %u", layout->zero_shard,
                layout->dp * layout->sp);
    if (layout->ep > 1 && (layout->ep > PD_LAYOUT_EP_MAX || layout->zero_shard % layout->ep))
        PD_FAIL(err, PD_INVALID, "layout: ep is %u; it can be at most %u, and must divide zero_shard, which is %u",
                layout->ep, PD_LAYOUT_EP_MAX, layout->zero_shard);
    if (layout->zero_stage > 3)
        PD_FAIL(err, PD_INVALID, "layout: zero_stage is %u and must be between 0 and 3", layout->zero_stage);
    if (layout->interleave < 1 || layout->stage_count > PD_LAYOUT_STAGES_MAX ||
        layout->stage_count != (uint64_t)layout->pp * layout->interleave)
        PD_FAIL(err, PD_INVALID, "layout: pp %u x interleave %u gives %u stages and must give between 1 and %u", layout->pp,
                layout->interleave, layout->stage_count, PD_LAYOUT_STAGES_MAX);
    for (uint32_t s = 0; s < layout->stage_count; s++)
        if (s == 0 ? layout->first_unit[0] != 0 : layout->first_unit[s] <= layout->first_unit[s - 1])
            PD_FAIL(err, PD_INVALID, "layout: stage %u starts at unit %u; stages start at 0 and ascend", s,
                    layout->first_unit[s]);
    return PD_OK;
}

void pd_layout_init_listed(struct pd_layout *ret_layout, uint32_t shards)
{
    *ret_layout = (struct pd_layout){.dp = shards,
                                     .tp = 1,
                                     .pp = 1,
                                     .sp = 1,
                                     .ep = 1,
                                     .virtual_tp = 1,
                                     .virtual_sp = 1,
                                     .zero_shard = 1,
                                     .interleave = 1,
                                     .stage_count = 1,
                                     .is_listed = true};
}

pd_status pd_commit_check_is_run(const struct pd_commit *commit, struct pd_error *err)
{
    if (!commit->state.layout.is_listed) return PD_OK;
    PD_FAIL(err, PD_UNSUPPORTED,
            "its tensors were listed by a program (%s), and it has no configuration of a run; perdure ckpt import makes a "
            "checkpoint of a run of it, and ckpt show, stats, diff, verify and export read it as it is",
            commit->state.created_by);
}

/* Nothing of a listed layout is arithmetic, so that nobody may take a number of it for one. */
static pd_status check_listed(const struct pd_run_state *s, struct pd_error *err)
{
    struct pd_layout listed;
    pd_layout_init_listed(&listed, s->layout.dp);
    if (memcmp(&listed, &s->layout, sizeof listed) != 0)
        PD_FAIL(err, PD_INVALID, "layout: it is listed, and has other degrees than its %u shards", s->layout.dp);
    if (s->moments != PD_F32) PD_FAIL(err, PD_INVALID, "layout: it is listed, so each tensor has its own type of moments");
    return PD_OK;
}

static pd_status check_state(const struct pd_run_state *s, struct pd_error *err)
{
    const struct pd_guard_state *g = &s->guard;
    const uint64_t step = s->identity.step;
    const struct {
        const char *name;
        uint64_t value, most;
    } counts[] = {{"step", step, PD_STORE_NUMBER_MAX},
                  {"lineage", s->identity.lineage, PD_STORE_NUMBER_MAX},
                  {"fence", s->fence, PD_STORE_NUMBER_MAX},
                  {"updates", s->updates, step}, /* a step applies at most one */
                  {"skipped_steps", s->skipped_steps, step},
                  {"loss_scale_good_steps", s->loss_scale_good_steps, step},
                  {"agreed_step", s->agreed_step, step},
                  {"count of losses", g->losses, step},
                  {"last rolled back step", g->rolled_back, step},
                  {"rollbacks in a row", g->rollbacks, step},
                  {"skips in a row", g->skips, step},
                  {"samples", s->samples, TOTAL_MAX},
                  {"tokens", s->tokens, TOTAL_MAX},
                  {"tensor_count", s->tensor_count, UINT32_MAX},
                  {"parameter_count", s->parameter_count, TOTAL_MAX}};
    for (size_t i = 0; i < COUNT(counts); i++)
        if (counts[i].value > counts[i].most)
            PD_FAIL(err, PD_INVALID, "its %s is %" PRIu64 " and can be at most %" PRIu64, counts[i].name, counts[i].value,
                    counts[i].most);
    if (!(s->loss_scale >= 1 / LOSS_SCALE_MAX && s->loss_scale <= LOSS_SCALE_MAX))
        PD_FAIL(err, PD_INVALID, "its loss_scale is %g and must be from 2^-24 to 2^24", s->loss_scale);
    if (!isfinite(g->mean) || !isfinite(g->variance) || g->variance < 0)
        PD_FAIL(err, PD_INVALID, "the losses it remembers have mean %g and variance %g", g->mean, g->variance);
    for (size_t i = 0; i < COUNT(s->gradient_sizes); i++)
        if (s->gradient_sizes[i] < -64 || s->gradient_sizes[i] > 63)
            PD_FAIL(err, PD_INVALID, "its size of gradients of class %zu is 2^%d and must be from 2^-64 to 2^63", i,
                    s->gradient_sizes[i]);
    if (s->moments != PD_F32 && s->moments != PD_BF16)
        PD_FAIL(err, PD_INVALID, "its moments are of type %u and can be fp32 or bf16", (unsigned)s->moments);
    return PD_OK;
}

/* `total`: bytes of the previous shards, of file and of data; includes this one on return. */
static pd_status check_shard(const struct pd_commit *c, uint32_t number, uint64_t total[2], struct pd_error *err)
{
    const struct pd_shard_summary *s = &c->shards[number];
    const uint64_t page = PD_SHARD_PAGE_BYTES;
    if (s->file_bytes < 2 * page || s->file_bytes % page || s->table_offset % page || s->table_bytes % page ||
        !s->table_bytes || !pd_checked_range(s->table_offset, s->table_bytes, s->file_bytes - page))
        PD_FAIL(err, PD_INVALID,
                "shard %u: a table of %" PRIu64 " bytes at %" PRIu64 " does not fit into a file of %" PRIu64 " bytes",
                number, s->table_bytes, s->table_offset, s->file_bytes);
    if (s->box_count > s->table_bytes / sizeof(struct pd_shard_box_row))
        PD_FAIL(err, PD_INVALID, "shard %u: a table of %" PRIu64 " bytes cannot hold %u boxes", number, s->table_bytes,
                s->box_count);
    if (s->host >= c->shard_count)
        PD_FAIL(err, PD_INVALID, "shard %u: there is no host %u where %u shards were written", number, s->host,
                c->shard_count);
    if (!pd_checked_add_u64(total[0], s->file_bytes, &total[0]) || !pd_checked_add_u64(total[1], s->data_bytes, &total[1]) ||
        pd_max_u64(total[0], total[1]) > TOTAL_MAX)
        PD_FAIL(err, PD_INVALID, "shards 0 to %u cannot take %" PRIu64 " bytes of data in files of %" PRIu64 " bytes",
                number, s->data_bytes, s->file_bytes);
    return PD_OK;
}

pd_status pd_commit_check(const struct pd_commit *commit, struct pd_error *err)
{
    const struct pd_layout *l = &commit->state.layout;
    PD_TRY(pd_layout_check(l, err));
    const uint64_t shards = (uint64_t)l->dp * l->tp * l->pp * l->sp;
    if (shards != commit->shard_count)
        PD_FAIL(err, PD_INVALID, "it lists %u shards where its layout has %" PRIu64, commit->shard_count, shards);
    PD_TRY(check_state(&commit->state, err));
    if (l->is_listed) PD_TRY(check_listed(&commit->state, err));
    uint64_t total[2] = {0};
    for (uint32_t s = 0; s < commit->shard_count; s++)
        PD_TRY(check_shard(commit, s, total, err));
    return PD_OK;
}
