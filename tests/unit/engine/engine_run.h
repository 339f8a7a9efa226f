/* Runs of whole engines on ranks in this process, reduced to what must not depend on the layout. */
#pragma once

#include "trainer/engine/advance.h"
#include "trainer/run/whole_engine.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS_MAX = 6, TENSORS_MAX = 128 };

struct job {
    const struct pd_config *config;
    uint32_t threads, steps;
    double loss[STEPS_MAX], norm[STEPS_MAX], validation;
    bool skipped[STEPS_MAX];
    uint64_t tokens;
    struct pd_run_state state;                   /* loss scale and its counters */
    uint64_t digest[PD_KIND_COUNT][TENSORS_MAX]; /* sums over ranks */
    _Atomic uint64_t parts[PD_KIND_COUNT][TENSORS_MAX];
    _Atomic uint64_t bubbles;
    uint32_t recomputed; /* steps that were computed again */
    uint32_t coarser;    /* likewise, with a coarser quantum */
    uint64_t sent;       /* bytes, by rank 0 in all steps */
};

static char *data_path(void)
{
    static char path[64];
    if (path[0]) return path;
    snprintf(path, sizeof path, "/tmp/perdure-engine-%d.txt", (int)getpid());
    FILE *f = fopen(path, "w");
    for (unsigned i = 0, state = 1; i < 20000; i++) {
        state = state * 1664525u + 1013904223u;
        fputc("etaoin shrdlu"[(state >> 24) % 13], f);
    }
    fclose(f);
    return path;
}

static void remove_data(void)
{
    unlink(data_path());
}

static void add_digests(struct job *job, struct pd_engine *engine)
{
    const struct pd_tensor_table *tensors = &engine->options.model->tensors;
    for (uint32_t i = 0; i < pd_zero_held(engine->zero)->box_count; i++) {
        const struct pd_zero_box *b = &pd_zero_held(engine->zero)->boxes[i];
        for (int kind = 0; b->owned && kind < PD_KIND_COUNT; kind++) {
            const void *data = pd_state_box(engine->state, b->tensor, (enum pd_kind)kind, b->number);
            const struct pd_tensor *tensor = &tensors->tensors[b->tensor];
            job->parts[kind][b->tensor] +=
                pd_tensor_digest(tensor, &b->box, pd_tensor_dtype(tensor, (enum pd_kind)kind), data);
        }
    }
}

/* Every rank keeps the state of its own; that of rank 0 is told. */
static pd_status run_steps(struct job *job, struct pd_comm *comm, struct pd_engine *engine, struct pd_error *err)
{
    const struct pd_config *c = job->config;
    struct pd_run_state state = {.loss_scale = engine->loss_scale};
    double validation;
    for (uint64_t step = 0; step < job->steps; step++) {
        struct pd_step_result result;
        engine->loss_scale = state.loss_scale;
        PD_TRY(pd_engine_step(engine, step * c->batch.sequences, state.updates, &result, err));
        if (c->numerics.precision == PD_F16)
            PD_TRY(pd_loss_scale_advance(&state, result.skipped, c->numerics.loss_scale_interval, err));
        state.updates += !result.skipped;
        state.tokens += result.tokens;
        if (result.bubble > 0) job->bubbles++;
        if (comm->rank) continue;
        job->recomputed += result.recomputed;
        job->coarser += result.coarser;
        job->sent += result.sent_bytes;
        job->loss[step] = result.loss;
        job->norm[step] = result.skipped ? 0 : result.gradient_norm;
        job->skipped[step] = result.skipped;
    }
    PD_TRY(pd_engine_validate(engine, 5, &validation, err));
    if (comm->rank) return PD_OK;
    job->validation = validation;
    job->state = state;
    return PD_OK;
}

static pd_status run_rank(struct pd_comm *comm, void *context, struct pd_error *err)
{
    struct job *job = context;
    struct pd_whole_engine w;
    struct pd_memory_plan used;
    PD_TRY(pd_whole_engine_open(job->config, comm, NULL, job->threads, &w, err));
    struct pd_engine *const engine = w.engine;
    pd_arena_usage(w.arena, &used);
    pd_arena_freeze(w.arena);
    pd_status st = PD_OK;
    if (memcmp(&w.plan, &used, sizeof used)) st = pd_error_set(err, PD_BUG, PD_WHERE, 0, "the plan is not what was taken");
    if (!st) st = pd_state_init(engine->state, NULL, err);
    if (!st) st = run_steps(job, comm, engine, err);
    if (st)
        pd_engine_abort(engine);
    else
        add_digests(job, engine);
    pd_whole_engine_close(&w);
    return st;
}

static pd_status try_run(struct job *job, const struct pd_config *config, uint32_t world, uint32_t threads,
                         struct pd_error *err)
{
    uint32_t steps = job->steps;
    memset(job, 0, sizeof *job);
    job->config = config;
    job->threads = threads;
    job->steps = steps;
    pd_status st = pd_comm_run_local(world, 1, run_rank, job, err);
    for (int kind = 0; kind < PD_KIND_COUNT; kind++)
        for (int t = 0; t < TENSORS_MAX; t++)
            job->digest[kind][t] = job->parts[kind][t];
    return st;
}

/* Losses, norms, skips, validation and state: bit for bit. */
static void expect_same(const struct job *one, const struct job *many, const char *what)
{
    for (uint32_t s = 0; s < one->steps; s++) {
        cr_assert_eq(one->skipped[s], many->skipped[s], "%s: step %u skips otherwise", what, s);
        cr_assert_eq(memcmp(&one->loss[s], &many->loss[s], 8), 0, "%s: step %u: loss %a, expected %a", what, s,
                     many->loss[s], one->loss[s]);
        cr_assert_eq(memcmp(&one->norm[s], &many->norm[s], 8), 0, "%s: step %u: norm %a, expected %a", what, s,
                     many->norm[s], one->norm[s]);
    }
    cr_assert_eq(memcmp(&one->validation, &many->validation, 8), 0, "%s: validation %a, expected %a", what, many->validation,
                 one->validation);
    for (int kind = 0; kind < PD_KIND_COUNT; kind++)
        for (int t = 0; t < TENSORS_MAX; t++)
            cr_assert_eq(one->digest[kind][t], many->digest[kind][t], "%s: kind %d of tensor %d differs", what, kind, t);
    cr_assert_eq(one->coarser, many->coarser, "%s: %u times coarser, expected %u", what, many->coarser, one->coarser);
    cr_assert_eq(one->state.tokens, many->state.tokens);
    cr_assert_eq(one->state.loss_scale, many->state.loss_scale);
    cr_assert_eq(one->state.skipped_steps, many->state.skipped_steps);
}
