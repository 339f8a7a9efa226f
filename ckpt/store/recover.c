/* Acts on a scan at open: every state is rolled forward, cleared, quarantined or reported. Invariant 4 of store.c. */
#include "ckpt/store/remove.h"

#include "ckpt/base/log.h"
#include "ckpt/store/save.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct recovery {
    struct store_files *files;
    struct store_dir *root;
    const struct pd_store_options *options;
    const struct store_scan *scan;
    struct store_catalog *catalog;
    const struct store_state *ours; /* a checkpoint of the run that owns this directory; NULL: none */
    bool any_committed;
};

/* ---- whose directory this is ---- */

static bool is_same_run(const struct store_state *a, const struct store_state *b)
{
    return memcmp(a->run_id, b->run_id, sizeof a->run_id) == 0;
}

/* For readers: if two runs have as many checkpoints, the newest decides. */
static bool is_newer(const struct store_state *a, const struct store_state *b)
{
    if (a->lineage != b->lineage) return a->lineage > b->lineage;
    return a->step != b->step ? a->step > b->step : a->fence > b->fence;
}

static uint32_t count_of_run(const struct store_scan *scan, const struct store_state *of)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < scan->state_count; i++)
        count += store_state_has_record(&scan->states[i]) && is_same_run(&scan->states[i], of);
    return count;
}

/* The run with most checkpoints owns the directory, even if somebody copied another run's here by mistake. With a tie
 * nobody can tell which one to resume, so a writer refuses. */
static pd_status find_ours(struct recovery *r, struct pd_error *err)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < r->scan->state_count; i++) {
        const struct store_state *state = &r->scan->states[i];
        const uint32_t count = store_state_has_record(state) ? count_of_run(r->scan, state) : 0;
        if (count < most || count == 0 || (count == most && !is_newer(state, r->ours))) continue;
        r->ours = state;
        most = count;
    }
    for (uint32_t i = 0; r->options->writable && i < r->scan->state_count; i++) {
        const struct store_state *state = &r->scan->states[i];
        if (!store_state_has_record(state) || is_same_run(state, r->ours) || count_of_run(r->scan, state) < most) continue;
        PD_FAIL(err, PD_INVALID,
                "%s and %s are checkpoints of two runs, with equally many of each: move the other run's checkpoints away",
                store_state_name(state, false).text, store_state_name(r->ours, false).text);
    }
    return PD_OK;
}

static bool is_of_another_run(const struct recovery *r, const struct store_state *state)
{
    return r->ours && store_state_has_record(state) && !is_same_run(state, r->ours);
}

static struct pd_store_unusable unusable_of(const struct store_state *state, enum pd_store_flaw flaw)
{
    struct pd_store_unusable row = {.step = state->step, .flaw = flaw};
    memcpy(row.right_name, store_state_name(state, false).text, sizeof row.right_name);
    memcpy(row.name, flaw == PD_STORE_MISNAMED ? state->misnamed : row.right_name, sizeof row.name);
    return row;
}

static const struct pd_store_unusable *note_unusable(const struct recovery *r, const struct store_state *state,
                                                     enum pd_store_flaw flaw)
{
    static const char *const otherwise[] = {"not all of it is in sight", "commit.h5 does not verify", "commit.h5 is absent",
                                            "commit.h5 cannot be read"};
    const struct store_listing *final = store_scan_find(r->scan, state, false);
    const bool has_local = flaw != PD_STORE_UNRECORDED && final && final->cause[0];
    struct pd_store_unusable row = unusable_of(state, flaw);
    int used = snprintf(row.cause, sizeof row.cause, "%s",
                        state->cause[0] ? state->cause
                        : has_local     ? final->cause
                                        : otherwise[flaw]);
    if (state->misnamed[0] && used < (int)sizeof row.cause)
        snprintf(row.cause + used, sizeof row.cause - (size_t)used, "; %s has a record of it too", state->misnamed);
    return store_catalog_note(r->catalog, &row);
}

static void warn(const struct recovery *r, const struct pd_store_unusable *row, const char *what)
{
    if (r->root->group->rank == 0 && !r->options->quiet)
        pd_log_warn("ckpt", "%s/%s %s: %s", r->root->root, row->name, what, row->cause);
}

/* ---- roll forward ---- */

/* Makes the record's name durable before the rename: this directory may never have had one. */
static pd_status make_record_name(struct store_dir *root, const char *name, struct pd_error *err)
{
    /* The mark is from a removal that another host has not begun. */
    pd_status st = pd_vfs_unlink(root->vfs, store_at(root, "%s/" PD_STORE_REMOVED, name).text, err);
    if (st != PD_NOT_FOUND) PD_TRY(st);
    PD_TRY(store_file_write(root->vfs, store_at(root, "%s/commit.h5", name).text, PD_OPEN_CREATE, NULL, 0, STORE_FILE_LEAVE,
                            err));
    return store_sync_dir(root, store_at(root, "%s", name).text, err);
}

static pd_status repair_here(const struct recovery *r, const struct store_state *state, const void *record, uint64_t bytes,
                             struct pd_error *err)
{
    const struct store_listing *final = store_scan_find(r->scan, state, false);
    const struct store_listing *tmp = store_scan_find(r->scan, state, true);
    const struct pd_store_name from = store_state_name(state, !final), to = store_state_name(state, false);
    if (final && tmp)
        pd_log_warn("ckpt", "%s/%s also exists under its temporary name, which is kept", r->root->root, to.text);
    if (!final && !tmp) return PD_OK;
    if (final && final->record == STORE_RECORD_VALID) return PD_OK;
    bool has_record = !final && tmp->record == STORE_RECORD_VALID;
    PD_TRY(make_record_name(r->root, from.text, err));
    PD_TRY(store_commit_here(r->root, from.text, to.text, has_record ? NULL : record, bytes, err));
    pd_log_info("ckpt", "%s/%s is whole: rolled forward", r->root->root, to.text);
    return PD_OK;
}

/* Loads the record: rank `record_rank` has a valid one under one of its two names. */
static pd_status load_record(const struct recovery *r, const struct store_state *state, void **ret_data, uint64_t *ret_bytes,
                             struct pd_error *err)
{
    const struct store_listing *final = store_scan_find(r->scan, state, false);
    const struct pd_store_name name = store_state_name(state, !final || final->record != STORE_RECORD_VALID);
    return store_file_read(r->root->vfs, store_at(r->root, "%s/commit.h5", name.text).text, PD_COMMIT_BYTES_MAX, ret_data,
                           ret_bytes, err);
}

static pd_status roll_forward(const struct recovery *r, const struct store_state *state, struct pd_error *err)
{
    struct pd_group *group = r->root->group;
    void *data = NULL;
    uint64_t bytes = 0;
    pd_status st = group->rank == state->record_rank ? load_record(r, state, &data, &bytes, err) : PD_OK;
    PD_TRY(store_spread(r->root, state->record_rank, st, &data, &bytes, err));
    st = r->root->leads_share ? repair_here(r, state, data, bytes, err) : PD_OK;
    free(data);
    return pd_group_agree(group, st, err);
}

static pd_status keep_item(const struct recovery *r, const struct store_state *state, struct store_items *items,
                           struct pd_error *err)
{
    struct store_item item = {.record_rank = state->record_rank,
                              .entry = {.lineage = state->lineage,
                                        .step = state->step,
                                        .fence = state->fence,
                                        .bytes = state->bytes,
                                        .shard_count = state->shard_count,
                                        .hosts = state->hosts}};
    memcpy(item.entry.name, store_state_name(state, false).text, sizeof item.entry.name);
    PD_TRY(pd_group_agree(r->root->group, store_items_reserve(items, err), err));
    store_items_add(items, &item);
    return PD_OK;
}

static void note_unnamed(struct store_catalog *catalog, const struct store_state *state)
{
    struct pd_store_entry *unnamed = &catalog->unnamed;
    if (unnamed->name[0] && unnamed->step >= state->step) return;
    *unnamed = (struct pd_store_entry){.lineage = state->lineage, .step = state->step, .fence = state->fence};
    memcpy(unnamed->name, store_state_name(state, true).text, sizeof unnamed->name);
}

/* While a launch is alive it may be about to rename a record's temporary directory: a reader leaves it alone. */
static pd_status take_committed(const struct recovery *r, const struct store_state *state, struct pd_error *err)
{
    if (!r->options->writable && state->has_tmp) {
        note_unnamed(r->catalog, state);
        return PD_OK;
    }
    if (r->options->writable && state->needs_repair) {
        pd_status st = roll_forward(r, state, err);
        if (st != PD_OK) return pd_error_context(err, st, "rolling %s forward", store_state_name(state, false).text);
    }
    return keep_item(r, state, &r->catalog->committed, err);
}

/* ---- the other states ---- */

/* The next open retries what cannot be cleared now, so do not stop. */
static void clear(const struct recovery *r, const struct store_state *state, bool is_tmp)
{
    struct pd_error own;
    const struct pd_store_name name = store_state_name(state, is_tmp);
    if (store_scan_find(r->scan, state, is_tmp) && store_clear_dir(r->files, name.text, &own) != PD_OK)
        pd_log_warn("ckpt", "cannot remove what an interrupted save left in %s/%s: %s", r->root->root, name.text,
                    own.message);
}

static void clear_all(const struct recovery *r, const struct store_state *state)
{
    clear(r, state, false);
    clear(r, state, true);
}

static void move_aside(const struct recovery *r, const struct store_state *state, const char *cause)
{
    struct pd_error own;
    const struct pd_store_name name = store_state_name(state, false);
    if (!r->options->writable || !r->root->leads_share || !store_scan_find(r->scan, state, false)) return;
    if (store_quarantine_here(r->files, name.text, cause, r->options->quarantine_bytes_max, &own) != PD_OK)
        pd_log_warn("ckpt", "%s/%s stays where it is: %s", r->root->root, name.text, own.message);
}

/* Shards under a final name without a record. If our own removal left its mark, and another checkpoint is whole, finish
 * the removal. Otherwise somebody deleted the record: nothing is moved or deleted. */
static void treat_unrecorded(const struct recovery *r, const struct store_state *state)
{
    const bool is_removal = state->marks & STORE_MARK_REMOVED;
    const struct pd_store_unusable *row = note_unusable(r, state, PD_STORE_UNRECORDED);
    if (!r->options->writable) return;
    if (is_removal && r->any_committed) {
        warn(r, row, "is left over from an interrupted removal and is removed");
        if (r->root->leads_share) clear_all(r, state);
        return;
    }
    warn(r, row, "stays, but is not a checkpoint without its record; put commit.h5 back, or remove the directory");
}

/* It may be all that is left of that run: keep it, but ignore it here. */
static void leave_out(const struct recovery *r, const struct store_state *state)
{
    struct pd_store_unusable row = unusable_of(state, PD_STORE_OF_ANOTHER_RUN);
    snprintf(row.cause, sizeof row.cause,
             "it belongs to run %016" PRIx64 "%016" PRIx64 ", and most checkpoints here to run %016" PRIx64 "%016" PRIx64
             ": move it to where that run keeps its own",
             state->run_id[0], state->run_id[1], r->ours->run_id[0], r->ours->run_id[1]);
    warn(r, store_catalog_note(r->catalog, &row), "is left out");
}

/* Renamed by mistake or put aside on purpose? Only its owner knows, so keep it. */
static void pass_over_misnamed(const struct recovery *r, const struct store_state *state)
{
    struct pd_store_unusable row = unusable_of(state, PD_STORE_MISNAMED);
    const bool is_ours = !r->ours || is_same_run(state, r->ours);
    snprintf(row.cause, sizeof row.cause, "its record is of %s%s", row.right_name,
             is_ours ? ": rename it to that" : " of another run: move it to where that run keeps its own");
    warn(r, store_catalog_note(r->catalog, &row), "is skipped");
}

static pd_status act(const struct recovery *r, const struct store_state *state, struct pd_error *err)
{
    const struct pd_store_unusable *row;
    if (is_of_another_run(r, state)) {
        leave_out(r, state);
        return PD_OK;
    }
    switch ((enum store_state_kind)state->kind) {
    case STORE_COMMITTED:
        return take_committed(r, state, err);
    case STORE_PARTIAL:
        warn(r, note_unusable(r, state, PD_STORE_INCOMPLETE),
             state->is_shard_absent ? "is committed but incomplete, skipped (is a host missing?)"
                                    : "is committed but incomplete, skipped");
        return keep_item(r, state, &r->catalog->partial, err);
    case STORE_UNCOMMITTED:
        if (state->has_shards)
            treat_unrecorded(r, state);
        else if (r->options->writable && r->root->leads_share)
            clear_all(r, state);
        return PD_OK;
    case STORE_DAMAGED:
        row = note_unusable(r, state, PD_STORE_DAMAGED);
        warn(r, row, "is damaged");
        move_aside(r, state, row->cause);
        return PD_OK;
    case STORE_UNREADABLE:
        warn(r, note_unusable(r, state, PD_STORE_UNREADABLE), "cannot be read, skipped");
        return PD_OK;
    case STORE_MISNAMED:
        pass_over_misnamed(r, state);
        return PD_OK;
    }
    return PD_OK;
}

/* Resuming from an older checkpoint than an unreadable one would throw work away: the operator decides. */
static pd_status refuse_unreadable(const struct recovery *r, struct pd_error *err)
{
    uint64_t newest = 0;
    const struct store_state *worst = NULL;
    for (uint32_t i = 0; i < r->scan->state_count; i++) {
        const struct store_state *state = &r->scan->states[i];
        if (state->kind == STORE_COMMITTED && !is_of_another_run(r, state) && state->step > newest) newest = state->step;
        if (state->kind == STORE_UNREADABLE && (!worst || state->step > worst->step)) worst = state;
    }
    if (!r->options->writable || !worst || worst->step < newest) return PD_OK;
    const struct pd_error *mine = &r->scan->unreadable;
    pd_status st = pd_group_agree(r->root->group, pd_error_pass(err, mine->status, mine), err);
    const struct pd_store_name name = store_state_name(worst, false);
    if (st == PD_OK) PD_FAIL(err, PD_IO, "%s cannot be read", name.text);
    /* Whatever its code, this is a storage error: nothing proves damage. */
    if (st != PD_PEER_LOST && st != PD_NO_MEMORY && st != PD_UNSUPPORTED) st = PD_IO;
    return pd_error_context(err, pd_error_change(err, st),
                            "%s is newer than what can be read; make it readable or move it away", name.text);
}

pd_status store_recover(struct store_files *files, const struct pd_store_options *options, const struct store_scan *scan,
                        struct store_catalog *catalog, struct pd_error *err)
{
    struct recovery r = {files, &files->dir, options, scan, catalog, NULL, false};
    PD_TRY(find_ours(&r, err));
    for (uint32_t i = 0; i < scan->state_count; i++)
        r.any_committed =
            r.any_committed || (scan->states[i].kind == STORE_COMMITTED && !is_of_another_run(&r, &scan->states[i]));
    PD_TRY(refuse_unreadable(&r, err));
    PD_TRY(pd_group_agree(r.root->group, store_catalog_init(catalog, scan->state_count, err), err));
    for (uint32_t i = 0; i < scan->state_count; i++)
        PD_TRY(act(&r, &scan->states[i], err));
    return PD_OK;
}
