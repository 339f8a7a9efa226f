#include "ckpt/objects/profile.h"

#include "ckpt/base/regular_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_MAX (1u << 20)

pd_status pd_small_file_read(const char *path, char **ret_text, size_t *ret_bytes, struct pd_error *err)
{
    FILE *file = pd_regular_fopen(path, false);
    if (!file) PD_FAIL_ERRNO(err, errno, "open %s", path);
    char *text = malloc(FILE_MAX + 1);
    const size_t bytes = text ? fread(text, 1, FILE_MAX + 1, file) : 0;
    const bool is_read = !ferror(file);
    fclose(file);
    pd_status st = PD_ALLOCATED(text, err, "reading %s", path);
    if (!st && !is_read) st = pd_error_set(err, PD_IO, PD_WHERE, EIO, "read %s", path);
    if (!st && bytes > FILE_MAX) st = pd_error_set(err, PD_INVALID, PD_WHERE, 0, "%s: larger than 1 MiB", path);
    if (st) {
        free(text);
        return st;
    }
    text[bytes] = '\0';
    *ret_text = text;
    *ret_bytes = bytes;
    return PD_OK;
}

struct profile_part { /* part of a line, without surrounding blanks */
    const char *text;
    size_t bytes;
};

static struct profile_part profile_trim(const char *text, const char *end)
{
    while (text < end && strchr(" \t\r", *text))
        text++;
    while (end > text && strchr(" \t\r", end[-1]))
        end--;
    return (struct profile_part){text, (size_t)(end - text)};
}

static bool part_is(struct profile_part part, const char *text)
{
    return part.bytes == strlen(text) && memcmp(part.text, text, part.bytes) == 0;
}

static bool section_is(struct profile_part section, const char *profile, bool is_config)
{
    const char *end = section.text + section.bytes;
    if (is_config && section.bytes > 8 && memcmp(section.text, "profile", 7) == 0 && strchr(" \t", section.text[7]))
        section = profile_trim(section.text + 8, end);
    else if (is_config && strcmp(profile, "default") != 0)
        return false;
    return part_is(section, profile);
}

static pd_status profile_set(const char *name, uint32_t line, struct profile_part key, struct profile_part value,
                             struct pd_profile *ret, struct pd_error *err)
{
    const struct {
        const char *key;
        char *text;
        size_t bytes;
    } known[] = {{"aws_access_key_id", ret->access, sizeof ret->access},
                 {"aws_secret_access_key", ret->secret, sizeof ret->secret},
                 {"aws_session_token", ret->token, sizeof ret->token},
                 {"region", ret->region, sizeof ret->region},
                 {"endpoint_url", ret->endpoint, sizeof ret->endpoint}};
    static const char *const foreign[] = {"role_arn", "sso_session", "sso_start_url", "credential_process"};
    for (unsigned i = 0; i < sizeof known / sizeof *known; i++) {
        if (!part_is(key, known[i].key)) continue;
        if (value.bytes >= known[i].bytes)
            PD_FAIL(err, PD_INVALID, "%s:%u: the value of %s is too long", name, line, known[i].key);
        if (!known[i].text[0]) snprintf(known[i].text, known[i].bytes, "%.*s", (int)value.bytes, value.text);
    }
    for (unsigned i = 0; i < sizeof foreign / sizeof *foreign; i++)
        if (part_is(key, foreign[i])) snprintf(ret->foreign, sizeof ret->foreign, "%s", foreign[i]);
    return PD_OK;
}

/* Indented lines belong to the key above them, such as "s3 ="; skip them. */
pd_status pd_profile_parse(const char *name, const char *text, size_t bytes, const char *profile, bool is_config,
                           struct pd_profile *ret, struct pd_error *err)
{
    const char *const end = text + bytes;
    bool is_ours = false;
    uint32_t number = 1;
    for (const char *line = text; line < end; number++) {
        const char *line_end = memchr(line, '\n', (size_t)(end - line));
        if (!line_end) line_end = end;
        const bool is_nested = strchr(" \t", *line) != NULL;
        const struct profile_part part = profile_trim(line, line_end);
        line = line_end + 1;
        if (!part.bytes || is_nested || strchr("#;", *part.text)) continue;
        if (*part.text == '[') {
            if (part.text[part.bytes - 1] != ']') PD_FAIL(err, PD_INVALID, "%s:%u: a section without \"]\"", name, number);
            is_ours = section_is(profile_trim(part.text + 1, part.text + part.bytes - 1), profile, is_config);
            ret->is_there = ret->is_there || is_ours;
            continue;
        }
        const char *equals = memchr(part.text, '=', part.bytes);
        if (!equals) PD_FAIL(err, PD_INVALID, "%s:%u: neither a [section] nor key = value", name, number);
        if (is_ours)
            PD_TRY(profile_set(name, number, profile_trim(part.text, equals),
                               profile_trim(equals + 1, part.text + part.bytes), ret, err));
    }
    return PD_OK;
}

static pd_status profile_file(const char *variable, const char *in_home, const char *profile, bool is_config,
                              struct pd_profile *ret, struct pd_error *err)
{
    const char *set = getenv(variable), *home = getenv("HOME");
    char path[4096];
    if (set && *set)
        snprintf(path, sizeof path, "%s", set);
    else if (home && *home)
        snprintf(path, sizeof path, "%s/%s", home, in_home);
    else
        return PD_OK;
    char *text = NULL;
    size_t bytes = 0;
    struct pd_error own = {0};
    pd_status st = pd_small_file_read(path, &text, &bytes, &own);
    if (st == PD_NOT_FOUND) return PD_OK;
    if (st) return pd_error_pass(err, st, &own);
    st = pd_profile_parse(path, text, bytes, profile, is_config, ret, err);
    explicit_bzero(text, bytes);
    free(text);
    return st;
}

pd_status pd_profile_load(struct pd_profile *ret, struct pd_error *err)
{
    const char *set = getenv("AWS_PROFILE"), *profile = set && *set ? set : "default";
    memset(ret, 0, sizeof *ret);
    PD_TRY(profile_file("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials", profile, false, ret, err));
    PD_TRY(profile_file("AWS_CONFIG_FILE", ".aws/config", profile, true, ret, err));
    if (!ret->is_there && set && *set)
        PD_FAIL(err, PD_INVALID, "AWS_PROFILE=%s: neither ~/.aws/credentials nor ~/.aws/config has this profile", profile);
    return PD_OK;
}
