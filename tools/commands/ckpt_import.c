/* The model of init.from, and another program's checkpoint imported for the moment. */
#include "ckpt/base/fault.h"
#include "tools/commands/ckpt.h"
#include "tools/library/convert.h"
#include "trainer/config/check.h"
#include "trainer/run/signals.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- init.from ---- */

pd_status pd_ckpt_import_model(struct pd_config *config, struct pd_error *err)
{
    struct pd_ckpt_foreign source;
    bool is_said;
    PD_TRY(pd_convert_open_theirs(config->init.from, &pd_ckpt_notes, &source, err));
    const pd_status st = pd_ckpt_foreign_read_model(&source, config, &is_said, err);
    pd_ckpt_foreign_close(&source);
    return st ? st : pd_config_check_model(config, err);
}

static pd_status take_saved_model(const char *yaml, struct pd_config *config, struct pd_error *err)
{
    struct pd_config saved;
    PD_TRY(pd_config_parse_saved(yaml, NULL, 0, &saved, err));
    pd_config_take_model(config, &saved.model);
    pd_config_deinit(&saved);
    return pd_config_check_model(config, err);
}

static pd_status saved_model(const char *directory, struct pd_config *config, struct pd_error *err)
{
    struct pd_ckpt_place place;
    const struct pd_store_entry *entry = NULL;
    struct pd_commit commit;
    PD_TRY(pd_ckpt_place_open_quiet(directory, &pd_ckpt_notes, &place, err));
    pd_status st = pd_ckpt_place_choose(&place, UINT64_MAX, &entry, err);
    if (!st) st = pd_store_read_commit(place.store, entry, &commit, err);
    if (!st) {
        st = pd_commit_check_is_run(&commit, err);
        if (!st) st = take_saved_model(commit.state.config, config, err);
        pd_commit_deinit(&commit);
    }
    pd_ckpt_place_close(&place);
    return st;
}

pd_status pd_ckpt_take_model(struct pd_config *config, struct pd_error *err)
{
    struct pd_run_tiers tiers;
    if (!config->init.from[0]) return PD_OK;
    pd_run_tiers_of_config(config, &tiers);
    const struct pd_run_tier *newest = pd_run_tiers_look_quietly(&tiers);
    if (newest && !saved_model(newest->dir, config, NULL)) return PD_OK;
    const pd_status st = pd_ckpt_import_model(config, err);
    return st ? pd_error_context(err, st == PD_USAGE ? PD_INVALID : st, "init.from") : PD_OK;
}

const enum pd_dtype pd_precisions[4] = {PD_DTYPE_COUNT, PD_F32, PD_BF16, PD_F16};

pd_status pd_temporary_make(struct pd_temporary *t, struct pd_error *err)
{
    const char *parent = getenv("TMPDIR");
    if (t->folder[0]) return PD_OK;
    PD_TRY(pd_fault_configure_env(err));
    PD_TRY(pd_signals_install(err));
    snprintf(t->folder, sizeof t->folder, "%s/perdure-XXXXXX", parent && *parent ? parent : "/tmp");
    snprintf(t->checkpoints, sizeof t->checkpoints, "%s", t->folder);
    if (!mkdtemp(t->folder)) {
        t->folder[0] = '\0';
        PD_FAIL(err, PD_IO, "%s cannot be made; set TMPDIR to a directory with room for the model", t->checkpoints);
    }
    snprintf(t->checkpoints, sizeof t->checkpoints, "%s/checkpoints", t->folder);
    return PD_OK;
}

/* Type of its first matrix; fp32 for quantised ones. */
static pd_status find_precision(const char *path, enum pd_dtype *ret, struct pd_error *err)
{
    struct pd_ckpt_foreign f;
    const struct pd_foreign_tensor *matrix = NULL;
    PD_TRY(pd_ckpt_foreign_open(path, UINT64_MAX, &pd_ckpt_notes, &f, err));
    for (uint32_t t = 0; t < f.catalog.tensor_count && !matrix; t++)
        if (f.catalog.tensors[t].kind == PD_PARAM && f.catalog.tensors[t].ndim == 2) matrix = &f.catalog.tensors[t];
    const enum pd_element element = matrix ? matrix->element : PD_ELEMENT_F32;
    *ret = element == PD_ELEMENT_BF16 ? PD_BF16 : element == PD_ELEMENT_F16 ? PD_F16 : PD_F32;
    pd_ckpt_foreign_close(&f);
    return PD_OK;
}

pd_status pd_temporary_import(struct pd_temporary *t, const char *path, struct pd_error *err)
{
    char from[4200], precision[64];
    struct pd_config config;
    enum pd_dtype type;
    const char *overrides[] = {"run.dir=temporary", from, "data.train=[none]", precision};
    PD_TRY(pd_temporary_make(t, err));
    PD_TRY(find_precision(path, &type, err));
    snprintf(from, sizeof from, "init.from=%.4000s", path);
    snprintf(precision, sizeof precision, "numerics.precision=%s", pd_dtype_name(type));
    PD_TRY(pd_config_load(NULL, overrides, 4, &config, err));
    pd_status st = pd_ckpt_import_model(&config, err);
    if (!st) st = pd_ckpt_import_for_run(&config, t->checkpoints, pd_signals_stop(), err);
    pd_config_deinit(&config);
    return st;
}

static int ckpt_import_remove_one(const char *path, const struct stat *st, int type, struct FTW *walk)
{
    (void)st, (void)type, (void)walk;
    return remove(path);
}

pd_status pd_temporary_remove(struct pd_temporary *t, pd_status mine, struct pd_error *err)
{
    const bool is_removed = !t->folder[0] || nftw(t->folder, ckpt_import_remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0;
    if (mine == PD_STOPPED)
        (void)pd_error_set(err, PD_STOPPED, PD_WHERE, 0, "asked to leave; run the same command to start over");
    if (!is_removed) fprintf(stderr, "%s stays behind: %s\n", t->folder, strerror(errno));
    t->folder[0] = '\0';
    return mine;
}
