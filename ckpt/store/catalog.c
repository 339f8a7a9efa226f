#include "ckpt/store/catalog.h"

#include <stdlib.h>
#include <string.h>

static int descending(uint64_t a, uint64_t b)
{
    return a < b ? 1 : a > b ? -1 : 0;
}

static int newest_first(const void *a, const void *b)
{
    const struct pd_store_entry *x = &((const struct store_item *)a)->entry, *y = &((const struct store_item *)b)->entry;
    int order = descending(x->lineage, y->lineage);
    if (!order) order = descending(x->step, y->step);
    return order ? order : descending(x->fence, y->fence);
}

pd_status store_items_reserve(struct store_items *items, struct pd_error *err)
{
    if (items->count < items->capacity) return PD_OK;
    uint32_t capacity = items->capacity ? items->capacity * 2 : 16;
    struct store_item *rows = realloc(items->rows, capacity * sizeof *rows);
    if (!rows) PD_FAIL(err, PD_NO_MEMORY, "no memory for %u checkpoints", capacity);
    items->rows = rows;
    items->capacity = capacity;
    return PD_OK;
}

void store_items_add(struct store_items *items, const struct store_item *item)
{
    PD_CHECK(items->count < items->capacity);
    items->rows[items->count++] = *item;
    qsort(items->rows, items->count, sizeof *items->rows, newest_first);
}

struct store_item *store_items_find(const struct store_items *items, const char *name)
{
    for (uint32_t i = 0; i < items->count; i++) {
        if (strcmp(items->rows[i].entry.name, name) == 0) return &items->rows[i];
    }
    return NULL;
}

void store_items_remove(struct store_items *items, const char *name)
{
    struct store_item *row = store_items_find(items, name);
    if (!row) return;
    size_t after = (size_t)(items->rows + items->count - row) - 1;
    memmove(row, row + 1, after * sizeof *row);
    items->count--;
}

pd_status store_catalog_init(struct store_catalog *catalog, uint32_t unusable_max, struct pd_error *err)
{
    catalog->unusable_max = unusable_max;
    catalog->unusable = calloc((size_t)unusable_max + 1, sizeof *catalog->unusable);
    if (!catalog->unusable) PD_FAIL(err, PD_NO_MEMORY, "no memory for %u checkpoints", unusable_max);
    return PD_OK;
}

void store_catalog_deinit(struct store_catalog *catalog)
{
    free(catalog->committed.rows);
    free(catalog->partial.rows);
    free(catalog->unusable);
}

struct pd_store_unusable *store_catalog_note(struct store_catalog *catalog, const struct pd_store_unusable *unusable)
{
    PD_CHECK(catalog->unusable_count < catalog->unusable_max);
    struct pd_store_unusable *row = &catalog->unusable[catalog->unusable_count++];
    *row = *unusable;
    return row;
}

/* ---- retention ---- */

/* A step written twice (by a launch that resumed before it) counts once: the newer one. */
static bool step_seen(const uint64_t *steps, uint32_t before)
{
    for (uint32_t i = 0; i < before; i++)
        if (steps[i] == steps[before]) return true;
    return false;
}

void pd_retention_choose(uint32_t keep_last, uint64_t keep_every, const uint64_t *steps, uint32_t count, bool *ret_keep)
{
    for (uint32_t i = 0; i < count; i++) {
        const bool is_milestone = keep_every && steps[i] % keep_every == 0;
        ret_keep[i] = i < (keep_last ? keep_last : 1) || (is_milestone && !step_seen(steps, i));
    }
}

static void choose_partial(const struct store_catalog *catalog, uint32_t keep_last, char (*names)[PD_STORE_NAME_MAX],
                           uint32_t *count)
{
    if (catalog->committed.count < keep_last) return;
    const struct pd_store_entry *last = &catalog->committed.rows[keep_last - 1].entry;
    for (uint32_t i = catalog->partial.count; i-- > 0;) {
        const struct pd_store_entry *entry = &catalog->partial.rows[i].entry;
        if (entry->lineage < last->lineage || (entry->lineage == last->lineage && entry->step < last->step))
            memcpy(names[(*count)++], entry->name, PD_STORE_NAME_MAX);
    }
}

pd_status store_catalog_victims(const struct store_catalog *catalog, const struct pd_store_options *options,
                                char (**ret_names)[PD_STORE_NAME_MAX], uint32_t *ret_count, struct pd_error *err)
{
    const struct store_items *committed = &catalog->committed;
    bool *keep = calloc((size_t)committed->count + 1, sizeof *keep);
    uint64_t *steps = calloc((size_t)committed->count + 1, sizeof *steps);
    char(*names)[PD_STORE_NAME_MAX] = calloc((size_t)committed->count + catalog->partial.count + 1, sizeof *names);
    const bool has_memory = keep && steps && names;
    *ret_count = 0;
    if (has_memory) {
        for (uint32_t i = 0; i < committed->count; i++)
            steps[i] = committed->rows[i].entry.step;
        pd_retention_choose(options->keep_last, options->keep_every, steps, committed->count, keep);
        for (uint32_t i = committed->count; i-- > 0;)
            if (!keep[i] && !committed->rows[i].pins)
                memcpy(names[(*ret_count)++], committed->rows[i].entry.name, sizeof *names);
        choose_partial(catalog, options->keep_last ? options->keep_last : 1, names, ret_count);
    }
    free(steps);
    free(keep);
    *ret_names = names; /* even an incomplete list: the caller frees it */
    if (!has_memory) PD_FAIL(err, PD_NO_MEMORY, "no memory to choose what to remove");
    return PD_OK;
}
