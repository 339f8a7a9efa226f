#include "trainer/sample/sample.h"

#include "ckpt/base/log.h"
#include "trainer/model/init.h"
#include "trainer/sample/inference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct sampler {
    const struct pd_sample_options *options;
    struct pd_inference inference;
    uint32_t vocab;
    float *logits;   /* (V) */
    int32_t *window; /* (length) tokens in view */
    uint32_t length, filled;
};

pd_status pd_sample_config(const char *checkpoints, struct pd_config *ret_config, uint64_t *ret_tokenizer_digest,
                           struct pd_error *err)
{
    struct pd_inference s;
    pd_status st = pd_inference_open(checkpoints, &s, err);
    if (!st) {
        *ret_config = s.config;
        *ret_tokenizer_digest = s.commit.state.tokenizer_digest;
        s.config = (struct pd_config){0};
    }
    pd_inference_close(&s);
    return st;
}

/* Logits after the last token in view. */
static pd_status forward(struct sampler *s, struct pd_error *err)
{
    struct pd_inference *m = &s->inference;
    struct pd_micro_batch_input *in = pd_transformer_input(m->transformer, 0);
    for (uint32_t t = 0; t < s->length; t++) {
        in->tokens[t] = t < s->filled ? s->window[t] : 0; /* causal: later tokens are not seen */
        in->targets[t] = -1;
        in->positions[t] = (int32_t)t;
        in->first[t] = 0;
    }
    PD_TRY(pd_inference_blocks(m, err));
    void *const *weights = pd_inference_weights(m, m->model->config.layers + 1);
    return pd_transformer_row_logits(m->transformer, weights, s->filled - 1, s->logits, err);
}

static int descending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* The k-th largest logit: smaller ones are not drawn. */
static float cutoff(struct sampler *s, const float *logits)
{
    const uint32_t vocab = s->vocab;
    if (!s->options->top_k || s->options->top_k >= vocab) return -INFINITY;
    float *sorted = malloc(vocab * sizeof *sorted);
    if (!sorted) return -INFINITY;
    memcpy(sorted, logits, vocab * sizeof *sorted);
    qsort(sorted, vocab, sizeof *sorted, descending);
    float least = sorted[s->options->top_k - 1];
    free(sorted);
    return least;
}

static int32_t sample_draw(struct sampler *s, uint64_t index)
{
    const uint32_t vocab = s->vocab;
    uint32_t words[4], likeliest = 0, last = 0;
    for (uint32_t v = 1; v < vocab; v++)
        if (s->logits[v] > s->logits[likeliest]) likeliest = v;
    if (s->options->temperature <= 0) return (int32_t)likeliest;
    const float least = cutoff(s, s->logits), top = s->logits[likeliest];
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), 0x73616d70u, 0};
    pd_philox4x32(counter, s->options->seed, words);
    double sum = 0, running = 0;
    for (uint32_t v = 0; v < vocab; v++)
        if (s->logits[v] >= least) sum += exp((double)(s->logits[v] - top) / s->options->temperature);
    double target = sum * ((double)words[0] + 0.5) / 4294967296.0;
    for (uint32_t v = 0; v < vocab; v++) {
        if (s->logits[v] < least) continue;
        last = v;
        running += exp((double)(s->logits[v] - top) / s->options->temperature);
        if (running >= target) break;
    }
    return (int32_t)last;
}

/* The newest token enters the view; when it is full the older half of it leaves. */
static void push(struct sampler *s, int32_t token)
{
    if (s->filled == s->length) {
        uint32_t kept = s->length / 2;
        memmove(s->window, s->window + s->length - kept, kept * sizeof *s->window);
        s->filled = kept;
    }
    s->window[s->filled++] = token;
}

static pd_status generate(struct sampler *s, struct pd_error *err)
{
    for (uint32_t i = 0; i < s->options->prompt_count; i++)
        push(s, s->options->prompt[i]);
    /* Logs before the first token which text the model will not have seen. */
    const uint32_t prompt = s->options->prompt_count;
    if (prompt > s->length)
        pd_log_warn("sample", "the prompt has %u tokens and the model's context %u: only its last %u are seen", prompt,
                    s->length, s->filled);
    else if ((uint64_t)prompt + s->options->count > (uint64_t)s->length + 1)
        pd_log_warn("sample",
                    "the model's context is %u tokens: each time it is full, the older half is dropped, the prompt first; "
                    "--count=%u is the most that drops nothing",
                    s->length, s->length + 1 - prompt);
    for (uint32_t i = 0; i < s->options->count; i++) {
        PD_TRY(forward(s, err));
        int32_t token = sample_draw(s, i);
        if (!s->options->emit(s->options->context, token)) return PD_OK;
        push(s, token);
    }
    return PD_OK;
}

static pd_status sample_begin(struct sampler *s, struct pd_error *err)
{
    const uint64_t wanted = (uint64_t)s->options->prompt_count + s->options->count;
    const uint32_t context = s->inference.config.model.context;
    s->vocab = s->inference.config.model.vocab;
    s->length = wanted < context ? (uint32_t)wanted : context;
    if (!s->options->prompt_count) PD_FAIL(err, PD_INVALID, "the prompt is empty: give at least one token with --prompt");
    for (uint32_t i = 0; i < s->options->prompt_count; i++)
        if (s->options->prompt[i] < 0 || (uint32_t)s->options->prompt[i] >= s->vocab)
            PD_FAIL(err, PD_INVALID,
                    "token %d of the prompt is not in the model's vocabulary of %u; give smaller numbers with --tokens",
                    s->options->prompt[i], s->vocab);
    s->logits = calloc(s->vocab, sizeof *s->logits);
    s->window = calloc(s->length, sizeof *s->window);
    if (!s->logits || !s->window) PD_FAIL(err, PD_NO_MEMORY, "sample: no memory for %u logits", s->vocab);
    return pd_inference_begin(&s->inference, s->length, s->options->threads, err);
}

pd_status pd_sample_run(const struct pd_sample_options *options, struct pd_error *err)
{
    struct sampler s = {.options = options};
    pd_numerics_thread_init();
    pd_status st = pd_inference_open(options->checkpoints, &s.inference, err);
    if (!st) pd_inference_compute_in(&s.inference, options->precision);
    if (!st) st = sample_begin(&s, err);
    if (!st && options->loaded)
        options->loaded(options->context, &s.inference.config, s.inference.commit.state.identity.step);
    if (!st) st = generate(&s, err);
    pd_inference_close(&s.inference);
    free(s.logits);
    free(s.window);
    return st;
}
