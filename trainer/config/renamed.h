/* Keys and values that once had another name, or are gone: one table for who types them and for what a checkpoint carries. */
#pragma once

#include "ckpt/base/status.h"

struct pd_renamed {
    const char *key;   /* the index of a list left out: checkpoint.tiers[].replicas */
    const char *value; /* NULL: the key itself was renamed, else only this value of it */
    const char *now;   /* NULL: nothing has taken its place */
    const char *said;  /* NULL: "is now called `now`"; else the rest of the sentence that refuses it */
    bool is_accepted;  /* what a user wrote is taken as `now`, with a warning */
};

/* The row of an old key, or of an old value of a key that is still there; NULL: none. */
const struct pd_renamed *pd_renamed_find(const char *path, const char *value);
/* "checkpoint.tiers[].new" with the index of `path`.   ret (bytes) */
void pd_renamed_path(const struct pd_renamed *row, const char *path, char *ret, size_t bytes);
/* What a user wrote is refused with its new name.   errors  PD_INVALID */
PD_MUST_USE pd_status pd_renamed_refuse(const char *path, const char *value, struct pd_error *err);
