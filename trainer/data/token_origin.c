#include "trainer/data/token_origin.h"

#include "ckpt/base/digest.h"
#include "trainer/data/data_file.h"
#include "trainer/data/file_writer.h"
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

static pd_status token_origin_parse(const char *path, struct pd_token_origin *origin, struct pd_error *err)
{
    struct pd_tokenizer *tokenizer;
    struct pd_tokenizer_text text;
    PD_TRY(pd_tokenizer_read(path, &text, err));
    const uint64_t file_digest = pd_digest64(text.text, text.bytes, 0);
    pd_status status = PD_OK;
    if (!origin->digest || origin->file_digest != file_digest) {
        status = pd_tokenizer_parse(path, text.text, text.bytes, &tokenizer, err);
        if (!status) {
            *origin = (struct pd_token_origin){pd_tokenizer_digest(tokenizer), pd_tokenizer_vocab(tokenizer), file_digest};
            pd_tokenizer_free(tokenizer);
        }
    }
    free((char *)(uintptr_t)text.text);
    return status;
}

pd_status pd_token_origin_read(const char *token_path, struct pd_token_origin *origin, struct pd_error *err)
{
    char *path = pd_data_beside(token_path, PD_TOKEN_ORIGIN_END);
    if (!path) PD_FAIL(err, PD_NO_MEMORY, "no memory for a name");
    pd_status status = PD_OK;
    if (access(path, F_OK) == 0)
        status = token_origin_parse(path, origin, err);
    else
        *origin = (struct pd_token_origin){0};
    free(path);
    return status;
}

static pd_status write_copy(const char *path, const char *json, size_t bytes, struct pd_error *err)
{
    struct pd_file_writer writer = {0};
    PD_TRY(pd_file_writer_begin(path, &writer, err));
    pd_status status = pd_file_writer_add(&writer, json, bytes, err);
    if (!status) status = pd_file_writer_seal(&writer, err);
    if (!status) return pd_file_writer_commit(&writer, err);
    pd_file_writer_abort(&writer, err);
    return status;
}

pd_status pd_token_origin_write(const char *token_path, const struct pd_tokenizer *tokenizer, struct pd_error *err)
{
    size_t bytes;
    const char *json = tokenizer ? pd_tokenizer_json(tokenizer, &bytes) : NULL;
    char *path = pd_data_beside(token_path, PD_TOKEN_ORIGIN_END);
    if (!path) PD_FAIL(err, PD_NO_MEMORY, "no memory for a name");
    pd_status status = PD_OK;
    if (json)
        status = write_copy(path, json, bytes, err);
    else if (unlink(path) != 0 && errno != ENOENT)
        status = pd_error_set(err, pd_status_from_errno(errno), PD_WHERE, errno, "removing %s", path);
    free(path);
    return status;
}

pd_status pd_token_origin_copy(const char *token_path, const char *path, struct pd_error *err)
{
    char *from = pd_data_beside(token_path, PD_TOKEN_ORIGIN_END);
    struct pd_tokenizer_text text = {0}, there = {0};
    if (!from) PD_FAIL(err, PD_NO_MEMORY, "no memory for a name");
    pd_status status = pd_tokenizer_read(from, &text, err);
    if (!status && access(path, F_OK) == 0) status = pd_tokenizer_read(path, &there, err);
    const bool same = there.text && text.bytes == there.bytes && memcmp(text.text, there.text, text.bytes) == 0;
    if (!status && !same) status = write_copy(path, text.text, text.bytes, err);
    free(from);
    free((char *)(uintptr_t)text.text);
    free((char *)(uintptr_t)there.text);
    return status;
}
