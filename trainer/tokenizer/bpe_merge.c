#include "trainer/tokenizer/bpe.h"

#define SEARCHED_SYMBOLS 64u /* beyond, a heap is faster */
#define NO_RANK UINT32_MAX

struct slot {
    uint64_t pair; /* left << 32 | right */
    uint32_t rank, result;
};

struct pd_merge_table {
    struct slot *slots; /* (1 << bits); rank NO_RANK: free */
    unsigned bits;
};

/* ---- the table ---- */

static struct slot *slot_of(const struct pd_merge_table *table, uint64_t pair)
{
    const uint64_t mask = (1ull << table->bits) - 1;
    uint64_t at = pair * 0x9e3779b97f4a7c15u >> (64 - table->bits);
    while (table->slots[at].rank != NO_RANK && table->slots[at].pair != pair)
        at = (at + 1) & mask;
    return &table->slots[at];
}

pd_status pd_merge_table_new(const struct pd_merge *merges, uint32_t count, struct pd_merge_table **ret_table,
                             struct pd_error *err)
{
    struct pd_merge_table *table = calloc(1, sizeof *table);
    if (!table) PD_FAIL(err, PD_NO_MEMORY, "no memory for %u merges", count);
    for (table->bits = 8; 1ull << table->bits < 2ull * count;)
        table->bits++;
    table->slots = malloc(sizeof *table->slots << table->bits);
    if (!table->slots) {
        free(table);
        PD_FAIL(err, PD_NO_MEMORY, "no memory for %u merges", count);
    }
    for (uint64_t i = 0; i < 1ull << table->bits; i++)
        table->slots[i] = (struct slot){.rank = NO_RANK};
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t pair = (uint64_t)merges[i].left << 32 | merges[i].right;
        *slot_of(table, pair) = (struct slot){pair, merges[i].rank, merges[i].result};
    }
    *ret_table = table;
    return PD_OK;
}

void pd_merge_table_free(struct pd_merge_table *table)
{
    if (!table) return;
    free(table->slots);
    free(table);
}

bool pd_merge_table_has(const struct pd_merge_table *table, uint32_t left, uint32_t right)
{
    return slot_of(table, (uint64_t)left << 32 | right)->rank != NO_RANK;
}

/* Rank and result of the pair of symbols `left` and `right`, kept at `at`. */
static void look_up(const struct pd_merge_table *table, struct pd_merge_scratch *s, size_t at, uint32_t left, uint32_t right)
{
    const struct slot *slot = slot_of(table, (uint64_t)left << 32 | right);
    s->ranks[at] = slot->rank;
    s->results[at] = slot->result;
}

/* ---- the scratch ---- */

static pd_status grow(uint32_t **array, size_t count, struct pd_error *err)
{
    uint32_t *grown = realloc(*array, count * sizeof *grown);
    if (!grown) PD_FAIL(err, PD_NO_MEMORY, "no memory for a word of %zu symbols", count);
    *array = grown;
    return PD_OK;
}

pd_status pd_merge_reserve(struct pd_merge_scratch *s, size_t symbols, struct pd_error *err)
{
    if (symbols <= s->capacity) return PD_OK;
    const size_t capacity = symbols + symbols / 2 + 64;
    PD_TRY(grow(&s->symbols, capacity, err));
    PD_TRY(grow(&s->ranks, capacity, err));
    PD_TRY(grow(&s->results, capacity, err));
    s->capacity = capacity;
    return PD_OK;
}

void pd_merge_scratch_deinit(struct pd_merge_scratch *s)
{
    free(s->symbols);
    free(s->ranks);
    free(s->results);
    free(s->previous);
    free(s->next);
    free(s->heap);
    *s = (struct pd_merge_scratch){0};
}

/* ---- few symbols: search ---- */

static size_t lowest(const uint32_t *ranks, size_t count)
{
    size_t best = 0;
    for (size_t i = 1; i < count; i++)
        if (ranks[i] < ranks[best]) best = i;
    return best;
}

static void close_gap(uint32_t *array, size_t at, size_t count)
{
    memmove(array + at, array + at + 1, (count - at - 1) * sizeof *array);
}

static void merge_by_search(const struct pd_merge_table *table, struct pd_merge_scratch *s)
{
    for (size_t i = 0; i + 1 < s->count; i++)
        look_up(table, s, i, s->symbols[i], s->symbols[i + 1]);
    while (s->count > 1) {
        const size_t best = lowest(s->ranks, s->count - 1);
        if (s->ranks[best] == NO_RANK) return;
        s->symbols[best] = s->results[best];
        close_gap(s->symbols, best + 1, s->count);
        close_gap(s->ranks, best, s->count - 1);
        close_gap(s->results, best, s->count - 1);
        s->count--;
        if (best) look_up(table, s, best - 1, s->symbols[best - 1], s->symbols[best]);
        if (best + 1 < s->count) look_up(table, s, best, s->symbols[best], s->symbols[best + 1]);
    }
}

/* ---- many symbols: a heap ---- */

static pd_status heap_push(struct pd_merge_scratch *s, size_t at, struct pd_error *err)
{
    if (s->ranks[at] == NO_RANK) return PD_OK;
    if (s->heap_count == s->heap_capacity) {
        const size_t capacity = 2 * s->heap_capacity + 256;
        uint64_t *grown = realloc(s->heap, capacity * sizeof *grown);
        if (!grown) PD_FAIL(err, PD_NO_MEMORY, "no memory for a word of %zu symbols", s->count);
        s->heap = grown;
        s->heap_capacity = capacity;
    }
    const uint64_t entry = (uint64_t)s->ranks[at] << 32 | at;
    size_t hole = s->heap_count++;
    for (; hole && s->heap[(hole - 1) / 2] > entry; hole = (hole - 1) / 2)
        s->heap[hole] = s->heap[(hole - 1) / 2];
    s->heap[hole] = entry;
    return PD_OK;
}

static uint64_t heap_pop(struct pd_merge_scratch *s)
{
    const uint64_t top = s->heap[0], last = s->heap[--s->heap_count];
    size_t hole = 0;
    for (size_t child = 1; child < s->heap_count; child = 2 * hole + 1) {
        if (child + 1 < s->heap_count && s->heap[child + 1] < s->heap[child]) child++;
        if (s->heap[child] >= last) break;
        s->heap[hole] = s->heap[child];
        hole = child;
    }
    s->heap[hole] = last;
    return top;
}

/* An entry is stale if its symbol is gone or has another pair by now; the rank stored for the symbol then differs. */
static pd_status merge_by_heap(const struct pd_merge_table *table, struct pd_merge_scratch *s, struct pd_error *err)
{
    const size_t count = s->count;
    PD_TRY(grow(&s->previous, s->capacity, err));
    PD_TRY(grow(&s->next, s->capacity, err));
    s->heap_count = 0;
    for (size_t i = 0; i < s->count; i++) {
        s->previous[i] = (uint32_t)i - 1; /* of the first: UINT32_MAX */
        s->next[i] = (uint32_t)i + 1;
        s->ranks[i] = NO_RANK;
        if (i + 1 < s->count) look_up(table, s, i, s->symbols[i], s->symbols[i + 1]);
        PD_TRY(heap_push(s, i, err));
    }
    while (s->heap_count) {
        const uint64_t top = heap_pop(s);
        const uint32_t at = (uint32_t)top;
        if (s->ranks[at] != top >> 32) continue;
        const uint32_t gone = s->next[at], after = s->next[gone], before = s->previous[at];
        s->symbols[at] = s->results[at];
        s->ranks[gone] = s->ranks[at] = NO_RANK;
        s->next[at] = after;
        if (after < count) {
            s->previous[after] = at;
            look_up(table, s, at, s->symbols[at], s->symbols[after]);
            PD_TRY(heap_push(s, at, err));
        }
        if (before < count) {
            look_up(table, s, before, s->symbols[before], s->symbols[at]);
            PD_TRY(heap_push(s, before, err));
        }
    }
    size_t kept = 0;
    for (uint32_t at = 0; at < count; at = s->next[at])
        s->symbols[kept++] = s->symbols[at];
    s->count = kept;
    return PD_OK;
}

pd_status pd_merge_all(const struct pd_merge_table *table, struct pd_merge_scratch *scratch, struct pd_error *err)
{
    if (scratch->count > SEARCHED_SYMBOLS) return merge_by_heap(table, scratch, err);
    merge_by_search(table, scratch);
    return PD_OK;
}
