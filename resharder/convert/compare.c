#include "resharder/convert/compare.h"
#include "ckpt/base/grow.h"

#include "resharder/catalog/read.h"
#include "resharder/catalog/slice.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STRETCH (UINT64_C(1) << 20) /* elements compared at a time */
#define STRETCH_BYTES (STRETCH * sizeof(float))
#define READER_BYTES ((PD_COMPARE_BUFFER_BYTES - 2 * STRETCH_BYTES) / 2 / PD_VFS_ALIGN * PD_VFS_ALIGN)

/* A tensor of one side; number UINT32_MAX: missing. */
struct place {
    uint32_t number;
    struct pd_view view;
};

struct pair {
    const char *name;
    enum pd_kind kind;
    bool has_same_shape;
    uint64_t elements;
    struct place places[2];
};

struct comparison {
    const struct pd_compare_request *request;
    struct pd_vfs *vfs;
    struct pd_reader *readers[2];
    struct pd_slicer *slicers[2]; /* of tensors whose type fp32 does not hold; NULL before the first */
    float *values[2];             /* (STRETCH) */
    struct pair *pairs;
    uint64_t count;
    uint64_t done_bytes, total_bytes;
    int side; /* currently read */
};

void pd_diff_deinit(struct pd_diff *diff)
{
    if (!diff) return;
    free(diff->rows);
    *diff = (struct pd_diff){0};
}

/* ---- pairs ---- */

static pd_status add_pair(struct comparison *c, const struct pair *pair, struct pd_error *err)
{
    if (!pd_grow(&c->pairs, c->count, sizeof *c->pairs)) PD_FAIL(err, PD_NO_MEMORY, "no memory to compare tensors");
    c->pairs[c->count++] = *pair;
    return PD_OK;
}

static const struct pd_compare_side *side_of(const struct comparison *c, int side)
{
    return side ? &c->request->right : &c->request->left;
}

static struct pd_view whole_view(const struct pd_foreign_tensor *tensor)
{
    return (struct pd_view){.ndim = 1, .count = {pd_foreign_elements(tensor)}, .stride = {1}};
}

/* Finds the link of a tensor and kind. Links are few and in table order, so the search starts where the last one ended. */
static void find_link(const struct pd_compare_side *side, uint32_t tensor, enum pd_kind kind, uint32_t *from,
                      struct place *ret)
{
    for (uint32_t n = 0; n < side->links->count; n++) {
        const uint32_t i = (*from + n) % side->links->count;
        const struct pd_link *link = &side->links->items[i];
        if (link->tensor != tensor || link->kind != kind) continue;
        const int64_t found = pd_catalog_find(side->catalog, link->name, kind);
        if (found >= 0) *ret = (struct place){(uint32_t)found, link->view};
        *from = i + 1;
        return;
    }
}

static pd_status pair_by_links(struct comparison *c, struct pd_error *err)
{
    uint32_t from[2] = {0, 0};
    for (uint32_t t = 0; t < c->request->tensors->count; t++)
        for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
            const struct pd_tensor *tensor = &c->request->tensors->tensors[t];
            struct pair pair = {.name = tensor->name,
                                .kind = (enum pd_kind)kind,
                                .has_same_shape = true,
                                .elements = pd_tensor_elements(tensor),
                                .places = {{.number = UINT32_MAX}, {.number = UINT32_MAX}}};
            for (int s = 0; s < 2; s++)
                find_link(side_of(c, s), t, pair.kind, &from[s], &pair.places[s]);
            if (pair.places[0].number != UINT32_MAX || pair.places[1].number != UINT32_MAX) PD_TRY(add_pair(c, &pair, err));
        }
    return PD_OK;
}

static bool is_same_shape(const struct pd_foreign_tensor *a, const struct pd_foreign_tensor *b)
{
    return a->ndim == b->ndim && !memcmp(a->shape, b->shape, sizeof a->shape);
}

/* Adds the tensors of `side`'s catalog; those in both come from the left one. */
static pd_status pair_by_names(struct comparison *c, int side, struct pd_error *err)
{
    const struct pd_catalog *mine = side_of(c, side)->catalog, *other = side_of(c, !side)->catalog;
    for (uint32_t t = 0; t < mine->tensor_count; t++) {
        const struct pd_foreign_tensor *tensor = &mine->tensors[t];
        const int64_t found = pd_catalog_find(other, tensor->name, tensor->kind);
        if (side && found >= 0) continue;
        struct pair pair = {.name = tensor->name, .kind = tensor->kind, .elements = pd_foreign_elements(tensor)};
        pair.places[side] = (struct place){t, whole_view(tensor)};
        pair.places[!side].number = UINT32_MAX;
        if (found >= 0) {
            pair.places[!side] = (struct place){(uint32_t)found, whole_view(&other->tensors[found])};
            pair.has_same_shape = is_same_shape(tensor, &other->tensors[found]);
        }
        PD_TRY(add_pair(c, &pair, err));
    }
    return PD_OK;
}

/* ---- reading ---- */

static pd_status compare_expect(struct pd_reader *reader, const struct place *place, uint64_t first, uint64_t count,
                                struct pd_error *err)
{
    struct pd_view parts[PD_VIEW_PARTS_MAX];
    bool fits = true;
    const uint32_t n = pd_view_cut(&place->view, first, count, parts);
    for (uint32_t i = 0; fits && i < n; i++)
        PD_TRY(pd_reader_expect(reader, place->number, &parts[i], &fits, err));
    return PD_OK;
}

static pd_status read(struct pd_reader *reader, const struct place *place, uint64_t first, uint64_t count, float *values,
                      struct pd_error *err)
{
    struct pd_view parts[PD_VIEW_PARTS_MAX];
    const uint32_t n = pd_view_cut(&place->view, first, count, parts);
    for (uint32_t i = 0; i < n; i++) {
        PD_TRY(pd_reader_read(reader, place->number, &parts[i], values, err));
        values += pd_view_elements(&parts[i]);
    }
    return PD_OK;
}

/* Reads elements [first, first + the result) of the sides that the pair has; later ones are in flight. */
static pd_status read_range(struct comparison *c, const struct pair *pair, uint64_t first, uint64_t *ret_count,
                            struct pd_error *err)
{
    const uint64_t left = pair->elements - first, count = left < STRETCH ? left : STRETCH;
    const uint64_t ahead = left - count < STRETCH ? left - count : STRETCH;
    for (c->side = 0; c->side < 2; c->side++)
        if (c->readers[c->side]) PD_TRY(compare_expect(c->readers[c->side], &pair->places[c->side], first, count, err));
    for (c->side = 0; c->side < 2; c->side++) {
        const int s = c->side;
        if (!c->readers[s]) continue;
        if (ahead) PD_TRY(compare_expect(c->readers[s], &pair->places[s], first + count, ahead, err));
        PD_TRY(read(c->readers[s], &pair->places[s], first, count, c->values[s], err));
        c->done_bytes += count * sizeof(float);
    }
    if (c->request->progress) c->request->progress(c->request->context, c->done_bytes, c->total_bytes);
    *ret_count = count;
    return PD_OK;
}

/* ---- differences ---- */

static void compare_values(struct pd_diff_row *row, uint64_t first, const float *left, const float *right, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        if (memcmp(&left[i], &right[i], sizeof *left) == 0) continue;
        const double apart = fabs((double)left[i] - (double)right[i]), largest = isfinite(apart) ? apart : INFINITY;
        if (!row->differing) {
            row->first = first + i;
            row->left = left[i];
            row->right = right[i];
        }
        row->differing++;
        if (largest > row->max_abs) row->max_abs = largest;
    }
}

/* ---- types that fp32 does not hold ---- */

static bool is_wide(enum pd_element element)
{
    return element == PD_ELEMENT_F64 || element == PD_ELEMENT_I64 || element == PD_ELEMENT_I32 ||
           element == PD_ELEMENT_U64 || element == PD_ELEMENT_U32;
}

static double wide_value(enum pd_element element, const unsigned char *stored)
{
    double f64;
    int64_t i64;
    int32_t i32;
    uint64_t u64;
    uint32_t u32;
    switch (element) {
    case PD_ELEMENT_F64:
        return memcpy(&f64, stored, sizeof f64), f64;
    case PD_ELEMENT_I64:
        return memcpy(&i64, stored, sizeof i64), (double)i64;
    case PD_ELEMENT_I32:
        return memcpy(&i32, stored, sizeof i32), i32;
    case PD_ELEMENT_U64:
        return memcpy(&u64, stored, sizeof u64), (double)u64;
    default:
        return memcpy(&u32, stored, sizeof u32), u32;
    }
}

static void compare_stored(struct pd_diff_row *row, enum pd_element element, uint64_t first, const unsigned char *left,
                           const unsigned char *right, uint64_t count)
{
    const uint32_t bytes = pd_elements[element].block_bytes;
    for (uint64_t i = 0; i < count; i++) {
        if (memcmp(left + i * bytes, right + i * bytes, bytes) == 0) continue;
        const double a = wide_value(element, left + i * bytes), b = wide_value(element, right + i * bytes),
                     apart = fabs(a - b), largest = isfinite(apart) ? apart : INFINITY;
        if (!row->differing) row->first = first + i, row->left = a, row->right = b;
        row->differing++;
        if (largest > row->max_abs) row->max_abs = largest;
    }
}

/* Rows [first, first + count) of both sides as they are stored. */
static pd_status read_stored(struct comparison *c, const struct pair *pair, uint64_t first, uint64_t count,
                             unsigned char *const data[2], struct pd_error *err)
{
    for (c->side = 0; c->side < 2; c->side++) {
        const int s = c->side;
        const struct pd_catalog *catalog = side_of(c, s)->catalog;
        struct pd_slice slice = {.tensor = pair->places[s].number, .start = {first}, .to = data[s]};
        memcpy(slice.count, catalog->tensors[slice.tensor].shape, sizeof slice.count);
        slice.count[0] = count;
        if (!c->slicers[s]) PD_TRY(pd_slicer_new(c->vfs, catalog, &c->slicers[s], err));
        PD_TRY(pd_slicer_read(c->slicers[s], &slice, 1, NULL, NULL, NULL, err));
        c->done_bytes += pd_slice_bytes(catalog, &slice);
    }
    return PD_OK;
}

/* By names alone, so both are whole. */
static pd_status compare_wide(struct comparison *c, const struct pair *pair, struct pd_diff_row *row, struct pd_error *err)
{
    const struct pd_foreign_tensor *t = &side_of(c, 0)->catalog->tensors[pair->places[0].number];
    const uint64_t rows = t->ndim ? t->shape[0] : 1, width = rows ? pair->elements / rows : 0,
                   row_bytes = width * pd_elements[t->element].block_bytes,
                   at_once = row_bytes && row_bytes < STRETCH_BYTES ? STRETCH_BYTES / row_bytes : 1;
    unsigned char *memory = malloc(2 * at_once * row_bytes + 1), *const data[2] = {memory, memory + at_once * row_bytes};
    pd_status st = PD_ALLOCATED(memory, err, "no memory to compare rows of tensor %s", pair->name);
    for (uint64_t done = 0; !st && done < rows; done += at_once) {
        const uint64_t count = rows - done < at_once ? rows - done : at_once;
        st = read_stored(c, pair, done, count, data, err);
        if (!st) compare_stored(row, t->element, done * width, data[0], data[1], count * width);
        if (!st && c->request->progress) c->request->progress(c->request->context, c->done_bytes, c->total_bytes);
    }
    free(memory);
    return st;
}

static bool is_wide_pair(const struct comparison *c, const struct pair *pair)
{
    const struct pd_catalog *left = side_of(c, 0)->catalog, *right = side_of(c, 1)->catalog;
    const enum pd_element element = left->tensors[pair->places[0].number].element;
    return !c->request->tensors && is_wide(element) && element == right->tensors[pair->places[1].number].element;
}

static pd_status compare_pair(struct comparison *c, const struct pair *pair, struct pd_diff_row *row, struct pd_error *err)
{
    snprintf(row->name, sizeof row->name, "%s", pair->name);
    row->kind = pair->kind;
    row->elements = pair->elements;
    if (pair->places[0].number == UINT32_MAX || pair->places[1].number == UINT32_MAX) {
        row->difference = pair->places[0].number == UINT32_MAX ? PD_ONLY_RIGHT : PD_ONLY_LEFT;
        return PD_OK;
    }
    row->difference = PD_OTHER_SHAPE;
    if (!pair->has_same_shape) return PD_OK;
    if (is_wide_pair(c, pair)) PD_TRY(compare_wide(c, pair, row, err));
    for (uint64_t done = 0, count = 0; !is_wide_pair(c, pair) && done < pair->elements; done += count) {
        PD_TRY(read_range(c, pair, done, &count, err));
        compare_values(row, done, c->values[0], c->values[1], count);
    }
    row->difference = row->differing ? PD_DIFFERENT : PD_SAME;
    return PD_OK;
}

static pd_status compare_all(struct comparison *c, struct pd_diff *diff, struct pd_error *err)
{
    for (uint64_t i = 0; i < c->count; i++)
        if (c->pairs[i].has_same_shape && c->pairs[i].places[0].number != UINT32_MAX &&
            c->pairs[i].places[1].number != UINT32_MAX)
            c->total_bytes += 2 * c->pairs[i].elements * sizeof(float);
    for (uint64_t i = 0; i < c->count; i++) {
        PD_TRY(compare_pair(c, &c->pairs[i], &diff->rows[i], err));
        diff->count++;
        diff->different_count += diff->rows[i].difference != PD_SAME;
    }
    return PD_OK;
}

static pd_status open_readers(struct comparison *c, struct pd_vfs *vfs, int sides, struct pd_error *err)
{
    unsigned char *memory = c->request->buffers;
    for (int s = 0; s < 2; s++, memory += STRETCH_BYTES)
        c->values[s] = (float *)(void *)memory;
    for (int s = 0; s < sides; s++, memory += READER_BYTES)
        PD_TRY(pd_reader_open(vfs, side_of(c, s)->catalog, memory, READER_BYTES, &c->readers[s], err));
    return PD_OK;
}

static void close_all(struct comparison *c)
{
    pd_reader_close(c->readers[0]);
    pd_reader_close(c->readers[1]);
    pd_slicer_free(c->slicers[0]);
    pd_slicer_free(c->slicers[1]);
    free(c->pairs);
}

pd_status pd_compare(struct pd_vfs *vfs, const struct pd_compare_request *request, struct pd_diff *ret_diff,
                     struct pd_error *err)
{
    struct comparison c = {.request = request, .vfs = vfs};
    struct pd_diff diff = {0};
    pd_status st = PD_OK;
    if (request->tensors)
        st = pair_by_links(&c, err);
    else
        for (int s = 0; !st && s < 2; s++)
            st = pair_by_names(&c, s, err);
    if (!st && !(diff.rows = calloc(c.count + 1, sizeof *diff.rows)))
        st = pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory for what differs");
    if (!st) st = open_readers(&c, vfs, 2, err);
    if (!st) st = compare_all(&c, &diff, err);
    close_all(&c);
    if (st && request->bad_side) *request->bad_side = c.side;
    if (st)
        pd_diff_deinit(&diff);
    else
        *ret_diff = diff;
    return st;
}

/* ---- statistics ---- */

struct sums {
    double sum, squares;
    uint64_t finite;
};

static void add_values(struct pd_tensor_report *r, struct sums *sums, const float *values, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        const double x = values[i];
        if (!isfinite(x)) {
            r->nan_count += isnan(x) ? 1 : 0;
            r->inf_count += isnan(x) ? 0 : 1;
            continue;
        }
        if (!sums->finite || x < r->min) r->min = x;
        if (!sums->finite || x > r->max) r->max = x;
        sums->finite++;
        sums->sum += x;
        sums->squares += x * x;
    }
}

static pd_status report_tensor(struct comparison *c, uint32_t number, struct pd_tensor_report *report, struct pd_error *err)
{
    const struct pd_foreign_tensor *foreign = &c->request->left.catalog->tensors[number];
    const struct pair pair = {.elements = pd_foreign_elements(foreign), .places = {{number, whole_view(foreign)}}};
    const struct pd_tensor line = {.ndim = 1, .shape = {pair.elements, 1, 1, 1}};
    const struct pd_box whole = pd_box_whole(&line);
    struct sums sums = {0};
    report->elements = pair.elements;
    for (uint64_t done = 0, count = 0; done < pair.elements; done += count) {
        PD_TRY(read_range(c, &pair, done, &count, err));
        add_values(report, &sums, c->values[0], count);
        report->digest += pd_tensor_digest_part(&line, &whole, done, count, PD_F32, c->values[0]);
    }
    if (sums.finite) {
        report->mean = sums.sum / (double)sums.finite;
        report->rms = sqrt(sums.squares / (double)sums.finite);
    }
    return PD_OK;
}

pd_status pd_compare_report(struct pd_vfs *vfs, const struct pd_compare_request *request, const bool *wanted,
                            struct pd_tensor_report *ret_reports, uint64_t *ret_bytes_read, struct pd_error *err)
{
    struct comparison c = {.request = request};
    const struct pd_catalog *catalog = request->left.catalog;
    memset(ret_reports, 0, catalog->tensor_count * sizeof *ret_reports);
    for (uint32_t t = 0; t < catalog->tensor_count; t++)
        if (!wanted || wanted[t]) c.total_bytes += pd_foreign_elements(&catalog->tensors[t]) * sizeof(float);
    pd_status st = open_readers(&c, vfs, 1, err);
    for (uint32_t t = 0; !st && t < catalog->tensor_count; t++)
        if (!wanted || wanted[t]) st = report_tensor(&c, t, &ret_reports[t], err);
    if (!st && ret_bytes_read) *ret_bytes_read = pd_reader_bytes(c.readers[0]);
    close_all(&c);
    return st;
}

pd_status pd_compare_state_digest(const struct pd_catalog *catalog, const struct pd_tensor_report *reports,
                                  uint64_t *ret_digest, struct pd_error *err)
{
    struct pd_tensor_table table = {.tensors = calloc((size_t)catalog->tensor_count + 1, sizeof *table.tensors)};
    uint64_t *digests = calloc((size_t)catalog->tensor_count + 1, sizeof *digests);
    pd_status st =
        PD_ALLOCATED(table.tensors && digests, err, "no memory for the digests of %u tensors", catalog->tensor_count);
    for (uint32_t t = 0; !st && t < catalog->tensor_count; t++) { /* all kinds of each name, in order */
        digests[t] = reports[t].digest;
        if (t % PD_KIND_COUNT == 0)
            snprintf(table.tensors[table.count++].name, PD_TENSOR_NAME_MAX, "%s", catalog->tensors[t].name);
    }
    if (!st) st = pd_state_digest(&table, digests, ret_digest, err);
    free(digests);
    free(table.tensors);
    return st;
}
