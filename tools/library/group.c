#include "tools/library/group.h"

#include "ckpt/base/checked.h"
#include "ckpt/base/digest.h"
#include "ckpt/base/pretended_host.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROUND_BYTES (UINT64_C(1) << 20)

/* ---- the table ---- */

static pd_status outcome(int result, const char *what, struct pd_error *err)
{
    if (!result) return PD_OK;
    PD_FAIL(err, PD_PEER_LOST, "the group's %s failed with %d: a rank is gone; start again without it", what, result);
}

static pd_status group_gather(struct pd_group *group, uint32_t root, const void *send, uint64_t bytes, void *recv,
                              struct pd_error *err)
{
    const struct perdure_group *g = group->context;
    return bytes ? outcome(g->gather(g->context, root, send, bytes, recv), "gather", err) : PD_OK;
}

static pd_status group_broadcast(struct pd_group *group, uint32_t root, void *data, uint64_t bytes, struct pd_error *err)
{
    const struct perdure_group *g = group->context;
    return bytes ? outcome(g->broadcast(g->context, root, data, bytes), "broadcast", err) : PD_OK;
}

static pd_status group_barrier(struct pd_group *group, struct pd_error *err)
{
    unsigned char mine = 0, *all = calloc(group->size, 1);
    pd_status st = PD_ALLOCATED(all, err, "no memory for %u ranks", group->size);
    if (!st) st = group_gather(group, 0, &mine, 1, all, err);
    if (!st) st = group_broadcast(group, 0, &mine, 1, err);
    free(all);
    return st;
}

/* A piece on its way through the root, followed by its bytes. */
struct parcel {
    uint32_t from, to;
    uint64_t bytes;
};

/* The pieces for this rank, in the order in which each peer sent them. */
static pd_status unpack_parcels(struct pd_group *group, const unsigned char *all, uint64_t bytes,
                                const struct pd_group_piece *recvs, uint32_t recv_count, struct pd_error *err)
{
    uint32_t *next = calloc(group->size, sizeof *next); /* piece of recvs to look at, by peer */
    if (!next) PD_FAIL(err, PD_NO_MEMORY, "no memory for %u ranks", group->size);
    pd_status st = PD_OK;
    for (uint64_t at = 0; !st && at < bytes;) {
        struct parcel p;
        memcpy(&p, all + at, sizeof p);
        at += sizeof p;
        if (p.to == group->rank) {
            uint32_t i = next[p.from];
            while (i < recv_count && recvs[i].peer != p.from)
                i++;
            if (i == recv_count || recvs[i].bytes != p.bytes)
                st = pd_error_set(err, PD_BUG, PD_WHERE, 0, "rank %u sends a piece that rank %u does not expect", p.from,
                                  p.to);
            else if (p.bytes)
                memcpy(recvs[i].data, all + at, p.bytes);
            next[p.from] = i + 1;
        }
        at += p.bytes;
    }
    free(next);
    return st;
}

/* Everything goes through the root and to everybody: a store exchanges little, and two functions are all a caller gives. */
static pd_status group_exchange(struct pd_group *group, const struct pd_group_piece *sends, uint32_t send_count,
                                const struct pd_group_piece *recvs, uint32_t recv_count, struct pd_error *err)
{
    uint64_t bytes = 0, at = 0, total = 0;
    for (uint32_t i = 0; i < send_count; i++)
        bytes += sizeof(struct parcel) + sends[i].bytes;
    unsigned char *mine = malloc(bytes + 1);
    struct pd_gathered gathered = {0};
    pd_status st = pd_group_agree(group, PD_ALLOCATED(mine, err, "no memory for %" PRIu64 " bytes", bytes), err);
    for (uint32_t i = 0; !st && i < send_count; i++) {
        const struct parcel parcel = {group->rank, sends[i].peer, sends[i].bytes};
        memcpy(mine + at, &parcel, sizeof parcel);
        if (sends[i].bytes) memcpy(mine + at + sizeof parcel, sends[i].data, sends[i].bytes);
        at += sizeof parcel + sends[i].bytes;
    }
    if (!st) st = pd_gather_sizes(group, mine, bytes, &gathered, err);
    if (!st && group->rank == 0) total = gathered.begin[group->size];
    if (!st) st = group_broadcast(group, 0, &total, sizeof total, err);
    if (!st && group->rank) gathered.data = malloc(total + 1);
    if (!st) st = pd_group_agree(group, PD_ALLOCATED(gathered.data, err, "no memory for %" PRIu64 " bytes", total), err);
    for (uint64_t done = 0; !st && done < total; done += ROUND_BYTES)
        st = group_broadcast(group, 0, gathered.data + done, pd_min_u64(total - done, ROUND_BYTES), err);
    if (!st) st = unpack_parcels(group, gathered.data, total, recvs, recv_count, err);
    pd_gathered_deinit(&gathered);
    free(mine);
    return st;
}

static const struct pd_group_ops ops = {"caller", group_barrier, group_gather, group_broadcast, group_exchange};

/* ---- hosts ---- */

/* The same number for processes that see one file system: the kernel's boot, and the name of the host. */
static uint64_t host_identity(uint32_t rank, uint32_t size)
{
    char text[256] = "", name[64];
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    size_t used = f ? fread(text, 1, 64, f) : 0;
    if (f) fclose(f);
    (void)gethostname(text + used, sizeof text - used - 1);
    if (pd_pretended_host(rank, size, name) && name[0]) snprintf(text, sizeof text, "%s", name);
    return pd_digest64(text, strnlen(text, sizeof text), 0);
}

static pd_status find_hosts(struct pd_group *group, struct pd_error *err)
{
    const uint64_t mine = host_identity(group->rank, group->size);
    uint64_t *all = NULL;
    PD_TRY(pd_group_gather_all(group, &mine, sizeof mine, (void **)&all, err));
    uint32_t *number = calloc(group->size, sizeof *number);
    pd_status st = PD_ALLOCATED(number, err, "no memory for %u ranks", group->size);
    group->host_count = 0;
    for (uint32_t r = 0; !st && r < group->size; r++) {
        uint32_t first = 0;
        while (all[first] != all[r])
            first++;
        number[r] = first == r ? group->host_count++ : number[first];
    }
    if (!st) group->host = number[group->rank];
    free(number);
    free(all);
    return pd_group_agree(group, st, err);
}

pd_status pd_library_group_init(struct pd_library_group *g, const struct perdure_group *theirs, struct pd_error *err)
{
    pd_group_init_single(&g->group);
    if (!theirs || theirs->size == 1) return PD_OK;
    if (!theirs->size || theirs->rank >= theirs->size || !theirs->gather || !theirs->broadcast)
        PD_FAIL(err, PD_INVALID, "rank %u of a group of %u; give a rank below the size, and both gather and broadcast",
                theirs->rank, theirs->size);
    g->theirs = *theirs;
    g->group =
        (struct pd_group){.ops = &ops, .rank = theirs->rank, .size = theirs->size, .host_count = 1, .context = &g->theirs};
    return find_hosts(&g->group, err);
}

/* ---- gathering ---- */

void pd_gathered_deinit(struct pd_gathered *g)
{
    free(g->data);
    free(g->begin);
    *g = (struct pd_gathered){0};
}

/* Memory of the root. */
static pd_status make_places(const uint64_t *sizes, uint32_t size, struct pd_gathered *g, unsigned char **ret_round,
                             struct pd_error *err)
{
    g->begin = calloc((size_t)size + 1, sizeof *g->begin);
    if (!g->begin) PD_FAIL(err, PD_NO_MEMORY, "no memory for %u ranks", size);
    for (uint32_t r = 0; r < size; r++)
        g->begin[r + 1] = g->begin[r] + sizes[r];
    g->data = malloc(g->begin[size] + 1);
    *ret_round = malloc(size * ROUND_BYTES);
    return PD_ALLOCATED(g->data && *ret_round, err, "no memory for %" PRIu64 " bytes of all ranks", g->begin[size]);
}

static pd_status gather_rounds(struct pd_group *group, const unsigned char *mine, uint64_t bytes, const uint64_t *sizes,
                               uint64_t most, struct pd_gathered *g, unsigned char *round, struct pd_error *err)
{
    unsigned char *part = calloc(1, pd_min_u64(most, ROUND_BYTES) + 1);
    pd_status st = pd_group_agree(group, PD_ALLOCATED(part, err, "no memory for a round"), err);
    for (uint64_t done = 0; !st && done < most; done += ROUND_BYTES) {
        const uint64_t length = pd_min_u64(most - done, ROUND_BYTES);
        if (done < bytes) memcpy(part, mine + done, pd_min_u64(bytes - done, length));
        st = pd_group_gather(group, 0, part, length, round, err);
        for (uint32_t r = 0; !st && round && r < group->size; r++)
            if (done < sizes[r])
                memcpy(g->data + g->begin[r] + done, round + r * length, pd_min_u64(sizes[r] - done, length));
    }
    free(part);
    return st;
}

pd_status pd_gather_sizes(struct pd_group *group, const void *mine, uint64_t bytes, struct pd_gathered *ret_gathered,
                          struct pd_error *err)
{
    struct pd_gathered g = {0};
    uint64_t *sizes = NULL, most = 0;
    unsigned char *round = NULL;
    PD_TRY(pd_group_gather_all(group, &bytes, sizeof bytes, (void **)&sizes, err));
    for (uint32_t r = 0; r < group->size; r++)
        most = pd_max_u64(most, sizes[r]);
    pd_status st = group->rank == 0 ? make_places(sizes, group->size, &g, &round, err) : PD_OK;
    st = pd_group_agree(group, st, err);
    if (!st) st = gather_rounds(group, mine, bytes, sizes, most, &g, round, err);
    free(round);
    free(sizes);
    if (st)
        pd_gathered_deinit(&g);
    else
        *ret_gathered = g;
    return st;
}
