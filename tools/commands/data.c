#include "ckpt/base/parse.h"
#include "tools/command.h"
#include "tools/output.h"
#include "trainer/data/inspect.h"
#include "trainer/data/pack.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPTION_FORMAT = 'f', OPTION_OUTPUT = 'o', OPTION_TOKEN = 0x2001, OPTION_SEPARATOR, OPTION_OVERWRITE };

struct options {
    struct pd_pack_options pack;
    const char **inputs; /* (argc) room for all arguments, owned */
    char *separator;     /* owned */
    struct pd_error *err;
};

static const char *const format_names[] = {"auto", "text", "nanogpt", "llmc", "megatron"};

static error_t parse_format(struct options *o, const char *text)
{
    for (int i = 0; i < 5; i++) {
        if (strcmp(format_names[i], text) != 0) continue;
        o->pack.format = (enum pd_data_format)i;
        return 0;
    }
    (void)pd_error_set(o->err, PD_USAGE, PD_WHERE, 0, "--format=%s: there are auto, text, nanogpt, llmc and megatron", text);
    return EINVAL;
}

/* \n, \t, \\ and \0-free bytes as they are: what a shell cannot easily write. */
static error_t parse_separator(struct options *o, const char *text)
{
    char *out = o->separator = malloc(strlen(text) + 1);
    if (!out) return ENOMEM;
    for (; *text; text++) {
        bool escape = text[0] == '\\' && text[1] && strchr("nt\\", text[1]);
        if (escape) text++;
        *out++ = !escape ? *text : *text == 'n' ? '\n' : *text == 't' ? '\t' : '\\';
    }
    *out = '\0';
    o->pack.separator = o->separator;
    return 0;
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct options *o = state->input;
    switch (key) {
    case OPTION_FORMAT:
        return parse_format(o, argument);
    case OPTION_OUTPUT:
        o->pack.output = argument;
        return 0;
    case OPTION_SEPARATOR:
        return parse_separator(o, argument);
    case OPTION_OVERWRITE:
        o->pack.overwrite = true;
        return 0;
    case OPTION_TOKEN:
        if (pd_parse_i64(argument, &o->pack.document_token)) return 0;
        (void)pd_error_set(o->err, PD_USAGE, PD_WHERE, 0, "--document-token=%s: expected a whole number", argument);
        return EINVAL;
    case ARGP_KEY_ARG:
        o->inputs[o->pack.input_count++] = argument;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

#define TOKEN_OPTION(DOC)                                                     \
    {                                                                         \
        .name = "document-token", .key = OPTION_TOKEN, .arg = "N", .doc = DOC \
    }
#define FORMAT_OPTION(DOC)                                                  \
    {                                                                       \
        .name = "format", .key = OPTION_FORMAT, .arg = "FORMAT", .doc = DOC \
    }

static pd_status parse_arguments(const struct argp *argp, int argc, char **argv, struct options *o, bool *ret_json,
                                 bool *ret_done, struct pd_error *err)
{
    o->err = err;
    o->pack.document_token = -1;
    o->inputs = calloc((size_t)argc, sizeof *o->inputs);
    if (!o->inputs) PD_FAIL(err, PD_NO_MEMORY, "no memory for arguments");
    o->pack.inputs = o->inputs;
    return pd_command_parse(argp, argc, argv, o, ret_json, ret_done, err);
}

static void options_deinit(struct options *o)
{
    free(o->inputs);
    free(o->separator);
}

/* ---- pack ---- */

static pd_status print_packed(const struct pd_pack_options *options, const struct pd_pack_result *r, bool json,
                              struct pd_error *err)
{
    if (!json) {
        printf("%s: %s tokens (%s, %s) of %s document%s, %s\n", options->output, pd_text_count(r->tokens).text,
               format_names[r->format], r->type_name, pd_text_count(r->documents).text, r->documents == 1 ? "" : "s",
               pd_text_bytes(r->output_bytes).text);
        if (r->empty_documents) printf("empty documents left out: %s\n", pd_text_count(r->empty_documents).text);
        return PD_OK;
    }
    struct pd_json_writer w;
    pd_json_writer_init(&w, 2);
    pd_json_object_begin(&w, NULL);
    pd_json_string(&w, "output", options->output);
    pd_json_string(&w, "format", format_names[r->format]);
    pd_json_string(&w, "type", r->type_name);
    pd_json_u64(&w, "input_bytes", r->input_bytes);
    pd_json_u64(&w, "output_bytes", r->output_bytes);
    pd_json_u64(&w, "tokens", r->tokens);
    pd_json_u64(&w, "documents", r->documents);
    pd_json_u64(&w, "empty_documents", r->empty_documents);
    pd_json_object_end(&w);
    return pd_output_json(&w, err);
}

static pd_status pack(struct options *o, bool json, struct pd_error *err)
{
    struct pd_pack_result result;
    if (!o->pack.input_count) PD_FAIL(err, PD_USAGE, "name at least one text file; see perdure data pack --help");
    if (!o->pack.output) PD_FAIL(err, PD_USAGE, "name the token file with --output=FILE; see perdure data pack --help");
    if (o->pack.format == PD_DATA_AUTO) o->pack.format = PD_DATA_NANOGPT;
    if (o->pack.format == PD_DATA_TEXT)
        PD_FAIL(err, PD_USAGE, "--format=text: text needs no packing, data.train[0].path takes it as it is");
    pd_status status = pd_data_pack(&o->pack, &result, err);
    if (status == PD_EXISTS) PD_FAIL(err, PD_USAGE, "%s is there already; --overwrite replaces it", o->pack.output);
    PD_TRY(status);
    return print_packed(&o->pack, &result, json, err);
}

static pd_status run_pack(int argc, char **argv, struct pd_error *err)
{
    static const struct argp_option options[] = {
        FORMAT_OPTION("nanogpt (default), llmc or megatron"),
        {.name = "output",
         .key = OPTION_OUTPUT,
         .arg = "FILE",
         .doc = "the token file; megatron writes FILE.bin and FILE.idx"},
        TOKEN_OPTION("this token ends each document (256 and more are free)"),
        {.name = "separator",
         .key = OPTION_SEPARATOR,
         .arg = "TEXT",
         .doc = "stands between documents of one input and is not written; \\n and \\t are understood"},
        {.name = "overwrite", .key = OPTION_OVERWRITE, .doc = "replace an existing output"},
        {0},
    };
    static const struct argp argp = {.options = options,
                                     .parser = parse,
                                     .args_doc = "TEXT...",
                                     .doc =
                                         "Packs text files into a token file; a token is a byte. Each input is a document."};
    struct options o = {0};
    bool json = false, done = false;
    pd_status status = parse_arguments(&argp, argc, argv, &o, &json, &done, err);
    if (!status && !done) status = pack(&o, json, err);
    options_deinit(&o);
    return status;
}

/* ---- inspect ---- */

static void write_inspection(struct pd_json_writer *w, const struct pd_data_inspection *x)
{
    pd_json_object_begin(w, NULL);
    pd_json_string(w, "path", x->path);
    pd_json_string(w, "index", x->index_path);
    pd_json_string(w, "format", x->format_name);
    pd_json_string(w, "type", x->type_name);
    pd_json_u64(w, "bytes", x->file_bytes);
    pd_json_u64(w, "tokens", x->tokens);
    pd_json_u64(w, "documents", x->documents);
    pd_json_u64(w, "sequences", x->sequences);
    pd_json_i64(w, "min", x->min);
    pd_json_i64(w, "max", x->max);
    pd_json_u64(w, "distinct", x->distinct);
    pd_json_hex64(w, "digest", x->digest);
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

/* A byte as it would be read, in quotes; other tokens are numbers alone. */
static void print_byte(int64_t token)
{
    if (token > 32 && token < 127) printf(" '%c'", (int)token);
    if (token == 32) printf(" space");
    if (token == 10) printf(" newline");
}

static void print_inspection(const struct pd_data_inspection *x)
{
    printf("%s\n", x->path);
    if (x->index_path) printf("  index      %s\n", x->index_path);
    printf("  format     %s, %s, %s\n", x->format_name, x->type_name, pd_text_bytes(x->file_bytes).text);
    printf("  tokens     %s, from %" PRId64 " to %" PRId64 "\n", pd_text_count(x->tokens).text, x->min, x->max);
    if (x->distinct) printf("  distinct   %s\n", pd_text_count(x->distinct).text);
    if (x->documents) printf("  documents  %s\n", pd_text_count(x->documents).text);
    if (x->sequences) printf("  sequences  %s\n", pd_text_count(x->sequences).text);
    printf("  digest     %s\n  frequent  ", pd_text_hex(x->digest).text);
    for (uint32_t i = 0; i < x->top_count && i < 8; i++) {
        printf(" %" PRId64, x->top[i].token);
        if (x->max < 256) print_byte(x->top[i].token);
        printf(" (%.1f%%)%s", 100.0 * (double)x->top[i].count / (double)x->tokens,
               i + 1 < x->top_count && i < 7 ? "," : "\n");
    }
    printf("  begins    ");
    for (uint32_t i = 0; i < x->first_count; i++)
        printf(" %d", x->first[i]);
    printf("\n  needs      model.vocab of at least %" PRId64 "\n", x->max + 1);
}

static pd_status inspect(const struct options *o, bool json, struct pd_error *err)
{
    struct pd_json_writer w;
    if (!o->pack.input_count) PD_FAIL(err, PD_USAGE, "name at least one file; see perdure data inspect --help");
    pd_json_writer_init(&w, 2);
    pd_json_array_begin(&w, NULL);
    for (uint32_t i = 0; i < o->pack.input_count; i++) {
        struct pd_data_inspection x;
        pd_status status = pd_data_inspect(o->inputs[i], o->pack.format, o->pack.document_token, &x, err);
        if (status) {
            pd_json_writer_deinit(&w);
            return status;
        }
        if (json)
            write_inspection(&w, &x);
        else
            print_inspection(&x);
        pd_data_inspection_deinit(&x);
    }
    pd_json_array_end(&w);
    if (json) return pd_output_json(&w, err);
    pd_json_writer_deinit(&w);
    return PD_OK;
}

static pd_status run_inspect(int argc, char **argv, struct pd_error *err)
{
    static const struct argp_option options[] = {
        FORMAT_OPTION("auto (default, by magic and name), text, nanogpt, llmc or megatron"),
        TOKEN_OPTION("count documents that end with this token"),
        {0},
    };
    static const struct argp argp = {.options = options,
                                     .parser = parse,
                                     .args_doc = "FILE...",
                                     .doc = "What token files hold; every token is read and checked."};
    struct options o = {0};
    bool json = false, done = false;
    pd_status status = parse_arguments(&argp, argc, argv, &o, &json, &done, err);
    if (!status && !done) status = inspect(&o, json, err);
    options_deinit(&o);
    return status;
}

pd_status pd_cmd_data(int argc, char **argv, struct pd_error *err)
{
    static const struct pd_command commands[] = {
        {"pack", "--output=FILE TEXT...", "make a token file out of text", run_pack},
        {"inspect", "FILE...", "what token files hold", run_inspect},
        {0},
    };
    return pd_command_dispatch(commands, argv[0], argc, argv, err);
}
