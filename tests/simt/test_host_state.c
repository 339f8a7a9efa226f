/* Optimizer state in the host's memory beside a GPU (offload.optimizer: cpu), while a save is written: the saver's thread fills
 * its staging at any moment of a step, and no bit of the step may depend on it, nor on who updates. */
#include "tests/helpers/scale.h"
#include "trainer/run/whole_engine.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OK(call)                                              \
    do {                                                      \
        struct pd_error call_error = {0}, *err = &call_error; \
        cr_assert_eq((call), PD_OK, "%s", err->message);      \
    } while (0)

enum { STEPS = 4 };

/* The saver's thread, which is never done. */
struct saver {
    void *staging;
    uint64_t bytes;
    _Atomic bool is_done;
};

static void *write_staging(void *argument)
{
    struct saver *s = argument;
    while (!s->is_done)
        memset(s->staging, 0xff, s->bytes);
    return NULL;
}

static void write_text(const char *path)
{
    FILE *f = fopen(path, "w");
    cr_assert_not_null(f);
    for (unsigned i = 0, seed = 1; i < 20000; i++) {
        seed = seed * 1664525u + 1013904223u;
        fputc("etaoin shrdlu"[(seed >> 24) % 13], f);
    }
    cr_assert_eq(fclose(f), 0);
}

static void write_temporary(char *path)
{
    const int descriptor = mkstemp(path);
    cr_assert_geq(descriptor, 0);
    close(descriptor);
    write_text(path);
}

static void run_steps(struct pd_engine *engine, double ret_losses[STEPS])
{
    for (uint64_t i = 0; i < STEPS; i++) {
        struct pd_step_result result;
        OK(pd_engine_step(engine, 2 * i, i, &result, err));
        ret_losses[i] = result.loss;
    }
}

/* What a few steps left: losses, and every byte of the state. */
struct left {
    double losses[STEPS];
    char *state; /* (bytes) */
    uint64_t bytes;
};

static void keep_state(struct pd_engine *engine, struct left *left)
{
    const struct pd_zero_held *held = pd_zero_held(engine->zero);
    for (uint32_t i = 0; i < held->box_count; i++)
        for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
            const struct pd_zero_box *b = &held->boxes[i];
            const uint64_t bytes = b->elements * pd_zero_element_bytes(held, (enum pd_kind)kind);
            left->state = realloc(left->state, left->bytes + bytes);
            cr_assert_not_null(left->state);
            memcpy(left->state + left->bytes, pd_state_box(engine->state, b->tensor, (enum pd_kind)kind, b->number), bytes);
            left->bytes += bytes;
        }
}

/* With somebody in the saver's staging, or with nobody. */
static struct left train(const struct pd_config *config, bool is_saving)
{
    struct pd_rank_device device;
    struct pd_whole_engine whole;
    struct left left = {.bytes = 0};
    pthread_t thread;
    OK(pd_rank_device_open(PD_DEVICE_GPU, 0, NULL, &device, err));
    OK(pd_whole_engine_open(config, NULL, &device, 1, &whole, err));
    OK(pd_state_init(whole.engine->state, NULL, err));
    cr_assert_eq(pd_state_is_streamed(whole.engine->state), config->offload.update == PD_UPDATES_DEVICE);
    struct saver saver = {.staging = whole.engine->staging.data, .bytes = whole.engine->staging.bytes};
    if (is_saving) cr_assert_eq(pthread_create(&thread, NULL, write_staging, &saver), 0);
    run_steps(whole.engine, left.losses);
    saver.is_done = true;
    if (is_saving) pthread_join(thread, NULL);
    keep_state(whole.engine, &left);
    pd_whole_engine_close(&whole);
    pd_rank_device_close(&device);
    return left;
}

static void same(const struct left *a, const struct left *b, const char *what)
{
    for (int i = 0; i < STEPS; i++)
        cr_assert_eq(memcmp(&a->losses[i], &b->losses[i], sizeof a->losses[i]), 0, "%s, step %d: loss %a, alone %a", what, i,
                     b->losses[i], a->losses[i]);
    cr_assert_eq(a->bytes, b->bytes);
    cr_assert_arr_eq(a->state, b->state, a->bytes, "%s: other state", what);
}

static void parse(const char *data, const char *update, const char *numerics, struct pd_config *ret_config)
{
    char yaml[900];
    const char *overrides[] = {"layout.ranks=1"};
    snprintf(yaml, sizeof yaml,
             "run: {dir: unused, steps: 100, seed: 5}\n"
             "data: {train: [{path: %s}], validation_fraction: 0}\nvalidation: {every: 0}\n"
             "model: {family: llama, vocab: 1024, context: 16, layers: 1, hidden: 64, heads: 2}\n"
             "batch: {sequences: 2, micro_batch: 1, context: 16}\n%s\n"
             "offload: {optimizer: cpu, buffer_bytes: 1M, update: %s}\n",
             data, numerics, update);
    OK(pd_config_parse("test", yaml, overrides, 1, ret_config, err));
}

/* On the host alone; with a saver beside it; streamed through the GPU in windows smaller than boxes, likewise. */
static void compare(const char *data, const char *numerics)
{
    static const struct {
        const char *what, *update;
        bool is_saving;
    } others[] = {{"a saver beside it", "host", true},
                  {"by the GPU", "device", false},
                  {"by the GPU, a saver beside it", "device", true}};
    struct left alone = {.bytes = 0};
    for (size_t i = 0; i <= sizeof others / sizeof *others; i++) {
        struct pd_config config;
        parse(data, i ? others[i - 1].update : "host", numerics, &config);
        struct left left = train(&config, i && others[i - 1].is_saving);
        pd_config_deinit(&config);
        if (i) same(&alone, &left, others[i - 1].what);
        if (i)
            free(left.state);
        else
            alone = left;
    }
    free(alone.state);
}

static void compare_all(const char *streams)
{
    static const char *const numerics[] = {
        "optimizer: {lr: 0.01, warmup_steps: 1}",
        "optimizer: {lr: 0.01, warmup_steps: 1, moments: bf16}",
        "optimizer: {lr: 0.01, warmup_steps: 1}\nnumerics: {precision: fp32}",
        "optimizer: {lr: 0.01, warmup_steps: 1}\nnumerics: {gradients: bf16}",
    };
    char path[] = "/tmp/perdure-host-state-XXXXXX";
    write_temporary(path);
    setenv("PERDURE_SIMT_STREAMS", streams, 1); /* this process has no GPU yet */
    for (size_t i = 0; i < sizeof numerics / sizeof *numerics; i++)
        if (test_has_turn(i, 4)) compare(path, numerics[i]);
    unlink(path);
}

Test(host_state, neither_who_updates_nor_a_save_beside_it_changes_a_bit)
{
    compare_all("late");
}

/* A window that is filled before it was emptied shows only where copies in come before copies out that could. */
Test(host_state, nor_does_the_order_of_streams)
{
    compare_all("7");
}
