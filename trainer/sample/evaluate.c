#include "trainer/sample/evaluate.h"

#include "ckpt/base/clock.h"
#include "trainer/math/superaccumulator.h"
#include "trainer/sample/inference.h"

#include <stdlib.h>
#include <string.h>

#define BYTE_VOCAB_MAX 512u

/* Text is read as bytes, which mean something else to a model over the tokens of a tokenizer. */
static pd_status check_tokens(const struct pd_inference *m, const struct pd_data *data, const char *path,
                              struct pd_error *err)
{
    const char *beside;
    const uint64_t trained = m->commit.state.tokenizer_digest, here = pd_data_tokenizer(data, &beside);
    if (trained && here && trained != here)
        PD_FAIL(
            err, PD_INVALID,
            "%s was made by another tokenizer than the one this model was trained with; pack the text again: perdure data "
            "pack --help",
            path);
    if (!here && m->config.model.vocab > BYTE_VOCAB_MAX && strstr(path, ".txt"))
        PD_FAIL(err, PD_INVALID,
                "%s is text, and this model has %u tokens: pack it first: perdure data pack %s -o tokens.bin "
                "--tokenizer=tokenizer.json",
                path, m->config.model.vocab, path);
    return PD_OK;
}

static pd_status open_data(const struct pd_evaluation *e, const struct pd_inference *m, uint32_t context,
                           struct pd_data **ret_data, struct pd_error *err)
{
    struct pd_data_source source = e->data;
    struct pd_data_options options = pd_config_data(&m->config);
    options.train = options.validation = &source;
    options.train_count = options.validation_count = 1;
    options.validation_samples = e->windows;
    options.context = context;
    struct pd_data *data;
    PD_TRY(pd_data_open(&options, &data, err));
    pd_status st = check_tokens(m, data, source.path, err);
    if (!st && !pd_data_sample_count(data, PD_SPLIT_VALIDATION))
        st = pd_error_set(err, PD_INVALID, PD_WHERE, 0,
                          "%s has fewer tokens than one window of %u; give a longer file, or a smaller --context",
                          source.path, context);
    if (st) {
        pd_data_close(data);
        return st;
    }
    *ret_data = data;
    return PD_OK;
}

/* losses (context): to work in. */
static pd_status add_window(struct pd_inference *m, const struct pd_data *data, uint64_t window, float *losses,
                            struct pd_superaccumulator *loss, uint64_t *tokens, struct pd_error *err)
{
    struct pd_micro_batch_input *in = pd_transformer_input(m->transformer, 0);
    PD_TRY(pd_data_sample(data, PD_SPLIT_VALIDATION, window, in->tokens, in->targets, in->positions, in->first, err));
    PD_TRY(pd_inference_blocks(m, err));
    void *const *weights = pd_inference_weights(m, m->model->config.layers + 1);
    PD_TRY(pd_transformer_head(m->transformer, 0, weights, NULL, 1.0f, NULL, err));
    PD_TRY(pd_transformer_losses(m->transformer, losses, err));
    for (uint64_t r = 0; r < pd_transformer_rows(m->transformer); r++) {
        if (in->targets[r] < 0) continue;
        pd_superaccumulator_add(loss, losses[r]);
        (*tokens)++;
    }
    return PD_OK;
}

static pd_status add_windows(const struct pd_evaluation *e, struct pd_inference *m, const struct pd_data *data,
                             float *losses, struct pd_evaluated *result, struct pd_error *err)
{
    struct pd_superaccumulator loss;
    pd_superaccumulator_init(&loss);
    pd_transformer_begin(m->transformer, false, 1.0f);
    for (uint64_t i = 0; i < result->windows; i++) {
        PD_TRY(pd_stop_check(e->should_stop, "evaluate.window", err));
        PD_TRY(add_window(m, data, i, losses, &loss, &result->tokens, err));
        if (e->progress) e->progress(e->progress_context, i + 1, result->windows);
    }
    result->loss = result->tokens ? pd_superaccumulator_value(&loss) / (double)result->tokens : 0;
    return PD_OK;
}

static pd_status take_loss(const struct pd_evaluation *e, struct pd_inference *m, const struct pd_data *data,
                           struct pd_evaluated *result, struct pd_error *err)
{
    PD_TRY(pd_inference_begin(m, result->context, e->threads, err));
    float *losses = calloc(pd_transformer_rows(m->transformer), sizeof *losses);
    if (!losses) PD_FAIL(err, PD_NO_MEMORY, "no memory for the losses of %u tokens", result->context);
    const pd_status st = add_windows(e, m, data, losses, result, err);
    free(losses);
    return st;
}

static pd_status evaluate(const struct pd_evaluation *e, struct pd_inference *m, struct pd_evaluated *result,
                          struct pd_error *err)
{
    const uint32_t longest = m->config.model.context;
    struct pd_data *data;
    result->context = e->context ? e->context : m->config.batch.context;
    if (result->context > longest)
        PD_FAIL(err, PD_INVALID,
                "--context=%u is longer than the model's %u, beyond which there are no positions; give at most that",
                result->context, longest);
    PD_TRY(open_data(e, m, result->context, &data, err));
    result->step = m->commit.state.identity.step;
    result->windows = pd_data_sample_count(data, PD_SPLIT_VALIDATION);
    const pd_status st = take_loss(e, m, data, result, err);
    pd_data_close(data);
    return st;
}

pd_status pd_evaluate(const struct pd_evaluation *e, struct pd_evaluated *ret_evaluated, struct pd_error *err)
{
    struct pd_inference m;
    struct pd_evaluated result = {.step = 0};
    const uint64_t start = pd_clock_monotonic_ns(NULL);
    pd_numerics_thread_init();
    pd_status st = pd_inference_open(e->checkpoints, &m, err);
    if (!st) {
        pd_inference_compute_in(&m, e->precision);
        st = evaluate(e, &m, &result, err);
    }
    pd_inference_close(&m);
    result.seconds = pd_clock_seconds_since(start);
    if (!st) *ret_evaluated = result;
    return st;
}
