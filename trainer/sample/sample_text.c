#include "trainer/sample/sample_text.h"

#include "ckpt/base/log.h"
#include "ckpt/io/vfs.h"
#include "trainer/config/config.h"

#include <stdio.h>
#include <string.h>

#define BYTE_VOCAB_MAX 512 /* for a model over bytes with a document token: data pack gives it 256, and sizes are padded */

struct pd_sample_text {
    struct pd_tokenizer *tokenizer;
    struct pd_tokenizer_scratch *scratch;
    struct pd_decode_stream *stream;
    struct pd_string all; /* given since begin */
};

bool pd_sample_is_over_bytes(const struct pd_config *config, uint64_t digest)
{
    const int64_t document = config->data.document_token;
    if (digest) return digest == pd_tokenizer_digest_of_bytes();
    return config->model.vocab == 256 ||
           (document >= 256 && document < config->model.vocab && config->model.vocab <= BYTE_VOCAB_MAX);
}

/* Bytes of `place` up to the directory `levels` above; 0: there is none. In a bucket ".." is a name like others. */
static size_t length_above(const char *place, unsigned levels)
{
    size_t length = strlen(place);
    const size_t bucket = strcspn(place + strlen("s3://"), "/") + strlen("s3://");
    for (; levels && length > bucket; levels--) {
        while (length > bucket && place[length - 1] == '/')
            length--;
        while (length > bucket && place[length - 1] != '/')
            length--;
    }
    while (length > bucket && place[length - 1] == '/')
        length--;
    return levels ? 0 : length;
}

bool pd_sample_text_find(const char *place, char *ret_path, size_t capacity)
{
    static const char *const above[] = {"", "/..", "/../.."};
    static const char *const files[] = {PD_TOKENIZER_FILE, PD_TOKENIZER_GGUF_FILE};
    const bool is_remote = pd_vfs_is_remote(place);
    for (unsigned i = 0; i < 2 * sizeof above / sizeof above[0]; i++) {
        const size_t length = is_remote ? length_above(place, i / 2) : strlen(place);
        snprintf(ret_path, capacity, "%.*s%s/%s", (int)length, place, is_remote ? "" : above[i / 2], files[i % 2]);
        if (length && pd_tokenizer_file_exists(ret_path)) return true;
    }
    return false;
}

/*   *ret_name  for messages */
static const char *choose_path(const struct pd_sample_text_options *options, char *buffer, size_t capacity,
                               const char **ret_name)
{
    *ret_name = options->path ? options->path : buffer;
    if (options->path) return options->path;
    if (pd_sample_text_find(options->run, buffer, capacity)) return buffer;
    if (options->model) *ret_name = options->model;
    const bool is_other = strcmp(options->checkpoints, options->run) != 0;
    if (is_other && pd_sample_text_find(options->checkpoints, buffer, capacity)) return buffer;
    *ret_name = "byte";
    return options->is_over_bytes ? *ret_name : NULL;
}

static pd_status sample_text_open_all(struct pd_sample_text *text, const char *path, const char *name,
                                      const struct pd_sample_text_options *options, struct pd_error *err)
{
    PD_TRY(pd_tokenizer_open_as(path, name, &text->tokenizer, err));
    const uint64_t digest = pd_tokenizer_digest(text->tokenizer);
    const uint32_t vocab = pd_tokenizer_vocab(text->tokenizer);
    if (!pd_tokenizer_is_bytes(text->tokenizer) && vocab > options->vocab)
        PD_FAIL(err, PD_INVALID,
                "%s has %u tokens and the model %u: it belongs to another model; name its own with --tokenizer=PATH", name,
                vocab, options->vocab);
    if (options->digest && digest != options->digest)
        pd_log_warn("sample",
                    "%s is not the tokenizer that the model was trained with (digest %016llx, and the checkpoint remembers "
                    "%016llx): "
                    "what it writes may be nonsense",
                    name, (unsigned long long)digest, (unsigned long long)options->digest);
    PD_TRY(pd_tokenizer_scratch_new(text->tokenizer, &text->scratch, err));
    return pd_decode_stream_new(text->tokenizer, true, &text->stream, err);
}

pd_status pd_sample_text_open(const struct pd_sample_text_options *options, struct pd_sample_text **ret_text,
                              struct pd_error *err)
{
    char buffer[4200];
    const char *name, *path = choose_path(options, buffer, sizeof buffer, &name);
    *ret_text = NULL;
    if (!path) return PD_OK;
    struct pd_sample_text *text = calloc(1, sizeof *text);
    if (!text) PD_FAIL(err, PD_NO_MEMORY, "sample: no memory for a tokenizer");
    pd_status status = sample_text_open_all(text, path, name, options, err);
    if (status) {
        pd_sample_text_free(text);
        return status;
    }
    *ret_text = text;
    return PD_OK;
}

void pd_sample_text_free(struct pd_sample_text *text)
{
    if (!text) return;
    pd_decode_stream_free(text->stream);
    pd_tokenizer_scratch_free(text->scratch);
    pd_tokenizer_free(text->tokenizer);
    pd_string_deinit(&text->all);
    free(text);
}

pd_status pd_sample_text_encode(struct pd_sample_text *text, const char *prompt, struct pd_tokens *tokens,
                                struct pd_error *err)
{
    return pd_tokenizer_encode(text->tokenizer, text->scratch, prompt, strlen(prompt), true, tokens, err);
}

pd_status pd_sample_text_begin(struct pd_sample_text *text, const int32_t *prompt, size_t count, struct pd_error *err)
{
    const char *piece;
    size_t bytes;
    for (size_t i = 0; i < count; i++)
        PD_TRY(pd_decode_stream_add(text->stream, prompt[i], &piece, &bytes, err));
    return PD_OK;
}

/* A string ends at a zero byte, so these are dropped. */
static pd_status keep(struct pd_sample_text *text, const char *piece, size_t bytes, struct pd_error *err)
{
    for (size_t i = 0; i < bytes; i++)
        if (piece[i]) PD_TRY(pd_string_add(&text->all, &piece[i], 1, err));
    return PD_OK;
}

pd_status pd_sample_text_add(struct pd_sample_text *text, int32_t token, const char **ret_text, size_t *ret_bytes,
                             struct pd_error *err)
{
    PD_TRY(pd_decode_stream_add(text->stream, token, ret_text, ret_bytes, err));
    return keep(text, *ret_text, *ret_bytes, err);
}

pd_status pd_sample_text_end(struct pd_sample_text *text, const char **ret_text, size_t *ret_bytes, const char **ret_all,
                             struct pd_error *err)
{
    PD_TRY(pd_decode_stream_end(text->stream, ret_text, ret_bytes, err));
    PD_TRY(keep(text, *ret_text, *ret_bytes, err));
    PD_TRY(pd_string_add(&text->all, "", 1, err));
    *ret_all = text->all.bytes;
    return PD_OK;
}
