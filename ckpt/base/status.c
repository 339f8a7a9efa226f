#include "ckpt/base/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    int exit_code;
} status_table[PD_STATUS_COUNT] = {
    [PD_OK] = {"PD_OK", 0},
    [PD_USAGE] = {"PD_USAGE", 64},
    [PD_INVALID] = {"PD_INVALID", 78},
    [PD_NOT_FOUND] = {"PD_NOT_FOUND", 78},
    [PD_EXISTS] = {"PD_EXISTS", 74},
    [PD_BUSY] = {"PD_BUSY", 74},
    [PD_NO_SPACE] = {"PD_NO_SPACE", 74},
    [PD_IO] = {"PD_IO", 74},
    [PD_CORRUPT] = {"PD_CORRUPT", 65},
    [PD_NO_MEMORY] = {"PD_NO_MEMORY", 70},
    [PD_DEVICE_LOST] = {"PD_DEVICE_LOST", 70},
    [PD_PEER_LOST] = {"PD_PEER_LOST", 75},
    [PD_STOPPED] = {"PD_STOPPED", 75},
    [PD_HOSTS_AWAY] = {"PD_HOSTS_AWAY", 75},
    [PD_STUCK] = {"PD_STUCK", 93},
    [PD_UNSUPPORTED] = {"PD_UNSUPPORTED", 78},
    [PD_DIVERGED] = {"PD_DIVERGED", 70},
    [PD_BUG] = {"PD_BUG", 70},
};

const char *pd_status_name(pd_status status)
{
    PD_CHECK((unsigned)status < PD_STATUS_COUNT);
    return status_table[status].name;
}

int pd_status_exit_code(pd_status status)
{
    PD_CHECK((unsigned)status < PD_STATUS_COUNT);
    return status_table[status].exit_code;
}

pd_status pd_status_from_errno(int sys_errno)
{
    switch (sys_errno) {
    case 0:
        return PD_OK;
    case ENOENT:
        return PD_NOT_FOUND;
    case ENOSPC:
    case EDQUOT:
        return PD_NO_SPACE;
    case ENOMEM:
        return PD_NO_MEMORY;
    case EOPNOTSUPP:
    case ENOSYS:
    case EXDEV:
    case EINVAL:
        return PD_UNSUPPORTED;
    default:
        return PD_IO;
    }
}

pd_status pd_error_set(struct pd_error *err, pd_status status, const char *where, int sys_errno, const char *format, ...)
{
    if (!err) return status;
    err->status = status;
    err->sys_errno = sys_errno;
    snprintf(err->where, sizeof err->where, "%s", where);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(err->message, sizeof err->message, format, arguments);
    va_end(arguments);
    if (sys_errno) {
        char text[128];
        size_t used = strlen(err->message);
        snprintf(err->message + used, sizeof err->message - used, ": %s%s", strerror_r(sys_errno, text, sizeof text),
                 sys_errno == EFBIG ? " (ulimit -f shows the limit)" : "");
    }
    return status;
}

pd_status pd_error_thread(struct pd_error *err, const char *where, int number, const char *what)
{
    return pd_error_set(err, PD_UNSUPPORTED, where, number,
                        "starting %s: raise the limit of processes (ulimit -u, the container's) or of memory (ulimit -v)",
                        what);
}

pd_status pd_error_context(struct pd_error *err, pd_status status, const char *format, ...)
{
    if (!err || status == PD_OK) return status;
    char prefix[sizeof err->message];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(prefix, sizeof prefix, format, arguments);
    va_end(arguments);
    size_t prefix_length = (size_t)length < sizeof prefix ? (size_t)length : sizeof prefix - 1;
    size_t capacity = sizeof err->message - 1;
    if (prefix_length + 2 > capacity) return status;
    size_t kept = strnlen(err->message, capacity);
    if (kept > capacity - prefix_length - 2) kept = capacity - prefix_length - 2;
    memmove(err->message + prefix_length + 2, err->message, kept);
    memcpy(err->message, prefix, prefix_length);
    memcpy(err->message + prefix_length, ": ", 2);
    err->message[prefix_length + 2 + kept] = '\0';
    return status;
}

pd_status pd_error_change(struct pd_error *err, pd_status status)
{
    if (err) err->status = status;
    return status;
}

void pd_error_set_errno(struct pd_error *err, int sys_errno)
{
    if (err) err->sys_errno = sys_errno;
}

pd_status pd_error_pass(struct pd_error *err, pd_status status, const struct pd_error *from)
{
    if (status && err) *err = *from;
    return status;
}

void pd_error_clear(struct pd_error *err)
{
    err->status = PD_OK;
    err->message[0] = '\0';
}

bool pd_error_names_rank(const char *message)
{
    for (const char *at = message; at; at = strstr(at, ": ") ? strstr(at, ": ") + 2 : NULL) {
        const size_t digits = strncmp(at, "rank ", 5) ? 0 : strspn(at + 5, "0123456789");
        if (digits && at[5 + digits] == ':') return true;
    }
    return false;
}

pd_status pd_error_context_rank(struct pd_error *err, pd_status status, uint32_t rank)
{
    if (!err || pd_error_names_rank(err->message)) return status;
    return pd_error_context(err, status, "rank %u", rank);
}

_Noreturn void pd_check_failed(const char *where, const char *condition)
{
    fprintf(stderr, "perdure: internal error at %s: %s does not hold; please report this\n", where, condition);
    fflush(stderr);
    abort();
}
