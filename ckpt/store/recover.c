/* Acting on a survey at open: every verdict leads to one of roll forward, clear, move aside, report. Invariant 4 of store.c.
 */
#include "ckpt/base/fault.h"
#include "ckpt/base/log.h"
#include "ckpt/store/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void verdict_name(const struct store_verdict *verdict, bool is_tmp, char ret_text[PD_STORE_NAME_MAX])
{
    struct pd_step_name name = {.step = verdict->step, .fence = verdict->fence, .is_tmp = is_tmp};
    pd_step_name_format(&name, ret_text);
}

static const struct store_sighting *find_sighting(const struct store_survey *survey, const struct store_verdict *verdict,
                                                  bool is_tmp)
{
    for (uint32_t i = 0; i < survey->sighting_count; i++) {
        const struct store_sighting *s = &survey->sightings[i];
        if (s->name.step == verdict->step && s->name.fence == verdict->fence && s->name.is_tmp == is_tmp) return s;
    }
    return NULL;
}

/* Room for every verdict is there. */
static const struct pd_store_unusable *note_unusable(struct pd_store *store, const struct store_survey *survey,
                                                     const struct store_verdict *verdict, enum pd_store_flaw flaw)
{
    static const char *const otherwise[] = {"not all of it is in sight", "commit.h5 does not verify", "commit.h5 is absent",
                                            "commit.h5 cannot be read"};
    struct pd_store_unusable *row = &store->unusable[store->unusable_count++];
    const struct store_sighting *final = find_sighting(survey, verdict, false);
    *row = (struct pd_store_unusable){.step = verdict->step, .flaw = flaw, .is_drive_absent = verdict->is_drive_absent};
    verdict_name(verdict, false, row->name);
    bool has_local = flaw != PD_STORE_UNRECORDED && final && final->cause[0];
    snprintf(row->cause, sizeof row->cause, "%s",
             verdict->cause[0] ? verdict->cause
             : has_local       ? final->cause
                               : otherwise[flaw]);
    return row;
}

static void warn(const struct pd_store *store, const struct pd_store_unusable *row, const char *what)
{
    if (store->group->rank == 0 && !store->options.quiet)
        pd_log_warn("ckpt", "%s/%s %s: %s", store->root, row->name, what, row->cause);
}

/* ---- roll forward ---- */

/* Makes the name of the record durable before anything is renamed: a directory here may never have had one. */
static pd_status make_record_name(struct pd_store *store, const char *dir, struct pd_error *err)
{
    char path[STORE_PATH_MAX];
    struct pd_file *file = NULL;
    store_path(store, path, "%s/commit.h5", dir);
    PD_TRY(pd_file_open(store->vfs, path, PD_OPEN_WRITE | PD_OPEN_CREATE, &file, err));
    PD_TRY(pd_file_close(file, err));
    store_path(store, path, "%s", dir);
    return store_sync_dir(store, path, err);
}

static pd_status repair_here(struct pd_store *store, const struct store_survey *survey, const struct store_verdict *verdict,
                             const void *record, uint64_t bytes, struct pd_error *err)
{
    const struct store_sighting *final = find_sighting(survey, verdict, false);
    const struct store_sighting *tmp = find_sighting(survey, verdict, true);
    char from[PD_STORE_NAME_MAX], to[PD_STORE_NAME_MAX];
    verdict_name(verdict, !final, from);
    verdict_name(verdict, false, to);
    if (final && tmp) pd_log_warn("ckpt", "%s/%s has a twin with the temporary name; that one stays", store->root, to);
    if (!final && !tmp) return PD_OK;
    if (final && final->record == STORE_RECORD_VALID) return PD_OK;
    bool has_record = !final && tmp->record == STORE_RECORD_VALID;
    PD_TRY(make_record_name(store, from, err));
    PD_TRY(store_seal_here(store, from, to, has_record ? NULL : record, bytes, err));
    pd_log_info("ckpt", "%s/%s is whole: rolled forward", store->root, to);
    return PD_OK;
}

/* Rank `record_rank` holds a valid record under one of its two names. */
static pd_status load_record(struct pd_store *store, const struct store_survey *survey, const struct store_verdict *verdict,
                             void **ret_data, uint64_t *ret_bytes, struct pd_error *err)
{
    char name[PD_STORE_NAME_MAX], path[STORE_PATH_MAX];
    const struct store_sighting *final = find_sighting(survey, verdict, false);
    verdict_name(verdict, !final || final->record != STORE_RECORD_VALID, name);
    store_path(store, path, "%s/commit.h5", name);
    return store_read_file(store->vfs, path, PD_COMMIT_BYTES_MAX, ret_data, ret_bytes, err);
}

static pd_status roll_forward(struct pd_store *store, const struct store_survey *survey, const struct store_verdict *verdict,
                              struct pd_error *err)
{
    struct pd_group *group = store->group;
    void *data = NULL;
    uint64_t bytes = 0;
    bool holds = group->rank == verdict->record_rank;
    pd_status st = holds ? load_record(store, survey, verdict, &data, &bytes, err) : PD_OK;
    st = pd_group_agree(group, st, err);
    if (st == PD_OK) st = pd_group_broadcast(group, verdict->record_rank, &bytes, sizeof bytes, err);
    if (st == PD_OK && !holds) data = malloc(bytes + 1);
    if (st == PD_OK) {
        pd_status has = data ? PD_OK : pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory for a commit record");
        st = pd_group_agree(group, has, err);
    }
    if (st == PD_OK) st = pd_group_broadcast(group, verdict->record_rank, data, bytes, err);
    if (st == PD_OK) {
        pd_status mine = store->leads_domain ? repair_here(store, survey, verdict, data, bytes, err) : PD_OK;
        st = pd_group_agree(group, mine, err);
    }
    free(data);
    return st;
}

/* ---- the other verdicts ---- */

/* What cannot be cleared now is met again at the next open: no reason to stop. */
static void clear_unsealed(struct pd_store *store, const struct store_survey *survey, const struct store_verdict *verdict)
{
    for (unsigned is_tmp = 0; is_tmp < 2; is_tmp++) {
        if (!find_sighting(survey, verdict, is_tmp)) continue;
        char name[PD_STORE_NAME_MAX];
        struct pd_error own;
        verdict_name(verdict, is_tmp, name);
        pd_status st = store_clear_dir(store, name, &own);
        if (st != PD_OK)
            pd_log_warn("ckpt", "what an interrupted save left in %s/%s stays: %s", store->root, name, own.message);
    }
}

/* Their shards on drives; store_stripes_clear comes by again. */
static void clear_drives(struct pd_store *store, const struct store_verdict *verdict)
{
    char name[PD_STORE_NAME_MAX];
    verdict_name(verdict, false, name);
    (void)!store_stripes_remove(store, name, NULL);
}

static bool any_sealed(const struct store_survey *survey)
{
    for (uint32_t i = 0; i < survey->verdict_count; i++) {
        if (survey->verdicts[i].kind == STORE_SEALED) return true;
    }
    return false;
}

/* Shards under a final name without a record: a removal that was interrupted leaves them, and so does a hand that deletes
 * commit.h5. Removals of ours leave a whole checkpoint, so without one it was no removal of ours. */
static void treat_unsealed(struct pd_store *store, const struct store_survey *survey, const struct store_verdict *verdict)
{
    bool clears = store->options.writable;
    if (!verdict->is_emptied) {
        const struct pd_store_unusable *row = note_unusable(store, survey, verdict, PD_STORE_UNRECORDED);
        clears = clears && any_sealed(survey);
        if (store->options.writable)
            warn(store, row, clears ? "is no checkpoint (any more) and is cleared" : "is no checkpoint and stays");
    }
    if (!clears || !store->leads_domain) return;
    clear_unsealed(store, survey, verdict);
    clear_drives(store, verdict);
}

static void move_damaged(struct pd_store *store, const struct store_survey *survey, const struct store_verdict *verdict,
                         const char *cause)
{
    char name[PD_STORE_NAME_MAX];
    struct pd_error own;
    verdict_name(verdict, false, name);
    if (!find_sighting(survey, verdict, false)) return;
    pd_status st = store_quarantine_here(store, name, cause, &own);
    if (st != PD_OK) pd_log_warn("ckpt", "damaged %s/%s stays where it is: %s", store->root, name, own.message);
}

static pd_status keep_item(struct pd_store *store, const struct store_verdict *verdict, struct store_items *items,
                           struct pd_error *err)
{
    struct store_item item = {.record_rank = verdict->record_rank,
                              .entry = {.lineage = verdict->lineage,
                                        .step = verdict->step,
                                        .fence = verdict->fence,
                                        .bytes = verdict->bytes,
                                        .shard_count = verdict->shard_count,
                                        .hosts = verdict->hosts}};
    verdict_name(verdict, false, item.entry.name);
    PD_TRY(pd_group_agree(store->group, store_items_reserve(items, err), err));
    store_items_add(items, &item);
    return PD_OK;
}

static void note_unnamed(struct pd_store *store, const struct store_verdict *verdict)
{
    if (store->unnamed.name[0] && store->unnamed.step >= verdict->step) return;
    store->unnamed = (struct pd_store_entry){.lineage = verdict->lineage, .step = verdict->step, .fence = verdict->fence};
    verdict_name(verdict, true, store->unnamed.name);
}

/* While a launch lives, a record under a temporary name is about to move: a reader leaves it alone. */
static pd_status take_sealed(struct pd_store *store, const struct store_survey *survey, const struct store_verdict *verdict,
                             struct pd_error *err)
{
    if (!store->options.writable && verdict->has_tmp) {
        note_unnamed(store, verdict);
        return PD_OK;
    }
    if (store->options.writable && verdict->needs_repair) {
        char name[PD_STORE_NAME_MAX];
        verdict_name(verdict, false, name);
        pd_status st = roll_forward(store, survey, verdict, err);
        if (st != PD_OK) return pd_error_context(err, st, "rolling %s forward", name);
    }
    return keep_item(store, verdict, &store->sealed, err);
}

static pd_status act(struct pd_store *store, const struct store_survey *survey, const struct store_verdict *verdict,
                     struct pd_error *err)
{
    const struct pd_store_unusable *row;
    switch ((enum store_verdict_kind)verdict->kind) {
    case STORE_SEALED:
        return take_sealed(store, survey, verdict, err);
    case STORE_PARTIAL:
        warn(store, note_unusable(store, survey, verdict, PD_STORE_INCOMPLETE),
             verdict->is_shard_absent && !verdict->is_drive_absent
                 ? "is sealed but not whole, passed over (is a host absent?)"
                 : "is sealed but not whole, passed over");
        return keep_item(store, verdict, &store->partial, err);
    case STORE_UNSEALED:
        treat_unsealed(store, survey, verdict);
        return PD_OK;
    case STORE_DAMAGED:
        row = note_unusable(store, survey, verdict, PD_STORE_DAMAGED);
        warn(store, row, "is damaged");
        if (store->options.writable && store->leads_domain) move_damaged(store, survey, verdict, row->cause);
        return PD_OK;
    case STORE_UNREADABLE:
        warn(store, note_unusable(store, survey, verdict, PD_STORE_UNREADABLE), "cannot be read, passed over");
        return PD_OK;
    }
    return PD_OK;
}

/* Falling back behind a checkpoint that is there but cannot be read would throw work away: the operator decides. */
static pd_status refuse_unreadable(struct pd_store *store, const struct store_survey *survey, struct pd_error *err)
{
    uint64_t newest = 0;
    const struct store_verdict *worst = NULL;
    for (uint32_t i = 0; i < survey->verdict_count; i++) {
        const struct store_verdict *verdict = &survey->verdicts[i];
        if (verdict->kind == STORE_SEALED && verdict->step > newest) newest = verdict->step;
        if (verdict->kind == STORE_UNREADABLE && (!worst || verdict->step > worst->step)) worst = verdict;
    }
    if (!store->options.writable || !worst || worst->step < newest) return PD_OK;
    pd_status mine = survey->unreadable.status;
    if (mine != PD_OK && err) *err = survey->unreadable;
    pd_status st = pd_group_agree(store->group, mine, err);
    char name[PD_STORE_NAME_MAX];
    verdict_name(worst, false, name);
    if (st == PD_OK) PD_FAIL(err, PD_IO, "%s cannot be read", name);
    /* Whatever the reason was called, this is a storage error: nothing proves damage. */
    if (st != PD_PEER_LOST && st != PD_NO_MEMORY && st != PD_UNSUPPORTED) st = PD_IO;
    if (err) err->status = st;
    return pd_error_context(err, st, "%s is newer than what can be read; make it readable or move it away", name);
}

pd_status store_recover(struct pd_store *store, const struct store_survey *survey, struct pd_error *err)
{
    PD_TRY(refuse_unreadable(store, survey, err));
    store->unusable = calloc((size_t)survey->verdict_count + 1, sizeof *store->unusable);
    pd_status st = PD_OK;
    if (!store->unusable)
        st = pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory for %u checkpoints", survey->verdict_count);
    PD_TRY(pd_group_agree(store->group, st, err));
    for (uint32_t i = 0; i < survey->verdict_count; i++)
        PD_TRY(act(store, survey, &survey->verdicts[i], err));
    return PD_OK;
}
