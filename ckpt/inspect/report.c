/* Digests and statistics of every tensor in one verified pass over the shards. */
#include "ckpt/base/digest.h"
#include "ckpt/inspect/open.h"
#include "ckpt/shard/table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct sums { /* of one tensor and kind; rows keep min and max */
    double sum, squares;
    uint64_t finite;
};

struct reporting {
    struct pd_inspect *in;
    struct pd_state_report report;
    struct sums *sums;
    uint32_t *global; /* tensor numbers of the open shard */
    const struct pd_shard *open;
    const bool *wanted; /* (tensors), or NULL: all */
    bool want_statistics;
    pd_inspect_progress progress;
    void *context;
    uint64_t blocks, bytes, total;
};

void pd_state_report_deinit(struct pd_state_report *report)
{
    if (!report) return;
    free(report->rows);
    *report = (struct pd_state_report){0};
}

static void add_values(struct pd_tensor_report *row, struct sums *sums, const float *values, uint64_t count)
{
    double sum = 0, squares = 0;
    uint64_t finite = 0;
    for (uint64_t i = 0; i < count; i++) {
        double value = values[i];
        if (!isfinite(value)) {
            if (isnan(value))
                row->nan_count++;
            else
                row->inf_count++;
            continue;
        }
        if ((sums->finite | finite) == 0) row->min = row->max = value;
        if (value < row->min) row->min = value;
        if (value > row->max) row->max = value;
        sum += value;
        squares += value * value;
        finite++;
    }
    sums->sum += sum;
    sums->squares += squares;
    sums->finite += finite;
}

static void add_stored(struct reporting *r, struct pd_tensor_report *row, uint64_t key, enum pd_dtype dtype,
                       const void *data, uint64_t count)
{
    float wide[1024];
    if (dtype == PD_F32) {
        add_values(row, &r->sums[key], data, count);
        return;
    }
    for (uint64_t done = 0, n; done < count; done += n) {
        n = count - done < 1024 ? count - done : 1024;
        pd_widen_bf16(wide, (const uint16_t *)data + done, n);
        add_values(row, &r->sums[key], wide, n);
    }
}

static pd_status visit_block(void *context, uint32_t box, uint64_t block, const void *data, uint64_t bytes,
                             pd_status verified, const struct pd_error *damage, struct pd_error *err)
{
    struct reporting *r = context;
    if (verified) return pd_error_pass(err, verified, damage);
    const struct pd_shard_box *where = &pd_shard_boxes(r->open)[box];
    const struct pd_tensor *tensor = &pd_shard_tensors(r->open)->tensors[where->tensor];
    const enum pd_dtype dtype = pd_tensor_dtype(tensor, where->kind);
    if (dtype == PD_F16) PD_FAIL(err, PD_UNSUPPORTED, "tensor %s is stored as %s", tensor->name, pd_dtype_name(dtype));
    const uint64_t key = (uint64_t)r->global[where->tensor] * PD_KIND_COUNT + where->kind,
                   element_bytes = pd_dtype_bytes(dtype), count = bytes / element_bytes;
    struct pd_tensor_report *row = &r->report.rows[key];
    row->elements += count;
    row->digest +=
        pd_tensor_digest_part(tensor, &where->box, block * (PD_SHARD_BLOCK_BYTES / element_bytes), count, dtype, data);
    if (r->want_statistics) add_stored(r, row, key, dtype, data, count);
    r->bytes += bytes;
    if (r->progress && ++r->blocks % 64 == 0) r->progress(r->context, r->bytes, r->total);
    return PD_OK;
}

/* The boxes of wanted tensors, and only those. */
static pd_status scan_wanted(struct reporting *r, struct pd_shard *shard, struct pd_error *err)
{
    const uint64_t most = PD_INSPECT_BUFFER_BYTES / PD_SHARD_BLOCK_BYTES;
    for (uint32_t b = 0; b < pd_shard_box_count(shard); b++) {
        if (!r->wanted[r->global[pd_shard_boxes(shard)[b].tensor]]) continue;
        const uint64_t blocks = pd_shard_block_count(shard, b), bytes = pd_shard_box_bytes(shard, b);
        for (uint64_t first = 0; first < blocks; first += most) {
            const uint64_t count = blocks - first < most ? blocks - first : most;
            PD_TRY(pd_shard_read_blocks(shard, b, first, count, r->in->buffers, err));
            for (uint64_t k = 0; k < count; k++)
                PD_TRY(visit_block(r, b, first + k, r->in->buffers + k * PD_SHARD_BLOCK_BYTES,
                                   pd_shard_block_length(bytes, first + k), PD_OK, NULL, err));
        }
    }
    return PD_OK;
}

static pd_status report_shard(struct reporting *r, uint32_t number, struct pd_error *err)
{
    struct pd_shard *shard = NULL;
    const struct pd_shard_visitor visitor = {r, visit_block};
    PD_TRY(pd_inspect_acquire(r->in, number, &shard, err));
    const struct pd_tensor_table *table = pd_shard_tensors(shard);
    free(r->global);
    r->global = malloc(((size_t)table->count + 1) * sizeof *r->global);
    if (!r->global) PD_FAIL(err, PD_NO_MEMORY, "no memory for %u tensors", table->count);
    for (uint32_t t = 0; t < table->count; t++)
        r->global[t] = pd_inspect_find(r->in, table->tensors[t].name);
    r->open = shard;
    if (r->wanted) return scan_wanted(r, shard, err);
    return pd_shard_scan(shard, r->in->buffers, PD_INSPECT_BUFFER_BYTES, &visitor, err);
}

static void finish_rows(struct reporting *r)
{
    for (uint64_t key = 0; key < (uint64_t)r->in->tensors.count * PD_KIND_COUNT; key++) {
        if (!r->sums[key].finite) continue;
        r->report.rows[key].mean = r->sums[key].sum / (double)r->sums[key].finite;
        r->report.rows[key].rms = sqrt(r->sums[key].squares / (double)r->sums[key].finite);
    }
}

static pd_status digest_state(struct reporting *r, struct pd_error *err)
{
    const uint64_t keys = (uint64_t)r->in->tensors.count * PD_KIND_COUNT;
    uint64_t *digests = malloc((keys + 1) * sizeof *digests);
    if (!digests) PD_FAIL(err, PD_NO_MEMORY, "no memory for %u digests", r->in->tensors.count);
    for (uint64_t key = 0; key < keys; key++)
        digests[key] = r->report.rows[key].digest;
    pd_status st = pd_state_digest(&r->in->tensors, digests, &r->report.state_digest, err);
    free(digests);
    return st;
}

static pd_status report_all(struct reporting *r, struct pd_error *err)
{
    const uint64_t keys = (uint64_t)r->in->tensors.count * PD_KIND_COUNT;
    r->report.tensor_count = r->in->tensors.count;
    r->report.rows = calloc(keys + 1, sizeof *r->report.rows);
    r->sums = calloc(keys + 1, sizeof *r->sums);
    if (!r->report.rows || !r->sums) PD_FAIL(err, PD_NO_MEMORY, "no memory for %u tensors", r->in->tensors.count);
    for (uint32_t s = 0; s < r->in->commit.shard_count; s++)
        PD_TRY(report_shard(r, s, err));
    for (uint64_t key = 0; key < keys; key++) {
        const struct pd_tensor *tensor = &r->in->tensors.tensors[key / PD_KIND_COUNT];
        if (r->wanted && !r->wanted[key / PD_KIND_COUNT]) continue;
        if (r->report.rows[key].elements != pd_tensor_elements(tensor))
            PD_FAIL(err, PD_CORRUPT, "%s: the shards hold %llu of %llu elements of tensor %s, %s", r->in->directory,
                    (unsigned long long)r->report.rows[key].elements, (unsigned long long)pd_tensor_elements(tensor),
                    tensor->name, pd_kind_name((enum pd_kind)(key % PD_KIND_COUNT)));
    }
    finish_rows(r);
    r->report.bytes_read = r->bytes;
    return r->wanted ? PD_OK : digest_state(r, err);
}

static pd_status run(struct reporting *r, struct pd_state_report *ret_report, struct pd_error *err)
{
    PD_TRY(pd_inspect_check_complete(r->in, err));
    pd_status st = report_all(r, err);
    free(r->sums);
    free(r->global);
    if (st) {
        pd_state_report_deinit(&r->report);
        return st;
    }
    if (r->progress) r->progress(r->context, r->total, r->total);
    *ret_report = r->report;
    return PD_OK;
}

pd_status pd_inspect_report(struct pd_inspect *inspect, bool want_statistics, pd_inspect_progress progress, void *context,
                            struct pd_state_report *ret_report, struct pd_error *err)
{
    struct reporting r = {.in = inspect, .want_statistics = want_statistics, .progress = progress, .context = context};
    r.total = inspect->data_bytes;
    return run(&r, ret_report, err);
}

pd_status pd_inspect_report_some(struct pd_inspect *inspect, const bool *tensor_wanted, pd_inspect_progress progress,
                                 void *context, struct pd_state_report *ret_report, struct pd_error *err)
{
    struct reporting r = {
        .in = inspect, .wanted = tensor_wanted, .want_statistics = true, .progress = progress, .context = context};
    for (uint64_t b = 0; b < inspect->box_count; b++)
        if (tensor_wanted[inspect->boxes[b].tensor]) r.total += inspect->boxes[b].bytes;
    return run(&r, ret_report, err);
}

/* ---- the state as one number ---- */

static int compare_names(const void *left, const void *right)
{
    const struct pd_tensor *const *a = left, *const *b = right;
    return strcmp((*a)->name, (*b)->name);
}

pd_status pd_state_digest(const struct pd_tensor_table *tensors, const uint64_t *digests, uint64_t *ret_digest,
                          struct pd_error *err)
{
    const struct pd_tensor **sorted = malloc(((size_t)tensors->count + 1) * sizeof *sorted);
    if (!sorted) PD_FAIL(err, PD_NO_MEMORY, "no memory to sort %u tensors", tensors->count);
    for (uint32_t t = 0; t < tensors->count; t++)
        sorted[t] = &tensors->tensors[t];
    if (tensors->count) qsort(sorted, tensors->count, sizeof *sorted, compare_names);
    struct pd_digest_stream stream;
    pd_digest_stream_init(&stream, PD_SHARD_SEED);
    for (uint32_t t = 0; t < tensors->count; t++) {
        const uint64_t first = (uint64_t)(sorted[t] - tensors->tensors) * PD_KIND_COUNT;
        for (uint64_t kind = 0; kind < PD_KIND_COUNT; kind++) {
            const uint64_t words[2] = {kind, digests[first + kind]};
            pd_digest_stream_add(&stream, sorted[t]->name, strlen(sorted[t]->name) + 1);
            pd_digest_stream_add(&stream, words, sizeof words);
        }
    }
    *ret_digest = pd_digest_stream_value(&stream);
    free(sorted);
    return PD_OK;
}
