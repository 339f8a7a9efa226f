/* A checkpoint copied into a bucket: perdure ckpt upload, perdure_upload. */
#pragma once

#include "ckpt/group/group.h"
#include "tools/library/place.h"

struct pd_ckpt_upload {
    const char *source, *bucket; /* as in perdure_upload */
    uint64_t step;
    uint32_t keep_last; /* there; 0: all */
    uint64_t keep_every, memory, bytes_per_second;
    const struct pd_notes *notes;                                               /* or NULL */
    bool (*progress)(void *context, uint64_t done_bytes, uint64_t total_bytes); /* true: stop; or NULL */
    void *context;
};
struct pd_ckpt_uploaded {
    uint64_t step, bytes; /* bytes that this rank sent */
    bool was_there;       /* before; nothing was sent */
};
/* Collective.   errors  as perdure_upload */
PD_MUST_USE pd_status pd_ckpt_upload(const struct pd_ckpt_upload *upload, struct pd_group *group,
                                     struct pd_ckpt_uploaded *ret_uploaded, struct pd_error *err);
