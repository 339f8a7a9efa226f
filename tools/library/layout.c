#include "tools/library/layout.h"

#include "ckpt/base/parse.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Also keys of a configuration. */
static const char *const degree_names[] = {"dp", "tp", "pp", "sp", "zero_shard", "zero_stage", "interleave", "ep"};
enum { DEGREES = sizeof degree_names / sizeof *degree_names };
static const uint64_t degree_defaults[DEGREES] = {1, 1, 1, 1, 0, 3, 1, 1};

static pd_status parse_degree(const char *word, bool is_given[DEGREES], uint64_t values[DEGREES], struct pd_error *err)
{
    const char *equals = strchr(word, '=');
    for (int i = 0; equals && i < DEGREES; i++) {
        if (strlen(degree_names[i]) != (size_t)(equals - word) || strncmp(word, degree_names[i], (size_t)(equals - word)))
            continue;
        if (is_given[i])
            PD_FAIL(err, PD_USAGE, "--layout: %s is given twice, %" PRIu64 " and then %s; leave one of them out",
                    degree_names[i], values[i], equals + 1);
        is_given[i] = true;
        if (pd_parse_u64(equals + 1, &values[i]) && values[i] <= 65536) return PD_OK;
        PD_FAIL(err, PD_USAGE, "--layout: \"%s\" is not a number up to 65536; write --layout=dp=4,tp=2", equals + 1);
    }
    PD_FAIL(err, PD_USAGE,
            "--layout: \"%s\" is not understood; write for example dp=4,tp=2 (dp, tp, pp, sp, ep, zero_shard, zero_stage, "
            "interleave; numerics such as virtual_tp stay as they are)",
            word);
}

static pd_status parse_degrees(const char *text, uint64_t values[DEGREES], struct pd_error *err)
{
    bool is_given[DEGREES] = {false};
    memcpy(values, degree_defaults, sizeof degree_defaults);
    const char *p = text, *end;
    do {
        const size_t length = strcspn(p, ",");
        char word[64];
        snprintf(word, sizeof word, "%.*s", (int)(length < sizeof word ? length : sizeof word - 1), p);
        PD_TRY(parse_degree(word, is_given, values, err));
        end = p + length;
        p = end + 1;
    } while (*end);
    for (int i = 0; i < 4; i++)
        if (!values[i]) PD_FAIL(err, PD_INVALID, "--layout: %s is 0 and must be at least 1", degree_names[i]);
    for (int i = 1; i < 4; i += 2) /* tp and sp divide virtual degrees, which are powers of two */
        if (values[i] & (values[i] - 1))
            PD_FAIL(err, PD_INVALID, "--layout: %s=%" PRIu64 " must be a power of two", degree_names[i], values[i]);
    return PD_OK;
}

pd_status pd_ckpt_layout_parse(const char *text, struct pd_ckpt_layout *ret_layout, struct pd_error *err)
{
    struct pd_ckpt_layout l = {.world = 1};
    uint64_t values[DEGREES];
    PD_TRY(parse_degrees(text, values, err));
    for (int i = 0; i < 4; i++)
        l.world *= values[i];
    if (l.world > 65536)
        PD_FAIL(err, PD_INVALID, "--layout: %s are %" PRIu64 " ranks, and there are 65536 at most; take smaller degrees",
                text, l.world);
    for (int i = 0; i < DEGREES; i++)
        snprintf(l.texts[i], sizeof l.texts[i], "layout.%s=%" PRIu64, degree_names[i], values[i]);
    snprintf(l.texts[DEGREES], sizeof l.texts[0], "layout.auto=false");
    snprintf(l.texts[DEGREES + 1], sizeof l.texts[0], "layout.ranks=%" PRIu64, l.world);
    l.dp = values[0];
    l.tp = values[1];
    l.sp = values[3];
    *ret_layout = l;
    return PD_OK;
}

/* A checkpoint keeps its virtual degrees. */
static pd_status check_degree(const char *name, uint64_t degree, uint64_t virtual_degree, struct pd_error *err)
{
    if (virtual_degree % degree == 0) return PD_OK;
    PD_FAIL(err, PD_INVALID,
            "--layout: %s=%" PRIu64 " does not divide numerics.virtual_%s of the checkpoint, %" PRIu64
            ", on which its bits depend; take a divisor of it",
            name, degree, name, virtual_degree);
}

pd_status pd_ckpt_lay_out(const struct pd_commit *commit, const char *text, struct pd_config *ret_config,
                          struct pd_model **ret_model, struct pd_laid_out *ret_laid_out, struct pd_error *err)
{
    struct pd_ckpt_layout degrees;
    struct pd_config config;
    struct pd_model *model = NULL;
    const char *overrides[PD_CKPT_LAYOUT_TEXTS];
    const struct pd_layout *stored = &commit->state.layout;
    PD_TRY(pd_commit_check_is_run(commit, err));
    PD_TRY(pd_ckpt_layout_parse(text, &degrees, err));
    PD_TRY(check_degree("tp", degrees.tp, stored->virtual_tp, err));
    PD_TRY(check_degree("sp", degrees.sp, stored->virtual_sp, err));
    for (int i = 0; i < PD_CKPT_LAYOUT_TEXTS; i++)
        overrides[i] = degrees.texts[i];
    PD_TRY(pd_config_parse_saved(commit->state.config, overrides, PD_CKPT_LAYOUT_TEXTS, &config, err));
    pd_status st = pd_model_new(&config.model, &model, err);
    if (!st) {
        pd_model_set_moments(model, commit->state.moments);
        st = pd_lay_out_given(&config, model, (uint32_t)degrees.world, ret_laid_out, err);
    }
    if (st) {
        pd_model_free(model);
        pd_config_deinit(&config);
        return st;
    }
    ret_laid_out->layout.small_bytes = stored->small_bytes;
    *ret_config = config;
    *ret_model = model;
    return PD_OK;
}
