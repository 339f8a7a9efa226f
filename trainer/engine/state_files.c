#include "trainer/engine/state_files.h"

#include "ckpt/shard/copy.h"
#include "offload/crossing.h"
#include "resharder/layout.h"

#include <stdlib.h>
#include <string.h>

struct pd_state_files {
    struct pd_vfs *vfs;
    struct pd_shard_box *boxes; /* (box_count) of this rank's shards, one stripe after the other */
    uint32_t box_count, stripes;
    uint32_t stripe_boxes[PD_LAYOUT_STRIPES_MAX];
    struct held {
        const struct pd_zero_box *box; /* the engine's, of which rows are stored there */
        uint64_t first;                /* element where they begin */
    } * held;                          /* (box_count) */
    bool *wanted;                      /* (tensors) of one load */
    struct pd_crossing *crossing;      /* on a GPU */
    struct pd_optimizer_store *store;
};

static const struct pd_zero_box *held_box(const struct pd_engine *e, uint32_t box)
{
    return e->files->held[box].box;
}

static uint64_t elements_of(const struct pd_engine *e, uint32_t box)
{
    return pd_box_elements(&e->files->boxes[box].box);
}

static const struct pd_zero_box *first_of_set(const struct pd_engine *e, uint32_t set)
{
    uint32_t first, end;
    pd_zero_set_boxes(e->zero, set, &first, &end);
    return &pd_zero_boxes(e->zero)[first];
}

/* Memory of a box that is held while there are no gradients; on a GPU the host's, of one set at a time. */
static float *passage_of(const struct pd_engine *e, const struct pd_zero_box *b)
{
    const uint32_t set = e->options.model->tensors.tensors[b->tensor].unit;
    if (!e->options.is_gpu) return pd_zero_gradient(e->zero) + b->gradient_offset;
    return e->far_passage + (b->gradient_offset - first_of_set(e, set)->gradient_offset);
}

static float *passage(const struct pd_engine *e, uint32_t box)
{
    return passage_of(e, held_box(e, box)) + e->files->held[box].first;
}

/* ---- life ---- */

/* Of a stored box, in the box of that number that this rank owns: rows of the same width. */
static uint64_t first_element(const struct pd_engine *e, const struct pd_shard_box *box, uint32_t number)
{
    struct pd_box owned[PD_LAYOUT_CHUNKS_MAX];
    const struct pd_tensor *tensor = &e->options.model->tensors.tensors[box->tensor];
    const uint32_t count =
        pd_layout_owned_boxes(&e->grid.layout, tensor, box->tensor, e->options.rank, owned, PD_LAYOUT_CHUNKS_MAX);
    PD_CHECK(number < count && owned[number].start[1] == box->box.start[1]);
    return pd_box_offset(&owned[number], &box->box);
}

static pd_status find_held(struct pd_engine *e, struct pd_error *err)
{
    struct pd_state_files *f = e->files;
    f->held = calloc(f->box_count + 1ull, sizeof *f->held);
    if (!f->held) PD_FAIL(err, PD_NO_MEMORY, "no memory for %u boxes", f->box_count);
    for (uint32_t b = 0, number = 0; b < f->box_count; b++) {
        const struct pd_shard_box *box = &f->boxes[b];
        const bool is_first = b == 0 || box[-1].tensor != box->tensor || box[-1].kind != box->kind;
        number = is_first ? 0 : number + 1;
        f->held[b] = (struct held){pd_engine_owned_box(e, box->tensor, number), first_element(e, box, number)};
    }
    return PD_OK;
}

static uint64_t copy_bytes(const struct pd_engine *e)
{
    return pd_dtype_bytes(e->options.config->numerics.precision);
}

static pd_status open_crossing(struct pd_engine *e, struct pd_error *err)
{
    struct pd_rank_device *device = e->options.device;
    struct pd_crossing_options options = {.dev = device->dev,
                                          .compute = device->compute,
                                          .extent_elements = pd_optimizer_store_extent_elements(e->io_bytes),
                                          .copy_bytes = copy_bytes(e),
                                          .buffers = e->far_buffers,
                                          .spans = device->spans};
    PD_TRY(pd_rank_device_stream(device, PD_STREAM_OPTIMIZER_IN, &options.copies_in, err));
    PD_TRY(pd_rank_device_stream(device, PD_STREAM_OPTIMIZER_OUT, &options.copies_out, err));
    return pd_crossing_new(&options, &e->files->crossing, err);
}

static pd_status open_files(struct pd_engine *e, struct pd_vfs *vfs, struct pd_store *store, struct pd_error *err)
{
    struct pd_state_files *f = e->files;
    const struct pd_tensor_table *tensors = &e->options.model->tensors;
    f->stripes = pd_layout_stripes(&e->grid.layout);
    PD_TRY(pd_layout_rank_boxes(&e->grid.layout, tensors, e->options.rank, &f->boxes, &f->box_count, f->stripe_boxes, err));
    PD_TRY(find_held(e, err));
    f->wanted = calloc(tensors->count, sizeof *f->wanted);
    if (!f->wanted) PD_FAIL(err, PD_NO_MEMORY, "no memory for %u tensors", tensors->count);
    struct pd_optimizer_store_options options = {.vfs = vfs,
                                                 .store = store,
                                                 .tensors = tensors,
                                                 .boxes = f->boxes,
                                                 .box_count = f->box_count,
                                                 .rank = e->options.rank,
                                                 .pool = e->pool,
                                                 .isa = e->math->isa,
                                                 .buffers = e->io_buffers,
                                                 .buffer_bytes = e->io_bytes,
                                                 .kept = e->kept_state,
                                                 .kept_bytes = e->kept_bytes};
    options.stripes = f->stripes;
    memcpy(options.stripe_boxes, f->stripe_boxes, sizeof options.stripe_boxes);
    if (e->options.is_gpu) PD_TRY(open_crossing(e, err));
    return pd_optimizer_store_new(&options, &f->store, err);
}

pd_status pd_state_files_open(struct pd_engine *e, struct pd_vfs *vfs, struct pd_store *store, struct pd_error *err)
{
    PD_CHECK(!e->files);
    e->files = calloc(1, sizeof *e->files);
    if (!e->files) PD_FAIL(err, PD_NO_MEMORY, "no memory for optimizer state in files");
    e->files->vfs = vfs;
    pd_status st = open_files(e, vfs, store, err);
    if (st) pd_state_files_close(e);
    return st;
}

void pd_state_files_close(struct pd_engine *e)
{
    if (!e || !e->files) return;
    pd_optimizer_store_free(e->files->store);
    pd_crossing_free(e->files->crossing);
    free(e->files->wanted);
    free(e->files->boxes);
    free(e->files->held);
    free(e->files);
    e->files = NULL;
}

pd_status pd_state_files_plan(const struct pd_engine *e, uint64_t *ret_heap_bytes, struct pd_error *err)
{
    const struct pd_tensor_table *tensors = &e->options.model->tensors;
    const struct pd_state_files *f = NULL;
    struct pd_shard_box *boxes;
    uint32_t count, counts[PD_LAYOUT_STRIPES_MAX], begin = 0;
    *ret_heap_bytes = 0;
    if (e->options.config->offload.optimizer != PD_PLACE_NVME) return PD_OK;
    PD_TRY(pd_layout_rank_boxes(&e->grid.layout, tensors, e->options.rank, &boxes, &count, counts, err));
    *ret_heap_bytes = sizeof *f + (count + 1ull) * (sizeof *f->boxes + sizeof *f->held) + tensors->count * sizeof *f->wanted;
    for (uint32_t s = 0; s < pd_layout_stripes(&e->grid.layout); begin += counts[s++])
        *ret_heap_bytes += pd_optimizer_store_most_bytes(tensors, boxes + begin, counts[s], e->io_bytes);
    free(boxes);
    return PD_OK;
}

static pd_status take_kept(struct pd_engine *e, struct pd_arena *arena, struct pd_error *err)
{
    const struct pd_config *c = e->options.config;
    const struct pd_tensor_table *tensors = &e->options.model->tensors;
    struct pd_shard_box *boxes;
    uint32_t count, counts[PD_LAYOUT_STRIPES_MAX];
    if (!c->offload.optimizer_budget) return PD_OK;
    PD_TRY(pd_layout_rank_boxes(&e->grid.layout, tensors, e->options.rank, &boxes, &count, counts, err));
    pd_status st = pd_optimizer_store_kept_bytes(tensors, boxes, count, pd_layout_stripes(&e->grid.layout),
                                                 c->offload.optimizer_budget, &e->kept_bytes, err);
    free(boxes);
    if (!st && e->kept_bytes) e->kept_state = pd_arena_take_host(arena, PD_MEMORY_OPTIMIZER, e->kept_bytes);
    return st;
}

static uint64_t largest_set(const struct pd_engine *e)
{
    uint64_t most = 0;
    for (uint32_t set = 0; set < pd_zero_set_count(e->zero); set++) {
        uint32_t first, end;
        pd_zero_set_boxes(e->zero, set, &first, &end);
        if (first == end) continue;
        const struct pd_zero_box *last = &pd_zero_boxes(e->zero)[end - 1];
        const uint64_t elements = last->gradient_offset + last->elements - first_of_set(e, set)->gradient_offset;
        if (elements > most) most = elements;
    }
    return most;
}

pd_status pd_state_files_take(struct pd_engine *e, struct pd_arena *arena, struct pd_error *err)
{
    if (e->options.config->offload.optimizer != PD_PLACE_NVME) return PD_OK;
    PD_TRY(take_kept(e, arena, err));
    if (!e->options.is_gpu) return PD_OK;
    const uint64_t crossing = pd_crossing_bytes(pd_optimizer_store_extent_elements(e->io_bytes), copy_bytes(e));
    e->far_passage = pd_arena_take_host(arena, PD_MEMORY_OPTIMIZER, largest_set(e) * sizeof *e->far_passage);
    e->far_buffers = pd_arena_take_host(arena, PD_MEMORY_BUFFERS, crossing);
    return PD_OK;
}

uint64_t pd_state_files_file_bytes(const struct pd_engine *e, uint32_t stripe)
{
    return pd_optimizer_store_file_bytes(e->files->store, stripe);
}

struct pd_optimizer_store *pd_state_files_store(struct pd_engine *e)
{
    return e->files->store;
}

/* ---- filling: sets whose gradients have a place in memory at the same time ---- */

struct sets {
    uint32_t begin, end;
};

/* Where sums of blocks are in files, two blocks have a place; on a GPU one set has. */
static struct sets first_sets(const struct pd_engine *e)
{
    const uint32_t all = pd_zero_set_count(e->zero);
    return (struct sets){0, e->options.is_gpu || e->options.config->offload.gradients == PD_PLACE_NVME ? 1 : all};
}

static struct sets next_sets(const struct pd_engine *e, struct sets sets)
{
    const uint32_t all = pd_zero_set_count(e->zero), end = sets.end + 2 < all ? sets.end + 2 : all - 1;
    if (e->options.is_gpu) return (struct sets){sets.end, sets.end < all ? sets.end + 1 : all};
    return (struct sets){sets.end, sets.end + 1 < all ? end : all};
}

static uint32_t unit_of(const struct pd_engine *e, uint32_t box)
{
    return e->options.model->tensors.tensors[e->files->boxes[box].tensor].unit;
}

static bool is_in(const struct pd_engine *e, struct sets sets, uint32_t box)
{
    return unit_of(e, box) >= sets.begin && unit_of(e, box) < sets.end;
}

/* On a GPU by way of the device's gradients, of which there are none yet. */
static pd_status put_parameters(struct pd_engine *e, uint32_t held, struct pd_error *err)
{
    const struct pd_zero_box *b = &pd_zero_boxes(e->zero)[held];
    float *there = pd_zero_gradient(e->zero) + b->gradient_offset;
    if (e->options.is_gpu) PD_TRY(pd_math_copy(e->math, there, passage_of(e, b), b->elements * sizeof *there, err));
    return pd_zero_put_parameters(e->zero, held, there, err);
}

/* One kind of the sets' boxes from their passage into the file; of parameters also the working copy. */
static pd_status put_kind(struct pd_engine *e, struct sets sets, enum pd_kind kind, struct pd_error *err)
{
    struct pd_state_files *f = e->files;
    for (uint32_t b = 0; b < f->box_count; b++) {
        if (f->boxes[b].kind != kind || !is_in(e, sets, b)) continue;
        const uint32_t held = (uint32_t)(held_box(e, b) - pd_zero_boxes(e->zero));
        PD_TRY(pd_optimizer_store_put(f->store, b, 0, passage(e, b), elements_of(e, b), err));
        if (kind == PD_PARAM && !f->held[b].first) /* once, of all stripes */
            PD_TRY(put_parameters(e, held, err));
    }
    return e->options.is_gpu ? pd_math_sync(e->math, err) : PD_OK; /* the passage is somebody else's next */
}

struct init_job {
    struct pd_engine *engine;
    struct sets sets;
    enum pd_kind kind;
};

static void init_box(void *context, uint64_t index)
{
    const struct init_job *job = context;
    struct pd_engine *e = job->engine;
    const uint32_t box = (uint32_t)index;
    const struct pd_shard_box *b = &e->files->boxes[box];
    if (b->kind != job->kind || !is_in(e, job->sets, box)) return;
    if (b->kind == PD_PARAM)
        pd_model_init_box(e->options.model, b->tensor, &b->box, e->options.config->run.seed, passage(e, box));
    else
        memset(passage(e, box), 0, elements_of(e, box) * sizeof(float));
}

static pd_status init_sets(struct pd_engine *e, struct sets sets, struct pd_error *err)
{
    for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
        struct init_job job = {e, sets, (enum pd_kind)kind};
        pd_parallel(e->pool, e->files->box_count, init_box, &job);
        PD_TRY(put_kind(e, sets, (enum pd_kind)kind, err));
    }
    return PD_OK;
}

pd_status pd_state_files_init(struct pd_engine *e, const struct pd_identity *identity, struct pd_error *err)
{
    PD_TRY(pd_optimizer_store_begin(e->files->store, identity, err));
    for (struct sets sets = first_sets(e); sets.begin < sets.end; sets = next_sets(e, sets))
        PD_TRY(init_sets(e, sets, err));
    PD_TRY(pd_optimizer_store_end(e->files->store, err));
    return pd_zero_updated(e->zero, err);
}

static void *destination(void *context, uint32_t tensor, enum pd_kind kind, uint32_t box)
{
    struct pd_engine *e = context;
    (void)kind;
    return passage_of(e, pd_engine_owned_box(e, tensor, box));
}

static pd_status load_sets(struct pd_engine *e, struct pd_vfs *vfs, struct pd_group *group, struct pd_load_request *request,
                           struct sets sets, struct pd_load_report *report, struct pd_error *err)
{
    const struct pd_tensor_table *tensors = &e->options.model->tensors;
    for (uint32_t t = 0; t < tensors->count; t++)
        e->files->wanted[t] = tensors->tensors[t].unit >= sets.begin && tensors->tensors[t].unit < sets.end;
    for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
        struct pd_load_report one;
        request->kinds = 1u << kind;
        PD_TRY(pd_load(vfs, group, request, &one, err));
        report->bytes_read += one.bytes_read;
        report->bytes_wanted += one.bytes_wanted;
        report->rounds += one.rounds;
        PD_TRY(pd_group_agree(group, put_kind(e, sets, (enum pd_kind)kind, err), err));
    }
    return PD_OK;
}

pd_status pd_state_files_load(struct pd_engine *e, struct pd_vfs *vfs, struct pd_group *group,
                              struct pd_load_request *request, const struct pd_identity *identity,
                              struct pd_load_report *ret_report, struct pd_error *err)
{
    *ret_report = (struct pd_load_report){0};
    request->tensor_wanted = e->files->wanted;
    request->destination = destination;
    request->context = e;
    PD_TRY(pd_group_agree(group, pd_optimizer_store_begin(e->files->store, identity, err), err));
    for (struct sets sets = first_sets(e); sets.begin < sets.end; sets = next_sets(e, sets))
        PD_TRY(load_sets(e, vfs, group, request, sets, ret_report, err));
    PD_TRY(pd_group_agree(group, pd_optimizer_store_end(e->files->store, err), err));
    return pd_zero_updated(e->zero, err);
}

/* ---- updating ---- */

/* Where gradient and copy of a box are, from one of its elements on. */
static pd_status find(struct pd_engine *e, uint32_t box, uint64_t first, const float **ret_gradient, void **ret_copy,
                      struct pd_error *err)
{
    const uint32_t held = (uint32_t)(held_box(e, box) - pd_zero_boxes(e->zero));
    PD_TRY(pd_zero_update_box(e->zero, held, ret_gradient, ret_copy, err));
    first += e->files->held[box].first;
    *ret_gradient += first;
    *ret_copy = (char *)*ret_copy + first * copy_bytes(e);
    return PD_OK;
}

static pd_status meet(void *context, uint32_t box, uint64_t first, uint64_t n, const float **ret_gradient, void **ret_copy,
                      struct pd_error *err)
{
    (void)n;
    return find(context, box, first, ret_gradient, ret_copy, err);
}

static pd_status meet_far(void *context, uint32_t box, uint64_t first, uint64_t n, const float **ret_gradient,
                          void **ret_copy, struct pd_error *err)
{
    struct pd_engine *e = context;
    const float *gradient;
    void *copy;
    PD_TRY(find(e, box, first, &gradient, &copy, err));
    return pd_crossing_meet(e->files->crossing, gradient, copy, n, ret_gradient, ret_copy, err);
}

static pd_status expect_far(void *context, uint32_t box, uint64_t first, uint64_t n, bool begins, struct pd_error *err)
{
    struct pd_engine *e = context;
    const float *gradient;
    void *copy;
    PD_TRY(find(e, box, first, &gradient, &copy, err));
    return pd_crossing_expect(e->files->crossing, gradient, copy, n, begins, err);
}

static pd_status leave_far(void *context, struct pd_error *err)
{
    const struct pd_engine *e = context;
    return pd_crossing_leave(e->files->crossing, err);
}

pd_status pd_state_files_update_begin(struct pd_engine *e, struct pd_error *err)
{
    const struct pd_config *c = e->options.config;
    const struct pd_optimizer_store_step step = {.identity = e->next_identity,
                                                 .copy_dtype = c->numerics.precision,
                                                 .context = e,
                                                 .by_unit = pd_blocks_leave_device(&e->options),
                                                 .meet = e->options.is_gpu ? meet_far : meet,
                                                 .expect = e->options.is_gpu ? expect_far : NULL,
                                                 .left = e->options.is_gpu ? leave_far : NULL};
    return pd_optimizer_store_update_begin(e->files->store, &step, err);
}

pd_status pd_state_files_update(struct pd_engine *e, const struct pd_adam_step *adam, struct pd_error *err)
{
    struct pd_crossing *crossing = e->files->crossing;
    PD_TRY(pd_zero_update_begin(e->zero, err));
    if (crossing) PD_TRY(pd_crossing_begin(crossing, err));
    PD_TRY(pd_optimizer_store_update_end(e->files->store, adam, NULL, err));
    if (crossing) PD_TRY(pd_crossing_end(crossing, err));
    PD_TRY(pd_zero_update_end(e->zero, err));
    return pd_zero_updated(e->zero, err);
}

void pd_state_files_update_abandon(struct pd_engine *e)
{
    pd_optimizer_store_update_abandon(e->files->store);
}

pd_status pd_state_files_complete(struct pd_engine *e, const struct pd_identity *identity, struct pd_error *err)
{
    struct pd_optimizer_store *store = e->files->store;
    if (memcmp(pd_optimizer_store_identity(store), identity, sizeof *identity) != 0) {
        const struct pd_optimizer_store_step same = {.identity = *identity};
        PD_TRY(pd_optimizer_store_update(store, &same, NULL, err));
    }
    return pd_optimizer_store_complete(store, err);
}

pd_status pd_state_files_finish(struct pd_engine *e, struct pd_shard_summary *ret_summaries, uint32_t *ret_slots,
                                struct pd_error *err)
{
    return pd_optimizer_store_finish(e->files->store, ret_summaries, ret_slots, err);
}

pd_status pd_state_files_copy(const struct pd_engine *e, uint32_t stripe, const char *path,
                              const struct pd_identity *identity, struct pd_error *err)
{
    const struct pd_state_files *f = e->files;
    return pd_shard_copy(f->vfs, pd_optimizer_store_path(f->store, stripe), path, identity, e->io_buffers, e->io_bytes, err);
}
