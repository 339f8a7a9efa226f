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

pd_status pd_scheme_check(const char *what, const char *path, pd_status status, struct pd_error *err)
{
    const size_t bytes = scheme_bytes(path);
    if (!bytes) return PD_OK;
    PD_FAIL(
        err, status,
        "%s: perdure does not read or write %.*s:// (%.300s); schemes that work: none yet. Name a file or directory of a "
        "mounted file system",
        what, (int)bytes, path, path);
}
