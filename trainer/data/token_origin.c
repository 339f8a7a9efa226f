#include "trainer/data/token_origin.h"

#include "ckpt/base/digest.h"
#include "trainer/data/data_file.h"
#include "trainer/data/file_writer.h"
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

/* malloc'ed; NULL: no memory. */
static char *token_origin_path(const char *token_path)
{
    char *path = NULL;
    return asprintf(&path, "%s" PD_TOKEN_ORIGIN_END, token_path) < 0 ? NULL : path;
}

/* *ret_text is malloc'ed. */
static pd_status read_file(const char *path, char **ret_text, uint64_t *ret_bytes, struct pd_error *err)
{
    int fd = -1;
    PD_TRY(pd_data_file_open(path, true, &fd, ret_bytes, err));
    char *text = *ret_bytes <= PD_TOKENIZER_FILE_BYTES_MAX ? malloc(*ret_bytes + 1) : NULL;
    pd_status status = PD_OK;
    if (!text) status = pd_error_set(err, PD_INVALID, PD_WHERE, 0, "%s is too large for a tokenizer.json", path);
    if (!status) status = pd_data_file_read(fd, path, 0, text, *ret_bytes, err);
    close(fd);
    if (status)
        free(text);
    else
        *ret_text = text;
    return status;
}

static pd_status parse(const char *path, struct pd_token_origin *origin, struct pd_error *err)
{
    struct pd_tokenizer *tokenizer;
    char *text;
    uint64_t bytes;
    PD_TRY(read_file(path, &text, &bytes, err));
    const uint64_t file_digest = pd_digest64(text, bytes, 0);
    pd_status status = PD_OK;
    if (!origin->digest || origin->file_digest != file_digest) {
        status = pd_tokenizer_parse(path, text, bytes, &tokenizer, err);
        if (!status) {
            *origin = (struct pd_token_origin){pd_tokenizer_digest(tokenizer), pd_tokenizer_vocab(tokenizer), file_digest};
            pd_tokenizer_free(tokenizer);
        }
    }
    free(text);
    return status;
}

pd_status pd_token_origin_read(const char *token_path, struct pd_token_origin *origin, struct pd_error *err)
{
    char *path = token_origin_path(token_path);
    if (!path) PD_FAIL(err, PD_NO_MEMORY, "no memory for a name");
    pd_status status = PD_OK;
    if (access(path, F_OK) == 0)
        status = parse(path, origin, err);
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
    char *path = token_origin_path(token_path);
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
    char *from = token_origin_path(token_path), *text = NULL, *there = NULL;
    uint64_t bytes = 0, bytes_there = 0;
    if (!from) PD_FAIL(err, PD_NO_MEMORY, "no memory for a name");
    pd_status status = read_file(from, &text, &bytes, err);
    if (!status && access(path, F_OK) == 0) status = read_file(path, &there, &bytes_there, err);
    const bool same = there && bytes == bytes_there && memcmp(text, there, bytes) == 0;
    if (!status && !same) status = write_copy(path, text, bytes, err);
    free(from);
    free(text);
    free(there);
    return status;
}
