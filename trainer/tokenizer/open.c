#include "trainer/tokenizer/parts.h"
#include "trainer/tokenizer/tokenizer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

uint64_t pd_tokenizer_digest_of_bytes(void)
{
    return pd_digest64("byte", 4, 1);
}

static pd_status read_all(const char *path, int fd, size_t bytes, char *text, struct pd_error *err)
{
    for (size_t at = 0; at < bytes;) {
        const ssize_t part = read(fd, text + at, bytes - at);
        if (part < 0 && errno == EINTR) continue;
        if (part < 0) PD_FAIL_ERRNO(err, errno, "reading %s", path);
        if (part == 0) PD_FAIL(err, PD_IO, "%s became shorter while it was read", path);
        at += (size_t)part;
    }
    return PD_OK;
}

/* Terminated.   ret_text  malloc'ed */
static pd_status read_file(const char *path, struct pd_tokenizer_text *ret, struct pd_error *err)
{
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) PD_FAIL_ERRNO(err, errno, "the tokenizer %s cannot be opened", path);
    pd_status status = PD_OK;
    char *text = NULL;
    if (fstat(fd, &st))
        status = pd_error_set(err, PD_IO, PD_WHERE, errno, "reading %s", path);
    else if (!S_ISREG(st.st_mode))
        status = pd_error_set(err, PD_INVALID, PD_WHERE, 0, "%s is not a file", path);
    else if (st.st_size > (off_t)PD_TOKENIZER_FILE_BYTES_MAX)
        status = pd_error_set(err, PD_INVALID, PD_WHERE, 0, "%s has %lld bytes; a tokenizer.json has at most %u", path,
                              (long long)st.st_size, PD_TOKENIZER_FILE_BYTES_MAX);
    else if (!(text = calloc(1, (size_t)st.st_size + 1)))
        status = pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory to read %s", path);
    if (!status) status = read_all(path, fd, (size_t)st.st_size, text, err);
    close(fd);
    if (status)
        free(text);
    else
        *ret = (struct pd_tokenizer_text){text, (size_t)st.st_size};
    return status;
}

static bool has_file(const char *directory, const char *name)
{
    char path[4096];
    const int length = snprintf(path, sizeof path, "%s/%s", directory, name);
    return length > 0 && (size_t)length < sizeof path && access(path, F_OK) == 0;
}

/* Its tokenizer.json where there is none at all: the message names that. */
static const char *file_in(const char *directory)
{
    const bool is_gguf = !has_file(directory, PD_TOKENIZER_FILE) && has_file(directory, PD_TOKENIZER_GGUF_FILE);
    return is_gguf ? PD_TOKENIZER_GGUF_FILE : PD_TOKENIZER_FILE;
}

pd_status pd_tokenizer_open(const char *path, struct pd_tokenizer **ret_tokenizer, struct pd_error *err)
{
    struct stat st;
    char inside[4096];
    if (!strcmp(path, "byte")) {
        struct pd_tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
        if (!tokenizer) PD_FAIL(err, PD_NO_MEMORY, "no memory for a tokenizer");
        *tokenizer = (struct pd_tokenizer){.is_bytes = true, .limit = 256, .digest = pd_tokenizer_digest_of_bytes()};
        *ret_tokenizer = tokenizer;
        return PD_OK;
    }
    const bool is_directory = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    const int length =
        snprintf(inside, sizeof inside, "%s%s%s", path, is_directory ? "/" : "", is_directory ? file_in(path) : "");
    if (length < 0 || (size_t)length >= sizeof inside) PD_FAIL(err, PD_INVALID, "%.80s...: the path is too long", path);
    /* A tokenizer.json with the files that may lie beside it, or another file alone. */
    struct pd_tokenizer_text texts[1 + PD_TOKENIZER_BESIDE] = {{0}};
    const char *slash = strrchr(inside, '/');
    const bool is_json = strcmp(slash ? slash + 1 : inside, PD_TOKENIZER_FILE) == 0;
    pd_status status = read_file(inside, &texts[0], err);
    for (uint32_t i = 0; i < PD_TOKENIZER_BESIDE && !status && is_json; i++) {
        char beside[4200];
        snprintf(beside, sizeof beside, "%.*s%s", slash ? (int)(slash + 1 - inside) : 0, inside, pd_tokenizer_beside[i]);
        if (access(beside, F_OK) == 0) status = read_file(beside, &texts[i + 1], err);
    }
    if (!status) status = pd_tokenizer_parse_with(inside, &texts[0], &texts[1], ret_tokenizer, err);
    for (uint32_t i = 0; i <= PD_TOKENIZER_BESIDE; i++)
        free((char *)(uintptr_t)texts[i].text);
    return status;
}
