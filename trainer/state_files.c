#include "trainer/state_files.h"

#include "resharder/layout.h"

#include <stdlib.h>
#include <string.h>

struct pd_state_files {
    struct pd_shard_box *boxes; /* (box_count) of this rank's shard */
    uint32_t box_count;
    const struct pd_zero_box **held; /* (box_count) the engine's box that is stored there */
    struct pd_optimizer_store *store;
};

static const struct pd_zero_box *held_box(const struct pd_engine *e, uint32_t box)
{
    return e->files->held[box];
}

/* Memory of a box while there are no gradients. */
static float *passage(struct pd_engine *e, uint32_t box)
{
    return pd_zero_gradient(e->zero) + held_box(e, box)->gradient_offset;
}

static void *compute_copy(struct pd_engine *e, uint32_t box)
{
    const uint64_t bytes = pd_dtype_bytes(e->options.config->numerics.precision);
    return (char *)pd_zero_compute_copy(e->zero) + held_box(e, box)->offset * bytes;
}

/* ---- life ---- */

static pd_status find_held(struct pd_engine *e, struct pd_error *err)
{
    struct pd_state_files *f = e->files;
    f->held = calloc(f->box_count + 1ull, sizeof *f->held);
    if (!f->held) PD_FAIL(err, PD_NO_MEMORY, "no memory for %u boxes", f->box_count);
    for (uint32_t b = 0, number = 0; b < f->box_count; b++) {
        const struct pd_shard_box *box = &f->boxes[b];
        const bool is_first = b == 0 || box[-1].tensor != box->tensor || box[-1].kind != box->kind;
        number = is_first ? 0 : number + 1;
        f->held[b] = pd_engine_owned_box(e, box->tensor, number);
    }
    return PD_OK;
}

static pd_status open_files(struct pd_engine *e, struct pd_door *door, struct pd_store *store, struct pd_error *err)
{
    struct pd_state_files *f = e->files;
    const struct pd_tensor_table *tensors = &e->options.model->tensors;
    PD_TRY(pd_layout_shard_boxes(&e->grid.layout, tensors, e->options.rank, &f->boxes, &f->box_count, err));
    PD_TRY(find_held(e, err));
    const struct pd_optimizer_store_options options = {.door = door,
                                                       .store = store,
                                                       .tensors = tensors,
                                                       .boxes = f->boxes,
                                                       .box_count = f->box_count,
                                                       .rank = e->options.rank,
                                                       .pool = e->pool,
                                                       .isa = e->math->isa,
                                                       .buffers = e->io_buffers,
                                                       .buffer_bytes = e->io_bytes};
    return pd_optimizer_store_new(&options, &f->store, err);
}

pd_status pd_state_files_open(struct pd_engine *e, struct pd_door *door, struct pd_store *store, struct pd_error *err)
{
    PD_CHECK(!e->files);
    e->files = calloc(1, sizeof *e->files);
    if (!e->files) PD_FAIL(err, PD_NO_MEMORY, "no memory for optimizer state in files");
    pd_status st = open_files(e, door, store, err);
    if (st) pd_state_files_close(e);
    return st;
}

void pd_state_files_close(struct pd_engine *e)
{
    if (!e || !e->files) return;
    pd_optimizer_store_free(e->files->store);
    free(e->files->boxes);
    free(e->files->held);
    free(e->files);
    e->files = NULL;
}

uint64_t pd_state_files_file_bytes(const struct pd_engine *e)
{
    return pd_optimizer_store_file_bytes(e->files->store);
}

struct pd_optimizer_store *pd_state_files_store(struct pd_engine *e)
{
    return e->files->store;
}

/* ---- filling ---- */

/* One kind of all boxes from its passage into the file; of parameters also the compute copy. */
static pd_status put_kind(struct pd_engine *e, enum pd_kind kind, struct pd_error *err)
{
    struct pd_state_files *f = e->files;
    for (uint32_t b = 0; b < f->box_count; b++) {
        if (f->boxes[b].kind != kind) continue;
        const float *data = passage(e, b);
        const uint64_t elements = held_box(e, b)->elements;
        PD_TRY(pd_optimizer_store_put(f->store, b, 0, data, elements, err));
        if (kind == PD_PARAM)
            PD_TRY(pd_cast(e->math, elements, e->options.config->numerics.precision, compute_copy(e, b), PD_F32, data, err));
    }
    return PD_OK;
}

struct init_job {
    struct pd_engine *engine;
    uint64_t seed;
};

static void init_box(void *context, uint64_t index)
{
    struct init_job *job = context;
    const struct pd_shard_box *b = &job->engine->files->boxes[index];
    if (b->kind != PD_PARAM) return;
    pd_model_init_box(job->engine->options.model, b->tensor, &b->box, job->seed, passage(job->engine, (uint32_t)index));
}

pd_status pd_state_files_init(struct pd_engine *e, const struct pd_identity *identity, struct pd_error *err)
{
    struct init_job job = {e, e->options.config->run.seed};
    PD_TRY(pd_optimizer_store_begin(e->files->store, identity, err));
    pd_parallel(e->pool, e->files->box_count, init_box, &job);
    PD_TRY(put_kind(e, PD_PARAM, err));
    for (uint32_t b = 0; b < e->files->box_count; b++)
        memset(passage(e, b), 0, held_box(e, b)->elements * sizeof(float));
    PD_TRY(put_kind(e, PD_EXP_AVG, err));
    PD_TRY(put_kind(e, PD_EXP_AVG_SQ, err));
    PD_TRY(pd_optimizer_store_end(e->files->store, err));
    return pd_zero_updated(e->zero, err);
}

static void *destination(void *context, uint32_t tensor, enum pd_kind kind, uint32_t box)
{
    struct pd_engine *e = context;
    (void)kind;
    return pd_zero_gradient(e->zero) + pd_engine_owned_box(e, tensor, box)->gradient_offset;
}

static pd_status load_kind(struct pd_engine *e, struct pd_door *door, struct pd_group *group,
                           struct pd_load_request *request, enum pd_kind kind, struct pd_load_report *report,
                           struct pd_error *err)
{
    struct pd_load_report one;
    request->kinds = 1u << kind;
    PD_TRY(pd_load(door, group, request, &one, err));
    report->bytes_read += one.bytes_read;
    report->bytes_wanted += one.bytes_wanted;
    report->rounds += one.rounds;
    return pd_group_agree(group, put_kind(e, kind, err), err);
}

pd_status pd_state_files_load(struct pd_engine *e, struct pd_door *door, struct pd_group *group,
                              struct pd_load_request *request, const struct pd_identity *identity,
                              struct pd_load_report *ret_report, struct pd_error *err)
{
    *ret_report = (struct pd_load_report){0};
    request->tensor_wanted = NULL;
    request->destination = destination;
    request->context = e;
    PD_TRY(pd_group_agree(group, pd_optimizer_store_begin(e->files->store, identity, err), err));
    for (int kind = 0; kind < PD_KIND_COUNT; kind++)
        PD_TRY(load_kind(e, door, group, request, (enum pd_kind)kind, ret_report, err));
    PD_TRY(pd_group_agree(group, pd_optimizer_store_end(e->files->store, err), err));
    return pd_zero_updated(e->zero, err);
}

/* ---- updating ---- */

static const float *gradient_at(void *context, uint32_t box, uint64_t first, uint64_t n)
{
    (void)n;
    return passage(context, box) + first;
}

static void *copy_at(void *context, uint32_t box, uint64_t first, uint64_t n)
{
    struct pd_engine *e = context;
    (void)n;
    return (char *)compute_copy(e, box) + first * pd_dtype_bytes(e->options.config->numerics.precision);
}

pd_status pd_state_files_update(struct pd_engine *e, const struct pd_adam_step *adam, struct pd_error *err)
{
    const struct pd_optimizer_store_step step = {.identity = e->next_identity,
                                                 .adam = adam,
                                                 .copy_dtype = e->options.config->numerics.precision,
                                                 .context = e,
                                                 .gradient = gradient_at,
                                                 .copy = copy_at};
    PD_TRY(pd_optimizer_store_update(e->files->store, &step, NULL, err));
    return pd_zero_updated(e->zero, err);
}

pd_status pd_state_files_finish(struct pd_engine *e, const struct pd_identity *identity,
                                struct pd_shard_summary *ret_summary, uint32_t *ret_slot, struct pd_error *err)
{
    struct pd_optimizer_store *store = e->files->store;
    if (memcmp(pd_optimizer_store_identity(store), identity, sizeof *identity) != 0) {
        const struct pd_optimizer_store_step same = {.identity = *identity};
        PD_TRY(pd_optimizer_store_update(store, &same, NULL, err));
    }
    return pd_optimizer_store_finish(store, ret_summary, ret_slot, err);
}
