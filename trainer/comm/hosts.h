/* Which ranks share a host, so that data crosses between hosts once per host, not once per rank.
 *
 *   column   peer set: the j-th rank of a host pairs with the (j mod n)-th rank of any host that has n ranks. Sums for a
 *            rank leave every other host through its peer there; its data reaches every other host through the same peer
 *   threads  pure functions of what pd_hosts_set built
 */
#pragma once

#include "ckpt/base/status.h"

struct pd_hosts {
    uint32_t count, mine, slot; /* slot: index of this rank on its host */
    uint32_t largest, smallest; /* most and fewest ranks on a host */
    uint32_t *first;            /* (count + 1) of `ranks` */
    uint32_t *ranks;            /* (size) host by host, ascending on each */
};

struct pd_member_info;

/* Numbers hosts in the order of `members` (size). The caller sets first and ranks to memory beforehand. scratch: (size),
 * used only during the call. */
void pd_hosts_set(struct pd_hosts *hosts, const struct pd_member_info *members, uint32_t size, uint32_t rank,
                  uint32_t *scratch);

static inline uint32_t pd_hosts_ranks(const struct pd_hosts *hosts, uint32_t host)
{
    return hosts->first[host + 1] - hosts->first[host];
}

/* The rank on `host` that is the peer of the `slot`-th rank of any host. */
static inline uint32_t pd_hosts_column(const struct pd_hosts *hosts, uint32_t host, uint32_t slot)
{
    return hosts->ranks[hosts->first[host] + slot % pd_hosts_ranks(hosts, host)];
}

/* The host `distance` places after this rank's host, wrapping around. */
static inline uint32_t pd_hosts_after(const struct pd_hosts *hosts, uint32_t distance)
{
    return (uint32_t)(((uint64_t)hosts->mine + distance) % hosts->count);
}

static inline uint32_t pd_hosts_before(const struct pd_hosts *hosts, uint32_t distance)
{
    return (uint32_t)(((uint64_t)hosts->mine + hosts->count - distance) % hosts->count);
}
