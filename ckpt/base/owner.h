/* Checks in debug builds that a buffer which two threads or streams can reach has one owner at a time.
 *
 *   struct pd_owner owner;                           // beside the buffer; {0}: no owner
 *   pd_owner_acquire(&staging->owner, "saver");      // before the first access
 *   pd_owner_release(&staging->owner, "saver");      // after the last, before the next owner is notified
 *
 * These calls do not wait. A mutex, a join or an event orders the users, and is named where the buffer is declared; the
 * calls check that it does its job. With PERDURE_CHECK_OWNERS (debug builds and builds with tests) a second owner aborts
 * the process with both names; otherwise the calls are empty.
 *
 *   threads  any
 */
#pragma once

struct pd_owner {
    const char *_Atomic name; /* a string constant; NULL: no owner */
};

#ifdef PERDURE_CHECK_OWNERS
void pd_owner_acquire(struct pd_owner *owner, const char *name);
void pd_owner_release(struct pd_owner *owner, const char *name);
#else
static inline void pd_owner_acquire(struct pd_owner *owner, const char *name)
{
    (void)owner, (void)name;
}
static inline void pd_owner_release(struct pd_owner *owner, const char *name)
{
    (void)owner, (void)name;
}
#endif
