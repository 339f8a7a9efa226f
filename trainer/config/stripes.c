#include "trainer/config/stripes.h"

#include "ckpt/base/parse.h"
#include "resharder/layout.h"

#include <stdio.h>
#include <string.h>

uint32_t pd_stripes_count(const struct pd_config *config)
{
    return config->checkpoint.stripes_count + 1;
}

bool pd_stripes_parse(const char *text, uint32_t count, uint16_t ret_weights[PD_LAYOUT_STRIPES_MAX])
{
    uint32_t found = 0;
    for (const char *at = text + strspn(text, ", "); *at; at += strspn(at, ", ")) {
        char word[16];
        uint64_t value;
        const size_t length = strcspn(at, ", ");
        snprintf(word, sizeof word, "%.*s", (int)(length < sizeof word ? length : sizeof word - 1), at);
        if (found == count || !pd_parse_u64(word, &value) || value < 1 || value > UINT16_MAX) return false;
        ret_weights[found++] = (uint16_t)value;
        at += length;
    }
    return found == count;
}

void pd_stripes_apply(const struct pd_config *config, struct pd_layout *layout)
{
    const uint32_t count = pd_stripes_count(config);
    if (count == 1) return;
    uint16_t weights[PD_LAYOUT_STRIPES_MAX];
    const bool is_given = pd_stripes_parse(config->checkpoint.stripe_weights, count, weights);
    pd_layout_set_stripes(layout, count, is_given ? weights : NULL);
}

void pd_stripes_leave_out(const struct pd_config *config, uint64_t absent, struct pd_stripes_left *ret_left,
                          struct pd_config *ret_config)
{
    const uint32_t count = config->checkpoint.stripes_count;
    uint16_t weights[PD_LAYOUT_STRIPES_MAX];
    const bool has_weights = pd_stripes_parse(config->checkpoint.stripe_weights, count + 1, weights);
    uint32_t left = 0;
    size_t used = 0;
    *ret_left = (struct pd_stripes_left){.weights = ""};
    for (uint32_t s = 0; s <= count; s++) {
        if (s && absent >> (s - 1) & 1) continue;
        if (s) ret_left->dirs[left++] = config->checkpoint.stripes[s - 1];
        if (has_weights)
            used +=
                (size_t)snprintf(ret_left->weights + used, sizeof ret_left->weights - used, s ? ",%u" : "%u", weights[s]);
    }
    if (!left) ret_left->weights[0] = '\0';
    *ret_config = *config;
    ret_config->checkpoint.stripes = ret_left->dirs;
    ret_config->checkpoint.stripes_count = left;
    ret_config->checkpoint.stripe_weights = ret_left->weights;
}
