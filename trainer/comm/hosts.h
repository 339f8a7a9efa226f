/* The hosts of a communicator, so that what crosses between them is sent once a host and not once a rank.
 *
 *   column   the j-th rank of a host is in the column of the (j mod n)-th rank of any host of n ranks. Sums for a rank leave
 *            every other host from the rank of its column there, and its bytes come to every other host through that rank
 *   threads  pure functions, on what hosts_set made once
 */
#pragma once

#include "ckpt/base/status.h"

struct pd_hosts {
    uint32_t count, mine, slot; /* slot: of this rank on its host */
    uint32_t largest, smallest; /* ranks of a host */
    uint32_t *first;            /* (count + 1) of `ranks` */
    uint32_t *ranks;            /* (size) host by host, ascending on each */
};

struct pd_member_info;

/* Hosts are numbered in the order in which members name them. members: (size). first and ranks point to memory; scratch:
 * (size), of the caller and only here. */
void pd_hosts_set(struct pd_hosts *hosts, const struct pd_member_info *members, uint32_t size, uint32_t rank,
                  uint32_t *scratch);

static inline uint32_t pd_hosts_ranks(const struct pd_hosts *hosts, uint32_t host)
{
    return hosts->first[host + 1] - hosts->first[host];
}

/* The rank in the column of the `slot`-th of any host. */
static inline uint32_t pd_hosts_column(const struct pd_hosts *hosts, uint32_t host, uint32_t slot)
{
    return hosts->ranks[hosts->first[host] + slot % pd_hosts_ranks(hosts, host)];
}

/* The host that is `distance` after this rank's, around. */
static inline uint32_t pd_hosts_after(const struct pd_hosts *hosts, uint32_t distance)
{
    return (uint32_t)(((uint64_t)hosts->mine + distance) % hosts->count);
}

static inline uint32_t pd_hosts_before(const struct pd_hosts *hosts, uint32_t distance)
{
    return (uint32_t)(((uint64_t)hosts->mine + hosts->count - distance) % hosts->count);
}
