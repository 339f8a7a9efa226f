/* Causal attention, backward. With P = exp(S - lse), dP = dO V^T, delta = sum over D of dout out, dS = P (dP - delta):
 *
 *   dQ = scale dS K      dK = scale dS^T Q      dV = P^T dO
 *
 * Every element is one chain: dQ over the keys ascending, dK and dV over the queries ascending; with grouped heads the
 * gradient of a key-value head is a binary tree over its query heads ((0,1),(2,3), ...). Two ways give these bits:
 *
 *   whole   one pass over the blocks of a head, query blocks outside, key blocks inside; dK and dV of the whole sequence lie
 *           in the workspace. 5 products a pair of blocks. A task is a key-value head of a sequence.
 *   pieces  dQ where the query is, then dK and dV where the key is. 7 products, any length. A task is a block.
 *
 * Which is taken depends on sizes and on how many threads want work, and nobody can tell from the result. */
#include "trainer/math/cpu_attention_block.h"

#define LEVELS_MAX 8u /* partial sums of a tree over at most 2^(LEVELS_MAX - 1) heads */
_Static_assert(PD_CPU_HEAD_GROUP_MAX <= 1u << (LEVELS_MAX - 1), "a tree fits its levels");

/* Blocks of a pair; the second letter says rows or lanes. */
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
    uint32_t count = block_count(h, qb);
    uint64_t ld_out = (uint64_t)a->heads * h->d;
    rows_load(a->q, block_at(h, qb, a->ld_qkv, h->index), a->ld_qkv, h, count, s->q_rows);
    rows_load(a->dout, block_at(h, qb, ld_out, h->index), ld_out, h, count, s->dout_rows);
    for (uint32_t r = 0; r < BLOCK; r++) {
        bool there = r < count;
        s->position[r] = (float)(qb * BLOCK + r);
        s->first[r] = there ? (float)first_visible(h, qb * BLOCK + r) : 0.0f;
        s->lse[r] = there ? a->lse[row_at(h, qb) + r] : 0.0f;
        s->delta[r] = there ? a->delta[row_at(h, qb) + r] : 0.0f;
    }
}

static void load_keys(const struct head *h, uint32_t kb, struct backward_space *s)
{
    const struct pd_attention *a = h->a;
    uint64_t at = block_at(h, kb, a->ld_qkv, head_kv(h));
    rows_load(a->k, at, a->ld_qkv, h, block_count(h, kb), s->k_rows);
    rows_load(a->v, at, a->ld_qkv, h, block_count(h, kb), s->v_rows);
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
    uint32_t keys = block_count(h, kb);
    product_run(&(struct product){keys, BLOCK, h->d, s->k_rows, h->padded, 1, s->left_lanes, BLOCK, s->p, BLOCK, false});
    product_run(&(struct product){keys, BLOCK, h->d, s->v_rows, h->padded, 1, s->right_lanes, BLOCK, s->ds, BLOCK, false});
    if (block_is_cut(h, qb, kb))
        gradients_by_query(s, keys, kb * BLOCK, h->a->scale, true);
    else
        gradients_by_query(s, keys, kb * BLOCK, h->a->scale, false);
    bool add = kb != first_block(h, qb);
    product_run(&(struct product){h->d, BLOCK, keys, s->k_rows, 1, h->padded, s->ds, BLOCK, s->dq_lanes, BLOCK, add});
}

static void queries_start(const struct head *h, uint32_t qb, struct backward_space *s)
{
    load_queries(h, qb, s);
    rows_to_lanes(s->q_rows, h, block_count(h, qb), s->left_lanes);
    rows_to_lanes(s->dout_rows, h, block_count(h, qb), s->right_lanes);
}

static void queries_finish(const struct head *h, uint32_t qb, struct backward_space *s)
{
    const struct pd_attention *a = h->a;
    uint32_t count = block_count(h, qb);
    lanes_to_rows(s->dq_lanes, h, count, s->q_rows);
    rows_store(s->q_rows, h, count, a->scale, a->dq, block_at(h, qb, a->ld_qkv, h->index), a->ld_qkv);
}

static void pieces_queries_body(void *context, uint64_t index)
{
    struct backward_job *job = context;
    struct backward_space *s = space_of(job, index);
    uint64_t item, heads = (uint64_t)job->a->sequences * job->a->heads;
    while (pd_cpu_queue_take(&job->queue, &item)) {
        uint64_t which = item % heads;
        struct head h = head_of(job->a, which / job->a->heads, which % job->a->heads);
        uint32_t qb = h.blocks - 1 - (uint32_t)(item / heads);
        queries_start(&h, qb, s);
        for (uint32_t kb = first_block(&h, qb); kb <= qb; kb++) {
            load_keys(&h, kb, s);
            pair_by_query(&h, qb, kb, s);
        }
        queries_finish(&h, qb, s);
    }
}

/* Partial sums of a tree over query heads: a stack whose entry of level n covers 2^n heads. An entry is dK then dV. */
struct tree {
    float *entries;
    uint64_t entry; /* floats */
    uint32_t level[LEVELS_MAX];
    uint32_t depth;
};

static float *tree_push(struct tree *t)
{
    PD_CHECK(t->depth < LEVELS_MAX);
    t->level[t->depth] = 0;
    float *entry = t->entries + t->depth++ * t->entry;
    memset(entry, 0, t->entry * sizeof *entry);
    return entry;
}

static void tree_merge_top(struct tree *t)
{
    float *to = t->entries + (t->depth - 2) * t->entry, *from = to + t->entry;
    for (uint64_t i = 0; i < t->entry; i += 16)
        v16_store(to + i, v16_add(v16_load(to + i), v16_load(from + i)));
    t->depth--;
    t->level[t->depth - 1]++;
}

/* Merges what is complete; at the end, what is left. */
static void tree_settle(struct tree *t, bool at_end)
{
    while (t->depth > 1 && (at_end || t->level[t->depth - 1] == t->level[t->depth - 2]))
        tree_merge_top(t);
}

static void add_pair_to_keys(const struct head *h, uint32_t qb, uint32_t kb, struct backward_space *s, bool by_query,
                             float *dk, float *dv)
{
    uint32_t row = by_query ? BLOCK : 1, column = by_query ? 1 : BLOCK, keys = block_count(h, kb),
             queries = block_count(h, qb);
    product_run(&(struct product){keys, h->padded, queries, s->ds, row, column, s->q_rows, h->padded, dk, h->padded, true});
    product_run(
        &(struct product){keys, h->padded, queries, s->p, row, column, s->dout_rows, h->padded, dv, h->padded, true});
}

static void store_keys(const struct head *h, uint32_t kb, const float *dk, const float *dv)
{
    const struct pd_attention *a = h->a;
    uint64_t at = block_at(h, kb, a->ld_qkv, head_kv(h));
    rows_store(dk, h, block_count(h, kb), a->scale, a->dk, at, a->ld_qkv);
    rows_store(dv, h, block_count(h, kb), 1.0f, a->dv, at, a->ld_qkv);
}

static void pair_by_key(const struct head *h, uint32_t qb, uint32_t kb, struct backward_space *s, float *dk, float *dv)
{
    uint32_t queries = block_count(h, qb);
    load_queries(h, qb, s);
    product_run(&(struct product){queries, BLOCK, h->d, s->q_rows, h->padded, 1, s->left_lanes, BLOCK, s->p, BLOCK, false});
    product_run(
        &(struct product){queries, BLOCK, h->d, s->dout_rows, h->padded, 1, s->right_lanes, BLOCK, s->ds, BLOCK, false});
    if (block_is_cut(h, qb, kb))
        gradients_by_key(s, queries, kb * BLOCK, h->a->scale, true);
    else
        gradients_by_key(s, queries, kb * BLOCK, h->a->scale, false);
    add_pair_to_keys(h, qb, kb, s, false, dk, dv);
}

static void pieces_keys_body(void *context, uint64_t index)
{
    struct backward_job *job = context;
    const struct pd_attention *a = job->a;
    struct backward_space *s = space_of(job, index);
    uint64_t item, kv_heads = (uint64_t)a->sequences * a->kv_heads;
    uint32_t group = a->heads / a->kv_heads;
    while (pd_cpu_queue_take(&job->queue, &item)) {
        uint64_t which = item % kv_heads;
        uint32_t kb = (uint32_t)(item / kv_heads);
        struct head h = head_of(a, which / a->kv_heads, which % a->kv_heads * group);
        load_keys(&h, kb, s);
        rows_to_lanes(s->k_rows, &h, block_count(&h, kb), s->left_lanes);
        rows_to_lanes(s->v_rows, &h, block_count(&h, kb), s->right_lanes);
        struct tree tree = {.entries = s->sums, .entry = 2 * (uint64_t)BLOCK * h.padded};
        for (uint32_t g = 0; g < group; g++, h.index++) {
            float *dk = tree_push(&tree), *dv = dk + BLOCK * h.padded;
            for (uint32_t qb = kb; qb < h.blocks && first_block(&h, qb) <= kb; qb++)
                pair_by_key(&h, qb, kb, s, dk, dv);
            tree_settle(&tree, false);
        }
        tree_settle(&tree, true);
        h.index--;
        store_keys(&h, kb, s->sums, s->sums + BLOCK * h.padded);
    }
}

static void whole_head(const struct head *h, struct backward_space *s, float *dk, float *dv)
{
    for (uint32_t qb = 0; qb < h->blocks; qb++) {
        queries_start(h, qb, s);
        for (uint32_t kb = first_block(h, qb); kb <= qb; kb++) {
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
    uint32_t group = a->heads / a->kv_heads;
    uint64_t item;
    while (pd_cpu_queue_take(&job->queue, &item)) {
        struct head h = head_of(a, item / a->kv_heads, item % a->kv_heads * group);
        uint64_t half = (uint64_t)h.blocks * BLOCK * h.padded;
        struct tree tree = {.entries = s->sums, .entry = 2 * half};
        for (uint32_t g = 0; g < group; g++, h.index++) {
            float *dk = tree_push(&tree);
            whole_head(&h, s, dk, dk + half);
            tree_settle(&tree, false);
        }
        tree_settle(&tree, true);
        h.index--;
        for (uint32_t kb = 0; kb < h.blocks; kb++) {
            uint64_t at = (uint64_t)kb * BLOCK * h.padded;
            store_keys(&h, kb, s->sums + at, s->sums + half + at);
        }
    }
}

/* Levels that a tree over `group` heads needs at once: floor(log2(group)) + 1. */
static uint32_t tree_levels(uint32_t group)
{
    uint32_t levels = 0;
    for (; group > 0; group /= 2)
        levels++;
    return levels;
}

static bool whole_fits(const struct pd_attention *a, unsigned threads)
{
    struct head h = head_of(a, 0, 0);
    uint64_t floats = 2 * (uint64_t)h.blocks * BLOCK * h.padded * tree_levels(a->heads / a->kv_heads);
    return floats * sizeof(float) <= SUMS_BYTES && (uint64_t)a->sequences * a->kv_heads >= threads;
}

static void run(struct pd_math *math, struct backward_job *job, uint64_t items, void (*body)(void *, uint64_t))
{
    atomic_store_explicit(&job->queue.next, 0, memory_order_relaxed);
    job->queue.count = items;
    pd_parallel(math->pool, job->cpu->threads, body, job);
}

pd_status PD_CPU(attention_backward)(struct pd_math *math, const struct pd_attention *a, struct pd_error *err)
{
    (void)err;
    struct backward_job job = {pd_math_cpu_of(math), a, {0, 0}};
    uint64_t blocks = (a->length + BLOCK - 1u) / BLOCK;
    pd_parallel(math->pool, (uint64_t)a->sequences * a->length, delta_body, &job);
    if (whole_fits(a, job.cpu->threads)) {
        run(math, &job, a->sequences * (uint64_t)a->kv_heads, whole_body);
        return PD_OK;
    }
    run(math, &job, a->sequences * (uint64_t)a->heads * blocks, pieces_queries_body);
    run(math, &job, a->sequences * (uint64_t)a->kv_heads * blocks, pieces_keys_body);
    return PD_OK;
}
