#include "ckpt/base/words.h"
#include "trainer/comm/nccl.h"
#include "trainer/engine/engine_internal.h"
#include "trainer/engine/optimizer.h"
#include "trainer/engine/scratch.h"
#include "trainer/math/math_cuda.h"

#include <stdlib.h>

/* Staging for saves and loads: enough for the disk's depth, but no more than a small model needs. Depends on the layout
 * only: a load runs in rounds of windows that are equal on all ranks, while ranks may own very different shares. */
#define STAGING_BYTES_MIN (4ull << 20)
#define STAGING_BYTES_MAX (64ull << 20)

#define GEMM_SIDE_MAX 4096u

static uint64_t staging_bytes_of(const struct pd_model *model, const struct pd_layout *layout)
{
    const uint64_t shards = (uint64_t)layout->tp * layout->pp * layout->zero_shard;
    const uint64_t state_bytes = model->parameter_count / shards * pd_kinds_bytes(model->tensors.tensors[0].moments);
    uint64_t bytes = STAGING_BYTES_MIN;
    while (bytes < STAGING_BYTES_MAX && bytes * 4 < state_bytes)
        bytes *= 2;
    return bytes;
}

bool pd_leaves_device(const struct pd_engine_options *o, enum pd_place place)
{
    return place == PD_PLACE_NVME || (o->is_gpu && place == PD_PLACE_CPU);
}

bool pd_blocks_leave_device(const struct pd_engine_options *o)
{
    return pd_leaves_device(o, o->config->offload.parameters) || pd_leaves_device(o, o->config->offload.gradients);
}

bool pd_updates_by_bucket(const struct pd_engine_options *o)
{
    return pd_blocks_leave_device(o) || o->config->numerics.gradients == PD_BF16;
}

/* On a GPU, where a pass over all sums costs memory bandwidth. Pieces of sequences are terms by themselves. Lanes of ep ranks,
 * which one backward adds to, need not begin together. */
static bool adds_in_place(const struct pd_engine *e)
{
    const struct pd_layout *layout = &e->grid.layout;
    return e->options.is_gpu && layout->tp == 1 && pd_layout_ep(layout) == 1 && pd_lanes_longest(&e->own->lanes) > 1 &&
           pd_partition_piece_total(&e->grid.partition) == 1;
}

struct pd_lanes pd_lanes_of(const struct pd_config *c, uint32_t dp)
{
    const uint32_t micro_batches = c->batch.sequences / c->batch.micro_batch;
    return (struct pd_lanes){micro_batches, c->numerics.lanes ? c->numerics.lanes : micro_batches, dp};
}

uint32_t pd_engine_multiprocessors(const struct pd_config *c, uint32_t multiprocessors)
{
    const bool may_share = pd_lanes_of(c, 1).count > 1 || c->numerics.virtual_tp > 1 || c->numerics.virtual_sp > 1;
    return may_share && multiprocessors ? multiprocessors - pd_comm_nccl_blocks(multiprocessors) : 0;
}

/* Codes of all weights need as much memory as working copies: do not keep them if those were moved off the device. */
static bool keeps_codes(const struct pd_engine *e)
{
    const struct pd_config *c = e->options.config;
    const bool wants = c->layout.fp8_codes == PD_CODES_STEP || (c->layout.fp8_codes == PD_CODES_AUTO && e->options.is_gpu);
    return wants && c->numerics.linears == PD_LINEARS_FP8 && e->slots > 1 && c->numerics.virtual_tp == 1 &&
           c->numerics.virtual_sp == 1 && !pd_leaves_device(&e->options, c->offload.parameters);
}

static struct pd_transformer_options transformer_options_of(const struct pd_engine *e, const uint32_t *depth)
{
    const struct pd_config *c = e->options.config;
    struct pd_transformer_options o = pd_config_transformer(c);
    o.keeps_codes = keeps_codes(e);
    o.recompute = e->own->laid_out.recompute;
    o.recompute_layers = e->own->laid_out.recompute_layers;
    o.backward = true;
    o.take_piece = pd_zero_take_piece;
    o.take_context = e->zero;
    o.may_add = adds_in_place(e);
    o.activations_in_files = pd_leaves_device(&e->options, c->offload.activations);
    o.activations_budget = c->offload.activations_budget;
    o.partition = e->grid.partition;
    o.tp = e->grid.tp;
    o.sp = e->grid.sp;
    o.experts = e->grid.experts;
    o.ep = pd_layout_ep(&e->grid.layout);
    o.ep_rank = (e->grid.place.dp * e->grid.layout.sp + e->grid.place.sp) % o.ep;
    o.on_device = e->options.is_gpu;
    o.chunk_count = e->own->chunk_count;
    o.chunks = e->own->chunks;
    o.depth = depth;
    return o;
}

static pd_status describe_chunks(struct pd_engine *e, struct pd_error *err)
{
    const struct pd_layout *layout = &e->grid.layout;
    e->is_breadth_first = pd_is_breadth_first(e->options.config, layout);
    e->own->chunk_count = layout->pp == 1 ? 1 : layout->interleave; /* one stage alone runs as one chunk */
    e->own->lanes.ranks = layout->dp;
    e->slots = pd_schedule_slots(pd_lanes_slots(&e->own->lanes), layout->pp, e->own->chunk_count);
    e->own->chunks = calloc(e->own->chunk_count, sizeof *e->own->chunks);
    if (!e->own->chunks) PD_FAIL(err, PD_NO_MEMORY, "engine: no memory for %u pipeline chunks", e->own->chunk_count);
    for (uint32_t c = 0; c < e->own->chunk_count; c++)
        e->own->chunks[c] = pd_grid_stage(layout, e->options.model, e->grid.place.pp, c);
    if (layout->pp == 1) e->own->chunks[0] = (struct pd_stage){0, e->options.model->config.layers, true, true};
    return PD_OK;
}

static pd_status build_model(struct pd_engine *e, struct pd_arena *arena, struct pd_error *err)
{
    const struct pd_config *c = e->options.config;
    uint32_t depth[256];
    const struct pd_layout *layout = &e->grid.layout;
    const struct pd_schedule_options schedule =
        (struct pd_schedule_options){.pp = layout->pp,
                                     .pp_rank = e->grid.place.pp,
                                     .interleave = e->own->chunk_count,
                                     .slots = e->slots,
                                     .units = e->is_breadth_first ? e->options.model->unit_count : 0};
    pd_schedule_depth(&schedule, depth);
    if (!pd_arena_is_dry(arena)) {
        PD_TRY(pd_schedule_new(&schedule, &e->own->schedule, err));
        PD_TRY(pd_bucket_order_new(&e->own->schedule, e->own->chunks, true, &e->own->bucket_order, err));
    }
    const struct pd_transformer_options transformer = transformer_options_of(e, depth);
    PD_TRY(pd_transformer_new(e->options.model, e->math, &transformer, arena, &e->transformer, err));
    const struct pd_rank_device *device = e->options.device;
    PD_TRY(pd_pipeline_new(&e->grid, pd_transformer_stream_bytes(e->transformer), e->math, device ? device->dev : NULL,
                           device ? device->compute : NULL, arena, &e->own->pipeline, err));
    if (e->is_breadth_first) e->own->dstreams = calloc(e->slots, sizeof *e->own->dstreams);
    if (e->is_breadth_first && !e->own->dstreams)
        PD_FAIL(err, PD_NO_MEMORY, "engine: no memory for %u micro-batches", e->slots);
    const uint64_t gradient_bytes = pd_transformer_gradient_bytes(e->transformer);
    for (uint32_t slot = 0; e->is_breadth_first && slot < e->slots; slot++)
        e->own->dstreams[slot] = pd_arena_take(arena, PD_MEMORY_ACTIVATIONS, gradient_bytes);
    if (e->grid.layout.tp > 1 && !e->is_breadth_first)
        e->own->dstream = pd_arena_take(arena, PD_MEMORY_ACTIVATIONS, gradient_bytes);
    if (pd_partition_piece_total(&e->grid.partition) > 1)
        e->own->sample = pd_arena_take_host(arena, PD_MEMORY_BUFFERS, 4ull * c->batch.context * sizeof(int32_t));
    return PD_OK;
}

/* Several ranks are processes unless configured otherwise (trainer/launch/starter.c). If auto finds no mpirun and uses
 * threads, they need less than counted here. */
static bool are_processes(const struct pd_config *c)
{
    return pd_comm_has_mpi() && c->layout.transport != PD_TRANSPORT_LOCAL;
}

/* Sizes of the largest call of attention, parts included. */
static struct pd_attention largest_attention(const struct pd_engine *e)
{
    const struct pd_config *c = e->options.config;
    const struct pd_partition *p = &e->grid.partition;
    const struct pd_range heads = pd_partition_units(p, c->model.heads);
    const struct pd_range kv = pd_partition_kv_needed(&c->model, heads);
    return (struct pd_attention){.sequences = c->batch.micro_batch,
                                 .length = c->batch.context,
                                 .heads = (uint32_t)(heads.end - heads.begin),
                                 .kv_heads = (uint32_t)(kv.end - kv.begin),
                                 .head_size = c->model.head_size,
                                 .group = c->model.heads / c->model.kv_heads,
                                 .head_chunk = (c->model.heads + p->virtual_tp - 1) / p->virtual_tp,
                                 .dtype = c->numerics.precision,
                                 .key_length = p->virtual_sp > 1 ? c->batch.context : 0};
}

#define CAPABILITY_FP8 89u

/* Tensor cores of older GPUs lack fp8, and emulating it would be slower than bf16. */
pd_status pd_check_fp8(const struct pd_config *c, const char *name, uint32_t capability, struct pd_error *err)
{
    if (c->numerics.linears != PD_LINEARS_FP8 || capability >= CAPABILITY_FP8) return PD_OK;
    PD_FAIL(err, PD_UNSUPPORTED,
            "numerics.linears is fp8, which needs a GPU of compute capability 8.9, and %s has %u.%u; set "
            "numerics.linears=precision or run.device=cpu",
            name, capability / 10, capability % 10);
}

static pd_status build_math(struct pd_engine *e, struct pd_arena *arena, struct pd_error *err)
{
    const struct pd_config *c = e->options.config;
    const struct pd_rank_device *device = e->options.device;
    if (!e->options.is_gpu) {
        if (c->numerics.mode == PD_NUMERICS_FAST)
            PD_FAIL(err, PD_INVALID,
                    "numerics.mode is fast, which only a GPU has: on a CPU invariant is as fast; bucket "
                    "numerics.mode=invariant");
        return pd_math_cpu_new(e->pool, e->options.threads, PD_ISA_AUTO, arena, &e->math, err);
    }
    if (device) PD_TRY(pd_check_fp8(c, device->dev->description, device->dev->capability, err));
    const struct pd_attention attention = largest_attention(e);
    const uint32_t multiprocessors = device ? pd_engine_multiprocessors(c, device->dev->multiprocessors) : 0;
    const struct pd_math_cuda_options options = {.stream =
                                                     device ? pd_dev_stream_handle(device->dev, device->compute) : NULL,
                                                 .multiprocessors = multiprocessors,
                                                 .mode = c->numerics.mode,
                                                 .any_shape = c->numerics.virtual_tp > 1 || c->numerics.virtual_sp > 1,
                                                 .attention = attention.heads ? &attention : NULL,
                                                 .spans = device ? device->spans : NULL,
                                                 .lane = device ? device->compute : NULL};
    return pd_math_cuda_new(&options, arena, &e->math, err);
}

/* Checks sums that leave a GPU for the host, which the configuration alone does not show. */
static pd_status check_order(const struct pd_engine *e, struct pd_error *err)
{
    if (!pd_leaves_device(&e->options, e->options.config->offload.gradients) || e->is_breadth_first) return PD_OK;
    PD_FAIL(err, PD_INVALID,
            "offload.gradients is %s and micro-batches follow each other, so that sums would travel once a micro-batch; use "
            "layout.order=breadth_first and layout.pp=1, or offload.gradients=device",
            e->options.config->offload.gradients == PD_PLACE_NVME ? "nvme" : "cpu");
}

static uint64_t gemm_side(const struct pd_config *c)
{
    return c->model.hidden < GEMM_SIDE_MAX ? c->model.hidden : GEMM_SIDE_MAX;
}

static uint64_t gemm_bytes(const struct pd_config *c)
{
    return 3 * gemm_side(c) * gemm_side(c) * pd_dtype_bytes(c->numerics.precision);
}

struct pd_gemm pd_engine_gemm(const struct pd_engine *e)
{
    const uint64_t side = gemm_side(e->options.config), bytes = gemm_bytes(e->options.config) / 3;
    const enum pd_dtype dtype = e->options.config->numerics.precision;
    char *a = e->own->gemm_operands;
    return (struct pd_gemm){.m = side,
                            .n = side,
                            .k = side,
                            .a = {a, dtype, side},
                            .b = {a + bytes, dtype, side},
                            .c = {a + 2 * bytes, dtype, side}};
}

/* ---- phases of the recipe, in the order in which they take memory ---- */

/* Uses the gradients' memory, still unused, if it is large enough. */
static void take_gemm(struct pd_engine *e, struct pd_arena *arena)
{
    if (!e->options.is_gpu) return;
    const uint64_t bytes = gemm_bytes(e->options.config);
    e->own->gemm_operands = bytes <= pd_zero_held(e->zero)->gradient_elements * sizeof(float)
                                ? pd_zero_held(e->zero)->gradient
                                : pd_arena_take(arena, PD_MEMORY_BUFFERS, bytes);
}

static void take_count(struct pd_engine *e, struct pd_arena *arena)
{
    struct pd_term_count *c = &e->own->counted;
    const uint64_t bytes = PD_ZERO_WATCHED * sizeof *c->sums;
    if (!e->options.config->guard.replay_every) return;
    c->sums = c->host_copy = pd_arena_take(arena, PD_MEMORY_BUFFERS, bytes);
    if (e->options.is_gpu) c->host_copy = pd_arena_take_host(arena, PD_MEMORY_BUFFERS, bytes);
}

/* Memory of communicators outside the arena: for the step, background saves, tiers filled from others, copies on other
 * hosts. */
static void note_communicators(struct pd_engine *e, struct pd_arena *arena)
{
    const struct pd_config *c = e->options.config;
    const uint64_t world = pd_comm_bytes(e->options.world, are_processes(c));
    const uint32_t tiers = c->checkpoint.tiers_count;
    const uint64_t copies = (tiers > 1 ? tiers - 1 : 0) + (tiers > 0 && c->checkpoint.tiers[0].replicas > 0);
    const struct pd_grid_memory grid = pd_grid_memory(&e->grid.layout, e->options.rank, are_processes(c));
    pd_arena_note(arena, PD_MEMORY_BUFFERS, grid.bytes);
    if (e->options.is_gpu) pd_arena_note_library(arena, grid.nccl_bytes);
    pd_arena_note(arena, PD_MEMORY_BUFFERS, world);
    pd_arena_note(arena, PD_MEMORY_BUFFERS, copies * (world + PD_TIERS_STAGING_BYTES));
    struct pd_tier_options options[PD_TIERS_MAX];
    const uint32_t count = pd_config_tiers(c, options);
    const uint64_t least = c->launch.hosts[0] ? 1 : e->options.world;
    const uint64_t here = e->options.ranks_here ? e->options.ranks_here : least;
    for (uint32_t i = 1; i < count; i++) {
        const uint64_t mine = pd_vfs_is_remote(options[i].dir) ? options[i].upload_memory / here : 0;
        if (mine > PD_TIERS_STAGING_BYTES) pd_arena_note(arena, PD_MEMORY_BUFFERS, mine - PD_TIERS_STAGING_BYTES);
    }
}

static pd_status engine_build(struct pd_engine *e, struct pd_arena *arena, struct pd_error *err)
{
    const struct pd_config *c = e->options.config;
    const struct pd_zero_options zero =
        (struct pd_zero_options){.micro_batches = e->own->lanes.micro_batches,
                                 .lanes = e->own->lanes.count,
                                 .tokens = (uint64_t)c->batch.sequences * c->batch.context,
                                 .narrow_terms = c->numerics.terms == PD_TERMS_32,
                                 .by_lane = e->own->laid_out.by_lane,
                                 .by_layers = e->is_breadth_first,
                                 .compute = c->numerics.precision,
                                 .gathers_two = !e->options.is_gpu,
                                 .exchanges_two = !e->options.is_gpu && e->grid.layout.zero_stage < 3,
                                 .adds_in_place = adds_in_place(e),
                                 .state_on_host = e->options.is_gpu && c->offload.optimizer == PD_PLACE_CPU,
                                 .state_in_files = c->offload.optimizer == PD_PLACE_NVME,
                                 .parameters_in_files = pd_leaves_device(&e->options, c->offload.parameters),
                                 .gradients_in_files = pd_leaves_device(&e->options, c->offload.gradients),
                                 .rounds_sums = c->numerics.gradients == PD_BF16,
                                 .parameters_budget = c->offload.parameters_budget,
                                 .gradients_budget = c->offload.gradients_budget};
    PD_TRY(build_math(e, arena, err));
    PD_TRY(pd_zero_new(e->options.model, &zero, &e->grid, e->math, arena, &e->zero, err));
    take_gemm(e, arena);
    PD_TRY(build_model(e, arena, err));
    struct pd_norm_sums *n = &e->own->norm;
    n->by_block = pd_leaves_device(&e->options, e->options.config->offload.gradients);
    n->rows = pd_arena_take(arena, PD_MEMORY_BUFFERS, pd_optimizer_norm_rows(e) * sizeof *n->rows);
    n->sum = n->host_copy = pd_arena_take(arena, PD_MEMORY_BUFFERS, sizeof *n->sum);
    if (e->options.is_gpu) n->host_copy = pd_arena_take_host(arena, PD_MEMORY_BUFFERS, sizeof *n->sum);
    struct pd_loss_sum *l = &e->own->loss;
    l->sum = l->host_copy = pd_arena_take(arena, PD_MEMORY_BUFFERS, sizeof *l->sum);
    if (e->options.is_gpu) l->host_copy = pd_arena_take_host(arena, PD_MEMORY_BUFFERS, sizeof *l->sum);
    take_count(e, arena);
    /* State in files has its own ring: staging then only copies between tiers. */
    const bool has_ring = e->options.config->offload.optimizer == PD_PLACE_NVME;
    e->staging.bytes = has_ring ? STAGING_BYTES_MIN : staging_bytes_of(e->options.model, &e->grid.layout);
    e->staging.data = pd_arena_take_host(arena, PD_MEMORY_BUFFERS, e->staging.bytes);
    PD_TRY(pd_state_new(e, staging_bytes_of(e->options.model, &e->grid.layout), arena, &e->state, err));
    note_communicators(e, arena);
    /* The same sum for ranks of equal shares. */
    uint64_t heap_bytes, file_bytes;
    PD_TRY(pd_scratch_take(e, arena, err));
    PD_TRY(pd_scratch_plan(e, &heap_bytes, &file_bytes, err));
    pd_arena_note(arena, PD_MEMORY_BUFFERS, heap_bytes);
    return PD_OK;
}

/* A unit's passes: forward, and backward into `dstream`, which only a product's addresses make use of. */
static pd_status rehearse_unit(struct pd_engine *e, uint32_t unit, void *dstream, struct pd_error *err)
{
    struct pd_transformer *t = e->transformer;
    const uint32_t head = pd_zero_held(e->zero)->bucket_count - 1;
    void *const *weights, *stream; /* also output: the next unit may be on another rank */
    float *const *gradients;
    pd_zero_rehearse(e->zero, unit, &weights, &gradients);
    pd_transformer_set_sources(t, pd_zero_sources(e->zero));
    if (unit == 0) return pd_transformer_embed(t, 0, weights, err);
    if (unit == head) {
        PD_TRY(pd_transformer_head(t, 0, weights, NULL, 1.0f, NULL, err));
        return pd_transformer_head(t, 0, weights, gradients, 1.0f, dstream, err);
    }
    PD_TRY(pd_transformer_stream(t, 0, unit - 1, &stream, err));
    PD_TRY(pd_transformer_block_forward(t, 0, unit - 1, weights, stream, err));
    return pd_transformer_block_backward(t, 0, unit - 1, weights, gradients, dstream, err);
}

/* Loads the algorithm of every product before the first exchange between GPUs: CUDA may wait for a kernel that waits for
 * other ranks (math_cuda.h). All memory is zeros, and stays so. Training, validation and comparing make the same products. */
static pd_status rehearse(struct pd_engine *e, struct pd_arena *arena, struct pd_error *err)
{
    void *dstream = e->is_breadth_first ? e->own->dstreams[0] : e->own->dstream;
    pd_status st = PD_OK;
    if (!e->options.device || !e->own->comm || pd_arena_is_dry(arena)) return PD_OK;
    if (!dstream) PD_TRY(pd_pipeline_next_gradient(e->own->pipeline, &dstream, err));
    pd_transformer_rehearse(e->transformer, true);
    pd_transformer_begin(e->transformer, false, 1.0f);
    pd_math_cuda_rehearse(e->math, true);
    const struct pd_gemm measured = pd_engine_gemm(e); /* between gathers of parameters and the first step */
    st = pd_gemm(e->math, &measured, err);
    for (uint32_t c = 0; c < e->own->chunk_count && !st; c++) {
        const struct pd_stage *stage = &e->own->chunks[c];
        const uint32_t first = stage->has_embedding ? 0 : 1 + stage->first_block,
                       end = 1 + stage->first_block + stage->block_count + stage->has_head;
        for (uint32_t unit = first; unit < end && !st; unit++)
            st = rehearse_unit(e, unit, dstream, err);
    }
    pd_math_cuda_rehearse(e->math, false);
    pd_transformer_rehearse(e->transformer, false);
    return st ? st : pd_math_sync(e->math, err);
}

static pd_status engine_lay_out(struct pd_engine *e, struct pd_error *err)
{
    const struct pd_engine_options *o = &e->options;
    if (o->laid_out)
        e->own->laid_out = *o->laid_out;
    else
        PD_TRY(pd_lay_out_given(o->config, o->model, o->world, &e->own->laid_out, err));
    const uint32_t dp = e->own->laid_out.layout.dp;
    if (dp > e->own->lanes.count)
        PD_FAIL(err, PD_INVALID, "layout: dp %u for %s a step; use dp %u at most, or lower batch.micro_batch", dp,
                pd_counted(e->own->lanes.count, "lane").text, e->own->lanes.count);
    return pd_grid_init(&e->own->laid_out.layout, o->rank, e->own->comm, &e->grid, err);
}

static pd_status allocate(const struct pd_engine_options *options, struct pd_engine **ret_engine, struct pd_error *err)
{
    const struct pd_config *c = options->config;
    struct pd_engine *e = calloc(1, sizeof *e);
    struct pd_engine_own *own = calloc(1, sizeof *own);
    if (!e || !own) {
        free(e);
        free(own);
        PD_FAIL(err, PD_NO_MEMORY, "engine: no memory");
    }
    e->options = *options;
    e->own = own;
    own->lanes = pd_lanes_of(c, 1);
    e->loss_scale = c->numerics.precision == PD_F16 ? c->numerics.loss_scale : 1.0;
    pd_gradient_sizes_init(&e->gradient_sizes);
    *ret_engine = e;
    return PD_OK;
}

pd_status pd_engine_new(const struct pd_engine_options *options, struct pd_comm *comm, const struct pd_data *data,
                        struct pd_thread_pool *pool, struct pd_arena *arena, struct pd_engine **ret_engine,
                        struct pd_error *err)
{
    struct pd_engine *e = NULL;
    PD_TRY(allocate(options, &e, err));
    e->own->comm = options->world > 1 ? comm : NULL;
    e->data = data;
    e->pool = pool;
    pd_status st = engine_lay_out(e, err);
    e->options.laid_out = NULL;
    if (!st) st = describe_chunks(e, err);
    if (!st) st = check_order(e, err);
    if (!st) st = engine_build(e, arena, err);
    if (!st) st = rehearse(e, arena, err);
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
    struct pd_engine_own *own = e->own;
    pd_state_free(e->state);
    pd_pipeline_free(own->pipeline);
    pd_transformer_free(e->transformer);
    pd_zero_free(e->zero);
    pd_math_free(e->math);
    pd_bucket_order_deinit(&own->bucket_order);
    pd_schedule_deinit(&own->schedule);
    pd_grid_deinit(&e->grid);
    free(own->chunks);
    free(own->dstreams);
    free(own->experts);
    free(own);
    free(e);
}

/* By the recipe on a dry arena. */
pd_status pd_engine_plan_of(const struct pd_engine_options *options, struct pd_memory_plan *ret_plan, struct pd_error *err)
{
    struct pd_arena *arena;
    struct pd_engine *engine = NULL;
    PD_TRY(pd_arena_new_dry(&arena, err));
    pd_status st = pd_engine_new(options, NULL, NULL, NULL, arena, &engine, err);
    if (!st) pd_arena_usage(arena, ret_plan);
    pd_engine_free(engine);
    pd_arena_free(arena);
    return st;
}

void pd_engine_abort(struct pd_engine *e)
{
    pd_comm_abort(e->grid.comm);
    if (e->zero) pd_zero_sync(e->zero);
    if (e->own->pipeline) pd_pipeline_sync(e->own->pipeline);
    if (e->transformer) pd_transformer_sync(e->transformer);
}
