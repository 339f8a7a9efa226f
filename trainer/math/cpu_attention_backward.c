/* Causal attention, backward. With P = exp(S - lse), dP = dO V^T, delta = sum over D of dout out, dS = P (dP - delta):
 *
 *   dQ = scale dS K      dK = scale dS^T Q      dV = P^T dO
 *
 * Every element is one chain: dQ over ascending keys, dK and dV over ascending queries. With grouped heads the gradient of a
 * key-value head is a binary tree over its query heads (cpu_attention_tree.h). Two methods give these bits:
 *
 *   whole   one pass over the blocks of a head, query blocks outside, key blocks inside; the workspace holds dK and dV of
 *           the whole sequence. 5 products per pair of blocks. A task is a key-value head of a sequence.
 *   pieces  dQ per query block, then dK and dV per key block. 7 products, any length. A task is a block.
 *
 * Sizes and the number of threads select the method; the result is the same. Parts of a sequence use the second, one of its
 * halves per call; between calls the caller's arrays hold the chains. */
#include "trainer/math/cpu_attention_tree.h"

/* Blocks of a pair; the second letter means rows or lanes. */
struct backward_space {
    float q_rows[BLOCK * D_MAX], dout_rows[BLOCK * D_MAX];
    float k_rows[BLOCK * D_MAX], v_rows[BLOCK * D_MAX];
    float left_lanes[D_MAX * BLOCK], right_lanes[D_MAX * BLOCK]; /* q and dout, or k and v */
    float dq_lanes[D_MAX * BLOCK];
    float p[BLOCK * BLOCK], ds[BLOCK * BLOCK];
    float first[BLOCK], position[BLOCK], lse[BLOCK], delta[BLOCK]; /* of the queries */
    _Alignas(64) float sums[];                                     /* dK and dV: levels of the tree */
};
#define SUMS_BYTES (PD_CPU_WORKSPACE_BYTES - sizeof(struct backward_space))
_Static_assert(sizeof(struct backward_space) + UINT64_C(8) * LEVELS_MAX * BLOCK * D_MAX <= PD_CPU_WORKSPACE_BYTES,
               "pieces fit any head");

struct backward_job {
    const struct pd_math_cpu *cpu;
    const struct pd_attention *a;
    struct pd_cpu_queue queue;
};

static struct backward_space *space_of(const struct backward_job *job, uint64_t index)
{
    return (void *)(job->cpu->workspace + index * PD_CPU_WORKSPACE_BYTES);
}

V16_INLINE void delta_rows(enum pd_dtype dtype, const struct pd_attention *a, uint64_t row)
{
    uint64_t sequence = row / a->length, t = row % a->length;
    for (uint32_t head = 0; head < a->heads; head++) {
        uint64_t at = (row * a->heads + head) * a->head_size;
        v16 sum = v16_zero();
        V16_FOR(i, w, a->head_size,
                sum = v16_fma(v16_get_part(dtype, a->dout, at + i, w), v16_get_part(dtype, a->out, at + i, w), sum));
        a->delta[(sequence * a->heads + head) * a->length + t] = v16_sum(sum);
    }
}

static void delta_body(void *context, uint64_t index)
{
    const struct backward_job *job = context;
    PD_FOR_DTYPE(job->a->dtype, delta_rows, job->a, index);
}

static void load_queries(const struct head *h, uint32_t qb, struct backward_space *s)
{
    const struct pd_attention *a = h->a;
    uint32_t count = block_count(&h->queries, qb);
    uint64_t ld_out = (uint64_t)a->heads * h->d;
    rows_load(a->q, query_at(h, qb, a->ld_qkv), a->ld_qkv, h, count, s->q_rows);
    rows_load(a->dout, query_at(h, qb, ld_out), ld_out, h, count, s->dout_rows);
    for (uint32_t r = 0; r < BLOCK; r++) {
        bool there = r < count;
        s->position[r] = (float)(block_start(&h->queries, qb) + r);
        s->first[r] = there ? (float)first_visible(h, qb * BLOCK + r) : 0.0f;
        s->lse[r] = there ? a->lse[row_at(h, qb) + r] : 0.0f;
        s->delta[r] = there ? a->delta[row_at(h, qb) + r] : 0.0f;
    }
}

static void load_keys(const struct head *h, uint32_t kb, struct backward_space *s)
{
    const struct pd_attention *a = h->a;
    uint64_t at = key_at(h, kb, a->ld_kv);
    rows_load(a->k, at, a->ld_kv, h, block_count(&h->keys, kb), s->k_rows);
    rows_load(a->v, at, a->ld_kv, h, block_count(&h->keys, kb), s->v_rows);
}

/* P and dS from S and dP, 16 pairs. */
V16_INLINE void gradient_lanes(float *p, float *ds, v16 scale, v16 lse, v16 delta, bool cut, v16 first, v16 key,
                               v16 position)
{
    v16 e = v16_exp(v16_fma(v16_load(p), scale, v16_sub(v16_zero(), lse)));
    if (cut) e = v16_select_between(first, key, position, e, v16_zero());
    v16_store(p, e);
    v16_store(ds, v16_mul(e, v16_sub(v16_load(ds), delta)));
}

/* Lanes are queries: p and ds (keys, queries). */
V16_INLINE void gradients_by_query(struct backward_space *s, uint32_t keys, uint32_t first_key, float scale, bool cut)
{
    for (uint32_t lane = 0; lane < BLOCK; lane += 16) {
        v16 scale_all = v16_set1(scale), lse = v16_load(s->lse + lane), delta = v16_load(s->delta + lane);
        v16 first = v16_load(s->first + lane), position = v16_load(s->position + lane);
        for (uint32_t key = 0; key < keys; key++) {
            uint32_t at = key * BLOCK + lane;
            v16 key_all = v16_set1((float)(first_key + key));
            gradient_lanes(s->p + at, s->ds + at, scale_all, lse, delta, cut, first, key_all, position);
        }
    }
}

/* Lanes are keys: p and ds (queries, keys). */
V16_INLINE void gradients_by_key(struct backward_space *s, uint32_t queries, uint32_t first_key, float scale, bool cut)
{
    v16 counting = v16_load((const float[16]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});
    for (uint32_t q = 0; q < queries; q++) {
        v16 scale_all = v16_set1(scale), lse = v16_set1(s->lse[q]), delta = v16_set1(s->delta[q]);
        v16 first = v16_set1(s->first[q]), position = v16_set1(s->position[q]);
        for (uint32_t lane = 0; lane < BLOCK; lane += 16) {
            uint32_t at = q * BLOCK + lane;
            v16 key = v16_add(counting, v16_set1((float)(first_key + lane)));
            gradient_lanes(s->p + at, s->ds + at, scale_all, lse, delta, cut, first, key, position);
        }
    }
}

static void pair_by_query(const struct head *h, uint32_t qb, uint32_t kb, struct backward_space *s)
{
    uint32_t keys = block_count(&h->keys, kb), first_key = block_start(&h->keys, kb);
    product_run(&(struct product){keys, BLOCK, h->d, s->k_rows, h->padded, 1, s->left_lanes, BLOCK, s->p, BLOCK, false});
    product_run(&(struct product){keys, BLOCK, h->d, s->v_rows, h->padded, 1, s->right_lanes, BLOCK, s->ds, BLOCK, false});
    if (block_is_cut(h, qb, kb))
        gradients_by_query(s, keys, first_key, h->a->scale, true);
    else
        gradients_by_query(s, keys, first_key, h->a->scale, false);
    bool add = kb != keys_begin(h, qb) || !h->a->first_part;
    product_run(&(struct product){h->d, BLOCK, keys, s->k_rows, 1, h->padded, s->ds, BLOCK, s->dq_lanes, BLOCK, add});
}

static void queries_start(const struct head *h, uint32_t qb, struct backward_space *s)
{
    const struct pd_attention *a = h->a;
    uint32_t count = block_count(&h->queries, qb);
    uint64_t ld = (uint64_t)a->heads * h->d;
    memset(s->dq_lanes, 0, (uint64_t)h->d * BLOCK * sizeof *s->dq_lanes);
    if (!a->first_part) {
        rows_load_as(PD_F32, a->dq_acc, query_at(h, qb, ld), ld, h, count, s->q_rows);
        rows_to_lanes(s->q_rows, h, count, s->dq_lanes);
    }
    load_queries(h, qb, s);
    rows_to_lanes(s->q_rows, h, count, s->left_lanes);
    rows_to_lanes(s->dout_rows, h, count, s->right_lanes);
}

static void queries_finish(const struct head *h, uint32_t qb, struct backward_space *s)
{
    const struct pd_attention *a = h->a;
    uint32_t count = block_count(&h->queries, qb);
    uint64_t ld = (uint64_t)a->heads * h->d;
    lanes_to_rows(s->dq_lanes, h, count, s->q_rows);
    if (a->last_part)
        rows_store(s->q_rows, h, count, a->scale, a->dq, query_at(h, qb, a->ld_dq), a->ld_dq);
    else
        rows_store_as(PD_F32, s->q_rows, h, count, 1.0f, a->dq_acc, query_at(h, qb, ld), ld);
}

static void queries_body(void *context, uint64_t index)
{
    struct backward_job *job = context;
    struct backward_space *s = space_of(job, index);
    uint64_t item, heads = (uint64_t)job->a->sequences * job->a->heads;
    while (pd_cpu_queue_take(&job->queue, &item)) {
        uint64_t which = item % heads;
        struct head h = head_of(job->a, which / job->a->heads, which % job->a->heads);
        uint32_t qb = h.queries.blocks - 1 - (uint32_t)(item / heads);
        queries_start(&h, qb, s);
        for (uint32_t kb = keys_begin(&h, qb), end = keys_end(&h, qb); kb < end; kb++) {
            load_keys(&h, kb, s);
            pair_by_query(&h, qb, kb, s);
        }
        queries_finish(&h, qb, s);
    }
}

static void add_pair_to_keys(const struct head *h, uint32_t qb, uint32_t kb, struct backward_space *s, bool by_query,
                             float *dk, float *dv)
{
    uint32_t row = by_query ? BLOCK : 1, column = by_query ? 1 : BLOCK, keys = block_count(&h->keys, kb),
             queries = block_count(&h->queries, qb);
    product_run(&(struct product){keys, h->padded, queries, s->ds, row, column, s->q_rows, h->padded, dk, h->padded, true});
    product_run(
        &(struct product){keys, h->padded, queries, s->p, row, column, s->dout_rows, h->padded, dv, h->padded, true});
}

static void store_keys(const struct head *h, uint32_t kb, const float *dk, const float *dv)
{
    const struct pd_attention *a = h->a;
    uint32_t count = block_count(&h->keys, kb);
    uint64_t at = key_at(h, kb, a->ld_dkv);
    if (a->kv_partial) {
        rows_store_as(PD_F32, dk, h, count, 1.0f, a->dk, at, a->ld_dkv);
        rows_store_as(PD_F32, dv, h, count, 1.0f, a->dv, at, a->ld_dkv);
    } else {
        rows_store(dk, h, count, a->scale, a->dk, at, a->ld_dkv);
        rows_store(dv, h, count, 1.0f, a->dv, at, a->ld_dkv);
    }
}

static void pair_by_key(const struct head *h, uint32_t qb, uint32_t kb, struct backward_space *s, float *dk, float *dv)
{
    uint32_t queries = block_count(&h->queries, qb), first_key = block_start(&h->keys, kb);
    load_queries(h, qb, s);
    product_run(&(struct product){queries, BLOCK, h->d, s->q_rows, h->padded, 1, s->left_lanes, BLOCK, s->p, BLOCK, false});
    product_run(
        &(struct product){queries, BLOCK, h->d, s->dout_rows, h->padded, 1, s->right_lanes, BLOCK, s->ds, BLOCK, false});
    if (block_is_cut(h, qb, kb))
        gradients_by_key(s, queries, first_key, h->a->scale, true);
    else
        gradients_by_key(s, queries, first_key, h->a->scale, false);
    add_pair_to_keys(h, qb, kb, s, false, dk, dv);
}

/* The chains of one query head over the queries of this call; dk and dv hold zeros. */
static void keys_of_head(const struct head *h, uint32_t kb, struct backward_space *s, float *dk, float *dv)
{
    const struct pd_attention *a = h->a;
    uint32_t count = block_count(&h->keys, kb), last = block_last(&h->keys, kb);
    uint64_t ld = (uint64_t)a->heads * h->d, at = block_at(&h->keys, kb, ld, h->index, h->d);
    if (!a->first_part) {
        rows_load_as(PD_F32, a->dk_acc, at, ld, h, count, dk);
        rows_load_as(PD_F32, a->dv_acc, at, ld, h, count, dv);
    }
    uint32_t qb = block_holding(&h->queries, block_start(&h->keys, kb));
    for (; qb < h->queries.blocks && first_visible(h, qb * BLOCK) <= last; qb++)
        pair_by_key(h, qb, kb, s, dk, dv);
    if (a->last_part) return;
    rows_store_as(PD_F32, dk, h, count, 1.0f, a->dk_acc, at, ld);
    rows_store_as(PD_F32, dv, h, count, 1.0f, a->dv_acc, at, ld);
}

static void keys_body(void *context, uint64_t index)
{
    struct backward_job *job = context;
    const struct pd_attention *a = job->a;
    struct backward_space *s = space_of(job, index);
    uint64_t item, kv_heads = (uint64_t)a->sequences * a->kv_heads;
    while (pd_cpu_queue_take(&job->queue, &item)) {
        uint64_t which = item % kv_heads;
        uint32_t kb = (uint32_t)(item / kv_heads), kv = (uint32_t)(which % a->kv_heads);
        struct head h = head_of(a, which / a->kv_heads, heads_begin(a, kv));
        load_keys(&h, kb, s);
        rows_to_lanes(s->k_rows, &h, block_count(&h.keys, kb), s->left_lanes);
        rows_to_lanes(s->v_rows, &h, block_count(&h.keys, kb), s->right_lanes);
        struct tree tree = {.entries = s->sums, .entry = 2 * (uint64_t)BLOCK * h.padded};
        for (; h.index < heads_end(a, kv); h.index++) {
            if (!a->last_part) tree.depth = 0; /* a chain is stored, not added to its neighbours */
            float *dk = tree_push(&tree, tree_key(a, kv, h.index));
            keys_of_head(&h, kb, s, dk, dk + BLOCK * h.padded);
        }
        if (!a->last_part) continue;
        tree_finish(&tree);
        store_keys(&h, kb, s->sums, s->sums + BLOCK * h.padded);
    }
}

static void whole_head(const struct head *h, struct backward_space *s, float *dk, float *dv)
{
    for (uint32_t qb = 0; qb < h->queries.blocks; qb++) {
        queries_start(h, qb, s);
        for (uint32_t kb = keys_begin(h, qb); kb <= qb; kb++) {
            uint64_t at = (uint64_t)kb * BLOCK * h->padded;
            load_keys(h, kb, s);
            pair_by_query(h, qb, kb, s);
            add_pair_to_keys(h, qb, kb, s, true, dk + at, dv + at);
        }
        queries_finish(h, qb, s);
    }
}

static void whole_body(void *context, uint64_t index)
{
    struct backward_job *job = context;
    const struct pd_attention *a = job->a;
    struct backward_space *s = space_of(job, index);
    uint64_t item;
    while (pd_cpu_queue_take(&job->queue, &item)) {
        uint32_t kv = (uint32_t)(item % a->kv_heads);
        struct head h = head_of(a, item / a->kv_heads, heads_begin(a, kv));
        uint64_t half = (uint64_t)h.keys.blocks * BLOCK * h.padded;
        struct tree tree = {.entries = s->sums, .entry = 2 * half};
        for (; h.index < heads_end(a, kv); h.index++) {
            float *dk = tree_push(&tree, tree_key(a, kv, h.index));
            whole_head(&h, s, dk, dk + half);
        }
        tree_finish(&tree);
        for (uint32_t kb = 0; kb < h.keys.blocks; kb++) {
            uint64_t at = (uint64_t)kb * BLOCK * h.padded;
            store_keys(&h, kb, s->sums + at, s->sums + half + at);
        }
    }
}

static bool whole_fits(const struct pd_attention *a, unsigned threads)
{
    struct head h = head_of(a, 0, 0);
    uint64_t floats = 2 * (uint64_t)h.keys.blocks * BLOCK * h.padded * tree_levels(a);
    return floats * sizeof(float) <= SUMS_BYTES && (uint64_t)a->sequences * a->kv_heads >= threads;
}

static void cpu_attention_backward_run(struct pd_math *math, const struct pd_attention *a, uint64_t items,
                                       void (*body)(void *, uint64_t))
{
    struct backward_job job = {pd_math_cpu_of(math), a, {0, items}};
    pd_parallel(math->pool, job.cpu->threads, body, &job);
}

static void run_queries(struct pd_math *math, const struct pd_attention *a)
{
    cpu_attention_backward_run(math, a, a->sequences * (uint64_t)a->heads * span_of(0, 0, a->length).blocks, queries_body);
}

static void run_keys(struct pd_math *math, const struct pd_attention *a)
{
    cpu_attention_backward_run(math, a, a->sequences * (uint64_t)a->kv_heads * span_of(0, 0, a->key_length).blocks,
                               keys_body);
}

pd_status PD_CPU(attention_delta)(struct pd_math *math, const struct pd_attention *a, struct pd_error *err)
{
    struct backward_job job = {pd_math_cpu_of(math), a, {0, 0}};
    return pd_cpu_run(math, (uint64_t)a->sequences * a->length, delta_body, &job);
}

pd_status PD_CPU(attention_backward)(struct pd_math *math, const struct pd_attention *a, struct pd_error *err)
{
    const struct pd_attention resolved = pd_attention_resolve(a, false);
    PD_TRY(PD_CPU(attention_delta)(math, a, err));
    if (whole_fits(&resolved, pd_math_cpu_of(math)->threads)) {
        cpu_attention_backward_run(math, &resolved, resolved.sequences * (uint64_t)resolved.kv_heads, whole_body);
    } else {
        run_queries(math, &resolved);
        run_keys(math, &resolved);
    }
    return PD_OK;
}

pd_status PD_CPU(attention_backward_queries)(struct pd_math *math, const struct pd_attention *a, struct pd_error *err)
{
    const struct pd_attention resolved = pd_attention_resolve(a, true);
    run_queries(math, &resolved);
    return PD_OK;
}

pd_status PD_CPU(attention_backward_keys)(struct pd_math *math, const struct pd_attention *a, struct pd_error *err)
{
    const struct pd_attention resolved = pd_attention_resolve(a, true);
    run_keys(math, &resolved);
    return PD_OK;
}
