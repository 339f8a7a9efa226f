/* What a changed key means for a run that goes on; each key's effect stands in keys.c, the table of them in README.md. Files may
 * move: their contents are compared by fingerprint, not by path. */
#include "resharder/catalog/family.h"
#include "trainer/config/keys.h"

#include <stdio.h>
#include <string.h>

/* Learned positions have a row of their table for each place, so there the context is a shape. Elsewhere it is a limit that
 * batch.context keeps anyway. */
static enum pd_resume_effect effect_of(const struct pd_config *saved, const struct pd_key *key)
{
    const struct pd_family *f = pd_family_at(saved->model.family);
    if (strcmp(key->name, "model.context") == 0 && f && f->positions == PD_POSITIONS_ROPE) return PD_RESUME_FREE;
    return key->effect;
}

static bool differs(const struct pd_config *saved, const struct pd_config *now, const struct pd_key *key,
                    struct pd_resume_difference *ret)
{
    char before[4096], after[4096];
    pd_key_text(saved, key, before, sizeof before);
    pd_key_text(now, key, after, sizeof after);
    if (strcmp(before, after) == 0) return false;
    ret->key = key->name;
    ret->effect = effect_of(saved, key);
    const bool is_older = strcmp(key->name, "numerics.lanes") == 0 && saved->numerics.lanes == 0;
    snprintf(ret->before, sizeof ret->before, "%.63s",
             is_older ? "none (gradients were rounded, or summed in order)" : before);
    snprintf(ret->now, sizeof ret->now, "%.63s", after);
    return true;
}

uint32_t pd_config_compare(const struct pd_config *saved, const struct pd_config *now, struct pd_resume_difference *ret,
                           uint32_t capacity)
{
    static const enum pd_resume_effect worst_first[] = {PD_RESUME_REFUSED, PD_RESUME_NEW_LINEAGE, PD_RESUME_FREE};
    uint32_t total = 0;
    for (int pass = 0; pass < 3; pass++) {
        for (uint32_t i = 0; i < pd_key_count; i++) {
            struct pd_resume_difference difference;
            if (effect_of(saved, &pd_keys[i]) != worst_first[pass]) continue;
            if (!differs(saved, now, &pd_keys[i], &difference)) continue;
            if (total < capacity) ret[total] = difference;
            total++;
        }
    }
    return total;
}
