#include "tools/bench/saves.h"

static char config_text[] = "bench: true\n";

pd_status pd_bench_saves_open(struct pd_bench_saves *s, const struct pd_bench_room *room, bool generations,
                              struct pd_error *err)
{
    char path[4096];
    const struct pd_tiers_options options = {
        .tiers = {{.dir = path, .keep_last = 1}}, .count = 1, .groups = {&s->group}, .generations = generations};
    *s = (struct pd_bench_saves){0};
    pd_group_init_single(&s->group);
    pd_bench_room_path(room, "store", path);
    PD_TRY(pd_vfs_mkdir(room->vfs, path, err));
    PD_TRY(pd_tiers_open(room->vfs, &options, &s->tiers, err));
    s->state = (struct pd_run_state){.identity = {.run_id = {1, 2}, .lineage = 1},
                                     .fence = pd_tiers_fence(s->tiers),
                                     .loss_scale = 1.0,
                                     .created_by = "perdure bench",
                                     .config = config_text};
    return PD_OK;
}

void pd_bench_saves_close(struct pd_bench_saves *s)
{
    pd_tiers_close(s->tiers);
    s->tiers = NULL;
}

static void let_saves_go(void *saver)
{
    pd_saver_unpin(saver);
}

pd_status pd_bench_saves_attach(struct pd_bench_saves *s, const struct pd_bench_room *room, struct pd_bench_run *run,
                                struct pd_error *err)
{
    PD_TRY(pd_saver_new(room->vfs, s->tiers, &s->group, run->whole.engine, 1, &s->saver, err));
    run->whole.engine->before_update = let_saves_go;
    run->whole.engine->update_context = s->saver;
    s->state.layout = run->whole.engine->grid.layout;
    s->state.tensor_count = run->whole.model->tensors.count;
    s->state.parameter_count = run->whole.model->parameter_count;
    return PD_OK;
}

void pd_bench_saves_detach(struct pd_bench_saves *s)
{
    pd_saver_free(s->saver);
    s->saver = NULL;
}

pd_status pd_bench_saves_step(struct pd_bench_saves *s, struct pd_bench_run *run, struct pd_error *err)
{
    struct pd_step_result result;
    run->whole.engine->next_identity = s->state.identity;
    run->whole.engine->next_identity.step++;
    PD_TRY(pd_engine_step(run->whole.engine, s->state.samples, s->state.updates, &result, err));
    s->state.samples += run->config.batch.sequences;
    s->state.updates++;
    s->state.identity.step++;
    return PD_OK;
}

pd_status pd_bench_saves_finish(struct pd_bench_saves *s, struct pd_saver_outcome *outcome, struct pd_error *err)
{
    pd_saver_wait(s->saver);
    PD_CHECK(pd_saver_collect(s->saver, pd_saver_finished(s->saver), outcome));
    if (outcome->status) *err = outcome->error;
    return outcome->status;
}
