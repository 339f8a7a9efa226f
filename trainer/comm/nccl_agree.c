/* Decides whether all ranks use NCCL, or none. */
#include "trainer/comm/nccl_library.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One rank's report, and the common result. */
struct report {
    uint32_t cannot, is_meant, host; /* is_meant: it is switched off, or a GPU is shared */
    char device[64], identity[33], why[192];
};

/* Compares identities: if each rank sees only one GPU, every GPU has number 0. */
static bool is_shared(const struct report *a, const struct report *b)
{
    if (a->identity[0] && b->identity[0]) return strcmp(a->identity, b->identity) == 0;
    return a->host == b->host && strcmp(a->device, b->device) == 0;
}

/* Sorts ranks of one GPU next to each other, the lower one first. */
static int by_device(const void *a, const void *b)
{
    const struct report *x = *(const struct report *const *)a, *y = *(const struct report *const *)b;
    int order = strcmp(x->identity, y->identity);
    if (!order && !x->identity[0]) order = x->host != y->host ? (x->host < y->host ? -1 : 1) : strcmp(x->device, y->device);
    return order ? order : (x > y) - (x < y);
}

static void find_shared(const struct report *all, const struct report **sorted, uint32_t size, struct report *verdict)
{
    const struct report *first = NULL, *second = NULL;
    for (uint32_t r = 0; r < size; r++)
        sorted[r] = &all[r];
    qsort(sorted, size, sizeof *sorted, by_device);
    for (uint32_t i = 1; i < size; i++) {
        if (!is_shared(sorted[i - 1], sorted[i]) || (second && second < sorted[i])) continue;
        first = sorted[i - 1];
        second = sorted[i];
    }
    if (!second) return;
    verdict->is_meant = 1;
    if (!verdict->cannot++)
        snprintf(verdict->why, sizeof verdict->why, "ranks %u and %u share GPU %s", (uint32_t)(first - all),
                 (uint32_t)(second - all), second->device);
}

static void nccl_agree_judge(const struct report *all, const struct report **sorted, uint32_t size, struct report *verdict)
{
    for (uint32_t r = 0; r < size; r++) {
        verdict->is_meant |= all[r].is_meant;
        if (all[r].cannot && !verdict->cannot++)
            snprintf(verdict->why, sizeof verdict->why, "rank %u: %.160s", r, all[r].why);
    }
    find_shared(all, sorted, size, verdict);
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
    /* As CUDA_VISIBLE_DEVICES calls it, or its number. */
    const char *at = getenv("CUDA_VISIBLE_DEVICES");
    for (uint32_t i = 0; at && i < dev->index; i++) {
        at = strchr(at, ',');
        if (at) at++;
    }
    if (at && *at)
        snprintf(mine.device, 64, "%.*s", (int)strcspn(at, ","), at);
    else
        snprintf(mine.device, 64, "%u", dev->index);
    snprintf(mine.identity, sizeof mine.identity, "%s", dev->identity);
    struct report verdict = {0}, *all = NULL;
    const struct report **sorted = NULL;
    struct pd_group group;
    pd_comm_group(control, &group);
    if (control->rank == 0) {
        all = calloc(control->size, sizeof *all);
        sorted = calloc(control->size, sizeof *sorted);
    }
    pd_status st = pd_group_gather(&group, 0, &mine, sizeof mine, all, err);
    if (!st && control->rank == 0) nccl_agree_judge(all, sorted, control->size, &verdict);
    free(all);
    free(sorted);
    PD_TRY(st);
    PD_TRY(pd_comm_broadcast(control, 0, &verdict, sizeof verdict, err));
    *ret_is_meant = verdict.is_meant;
    if (verdict.cannot) PD_FAIL(err, PD_UNSUPPORTED, "NCCL cannot serve: %s", verdict.why);
    return PD_OK;
}
