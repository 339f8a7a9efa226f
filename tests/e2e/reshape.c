/* Resume under any other layout: `reshape [every]`.
 *
 * For every admitted (dp, tp, pp, sp) of 1 to 6 ranks a run of SAVED steps is saved through the real store. Every other
 * layout then resumes from it: what each of its ranks holds (parameters and both moments) must be, bit for bit, what the
 * one-rank run had, and so must be the losses of the next steps. ZeRO stage, zero_shard, interleaving differ
 * from layout to layout. By default half of the layouts, the other half on the next day, are resumed from by one other
 * of each model (helpers/scale.h); `every`, or PERDURE_TEST_SCALE of 10 or more: all ordered pairs, and the vocabulary of GPT-2, which like the default's divides by none
 * of the degrees. Ranks are threads. Exit code 0: all equal. */
#include "ckpt/base/log.h"
#include "ckpt/base/parse.h"
#include "tests/helpers/scale.h"
#include "trainer/run/resume.h"
#include "trainer/run/save.h"
#include "trainer/run/whole_engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { SAVED = 2, NEXT = 2, MICRO_BATCHES = 6, LAYERS = 5, WORLD_MAX = 6, LAYOUTS_MAX = 64, VIRTUAL = 4 };

/* What the one-rank run had after SAVED steps, and its losses. */
struct reference {
    float *state[PD_KIND_COUNT]; /* tensors one after the other, whole */
    uint64_t *first;             /* (tensors) of each in state */
    double loss[SAVED + NEXT];
};

struct layout_case {
    uint32_t dp, tp, pp, sp, interleave, stage, shard;
};

struct job {
    struct pd_config config;
    struct reference *reference;
    const char *root; /* of the store */
    bool fill;        /* the reference, from this one-rank run */
    bool save;
};

/* One rank's things. */
struct run {
    struct job *job;
    struct pd_group group;
    struct pd_vfs *vfs;
    struct pd_tiers *tiers;
    struct pd_whole_engine whole;
    struct pd_saver *saver;
    struct pd_run_state state;
};

static pd_status run_open(struct run *r, struct pd_comm *comm, struct pd_error *err)
{
    const struct pd_tiers_options tiers = {.tiers = {{.dir = r->job->root, .keep_last = 1}},
                                           .count = 1,
                                           .groups = {&r->group},
                                           .quarantine_bytes_max = 1,
                                           .read_only = !r->job->save};
    pd_comm_group(comm, &r->group);
    PD_TRY(pd_whole_engine_open(&r->job->config, comm, NULL, 1, &r->whole, err));
    PD_TRY(pd_vfs_new_auto(&r->vfs, err));
    return pd_tiers_open(r->vfs, &tiers, &r->tiers, err);
}

static void run_close(struct run *r)
{
    pd_saver_free(r->saver);
    pd_tiers_close(r->tiers);
    pd_vfs_free(r->vfs);
    pd_run_state_deinit(&r->state);
    pd_whole_engine_close(&r->whole);
}

static pd_status reference_init(struct reference *reference, const struct pd_model *model, struct pd_error *err)
{
    uint64_t elements = 0;
    reference->first = calloc(model->tensors.count, sizeof *reference->first);
    for (uint32_t t = 0; reference->first && t < model->tensors.count; t++) {
        reference->first[t] = elements;
        elements += pd_tensor_elements(&model->tensors.tensors[t]);
    }
    bool is_whole = reference->first;
    for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
        reference->state[kind] = calloc(elements, sizeof(float));
        is_whole &= reference->state[kind] != NULL;
    }
    if (!is_whole) PD_FAIL(err, PD_NO_MEMORY, "the reference");
    return PD_OK;
}

/* Walks the boxes this rank holds, row by row: copies them into the reference, or compares. */
static pd_status walk_state(struct run *r, bool fill, struct pd_error *err)
{
    struct pd_zero *zero = r->whole.engine->zero;
    struct reference *reference = r->job->reference;
    for (uint32_t i = 0; i < pd_zero_held(zero)->box_count; i++) {
        const struct pd_zero_box *b = &pd_zero_held(zero)->boxes[i];
        const struct pd_tensor *tensor = &r->whole.model->tensors.tensors[b->tensor];
        const bool is_matrix = tensor->ndim > 1;
        const uint64_t width = is_matrix ? tensor->shape[1] : 1, columns = is_matrix ? b->box.count[1] : 1;
        const uint64_t start = b->box.start[0] * width + (is_matrix ? b->box.start[1] : 0);
        for (uint64_t row = 0; row < b->box.count[0]; row++) {
            for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
                float *mine = pd_zero_state(pd_zero_held(zero), (enum pd_kind)kind, b->offset + row * columns);
                float *theirs = reference->state[kind] + reference->first[b->tensor] + start + row * width;
                if (fill)
                    memcpy(theirs, mine, columns * sizeof *mine);
                else if (memcmp(theirs, mine, columns * sizeof *mine) != 0)
                    PD_FAIL(err, PD_BUG, "%s, kind %d, row %llu: not the bits of the one-rank run", tensor->name, kind,
                            (unsigned long long)(b->box.start[0] + row));
            }
        }
    }
    return PD_OK;
}

static pd_status take_step(struct run *r, struct pd_error *err)
{
    struct pd_step_result result;
    const uint64_t step = r->state.identity.step;
    PD_TRY(pd_engine_step(r->whole.engine, r->state.samples, r->state.updates, &result, err));
    r->state.identity.step++;
    r->state.updates++;
    r->state.samples += r->job->config.batch.sequences;
    r->state.tokens += result.tokens;
    r->state.last_loss = result.loss;
    double *want = &r->job->reference->loss[step];
    if (r->job->fill) *want = result.loss;
    if (memcmp(want, &result.loss, sizeof *want) != 0)
        PD_FAIL(err, PD_BUG, "step %llu: loss %a, the one-rank run has %a", (unsigned long long)step + 1, result.loss,
                *want);
    return PD_OK;
}

static pd_status save(struct run *r, struct pd_error *err)
{
    PD_TRY(pd_saver_new(r->vfs, r->tiers, &r->group, r->whole.engine, 1, &r->saver, err));
    struct pd_saver_outcome outcome = {0};
    PD_TRY(pd_tiers_start(r->tiers, err));
    pd_saver_start(r->saver, &r->state, true);
    pd_saver_wait(r->saver);
    PD_CHECK(pd_saver_collect(r->saver, pd_saver_finished(r->saver), &outcome));
    if (outcome.status && err) *err = outcome.error;
    return outcome.status;
}

static pd_status go(struct run *r, struct pd_error *err)
{
    struct pd_resume_report report;
    PD_TRY(pd_resume(r->vfs, r->tiers, &r->group, r->whole.engine, pd_resume_newest, &r->state, &report, err));
    if (report.resumed == r->job->save) PD_FAIL(err, PD_BUG, "resumed is %d", report.resumed);
    while (r->state.identity.step < SAVED)
        PD_TRY(take_step(r, err));
    if (r->job->fill) {
        PD_TRY(reference_init(r->job->reference, r->whole.model, err));
        PD_TRY(walk_state(r, true, err));
    }
    PD_TRY(walk_state(r, false, err));
    if (r->job->save) PD_TRY(save(r, err));
    while (r->state.identity.step < SAVED + NEXT)
        PD_TRY(take_step(r, err));
    return PD_OK;
}

static pd_status rank_main(struct pd_comm *comm, void *context, struct pd_error *err)
{
    struct run r = {.job = context};
    pd_status st = run_open(&r, comm, err);
    if (!st) st = go(&r, err);
    if (st) pd_comm_abort(comm);
    if (st && r.whole.engine) pd_zero_sync(r.whole.engine->zero);
    run_close(&r);
    return st;
}

/* ---- layouts ---- */

static uint32_t mixed(uint32_t a, uint32_t b)
{
    uint64_t x = (a * UINT64_C(0x9e3779b97f4a7c15)) ^ (b * UINT64_C(0xbf58476d1ce4e5b9));
    x = (x ^ (x >> 29)) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)(x >> 33);
}

static uint32_t vocabulary = 1733;

/* What does not change the boxes' owners is drawn; every layout has one choice. */
static void choose(struct layout_case *l, uint32_t number)
{
    const uint32_t shards = l->dp * l->sp;
    l->stage = mixed(number, 1) % 4;
    l->shard = 1 + mixed(number, 2) % shards;
    while (shards % l->shard)
        l->shard++;
    l->interleave = l->pp == 2 && mixed(number, 3) % 2 ? 2 : 1;
}

static uint32_t layouts_make(struct layout_case *layouts)
{
    uint32_t count = 0;
    for (uint32_t world = 1; world <= WORLD_MAX; world++)
        for (uint32_t tp = 1; tp <= VIRTUAL; tp *= 2)
            for (uint32_t sp = 1; sp <= VIRTUAL; sp *= 2)
                for (uint32_t pp = 1; pp <= LAYERS; pp++) {
                    const uint32_t rest = tp * sp * pp;
                    if (world % rest || world / rest > MICRO_BATCHES) continue;
                    layouts[count] = (struct layout_case){.dp = world / rest, .tp = tp, .pp = pp, .sp = sp};
                    choose(&layouts[count], count);
                    count++;
                }
    return count;
}

static void layout_text(const struct layout_case *l, char *text, size_t room)
{
    snprintf(text, room, "dp %u tp %u pp %u sp %u stage %u shard %u interleave %u", l->dp, l->tp, l->pp, l->sp, l->stage,
             l->shard, l->interleave);
}

/* ---- runs ---- */

static const struct {
    const char *name, *yaml;
} models[] = {
    {"llama", "family: llama, context: 16, layers: 5, hidden: 16, heads: 6, kv_heads: 3, head_size: 4, ffn: 40,"
              " tie_embeddings: false}"},
    {"gpt2", "family: gpt2, context: 16, layers: 5, hidden: 24, heads: 6, kv_heads: 6, head_size: 4, ffn: 40,"
             " tie_embeddings: true}"},
};

static pd_status configure(uint32_t model, const struct layout_case *l, const char *data, struct pd_config *ret_config,
                           struct pd_error *err)
{
    char yaml[2000];
    snprintf(yaml, sizeof yaml,
             "run: {dir: unused, steps: %d, seed: 5}\nmodel: {vocab: %u, %s\n"
             "data: {train: [{path: %s, format: nanogpt}]}\nvalidation: {every: 0}\n"
             "batch: {sequences: %d, micro_batch: 1, context: 16}\noptimizer: {lr: 0.01, warmup_steps: 1}\n"
             "numerics: {precision: %s, virtual_tp: %d, virtual_sp: %d}\n"
             "layout: {ranks: %u, dp: %u, tp: %u, pp: %u, sp: %u, zero_stage: %u, zero_shard: %u, interleave: %u,"
             " transport: local, threads: 1}\n",
             SAVED + NEXT, vocabulary, models[model].yaml, data, MICRO_BATCHES, model ? "bf16" : "fp32", VIRTUAL, VIRTUAL,
             l->dp * l->tp * l->pp * l->sp, l->dp, l->tp, l->pp, l->sp, l->stage, l->shard, l->interleave);
    return pd_config_parse("reshape", yaml, NULL, 0, ret_config, err);
}

static pd_status run_layout(uint32_t model, const struct layout_case *l, const char *data, struct job *job,
                            struct pd_error *err)
{
    PD_TRY(configure(model, l, data, &job->config, err));
    pd_status st = pd_comm_run_local(l->dp * l->tp * l->pp * l->sp, 1, rank_main, job, err);
    pd_config_deinit(&job->config);
    return st;
}

static void remove_tree(const char *path)
{
    char command[300];
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    if (system(command)) fprintf(stderr, "reshape: %s stays\n", path);
}

static pd_status write_tokens(const char *path, struct pd_error *err)
{
    enum { COUNT = 16 * 1024 };
    static uint16_t tokens[COUNT];
    uint64_t state = 1;
    for (uint32_t i = 0; i < COUNT; i++) {
        state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
        const uint32_t draw = (uint32_t)(state >> 33) % vocabulary;
        tokens[i] = (uint16_t)(i % 3 ? draw % 700 : draw);
    }
    FILE *f = fopen(path, "wb");
    bool is_written = f && fwrite(tokens, sizeof tokens, 1, f) == 1;
    if (f && fclose(f)) is_written = false;
    if (!is_written) PD_FAIL(err, PD_IO, "%s: writing it", path);
    return PD_OK;
}

struct campaign {
    char directory[64], data[96];
    struct layout_case layouts[LAYOUTS_MAX];
    uint32_t count, pairs, failures;
    bool every;
};

static bool is_chosen(const struct campaign *c, uint32_t model, uint32_t from, uint32_t to)
{
    if (from == to) return false;
    const uint32_t distance = (to + c->count - from) % c->count;
    return c->every || distance == (model ? 1 + c->count / 3 : c->count - 2);
}

static void report(struct campaign *c, uint32_t model, uint32_t from, uint32_t to, const struct pd_error *err)
{
    char source[128], target[128];
    layout_text(&c->layouts[from], source, sizeof source);
    layout_text(&c->layouts[to], target, sizeof target);
    c->failures++;
    printf("differs: %s: saved by [%s], resumed by [%s]: %s (%s)\n", models[model].name, source, target, err->message,
           err->where);
    fflush(stdout);
}

static void campaign_model(struct campaign *c, uint32_t model)
{
    struct reference reference = {0};
    for (uint32_t from = 0; from < c->count && c->failures < 20; from++) {
        if (from && !c->every && !test_has_turn(from + model, 2)) continue; /* 0 makes the reference */
        char root[128];
        struct pd_error err;
        snprintf(root, sizeof root, "%s/%s-%u", c->directory, models[model].name, from);
        mkdir(root, 0777);
        struct job job = {.reference = &reference, .root = root, .fill = from == 0, .save = true};
        if (run_layout(model, &c->layouts[from], c->data, &job, &err)) {
            report(c, model, from, from, &err);
            remove_tree(root);
            if (from == 0) break; /* the reference */
            continue;
        }
        job.fill = job.save = false;
        for (uint32_t to = 0; to < c->count && c->failures < 20; to++) {
            if (!is_chosen(c, model, from, to)) continue;
            c->pairs++;
            if (run_layout(model, &c->layouts[to], c->data, &job, &err)) report(c, model, from, to, &err);
        }
        remove_tree(root);
    }
    for (int kind = 0; kind < PD_KIND_COUNT; kind++)
        free(reference.state[kind]);
    free(reference.first);
}

int main(int argc, char **argv)
{
    static struct campaign c;
    struct pd_error err;
    uint64_t scale = 1;
    const char *text = getenv("PERDURE_TEST_SCALE"), *temporary = getenv("TMPDIR");
    struct timespec began, ended;
    clock_gettime(CLOCK_MONOTONIC, &began);
    if (text && !pd_parse_u64(text, &scale)) scale = 1;
    c.every = scale >= 10 || (argc == 2 && strcmp(argv[1], "every") == 0);
    if (c.every) vocabulary = 50257;
    c.count = layouts_make(c.layouts);
    snprintf(c.directory, sizeof c.directory, "%.40s/perdure-reshape-XXXXXX", temporary ? temporary : "/tmp");
    if (!mkdtemp(c.directory)) {
        perror(c.directory);
        return 74;
    }
    snprintf(c.data, sizeof c.data, "%s/tokens.bin", c.directory);
    pd_status st = write_tokens(c.data, &err);
    for (uint32_t model = 0; !st && model < sizeof models / sizeof *models; model++)
        campaign_model(&c, model);
    remove_tree(c.directory);
    clock_gettime(CLOCK_MONOTONIC, &ended);
    if (st) fprintf(stderr, "reshape: %s\n", err.message);
    printf("%u layouts of 1 to %d ranks, %u ordered pairs of two models: %u differ; %.0f s\n", c.count, WORLD_MAX, c.pairs,
           c.failures, (double)(ended.tv_sec - began.tv_sec));
    return st || c.failures || c.pairs == 0 ? 1 : 0;
}
