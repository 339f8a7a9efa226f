/* A caller's group (perdure.h) as a pd_group, and gathering of what differs in size. */
#pragma once

#include "ckpt/group/group.h"
#include "tools/library/perdure.h"

struct pd_library_group {
    struct pd_group group;
    struct perdure_group theirs;
};
/* theirs NULL: one rank. Collective: finds out which ranks share a host.
 *   errors  PD_INVALID: rank and size; PD_PEER_LOST: one of its functions failed */
PD_MUST_USE pd_status pd_library_group_init(struct pd_library_group *group, const struct perdure_group *theirs,
                                            struct pd_error *err);

/* What each rank sent, on the root: rank r's bytes are data[begin[r], begin[r + 1]). Zeros elsewhere. */
struct pd_gathered {
    unsigned char *data; /* owned */
    uint64_t *begin;     /* (size + 1), owned */
};
void pd_gathered_deinit(struct pd_gathered *gathered);
/* Collective, in rounds of 1 MiB a rank. */
PD_MUST_USE pd_status pd_gather_sizes(struct pd_group *group, const void *mine, uint64_t bytes,
                                      struct pd_gathered *ret_gathered, struct pd_error *err);
