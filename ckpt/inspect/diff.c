/* The difference of two checkpoints, tile by tile: both sides assemble the same box whatever layout they are stored in. */
#include "ckpt/base/grow.h"
#include "ckpt/inspect/open.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TILE_ELEMENTS (UINT64_C(1) << 20)

struct comparing {
    struct pd_inspect *left, *right;
    float *left_tile, *right_tile; /* (TILE_ELEMENTS) */
    struct pd_diff diff;
    uint64_t done_bytes, total_bytes;
    pd_inspect_progress progress;
    void *context;
};

void pd_diff_deinit(struct pd_diff *diff)
{
    if (!diff) return;
    free(diff->rows);
    *diff = (struct pd_diff){0};
}

static void compare_tile(const struct comparing *c, const struct pd_tensor *tensor, const struct pd_box *tile,
                         struct pd_diff_row *row)
{
    const struct pd_box whole = pd_box_whole(tensor);
    const uint64_t count = pd_box_elements(tile), base = pd_box_offset(&whole, tile);
    if (memcmp(c->left_tile, c->right_tile, count * sizeof(float)) == 0) return;
    for (uint64_t e = 0; e < count; e++) {
        if (memcmp(&c->left_tile[e], &c->right_tile[e], sizeof(float)) == 0) continue;
        double left = c->left_tile[e], right = c->right_tile[e], distance = fabs(left - right);
        if (!isfinite(left) || !isfinite(right)) distance = INFINITY;
        if (row->differing++ == 0) {
            row->first = base + e; /* tiles are contiguous in the tensor */
            row->left = left;
            row->right = right;
        }
        if (distance > row->max_abs) row->max_abs = distance;
    }
}

/* Tiles are contiguous runs of the tensor: whole rows of the first dimension `d` whose rows are small enough, one index in
 * each dimension before it. Returns d and how many of its rows go into a tile. */
static int cut(const struct pd_tensor *tensor, uint64_t *ret_rows)
{
    uint64_t inner = 1;
    int d = PD_TENSOR_DIMS_MAX - 1;
    while (d > 0 && inner * tensor->shape[d] <= TILE_ELEMENTS)
        inner *= tensor->shape[d--];
    *ret_rows = TILE_ELEMENTS / inner;
    return d;
}

/* The next tile in the tensor's order; false after the last. `rows`: of dimension d in a full tile. */
static bool advance(const struct pd_tensor *tensor, int d, uint64_t rows, struct pd_box *tile)
{
    tile->start[d] += tile->count[d];
    for (int i = d; tile->start[i] >= tensor->shape[i]; i--) {
        if (i == 0) return false;
        tile->start[i] = 0;
        tile->start[i - 1]++;
    }
    uint64_t left = tensor->shape[d] - tile->start[d];
    tile->count[d] = left < rows ? left : rows;
    return true;
}

static pd_status compare_tensor(struct comparing *c, uint32_t left, uint32_t right, enum pd_kind kind,
                                struct pd_diff_row *row, struct pd_error *err)
{
    const struct pd_tensor *tensor = &c->left->tensors.tensors[left];
    uint64_t rows = 0;
    const int d = cut(tensor, &rows);
    struct pd_box tile = pd_box_whole(tensor);
    for (int i = 0; i < d; i++)
        tile.count[i] = 1;
    const uint64_t full = rows < tensor->shape[d] ? rows : tensor->shape[d];
    tile.count[d] = full;
    do {
        PD_TRY(pd_inspect_read(c->left, left, kind, &tile, c->left_tile, err));
        PD_TRY(pd_inspect_read(c->right, right, kind, &tile, c->right_tile, err));
        compare_tile(c, tensor, &tile, row);
        c->done_bytes += pd_box_elements(&tile) * sizeof(float);
        if (c->progress) c->progress(c->context, c->done_bytes, c->total_bytes);
    } while (advance(tensor, d, full, &tile));
    row->elements = pd_tensor_elements(tensor);
    row->difference = row->differing ? PD_DIFFERENT : PD_SAME;
    return PD_OK;
}

static pd_status add_row(struct comparing *c, const char *name, enum pd_kind kind, struct pd_diff_row **ret_row,
                         struct pd_error *err)
{
    if (!pd_grow(&c->diff.rows, c->diff.count, sizeof *c->diff.rows))
        PD_FAIL(err, PD_NO_MEMORY, "no memory for %" PRIu64 " rows of a difference", c->diff.count + 1);
    struct pd_diff_row *row = &c->diff.rows[c->diff.count++];
    *row = (struct pd_diff_row){.kind = kind};
    memcpy(row->name, name, strlen(name) + 1);
    *ret_row = row;
    return PD_OK;
}

static pd_status compare_one(struct comparing *c, uint32_t left, enum pd_kind kind, struct pd_error *err)
{
    const struct pd_tensor *tensor = &c->left->tensors.tensors[left];
    struct pd_diff_row *row = NULL;
    PD_TRY(add_row(c, tensor->name, kind, &row, err));
    row->elements = pd_tensor_elements(tensor);
    uint32_t right = pd_inspect_find(c->right, tensor->name);
    if (right == UINT32_MAX) {
        row->difference = PD_ONLY_LEFT;
        return PD_OK;
    }
    const struct pd_tensor *other = &c->right->tensors.tensors[right];
    if (memcmp(tensor->shape, other->shape, sizeof tensor->shape) != 0) {
        row->difference = PD_OTHER_SHAPE;
        return PD_OK;
    }
    return compare_tensor(c, left, right, kind, row, err);
}

static pd_status add_only_right(struct comparing *c, struct pd_error *err)
{
    for (uint32_t t = 0; t < c->right->tensors.count; t++) {
        const struct pd_tensor *tensor = &c->right->tensors.tensors[t];
        if (pd_inspect_find(c->left, tensor->name) != UINT32_MAX) continue;
        for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
            struct pd_diff_row *row = NULL;
            PD_TRY(add_row(c, tensor->name, (enum pd_kind)kind, &row, err));
            row->difference = PD_ONLY_RIGHT;
            row->elements = pd_tensor_elements(tensor);
        }
    }
    return PD_OK;
}

static pd_status compare_all(struct comparing *c, struct pd_error *err)
{
    c->left_tile = malloc(TILE_ELEMENTS * sizeof(float));
    c->right_tile = malloc(TILE_ELEMENTS * sizeof(float));
    if (!c->left_tile || !c->right_tile) PD_FAIL(err, PD_NO_MEMORY, "no memory to compare checkpoints");
    for (uint32_t t = 0; t < c->left->tensors.count; t++)
        for (int kind = 0; kind < PD_KIND_COUNT; kind++)
            PD_TRY(compare_one(c, t, (enum pd_kind)kind, err));
    PD_TRY(add_only_right(c, err));
    for (uint64_t r = 0; r < c->diff.count; r++)
        c->diff.different_count += c->diff.rows[r].difference != PD_SAME;
    return PD_OK;
}

pd_status pd_inspect_diff(struct pd_inspect *left, struct pd_inspect *right, pd_inspect_progress progress, void *context,
                          struct pd_diff *ret_diff, struct pd_error *err)
{
    PD_TRY(pd_inspect_check_complete(left, err));
    PD_TRY(pd_inspect_check_complete(right, err));
    struct comparing c = {.left = left, .right = right, .progress = progress, .context = context};
    c.total_bytes = left->data_bytes;
    pd_status st = compare_all(&c, err);
    free(c.left_tile);
    free(c.right_tile);
    if (st)
        pd_diff_deinit(&c.diff);
    else
        *ret_diff = c.diff;
    return st;
}
