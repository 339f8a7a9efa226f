/* The index of a rewritten checkpoint. */
#include "ckpt/store/index.h"
#include "ckpt/store/paths.h"
#include "resharder/rewrite/internal.h"

#include <stdlib.h>

#define INDEX_BOXES_MAX 100000u /* HDF5 takes about 100 MiB to build the index of so many */

static pd_status list_boxes(const struct pd_rewrite_request *q, struct pd_index_source *sources, struct pd_store_name *names,
                            bool *ret_fits, struct pd_error *err)
{
    uint64_t total = 0;
    for (uint32_t s = 0; s < pd_layout_world(q->layout) && total <= INDEX_BOXES_MAX; s++) {
        struct pd_shard_box *boxes = NULL;
        PD_TRY(pd_layout_shard_boxes(q->layout, q->tensors, s, &boxes, &sources[s].box_count, err));
        names[s] = pd_shard_name(s);
        sources[s].file_name = names[s].text;
        sources[s].boxes = boxes;
        total += sources[s].box_count;
    }
    *ret_fits = total <= INDEX_BOXES_MAX;
    return PD_OK;
}

pd_status rewrite_build_index(struct rewriter *r, struct pd_error *err)
{
    const struct pd_rewrite_request *q = r->request;
    const uint32_t shards = pd_layout_world(q->layout);
    struct pd_index_source *sources = calloc(shards, sizeof *sources);
    struct pd_store_name *names = calloc(shards, sizeof *names);
    uint64_t bytes = 0;
    bool fits = false;
    pd_status st = PD_ALLOCATED(sources && names, err, "reshard: no memory");
    if (!st) st = list_boxes(q, sources, names, &fits, err);
    if (!st && fits) st = pd_index_build(q->tensors, sources, shards, &r->index, &bytes, err);
    if (!st && fits) pd_store_set_index(q->target, r->index, bytes);
    for (uint32_t s = 0; sources && s < shards; s++)
        free((void *)(uintptr_t)sources[s].boxes);
    free(sources);
    free(names);
    return st;
}
