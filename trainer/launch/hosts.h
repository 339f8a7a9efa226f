/* Which hosts ranks may run on, from launch.hosts as it is now, and which of them answer.
 *
 *   source   a file, or a shell command that prints the same. One host per line: `name`, `name:4` or `name slots=4`, the
 *            number of ranks; `#` begins a comment; slots of a repeated name are added
 *   answers  a host answers if `AGENT NAME "test -x PROGRAM ..."` succeeds, so this program is there too. The time limit is
 *            `patience` times as long as the slowest host that answers, in this look or the last, within three to ten seconds
 *            (ten if none has ever answered), from the last answer on; a minute in all. This host is not asked
 *   secret   sent with the question on standard input, so it shows in no process list and on no network; each host stores it
 *            in a file that only its user can read
 *   links    tested on request: two hosts that lose probes, one way or both ways, cannot run ranks together. The one with
 *            more broken links goes, or else the later. A host that answers no host's probes proves nothing: it may have a
 *            packet filter
 *   machine  identity a host reports, so that two names of one machine are found: the second gets no slots. Unknown if the
 *            agent returns no output
 *   order    as in the source, but this host first
 *   threads  one caller; a separate process does the work, so an unresponsive host delays no one */
#pragma once

#include "ckpt/base/status.h"

#define PD_LAUNCH_HOST_BYTES 256u
#define PD_LAUNCH_ADDRESS_BYTES 64u
#define PD_LAUNCH_MACHINE_BYTES 128u
#define PD_LAUNCH_UNREACHED "perdure-unreached " /* prefix of a line of `perdure reach` about an address */

struct pd_launch_host_seen {
    char name[PD_LAUNCH_HOST_BYTES];
    char address[PD_LAUNCH_ADDRESS_BYTES];   /* numeric; "": this host, or the name has no address */
    char machine[PD_LAUNCH_MACHINE_BYTES];   /* boot id and own host name; "": unknown */
    char same_as[PD_LAUNCH_HOST_BYTES];      /* earlier name of the same machine; "": none, or unknown */
    char cut_off_from[PD_LAUNCH_HOST_BYTES]; /* one does not reach the other, and this one is to go; "": none */
    bool knows_links;                        /* this look tested links */
    uint32_t slots;
    bool lacks_program;      /* it answers, but this program is not there */
    bool lacks_address;      /* it does not answer, and its name has no address here */
    bool answers, is_silent; /* is_silent: it answered neither yes nor no */
    uint32_t after_ms;       /* time until its answer */
};

struct pd_launch_look {
    int process, results;              /* 0, -1: no look is running */
    struct pd_launch_host_seen *hosts; /* (count) what the process found so far */
    uint32_t count;
    char failure[512]; /* why it found none; "": no failure */
    uint64_t began_ns;
    uint32_t slowest_ms; /* slowest answer in the last look; 0: none. Kept between looks */
    const char *secret;  /* content for the file "secret" in secret_dir on each host; borrowed, kept; NULL: none */
    const char *secret_dir;
    bool asks_links; /* the next look tests links between hosts, which may take two seconds */
};

/* slots: for hosts that give none. agent: may have arguments, such as "ssh -p 2222". */
PD_MUST_USE pd_status pd_launch_look_begin(const char *source, const char *agent, uint32_t slots, uint32_t patience,
                                           struct pd_launch_look *current, struct pd_error *err);
/* Waits up to `timeout_ms` for the end of the look; returns whether it has ended. */
bool pd_launch_look_poll(struct pd_launch_look *look, int timeout_ms);
/* Pure: whether to keep waiting. The last answer came after last_ms (0: none), the slowest after slowest_ms (0: unknown).
 * Handshakes share this host's cores, so the limit counts from the last answer; a minute in all at most. */
bool pd_launch_look_waits(int patience, int slowest_ms, int last_ms, int waited_ms);
/* What is known so far. ret_hosts (*ret_count), malloc'ed
 *   errors  PD_UNSUPPORTED: nothing yet */
PD_MUST_USE pd_status pd_launch_look_peek(const struct pd_launch_look *look, struct pd_launch_host_seen **ret_hosts,
                                          uint32_t *ret_count, struct pd_error *err);
/* Call when it has ended, or enough is known. ret_hosts (*ret_count), malloc'ed
 *   errors  PD_UNSUPPORTED: the source cannot be read, fails, or names no host */
PD_MUST_USE pd_status pd_launch_look_end(struct pd_launch_look *look, struct pd_launch_host_seen **ret_hosts,
                                         uint32_t *ret_count, struct pd_error *err);
void pd_launch_look_cancel(struct pd_launch_look *look); /* does nothing if no look is running */

/* Whether the name is this host's, or resolves to an address of it. */
bool pd_launch_host_is_this(const char *name);
/* Parses the hosts in the text of a source. ret_hosts (*ret_count), malloc'ed
 *   errors  PD_INVALID with the line; PD_NO_MEMORY */
PD_MUST_USE pd_status pd_launch_hosts_parse(const char *text, uint32_t slots, struct pd_launch_host_seen **ret_hosts,
                                            uint32_t *ret_count, struct pd_error *err);
