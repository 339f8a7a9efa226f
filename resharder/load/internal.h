/* Shared by the files of a load: rounds, windows and exchange (load.c), chunked boxes (chunks.c), which host can open
 * which shard (hosts.c). One thread runs a load. The others of the pool decompress and verify; it waits for them. The queue
 * owns the buffers of a window while it has transfers in flight (in_flight), that thread otherwise. */
#pragma once

#include "ckpt/base/owner.h"
#include "resharder/load/load.h"
#include "resharder/plan.h"
#include "resharder/stored.h"

/* Most bytes of one transfer. Transfers end at multiples of it in the file: a server stores an object in parts, and a
 * request that touches two costs it twice the work. If the block layer has to split a read because its pages are
 * scattered, the read starts only when waited for. In huge pages 2 MiB are not split, and larger reads are not faster. */
#define LOAD_READ_BYTES_MAX (UINT64_C(2) << 20)

/* Most rounds in memory at once; all but one of them in flight. */
#define LOAD_WINDOWS 64u
/* The buffers hold so many rounds; reads that go straight to their place need none. Rounds are small, since their space is
 * read into again only after they were verified: a disk that finishes all its reads at once waits for that. Below a MiB
 * fewer boxes share a read. Rounds are large between hosts, whose agreement on each takes a while, and where they are
 * compressed: a chunk that continues in the next one is copied. */
#define LOAD_WINDOWS_SMALL 32u
#define LOAD_WINDOWS_LARGE 8u
#define LOAD_ROUND_BYTES_MIN (UINT64_C(1) << 20)

#define LOAD_NO_SHARD UINT32_MAX

struct load_chunks;

struct load_pieces {
    struct pd_group_piece *data;
    uint32_t count;
    bool failed;
};

/* Some blocks of an item, which one thread verifies. */
struct load_part {
    struct pd_read_item item; /* these blocks alone */
    char *data;
    uint64_t good;    /* blocks verified so far */
    pd_status status; /* of the thread */
};

struct load_window {
    struct pd_transfer *transfers; /* (window_transfers) */
    uint64_t begin, end;           /* items of its round */
    uint32_t sent, in_flight;
    const struct pd_transfer *failed; /* the first that failed */
    /* Owner of its memory: "reads" write it while in_flight, then its "round" reads it until the exchange is over. */
    struct pd_owner owner;
};

struct loader {
    struct pd_vfs *vfs;
    struct pd_group *group;
    const struct pd_load_request *request;
    struct pd_plan *plan;
    struct pd_queue *queue;
    struct pd_shard **shards; /* (stored shards) NULL unless this rank reads it */
    struct load_window windows[LOAD_WINDOWS];
    uint64_t window_bytes, window_transfers;
    struct load_chunks *chunks;
    char **direct;         /* (items) where the item is read to without the ring; NULL: in the ring */
    uint64_t next_item;    /* first item not submitted yet */
    uint64_t next_coming;  /* first incoming item of the plan that has not arrived */
    uint8_t *host_has;     /* as the plan takes it; NULL if every rank sees every shard */
    uint32_t *reader_host; /* (ranks) */
    uint32_t blamed;       /* shard that was unreadable or damaged when this rank read it */
    char blame[400];       /* why */
    uint32_t next_round;
    struct load_part *parts; /* (part_count) of the round that is verified */
    uint32_t part_count;
    struct load_pieces sends, recvs;
    struct pd_load_report report;
};

static inline bool load_is_in_chunks(const struct loader *l, const struct pd_read_item *item)
{
    return pd_shard_box_is_in_chunks(l->shards[item->shard], item->box);
}

/* Bytes from the start of its first page to an unchunked box: boxes of a page or more begin on a page; smaller ones lie
 * anywhere and are read with the pages around them. */
static inline uint64_t load_item_skip(const struct loader *l, const struct pd_read_item *item)
{
    return pd_shard_box_offset(l->shards[item->shard], item->box) % PD_VFS_ALIGN;
}

/* ---- hosts.c ---- */

/* Fills host_has and reader_host, unless every rank sees every shard. */
PD_MUST_USE pd_status load_find_shards(struct loader *l, struct pd_error *err);
/* Records the first shard that this rank could not read or use; returns `st`. */
pd_status load_blame(struct loader *l, uint32_t shard, pd_status st, const struct pd_error *err);
/* Collective, after a failure: treats blamed shards as absent on their hosts. *ret_again: other hosts have all of them,
 * so another attempt can succeed. */
PD_MUST_USE pd_status load_turn_to_replicas(struct loader *l, bool *ret_again, struct pd_error *err);

/* ---- chunks.c ---- */

/* Submits a transfer of a window. */
PD_MUST_USE pd_status load_send(struct loader *l, struct load_window *w, const struct pd_transfer *transfer,
                                struct pd_error *err);

/* Sets l->chunks, l->window_transfers and l->queue. */
PD_MUST_USE pd_status load_chunks_new(struct loader *l, struct pd_error *err);
void load_chunks_free(struct load_chunks *chunks); /* NULL is fine */
/* Whether there is space to submit a round now. The round after the finished ones always fits. */
bool load_chunks_fit(const struct loader *l, uint32_t round);
PD_MUST_USE pd_status load_chunks_submit(struct loader *l, struct load_window *w, const struct pd_read_item *item,
                                         struct pd_error *err);
/* Call after the last item of the round was submitted. */
PD_MUST_USE pd_status load_chunks_submit_rest(struct loader *l, struct load_window *w, uint32_t round, struct pd_error *err);
/* Decompresses the data of a round to where load_chunks_data says, without verifying blocks. */
PD_MUST_USE pd_status load_chunks_decompress(struct loader *l, uint32_t round, struct pd_error *err);
/* The round's memory may be reused. */
void load_chunks_done(struct loader *l, uint32_t round);
char *load_chunks_data(const struct loader *l, const struct pd_read_item *item);
