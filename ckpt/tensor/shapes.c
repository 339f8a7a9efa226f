#include "ckpt/tensor/shapes.h"

#include "ckpt/base/checked.h"
#include "ckpt/base/grow.h"
#include "ckpt/base/json.h"

#include <stdlib.h>
#include <string.h>

#define LAST (PD_TENSOR_DIMS_MAX - 1) /* the dimension of a row to which later ones are joined */

bool pd_shape_is_empty(const struct pd_tensor_shape *shape)
{
    for (uint32_t d = 0; d < shape->ndim; d++)
        if (!shape->shape[d]) return true;
    return false;
}

uint64_t pd_shape_inner(const struct pd_tensor_shape *shape)
{
    uint64_t inner = 1;
    for (uint32_t d = LAST + 1; d < PD_SHAPE_DIMS_MAX; d++)
        inner *= shape->shape[d];
    return inner;
}

static int shapes_order(const void *left, const void *right)
{
    const struct pd_tensor_shape *a = left, *b = right;
    const int by_name = strcmp(a->name, b->name);
    return by_name ? by_name : (a->kind > b->kind) - (a->kind < b->kind);
}

const struct pd_tensor_shape *pd_shapes_find(const struct pd_tensor_table *table, const char *name)
{
    struct pd_tensor_shape key = {.kind = PD_PARAM};
    if (!table->shape_count) return NULL;
    memcpy(key.name, name, strnlen(name, sizeof key.name - 1));
    const struct pd_tensor_shape *found =
        bsearch(&key, table->shapes, table->shape_count, sizeof *table->shapes, shapes_order);
    return found && !pd_shape_is_empty(found) ? found : NULL;
}

pd_status pd_shapes_add(struct pd_tensor_table *table, const struct pd_tensor_shape *shape, struct pd_error *err)
{
    if (!pd_grow(&table->shapes, table->shape_count, sizeof *table->shapes))
        PD_FAIL(err, PD_NO_MEMORY, "no memory for the shape of tensor %s", shape->name);
    table->shapes[table->shape_count++] = *shape;
    return PD_OK;
}

pd_status pd_shapes_unite(struct pd_tensor_table *table, struct pd_error *err)
{
    uint32_t kept = 0;
    if (table->shape_count) qsort(table->shapes, table->shape_count, sizeof *table->shapes, shapes_order);
    for (uint32_t i = 0; i < table->shape_count; i++) {
        const struct pd_tensor_shape *shape = &table->shapes[i], *before = kept ? &table->shapes[kept - 1] : NULL;
        const bool has_same_name = before && !strcmp(before->name, shape->name);
        if (has_same_name && (before->ndim != shape->ndim || memcmp(before->shape, shape->shape, sizeof shape->shape)))
            PD_FAIL(err, PD_INVALID, "tensor %s has two shapes; give every piece the shape of the whole tensor",
                    shape->name);
        const bool is_same = has_same_name && before->kind == shape->kind;
        if (is_same && (before->dtype != shape->dtype || before->is_bytes != shape->is_bytes))
            PD_FAIL(err, PD_INVALID, "tensor %s has two types, of which one is %s; give every piece the same", shape->name,
                    pd_dtype_name(shape->dtype));
        if (!is_same) table->shapes[kept++] = *shape;
    }
    table->shape_count = kept;
    return PD_OK;
}

pd_status pd_shapes_write(const struct pd_tensor_table *table, char **ret_text, struct pd_error *err)
{
    struct pd_json_writer w;
    const char *text = NULL;
    size_t bytes = 0;
    *ret_text = NULL;
    if (!table->shape_count) return PD_OK;
    pd_json_writer_init_object(&w, 0);
    pd_json_array_begin(&w, "shapes");
    for (uint32_t i = 0; i < table->shape_count; i++) {
        const struct pd_tensor_shape *shape = &table->shapes[i];
        pd_json_object_begin(&w, NULL);
        pd_json_string(&w, "name", shape->name);
        if (pd_shape_is_empty(shape))
            PD_JSON_U64S(&w, {"kind", shape->kind}, {"dtype", shape->dtype}, {"is_bytes", shape->is_bytes});
        pd_json_array_begin(&w, "shape");
        for (uint32_t d = 0; d < shape->ndim; d++)
            pd_json_u64(&w, NULL, shape->shape[d]);
        pd_json_array_end(&w);
        pd_json_object_end(&w);
    }
    pd_json_array_end(&w);
    pd_status st = pd_json_writer_finish(&w, &text, &bytes, err);
    if (!st) *ret_text = strdup(text);
    if (!st) st = PD_ALLOCATED(*ret_text, err, "no memory for %u shapes", table->shape_count);
    pd_json_writer_deinit(&w);
    return st;
}

/* ---- reading ---- */

static bool shape_parse(const struct pd_json_value *row, struct pd_tensor_shape *ret)
{
    struct pd_tensor_shape s = {0};
    const char *name = pd_json_member_text(row, "name");
    const struct pd_json_value *shape = pd_json_member(row, "shape");
    uint64_t kind = PD_PARAM, dtype = PD_F32, is_bytes = 0;
    if (!name || !name[0] || strlen(name) >= sizeof s.name || pd_json_count(shape) > PD_SHAPE_DIMS_MAX) return false;
    memcpy(s.name, name, strlen(name));
    s.ndim = (uint32_t)pd_json_count(shape);
    for (uint32_t d = 0; d < PD_SHAPE_DIMS_MAX; d++) {
        s.shape[d] = 1;
        if (d < s.ndim && !pd_json_is_u64(pd_json_at(shape, d), &s.shape[d])) return false;
    }
    if (pd_shape_is_empty(&s) && (!pd_json_is_u64(pd_json_member(row, "kind"), &kind) || kind >= PD_KIND_COUNT ||
                                  !pd_json_is_u64(pd_json_member(row, "dtype"), &dtype) || dtype >= PD_DTYPE_COUNT ||
                                  !pd_json_is_u64(pd_json_member(row, "is_bytes"), &is_bytes)))
        return false;
    s.kind = (enum pd_kind)kind;
    s.dtype = (enum pd_dtype)dtype;
    s.is_bytes = is_bytes;
    *ret = s;
    return true;
}

static bool shape_fits(const struct pd_tensor *tensor, const struct pd_tensor_shape *s)
{
    uint64_t joined = s->shape[LAST];
    if (tensor->ndim != PD_TENSOR_DIMS_MAX || s->ndim <= PD_TENSOR_DIMS_MAX ||
        memcmp(tensor->shape, s->shape, LAST * sizeof *s->shape) != 0)
        return false;
    for (uint32_t d = LAST + 1; d < s->ndim; d++)
        if (!pd_checked_mul_u64(joined, s->shape[d], &joined)) return false;
    return joined == tensor->shape[LAST];
}

pd_status pd_shapes_read(const char *text, struct pd_tensor_table *table, struct pd_error *err)
{
    struct pd_json_document *document = NULL;
    if (!text[0]) return PD_OK;
    PD_TRY(pd_json_parse("shapes of tensors", text, strlen(text), &document, err));
    const struct pd_json_value *shapes = pd_json_member(pd_json_root(document), "shapes");
    pd_status st = PD_OK;
    for (size_t i = 0; !st && i < pd_json_count(shapes); i++) {
        struct pd_tensor_shape shape;
        if (!shape_parse(pd_json_at(shapes, i), &shape))
            st = pd_error_set(err, PD_CORRUPT, PD_WHERE, 0, "shape %zu of the record is invalid", i);
        if (!st) st = pd_shapes_add(table, &shape, err);
    }
    pd_json_document_free(document);
    if (!st && pd_shapes_unite(table, NULL))
        st = pd_error_set(err, PD_CORRUPT, PD_WHERE, 0, "the record has two shapes of one tensor");
    for (uint32_t t = 0; !st && t < table->count; t++) {
        const struct pd_tensor_shape *shape = pd_shapes_find(table, table->tensors[t].name);
        if (shape && !shape_fits(&table->tensors[t], shape))
            st = pd_error_set(err, PD_CORRUPT, PD_WHERE, 0, "tensor %s has another shape in the record than in its shards",
                              shape->name);
    }
    return st;
}
