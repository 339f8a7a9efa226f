/* Results and errors.
 *
 * Every fallible function returns pd_status and takes the error it fills as its last argument. The code says what the
 * caller can do about it; the text says what happened, to what, with which errno. `where` is set once, at the origin.
 * pd_error is plain storage owned by the caller: it may live on any stack and cross threads. A NULL error is allowed
 * everywhere: the status alone is returned.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PD_MUST_USE __attribute__((warn_unused_result))
#define PD_PRINTF(format_index, first_index) __attribute__((format(printf, format_index, first_index)))

typedef enum pd_status {
    PD_OK = 0,
    PD_USAGE,       /* the command line is wrong: exit 64 */
    PD_INVALID,     /* configuration or request that cannot be met: exit 78 */
    PD_NOT_FOUND,   /* the named thing is absent (ENOENT); callers may branch on it */
    PD_EXISTS,      /* a name that a call creates exists; on a network file system the call itself may have made it: check */
    PD_BUSY,        /* somebody else holds a lock; EBUSY of any call is PD_IO */
    PD_NO_SPACE,    /* ENOSPC, EDQUOT, inodes */
    PD_IO,          /* EIO, ESTALE, EACCES, ...: a storage error, never proof of damage: exit 74 */
    PD_CORRUPT,     /* bytes were read and are not the bytes that were written: exit 65 */
    PD_NO_MEMORY,   /* exit 70 */
    PD_DEVICE_LOST, /* exit 70 */
    PD_PEER_LOST,   /* another rank is gone, requeue: exit 75 */
    PD_STOPPED,     /* a signal asked the run to stop, and the state is saved: exit 75 */
    PD_HOSTS_AWAY,  /* the newest state lies on hosts that are not in this run; they may come back: exit 75 */
    PD_STUCK,       /* no progress in the allowed number of restarts: exit 93 */
    PD_UNSUPPORTED, /* this machine or build cannot do it; a fallback may */
    PD_DIVERGED,    /* the training diverged: the loss or a gradient is not finite: exit 70 */
    PD_BUG,         /* an invariant of ours does not hold: exit 70 */
    PD_STATUS_COUNT
} pd_status;

struct pd_error {
    pd_status status;
    int sys_errno;     /* 0 where no system call was involved */
    char where[64];    /* "file.c:123", set at the origin */
    char message[960]; /* always terminated; contexts are prepended: "checkpoint X: shard Y: cause" */
};

const char *pd_status_name(pd_status status);  /* static text such as "PD_IO" */
int pd_status_exit_code(pd_status status);     /* DESIGN: 0, 64, 65, 70, 74, 75, 78, 93 */
pd_status pd_status_from_errno(int sys_errno); /* ENOSPC/EDQUOT -> PD_NO_SPACE, ENOENT -> PD_NOT_FOUND, ... */

/* Fills *err (may be NULL) and returns `status`. sys_errno 0 adds nothing; otherwise ": <strerror>" is appended. */
pd_status pd_error_set(struct pd_error *err, pd_status status, const char *where, int sys_errno, const char *format, ...)
    PD_PRINTF(5, 6);

/* Prepends "<formatted>: " to the message of an error that is already set and returns `status` unchanged. */
pd_status pd_error_context(struct pd_error *err, pd_status status, const char *format, ...) PD_PRINTF(3, 4);

/* Changes the status, keeps the text, and returns the new status. */
pd_status pd_error_change(struct pd_error *err, pd_status status);
/* For errors whose message says more than the errno's text. */
void pd_error_set_errno(struct pd_error *err, int sys_errno);
/* If `status` is a failure, copies *from to *err (may be NULL). Returns `status`. */
pd_status pd_error_pass(struct pd_error *err, pd_status status, const struct pd_error *from);
/* Sets PD_OK and empties the text, so that an error already reported is not printed again. */
void pd_error_clear(struct pd_error *err);

/* Reports that a thread could not be started; `number` is pthread_create's result. PD_UNSUPPORTED, since a limit does not
 * go away by itself; the message names the limits to raise. */
pd_status pd_error_thread(struct pd_error *err, const char *where, int number, const char *what);
#define PD_FAIL_THREAD(err, number, what) return pd_error_thread((err), PD_WHERE, (number), (what))

/* Adds the context "rank N", unless the message already names a rank. */
pd_status pd_error_context_rank(struct pd_error *err, pd_status status, uint32_t rank);
bool pd_error_names_rank(const char *message);

#define PD_STRINGIFY_(x) #x
#define PD_STRINGIFY(x) PD_STRINGIFY_(x)
#define PD_WHERE (__FILE_NAME__ ":" PD_STRINGIFY(__LINE__))

#define PD_FAIL(err, status, ...) return pd_error_set((err), (status), PD_WHERE, 0, __VA_ARGS__)
/* Takes status and text from errno `number`. */
#define PD_FAIL_ERRNO(err, number, ...) \
    return pd_error_set((err), pd_status_from_errno(number), PD_WHERE, (number), __VA_ARGS__)

/* For allocations: PD_OK if the condition holds, else PD_NO_MEMORY. */
#define PD_ALLOCATED(condition, err, ...) ((condition) ? PD_OK : pd_error_set((err), PD_NO_MEMORY, PD_WHERE, 0, __VA_ARGS__))

#define PD_TRY(expression)                          \
    do {                                            \
        pd_status pd_try_st_ = (expression);        \
        if (pd_try_st_ != PD_OK) return pd_try_st_; \
    } while (0)

/* For our own bugs only; enabled in release builds; the condition has no side effects. Prints and aborts. */
#define PD_CHECK(condition)                                      \
    do {                                                         \
        if (!(condition)) pd_check_failed(PD_WHERE, #condition); \
    } while (0)
void pd_check_failed(const char *where, const char *condition) __attribute__((noreturn));
