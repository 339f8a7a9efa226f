/* Blocks with working copies or sums in files: read ahead, assembled on use, written when computed. All by sets.
 *
 * Copies: a set's boxes arrive page by page and are packed for their gather. Sums: set s uses buffer s % 2, so backward,
 * which descends, leaves the first two in memory, and the update, which ascends, starts with them. A budget keeps the first
 * blocks in memory for good: the ends, and blocks before `copies_away` (copies) or `sums_away` (sums), are not in files. */
#include "ckpt/base/checked.h"
#include "trainer/parallel/zero_internal.h"

static uint64_t zero_files_element_bytes(const struct pd_zero *zero)
{
    return pd_dtype_bytes(zero->options.compute);
}

static bool is_block(const struct pd_zero *zero, uint32_t set)
{
    return !pd_zero_is_end(zero, set) && zero->sets[set].count;
}

bool pd_zero_is_filed(const struct pd_zero *zero, uint32_t set)
{
    return zero->options.parameters_in_files && set >= zero->has.copies_away && is_block(zero, set);
}

bool pd_zero_has_filed_sums(const struct pd_zero *zero, uint32_t set)
{
    return zero->options.gradients_in_files && set >= zero->has.sums_away && is_block(zero, set);
}

static uint32_t set_of(const struct pd_zero *zero, uint32_t box)
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

static uint64_t copies_of_set(const struct pd_zero *zero, uint32_t set)
{
    uint64_t elements = 0;
    for (uint32_t b = zero->has.first_box[set]; b < zero->has.first_box[set + 1]; b++)
        if (is_large(&zero->has.boxes[b])) elements += zero->has.boxes[b].elements;
    return elements;
}

uint32_t pd_zero_first_away(const struct pd_zero *zero, uint64_t budget,
                            uint64_t (*elements_of)(const struct pd_zero *zero, uint32_t set))
{
    uint32_t set = 1;
    for (; set + 1 < zero->has.set_count && elements_of(zero, set) <= budget; set++)
        budget -= elements_of(zero, set);
    return set;
}

/* In memory, copies have the master's layout, or are contiguous if blocks are in files. */
static void place_copy(struct pd_zero *zero, struct pd_zero_box *b, uint32_t set)
{
    if (!zero->options.parameters_in_files) {
        b->copy_offset = b->offset;
    } else if (pd_zero_is_filed(zero, set) && is_large(b)) {
        b->copy_offset = UINT64_MAX;
    } else {
        b->copy_offset = zero->copy_elements;
        zero->copy_elements += b->elements;
    }
}

void pd_zero_describe_files(struct pd_zero *zero)
{
    zero->has.copies_away =
        pd_zero_first_away(zero, zero->options.parameters_budget / zero_files_element_bytes(zero), copies_of_set);
    for (uint32_t set = 0; set < zero->has.set_count; set++) {
        uint64_t landing = 0;
        for (uint32_t b = zero->has.first_box[set]; b < zero->has.first_box[set + 1]; b++) {
            place_copy(zero, &zero->has.boxes[b], set);
            zero->files.landing_place[b] = landing;
            if (is_span(zero, b))
                landing += pd_round_up(zero->has.boxes[b].elements * zero_files_element_bytes(zero), PD_VFS_ALIGN);
        }
        if (landing > zero->files.landing_bytes) zero->files.landing_bytes = landing;
    }
    if (!zero->options.parameters_in_files) zero->copy_elements = zero->has.elements;
    zero->files.update_set = PD_ZERO_NO_SET;
    for (int i = 0; i < 2; i++)
        zero->files.landing_set[i] = zero->files.sums_set[i] = PD_ZERO_NO_SET;
}

uint64_t pd_zero_parameter_span(const struct pd_zero *zero, uint32_t box)
{
    return is_span(zero, box) ? zero->has.boxes[box].elements * zero_files_element_bytes(zero) : 0;
}

uint64_t pd_zero_gradient_span(const struct pd_zero *zero, uint32_t set)
{
    uint64_t elements = 0;
    for (uint32_t b = zero->has.first_box[set]; pd_zero_has_filed_sums(zero, set) && b < zero->has.first_box[set + 1]; b++)
        elements += zero->has.boxes[b].elements;
    return elements * sizeof(float);
}

void pd_zero_attach_files(struct pd_zero *zero, struct pd_spill *parameters, struct pd_spill *gradients)
{
    zero->files.parameter_spill = parameters;
    zero->files.gradient_spill = gradients;
}

void pd_zero_on_sums(struct pd_zero *zero, pd_status (*complete)(void *context, uint32_t set, struct pd_error *err),
                     void *context)
{
    zero->files.complete = complete;
    zero->files.complete_context = context;
}

/* ---- working copies ---- */

static char *landing_of(const struct pd_zero *zero, uint32_t box)
{
    return zero->files.landing[set_of(zero, box) % 2] + zero->files.landing_place[box];
}

static pd_status wait_boxes(const struct pd_zero *zero, uint32_t set, struct pd_error *err)
{
    for (uint32_t b = zero->has.first_box[set]; b < zero->has.first_box[set + 1]; b++)
        if (is_span(zero, b)) PD_TRY(pd_spill_wait(zero->files.parameter_spill, b, err));
    return PD_OK;
}

/* Starts moving boxes between files and the set's landing buffer, which must be clear. */
static pd_status move_boxes(struct pd_zero *zero, uint32_t set,
                            pd_status (*move)(struct pd_spill *spill, uint32_t span, void *data, struct pd_error *err),
                            struct pd_error *err)
{
    for (uint32_t b = zero->has.first_box[set]; b < zero->has.first_box[set + 1]; b++)
        if (is_span(zero, b)) PD_TRY(move(zero->files.parameter_spill, b, landing_of(zero, b), err));
    zero->files.landing_set[set % 2] = set;
    return PD_OK;
}

/* Takes the landing buffer for the set: waits until nothing of another set is in flight. */
static pd_status clear_landing(struct pd_zero *zero, uint32_t set, struct pd_error *err)
{
    const uint32_t before = zero->files.landing_set[set % 2];
    zero->files.landing_set[set % 2] = PD_ZERO_NO_SET;
    return before == PD_ZERO_NO_SET ? PD_OK : wait_boxes(zero, before, err);
}

pd_status pd_zero_fetch(struct pd_zero *zero, uint32_t set, struct pd_error *err)
{
    if (zero->files.landing_set[set % 2] == set) return PD_OK;
    PD_TRY(clear_landing(zero, set, err));
    return move_boxes(zero, set, pd_spill_read, err);
}

static void *copy_of(struct pd_zero *zero, uint32_t box)
{
    if (is_span(zero, box)) return landing_of(zero, box);
    return pd_zero_copies(zero) + zero->has.boxes[box].copy_offset * zero_files_element_bytes(zero);
}

/* Keeps what was read for when the pass turns: a set needed again soon is not read again. */
pd_status pd_zero_pack(struct pd_zero *zero, uint32_t set, char **to, struct pd_error *err)
{
    if (pd_zero_is_filed(zero, set)) {
        PD_TRY(pd_zero_fetch(zero, set, err));
        PD_TRY(clear_landing(zero, set, err));
        zero->files.landing_set[set % 2] = set;
    }
    for (uint32_t b = zero->has.first_box[set]; b < zero->has.first_box[set + 1]; b++) {
        const uint64_t bytes = zero->has.boxes[b].elements * zero_files_element_bytes(zero);
        PD_TRY(pd_math_copy(zero->math, *to, copy_of(zero, b), bytes, err));
        *to += bytes;
    }
    return PD_OK;
}

pd_status pd_zero_put_parameters(struct pd_zero *zero, uint32_t box, const float *master, struct pd_error *err)
{
    if (is_span(zero, box)) PD_TRY(clear_landing(zero, set_of(zero, box), err));
    PD_TRY(
        pd_cast(zero->math, zero->has.boxes[box].elements, zero->options.compute, copy_of(zero, box), PD_F32, master, err));
    if (!is_span(zero, box)) return PD_OK;
    PD_TRY(pd_spill_write(zero->files.parameter_spill, box, landing_of(zero, box), err));
    return pd_spill_wait(zero->files.parameter_spill, box, err);
}

/* ---- sums ---- */

pd_status pd_zero_make_room(struct pd_zero *zero, uint32_t set, struct pd_error *err)
{
    if (!pd_zero_has_filed_sums(zero, set)) return PD_OK;
    const uint32_t before = zero->files.sums_set[set % 2];
    zero->files.sums_set[set % 2] = set;
    return before == PD_ZERO_NO_SET || before == set ? PD_OK : pd_spill_wait(zero->files.gradient_spill, before, err);
}

static bool has_sums(const struct pd_zero *zero, uint32_t set)
{
    return zero->has.first_box[set] < zero->has.first_box[set + 1];
}

pd_status pd_zero_complete(struct pd_zero *zero, uint32_t set, struct pd_error *err)
{
    if (!zero->options.gradients_in_files || !is_block(zero, set)) return PD_OK;
    if (zero->files.complete) PD_TRY(zero->files.complete(zero->files.complete_context, set, err));
    if (set < zero->has.sums_away + 2 || !has_sums(zero, set)) return PD_OK; /* stay until the update */
    return pd_spill_write(zero->files.gradient_spill, set, pd_zero_sums(zero, set), err);
}

static pd_status read_sums(struct pd_zero *zero, uint32_t set, struct pd_error *err)
{
    if (set >= zero->has.set_count || !pd_zero_has_filed_sums(zero, set) || zero->files.sums_set[set % 2] == set)
        return PD_OK;
    PD_TRY(pd_zero_make_room(zero, set, err));
    return has_sums(zero, set) ? pd_spill_read(zero->files.gradient_spill, set, pd_zero_sums(zero, set), err) : PD_OK;
}

/* ---- an update ---- */

/* Writes the results of the previous set, and starts reading the next one. */
static pd_status enter_set(struct pd_zero *zero, uint32_t set, struct pd_error *err)
{
    const uint32_t before = zero->files.update_set;
    if (before == set) return PD_OK;
    zero->files.update_set = set;
    if (before != PD_ZERO_NO_SET && pd_zero_is_filed(zero, before)) PD_TRY(move_boxes(zero, before, pd_spill_write, err));
    if (set == PD_ZERO_NO_SET) return PD_OK;
    if (pd_zero_is_filed(zero, set)) PD_TRY(clear_landing(zero, set, err));
    if (!pd_zero_has_filed_sums(zero, set)) return PD_OK;
    PD_TRY(read_sums(zero, set, err));
    PD_TRY(pd_spill_wait(zero->files.gradient_spill, set, err));
    return set > zero->has.sums_away ? read_sums(zero, set + 1, err) : PD_OK; /* the first two are both there */
}

pd_status pd_zero_update_begin(struct pd_zero *zero, struct pd_error *err)
{
    for (uint32_t set = 0; zero->files.gradient_spill && set < zero->has.set_count; set++)
        PD_TRY(pd_spill_wait(zero->files.gradient_spill, set, err));
    for (int i = 0; i < 2; i++)
        PD_TRY(clear_landing(zero, (uint32_t)i, err));
    return PD_OK;
}

pd_status pd_zero_update_box(struct pd_zero *zero, uint32_t box, const float **ret_gradient, void **ret_copy,
                             struct pd_error *err)
{
    PD_TRY(enter_set(zero, set_of(zero, box), err));
    *ret_gradient = zero->has.gradient + zero->has.boxes[box].gradient_offset;
    *ret_copy = copy_of(zero, box);
    return PD_OK;
}

pd_status pd_zero_update_end(struct pd_zero *zero, struct pd_error *err)
{
    PD_TRY(enter_set(zero, PD_ZERO_NO_SET, err));
    for (int i = 0; i < 2; i++)
        PD_TRY(clear_landing(zero, (uint32_t)i, err));
    return PD_OK;
}
