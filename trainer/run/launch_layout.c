#include "trainer/run/launch_layout.h"

#include "ckpt/base/log.h"
#include "trainer/config/keys.h"

#include <stdio.h>
#include <string.h>

#define MODULE "layout"

/* Other hosts are as this one is. */
uint32_t pd_launch_ranks_of_a_host(const struct pd_config *config, uint32_t ranks)
{
    const uint32_t ranks_per_host = config->layout.ranks_per_host;
    return ranks_per_host && ranks_per_host < ranks ? ranks_per_host : ranks;
}

pd_status pd_launch_layout_apply(struct pd_config *config, const char *settings, uint32_t ranks, struct pd_error *err)
{
    char text[sizeof((struct pd_launch_layout *)0)->settings], key[64];
    snprintf(text, sizeof text, "%s", settings);
    config->layout.chosen = config->layout.automatic;
    config->layout.automatic = false;
    config->layout.ranks = ranks;
    for (char *rest = text, *word; (word = strtok_r(rest, ",", &rest));) {
        char *equals = strchr(word, '=');
        if (!equals) PD_FAIL(err, PD_BUG, "\"%s\" is no setting of a layout", word);
        *equals = '\0';
        snprintf(key, sizeof key, "%s%s", strchr(word, '.') ? "" : "layout.", word);
        PD_TRY(pd_key_set(config, key, equals + 1, err));
    }
    return PD_OK;
}

void pd_launch_layout_log_hosts(const struct pd_config *config, uint32_t ranks, uint32_t hosts, uint32_t most)
{
    const uint32_t counted = pd_launch_ranks_of_a_host(config, ranks);
    if (!config->layout.chosen || counted == most) return;
    pd_log(PD_LOG_WARN, MODULE,
           "the layout was chosen for %u ranks a host, and %u hosts have %u at most: layout.ranks_per_host=%u counts their "
           "memory and links as they are",
           counted, hosts, most, most);
}
