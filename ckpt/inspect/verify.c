/* Verification that continues after damage and reports all of it. */
#include "ckpt/base/grow.h"
#include "ckpt/inspect/open.h"

#include "ckpt/base/digest.h"
#include "ckpt/shard/open.h"
#include "ckpt/store/paths.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DAMAGE_MAX 1000u

struct verifying {
    struct pd_inspect *in;
    struct pd_damage_list list;
    uint32_t shard;
    const struct pd_shard *open;
    uint64_t done_bytes;
    pd_inspect_progress progress;
    void *context;
    pd_should_stop should_stop;
};

void pd_damage_list_deinit(struct pd_damage_list *list)
{
    if (!list) return;
    free(list->items);
    *list = (struct pd_damage_list){0};
}

bool pd_damage_is_proven(const struct pd_damage *damage)
{
    return damage->status == PD_CORRUPT || damage->status == PD_NOT_FOUND;
}

/* True if the finding was reported: all blocks of a damaged compressed chunk fail with the same words and count as one. */
static bool is_said(const struct verifying *v, const struct pd_damage *damage)
{
    const struct pd_damage *last = v->list.count ? &v->list.items[v->list.count - 1] : NULL;
    return last && strcmp(last->file, damage->file) == 0 && strcmp(last->text, damage->text) == 0;
}

/* `file` and `tensor` may be NULL; the text follows. */
PD_PRINTF(6, 7)
static pd_status add_damage(struct verifying *v, struct pd_damage damage, const char *file, const struct pd_tensor *tensor,
                            struct pd_error *err, const char *format, ...)
{
    va_list arguments;
    if (file) snprintf(damage.file, sizeof damage.file, "%s", file);
    if (tensor) memcpy(damage.tensor, tensor->name, sizeof damage.tensor);
    va_start(arguments, format);
    vsnprintf(damage.text, sizeof damage.text, format, arguments);
    va_end(arguments);
    if (v->list.count == DAMAGE_MAX || is_said(v, &damage)) return PD_OK;
    if (!pd_grow(&v->list.items, v->list.count, sizeof *v->list.items))
        PD_FAIL(err, PD_NO_MEMORY, "no memory to list %u damages", v->list.count + 1);
    v->list.items[v->list.count++] = damage;
    return PD_OK;
}

static pd_status visit_block(void *context, uint32_t box, uint64_t block, const void *data, uint64_t bytes,
                             pd_status verified, const struct pd_error *cause, struct pd_error *err)
{
    (void)data;
    struct verifying *v = context;
    v->list.bytes_checked += bytes;
    v->list.blocks_checked++;
    if (v->progress && v->list.blocks_checked % 64 == 0) v->progress(v->context, v->list.bytes_checked, v->in->data_bytes);
    if (v->list.blocks_checked % 64 == 0) PD_TRY(pd_stop_check(v->should_stop, "inspect.verify.block", err));
    if (!verified) return PD_OK;
    const struct pd_shard_box *where = &pd_shard_boxes(v->open)[box];
    const struct pd_damage damage = {.status = verified, .kind = where->kind, .block = block};
    return add_damage(v, damage, pd_shard_name(v->shard).text, &pd_shard_tensors(v->open)->tensors[where->tensor], err, "%s",
                      cause->message);
}

static pd_status verify_shard(struct verifying *v, struct pd_error *err)
{
    struct pd_shard *shard = NULL;
    struct pd_error cause = {0};
    const struct pd_shard_visitor visitor = {v, visit_block};
    pd_status st = pd_inspect_acquire(v->in, v->shard, &shard, &cause);
    if (!st) st = pd_shard_verify_rest(shard, &cause); /* the shard may have been open for long */
    if (!st) {
        v->open = shard;
        st = pd_shard_scan(shard, v->in->buffers, PD_INSPECT_BUFFER_BYTES, &visitor, &cause);
    }
    if (shard) pd_inspect_release(v->in, v->shard);
    if (st == PD_NO_MEMORY || st == PD_STOPPED) return pd_error_pass(err, st, &cause);
    if (!st) return PD_OK;
    return add_damage(v, (struct pd_damage){.status = st}, pd_shard_name(v->shard).text, NULL, err, "%s", cause.message);
}

/* Boxes of a tensor and kind are sorted by start: only those that begin before this one ends can overlap it. */
static pd_status check_overlaps(struct verifying *v, uint64_t first, uint64_t end, bool *ret_overlap, struct pd_error *err)
{
    const struct pd_inspect_box *boxes = v->in->boxes;
    for (uint64_t a = first; a < end; a++) {
        for (uint64_t b = a + 1; b < end && boxes[b].place.start[0] < boxes[a].place.start[0] + boxes[a].place.count[0];
             b++) {
            struct pd_box common;
            if (!pd_box_intersect(&boxes[a].place, &boxes[b].place, &common)) continue;
            const struct pd_damage damage = {.status = PD_CORRUPT, .kind = boxes[a].kind};
            const struct pd_tensor *tensor = &v->in->tensors.tensors[boxes[a].tensor];
            *ret_overlap = true;
            return add_damage(v, damage, pd_shard_name(boxes[b].shard).text, tensor, err,
                              "tensor %s, %s: boxes of shards %u and %u overlap", tensor->name, pd_kind_name(damage.kind),
                              boxes[a].shard, boxes[b].shard);
        }
    }
    return PD_OK;
}

static pd_status check_tensor(struct verifying *v, uint32_t tensor, enum pd_kind kind, struct pd_error *err)
{
    const struct pd_tensor *t = &v->in->tensors.tensors[tensor];
    const uint64_t key = (uint64_t)tensor * PD_KIND_COUNT + kind;
    uint64_t first = v->in->tensor_first[key], end = v->in->tensor_first[key + 1], covered = 0;
    bool overlap = false;
    PD_TRY(check_overlaps(v, first, end, &overlap, err));
    for (uint64_t b = first; b < end; b++)
        covered += pd_box_elements(&v->in->boxes[b].place);
    if (overlap || covered == pd_tensor_elements(t)) return PD_OK;
    return add_damage(v, (struct pd_damage){.status = PD_CORRUPT, .kind = kind}, NULL, t, err,
                      "tensor %s, %s: the shards hold %llu of its %llu elements", t->name, pd_kind_name(kind),
                      (unsigned long long)covered, (unsigned long long)pd_tensor_elements(t));
}

static pd_status check_coverage(struct verifying *v, struct pd_error *err)
{
    const uint64_t recorded = v->in->commit.state.tensor_count;
    if (recorded != v->in->tensors.count)
        PD_TRY(add_damage(v, (struct pd_damage){.status = PD_CORRUPT}, "commit.h5", NULL, err,
                          "the shards hold %u tensors where the commit record says %llu", v->in->tensors.count,
                          (unsigned long long)recorded));
    for (uint32_t t = 0; t < v->in->tensors.count; t++)
        for (int kind = 0; kind < PD_KIND_COUNT; kind++)
            if (pd_tensor_has_kind(&v->in->tensors.tensors[t], (enum pd_kind)kind))
                PD_TRY(check_tensor(v, t, (enum pd_kind)kind, err));
    return PD_OK;
}

pd_status pd_inspect_verify(struct pd_inspect *inspect, pd_inspect_progress progress, void *context,
                            pd_should_stop should_stop, struct pd_damage_list *ret_list, struct pd_error *err)
{
    struct verifying v = {.in = inspect, .progress = progress, .context = context, .should_stop = should_stop};
    pd_status st = PD_OK;
    for (; !st && v.shard < inspect->commit.shard_count; v.shard++)
        st = verify_shard(&v, err);
    /* Missing shards have been reported; do not report their boxes too. */
    if (!st && !inspect->incomplete) st = check_coverage(&v, err);
    if (st) {
        pd_damage_list_deinit(&v.list);
        return st;
    }
    if (progress) progress(context, inspect->data_bytes, inspect->data_bytes);
    *ret_list = v.list;
    return PD_OK;
}

static pd_status digest_file(struct pd_inspect *in, struct pd_file *file, uint64_t *ret_digest, struct pd_error *err)
{
    struct pd_digest_stream stream;
    struct pd_stat stat;
    PD_TRY(pd_file_stat(file, &stat, err));
    pd_digest_stream_init(&stream, 0);
    for (uint64_t at = 0, bytes; at < stat.bytes; at += bytes) {
        bytes = stat.bytes - at < PD_INSPECT_BUFFER_BYTES ? stat.bytes - at : PD_INSPECT_BUFFER_BYTES;
        PD_TRY(pd_file_read(file, at, in->buffers, bytes, err));
        pd_digest_stream_add(&stream, in->buffers, bytes);
    }
    *ret_digest = pd_digest_stream_value(&stream);
    return PD_OK;
}

pd_status pd_inspect_check_index(struct pd_inspect *inspect, struct pd_error *err)
{
    char path[4096];
    struct pd_file *file;
    const uint64_t expected = inspect->commit.state.index_digest;
    uint64_t digest = ~expected;
    if (!expected) return PD_OK;
    snprintf(path, sizeof path, "%.4000s/index.h5", inspect->directory);
    PD_TRY(pd_file_open(inspect->vfs, path, PD_OPEN_READ, &file, err));
    pd_status st = PD_OK;
    for (int attempt = 0; !st && digest != expected && attempt < 2; attempt++)
        st = digest_file(inspect, file, &digest, err);
    pd_file_close_readonly(file);
    if (st == PD_OK && digest != expected) PD_FAIL(err, PD_CORRUPT, "%s does not match the digest in commit.h5", path);
    return st;
}
