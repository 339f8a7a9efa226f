#include "trainer/run/stripes.h"

#include "ckpt/base/log.h"
#include "ckpt/base/regular_file.h"
#include "ckpt/io/raw_bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODULE "stripes"
#define PROBE_BYTES (UINT64_C(64) << 20)
#define PROBE_ROUNDS 3u /* the best counts: what else the machine does makes drives slower, never faster */
#define TEXT_MAX 65536u

static const char *first_dir(const struct pd_config *config)
{
    struct pd_tier_options tiers[PD_TIERS_MAX];
    pd_config_tiers(config, tiers);
    return tiers[0].dir;
}

static const char *dir_of(const struct pd_config *config, uint32_t stripe)
{
    return stripe ? config->checkpoint.stripes[stripe - 1] : first_dir(config);
}

/* ---- drives that are not there ---- */

pd_status pd_stripes_find_absent(struct pd_vfs *vfs, const struct pd_config *config, uint64_t *ret_bits,
                                 struct pd_error *err)
{
    return pd_store_absent_stripes(vfs, first_dir(config), (const char *const *)config->checkpoint.stripes,
                                   config->checkpoint.stripes_count, ret_bits, err);
}

void pd_stripes_log_absent(const struct pd_config *config, uint64_t absent)
{
    for (uint32_t i = 0; i < config->checkpoint.stripes_count; i++)
        if (absent >> i & 1)
            pd_log(PD_LOG_ERROR, MODULE,
                   "checkpoint.stripes[%u], %s: checkpoints lie there, and their drive is not there (is it not mounted?); "
                   "nothing is made in its place, this launch does without it",
                   i, config->checkpoint.stripes[i]);
}

/* ---- what was measured before ---- */

/* A weight and a directory a line. */
static void describe(const struct pd_config *config, const uint16_t *weights, char text[TEXT_MAX])
{
    size_t used = 0;
    for (uint32_t s = 0; s < pd_stripes_count(config) && used < TEXT_MAX; s++)
        used += (size_t)snprintf(text + used, TEXT_MAX - used, "%u %s\n", weights[s], dir_of(config, s));
}

/* The weights of the same directories in the same order; false: there are none. */
static bool recall(const struct pd_config *config, const char *path, uint16_t *ret_weights)
{
    char line[4200];
    uint16_t weights[PD_LAYOUT_STRIPES_MAX];
    uint32_t count = 0;
    FILE *file = pd_regular_fopen(path, false);
    if (!file) return false;
    bool same = true;
    for (; same && fgets(line, sizeof line, file); count++) {
        unsigned weight = 0;
        int at = 0;
        line[strcspn(line, "\n")] = '\0';
        same = count < pd_stripes_count(config) && sscanf(line, "%5u %n", &weight, &at) == 1 && weight &&
               weight <= PD_STRIPES_WEIGHT_MAX && at && strcmp(line + at, dir_of(config, count)) == 0;
        if (same) weights[count] = (uint16_t)weight;
    }
    fclose(file);
    if (!same || count != pd_stripes_count(config)) return false;
    memcpy(ret_weights, weights, count * sizeof *weights);
    return true;
}

/* Lost, it is measured again, and what is there is resharded. */
static void remember(const struct pd_config *config, const char *path, const uint16_t *weights)
{
    char temporary[4200], *text = calloc(1, TEXT_MAX);
    if (!text) return;
    describe(config, weights, text);
    snprintf(temporary, sizeof temporary, "%s.new", path);
    FILE *file = fopen(temporary, "we");
    bool is_written = file && fputs(text, file) >= 0;
    if (file && fclose(file)) is_written = false;
    if (!is_written || rename(temporary, path)) pd_log(PD_LOG_WARN, MODULE, "%s could not be written", path);
    free(text);
}

/* ---- measuring ---- */

/* As an update moves state: one file read, another overwritten, directly, many transfers in flight. */
static pd_status measure_one(struct pd_raw_bench *bench, struct pd_vfs *vfs, const char *dir, bool is_last, double *rate_max,
                             struct pd_error *err)
{
    char from[4200], to[4200];
    double seconds = 0;
    snprintf(from, sizeof from, "%s/probe-stripe-1", dir);
    snprintf(to, sizeof to, "%s/probe-stripe-2", dir);
    pd_status st = pd_raw_bench_mixed(bench, from, to, PROBE_BYTES, &seconds, err);
    const double rate = seconds > 0 ? 2.0 * (double)PROBE_BYTES / seconds : 1;
    if (rate > *rate_max) *rate_max = rate;
    if (st || is_last) {
        (void)!pd_vfs_unlink(vfs, from, NULL);
        (void)!pd_vfs_unlink(vfs, to, NULL);
    }
    return st ? pd_error_context(err, st, "measuring the drive of %s", dir) : PD_OK;
}

/* Coarse, so that equal drives come out equal but for chance. */
static void weigh(const double *rates, uint32_t count, uint16_t *ret_weights)
{
    double most = 0;
    for (uint32_t s = 0; s < count; s++)
        if (rates[s] > most) most = rates[s];
    for (uint32_t s = 0; s < count; s++) {
        const double share = rates[s] / most * PD_STRIPES_WEIGHT_MAX + 0.5;
        ret_weights[s] = (uint16_t)(share < 1 ? 1 : share);
        if (ret_weights[s] == PD_STRIPES_WEIGHT_MAX - 1) ret_weights[s]++;
    }
}

static pd_status measure(struct pd_vfs *vfs, const struct pd_config *config, uint16_t *ret_weights, struct pd_error *err)
{
    struct pd_raw_bench *bench = NULL;
    double rates[PD_LAYOUT_STRIPES_MAX] = {0};
    const uint32_t count = pd_stripes_count(config);
    PD_TRY(pd_raw_bench_new(vfs, 0, 0, &bench, err));
    pd_status st = PD_OK;
    for (uint32_t i = 0; !st && i < PROBE_ROUNDS * count; i++)
        st = measure_one(bench, vfs, dir_of(config, i % count), i / count + 1 == PROBE_ROUNDS, &rates[i % count], err);
    pd_raw_bench_free(bench);
    PD_TRY(st);
    weigh(rates, count, ret_weights);
    for (uint32_t s = 0; s < count; s++)
        pd_log(PD_LOG_INFO, MODULE, "%s reads and writes %.2f GB/s at once: weight %u", dir_of(config, s), rates[s] / 1e9,
               ret_weights[s]);
    return PD_OK;
}

/* Nothing is gained there; said, not refused: what is one file system may be several drives below. */
static void warn_of_twins(struct pd_vfs *vfs, const struct pd_config *config)
{
    uint64_t devices[PD_LAYOUT_STRIPES_MAX];
    for (uint32_t s = 0; s < pd_stripes_count(config); s++) {
        struct pd_stat stat;
        if (pd_vfs_stat(vfs, dir_of(config, s), &stat, NULL)) return;
        devices[s] = stat.device;
        for (uint32_t k = 0; k < s; k++) {
            if (devices[k] != devices[s]) continue;
            pd_log(PD_LOG_WARN, MODULE, "%s and %s lie on one file system: stripes are faster on drives of their own",
                   dir_of(config, k), dir_of(config, s));
            return;
        }
    }
}

static pd_status settle_here(struct pd_vfs *vfs, const struct pd_config *config, uint16_t *ret_weights, struct pd_error *err)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/stripe-weights", first_dir(config));
    if (recall(config, path, ret_weights)) return PD_OK;
    warn_of_twins(vfs, config);
    PD_TRY(measure(vfs, config, ret_weights, err));
    remember(config, path, ret_weights);
    return PD_OK;
}

pd_status pd_stripes_settle(struct pd_vfs *vfs, struct pd_group *group, const struct pd_config *config,
                            struct pd_layout *layout, struct pd_error *err)
{
    uint16_t weights[PD_LAYOUT_STRIPES_MAX] = {0};
    pd_stripes_apply(config, layout);
    if (pd_stripes_count(config) == 1 || config->checkpoint.stripe_weights[0]) return PD_OK;
    pd_status st = group->rank == 0 ? settle_here(vfs, config, weights, err) : PD_OK;
    PD_TRY(pd_group_agree(group, st, err));
    PD_TRY(pd_group_broadcast(group, 0, weights, sizeof weights, err));
    memcpy(layout->stripe_weight, weights, sizeof weights);
    return PD_OK;
}
