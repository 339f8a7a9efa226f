/* The order of an export: pieces by file and offset, bands of a piece, links that fill a band, parts of a link. A band is
 * elements [low, high) of a foreign tensor: whole blocks, small enough for memory. */
#pragma once

#include "resharder/catalog/read.h"
#include "resharder/convert/export.h"

#define PD_EXPORT_BAND_BYTES (UINT64_C(24) << 20) /* of fp32, for a tensor that a view transposes */
#define PD_EXPORT_RUN_BYTES (UINT64_C(2) << 20)   /* for other tensors */

/* The k-th element of a model tensor, in the order of the wanted tensor, is copied from element `from`(k) of the source's
 * tensor to element `to`(k) of the wanted one. */
struct export_source {
    uint32_t tensor; /* in the source's catalog */
    struct pd_view from, to;
    bool is_turned;
};

/* The elements that one task fills. */
struct export_fill {
    uint64_t piece, low, high; /* in the wanted catalog */
    struct pd_view to;         /* of the part */
    bool is_first, is_last;    /* in its band */
};

struct export_tasks {
    const struct pd_catalog *wanted;
    struct export_source *sources;                  /* by foreign tensor */
    uint64_t *first;                                /* (wanted tensors + 1) into sources */
    uint64_t *order;                                /* (pieces) by file and offset */
    uint32_t *tensor_of;                            /* (pieces) */
    struct export_fill fills[PD_READ_LINE_MAX + 1]; /* of tasks in flight: indexed by task.user modulo the array size */

    uint64_t number;                /* of the next task */
    uint64_t next_piece, low, high; /* low == high: the piece is done */
    uint64_t source;
    struct pd_view from[PD_VIEW_PARTS_MAX], to[PD_VIEW_PARTS_MAX];
    uint32_t part, part_count;
    bool is_open, has_any; /* a band is open; it has had a task */
    uint64_t sources_end, piece_high;
};

PD_MUST_USE pd_status export_tasks_init(struct export_tasks *tasks, const struct pd_catalog *wanted,
                                        const struct pd_export_request *request, struct pd_error *err);
void export_tasks_deinit(struct export_tasks *tasks);
/* For a pd_read_line. */
bool export_tasks_next(void *tasks, struct pd_read_task *ret_task);
/* Returns the first element of its tensor that the piece holds. */
uint64_t export_tasks_low(const struct export_tasks *tasks, uint64_t piece);
const struct export_fill *export_tasks_fill(const struct export_tasks *tasks, const struct pd_read_task *task);
