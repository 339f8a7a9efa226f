#include "trainer/config/check.h"
#include "ckpt/base/parse.h"
#include "ckpt/base/scheme.h"
#include "ckpt/base/words.h"
#include "offload/optimizer_store.h"
#include "resharder/catalog/family.h"
#include "trainer/config/keys.h"
#include "trainer/config/laid_out.h"
#include <arpa/inet.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the effect of a changed key on resume ---- */

/* The effect of a changed key on a resumed run; keys.c has each key's effect, README.md the table. Files may move: their
 * contents are compared by fingerprint, not by path. */

/* Learned positions have one table row per place, so there the context is a shape. Otherwise it is a limit that
 * batch.context respects. */
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

/* ---- tiers ---- */

/* checkpoint.tiers: a list of directories with their save policies. */

#define DIRECTORY_MAX 3000u
#define UPLOAD_MEMORY (UINT64_C(64) << 20)

/* Members that were left out, from checkpoint.*. */
static pd_status config_tiers_resolve(struct pd_config *config, struct pd_error *err)
{
    for (uint32_t i = 0; i < config->checkpoint.tiers_count; i++) {
        struct pd_config_tier *tier = &config->checkpoint.tiers[i];
        if (tier->every == PD_TIER_LEFT_OUT) tier->every = config->checkpoint.every;
        if (tier->keep_every == PD_TIER_LEFT_OUT) tier->keep_every = config->checkpoint.keep_every;
        if (!tier->keep_last) tier->keep_last = config->checkpoint.keep_last;
        if (!tier->dir && !(tier->dir = strdup(config->checkpoint.dir))) PD_FAIL(err, PD_NO_MEMORY, "no memory for a path");
        const bool is_bucket = i && pd_vfs_is_remote(tier->dir); /* it gets the files of the tier before */
        const char *compression = is_bucket ? tier[-1].compression : config->checkpoint.compression;
        if (!tier->compression && !(tier->compression = strdup(compression)))
            PD_FAIL(err, PD_NO_MEMORY, "no memory for a tier");
    }
    return PD_OK;
}

static pd_status check_compression(const char *key, const char *text, struct pd_error *err)
{
    struct pd_shard_codec codec;
    return pd_error_context(err, pd_shard_codec_parse(text, &codec, err), "%s", key);
}

/* Checks that need no hosts. */
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

/* Checks tier i against earlier ones. */
static pd_status check_directory(const struct pd_config_tier *tiers, uint32_t i, struct pd_error *err)
{
    const char *dir = tiers[i].dir;
    if (!dir || !dir[0]) PD_FAIL(err, PD_INVALID, "checkpoint.tiers[%u].dir is empty; name a directory", i);
    if (strlen(dir) > DIRECTORY_MAX)
        PD_FAIL(err, PD_INVALID, "checkpoint.tiers[%u].dir may have at most %u bytes, so that names fit below it", i,
                DIRECTORY_MAX);
    for (uint32_t k = 0; k < i; k++)
        if (strcmp(tiers[k].dir, dir) == 0)
            PD_FAIL(err, PD_INVALID,
                    "checkpoint.tiers[%u] and [%u] are both %s; "
                    "a tier is a directory of its own (one may leave dir out: it takes checkpoint.dir)",
                    k, i, dir);
    return PD_OK;
}

/* What takes saves is a file system, and what comes behind it may be a bucket. */
static pd_status check_bucket(const struct pd_config_tier *tiers, uint32_t i, struct pd_error *err)
{
    if (!pd_vfs_is_remote(tiers[i].dir)) {
        if (tiers[i].upload_memory)
            PD_FAIL(err, PD_INVALID, "checkpoint.tiers[%u].upload_memory: %s is not a bucket; leave it out", i,
                    tiers[i].dir);
        return PD_OK;
    }
    if (!i)
        PD_FAIL(err, PD_INVALID,
                "checkpoint.tiers[0].dir, %s, is a bucket: a save goes into memory or to a disk first, and from there up; "
                "name a directory before it, such as checkpoint.tiers=[{dir: /dev/shm/run}, {dir: %s}]",
                tiers[i].dir, tiers[i].dir);
    if (strcmp(tiers[i].compression, tiers[i - 1].compression) != 0)
        PD_FAIL(err, PD_INVALID,
                "checkpoint.tiers[%u].compression is %s: files go into a bucket as they are in the tier before it, %s; set "
                "checkpoint.tiers[%u].compression=%s instead",
                i, tiers[i].compression, tiers[i - 1].compression, i - 1, tiers[i].compression);
    return PD_OK;
}

static pd_status config_tiers_check(const struct pd_config *config, struct pd_error *err)
{
    PD_TRY(check_compression("checkpoint.compression", config->checkpoint.compression, err));
    for (uint32_t i = 0; i < config->checkpoint.tiers_count; i++) {
        char key[64];
        PD_TRY(check_directory(config->checkpoint.tiers, i, err));
        snprintf(key, sizeof key, "checkpoint.tiers[%u].compression", i);
        PD_TRY(check_compression(key, config->checkpoint.tiers[i].compression, err));
        PD_TRY(check_replicas(config->checkpoint.tiers, i, err));
        PD_TRY(check_bucket(config->checkpoint.tiers, i, err));
    }
    return PD_OK;
}

/* Already checked, except in a record of another version: an unknown compression then means none. */
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
                                                .upload_memory = tier->upload_memory ? tier->upload_memory : UPLOAD_MEMORY,
                                                .replicas = tier->replicas,
                                                .codec = codec_of(tier->compression)};
    }
    return count ? count : 1;
}

static bool is_address(const char *host)
{
    struct in6_addr address;
    return inet_pton(AF_INET, host, &address) == 1 || inet_pton(AF_INET6, host, &address) == 1;
}

pd_status pd_config_listen(const char *key, const char *text, struct pd_listen *ret_listen, struct pd_error *err)
{
    struct pd_listen listen = {.host = "127.0.0.1"};
    const char *colon = strrchr(text, ':'), *host = text;
    size_t length = colon ? (size_t)(colon - text) : 0;
    uint64_t port;
    const bool is_bracketed = length > 2 && host[0] == '[' && host[length - 1] == ']';
    if (is_bracketed) host++, length -= 2;
    if (length && length < sizeof listen.host) snprintf(listen.host, sizeof listen.host, "%.*s", (int)length, host);
    if (strcmp(listen.host, "localhost") == 0) listen = (struct pd_listen){.host = "127.0.0.1"};
    const bool is_port = pd_parse_u64(colon ? colon + 1 : text, &port) && port && port <= UINT16_MAX;
    const bool is_bare_v6 = !is_bracketed && memchr(text, ':', length);
    if (!is_port || is_bare_v6 || length >= sizeof listen.host || !is_address(listen.host))
        PD_FAIL(err, PD_INVALID, "%s is %s: expected PORT for this host alone, or ADDRESS:PORT such as 0.0.0.0:9400", key,
                text);
    listen.port = (uint16_t)port;
    *ret_listen = listen;
    return PD_OK;
}

/* ---- the configuration as a whole ---- */

#define DEFAULT_MICRO_BATCHES_MAX 8u
#define DEFAULT_LANES_MAX 8u

/* ---- resolve ---- */

static uint32_t largest_divisor_up_to(uint32_t of, uint32_t limit)
{
    for (uint32_t d = limit; d > 1; d--)
        if (of % d == 0) return d;
    return 1;
}

static pd_status resolve_checkpoint_dir(struct pd_config *c, struct pd_error *err)
{
    if (c->checkpoint.dir[0] || !c->run.dir[0]) return PD_OK;
    size_t bytes = strlen(c->run.dir) + sizeof "/checkpoints";
    char *dir = malloc(bytes);
    if (!dir) PD_FAIL(err, PD_NO_MEMORY, "no memory for a path");
    snprintf(dir, bytes, "%s/checkpoints", c->run.dir);
    free(c->checkpoint.dir);
    c->checkpoint.dir = dir;
    return PD_OK;
}

/* From the run's length; if the cosine ends before that warm-up, from the cosine's. */
static void resolve_warmup(struct pd_config *c)
{
    if (c->optimizer.warmup_steps != UINT64_MAX) return;
    c->optimizer.warmup_steps = c->run.steps / 10 < 100 ? c->run.steps / 10 : 100;
    if (c->optimizer.warmup_steps >= c->optimizer.decay_steps) c->optimizer.warmup_steps = c->optimizer.decay_steps / 10;
}

/* As people write it: 3e-05 for 0.0003, where the quotient is one double lower. */
static double tenth(double value)
{
    char text[32];
    snprintf(text, sizeof text, "%.15g", value / 10);
    return strtod(text, NULL);
}

pd_status pd_config_resolve(struct pd_config *c, struct pd_error *err)
{
    pd_model_config_resolve(&c->model);
    if (!c->batch.micro_batch)
        c->batch.micro_batch = c->batch.sequences / largest_divisor_up_to(c->batch.sequences, DEFAULT_MICRO_BATCHES_MAX);
    if (!c->batch.context) c->batch.context = c->model.context;
    if (c->numerics.lanes == UINT32_MAX) {
        const uint32_t micro_batches = c->batch.sequences / c->batch.micro_batch,
                       several = c->elastic.max ? c->elastic.max : DEFAULT_LANES_MAX,
                       most = c->numerics.gradients == PD_BF16 ? 1 : several;
        c->numerics.lanes = micro_batches < most ? micro_batches : most;
    }
    if (c->optimizer.min_lr < 0) c->optimizer.min_lr = tenth(c->optimizer.lr);
    if (!c->optimizer.decay_steps) c->optimizer.decay_steps = c->run.steps;
    resolve_warmup(c);
    PD_TRY(resolve_checkpoint_dir(c, err));
    return config_tiers_resolve(c, err);
}

/* ---- check ---- */

static pd_status check_sources(const char *key, const struct pd_data_source *sources, uint32_t count, struct pd_error *err)
{
    for (uint32_t i = 0; i < count; i++)
        if (!sources[i].path || !sources[i].path[0])
            PD_FAIL(err, PD_INVALID, "%s[%u].path is missing; name the file", key, i);
    for (uint32_t i = 0; i < count; i++)
        PD_TRY(pd_scheme_check_source(key, sources[i].path, PD_INVALID, err));
    return PD_OK;
}

static uint32_t nearest_micro_batch(uint32_t sequences, uint32_t micro_batch)
{
    for (uint32_t distance = 0;; distance++) {
        if (micro_batch > distance && sequences % (micro_batch - distance) == 0) return micro_batch - distance;
        if (micro_batch + distance <= sequences && sequences % (micro_batch + distance) == 0) return micro_batch + distance;
    }
}

static pd_status check_batch(const struct pd_config *c, struct pd_error *err)
{
    uint32_t sequences = c->batch.sequences,
             micro_batch = c->batch.micro_batch < sequences ? c->batch.micro_batch : sequences;
    if (sequences % c->batch.micro_batch)
        PD_FAIL(err, PD_INVALID,
                "batch.sequences %u is not a multiple of batch.micro_batch %u; the nearest micro-batch that fits is %u",
                sequences, c->batch.micro_batch, nearest_micro_batch(sequences, micro_batch));
    if ((uint64_t)c->batch.micro_batch * c->batch.context > INT32_MAX)
        PD_FAIL(err, PD_INVALID, "a micro-batch of %s of %u tokens is over 2^31 tokens; set a smaller batch.micro_batch",
                pd_counted(c->batch.micro_batch, "sequence").text, c->batch.context);
    return PD_OK;
}

static pd_status check_budgets(const struct pd_config *c, struct pd_error *err)
{
    const struct {
        const char *what;
        enum pd_place place;
        uint64_t budget;
    } all[] = {{"optimizer", c->offload.optimizer, c->offload.optimizer_budget},
               {"parameters", c->offload.parameters, c->offload.parameters_budget},
               {"gradients", c->offload.gradients, c->offload.gradients_budget},
               {"activations", c->offload.activations, c->offload.activations_budget}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].budget && all[i].place != PD_PLACE_NVME)
            PD_FAIL(err, PD_INVALID,
                    "offload.%s_budget is %" PRIu64 " and offload.%s is not nvme, so that all of it is in memory; set "
                    "offload.%s=nvme, or leave offload.%s_budget out",
                    all[i].what, all[i].budget, all[i].what, all[i].what, all[i].what);
    return PD_OK;
}

static pd_status check_offload(const struct pd_config *c, struct pd_error *err)
{
    const bool parameters = c->offload.parameters == PD_PLACE_NVME, gradients = c->offload.gradients == PD_PLACE_NVME;
    if (c->offload.optimizer == PD_PLACE_NVME && c->offload.buffer_bytes < PD_OPTIMIZER_STORE_BUFFERS_MIN)
        PD_FAIL(err, PD_INVALID,
                "offload.buffer_bytes is %" PRIu64 ", and state on nvme streams through %" PRIu64 " at least; set "
                "offload.buffer_bytes=%" PRIu64 "M",
                c->offload.buffer_bytes, PD_OPTIMIZER_STORE_BUFFERS_MIN, PD_OPTIMIZER_STORE_BUFFERS_MIN >> 20);
    if (c->offload.optimizer == PD_PLACE_NVME && c->offload.update == PD_UPDATES_DEVICE)
        PD_FAIL(err, PD_INVALID,
                "offload.update is device and offload.optimizer is nvme, whose state the host updates as it passes; set "
                "offload.optimizer=cpu, or leave offload.update out");
    if (!parameters && !gradients) return PD_OK;
    if (c->offload.optimizer != PD_PLACE_NVME)
        PD_FAIL(err, PD_INVALID,
                "offload.%s is nvme and offload.optimizer is not, which is three times larger and more; set "
                "offload.optimizer=nvme too",
                parameters ? "parameters" : "gradients");
    return PD_OK;
}

static pd_status check_recompute(const struct pd_config *c, struct pd_error *err)
{
    const bool is_left = c->layout.automatic && !c->layout.recompute_given;
    const uint32_t layers = c->layout.recompute_layers;
    if (layers == PD_LAYERS_ALL) return PD_OK;
    if (layers > c->model.layers)
        PD_FAIL(
            err, PD_INVALID,
            "layout.recompute_layers is %u, and the model has %s; set layout.recompute_layers=%u, or leave it out for all",
            layers, pd_counted(c->model.layers, "block").text, c->model.layers);
    if (c->layout.recompute != PD_RECOMPUTE_NONE || is_left) return PD_OK;
    PD_FAIL(err, PD_INVALID,
            "layout.recompute_layers is %u but layout.recompute=none recomputes no block; set "
            "layout.recompute=full or selective, or leave layout.recompute_layers out",
            layers);
}

static pd_status check_optimizer(const struct pd_config *c, struct pd_error *err)
{
    if (c->optimizer.min_lr > c->optimizer.lr)
        PD_FAIL(err, PD_INVALID,
                "optimizer.min_lr %g is above optimizer.lr %g; the cosine goes down from lr to min_lr; lower min_lr",
                c->optimizer.min_lr, c->optimizer.lr);
    /* A run that ends during its warm-up never decays. */
    const uint64_t warmup = c->optimizer.warmup_steps, decay = c->optimizer.decay_steps;
    if (warmup < decay || warmup >= c->run.steps || c->optimizer.min_lr == c->optimizer.lr) return PD_OK;
    PD_FAIL(err, PD_INVALID,
            "optimizer.warmup_steps is %" PRIu64 " and optimizer.decay_steps is %" PRIu64
            ", so that the learning rate would fall from its peak to min_lr in one step; set optimizer.decay_steps=%" PRIu64
            ", the end of the run, or optimizer.warmup_steps=%" PRIu64,
            warmup, decay, c->run.steps, decay / 10);
}

static pd_status check_power_of_two(const char *key, uint32_t value, struct pd_error *err)
{
    if ((value & (value - 1)) == 0) return PD_OK;
    uint32_t below = 1;
    while (2 * below < value)
        below *= 2;
    PD_FAIL(err, PD_INVALID, "%s %u is not a power of two; the nearest are %u and %u", key, value, below, 2 * below);
}

/* Rejects changed values of keys that only fp16 uses. */
static pd_status check_left_alone(const struct pd_config *c, const char *name, struct pd_error *err)
{
    char now[64], initial[64];
    struct pd_config other = *c;
    const struct pd_key *key = pd_key_find(name);
    PD_TRY(pd_key_set(&other, name, key->initial, err));
    pd_key_text(c, key, now, sizeof now);
    pd_key_text(&other, key, initial, sizeof initial);
    if (strcmp(now, initial) == 0) return PD_OK;
    PD_FAIL(err, PD_INVALID, "%s is %s, but only fp16 scales the loss; leave it out, or set numerics.precision=fp16", name,
            now);
}

/* Exact sums are of gradients that were rounded once. */
static pd_status check_gradients(const struct pd_config *c, struct pd_error *err)
{
    static const char what[] = "numerics.gradients is bf16, which rounds the sums of one chain of micro-batches";
    if (c->numerics.gradients != PD_BF16) return PD_OK;
    if (c->numerics.lanes != 1)
        PD_FAIL(err, PD_INVALID, "%s, but numerics.lanes is %u; set numerics.lanes=1 or numerics.gradients=fp32", what,
                c->numerics.lanes);
    if (c->numerics.virtual_tp > 1 || c->numerics.virtual_sp > 1)
        PD_FAIL(err, PD_INVALID, "%s, but numerics.virtual_%s cuts them; leave it at 1, or set numerics.gradients=fp32",
                what, c->numerics.virtual_tp > 1 ? "tp" : "sp");
    if (c->offload.gradients != PD_PLACE_DEVICE || c->offload.optimizer == PD_PLACE_NVME)
        PD_FAIL(err, PD_INVALID,
                "numerics.gradients is bf16, and offload.%s moves sums in fp32; set offload.gradients=device with "
                "offload.optimizer=device or cpu, or numerics.gradients=fp32",
                c->offload.gradients != PD_PLACE_DEVICE ? "gradients" : "optimizer");
    return PD_OK;
}

static pd_status check_numerics(const struct pd_config *c, struct pd_error *err)
{
    const uint32_t pieces = c->numerics.virtual_sp > 1 ? 2 * c->numerics.virtual_sp : 1;
    const uint32_t micro_batches = c->batch.sequences / c->batch.micro_batch;
    if (c->numerics.lanes > micro_batches)
        PD_FAIL(err, PD_INVALID,
                "numerics.lanes is %u, but a step has only %s; use numerics.lanes=%u at most, or leave it out",
                c->numerics.lanes, pd_counted(micro_batches, "micro-batch").text, micro_batches);
    PD_TRY(check_gradients(c, err));
    PD_TRY(check_power_of_two("numerics.virtual_tp", c->numerics.virtual_tp, err));
    PD_TRY(check_power_of_two("numerics.virtual_sp", c->numerics.virtual_sp, err));
    if (pieces > c->batch.context) {
        uint32_t admitted = 1;
        while (4 * admitted <= c->batch.context)
            admitted *= 2;
        PD_FAIL(err, PD_INVALID,
                "numerics.virtual_sp %u cuts a sequence into %u pieces, but batch.context is only %s; use "
                "numerics.virtual_sp=%u at most",
                c->numerics.virtual_sp, pieces, pd_counted(c->batch.context, "token").text, admitted);
    }
    int exponent;
    if (c->numerics.precision != PD_F16) {
        PD_TRY(check_left_alone(c, "numerics.loss_scale", err));
        return check_left_alone(c, "numerics.loss_scale_interval", err);
    }
    if (frexp(c->numerics.loss_scale, &exponent) != 0.5)
        PD_FAIL(err, PD_INVALID, "numerics.loss_scale %g is not a power of two; the nearest are %g and %g",
                c->numerics.loss_scale, ldexp(0.5, exponent), ldexp(1, exponent));
    return PD_OK;
}

static pd_status check_experts(const struct pd_config *c, struct pd_error *err)
{
    const char *family = pd_family_names[c->model.family];
    if (c->numerics.virtual_tp > 1 && pd_family_at(c->model.family)->qk_norm == PD_QK_NORM_ALL)
        PD_FAIL(err, PD_INVALID,
                "family %s norms all heads together, which tensor parallelism does not cut yet; leave "
                "numerics.virtual_tp at 1",
                family);
    return PD_OK;
}

static pd_status check_restarts(const struct pd_config *c, struct pd_error *err)
{
    const struct pd_degrees anything = {0};
    for (uint32_t i = 0; i < c->restart.ranks_count; i++) {
        const uint32_t ranks = c->restart.ranks[i];
        if (pd_degrees_list(c, ranks, &anything, NULL, 0)) continue;
        uint32_t below = ranks;
        while (below > 1 && !pd_degrees_list(c, below, &anything, NULL, 0))
            below--;
        PD_FAIL(err, PD_INVALID, "restart.ranks[%u] is %u, and no layout of %u ranks is admitted; the next below is %u", i,
                ranks, ranks, below);
    }
    return PD_OK;
}

/* Pruning must keep the checkpoint that a rollback needs. */
static pd_status check_guard(const struct pd_config *c, struct pd_error *err)
{
    struct pd_tier_options tiers[PD_TIERS_MAX];
    const uint32_t count = pd_config_tiers(c, tiers);
    uint64_t most = 0;
    const bool rolls_back = c->guard.non_finite == PD_GUARD_ROLLBACK || c->guard.spike_z > 0;
    if (c->guard.replay_every && c->numerics.lanes == 1)
        PD_FAIL(
            err, PD_INVALID,
            "guard.replay_every compares the integers of lanes, and numerics.lanes=1 makes none; set numerics.lanes=2 or "
            "more, or guard.replay_every=0");
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t reach = tiers[i].every ? (tiers[i].keep_last - 1) * tiers[i].every + 1 : 0;
        if (reach > most) most = reach;
    }
    const char *key = rolls_back && most < c->guard.rollback_steps ? "guard.rollback_steps"
                      : c->guard.replay_every > most               ? "guard.replay_every"
                                                                   : NULL;
    if (!key) return PD_OK;
    PD_FAIL(
        err, PD_INVALID,
        "%s is %llu, and checkpoints reach %llu steps back for certain; raise checkpoint.keep_last or checkpoint.every, or "
        "lower it",
        key,
        (unsigned long long)(rolls_back && most < c->guard.rollback_steps ? c->guard.rollback_steps : c->guard.replay_every),
        (unsigned long long)most);
}

static pd_status check_launch(const struct pd_config *c, struct pd_error *err)
{
    const uint32_t most = c->elastic.max ? c->elastic.max : c->layout.ranks;
    if (most && c->elastic.min > most)
        PD_FAIL(err, PD_INVALID, "elastic.min is %u, and %s is %u: no start would have enough ranks", c->elastic.min,
                c->elastic.max ? "elastic.max" : "layout.ranks", most);
    if (c->launch.hosts[0] && c->layout.transport == PD_TRANSPORT_LOCAL)
        PD_FAIL(
            err, PD_INVALID,
            "launch.hosts are given, and layout.transport is local, which has all ranks in one process: leave one of them "
            "out");
    return PD_OK;
}

void pd_config_take_model(struct pd_config *config, const struct pd_model_config *model)
{
    const bool is_default = config->batch.context == config->model.context;
    config->model = *model;
    if (is_default && config->batch.context > model->context) config->batch.context = model->context;
}

/* A model from init.from keeps its own sizes. */
static pd_status check_context(const struct pd_config *c, struct pd_error *err)
{
    char more[80] = "";
    if (!c->init.from[0]) snprintf(more, sizeof more, " or model.context=%u", c->batch.context);
    if (c->batch.context > c->model.context)
        PD_FAIL(err, PD_INVALID,
                "batch.context %u is longer than model.context %u, beyond which there are no positions; set "
                "batch.context=%u%s",
                c->batch.context, c->model.context, c->model.context, more);
    return PD_OK;
}

pd_status pd_config_check_model(const struct pd_config *c, struct pd_error *err)
{
    const bool is_ours = !c->init.from[0];
    char more[80] = "";
    if (is_ours) snprintf(more, sizeof more, "; set model.vocab=%" PRId64, c->data.document_token + 1);
    if (c->data.document_token >= (int64_t)c->model.vocab)
        PD_FAIL(err, PD_INVALID, "data.document_token %" PRId64 " is not a token of the model: model.vocab is %u%s",
                c->data.document_token, c->model.vocab, more);
    return check_context(c, err);
}

pd_status pd_config_check(const struct pd_config *c, struct pd_error *err)
{
    PD_TRY(pd_model_config_check(&c->model, err));
    if (!c->init.from[0]) PD_TRY(pd_config_check_model(c, err)); /* else once the model is read */
    /* No other string in a configuration begins like this. */
    char key[64];
    for (uint32_t i = 0; i < pd_key_count; i++) {
        const char *text = *(char *const *)((const char *)c + pd_keys[i].offset);
        const bool is_source = strcmp(pd_keys[i].name, "init.from") == 0;
        if (pd_keys[i].type == PD_KEY_STRING && text)
            PD_TRY((is_source ? pd_scheme_check_source : pd_scheme_check)(pd_keys[i].name, text, PD_INVALID, err));
    }
    for (uint32_t i = 0; i < c->checkpoint.tiers_count; i++) {
        snprintf(key, sizeof key, "checkpoint.tiers[%u].dir", i);
        if (!pd_vfs_is_remote(c->checkpoint.tiers[i].dir))
            PD_TRY(pd_scheme_check(key, c->checkpoint.tiers[i].dir, PD_INVALID, err));
    }
    if (!c->run.dir[0])
        PD_FAIL(err, PD_INVALID, "run.dir is missing; choose where the run lives, such as run.dir=runs/first");
    if (strlen(c->run.dir) > DIRECTORY_MAX || strlen(c->checkpoint.dir) > DIRECTORY_MAX + sizeof "/checkpoints")
        PD_FAIL(err, PD_INVALID, "run.dir and checkpoint.dir may have at most %u bytes, so that names fit below them",
                DIRECTORY_MAX);
    if (!c->data.train_count)
        PD_FAIL(err, PD_INVALID,
                "data.train is missing; name the text or token file, such as data.train[0].path=corpus.txt");
    PD_TRY(check_sources("data.train", c->data.train, c->data.train_count, err));
    PD_TRY(check_sources("data.validation", c->data.validation, c->data.validation_count, err));
    if (c->validation.every && !c->data.validation_count && c->data.validation_fraction == 0)
        PD_FAIL(err, PD_INVALID,
                "validation.every is %" PRIu64 " and there is nothing to validate on; set data.validation_fraction=0.01 or "
                "data.validation[0].path=FILE, or validation.every=0",
                c->validation.every);
    PD_TRY(check_batch(c, err));
    PD_TRY(check_optimizer(c, err));
    PD_TRY(check_recompute(c, err));
    PD_TRY(check_offload(c, err));
    PD_TRY(check_budgets(c, err));
    PD_TRY(check_numerics(c, err));
    PD_TRY(check_experts(c, err));
    PD_TRY(config_tiers_check(c, err));
    PD_TRY(pd_degrees_check(c, err));
    struct pd_listen listen;
    if (c->metrics.prometheus_listen[0])
        PD_TRY(pd_config_listen("metrics.prometheus_listen", c->metrics.prometheus_listen, &listen, err));
    PD_TRY(check_guard(c, err));
    PD_TRY(check_launch(c, err));
    return check_restarts(c, err);
}

pd_status pd_config_check_saved(const struct pd_config *c, bool is_changed, struct pd_error *err)
{
    PD_TRY(pd_model_config_check(&c->model, err));
    PD_TRY(check_batch(c, err));
    PD_TRY(check_context(c, err));
    return is_changed ? pd_degrees_check(c, err) : PD_OK;
}
