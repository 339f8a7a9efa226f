/* perdure eval: loss and perplexity of a checkpoint, ours or another program's. */
#include "tools/command.h"

#include "ckpt/base/log.h"
#include "tools/commands/ckpt.h"
#include "tools/library/foreign.h"
#include "tools/output.h"
#include "trainer/data/data_cache.h"
#include "trainer/data/pack.h"
#include "trainer/data/token_file.h"
#include "trainer/run/signals.h"
#include "trainer/sample/evaluate.h"
#include "trainer/sample/sample.h"
#include "trainer/sample/sample_text.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct eval {
    const char *path, *data, *given, *tokenizer; /* data: `given`, or its copy on this host */
    uint64_t windows;
    unsigned precision;
    uint32_t path_count, context, threads;
    bool json;
};

static void show_progress(void *context, uint64_t done, uint64_t windows)
{
    (void)context;
    if (pd_progress_mode().kind != PD_PROGRESS_BAR) return;
    (void)fprintf(stderr, PD_PROGRESS_CLEAR "window %llu of %llu", (unsigned long long)done, (unsigned long long)windows);
    if (done == windows) fputs(PD_PROGRESS_CLEAR, stderr);
}

/* ---- text ---- */

static bool is_text(const char *path)
{
    struct pd_token_file file;
    if (pd_token_file_open(path, PD_DATA_AUTO, &file, NULL)) return false;
    const bool is = file.format == PD_DATA_TEXT;
    pd_token_file_close(&file);
    return is;
}

static pd_status eval_pack(const struct eval *e, const struct pd_tokenizer *tokenizer, const char *output,
                           struct pd_error *err)
{
    struct pd_pack_result result;
    const struct pd_pack_options options = {.inputs = &e->data,
                                            .input_count = 1,
                                            .output = output,
                                            .format = PD_DATA_LLMC,
                                            .document_token = -1,
                                            .tokenizer = tokenizer,
                                            .should_stop = pd_signals_stop()};
    PD_TRY(pd_data_pack(&options, &result, err));
    pd_pack_result_deinit(&result);
    return PD_OK;
}

/* Checks that tokens are those the model was trained on, if the checkpoint knows (`trained`; 0: unknown). */
static pd_status check_tokenizer(const struct eval *e, const char *path, const struct pd_tokenizer *tokenizer,
                                 uint32_t vocab, uint64_t trained, struct pd_error *err)
{
    const bool is_over_bytes = trained == pd_tokenizer_digest_of_bytes();
    if (trained && trained != pd_tokenizer_digest(tokenizer))
        PD_FAIL(err, PD_INVALID, "%s was trained on tokens of another tokenizer (%s) than %s; give %s", e->path,
                is_over_bytes ? "byte" : pd_text_hex(trained).text, path,
                is_over_bytes ? "--tokenizer=byte" : "its own with --tokenizer=PATH");
    if (!pd_tokenizer_is_bytes(tokenizer) && pd_tokenizer_vocab(tokenizer) > vocab)
        PD_FAIL(err, PD_INVALID,
                "%s has %u tokens and the model %u: it belongs to another model; name its own with --tokenizer=PATH", path,
                pd_tokenizer_vocab(tokenizer), vocab);
    return PD_OK;
}

/* Converts text to tokens with the model's own tokenizer. *ret_data: what is evaluated, `buffer` or e->data. */
static pd_status eval_take_text(const struct eval *e, const char *checkpoints, struct pd_temporary *temporary,
                                char buffer[4200], const char **ret_data, struct pd_error *err)
{
    struct pd_config config;
    uint64_t digest;
    struct pd_tokenizer *tokenizer = NULL;
    *ret_data = e->data;
    if (!is_text(e->data)) return PD_OK;
    const bool is_own = pd_sample_text_find(e->path, buffer, 4200),
               is_beside = is_own || pd_sample_text_find(checkpoints, buffer, 4200);
    PD_TRY(pd_sample_config(checkpoints, &config, &digest, err));
    const uint32_t vocab = config.model.vocab;
    const bool is_over_bytes = pd_sample_is_over_bytes(&config, digest);
    pd_config_deinit(&config);
    if (!e->tokenizer && is_over_bytes && (digest || !is_beside)) {
        if (is_beside)
            pd_log_warn("eval", "%s was trained on bytes, so %s is not used; to choose so, give --tokenizer=byte", e->path,
                        buffer);
        return PD_OK;
    }
    if (!e->tokenizer && !is_beside)
        PD_FAIL(
            err, PD_INVALID,
            "%s is text, and this model has %u tokens and no tokenizer beside it: name one with --tokenizer=PATH, or give a "
            "file of tokens",
            e->data, vocab);
    /* The user does not know the temporary import, so name the given path. */
    const char *path = e->tokenizer ? e->tokenizer : buffer;
    const char *name = !e->tokenizer && !is_own && temporary->folder[0] ? e->path : path;
    PD_TRY(pd_tokenizer_open_as(path, name, &tokenizer, err));
    pd_status st = check_tokenizer(e, name, tokenizer, vocab, digest, err);
    if (!st && !pd_tokenizer_is_bytes(tokenizer)) {
        st = pd_temporary_make(temporary, err);
        snprintf(buffer, 4200, "%s/tokens.bin", temporary->folder);
        if (!st) st = eval_pack(e, tokenizer, buffer, err);
        *ret_data = buffer;
    }
    pd_tokenizer_free(tokenizer);
    return st;
}

static pd_status eval_run(const struct eval *e, struct pd_temporary *temporary, struct pd_evaluated *ret_evaluated,
                          struct pd_error *err)
{
    char place[4096], buffer[4200];
    const char *checkpoints = temporary->checkpoints, *data;
    const bool is_foreign = pd_ckpt_needs_import(e->path);
    if (is_foreign)
        PD_TRY(pd_temporary_import(temporary, e->path, err));
    else
        PD_TRY(pd_run_tiers_checkpoints_of(e->path, &pd_ckpt_notes, place, &checkpoints, err));
    PD_TRY(eval_take_text(e, checkpoints, temporary, buffer, &data, err));
    pd_should_stop should_stop = temporary->folder[0] ? pd_signals_stop() : (pd_should_stop){0};
    char path[4200];
    snprintf(path, sizeof path, "%s", data);
    const struct pd_evaluation evaluation = {.checkpoints = checkpoints,
                                             .data = {.path = path},
                                             .windows = e->windows,
                                             .context = e->context,
                                             .threads = e->threads,
                                             .precision = pd_precisions[e->precision],
                                             .should_stop = should_stop,
                                             .progress = show_progress};
    return pd_evaluate(&evaluation, ret_evaluated, err);
}

static pd_status print_result(const struct eval *e, const struct pd_evaluated *v, struct pd_error *err)
{
    struct pd_report report;
    pd_report_begin(&report, e->json);
    pd_report_text(&report, "data", e->given);
    pd_report_u64(&report, "step", v->step, PD_UNIT_NONE);
    pd_report_double(&report, "loss", v->loss, PD_UNIT_NONE);
    pd_report_double(&report, "perplexity", exp(v->loss), PD_UNIT_NONE);
    pd_report_double(&report, "bits_per_token", v->loss / log(2), PD_UNIT_NONE);
    PD_REPORT_U64S(&report, {"tokens", v->tokens}, {"windows", v->windows}, {"context", v->context});
    pd_report_double(&report, "seconds", v->seconds, PD_UNIT_SECONDS);
    return pd_report_end(&report, err);
}

pd_status pd_cmd_eval(int argc, char **argv, struct pd_error *err)
{
    struct eval e = {.path = NULL};
    struct pd_evaluated evaluated;
    struct pd_temporary temporary = {.folder = ""};
    struct pd_option options[] = {
        PD_OPTION("data", "FILE", "a text or token file; s3:// works too", PD_OPTION_TEXT, &e.given,
                  .may_be_in_bucket = true),
        PD_OPTION("windows", "N", "evaluate so many windows, spread evenly over the file (default: all)", PD_OPTION_U64,
                  &e.windows, 1, 1u << 30),
        PD_OPTION("context", "T", "tokens per window (default: as in training)", PD_OPTION_U32, &e.context, 1, 1u << 20),
        PD_OPTION("threads", "N", "default: all cores", PD_OPTION_U32, &e.threads, 1, 1024),
        PD_OPTION("tokenizer", "PATH",
                  "for text: a tokenizer.json, a directory that holds one, or byte (default: the model's own)",
                  PD_OPTION_TEXT, &e.tokenizer),
        PD_PRECISION_ROW(&e.precision),
        {0}};
    const struct pd_usage usage = {
        .arguments = "RUN --data=FILE",
        .doc = "Computes loss and perplexity of the newest checkpoint of RUN on FILE, on the CPU. RUN is a run directory, a "
               "directory of checkpoints, one checkpoint, or a checkpoint of another program, which is first converted into "
               "TMPDIR. RUN may be s3://bucket/prefix.",
        .options = options,
        .json = &e.json,
        PD_WORDS(&e.path, 1, &e.path_count),
        .words_in_buckets = 1};
    PD_COMMAND_PARSE(&usage, argc, argv, err);
    if (!e.path || !e.given) PD_FAIL(err, PD_USAGE, "eval needs a model and a file: perdure eval runs/mine --data=test.txt");
    if (!pd_data_is_remote(e.given) && access(e.given, R_OK))
        PD_FAIL(err, PD_INVALID, "--data=%s: %s; name a file of text or tokens", e.given, strerror(errno));
    struct pd_data_cache *cache = NULL;
    PD_TRY(pd_data_cache_open_one(e.given, &cache, &e.data, err));
    pd_status st = eval_run(&e, &temporary, &evaluated, err);
    st = pd_temporary_remove(&temporary, st, err);
    pd_data_cache_close(cache);
    PD_TRY(st);
    return print_result(&e, &evaluated, err);
}
