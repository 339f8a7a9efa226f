/* What the files of a load share: rounds, windows and exchange (load.c), boxes in chunks (chunks.c), which host can open
 * what (hosts.c). One thread runs a load; only chunks.c uses others, which end before it returns. The caller's buffers belong
 * to the queue while a transfer of their window is in flight (in_flight), and to that thread otherwise. */
#pragma once

#include "ckpt/base/owner.h"
#include "resharder/load/load.h"
#include "resharder/plan.h"
#include "resharder/stored.h"

/* Of one transfer. A piece that the block layer has to split because its pages are scattered is started only when it is
 * waited for; in huge pages 2 MiB are not split, and larger ones are not faster. */
#define LOAD_READ_BYTES_MAX (UINT64_C(2) << 20)

/* Rounds that have a place in memory; all but one of them on their way. */
#define LOAD_WINDOWS 8u

#define LOAD_NO_SHARD UINT32_MAX

struct load_chunks;

struct load_pieces {
    struct pd_group_piece *data;
    uint32_t count;
    bool failed;
};

struct load_window {
    struct pd_transfer *transfers; /* (window_transfers) */
    uint64_t begin, end;           /* items of its round */
    uint32_t sent, in_flight;
    const struct pd_transfer *failed; /* the first one that did */
    /* Of its memory: "reads" write it while in_flight, then its "round" reads it until the exchange is over. */
    struct pd_owner owner;
};

struct loader {
    struct pd_vfs *vfs;
    struct pd_group *group;
    const struct pd_load_request *request;
    struct pd_plan *plan;
    struct pd_queue *queue;
    struct pd_shard **shards; /* (stored shards) those this rank reads */
    struct load_window windows[LOAD_WINDOWS];
    uint64_t window_bytes, window_transfers;
    struct load_chunks *chunks;
    uint64_t next_item;    /* first that is not sent for */
    uint64_t next_coming;  /* first of the plan's that has not come */
    uint8_t *host_has;     /* as the plan wants them; NULL when every rank sees every shard */
    uint32_t *reader_host; /* (ranks) */
    uint32_t blamed;       /* shard that could not be read or is damaged where this rank read it */
    char blame[400];       /* why */
    uint32_t next_round;
    struct load_pieces sends, recvs;
    struct pd_load_report report;
};

static inline bool load_is_in_chunks(const struct loader *l, const struct pd_read_item *item)
{
    return pd_shard_box_is_in_chunks(l->shards[item->shard], item->box);
}

/* Pages of the file that a box in one piece takes: boxes of a page and more begin on one; smaller ones lie anywhere and come
 * with the pages around them. */
static inline uint64_t load_item_skip(const struct loader *l, const struct pd_read_item *item)
{
    return pd_shard_box_offset(l->shards[item->shard], item->box) % PD_VFS_ALIGN;
}

/* ---- hosts.c ---- */

/* Fills host_has and reader_host, unless every rank sees every shard. */
PD_MUST_USE pd_status load_find_shards(struct loader *l, struct pd_error *err);
/* Notes the first shard whose bytes or file this rank could not use; returns `st`. */
pd_status load_blame(struct loader *l, uint32_t shard, pd_status st, const struct pd_error *err);
/* Collective, after a failure: hosts where a shard was blamed count as without it. *ret_again: another attempt finds all
 * that was blamed elsewhere. */
PD_MUST_USE pd_status load_turn_to_replicas(struct loader *l, bool *ret_again, struct pd_error *err);

/* ---- chunks.c ---- */

/* Sends for a transfer of a window. */
PD_MUST_USE pd_status load_send(struct loader *l, struct load_window *w, const struct pd_transfer *transfer,
                                struct pd_error *err);

/* l->chunks, l->window_transfers and l->queue. */
PD_MUST_USE pd_status load_chunks_new(struct loader *l, struct pd_error *err);
void load_chunks_free(struct load_chunks *chunks); /* NULL is fine */
/* Whether there is room to send for a round now. The one after those that are done always has. */
bool load_chunks_fit(const struct loader *l, uint32_t round);
PD_MUST_USE pd_status load_chunks_submit(struct loader *l, struct load_window *w, const struct pd_read_item *item,
                                         struct pd_error *err);
/* The last item of the round was submitted. */
PD_MUST_USE pd_status load_chunks_submit_rest(struct loader *l, struct load_window *w, uint32_t round, struct pd_error *err);
/* What came of a round is decompressed to where load_chunks_data says, not verified block by block. */
PD_MUST_USE pd_status load_chunks_decompress(struct loader *l, uint32_t round, struct pd_error *err);
/* Its memory may be used again. */
void load_chunks_done(struct loader *l, uint32_t round);
char *load_chunks_data(const struct loader *l, const struct pd_read_item *item);
