#include "ckpt/base/grow.h"
#include "ckpt/inspect/open.h"

#include "ckpt/base/digest.h"
#include "ckpt/store/paths.h"
#include "ckpt/store/store.h"
#include "ckpt/tensor/shapes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- shards ---- */

/* Finds a place in the ring, and closes the shard there. */
static uint32_t *free_place(struct pd_inspect *in)
{
    for (uint32_t i = 0; i < PD_INSPECT_OPEN_MAX; i++) {
        uint32_t *place = &in->open_order[in->open_next];
        in->open_next = (in->open_next + 1) % PD_INSPECT_OPEN_MAX;
        if (*place != UINT32_MAX && in->pins[*place]) continue;
        if (*place != UINT32_MAX) {
            pd_shard_close(in->shards[*place]);
            in->shards[*place] = NULL;
        }
        *place = UINT32_MAX;
        return place;
    }
    return NULL;
}

static pd_status acquire(struct pd_inspect *in, uint32_t shard, struct pd_shard **ret_shard, struct pd_error *err)
{
    if (!in->shards[shard]) {
        struct pd_shard *opened = NULL;
        char path[4096];
        const struct pd_store_name name = pd_shard_name(shard);
        int length = snprintf(path, sizeof path, "%s/%s", in->directory, name.text);
        if (length < 0 || (size_t)length >= sizeof path) PD_FAIL(err, PD_INVALID, "%s: the path is too long", in->directory);
        PD_TRY(pd_shard_open(in->vfs, path, &in->commit.state.identity, &in->commit.shards[shard], &opened, err));
        uint32_t *place = free_place(in);
        if (!place) {
            pd_shard_close(opened);
            PD_FAIL(err, PD_BUSY, "%s: %u shards are being read at once, and that is the most", path, PD_INSPECT_OPEN_MAX);
        }
        *place = shard;
        in->shards[shard] = opened;
    }
    in->pins[shard]++;
    *ret_shard = in->shards[shard];
    return PD_OK;
}

pd_status pd_inspect_acquire(struct pd_inspect *in, uint32_t shard, struct pd_shard **ret_shard, struct pd_error *err)
{
    PD_CHECK(shard < in->commit.shard_count);
    pthread_mutex_lock(&in->mutex);
    const pd_status st = acquire(in, shard, ret_shard, err);
    pthread_mutex_unlock(&in->mutex);
    return st;
}

void pd_inspect_release(struct pd_inspect *in, uint32_t shard)
{
    pthread_mutex_lock(&in->mutex);
    PD_CHECK(in->pins[shard]);
    in->pins[shard]--;
    pthread_mutex_unlock(&in->mutex);
}

/* ---- tensors ---- */

static uint32_t *name_slot(const struct pd_inspect *in, const char *name)
{
    uint32_t at = (uint32_t)pd_digest64(name, strlen(name), 0) & (in->slot_count - 1);
    while (in->name_slots[at] && strcmp(in->tensors.tensors[in->name_slots[at] - 1].name, name) != 0)
        at = (at + 1) & (in->slot_count - 1);
    return &in->name_slots[at];
}

static pd_status grow_tensors(struct pd_inspect *in, struct pd_error *err)
{
    if (in->tensors.count < in->tensor_capacity) return PD_OK;
    uint32_t capacity = in->tensor_capacity ? in->tensor_capacity * 2 : 256;
    struct pd_tensor *tensors = realloc(in->tensors.tensors, capacity * sizeof *tensors);
    if (tensors) in->tensors.tensors = tensors;
    uint32_t *slots = calloc((size_t)capacity * 4, sizeof *slots);
    if (!tensors || !slots) {
        free(slots);
        PD_FAIL(err, PD_NO_MEMORY, "no memory for a table of %u tensors", capacity);
    }
    free(in->name_slots);
    in->name_slots = slots;
    in->slot_count = capacity * 4;
    in->tensor_capacity = capacity;
    for (uint32_t t = 0; t < in->tensors.count; t++)
        *name_slot(in, in->tensors.tensors[t].name) = t + 1;
    return PD_OK;
}

/* A listed shard has the types of the kinds that it holds. False: two shards have different ones. */
static bool merge_kinds(struct pd_tensor *known, const struct pd_tensor *tensor)
{
    const uint32_t param = 1u << PD_PARAM, both = known->kinds & tensor->kinds;
    if ((both & param && known->dtype != tensor->dtype) || known->is_bytes != tensor->is_bytes) return false;
    if (known->kinds > param && tensor->kinds > param && known->moments != tensor->moments) return false;
    if (tensor->kinds & param) known->dtype = tensor->dtype;
    if (tensor->kinds > param) known->moments = tensor->moments;
    known->kinds |= tensor->kinds;
    return true;
}

static pd_status inspect_add_tensor(struct pd_inspect *in, const struct pd_tensor *tensor, uint32_t *ret_number,
                                    struct pd_error *err)
{
    PD_TRY(grow_tensors(in, err));
    uint32_t *slot = name_slot(in, tensor->name);
    if (!*slot) {
        in->tensors.tensors[in->tensors.count++] = *tensor;
        *slot = in->tensors.count;
    }
    struct pd_tensor *known = &in->tensors.tensors[*slot - 1];
    bool is_same = known->ndim == tensor->ndim && !memcmp(known->shape, tensor->shape, sizeof known->shape);
    if (in->tensors.is_listed)
        is_same = is_same && merge_kinds(known, tensor);
    else
        is_same = is_same && known->dtype == tensor->dtype && known->moments == tensor->moments;
    if (!is_same) PD_FAIL(err, PD_CORRUPT, "tensor %s has another shape here than in the shards before", tensor->name);
    *ret_number = *slot - 1;
    return PD_OK;
}

/* ---- boxes ---- */

static pd_status inspect_add_box(struct pd_inspect *in, const struct pd_inspect_box *box, struct pd_error *err)
{
    if (!pd_grow(&in->boxes, in->box_count, sizeof *in->boxes))
        PD_FAIL(err, PD_NO_MEMORY, "no memory for %llu boxes", (unsigned long long)in->box_count + 1);
    in->boxes[in->box_count++] = *box;
    return PD_OK;
}

static pd_status add_shard(struct pd_inspect *in, uint32_t number, const struct pd_shard *shard, struct pd_error *err)
{
    const struct pd_tensor_table *table = pd_shard_tensors(shard);
    if (table->is_listed != in->tensors.is_listed)
        PD_FAIL(err, PD_CORRUPT, "%s %s its boxes, and the commit record says otherwise", pd_shard_name(number).text,
                table->is_listed ? "lists" : "does not list");
    uint32_t *global = malloc(((size_t)table->count + 1) * sizeof *global);
    pd_status st = PD_ALLOCATED(global, err, "no memory for %u tensors", table->count);
    for (uint32_t t = 0; !st && t < table->count; t++)
        st = inspect_add_tensor(in, &table->tensors[t], &global[t], err);
    for (uint32_t b = 0; !st && b < pd_shard_box_count(shard); b++) {
        const struct pd_shard_box *box = &pd_shard_boxes(shard)[b];
        const struct pd_inspect_box row = {number,
                                           b,
                                           global[box->tensor],
                                           box->kind,
                                           box->box,
                                           pd_shard_box_offset(shard, b),
                                           pd_shard_box_bytes(shard, b)};
        st = inspect_add_box(in, &row, err);
    }
    free(global);
    return pd_error_context(err, st, "%s", pd_shard_name(number).text);
}

static int compare_boxes(const void *left, const void *right)
{
    const struct pd_inspect_box *a = left, *b = right;
    if (a->tensor != b->tensor) return a->tensor < b->tensor ? -1 : 1;
    if (a->kind != b->kind) return a->kind < b->kind ? -1 : 1;
    for (int d = 0; d < PD_TENSOR_DIMS_MAX; d++)
        if (a->place.start[d] != b->place.start[d]) return a->place.start[d] < b->place.start[d] ? -1 : 1;
    return a->shard != b->shard ? (a->shard < b->shard ? -1 : 1) : (a->box > b->box) - (a->box < b->box);
}

/* ---- opening ---- */

static pd_status survey(struct pd_inspect *in, struct pd_error *err)
{
    in->tensors.is_listed = in->commit.state.layout.is_listed;
    in->shards = calloc(in->commit.shard_count, sizeof *in->shards);
    in->pins = calloc(in->commit.shard_count, sizeof *in->pins);
    in->buffers = aligned_alloc(PD_VFS_ALIGN, PD_INSPECT_BUFFER_BYTES);
    if (!in->shards || !in->pins || !in->buffers)
        PD_FAIL(err, PD_NO_MEMORY, "no memory to look at %u shards", in->commit.shard_count);
    for (uint32_t s = 0; s < in->commit.shard_count; s++) {
        struct pd_shard *shard = NULL;
        struct pd_error failure = {0};
        in->data_bytes += in->commit.shards[s].data_bytes;
        pd_status st = pd_inspect_acquire(in, s, &shard, &failure);
        if (!st) st = add_shard(in, s, shard, &failure);
        if (shard) pd_inspect_release(in, s);
        if (st == PD_NO_MEMORY) return pd_error_pass(err, st, &failure);
        if (!st || in->incomplete) continue;
        in->incomplete = st;
        in->incomplete_error = failure;
    }
    if (in->tensors.is_listed) PD_TRY(pd_shapes_read(in->commit.state.environment, &in->tensors, err));
    if (in->box_count) qsort(in->boxes, in->box_count, sizeof *in->boxes, compare_boxes);
    uint64_t keys = (uint64_t)in->tensors.count * PD_KIND_COUNT;
    in->tensor_first = calloc(keys + 1, sizeof *in->tensor_first);
    if (!in->tensor_first) PD_FAIL(err, PD_NO_MEMORY, "no memory for %u tensors", in->tensors.count);
    uint64_t b = 0;
    for (uint64_t key = 0; key <= keys; key++) {
        while (b < in->box_count && (uint64_t)in->boxes[b].tensor * PD_KIND_COUNT + in->boxes[b].kind < key)
            b++;
        in->tensor_first[key] = b;
    }
    return PD_OK;
}

static pd_status find_record(struct pd_inspect *in, const char *path, struct pd_error *err)
{
    static const char name[] = "/commit.h5";
    char record[4096];
    size_t length = strlen(path);
    bool is_record = length >= sizeof name - 1 && strcmp(path + length - (sizeof name - 1), name) == 0;
    in->directory = is_record ? strndup(path, length - (sizeof name - 1)) : strdup(path);
    if (!in->directory) PD_FAIL(err, PD_NO_MEMORY, "no memory to open %s", path);
    int written = snprintf(record, sizeof record, "%s%s", in->directory, name);
    if (written < 0 || (size_t)written >= sizeof record) PD_FAIL(err, PD_INVALID, "%s: the path is too long", path);
    pd_status st = pd_commit_read(in->vfs, record, &in->commit, err);
    if (st == PD_NOT_FOUND)
        PD_FAIL(err, PD_NOT_FOUND,
                "%s is not a checkpoint: it has no commit.h5; perdure ckpt ls lists the checkpoints of a run",
                in->directory);
    return st;
}

pd_status pd_inspect_open(struct pd_vfs *vfs, const char *path, struct pd_inspect **ret_inspect, struct pd_error *err)
{
    struct pd_inspect *in = calloc(1, sizeof *in);
    if (!in) PD_FAIL(err, PD_NO_MEMORY, "no memory to open %s", path);
    in->vfs = vfs;
    memset(in->open_order, 0xff, sizeof in->open_order);
    pthread_mutex_init(&in->mutex, NULL);
    pd_status st = find_record(in, path, err);
    if (!st) st = survey(in, err);
    if (st)
        pd_inspect_close(in);
    else
        *ret_inspect = in;
    return st;
}

void pd_inspect_close(struct pd_inspect *in)
{
    if (!in) return;
    for (uint32_t s = 0; in->shards && s < in->commit.shard_count; s++)
        pd_shard_close(in->shards[s]);
    free(in->shards);
    free(in->pins);
    pthread_mutex_destroy(&in->mutex);
    pd_commit_deinit(&in->commit);
    pd_tensor_table_deinit(&in->tensors);
    free(in->name_slots);
    free(in->boxes);
    free(in->tensor_first);
    free(in->buffers);
    free(in->directory);
    free(in);
}

const struct pd_commit *pd_inspect_commit(const struct pd_inspect *inspect)
{
    return &inspect->commit;
}

pd_status pd_inspect_check_complete(const struct pd_inspect *inspect, struct pd_error *err)
{
    return pd_error_pass(err, inspect->incomplete, &inspect->incomplete_error);
}

const struct pd_tensor_table *pd_inspect_tensors(const struct pd_inspect *inspect)
{
    return &inspect->tensors;
}

uint64_t pd_inspect_box_count(const struct pd_inspect *inspect)
{
    return inspect->box_count;
}

const struct pd_inspect_box *pd_inspect_boxes(const struct pd_inspect *inspect)
{
    return inspect->boxes;
}
