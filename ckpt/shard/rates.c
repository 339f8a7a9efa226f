#include "ckpt/shard/rates.h"

#define CAUTION_MIN 1.5
#define CAUTION_MAX 1000.0

bool pd_shard_rates_allow(const struct pd_shard_rates *rates, uint64_t in_flight_bytes, bool is_full, uint64_t bytes)
{
    if (rates->write <= 0) return false;
    if (rates->compress <= 0) return is_full;
    const double caution = rates->caution > CAUTION_MIN ? rates->caution : CAUTION_MIN;
    return (double)in_flight_bytes / rates->write > caution * (double)bytes / rates->compress;
}

void pd_shard_rates_moved(struct pd_shard_rates *rates, uint64_t bytes, uint64_t ns, bool is_busy)
{
    const double rate = ns ? (double)bytes * 1e9 / (double)ns : 0;
    if (rate <= 0 || (!is_busy && rate <= rates->write)) return;
    rates->write = rates->write > 0 ? 0.75 * rates->write + 0.25 * rate : rate;
}

/* Times are averaged, not rates: one batch that others held up counts in full. */
void pd_shard_rates_compressed(struct pd_shard_rates *rates, uint64_t bytes, uint64_t ns)
{
    if (!bytes || !ns) return;
    const double seconds = (double)ns * 1e-9 / (double)bytes, before = rates->compress;
    rates->compress = 1 / (before > 0 ? 0.75 / before + 0.25 * seconds : seconds);
}

void pd_shard_rates_learn(struct pd_shard_rates *rates, bool was_busy)
{
    rates->caution = was_busy ? 0.9 * rates->caution : 2 * rates->caution;
    if (rates->caution < CAUTION_MIN) rates->caution = CAUTION_MIN;
    if (rates->caution > CAUTION_MAX) rates->caution = CAUTION_MAX;
}
