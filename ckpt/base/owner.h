/* Who has a buffer that two threads or streams can reach.
 *
 *   struct pd_owner owner;                           // beside the buffer; {0}: nobody has it
 *   pd_owner_acquire(&staging->owner, "saver");      // before the first touch
 *   pd_owner_release(&staging->owner, "saver");      // after the last, before whoever is next is told
 *
 * Nothing waits here: what orders the users (a mutex, a join, an event) stands beside the declaration of the buffer, and this
 * checks that it does. With PERDURE_CHECK_OWNERS (debug builds and builds with tests) an owner that meets another one ends
 * the process with both names; otherwise the calls are empty.
 *
 *   threads  any
 */
#pragma once

struct pd_owner {
    const char *_Atomic name; /* a string constant; NULL: nobody */
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
