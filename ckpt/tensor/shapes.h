/* Shapes of a listed checkpoint that no row of a shard's table can hold: of tensors with more than PD_TENSOR_DIMS_MAX
 * dimensions, whose row has the last ones joined, and of tensors without elements, which have no row. The commit record
 * keeps them as text (FORMAT.md, "Listed tensors"). */
#pragma once

#include "ckpt/tensor/tensor.h"

#define PD_SHAPE_DIMS_MAX 8

struct pd_tensor_shape {
    char name[PD_TENSOR_NAME_MAX];
    uint32_t ndim;
    uint64_t shape[PD_SHAPE_DIMS_MAX]; /* unused dimensions are 1 */
    enum pd_kind kind;                 /* this and the others: only of tensors without elements */
    enum pd_dtype dtype;
    bool is_bytes;
};

bool pd_shape_is_empty(const struct pd_tensor_shape *shape);
/* Elements of one index of the last dimension of the row: the product of those joined to it. */
uint64_t pd_shape_inner(const struct pd_tensor_shape *shape);
/* The shape of a tensor that has a row; NULL: the row's own. The shapes have been united. */
const struct pd_tensor_shape *pd_shapes_find(const struct pd_tensor_table *table, const char *name);
/* Appends a copy. */
PD_MUST_USE pd_status pd_shapes_add(struct pd_tensor_table *table, const struct pd_tensor_shape *shape,
                                    struct pd_error *err);
/* Sorts the shapes by name and kind, and keeps one of each.
 *   errors  PD_INVALID: a tensor has two shapes or types */
PD_MUST_USE pd_status pd_shapes_unite(struct pd_tensor_table *table, struct pd_error *err);

/* *ret_text is malloc'ed, the caller's; NULL: there are no shapes. */
PD_MUST_USE pd_status pd_shapes_write(const struct pd_tensor_table *table, char **ret_text, struct pd_error *err);
/* Adds the shapes of such a text, or of "", to a table that has none. A shape whose tensor has no row there is kept.
 *   errors  PD_CORRUPT: it is no such text, or does not fit the rows of the table */
PD_MUST_USE pd_status pd_shapes_read(const char *text, struct pd_tensor_table *table, struct pd_error *err);
