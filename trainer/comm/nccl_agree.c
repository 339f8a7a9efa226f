/* Whether NCCL can serve: all ranks or none. */
#include "trainer/comm/nccl_library.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a rank brings, and what all of them make of it. */
struct report {
    uint32_t cannot, is_meant, host; /* is_meant: it is switched off, or a GPU is shared */
    char device[64], identity[33], why[192];
};

/* As CUDA_VISIBLE_DEVICES names it, or its number. */
static void name_device(const struct pd_dev *dev, char name[64])
{
    const char *at = getenv("CUDA_VISIBLE_DEVICES");
    for (uint32_t i = 0; at && i < dev->index; i++) {
        at = strchr(at, ',');
        if (at) at++;
    }
    if (at && *at)
        snprintf(name, 64, "%.*s", (int)strcspn(at, ","), at);
    else
        snprintf(name, 64, "%u", dev->index);
}

/* By what they are: where each rank is shown one GPU alone, all of them are number 0. */
static bool is_shared(const struct report *a, const struct report *b)
{
    if (a->identity[0] && b->identity[0]) return strcmp(a->identity, b->identity) == 0;
    return a->host == b->host && strcmp(a->device, b->device) == 0;
}

static void judge(const struct report *all, uint32_t size, struct report *verdict)
{
    for (uint32_t a = 0; a < size; a++) {
        verdict->is_meant |= all[a].is_meant;
        if (all[a].cannot && !verdict->cannot++)
            snprintf(verdict->why, sizeof verdict->why, "rank %u: %.160s", a, all[a].why);
        for (uint32_t b = 0; b < a; b++) {
            if (!is_shared(&all[a], &all[b])) continue;
            verdict->is_meant = 1;
            if (!verdict->cannot++)
                snprintf(verdict->why, sizeof verdict->why, "ranks %u and %u share GPU %s", b, a, all[a].device);
        }
    }
}

static pd_status judge_all(struct pd_comm *control, const struct report *mine, bool *ret_is_meant, struct pd_error *err)
{
    struct report verdict = {0}, *all = NULL;
    struct pd_group group;
    pd_comm_group(control, &group);
    if (control->rank == 0) all = calloc(control->size, sizeof *all);
    pd_status st = pd_group_gather(&group, 0, mine, sizeof *mine, all, err);
    if (!st && control->rank == 0) judge(all, control->size, &verdict);
    free(all);
    PD_TRY(st);
    PD_TRY(pd_comm_broadcast(control, 0, &verdict, sizeof verdict, err));
    *ret_is_meant = verdict.is_meant;
    if (verdict.cannot) PD_FAIL(err, PD_UNSUPPORTED, "NCCL cannot serve: %s", verdict.why);
    return PD_OK;
}

pd_status pd_nccl_agree(struct pd_comm *control, const struct pd_dev *dev, const struct pd_nccl_library **ret_library,
                        bool *ret_is_meant, struct pd_error *err)
{
    struct report mine = {.host = control->host};
    struct pd_error why;
    const char *path = getenv("PERDURE_NCCL");
    mine.is_meant = path && strcmp(path, "off") == 0;
    mine.cannot = pd_nccl_library_open(ret_library, &why) != PD_OK;
    if (mine.cannot) snprintf(mine.why, sizeof mine.why, "%.180s", why.message);
    name_device(dev, mine.device);
    snprintf(mine.identity, sizeof mine.identity, "%s", dev->identity);
    return judge_all(control, &mine, ret_is_meant, err);
}
