/* Strided views: select the elements of a foreign tensor that form a tensor of the model, and their order.
 *
 * Element (i0, i1, ..) of a view lies at offset + i0 * stride[0] + i1 * stride[1] + .. in the row-major order of the foreign
 * tensor. Read row by row a view gives the model's tensor, so the product of its counts is the tensor's element count.
 * Examples, for a tensor of the model with shape (rows, columns):
 *
 *   as it is             count {rows, columns}         stride {columns, 1}
 *   transposed           count {rows, columns}         stride {1, rows}
 *   layer l of a stack   as it is, offset l * rows * columns
 *   q of a grouped qkv   count {groups, q_heads * head, columns}   stride {(q_heads + 2) * head * columns, columns, 1}
 */
#pragma once

#include "ckpt/tensor/tensor.h"

#define PD_VIEW_DIMS_MAX 6

struct pd_view {
    uint32_t ndim;
    uint64_t offset; /* elements */
    uint64_t count[PD_VIEW_DIMS_MAX], stride[PD_VIEW_DIMS_MAX];
};

/* Maps a tensor of the model to its place in a foreign tensor. The same link serves import and export. */
struct pd_link {
    uint32_t tensor; /* index in the model's table */
    enum pd_kind kind;
    char *name; /* of the foreign tensor; owned */
    struct pd_view view;
};
struct pd_links {
    struct pd_link *items; /* (count), owned */
    uint32_t count;
};
void pd_links_deinit(struct pd_links *links);
/* Adds a copy of `link`, its name included.   errors  PD_NO_MEMORY */
PD_MUST_USE pd_status pd_links_add(struct pd_links *links, const struct pd_link *link, struct pd_error *err);
/* Tensor `t` of the table, which lies as it is and under its own name. */
PD_MUST_USE pd_status pd_links_add_own(struct pd_links *links, const struct pd_tensor_table *tensors, uint32_t t,
                                       enum pd_kind kind, struct pd_error *err);

struct pd_view pd_view_of_shape(const uint64_t *shape, uint32_t ndim); /* as it is */
struct pd_view pd_view_dense(const struct pd_tensor *tensor);
uint64_t pd_view_elements(const struct pd_view *view);
/* True if every element lies in [0, elements) of the foreign tensor; false also if the arithmetic would overflow. */
bool pd_view_is_inside(const struct pd_view *view, uint64_t elements);
/* Returns the offset of element `first` of the view's row-major order, and lowers *count to the number of elements that
 * are contiguous from there. */
uint64_t pd_view_run(const struct pd_view *view, uint64_t first, uint64_t *count);
/* Splits elements [first, first + count) of the view's row-major order into views. Returns their number. */
#define PD_VIEW_PARTS_MAX (2 * PD_VIEW_DIMS_MAX)
uint32_t pd_view_cut(const struct pd_view *view, uint64_t first, uint64_t count,
                     struct pd_view ret_parts[PD_VIEW_PARTS_MAX]);
/* Reduces the view to part `part` of `parts` equal parts of dimension d. False if it does not divide so. */
bool pd_view_cut_dimension(struct pd_view *view, uint32_t d, uint64_t part, uint64_t parts);
/* Columns [begin, end) of a view of a matrix with `columns` columns. False if they span several dimensions of the view. */
bool pd_view_columns(const struct pd_view *view, uint64_t columns, uint64_t begin, uint64_t end, struct pd_view *ret_view);
/* Sorts a view's dimensions by descending stride: same elements, in the order of the foreign tensor. `inner` has the
 * view's own dense strides, so it is the view that turns the model's tensor into that order. */
void pd_view_sort(const struct pd_view *view, struct pd_view *ret_sorted, struct pd_view *ret_inner);
/* Splits two views of one tensor into common dimensions, in the order in which `to` lies in its tensor. False if the
 * counts of the two do not divide each other, or that takes more than PD_VIEW_DIMS_MAX dimensions. */
bool pd_view_pair(const struct pd_view *to, const struct pd_view *from, struct pd_view *ret_to, struct pd_view *ret_from);

/* True if strides never grow from one dimension to the next: the view then reads its tensor forward. */
bool pd_view_is_sorted(const struct pd_view *view);
