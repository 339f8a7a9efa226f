#include "trainer/engine/engine.h"

#include "ckpt/base/words.h"
#include "resharder/layout.h"
#include "trainer/comm/exact_sum.h"
#include "trainer/engine/host_state.h"
#include "trainer/engine/optimizer.h"
#include "trainer/engine/scratch.h"
#include "trainer/engine/state_files.h"
#include "trainer/math/math_cuda.h"

#include <stdlib.h>
#include <string.h>

/* Staging for saves and loads: enough for the disk's depth, and no more than a small model needs. From the layout alone,
 * since a load goes in rounds of windows that are equal on all ranks, and ranks may own very different shares. */
#define IO_BYTES_MIN (4ull << 20)
#define IO_BYTES_MAX (64ull << 20)

#define PRODUCT_SIDE_MAX 4096u

static uint64_t io_bytes_of(const struct pd_model *model, const struct pd_layout *layout)
{
    const uint64_t shards = (uint64_t)layout->tp * layout->pp * layout->zero_shard;
    const uint64_t state_bytes = model->parameter_count / shards * PD_KIND_COUNT * sizeof(float);
    uint64_t bytes = IO_BYTES_MIN;
    while (bytes < IO_BYTES_MAX && bytes * 4 < state_bytes)
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

/* On a GPU, whose memory is what a pass over all sums costs. Pieces of sequences are added up before micro-batches are. */
static bool adds_in_place(const struct pd_engine *e)
{
    const struct pd_layout *layout = &e->grid.layout;
    return e->options.is_gpu && layout->dp * layout->tp * layout->sp == 1 && e->micro_batches > 1 &&
           e->options.config->numerics.gradient_type == PD_F32 && pd_partition_piece_total(&e->grid.partition) == 1;
}

static struct pd_zero_options zero_options_of(const struct pd_engine *e)
{
    const struct pd_config *c = e->options.config;
    return (struct pd_zero_options){.micro_batches = e->micro_batches,
                                    .compute = c->numerics.precision,
                                    .gradient_type = c->numerics.gradient_type,
                                    .rounds_at_random = c->numerics.gradient_rounding == PD_ROUNDING_STOCHASTIC,
                                    .seed = c->run.seed,
                                    .adds_in_place = adds_in_place(e),
                                    .state_on_host = pd_host_state_is_wanted(&e->options),
                                    .state_in_files = c->offload.optimizer == PD_PLACE_NVME,
                                    .parameters_in_files = pd_leaves_device(&e->options, c->offload.parameters),
                                    .gradients_in_files = pd_leaves_device(&e->options, c->offload.gradients),
                                    .parameters_budget = c->offload.parameters_budget,
                                    .gradients_budget = c->offload.gradients_budget};
}

/* One stage alone runs as one chunk, however many were asked for. */
static uint32_t interleave_of(const struct pd_layout *layout)
{
    return layout->pp == 1 ? 1 : layout->interleave;
}

bool pd_is_breadth_first(const struct pd_config *c, const struct pd_layout *layout)
{
    const bool by_itself = c->offload.parameters == PD_PLACE_NVME || c->offload.gradients == PD_PLACE_NVME;
    return layout->pp == 1 && (c->layout.order == PD_ORDER_BREADTH_FIRST || (c->layout.order == PD_ORDER_AUTO && by_itself));
}

static struct pd_schedule_options schedule_options_of(const struct pd_engine *e)
{
    const struct pd_layout *layout = &e->grid.layout;
    return (struct pd_schedule_options){.kind = e->options.config->layout.schedule,
                                        .pp = layout->pp,
                                        .pp_rank = e->grid.place.pp,
                                        .interleave = e->chunk_count,
                                        .slots = e->slots,
                                        .units = e->is_breadth_first ? e->options.model->unit_count : 0};
}

/* A block is some twenty launches of a few microseconds each. Where its arithmetic is over sooner, the GPU waits for the
 * host unless it gets them all at once. PERDURE_CUDA_GRAPHS=0 or 1 decides instead: for comparing. */
#define GRAPH_FLOPS_MAX 5e10

static bool keeps_blocks(const struct pd_engine *e)
{
    const struct pd_config *c = e->options.config;
    const struct pd_layout *layout = &e->grid.layout;
    const char *asked = getenv("PERDURE_CUDA_GRAPHS");
    if (!e->options.is_gpu || layout->tp > 1 || layout->sp > 1 || c->offload.activations != PD_PLACE_DEVICE) return false;
    if (asked && *asked) return *asked == '1';
    const double per_token = pd_model_flops_per_token(e->options.model, c->batch.context) / 3 / c->model.layers;
    return per_token * c->batch.micro_batch * c->batch.context < GRAPH_FLOPS_MAX;
}

/* Codes of all weights take as much as their working copies: not where these have left the device for want of room. */
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
    return (struct pd_transformer_options){.sequences = c->batch.micro_batch,
                                           .length = c->batch.context,
                                           .dtype = c->numerics.precision,
                                           .fp8_linears = c->numerics.linears == PD_LINEARS_FP8,
                                           .keeps_codes = keeps_codes(e),
                                           .recompute = e->laid_out.recompute,
                                           .recompute_layers = e->laid_out.recompute_layers,
                                           .separate_documents = c->data.separate_documents,
                                           .backward = true,
                                           .may_add = adds_in_place(e),
                                           .activations_in_files = pd_leaves_device(&e->options, c->offload.activations),
                                           .activations_budget = c->offload.activations_budget,
                                           .partition = e->grid.partition,
                                           .tp = e->grid.tp,
                                           .sp = e->grid.sp,
                                           .on_device = e->options.is_gpu,
                                           .keeps_blocks = keeps_blocks(e),
                                           .chunk_count = e->chunk_count,
                                           .chunks = e->chunks,
                                           .depth = depth};
}

static pd_status describe_chunks(struct pd_engine *e, struct pd_error *err)
{
    const struct pd_layout *layout = &e->grid.layout;
    e->is_breadth_first = pd_is_breadth_first(e->options.config, layout);
    e->chunk_count = interleave_of(layout);
    e->slots = pd_schedule_slots(e->micro_batches, layout->dp, layout->pp, e->chunk_count);
    e->chunks = calloc(e->chunk_count, sizeof *e->chunks);
    if (!e->chunks) PD_FAIL(err, PD_NO_MEMORY, "engine: no memory for %u pipeline chunks", e->chunk_count);
    for (uint32_t c = 0; c < e->chunk_count; c++)
        e->chunks[c] = pd_grid_stage(layout, e->options.model, e->grid.place.pp, c);
    if (layout->pp == 1) e->chunks[0] = (struct pd_stage){0, e->options.model->config.layers, true, true};
    return PD_OK;
}

static pd_status build_model(struct pd_engine *e, struct pd_arena *arena, struct pd_error *err)
{
    const struct pd_config *c = e->options.config;
    uint32_t depth[256];
    const struct pd_schedule_options schedule = schedule_options_of(e);
    pd_schedule_depth(&schedule, depth);
    if (!pd_arena_is_dry(arena)) PD_TRY(pd_schedule_new(&schedule, &e->schedule, err));
    const struct pd_transformer_options transformer = transformer_options_of(e, depth);
    PD_TRY(pd_transformer_new(e->options.model, e->math, &transformer, arena, &e->transformer, err));
    const struct pd_rank_device *device = e->options.device;
    PD_TRY(pd_pipeline_new(&e->grid, pd_transformer_stream_bytes(e->transformer), e->math, device ? device->dev : NULL,
                           device ? device->compute : NULL, arena, &e->pipeline, err));
    if (e->is_breadth_first) e->dstreams = calloc(e->slots, sizeof *e->dstreams);
    if (e->is_breadth_first && !e->dstreams) PD_FAIL(err, PD_NO_MEMORY, "engine: no memory for %u micro-batches", e->slots);
    for (uint32_t slot = 0; e->is_breadth_first && slot < e->slots; slot++)
        e->dstreams[slot] = pd_arena_take(arena, PD_MEMORY_ACTIVATIONS, pd_transformer_stream_bytes(e->transformer));
    if (pd_partition_piece_total(&e->grid.partition) > 1)
        e->sample = pd_arena_take_host(arena, PD_MEMORY_BUFFERS, 4ull * c->batch.context * sizeof(int32_t));
    return PD_OK;
}

/* Several ranks are processes unless asked otherwise (trainer/launch/starter.c). Where auto finds no mpirun and makes them
 * threads, they take less than is counted here. */
static bool are_processes(const struct pd_config *c)
{
    return PERDURE_HAVE_MPI && c->layout.transport != PD_TRANSPORT_LOCAL;
}

/* What placements in files take beside the rest, in the arena and outside: the same sum for ranks of equal shares. */
static pd_status take_files(struct pd_engine *e, struct pd_arena *arena, struct pd_error *err)
{
    uint64_t state_bytes, scratch_bytes, scratch_file_bytes;
    PD_TRY(pd_state_files_take(e, arena, err));
    PD_TRY(pd_scratch_take(e, arena, err));
    PD_TRY(pd_state_files_plan(e, &state_bytes, err));
    PD_TRY(pd_scratch_plan(e, &scratch_bytes, &scratch_file_bytes, err));
    pd_arena_note(arena, PD_MEMORY_OPTIMIZER, state_bytes);
    pd_arena_note(arena, PD_MEMORY_BUFFERS, scratch_bytes);
    return PD_OK;
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

/* Tensor cores of older GPUs know no fp8, and anything else in their place would be slower than bf16. */
pd_status pd_check_fp8(const struct pd_config *c, const char *name, uint32_t capability, struct pd_error *err)
{
    if (c->numerics.linears != PD_LINEARS_FP8 || capability >= CAPABILITY_FP8) return PD_OK;
    PD_FAIL(err, PD_UNSUPPORTED,
            "numerics.linears is fp8, which needs a GPU of compute capability 8.9, and %s has %u.%u; say "
            "numerics.linears=precision or run.device=cpu",
            name, capability / 10, capability % 10);
}

static pd_status build_math(struct pd_engine *e, struct pd_arena *arena, struct pd_error *err)
{
    const struct pd_config *c = e->options.config;
    const struct pd_rank_device *device = e->options.device;
    if (!e->options.is_gpu)
        return pd_math_cpu_new(e->pool, e->options.threads, c->numerics.mode, PD_ISA_AUTO, arena, &e->math, err);
    if (device) PD_TRY(pd_check_fp8(c, device->dev->description, device->dev->capability, err));
    const struct pd_attention attention = largest_attention(e);
    const struct pd_math_cuda_options options = {.stream =
                                                     device ? pd_dev_stream_handle(device->dev, device->compute) : NULL,
                                                 .mode = c->numerics.mode,
                                                 .any_shape = c->numerics.virtual_tp > 1 || c->numerics.virtual_sp > 1,
                                                 .graphs = keeps_blocks(e),
                                                 .attention = attention.heads ? &attention : NULL,
                                                 .spans = device ? device->spans : NULL,
                                                 .lane = device ? device->compute : NULL};
    return pd_math_cuda_new(&options, arena, &e->math, err);
}

static pd_status build_mirror(struct pd_engine *e, struct pd_arena *arena, struct pd_error *err)
{
    float *state[PD_KIND_COUNT];
    if (!e->options.is_gpu || e->options.config->offload.optimizer != PD_PLACE_DEVICE) return PD_OK;
    for (int kind = 0; kind < PD_KIND_COUNT; kind++)
        state[kind] = pd_zero_state(e->zero, kind);
    return pd_state_mirror_init(&e->mirror, e->options.device, state, pd_zero_held_elements(e->zero) * sizeof(float), arena,
                                err);
}

/* Sums that leave a GPU for the host, of which the configuration alone does not tell. */
static pd_status check_order(const struct pd_engine *e, struct pd_error *err)
{
    if (!pd_leaves_device(&e->options, e->options.config->offload.gradients) || e->is_breadth_first) return PD_OK;
    PD_FAIL(err, PD_INVALID,
            "offload.gradients is %s and micro-batches follow each other, so that sums would travel once a micro-batch; use "
            "layout.order=breadth_first and layout.pp=1, or offload.gradients=device",
            e->options.config->offload.gradients == PD_PLACE_NVME ? "nvme" : "cpu");
}

static uint64_t product_side(const struct pd_config *c)
{
    return c->model.hidden < PRODUCT_SIDE_MAX ? c->model.hidden : PRODUCT_SIDE_MAX;
}

uint64_t pd_engine_product_bytes(const struct pd_engine *e)
{
    const struct pd_config *c = e->options.config;
    return 3 * product_side(c) * product_side(c) * pd_dtype_bytes(c->numerics.precision);
}

struct pd_gemm pd_engine_product(const struct pd_engine *e)
{
    const uint64_t side = product_side(e->options.config), bytes = pd_engine_product_bytes(e) / 3;
    const enum pd_dtype dtype = e->options.config->numerics.precision;
    char *a = e->product;
    return (struct pd_gemm){.m = side,
                            .n = side,
                            .k = side,
                            .a = {a, dtype, side},
                            .b = {a + bytes, dtype, side},
                            .c = {a + 2 * bytes, dtype, side}};
}

/* In the memory of the gradients, of which there are none yet, where there is enough of it. */
static void take_product(struct pd_engine *e, struct pd_arena *arena)
{
    if (!e->options.is_gpu) return;
    const uint64_t bytes = pd_engine_product_bytes(e);
    e->product = bytes <= pd_zero_gradient_bytes(e->zero) ? pd_zero_gradient(e->zero)
                                                          : pd_arena_take(arena, PD_MEMORY_BUFFERS, bytes);
}

static pd_status build(struct pd_engine *e, struct pd_arena *arena, struct pd_error *err)
{
    const struct pd_config *c = e->options.config;
    PD_TRY(build_math(e, arena, err));
    const struct pd_zero_options zero = zero_options_of(e);
    PD_TRY(pd_zero_new(e->options.model, &zero, &e->grid, e->math, arena, &e->zero, err));
    take_product(e, arena);
    PD_TRY(build_model(e, arena, err));
    PD_TRY(build_mirror(e, arena, err));
    e->squares_by_block = pd_leaves_device(&e->options, c->offload.gradients);
    e->row_sums = pd_arena_take(arena, PD_MEMORY_BUFFERS, pd_optimizer_norm_rows(e) * sizeof(double));
    e->squares = e->read_squares = pd_arena_take(arena, PD_MEMORY_BUFFERS, sizeof *e->squares);
    if (e->options.is_gpu) e->read_squares = pd_arena_take_host(arena, PD_MEMORY_BUFFERS, sizeof *e->squares);
    e->io_bytes = c->offload.optimizer == PD_PLACE_NVME ? c->offload.buffer_bytes / PD_ARENA_ALIGN * PD_ARENA_ALIGN
                                                        : io_bytes_of(e->options.model, &e->grid.layout);
    e->io_buffers = pd_arena_take_host(arena, PD_MEMORY_BUFFERS, e->io_bytes);
    if (pd_host_state_is_wanted(&e->options)) PD_TRY(pd_host_state_new(e, arena, &e->host_state, err));
    pd_arena_note(arena, PD_MEMORY_BUFFERS, pd_grid_bytes(&e->grid.layout, e->options.rank, are_processes(c)));
    if (e->options.is_gpu) pd_arena_note_library(arena, pd_grid_nccl_bytes(&e->grid.layout, e->options.rank));
    pd_arena_note(arena, PD_MEMORY_BUFFERS, pd_comm_bytes(e->options.world, are_processes(c))); /* of background saves */
    /* Tiers filled from others, and other hosts. */
    const uint32_t tiers = c->checkpoint.tiers_count;
    const uint64_t copies = (tiers > 1 ? tiers - 1 : 0) + (tiers > 0 && c->checkpoint.tiers[0].replicas > 0);
    pd_arena_note(arena, PD_MEMORY_BUFFERS,
                  copies * (pd_comm_bytes(e->options.world, are_processes(c)) + PD_TIERS_STAGING_BYTES));
    return take_files(e, arena, err);
}

static pd_status lay_out(struct pd_engine *e, struct pd_error *err)
{
    const struct pd_engine_options *o = &e->options;
    if (o->laid_out)
        e->laid_out = *o->laid_out;
    else
        PD_TRY(pd_lay_out_given(o->config, o->model, o->world, &e->laid_out, err));
    const uint32_t dp = e->laid_out.layout.dp;
    if (dp > e->micro_batches)
        PD_FAIL(err, PD_INVALID, "layout: dp %u for %s a step; use dp %u at most, or lower batch.micro_batch", dp,
                pd_counted(e->micro_batches, "micro-batch").text, e->micro_batches);
    return pd_grid_init(&e->laid_out.layout, o->rank, e->comm, &e->grid, err);
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
    e->micro_batches = c->batch.sequences / c->batch.micro_batch;
    e->loss_scale = c->numerics.precision == PD_F16 ? c->numerics.loss_scale : 1.0;
    pd_status st = lay_out(e, err);
    e->options.laid_out = NULL;
    if (!st) st = describe_chunks(e, err);
    if (!st) st = check_order(e, err);
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
    pd_pipeline_free(e->pipeline);
    pd_transformer_free(e->transformer);
    pd_state_mirror_deinit(&e->mirror);
    pd_host_state_free(e->host_state);
    pd_zero_free(e->zero);
    pd_math_free(e->math);
    pd_schedule_deinit(&e->schedule);
    pd_grid_deinit(&e->grid);
    free(e->chunks);
    free(e->dstreams);
    free(e);
}

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

/* As the host reads and writes it. */
static float *state_of(struct pd_engine *e, enum pd_kind kind)
{
    return e->mirror.state[kind] ? e->mirror.state[kind] : pd_zero_state(e->zero, kind);
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
                      state_of(job->engine, PD_PARAM) + b->offset);
}

pd_status pd_engine_init_state(struct pd_engine *e, struct pd_error *err)
{
    struct init_job job = {e, e->options.config->run.seed};
    pd_parallel(e->pool, pd_zero_box_count(e->zero), init_box, &job);
    uint64_t bytes = pd_zero_held_elements(e->zero) * sizeof(float);
    memset(state_of(e, PD_EXP_AVG), 0, bytes);
    memset(state_of(e, PD_EXP_AVG_SQ), 0, bytes);
    if (e->mirror.device) PD_TRY(pd_state_mirror_in(&e->mirror, err));
    return pd_zero_refresh_compute(e->zero, err);
}

/* First of the boxes, which come in table order, whose tensor is `tensor` or later. */
static uint32_t first_box_of(const struct pd_zero *zero, uint32_t tensor)
{
    const struct pd_zero_box *boxes = pd_zero_boxes(zero);
    uint32_t low = 0, high = pd_zero_box_count(zero);
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (boxes[middle].tensor < tensor)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const struct pd_zero_box *pd_engine_owned_box(const struct pd_engine *e, uint32_t tensor, uint32_t box)
{
    const struct pd_zero_box *boxes = pd_zero_boxes(e->zero);
    const uint32_t count = pd_zero_box_count(e->zero);
    for (uint32_t i = first_box_of(e->zero, tensor); i < count && boxes[i].tensor == tensor; i++)
        if (boxes[i].owned && boxes[i].number == box) return &boxes[i];
    PD_CHECK(!"a box that this rank owns");
    return NULL;
}

void *pd_engine_box_data(struct pd_engine *e, uint32_t tensor, enum pd_kind kind, uint32_t box)
{
    return state_of(e, kind) + pd_engine_owned_box(e, tensor, box)->offset;
}

bool pd_engine_boxes_are_apart(const struct pd_engine *e)
{
    return e->mirror.device != NULL;
}

pd_status pd_engine_boxes_begin(struct pd_engine *e, struct pd_error *err)
{
    return e->mirror.device ? pd_state_mirror_begin_out(&e->mirror, err) : PD_OK;
}

pd_status pd_engine_boxes_wait(struct pd_engine *e, struct pd_error *err)
{
    return e->mirror.device ? pd_state_mirror_wait_out(&e->mirror, err) : PD_OK;
}

pd_status pd_engine_loaded(struct pd_engine *e, struct pd_error *err)
{
    if (e->mirror.device) PD_TRY(pd_state_mirror_in(&e->mirror, err));
    PD_TRY(pd_zero_share_state(e->zero, err));
    return pd_zero_refresh_compute(e->zero, err);
}

void pd_engine_abort(struct pd_engine *e)
{
    pd_grid_abort(&e->grid);
    if (e->zero) pd_zero_settle(e->zero);
    if (e->pipeline) pd_pipeline_settle(e->pipeline);
    if (e->transformer) pd_transformer_sync(e->transformer);
}
