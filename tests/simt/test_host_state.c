/* Optimizer state in the host's memory beside a GPU (offload.optimizer: cpu), while a save is written: the saver's thread fills
 * its staging at any moment of a step, and no bit of the step may depend on it. */
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

static void run_steps(struct pd_engine *engine, double ret_losses[STEPS])
{
    for (uint64_t i = 0; i < STEPS; i++) {
        struct pd_step_result result;
        OK(pd_engine_step(engine, 2 * i, i, &result, err));
        ret_losses[i] = result.loss;
    }
}

/* Losses of a few steps, with somebody in the saver's staging or with nobody. */
static void train(const struct pd_config *config, bool is_saving, double ret_losses[STEPS])
{
    struct pd_rank_device device;
    struct pd_whole_engine whole;
    pthread_t thread;
    OK(pd_rank_device_open(PD_DEVICE_GPU, 0, NULL, &device, err));
    OK(pd_whole_engine_open(config, NULL, &device, 1, &whole, err));
    OK(pd_state_init(whole.engine->state, NULL, err));
    struct saver saver = {.staging = whole.engine->staging.data, .bytes = whole.engine->staging.bytes};
    if (is_saving) cr_assert_eq(pthread_create(&thread, NULL, write_staging, &saver), 0);
    run_steps(whole.engine, ret_losses);
    saver.is_done = true;
    if (is_saving) pthread_join(thread, NULL);
    pd_whole_engine_close(&whole);
    pd_rank_device_close(&device);
}

Test(host_state, a_save_beside_the_update_changes_no_bit)
{
    char path[] = "/tmp/perdure-host-state-XXXXXX", yaml[800];
    double alone[STEPS], beside[STEPS];
    struct pd_config config;
    const int descriptor = mkstemp(path);
    cr_assert_geq(descriptor, 0);
    close(descriptor);
    write_text(path);
    snprintf(yaml, sizeof yaml,
             "run: {dir: unused, steps: 100, seed: 5}\n"
             "data: {train: [{path: %s}], validation_fraction: 0}\nvalidation: {every: 0}\n"
             "model: {family: llama, vocab: 256, context: 16, layers: 1, hidden: 64, heads: 2}\n"
             "batch: {sequences: 2, micro_batch: 1, context: 16}\noptimizer: {lr: 0.01, warmup_steps: 1}\n"
             "offload: {optimizer: cpu}\n",
             path);
    const char *overrides[] = {"layout.ranks=1"};
    OK(pd_config_parse("test", yaml, overrides, 1, &config, err));
    train(&config, false, alone);
    train(&config, true, beside);
    for (int i = 0; i < STEPS; i++)
        cr_assert_eq(memcmp(&alone[i], &beside[i], sizeof alone[i]), 0, "step %d: loss %a, alone %a", i, beside[i],
                     alone[i]);
    pd_config_deinit(&config);
    unlink(path);
}
