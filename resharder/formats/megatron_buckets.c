/* Reads Megatron's distributed optimizer as saved with dp_reshardable: each model-parallel rank's parameters in buckets,
 * in reverse of the order in its modules, each on a multiple of 64 elements. Group g of buckets is tensor rank g modulo
 * tp of pipeline stage g / tp.
 *
 * No file stores that order or tp. So both known orders (Transformer Engine's modules, Megatron's own) are tried with
 * each tp that divides the number of groups. The right guess is the one under which the fp32 parameters in the buckets,
 * rounded, equal the model's; some elements of each are compared.
 * Source: megatron/core/distributed/param_and_grad_buffer.py; optimizer/distrib_optimizer.py. */
#include "ckpt/base/checked.h"
#include "ckpt/base/grow.h"
#include "resharder/catalog/view.h"
#include "resharder/formats/megatron.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT 64
#define SAMPLES 8
#define PREFIX "optimizer.distributed.dp_group_idx_"
#define REMEDY "save it with --dist-ckpt-optim-fully-reshardable"

struct bucket {
    unsigned long group, number;
    uint32_t tensors[PD_KIND_COUNT]; /* index in raw */
    uint64_t elements;
};

/* One model-parallel rank's part of a tensor, or one half of it. */
struct slot {
    uint32_t tensor, group;
    struct pd_view view; /* elements of the tensor, in bucket order */
    bool follows;        /* the other half, directly after the first */
    bool is_copy;        /* a duplicate: another rank's is used */
    uint32_t bucket;
    uint64_t at; /* first element in the bucket */
};

struct buckets {
    struct pd_vfs *vfs;
    const struct pd_catalog *raw; /* finished */
    const char *path;             /* for messages */
    struct bucket *items;         /* (count) by group and number */
    uint32_t count, groups;
    uint64_t layers;
    struct slot *slots; /* (slot_count) in the order of the buckets */
    uint32_t slot_count;
    bool *is_taken;       /* (raw's tensors) used by a slot or as a bucket */
    struct pd_file *file; /* file read last */
    uint32_t file_number;
};

/* ---- buckets ---- */

/* ".._<group>.gbuf_idx_<buffer>.dtype_<..>.bucket_idx_<bucket>.<kind>" */
static bool parse_bucket(const char *name, struct bucket *ret, unsigned long *ret_buffer, int *ret_kind)
{
    static const char *const kinds[PD_KIND_COUNT] = {
        [PD_PARAM] = "param", [PD_EXP_AVG] = "exp_avg", [PD_EXP_AVG_SQ] = "exp_avg_sq"};
    if (strncmp(name, PREFIX, sizeof PREFIX - 1) != 0) return false;
    const char *bucket = strstr(name, ".bucket_idx_"), *last = strrchr(name, '.');
    if (!bucket || sscanf(name + sizeof PREFIX - 1, "%9lu.gbuf_idx_%9lu.", &ret->group, ret_buffer) != 2 ||
        sscanf(bucket, ".bucket_idx_%9lu.", &ret->number) != 1)
        return false;
    for (*ret_kind = 0; *ret_kind < PD_KIND_COUNT; ++*ret_kind)
        if (strcmp(last + 1, kinds[*ret_kind]) == 0) return true;
    return false;
}

static int by_number(const void *a, const void *b)
{
    const struct bucket *x = a, *y = b;
    if (x->group != y->group) return x->group < y->group ? -1 : 1;
    return (x->number > y->number) - (x->number < y->number);
}

/* Merges the items of one bucket, one a kind, into one. */
static pd_status join_kinds(struct buckets *b, struct pd_error *err)
{
    const uint32_t found = b->count;
    b->count = 0;
    qsort(b->items, found, sizeof *b->items, by_number);
    for (uint32_t i = 0; i < found; i += PD_KIND_COUNT) {
        struct bucket joined = b->items[i];
        for (uint32_t k = 1; k < PD_KIND_COUNT && i + k < found && !by_number(&b->items[i], &b->items[i + k]); k++)
            for (int kind = 0; kind < PD_KIND_COUNT; kind++)
                if (b->items[i + k].tensors[kind] != UINT32_MAX) joined.tensors[kind] = b->items[i + k].tensors[kind];
        for (int kind = 0; kind < PD_KIND_COUNT; kind++)
            if (joined.tensors[kind] == UINT32_MAX || b->raw->tensors[joined.tensors[kind]].shape[0] != joined.elements)
                PD_FAIL(err, PD_CORRUPT, "%s: bucket %lu of group %lu lacks one of param, exp_avg and exp_avg_sq", b->path,
                        joined.number, joined.group);
        b->items[b->count++] = joined;
    }
    b->groups = b->count ? (uint32_t)b->items[b->count - 1].group + 1 : 0;
    if (!b->groups || b->groups > b->count)
        PD_FAIL(err, PD_CORRUPT, "%s: %u groups of buckets and %u buckets", b->path, b->groups, b->count);
    return PD_OK;
}

static pd_status find_buckets(struct buckets *b, struct pd_error *err)
{
    unsigned long buffer = 0;
    int kind = 0;
    b->items = malloc((size_t)b->raw->tensor_count * sizeof *b->items);
    b->is_taken = calloc((size_t)b->raw->tensor_count, sizeof *b->is_taken);
    if (!b->items || !b->is_taken) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory for its buckets", b->path);
    for (uint32_t t = 0; t < b->raw->tensor_count; t++) {
        const struct pd_foreign_tensor *tensor = &b->raw->tensors[t];
        struct bucket *bucket = &b->items[b->count];
        if (!parse_bucket(tensor->name, bucket, &buffer, &kind)) continue;
        if (buffer)
            PD_FAIL(err, PD_UNSUPPORTED,
                    "%s: its optimizer lies in buckets (dp_reshardable) of several types or virtual stages; " REMEDY,
                    b->path);
        if (tensor->ndim != 1 || bucket->group >= b->raw->tensor_count)
            PD_FAIL(err, PD_CORRUPT, "%s: %s is not a bucket", b->path, tensor->name);
        memset(bucket->tensors, 0xff, sizeof bucket->tensors);
        bucket->tensors[kind] = t;
        bucket->elements = tensor->shape[0];
        b->is_taken[t] = true;
        b->count++;
    }
    return join_kinds(b, err);
}

/* ---- their contents ---- */

/* Names of a layer's parameters in reverse module order; if Transformer Engine has another name for one, both are listed. */
static const char *const transformer_engine[] = {
    "mlp.linear_fc2.bias",
    "mlp.linear_fc2.weight",
    "mlp.linear_fc1.bias",
    "mlp.linear_fc1.weight",
    "mlp.linear_fc1.layer_norm_bias",
    "mlp.linear_fc1.layer_norm_weight",
    "self_attention.k_layernorm.weight",
    "self_attention.q_layernorm.weight",
    "self_attention.linear_qkv.bias",
    "self_attention.linear_qkv.weight",
    "self_attention.linear_qkv.layer_norm_bias",
    "self_attention.linear_qkv.layer_norm_weight",
    "self_attention.linear_proj.bias",
    "self_attention.linear_proj.weight",
    NULL,
};
static const char *const local[] = {
    "mlp.linear_fc2.bias",
    "mlp.linear_fc2.weight",
    "mlp.linear_fc1.bias",
    "mlp.linear_fc1.weight",
    "pre_mlp_layernorm.bias",
    "mlp.linear_fc1.layer_norm_bias",
    "pre_mlp_layernorm.weight",
    "mlp.linear_fc1.layer_norm_weight",
    "self_attention.k_layernorm.weight",
    "self_attention.q_layernorm.weight",
    "self_attention.linear_qkv.bias",
    "self_attention.linear_qkv.weight",
    "self_attention.linear_proj.bias",
    "self_attention.linear_proj.weight",
    "input_layernorm.bias",
    "self_attention.linear_qkv.layer_norm_bias",
    "input_layernorm.weight",
    "self_attention.linear_qkv.layer_norm_weight",
    NULL,
};
#define EMBEDDING "embedding.word_embeddings.weight"
#define OUTPUT "output_layer.weight"
static const char *const behind[] = {OUTPUT, "decoder.final_layernorm.bias", "decoder.final_layernorm.weight", NULL};
static const char *const in_front[] = {"embedding.position_embeddings.weight", EMBEDDING, NULL};

/* How tensor ranks split a parameter; all of them have the unlisted ones. */
enum cut { CUT_NOT, CUT_ROWS, CUT_COLUMNS };
static const struct {
    const char *ending;
    enum cut cut;
} cuts[] = {{"linear_qkv.weight", CUT_ROWS},
            {"linear_qkv.bias", CUT_ROWS},
            {"linear_fc1.weight", CUT_ROWS},
            {"linear_fc1.bias", CUT_ROWS},
            {"linear_proj.weight", CUT_COLUMNS},
            {"linear_fc2.weight", CUT_COLUMNS},
            {EMBEDDING, CUT_ROWS},
            {OUTPUT, CUT_ROWS}};

static enum cut cut_of(const char *name)
{
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++)
        if (strstr(name, cuts[i].ending)) return cuts[i].cut;
    return CUT_NOT;
}

/* A layout to try: model-parallel ranks, and the one whose slots are being listed. */
struct guess {
    const char *const *order;
    uint32_t tp, pp, tensor_rank, stage;
};

static pd_status add_slot(struct buckets *b, const struct slot *slot, struct pd_error *err)
{
    if (!pd_grow(&b->slots, b->slot_count, sizeof *b->slots))
        PD_FAIL(err, PD_NO_MEMORY, "%s: no memory for %u parameters", b->path, b->slot_count + 1);
    b->slots[b->slot_count++] = *slot;
    return PD_OK;
}

/* True if a matrix stacks the gate and what it multiplies, each split by rows. */
static bool is_gated(const struct buckets *b, const char *name, const struct pd_foreign_tensor *fc1, uint32_t row)
{
    char other[PD_FOREIGN_NAME_MAX];
    const char *at = strstr(name, "linear_fc1.weight");
    if (!at) return false;
    snprintf(other, sizeof other, "%.*slinear_fc2.weight", (int)(at - name), name);
    const int64_t fc2 = pd_catalog_find(b->raw, other, PD_PARAM);
    return fc2 >= 0 && row + 2 == fc1->ndim && fc1->ndim == b->raw->tensors[fc2].ndim &&
           fc1->shape[row] == 2 * b->raw->tensors[fc2].shape[row + 1];
}

/* Lists a parameter of the guess's rank: layer `layer` of a tensor that holds all layers, or a whole one. *ret_fits
 * false: it cannot be split so. */
#define WHOLE UINT64_MAX
static pd_status megatron_buckets_take(struct buckets *b, const struct guess *g, const char *name, uint64_t layer,
                                       bool is_copy, bool *ret_fits, struct pd_error *err)
{
    const int64_t found = pd_catalog_find(b->raw, name, PD_PARAM);
    if (found < 0 || !*ret_fits) return PD_OK;
    const struct pd_foreign_tensor *tensor = &b->raw->tensors[found];
    struct slot slot = {.tensor = (uint32_t)found, .group = g->stage * g->tp + g->tensor_rank};
    const uint32_t row = layer != WHOLE;
    const enum cut cut = cut_of(name);
    *ret_fits = tensor->ndim <= 3;
    if (!*ret_fits) return PD_OK;
    slot.view = pd_view_of_shape(tensor->shape, tensor->ndim);
    if (layer != WHOLE) *ret_fits = pd_view_cut_dimension(&slot.view, 0, layer, b->layers);
    slot.is_copy = is_copy || (cut == CUT_NOT && g->tensor_rank > 0);
    if (g->tp == 1 || cut == CUT_NOT) return *ret_fits ? add_slot(b, &slot, err) : PD_OK;
    const uint64_t halves = is_gated(b, name, tensor, row) ? 2 : 1;
    for (uint64_t half = 0; half < halves && *ret_fits; half++) {
        struct slot part = slot;
        part.follows = half > 0;
        *ret_fits = pd_view_cut_dimension(&part.view, row, half, halves) &&
                    pd_view_cut_dimension(&part.view, row + (cut == CUT_COLUMNS), g->tensor_rank, g->tp);
        if (*ret_fits) PD_TRY(add_slot(b, &part, err));
    }
    return PD_OK;
}

static uint64_t count_layers(const struct pd_catalog *raw)
{
    uint64_t layers = 0;
    for (uint32_t t = 0; t < raw->tensor_count; t++) {
        unsigned long number = 0;
        if (sscanf(raw->tensors[t].name, "decoder.layers.%6lu.", &number) == 1)
            layers = pd_max_u64(layers, pd_min_u64(number + 1, raw->tensor_count)); /* each layer has its own tensors */
        else if (strncmp(raw->tensors[t].name, "decoder.layers.", 15) == 0)
            layers = pd_max_u64(layers, pd_min_u64(raw->tensors[t].shape[0], 1000000));
    }
    return layers;
}

static pd_status take_layer(struct buckets *b, const struct guess *g, uint64_t layer, bool *ret_fits, struct pd_error *err)
{
    char name[PD_FOREIGN_NAME_MAX];
    for (const char *const *suffix = g->order; *suffix; suffix++) {
        snprintf(name, sizeof name, "decoder.layers.%s", *suffix);
        const int64_t stacked = pd_catalog_find(b->raw, name, PD_PARAM);
        if (stacked >= 0 && b->raw->tensors[stacked].shape[0] == b->layers)
            PD_TRY(megatron_buckets_take(b, g, name, layer, false, ret_fits, err));
        snprintf(name, sizeof name, "decoder.layers.%" PRIu64 ".%s", layer, *suffix);
        PD_TRY(megatron_buckets_take(b, g, name, WHOLE, false, ret_fits, err));
    }
    return PD_OK;
}

/* A last stage that is not the first has a copy of the tied embedding. */
static pd_status list_rank(struct buckets *b, const struct guess *g, bool *ret_fits, struct pd_error *err)
{
    const uint64_t layers = b->layers / g->pp;
    if (g->stage + 1 == g->pp) {
        if (g->pp > 1 && pd_catalog_find(b->raw, OUTPUT, PD_PARAM) < 0)
            PD_TRY(megatron_buckets_take(b, g, EMBEDDING, WHOLE, true, ret_fits, err));
        for (int i = 0; behind[i]; i++)
            PD_TRY(megatron_buckets_take(b, g, behind[i], WHOLE, false, ret_fits, err));
    }
    for (uint64_t l = layers; l-- > 0 && *ret_fits;)
        PD_TRY(take_layer(b, g, g->stage * layers + l, ret_fits, err));
    for (int i = 0; g->stage == 0 && in_front[i]; i++)
        PD_TRY(megatron_buckets_take(b, g, in_front[i], WHOLE, false, ret_fits, err));
    return PD_OK;
}

/* False if they do not fill the buckets. */
static bool place_slots(struct buckets *b)
{
    uint64_t at = 0;
    uint32_t bucket = 0;
    for (uint32_t i = 0; i < b->slot_count; i++) {
        struct slot *s = &b->slots[i];
        const uint64_t count = pd_view_elements(&s->view);
        if (!s->follows) at = pd_round_up(at, ALIGNMENT);
        if (bucket < b->count && at && at >= b->items[bucket].elements) {
            bucket++;
            at = 0;
        }
        if (bucket == b->count || b->items[bucket].group != s->group ||
            !pd_checked_range(at, count, b->items[bucket].elements))
            return false;
        s->bucket = bucket;
        s->at = at;
        at += count;
        if (at == b->items[bucket].elements) {
            bucket++;
            at = 0;
        }
    }
    return bucket == b->count;
}

/* ---- finding the right guess ---- */

/* Returns the piece with element `i` of a tensor whose pieces are boxes, as in all distributed checkpoints; NULL: none. */
static const struct pd_piece *find_element(const struct pd_catalog *raw, const struct pd_foreign_tensor *t, uint64_t i,
                                           uint64_t *ret_offset)
{
    for (uint64_t n = t->piece_begin; n < t->piece_begin + t->piece_count; n++) {
        const struct pd_piece *p = &raw->pieces[n];
        uint64_t left = i, offset = 0, dense = 1;
        bool is_inside = true;
        for (uint32_t d = t->ndim; d-- > 0; dense *= p->count[d]) {
            const uint64_t place = left % t->shape[d];
            left /= t->shape[d];
            is_inside = is_inside && place >= p->start[d] && place - p->start[d] < p->count[d];
            offset += (place - p->start[d]) * (p->stride[d] ? p->stride[d] : dense);
        }
        if (!is_inside) continue;
        *ret_offset = p->offset + offset * pd_elements[t->element].block_bytes;
        return p;
    }
    return NULL;
}

static pd_status read_element(struct buckets *b, uint32_t tensor, uint64_t i, float *ret, struct pd_error *err)
{
    const struct pd_foreign_tensor *t = &b->raw->tensors[tensor];
    unsigned char stored[16];
    uint64_t offset = 0;
    const struct pd_piece *piece = find_element(b->raw, t, i, &offset);
    if (!piece || pd_elements[t->element].block_elements != 1)
        PD_FAIL(err, PD_CORRUPT, "%s: element %" PRIu64 " of %s is nowhere", b->path, i, t->name);
    if (!b->file || piece->file != b->file_number) {
        pd_file_close_readonly(b->file);
        b->file = NULL;
        b->file_number = piece->file;
        PD_TRY(pd_file_open(b->vfs, b->raw->files[piece->file].path, PD_OPEN_READ, &b->file, err));
    }
    PD_TRY(pd_file_read(b->file, offset, stored, pd_elements[t->element].block_bytes, err));
    pd_elements[t->element].to_f32(stored, 1, ret);
    return PD_OK;
}

/* Compares the parameters in the buckets with the model's, rounded. */
static pd_status check_slot(struct buckets *b, const struct slot *s, bool *ret_is_same, struct pd_error *err)
{
    const struct pd_element_row *element = &pd_elements[b->raw->tensors[s->tensor].element];
    const uint64_t count = pd_view_elements(&s->view);
    for (uint64_t k = 0; k < SAMPLES && *ret_is_same; k++) {
        const uint64_t i = count / SAMPLES * k + k % pd_max_u64(count / SAMPLES, 1);
        uint64_t one = 1;
        unsigned char stored[16];
        float model = 0, master = 0;
        if (i >= count) break;
        PD_TRY(read_element(b, s->tensor, pd_view_run(&s->view, i, &one), &model, err));
        PD_TRY(read_element(b, b->items[s->bucket].tensors[PD_PARAM], s->at + i, &master, err));
        element->from_f32(&master, 1, stored);
        element->to_f32(stored, 1, &master);
        *ret_is_same = memcmp(&model, &master, sizeof model) == 0;
    }
    return PD_OK;
}

static pd_status try_guess(struct buckets *b, struct guess g, bool *ret_fits, struct pd_error *err)
{
    *ret_fits = b->groups % g.tp == 0 && b->layers % (g.pp = b->groups / g.tp) == 0;
    b->slot_count = 0;
    for (uint32_t i = 0; i < b->groups && *ret_fits; i++) {
        g.stage = i / g.tp;
        g.tensor_rank = i % g.tp;
        PD_TRY(list_rank(b, &g, ret_fits, err));
    }
    *ret_fits = *ret_fits && place_slots(b);
    for (uint32_t i = 0; i < b->slot_count && *ret_fits; i++)
        PD_TRY(check_slot(b, &b->slots[i], ret_fits, err));
    return PD_OK;
}

static pd_status find_order(struct buckets *b, struct pd_error *err)
{
    const char *const *const orders[] = {transformer_engine, local};
    bool fits = false;
    b->layers = count_layers(b->raw);
    for (uint32_t tp = 1; tp <= b->groups; tp++)
        for (int o = 0; o < 2; o++) {
            PD_TRY(try_guess(b, (struct guess){.order = orders[o], .tp = tp}, &fits, err));
            for (uint32_t i = 0; i < b->slot_count && fits; i++)
                b->is_taken[b->slots[i].tensor] = true;
            if (fits) return PD_OK;
        }
    PD_FAIL(
        err, PD_UNSUPPORTED,
        "%s: its optimizer lies in buckets (dp_reshardable), and its parameters in them in no order that we know; " REMEDY,
        b->path);
}

/* ---- the catalog without buckets ---- */

static pd_status copy_tensor(const struct pd_catalog *raw, uint32_t t, struct pd_catalog *to, struct pd_error *err)
{
    const struct pd_foreign_tensor *tensor = &raw->tensors[t];
    uint32_t number = 0;
    PD_TRY(pd_catalog_add_tensor(to, tensor, &number, err));
    for (uint64_t p = tensor->piece_begin; p < tensor->piece_begin + tensor->piece_count; p++)
        PD_TRY(pd_catalog_add_piece(to, number, &raw->pieces[p], err));
    return PD_OK;
}

static pd_status copy_rest(const struct buckets *b, struct pd_catalog *to, struct pd_error *err)
{
    for (uint32_t f = 0; f < b->raw->file_count; f++)
        PD_TRY(pd_catalog_add_file(to, b->raw->files[f].path, b->raw->files[f].bytes, NULL, err));
    for (uint32_t i = 0; i < b->raw->text_count; i++)
        PD_TRY(pd_catalog_add_text(to, b->raw->texts[i].name, b->raw->texts[i].text, b->raw->texts[i].bytes, err));
    for (uint32_t i = 0; i < b->raw->unmapped_count; i++)
        PD_TRY(pd_catalog_add_unmapped(to, b->raw->unmapped[i], err));
    for (uint32_t t = 0; t < b->raw->tensor_count; t++)
        if (!b->is_taken[t]) PD_TRY(copy_tensor(b->raw, t, to, err));
    return PD_OK;
}

/* Adds elements [first, first + count) of the slot, stored at `offset`, as boxes of its tensor. */
static pd_status add_boxes(const struct buckets *b, const struct slot *s, const struct pd_piece *from, uint64_t offset,
                           uint32_t block_bytes, uint64_t first, uint64_t count, uint32_t number, struct pd_catalog *to,
                           struct pd_error *err)
{
    struct pd_view parts[PD_VIEW_PARTS_MAX];
    const uint32_t part_count = pd_view_cut(&s->view, first, count, parts);
    for (uint32_t i = 0; i < part_count; i++) {
        struct pd_piece box = {.file = from->file, .offset = offset};
        uint64_t rest = parts[i].offset;
        for (uint32_t d = s->view.ndim; d-- > 0;) {
            const uint64_t shape = b->raw->tensors[s->tensor].shape[d];
            box.start[d] = rest % shape;
            box.count[d] = parts[i].count[d];
            rest /= shape;
        }
        offset += pd_view_elements(&parts[i]) * block_bytes;
        PD_TRY(pd_catalog_add_piece(to, number, &box, err));
    }
    return PD_OK;
}

/* Adds the slot's part of its bucket's pieces. */
static pd_status add_pieces(const struct buckets *b, const struct slot *s, int kind, uint32_t number, struct pd_catalog *to,
                            struct pd_error *err)
{
    const struct pd_foreign_tensor *bucket = &b->raw->tensors[b->items[s->bucket].tensors[kind]];
    const uint32_t block_bytes = pd_elements[bucket->element].block_bytes;
    const uint64_t end = s->at + pd_view_elements(&s->view);
    for (uint64_t n = bucket->piece_begin; n < bucket->piece_begin + bucket->piece_count; n++) {
        const struct pd_piece *p = &b->raw->pieces[n];
        const uint64_t low = pd_max_u64(p->start[0], s->at), high = pd_min_u64(p->start[0] + p->count[0], end);
        if (low >= high) continue;
        if (p->stride[0] > 1) PD_FAIL(err, PD_UNSUPPORTED, "%s: pieces of %s have strides", b->path, bucket->name);
        PD_TRY(add_boxes(b, s, p, p->offset + (low - p->start[0]) * block_bytes, block_bytes, low - s->at, high - low,
                         number, to, err));
    }
    return PD_OK;
}

static pd_status add_slots(const struct buckets *b, struct pd_catalog *to, struct pd_error *err)
{
    uint32_t(*numbers)[PD_KIND_COUNT] = malloc(((size_t)b->raw->tensor_count + 1) * sizeof *numbers);
    pd_status st = PD_OK;
    if (!numbers) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory for its tensors", b->path);
    memset(numbers, 0xff, ((size_t)b->raw->tensor_count + 1) * sizeof *numbers);
    for (uint32_t i = 0; i < b->slot_count && !st; i++)
        for (int k = 0; k < PD_KIND_COUNT && !st && !b->slots[i].is_copy; k++) {
            const struct slot *s = &b->slots[i];
            struct pd_foreign_tensor tensor = b->raw->tensors[s->tensor];
            tensor.kind = (enum pd_kind)k;
            tensor.element = b->raw->tensors[b->items[s->bucket].tensors[k]].element;
            if (numbers[s->tensor][k] == UINT32_MAX) st = pd_catalog_add_tensor(to, &tensor, &numbers[s->tensor][k], err);
            if (!st) st = add_pieces(b, s, k, numbers[s->tensor][k], to, err);
        }
    free(numbers);
    return st;
}

static bool has_buckets(const struct pd_catalog *catalog)
{
    for (uint32_t t = 0; t < catalog->tensor_count; t++)
        if (strncmp(catalog->tensors[t].name, PREFIX, sizeof PREFIX - 1) == 0) return true;
    return false;
}

pd_status pd_megatron_spread_buckets(struct pd_vfs *vfs, const char *directory, struct pd_catalog *catalog,
                                     struct pd_error *err)
{
    struct pd_catalog raw = *catalog;
    struct buckets b = {.vfs = vfs, .raw = &raw, .path = directory};
    if (!has_buckets(catalog)) return PD_OK;
    pd_catalog_init(catalog, raw.format);
    catalog->counters = raw.counters;
    pd_status st = pd_catalog_finish(&raw, err);
    if (!st) st = find_buckets(&b, err);
    if (!st) st = find_order(&b, err);
    if (!st) st = copy_rest(&b, catalog, err);
    if (!st) st = add_slots(&b, catalog, err);
    pd_file_close_readonly(b.file);
    free(b.slots);
    free(b.items);
    free(b.is_taken);
    pd_catalog_deinit(&raw);
    return st;
}
