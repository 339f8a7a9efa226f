/* Looks tokens up, and adds their gradients back, with the bits of cpu_embedding.c. Backward works by rows of the table. A
 * block takes up to TOKENS of them and 256 columns, lists the micro-batch's rows with these tokens, sorted by token and then
 * ascending, and writes each row of the table once. If the list would be too long, as for the commonest words of a large
 * micro-batch, it takes the micro-batch in runs of rows that fit, and each token's chain continues from run to run. */
#include "trainer/math/cuda/each.h"

#define WIDE 8

/* ---- forward ---- */

template <enum pd_dtype D> struct look_up {
    struct pd_embedding e;

    template <int N> __device__ void at(uint64_t row, uint64_t column) const
    {
        const int64_t token = static_cast<int64_t>(e.tokens[row]) - e.first_token;
        if (token < 0 || static_cast<uint64_t>(token) >= e.vocab) return;
        float x[N], p[N];
        pd_get_n<D, N>(e.token_table, static_cast<uint64_t>(token) * e.columns + column, x);
        if (e.position_table) {
            PD_DEVICE_CHECK(e.positions[row] >= 0 && static_cast<uint64_t>(e.positions[row]) < e.context);
            pd_get_n<D, N>(e.position_table, static_cast<uint64_t>(e.positions[row]) * e.columns + column, p);
            for (int j = 0; j < N; j++)
                x[j] = x[j] + p[j];
        }
        pd_put_n<D, N>(e.out, row * e.columns + column, x);
    }
};

pd_status pd_cuda_embedding_forward(void *stream, const struct pd_embedding *e, struct pd_error *err)
{
    const bool aligned = pd_is_16_aligned(e->token_table) && pd_is_16_aligned(e->position_table) && pd_is_16_aligned(e->out);
    PD_WITH_DTYPE(e->dtype, D, return pd_each_row_launch<WIDE>(stream, e->rows, e->columns, aligned, look_up<D>{*e}, err));
}

/* ---- backward ---- */

#define TOKENS 64u         /* rows of the table in a block */
#define LISTED_MAX 5120u   /* rows of the micro-batch in a block: 40 KiB of shared memory */
#define BLOCKS_WANTED 528u /* four for each multiprocessor of the largest devices */
#define TOKEN_BITS 6u
#define ROWS_MAX (UINT64_C(1) << (32 - TOKEN_BITS))
#define WARPS (PD_THREADS / PD_WARP)

struct scatter {
    uint64_t rows, columns, table_rows;
    const int32_t *indices; /* (rows) */
    int64_t first;          /* index of row 0 of the table */
    const void *dout;
    float *table;
    bool adds;
    uint32_t tokens; /* of a block */
};

struct lists {
    uint32_t found[LISTED_MAX];  /* row << TOKEN_BITS | token of the block, rows ascending */
    uint32_t sorted[LISTED_MAX]; /* rows, by token */
    uint32_t ends[TOKENS + 1];   /* of each token's rows in sorted */
    uint32_t of_warp[WARPS];
};

/* Lists the rows of [from, to) with an index in [begin, begin + count). Returns their number; lists only LISTED_MAX. */
PD_DEVICE uint32_t find_rows(const scatter &s, uint64_t from, uint64_t to, int64_t begin, uint32_t count, lists &l)
{
    const unsigned warp = threadIdx.x / PD_WARP, lane = threadIdx.x % PD_WARP;
    uint32_t total = 0;
    for (uint64_t first = from; first < to; first += PD_THREADS) {
        const uint64_t row = first + threadIdx.x;
        const int64_t token = row < to ? s.indices[row] - begin : -1;
        const bool is = token >= 0 && token < count;
        const unsigned votes = __ballot_sync(PD_WARP_ALL, is);
        if (lane == 0) l.of_warp[warp] = static_cast<uint32_t>(__popc(votes));
        __syncthreads();
        uint32_t before = total + static_cast<uint32_t>(__popc(votes & ((1u << lane) - 1)));
        for (unsigned w = 0; w < WARPS; w++) {
            before += w < warp ? l.of_warp[w] : 0;
            total += l.of_warp[w];
        }
        if (is && before < LISTED_MAX)
            l.found[before] = static_cast<uint32_t>(row) << TOKEN_BITS | static_cast<uint32_t>(token);
        __syncthreads();
    }
    return total;
}

/* One thread per token: counts its rows, then lists them. */
PD_DEVICE void sort_rows(uint32_t found, lists &l)
{
    const uint32_t token = threadIdx.x, mask = (1u << TOKEN_BITS) - 1;
    uint32_t count = 0;
    if (token < TOKENS) {
        for (uint32_t i = 0; i < found; i++)
            count += (l.found[i] & mask) == token;
        l.ends[token + 1] = count;
    }
    __syncthreads();
    if (token == 0) {
        l.ends[0] = 0;
        for (uint32_t t = 0; t < TOKENS; t++)
            l.ends[t + 1] += l.ends[t];
    }
    __syncthreads();
    if (token < TOKENS) {
        uint32_t at = l.ends[token];
        for (uint32_t i = 0; i < found; i++)
            if ((l.found[i] & mask) == token) l.sorted[at++] = l.found[i] >> TOKEN_BITS;
    }
    __syncthreads();
}

/* Continues a chain, loading four rows at once. */
template <enum pd_dtype D>
PD_DEVICE float sum_listed(const scatter &s, uint64_t column, const uint32_t *list, uint32_t count, float chain)
{
    uint32_t i = 0;
    for (; i + 4 <= count; i += 4) {
        float x[4];
        for (int j = 0; j < 4; j++)
            x[j] = pd_get<D>(s.dout, list[i + j] * s.columns + column);
        for (int j = 0; j < 4; j++)
            chain = chain + x[j];
    }
    for (; i < count; i++)
        chain = chain + pd_get<D>(s.dout, list[i] * s.columns + column);
    return chain;
}

/* Stores the sum of `count` rows of the micro-batch in an element of the table. */
PD_DEVICE void put_sum(const scatter &s, uint64_t element, uint64_t count, float sum)
{
    if (s.adds && count == 0) return;
    s.table[element] = s.adds ? s.table[element] + sum : sum;
}

/* Runs of as many rows as can be listed. All threads of the block take part, even those beyond the columns. */
template <enum pd_dtype D>
PD_DEVICE void scatter_in_runs(const scatter &s, uint64_t first_row, uint32_t tokens, uint64_t column, lists &l)
{
    float chains[TOKENS] = {};
    for (uint64_t from = 0; from < s.rows; from += LISTED_MAX) {
        const uint64_t to = s.rows - from < LISTED_MAX ? s.rows : from + LISTED_MAX;
        sort_rows(find_rows(s, from, to, s.first + static_cast<int64_t>(first_row), tokens, l), l);
        for (uint32_t t = 0; t < tokens && column < s.columns; t++)
            chains[t] = sum_listed<D>(s, column, l.sorted + l.ends[t], l.ends[t + 1] - l.ends[t], chains[t]);
        __syncthreads();
    }
    for (uint32_t t = 0; t < tokens && column < s.columns; t++)
        put_sum(s, (first_row + t) * s.columns + column, s.rows, chains[t]);
}

template <enum pd_dtype D> static __global__ void scatter_kernel(scatter s)
{
    PD_SHARED(lists, l, );
    const uint64_t first_row = static_cast<uint64_t>(blockIdx.x) * s.tokens, left = s.table_rows - first_row;
    const uint64_t column = static_cast<uint64_t>(blockIdx.y) * PD_THREADS + threadIdx.x;
    const uint32_t tokens = left < s.tokens ? static_cast<uint32_t>(left) : s.tokens;
    const int64_t begin = s.first + static_cast<int64_t>(first_row);
    const uint32_t found = find_rows(s, 0, s.rows, begin, tokens, l);
    if (found > LISTED_MAX) return scatter_in_runs<D>(s, first_row, tokens, column, l);
    sort_rows(found, l);
    for (uint32_t t = 0; t < tokens && column < s.columns; t++) {
        const uint32_t count = l.ends[t + 1] - l.ends[t];
        put_sum(s, (first_row + t) * s.columns + column, count, sum_listed<D>(s, column, l.sorted + l.ends[t], count, 0.0f));
    }
}

static pd_status launch(void *stream, const struct pd_embedding *e, scatter *s, struct pd_error *err)
{
    const uint64_t tokens = s->table_rows / BLOCKS_WANTED + 1;
    s->rows = e->rows;
    s->columns = e->columns;
    s->dout = e->dout;
    s->adds = e->adds;
    s->tokens = tokens < TOKENS ? static_cast<uint32_t>(tokens) : TOKENS;
    const dim3 grid(pd_blocks(s->table_rows, s->tokens), pd_blocks(e->columns, PD_THREADS));
    PD_WITH_DTYPE(e->dtype, D, return PD_LAUNCH(err, scatter_kernel<D>, grid, PD_THREADS, 0, stream, *s));
}

pd_status pd_cuda_embedding_backward(void *stream, const struct pd_embedding *e, struct pd_error *err)
{
    scatter s = {};
    if (e->rows >= ROWS_MAX)
        PD_FAIL(err, PD_UNSUPPORTED, "%llu tokens in one micro-batch on a GPU, at most %llu: lower batch.micro_batch",
                static_cast<unsigned long long>(e->rows), static_cast<unsigned long long>(ROWS_MAX - 1));
    if (e->dtoken_table && e->vocab) {
        s.indices = e->tokens;
        s.first = e->first_token;
        s.table_rows = e->vocab;
        s.table = e->dtoken_table;
        PD_TRY(launch(stream, e, &s, err));
    }
    if (!e->dposition_table) return PD_OK;
    s.indices = e->positions;
    s.first = 0;
    s.table_rows = e->context;
    s.table = e->dposition_table;
    return launch(stream, e, &s, err);
}
