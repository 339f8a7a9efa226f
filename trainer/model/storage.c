/* Allocates all of a transformer's memory from the arena. */
#include "ckpt/base/checked.h"
#include "trainer/model/transformer_internal.h"

#define LOGITS_BYTES_MAX (128ull << 20)
#define LOGITS_BYTES_MAX_DEVICE (2ull << 30)
#define LOGITS_SHARE_OF_COLUMNS 4 /* of these bytes, if only some columns are held, with sums for all rows */

static void *storage_take(struct pd_arena *arena, uint64_t elements, uint64_t element_bytes)
{
    return pd_arena_take(arena, PD_MEMORY_ACTIVATIONS, elements * element_bytes);
}

static void *take_host(struct pd_arena *arena, uint64_t elements, uint64_t element_bytes)
{
    return pd_arena_take_host(arena, PD_MEMORY_ACTIVATIONS, elements * element_bytes);
}

static float *take_norm_mean(struct pd_transformer *t, struct pd_arena *arena)
{
    return pd_norm_is_layer(t) ? storage_take(arena, t->rows, sizeof(float)) : NULL;
}

/* A cursor over any memory: an arena, a region, or none, to count bytes. */
struct allocator {
    struct pd_arena *arena; /* NULL: base */
    char *base;
    uint64_t used;
};

static void *take_from(struct allocator *allocator, uint64_t elements, uint64_t element_bytes)
{
    if (allocator->arena) return storage_take(allocator->arena, elements, element_bytes);
    char *data = allocator->base ? allocator->base + allocator->used : NULL;
    allocator->used += (elements * element_bytes + 63) / 64 * 64;
    return data;
}

enum { DENSE = 1, EXPERTS = 2 };

static unsigned kinds_of(const struct pd_transformer *t, uint32_t block)
{
    return pd_model_has_experts(&t->model->config, block) ? EXPERTS : DENSE;
}

static uint64_t slots_of(const struct pd_transformer *t)
{
    return t->rows * t->model->config.experts_per_token;
}

/* Rows of any rank's micro-batch: pieces may differ by a position. */
static uint64_t most_rows(const struct pd_transformer *t)
{
    struct pd_partition p = t->partition;
    uint64_t most = 0;
    for (p.sp_rank = 0; p.sp_rank < p.sp; p.sp_rank++)
        most = pd_max_u64(most, (uint64_t)t->options.sequences * pd_partition_tokens(&p, t->options.length));
    return most;
}

/* Most rows that may arrive: every token of the ep ranks at as many experts as it chooses. */
static uint64_t all_arrivals(const struct pd_transformer *t)
{
    const struct pd_model_config *c = &t->model->config;
    return t->options.ep == 1 ? slots_of(t)
                              : t->options.ep * most_rows(t) * pd_min_u64(c->experts_per_token, pd_experts_here(t));
}

/* Rows of a slice. Experts that all get equally many tokens receive what a rank sends. */
static uint64_t arrivals_of(const struct pd_transformer *t)
{
    const uint64_t sent = most_rows(t) * t->model->config.experts_per_token;
    const uint32_t factor = t->options.ep_rows ? t->options.ep_rows : PD_EP_ROWS;
    return t->options.ep == 1 ? slots_of(t) : pd_min_u64(factor * sent, all_arrivals(t));
}

static void take_experts(const struct pd_transformer *t, struct pd_expert_activations *x, struct allocator *allocator)
{
    const struct pd_model_config *c = &t->model->config;
    const uint64_t slots = slots_of(t), arrivals = arrivals_of(t);
    x->scores = take_from(allocator, t->rows * c->experts, sizeof(float));
    x->lse = take_from(allocator, t->rows, sizeof(float));
    x->choice = take_from(allocator, slots, sizeof(int32_t));
    x->slots = take_from(allocator, slots, sizeof(int32_t));
    x->tokens = take_from(allocator, slots, sizeof(int32_t));
    x->first = x->device_first = take_from(allocator, c->experts * t->sp.pieces + 1ull, sizeof(int32_t));
    x->weights = take_from(allocator, slots, sizeof(float));
    x->kept.weights = x->weights;
    x->kept.arrived = NULL;
    if (t->options.ep > 1) {
        x->counts = x->device_counts =
            take_from(allocator, (uint64_t)t->options.ep * c->experts * t->sp.pieces, sizeof(int32_t));
        x->kept.weights = take_from(allocator, arrivals, sizeof(float));
        x->kept.arrived = take_from(allocator, arrivals * c->hidden, t->element_bytes);
    }
    x->kept.up = take_from(allocator, arrivals * 2 * t->share.expert_columns, t->element_bytes);
    x->shared_up = take_from(allocator, t->rows * 2 * t->share.shared_columns, t->element_bytes);
}

/* Kept unless recomputation is full. */
static void take_products(const struct pd_transformer *t, unsigned kinds, struct pd_block_activations *a,
                          struct allocator *allocator)
{
    const struct pd_share *s = &t->share;
    a->qkv = take_from(allocator, t->rows * (s->q_columns + 2 * s->k_columns), t->element_bytes);
    if (t->model->config.qk_norm) {
        const uint64_t heads = t->rows * ((s->q_columns + s->k_columns) / t->model->config.head_size);
        a->heads =
            t->options.backward ? take_from(allocator, t->rows * (s->q_columns + s->k_columns), t->element_bytes) : NULL;
        a->heads_rstd = take_from(allocator, heads, sizeof(float));
    }
    a->lse = take_from(allocator, t->rows * (s->heads.end - s->heads.begin), sizeof(float));
    a->attention = take_from(allocator, t->rows * s->q_columns, t->element_bytes);
    a->middle = take_from(allocator, t->shared.kept_rows * t->model->config.hidden, t->element_bytes);
    if (kinds & DENSE) a->up = take_from(allocator, t->rows * s->up_columns, t->element_bytes);
    if (kinds & EXPERTS) take_experts(t, &a->experts, allocator);
}

/* Kept only without recomputation: norms and activation functions recompute it. */
static void take_cheap(const struct pd_transformer *t, unsigned kinds, struct pd_block_activations *a,
                       struct allocator *allocator)
{
    if (t->partition.tp == 1) {
        const uint64_t stream = t->rows * t->model->config.hidden;
        a->mean1 = pd_norm_is_layer(t) ? take_from(allocator, t->rows, sizeof(float)) : NULL;
        a->rstd1 = take_from(allocator, t->rows, sizeof(float));
        a->norm1 = take_from(allocator, stream, t->element_bytes);
        a->mean2 = pd_norm_is_layer(t) ? take_from(allocator, t->rows, sizeof(float)) : NULL;
        a->rstd2 = take_from(allocator, t->rows, sizeof(float));
        a->norm2 = take_from(allocator, stream, t->element_bytes);
    } else {
        /* If ranks share rows, no rank keeps norm outputs. */
        a->mean1 = a->mean2 = t->shared.mean;
        a->rstd1 = a->rstd2 = t->shared.rstd;
        a->norm1 = a->norm2 = t->shared.norm;
    }
    if (kinds & DENSE) a->hidden = take_from(allocator, t->rows * t->share.ffn_columns, t->element_bytes);
    if (!(kinds & EXPERTS)) return;
    a->experts.kept.hidden = take_from(allocator, arrivals_of(t) * t->share.expert_columns, t->element_bytes);
    a->experts.shared_hidden = take_from(allocator, t->rows * t->share.shared_columns, t->element_bytes);
}

static void take_kept(const struct pd_transformer *t, enum pd_recompute recompute, unsigned kinds,
                      struct pd_block_activations *a, struct allocator *allocator)
{
    if (recompute == PD_RECOMPUTE_NONE) take_cheap(t, kinds, a, allocator);
    if (recompute != PD_RECOMPUTE_FULL) take_products(t, kinds, a, allocator);
}

static void take_again(const struct pd_transformer *t, enum pd_recompute recompute, unsigned kinds,
                       struct pd_block_activations *a, struct allocator *allocator)
{
    if (recompute != PD_RECOMPUTE_NONE) take_cheap(t, kinds, a, allocator);
    if (recompute == PD_RECOMPUTE_FULL) take_products(t, kinds, a, allocator);
}

bool pd_activations_are_away(const struct pd_transformer *t)
{
    return t->away.away_places > 0;
}

uint64_t pd_activations_carve(const struct pd_transformer *t, uint32_t block, struct pd_block_activations *a, char *base)
{
    const enum pd_recompute recompute = t->held[block].recompute;
    struct allocator allocator = {.base = base};
    const unsigned kinds = kinds_of(t, block);
    take_kept(t, recompute, kinds, a, &allocator);
    const uint64_t kept = allocator.used;
    if (t->away.regions_are_whole) take_again(t, recompute, kinds, a, &allocator);
    return kept;
}

/* The most recomputation of any block on this rank. */
static enum pd_recompute largest_work(const struct pd_transformer *t)
{
    enum pd_recompute largest = PD_RECOMPUTE_NONE;
    for (uint32_t block = 0; block < t->model->config.layers; block++)
        if (t->held[block].chunk != PD_NOT_HELD && t->held[block].recompute > largest) largest = t->held[block].recompute;
    return largest;
}

/* The first block that keeps everything, if it never has two micro-batches between forward and backward. It is written after
 * the forward of earlier blocks and read before their backward; meanwhile they use its memory as scratch. */
static uint32_t lender(const struct pd_transformer *t)
{
    uint32_t block = 0;
    while (block < t->model->config.layers &&
           (t->held[block].chunk == PD_NOT_HELD || t->held[block].recompute != PD_RECOMPUTE_NONE))
        block++;
    const struct pd_held *held = &t->held[block];
    const bool lends = block < t->model->config.layers && held->chunk == 0 && held->depth == 1;
    return lends && !pd_activations_are_away(t) ? block : PD_NOT_HELD;
}

static void take_blocks(struct pd_transformer *t, struct pd_arena *arena)
{
    struct allocator allocator = {.arena = arena};
    const uint32_t lends = lender(t);
    unsigned kinds = 0; /* of blocks here; they share `work` */
    if (!t->has_blocks) return;
    for (uint32_t block = 0; block < t->model->config.layers; block++)
        if (t->held[block].chunk != PD_NOT_HELD) kinds |= kinds_of(t, block);
    if (lends != PD_NOT_HELD)
        take_kept(t, PD_RECOMPUTE_NONE, kinds, &t->work, &allocator);
    else if (!t->away.regions_are_whole)
        take_again(t, largest_work(t), kinds, &t->work, &allocator);
    for (uint32_t block = 0; block < t->model->config.layers; block++) {
        const struct pd_held *held = &t->held[block];
        for (uint32_t i = 0; held->chunk != PD_NOT_HELD && i < held->depth; i++) {
            struct pd_block_activations *a = &t->blocks[held->base + i];
            *a = t->work;
            if (block != lends && !pd_activations_are_away(t))
                take_kept(t, held->recompute, kinds_of(t, block), a, &allocator);
        }
    }
}

/* Without a backward the inputs of a chunk's units alternate between two buffers. */
static void take_streams(struct pd_transformer *t, struct pd_arena *arena)
{
    const uint32_t layers = t->model->config.layers;
    for (uint32_t block = 0; block <= layers; block++) {
        const struct pd_held *held = &t->held[block];
        const struct pd_held *before = block >= 2 ? &t->held[block - 2] : NULL;
        bool again = !t->options.backward && before && before->chunk == held->chunk;
        for (uint32_t i = 0; held->chunk != PD_NOT_HELD && i < held->depth; i++)
            t->stream[held->base + i] =
                again ? t->stream[before->base + i]
                      : storage_take(arena, t->shared.kept_rows * t->model->config.hidden, t->element_bytes);
    }
}

static uint64_t columns_of_chunk(const struct pd_transformer *t)
{
    return (t->model->config.vocab + t->partition.virtual_tp - 1) / t->partition.virtual_tp;
}

/* On this rank, or on any that shares the vocabulary. */
static uint64_t columns_at_once(const struct pd_transformer *t, uint64_t columns)
{
    const uint64_t most_columns = t->options.logits_columns;
    return most_columns ? pd_min_u64(columns, pd_min_u64(most_columns, columns_of_chunk(t))) : columns;
}

/* Rows of logits held at once, the same on all tp ranks. On a CPU their number does not change a bit, since gradient chains
 * continue from one run of rows to the next. On a GPU it does, because tensor cores add up a run's rows before adding to the
 * sum, so there it must not depend on the layout. Each run also reads and writes the output matrix' whole gradient, so runs
 * are long. A micro-batch that needs no more memory in one run than in several (which need a sum beside them) is one run. */
static uint64_t rows_of_logits(const struct pd_transformer *t)
{
    /* A row of logits, and of chains of dnorm if these wait for all columns. On a GPU as if one rank had all chunks. */
    const uint64_t vocab = t->model->config.vocab, hidden = t->model->config.hidden;
    const uint64_t chunks = t->options.on_device ? t->partition.virtual_tp : t->tp.chunks;
    const uint64_t columns = columns_at_once(t, pd_min_u64(vocab, columns_of_chunk(t) * chunks));
    const uint64_t terms = t->options.logits_columns ? chunks * hidden * sizeof(float) : 0,
                   row = columns * pd_dtype_bytes(t->options.logits_dtype) + terms,
                   share = t->options.logits_columns ? LOGITS_SHARE_OF_COLUMNS : 1;
    const uint64_t bytes = (t->options.on_device ? LOGITS_BYTES_MAX_DEVICE : LOGITS_BYTES_MAX) / share;
    const uint64_t sum = (uint64_t)t->model->config.vocab * t->model->config.hidden * sizeof(float);
    if (t->options.on_device && t->sp.largest * row <= bytes + sum) return t->sp.largest;
    return pd_min_u64(t->sp.largest, pd_max_u64(bytes / row / 16 * 16, 16));
}

/* GPU products need rows aligned to 16 bytes, also for 16-bit gradients that overlay logits. */
static uint64_t width_of_logits(const struct pd_transformer *t)
{
    const uint64_t columns = columns_at_once(t, t->share.vocab_columns);
    return t->options.on_device ? (columns + 7) / 8 * 8 : columns;
}

static void take_head(struct pd_transformer *t, struct pd_arena *arena)
{
    if (!t->has_head) return;
    t->logits_rows = rows_of_logits(t);
    t->ld_logits = width_of_logits(t);
    t->head_mean = t->partition.tp > 1 ? t->shared.mean : take_norm_mean(t, arena);
    t->head_rstd = t->partition.tp > 1 ? t->shared.rstd : storage_take(arena, t->rows, sizeof(float));
    t->head_norm =
        t->partition.tp > 1 ? t->shared.norm : storage_take(arena, t->rows * t->model->config.hidden, t->element_bytes);
    t->logits = storage_take(arena, t->logits_rows * t->ld_logits, pd_dtype_bytes(t->options.logits_dtype));
    t->losses = storage_take(arena, t->rows, sizeof(float));
    if (t->options.logits_columns) {
        /* Values that wait for the other columns, if only some are held. */
        const uint64_t rows = t->tp.chunks * t->logits_rows;
        t->head_chunk_max = storage_take(arena, rows, sizeof(float));
        t->head_chunk_sum = storage_take(arena, rows, sizeof(float));
        if (t->options.backward) t->head_terms = storage_take(arena, rows * t->model->config.hidden, sizeof(float));
    }
    if (t->partition.tp == 1 && !t->options.logits_columns) return;
    const uint64_t all = t->logits_rows * t->partition.tp;
    const uint32_t peers = t->partition.tp - 1;
    t->tp.max = storage_take(arena, t->logits_rows, sizeof(float));
    t->tp.sum = storage_take(arena, t->logits_rows, sizeof(float));
    t->tp.target = storage_take(arena, t->logits_rows, sizeof(float));
    if (t->partition.tp == 1) return;
    t->tp.all_max = storage_take(arena, all, sizeof(float));
    t->tp.all_sum = storage_take(arena, all, sizeof(float));
    t->tp.all_target = storage_take(arena, all, sizeof(float));
    pd_peer_transfer_init(&t->tp.loss, t->options.tp, 2 * peers, 2 * peers, arena);
}

/* Weight and bias of a norm, or a bias before it is added. */
static uint64_t largest_vector(const struct pd_transformer *t)
{
    const struct pd_share *s = &t->share;
    uint64_t norm = pd_max_u64(2ull * t->model->config.hidden, t->model->config.head_size);
    norm = pd_max_u64(norm, pd_max_u64(t->model->config.experts, pd_has_wide_norms(t) ? s->q_columns : 0));
    return t->options.may_add ? pd_max_u64(norm, pd_max_u64(s->q_columns + 2 * s->k_columns, s->up_columns)) : norm;
}

static void take_backward(struct pd_transformer *t, struct pd_arena *arena)
{
    const struct pd_share *s = &t->share;
    if (!t->options.backward) return;
    t->dnorm = storage_take(arena, t->rows * t->model->config.hidden, t->element_bytes);
    t->vector = storage_take(arena, largest_vector(t), sizeof(float));
    if (t->options.may_add && t->has_head && t->logits_rows < t->sp.largest)
        t->matrix = storage_take(arena, s->vocab_columns * t->model->config.hidden, sizeof(float));
    if (!t->has_blocks) return;
    if (!t->model->config.experts || t->model->config.dense_blocks) {
        t->dup = storage_take(arena, t->rows * s->up_columns, t->element_bytes);
        t->dhidden = storage_take(arena, t->rows * s->ffn_columns, t->element_bytes);
    }
    t->dqkv = storage_take(arena, t->rows * (s->q_columns + 2 * s->dk_columns), t->element_bytes);
    t->dattention = storage_take(arena, t->rows * s->q_columns, t->element_bytes);
    t->delta = storage_take(arena, t->rows * (s->heads.end - s->heads.begin), sizeof(float));
}

/* Slices, and the rows of those after the first. */
static void take_slices(struct pd_transformer *t, struct pd_arena *arena)
{
    const struct pd_model_config *c = &t->model->config;
    struct pd_expert_work *x = &t->experts;
    const uint64_t bytes = t->element_bytes, again = x->is_sliced ? x->limit : 0;
    x->slice.begin = take_host(arena, t->options.ep, sizeof *x->slice.begin);
    x->slice.end = take_host(arena, t->options.ep, sizeof *x->slice.end);
    if (t->options.ep > 1) x->slice.own = take_host(arena, c->experts * t->sp.pieces + 1ull, sizeof(int32_t));
    x->again.arrived = storage_take(arena, again * c->hidden, bytes);
    x->again.weights = storage_take(arena, again, sizeof(float));
    x->again.up = storage_take(arena, again * 2 * t->share.expert_columns, bytes);
    x->again.hidden = storage_take(arena, again * t->share.expert_columns, bytes);
}

static void take_expert_sums(struct pd_transformer *t, struct pd_arena *arena)
{
    const struct pd_model_config *c = &t->model->config;
    struct pd_expert_work *x = &t->experts;
    x->losses = storage_take(arena, 1ull + t->sp.pieces, sizeof(double));
    x->widens = t->options.on_device && t->options.dtype != PD_F32;
    if (x->widens) x->wide_weight = storage_take(arena, (uint64_t)c->experts * c->hidden, sizeof(float));
    if (!t->options.on_device) return;
    x->firsts = take_host(arena, t->place_count * pd_expert_place_counts(t), sizeof(int32_t));
    x->zeros = take_host(arena, c->experts * (uint64_t)t->sp.pieces + 1, sizeof(int32_t));
    x->sums = storage_take(arena, 1, sizeof *x->sums);
    x->host_sums = take_host(arena, 1, sizeof *x->host_sums);
    x->ranges = storage_take(arena, c->layers, sizeof(float));
    x->host_ranges = take_host(arena, c->layers, sizeof(float));
}

/* Of one block's pass at a time. */
static void take_expert_work(struct pd_transformer *t, struct pd_arena *arena)
{
    const struct pd_model_config *c = &t->model->config;
    const uint64_t slots = slots_of(t), arrivals = arrivals_of(t), expert = t->share.expert_columns,
                   shared = t->share.shared_columns, bytes = t->element_bytes;
    const bool travels = t->options.ep > 1;
    struct pd_expert_work *x = &t->experts;
    if (!c->experts || !t->has_blocks) return;
    x->limit = arrivals;
    x->group_rows = most_rows(t);
    x->is_sliced = arrivals < all_arrivals(t);
    take_slices(t, arena);
    x->rows = storage_take(arena, slots * c->hidden, bytes);
    x->arrived = x->results = storage_take(arena, (x->is_sliced ? t->tp.chunks : 1) * slots * c->hidden, bytes);
    x->chains = storage_take(arena, t->tp.chunks * t->rows * c->hidden, sizeof(float));
    x->logits = storage_take(arena, t->rows * c->experts, sizeof(float));
    x->weights = storage_take(arena, slots, sizeof(float));
    x->bias = storage_take(arena, c->experts, sizeof(float));
    x->balance = storage_take(arena, c->experts, sizeof(float));
    take_expert_sums(t, arena);
    if (travels) {
        const uint32_t pieces = t->options.ep * (uint32_t)pd_max_u64(1 + t->tp.chunks, 3);
        x->arrived = storage_take(arena, arrivals * c->hidden, bytes);
        pd_peer_transfer_init(&x->travel, t->options.experts, pieces, pieces, arena);
    }
    if (!t->options.backward) return;
    x->scores = storage_take(arena, c->experts * t->sp.total, sizeof(float));
    x->tokens = storage_take(arena, c->experts * t->sp.total, sizeof(int32_t));
    if (t->partition.sp > 1)
        pd_peer_transfer_init(&x->meeting, t->options.sp, 2 * (t->partition.sp - 1), 2 * (t->partition.sp - 1), arena);
    if (c->z_loss > 0 && t->family->router == PD_ROUTER_SIGMOID)
        x->dlogits = storage_take(arena, t->rows * c->experts, sizeof(float));
    x->product = storage_take(arena, most_rows(t) * c->hidden, sizeof(float));
    x->arrived_dout = x->dout = storage_take(arena, slots * c->hidden, bytes);
    x->dup = storage_take(arena, arrivals * 2 * expert, bytes);
    x->dhidden = storage_take(arena, arrivals * expert, bytes);
    x->dshared_up = storage_take(arena, t->rows * 2 * shared, bytes);
    x->dshared_hidden = storage_take(arena, t->rows * shared, bytes);
    x->arrived_dweights = x->dweights = storage_take(arena, t->tp.chunks * slots, sizeof(float));
    x->dchosen = storage_take(arena, t->tp.chunks * slots, sizeof(float));
    if (!travels) return;
    x->arrived_dout = storage_take(arena, arrivals * c->hidden, bytes);
    x->arrived_dweights = storage_take(arena, t->tp.chunks * arrivals, sizeof(float));
}

static struct pd_micro_batch_input input_of(void *(*take_array)(struct pd_arena *, uint64_t, uint64_t),
                                            struct pd_arena *arena, uint64_t rows)
{
    struct pd_micro_batch_input input;
    input.tokens = take_array(arena, rows, sizeof(int32_t));
    input.targets = take_array(arena, rows, sizeof(int32_t));
    input.positions = take_array(arena, rows, sizeof(int32_t));
    input.first = take_array(arena, rows, sizeof(int32_t));
    return input;
}

static pd_status take_rope(struct pd_transformer *t, struct pd_arena *arena, struct pd_error *err)
{
    const uint64_t count = (uint64_t)t->options.length * t->model->config.head_size;
    t->cos_sin = storage_take(arena, count, sizeof(float));
    float *table = t->options.on_device ? take_host(arena, count, sizeof(float)) : t->cos_sin;
    if (pd_arena_is_dry(arena)) return PD_OK;
    pd_model_rope_table(&t->model->config, t->options.length, table);
    return t->options.on_device ? pd_math_copy(t->math, t->cos_sin, table, count * sizeof(float), err) : PD_OK;
}

static struct pd_token_order order_of(void *(*take_array)(struct pd_arena *, uint64_t, uint64_t), struct pd_arena *arena,
                                      uint64_t rows)
{
    struct pd_token_order order;
    order.tokens = take_array(arena, rows, sizeof(int32_t));
    order.positions = take_array(arena, rows, sizeof(int32_t));
    order.row = take_array(arena, rows, sizeof(int32_t));
    return order;
}

static void take_embedding(struct pd_transformer *t, struct pd_arena *arena)
{
    const uint32_t ranks = t->partition.tp;
    if (!t->has_embedding || ranks == 1) return;
    for (uint32_t i = 0; i < t->input_count; i++) {
        struct pd_input_slot *s = &t->inputs[i];
        s->host_order = order_of(take_host, arena, t->rows);
        if (t->options.on_device) s->device_order = order_of(storage_take, arena, t->rows);
        s->first_row = take_host(arena, 4 * (ranks + 1ull), sizeof *s->first_row);
    }
    t->tp.looked_up = storage_take(arena, t->rows * t->model->config.hidden, t->element_bytes);
    t->tp.embedded = storage_take(arena, t->shared.kept_rows * t->model->config.hidden, t->element_bytes);
    pd_peer_transfer_init(&t->tp.embedding, t->options.tp, ranks - 1, ranks - 1, arena);
}

/* ---- tensor parallel ---- */

/* The start of each rank's query heads shows which ranks add to a head's gradient. */
static void find_sharers(struct pd_transformer *t)
{
    const struct pd_model_config *c = &t->model->config;
    const struct pd_share *s = &t->share;
    const uint64_t group = c->heads / c->kv_heads;
    struct pd_partition other = t->partition;
    t->tp.kv_owner = PD_NOT_HELD;
    for (other.tp_rank = 0; other.tp_rank < other.tp; other.tp_rank++) {
        struct pd_range heads = pd_partition_units(&other, c->heads);
        struct pd_range computed = pd_partition_kv_computed(c, heads);
        if (heads.begin == heads.end) continue;
        uint64_t mine = s->kv_needed.begin;
        if (s->q_columns && mine < s->kv_computed.begin && computed.begin <= mine && mine < computed.end)
            t->tp.kv_owner = other.tp_rank;
        if (other.tp_rank > t->partition.tp_rank && heads.begin % group && s->kv_computed.begin < s->kv_computed.end &&
            heads.begin / group == s->kv_computed.end - 1)
            t->tp.kv_sharer_count++;
    }
}

static void take_kv(struct pd_transformer *t, struct pd_arena *arena)
{
    const uint64_t head = 2 * t->rows * t->model->config.head_size;
    struct pd_tensor_parallel *tp = &t->tp;
    if (!t->share.kv_is_shared || !t->options.backward || !t->has_blocks) return;
    find_sharers(t);
    tp->dk_partial = storage_take(arena, t->rows * t->share.k_columns, sizeof(float));
    tp->dv_partial = storage_take(arena, t->rows * t->share.k_columns, sizeof(float));
    tp->kv_send = storage_take(arena, tp->kv_owner == PD_NOT_HELD ? 0 : head, sizeof(float));
    tp->kv_own = storage_take(arena, tp->kv_sharer_count ? head : 0, sizeof(float));
    tp->kv_arrived = storage_take(arena, tp->kv_sharer_count * head, sizeof(float));
    pd_peer_transfer_init(&tp->kv, t->options.tp, 1, tp->kv_sharer_count, arena);
}

static void take_sums(struct pd_transformer *t, struct pd_arena *arena)
{
    struct pd_tensor_parallel *tp = &t->tp;
    const uint64_t hidden = t->model->config.hidden;
    const uint32_t ranks = t->partition.tp, peers = ranks - 1;
    if (tp->chunks > 1 || (ranks == 1 && t->sp.by_parts))
        tp->chunk_parts = storage_take(arena, tp->chunks * t->shared.window_rows * hidden, sizeof(float));
    if (ranks == 1) return;
    const uint64_t slice = (t->shared.window_rows + ranks - 1) / ranks;
    for (int i = 0; i < (t->shared.window_rows < t->rows ? 2 : 1); i++) {
        tp->subtree[i] = storage_take(arena, t->shared.window_rows * hidden, sizeof(float));
        tp->arrived[i] = storage_take(arena, ranks * slice * hidden, sizeof(float));
        pd_peer_transfer_init(&tp->sums[i], t->options.tp, peers, peers, arena);
        pd_peer_transfer_init(&tp->slices[i], t->options.tp, 2 * peers, 2 * peers, arena);
    }
}

/* Of `count` weights, `step` apart in `kept`. */
static void take_codes(struct pd_arena *arena, uint32_t count, uint64_t elements, uint32_t step, struct pd_fp8_kept *kept)
{
    uint8_t *codes = pd_arena_take(arena, PD_MEMORY_PARAMETERS, count * elements);
    uint8_t *across = pd_arena_take(arena, PD_MEMORY_PARAMETERS, count * elements);
    float *scales = pd_arena_take(arena, PD_MEMORY_PARAMETERS, count * PD_FP8_SCALE_FLOATS * sizeof(float));
    for (uint32_t i = 0; i < count && !pd_arena_is_dry(arena); i++)
        kept[(uint64_t)i * step] = (struct pd_fp8_kept){
            .codes = codes + i * elements, .across = across + i * elements, .scale = scales + i * PD_FP8_SCALE_FLOATS};
}

/* Codes of weights kept for a step, for all blocks of this rank. */
static void take_kept_codes(struct pd_transformer *t, struct pd_arena *arena)
{
    const struct pd_share *s = &t->share;
    const uint64_t hidden = t->model->config.hidden;
    const uint64_t columns[PD_FP8_LINEARS] = {
        [PD_FP8_QKV] = s->q_columns + 2 * s->k_columns,
        [PD_FP8_OUT] = s->q_columns,
        [PD_FP8_UP] = s->up_columns,
        [PD_FP8_DOWN] = s->ffn_columns,
    };
    const uint64_t shared[PD_FP8_LINEARS] = {
        [PD_FP8_QKV] = columns[PD_FP8_QKV],
        [PD_FP8_OUT] = columns[PD_FP8_OUT],
        [PD_FP8_UP] = 2 * s->shared_columns,
        [PD_FP8_DOWN] = s->shared_columns,
    };
    for (uint32_t block = 0; block < t->model->config.layers; block++) {
        const bool has_experts = pd_model_has_experts(&t->model->config, block);
        if (t->held[block].chunk == PD_NOT_HELD) continue;
        for (int i = 0; i < PD_FP8_LINEARS; i++)
            take_codes(arena, 1, hidden * (has_experts ? shared : columns)[i], 1, &t->fp8.kept[block][i]);
        if (!has_experts) continue;
        const uint32_t here = pd_experts_here(t);
        struct pd_fp8_kept *experts = t->fp8.kept_experts + 2ull * block * here;
        take_codes(arena, here, hidden * 2 * s->expert_columns, 2, experts);
        take_codes(arena, here, hidden * s->expert_columns, 2, experts + 1);
    }
}

/* Codes of one linear layer's operands, in forward or backward. */
static void take_fp8(struct pd_transformer *t, struct pd_arena *arena)
{
    struct pd_fp8_linears *f = &t->fp8;
    const struct pd_share *s = &t->share;
    const uint64_t hidden = t->model->config.hidden, gated = pd_max_u64(s->expert_columns, s->shared_columns),
                   in = pd_max_u64(pd_max_u64(hidden, gated), pd_max_u64(s->q_columns, s->ffn_columns));
    const uint64_t out =
        pd_max_u64(pd_max_u64(hidden, 2 * gated), pd_max_u64(s->q_columns + 2 * s->k_columns, s->up_columns));
    const uint64_t rows = t->model->config.experts ? pd_fp8_across_ld(t, most_rows(t)) : t->rows;
    if (!f->is_on || !t->has_blocks) return;
    f->x = storage_take(arena, rows * in, 1);
    if (f->kept)
        take_kept_codes(t, arena);
    else
        f->w = storage_take(arena, hidden * pd_max_u64(in, out), 1);
    f->dy = storage_take(arena, t->options.backward ? rows * out : 0, 1);
    f->dy_across = storage_take(arena, t->options.backward ? rows * out : 0, 1);
    f->scales = storage_take(arena, f->scales_capacity * PD_FP8_SCALE_FLOATS, sizeof(float));
}

/* ---- sequence parallel ---- */

/* Keys and values, or sums of heads, follow queries. */
static void take_heads(struct pd_transformer *t, struct pd_arena *arena)
{
    struct pd_sequence_parallel *sp = &t->sp;
    const struct pd_share *s = &t->share;
    const uint64_t ranks = t->partition.sp, heads = s->heads.end - s->heads.begin,
                   row = s->q_columns * t->element_bytes +
                         pd_max_u64(2 * s->k_columns * t->element_bytes, heads * sizeof(float));
    sp->acc = storage_take(arena, sp->largest * s->q_columns / ranks, sizeof(float));
    sp->acc2 = storage_take(arena, t->options.backward ? sp->largest * s->q_columns / ranks : 0, sizeof(float));
    sp->max = storage_take(arena, sp->largest * heads / ranks, sizeof(float));
    sp->sum = storage_take(arena, sp->largest * heads / ranks, sizeof(float));
    sp->packed = pd_arena_take(arena, PD_MEMORY_BUFFERS, t->rows * row);
    sp->passing = pd_arena_take(arena, PD_MEMORY_BUFFERS, t->rows * row);
    if (t->options.separate_documents) sp->all_first = storage_take(arena, ranks * t->rows, sizeof(int32_t));
    pd_peer_transfer_init(&sp->transfer[0], t->options.sp, 2 * (t->partition.sp - 1), 2 * (t->partition.sp - 1), arena);
}

static void take_pieces(struct pd_transformer *t, struct pd_arena *arena)
{
    struct pd_sequence_parallel *sp = &t->sp;
    const struct pd_share *s = &t->share;
    const uint64_t heads = s->heads.end - s->heads.begin;
    if (!sp->by_parts) return;
    if (!t->has_blocks) return;
    if (sp->by_heads) {
        take_heads(t, arena);
        return;
    }
    sp->acc = storage_take(arena, t->rows * s->q_columns, sizeof(float));
    if (t->options.backward) sp->acc2 = storage_take(arena, t->rows * s->q_columns, sizeof(float));
    sp->max = storage_take(arena, t->rows * heads, sizeof(float));
    sp->sum = storage_take(arena, t->rows * heads, sizeof(float));
    if (t->partition.sp == 1) return;
    uint64_t keys = sp->largest * 2 * s->k_columns * t->element_bytes;
    uint64_t queries = 2 * pd_round_up(sp->largest * s->q_columns * t->element_bytes, 64) +
                       3 * pd_round_up(sp->largest * pd_max_u64(heads, 1) * sizeof(float), 64);
    for (int i = 0; i < 2; i++) {
        sp->arrived[i] = pd_arena_take(arena, PD_MEMORY_BUFFERS, t->options.backward ? pd_max_u64(keys, queries) : keys);
        pd_peer_transfer_init(&sp->transfer[i], t->options.sp, 5 * (t->partition.sp - 1), 5, arena);
    }
}

uint64_t pd_transformer_stream_bytes(const struct pd_transformer *t)
{
    return t->shared.kept_rows * t->model->config.hidden * t->element_bytes;
}

uint32_t pd_transformer_place(const struct pd_transformer *t, uint32_t slot, uint32_t block)
{
    PD_CHECK(block <= t->model->config.layers && t->held[block].chunk != PD_NOT_HELD);
    return t->held[block].base + slot % t->held[block].depth;
}

pd_status pd_transformer_take(struct pd_transformer *t, struct pd_arena *arena, struct pd_error *err)
{
    for (uint32_t i = 0; i < t->input_count; i++) {
        t->inputs[i].host = input_of(take_host, arena, t->rows);
        t->inputs[i].device = t->options.on_device ? input_of(storage_take, arena, t->rows) : t->inputs[i].host;
    }
    PD_TRY(t->family->positions == PD_POSITIONS_ROPE ? take_rope(t, arena, err) : PD_OK);
    pd_rows_take(t, arena);
    take_blocks(t, arena);
    if (!pd_activations_are_away(t)) take_streams(t, arena);
    take_head(t, arena);
    take_backward(t, arena);
    take_expert_work(t, arena);
    take_kv(t, arena);
    pd_head_norms_take(t, arena);
    take_sums(t, arena);
    take_embedding(t, arena);
    take_fp8(t, arena);
    take_pieces(t, arena);
    return PD_OK;
}
