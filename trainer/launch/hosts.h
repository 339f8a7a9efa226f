/* Which hosts ranks may run on, as launch.hosts says now, and which of them answer.
 *
 *   source   a file, or a command of sh that prints the same. A line a host: `name`, `name:4` or `name slots=4`, the ranks
 *            that it takes; `#` begins a comment; a host that is named twice has the sum
 *   answers  `AGENT NAME "test -x PROGRAM ..."` ends well, so this program is there too, within `patience` times what the
 *            slowest of those that answer takes, in this look or took in the one before: one second at least, ten at most,
 *            which are given where none has ever answered. Counted from the last answer, a minute in all at most. This host is
 *            not asked
 *   secret   the question goes with it on standard input, so that no process list and no network shows it; each host writes it
 *            into a file that its user alone can read
 *   links    where they are asked for: two hosts between which probes are lost, one way or both ways, cannot run ranks together;
 *            the one with more such others, of equal ones the later, is to go. That a host answers nobody's probes, for a packet
 *            filter, is no sign of anything
 *   machine  what a host says of itself, by which two names of one are known: the second has no slots. Where the agent brings
 *            no words back nobody knows
 *   order    that of the source, but for this host, which is first
 *   threads  one caller; the work is done by a process of its own, so that a host which does not answer holds up nobody */
#pragma once

#include "ckpt/base/status.h"

#define PD_LAUNCH_HOST_BYTES 256u
#define PD_LAUNCH_ADDRESS_BYTES 64u
#define PD_LAUNCH_MACHINE_BYTES 128u
#define PD_LAUNCH_UNREACHED "perdure-unreached " /* begins what `perdure reach` says of an address */

struct pd_launch_host_seen {
    char name[PD_LAUNCH_HOST_BYTES];
    char address[PD_LAUNCH_ADDRESS_BYTES]; /* in numbers; "": this host, or one that the network does not know by its name */
    char machine[PD_LAUNCH_MACHINE_BYTES]; /* number of its boot and its own name; "": not known */
    char same_as[PD_LAUNCH_HOST_BYTES];    /* the name before it of the same machine; "": none, or not known */
    char cut_off_from
        [PD_LAUNCH_HOST_BYTES]; /* it or that one does not reach the other, and it is the one to go; "": nobody */
    bool knows_links;           /* of this look */
    uint32_t slots;
    bool lacks_program;      /* it answers, that this program is not there */
    bool lacks_address;      /* it does not answer, and its name has no address here */
    bool answers, is_silent; /* is_silent: it has said neither yes nor no */
    uint32_t after_ms;       /* it answers: after how long */
};

struct pd_launch_look {
    int process, results;              /* 0, -1: nobody looks */
    struct pd_launch_host_seen *hosts; /* (count) what the process has found so far */
    uint32_t count;
    char failure[512]; /* why it has found none; "": it has not failed */
    uint64_t began_ns;
    uint32_t slowest_ms; /* of those that answered in the look before; 0: none has. Kept from look to look */
    const char *secret;  /* text that hosts put into the file "secret" of secret_dir; borrowed, kept; NULL: none */
    const char *secret_dir;
    bool asks_links; /* the next look does: hosts say which others answer them, which may take two seconds */
};

/* `slots` of a host that does not say; `agent` with words of its own, such as "ssh -p 2222". */
PD_MUST_USE pd_status pd_launch_look_begin(const char *source, const char *agent, uint32_t slots, uint32_t patience,
                                           struct pd_launch_look *current, struct pd_error *err);
/* Whether it has ended; waits up to `timeout_ms` for that. */
bool pd_launch_look_poll(struct pd_launch_look *look, int timeout_ms);
/* Pure: whether a look waits on. The last answer came after last_ms (0: none has), and the slowest after slowest_ms (0: not
 * known). Many handshakes share the cores of one host: what counts is how long nobody has answered, a minute in all at most. */
bool pd_launch_look_waits(int patience, int slowest_ms, int last_ms, int waited_ms);
/* What is known so far.   ret_hosts (*ret_count), malloc'ed
 *   errors  PD_UNSUPPORTED: nothing is */
PD_MUST_USE pd_status pd_launch_look_peek(const struct pd_launch_look *look, struct pd_launch_host_seen **ret_hosts,
                                          uint32_t *ret_count, struct pd_error *err);
/* After it has ended, or when what is known is enough.   ret_hosts (*ret_count), malloc'ed
 *   errors  PD_UNSUPPORTED: the source cannot be read, fails, or names no host */
PD_MUST_USE pd_status pd_launch_look_end(struct pd_launch_look *look, struct pd_launch_host_seen **ret_hosts,
                                         uint32_t *ret_count, struct pd_error *err);
void pd_launch_look_cancel(struct pd_launch_look *look); /* nobody looks: fine */

/* Whether the name is that of this host, or of an address of it. */
bool pd_launch_host_is_this(const char *name);
/* The hosts of a text as a source gives it.   ret_hosts (*ret_count), malloc'ed
 *   errors  PD_INVALID with the line; PD_NO_MEMORY */
PD_MUST_USE pd_status pd_launch_hosts_parse(const char *text, uint32_t slots, struct pd_launch_host_seen **ret_hosts,
                                            uint32_t *ret_count, struct pd_error *err);
