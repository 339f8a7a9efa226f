/* Blocks with working copies or sums in files: read ahead, assembled on use, written when computed. All by buckets.
 *
 * Copies: a bucket's boxes arrive page by page and are packed for their gather. Sums: bucket s uses buffer s % 2, so backward,
 * which descends, leaves the first two in memory, and the update, which ascends, starts with them. A budget keeps the first
 * blocks in memory for good: the ends, and blocks before `copies_away` (copies) or `sums_away` (sums), are not in files. */
#include "ckpt/base/checked.h"
#include "trainer/parallel/zero_internal.h"

static uint64_t zero_files_element_bytes(const struct pd_zero *zero)
{
    return pd_dtype_bytes(zero->options.compute);
}

static bool is_block(const struct pd_zero *zero, uint32_t bucket)
{
    return !pd_zero_is_end(zero, bucket) && zero->buckets[bucket].count;
}

bool pd_zero_is_filed(const struct pd_zero *zero, uint32_t bucket)
{
    return zero->options.parameters_in_files && bucket >= zero->has.copies_away && is_block(zero, bucket);
}

bool pd_zero_has_filed_sums(const struct pd_zero *zero, uint32_t bucket)
{
    return zero->options.gradients_in_files && bucket >= zero->has.sums_away && is_block(zero, bucket);
}

bool pd_zero_is_rounded(const struct pd_zero *zero, uint32_t bucket)
{
    return zero->options.rounds_sums && is_block(zero, bucket);
}

static uint32_t bucket_of(const struct pd_zero *zero, uint32_t box)
{
    return zero->model->tensors.tensors[zero->has.boxes[box].tensor].unit;
}

static bool is_span(const struct pd_zero *zero, uint32_t box)
{
    return zero->has.boxes[box].copy_offset == UINT64_MAX;
}

/* ---- layout ---- */

static bool is_large(const struct pd_zero_box *b)
{
    return b->elements >= PD_ZERO_FILE_ELEMENTS;
}

static uint64_t copies_of_bucket(const struct pd_zero *zero, uint32_t bucket)
{
    uint64_t elements = 0;
    for (uint32_t b = zero->has.first_box[bucket]; b < zero->has.first_box[bucket + 1]; b++)
        if (is_large(&zero->has.boxes[b])) elements += zero->has.boxes[b].elements;
    return elements;
}

uint32_t pd_zero_first_away(const struct pd_zero *zero, uint64_t budget,
                            uint64_t (*elements_of)(const struct pd_zero *zero, uint32_t bucket))
{
    uint32_t bucket = 1;
    for (; bucket + 1 < zero->has.bucket_count && elements_of(zero, bucket) <= budget; bucket++)
        budget -= elements_of(zero, bucket);
    return bucket;
}

/* In memory, copies have the master's layout, or are contiguous if blocks are in files. */
static void place_copy(struct pd_zero *zero, struct pd_zero_box *b, uint32_t bucket)
{
    if (!zero->options.parameters_in_files) {
        b->copy_offset = b->offset;
    } else if (pd_zero_is_filed(zero, bucket) && is_large(b)) {
        b->copy_offset = UINT64_MAX;
    } else {
        b->copy_offset = zero->copy_elements;
        zero->copy_elements += b->elements;
    }
}

void pd_zero_describe_files(struct pd_zero *zero)
{
    zero->has.copies_away =
        pd_zero_first_away(zero, zero->options.parameters_budget / zero_files_element_bytes(zero), copies_of_bucket);
    for (uint32_t bucket = 0; bucket < zero->has.bucket_count; bucket++) {
        uint64_t landing = 0;
        for (uint32_t b = zero->has.first_box[bucket]; b < zero->has.first_box[bucket + 1]; b++) {
            place_copy(zero, &zero->has.boxes[b], bucket);
            zero->files.landing_place[b] = landing;
            if (is_span(zero, b))
                landing += pd_round_up(zero->has.boxes[b].elements * zero_files_element_bytes(zero), PD_VFS_ALIGN);
        }
        if (landing > zero->files.landing_bytes) zero->files.landing_bytes = landing;
    }
    if (!zero->options.parameters_in_files) zero->copy_elements = zero->has.elements;
    zero->files.update_bucket = PD_ZERO_NO_BUCKET;
    for (int i = 0; i < 2; i++)
        zero->files.landing_bucket[i] = zero->files.sums_bucket[i] = PD_ZERO_NO_BUCKET;
}

uint64_t pd_zero_parameter_span(const struct pd_zero *zero, uint32_t box)
{
    return is_span(zero, box) ? zero->has.boxes[box].elements * zero_files_element_bytes(zero) : 0;
}

uint64_t pd_zero_gradient_span(const struct pd_zero *zero, uint32_t bucket)
{
    uint64_t elements = 0;
    for (uint32_t b = zero->has.first_box[bucket];
         pd_zero_has_filed_sums(zero, bucket) && b < zero->has.first_box[bucket + 1]; b++)
        elements += zero->has.boxes[b].elements;
    return elements * sizeof(float);
}

void pd_zero_attach_files(struct pd_zero *zero, struct pd_spill *parameters, struct pd_spill *gradients)
{
    zero->files.parameter_spill = parameters;
    zero->files.gradient_spill = gradients;
}

void pd_zero_on_sums(struct pd_zero *zero, pd_status (*complete)(void *context, uint32_t bucket, struct pd_error *err),
                     void *context)
{
    zero->files.complete = complete;
    zero->files.complete_context = context;
}

/* ---- working copies ---- */

static char *landing_of(const struct pd_zero *zero, uint32_t box)
{
    return zero->files.landing[bucket_of(zero, box) % 2] + zero->files.landing_place[box];
}

static pd_status wait_boxes(const struct pd_zero *zero, uint32_t bucket, struct pd_error *err)
{
    for (uint32_t b = zero->has.first_box[bucket]; b < zero->has.first_box[bucket + 1]; b++)
        if (is_span(zero, b)) PD_TRY(pd_spill_wait(zero->files.parameter_spill, b, err));
    return PD_OK;
}

/* Starts moving boxes between files and the bucket's landing buffer, which must be clear. */
static pd_status move_boxes(struct pd_zero *zero, uint32_t bucket,
                            pd_status (*move)(struct pd_spill *spill, uint32_t span, void *data, struct pd_error *err),
                            struct pd_error *err)
{
    for (uint32_t b = zero->has.first_box[bucket]; b < zero->has.first_box[bucket + 1]; b++)
        if (is_span(zero, b)) PD_TRY(move(zero->files.parameter_spill, b, landing_of(zero, b), err));
    zero->files.landing_bucket[bucket % 2] = bucket;
    return PD_OK;
}

/* Takes the landing buffer for the bucket: waits until nothing of another bucket is in flight. */
static pd_status clear_landing(struct pd_zero *zero, uint32_t bucket, struct pd_error *err)
{
    const uint32_t before = zero->files.landing_bucket[bucket % 2];
    zero->files.landing_bucket[bucket % 2] = PD_ZERO_NO_BUCKET;
    return before == PD_ZERO_NO_BUCKET ? PD_OK : wait_boxes(zero, before, err);
}

pd_status pd_zero_fetch(struct pd_zero *zero, uint32_t bucket, struct pd_error *err)
{
    if (zero->files.landing_bucket[bucket % 2] == bucket) return PD_OK;
    PD_TRY(clear_landing(zero, bucket, err));
    return move_boxes(zero, bucket, pd_spill_read, err);
}

static void *copy_of(struct pd_zero *zero, uint32_t box)
{
    if (is_span(zero, box)) return landing_of(zero, box);
    return pd_zero_copies(zero) + zero->has.boxes[box].copy_offset * zero_files_element_bytes(zero);
}

/* Keeps what was read for when the pass turns: a bucket needed again soon is not read again. */
pd_status pd_zero_pack(struct pd_zero *zero, uint32_t bucket, char *to[PD_ZERO_SIDES], struct pd_error *err)
{
    if (pd_zero_is_filed(zero, bucket)) {
        PD_TRY(pd_zero_fetch(zero, bucket, err));
        PD_TRY(clear_landing(zero, bucket, err));
        zero->files.landing_bucket[bucket % 2] = bucket;
    }
    struct pd_copies copies = {.count = 0};
    for (uint32_t b = zero->has.first_box[bucket]; b < zero->has.first_box[bucket + 1]; b++) {
        const uint64_t bytes = zero->has.boxes[b].elements * zero_files_element_bytes(zero);
        const uint32_t side = pd_zero_side_of(zero, zero->has.boxes[b].tensor);
        PD_TRY(pd_zero_copy(zero, &copies, to[side], copy_of(zero, b), bytes, err));
        to[side] += bytes;
    }
    return pd_copy_pieces(zero->math, &copies, err);
}

pd_status pd_zero_put_parameters(struct pd_zero *zero, uint32_t box, const float *master, struct pd_error *err)
{
    if (is_span(zero, box)) PD_TRY(clear_landing(zero, bucket_of(zero, box), err));
    PD_TRY(
        pd_cast(zero->math, zero->has.boxes[box].elements, zero->options.compute, copy_of(zero, box), PD_F32, master, err));
    if (!is_span(zero, box)) return PD_OK;
    PD_TRY(pd_spill_write(zero->files.parameter_spill, box, landing_of(zero, box), err));
    return pd_spill_wait(zero->files.parameter_spill, box, err);
}

/* ---- sums ---- */

pd_status pd_zero_take_sums(struct pd_zero *zero, uint32_t bucket, struct pd_error *err)
{
    if (!pd_zero_has_filed_sums(zero, bucket)) return PD_OK;
    const uint32_t before = zero->files.sums_bucket[bucket % 2];
    zero->files.sums_bucket[bucket % 2] = bucket;
    return before == PD_ZERO_NO_BUCKET || before == bucket ? PD_OK : pd_spill_wait(zero->files.gradient_spill, before, err);
}

pd_status pd_zero_bring_sums(struct pd_zero *zero, uint32_t bucket, struct pd_error *err)
{
    const struct pd_zero_bucket *s = &zero->buckets[bucket];
    if (!pd_zero_is_rounded(zero, bucket)) return PD_OK;
    return pd_cast(zero->math, s->computed[s->count], PD_F32, s->lane, PD_BF16, s->rounded, err);
}

static bool has_sums(const struct pd_zero *zero, uint32_t bucket)
{
    return zero->has.first_box[bucket] < zero->has.first_box[bucket + 1];
}

pd_status pd_zero_complete(struct pd_zero *zero, uint32_t bucket, struct pd_error *err)
{
    if (!zero->options.gradients_in_files || !is_block(zero, bucket)) return PD_OK;
    if (zero->files.complete) PD_TRY(zero->files.complete(zero->files.complete_context, bucket, err));
    if (bucket < zero->has.sums_away + 2 || !has_sums(zero, bucket)) return PD_OK; /* stay until the update */
    return pd_spill_write(zero->files.gradient_spill, bucket, pd_zero_sums(zero, bucket), err);
}

static pd_status read_sums(struct pd_zero *zero, uint32_t bucket, struct pd_error *err)
{
    if (bucket >= zero->has.bucket_count || !pd_zero_has_filed_sums(zero, bucket) ||
        zero->files.sums_bucket[bucket % 2] == bucket)
        return PD_OK;
    PD_TRY(pd_zero_take_sums(zero, bucket, err));
    return has_sums(zero, bucket) ? pd_spill_read(zero->files.gradient_spill, bucket, pd_zero_sums(zero, bucket), err)
                                  : PD_OK;
}

/* ---- an update ---- */

/* Writes the results of the previous bucket, and starts reading the next one. */
static pd_status enter_bucket(struct pd_zero *zero, uint32_t bucket, struct pd_error *err)
{
    const uint32_t before = zero->files.update_bucket;
    if (before == bucket) return PD_OK;
    zero->files.update_bucket = bucket;
    if (before != PD_ZERO_NO_BUCKET && pd_zero_is_filed(zero, before)) PD_TRY(move_boxes(zero, before, pd_spill_write, err));
    if (bucket == PD_ZERO_NO_BUCKET) return PD_OK;
    if (pd_zero_is_filed(zero, bucket)) PD_TRY(clear_landing(zero, bucket, err));
    PD_TRY(pd_zero_bring_sums(zero, bucket, err));
    if (!pd_zero_has_filed_sums(zero, bucket)) return PD_OK;
    PD_TRY(read_sums(zero, bucket, err));
    PD_TRY(pd_spill_wait(zero->files.gradient_spill, bucket, err));
    return bucket > zero->has.sums_away ? read_sums(zero, bucket + 1, err) : PD_OK; /* the first two are both there */
}

pd_status pd_zero_update_begin(struct pd_zero *zero, struct pd_error *err)
{
    for (uint32_t bucket = 0; zero->files.gradient_spill && bucket < zero->has.bucket_count; bucket++)
        PD_TRY(pd_spill_wait(zero->files.gradient_spill, bucket, err));
    for (int i = 0; i < 2; i++)
        PD_TRY(clear_landing(zero, (uint32_t)i, err));
    return PD_OK;
}

pd_status pd_zero_update_box(struct pd_zero *zero, uint32_t box, const float **ret_gradient, void **ret_copy,
                             struct pd_error *err)
{
    PD_TRY(enter_bucket(zero, bucket_of(zero, box), err));
    *ret_gradient = zero->has.gradient + zero->has.boxes[box].gradient_offset;
    *ret_copy = copy_of(zero, box);
    return PD_OK;
}

pd_status pd_zero_update_end(struct pd_zero *zero, struct pd_error *err)
{
    PD_TRY(enter_bucket(zero, PD_ZERO_NO_BUCKET, err));
    for (int i = 0; i < 2; i++)
        PD_TRY(clear_landing(zero, (uint32_t)i, err));
    return PD_OK;
}
