/* Directories of checkpoints, and the boxes of a rank. */
#include "ckpt/base/checked.h"
#include "resharder/formats/perdure.h"
#include "resharder/layout.h"
#include "tools/library/group.h"
#include "tools/library/handle.h"
#include "tools/library/layout.h"
#include "tools/library/prune.h"
#include "tools/library/upload.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- list ---- */

static bool is_listed(const struct pd_ckpt_place *place, const struct pd_store_entry *entry)
{
    return !place->named[0] || strcmp(place->named, entry->name) == 0;
}

static int newest_first(const void *a, const void *b)
{
    const struct perdure_entry *x = a, *y = b;
    if (x->lineage != y->lineage) return x->lineage > y->lineage ? -1 : 1;
    if (x->step != y->step) return x->step > y->step ? -1 : 1;
    return (x->path > y->path) - (x->path < y->path); /* in the order of the tiers */
}

/* One block: the entries, then their paths. */
static pd_status list_entries(struct pd_ckpt_place *place, struct perdure_entry **ret_entries, uint64_t *ret_count,
                              struct pd_error *err)
{
    char path[4096];
    uint64_t count = 0, text_bytes = 0;
    for (uint32_t tier = 0; tier < place->tiers.count; tier++)
        for (uint32_t i = 0; pd_ckpt_place_turn_to(place, tier) && i < pd_store_count(place->store); i++) {
            const struct pd_store_entry *entry = pd_store_entry_at(place->store, i);
            pd_store_entry_path(place->store, entry, path);
            if (is_listed(place, entry)) count++, text_bytes += strlen(path) + 1;
        }
    struct perdure_entry *entries = malloc((count + 1) * sizeof *entries + text_bytes);
    if (!entries) PD_FAIL(err, PD_NO_MEMORY, "no memory for %" PRIu64 " checkpoints", count);
    char *text = (char *)(entries + count + 1);
    uint64_t made = 0;
    for (uint32_t tier = 0; tier < place->tiers.count; tier++)
        for (uint32_t i = 0; pd_ckpt_place_turn_to(place, tier) && i < pd_store_count(place->store); i++) {
            const struct pd_store_entry *entry = pd_store_entry_at(place->store, i);
            if (!is_listed(place, entry)) continue;
            pd_store_entry_path(place->store, entry, path);
            entries[made++] = (struct perdure_entry){text, entry->step, entry->lineage, entry->bytes, entry->shard_count};
            memcpy(text, path, strlen(path) + 1);
            text += strlen(path) + 1;
        }
    qsort(entries, made, sizeof *entries, newest_first);
    *ret_entries = entries;
    *ret_count = made;
    return PD_OK;
}

enum perdure_status perdure_list(const char *path, struct perdure_entry **ret_entries, uint64_t *ret_count,
                                 struct perdure_error *err)
{
    struct pd_ckpt_place place;
    struct pd_error own = {0};
    pd_library_begin();
    pd_status st = pd_ckpt_place_open_quiet(path, NULL, &place, &own);
    if (!st) {
        st = pd_run_tiers_unread(&place.tiers, &own);
        if (!st) st = list_entries(&place, ret_entries, ret_count, &own);
        pd_ckpt_place_close(&place);
    }
    return pd_library_end(st, &own, err);
}

/* ---- prune ---- */

static pd_status prune(const char *path, uint32_t keep_last, uint64_t keep_every, uint64_t *ret_removed,
                       struct pd_error *err)
{
    struct pd_ckpt_place place;
    uint64_t removed = 0;
    if (!keep_last) PD_FAIL(err, PD_INVALID, "%s: keep_last is 0; keep at least one checkpoint", path);
    PD_TRY(pd_ckpt_place_open_quiet(path, NULL, &place, err));
    pd_status st = PD_OK;
    if (place.named[0])
        st = pd_error_set(err, PD_INVALID, PD_WHERE, 0, "%s is one checkpoint; name the directory it lies in", path);
    for (uint32_t i = 0; st != PD_INVALID && i < place.tiers.count; i++) { /* the first failure is the result */
        struct pd_error one = {0};
        struct pd_ckpt_pruned pruned = {0};
        if (!pd_ckpt_place_turn_to(&place, i)) continue;
        const pd_status this = pd_ckpt_prune(&place, keep_last, keep_every, &pruned, &one);
        removed += pruned.before - pruned.after;
        if (!st) st = pd_error_pass(err, this, &one);
    }
    pd_ckpt_place_close(&place);
    if (!st && ret_removed) *ret_removed = removed;
    return st;
}

enum perdure_status perdure_prune(const char *path, uint32_t keep_last, uint64_t keep_every, uint64_t *ret_removed,
                                  struct perdure_error *err)
{
    struct pd_error own = {0};
    pd_library_begin();
    return pd_library_end(prune(path, keep_last, keep_every, ret_removed, &own), &own, err);
}

/* ---- a rank's boxes ---- */

/* Boxes of a rank, of tensors that are named as in the catalog. */
static pd_status boxes_of_rank(const struct pd_catalog *catalog, const struct pd_layout *layout,
                               const struct pd_tensor_table *tensors, uint32_t rank, struct perdure_box **ret_boxes,
                               uint64_t *ret_count, struct pd_error *err)
{
    struct pd_shard_box *boxes = NULL;
    uint32_t count = 0, made = 0;
    if (rank >= pd_layout_world(layout))
        PD_FAIL(err, PD_INVALID, "there is no rank %u in a layout of %u; ranks begin at 0", rank, pd_layout_world(layout));
    PD_TRY(pd_layout_shard_boxes(layout, tensors, rank, &boxes, &count, err));
    struct perdure_box *mine = calloc((size_t)count + 1, sizeof *mine);
    pd_status st = PD_ALLOCATED(mine, err, "no memory for %u boxes", count);
    for (uint32_t i = 0; !st && i < count; i++) {
        const char *name = tensors->tensors[boxes[i].tensor].name;
        const int64_t tensor = pd_catalog_find(catalog, name, boxes[i].kind);
        if (tensor < 0) continue; /* a tensor without moments */
        struct perdure_box *box = &mine[made++];
        box->tensor = (uint64_t)tensor;
        memcpy(box->start, boxes[i].box.start, sizeof boxes[i].box.start);
        memcpy(box->count, boxes[i].box.count, sizeof boxes[i].box.count);
        for (uint32_t d = catalog->tensors[tensor].ndim; d < PERDURE_DIMS_MAX; d++)
            box->start[d] = 0, box->count[d] = 1;
    }
    free(boxes);
    if (st) return st;
    *ret_boxes = mine;
    *ret_count = made;
    return PD_OK;
}

/* Tensors of any program, of which nothing is known but shapes: rows are cut over the data ranks, all else is whole. */
static pd_status rows_of_rank(const struct perdure_checkpoint *c, const char *text, uint32_t rank,
                              struct perdure_box **ret_boxes, uint64_t *ret_count, struct pd_error *err)
{
    struct pd_ckpt_layout degrees;
    PD_TRY(pd_ckpt_layout_parse(text, &degrees, err));
    const struct pd_catalog *catalog = &c->foreign.catalog;
    if (degrees.world != degrees.dp)
        PD_FAIL(
            err, PD_INVALID,
            "%s does not say how tensor and pipeline parallelism cut its tensors, and \"%s\" asks for it; use dp=%" PRIu64,
            c->foreign.path, text, degrees.world);
    if (rank >= degrees.dp)
        PD_FAIL(err, PD_INVALID, "there is no rank %u in a layout of %" PRIu64 "; ranks begin at 0", rank, degrees.dp);
    struct perdure_box *boxes = calloc((size_t)catalog->tensor_count + 1, sizeof *boxes);
    if (!boxes) PD_FAIL(err, PD_NO_MEMORY, "no memory for %u boxes", catalog->tensor_count);
    uint64_t made = 0, small = 0;
    for (uint32_t i = 0; i < catalog->tensor_count; i++) {
        const struct perdure_tensor *t = &c->tensors[i];
        struct perdure_box box = {.tensor = i};
        memcpy(box.count, t->shape, sizeof box.count);
        const uint64_t rows = t->ndim ? t->shape[0] : 1, part = pd_divide_up(rows, degrees.dp);
        if (t->ndim && t->bytes / degrees.dp >= PD_LAYOUT_SMALL_BYTES && (t->ndim > 1 || t->dtype < PERDURE_Q8_0)) {
            box.start[0] = pd_min_u64(rank * part, rows);
            box.count[0] = pd_min_u64(part, rows - box.start[0]);
            if (box.count[0]) boxes[made++] = box;
        } else if (small++ % degrees.dp == rank) {
            boxes[made++] = box;
        }
    }
    *ret_boxes = boxes;
    *ret_count = made;
    return PD_OK;
}

static pd_status rank_boxes(const struct perdure_checkpoint *c, const char *text, uint32_t rank,
                            struct perdure_box **ret_boxes, uint64_t *ret_count, struct pd_error *err)
{
    struct pd_commit commit = {0};
    struct pd_config config;
    struct pd_model *model = NULL;
    struct pd_laid_out laid_out;
    if (!pd_ckpt_foreign_is_run(&c->foreign)) return rows_of_rank(c, text, rank, ret_boxes, ret_count, err);
    PD_TRY(pd_ckpt_foreign_record(&c->foreign, &commit, err));
    pd_status st = pd_ckpt_lay_out(&commit, text, &config, &model, &laid_out, err);
    if (!st) {
        st = boxes_of_rank(&c->foreign.catalog, &laid_out.layout, &model->tensors, rank, ret_boxes, ret_count, err);
        pd_model_free(model);
        pd_config_deinit(&config);
    }
    pd_commit_deinit(&commit);
    return st;
}

enum perdure_status perdure_rank_boxes(const struct perdure_checkpoint *c, const char *layout, uint32_t rank,
                                       struct perdure_box **ret_boxes, uint64_t *ret_count, struct perdure_error *err)
{
    struct pd_error own = {0};
    return pd_library_end(rank_boxes(c, layout, rank, ret_boxes, ret_count, &own), &own, err);
}

/* ---- upload ---- */

static bool upload_progress(void *context, uint64_t done, uint64_t total)
{
    return pd_library_progress(context, done, total, NULL) == PD_STOPPED;
}

enum perdure_status perdure_upload(const struct perdure_upload *upload, const struct perdure_group *group,
                                   struct perdure_error *err)
{
    struct perdure_upload mine = PERDURE_UPLOAD;
    struct pd_library_group ranks;
    struct pd_ckpt_uploaded uploaded;
    struct pd_error own = {0};
    pd_library_begin();
    pd_library_options(&mine, sizeof mine, upload, upload->size);
    const struct pd_notes notes = pd_library_notes(mine.watch);
    const struct pd_ckpt_upload options = {.source = mine.source,
                                           .bucket = mine.bucket,
                                           .step = mine.step,
                                           .keep_last = mine.keep_last,
                                           .keep_every = mine.keep_every,
                                           .memory = mine.memory,
                                           .bytes_per_second = mine.bytes_per_second,
                                           .notes = &notes,
                                           .progress = upload_progress,
                                           .context = (void *)(uintptr_t)mine.watch};
    pd_status st = pd_library_group_init(&ranks, group, &own);
    if (!st) st = pd_ckpt_upload(&options, &ranks.group, &uploaded, &own);
    return pd_library_end(st, &own, err);
}
