/* Divides the staging memory of one rank in one communicator. The total depends only on the communicator's size, so the
 * memory plan need not know the hosts.
 *
 *   units    one per peer, at most PD_STAGING_UNITS_MAX
 *   lanes    units for peers on other hosts, a window of transfers (mpi.c); peers on this host keep half of the units
 *   mailbox  the other units, as rings to the peers on this host (pipe.h)
 *   scratch  half a unit per unit: sums on their way to other hosts, and a buffer to form sums of device memory
 *   threads  pure functions
 */
#pragma once

#include <stdint.h>

#define PD_STAGING_UNIT_BYTES (UINT64_C(1) << 20)
#define PD_STAGING_UNITS_MAX 4u

static inline uint32_t pd_staging_units(uint32_t size)
{
    return size - 1 < PD_STAGING_UNITS_MAX ? size - 1 : PD_STAGING_UNITS_MAX;
}

/* slots: members that share this rank's memory, itself included. */
static inline uint32_t pd_staging_lanes(uint32_t size, uint32_t slots)
{
    uint32_t units = pd_staging_units(size), remote = size - slots;
    uint32_t rings = slots - 1 < units / 2 ? slots - 1 : units / 2, most = units - rings;
    return remote < most ? remote : most;
}

static inline uint64_t pd_staging_mailbox_bytes(uint32_t size, uint32_t slots)
{
    return (pd_staging_units(size) - pd_staging_lanes(size, slots)) * PD_STAGING_UNIT_BYTES;
}

static inline uint64_t pd_staging_scratch_bytes(uint32_t size)
{
    return pd_staging_units(size) * PD_STAGING_UNIT_BYTES / 2;
}
