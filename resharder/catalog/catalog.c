/* While the catalog is filled, pieces are in order of arrival, with the tensor of each. finish groups them by tensor,
 * drops replicas and proves that the remaining pieces make up the tensor.
 *
 * The proof: all pieces together have as many elements as the tensor, and no two overlap. Pieces separated by a straight
 * cut do not overlap; groups are cut along one dimension after the other until each is a single piece. */
#include "resharder/catalog/catalog.h"
#include "ckpt/base/grow.h"

#include "ckpt/base/checked.h"
#include "ckpt/base/json.h"
#include "ckpt/base/utf8.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILES_MAX (1u << 20)
#define TEXTS_MAX 4096u
#define UNMAPPED_MAX (1u << 20)
#define CUTS_DEPTH_MAX 64

void pd_catalog_init(struct pd_catalog *catalog, const char *format)
{
    *catalog = (struct pd_catalog){.format = format};
}

void pd_catalog_deinit(struct pd_catalog *catalog)
{
    if (!catalog) return;
    for (uint32_t i = 0; i < catalog->file_count; i++)
        free(catalog->files[i].path);
    for (uint32_t i = 0; i < catalog->tensor_count; i++)
        free(catalog->tensors[i].name);
    for (uint32_t i = 0; i < catalog->text_count; i++) {
        free(catalog->texts[i].name);
        free(catalog->texts[i].text);
    }
    for (uint32_t i = 0; i < catalog->unmapped_count; i++)
        free(catalog->unmapped[i]);
    if (catalog->source.free) catalog->source.free(catalog->source.context);
    free(catalog->files);
    free(catalog->tensors);
    free(catalog->pieces);
    free(catalog->piece_tensors);
    free(catalog->texts);
    free(catalog->unmapped);
    free(catalog->by_name);
    *catalog = (struct pd_catalog){0};
}

/* ---- filling ---- */

static pd_status no_memory(const char *what, struct pd_error *err)
{
    PD_FAIL(err, PD_NO_MEMORY, "no memory for the catalog's %s", what);
}

static pd_status catalog_check_name(const char *what, const char *name, struct pd_error *err)
{
    if (!name[0]) PD_FAIL(err, PD_CORRUPT, "a %s without a name", what);
    if (strnlen(name, PD_FOREIGN_NAME_MAX) == PD_FOREIGN_NAME_MAX)
        PD_FAIL(err, PD_CORRUPT, "the name of a %s is longer than %d bytes: %.64s...", what, PD_FOREIGN_NAME_MAX - 1, name);
    for (const char *at = name; *at;)
        if ((unsigned char)*at < ' ' || !pd_utf8_is_printable(pd_utf8_next(&at)))
            PD_FAIL(err, PD_CORRUPT, "the name of a %s is not text: %.64s", what, name);
    return PD_OK;
}

pd_status pd_catalog_add_file(struct pd_catalog *catalog, const char *path, uint64_t bytes, uint32_t *ret_file,
                              struct pd_error *err)
{
    if (catalog->file_count == FILES_MAX) PD_FAIL(err, PD_CORRUPT, "%s: more than %u files", path, FILES_MAX);
    if (!pd_grow(&catalog->files, catalog->file_count, sizeof *catalog->files)) return no_memory("files", err);
    char *copy = strdup(path);
    if (!copy) return no_memory("files", err);
    catalog->files[catalog->file_count] = (struct pd_catalog_file){.path = copy, .bytes = bytes};
    if (ret_file) *ret_file = catalog->file_count;
    catalog->file_count++;
    return PD_OK;
}

static pd_status check_shape(const struct pd_foreign_tensor *tensor, struct pd_error *err)
{
    uint64_t elements = 1, bytes;
    if (tensor->ndim > PD_FOREIGN_DIMS_MAX)
        PD_FAIL(err, PD_CORRUPT, "tensor %s has %u dimensions; perdure reads at most %d", tensor->name, tensor->ndim,
                PD_FOREIGN_DIMS_MAX);
    bool fits = true;
    for (uint32_t d = 0; d < tensor->ndim; d++)
        fits = fits && pd_checked_mul_u64(elements, tensor->shape[d], &elements);
    const struct pd_element_row *element = &pd_elements[tensor->element];
    if (!fits || !pd_checked_mul_u64(elements, element->block_bytes, &bytes))
        PD_FAIL(err, PD_CORRUPT, "the shape of tensor %s has more than 2^64 elements", tensor->name);
    const uint64_t inner = tensor->ndim ? tensor->shape[tensor->ndim - 1] : 1;
    if (inner % element->block_elements)
        PD_FAIL(err, PD_CORRUPT, "tensor %s is %s, in blocks of %u elements, which do not divide its rows of %" PRIu64,
                tensor->name, element->name, element->block_elements, inner);
    return PD_OK;
}

pd_status pd_catalog_add_tensor(struct pd_catalog *catalog, const struct pd_foreign_tensor *tensor, uint32_t *ret_tensor,
                                struct pd_error *err)
{
    PD_TRY(catalog_check_name("tensor", tensor->name, err));
    PD_CHECK((unsigned)tensor->element < PD_ELEMENT_COUNT && (unsigned)tensor->kind < PD_KIND_COUNT);
    PD_TRY(check_shape(tensor, err));
    if (catalog->tensor_count == PD_CATALOG_TENSORS_MAX)
        PD_FAIL(err, PD_CORRUPT, "tensor %s: more than %u tensors", tensor->name, PD_CATALOG_TENSORS_MAX);
    if (!pd_grow(&catalog->tensors, catalog->tensor_count, sizeof *catalog->tensors)) return no_memory("tensors", err);
    struct pd_foreign_tensor copy = *tensor;
    copy.name = strdup(tensor->name);
    if (!copy.name) return no_memory("tensors", err);
    for (uint32_t d = copy.ndim; d < PD_FOREIGN_DIMS_MAX; d++)
        copy.shape[d] = 1;
    copy.piece_begin = copy.piece_count = 0;
    catalog->tensors[catalog->tensor_count] = copy;
    if (ret_tensor) *ret_tensor = catalog->tensor_count;
    catalog->tensor_count++;
    return PD_OK;
}

/* Drops strides that are dense: dense pieces are read ahead. */
static void drop_dense_strides(struct pd_piece *piece, uint32_t dims)
{
    uint64_t dense = 1;
    for (uint32_t d = dims; d-- > 0; dense *= piece->count[d])
        if (piece->count[d] != 1 && piece->stride[d] != dense) return;
    memset(piece->stride, 0, sizeof piece->stride);
}

pd_status pd_catalog_add_piece(struct pd_catalog *catalog, uint32_t tensor, const struct pd_piece *piece,
                               struct pd_error *err)
{
    PD_CHECK(tensor < catalog->tensor_count && piece->file < catalog->file_count);
    if (catalog->piece_count == PD_CATALOG_PIECES_MAX)
        PD_FAIL(err, PD_CORRUPT, "tensor %s: more than %u pieces", catalog->tensors[tensor].name, PD_CATALOG_PIECES_MAX);
    if (!pd_grow(&catalog->pieces, catalog->piece_count, sizeof *catalog->pieces) ||
        !pd_grow(&catalog->piece_tensors, catalog->piece_count, sizeof *catalog->piece_tensors))
        return no_memory("pieces", err);
    struct pd_piece copy = *piece;
    const uint32_t used = copy.is_range ? 1 : catalog->tensors[tensor].ndim;
    for (uint32_t d = used; d < PD_FOREIGN_DIMS_MAX; d++) {
        copy.start[d] = copy.stride[d] = 0;
        copy.count[d] = 1;
    }
    drop_dense_strides(&copy, used);
    catalog->pieces[catalog->piece_count] = copy;
    catalog->piece_tensors[catalog->piece_count++] = tensor;
    return PD_OK;
}

void pd_catalog_store_as(struct pd_catalog *catalog, uint32_t tensor, enum pd_element element, uint64_t rows)
{
    catalog->tensors[tensor].element = element;
    catalog->tensors[tensor].shape[0] = rows;
}

pd_status pd_catalog_place(struct pd_catalog *catalog, uint32_t tensor, uint32_t file, uint64_t offset, struct pd_error *err)
{
    struct pd_piece piece = {.file = file, .offset = offset};
    memcpy(piece.count, catalog->tensors[tensor].shape, sizeof piece.count);
    return pd_catalog_add_piece(catalog, tensor, &piece, err);
}

pd_status pd_catalog_add_dense(struct pd_catalog *catalog, const struct pd_foreign_tensor *tensor, uint32_t file,
                               uint64_t offset, struct pd_error *err)
{
    uint32_t number;
    PD_TRY(pd_catalog_add_tensor(catalog, tensor, &number, err));
    return pd_catalog_place(catalog, number, file, offset, err);
}

pd_status pd_catalog_add_text(struct pd_catalog *catalog, const char *name, const char *text, uint64_t bytes,
                              struct pd_error *err)
{
    PD_TRY(catalog_check_name("text", name, err));
    if (bytes > PD_CATALOG_TEXT_MAX)
        PD_FAIL(err, PD_CORRUPT, "%s has %" PRIu64 " bytes; perdure reads at most %" PRIu64, name, bytes,
                PD_CATALOG_TEXT_MAX);
    if (catalog->text_count == TEXTS_MAX) PD_FAIL(err, PD_CORRUPT, "%s: more than %u texts", name, TEXTS_MAX);
    if (!pd_grow(&catalog->texts, catalog->text_count, sizeof *catalog->texts)) return no_memory("texts", err);
    struct pd_catalog_text copy = {.name = strdup(name), .text = malloc(bytes + 1), .bytes = bytes};
    if (!copy.name || !copy.text) {
        free(copy.name);
        free(copy.text);
        return no_memory("texts", err);
    }
    memcpy(copy.text, text, bytes);
    copy.text[bytes] = '\0';
    catalog->texts[catalog->text_count++] = copy;
    return PD_OK;
}

pd_status pd_catalog_add_json(struct pd_catalog *catalog, const char *name, struct pd_json_writer *writer, pd_status mine,
                              struct pd_error *err)
{
    const char *text = NULL;
    size_t bytes = 0;
    pd_status st = mine ? mine : pd_json_writer_finish(writer, &text, &bytes, err);
    if (!st) st = pd_catalog_add_text(catalog, name, text, bytes, err);
    pd_json_writer_deinit(writer);
    return st;
}

pd_status pd_catalog_add_unmapped(struct pd_catalog *catalog, const char *name, struct pd_error *err)
{
    if (catalog->unmapped_count == UNMAPPED_MAX)
        PD_FAIL(err, PD_CORRUPT, "%s: more than %u entries that a checkpoint has no place for", name, UNMAPPED_MAX);
    if (!pd_grow(&catalog->unmapped, catalog->unmapped_count, sizeof *catalog->unmapped)) return no_memory("list", err);
    char *copy = strndup(name, PD_FOREIGN_NAME_MAX - 1);
    if (!copy) return no_memory("list", err);
    pd_utf8_clean(copy);
    catalog->unmapped[catalog->unmapped_count++] = copy;
    return PD_OK;
}

pd_status pd_catalog_add_unread(struct pd_catalog *catalog, const char *tensor, const char *type, struct pd_error *err)
{
    char text[PD_FOREIGN_NAME_MAX];
    snprintf(text, sizeof text, "tensor %.400s: type %.40s is not read", tensor, type);
    return pd_catalog_add_unmapped(catalog, text, err);
}

uint32_t pd_catalog_drop_unmapped(struct pd_catalog *catalog, const char *part)
{
    uint32_t kept = 0, count = catalog->unmapped_count;
    for (uint32_t i = 0; i < count; i++) {
        if (strstr(catalog->unmapped[i], part))
            free(catalog->unmapped[i]);
        else
            catalog->unmapped[kept++] = catalog->unmapped[i];
    }
    catalog->unmapped_count = kept;
    return count - kept;
}

/* ---- finishing: pieces ---- */

static uint64_t piece_elements(const struct pd_piece *piece)
{
    uint64_t elements = 1;
    for (uint32_t d = 0; d < PD_FOREIGN_DIMS_MAX; d++)
        elements *= piece->count[d];
    return elements;
}

static bool is_strided(const struct pd_piece *piece)
{
    for (uint32_t d = 0; d < PD_FOREIGN_DIMS_MAX; d++)
        if (piece->stride[d]) return true;
    return false;
}

/* Bytes from the piece's offset to the end of its last element; false on overflow. */
static bool piece_extent(const struct pd_foreign_tensor *tensor, const struct pd_piece *piece, uint64_t *ret_bytes)
{
    const struct pd_element_row *element = &pd_elements[tensor->element];
    uint64_t elements = piece_elements(piece);
    if (is_strided(piece)) {
        uint64_t last = 0, step;
        for (uint32_t d = 0; d < tensor->ndim; d++)
            if (!pd_checked_mul_u64(piece->count[d] - 1, piece->stride[d], &step) || !pd_checked_add_u64(last, step, &last))
                return false;
        if (!pd_checked_add_u64(last, 1, &elements)) return false;
    }
    return pd_checked_mul_u64(elements / element->block_elements, element->block_bytes, ret_bytes);
}

static pd_status check_piece(const struct pd_catalog *catalog, const struct pd_foreign_tensor *tensor,
                             const struct pd_piece *piece, struct pd_error *err)
{
    const struct pd_catalog_file *file = &catalog->files[piece->file];
    const uint32_t block = pd_elements[tensor->element].block_elements;
    const uint64_t whole = pd_foreign_elements(tensor);
    bool is_inside = true;
    if (piece->is_range)
        is_inside = pd_checked_range(piece->start[0], piece->count[0], whole);
    else
        for (uint32_t d = 0; d < tensor->ndim; d++)
            is_inside = is_inside && pd_checked_range(piece->start[d], piece->count[d], tensor->shape[d]);
    if (!is_inside) PD_FAIL(err, PD_CORRUPT, "%s: a piece of tensor %s reaches beyond its shape", file->path, tensor->name);
    const uint32_t inner = piece->is_range || !tensor->ndim ? 0 : tensor->ndim - 1;
    if (piece->start[inner] % block || piece->count[inner] % block || (block > 1 && is_strided(piece)))
        PD_FAIL(err, PD_CORRUPT, "%s: a piece of tensor %s cuts its blocks of %u elements", file->path, tensor->name, block);
    if (piece->is_range && is_strided(piece))
        PD_FAIL(err, PD_CORRUPT, "%s: a range of tensor %s has strides", file->path, tensor->name);
    uint64_t bytes;
    if (!piece_elements(piece) || catalog->source.read) return PD_OK; /* such a format checks its own offsets */
    if (!piece_extent(tensor, piece, &bytes) || !pd_checked_range(piece->offset, bytes, file->bytes))
        PD_FAIL(err, PD_CORRUPT, "%s: tensor %s begins at byte %" PRIu64 " and ends beyond the file's %" PRIu64 " bytes",
                file->path, tensor->name, piece->offset, file->bytes);
    return PD_OK;
}

static int by_place(const void *a, const void *b)
{
    const struct pd_piece *x = a, *y = b;
    for (uint32_t d = 0; d < PD_FOREIGN_DIMS_MAX; d++)
        if (x->start[d] != y->start[d]) return x->start[d] < y->start[d] ? -1 : 1;
    for (uint32_t d = 0; d < PD_FOREIGN_DIMS_MAX; d++)
        if (x->count[d] != y->count[d]) return x->count[d] < y->count[d] ? -1 : 1;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static bool is_same_box(const struct pd_piece *a, const struct pd_piece *b)
{
    return memcmp(a->start, b->start, sizeof a->start) == 0 && memcmp(a->count, b->count, sizeof a->count) == 0;
}

struct piece_span {
    uint64_t start, end;
    const struct pd_piece *piece;
};

static int by_start(const void *a, const void *b)
{
    const struct piece_span *x = a, *y = b;
    return (x->start > y->start) - (x->start < y->start);
}

/* True if straight cuts separate all of order[count]; reorders them. */
static bool are_apart(struct piece_span *order, uint64_t count, uint32_t ndim, unsigned depth)
{
    if (count < 2) return true;
    if (depth == CUTS_DEPTH_MAX) return false;
    for (uint32_t d = 0; d < ndim; d++) {
        for (uint64_t i = 0; i < count; i++) {
            order[i].start = order[i].piece->start[d];
            order[i].end = order[i].start + order[i].piece->count[d];
        }
        qsort(order, count, sizeof *order, by_start);
        uint64_t end = order[0].end, first = count;
        for (uint64_t i = 1; i < count && first == count; i++) {
            if (order[i].start >= end) first = i;
            if (order[i].end > end) end = order[i].end;
        }
        if (first == count) continue;
        for (uint64_t begin = 0; begin < count;) { /* each group between two cuts of this dimension */
            uint64_t next = begin + 1;
            for (end = order[begin].end; next < count && order[next].start < end; next++)
                if (order[next].end > end) end = order[next].end;
            if (!are_apart(order + begin, next - begin, ndim, depth + 1)) return false;
            begin = next;
        }
        return true;
    }
    return false;
}

static pd_status check_cover(const struct pd_catalog *catalog, const struct pd_foreign_tensor *tensor, struct pd_error *err)
{
    const struct pd_piece *pieces = &catalog->pieces[tensor->piece_begin];
    const uint64_t whole = pd_foreign_elements(tensor);
    uint64_t elements = 0;
    for (uint64_t i = 0; i < tensor->piece_count; i++)
        if (!pd_checked_add_u64(elements, piece_elements(&pieces[i]), &elements)) elements = UINT64_MAX;
    const char *path = tensor->piece_count ? catalog->files[pieces[0].file].path : catalog->format;
    if (elements != whole)
        PD_FAIL(err, PD_CORRUPT, "%s: the pieces of tensor %s hold %" PRIu64 " elements where its shape has %" PRIu64, path,
                tensor->name, elements, whole);
    if (tensor->piece_count < 2) return PD_OK;
    for (uint64_t i = 1; i < tensor->piece_count; i++)
        if (pieces[i].is_range != pieces[0].is_range)
            PD_FAIL(err, PD_CORRUPT, "%s: tensor %s is stored both as boxes and as ranges", path, tensor->name);
    struct piece_span *order = malloc(tensor->piece_count * sizeof *order);
    if (!order) return no_memory("pieces", err);
    for (uint64_t i = 0; i < tensor->piece_count; i++)
        order[i].piece = &pieces[i];
    const bool are = are_apart(order, tensor->piece_count, pieces[0].is_range ? 1 : tensor->ndim, 0);
    free(order);
    if (!are) PD_FAIL(err, PD_CORRUPT, "%s: pieces of tensor %s overlap", path, tensor->name);
    return PD_OK;
}

/* Sorts pieces by tensor, keeping their order within one. */
static pd_status sort_pieces(struct pd_catalog *catalog, struct pd_error *err)
{
    struct pd_piece *sorted = malloc((catalog->piece_count + 1) * sizeof *sorted);
    if (!sorted) return no_memory("pieces", err);
    for (uint64_t i = 0; i < catalog->piece_count; i++)
        catalog->tensors[catalog->piece_tensors[i]].piece_count++;
    uint64_t at = 0;
    for (uint32_t t = 0; t < catalog->tensor_count; t++) {
        catalog->tensors[t].piece_begin = at;
        at += catalog->tensors[t].piece_count;
        catalog->tensors[t].piece_count = 0;
    }
    for (uint64_t i = 0; i < catalog->piece_count; i++) {
        struct pd_foreign_tensor *tensor = &catalog->tensors[catalog->piece_tensors[i]];
        sorted[tensor->piece_begin + tensor->piece_count++] = catalog->pieces[i];
    }
    free(catalog->pieces);
    free(catalog->piece_tensors);
    catalog->pieces = sorted;
    catalog->piece_tensors = NULL;
    return PD_OK;
}

static pd_status finish_tensor(struct pd_catalog *catalog, struct pd_foreign_tensor *tensor, struct pd_error *err)
{
    struct pd_piece *pieces = &catalog->pieces[tensor->piece_begin];
    uint64_t kept = 0;
    for (uint64_t i = 0; i < tensor->piece_count; i++) {
        PD_TRY(check_piece(catalog, tensor, &pieces[i], err));
        if (piece_elements(&pieces[i])) pieces[kept++] = pieces[i];
    }
    tensor->piece_count = kept;
    if (kept > 1) {
        qsort(pieces, kept, sizeof *pieces, by_place);
        kept = 1;
        for (uint64_t i = 1; i < tensor->piece_count; i++)
            if (!is_same_box(&pieces[i], &pieces[kept - 1])) pieces[kept++] = pieces[i];
        tensor->piece_count = kept;
    }
    return check_cover(catalog, tensor, err);
}

/* ---- finishing: names ---- */

static int catalog_compare_names(const struct pd_foreign_tensor *a, const struct pd_foreign_tensor *b)
{
    const int names = strcmp(a->name, b->name);
    return names ? names : (int)a->kind - (int)b->kind;
}

static int by_name(const void *a, const void *b, void *tensors)
{
    const struct pd_foreign_tensor *t = tensors;
    return catalog_compare_names(&t[*(const uint32_t *)a], &t[*(const uint32_t *)b]);
}

static pd_status sort_names(struct pd_catalog *catalog, struct pd_error *err)
{
    catalog->by_name = malloc((catalog->tensor_count + 1) * sizeof *catalog->by_name);
    if (!catalog->by_name) return no_memory("names", err);
    for (uint32_t i = 0; i < catalog->tensor_count; i++)
        catalog->by_name[i] = i;
    qsort_r(catalog->by_name, catalog->tensor_count, sizeof *catalog->by_name, by_name, catalog->tensors);
    for (uint32_t i = 1; i < catalog->tensor_count; i++) {
        const struct pd_foreign_tensor *tensor = &catalog->tensors[catalog->by_name[i]];
        if (catalog_compare_names(tensor, &catalog->tensors[catalog->by_name[i - 1]]) == 0)
            PD_FAIL(err, PD_CORRUPT, "tensor %s (%s) occurs twice", tensor->name, pd_kind_name(tensor->kind));
    }
    return PD_OK;
}

static void strip_wrappers(char *name)
{
    static const char *const wrappers[] = {"_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module."};
    for (size_t i = 0; i < sizeof wrappers / sizeof *wrappers; i++)
        for (char *at = name; (at = strstr(at, wrappers[i]));) {
            const char *behind = at + strlen(wrappers[i]);
            if (at == name || at[-1] == '.')
                memmove(at, behind, strlen(behind) + 1);
            else
                at++;
        }
}

pd_status pd_catalog_finish(struct pd_catalog *catalog, struct pd_error *err)
{
    PD_CHECK(!catalog->by_name);
    for (uint32_t t = 0; t < catalog->tensor_count; t++)
        strip_wrappers(catalog->tensors[t].name);
    PD_TRY(sort_names(catalog, err));
    PD_TRY(sort_pieces(catalog, err));
    for (uint32_t t = 0; t < catalog->tensor_count; t++)
        PD_TRY(finish_tensor(catalog, &catalog->tensors[t], err));
    return PD_OK;
}

/* ---- reading ---- */

int64_t pd_catalog_find(const struct pd_catalog *catalog, const char *name, enum pd_kind kind)
{
    const struct pd_foreign_tensor wanted = {.name = (char *)(uintptr_t)name, .kind = kind};
    uint32_t low = 0, high = catalog->tensor_count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const int order = catalog_compare_names(&wanted, &catalog->tensors[catalog->by_name[middle]]);
        if (order == 0) return catalog->by_name[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return -1;
}

const struct pd_catalog_text *pd_catalog_text(const struct pd_catalog *catalog, const char *name)
{
    for (uint32_t i = 0; i < catalog->text_count; i++)
        if (strcmp(catalog->texts[i].name, name) == 0) return &catalog->texts[i];
    return NULL;
}

uint64_t pd_foreign_elements(const struct pd_foreign_tensor *tensor)
{
    uint64_t elements = 1;
    for (uint32_t d = 0; d < tensor->ndim; d++)
        elements *= tensor->shape[d];
    return elements;
}

uint64_t pd_foreign_bytes(const struct pd_foreign_tensor *tensor)
{
    const struct pd_element_row *element = &pd_elements[tensor->element];
    return pd_foreign_elements(tensor) / element->block_elements * element->block_bytes;
}

uint64_t pd_piece_bytes(const struct pd_foreign_tensor *tensor, const struct pd_piece *piece)
{
    uint64_t bytes = 0;
    PD_CHECK(piece_extent(tensor, piece, &bytes));
    return bytes;
}
