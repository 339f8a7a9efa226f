/* A program of many rows that outlives each of them: it starts itself as `--from ROW`, and anew behind a row that ended that
 * process or hung. The child says what it is about to do over a pipe.
 *
 *   usage    main: is_child ? its rows : survivor_run(). A row: next, hurry, hurry 0. At the end of all: done
 *   threads  one caller */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct survivor_child {
    uint32_t from, row; /* the first to run, and the one that is next */
    int pipe;           /* -1: started by hand, nobody waits */
};

bool survivor_is_child(int count, char **arguments, struct survivor_child *ret_child);
/* Whether the next row is to be run; `what` names it where it breaks. */
bool survivor_next(struct survivor_child *child, const char *what);
/* The process ends when these seconds have passed; 0: no more. Started by hand it never does. */
void survivor_hurry(const struct survivor_child *child, unsigned seconds);
void survivor_done(const struct survivor_child *child);
/* Exit code of all: that of the last child, or 1 where a row broke, each of which is printed. */
int survivor_run(void);
