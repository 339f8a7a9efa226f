/* Saves of a bench's run by the trainer's own saver: a tier in the bench's room, outlived by no engine that saves into it.
 */
#ifndef PD_TOOLS_BENCH_SAVES_H
#define PD_TOOLS_BENCH_SAVES_H

#include "tools/bench/room.h"
#include "tools/bench/run.h"
#include "trainer/run/save.h"

struct pd_bench_saves {
    struct pd_group group; /* tiers point to it: this stays where it is */
    struct pd_tiers *tiers;
    struct pd_saver *saver; /* NULL: nothing is saved */
    struct pd_run_state state;
};

/* generations: of state in files. One that could not be opened is closed all the same. */
PD_MUST_USE pd_status pd_bench_saves_open(struct pd_bench_saves *saves, const struct pd_bench_room *room, bool generations,
                                          struct pd_error *err);
void pd_bench_saves_close(struct pd_bench_saves *saves); /* after pd_bench_saves_detach */
/* A saver of the run's engine, and the state it is about. Updates wait for it; the caller may put its own before_update
 * in place, with a call of pd_saver_unpin. */
PD_MUST_USE pd_status pd_bench_saves_attach(struct pd_bench_saves *saves, const struct pd_bench_room *room,
                                            struct pd_bench_run *run, struct pd_error *err);
void pd_bench_saves_detach(struct pd_bench_saves *saves);

PD_MUST_USE pd_status pd_bench_saves_step(struct pd_bench_saves *saves, struct pd_bench_run *run, struct pd_error *err);
/* Waits for the one save under way.   errors  the outcome's */
PD_MUST_USE pd_status pd_bench_saves_finish(struct pd_bench_saves *saves, struct pd_saver_outcome *ret_outcome,
                                            struct pd_error *err);

#endif
