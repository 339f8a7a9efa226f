/* Which checkpoints stay: the newest k, and of every step that n divides the newest. Never none. */
#ifndef PD_CKPT_STORE_RETENTION_H
#define PD_CKPT_STORE_RETENTION_H

#include <stdbool.h>
#include <stdint.h>

struct pd_retention {
    uint32_t keep_last;  /* 0 counts as 1: the only checkpoint is never removed */
    uint64_t keep_every; /* 0: none */
};

/* steps (count) newest first by (lineage, step, fence); ret_keep (count). */
void pd_retention_choose(const struct pd_retention *rule, const uint64_t *steps, uint32_t count, bool *ret_keep);

#endif
