/* perdure sample: generates text from a checkpoint. */
#include "tools/command.h"

#include "ckpt/base/log.h"
#include "ckpt/base/parse.h"
#include "tools/commands/ckpt.h"
#include "tools/library/foreign.h"
#include "tools/output.h"
#include "trainer/sample/sample.h"
#include "trainer/sample/sample_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct sample {
    const char *path, *prompt, *tokens;
    uint64_t count, top_k, seed, threads;
    unsigned precision;
    double temperature;
    int64_t document_token;        /* negative: none */
    bool json, is_foreign;         /* is_foreign: path is a checkpoint of another program */
    const char *tokenizer_path;    /* as given; NULL: the one beside the model */
    struct pd_sample_text *reader; /* owned; NULL: the model reads and writes numbers */
    struct pd_error *err;          /* for emit */
    pd_status status;
    struct pd_json_writer writer;
};

static pd_status set_temperature(const struct pd_option *o, const char *text, struct pd_error *err)
{
    if (pd_parse_double(text, o->value) && *(double *)o->value >= 0) return PD_OK;
    return pd_option_refuse(o, text, "a number from 0 on; see perdure sample --help", err);
}

static void loaded(void *context, const struct pd_config *config, uint64_t step)
{
    struct sample *s = context;
    (void)config;
    pd_log(PD_LOG_DEBUG, "sample", "step %llu, %s", (unsigned long long)step, s->path);
    if (s->json) pd_json_u64(&s->writer, "step", step);
    if (s->json) pd_json_array_begin(&s->writer, "tokens");
    if (!s->json && s->prompt) fputs(s->prompt, stdout);
}

/* The document token, which is not text, ends the output. */
static bool emit(void *context, int32_t token)
{
    struct sample *s = context;
    const bool ends = token == s->document_token;
    const char *text = "";
    size_t bytes = 0;
    if (s->reader && !ends) s->status = pd_sample_text_add(s->reader, token, &text, &bytes, s->err);
    if (s->json)
        pd_json_i64(&s->writer, NULL, token);
    else if (!s->reader)
        printf("%d ", token);
    else
        fwrite(text, 1, bytes, stdout);
    fflush(stdout);
    return !s->status && !ferror(stdout) && !ends;
}

static pd_status encode_numbers(const char *text, struct pd_tokens *tokens, struct pd_error *err)
{
    while (*text) {
        char word[24];
        size_t length = strcspn(text, ",");
        uint64_t value;
        snprintf(word, sizeof word, "%.*s", (int)(length < sizeof word ? length : sizeof word - 1), text);
        if (!pd_parse_u64(word, &value) || value > INT32_MAX)
            PD_FAIL(err, PD_USAGE, "--tokens: \"%s\" is not a token number; write --tokens=1,2,3", word);
        const int32_t token = (int32_t)value;
        PD_TRY(pd_tokens_add(tokens, &token, 1, err));
        text += length;
        if (*text == ',') text++;
    }
    return PD_OK;
}

/* Encodes the prompt: text, or given numbers. Text follows a document token, as in training, where that token ends the
 * previous document, unless documents are kept apart. */
static pd_status encode(struct sample *s, const struct pd_config *config, struct pd_tokens *tokens, struct pd_error *err)
{
    const bool is_led = s->document_token >= 0 && !config->data.separate_documents;
    const int32_t lead = (int32_t)s->document_token;
    if (s->tokens) return encode_numbers(s->tokens, tokens, err);
    if (!s->reader)
        PD_FAIL(err, PD_INVALID,
                "this model has %u tokens and no tokenizer beside it: name one with --tokenizer=PATH, or give the prompt as "
                "--tokens=N,N,...",
                config->model.vocab);
    if (is_led) PD_TRY(pd_tokens_add(tokens, &lead, 1, err));
    PD_TRY(pd_sample_text_encode(s->reader, s->prompt ? s->prompt : "", tokens, err));
    return tokens->count ? PD_OK : pd_sample_text_encode(s->reader, "\n", tokens, err);
}

/* Opens the tokenizer that was named or lies beside the model, or bytes. */
static pd_status open_reader(struct sample *s, const char *checkpoints, const struct pd_config *config, uint64_t digest,
                             struct pd_error *err)
{
    struct pd_sample_text_options options = {.path = s->tokenizer_path,
                                             .run = s->path,
                                             .checkpoints = checkpoints,
                                             .model = s->is_foreign ? s->path : NULL,
                                             .vocab = config->model.vocab,
                                             .digest = digest,
                                             .is_over_bytes = pd_sample_is_over_bytes(config, digest)};
    struct pd_error own = {0};
    const pd_status st = pd_sample_text_open(&options, &s->reader, &own);
    if (!st || !s->tokens || s->tokenizer_path) return st ? pd_error_pass(err, st, &own) : PD_OK;
    pd_log_warn("sample", "tokens are printed as numbers: %s", own.message);
    return PD_OK;
}

static pd_status draw_with(struct sample *s, struct pd_sample_options *options, struct pd_error *err)
{
    struct pd_config config;
    uint64_t digest;
    struct pd_tokens prompt = {0};
    PD_TRY(pd_sample_config(options->checkpoints, &config, &digest, err));
    s->document_token = config.data.document_token;
    s->err = err;
    pd_status st = open_reader(s, options->checkpoints, &config, digest, err);
    if (!st) st = encode(s, &config, &prompt, err);
    if (!st && s->reader) st = pd_sample_text_begin(s->reader, prompt.ids, prompt.count, err);
    pd_config_deinit(&config);
    options->prompt = prompt.ids;
    options->prompt_count = (uint32_t)prompt.count;
    if (!st) st = pd_sample_run(options, err);
    pd_tokens_deinit(&prompt);
    return st ? st : s->status;
}

static pd_status sample_draw(struct sample *s, struct pd_error *err)
{
    char buffer[4096];
    struct pd_sample_options options = {.count = (uint32_t)s->count,
                                        .temperature = s->temperature,
                                        .top_k = (uint32_t)s->top_k,
                                        .seed = s->seed,
                                        .threads = (uint32_t)s->threads,
                                        .precision = pd_precisions[s->precision],
                                        .loaded = loaded,
                                        .emit = emit,
                                        .context = s};
    struct pd_temporary temporary = {.folder = ""};
    s->is_foreign = pd_ckpt_needs_import(s->path);
    if (!s->is_foreign) {
        PD_TRY(pd_run_tiers_checkpoints_of(s->path, &pd_ckpt_notes, buffer, &options.checkpoints, err));
        return draw_with(s, &options, err);
    }
    options.checkpoints = temporary.checkpoints;
    pd_status st = pd_temporary_import(&temporary, s->path, err);
    if (!st) st = draw_with(s, &options, err);
    return pd_temporary_remove(&temporary, st, err);
}

/* Ends an incomplete character, and the line or the JSON. */
static pd_status sample_finish(struct sample *s, struct pd_error *err)
{
    const char *text = "", *all = NULL;
    size_t bytes = 0;
    if (s->reader) PD_TRY(pd_sample_text_end(s->reader, &text, &bytes, &all, err));
    if (!s->json) {
        fwrite(text, 1, bytes, stdout);
        putchar('\n');
        return PD_OK;
    }
    pd_json_array_end(&s->writer);
    pd_json_string(&s->writer, "text", all);
    return pd_output_json(&s->writer, err);
}

pd_status pd_cmd_sample(int argc, char **argv, struct pd_error *err)
{
    struct sample s = {.count = 200, .temperature = 0.8, .seed = 1, .document_token = -1};
    static const char number[] = "a whole number; see perdure sample --help";
    uint32_t paths;
    struct pd_option options[] = {
        PD_OPTION("prompt", "TEXT", "text to continue", PD_OPTION_TEXT, &s.prompt),
        PD_OPTION("tokens", "N,N,...", "tokens to continue, by number", PD_OPTION_TEXT, &s.tokens),
        PD_OPTION("tokenizer", "PATH", "a tokenizer.json, a directory that holds one, or byte (default: the model's own)",
                  PD_OPTION_TEXT, &s.tokenizer_path),
        PD_OPTION("count", "N", "generate so many tokens, or fewer if the document ends (default: 200)", PD_OPTION_U64,
                  &s.count, .expected = number),
        PD_OPTION("temperature", "X", "0: always take the likeliest token (default: 0.8)", PD_OPTION_SET, &s.temperature,
                  .set = set_temperature),
        PD_OPTION("top-k", "N", "choose among the N likeliest tokens (default: 0, all)", PD_OPTION_U64, &s.top_k,
                  .expected = number),
        PD_OPTION("seed", "N", "the same seed gives the same text (default: 1)", PD_OPTION_U64, &s.seed, .expected = number),
        PD_OPTION("threads", "N", "default: all cores", PD_OPTION_U64, &s.threads, .expected = number),
        PD_PRECISION_ROW(&s.precision),
        {0}};
    const struct pd_usage usage = {
        .arguments = "PATH",
        .doc = "Generates text with the newest checkpoint of PATH: a run directory, a directory of checkpoints, or a "
               "checkpoint of another program, which is first converted into TMPDIR. PATH may be s3://bucket/prefix.",
        .options = options,
        .json = &s.json,
        PD_WORDS(&s.path, 1, &paths),
        .words_in_buckets = 1};
    PD_COMMAND_PARSE(&usage, argc, argv, err);
    if (!s.path) PD_FAIL(err, PD_USAGE, "sample needs a run directory: perdure sample RUN --prompt=\"In the beginning\"");
    if (s.prompt && s.tokens) PD_FAIL(err, PD_USAGE, "sample takes --prompt or --tokens, not both");
    if (s.count > 1u << 20 || s.top_k > UINT32_MAX || s.threads > 1024)
        PD_FAIL(err, PD_USAGE, "sample: --count is at most 1048576 and --threads at most 1024");
    if (s.json) pd_json_writer_init_object(&s.writer, 0);
    pd_status st = sample_draw(&s, err);
    if (!st)
        st = sample_finish(&s, err);
    else if (s.json)
        pd_json_writer_deinit(&s.writer);
    pd_sample_text_free(s.reader);
    return st;
}
