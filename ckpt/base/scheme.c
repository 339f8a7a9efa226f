#include "ckpt/base/scheme.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Schemes that a path may begin with: "s3", once there is a VFS for it. */
static const char *const spoken[] = {NULL};

/* How many bytes the scheme has; 0: the path has none. */
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
    char known[128] = "none yet";
    if (!bytes) return PD_OK;
    for (size_t i = 0, used = 0; spoken[i]; i++) {
        if (strlen(spoken[i]) == bytes && strncasecmp(spoken[i], path, bytes) == 0) return PD_OK;
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s://", i ? ", " : "", spoken[i]);
    }
    PD_FAIL(err, status,
            "%s: perdure does not read or write %.*s:// (%.300s); schemes that work: %s. Name a file or directory of a mounted "
            "file system",
            what, (int)bytes, path, path, known);
}
