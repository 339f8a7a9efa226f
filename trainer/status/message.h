/* Messages between ranks, relays and their launcher, over a stream: a 12-byte header, little-endian, and a payload.
 *
 *   u32 payload bytes   u16 kind   u16 zero   u32 rank   payload   (MAC of 16 bytes, once both sides are proven: seal.h)
 *
 * Pure: converts bytes to messages. Length and kind are checked here; the receiver checks ranks, since it knows their
 * number. A peer that sends anything else is disconnected. */
#pragma once

#include "ckpt/base/heartbeat.h"
#include "ckpt/base/status.h"

#define PD_MESSAGE_HEADER_BYTES 12u
#define PD_MESSAGE_MAC_BYTES 16u
#define PD_MESSAGE_NONCE_BYTES 32u
#define PD_MESSAGE_PROOF_BYTES 32u
#define PD_MESSAGE_BYTES_MAX 4096u             /* payload from ranks and relays */
#define PD_MESSAGE_ANSWER_BYTES_MAX (4u << 20) /* payload from the launcher: a configuration */
#define PD_MESSAGE_HOST_BYTES 64u
#define PD_MESSAGE_BUILD_BYTES 64u
#define PD_MESSAGE_PLACE_BYTES 192u
#define PD_MESSAGE_GPU_BYTES 64u
#define PD_MESSAGE_STEP_BYTES 48u
#define PD_MESSAGE_NOBODY UINT32_MAX /* no rank */

enum pd_message_kind {
    PD_MESSAGE_HELLO = 1, /* rank: its nonce. This and the next two are not sealed */
    PD_MESSAGE_CHALLENGE, /* launcher: its nonce, and its proof */
    PD_MESSAGE_PROOF,     /* rank: its proof */
    PD_MESSAGE_BEGUN,     /* rank: struct pd_begun, its first sealed message */
    PD_MESSAGE_READY,     /* rank: it has joined the others (MPI_Init has ended) */
    PD_MESSAGE_TRAINING,  /* rank 0: the first step of this start begins; there may be something to save */
    PD_MESSAGE_SAVED,     /* rank 0: u64, the newest committed step */
    PD_MESSAGE_GPU,       /* rank: struct pd_lost_gpu */
    PD_MESSAGE_SUSPECT,   /* rank: struct pd_suspect, a gradient was not finite */
    PD_MESSAGE_TAKEN,     /* rank: its host will be taken away (preempt.notice) */
    PD_MESSAGE_ENDED,     /* rank: struct pd_ended. The launcher answers with ACK */
    PD_MESSAGE_RELAY,     /* relay: its host's place, its first sealed message */
    PD_MESSAGE_HEARTBEAT, /* relay: struct pd_remote_heartbeat of `rank` */
    PD_MESSAGE_CONFIG,    /* launcher, answers BEGUN: the configuration; rank 1: start the host's relay */
    PD_MESSAGE_REFUSED,   /* launcher, answers BEGUN: why this rank is refused */
    PD_MESSAGE_ACK,       /* launcher: the last message arrived */
    PD_MESSAGE_WATCH,     /* launcher, to a relay: struct pd_watched of `rank` */
    PD_MESSAGE_KINDS
};

struct pd_message {
    enum pd_message_kind kind;
    uint32_t rank, bytes;
    const uint8_t *data; /* (bytes) in the buffer it was taken from */
};

/* A rank has installed its signal handlers and asks what to do. */
struct pd_begun {
    int32_t process;
    bool is_here;                       /* same place as the launcher, so `process` is valid there */
    uint32_t mpi_job;                   /* Open MPI's number of the job; 0: unknown */
    int32_t heartbeat;                  /* descriptor of its heartbeats (ckpt/base/heartbeat.h); -1: none */
    char place[PD_MESSAGE_PLACE_BYTES]; /* pd_message_place */
    char host[PD_MESSAGE_HOST_BYTES], build[PD_MESSAGE_BUILD_BYTES];
    char step[PD_MESSAGE_STEP_BYTES]; /* Slurm's job step, "12.3"; "": not under srun */
};

struct pd_ended {
    pd_status status;
    uint32_t missed; /* PD_PEER_LOST: the rank found missing; PD_MESSAGE_NOBODY: unknown */
    char message[sizeof((struct pd_error *)0)->message];
};

struct pd_lost_gpu {
    char identity[PD_MESSAGE_GPU_BYTES]; /* of struct pd_dev; independent of the number a process uses for the GPU */
    uint32_t is_spare;                   /* 1: the host has another one for the rank */
};

struct pd_suspect {
    uint32_t rank;
    char host[PD_MESSAGE_HOST_BYTES], gpu[PD_MESSAGE_GPU_BYTES]; /* gpu "": on a CPU */
    uint32_t is_spare;                                           /* as above */
};

/* What a relay reports of a rank on its host, twice a second. */
struct pd_remote_heartbeat {
    struct pd_heartbeat heartbeat;
    int32_t process;
    uint32_t is_stopped;
    uint64_t busy_ms;
    char host[PD_MESSAGE_HOST_BYTES];
    char kernel[240]; /* place in the kernel while it makes no progress; "": unknown */
};

struct pd_watched {
    int32_t process, heartbeat;
};

/* Length of the header and payload at the start of `data`; 0: incomplete; -1: not a message, or its payload exceeds
 * `bytes_max`. Excludes a MAC that follows. */
int64_t pd_message_take(const uint8_t *data, size_t bytes, uint32_t bytes_max, struct pd_message *ret_message);
void pd_message_header(const struct pd_message *message, uint8_t ret_header[PD_MESSAGE_HEADER_BYTES]);

/* Payloads. BEGUN is text, since its sender may be another build. Later ones are structs in memory layout, between processes
 * of one build. Parse returns false, with *ret undefined, for a wrong payload. Text becomes printable ASCII. */
uint32_t pd_message_print_begun(const struct pd_begun *begun, uint8_t ret_data[PD_MESSAGE_BYTES_MAX]);
bool pd_message_parse_begun(const struct pd_message *message, struct pd_begun *ret);
bool pd_message_parse_ended(const struct pd_message *message, struct pd_ended *ret);
bool pd_message_parse_gpu(const struct pd_message *message, struct pd_lost_gpu *ret);
bool pd_message_parse_suspect(const struct pd_message *message, struct pd_suspect *ret);
bool pd_message_parse_heartbeat(const struct pd_message *message, struct pd_remote_heartbeat *ret);
bool pd_message_parse_watched(const struct pd_message *message, struct pd_watched *ret);

/* Boot and process namespace of this host: process numbers are comparable where these are equal. rank and size: for
 * simulated hosts in tests (ckpt/base/pretended_host.h). */
void pd_message_place(uint32_t rank, uint32_t size, char ret_text[PD_MESSAGE_PLACE_BYTES]);
/* Copies at most bytes - 1 characters of printable ASCII; replaces others by '?'. */
void pd_message_text(const uint8_t *data, size_t count, char *ret_text, size_t bytes);
/* "1.2.0, build 0123456789abcdef", from the bytes of a program's file. */
void pd_message_build(const char *program, char ret_build[PD_MESSAGE_BUILD_BYTES]);

/* The reports of the ranks of one start, in the launcher's memory. One thread: the receiver writes, the launcher reads.
 * Empty at the beginning of a start. */
struct pd_rank_entry {
    bool has_begun, is_ready, has_ended, is_taken;
    struct pd_begun begun;
    struct pd_ended *ended;   /* owned; NULL: not ended, or not reported */
    struct pd_lost_gpu *lost; /* owned; NULL: none lost */
};

struct pd_rank_table {
    struct pd_rank_entry *ranks;         /* (count) */
    uint32_t count, begun, ready, ended; /* count: processes; the others: how many of them */
    bool is_training;                    /* rank 0 began its first step: there may be something to save */
    bool has_saved, has_suspect;
    uint64_t saved; /* newest committed step */
    struct pd_suspect suspect;
};

PD_MUST_USE pd_status pd_rank_table_init(struct pd_rank_table *table, uint32_t count, struct pd_error *err);
void pd_rank_table_deinit(struct pd_rank_table *table);
/* Enters a rank's message. False: wrong payload, no such rank, or it has begun already. */
bool pd_rank_table_take(struct pd_rank_table *table, const struct pd_message *message);
/* Removes the files that Open MPI leaves in /dev/shm when a rank of this host is killed, 4 MiB each. */
void pd_rank_table_remove_memory(const struct pd_rank_table *table);
