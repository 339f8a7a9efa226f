/* Finds out which host can open which shard, and handles shards that turn out to be bad on a host. */
#include "resharder/load/internal.h"

#include "ckpt/base/log.h"
#include "ckpt/store/paths.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sets bit s if this rank's host has shard s. A host that cannot list its directory has none: others may. */
static pd_status look_for_shards(const struct loader *l, uint8_t *bits, bool *ret_has_all, struct pd_error *err)
{
    const uint32_t shards = l->request->commit->shard_count;
    struct pd_listing listing = {0};
    uint32_t count = 0, number;
    const pd_status st = pd_vfs_list(l->vfs, l->request->directory, &listing, err);
    if (st) return st == PD_NO_MEMORY ? st : PD_OK;
    for (uint32_t i = 0; i < listing.count; i++) {
        if (!pd_shard_name_parse(listing.names[i], &number) || number >= shards) continue;
        bits[number / 8] |= (uint8_t)(1u << number % 8);
        count++;
    }
    pd_listing_deinit(&listing);
    *ret_has_all = count == shards;
    return PD_OK;
}

/* Agrees on whether all ranks see all shards: then the rest is not needed. */
static pd_status see_alike(struct loader *l, bool has_all, bool *ret_alike, struct pd_error *err)
{
    void *all = NULL;
    PD_TRY(pd_group_gather_all(l->group, &has_all, sizeof has_all, &all, err));
    *ret_alike = true;
    for (uint32_t r = 0; r < l->group->size; r++)
        *ret_alike = *ret_alike && ((const bool *)all)[r];
    free(all);
    return PD_OK;
}

/* Fills host_has and reader_host for the plan: `mine` (row) is this rank's host, then its bits. */
static pd_status share_what_is_where(struct loader *l, const uint8_t *mine, uint64_t row, struct pd_error *err)
{
    struct pd_group *group = l->group;
    const uint32_t shards = l->request->commit->shard_count;
    void *all = NULL;
    l->host_has = calloc(group->host_count, shards);
    l->reader_host = calloc(group->size, sizeof *l->reader_host);
    pd_status st = PD_ALLOCATED(l->host_has && l->reader_host, err, "load: no memory to list the shards of all hosts");
    PD_TRY(pd_group_agree(group, st, err));
    PD_TRY(pd_group_gather_all(group, mine, row, &all, err));
    for (uint32_t r = 0; r < group->size; r++) {
        const uint8_t *bits = (const uint8_t *)all + r * row + sizeof(uint32_t);
        memcpy(&l->reader_host[r], (const uint8_t *)all + r * row, sizeof(uint32_t));
        for (uint32_t s = 0; s < shards; s++)
            if (bits[s / 8] >> s % 8 & 1) l->host_has[(uint64_t)l->reader_host[r] * shards + s] = 1;
    }
    free(all);
    return PD_OK;
}

pd_status load_find_shards(struct loader *l, struct pd_error *err)
{
    const uint64_t row = sizeof(uint32_t) + (l->request->commit->shard_count + 7ull) / 8;
    uint8_t *mine = calloc(1, row);
    bool has_all = false, alike = false;
    pd_status st = PD_ALLOCATED(mine, err, "load: no memory to list shards");
    st = pd_group_agree(l->group, st, err);
    if (!st) {
        memcpy(mine, &l->group->host, sizeof(uint32_t));
        st = pd_group_agree(l->group, look_for_shards(l, mine + sizeof(uint32_t), &has_all, err), err);
    }
    if (!st) st = see_alike(l, has_all, &alike, err);
    if (!st && !alike) st = share_what_is_where(l, mine, row, err);
    free(mine);
    return st;
}

/* ---- copies ---- */

pd_status load_blame(struct loader *l, uint32_t shard, pd_status st, const struct pd_error *err)
{
    const bool may_be_elsewhere = st == PD_CORRUPT || st == PD_IO || st == PD_NOT_FOUND;
    if (!may_be_elsewhere || l->blamed != LOAD_NO_SHARD) return st;
    l->blamed = shard;
    snprintf(l->blame, sizeof l->blame, "%.399s", err ? err->message : pd_status_name(st));
    return st;
}

/* All hosts saw all shards, so host_has was not exchanged; fills it. */
static pd_status count_all_in(struct loader *l, struct pd_error *err)
{
    const uint32_t shards = l->request->commit->shard_count;
    const uint64_t row = sizeof(uint32_t) + (shards + 7ull) / 8;
    if (l->host_has) return PD_OK;
    uint8_t *mine = malloc(row);
    pd_status st = PD_ALLOCATED(mine, err, "load: no memory to list shards");
    st = pd_group_agree(l->group, st, err);
    if (!st) {
        memset(mine, 0xff, row);
        memcpy(mine, &l->group->host, sizeof(uint32_t));
        st = share_what_is_where(l, mine, row, err);
    }
    free(mine);
    return st;
}

/* Removes blamed shards from their hosts. Returns whether every blamed shard is on another host. */
static bool strike_out(struct loader *l, const uint32_t *blamed)
{
    const uint32_t shards = l->request->commit->shard_count;
    bool any = false, has = true;
    for (uint32_t r = 0; r < l->group->size; r++) {
        if (blamed[r] == LOAD_NO_SHARD) continue;
        l->host_has[(uint64_t)l->reader_host[r] * shards + blamed[r]] = 0;
        any = true;
    }
    for (uint32_t r = 0; r < l->group->size; r++) {
        bool is_somewhere = blamed[r] == LOAD_NO_SHARD;
        for (uint32_t h = 0; !is_somewhere && h < l->group->host_count; h++)
            is_somewhere = l->host_has[(uint64_t)h * shards + blamed[r]];
        has = has && is_somewhere;
    }
    return any && has;
}

pd_status load_turn_to_replicas(struct loader *l, bool *ret_again, struct pd_error *err)
{
    struct pd_error own = {0};
    void *blamed = NULL;
    pd_status st = pd_group_gather_all(l->group, &l->blamed, sizeof l->blamed, &blamed, &own);
    if (!st) st = count_all_in(l, &own);
    if (!st) *ret_again = strike_out(l, blamed);
    if (*ret_again && l->blamed != LOAD_NO_SHARD)
        pd_log_warn("load", "shard-%05u.h5 cannot be used on this host and is read on another: %s", l->blamed, l->blame);
    free(blamed);
    return pd_error_pass(err, st, &own);
}
