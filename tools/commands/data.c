#include "ckpt/base/fault.h"
#include "ckpt/base/parse.h"
#include "ckpt/base/words.h"
#include "tools/command.h"
#include "tools/output.h"
#include "trainer/data/data_cache.h"
#include "trainer/data/pack.h"
#include "trainer/run/signals.h"
#include "trainer/tokenizer/tokenizer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct options {
    struct pd_pack_options pack;
    unsigned packed;             /* format to write, counted from nanogpt */
    const char **inputs;         /* (argc) space for all arguments, owned */
    struct pd_remote_list found; /* what inputs in buckets stand for */
    struct pd_data_cache *cache; /* of copies of these; NULL: none */
    const char *prompt, *completion;
    char *separator;                        /* owned */
    struct pd_tokenizer *opened;            /* owned */
    const char *tokenizer, *document_token; /* as given; NULL: bytes; none */
    bool json;
};

/* Replaces the escapes \n, \t and \\; other bytes stay. A shell cannot easily write those. */
static pd_status set_separator(const struct pd_option *option, const char *text, struct pd_error *err)
{
    struct options *o = option->value;
    free(o->separator);
    char *out = o->separator = malloc(strlen(text) + 1);
    if (!out) PD_FAIL(err, PD_NO_MEMORY, "no memory for arguments");
    for (; *text; text++) {
        bool escape = text[0] == '\\' && text[1] && strchr("nt\\", text[1]);
        if (escape) text++;
        *out++ = !escape ? *text : *text == 'n' ? '\n' : *text == 't' ? '\t' : '\\';
    }
    *out = '\0';
    o->pack.separator = o->separator;
    return PD_OK;
}

static pd_status set_token(const struct pd_option *o, const char *text, struct pd_error *err)
{
    return pd_parse_i64(text, o->value) ? PD_OK : pd_option_refuse(o, text, "a whole number", err);
}

/* clang-format off */
#define FORMAT_ROW(doc) \
    PD_OPTION("format", "FORMAT", doc, PD_OPTION_CHOICE, &o.pack.format, .letter = 'f', \
     .expected = "auto, text, nanogpt, llmc or megatron")
#define TOKEN_ROW(doc) PD_OPTION("document-token", "N", doc, PD_OPTION_SET, &o.pack.document_token, .set = set_token)
/* clang-format on */

static pd_status data_parse(const char *arguments, const char *doc, struct pd_option *rows, uint32_t in_buckets, int argc,
                            char **argv, struct options *o, bool *ret_done, struct pd_error *err)
{
    o->inputs = calloc((size_t)argc, sizeof *o->inputs);
    if (!o->inputs) PD_FAIL(err, PD_NO_MEMORY, "no memory for arguments");
    o->pack.inputs = o->inputs;
    const struct pd_usage usage = {.arguments = arguments,
                                   .doc = doc,
                                   .options = rows,
                                   .json = &o->json,
                                   .words_in_buckets = in_buckets,
                                   PD_WORDS(o->inputs, (uint32_t)argc, &o->pack.input_count)};
    return pd_command_parse(&usage, argc, argv, ret_done, err);
}

/* --document-token is a number, or the text of one of the tokenizer's tokens. */
static pd_status resolve_document_token(struct options *o, struct pd_error *err)
{
    if (!o->document_token || pd_parse_i64(o->document_token, &o->pack.document_token)) return PD_OK;
    o->pack.document_token = o->pack.tokenizer ? pd_tokenizer_find(o->pack.tokenizer, o->document_token) : -1;
    if (o->pack.document_token >= 0) return PD_OK;
    if (!o->pack.tokenizer)
        PD_FAIL(err, PD_USAGE, "--document-token=%s: without --tokenizer it is a whole number", o->document_token);
    PD_FAIL(err, PD_USAGE, "--document-token=%s: %s has no such token; give its number", o->document_token, o->tokenizer);
}

static void options_deinit(struct options *o)
{
    free(o->inputs);
    pd_data_cache_close(o->cache);
    pd_remote_list_deinit(&o->found);
    free(o->separator);
    pd_tokenizer_free(o->opened);
}

/* ---- pack ---- */

static pd_status print_packed(const struct pd_pack_options *options, const struct pd_pack_result *r, bool json,
                              struct pd_error *err)
{
    if (!json) {
        printf("%s: %s tokens (%s, %s) of %s document%s, %s\n", options->output, pd_text_count(r->tokens).text,
               pd_data_format_name(r->format), r->type_name, pd_text_count(r->documents).text, r->documents == 1 ? "" : "s",
               pd_text_bytes(r->output_bytes).text);
        if (r->documents > 1 && options->document_token < 0 && r->format != PD_DATA_MEGATRON)
            printf("nothing separates the documents: --document-token=%s\n",
                   options->tokenizer ? "TOKEN ends each, its number or its text"
                                      : "256 ends each, and model.vocab is then 257");
        if (options->tokenizer)
            printf("tokenizer %s, a copy lies beside the file; model.vocab must be at least %u\n",
                   pd_text_hex(pd_tokenizer_digest(options->tokenizer)).text, pd_tokenizer_vocab(options->tokenizer));
        if (r->learned < r->tokens) printf("tokens with a loss: %s\n", pd_text_count(r->learned).text);
        if (r->empty_documents) printf("empty documents left out: %s\n", pd_text_count(r->empty_documents).text);
        return PD_OK;
    }
    struct pd_json_writer w;
    pd_json_writer_init_object(&w, 2);
    PD_JSON_STRINGS(&w, {"output", options->output}, {"format", pd_data_format_name(r->format)}, {"type", r->type_name});
    PD_JSON_U64S(&w, {"input_bytes", r->input_bytes}, {"output_bytes", r->output_bytes}, {"tokens", r->tokens},
                 {"documents", r->documents}, {"empty_documents", r->empty_documents}, {"learned", r->learned});
    if (options->tokenizer) {
        pd_json_hex64(&w, "tokenizer", pd_tokenizer_digest(options->tokenizer));
        pd_json_u64(&w, "vocab", pd_tokenizer_vocab(options->tokenizer));
    }
    return pd_output_json(&w, err);
}

/* Replaces inputs in buckets by copies on this host. */
static pd_status fetch_inputs(struct options *o, struct pd_error *err)
{
    const struct pd_data_cache_options cache = {.bytes = PD_DATA_CACHE_BYTES, .should_stop = pd_signals_stop()};
    bool any = false;
    for (uint32_t i = 0; i < o->pack.input_count; i++)
        any |= pd_data_is_remote(o->inputs[i]);
    if (!any) return PD_OK;
    for (uint32_t i = 0; i < o->pack.input_count; i++)
        PD_TRY(pd_data_cache_list(o->inputs[i], &o->found, err));
    PD_TRY(pd_data_cache_open(&cache, (const char *const *)o->found.urls, o->found.count, &o->cache, err));
    const char **inputs = realloc(o->inputs, o->found.count * sizeof *inputs);
    if (!inputs) PD_FAIL(err, PD_NO_MEMORY, "no memory for arguments");
    o->pack.inputs = o->inputs = inputs;
    o->pack.input_count = o->found.count;
    for (uint32_t i = 0; i < o->found.count; i++)
        inputs[i] = pd_data_cache_path(o->cache, i);
    return PD_OK;
}

static pd_status take_turns(struct options *o, struct pd_error *err)
{
    const bool is_pair = o->prompt || o->completion;
    if (is_pair && (!o->prompt || !o->completion))
        PD_FAIL(err, PD_USAGE, "--prompt and --completion go together; see perdure data pack --help");
    if (is_pair + (o->pack.turns[0] != NULL) + (o->pack.field != NULL) > 1)
        PD_FAIL(err, PD_USAGE, "give one of --field, --prompt with --completion, and --turns");
    o->pack.is_rendered = o->pack.turns[0];
    if (!is_pair) return PD_OK;
    o->pack.turns[0] = o->prompt;
    o->pack.turns[1] = o->completion;
    return PD_OK;
}

static pd_status data_pack(struct options *o, bool json, struct pd_error *err)
{
    struct pd_pack_result result;
    struct pd_shown_progress progress;
    PD_TRY(pd_fault_configure_env(err));
    PD_TRY(pd_signals_install(err));
    if (!o->pack.input_count)
        PD_FAIL(err, PD_USAGE, "name at least one file or directory of text; see perdure data pack --help");
    if (!o->pack.output) PD_FAIL(err, PD_USAGE, "name the token file with --output=FILE; see perdure data pack --help");
    o->pack.format = PD_DATA_NANOGPT + o->packed;
    if (o->tokenizer) PD_TRY(pd_tokenizer_open(o->tokenizer, &o->opened, err));
    o->pack.tokenizer = o->opened && !pd_tokenizer_is_bytes(o->opened) ? o->opened : NULL;
    PD_TRY(resolve_document_token(o, err));
    PD_TRY(take_turns(o, err));
    PD_TRY(fetch_inputs(o, err));
    o->pack.should_stop = pd_signals_stop();
    o->pack.progress = pd_shown_progress_start(&progress);
    o->pack.progress_context = &progress;
    pd_status status = pd_data_pack(&o->pack, &result, err);
    pd_shown_progress_end(&progress);
    if (status == PD_STOPPED) pd_error_append(err, "; %s is as it was; run the same command to start over", o->pack.output);
    if (status == PD_EXISTS) PD_FAIL(err, PD_USAGE, "%s exists already; --overwrite replaces it", o->pack.output);
    PD_TRY(status);
    fputs(result.notes, stderr);
    status = print_packed(&o->pack, &result, json, err);
    pd_pack_result_deinit(&result);
    return status;
}

static pd_status run_pack(int argc, char **argv, struct pd_error *err)
{
    struct options o = {.pack = {.document_token = -1}};
    bool done = false;
    struct pd_option rows[] = {
        PD_OPTION("format", "FORMAT", "nanogpt (default), llmc or megatron", PD_OPTION_CHOICE, &o.packed, .letter = 'f',
                  .expected = "nanogpt, llmc or megatron"),
        PD_OPTION("output", "FILE", "the token file; megatron writes FILE.bin and FILE.idx", PD_OPTION_TEXT, &o.pack.output,
                  .letter = 'o'),
        PD_OPTION("tokenizer", "PATH", "a tokenizer.json, a directory that holds one, or byte (default)", PD_OPTION_TEXT,
                  &o.tokenizer),
        PD_OPTION(
            "document-token", "TOKEN",
            "end each document with this token: its number, or its text in the tokenizer (for bytes: a number from 256 on)",
            PD_OPTION_TEXT, &o.document_token),
        PD_OPTION("separator", "TEXT", "text that separates documents in a file and is not written; may contain \\n and \\t",
                  PD_OPTION_SET, &o, .set = set_separator),
        PD_OPTION("field", "NAME", "the field of JSON lines that holds the text (default: text)", PD_OPTION_TEXT,
                  &o.pack.field),
        PD_OPTION("prompt", "NAME", "with --completion: the field of the text that has no loss", PD_OPTION_TEXT, &o.prompt),
        PD_OPTION("completion", "NAME", "the field of the text that follows the prompt and has a loss", PD_OPTION_TEXT,
                  &o.completion),
        PD_OPTION("turns", "NAME",
                  "the field with an array of texts, every other one with a loss from the second on, as "
                  "perdure.render_chat writes them",
                  PD_OPTION_TEXT, &o.pack.turns[0]),
        PD_OPTION("overwrite", NULL, "replace an existing output", PD_OPTION_FLAG, &o.pack.overwrite),
        {0}};
    pd_status status =
        data_parse("TEXT...",
                   "Packs text into a token file. Tokens are bytes, or what --tokenizer makes of the text. TEXT "
                   "is a file, a directory or a glob of text or JSON lines, plain or compressed with gzip or "
                   "zstd. Each text file is a document, and so is each line of JSON. TEXT may be s3://bucket/key.",
                   rows, UINT32_MAX, argc, argv, &o, &done, err);
    if (!status && !done) status = data_pack(&o, o.json, err);
    options_deinit(&o);
    return status;
}

/* ---- inspect ---- */

static void write_inspection(struct pd_json_writer *w, const char *name, const struct pd_data_inspection *x)
{
    pd_json_object_begin(w, NULL);
    PD_JSON_STRINGS(w, {"path", name}, {"index", x->file.index_path}, {"format", pd_data_format_name(x->file.format)},
                    {"type", pd_token_type_name(x->file.type)});
    PD_JSON_U64S(w, {"bytes", x->file.file_bytes}, {"tokens", x->file.token_count}, {"learned", x->scan.learned},
                 {"documents", x->documents}, {"sequences", x->file.sequence_count});
    pd_json_i64(w, "min", x->scan.min);
    pd_json_i64(w, "max", x->scan.max);
    pd_json_u64(w, "distinct", x->distinct);
    pd_json_hex64(w, "digest", x->scan.digest);
    if (x->tokenizer.digest) pd_json_hex64(w, "tokenizer", x->tokenizer.digest);
    if (x->tokenizer.digest) pd_json_u64(w, "tokenizer_vocab", x->tokenizer.vocab);
    pd_json_array_begin(w, "top");
    for (uint32_t i = 0; i < x->top_count; i++) {
        pd_json_object_begin(w, NULL);
        pd_json_i64(w, "token", x->top[i].token);
        pd_json_u64(w, "count", x->top[i].count);
        pd_json_object_end(w);
    }
    pd_json_array_end(w);
    pd_json_array_begin(w, "first");
    for (uint32_t i = 0; i < x->first_count; i++)
        pd_json_i64(w, NULL, x->first[i]);
    pd_json_array_end(w);
    pd_json_object_end(w);
}

/* Prints a byte readably, in quotes; other tokens are only numbers. */
static void print_byte(int64_t token)
{
    if (token > 32 && token < 127) printf(" '%c'", (int)token);
    if (token == 32) printf(" space");
    if (token == 10) printf(" newline");
}

static void print_inspection(const char *name, const struct pd_data_inspection *x)
{
    printf("%s\n", name);
    if (x->file.index_path) printf("  index      %s\n", x->file.index_path);
    printf("  format     %s, %s, %s\n", pd_data_format_name(x->file.format), pd_token_type_name(x->file.type),
           pd_text_bytes(x->file.file_bytes).text);
    printf("  tokens     %s, from %" PRId64 " to %" PRId64 "\n", pd_text_count(x->file.token_count).text, x->scan.min,
           x->scan.max);
    if (x->file.loss_fd >= 0) printf("  with loss  %s\n", pd_text_count(x->scan.learned).text);
    if (x->distinct) printf("  distinct   %s\n", pd_text_count(x->distinct).text);
    if (x->documents) printf("  documents  %s\n", pd_text_count(x->documents).text);
    if (x->file.sequence_count) printf("  sequences  %s\n", pd_text_count(x->file.sequence_count).text);
    printf("  digest     %s\n  frequent  ", pd_text_hex(x->scan.digest).text);
    for (uint32_t i = 0; i < x->top_count && i < 8; i++) {
        printf(" %" PRId64, x->top[i].token);
        if (x->scan.max < 256) print_byte(x->top[i].token);
        printf(" (%.1f%%)%s", 100.0 * (double)x->top[i].count / (double)x->file.token_count,
               i + 1 < x->top_count && i < 7 ? "," : "\n");
    }
    printf("  begins    ");
    for (uint32_t i = 0; i < x->first_count; i++)
        printf(" %d", x->first[i]);
    const int64_t vocab = x->tokenizer.vocab > x->scan.max ? x->tokenizer.vocab : x->scan.max + 1;
    if (x->tokenizer.digest) printf("\n  tokenizer  %s", pd_text_hex(x->tokenizer.digest).text);
    printf("\n  needs      model.vocab of at least %" PRId64 "\n", vocab);
}

static pd_status inspect(const struct options *o, bool json, struct pd_error *err)
{
    struct pd_json_writer w;
    if (!o->pack.input_count) PD_FAIL(err, PD_USAGE, "name at least one file; see perdure data inspect --help");
    pd_json_writer_init(&w, 2);
    pd_json_array_begin(&w, NULL);
    for (uint32_t i = 0; i < o->pack.input_count; i++) {
        struct pd_data_inspection x;
        struct pd_data_cache *cache = NULL;
        const char *path = NULL;
        pd_status status = pd_data_cache_open_one(o->inputs[i], &cache, &path, err);
        if (!status) status = pd_data_inspect(path, o->pack.format, o->pack.document_token, &x, err);
        if (status) {
            pd_data_cache_close(cache);
            pd_json_writer_deinit(&w);
            return status;
        }
        const char *name = pd_data_is_remote(o->inputs[i]) ? o->inputs[i] : x.file.path;
        if (json)
            write_inspection(&w, name, &x);
        else
            print_inspection(name, &x);
        pd_data_inspection_deinit(&x);
        pd_data_cache_close(cache);
    }
    if (json) return pd_output_json(&w, err);
    pd_json_writer_deinit(&w);
    return PD_OK;
}

static pd_status run_inspect(int argc, char **argv, struct pd_error *err)
{
    struct options o = {.pack = {.document_token = -1}};
    bool done = false;
    struct pd_option rows[] = {FORMAT_ROW("auto (default, by magic and name), text, nanogpt, llmc or megatron"),
                               TOKEN_ROW("count documents that end with this token"),
                               {0}};
    pd_status status =
        data_parse("FILE...", "Shows what token files hold. Reads and checks every token. FILE may be s3://bucket/key.",
                   rows, UINT32_MAX, argc, argv, &o, &done, err);
    if (!status && !done) status = inspect(&o, o.json, err);
    options_deinit(&o);
    return status;
}

pd_status pd_cmd_data(int argc, char **argv, struct pd_error *err)
{
    static const struct pd_command commands[] = {
        {"pack", "--output=FILE TEXT...", "make a token file from text", run_pack},
        {"inspect", "FILE...", "show what token files hold", run_inspect},
        {0},
    };
    return pd_command_dispatch(commands, argv[0], argc, argv, err);
}
