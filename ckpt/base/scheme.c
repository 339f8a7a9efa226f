#include "ckpt/base/scheme.h"

#include <string.h>

/* Length of the scheme; 0 if the path has none. */
static size_t scheme_bytes(const char *path)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    static const char rest[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-.";
    const size_t bytes = strspn(path, rest);
    return bytes && strchr(letters, path[0]) && strncmp(path + bytes, "://", 3) == 0 ? bytes : 0;
}

/* Google Cloud Storage, R2, Ceph and MinIO too: AWS_ENDPOINT_URL_S3 names the server. */
static bool scheme_is_spoken(const char *path)
{
    return strncmp(path, "s3://", 5) == 0;
}

pd_status pd_scheme_check(const char *what, const char *path, pd_status status, struct pd_error *err)
{
    const size_t bytes = scheme_bytes(path);
    if (!bytes) return PD_OK;
    if (scheme_is_spoken(path))
        PD_FAIL(
            err, status,
            "%s: only checkpoints and data are read from s3:// (%.300s). Name a file or directory of a mounted file system",
            what, path);
    PD_FAIL(err, status,
            "%s: perdure does not read or write %.*s:// (%.300s); the scheme that works is s3://, for checkpoints and "
            "data. Name a file or directory of a mounted file system",
            what, (int)bytes, path, path);
}

pd_status pd_scheme_check_source(const char *what, const char *path, pd_status status, struct pd_error *err)
{
    return scheme_is_spoken(path) ? PD_OK : pd_scheme_check(what, path, status, err);
}
