/* perdure sample: text from a checkpoint. */
#include "tools/command.h"

#include "ckpt/base/log.h"
#include "ckpt/base/parse.h"
#include "tools/commands/run_tiers.h"
#include "tools/output.h"
#include "trainer/sample/sample.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define BYTE_VOCAB_MAX 512 /* of a model over bytes with a document token: data pack gives that 256, and sizes are padded */

struct sample {
    const char *path, *prompt, *tokens;
    uint64_t count, top_k, seed, threads;
    double temperature;
    int64_t document_token; /* negative: none */
    bool json, bytes;
    char *text; /* of --json, of models over bytes: (text_bytes) what was drawn so far */
    size_t text_bytes;
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

/* Its document token, which is no text, ends the drawing. */
static bool emit(void *context, int32_t token)
{
    struct sample *s = context;
    const bool ends = token == s->document_token, is_text = token > 0 && token < 256 && !ends;
    if (s->json && s->text && is_text) s->text[s->text_bytes++] = (char)token;
    if (s->json)
        pd_json_i64(&s->writer, NULL, token);
    else if (!s->bytes)
        printf("%d ", token);
    else if (token < 256 && !ends)
        putchar(token);
    fflush(stdout);
    return !ferror(stdout) && !ends;
}

/* Tokens 0 to 255 are bytes; there may be one more, which ends documents. */
static bool is_over_bytes(const struct pd_config *config)
{
    const int64_t document = config->data.document_token;
    return config->model.vocab <= 256 ||
           (document >= 256 && document < config->model.vocab && config->model.vocab <= BYTE_VOCAB_MAX);
}

static pd_status encode_numbers(const char *text, int32_t *tokens, uint32_t *count, struct pd_error *err)
{
    while (*text) {
        char word[24];
        size_t length = strcspn(text, ",");
        uint64_t value;
        snprintf(word, sizeof word, "%.*s", (int)(length < sizeof word ? length : sizeof word - 1), text);
        if (!pd_parse_u64(word, &value) || value > INT32_MAX)
            PD_FAIL(err, PD_USAGE, "--tokens: \"%s\" is not a token number; write --tokens=1,2,3", word);
        tokens[(*count)++] = (int32_t)value;
        text += length;
        if (*text == ',') text++;
    }
    return PD_OK;
}

/* As training saw the beginning of a document: behind the token that ended the one before, unless they are kept apart. */
static void encode_text(const struct sample *s, const struct pd_config *config, int32_t *tokens, uint32_t *count)
{
    const bool is_led = s->document_token >= 0 && !config->data.separate_documents;
    const char *text = s->prompt ? s->prompt : is_led ? "" : "\n";
    if (is_led) tokens[(*count)++] = (int32_t)s->document_token;
    for (; *text; text++)
        tokens[(*count)++] = (unsigned char)*text;
}

/* Tokens of the prompt: bytes of the text, or the numbers given. */
static pd_status encode(const struct sample *s, const struct pd_config *config, int32_t **ret_tokens, uint32_t *ret_count,
                        struct pd_error *err)
{
    const char *text = s->tokens ? s->tokens : s->prompt ? s->prompt : "";
    if (!s->tokens && !s->bytes)
        PD_FAIL(err, PD_INVALID, "this model has %u tokens and reads no text: give the prompt as --tokens=N,N,...",
                config->model.vocab);
    int32_t *tokens = calloc(strlen(text) + 2, sizeof *tokens);
    if (!tokens) PD_FAIL(err, PD_NO_MEMORY, "sample: no memory for the prompt");
    uint32_t count = 0;
    pd_status st = PD_OK;
    if (s->tokens)
        st = encode_numbers(s->tokens, tokens, &count, err);
    else
        encode_text(s, config, tokens, &count);
    if (st) {
        free(tokens);
        return st;
    }
    *ret_tokens = tokens;
    *ret_count = count;
    return PD_OK;
}

/* PATH may be a run directory: its checkpoints lie in a directory of their own, or in that of the tier with the newest. */
static pd_status checkpoints_of(const char *path, char *buffer, size_t room, const char **ret_path, struct pd_error *err)
{
    struct stat st;
    if (stat(path, &st) || !S_ISDIR(st.st_mode))
        PD_FAIL(err, PD_NOT_FOUND, "%s is no directory; name a run or its directory of checkpoints", path);
    struct pd_run_tiers tiers;
    pd_run_tiers_of_run(path, &tiers);
    pd_status looked = pd_run_tiers_look(&tiers, err);
    if (tiers.count > 1) (void)pd_run_tiers_warn(&tiers);
    const struct pd_run_tier *newest = pd_run_tiers_newest(&tiers);
    if (looked && !newest) return looked;
    if (newest)
        snprintf(buffer, room, "%s", newest->dir);
    else
        snprintf(buffer, room, "%s/checkpoints", path);
    *ret_path = stat(buffer, &st) == 0 ? buffer : path;
    return PD_OK;
}

static pd_status draw(struct sample *s, struct pd_error *err)
{
    char buffer[4096];
    struct pd_config config;
    int32_t *tokens = NULL;
    struct pd_sample_options options = {.count = (uint32_t)s->count,
                                        .temperature = s->temperature,
                                        .top_k = (uint32_t)s->top_k,
                                        .seed = s->seed,
                                        .threads = (uint32_t)s->threads,
                                        .loaded = loaded,
                                        .emit = emit,
                                        .context = s};
    PD_TRY(checkpoints_of(s->path, buffer, sizeof buffer, &options.checkpoints, err));
    PD_TRY(pd_sample_config(options.checkpoints, &config, err));
    s->bytes = is_over_bytes(&config);
    s->document_token = config.data.document_token;
    pd_status st = encode(s, &config, &tokens, &options.prompt_count, err);
    pd_config_deinit(&config);
    options.prompt = tokens;
    if (!st) st = pd_sample_run(&options, err);
    free(tokens);
    return st;
}

pd_status pd_cmd_sample(int argc, char **argv, struct pd_error *err)
{
    struct sample s = {.count = 200, .temperature = 0.8, .seed = 1, .document_token = -1};
    static const char number[] = "a whole number; see perdure sample --help";
    uint32_t paths;
    bool done;
    struct pd_option options[] = {
        {.name = "prompt", "TEXT", "text to go on from (models over bytes)", PD_OPTION_TEXT, &s.prompt},
        {.name = "tokens", "N,N,...", "tokens to go on from (any model)", PD_OPTION_TEXT, &s.tokens},
        {.name = "count",
         "N",
         "tokens to draw (200), fewer where a document ends",
         PD_OPTION_U64,
         &s.count,
         .expected = number},
        {.name = "temperature", "X", "0: always the likeliest (0.8)", PD_OPTION_SET, &s.temperature, .set = set_temperature},
        {.name = "top-k", "N", "draw among the N likeliest; 0: all (0)", PD_OPTION_U64, &s.top_k, .expected = number},
        {.name = "seed", "N", "the same seed draws the same text (1)", PD_OPTION_U64, &s.seed, .expected = number},
        {.name = "threads", "N", "0: all cores (0)", PD_OPTION_U64, &s.threads, .expected = number},
        {0}};
    const struct pd_usage usage = {.arguments = "PATH",
                                   .doc = "Draws text from the newest checkpoint under PATH: a run directory, its "
                                          "checkpoints, or the directory given as checkpoint.dir.",
                                   .options = options,
                                   .json = &s.json,
                                   .words = &s.path,
                                   .words_max = 1,
                                   .word_count = &paths};
    PD_TRY(pd_command_parse(&usage, argc, argv, &done, err));
    if (done) return PD_OK;
    if (!s.path)
        PD_FAIL(err, PD_USAGE, "sample needs a run directory: perdure sample runs/kjv --prompt=\"In the beginning\"");
    if (s.prompt && s.tokens) PD_FAIL(err, PD_USAGE, "sample takes --prompt or --tokens, not both");
    if (s.count > 1u << 20 || s.top_k > UINT32_MAX || s.threads > 1024)
        PD_FAIL(err, PD_USAGE, "sample: --count is at most 1048576 and --threads at most 1024");
    if (s.json) {
        s.text = calloc(s.count + 1, 1);
        if (!s.text) PD_FAIL(err, PD_NO_MEMORY, "sample: no memory for the text");
        pd_json_writer_init(&s.writer, 0);
        pd_json_object_begin(&s.writer, NULL);
    }
    pd_status st = draw(&s, err);
    if (!s.json) {
        if (!st) putchar('\n');
        return st;
    }
    if (st) {
        pd_json_writer_deinit(&s.writer);
        free(s.text);
        return st;
    }
    pd_json_array_end(&s.writer);
    pd_json_string(&s.writer, "text", s.bytes ? s.text : NULL);
    free(s.text);
    pd_json_object_end(&s.writer);
    return pd_output_json(&s.writer, err);
}
