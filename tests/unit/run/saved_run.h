/* A run of one rank that saves: an engine on a small model, a first tier, the saver over both. */
#pragma once

#include "trainer/engine/state_files.h"
#include "trainer/run/save.h"
#include "trainer/run/whole_engine.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define OK(call)                                              \
    do {                                                      \
        struct pd_error call_error = {0}, *err = &call_error; \
        cr_assert_eq((call), PD_OK, "%s", err->message);      \
    } while (0)

struct run {
    char folder[64], text[96], root[96];
    struct pd_group group;
    struct pd_config config;
    struct pd_whole_engine whole;
    struct pd_vfs *vfs;
    struct pd_tiers *tiers;
    struct pd_saver *saver;
    struct pd_run_state state;
};

static inline void run_write_text(const char *path)
{
    FILE *f = fopen(path, "w");
    for (unsigned i = 0, seed = 1; i < 20000; i++) {
        seed = seed * 1664525u + 1013904223u;
        fputc("etaoin shrdlu"[(seed >> 24) % 13], f);
    }
    cr_assert_eq(fclose(f), 0);
}

/* Start, wait and collect in one, while nothing else is under way. */
static inline pd_status run_save(struct pd_saver *saver, const struct pd_run_state *state, struct pd_error *err)
{
    struct pd_saver_outcome outcome = {0};
    pd_saver_start(saver, state, true);
    pd_saver_wait(saver);
    PD_CHECK(pd_saver_collect(saver, pd_saver_finished(saver), &outcome));
    if (outcome.status && err) *err = outcome.error;
    return outcome.status;
}

/* `keys`: the rest of the configuration. */
static inline void run_build_engine(struct run *r, const char *keys)
{
    char yaml[1200];
    snprintf(yaml, sizeof yaml,
             "run: {dir: unused, steps: 100, seed: 5}\n"
             "data: {train: [{path: %s}], validation_fraction: 0}\nvalidation: {every: 0}\n"
             "batch: {sequences: 2, micro_batch: 1, context: 16}\noptimizer: {lr: 0.01}\n%s",
             r->text, keys);
    const char *overrides[] = {"layout.ranks=1"};
    OK(pd_config_parse("test", yaml, overrides, 1, &r->config, err));
    OK(pd_whole_engine_open(&r->config, NULL, NULL, 1, &r->whole, err));
}

/* A folder of its own under `where`, the engine, a VFS and a group of one; no state yet. */
static inline void run_make(struct run *r, const char *where, const char *keys)
{
    memset(r, 0, sizeof *r);
    snprintf(r->folder, sizeof r->folder, "%s/perdure-save-XXXXXX", where);
    cr_assert_not_null(mkdtemp(r->folder));
    snprintf(r->text, sizeof r->text, "%s/text.txt", r->folder);
    snprintf(r->root, sizeof r->root, "%s/store", r->folder);
    run_write_text(r->text);
    cr_assert_eq(mkdir(r->root, 0777), 0);
    pd_group_init_single(&r->group);
    run_build_engine(r, keys);
    OK(pd_vfs_new_auto(&r->vfs, err));
}

static inline void run_open_tiers(struct run *r, struct pd_tiers_options *options)
{
    static char config_text[] = "test: true\n";
    options->generations = r->config.offload.optimizer == PD_PLACE_NVME;
    OK(pd_tiers_open(r->vfs, options, &r->tiers, err));
    r->state = (struct pd_run_state){.identity = {.run_id = {1, 2}, .lineage = 1},
                                     .fence = pd_tiers_fence(r->tiers),
                                     .loss_scale = 1.0,
                                     .layout = r->whole.engine->grid.layout,
                                     .tensor_count = r->whole.model->tensors.count,
                                     .parameter_count = r->whole.model->parameter_count,
                                     .config = config_text};
}

static inline void run_open_tier(struct run *r, uint32_t keep_last)
{
    run_open_tiers(r, &(struct pd_tiers_options){.tiers = {{.dir = r->root, .every = 1, .keep_last = keep_last}},
                                                 .count = 1,
                                                 .groups = {&r->group}});
}

static inline void run_unpin(void *saver)
{
    pd_saver_unpin(saver);
}

static inline void run_open_saver(struct run *r, uint32_t in_flight)
{
    OK(pd_saver_new(r->vfs, r->tiers, &r->group, r->whole.engine, in_flight, &r->saver, err));
    r->whole.engine->before_update = (struct pd_before_update){run_unpin, r->saver};
}

static inline void run_close(struct run *r)
{
    char command[160];
    pd_saver_free(r->saver);
    pd_state_close(r->whole.engine->state);
    pd_tiers_close(r->tiers);
    pd_vfs_free(r->vfs);
    pd_whole_engine_close(&r->whole);
    pd_config_deinit(&r->config);
    snprintf(command, sizeof command, "rm -rf %s", r->folder);
    cr_assert_eq(system(command), 0);
}

static inline struct pd_step_result run_step(struct run *r)
{
    struct pd_step_result result;
    r->whole.engine->loss_scale = r->state.loss_scale;
    r->whole.engine->next_identity = r->state.identity;
    r->whole.engine->next_identity.step++;
    OK(pd_engine_step(r->whole.engine, r->state.samples, r->state.updates, &result, err));
    r->state.identity.step++;
    r->state.updates += !result.skipped;
    r->state.samples += 2;
    return result;
}

static inline struct pd_saver_outcome run_collect(struct run *r)
{
    struct pd_saver_outcome outcome;
    pd_saver_wait(r->saver);
    cr_assert(pd_saver_collect(r->saver, pd_saver_finished(r->saver), &outcome));
    return outcome;
}
