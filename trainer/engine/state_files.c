/* Optimizer state in files (offload.optimizer: nvme): one generation per update (offload/optimizer_store.h). The working
 * copy and gradients are in memory; master and moments are boxes of a generation, the same boxes as in a rank's shard.
 * Initial or loaded state passes through the gradients' memory, still unused, one kind at a time.
 *
 * On a GPU gradients and working copies are in device memory. The host computes updates: gradients come out and copies go in
 * by extents (offload/staged_copy.h). Initial or loaded state passes bucket by bucket through host memory. */
#include "trainer/engine/state_files.h"

#include "ckpt/base/owner.h"
#include "ckpt/shard/copy.h"
#include "offload/optimizer_store.h"
#include "offload/staged_copy.h"
#include "resharder/layout.h"
#include "trainer/engine/state_internal.h"

#include <stdlib.h>
#include <string.h>

struct in_files {
    /* (ring_bytes) the store's ring, and windows of a load. Used by init, load and updates in turn, all on the rank's
     * thread; an update from begin until end. */
    void *ring;
    uint64_t ring_bytes;
    struct pd_owner ring_owner;
    bool is_updating; /* the update has it */
    void *kept;       /* (kept_bytes) state kept in memory beside its file by offload.optimizer_budget; NULL: none */
    uint64_t kept_bytes;
    float *bounce;      /* on a GPU: a bucket that is made or loaded, between files and device; the rank's thread alone */
    void *staged_bytes; /* on a GPU: buffers of the staged copies */

    struct pd_vfs *vfs;         /* from here on: while it is open */
    struct pd_shard_box *boxes; /* (box_count) of this rank's shard */
    uint32_t box_count;
    const struct pd_zero_box **held; /* (box_count) of pd_zero: the rank's held part of each box */
    bool *wanted;                    /* (tensors) of one load */
    struct pd_staged_copy *staged;   /* on a GPU */
    struct pd_optimizer_store *store;
};

static struct in_files *own(const struct pd_state *s)
{
    return s->own;
}

static const struct pd_zero_box *held_box(const struct pd_state *s, uint32_t box)
{
    return own(s)->held[box];
}

static uint64_t elements_of(const struct pd_state *s, uint32_t box)
{
    return pd_box_elements(&own(s)->boxes[box].box);
}

static const struct pd_zero_box *first_of_bucket(const struct pd_state *s, uint32_t bucket)
{
    const struct pd_zero_held *held = pd_zero_held(s->engine->zero);
    return &held->boxes[held->first_box[bucket]];
}

/* Memory for a held box while there are no gradients; on a GPU host memory, for one bucket at a time. */
static float *bounce_of(const struct pd_state *s, const struct pd_zero_box *b)
{
    const uint32_t bucket = s->engine->options.model->tensors.tensors[b->tensor].unit;
    if (!s->engine->options.is_gpu) return pd_zero_held(s->engine->zero)->gradient + b->gradient_offset;
    return own(s)->bounce + (b->gradient_offset - first_of_bucket(s, bucket)->gradient_offset);
}

static uint32_t state_files_element_bytes(const struct pd_state *s, enum pd_kind kind)
{
    return pd_zero_element_bytes(pd_zero_held(s->engine->zero), kind);
}

static void *bounce_box(const struct pd_state *s, uint32_t box)
{
    return bounce_of(s, held_box(s, box));
}

/* ---- memory ---- */

static pd_status rank_boxes(const struct pd_state *s, struct pd_shard_box **ret_boxes, uint32_t *ret_count,
                            struct pd_error *err)
{
    return pd_layout_shard_boxes(&s->engine->grid.layout, &s->engine->options.model->tensors, s->engine->options.rank,
                                 ret_boxes, ret_count, err);
}

/* Computes the most heap used while it is open. */
static uint64_t heap_bytes(const struct pd_state *s, const struct pd_shard_box *boxes, uint32_t count)
{
    const struct pd_tensor_table *tensors = &s->engine->options.model->tensors;
    const struct in_files *f = own(s);
    return pd_optimizer_store_most_bytes(tensors, boxes, count, f->ring_bytes) + sizeof *f +
           (count + 1ull) * (sizeof *f->boxes + sizeof *f->held) + tensors->count * sizeof *f->wanted;
}

static pd_status take_kept(struct pd_state *s, struct pd_arena *arena, const struct pd_shard_box *boxes, uint32_t count,
                           struct pd_error *err)
{
    const uint64_t budget = s->engine->options.config->offload.optimizer_budget;
    struct in_files *f = own(s);
    if (!budget) return PD_OK;
    PD_TRY(pd_optimizer_store_kept_bytes(&s->engine->options.model->tensors, boxes, count, budget, &f->kept_bytes, err));
    if (f->kept_bytes) f->kept = pd_arena_take_host(arena, PD_MEMORY_OPTIMIZER, f->kept_bytes);
    return PD_OK;
}

static uint64_t largest_bucket(const struct pd_state *s)
{
    const struct pd_zero_held *held = pd_zero_held(s->engine->zero);
    uint64_t most = 0;
    for (uint32_t bucket = 0; bucket < held->bucket_count; bucket++) {
        if (held->first_box[bucket] == held->first_box[bucket + 1]) continue;
        const struct pd_zero_box *last = &held->boxes[held->first_box[bucket + 1] - 1];
        const uint64_t elements = last->gradient_offset + last->elements - first_of_bucket(s, bucket)->gradient_offset;
        if (elements > most) most = elements;
    }
    return most;
}

static uint64_t copy_bytes(const struct pd_state *s)
{
    return pd_dtype_bytes(s->engine->options.config->numerics.precision);
}

static void take_staged(struct pd_state *s, struct pd_arena *arena)
{
    struct in_files *f = own(s);
    const uint64_t staged = pd_staged_copy_bytes(
        pd_optimizer_store_extent_elements(f->ring_bytes, pd_zero_held(s->engine->zero)->moments), copy_bytes(s));
    f->bounce = pd_arena_take_host(arena, PD_MEMORY_OPTIMIZER, largest_bucket(s) * sizeof *f->bounce);
    f->staged_bytes = pd_arena_take_host(arena, PD_MEMORY_BUFFERS, staged);
}

static pd_status state_files_take(struct pd_state *s, struct pd_arena *arena, struct pd_error *err)
{
    struct in_files *f = s->own = calloc(1, sizeof *f);
    struct pd_shard_box *boxes;
    uint32_t count;
    if (!f) PD_FAIL(err, PD_NO_MEMORY, "no memory for optimizer state in files");
    f->ring_bytes = s->engine->options.config->offload.buffer_bytes / PD_ARENA_ALIGN * PD_ARENA_ALIGN;
    f->ring = pd_arena_take_host(arena, PD_MEMORY_BUFFERS, f->ring_bytes);
    if (s->engine->options.is_gpu) take_staged(s, arena);
    PD_TRY(rank_boxes(s, &boxes, &count, err));
    pd_arena_note(arena, PD_MEMORY_OPTIMIZER, heap_bytes(s, boxes, count));
    const pd_status st = take_kept(s, arena, boxes, count, err);
    free(boxes);
    return st;
}

static void free_own(struct pd_state *s)
{
    free(s->own);
}

uint64_t pd_state_files_kept_bytes(const struct pd_state *s)
{
    return own(s)->kept_bytes;
}

uint64_t pd_state_files_file_bytes(const struct pd_state *s)
{
    return pd_optimizer_store_file_bytes(own(s)->store);
}

struct pd_optimizer_store *pd_state_files_store(struct pd_state *s)
{
    return own(s)->store;
}

/* ---- life ---- */

static pd_status find_held(struct pd_state *s, struct pd_error *err)
{
    struct in_files *f = own(s);
    f->held = calloc(f->box_count + 1ull, sizeof *f->held);
    if (!f->held) PD_FAIL(err, PD_NO_MEMORY, "no memory for %u boxes", f->box_count);
    for (uint32_t b = 0, number = 0; b < f->box_count; b++) {
        const struct pd_shard_box *box = &f->boxes[b];
        const bool is_first = b == 0 || box[-1].tensor != box->tensor || box[-1].kind != box->kind;
        number = is_first ? 0 : number + 1;
        f->held[b] = pd_state_owned_box(s, box->tensor, number);
    }
    return PD_OK;
}

static pd_status open_staged(struct pd_state *s, struct pd_error *err)
{
    struct pd_rank_device *device = s->engine->options.device;
    struct pd_staged_copy_options options = {
        .dev = device->dev,
        .compute = device->compute,
        .extent_elements = pd_optimizer_store_extent_elements(own(s)->ring_bytes, pd_zero_held(s->engine->zero)->moments),
        .copy_bytes = copy_bytes(s),
        .buffers = own(s)->staged_bytes,
        .spans = device->spans};
    PD_TRY(pd_rank_device_stream(device, PD_STREAM_OPTIMIZER_IN, &options.copies_in, err));
    PD_TRY(pd_rank_device_stream(device, PD_STREAM_OPTIMIZER_OUT, &options.copies_out, err));
    return pd_staged_copy_new(&options, &own(s)->staged, err);
}

static pd_status open_files(struct pd_state *s, struct pd_vfs *vfs, struct pd_store *store, struct pd_error *err)
{
    struct in_files *f = own(s);
    const struct pd_tensor_table *tensors = &s->engine->options.model->tensors;
    PD_TRY(rank_boxes(s, &f->boxes, &f->box_count, err));
    PD_TRY(find_held(s, err));
    f->wanted = calloc(tensors->count, sizeof *f->wanted);
    if (!f->wanted) PD_FAIL(err, PD_NO_MEMORY, "no memory for %u tensors", tensors->count);
    struct pd_optimizer_store_options options = {.vfs = vfs,
                                                 .store = store,
                                                 .tensors = tensors,
                                                 .boxes = f->boxes,
                                                 .box_count = f->box_count,
                                                 .rank = s->engine->options.rank,
                                                 .pool = s->engine->pool,
                                                 .isa = s->engine->math->isa,
                                                 .buffers = f->ring,
                                                 .buffer_bytes = f->ring_bytes,
                                                 .kept = f->kept,
                                                 .kept_bytes = f->kept_bytes};
    if (s->engine->options.is_gpu) PD_TRY(open_staged(s, err));
    return pd_optimizer_store_new(&options, &f->store, err);
}

static void close_files(struct pd_state *s)
{
    struct in_files *f = own(s);
    if (!f) return;
    pd_optimizer_store_free(f->store);
    pd_staged_copy_free(f->staged);
    free(f->wanted);
    free(f->boxes);
    free(f->held);
    f->store = NULL;
    f->staged = NULL;
    f->wanted = NULL;
    f->boxes = NULL;
    f->held = NULL;
}

static pd_status open_state(struct pd_state *s, struct pd_vfs *vfs, struct pd_store *store, struct pd_error *err)
{
    PD_CHECK(!own(s)->store);
    own(s)->vfs = vfs;
    const pd_status st = open_files(s, vfs, store, err);
    if (st) close_files(s);
    return st;
}

/* ---- filling: buckets whose gradients are in memory at the same time ---- */

struct buckets {
    uint32_t begin, end;
};

/* If blocks' sums are in files, two blocks have buffers; on a GPU one bucket. */
static struct buckets first_buckets(const struct pd_state *s)
{
    const uint32_t all = pd_zero_held(s->engine->zero)->bucket_count;
    return (struct buckets){
        0, s->engine->options.is_gpu || s->engine->options.config->offload.gradients == PD_PLACE_NVME ? 1 : all};
}

static struct buckets next_buckets(const struct pd_state *s, struct buckets buckets)
{
    const uint32_t all = pd_zero_held(s->engine->zero)->bucket_count,
                   state_files_end = buckets.end + 2 < all ? buckets.end + 2 : all - 1;
    if (s->engine->options.is_gpu) return (struct buckets){buckets.end, buckets.end < all ? buckets.end + 1 : all};
    return (struct buckets){buckets.end, buckets.end + 1 < all ? state_files_end : all};
}

static uint32_t unit_of(const struct pd_state *s, uint32_t box)
{
    return s->engine->options.model->tensors.tensors[own(s)->boxes[box].tensor].unit;
}

static bool is_in(const struct pd_state *s, struct buckets buckets, uint32_t box)
{
    return unit_of(s, box) >= buckets.begin && unit_of(s, box) < buckets.end;
}

/* On a GPU through the device's gradients, still unused. */
static pd_status put_parameters(struct pd_state *s, uint32_t held, struct pd_error *err)
{
    const struct pd_zero_box *b = &pd_zero_held(s->engine->zero)->boxes[held];
    float *there = pd_zero_held(s->engine->zero)->gradient + b->gradient_offset;
    if (s->engine->options.is_gpu)
        PD_TRY(pd_math_copy(s->engine->math, there, bounce_of(s, b), b->elements * sizeof *there, err));
    return pd_zero_put_parameters(s->engine->zero, held, there, err);
}

/* Writes one kind of the buckets' boxes from their buffer to the file; for parameters also the working copy. */
static pd_status put_kind(struct pd_state *s, struct buckets buckets, enum pd_kind kind, struct pd_error *err)
{
    struct in_files *f = own(s);
    for (uint32_t b = 0; b < f->box_count; b++) {
        if (f->boxes[b].kind != kind || !is_in(s, buckets, b)) continue;
        const uint32_t held = (uint32_t)(held_box(s, b) - pd_zero_held(s->engine->zero)->boxes);
        PD_TRY(pd_optimizer_store_put(f->store, b, 0, bounce_box(s, b), elements_of(s, b), err));
        if (kind == PD_PARAM) PD_TRY(put_parameters(s, held, err));
    }
    return s->engine->options.is_gpu ? pd_math_sync(s->engine->math, err) : PD_OK; /* the buffer is reused next */
}

struct init_job {
    struct pd_state *state;
    struct buckets buckets;
    enum pd_kind kind;
};

static void init_box(void *context, uint64_t index)
{
    const struct init_job *job = context;
    struct pd_state *s = job->state;
    const uint32_t box = (uint32_t)index;
    const struct pd_shard_box *b = &own(s)->boxes[box];
    if (b->kind != job->kind || !is_in(s, job->buckets, box)) return;
    if (pd_kinds[b->kind].initial == PD_INITIAL_MODEL)
        pd_model_init_box(s->engine->options.model, b->tensor, &b->box, s->engine->options.config->run.seed,
                          bounce_box(s, box));
    else
        memset(bounce_box(s, box), 0, elements_of(s, box) * state_files_element_bytes(s, b->kind));
}

static pd_status init_files(struct pd_state *s, const struct pd_identity *identity, struct pd_error *err)
{
    PD_TRY(pd_optimizer_store_begin(own(s)->store, identity, err));
    for (struct buckets buckets = first_buckets(s); buckets.begin < buckets.end; buckets = next_buckets(s, buckets)) {
        for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
            struct init_job job = {s, buckets, (enum pd_kind)kind};
            pd_parallel(s->engine->pool, own(s)->box_count, init_box, &job);
            PD_TRY(put_kind(s, buckets, (enum pd_kind)kind, err));
        }
    }
    PD_TRY(pd_optimizer_store_end(own(s)->store, err));
    return pd_zero_updated(s->engine->zero, err);
}

static pd_status init(struct pd_state *s, const struct pd_identity *identity, struct pd_error *err)
{
    pd_owner_acquire(&own(s)->ring_owner, "initial state");
    const pd_status st = init_files(s, identity, err);
    pd_owner_release(&own(s)->ring_owner, "initial state");
    return st;
}

static void *destination(void *context, uint32_t tensor, enum pd_kind kind, uint32_t box)
{
    struct pd_state *s = context;
    (void)kind;
    return bounce_of(s, pd_state_owned_box(s, tensor, box));
}

static pd_status load_buckets(struct pd_state *s, struct pd_vfs *vfs, struct pd_group *group,
                              struct pd_load_request *request, struct buckets buckets, struct pd_load_report *report,
                              struct pd_error *err)
{
    const struct pd_tensor_table *tensors = &s->engine->options.model->tensors;
    for (uint32_t t = 0; t < tensors->count; t++)
        own(s)->wanted[t] = tensors->tensors[t].unit >= buckets.begin && tensors->tensors[t].unit < buckets.end;
    for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
        struct pd_load_report one;
        request->kinds = 1u << kind;
        PD_TRY(pd_load(vfs, group, request, &one, err));
        report->bytes_read += one.bytes_read;
        report->bytes_wanted += one.bytes_wanted;
        report->rounds += one.rounds;
        PD_TRY(pd_group_agree(group, put_kind(s, buckets, (enum pd_kind)kind, err), err));
    }
    return PD_OK;
}

static pd_status load_files(struct pd_state *s, struct pd_vfs *vfs, struct pd_group *group, struct pd_load_request *request,
                            const struct pd_identity *identity, struct pd_load_report *ret_report, struct pd_error *err)
{
    PD_TRY(pd_group_agree(group, pd_optimizer_store_begin(own(s)->store, identity, err), err));
    for (struct buckets buckets = first_buckets(s); buckets.begin < buckets.end; buckets = next_buckets(s, buckets))
        PD_TRY(load_buckets(s, vfs, group, request, buckets, ret_report, err));
    PD_TRY(pd_group_agree(group, pd_optimizer_store_end(own(s)->store, err), err));
    return pd_zero_updated(s->engine->zero, err);
}

static pd_status state_files_load(struct pd_state *s, struct pd_vfs *vfs, struct pd_group *group,
                                  struct pd_load_request *request, const struct pd_identity *identity,
                                  struct pd_load_report *ret_report, struct pd_error *err)
{
    *ret_report = (struct pd_load_report){0};
    request->tensor_wanted = own(s)->wanted;
    request->destination = destination;
    request->context = s;
    request->buffers = own(s)->ring;
    request->buffer_bytes = own(s)->ring_bytes;
    pd_owner_acquire(&own(s)->ring_owner, "load");
    const pd_status st = load_files(s, vfs, group, request, identity, ret_report, err);
    pd_owner_release(&own(s)->ring_owner, "load");
    return st;
}

/* ---- updating ---- */

/* Where gradient and copy of a box are, from a given element on. */
static pd_status state_files_find(struct pd_state *s, uint32_t box, uint64_t first, const float **ret_gradient,
                                  void **ret_copy, struct pd_error *err)
{
    const uint32_t held = (uint32_t)(held_box(s, box) - pd_zero_held(s->engine->zero)->boxes);
    PD_TRY(pd_zero_update_box(s->engine->zero, held, ret_gradient, ret_copy, err));
    *ret_gradient += first;
    *ret_copy = (char *)*ret_copy + first * copy_bytes(s);
    return PD_OK;
}

static pd_status meet(void *context, uint32_t box, uint64_t first, uint64_t n, const float **ret_gradient, void **ret_copy,
                      struct pd_error *err)
{
    (void)n;
    return state_files_find(context, box, first, ret_gradient, ret_copy, err);
}

static pd_status meet_device(void *context, uint32_t box, uint64_t first, uint64_t n, const float **ret_gradient,
                             void **ret_copy, struct pd_error *err)
{
    struct pd_state *s = context;
    const float *gradient;
    void *copy;
    PD_TRY(state_files_find(s, box, first, &gradient, &copy, err));
    return pd_staged_copy_meet(own(s)->staged, gradient, copy, n, ret_gradient, ret_copy, err);
}

static pd_status expect_device(void *context, uint32_t box, uint64_t first, uint64_t n, bool begins, struct pd_error *err)
{
    struct pd_state *s = context;
    const float *gradient;
    void *copy;
    PD_TRY(state_files_find(s, box, first, &gradient, &copy, err));
    return pd_staged_copy_expect(own(s)->staged, gradient, copy, n, begins, err);
}

static pd_status leave_device(void *context, struct pd_error *err)
{
    const struct pd_state *s = context;
    return pd_staged_copy_leave(own(s)->staged, err);
}

static void state_files_end(struct pd_state *s)
{
    pd_optimizer_store_update_abandon(own(s)->store);
    if (own(s)->is_updating) pd_owner_release(&own(s)->ring_owner, "update");
    own(s)->is_updating = false;
}

/* The first reads bucket out while sums end and their norm is made. */
static pd_status state_files_begin(struct pd_state *s, const struct pd_identity *next, const struct pd_before_update *before,
                                   struct pd_error *err)
{
    const bool is_gpu = s->engine->options.is_gpu;
    const struct pd_optimizer_store_step step = {.identity = *next,
                                                 .copy_dtype = s->engine->options.config->numerics.precision,
                                                 .context = s,
                                                 .by_unit = pd_blocks_leave_device(&s->engine->options),
                                                 .meet = is_gpu ? meet_device : meet,
                                                 .expect = is_gpu ? expect_device : NULL,
                                                 .left = is_gpu ? leave_device : NULL};
    pd_state_wait_for_readers(before);
    pd_owner_acquire(&own(s)->ring_owner, "update");
    own(s)->is_updating = true;
    const pd_status st = pd_optimizer_store_update_begin(own(s)->store, &step, err);
    if (st) state_files_end(s);
    return st;
}

static pd_status state_files_update(struct pd_state *s, const struct pd_update_step *step,
                                    const struct pd_before_update *before, struct pd_error *err)
{
    struct pd_staged_copy *staged = own(s)->staged;
    (void)before; /* since begin */
    PD_TRY(pd_zero_update_begin(s->engine->zero, err));
    if (staged) PD_TRY(pd_staged_copy_begin(staged, err));
    PD_TRY(pd_optimizer_store_update_end(own(s)->store, step, NULL, err));
    if (staged) PD_TRY(pd_staged_copy_end(staged, err));
    PD_TRY(pd_zero_update_end(s->engine->zero, err));
    return pd_zero_updated(s->engine->zero, err);
}

/* ---- saving ---- */

static void *box(struct pd_state *s, enum pd_kind kind, const struct pd_zero_box *b)
{
    (void)s, (void)kind, (void)b;
    return NULL;
}

/* A skipped step keeps the previous state under its own identity. */
static pd_status complete(struct pd_state *s, const struct pd_identity *identity, struct pd_error *err)
{
    struct pd_optimizer_store *store = own(s)->store;
    if (memcmp(pd_optimizer_store_identity(store), identity, sizeof *identity) != 0) {
        const struct pd_optimizer_store_step same = {.identity = *identity};
        PD_TRY(pd_optimizer_store_update(store, &same, NULL, err));
    }
    return pd_optimizer_store_complete(store, err);
}

/* The newest generation gets all data of a shard file. */
static pd_status save_begin(struct pd_state *s, const struct pd_identity *identity, struct pd_error *err)
{
    pd_owner_acquire(&own(s)->ring_owner, "save");
    const pd_status st = complete(s, identity, err);
    pd_owner_release(&own(s)->ring_owner, "save");
    return st;
}

static pd_status save_wait(struct pd_state *s, struct pd_shard_summary *ret_summary, uint32_t *ret_slot,
                           struct pd_error *err)
{
    return pd_optimizer_store_finish(own(s)->store, ret_summary, ret_slot, err);
}

pd_status pd_state_files_copy(const struct pd_state *s, const char *path, const struct pd_identity *identity, void *buffers,
                              uint64_t buffer_bytes, struct pd_error *err)
{
    const struct in_files *f = own(s);
    return pd_shard_copy(f->vfs, pd_optimizer_store_path(f->store), path, identity, buffers, buffer_bytes, err);
}

const struct pd_state_ops pd_state_in_files = {.is_in_files = true,
                                               .take = state_files_take,
                                               .open = open_state,
                                               .close = close_files,
                                               .init = init,
                                               .load = state_files_load,
                                               .begin = state_files_begin,
                                               .update = state_files_update,
                                               .end = state_files_end,
                                               .box = box,
                                               .save_begin = save_begin,
                                               .save_wait = save_wait,
                                               .free = free_own};
