#include "trainer/comm/hosts.h"

#include "trainer/comm/progress.h"

#include <stdlib.h>

struct order {
    const struct pd_member_info *members;
    const uint32_t *leaders; /* of ranks: the first rank of the host; NULL: by the members' own numbers */
};

static int hosts_compare(const void *a, const void *b, void *context)
{
    const struct order *order = context;
    const uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    const uint32_t x = order->leaders ? order->leaders[left] : order->members[left].host;
    const uint32_t y = order->leaders ? order->leaders[right] : order->members[right].host;
    if (x != y) return x < y ? -1 : 1;
    return left < right ? -1 : left > right;
}

/* `ranks` is sorted by host: a host ends where the number changes. */
static void mark_hosts(struct pd_hosts *hosts, const uint32_t *leaders, uint32_t size, uint32_t rank)
{
    hosts->count = 0;
    for (uint32_t i = 0; i < size; i++) {
        if (i == 0 || leaders[hosts->ranks[i]] != leaders[hosts->ranks[i - 1]]) hosts->first[hosts->count++] = i;
        if (hosts->ranks[i] != rank) continue;
        hosts->mine = hosts->count - 1;
        hosts->slot = i - hosts->first[hosts->mine];
    }
    hosts->first[hosts->count] = size;
    hosts->largest = hosts->smallest = pd_hosts_ranks(hosts, 0);
    for (uint32_t h = 1; h < hosts->count; h++) {
        const uint32_t ranks = pd_hosts_ranks(hosts, h);
        if (ranks > hosts->largest) hosts->largest = ranks;
        if (ranks < hosts->smallest) hosts->smallest = ranks;
    }
}

void pd_hosts_set(struct pd_hosts *hosts, const struct pd_member_info *members, uint32_t size, uint32_t rank,
                  uint32_t *scratch)
{
    struct order order = {.members = members};
    for (uint32_t r = 0; r < size; r++)
        hosts->ranks[r] = r;
    qsort_r(hosts->ranks, size, sizeof *hosts->ranks, hosts_compare, &order);
    for (uint32_t i = 0, leader = 0; i < size; i++) {
        const uint32_t r = hosts->ranks[i];
        if (i == 0 || members[r].host != members[leader].host) leader = r;
        scratch[r] = leader;
    }
    order.leaders = scratch;
    qsort_r(hosts->ranks, size, sizeof *hosts->ranks, hosts_compare, &order);
    mark_hosts(hosts, scratch, size, rank);
}
