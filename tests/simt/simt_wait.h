/* Between simt.cc, whose scheduler it is, and simt_hopper.cc. */
#pragma once

unsigned simt_thread(void); /* its number in the block */
/* The running thread goes on once there(context, idle) says so; it is asked when nobody else can go on, first not idle and
 * then idle, one thread after the other until one can. `what` is for the error: a literal. */
void simt_wait_until(const char *what, bool (*there)(void *, bool idle), void *context);

void simt_hopper_begin(void);      /* a block */
void simt_hopper_return(void);     /* of a thread */
const char *simt_hopper_end(void); /* a block has returned: NULL, or what it did wrong */
