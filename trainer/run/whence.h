/* Which hosts gave the bytes that a run goes on with, and what it lost. For people: no decision reads it. */
#pragma once

#include "ckpt/group/group.h"
#include "ckpt/tiers/tiers.h"
#include "trainer/run/step_log.h"

struct pd_whence {
    char hosts[256];           /* "a (1.20 MiB) and b (621 KiB)" have read them; "": one host alone */
    uint32_t lost_hosts;       /* that saved a part, and hold none of it now: others had their shards too */
    struct pd_lost_steps lost; /* rank 0 */
};

/* Once `bytes_read` of the checkpoint in `directory` are in this rank's memory. Collective.   has_replicas: its tier has */
PD_MUST_USE pd_status pd_whence_find(struct pd_group *group, const char *directory, const struct pd_commit *commit,
                                     bool has_replicas, uint64_t bytes_read, struct pd_whence *ret_whence,
                                     struct pd_error *err);
/* "; from /dev/shm/mine, in memory, read on a (1.20 MiB) and b (621 KiB), with replicas of the shards of 1 lost host,
 * 4.2 s old: 3 steps are lost, 1.5 s" */
void pd_whence_describe(const struct pd_whence *whence, const struct pd_tier_report *tier, char *ret_text, size_t bytes);
