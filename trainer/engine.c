#include "trainer/engine.h"

#include "resharder/layout.h"
#include "trainer/optimizer.h"

#include <stdlib.h>
#include <string.h>

/* Staging for saves and loads: enough for the disk's depth, and no more than a small model needs. */
#define IO_BYTES_MIN (4ull << 20)
#define IO_BYTES_MAX (64ull << 20)

static uint64_t io_bytes_of(uint64_t state_bytes)
{
    uint64_t bytes = IO_BYTES_MIN;
    while (bytes < IO_BYTES_MAX && bytes * 4 < state_bytes)
        bytes *= 2;
    return bytes;
}

static struct pd_zero_options zero_options_of(const struct pd_engine *e)
{
    const struct pd_config *c = e->options.config;
    return (struct pd_zero_options){
        .leaves = e->leaves, .compute = c->numerics.precision, .gradient_type = c->numerics.gradient_type};
}

static struct pd_transformer_options transformer_options_of(const struct pd_engine *e)
{
    const struct pd_config *c = e->options.config;
    return (struct pd_transformer_options){.sequences = c->batch.leaf,
                                           .length = c->batch.context,
                                           .dtype = c->numerics.precision,
                                           .recompute = c->layout.recompute,
                                           .separate_documents = c->data.separate_documents,
                                           .backward = true,
                                           .partition = pd_partition_whole()};
}

static pd_status build(struct pd_engine *e, struct pd_arena *arena, struct pd_error *err)
{
    const struct pd_config *c = e->options.config;
    PD_TRY(pd_math_cpu_new(e->pool, e->options.threads, c->numerics.mode, PD_ISA_AUTO, arena, &e->math, err));
    struct pd_zero_options zero = zero_options_of(e);
    PD_TRY(pd_zero_new(e->options.model, &zero, &e->grid, e->math, arena, &e->zero, err));
    struct pd_transformer_options transformer = transformer_options_of(e);
    PD_TRY(pd_transformer_new(e->options.model, e->math, &transformer, arena, &e->transformer, err));
    e->dstream = pd_arena_take(arena, PD_MEMORY_ACTIVATIONS, pd_transformer_stream_bytes(e->transformer));
    e->row_sums = pd_arena_take(arena, PD_MEMORY_BUFFERS, PD_OPTIMIZER_NORM_ROWS * sizeof(double));
    e->io_bytes = io_bytes_of(pd_zero_owned_elements(e->zero) * PD_KIND_COUNT * sizeof(float));
    e->io_buffers = pd_arena_take(arena, PD_MEMORY_BUFFERS, e->io_bytes);
    pd_arena_note(arena, PD_MEMORY_BUFFERS,
                  pd_grid_bytes(&e->grid.layout, e->options.rank, c->layout.transport != PD_TRANSPORT_LOCAL));
    return PD_OK;
}

pd_status pd_engine_new(const struct pd_engine_options *options, struct pd_comm *comm, const struct pd_data *data,
                        struct pd_thread_pool *pool, struct pd_arena *arena, struct pd_engine **ret_engine,
                        struct pd_error *err)
{
    const struct pd_config *c = options->config;
    struct pd_engine *e = calloc(1, sizeof *e);
    if (!e) PD_FAIL(err, PD_NO_MEMORY, "engine: no memory");
    e->options = *options;
    e->comm = options->world > 1 ? comm : NULL;
    e->data = data;
    e->pool = pool;
    e->leaves = c->batch.sequences / c->batch.leaf;
    e->slots = (e->leaves + options->world - 1) / options->world;
    struct pd_layout layout;
    pd_layout_init_dp(&layout, options->world);
    pd_status st = pd_grid_init(&layout, options->rank, e->comm, &e->grid, err);
    if (!st && options->world > e->leaves)
        st = pd_error_set(err, PD_INVALID, PD_WHERE, 0,
                          "layout: %u ranks for %u leaves a step; use at most %u ranks, or lower "
                          "batch.leaf",
                          options->world, e->leaves, e->leaves);
    if (!st) st = build(e, arena, err);
    if (st) {
        pd_engine_free(e);
        return st;
    }
    *ret_engine = e;
    return PD_OK;
}

void pd_engine_free(struct pd_engine *e)
{
    if (!e) return;
    pd_transformer_free(e->transformer);
    pd_zero_free(e->zero);
    pd_math_free(e->math);
    pd_grid_deinit(&e->grid);
    free(e);
}

pd_status pd_engine_plan(const struct pd_config *config, const struct pd_model *model, uint32_t world, uint32_t rank,
                         uint32_t threads, struct pd_memory_plan *ret_plan, struct pd_error *err)
{
    struct pd_engine_options options = {config, model, world, rank, threads};
    struct pd_arena *arena;
    struct pd_engine *engine = NULL;
    PD_TRY(pd_arena_new_dry(&arena, err));
    pd_status st = pd_engine_new(&options, NULL, NULL, NULL, arena, &engine, err);
    if (!st) pd_arena_usage(arena, ret_plan);
    pd_engine_free(engine);
    pd_arena_free(arena);
    return st;
}

struct init_job {
    struct pd_engine *engine;
    uint64_t seed;
};

static void init_box(void *context, uint64_t index)
{
    struct init_job *job = context;
    const struct pd_zero_box *b = &pd_zero_boxes(job->engine->zero)[index];
    pd_model_init_box(job->engine->options.model, b->tensor, &b->box, job->seed,
                      pd_zero_state(job->engine->zero, PD_PARAM) + b->offset);
}

pd_status pd_engine_init_state(struct pd_engine *e, struct pd_error *err)
{
    struct init_job job = {e, e->options.config->run.seed};
    pd_parallel(e->pool, pd_zero_box_count(e->zero), init_box, &job);
    uint64_t bytes = pd_zero_owned_elements(e->zero) * sizeof(float);
    memset(pd_zero_state(e->zero, PD_EXP_AVG), 0, bytes);
    memset(pd_zero_state(e->zero, PD_EXP_AVG_SQ), 0, bytes);
    return pd_zero_refresh_compute(e->zero, err);
}

void *pd_engine_box_data(struct pd_engine *e, uint32_t tensor, enum pd_kind kind)
{
    const struct pd_zero_box *boxes = pd_zero_boxes(e->zero);
    for (uint32_t i = 0; i < pd_zero_box_count(e->zero); i++)
        if (boxes[i].tensor == tensor) return pd_zero_state(e->zero, kind) + boxes[i].offset;
    return NULL;
}
