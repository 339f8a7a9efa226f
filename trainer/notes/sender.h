/* The way from a rank on another host than the launcher's to its launcher: a connection a note (wire.h), which ends when the
 * launcher has answered that the note is there.
 *
 *   off      until pd_sender_open, on the launcher's own host, where the launcher listens on no port, and once the first note of
 *            this process did not arrive: notes are files
 *   threads  pd_sender_open first, before there are others; then any */
#pragma once

#include "ckpt/base/status.h"
#include "trainer/notes/wire.h"

/* Reads what the launcher has put into the environment. */
void pd_sender_open(void);
/* False: off, or the launcher has not answered. */
bool pd_sender_note(uint32_t kind, uint32_t rank, const void *data, size_t bytes);
bool pd_sender_no_note(uint32_t kind, uint32_t rank); /* it holds no longer */

/* After the note of begun.   errors  PD_UNSUPPORTED: the launcher does not take this rank, or cannot be reached and no note was
 * written either (is_written false) */
PD_MUST_USE pd_status pd_sender_check(bool is_written, struct pd_error *err);
bool pd_sender_is_relay(void); /* this process is the one that starts the relay of its host */
bool pd_sender_is_on(void);
const char *pd_sender_config(void); /* what the launcher says the configuration is; NULL: off */

/* A connection of `rank` that has said hello; -1: there is none. */
int pd_sender_connect(uint32_t rank);

/* This program: "1.2.0, build 0123456789abcdef", by the bytes of its file. */
void pd_sender_build(char ret_build[PD_WIRE_BUILD_BYTES]);

/* How a launcher tells: environment variables. */
#define PD_SENDER_ENV_ADDRESSES "PERDURE_LAUNCH_ADDRESSES" /* "10.0.0.1:4123,[fd00::1]:4123"; "": it listens on none */
#define PD_SENDER_ENV_TOKEN "PERDURE_LAUNCH_TOKEN"
