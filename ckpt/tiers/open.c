/* Opens the store of a tier: for writing, or for reading if it cannot be written. */
#include "ckpt/base/log.h"
#include "ckpt/tiers/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void close_bucket(struct tier *tier)
{
    pd_bucket_store_close(tier->bucket);
    tier->bucket = NULL;
}

static pd_status open_bucket(struct tier *tier, struct pd_error *err)
{
    const struct pd_bucket_store_options options = {.keep_last = tier->options.keep_last,
                                                    .keep_every = tier->options.keep_every,
                                                    .beside = tier->tiers->options.beside,
                                                    .memory = tier->staging,
                                                    .memory_bytes = tier->staging_bytes,
                                                    .bytes_per_second = tier->bytes_per_second,
                                                    .sent = &tier->outcome.sent,
                                                    .stop = &tier->worker.stop};
    close_bucket(tier);
    PD_TRY(pd_bucket_store_open(tier->dir, &options, tier->group, &tier->bucket, err));
    tier->fence = pd_bucket_store_fence(tier->bucket);
    return PD_OK;
}

static pd_status open_store(struct tier *tier, bool writable, struct pd_error *err)
{
    struct pd_tiers *t = tier->tiers;
    struct pd_store_options options = {.writable = writable,
                                       .keep_last = tier->options.keep_last,
                                       .keep_every = tier->in_memory ? 0 : tier->options.keep_every,
                                       .quarantine_bytes_max = tier->in_memory ? 1 : t->options.quarantine_bytes_max,
                                       .busy_wait_ms = t->options.busy_wait_ms,
                                       .generations = t->options.generations && tier->number == 0,
                                       .later_tiers = t->count - 1 - tier->number,
                                       .replicas = tier->options.replicas > 0};
    if (tier->is_remote && writable) PD_TRY(open_bucket(tier, err)); /* take the fence before listing */
    options.writable = writable && !tier->is_remote;
    PD_TRY(pd_store_open(t->vfs, tier->dir, &options, tier->group, &tier->store, err));
    if (tier->bucket) PD_TRY(pd_group_agree(tier->group, pd_bucket_store_take(tier->bucket, tier->store, err), err));
    tier->is_writable = writable;
    if (pd_store_fence(tier->store) > tier->fence) tier->fence = pd_store_fence(tier->store);
    if (t->index) pd_store_set_index(tier->store, t->index, t->index_bytes);
    return PD_OK;
}

/* True if it is true on any rank. */
static pd_status any_rank(struct pd_tiers *t, struct tier *tier, bool mine, bool *ret_any, struct pd_error *err)
{
    uint64_t word = mine, *all = (uint64_t *)t->told;
    PD_TRY(pd_group_gather(tier->group, 0, &word, sizeof word, all, err));
    PD_TRY(pd_group_broadcast(tier->group, 0, all, sizeof word * tier->group->size, err));
    *ret_any = false;
    for (uint32_t r = 0; r < tier->group->size; r++)
        *ret_any = *ret_any || all[r];
    return PD_OK;
}

void tier_look_at_newest(struct tier *tier)
{
    struct pd_store_entry none = {0};
    const struct pd_store_entry *entry =
        tier->store && pd_store_count(tier->store) ? pd_store_entry_at(tier->store, 0) : &none;
    tier_schedule_find(&tier->schedule, entry->lineage, entry->step);
    tier_report_found(tier, entry->step);
    if (entry->lineage > tier->tiers->lineage) tier->tiers->lineage = entry->lineage;
}

pd_status tier_make_staging(struct tier *tier, uint64_t bytes, struct pd_error *err)
{
    if (tier->staging) return PD_OK;
    tier->staging_bytes = bytes > PD_TIERS_STAGING_BYTES ? bytes : PD_TIERS_STAGING_BYTES;
    tier->staging = aligned_alloc(PD_VFS_ALIGN, tier->staging_bytes);
    if (!tier->staging) PD_FAIL(err, PD_NO_MEMORY, "no memory to copy checkpoints to %s", tier->dir);
    return PD_OK;
}

void tier_leave_out(struct tier *tier)
{
    tier->is_left_out = tier->in_memory;
}

/* Logs the failure and retries the tier when it is due. A tier in memory is left out instead, since its space is only
 * checked before the first step. */
static void begin_failed(struct tier *tier, const char *what, const struct pd_error *cause)
{
    tier_schedule_fail(&tier->schedule, 0);
    tier_leave_out(tier);
    tier_report_begin_failed(tier, cause);
    if (tier->group->rank == 0)
        pd_log_error(TIERS_MODULE, "%s %s: %s", tier->dir, tier->in_memory ? "is left out of saves" : what, cause->message);
}

static pd_status refuse_hidden(const struct tier *tier, pd_status st, struct pd_error *err)
{
    if (tier->tiers->count == 1 || tiers_is_fatal(st)) return st;
    pd_error_context(err, st, "%s may hold the newest checkpoint and cannot be read", tier->dir);
    const size_t used = err ? strlen(err->message) : 0;
    if (err)
        snprintf(
            err->message + used, sizeof err->message - used,
            "; bring it back, or continue from what the others hold (perdure ckpt ls) by taking it out of checkpoint.tiers");
    return st;
}

/* A read-only store skips unreadable checkpoints, but a run must not resume from an older one because of them. */
static pd_status check_hidden(const struct tier *tier, struct pd_error *err)
{
    const uint64_t newest = pd_store_count(tier->store) ? pd_store_entry_at(tier->store, 0)->step : 0;
    for (uint32_t i = 0; i < pd_store_unusable_count(tier->store); i++) {
        const struct pd_store_unusable *u = pd_store_unusable_at(tier->store, i);
        if (u->flaw == PD_STORE_UNREADABLE && u->step >= newest) PD_FAIL(err, PD_IO, "%s: %s", u->name, u->cause);
    }
    return PD_OK;
}

/* True for failures after which the store may still be readable. */
static bool may_be_read(pd_status st)
{
    return st == PD_NO_SPACE || st == PD_IO || st == PD_UNSUPPORTED || st == PD_NOT_FOUND;
}

/* `cause`: why it cannot be written. */
static pd_status open_to_read(struct tier *tier, const struct pd_error *cause, struct pd_error *err)
{
    struct pd_error own = {0};
    pd_status st = open_store(tier, false, &own);
    if (tier->is_remote && st == PD_NOT_FOUND) { /* a prefix that holds nothing is not there */
        tier->was_absent = true;
        begin_failed(tier, "holds nothing of this run; the next save to it tries again", cause);
        return PD_OK;
    }
    if (!st) st = check_hidden(tier, &own);
    if (st) return refuse_hidden(tier, pd_error_pass(err, st, &own), err);
    begin_failed(tier, "is used for reading only, until it can be written", cause);
    return PD_OK;
}

/* *ret_has: every rank has its directory. If one lacks it, either the tier holds nothing or this fails. */
static pd_status find_directory(struct pd_tiers *t, struct tier *tier, bool *ret_has, struct pd_error *err)
{
    const pd_status missing = tier->options.missing;
    struct pd_error own = {0};
    if (missing) pd_error_set(&own, missing, PD_WHERE, 0, "%s", tier->options.missing_cause);
    pd_status st = pd_group_agree(tier->group, missing == PD_NOT_FOUND ? PD_OK : missing, &own);
    if (st) return refuse_hidden(tier, pd_error_pass(err, st, &own), err);
    st = pd_group_agree(tier->group, missing, &own);
    *ret_has = !st;
    if (!st || tiers_is_fatal(st)) return pd_error_pass(err, st, &own);
    PD_TRY(any_rank(t, tier, tier->options.missing_in_memory, &tier->in_memory, err));
    tier->was_absent = true;
    begin_failed(tier, "does not exist and holds nothing of this run; the next save to it tries again", &own);
    return PD_OK;
}

static pd_status find_space(struct pd_tiers *t, struct tier *tier, struct pd_error *err)
{
    struct pd_space space = {0};
    struct pd_error own = {0};
    pd_status st = pd_vfs_space(t->vfs, tier->dir, &space, &own);
    st = pd_group_agree(tier->group, pd_error_context(&own, st, "checkpoint directory %s", tier->dir), &own);
    if (st) return refuse_hidden(tier, pd_error_pass(err, st, &own), err);
    PD_TRY(any_rank(t, tier, space.in_memory, &tier->in_memory, err));
    if (tier->in_memory && tier->options.keep_every && tier->group->rank == 0)
        pd_log_warn(TIERS_MODULE, "%s is in memory: keep_every does not count there", tier->dir);
    return PD_OK;
}

/* Allocates this rank's share on a host with `here` ranks. */
static pd_status make_upload_memory(struct tier *tier, uint64_t here, struct pd_error *err)
{
    const uint64_t mine = tier->options.upload_memory / here / PD_VFS_ALIGN * PD_VFS_ALIGN;
    return pd_group_agree(tier->group, tier_make_staging(tier, mine, err), err);
}

pd_status tier_open(struct tier *tier, struct pd_error *err)
{
    struct pd_tiers *t = tier->tiers;
    bool has_directory = tier->is_remote;
    uint64_t host = tier->group->host, *all = (uint64_t *)t->told, here = 0;
    PD_TRY(pd_group_gather(tier->group, 0, &host, sizeof host, all, err));
    PD_TRY(pd_group_broadcast(tier->group, 0, all, sizeof host * tier->group->size, err));
    for (uint32_t r = 0; r < tier->group->size; r++)
        here += all[r] == host;
    tier->bytes_per_second = tier->options.bandwidth / here;
    if (tier->options.bandwidth && !tier->bytes_per_second) tier->bytes_per_second = 1;
    if (!tier->is_remote) PD_TRY(find_directory(t, tier, &has_directory, err));
    if (!has_directory) return PD_OK;
    if (!tier->is_remote) PD_TRY(find_space(t, tier, err));
    if (tier->is_remote) PD_TRY(make_upload_memory(tier, here, err));
    struct pd_error why = {0};
    pd_status st = open_store(tier, !t->options.read_only, &why);
    if (may_be_read(st) && t->count > 1 && !t->options.read_only && !(tier->is_remote && st == PD_UNSUPPORTED)) {
        PD_TRY(open_to_read(tier, &why, err));
    } else if (st) {
        return pd_error_pass(err, st, &why);
    }
    tier_look_at_newest(tier);
    return PD_OK;
}

/* ---- later ---- */

/* The directory appeared after the launch began, so its content was not checked then. Refuses one with checkpoints. */
static pd_status check_late(struct tier *tier, struct pd_error *err)
{
    struct pd_tiers *t = tier->tiers;
    struct pd_commit commit = {0};
    if (!pd_store_count(tier->store)) return PD_OK;
    const struct pd_store_entry *entry = pd_store_entry_at(tier->store, 0);
    PD_TRY(pd_store_read_commit(tier->store, entry, &commit, err));
    const bool is_ours = memcmp(commit.state.identity.run_id, t->run_id, sizeof t->run_id) == 0;
    pd_commit_deinit(&commit);
    if (!is_ours) PD_FAIL(err, PD_INVALID, "%s holds checkpoints of another run: move them away", tier->dir);
    PD_FAIL(err, PD_EXISTS,
            "%s holds step %" PRIu64 " of this run and was not there when this launch began: the next launch takes it into "
            "account",
            tier->dir, entry->step);
}

/* Refuses a directory that is in memory now but was not: its space was only checked before the first step. */
static pd_status check_kind(struct tier *tier, struct pd_error *err)
{
    struct pd_space space = {0};
    if (tier->is_remote) return PD_OK;
    PD_TRY(pd_vfs_space(tier->tiers->vfs, tier->dir, &space, err));
    if (!space.in_memory || tier->in_memory) return PD_OK;
    PD_FAIL(err, PD_NO_SPACE, "%s is in memory (%s) now, and its free memory was not checked: start the run again",
            tier->dir, space.type_name);
}

pd_status tier_make_writable(struct tier *tier, struct pd_error *err)
{
    if (tier->is_writable) return PD_OK;
    pd_store_close(tier->store);
    tier->store = NULL;
    PD_TRY(open_store(tier, true, err));
    pd_status st = pd_group_agree(tier->group, check_kind(tier, err), err);
    if (!st && tier->was_absent) st = check_late(tier, err);
    if (st) {
        pd_store_close(tier->store);
        close_bucket(tier);
        tier->store = NULL;
        tier->is_writable = false;
        return st;
    }
    if (tier->group->rank == 0) pd_log_info(TIERS_MODULE, "%s can be written again", tier->dir);
    tier->was_absent = false;
    return PD_OK;
}

/* ---- its storage ---- */

void tier_init(struct tier *tier, struct pd_tiers *t, tier_work *run)
{
    tier->tiers = t;
    tier_worker_init(&tier->worker, run, tier);
    tier_report_init(tier);
}

void tier_deinit(struct tier *tier)
{
    pd_store_close(tier->store);
    close_bucket(tier);
    tier_report_deinit(tier);
    tier_worker_deinit(&tier->worker);
    free(tier->staging);
}
