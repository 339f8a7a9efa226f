/* Causal attention, forward (Dao et al. 2022; Milakov and Gimelshein 2018 for the running maximum). A task is a block of 64
 * queries of one head; lanes are queries. For key blocks in ascending order, with S = scale * (chain over D of k q):
 *
 *   m' = max(m, max S)   P = exp(S - m')   l = l exp(m - m') + (sum over keys, ascending, of P)   O = O exp(m - m') + V^T P
 *
 * out = O (1/l), lse = m + log l. Keys that a query cannot see have P = 0. Between parts of the keys the caller's arrays
 * hold O, m and l. The bits depend on the sequence of blocks, not on how calls divide it. */
#include "trainer/math/cpu_attention_block.h"

#include <float.h>

struct forward_space {
    float q[D_MAX * BLOCK]; /* lanes */
    float k[BLOCK * D_MAX]; /* rows */
    float v[BLOCK * D_MAX]; /* rows */
    float p[BLOCK * BLOCK]; /* (keys, queries): S, then P */
    float o[D_MAX * BLOCK]; /* lanes */
    float max[BLOCK], sum[BLOCK], rescale[BLOCK];
    float first[BLOCK], position[BLOCK]; /* keys visible to each query: first .. position */
};
_Static_assert(sizeof(struct forward_space) <= PD_CPU_WORKSPACE_BYTES, "a workspace holds a task");

struct forward_job {
    const struct pd_math_cpu *cpu;
    const struct pd_attention *a;
    struct pd_cpu_queue queue;
};

/* Continues from the results of earlier key parts for a block of queries. */
static void carry_load(const struct head *h, uint32_t qb, struct forward_space *s)
{
    const struct pd_attention *a = h->a;
    uint32_t count = block_count(&h->queries, qb);
    uint64_t ld = (uint64_t)a->heads * h->d, at = block_at(&h->queries, qb, a->heads, h->index, 1);
    rows_load_as(PD_F32, a->acc, query_at(h, qb, ld), ld, h, count, s->k);
    rows_to_lanes(s->k, h, count, s->o);
    for (uint32_t r = 0; r < count; r++) {
        s->max[r] = a->max[at + (uint64_t)r * a->heads];
        s->sum[r] = a->sum[at + (uint64_t)r * a->heads];
    }
}

static void carry_store(const struct head *h, uint32_t qb, struct forward_space *s)
{
    const struct pd_attention *a = h->a;
    uint32_t count = block_count(&h->queries, qb);
    uint64_t ld = (uint64_t)a->heads * h->d, at = block_at(&h->queries, qb, a->heads, h->index, 1);
    lanes_to_rows(s->o, h, count, s->k);
    rows_store_as(PD_F32, s->k, h, count, 1.0f, a->acc, query_at(h, qb, ld), ld);
    for (uint32_t r = 0; r < count; r++) {
        a->max[at + (uint64_t)r * a->heads] = s->max[r];
        a->sum[at + (uint64_t)r * a->heads] = s->sum[r];
    }
}

static void forward_start(const struct head *h, uint32_t qb, struct forward_space *s)
{
    uint32_t count = block_count(&h->queries, qb);
    const struct pd_attention *a = h->a;
    for (uint32_t r = 0; r < BLOCK; r++) {
        s->max[r] = -FLT_MAX;
        s->sum[r] = 0.0f;
        s->position[r] = (float)(block_start(&h->queries, qb) + r);
        s->first[r] = r < count ? (float)first_visible(h, qb * BLOCK + r) : 0.0f;
    }
    memset(s->o, 0, (uint64_t)h->d * BLOCK * sizeof *s->o);
    if (!a->first_part) carry_load(h, qb, s);
    rows_load(a->q, query_at(h, qb, a->ld_qkv), a->ld_qkv, h, count, s->k);
    rows_to_lanes(s->k, h, count, s->q);
}

/* Converts S to P in place, for 16 queries. */
V16_INLINE void softmax_lanes(struct forward_space *s, uint32_t lane, uint32_t keys, uint32_t first_key, float scale,
                              bool cut)
{
    const v16 scale_all = v16_set1(scale), unseen = v16_set1(-INFINITY);
    v16 first = v16_load(s->first + lane), position = v16_load(s->position + lane);
    v16 old = v16_load(s->max + lane), max = old;
    float *p = s->p + lane;
    for (uint32_t key = 0; key < keys; key++) {
        v16 x = v16_mul(v16_load(p + key * BLOCK), scale_all);
        if (cut) x = v16_select_between(first, v16_set1((float)(first_key + key)), position, x, unseen);
        max = v16_max(x, max);
        v16_store(p + key * BLOCK, x);
    }
    v16 sum = v16_zero();
    for (uint32_t key = 0; key < keys; key++) {
        v16 e = v16_exp(v16_sub(v16_load(p + key * BLOCK), max));
        sum = v16_add(sum, e);
        v16_store(p + key * BLOCK, e);
    }
    v16 rescale = v16_exp(v16_sub(old, max));
    v16_store(s->max + lane, max);
    v16_store(s->rescale + lane, rescale);
    v16_store(s->sum + lane, v16_fma(v16_load(s->sum + lane), rescale, sum));
}

static void softmax_block(struct forward_space *s, uint32_t keys, uint32_t first_key, float scale, bool cut)
{
    for (uint32_t lane = 0; lane < BLOCK; lane += 16) {
        if (cut)
            softmax_lanes(s, lane, keys, first_key, scale, true);
        else
            softmax_lanes(s, lane, keys, first_key, scale, false);
    }
}

static void rescale_block(const struct head *h, struct forward_space *s)
{
    for (uint32_t lane = 0; lane < BLOCK; lane += 16) {
        v16 rescale = v16_load(s->rescale + lane);
        for (uint32_t i = 0; i < h->d; i++) {
            float *o = s->o + i * BLOCK + lane;
            v16_store(o, v16_mul(v16_load(o), rescale));
        }
    }
}

static void forward_key_block(const struct head *h, uint32_t qb, uint32_t kb, struct forward_space *s)
{
    const struct pd_attention *a = h->a;
    uint32_t keys = block_count(&h->keys, kb);
    uint64_t at = key_at(h, kb, a->ld_kv);
    rows_load(a->k, at, a->ld_kv, h, keys, s->k);
    rows_load(a->v, at, a->ld_kv, h, keys, s->v);
    product_run(&(struct product){keys, BLOCK, h->d, s->k, h->padded, 1, s->q, BLOCK, s->p, BLOCK, false});
    softmax_block(s, keys, block_start(&h->keys, kb), a->scale, block_is_cut(h, qb, kb));
    bool add = kb != keys_begin(h, qb) || !a->first_part;
    if (add) rescale_block(h, s);
    product_run(&(struct product){h->d, BLOCK, keys, s->v, 1, h->padded, s->p, BLOCK, s->o, BLOCK, add});
}

static void forward_finish(const struct head *h, uint32_t qb, struct forward_space *s)
{
    uint32_t count = block_count(&h->queries, qb);
    const struct pd_attention *a = h->a;
    float lse[BLOCK];
    for (uint32_t lane = 0; lane < BLOCK; lane += 16) {
        v16 sum = v16_load(s->sum + lane);
        v16_store(s->rescale + lane, v16_div(v16_set1(1.0f), sum));
        v16_store(lse + lane, v16_add(v16_load(s->max + lane), v16_log(sum)));
    }
    memcpy(a->lse + row_at(h, qb), lse, count * sizeof *lse);
    rescale_block(h, s);
    lanes_to_rows(s->o, h, count, s->k);
    uint64_t ld = (uint64_t)a->heads * h->d;
    rows_store(s->k, h, count, 1.0f, a->out, query_at(h, qb, ld), ld);
}

/* Long tasks first: the last blocks of queries see most keys. */
static void forward_body(void *context, uint64_t index)
{
    struct forward_job *job = context;
    struct forward_space *space = (void *)(job->cpu->workspace + index * PD_CPU_WORKSPACE_BYTES);
    uint64_t item, heads = (uint64_t)job->a->sequences * job->a->heads;
    while (pd_cpu_queue_take(&job->queue, &item)) {
        uint64_t which = item % heads;
        struct head h = head_of(job->a, which / job->a->heads, which % job->a->heads);
        uint32_t qb = h.queries.blocks - 1 - (uint32_t)(item / heads);
        forward_start(&h, qb, space);
        for (uint32_t kb = keys_begin(&h, qb), end = keys_end(&h, qb); kb < end; kb++)
            forward_key_block(&h, qb, kb, space);
        if (job->a->last_part)
            forward_finish(&h, qb, space);
        else
            carry_store(&h, qb, space);
    }
}

pd_status PD_CPU(attention_forward)(struct pd_math *math, const struct pd_attention *a, struct pd_error *err)
{
    struct pd_attention resolved = pd_attention_resolve(a, a->acc != NULL);
    uint64_t blocks = span_of(0, 0, a->length).blocks;
    struct forward_job job = {pd_math_cpu_of(math), &resolved, {0, a->sequences * (uint64_t)a->heads * blocks}};
    return pd_cpu_run(math, job.cpu->threads, forward_body, &job);
}
