/* What `auto` knows of disk and compressor: whether a batch can be compressed while the disk is busy with what went before.
 *
 * Plain numbers of one writer, kept from save to save; all zero: nothing was measured yet.
 *   threads  one */
#ifndef PD_CKPT_SHARD_RATES_H
#define PD_CKPT_SHARD_RATES_H

#include <stdbool.h>
#include <stdint.h>

struct pd_shard_rates {
    double compress, write; /* bytes of data a second; 0: not measured yet */
    double caution;         /* how much longer the disk must be busy than compressing takes; 0: nothing learnt */
};

/* Whether `bytes` would be compressed before `in_flight_bytes` are through. Before the first measurement: when as much is on
 * its way as can be. */
bool pd_shard_rates_allow(const struct pd_shard_rates *rates, uint64_t in_flight_bytes, bool is_full, uint64_t bytes);
/* The disk moved `bytes` in so long. When nothing is left on its way (`is_busy` false) it may have waited, and was at least
 * as fast as that. */
void pd_shard_rates_moved(struct pd_shard_rates *rates, uint64_t bytes, uint64_t ns, bool is_busy);
void pd_shard_rates_compressed(struct pd_shard_rates *rates, uint64_t bytes, uint64_t ns);
/* After a batch that was compressed: whether the disk still had something to do. */
void pd_shard_rates_learn(struct pd_shard_rates *rates, bool was_busy);

#endif
