#include "trainer/model/transformer.h"

#include "trainer/model/transformer_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- layout ---- */

static pd_status pieces_init(struct pd_transformer *t, struct pd_error *err)
{
    struct pd_sequence_parallel *sp = &t->sp;
    const struct pd_transformer_options *o = &t->options;
    sp->pieces = pd_partition_piece_count(&t->partition);
    sp->total = pd_partition_piece_total(&t->partition);
    sp->by_parts = t->partition.virtual_sp > 1;
    sp->by_heads = pd_partition_exchanges_heads(&t->model->config, &t->partition, o->length);
    PD_CHECK(o->length >= sp->total && (sp->pieces == 1 || o->take_piece || !o->backward));
    sp->row = calloc(sp->pieces + 1, sizeof *sp->row);
    sp->rows = calloc(sp->pieces, sizeof *sp->rows);
    sp->place = calloc(sp->total, sizeof *sp->place);
    sp->first = calloc(2 * t->partition.sp, sizeof *sp->first);
    if (!sp->row || !sp->rows || !sp->place || !sp->first) PD_FAIL(err, PD_NO_MEMORY, "model: no memory for pieces");
    sp->last = sp->first + t->partition.sp;
    for (uint32_t piece = 0; piece < sp->total; piece++) {
        uint32_t rank = pd_partition_piece_owner(&t->partition, piece);
        sp->place[piece] = PD_NOT_HELD;
        sp->first[rank] = sp->last[rank] ? sp->first[rank] : piece + 1;
        sp->last[rank] = piece + 1;
        struct pd_range r = pd_partition_piece(&t->partition, o->length, piece);
        if (o->sequences * (r.end - r.begin) > sp->largest) sp->largest = o->sequences * (r.end - r.begin);
    }
    for (uint32_t rank = 0; rank < t->partition.sp; rank++)
        sp->first[rank]--, sp->last[rank]--;
    for (uint32_t place = 0; place < sp->pieces; place++) {
        uint32_t piece = pd_partition_piece_at(&t->partition, place);
        struct pd_range r = pd_partition_piece(&t->partition, o->length, piece);
        sp->place[piece] = place;
        sp->rows[place] = o->sequences * (r.end - r.begin);
        sp->row[place + 1] = sp->row[place] + sp->rows[place];
    }
    t->rows = sp->row[sp->pieces];
    return PD_OK;
}

/* The first blocks of a rank, in order of its chunks: with several micro-batches between forward and backward, the first
 * chunk holds the most. */
static void set_recompute(struct pd_transformer *t, const struct pd_stage *chunk, uint32_t *blocks)
{
    for (uint32_t b = chunk->first_block; b < chunk->first_block + chunk->block_count; b++) {
        const bool is_recomputed = (*blocks)++ < t->options.recompute_layers;
        t->held[b].recompute = !t->options.backward ? PD_RECOMPUTE_FULL
                               : is_recomputed      ? t->options.recompute
                                                    : PD_RECOMPUTE_NONE;
    }
}

static pd_status chunks_init(struct pd_transformer *t, struct pd_error *err)
{
    const uint32_t layers = t->model->config.layers, one = 1;
    const struct pd_stage whole = {0, layers, true, true};
    const uint32_t count = t->options.chunk_count ? t->options.chunk_count : 1;
    const struct pd_stage *chunks = t->options.chunk_count ? t->options.chunks : &whole;
    const uint32_t *depth = t->options.chunk_count ? t->options.depth : &one;
    uint32_t places = 0, blocks = 0;
    for (uint32_t unit = 0; unit <= layers; unit++)
        t->held[unit].chunk = PD_NOT_HELD;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t units = chunks[i].block_count + chunks[i].has_head;
        PD_CHECK(depth[i] > 0 && chunks[i].first_block + units <= layers + 1);
        if (depth[i] > t->input_count) t->input_count = depth[i];
        for (uint32_t u = chunks[i].first_block; u < chunks[i].first_block + units; u++, places += depth[i])
            t->held[u] = (struct pd_held){.chunk = i, .depth = depth[i], .base = places};
        set_recompute(t, &chunks[i], &blocks);
        t->has_embedding |= chunks[i].has_embedding;
        t->has_head |= chunks[i].has_head;
        t->has_blocks |= chunks[i].block_count > 0;
    }
    t->place_count = places;
    t->stream = calloc(places + 1, sizeof *t->stream);
    t->blocks = calloc(places + 1, sizeof *t->blocks);
    t->inputs = calloc(t->input_count, sizeof *t->inputs);
    if (!t->stream || !t->blocks || !t->inputs)
        PD_FAIL(err, PD_NO_MEMORY, "model: no memory for the tables of %u places", places);
    return PD_OK;
}

/* A chunk has one part of queries and at most two each of keys and values; another chunk may own the outer parts. */
static pd_status fp8_init(struct pd_transformer *t, struct pd_error *err)
{
    struct pd_fp8_linears *f = &t->fp8;
    const uint32_t experts = t->model->config.experts ? pd_experts_here(t) : 0;
    f->is_on = t->options.fp8_linears;
    if (!f->is_on) return PD_OK;
    if (t->options.keeps_codes) {
        PD_CHECK(t->partition.virtual_tp == 1 && t->partition.virtual_sp == 1);
        f->kept = calloc(t->model->config.layers, sizeof *f->kept);
        if (experts) f->kept_experts = calloc((uint64_t)t->model->config.layers * experts * 2, sizeof *f->kept_experts);
        if (!f->kept || (experts && !f->kept_experts)) PD_FAIL(err, PD_NO_MEMORY, "model: no memory for the tables of fp8");
    }
    f->part_capacity = 5 * t->tp.chunks + 4;
    f->scales_capacity = (f->part_capacity + 1) * (t->sp.pieces + 1);
    f->parts = calloc(f->part_capacity, sizeof *f->parts);
    f->heads = calloc(f->part_capacity, sizeof *f->heads);
    f->row = calloc(t->sp.pieces, sizeof *f->row);
    f->rows = calloc(t->sp.pieces, sizeof *f->rows);
    if (!f->parts || !f->heads || !f->row || !f->rows) PD_FAIL(err, PD_NO_MEMORY, "model: no memory for the tables of fp8");
    return PD_OK;
}

static pd_status expert_counts_init(struct pd_transformer *t, struct pd_error *err)
{
    const struct pd_model_config *c = &t->model->config;
    if (!c->experts) return PD_OK;
    t->expert_counts.tokens = calloc(c->layers * (c->experts + 1ull), sizeof *t->expert_counts.tokens);
    if (!t->expert_counts.tokens)
        PD_FAIL(err, PD_NO_MEMORY, "model: no memory to count the tokens of %u experts", c->experts);
    return PD_OK;
}

struct pd_expert_counts *pd_transformer_expert_counts(struct pd_transformer *t)
{
    return t->expert_counts.tokens ? &t->expert_counts : NULL;
}

static pd_status tables_init(struct pd_transformer *t, struct pd_error *err)
{
    t->held = calloc(t->model->config.layers + 1, sizeof *t->held);
    if (!t->held) PD_FAIL(err, PD_NO_MEMORY, "model: no memory for the tables of %u blocks", t->model->config.layers);
    const struct pd_model_config *c = &t->model->config;
    struct pd_share *s = &t->share;
    s->heads = pd_partition_units(&t->partition, c->heads);
    s->kv_needed = pd_partition_kv_needed(c, s->heads);
    s->kv_computed = pd_partition_kv_computed(c, s->heads);
    s->ffn = pd_partition_units(&t->partition, c->ffn);
    s->vocab = pd_partition_units(&t->partition, c->vocab);
    const struct pd_range expert = pd_partition_units(&t->partition, c->expert_ffn),
                          shared = pd_partition_units(&t->partition, pd_model_shared_ffn(c));
    s->expert_columns = c->experts ? expert.end - expert.begin : 0;
    s->shared_columns = shared.end - shared.begin;
    PD_TRY(expert_counts_init(t, err));
    s->q_columns = (s->heads.end - s->heads.begin) * c->head_size;
    s->k_columns = (s->kv_needed.end - s->kv_needed.begin) * c->head_size;
    s->dk_columns = (s->kv_computed.end - s->kv_computed.begin) * c->head_size;
    s->ffn_columns = s->ffn.end - s->ffn.begin;
    s->up_columns = t->family->up_matrices * s->ffn_columns;
    s->vocab_columns = s->vocab.end - s->vocab.begin;
    s->kv_is_shared = pd_partition_kv_is_shared(c, &t->partition);
    PD_TRY(pieces_init(t, err));
    PD_TRY(chunks_init(t, err));
    struct pd_tensor_parallel *tp = &t->tp;
    tp->chunks = pd_partition_chunk_count(&t->partition);
    tp->first_chunk = pd_partition_first_chunk(&t->partition);
    uint32_t parts = tp->chunks > t->partition.tp ? tp->chunks : t->partition.tp;
    tp->terms = calloc((uint64_t)tp->chunks * PD_CHUNK_TERMS, sizeof *tp->terms);
    tp->parts = calloc(parts, sizeof *tp->parts);
    if (!tp->terms || !tp->parts) PD_FAIL(err, PD_NO_MEMORY, "model: no memory for the tables of %u chunks", tp->chunks);
    pd_rows_init(t);
    PD_TRY(pd_activations_new(t, err));
    return fp8_init(t, err);
}

pd_status pd_transformer_new(const struct pd_model *model, struct pd_math *math,
                             const struct pd_transformer_options *options, struct pd_arena *arena,
                             struct pd_transformer **ret_transformer, struct pd_error *err)
{
    struct pd_transformer *t = calloc(1, sizeof *t);
    if (!t) PD_FAIL(err, PD_NO_MEMORY, "model: no memory");
    t->model = model;
    t->math = math;
    t->options = *options;
    if (!t->options.ep) t->options.ep = 1;
    t->partition = options->partition;
    t->family = pd_family_at(model->config.family);
    t->element_bytes = pd_dtype_bytes(options->dtype);
    pd_status st = tables_init(t, err);
    if (st) {
        pd_transformer_free(t);
        return st;
    }
    st = pd_transformer_take(t, arena, err);
    pd_activations_take(t, arena);
    if (st) {
        pd_transformer_free(t);
        return st;
    }
    *ret_transformer = t;
    return PD_OK;
}

#define TRANSFERS 13

static void list_transfers(struct pd_transformer *t, struct pd_peer_transfer *ret_all[TRANSFERS])
{
    struct pd_peer_transfer *all[] = {
        &t->tp.sums[0],    &t->tp.sums[1],     &t->tp.slices[0],   &t->tp.slices[1],   &t->tp.kv,
        &t->tp.loss,       &t->tp.embedding,   &t->sp.transfer[0], &t->sp.transfer[1], &t->head_norms.transfer,
        &t->shared.gather, &t->experts.travel, &t->experts.meeting};
    _Static_assert(sizeof all / sizeof all[0] == TRANSFERS, "one of each");
    memcpy(ret_all, all, sizeof all);
}

void pd_transformer_sync(struct pd_transformer *t)
{
    struct pd_peer_transfer *all[TRANSFERS];
    struct pd_error ignored;
    list_transfers(t, all);
    for (size_t i = 0; i < TRANSFERS; i++)
        if (pd_peer_transfer_wait(all[i], &ignored)) continue;
}

void pd_transformer_rehearse(struct pd_transformer *t, bool on)
{
    struct pd_peer_transfer *all[TRANSFERS];
    list_transfers(t, all);
    t->rehearses = on;
    for (size_t i = 0; i < TRANSFERS; i++)
        all[i]->is_rehearsed = on;
}

void pd_transformer_free(struct pd_transformer *t)
{
    if (!t) return;
    pd_transformer_sync(t);
    free(t->held);
    free(t->stream);
    free(t->blocks);
    free(t->inputs);
    pd_activations_free(t);
    free(t->fp8.parts);
    free(t->fp8.kept);
    free(t->fp8.kept_experts);
    free(t->fp8.row);
    free(t->fp8.rows);
    free(t->fp8.heads);
    free(t->tp.terms);
    free((void *)t->tp.parts);
    free(t->sp.row);
    free(t->sp.rows);
    free(t->sp.place);
    free(t->sp.first);
    free(t->expert_counts.tokens);
    free(t);
}

uint64_t pd_transformer_rows(const struct pd_transformer *t)
{
    return t->rows;
}

uint64_t pd_transformer_gradient_bytes(const struct pd_transformer *t)
{
    return t->rows * t->model->config.hidden * t->element_bytes;
}

struct pd_micro_batch_input *pd_transformer_input(struct pd_transformer *t, uint32_t slot)
{
    return &t->inputs[slot % t->input_count].host;
}

struct pd_micro_batch_input *pd_transformer_device_input(struct pd_transformer *t, uint32_t slot)
{
    return &t->inputs[slot % t->input_count].device;
}

static const char the_caller[] = "the caller", the_copy[] = "the copy to the device";

pd_status pd_transformer_input_begin(struct pd_transformer *t, uint32_t slot, struct pd_micro_batch_input *ret_input,
                                     struct pd_error *err)
{
    struct pd_input_slot *s = &t->inputs[slot % t->input_count];
    if (s->is_copying) {
        PD_TRY(pd_math_reach(t->math, &s->copied, err));
        pd_owner_release(&s->owner, the_copy);
        s->is_copying = false;
    }
    pd_owner_acquire(&s->owner, the_caller);
    *ret_input = s->host;
    return PD_OK;
}

static bool gathers_embedding(const struct pd_transformer *t)
{
    return t->has_embedding && t->partition.tp > 1;
}

static pd_status copy_to_device(struct pd_transformer *t, const struct pd_input_slot *s, struct pd_error *err)
{
    const struct pd_micro_batch_input *to = &s->device, *from = &s->host;
    const uint64_t bytes = t->rows * sizeof(int32_t);
    PD_TRY(pd_math_copy(t->math, to->tokens, from->tokens, bytes, err));
    PD_TRY(pd_math_copy(t->math, to->targets, from->targets, bytes, err));
    PD_TRY(pd_math_copy(t->math, to->positions, from->positions, bytes, err));
    PD_TRY(pd_math_copy(t->math, to->first, from->first, bytes, err));
    if (!gathers_embedding(t)) return PD_OK;
    PD_TRY(pd_math_copy(t->math, s->device_order.tokens, s->host_order.tokens, bytes, err));
    PD_TRY(pd_math_copy(t->math, s->device_order.positions, s->host_order.positions, bytes, err));
    return pd_math_copy(t->math, s->device_order.row, s->host_order.row, bytes, err);
}

pd_status pd_transformer_input_filled(struct pd_transformer *t, uint32_t slot, struct pd_error *err)
{
    struct pd_input_slot *s = &t->inputs[slot % t->input_count];
    if (t->options.on_device && gathers_embedding(t)) pd_embedding_order(t, slot);
    pd_owner_release(&s->owner, the_caller);
    if (!t->options.on_device) return PD_OK;
    pd_owner_acquire(&s->owner, the_copy);
    s->is_copying = true;
    PD_TRY(copy_to_device(t, s, err));
    return pd_math_mark(t->math, &s->copied, err);
}

pd_status pd_transformer_stream(struct pd_transformer *t, uint32_t slot, uint32_t block, void **ret_stream,
                                struct pd_error *err)
{
    return pd_activations_input(t, slot, block, ret_stream, err);
}

void pd_transformer_set_adds(struct pd_transformer *t, bool adds)
{
    PD_CHECK(!adds || (t->options.may_add && t->sp.pieces == 1));
    t->adds = adds;
}

void pd_transformer_set_sources(struct pd_transformer *t, float *const *sources)
{
    t->experts.sources = sources;
}

void pd_transformer_set_dstream(struct pd_transformer *t, void *dstream)
{
    t->dstream = dstream;
}

/* ---- embedding ---- */

static struct pd_embedding embedding_of(struct pd_transformer *t, uint32_t slot)
{
    const struct pd_micro_batch_input *input = pd_transformer_device_input(t, slot);
    return (struct pd_embedding){.rows = t->rows,
                                 .columns = t->model->config.hidden,
                                 .vocab = t->share.vocab_columns,
                                 .dtype = t->options.dtype,
                                 .first_token = (int32_t)t->share.vocab.begin,
                                 .tokens = input->tokens,
                                 .positions = input->positions,
                                 .context = t->model->config.context};
}

pd_status pd_transformer_embed(struct pd_transformer *t, uint32_t slot, void *const *weights, struct pd_error *err)
{
    struct pd_embedding e = embedding_of(t, slot);
    e.token_table = weights[0];
    e.position_table = t->family->positions == PD_POSITIONS_LEARNED ? weights[1] : NULL;
    PD_TRY(pd_activations_input(t, slot, 0, &e.out, err));
    if (t->partition.tp == 1) return pd_embedding_forward(t->math, &e, err);
    if (!t->options.on_device) pd_embedding_order(t, slot);
    return pd_embedding_gather(t, slot, &e, err);
}

pd_status pd_transformer_embed_backward(struct pd_transformer *t, uint32_t slot, float *const *gradients, void *dstream,
                                        struct pd_error *err)
{
    struct pd_embedding e = embedding_of(t, slot);
    e.dout = dstream;
    e.dtoken_table = e.vocab ? gradients[0] : NULL;
    e.dposition_table = t->family->positions == PD_POSITIONS_LEARNED ? gradients[1] : NULL;
    e.adds = t->adds;
    for (uint32_t place = 0; place < t->sp.pieces; place++) {
        e.rows = t->sp.rows[place];
        PD_TRY(pd_embedding_backward(t->math, &e, err));
        if (e.dtoken_table) PD_TRY(pd_take_piece(t, e.dtoken_table, e.vocab * e.columns, err));
        if (e.dposition_table) PD_TRY(pd_take_piece(t, e.dposition_table, e.context * e.columns, err));
        e.tokens += e.rows, e.positions += e.rows;
        e.dout = (const char *)e.dout + e.rows * e.columns * t->element_bytes;
    }
    return PD_OK;
}
