/* The checkpoints of a store, the same on every rank. catalog.c owns struct store_catalog. */
#pragma once

#include "ckpt/store/paths.h"
#include "ckpt/store/store.h"

struct store_item {
    struct pd_store_entry entry;
    uint32_t record_rank; /* a rank that can read the record */
    uint32_t pins;
};

struct store_items {
    struct store_item *rows; /* (count) newest first, owned */
    uint32_t count, capacity;
};

struct store_catalog {
    struct store_items committed;       /* a valid record, and every shard is visible */
    struct store_items partial;         /* a valid record, but shards are missing */
    struct pd_store_unusable *unusable; /* (unusable_count) found by the open, by step ascending, owned */
    uint32_t unusable_count, unusable_max;
    struct pd_store_entry unnamed; /* for readers: the newest that still has its temporary name; an empty name: none */
};

void store_catalog_deinit(struct store_catalog *catalog);
/* Allocates space for `unusable_max` unusable ones. */
PD_MUST_USE pd_status store_catalog_init(struct store_catalog *catalog, uint32_t unusable_max, struct pd_error *err);
struct pd_store_unusable *store_catalog_note(struct store_catalog *catalog, const struct pd_store_unusable *unusable);

PD_MUST_USE pd_status store_items_reserve(struct store_items *items, struct pd_error *err); /* space for one more */
void store_items_add(struct store_items *items, const struct store_item *item);
struct store_item *store_items_find(const struct store_items *items, const char *name); /* NULL if absent */
void store_items_remove(struct store_items *items, const char *name);

/* Chooses the checkpoints to keep: the newest `keep_last` (0 counts as 1: one always stays), and the newest of every step
 * that `keep_every` divides (0: none). steps (count) newest first by (lineage, step, fence); ret_keep (count). */
void pd_retention_choose(uint32_t keep_last, uint64_t keep_every, const uint64_t *steps, uint32_t count, bool *ret_keep);
/* Lists the checkpoints that retention may remove, oldest first: unpinned committed ones by the rule; partial ones once a
 * newer committed one exists that is kept anyway. *ret_names is malloc'ed, the caller's. */
PD_MUST_USE pd_status store_catalog_victims(const struct store_catalog *catalog, const struct pd_store_options *options,
                                            char (**ret_names)[PD_STORE_NAME_MAX], uint32_t *ret_count,
                                            struct pd_error *err);
