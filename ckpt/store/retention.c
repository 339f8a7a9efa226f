#include "ckpt/store/retention.h"

/* A step written twice (a launch came back behind it) counts once: the newer one. */
static bool step_seen(const uint64_t *steps, uint32_t before)
{
    for (uint32_t i = 0; i < before; i++) {
        if (steps[i] == steps[before]) return true;
    }
    return false;
}

void pd_retention_choose(const struct pd_retention *rule, const uint64_t *steps, uint32_t count, bool *ret_keep)
{
    uint32_t keep_last = rule->keep_last ? rule->keep_last : 1;
    for (uint32_t i = 0; i < count; i++) {
        bool is_milestone = rule->keep_every && steps[i] % rule->keep_every == 0;
        ret_keep[i] = i < keep_last || (is_milestone && !step_seen(steps, i));
    }
}
