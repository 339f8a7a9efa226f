/* Every call that can fail, fails once: allocations, the HDF5 library, threads, peers and the system by the linker's --wrap (failing.c), the disk by
 * its faults. A place is the chain of calls that leads there, so two ways to one line are two places.
 *
 *   failing_record();              // a run in which nothing fails notes the places
 *   while (failing_next()) ...     // the n-th place fails, once, or all of its kind from then on
 *   failing_stop();                // nothing fails, nothing is noted
 *
 *   threads   any between those calls */
#pragma once

#include "tests/simulated_disk/simulated_disk.h"

void failing_record(void);
/* From the next record on calls by that name alone fail; NULL: all. */
void failing_only(const char *what);
/* False: that was the last one.   some  one for each call that is on the way to any, so that what follows from the failure of each
 * is tried in two days in a row; of those an eighth from then on. Else all. */
bool failing_next(bool some, bool from_then_on, uint64_t day);
void failing_rewind(void); /* the next one is the first */
void failing_stop(void);
bool failing_has_fired(void);
uint32_t failing_places(void); /* noted so far */
/* What was allocated since failing_record or failing_next and is not free, and from where one of it was: "" when there is none. */
uint64_t failing_leaks(char ret_where[1024]);
/* What failed last did so inside a collective of several ranks: the others only hear that a peer is lost. */
bool failing_breaks_group(void);
/* What failed last: "calloc", and the calls that led there. */
void failing_what(char ret_text[1024]);

/* Places of this thread are told from each other by the calls below the caller. */
void failing_from_here(void);

/* Asked by whatever can fail. */
bool failing_here(const char *what);
/* The same for a disk, as pd_disk_fault.picks. */
bool failing_on_disk(enum pd_disk_operation operation);
