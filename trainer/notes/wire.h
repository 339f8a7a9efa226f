/* Frames between the launcher and the ranks of other hosts, over TCP: a header of 12 bytes, little-endian, and what it announces.
 *
 *   u32 bytes of what follows   u16 kind   u16 kind of note   u32 rank   bytes
 *
 * Pure: bytes in, frames out. What comes from a peer is checked here for length and kind; ranks are held against their number
 * by who knows it. A peer that sends what is no frame is not listened to any more. */
#pragma once

#include "ckpt/base/pulse.h"
#include "ckpt/base/status.h"

#define PD_WIRE_HEADER_BYTES 12u
#define PD_WIRE_TOKEN_BYTES 32u             /* of text */
#define PD_WIRE_BYTES_MAX 4096u             /* behind a header, of what ranks send */
#define PD_WIRE_ANSWER_BYTES_MAX (4u << 20) /* of what the launcher sends: a configuration */
#define PD_WIRE_HOST_BYTES 64u
#define PD_WIRE_BUILD_BYTES 64u
#define PD_WIRE_PLACE_BYTES 192u

enum pd_wire_kind {
    PD_WIRE_HELLO = 1, /* first of a connection: the token, then build and host, a line each */
    PD_WIRE_NOTE,      /* `note` of `rank` */
    PD_WIRE_NO_NOTE,   /* `note` of `rank` holds no longer */
    PD_WIRE_PLACE,     /* this connection is a relay, of the host that is called so in notes (note.h) */
    PD_WIRE_WORD,      /* struct pd_wire_word of `rank` */
    PD_WIRE_DONE,    /* the launcher: the note is there. Of begun: what configuration the ranks have; rank 1: be the relay */
    PD_WIRE_REFUSED, /* the launcher: why this rank cannot take part */
    PD_WIRE_WATCH,   /* the launcher, to a relay: process and descriptor of the pulse of `rank`, 4 bytes each */
    PD_WIRE_KINDS
};

struct pd_wire_frame {
    enum pd_wire_kind kind;
    uint32_t note, rank, bytes;
    const uint8_t *data; /* (bytes) in the buffer it was taken from */
};

/* What is known of a rank on another host, now. */
struct pd_wire_word {
    struct pd_pulse pulse;
    int32_t process;
    uint32_t is_stopped;
    uint64_t cpu_ms;
    char host[PD_WIRE_HOST_BYTES];
    char kernel[240]; /* where it is in the kernel, while it completes nothing; "": not known */
};

/* Bytes of the frame at the beginning of `data`; 0: not all of it is there; -1: it is none, or is longer than `bytes_max`. */
int64_t pd_wire_take(const uint8_t *data, size_t bytes, uint32_t bytes_max, struct pd_wire_frame *ret_frame);
void pd_wire_header(const struct pd_wire_frame *frame, uint8_t ret_header[PD_WIRE_HEADER_BYTES]);

struct pd_wire_hello {
    char token[PD_WIRE_TOKEN_BYTES + 1], build[PD_WIRE_BUILD_BYTES], host[PD_WIRE_HOST_BYTES];
};
/* Returns its bytes.   ret_data: PD_WIRE_BYTES_MAX */
uint32_t pd_wire_hello_print(const struct pd_wire_hello *hello, uint8_t *ret_data);
/* False: it is no hello. */
bool pd_wire_hello_parse(const struct pd_wire_frame *frame, struct pd_wire_hello *ret_hello);
bool pd_wire_word_parse(const struct pd_wire_frame *frame, struct pd_wire_word *ret_word);
bool pd_wire_watch_parse(const struct pd_wire_frame *frame, int32_t *ret_process, int32_t *ret_fd);
/* A text of at most bytes - 1 printable characters of ASCII; others become '?'. */
void pd_wire_text(const uint8_t *data, size_t count, char *ret_text, size_t bytes);
/* In a time that does not depend on where they differ. */
bool pd_wire_token_is(const char given[PD_WIRE_TOKEN_BYTES + 1], const char token[PD_WIRE_TOKEN_BYTES + 1]);

/* Sends all of it, or gives up after `limit_ms` without room. */
bool pd_wire_send(int fd, const struct pd_wire_frame *frame, int limit_ms);
