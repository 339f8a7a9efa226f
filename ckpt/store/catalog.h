/* The checkpoints of a store, the same on every rank. Owner of struct store_catalog: catalog.c. */
#pragma once

#include "ckpt/store/paths.h"
#include "ckpt/store/store.h"

struct store_item {
    struct pd_store_entry entry;
    uint32_t record_rank; /* can read the record */
    uint32_t pins;
};

struct store_items {
    struct store_item *rows; /* (count) newest first, owned */
    uint32_t count, capacity;
};

struct store_catalog {
    struct store_items committed;       /* every shard and a valid record are in sight */
    struct store_items partial;         /* a valid record, but shards are not in sight */
    struct pd_store_unusable *unusable; /* (unusable_count) what the open saw, by step ascending, owned */
    uint32_t unusable_count, unusable_max;
    struct pd_store_entry unnamed; /* of a reader: the newest that still has its temporary name; without a name: none */
};

void store_catalog_deinit(struct store_catalog *catalog);
/* Room for as many unusable ones. */
PD_MUST_USE pd_status store_catalog_init(struct store_catalog *catalog, uint32_t unusable_max, struct pd_error *err);
struct pd_store_unusable *store_catalog_note(struct store_catalog *catalog, const struct pd_store_unusable *unusable);
bool store_catalog_knows(const struct store_catalog *catalog, const char *name); /* as any of them */

PD_MUST_USE pd_status store_items_reserve(struct store_items *items, struct pd_error *err); /* room for one more */
void store_items_add(struct store_items *items, const struct store_item *item);
struct store_item *store_items_find(const struct store_items *items, const char *name); /* NULL: not there */
void store_items_remove(struct store_items *items, const char *name);

/* Which checkpoints stay: the newest `keep_last` (0 counts as 1: the only one is never removed), and the newest of every step
 * that `keep_every` divides (0: none). steps (count) newest first by (lineage, step, fence); ret_keep (count). */
void pd_retention_choose(uint32_t keep_last, uint64_t keep_every, const uint64_t *steps, uint32_t count, bool *ret_keep);
/* What retention lets go, as a list of names, oldest first: committed ones by the rule unless they are pinned, partial ones
 * once something newer is committed that stays anyway. *ret_names is malloc'ed, the caller's. */
PD_MUST_USE pd_status store_catalog_victims(const struct store_catalog *catalog, const struct pd_store_options *options,
                                            char (**ret_names)[PD_STORE_NAME_MAX], uint32_t *ret_count,
                                            struct pd_error *err);
