#include "trainer/tokenizer/bpe.h"

#include <criterion/criterion.h>

enum { LETTERS = 4, MERGES = 60, TABLES = 200, WORDS = 20, SYMBOLS_MAX = 140 };

static struct pd_error err;
static struct pd_merge merges[MERGES];
static uint32_t merge_count;
static uint64_t random_state = 9;

static uint32_t draw(uint32_t below)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % below;
}

/* Small ones more often: tokens that short words have. */
static uint32_t draw_small(uint32_t below)
{
    return draw(1 + draw(1 + draw(below)));
}

/* Pairs of tokens that are there already; ranks in an order of their own, so that a pair that comes late may join first. */
static void make_merges(void)
{
    for (merge_count = 0; merge_count < MERGES;) {
        const uint32_t left = draw_small(LETTERS + merge_count), right = draw_small(LETTERS + merge_count);
        bool known = false;
        for (uint32_t i = 0; i < merge_count; i++)
            known |= merges[i].left == left && merges[i].right == right;
        if (known) continue;
        merges[merge_count] = (struct pd_merge){left, right, draw(1000), LETTERS + merge_count};
        merge_count++;
    }
}

static const struct pd_merge *find(uint32_t left, uint32_t right)
{
    for (uint32_t i = 0; i < merge_count; i++)
        if (merges[i].left == left && merges[i].right == right) return &merges[i];
    return NULL;
}

/* The definition: the leftmost pair of the lowest rank, again and again. */
static size_t merge_slowly(uint32_t *symbols, size_t count)
{
    for (;;) {
        const struct pd_merge *best = NULL;
        size_t best_at = 0;
        for (size_t at = 0; at + 1 < count; at++) {
            const struct pd_merge *merge = find(symbols[at], symbols[at + 1]);
            if (!merge || (best && best->rank <= merge->rank)) continue;
            best = merge;
            best_at = at;
        }
        if (!best) return count;
        symbols[best_at] = best->result;
        memmove(symbols + best_at + 1, symbols + best_at + 2, (count - best_at - 2) * sizeof *symbols);
        count--;
    }
}

static void check_word(const struct pd_merge_table *table, struct pd_merge_scratch *scratch)
{
    uint32_t expected[SYMBOLS_MAX];
    const size_t count = 1 + draw(SYMBOLS_MAX - 1);
    cr_assert_eq(pd_merge_reserve(scratch, count, &err), PD_OK);
    for (size_t i = 0; i < count; i++)
        expected[i] = scratch->symbols[i] = draw(LETTERS);
    scratch->count = count;
    const size_t left = merge_slowly(expected, count);
    cr_assert_eq(pd_merge_all(table, scratch, &err), PD_OK);
    cr_assert_eq(scratch->count, left, "a word of %zu symbols", count);
    cr_assert_eq(memcmp(scratch->symbols, expected, left * sizeof *expected), 0, "a word of %zu symbols", count);
}

Test(bpe_merge, words_of_any_length_merge_as_the_definition_says)
{
    struct pd_merge_scratch scratch = {0};
    for (unsigned t = 0; t < TABLES; t++) {
        struct pd_merge_table *table;
        make_merges();
        cr_assert_eq(pd_merge_table_new(merges, merge_count, &table, &err), PD_OK);
        for (unsigned word = 0; word < WORDS; word++)
            check_word(table, &scratch);
        pd_merge_table_free(table);
    }
    pd_merge_scratch_deinit(&scratch);
}
