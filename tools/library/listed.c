#include "tools/library/listed.h"

#include "ckpt/base/checked.h"
#include "ckpt/base/digest.h"
#include "ckpt/base/grow.h"
#include "ckpt/store/index.h"
#include "ckpt/store/paths.h"
#include "ckpt/tensor/shapes.h"
#include "tools/library/group.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ---- */

static bool is_plain(unsigned char c)
{
    return c > ' ' && c <= '~' && !strchr("/%[]~", c);
}

pd_status pd_listed_name(const char *text, char ret_name[PD_TENSOR_NAME_MAX], struct pd_error *err)
{
    static const char digits[] = "0123456789abcdef";
    size_t used = 0;
    const bool is_dots = !strcmp(text, ".") || !strcmp(text, ".."); /* HDF5 takes these for groups */
    for (const char *at = text; *at; at++) {
        const unsigned char c = (unsigned char)*at;
        const bool plain = is_plain(c) && !is_dots;
        if (used + (plain ? 1 : 3) >= PD_TENSOR_NAME_MAX)
            PD_FAIL(err, PD_INVALID, "the name %.60s... is too long: a tensor's name has at most %d characters", text,
                    PD_TENSOR_NAME_MAX - 1);
        if (plain) {
            ret_name[used++] = *at;
        } else {
            ret_name[used++] = '~';
            ret_name[used++] = digits[c >> 4];
            ret_name[used++] = digits[c & 15];
        }
    }
    if (!used) PD_FAIL(err, PD_INVALID, "piece \"%s\" has no name; give every tensor one", text);
    memset(ret_name + used, 0, PD_TENSOR_NAME_MAX - used);
    return PD_OK;
}

static int digit_of(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

void pd_listed_text(char *name)
{
    char *to = name;
    for (const char *at = name; *at; at++) {
        const int high = at[0] == '~' ? digit_of(at[1]) : -1, low = high >= 0 ? digit_of(at[2]) : -1;
        const int c = low >= 0 ? high * 16 + low : 0;
        *to++ = c ? (char)c : *at;
        if (c) at += 2;
    }
    *to = '\0';
}

/* ---- tables by name ---- */

struct name_map {
    uint32_t *slots; /* (slot_count) number + 1; 0: free */
    uint32_t slot_count;
    uint32_t capacity; /* of the table */
};

static uint32_t *find_slot(const struct name_map *map, const struct pd_tensor_table *table, const char *name)
{
    uint32_t at = (uint32_t)pd_digest64(name, strlen(name), 0) & (map->slot_count - 1);
    while (map->slots[at] && strcmp(table->tensors[map->slots[at] - 1].name, name) != 0)
        at = (at + 1) & (map->slot_count - 1);
    return &map->slots[at];
}

static pd_status map_reserve(struct name_map *map, struct pd_tensor_table *table, struct pd_error *err)
{
    if (table->count < map->capacity) return PD_OK;
    const uint32_t capacity = map->capacity ? map->capacity * 2 : 256;
    struct pd_tensor *tensors = realloc(table->tensors, capacity * sizeof *tensors);
    if (tensors) table->tensors = tensors;
    uint32_t *slots = calloc((size_t)capacity * 4, sizeof *slots);
    if (!tensors || !slots) {
        free(slots);
        PD_FAIL(err, PD_NO_MEMORY, "no memory for %u tensors", capacity);
    }
    free(map->slots);
    *map = (struct name_map){slots, capacity * 4, capacity};
    for (uint32_t t = 0; t < table->count; t++)
        *find_slot(map, table, table->tensors[t].name) = t + 1;
    return PD_OK;
}

/* Adds what `tensor` says to the tensor of that name. A kind's type is its first one's. */
static pd_status unite_tensor(struct name_map *map, struct pd_tensor_table *table, const struct pd_tensor *tensor,
                              uint32_t *ret_number, struct pd_error *err)
{
    const uint32_t param = 1u << PD_PARAM;
    PD_TRY(map_reserve(map, table, err));
    uint32_t *slot = find_slot(map, table, tensor->name);
    if (!*slot) {
        table->tensors[table->count++] = *tensor;
        *slot = table->count;
    }
    struct pd_tensor *known = &table->tensors[*slot - 1];
    if (known->ndim != tensor->ndim || known->tp_unit != tensor->tp_unit ||
        memcmp(known->shape, tensor->shape, sizeof known->shape))
        PD_FAIL(err, PD_INVALID, "tensor %s has two shapes; give every piece the shape of the whole tensor", tensor->name);
    if (known->is_bytes != tensor->is_bytes || (known->kinds & tensor->kinds & param && known->dtype != tensor->dtype))
        PD_FAIL(err, PD_INVALID, "tensor %s has two types, of which one is %s; give every piece the same", tensor->name,
                pd_dtype_name(tensor->dtype));
    if (known->kinds > param && tensor->kinds > param && known->moments != tensor->moments)
        PD_FAIL(err, PD_INVALID, "tensor %s has moments of two types, %s and %s; give both the same", tensor->name,
                pd_dtype_name(known->moments), pd_dtype_name(tensor->moments));
    if (tensor->kinds & param) known->dtype = tensor->dtype;
    if (tensor->kinds > param) known->moments = tensor->moments;
    known->kinds |= tensor->kinds;
    *ret_number = *slot - 1;
    return PD_OK;
}

/* ---- one rank ---- */

uint64_t pd_listed_elements(const struct perdure_piece *p)
{
    uint64_t elements = 1;
    for (uint32_t d = 0; d < p->ndim; d++)
        elements *= p->shape[d];
    return elements;
}

static pd_status check_piece(const struct perdure_piece *p, const char *name, struct pd_error *err)
{
    uint64_t elements = 1;
    bool is_empty = false;
    if ((unsigned)p->kind >= PD_KIND_COUNT || (unsigned)p->dtype >= PD_DTYPE_COUNT)
        PD_FAIL(err, PD_INVALID, "tensor %s is of kind %u and type %u; see perdure.h for those that can be written", name,
                (unsigned)p->kind, (unsigned)p->dtype);
    if (p->ndim > PD_SHAPE_DIMS_MAX)
        PD_FAIL(err, PD_INVALID, "tensor %s has %u dimensions, and a checkpoint has %d at most; join some", name, p->ndim,
                PD_SHAPE_DIMS_MAX);
    if (p->is_bytes && (p->dtype != PERDURE_U8 || p->ndim != 1 || p->kind != PERDURE_PARAM))
        PD_FAIL(err, PD_INVALID, "tensor %s is of bytes; such a one is uint8, of one dimension, and no moment: change it",
                name);
    for (uint32_t d = 0; d < p->ndim; d++) {
        is_empty |= !p->shape[d];
        if (!pd_checked_mul_u64(elements, p->shape[d] ? p->shape[d] : 1, &elements) || elements > UINT64_MAX / 8)
            PD_FAIL(err, PD_INVALID, "tensor %s has more than 2^61 elements; use several tensors", name);
    }
    for (uint32_t d = 0; d < p->ndim; d++) {
        if ((!p->count[d] && !is_empty) || !pd_checked_range(p->start[d], p->count[d], p->shape[d]))
            PD_FAIL(err, PD_INVALID, "tensor %s: a piece is empty or leaves dimension %u; leave empty ones out", name, d);
        if (d >= PD_TENSOR_DIMS_MAX && p->count[d] != p->shape[d])
            PD_FAIL(err, PD_INVALID, "tensor %s: a piece is cut along dimension %u; choose one of the first %d", name, d,
                    PD_TENSOR_DIMS_MAX);
    }
    return PD_OK;
}

/* *ret_has_shape: there is a *ret_shape, which the row cannot hold. Of a tensor without elements it is all there is. */
static pd_status take_piece(const struct perdure_piece *p, struct pd_tensor *ret_tensor, struct pd_shard_box *ret_box,
                            struct pd_tensor_shape *ret_shape, bool *ret_has_shape, struct pd_error *err)
{
    struct pd_tensor t = {.tp_dim = -1, .ndim = p->ndim, .is_bytes = p->is_bytes != 0};
    struct pd_tensor_shape *shape = ret_shape;
    memset(shape, 0, sizeof *shape);
    PD_TRY(pd_listed_name(p->name, t.name, err));
    PD_TRY(check_piece(p, t.name, err));
    memcpy(shape->name, t.name, sizeof shape->name);
    shape->ndim = p->ndim;
    for (uint32_t d = 0; d < PD_SHAPE_DIMS_MAX; d++)
        shape->shape[d] = d < p->ndim ? p->shape[d] : 1;
    if (pd_shape_is_empty(shape)) {
        shape->kind = (enum pd_kind)p->kind;
        shape->dtype = (enum pd_dtype)p->dtype;
        shape->is_bytes = t.is_bytes;
    } else if (p->ndim > PD_TENSOR_DIMS_MAX) {
        t.ndim = PD_TENSOR_DIMS_MAX;
    }
    *ret_has_shape = pd_shape_is_empty(shape) || t.ndim != p->ndim;
    t.tp_unit = pd_shape_inner(shape);
    t.kinds = 1u << p->kind;
    t.dtype = p->kind == PERDURE_PARAM ? (enum pd_dtype)p->dtype : PD_F32;
    t.moments = p->kind == PERDURE_PARAM ? PD_F32 : (enum pd_dtype)p->dtype;
    struct pd_shard_box box = {.kind = (enum pd_kind)p->kind};
    for (uint32_t d = 0; d < PD_TENSOR_DIMS_MAX; d++) {
        const bool is_used = d < p->ndim;
        const uint64_t joined = d == PD_TENSOR_DIMS_MAX - 1 ? t.tp_unit : 1;
        t.shape[d] = is_used ? p->shape[d] * joined : 1;
        box.box.start[d] = is_used ? p->start[d] * joined : 0;
        box.box.count[d] = is_used ? p->count[d] * joined : 1;
    }
    *ret_tensor = t;
    *ret_box = box;
    return PD_OK;
}

pd_status pd_listed_init(const struct perdure_piece *pieces, uint64_t count, struct pd_listed *ret, struct pd_error *err)
{
    struct pd_listed l = {.tensors = {.is_listed = true}};
    struct name_map map = {0};
    struct pd_digest_stream digest;
    pd_digest_stream_init(&digest, count);
    if (count >= UINT32_MAX / 4)
        PD_FAIL(err, PD_INVALID, "%" PRIu64 " pieces are too many for one rank; save fewer, larger ones", count);
    l.boxes = calloc(count + 1, sizeof *l.boxes);
    pd_status st = PD_ALLOCATED(l.boxes, err, "no memory for %" PRIu64 " pieces", count);
    for (uint64_t i = 0; !st && i < count; i++) {
        struct pd_tensor tensor;
        struct pd_tensor_shape shape;
        bool has_shape = false;
        struct pd_shard_box *box = &l.boxes[l.count];
        st = take_piece(&pieces[i], &tensor, box, &shape, &has_shape, err);
        if (!st && has_shape) {
            pd_digest_stream_add(&digest, &shape, sizeof shape);
            st = pd_shapes_add(&l.tensors, &shape, err);
        }
        if (!st && has_shape && pd_shape_is_empty(&shape)) continue;
        if (!st) st = unite_tensor(&map, &l.tensors, &tensor, &box->tensor, err);
        if (st) break;
        l.count++;
        pd_digest_stream_add(&digest, tensor.name, sizeof tensor.name);
        pd_digest_stream_add(&digest, tensor.shape, sizeof tensor.shape);
        const uint64_t words[] = {tensor.ndim, tensor.dtype, tensor.moments, tensor.kinds, tensor.is_bytes};
        pd_digest_stream_add(&digest, words, sizeof words);
        pd_digest_stream_add(&digest, &box->box, sizeof box->box);
    }
    free(map.slots);
    if (!st) st = pd_shapes_unite(&l.tensors, err);
    if (st) {
        pd_listed_deinit(&l);
        return st;
    }
    l.digest = pd_digest_stream_value(&digest);
    *ret = l;
    return PD_OK;
}

void pd_listed_deinit(struct pd_listed *l)
{
    pd_tensor_table_deinit(&l->tensors);
    free(l->boxes);
    *l = (struct pd_listed){0};
}

/* ---- all ranks, on the root ---- */

struct parts { /* of a rank */
    uint32_t tensor_count, box_count, shape_count;
};

struct union_box {
    struct pd_box box;
    uint32_t tensor, kind, rank;
};

struct uniting {
    struct pd_tensor_table tensors;
    struct name_map map;
    struct union_box *boxes;     /* by tensor, kind, start */
    struct pd_shard_box *listed; /* in the order of the ranks */
    uint64_t box_count;
};

/* Tensors, boxes and shapes of a rank, as it sent them. */
static pd_status unite_rank(struct uniting *u, uint32_t rank, const unsigned char *data, struct pd_error *err)
{
    struct parts parts;
    memcpy(&parts, data, sizeof parts);
    const unsigned char *tensors = data + sizeof parts, *boxes = tensors + parts.tensor_count * sizeof(struct pd_tensor),
                        *shapes = boxes + parts.box_count * sizeof(struct pd_shard_box);
    uint32_t *number = malloc(((size_t)parts.tensor_count + 1) * sizeof *number);
    pd_status st = PD_ALLOCATED(number, err, "no memory for %u tensors", parts.tensor_count);
    for (uint32_t t = 0; !st && t < parts.tensor_count; t++) {
        struct pd_tensor tensor;
        memcpy(&tensor, tensors + t * sizeof tensor, sizeof tensor);
        st = unite_tensor(&u->map, &u->tensors, &tensor, &number[t], err);
    }
    for (uint32_t b = 0; !st && b < parts.box_count; b++) {
        struct pd_shard_box box;
        memcpy(&box, boxes + b * sizeof box, sizeof box);
        box.tensor = number[box.tensor];
        u->listed[u->box_count] = box;
        u->boxes[u->box_count++] = (struct union_box){box.box, box.tensor, (uint32_t)box.kind, rank};
    }
    for (uint32_t s = 0; !st && s < parts.shape_count; s++) {
        struct pd_tensor_shape shape;
        memcpy(&shape, shapes + s * sizeof shape, sizeof shape);
        st = pd_shapes_add(&u->tensors, &shape, err);
    }
    free(number);
    return st ? pd_error_context(err, st, "rank %u", rank) : PD_OK;
}

static int listed_by_place(const void *left, const void *right)
{
    const struct union_box *a = left, *b = right;
    if (a->tensor != b->tensor) return a->tensor < b->tensor ? -1 : 1;
    if (a->kind != b->kind) return a->kind < b->kind ? -1 : 1;
    for (int d = 0; d < PD_TENSOR_DIMS_MAX; d++)
        if (a->box.start[d] != b->box.start[d]) return a->box.start[d] < b->box.start[d] ? -1 : 1;
    return (a->rank > b->rank) - (a->rank < b->rank);
}

/* Boxes [first, end) of one tensor and kind: none overlap, and together they have all elements. */
static pd_status check_cover(const struct uniting *u, uint64_t first, uint64_t end, struct pd_error *err)
{
    const struct pd_tensor *tensor = &u->tensors.tensors[u->boxes[first].tensor];
    const char *kind = pd_kind_name((enum pd_kind)u->boxes[first].kind);
    uint64_t elements = 0;
    for (uint64_t a = first; a < end; a++) {
        const struct pd_box *box = &u->boxes[a].box;
        elements += pd_box_elements(box);
        for (uint64_t b = a + 1; b < end && u->boxes[b].box.start[0] < box->start[0] + box->count[0]; b++) {
            struct pd_box common;
            if (!pd_box_intersect(box, &u->boxes[b].box, &common)) continue;
            if (u->boxes[a].rank == u->boxes[b].rank)
                PD_FAIL(err, PD_INVALID, "tensor %s, %s: rank %u gives the same part of it twice; give it once",
                        tensor->name, kind, u->boxes[a].rank);
            else
                PD_FAIL(err, PD_INVALID, "tensor %s, %s: ranks %u and %u give the same part of it; let one of them write it",
                        tensor->name, kind, u->boxes[a].rank, u->boxes[b].rank);
        }
    }
    if (elements == pd_tensor_elements(tensor)) return PD_OK;
    PD_FAIL(err, PD_INVALID, "tensor %s, %s: the pieces of all ranks are %" PRIu64 " of its %" PRIu64 " elements; give all",
            tensor->name, kind, elements, pd_tensor_elements(tensor));
}

static pd_status check_all_cover(const struct uniting *u, struct pd_error *err)
{
    for (uint64_t first = 0, end; first < u->box_count; first = end) {
        for (end = first + 1; end < u->box_count && u->boxes[end].tensor == u->boxes[first].tensor &&
                              u->boxes[end].kind == u->boxes[first].kind;)
            end++;
        PD_TRY(check_cover(u, first, end, err));
    }
    return PD_OK;
}

/* u->listed is in the order of the ranks, each rank's boxes as in its shard. */
static pd_status build_index(const struct uniting *u, const struct pd_gathered *parts, uint32_t size,
                             struct pd_listed_whole *whole, struct pd_error *err)
{
    struct pd_index_source *sources = calloc(size, sizeof *sources);
    struct pd_store_name *names = calloc(size, sizeof *names);
    pd_status st = PD_ALLOCATED(sources && names, err, "no memory for the index of %u shards", size);
    uint64_t at = 0;
    for (uint32_t r = 0; !st && r < size; r++) {
        struct parts counts;
        memcpy(&counts, parts->data + parts->begin[r], sizeof counts);
        names[r] = pd_shard_name(r);
        sources[r] = (struct pd_index_source){names[r].text, u->listed + at, counts.box_count};
        at += counts.box_count;
    }
    if (!st) st = pd_index_build(&u->tensors, sources, size, &whole->index, &whole->index_bytes, err);
    free(sources);
    free(names);
    return st;
}

/* What shapes add to the whole. */
static pd_status unite_shapes(struct uniting *u, struct pd_listed_whole *whole, struct pd_error *err)
{
    struct pd_tensor_table *t = &u->tensors;
    PD_TRY(pd_shapes_unite(t, err));
    for (uint32_t s = 0; s < t->shape_count; s++) {
        const struct pd_tensor_shape *shape = &t->shapes[s];
        if (!pd_shape_is_empty(shape)) continue;
        if (t->count && *find_slot(&u->map, t, shape->name))
            PD_FAIL(err, PD_INVALID, "tensor %s has two shapes; give every piece the shape of the whole tensor",
                    shape->name);
    }
    return pd_shapes_write(t, &whole->shapes, err);
}

static pd_status unite_all(const struct pd_gathered *parts, uint32_t size, struct pd_listed_whole *whole,
                           struct pd_error *err)
{
    struct uniting u = {.tensors = {.is_listed = true}};
    uint64_t total = 0;
    for (uint32_t r = 0; r < size; r++) {
        struct parts counts;
        memcpy(&counts, parts->data + parts->begin[r], sizeof counts);
        total += counts.box_count;
    }
    u.boxes = malloc((total + 1) * sizeof *u.boxes);
    u.listed = malloc((total + 1) * sizeof *u.listed);
    pd_status st = PD_ALLOCATED(u.boxes && u.listed, err, "no memory for %" PRIu64 " pieces", total);
    for (uint32_t r = 0; !st && r < size; r++)
        st = unite_rank(&u, r, parts->data + parts->begin[r], err);
    if (!st && !total)
        st = pd_error_set(err, PD_INVALID, PD_WHERE, 0,
                          "there is nothing to save: no rank of %u has an element of a tensor; give one", size);
    if (!st) {
        qsort(u.boxes, u.box_count, sizeof *u.boxes, listed_by_place);
        st = check_all_cover(&u, err);
    }
    if (!st) st = unite_shapes(&u, whole, err);
    if (!st && total <= PD_LISTED_INDEX_BOXES) st = build_index(&u, parts, size, whole, err);
    whole->tensor_count = u.tensors.count;
    for (uint32_t t = 0; !st && t < u.tensors.count; t++)
        if (!u.tensors.tensors[t].is_bytes && pd_tensor_has_kind(&u.tensors.tensors[t], PD_PARAM))
            whole->parameter_count += pd_tensor_elements(&u.tensors.tensors[t]);
    pd_tensor_table_deinit(&u.tensors);
    free(u.map.slots);
    free(u.boxes);
    free(u.listed);
    return st;
}

pd_status pd_listed_unite(struct pd_group *group, const struct pd_listed *mine, struct pd_listed_whole *ret,
                          struct pd_error *err)
{
    const struct parts parts = {mine->tensors.count, mine->count, mine->tensors.shape_count};
    const uint64_t tensor_bytes = (uint64_t)parts.tensor_count * sizeof(struct pd_tensor),
                   box_bytes = (uint64_t)parts.box_count * sizeof(struct pd_shard_box),
                   shape_bytes = (uint64_t)parts.shape_count * sizeof(struct pd_tensor_shape),
                   bytes = sizeof parts + tensor_bytes + box_bytes + shape_bytes;
    unsigned char *data = malloc(bytes);
    struct pd_gathered gathered = {0};
    struct pd_listed_whole whole = {0};
    pd_status st = pd_group_agree(group, PD_ALLOCATED(data, err, "no memory for the tables of a rank"), err);
    if (!st) {
        memcpy(data, &parts, sizeof parts);
        if (tensor_bytes) memcpy(data + sizeof parts, mine->tensors.tensors, tensor_bytes);
        if (box_bytes) memcpy(data + sizeof parts + tensor_bytes, mine->boxes, box_bytes);
        if (shape_bytes) memcpy(data + sizeof parts + tensor_bytes + box_bytes, mine->tensors.shapes, shape_bytes);
        st = pd_gather_sizes(group, data, bytes, &gathered, err);
    }
    free(data);
    if (!st && group->rank == 0) st = unite_all(&gathered, group->size, &whole, err);
    st = pd_group_agree(group, st, err);
    pd_gathered_deinit(&gathered);
    if (st)
        pd_listed_whole_deinit(&whole);
    else
        *ret = whole;
    return st;
}

void pd_listed_whole_deinit(struct pd_listed_whole *whole)
{
    free(whole->index);
    free(whole->shapes);
    *whole = (struct pd_listed_whole){0};
}
