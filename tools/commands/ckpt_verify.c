/* perdure ckpt verify: checks every byte of one checkpoint, or of all in a directory, and reports other files there. */
#include "ckpt/base/clock.h"
#include "ckpt/base/grow.h"
#include "ckpt/base/words.h"
#include "tools/commands/ckpt.h"
#include "tools/library/place.h"
#include "tools/output.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what to check ---- */

struct candidate { /* borrowed from the place */
    const char *name;
    const struct pd_store_unusable *unusable; /* NULL: usable */
};

struct verify {
    struct pd_ckpt_place place;
    struct candidate *candidates; /* (count), newest first, owned */
    uint32_t count;
    uint64_t newest_whole; /* step of the newest usable one */
    bool is_json, names_one;
    struct pd_json_writer w;
    uint32_t total, damaged, findings, foreign, unchecked, quarantined; /* of all places */
    struct pd_error verdict; /* of the first place with damage or foreign files, else of the first that cannot be checked */
    uint32_t index_damaged;  /* among checkpoints whose state is good */
    char first_damaged[64], first_foreign[512], first_index[64];
    struct pd_error first_unchecked;
};

static int newest_first(const void *a, const void *b)
{
    return strcmp(((const struct candidate *)b)->name, ((const struct candidate *)a)->name);
}

static bool is_asked_for(const struct verify *v, uint64_t asked_step, const char *name, uint64_t step)
{
    return v->place.named[0] ? strcmp(v->place.named, name) == 0 : asked_step == UINT64_MAX || asked_step == step;
}

static pd_status ckpt_verify_choose(struct verify *v, uint64_t step, struct pd_error *err)
{
    uint32_t most = pd_store_count(v->place.store) + pd_store_unusable_count(v->place.store);
    v->candidates = calloc((size_t)most + 1, sizeof *v->candidates);
    if (!v->candidates) PD_FAIL(err, PD_NO_MEMORY, "no memory for %u checkpoints", most);
    for (uint32_t i = 0; i < pd_store_count(v->place.store); i++) {
        const struct pd_store_entry *entry = pd_store_entry_at(v->place.store, i);
        if (entry->step > v->newest_whole) v->newest_whole = entry->step;
        if (!is_asked_for(v, step, entry->name, entry->step)) continue;
        v->candidates[v->count++].name = entry->name;
    }
    for (uint32_t i = 0; i < pd_store_unusable_count(v->place.store); i++) {
        const struct pd_store_unusable *unusable = pd_store_unusable_at(v->place.store, i);
        if (!is_asked_for(v, step, unusable->name, unusable->step)) continue;
        v->candidates[v->count++] = (struct candidate){unusable->name, unusable};
    }
    qsort(v->candidates, v->count, sizeof *v->candidates, newest_first);
    if (v->count) return PD_OK;
    if (!v->place.named[0]) return pd_ckpt_place_fail_none(&v->place, step, err);
    v->candidates[v->count++].name = v->place.named;
    return PD_OK;
}

/* ---- one checkpoint ---- */

struct checked {
    const struct candidate *candidate;
    char path[4200];
    struct pd_damage_list list;
    char warning[400]; /* or empty */
    bool is_index_damaged;
    char foreign[512]; /* of another run or under another name, good or not; or empty */
    double seconds;
};

static pd_status add_finding(struct pd_damage_list *list, const char *file, pd_status status, const char *text,
                             struct pd_error *err)
{
    if (!pd_grow(&list->items, list->count, sizeof *list->items)) PD_FAIL(err, PD_NO_MEMORY, "no memory for the findings");
    struct pd_damage *d = &list->items[list->count++];
    *d = (struct pd_damage){.status = status};
    snprintf(d->file, sizeof d->file, "%s", file);
    snprintf(d->text, sizeof d->text, "%.511s", text);
    return PD_OK;
}

/* The store's reason begins with the name of a file, unless it is about the record. */
static pd_status add_unusable(struct checked *c, struct pd_error *err)
{
    const struct pd_store_unusable *unusable = c->candidate->unusable;
    pd_status status = unusable->flaw == PD_STORE_UNREADABLE ? PD_IO : PD_CORRUPT;
    bool is_shard = strncmp(unusable->cause, "shard-", 6) == 0;
    if (unusable->flaw == PD_STORE_OF_ANOTHER_RUN || unusable->flaw == PD_STORE_MISNAMED) {
        snprintf(c->foreign, sizeof c->foreign, "%s: %s", unusable->name, unusable->cause);
        return PD_OK;
    }
    if (is_shard && c->list.count) return PD_OK; /* also found just now */
    char file[64] = "commit.h5", text[512];
    if (is_shard) snprintf(file, sizeof file, "%.*s", (int)strcspn(unusable->cause, " "), unusable->cause);
    snprintf(text, sizeof text, "%s: %s", unusable->name, unusable->cause);
    return add_finding(&c->list, file, status, text, err);
}

static bool is_gone(const struct verify *v, const struct checked *c)
{
    struct pd_stat stat;
    return pd_vfs_stat(v->place.vfs, c->path, &stat, NULL) == PD_NOT_FOUND;
}

/* index.h5 holds no state, so the checkpoint is good without it; but h5py would show nonsense. */
static void check_index(struct verify *v, struct checked *c, struct pd_inspect *inspect)
{
    struct pd_error why;
    const pd_status st = pd_inspect_check_index(inspect, &why);
    if (!st) return;
    c->is_index_damaged = st == PD_CORRUPT;
    snprintf(c->warning, sizeof c->warning,
             "%s: index.h5 %s; it is for people (h5dump, h5py), and the state is complete without it: perdure ckpt reshard "
             "writes the checkpoint again with one, and launches make one for each checkpoint that they save",
             c->candidate->name,
             c->is_index_damaged  ? "is damaged: other bytes than commit.h5 promises"
             : st == PD_NOT_FOUND ? "is absent"
                                  : "cannot be read");
    if (c->is_index_damaged && !v->index_damaged++)
        snprintf(v->first_index, sizeof v->first_index, "%s", c->candidate->name);
}

static pd_status ckpt_verify_read_all(struct verify *v, struct checked *c, struct pd_error *err)
{
    struct pd_inspect *inspect;
    struct pd_shown_progress progress;
    struct pd_error why = {0};
    pd_status st = pd_inspect_open(v->place.vfs, c->path, &inspect, &why);
    if (st == PD_NO_MEMORY) {
        if (err) *err = why;
        return st;
    }
    /* Its record is missing or wrong; the store's reason already says so. */
    if (st && c->candidate->unusable) return PD_OK;
    if (st) return add_finding(&c->list, "commit.h5", st == PD_NOT_FOUND ? PD_CORRUPT : st, why.message, err);
    st = pd_inspect_verify(inspect, pd_shown_progress_start(&progress), &progress, (pd_should_stop){0}, &c->list, err);
    pd_shown_progress_end(&progress);
    c->seconds = pd_clock_seconds_since(progress.start_ns);
    if (!st && !c->list.count && !c->candidate->unusable) check_index(v, c, inspect);
    pd_inspect_close(inspect);
    return st;
}

/* Remains of an interrupted removal are not damage; they are older than the checkpoints that a removal keeps. */
static bool is_a_removal(const struct verify *v, const struct checked *c)
{
    const struct pd_store_unusable *unusable = c->candidate->unusable;
    return !v->names_one && unusable && unusable->flaw == PD_STORE_UNRECORDED && unusable->step < v->newest_whole;
}

static pd_status check(struct verify *v, struct checked *c, struct pd_error *err)
{
    const struct pd_store_unusable *unusable = c->candidate->unusable;
    int length = snprintf(c->path, sizeof c->path, "%s/%s", v->place.root, c->candidate->name);
    PD_CHECK(length > 0 && (size_t)length < sizeof c->path);
    PD_TRY(ckpt_verify_read_all(v, c, err));
    if (unusable) PD_TRY(add_unusable(c, err));
    bool is_gone_now = !v->names_one && is_gone(v, c);
    if (is_gone_now || is_a_removal(v, c)) {
        snprintf(c->warning, sizeof c->warning, "%s is not a checkpoint: it %s", c->candidate->name,
                 is_gone_now ? "was removed while it was read"
                             : "has no commit.h5, as a removal leaves it that was interrupted; the next launch clears it");
        c->list.count = 0;
    }
    return PD_OK;
}

/* ---- output ---- */

static uint32_t count_proven(const struct pd_damage_list *list)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < list->count; i++)
        count += pd_damage_is_proven(&list->items[i]);
    return count;
}

static void tell_findings(struct pd_json_writer *w, const char *key, const struct pd_damage_list *list, bool are_proven)
{
    pd_json_array_begin(w, key);
    for (uint32_t i = 0; i < list->count; i++) {
        const struct pd_damage *d = &list->items[i];
        if (pd_damage_is_proven(d) != are_proven) continue;
        pd_json_object_begin(w, NULL);
        PD_JSON_STRINGS(w, {"file", d->file}, {"tensor", d->tensor[0] ? d->tensor : NULL});
        if (d->tensor[0]) pd_json_string(w, "kind", pd_kind_name(d->kind));
        if (d->tensor[0]) pd_json_u64(w, "block", d->block);
        pd_json_string(w, "text", d->text);
        pd_json_object_end(w);
    }
    pd_json_array_end(w);
}

static void tell_json(struct pd_json_writer *w, const struct checked *c)
{
    pd_json_object_begin(w, NULL);
    pd_json_string(w, "checkpoint", c->path);
    pd_json_bool(w, "ok", c->list.count == 0 && !c->foreign[0] && !c->is_index_damaged);
    pd_json_bool(w, "index_damaged", c->is_index_damaged);
    PD_JSON_U64S(w, {"bytes_checked", c->list.bytes_checked}, {"blocks_checked", c->list.blocks_checked});
    pd_json_double(w, "seconds", c->seconds);
    PD_JSON_STRINGS(w, {"warning", c->warning[0] ? c->warning : NULL}, {"foreign", c->foreign[0] ? c->foreign : NULL});
    tell_findings(w, "damage", &c->list, true);
    tell_findings(w, "unchecked", &c->list, false);
    pd_json_object_end(w);
}

static void tell_text(const struct checked *c)
{
    const uint32_t count = count_proven(&c->list), unchecked = c->list.count - count;
    for (uint32_t i = 0; i < c->list.count; i++)
        printf("%s%s\n", pd_damage_is_proven(&c->list.items[i]) ? "" : "cannot be checked: ", c->list.items[i].text);
    if (c->foreign[0]) printf("%s\n", c->foreign);
    if (c->warning[0]) printf("warning: %s\n", c->warning);
    if (!c->list.blocks_checked && !c->list.count) return;
    printf("%s: %s: %s, %s blocks checked in %.1f s, %s",
           count                 ? "DAMAGED"
           : unchecked           ? "UNCHECKED"
           : c->foreign[0]       ? (c->candidate->unusable->flaw == PD_STORE_MISNAMED ? "MISNAMED" : "FOREIGN")
           : c->is_index_damaged ? "INDEX DAMAGED, state ok"
                                 : "ok",
           c->candidate->name, pd_text_bytes(c->list.bytes_checked).text, pd_text_count(c->list.blocks_checked).text,
           c->seconds, pd_counted(count, "finding").text);
    if (unchecked) printf(", %" PRIu32 " not checked", unchecked);
    printf("\n");
}

/* A failed read is a storage error, not proof of damage. */
static void count_findings(struct verify *v, const struct checked *c)
{
    const uint32_t proven = count_proven(&c->list);
    if (proven && !v->damaged++) snprintf(v->first_damaged, sizeof v->first_damaged, "%s", c->candidate->name);
    v->findings += proven;
    if (!proven && c->foreign[0] && !v->foreign++) snprintf(v->first_foreign, sizeof v->first_foreign, "%s", c->foreign);
    if (proven || !c->list.count || v->unchecked++) return;
    const struct pd_damage *first = &c->list.items[0];
    pd_error_set(&v->first_unchecked, first->status, PD_WHERE, 0, "%s/%s cannot be checked: %.400s", v->place.root,
                 c->candidate->name, first->text);
}

static pd_status verdict(const struct verify *v, struct pd_error *err)
{
    if (v->damaged == 1)
        PD_FAIL(err, PD_CORRUPT, "checkpoint %s/%s: %s; a run loads the newest complete checkpoint", v->place.root,
                v->first_damaged, pd_counted(v->findings, "finding").text);
    if (v->damaged)
        PD_FAIL(err, PD_CORRUPT, "%u of %u checkpoints in %s are damaged, %s first; a run loads the newest complete one",
                v->damaged, v->count, v->place.root, v->first_damaged);
    if (v->foreign)
        PD_FAIL(err, PD_CORRUPT, "%.400s/%s%s", v->place.root, v->first_foreign, v->foreign > 1 ? "; see others above" : "");
    if (v->index_damaged)
        PD_FAIL(err, PD_CORRUPT,
                "index.h5 of %s/%s%s is damaged; its state is complete, and a run continues from it: perdure ckpt reshard "
                "writes the checkpoint again with an index",
                v->place.root, v->first_index, v->index_damaged > 1 ? " (and others)" : "");
    if (v->unchecked)
        PD_FAIL(err, v->first_unchecked.status, "%.900s%s; mount or repair its storage and check again",
                v->first_unchecked.message, v->unchecked > 1 ? " (others too)" : "");
    return PD_OK;
}

static pd_status check_all(struct verify *v, struct pd_error *err)
{
    for (uint32_t i = 0; i < v->count; i++) {
        struct checked c = {.candidate = &v->candidates[i]};
        pd_status st = check(v, &c, err);
        if (!st && v->is_json) tell_json(&v->w, &c);
        if (!st && !v->is_json) tell_text(&c);
        if (!st) count_findings(v, &c);
        pd_damage_list_deinit(&c.list);
        PD_TRY(st);
    }
    return PD_OK;
}

static pd_status count_quarantined(struct verify *v, struct pd_error *err)
{
    uint32_t quarantined;
    PD_TRY(pd_store_count_quarantined(v->place.store, &quarantined, err));
    v->quarantined += quarantined;
    if (quarantined && !v->names_one && !v->is_json)
        printf("%u damaged checkpoint%s that earlier launches moved aside: %s/quarantine\n", quarantined,
               quarantined == 1 ? "" : "s", v->place.root);
    return PD_OK;
}

static pd_status ckpt_verify_finish(struct verify *v, struct pd_error *err)
{
    pd_json_array_end(&v->w);
    pd_json_bool(&v->w, "ok", v->total && !v->damaged && !v->foreign && !v->index_damaged && !v->unchecked);
    PD_JSON_U64S(&v->w, {"damaged", v->damaged}, {"index_damaged", v->index_damaged}, {"foreign", v->foreign},
                 {"unchecked", v->unchecked}, {"findings", v->findings}, {"quarantined", v->quarantined});
    return v->is_json ? pd_output_json(&v->w, err) : PD_OK;
}

/* Verifies one tier. If it holds nothing, *ret_none says so, and the JSON is still printed. */
static pd_status verify_tier(struct verify *v, uint64_t step, struct pd_error *ret_none, struct pd_error *err)
{
    struct pd_error why = {0};
    v->count = 0;
    v->newest_whole = 0;
    pd_status status = ckpt_verify_choose(v, step, &why);
    if (status && status != PD_CORRUPT && err) *err = why;
    if (status == PD_CORRUPT) {
        *ret_none = why;
        status = PD_OK;
    }
    if (!status) status = check_all(v, err);
    v->total += v->count;
    if (!status) status = count_quarantined(v, err);
    if (!status && v->verdict.status != PD_CORRUPT && (v->damaged || v->foreign || v->index_damaged || !v->verdict.status))
        (void)verdict(v, &v->verdict);
    free(v->candidates);
    v->candidates = NULL;
    return status;
}

pd_status pd_ckpt_verify(const struct pd_ckpt_options *options, struct pd_error *err)
{
    struct verify v = {.is_json = options->json};
    struct pd_error none = {0};
    PD_TRY(pd_ckpt_place_open_quiet(options->paths[0], &pd_ckpt_notes, &v.place, err));
    v.names_one = v.place.named[0] || options->step != UINT64_MAX;
    pd_json_writer_init_object(&v.w, 2);
    pd_json_array_begin(&v.w, "checkpoints");
    pd_status status = PD_OK;
    for (uint32_t i = 0; !status && i < v.place.tiers.count; i++) {
        if (!pd_ckpt_place_turn_to(&v.place, i)) continue;
        if (v.place.tiers.count > 1 && !v.is_json) printf("%s:\n", v.place.root);
        status = verify_tier(&v, options->step, &none, err);
    }
    if (!status) status = ckpt_verify_finish(&v, err);
    if (!status && (v.verdict.status || !v.total)) {
        if (err) *err = v.verdict.status ? v.verdict : none;
        status = v.verdict.status ? v.verdict.status : PD_CORRUPT;
    }
    if (!status) status = pd_run_tiers_unread(&v.place.tiers, err);
    pd_json_writer_deinit(&v.w);
    pd_ckpt_place_close(&v.place);
    return status;
}
