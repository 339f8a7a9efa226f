/* checkpoint.tiers: a list of directories with what is saved into each. */
#include "trainer/config/keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIRECTORY_MAX 3000u

pd_status pd_config_tiers_resolve(struct pd_config *config, struct pd_error *err)
{
    for (uint32_t i = 0; i < config->checkpoint.tiers_count; i++) {
        struct pd_config_tier *tier = &config->checkpoint.tiers[i];
        if (tier->every == PD_TIER_LEFT_OUT) tier->every = config->checkpoint.every;
        if (tier->keep_every == PD_TIER_LEFT_OUT) tier->keep_every = config->checkpoint.keep_every;
        if (!tier->keep_last) tier->keep_last = config->checkpoint.keep_last;
        if (!tier->dir && !(tier->dir = strdup(config->checkpoint.dir))) PD_FAIL(err, PD_NO_MEMORY, "no memory for a path");
        if (!tier->compression && !(tier->compression = strdup(config->checkpoint.compression)))
            PD_FAIL(err, PD_NO_MEMORY, "no memory for a tier");
    }
    return PD_OK;
}

static pd_status check_compression(const char *key, const char *text, struct pd_error *err)
{
    struct pd_shard_codec codec;
    return pd_error_context(err, pd_shard_codec_parse(text, &codec, err), "%s", key);
}

/* What can be said before there are hosts. */
static pd_status check_replicas(const struct pd_config_tier *tiers, uint32_t i, struct pd_error *err)
{
    if (tiers[i].replicas > 1)
        PD_FAIL(
            err, PD_INVALID,
            "checkpoint.tiers[%u].replicas is %u: one other host can have a replica of each shard, not more; set it to 1", i,
            tiers[i].replicas);
    if (i && tiers[i].replicas)
        PD_FAIL(err, PD_INVALID,
                "checkpoint.tiers[%u].replicas: only the first tier has replicas on other hosts; set "
                "checkpoint.tiers[0].replicas=1",
                i);
    return PD_OK;
}

/* Number i of a list of directories, and those before it.   dirs (i + 1) */
static pd_status check_directory(const char *list, const char *member, const char *const *dirs, uint32_t i,
                                 const char *advice, struct pd_error *err)
{
    if (!dirs[i] || !dirs[i][0]) PD_FAIL(err, PD_INVALID, "%s[%u]%s is empty; name a directory", list, i, member);
    if (strlen(dirs[i]) > DIRECTORY_MAX)
        PD_FAIL(err, PD_INVALID, "%s[%u]%s may have at most %u bytes, so that names fit below it", list, i, member,
                DIRECTORY_MAX);
    for (uint32_t k = 0; k < i; k++)
        if (strcmp(dirs[k], dirs[i]) == 0)
            PD_FAIL(err, PD_INVALID, "%s[%u] and [%u] are both %s; %s", list, k, i, dirs[i], advice);
    return PD_OK;
}

pd_status pd_config_tiers_check(const struct pd_config *config, struct pd_error *err)
{
    const char *dirs[PD_TIERS_MAX];
    PD_TRY(check_compression("checkpoint.compression", config->checkpoint.compression, err));
    for (uint32_t i = 0; i < config->checkpoint.tiers_count; i++) {
        char key[64];
        dirs[i] = config->checkpoint.tiers[i].dir;
        PD_TRY(check_directory("checkpoint.tiers", ".dir", dirs, i,
                               "a tier is a directory of its own (one may leave dir out: it takes checkpoint.dir)", err));
        snprintf(key, sizeof key, "checkpoint.tiers[%u].compression", i);
        PD_TRY(check_compression(key, config->checkpoint.tiers[i].compression, err));
        PD_TRY(check_replicas(config->checkpoint.tiers, i, err));
    }
    return PD_OK;
}

/* Was checked, but where it was saved by another version: then a compression that is gone is none. */
static struct pd_shard_codec codec_of(const char *text)
{
    struct pd_shard_codec codec;
    return pd_shard_codec_parse(text, &codec, NULL) ? (struct pd_shard_codec){.codec = PD_CODEC_NONE} : codec;
}

uint32_t pd_config_tiers(const struct pd_config *config, struct pd_tier_options ret_tiers[PD_TIERS_MAX])
{
    const uint32_t count = config->checkpoint.tiers_count;
    const struct pd_config_tier only = {.dir = config->checkpoint.dir,
                                        .every = config->checkpoint.every,
                                        .keep_last = config->checkpoint.keep_last,
                                        .keep_every = config->checkpoint.keep_every,
                                        .compression = config->checkpoint.compression};
    for (uint32_t i = 0; i < (count ? count : 1); i++) {
        const struct pd_config_tier *tier = count ? &config->checkpoint.tiers[i] : &only;
        ret_tiers[i] = (struct pd_tier_options){.dir = tier->dir,
                                                .every = tier->every,
                                                .keep_last = tier->keep_last,
                                                .keep_every = tier->keep_every,
                                                .bandwidth = tier->bandwidth,
                                                .replicas = tier->replicas,
                                                .codec = codec_of(tier->compression)};
    }
    return count ? count : 1;
}
