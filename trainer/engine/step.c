/* One training step, readable from top to bottom; engine.h has the outline. */
#include "trainer/engine/engine_internal.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/fault.h"
#include "ckpt/base/heartbeat.h"
#include "ckpt/base/log.h"
#include "ckpt/base/trace.h"
#include "offload/ranges.h"
#include "trainer/engine/compare.h"
#include "trainer/engine/expert_report.h"
#include "trainer/engine/optimizer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A walk through the actions of a schedule. */
struct step {
    struct pd_engine *e;
    const struct pd_schedule *schedule;
    enum pd_split split;
    bool learns;         /* false: forward only */
    bool compares;       /* computes gradients of one micro-batch only to compare them */
    uint32_t compared;   /* that one */
    uint32_t first_slot; /* of this pass, if a validation needs several */
    uint64_t first_sample;
    uint32_t coarser; /* factors of 2^16 by which the quantum of terms is larger than usual */
    struct pd_lanes lanes;
    uint64_t sequences;                  /* to be counted, of all ranks */
    const struct pd_bucket_order *order; /* in which it reads parameters */
    uint32_t next;                       /* position in it */
    bool has_losses;                     /* in the sum: the head is here */
    uint64_t tokens, wait_ns;
    uint64_t stage_ns[PD_STEP_STAGES];
};

const char *const pd_step_stage_names[PD_STEP_STAGES] = {"forward", "backward", "sums", "update"};

/* Adds the time since *since_ns to the stage, and starts the next one. */
static void end_stage(struct step *s, enum pd_step_stage stage, uint64_t *since_ns)
{
    const uint64_t now_ns = pd_clock_monotonic_ns(NULL);
    s->stage_ns[stage] += now_ns - *since_ns;
    *since_ns = now_ns;
}

/* ---- input and loss ---- */

/* Cuts a sequence into this rank's pieces, after sequence `sequence` - 1 in each. */
static void scatter(struct pd_engine *e, const int32_t *from, uint64_t sequence, int32_t *to)
{
    const struct pd_partition *p = &e->grid.partition;
    const uint32_t length = e->options.config->batch.context, sequences = e->options.config->batch.micro_batch;
    for (uint32_t place = 0; place < pd_partition_piece_count(p); place++) {
        struct pd_range r = pd_partition_piece(p, length, pd_partition_piece_at(p, place));
        const uint64_t n = r.end - r.begin;
        memcpy(to + sequence * n, from + r.begin, n * sizeof *to);
        to += sequences * n;
    }
}

static pd_status fill_sequence(struct step *s, uint64_t sample, uint64_t sequence, struct pd_micro_batch_input *in,
                               struct pd_error *err)
{
    struct pd_engine *e = s->e;
    const uint64_t length = e->options.config->batch.context;
    struct pd_micro_batch_input whole = {in->tokens + sequence * length, in->targets + sequence * length,
                                         in->positions + sequence * length, in->first + sequence * length};
    if (e->own->sample)
        whole = (struct pd_micro_batch_input){e->own->sample, e->own->sample + length, e->own->sample + 2 * length,
                                              e->own->sample + 3 * length};
    const bool is_left_over = sample >= s->sequences; /* of a validation whose windows do not fill the last micro-batch */
    const enum pd_heartbeat_place before = pd_heartbeat_enter(PD_HEARTBEAT_READING);
    PD_TRY(pd_data_sample(e->data, s->split, is_left_over ? 0 : s->first_sample + sample, whole.tokens, whole.targets,
                          whole.positions, whole.first, err));
    pd_heartbeat_enter(before);
    if (is_left_over)
        for (uint64_t t = 0; t < length; t++)
            whole.targets[t] = -1;
    if (!e->own->sample) return PD_OK;
    scatter(e, whole.tokens, sequence, in->tokens);
    scatter(e, whole.targets, sequence, in->targets);
    scatter(e, whole.positions, sequence, in->positions);
    scatter(e, whole.first, sequence, in->first);
    return PD_OK;
}

static uint64_t micro_batch_of(const struct step *s, uint32_t slot)
{
    if (s->compares) return s->compared;
    return (uint64_t)pd_lanes_first(&s->lanes, s->e->grid.place.dp) + s->first_slot + slot;
}

/* A slot without a micro-batch on this rank: it only takes part in its stage's transfers. */
static bool is_padding(const struct step *s, uint32_t slot)
{
    return s->compares ? slot > 0 : pd_lanes_is_padding(&s->lanes, s->e->grid.place.dp, s->first_slot + slot);
}

static pd_status fill_input(struct step *s, uint32_t slot, struct pd_error *err)
{
    const uint64_t sequences = s->e->options.config->batch.micro_batch;
    struct pd_micro_batch_input in;
    PD_TRY(pd_transformer_input_begin(s->e->transformer, slot, &in, err));
    for (uint64_t i = 0; i < sequences; i++)
        PD_TRY(fill_sequence(s, micro_batch_of(s, slot) * sequences + i, i, &in, err));
    return pd_transformer_input_filled(s->e->transformer, slot, err);
}

static pd_status begin_loss(struct pd_engine *e, struct pd_error *err)
{
    const struct pd_loss_sum *l = &e->own->loss;
    pd_superaccumulator_init(l->host_copy);
    return l->sum == l->host_copy ? PD_OK : pd_math_copy(e->math, l->sum, l->host_copy, sizeof *l->sum, err);
}

/* Adds the token losses to the exact sum: only on the first tp rank, as all have the same. The host does not wait. */
static pd_status account(struct step *s, uint32_t slot, struct pd_error *err)
{
    const int32_t *targets = pd_transformer_input(s->e->transformer, slot)->targets;
    if (s->e->grid.place.tp > 0 || s->compares) return PD_OK;
    for (uint64_t r = 0; r < pd_transformer_rows(s->e->transformer); r++)
        s->tokens += targets[r] >= 0;
    s->has_losses = true;
    return pd_transformer_add_losses(s->e->transformer, s->e->own->loss.sum, err);
}

/* Called after all micro-batches; here the host waits for a GPU. */
static pd_status read_loss(const struct step *s, struct pd_error *err)
{
    struct pd_engine *e = s->e;
    const struct pd_loss_sum *l = &e->own->loss;
    if (!s->has_losses || l->sum == l->host_copy) return PD_OK;
    PD_TRY(pd_math_copy(e->math, l->host_copy, l->sum, sizeof *l->sum, err));
    PD_TRY(pd_math_sync(e->math, err));
    PD_CHECK(l->host_copy->pending <= PD_SUPERACCUMULATOR_PENDING_MAX);
    return PD_OK;
}

/* ---- parameters in the order they are used ---- */

static uint32_t head_bucket(const struct pd_engine *e)
{
    return pd_zero_held(e->zero)->bucket_count - 1;
}

static bool is_end(const struct pd_engine *e, uint32_t bucket)
{
    return bucket == 0 || bucket == head_bucket(e);
}

/* Prefetches as many buckets as allowed, from position `at` on. Breadth first: those after all micro-batches of the unit. */
static pd_status run_ahead(const struct step *s, uint32_t at, struct pd_error *err)
{
    const struct pd_bucket_order *order = s->order;
    for (uint32_t left = pd_zero_prefetches(s->e->zero); left > 0; left--, at++) {
        while (s->e->is_breadth_first && at > 0 && at < order->count && order->buckets[at] == order->buckets[at - 1])
            at++;
        if (at >= order->count || (at > 0 && order->buckets[at] == order->buckets[at - 1])) return PD_OK;
        PD_TRY(pd_zero_prefetch(s->e->zero, order->buckets[at], err));
    }
    return PD_OK;
}

/* Gets the parameters of `bucket`, the next in order, while later ones are in flight. */
static pd_status enter(struct step *s, uint32_t bucket, void *const **ret_weights, struct pd_error *err)
{
    pd_heartbeat_block(bucket);
    PD_CHECK(s->next < s->order->count && s->order->buckets[s->next] == bucket);
    if (s->next == 0) PD_TRY(run_ahead(s, 0, err));
    PD_TRY(pd_zero_acquire(s->e->zero, bucket, ret_weights, err));
    return run_ahead(s, ++s->next, err);
}

/* ---- a device that computes wrongly, for tests ---- */

enum { WRONG_GRADIENT = 1, WRONG_WEIGHT = 2, WRONG_ACTIVATION = 4 };

static bool is_wrong(struct pd_engine *e, uint32_t kind, const char *fault)
{
    if (!e->options.device && pd_fault_asks(fault)) e->own->wrong |= kind;
    return (e->own->wrong & kind) != 0;
}

/* A bit of the block's weights and of its input is read as another. */
static pd_status misread(struct step *s, uint32_t slot, uint32_t block, void *const *weights, struct pd_error *err)
{
    void *stream;
    if (is_wrong(s->e, WRONG_WEIGHT, "engine.weight.wrong")) *((unsigned char *)weights[0] + 1) ^= 1;
    if (!is_wrong(s->e, WRONG_ACTIVATION, "engine.activation.wrong")) return PD_OK;
    PD_TRY(pd_transformer_stream(s->e->transformer, slot, block, &stream, err));
    *((unsigned char *)stream + 1) ^= 1;
    return PD_OK;
}

/* ---- forward ---- */

static pd_status block_forward(struct step *s, uint32_t slot, uint32_t block, void *const *weights, void *out,
                               struct pd_error *err)
{
    PD_TRY(misread(s, slot, block, weights, err));
    pd_range_push("block", block);
    PD_TRY(pd_transformer_block_forward(s->e->transformer, slot, block, weights, out, err));
    pd_range_pop();
    if (s->e->own->wrong & WRONG_WEIGHT) *((unsigned char *)weights[0] + 1) ^= 1;
    return PD_OK;
}

/* Runs one unit on one micro-batch with parameters `weights`. */
static pd_status unit_forward(struct step *s, const struct pd_action *a, uint32_t unit, void *const *weights,
                              struct pd_error *err)
{
    struct pd_engine *e = s->e;
    const struct pd_stage *c = &e->own->chunks[a->chunk];
    const bool is_last_of_stage = unit == c->first_block + c->block_count && !c->has_head;
    void *out = NULL;
    if (unit == 0) return pd_transformer_embed(e->transformer, a->slot, weights, err);
    if (unit == head_bucket(e)) {
        PD_TRY(pd_transformer_head(e->transformer, a->slot, weights, NULL, 1.0f, NULL, err));
        return account(s, a->slot, err);
    }
    if (is_last_of_stage) PD_TRY(pd_pipeline_next_stream(e->own->pipeline, &out, err));
    PD_TRY(block_forward(s, a->slot, unit - 1, weights, out, err));
    return is_last_of_stage ? pd_pipeline_send_stream(e->own->pipeline, err) : PD_OK;
}

static pd_status forward(struct step *s, const struct pd_action *a, bool padding, struct pd_error *err)
{
    struct pd_engine *e = s->e;
    const struct pd_stage *c = &e->own->chunks[a->chunk];
    const struct pd_range units = pd_action_units(a, c, s->learns);
    void *const *weights;
    void *stream;
    if (!padding && a->chunk == 0 && (a->unit == PD_ALL_UNITS || a->unit == 0)) PD_TRY(fill_input(s, a->slot, err));
    if (!padding && !c->has_embedding) {
        PD_TRY(pd_transformer_stream(e->transformer, a->slot, c->first_block, &stream, err));
        PD_TRY(pd_pipeline_take_stream(e->own->pipeline, stream, err));
    }
    for (uint32_t unit = (uint32_t)units.begin; unit < units.end; unit++) {
        PD_TRY(enter(s, unit, &weights, err));
        const bool is_block = unit > 0 && unit < head_bucket(e);
        if (!padding)
            PD_TRY(unit_forward(s, a, unit, weights, err));
        else if (is_block)
            PD_TRY(pd_transformer_block_join_forward(e->transformer, a->slot, unit - 1, weights, err));
    }
    return PD_OK;
}

/* ---- backward ---- */

/* Prefetches saved activations of the block whose backward follows `unit`, in this action or a later one. */
static pd_status prefetch_saved(struct step *s, const struct pd_action *a, uint32_t unit, struct pd_error *err)
{
    struct pd_transformer *t = s->e->transformer;
    const struct pd_stage *c = &s->e->own->chunks[a->chunk];
    const struct pd_action *end = s->schedule->actions + s->schedule->count;
    if (a->unit == PD_ALL_UNITS)
        return unit - 1 > c->first_block ? pd_transformer_prefetch(t, a->slot, unit - 2, err) : PD_OK;
    for (a++; a < end; a++)
        if (a->unit > 0 && a->unit < head_bucket(s->e) && !is_padding(s, a->slot))
            return pd_transformer_prefetch(t, a->slot, a->unit - 1, err);
    return PD_OK;
}

/* Where backward writes, or accumulates, a micro-batch's gradients. */
static pd_status micro_batch_gradients(const struct step *s, uint32_t bucket, uint32_t slot, float *const **ret_gradients,
                                       struct pd_error *err)
{
    struct pd_engine *e = s->e;
    bool adds;
    PD_TRY(pd_zero_micro_batch_gradients(e->zero, bucket, s->compares ? PD_ZERO_NO_SLOT : slot, ret_gradients, &adds, err));
    pd_transformer_set_adds(e->transformer, adds);
    pd_transformer_set_sources(e->transformer, pd_zero_sources(e->zero));
    return PD_OK;
}

static pd_status push_gradients(const struct step *s, uint32_t bucket, uint32_t slot, struct pd_error *err)
{
    if (!s->compares) return pd_zero_push_gradients(s->e->zero, bucket, slot, err);
    return is_padding(s, slot) ? PD_OK : pd_zero_push_gradients(s->e->zero, bucket, PD_ZERO_NO_SLOT, err);
}

static pd_status head_backward(struct step *s, const struct pd_action *a, bool padding, void *dstream, struct pd_error *err)
{
    struct pd_engine *e = s->e;
    void *const *weights;
    float *const *gradients;
    PD_TRY(enter(s, head_bucket(e), &weights, err));
    PD_TRY(micro_batch_gradients(s, head_bucket(e), a->slot, &gradients, err));
    if (!padding) {
        PD_TRY(pd_transformer_head(e->transformer, a->slot, weights, gradients, (float)e->loss_scale, dstream, err));
        PD_TRY(account(s, a->slot, err));
    }
    return push_gradients(s, head_bucket(e), a->slot, err);
}

/* Simulates a device that computes wrongly, for tests: once, or permanently. */
static void flip_where_asked(struct pd_engine *e, float *gradient)
{
    if (e->options.device) return;
    if (pd_fault_asks("engine.gradient.nan")) gradient[0] = NAN;
    if (pd_fault_asks("engine.gradient.flip") || is_wrong(e, WRONG_GRADIENT, "engine.gradient.wrong"))
        ((unsigned char *)gradient)[2] ^= 1u << 6;
}

/* The same, of what a micro-batch gives this rank's experts. */
static void miscount_where_asked(struct pd_engine *e)
{
    const uint32_t ep = pd_layout_ep(&e->grid.layout);
    if (e->options.device || ep == 1 || !pd_fault_asks("engine.expert.flip")) return;
    for (uint32_t i = 0; i < ep; i++)
        if (pd_zero_sources(e->zero)[i]) *pd_zero_sources(e->zero)[i] += 1;
}

static pd_status block_backward(struct step *s, const struct pd_action *a, uint32_t block, bool padding, void *dstream,
                                struct pd_error *err)
{
    struct pd_engine *e = s->e;
    void *const *weights;
    float *const *gradients;
    PD_TRY(enter(s, 1 + block, &weights, err));
    PD_TRY(micro_batch_gradients(s, 1 + block, a->slot, &gradients, err));
    if (padding) return pd_transformer_block_join_backward(e->transformer, a->slot, block, weights, err);
    PD_TRY(prefetch_saved(s, a, 1 + block, err));
    pd_range_push("block", block);
    PD_TRY(pd_transformer_block_backward(e->transformer, a->slot, block, weights, gradients, dstream, err));
    pd_range_pop();
    flip_where_asked(e, gradients[0]);
    miscount_where_asked(e);
    return PD_OK;
}

static pd_status embed_backward(struct step *s, uint32_t slot, bool padding, void *dstream, struct pd_error *err)
{
    struct pd_engine *e = s->e;
    float *const *gradients;
    PD_TRY(micro_batch_gradients(s, 0, slot, &gradients, err));
    if (!padding) PD_TRY(pd_transformer_embed_backward(e->transformer, slot, gradients, dstream, err));
    return push_gradients(s, 0, slot, err);
}

/* One unit of one micro-batch. rows: sent to the stage before. */
static pd_status unit_backward(struct step *s, const struct pd_action *a, uint32_t unit, bool padding, void *dstream,
                               void *rows, struct pd_error *err)
{
    struct pd_engine *e = s->e;
    const struct pd_stage *c = &e->own->chunks[a->chunk];
    if (unit == 0) return embed_backward(s, a->slot, padding, dstream, err);
    if (unit == head_bucket(e)) return head_backward(s, a, padding, dstream, err);
    PD_TRY(block_backward(s, a, unit - 1, padding, dstream, err));
    if (!padding && unit == 1 + c->first_block && !c->has_embedding) {
        PD_TRY(pd_transformer_keep_rows(e->transformer, dstream, rows, err));
        PD_TRY(pd_pipeline_send_gradient(e->own->pipeline, err));
    }
    return push_gradients(s, unit, a->slot, err);
}

static pd_status backward(struct step *s, const struct pd_action *a, bool padding, struct pd_error *err)
{
    struct pd_engine *e = s->e;
    const struct pd_stage *c = &e->own->chunks[a->chunk];
    const struct pd_range units = pd_action_units(a, c, s->learns);
    void *rows = NULL, *dstream = e->is_breadth_first ? e->own->dstreams[a->slot] : e->own->dstream;
    if (!padding && !e->is_breadth_first)
        PD_TRY(c->has_head ? pd_pipeline_next_gradient(e->own->pipeline, &rows, err)
                           : pd_pipeline_take_gradient(e->own->pipeline, &rows, err));
    if (!dstream) dstream = rows;
    if (!padding && !c->has_head) PD_TRY(pd_transformer_gather_rows(e->transformer, rows, dstream, err));
    for (uint32_t unit = (uint32_t)units.end; unit-- > units.begin;)
        PD_TRY(unit_backward(s, a, unit, padding, dstream, rows, err));
    return PD_OK;
}

/* ---- the schedule ---- */

/* All ranks leave together or not at all; likewise for saves. */
static pd_status check_wishes(const struct step *s, struct pd_error *err)
{
    enum { LEAVE = 1, SAVE = 2 };
    struct pd_engine *e = s->e;
    uint64_t wishes = e->should_leave && e->should_leave() ? LEAVE : 0;
    if (s->split == PD_SPLIT_VALIDATION && e->should_save && e->should_save()) wishes |= SAVE;
    if (e->own->comm) PD_TRY(pd_comm_all_reduce(e->own->comm, &wishes, 1, PD_REDUCE_OR_U64, err));
    if (wishes & LEAVE) PD_FAIL(err, PD_STOPPED, "left between two micro-batches, as asked");
    return wishes & SAVE ? e->save(e->save_context, err) : PD_OK;
}

/* Counts the expected receives and starts the first. */
static pd_status begin_transfers(struct step *s, struct pd_error *err)
{
    uint64_t streams = 0, gradients = 0;
    for (uint32_t i = 0; i < s->schedule->count; i++) {
        const struct pd_action *a = &s->schedule->actions[i];
        const struct pd_stage *c = &s->e->own->chunks[a->chunk];
        if (is_padding(s, a->slot)) continue;
        if (a->is_backward)
            gradients += !c->has_head;
        else
            streams += !c->has_embedding;
    }
    return pd_pipeline_begin(s->e->own->pipeline, streams, gradients, err);
}

/* With one stage all ranks reach every slot together; stages meet only at the beginning. */
static pd_status run_schedule(struct step *s, struct pd_error *err)
{
    const bool is_one_stage = s->e->grid.layout.pp == 1;
    pd_transformer_begin(s->e->transformer, s->learns, (float)s->e->loss_scale);
    if (!is_one_stage) PD_TRY(check_wishes(s, err));
    if (s->first_slot == 0) PD_TRY(begin_loss(s->e, err));
    PD_TRY(begin_transfers(s, err));
    uint64_t since_ns = pd_clock_monotonic_ns(NULL);
    for (uint32_t i = 0; i < s->schedule->count; i++) {
        const struct pd_action *a = &s->schedule->actions[i];
        const bool padding = is_padding(s, a->slot);
        const bool asks = a->unit == PD_ALL_UNITS || a->slot == 0;
        if (is_one_stage && !a->is_backward && asks) PD_TRY(check_wishes(s, err));
        const char *name = a->is_backward ? "backward" : "forward";
        const uint64_t begin = pd_trace_begin();
        pd_range_push(name, a->slot);
        pd_heartbeat_micro_batch(a->slot);
        PD_TRY(a->is_backward ? backward(s, a, padding, err) : forward(s, a, padding, err));
        pd_range_pop();
        pd_trace_end(begin, "step", name, a->slot);
        end_stage(s, a->is_backward ? PD_STEP_BACKWARD : PD_STEP_FORWARD, &since_ns);
    }
    PD_TRY(pd_pipeline_end(s->e->own->pipeline, &s->wait_ns, err));
    PD_TRY(read_loss(s, err));
    end_stage(s, s->learns ? PD_STEP_BACKWARD : PD_STEP_FORWARD, &since_ns);
    return PD_OK;
}

/* Mean of the exact sum over all ranks. */
static pd_status reduce_loss(struct step *s, double *ret_mean, struct pd_error *err)
{
    struct pd_superaccumulator *loss = s->e->own->loss.host_copy;
    uint64_t sums[2] = {s->tokens, s->wait_ns};
    PD_TRY(pd_exact_sum_reduce(loss, s->e->own->comm, err));
    if (s->e->own->comm) PD_TRY(pd_comm_all_reduce(s->e->own->comm, sums, 2, PD_REDUCE_SUM_U64, err));
    s->tokens = sums[0];
    s->wait_ns = sums[1];
    *ret_mean = s->tokens ? pd_superaccumulator_value(loss) / (double)s->tokens : 0.0;
    return PD_OK;
}

/* Finite gradients that terms cannot hold: the sums are meaningless, so the step is recomputed with a coarser quantum. */
static bool needs_coarser(const struct pd_step_result *result, const struct pd_found *found)
{
    return found->out_of_range < UINT32_MAX && found->not_finite == UINT32_MAX && isfinite(result->loss);
}

/* fp16 overflows by design, and lowers its scale; otherwise guard.non_finite decides. All ranks see the same sums. */
static pd_status check_finite(const struct step *s, struct pd_step_result *result, const struct pd_found *found,
                              struct pd_error *err)
{
    const struct pd_config *c = s->e->options.config;
    const struct pd_tensor *tensors = s->e->options.model->tensors.tensors;
    const bool is_finite = isfinite(result->loss) && isfinite(result->gradient_norm);
    const bool may_overflow = c->numerics.precision == PD_F16 && isfinite(result->loss);
    char where[192] = "";
    result->skipped = !is_finite;
    if (is_finite || may_overflow || c->guard.non_finite != PD_GUARD_STOP) return PD_OK;
    if (found->not_finite < UINT32_MAX)
        snprintf(where, sizeof where, ", and a gradient of %s is not finite", tensors[found->not_finite].name);
    PD_FAIL(err, PD_DIVERGED,
            "loss %g, gradient norm %g: not finite%s; lower optimizer.lr, or look at the data of samples %llu to %llu; "
            "guard.non_finite=skip continues without such batches",
            result->loss, result->gradient_norm, where, (unsigned long long)s->first_sample,
            (unsigned long long)s->first_sample + c->batch.sequences - 1);
}

/* The norm needs all sums, the update needs the norm; a norm that is not finite skips the update. Damaged or out-of-range
 * sums are not used: see *ret_found. */
static pd_status step_update(struct step *s, uint64_t updates, struct pd_step_result *result, struct pd_found *ret_found,
                             struct pd_error *err)
{
    const uint64_t computed = pd_trace_begin();
    uint64_t since_ns = pd_clock_monotonic_ns(NULL);
    pd_range_push("sums and norm", updates);
    PD_TRY(pd_zero_finish_gradients(s->e->zero, err));
    PD_TRY(pd_optimizer_norm(s->e, s->tokens, &result->gradient_norm, ret_found, err));
    s->e->not_finite_rank = ret_found->computed_by;
    pd_range_pop();
    pd_trace_end(computed, "step", "sums and norm", updates);
    end_stage(s, PD_STEP_SUMS, &since_ns);
    if (pd_fault_asks("engine.norm.nan")) result->gradient_norm = NAN;
    if (ret_found->damaged < UINT32_MAX || needs_coarser(result, ret_found)) return PD_OK;
    PD_TRY(check_finite(s, result, ret_found, err));
    if (result->skipped) return PD_OK;
    const uint64_t begun = pd_trace_begin(), start_ns = pd_trace_now();
    const bool is_in_files = pd_state_is_in_files(s->e->state);
    if (is_in_files) pd_heartbeat_enter(PD_HEARTBEAT_UPDATING_FILES);
    pd_range_push("update", updates);
    PD_TRY(pd_optimizer_update(s->e, updates, s->tokens, result->gradient_norm, err));
    pd_range_pop();
    pd_heartbeat_enter(PD_HEARTBEAT_COMPUTING);
    pd_trace_end(begun, "step", "update", updates);
    end_stage(s, PD_STEP_UPDATE, &since_ns);
    if (s->e->options.device && !pd_state_is_mirrored(s->e->state))
        pd_device_spans_note(s->e->options.device->spans, PD_LANE_HOST, "optimizer", start_ns);
    return PD_OK;
}

static pd_status run_once(struct step *s, uint64_t updates, struct pd_step_result *result, struct pd_found *ret_found,
                          struct pd_error *err)
{
    struct pd_engine *e = s->e;
    s->next = 0;
    s->tokens = s->wait_ns = 0;
    PD_TRY(pd_optimizer_begin(e, err));
    PD_TRY(pd_zero_begin_step(e->zero, e->loss_scale, &e->gradient_sizes, s->coarser, err));
    PD_TRY(pd_compare_begin(e, err));
    PD_TRY(run_schedule(s, err));
    PD_TRY(reduce_loss(s, &result->loss, err));
    PD_TRY(pd_experts_report(e, result, err));
    PD_TRY(pd_compare_end(e, s->first_sample, &result->compared, err));
    result->tokens = s->tokens;
    if (pd_fault_asks("engine.loss.nan")) result->loss = NAN;
    PD_TRY(pd_optimizer_update_begin(e, err));
    const pd_status updated = step_update(s, updates, result, ret_found, err);
    uint64_t since_ns = pd_clock_monotonic_ns(NULL);
    pd_optimizer_update_end(e);
    PD_TRY(updated);
    end_stage(s, PD_STEP_UPDATE, &since_ns);
    return PD_OK;
}

static void unit_text(const struct pd_engine *e, uint32_t bucket, char *ret, size_t bytes)
{
    if (!is_end(e, bucket))
        snprintf(ret, bytes, "block %u", bucket - 1);
    else
        snprintf(ret, bytes, "%s", bucket ? "the head" : "the embedding");
}

/* A network, library or memory error changed data in transfer. Nothing was updated, so recompute the step. */
static pd_status judge_damage(const struct step *s, const struct pd_found *before, const struct pd_found *now,
                              struct pd_error *err)
{
    char unit[32];
    unit_text(s->e, now->damaged, unit, sizeof unit);
    if (before->damaged == now->damaged && before->who == now->who)
        PD_FAIL(err, PD_DEVICE_LOST,
                "gradients of %s arrived damaged twice in one step at rank %u, from the ranks that share its state; test "
                "the memory and network of its host, or leave it out",
                unit, now->who);
    if (s->e->grid.rank == 0)
        pd_log(PD_LOG_WARN, "step", "gradients of %s arrived damaged at rank %u; the step is computed again", unit,
               now->who);
    return PD_OK;
}

static bool has_narrow_terms(const struct pd_engine *e)
{
    return pd_zero_largest(e->zero) != NULL;
}

/* The range of a mean gradient grows with the quantum. If gradients stay large, warnings become rarer. */
static void log_coarser(const struct step *s, const struct pd_found *found)
{
    struct pd_engine *e = s->e;
    const uint64_t times = ++e->own->coarser_count, step = e->next_identity.step;
    const char *tensor = e->options.model->tensors.tensors[found->out_of_range].name;
    if (e->grid.rank || (times & (times - 1))) return;
    if (has_narrow_terms(e))
        pd_log(PD_LOG_WARN, "step",
               "step %llu: a gradient of %s is more than 2^%u times what the steps before let expect; the step is computed "
               "again with coarser sums. Number %llu of this launch. numerics.terms=64 has room for such steps",
               (unsigned long long)step, tensor, PD_QUANTUM32_ROOM_LOG2 * s->coarser, (unsigned long long)times);
    else
        pd_log(PD_LOG_WARN, "step",
               "step %llu: a gradient of %s is larger than the exact sums hold (their range); the step is computed again "
               "with a range 2^%u times larger, and the smallest difference that they keep (their grain) grows as much. "
               "Number %llu of this launch. A lower optimizer.lr or more optimizer.warmup_steps keep gradients small",
               (unsigned long long)step, tensor, PD_QUANTUM_COARSER_LOG2 * s->coarser, (unsigned long long)times);
}

/* What the next step expects; the same under every layout, since sums are. */
static void expect_sizes(struct pd_engine *e, struct pd_step_result *result)
{
    const uint64_t tokens = (uint64_t)e->options.config->batch.sequences * e->options.config->batch.context;
    if (!has_narrow_terms(e)) return;
    for (uint32_t i = 0; i < PD_GRADIENT_CLASSES && !result->skipped; i++)
        e->gradient_sizes.log2[i] = (int8_t)pd_gradient_size_next(e->gradient_sizes.log2[i], e->own->largest[i], tokens);
    result->gradient_sizes = e->gradient_sizes;
}

/* Since the traffic before. */
static void count_sent(const struct pd_engine *e, struct pd_comm_traffic before, struct pd_step_result *result)
{
    struct pd_comm_traffic now;
    if (!e->own->comm) return;
    pd_comm_traffic(e->own->comm, &now);
    result->sent_between_hosts = now.leaving_bytes - before.leaving_bytes;
    result->sent_bytes =
        result->sent_between_hosts + now.inside_bytes - before.inside_bytes + now.library_bytes - before.library_bytes;
}

pd_status pd_engine_step(struct pd_engine *e, uint64_t first_sample, uint64_t updates, struct pd_step_result *ret_result,
                         struct pd_error *err)
{
    const uint32_t pp = e->grid.layout.pp;
    const uint64_t begin = pd_clock_monotonic_ns(NULL), start = pd_trace_begin();
    struct step s = {.e = e,
                     .schedule = &e->own->schedule,
                     .order = &e->own->bucket_order,
                     .split = PD_SPLIT_TRAIN,
                     .learns = true,
                     .first_sample = first_sample,
                     .lanes = e->own->lanes,
                     .sequences = e->options.config->batch.sequences};
    struct pd_step_result result = {.learning_rate = pd_learning_rate(e->options.config, updates)};
    struct pd_found before = {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX}, found = before;
    struct pd_comm_traffic traffic = {0};
    if (e->own->comm) pd_comm_traffic(e->own->comm, &traffic);
    pd_range_push("step", updates);
    PD_TRY(run_once(&s, updates, &result, &found, err));
    while (found.damaged < UINT32_MAX || needs_coarser(&result, &found)) {
        if (found.damaged < UINT32_MAX) {
            PD_TRY(judge_damage(&s, &before, &found, err));
            before = found;
            result.recomputed++;
        } else {
            result.coarser = ++s.coarser;
            log_coarser(&s, &found);
        }
        PD_TRY(run_once(&s, updates, &result, &found, err));
    }
    pd_range_pop();
    expect_sizes(e, &result);
    count_sent(e, traffic, &result);
    for (int i = 0; i < PD_STEP_STAGES; i++)
        result.stage_seconds[i] = (double)s.stage_ns[i] / 1e9;
    if (e->options.device) PD_TRY(pd_device_spans_collect(e->options.device->spans, err));
    pd_trace_end(start, "step", "step", updates);
    if (pp > 1) {
        const double busy_ns = (double)(pd_clock_monotonic_ns(NULL) - begin) * e->options.world;
        result.bubble = (double)s.wait_ns / busy_ns;
        result.bubble_theory = pd_schedule_bubble(pp, e->own->chunk_count, e->slots);
    }
    *ret_result = result;
    return PD_OK;
}

/* Runs a schedule other than the step's, built only for this. */
static pd_status run_apart(struct step *s, const struct pd_schedule_options *options, struct pd_error *err)
{
    struct pd_schedule schedule;
    struct pd_bucket_order order = {0};
    PD_TRY(pd_schedule_new(options, &schedule, err));
    pd_status st = pd_bucket_order_new(&schedule, s->e->own->chunks, s->learns, &order, err);
    s->schedule = &schedule;
    s->order = &order;
    s->next = 0;
    if (!st) st = run_schedule(s, err);
    pd_bucket_order_deinit(&order);
    pd_schedule_deinit(&schedule);
    return st;
}

/* A schedule of one micro-batch, one per data group; all ranks join all gathers. */
pd_status pd_step_compare(struct pd_engine *e, uint64_t first_sample, uint32_t micro_batch, struct pd_error *err)
{
    const uint32_t pp = e->grid.layout.pp;
    const struct pd_schedule_options options = {.pp = pp,
                                                .pp_rank = e->grid.place.pp,
                                                .interleave = e->own->chunk_count,
                                                .slots = pd_schedule_slots(1, pp, e->own->chunk_count),
                                                .units = e->is_breadth_first ? e->options.model->unit_count : 0};
    struct step s = {.e = e,
                     .split = PD_SPLIT_TRAIN,
                     .learns = true,
                     .compares = true,
                     .compared = micro_batch,
                     .first_sample = first_sample,
                     .lanes = e->own->lanes,
                     .sequences = e->options.config->batch.sequences};
    return run_apart(&s, &options, err);
}

/* Ranks check for requests to leave or save before a micro-batch; with stages or breadth first, before a pass, and a pass
 * then has no more micro-batches than a step. */
pd_status pd_engine_validate(struct pd_engine *e, uint32_t sequences, double *ret_loss, struct pd_error *err)
{
    const struct pd_layout *layout = &e->grid.layout;
    const uint32_t micro_batch = e->options.config->batch.micro_batch,
                   micro_batches = (sequences + micro_batch - 1) / micro_batch;
    const struct pd_lanes lanes = {micro_batches, micro_batches, layout->dp};
    const uint32_t slots = pd_schedule_slots(pd_lanes_slots(&lanes), layout->pp, e->own->chunk_count),
                   most = layout->pp > 1 || e->is_breadth_first ? e->slots : slots;
    struct step s = {.e = e, .split = PD_SPLIT_VALIDATION, .lanes = lanes, .sequences = sequences};
    for (; s.first_slot < slots; s.first_slot += most) {
        const struct pd_schedule_options options = {.pp = layout->pp,
                                                    .pp_rank = e->grid.place.pp,
                                                    .interleave = e->own->chunk_count,
                                                    .slots = s.first_slot + most < slots ? most : slots - s.first_slot,
                                                    .forward_only = true,
                                                    .units = e->is_breadth_first ? e->options.model->unit_count : 0};
        PD_TRY(run_apart(&s, &options, err));
    }
    return reduce_loss(&s, ret_loss, err);
}
