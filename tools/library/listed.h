/* What the ranks of a save hold together: the tables of a listed checkpoint. */
#pragma once

#include "ckpt/group/group.h"
#include "ckpt/shard/shard.h"
#include "tools/library/perdure.h"

/* This rank's part: a tensor for each name, a box for each piece. */
struct pd_listed {
    struct pd_tensor_table tensors; /* by name */
    struct pd_shard_box *boxes;     /* (count), in the order of the pieces that have elements; owned */
    uint32_t count;
    uint64_t digest; /* of all that */
};
/* errors  PD_INVALID: by name, what a checkpoint cannot hold */
PD_MUST_USE pd_status pd_listed_init(const struct perdure_piece *pieces, uint64_t count, struct pd_listed *ret_listed,
                                     struct pd_error *err);
void pd_listed_deinit(struct pd_listed *listed);

/* Of the whole tensor; 0: it has none, and no box. */
uint64_t pd_listed_elements(const struct perdure_piece *piece);

/* Known to the root alone. */
struct pd_listed_whole {
    uint64_t tensor_count, parameter_count; /* of those that have elements */
    void *index; /* index.h5; NULL: too many boxes for one; owned */
    uint64_t index_bytes;
    char *shapes; /* pd_shapes_write; NULL: none; owned */
};
#define PD_LISTED_INDEX_BOXES 100000u /* of more the index would take too much memory */
/* Collective: unites the ranks' parts. Each tensor must have one shape and types, and its pieces cover it exactly once.
 *   errors  PD_INVALID: by name and rank */
PD_MUST_USE pd_status pd_listed_unite(struct pd_group *group, const struct pd_listed *mine,
                                      struct pd_listed_whole *ret_whole, struct pd_error *err);
void pd_listed_whole_deinit(struct pd_listed_whole *whole);

/* Names of any text as the format can hold them: other characters are "~" and two digits, "a b" is "a~20b".
 *   errors  PD_INVALID: empty, or too long */
PD_MUST_USE pd_status pd_listed_name(const char *text, char ret_name[PD_TENSOR_NAME_MAX], struct pd_error *err);
/* The other way, in place. */
void pd_listed_text(char *name);
