/* ZeRO over real communicators under every layout of one to eight ranks: a pretended step whose micro-batch gradients,
 * parameters and moments are functions of the global element. Gathered parameters are compared with the function, sums bit
 * for bit with integers that the test itself makes of lanes and adds, and what was taken with what was planned. In turns the
 * memory is one that the host cannot touch: what the test itself writes and reads there stands for a device's operations.
 *
 * PERDURE_TEST_SCALE=10 tries every zero_shard of every layout. */
#include "tests/helpers/device_math.h"
#include "tests/helpers/families.h"
#include "tests/helpers/scale.h"
#include "trainer/parallel/zero.h"

#include "ckpt/base/half.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WORLD_MAX = 8, LAYERS = 4, MICRO_BATCHES = 9, TOKENS_LOG = 12 };
#define LOSS_SCALE 8.0

#define TENSORS_MAX 64 /* of a bucket */

struct job {
    struct pd_layout layout;
    struct pd_zero_options options;
    const struct pd_model *model;
    struct device_memory *far; /* (world), or NULL */
};

struct rank {
    const struct job *job;
    struct pd_grid grid;
    struct device_memory *far; /* or NULL */
    struct device_math device_math;
    struct pd_math *math;
    struct pd_zero *zero;
    uint32_t version; /* of the parameters */
};

/* ---- who goes over what ---- */

static _Thread_local struct pd_comm_ops of_gathers, of_shard;
static _Thread_local pd_status (*start)(struct pd_comm *, struct pd_comm_op *, struct pd_error *);
static _Atomic uint32_t gathers, others;

static bool is_gather(const struct pd_comm_op *op)
{
    return op->what && strcmp(op->what, "gather of parameters") == 0;
}

static pd_status start_gather(struct pd_comm *comm, struct pd_comm_op *op, struct pd_error *err)
{
    if (!is_gather(op)) PD_FAIL(err, PD_BUG, "%s goes over the communicator of gathers", op->what);
    gathers++;
    return start(comm, op, err);
}

static pd_status start_other(struct pd_comm *comm, struct pd_comm_op *op, struct pd_error *err)
{
    if (is_gather(op)) PD_FAIL(err, PD_BUG, "parameters are gathered over the communicator of sums");
    others++;
    return start(comm, op, err);
}

/* Until the grid is gone; the world's communicator gets its own back. */
static void watch(struct pd_grid *grid)
{
    if (!grid->gathers || !grid->shard) return;
    of_gathers = of_shard = *grid->shard->ops;
    start = of_shard.start;
    of_gathers.start = start_gather;
    of_shard.start = start_other;
    grid->shard->ops = &of_shard;
    grid->gathers->ops = &of_gathers;
}

/* ---- what everything should be ---- */

/* ---- copies that are not made together ---- */

static _Thread_local uint32_t single_copies;
static _Thread_local pd_status (*copy_of_cpu)(struct pd_math *, void *, const void *, uint64_t, struct pd_error *);

static pd_status count_copy(struct pd_math *math, void *dst, const void *src, uint64_t bytes, struct pd_error *err)
{
    single_copies++;
    return copy_of_cpu(math, dst, src, bytes, err);
}

static uint64_t mix(uint64_t x)
{
    x ^= x >> 31;
    x *= UINT64_C(0x9e3779b97f4a7c15);
    x ^= x >> 29;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    return x ^ x >> 32;
}

/* Of mixed size, so that sums depend on their order. */
static float value_of(uint64_t what, uint32_t tensor, uint64_t element)
{
    const uint64_t h = mix(mix(what * 131 + tensor) + element);
    return (float)((int64_t)(h & 0xffffff) - 0x800000) / (float)(1u << (8 + (h >> 24) % 16));
}

static float state_of(enum pd_kind kind, uint32_t version, uint32_t tensor, uint64_t element)
{
    return value_of(1000u + version * 8u + kind, tensor, element);
}

static float all_parts; /* 0: each is its own */

static float part_of(uint32_t micro_batch, uint32_t piece, bool is_head, uint32_t tensor, uint64_t element)
{
    if (all_parts) return all_parts;
    return value_of(2000u + (micro_batch * 64u + piece) * 2u + is_head, tensor, element);
}

static float rounded(enum pd_dtype type, float x)
{
    return type == PD_BF16 ? pd_f32_from_bf16(pd_bf16_from_f32(x)) : x;
}

static uint32_t pieces_of(const struct job *job)
{
    return job->layout.virtual_sp > 1 ? 2 * job->layout.virtual_sp : 1;
}

/* Micro-batches [begin, end), one after the other. */
static float lane_of(uint64_t begin, uint64_t end, bool is_head, uint32_t tensor, uint64_t element)
{
    float sum = part_of((uint32_t)begin, 0, is_head, tensor, element);
    for (uint64_t micro_batch = begin + 1; micro_batch < end; micro_batch++)
        sum += part_of((uint32_t)micro_batch, 0, is_head, tensor, element);
    return sum;
}

static bool is_chain(const struct job *job)
{
    return job->options.lanes == 1 && job->layout.virtual_tp == 1 && job->layout.virtual_sp == 1;
}

/* Narrow terms: sizes that are not the same for neighbours in a bucket, and have room for the largest sum. */
static int size_of(uint32_t class)
{
    return 8 + (int)(class % 5);
}

static int grain_of(const struct job *job, uint32_t tensor)
{
    if (!job->options.narrow_terms) return 53 - TOKENS_LOG;
    return 31 - 8 - TOKENS_LOG - size_of(pd_gradient_class(job->model, tensor));
}

/* To nearest, to even, as the test's own arithmetic has it. */
static int64_t term_of(const struct job *job, uint32_t tensor, float x)
{
    return llrint(ldexp((double)x / LOSS_SCALE, grain_of(job, tensor)));
}

static int64_t terms_of_bucket(const struct job *job, bool is_head, uint32_t tensor, uint64_t element)
{
    const struct pd_zero_options *o = &job->options;
    int64_t sum = 0;
    for (uint32_t m = 0; m < o->micro_batches && pieces_of(job) > 1; m++)
        for (uint32_t piece = 0; piece < pieces_of(job); piece++)
            sum += term_of(job, tensor, part_of(m, piece, is_head, tensor, element));
    for (uint64_t lane = 0; lane < o->lanes && pieces_of(job) == 1; lane++)
        sum += term_of(
            job, tensor,
            lane_of(lane * o->micro_batches / o->lanes, (lane + 1) * o->micro_batches / o->lanes, is_head, tensor, element));
    return sum;
}

static float sum_of(const struct job *job, uint32_t tensor, uint64_t element)
{
    const bool is_tied = tensor == 0 && job->model->config.tie_embeddings;
    if (is_chain(job)) {
        float sum = lane_of(0, job->options.micro_batches, false, tensor, element);
        if (is_tied) sum += lane_of(0, job->options.micro_batches, true, tensor, element);
        return sum;
    }
    const int64_t sum =
        terms_of_bucket(job, false, tensor, element) + (is_tied ? terms_of_bucket(job, true, tensor, element) : 0);
    return ldexpf((float)sum, -grain_of(job, tensor));
}

static uint64_t global_element(const struct pd_tensor *tensor, const struct pd_box *box, uint64_t i)
{
    return (box->start[0] + i / box->count[1]) * tensor->shape[1] + box->start[1] + i % box->count[1];
}

/* ---- a rank ---- */

static const struct pd_tensor *tensor_of(const struct rank *r, uint32_t tensor)
{
    return &r->job->model->tensors.tensors[tensor];
}

static void open_memory(const struct rank *r)
{
    if (r->far) far_open(r->far);
}

static void close_memory(const struct rank *r)
{
    if (r->far) far_close(r->far);
}

static bool has_bucket(const struct rank *r, uint32_t bucket)
{
    return pd_layout_unit_pp(&r->grid.layout, bucket) == r->grid.place.pp;
}

static uint32_t set_tensors(const struct rank *r, uint32_t bucket, uint32_t *ret_tensors)
{
    const struct pd_model *model = r->job->model;
    uint32_t count = 0;
    for (uint32_t t = model->unit_first[bucket]; t < model->unit_first[bucket + 1]; t++)
        ret_tensors[count++] = t;
    if (bucket + 1 == model->unit_count && model->config.tie_embeddings) ret_tensors[count++] = 0;
    return count;
}

/* The owned boxes are the layout's, each named by its number; the others are left with what nobody should see. */
static pd_status fill_state(struct rank *r, struct pd_error *err)
{
    uint64_t owned = 0, expected = 0;
    for (uint32_t i = 0; i < pd_zero_held(r->zero)->box_count; i++) {
        const struct pd_zero_box *b = &pd_zero_held(r->zero)->boxes[i];
        const struct pd_tensor *tensor = tensor_of(r, b->tensor);
        struct pd_box boxes[PD_LAYOUT_CHUNKS_MAX];
        uint32_t count =
            pd_layout_owned_boxes(&r->grid.layout, tensor, b->tensor, r->grid.rank, boxes, PD_LAYOUT_CHUNKS_MAX);
        if (b->owned && (b->number >= count || memcmp(&boxes[b->number], &b->box, sizeof b->box)))
            PD_FAIL(err, PD_BUG, "box %u of %s is not the layout's", b->number, tensor->name);
        if (b->owned) owned += b->elements;
        for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
            float *state = pd_zero_state(pd_zero_held(r->zero), (enum pd_kind)kind, b->offset);
            for (uint64_t e = 0; e < b->elements; e++)
                state[e] = b->owned ? state_of((enum pd_kind)kind, r->version, b->tensor, global_element(tensor, &b->box, e))
                                    : -1.0f;
        }
    }
    for (uint32_t t = 0; t < r->job->model->tensors.count; t++) {
        struct pd_box boxes[PD_LAYOUT_CHUNKS_MAX];
        uint32_t count =
            pd_layout_owned_boxes(&r->grid.layout, tensor_of(r, t), t, r->grid.rank, boxes, PD_LAYOUT_CHUNKS_MAX);
        for (uint32_t i = 0; i < count; i++)
            expected += pd_box_elements(&boxes[i]);
    }
    if (owned != expected)
        PD_FAIL(err, PD_BUG, "owns %llu elements, not %llu", (unsigned long long)owned, (unsigned long long)expected);
    return PD_OK;
}

static pd_status check_state(struct rank *r, struct pd_error *err)
{
    for (uint32_t i = 0; i < pd_zero_held(r->zero)->box_count; i++) {
        const struct pd_zero_box *b = &pd_zero_held(r->zero)->boxes[i];
        for (int kind = 0; kind < PD_KIND_COUNT; kind++)
            for (uint64_t e = 0; e < b->elements; e++) {
                const uint64_t element = global_element(tensor_of(r, b->tensor), &b->box, e);
                const float is = ((const float *)pd_zero_held(r->zero)->state[(enum pd_kind)kind])[b->offset + e],
                            should = state_of((enum pd_kind)kind, r->version, b->tensor, element);
                if (is != should)
                    PD_FAIL(err, PD_BUG, "kind %d of %s[%llu] is %g, not %g", kind, tensor_of(r, b->tensor)->name,
                            (unsigned long long)element, (double)is, (double)should);
            }
    }
    return PD_OK;
}

static pd_status check_weights(const struct rank *r, uint32_t tensor, const void *weights, struct pd_error *err)
{
    struct pd_box boxes[PD_LAYOUT_CHUNKS_MAX];
    const enum pd_dtype type = r->job->options.compute;
    const uint32_t count = pd_partition_needed(r->job->model, &r->grid.partition, tensor, boxes, PD_LAYOUT_CHUNKS_MAX);
    const char *data = weights;
    if (!data) PD_FAIL(err, PD_BUG, "%s has no place", tensor_of(r, tensor)->name);
    for (uint32_t i = 0; i < count; i++)
        for (uint64_t e = 0; e < pd_box_elements(&boxes[i]); e++, data += pd_dtype_bytes(type)) {
            const uint64_t element = global_element(tensor_of(r, tensor), &boxes[i], e);
            const float should = rounded(type, state_of(PD_PARAM, r->version, tensor, element));
            float is;
            uint16_t half;
            memcpy(&half, data, sizeof half);
            if (type == PD_F32)
                memcpy(&is, data, sizeof is);
            else
                is = pd_f32_from_bf16(half);
            if (is != should)
                PD_FAIL(err, PD_BUG, "%s[%llu] was gathered as %g, not %g", tensor_of(r, tensor)->name,
                        (unsigned long long)element, (double)is, (double)should);
        }
    return PD_OK;
}

/* As backward does: where there are sums it adds to them. */
static void fill_gradient(const struct rank *r, uint32_t micro_batch, uint32_t piece, uint32_t bucket, uint32_t tensor,
                          bool adds, float *gradient)
{
    struct pd_box boxes[PD_LAYOUT_CHUNKS_MAX];
    const uint32_t count = pd_partition_computed(r->job->model, &r->grid.partition, tensor, boxes, PD_LAYOUT_CHUNKS_MAX);
    const bool is_head = bucket + 1 == r->job->model->unit_count;
    for (uint32_t i = 0; i < count; i++)
        for (uint64_t e = 0; e < pd_box_elements(&boxes[i]); e++, gradient++) {
            const float part = part_of(micro_batch, piece, is_head && tensor == 0, tensor,
                                       global_element(tensor_of(r, tensor), &boxes[i], e));
            *gradient = adds ? *gradient + part : part;
        }
}

static pd_status visit(struct rank *r, uint32_t bucket, struct pd_error *err)
{
    uint32_t tensors[TENSORS_MAX];
    void *const *weights;
    if (!has_bucket(r, bucket)) return PD_OK;
    const uint32_t before = single_copies;
    PD_TRY(pd_zero_acquire(r->zero, bucket, &weights, err));
    if (single_copies > before + 1) /* of a tied table */
        PD_FAIL(err, PD_BUG, "a gather makes %u copies one by one", single_copies - before);
    const uint32_t count = set_tensors(r, bucket, tensors);
    pd_status st = PD_OK;
    open_memory(r);
    for (uint32_t e = 0; e < count && !st; e++)
        st = check_weights(r, tensors[e], weights[e], err);
    close_memory(r);
    return st;
}

static struct pd_lanes lanes_of(const struct rank *r)
{
    return (struct pd_lanes){r->job->options.micro_batches, r->job->options.lanes, r->grid.layout.dp};
}

static uint64_t computed_elements(const struct rank *r, uint32_t tensor)
{
    struct pd_box boxes[PD_LAYOUT_CHUNKS_MAX];
    const uint32_t count = pd_partition_computed(r->job->model, &r->grid.partition, tensor, boxes, PD_LAYOUT_CHUNKS_MAX);
    uint64_t elements = 0;
    for (uint32_t i = 0; i < count; i++)
        elements += pd_box_elements(&boxes[i]);
    return elements;
}

/* A piece's gradients of some tensors are taken together, of others by halves, as a model makes them. */
static pd_status take_pieces(struct rank *r, uint32_t bucket, uint32_t micro_batch, float *const *gradients,
                             const uint32_t *tensors, uint32_t count, struct pd_error *err)
{
    for (uint32_t e = 0; e < count; e++) {
        const uint64_t n = computed_elements(r, tensors[e]), half = e % 2 ? n : n / 2;
        for (uint64_t begin = 0, end = half; begin < n; begin = end, end = n)
            for (uint32_t place = 0; place < pd_partition_piece_count(&r->grid.partition); place++) {
                const uint32_t piece = pd_partition_piece_at(&r->grid.partition, place);
                open_memory(r);
                fill_gradient(r, micro_batch, piece, bucket, tensors[e], false, gradients[e]);
                close_memory(r);
                PD_TRY(pd_zero_take_piece(r->zero, 0, gradients[e] + begin, end - begin, err));
            }
    }
    return PD_OK;
}

static pd_status learn(struct rank *r, uint32_t bucket, uint32_t slot, struct pd_error *err)
{
    uint32_t tensors[TENSORS_MAX];
    float *const *gradients;
    bool adds;
    const struct pd_lanes lanes = lanes_of(r);
    const uint32_t micro_batch = pd_lanes_first(&lanes, r->grid.place.dp) + slot;
    if (!has_bucket(r, bucket)) return PD_OK;
    PD_TRY(pd_zero_micro_batch_gradients(r->zero, bucket, slot, &gradients, &adds, err));
    const uint32_t count = set_tensors(r, bucket, tensors);
    const bool padding = pd_lanes_is_padding(&lanes, r->grid.place.dp, slot);
    if (!padding && pieces_of(r->job) > 1) PD_TRY(take_pieces(r, bucket, micro_batch, gradients, tensors, count, err));
    open_memory(r);
    for (uint32_t e = 0; e < count && !padding && pieces_of(r->job) == 1; e++)
        fill_gradient(r, micro_batch, 0, bucket, tensors[e], adds, gradients[e]);
    close_memory(r);
    return pd_zero_push_gradients(r->zero, bucket, slot, err);
}

static pd_status check_sums(struct rank *r, struct pd_error *err)
{
    for (uint32_t i = 0; i < pd_zero_held(r->zero)->box_count; i++) {
        const struct pd_zero_box *b = &pd_zero_held(r->zero)->boxes[i];
        for (uint64_t e = 0; e < b->elements; e++) {
            const uint64_t element = global_element(tensor_of(r, b->tensor), &b->box, e);
            const float is = pd_zero_held(r->zero)->gradient[b->gradient_offset + e],
                        should = sum_of(r->job, b->tensor, element);
            if (is != should)
                PD_FAIL(err, PD_BUG, "the sum of %s[%llu] is %.9g, not %.9g (%s)", tensor_of(r, b->tensor)->name,
                        (unsigned long long)element, (double)is, (double)should, b->owned ? "owned" : "held");
        }
    }
    return PD_OK;
}

static pd_status in_memory(struct rank *r, pd_status (*call)(struct rank *, struct pd_error *), struct pd_error *err)
{
    open_memory(r);
    pd_status st = call(r, err);
    close_memory(r);
    return st;
}

/* Forward twice (the second time nothing may have changed), backward with the next bucket on its way. */
static pd_status step(struct rank *r, struct pd_error *err)
{
    const struct pd_lanes lanes = lanes_of(r);
    const uint32_t buckets = pd_zero_held(r->zero)->bucket_count, slots = pd_lanes_slots(&lanes);
    PD_TRY(in_memory(r, fill_state, err));
    PD_TRY(pd_zero_share_state(r->zero, err));
    PD_TRY(in_memory(r, check_state, err));
    PD_TRY(pd_zero_refresh_compute(r->zero, err));
    struct pd_gradient_sizes sizes;
    for (uint32_t i = 0; i < PD_GRADIENT_CLASSES; i++)
        sizes.log2[i] = (int8_t)size_of(i);
    PD_TRY(pd_zero_begin_step(r->zero, LOSS_SCALE, &sizes, 0, err));
    const uint32_t passes = r->job->options.by_layers ? 1 : slots, together = slots / passes;
    for (uint32_t pass = 0; pass < passes; pass++) {
        for (uint32_t bucket = 0; bucket < buckets; bucket++)
            PD_TRY(visit(r, bucket, err));
        for (uint32_t bucket = buckets; bucket-- > 0;) {
            PD_TRY(visit(r, bucket, err));
            if (bucket > 1 && bucket + 1 < buckets && has_bucket(r, bucket - 1))
                PD_TRY(pd_zero_prefetch(r->zero, bucket - 1, err));
            for (uint32_t slot = 0; slot < together; slot++)
                PD_TRY(learn(r, bucket, pass + slot, err));
        }
    }
    PD_TRY(pd_zero_finish_gradients(r->zero, err));
    PD_TRY(pd_zero_read_marks(r->zero, err));
    if (pd_zero_out_of_range(r->zero) != UINT32_MAX || pd_zero_not_finite(r->zero) != UINT32_MAX)
        PD_FAIL(err, PD_BUG, "a tensor overflows");
    if (pd_zero_damage(r->zero) != UINT32_MAX) PD_FAIL(err, PD_BUG, "bucket %u is damaged", pd_zero_damage(r->zero));
    return in_memory(r, check_sums, err);
}

static pd_status plan_of(const struct rank *r, struct pd_memory_plan *ret_plan, struct pd_error *err)
{
    struct pd_arena *dry;
    struct pd_zero *zero;
    PD_TRY(pd_arena_new_dry(&dry, err));
    PD_TRY(pd_zero_new(r->job->model, &r->job->options, &r->grid, NULL, dry, &zero, err));
    pd_arena_usage(dry, ret_plan);
    pd_zero_free(zero);
    pd_arena_free(dry);
    return PD_OK;
}

static pd_status run_rank(struct pd_comm *comm, void *context, struct pd_error *err)
{
    struct rank r = {.job = context};
    struct pd_memory_plan plan, usage;
    struct pd_arena *arena, *workspace;
    struct pd_math *near;
    if (r.job->far) r.far = &r.job->far[comm->rank];
    const struct pd_comm_memory hook = r.far ? far_hook(r.far) : (struct pd_comm_memory){0};
    const struct pd_arena_source source = far_source(r.far);
    pd_comm_use_memory(comm, &hook);
    PD_TRY(pd_grid_init(&r.job->layout, comm->rank, comm->size > 1 ? comm : NULL, &r.grid, err));
    const struct pd_comm_ops *const ops = comm->ops;
    watch(&r.grid);
    PD_TRY(plan_of(&r, &plan, err));
    PD_TRY(r.far ? pd_arena_new_on(&plan, &source, &arena, err) : pd_arena_new(&plan, &arena, err));
    PD_TRY(far_near_new(&workspace, &near, err));
    struct pd_math_ops counting = *near->ops;
    copy_of_cpu = counting.copy;
    counting.copy = count_copy;
    near->ops = &counting;
    r.math = r.far ? device_math_init(&r.device_math, near, r.far) : near;
    pd_status st = pd_zero_new(r.job->model, &r.job->options, &r.grid, r.math, arena, &r.zero, err);
    pd_arena_usage(arena, &usage);
    if (!st && memcmp(&plan, &usage, sizeof plan)) st = pd_error_set(err, PD_BUG, PD_WHERE, 0, "not what was planned");
    for (; r.version < 2 && !st; r.version++)
        st = step(&r, err);
    if (st) {
        pd_comm_abort(r.grid.comm);
        pd_zero_sync(r.zero);
    }
    pd_zero_free(r.zero);
    pd_math_free(near);
    pd_arena_free(workspace);
    pd_arena_free(arena);
    pd_grid_deinit(&r.grid);
    comm->ops = ops;
    return st;
}

/* ---- every layout ---- */

static struct pd_model *model_new(uint32_t turn)
{
    const struct pd_model_config config = {.family = turn % 3 == 2 ? PD_FAMILY_GPT2 : PD_FAMILY_LLAMA,
                                           .vocab = 67,
                                           .context = 16,
                                           .layers = LAYERS,
                                           .hidden = 24,
                                           .heads = 6,
                                           .kv_heads = turn % 3 == 2 ? 6 : 1 + turn % 2 * 2,
                                           .head_size = 4,
                                           .ffn = 37,
                                           .qkv_bias = turn % 4 == 1,
                                           .tie_embeddings = turn % 3 == 2 || turn % 2 == 0};
    struct pd_model *model;
    struct pd_error err;
    cr_assert_eq(pd_model_new(&config, &model, &err), PD_OK, "%s", err.message);
    return model;
}

static void cut_stages(struct pd_layout *l, uint32_t units)
{
    l->stage_count = l->pp * l->interleave;
    for (uint32_t s = 0; s < l->stage_count; s++)
        l->first_unit[s] = (uint16_t)(s * units / l->stage_count);
}

static void try(struct pd_layout layout, uint32_t turn)
{
    struct pd_model *model = model_new(turn);
    struct pd_error err;
    layout.small_bytes = turn % 2 ? 512 : 4096;
    layout.virtual_tp = layout.tp * (1u << turn % 3);
    layout.virtual_sp = layout.sp * (1u << turn / 2 % 2);
    layout.interleave = layout.pp == 2 && turn % 3 == 1 ? 2 : 1;
    cut_stages(&layout, model->unit_count);
    const uint32_t micro_batches = turn % 7 == 3 && layout.dp == 1 ? 1 : layout.dp > 5 ? MICRO_BATCHES : 5;
    const uint32_t lanes = turn % 3 == 0 ? micro_batches : turn % 3 == 1 ? layout.dp : (layout.dp + micro_batches) / 2;
    struct job job = {layout,
                      {.micro_batches = micro_batches,
                       .lanes = lanes,
                       .tokens = 1u << TOKENS_LOG,
                       .narrow_terms = turn / 3 % 2,
                       .by_lane = turn % 4 < 2,
                       .by_layers = layout.pp == 1 && turn % 6 == 0,
                       .compute = turn / 2 % 2 ? PD_BF16 : PD_F32,
                       .adds_in_place = turn % 4 != 1},
                      model,
                      NULL};
    if (turn % 5 == 0) job.far = far_world_new(pd_layout_world(&layout));
    pd_status st = pd_comm_run_local(pd_layout_world(&layout), 1, run_rank, &job, &err);
    cr_assert_eq(st, PD_OK, "dp %u tp %u (of %u) pp %u sp %u (of %u), ZeRO-%u over %u, %u lanes, turn %u: %s", layout.dp,
                 layout.tp, layout.virtual_tp, layout.pp, layout.sp, layout.virtual_sp, layout.zero_stage, layout.zero_shard,
                 lanes, turn, err.message);
    if (job.far) far_world_free(job.far, pd_layout_world(&layout));
    pd_model_free(model);
}

/* Stages 0 and 2, or 1 and 3, one of them a share (helpers/scale.h), and groups of zero_shard ranks in turn; with
 * PERDURE_TEST_SCALE all of them. */
static void try_all(uint32_t dp, uint32_t tp, uint32_t pp, uint32_t sp)
{
    static uint32_t turn, parity;
    struct pd_layout layout = {.dp = dp, .tp = tp, .pp = pp, .sp = sp};
    const bool is_thorough = test_scale() >= 10;
    uint32_t shards[WORLD_MAX], count = 0;
    for (uint32_t shard = 1; shard <= dp * sp; shard++)
        if (dp * sp % shard == 0) shards[count++] = shard;
    parity = !parity;
    for (layout.zero_stage = is_thorough ? 0 : parity; layout.zero_stage < 4;
         layout.zero_stage += is_thorough ? 1 : 2, turn++)
        for (uint32_t i = 0; i < count; i++) {
            layout.zero_shard = shards[i];
            const bool is_chosen = i == (turn + turn / 4) % count && test_has_turn(turn, 2);
            if (is_chosen || is_thorough) try(layout, turn + i);
        }
}

Test(zero, every_layout_has_the_values_of_the_global_tensors)
{
    for (uint32_t dp = 1; dp <= WORLD_MAX; dp++)
        for (uint32_t tp = 1; dp * tp <= WORLD_MAX; tp *= 2)
            for (uint32_t pp = 1; dp * tp * pp <= WORLD_MAX && pp <= LAYERS; pp++)
                for (uint32_t sp = 1; dp * tp * pp * sp <= WORLD_MAX; sp *= 2)
                    try_all(dp, tp, pp, sp);
    cr_assert(gathers > 0 && others > 0);
}

/* Alone in its stage a rank may make its sums where they live: then it takes no memory for micro-batches. */
Test(zero, sums_in_place)
{
    for (uint32_t turn = 0; turn < 24; turn++) {
        const struct pd_layout layout = {
            .dp = 1, .tp = 1, .pp = 1 + turn % 3, .sp = 1, .zero_stage = turn % 4, .zero_shard = 1};
        try(layout, turn);
    }
}

/* Pieces are terms by themselves, of every micro-batch and however few lanes there are: sixteen of just less than a sixteenth of
 * the range are their sum, and what is larger is marked before a sum of them can wrap. */
Test(zero, pieces_of_few_lanes_stay_in_range)
{
    enum { PIECES_LOG = 2, MICRO_LOG = 2 };
    struct pd_model *model = model_new(1); /* not tied */
    for (uint32_t lanes = 1; lanes <= 1 << MICRO_LOG; lanes *= 2)
        for (int above = 0; above < 2; above++) {
            struct pd_error err = {0};
            struct pd_layout layout = {
                .dp = 1, .tp = 1, .pp = 1, .sp = 1, .virtual_tp = 1, .virtual_sp = 2, .interleave = 1, .zero_shard = 1};
            cut_stages(&layout, model->unit_count);
            struct job job = {
                layout, {.micro_batches = 1 << MICRO_LOG, .lanes = lanes, .tokens = 1u << TOKENS_LOG}, model, NULL};
            const int limit_log = 63 - PIECES_LOG - MICRO_LOG - (53 - TOKENS_LOG);
            all_parts = (float)(LOSS_SCALE * ldexp(above ? 1.5 : 0.75, limit_log));
            const pd_status st = pd_comm_run_local(1, 1, run_rank, &job, &err);
            cr_expect_eq(st, above ? PD_BUG : PD_OK, "%u lanes, above %d: %s", lanes, above, err.message);
            cr_expect(!above || strstr(err.message, "a tensor overflows"), "%s", err.message);
        }
    all_parts = 0;
    pd_model_free(model);
}
