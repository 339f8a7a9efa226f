#include "ckpt/objects/url.h"

#include <string.h>

static const char scheme[] = "s3://";

bool pd_object_url_is(const char *path)
{
    return strncmp(path, scheme, sizeof scheme - 1) == 0;
}

static pd_status url_key_parse(const char *text, const char *key, struct pd_object_url *ret, struct pd_error *err)
{
    size_t length = 0;
    while (*key) {
        const size_t part = strcspn(key, "/");
        if ((part == 1 && key[0] == '.') || (part == 2 && key[0] == '.' && key[1] == '.'))
            PD_FAIL(err, PD_INVALID, "%s: a key must not have \".\" or \"..\" between slashes", text);
        if (part) {
            if (length + (length > 0) + part > PD_OBJECT_KEY_MAX)
                PD_FAIL(err, PD_INVALID, "%s: the key is longer than %u bytes", text, PD_OBJECT_KEY_MAX);
            if (length) ret->key[length++] = '/';
            memcpy(ret->key + length, key, part);
            length += part;
        }
        key += part + (key[part] == '/');
    }
    ret->key[length] = '\0';
    return PD_OK;
}

pd_status pd_object_url_parse(const char *text, struct pd_object_url *ret, struct pd_error *err)
{
    struct pd_object_url url = {{0}, {0}};
    if (!pd_object_url_is(text)) PD_FAIL(err, PD_INVALID, "%s: write it as s3://bucket/key", text);
    const char *bucket = text + sizeof scheme - 1;
    const size_t length = strcspn(bucket, "/");
    if (length < 3 || length > PD_BUCKET_NAME_MAX || strspn(bucket, "abcdefghijklmnopqrstuvwxyz0123456789.-_") < length)
        PD_FAIL(err, PD_INVALID, "%s: a bucket name has 3 to %u characters: lower-case letters, digits, \".\", \"-\"", text,
                PD_BUCKET_NAME_MAX);
    memcpy(url.bucket, bucket, length);
    PD_TRY(url_key_parse(text, bucket + length, &url, err));
    *ret = url;
    return PD_OK;
}

void pd_url_encode(FILE *out, const char *text, bool keeps_slashes)
{
    for (const char *c = text; *c; c++) {
        const bool is_plain = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') ||
                              strchr("-_.~", *c) || (*c == '/' && keeps_slashes);
        if (is_plain)
            fputc(*c, out);
        else
            fprintf(out, "%%%02X", (unsigned char)*c);
    }
}
