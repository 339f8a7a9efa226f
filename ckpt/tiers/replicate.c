/* Replicas: sends every shard of a checkpoint in the first tier to the next host, into the same checkpoint there.
 *
 *   this rank's shard --verified piece with its digest--> rank of the next host --> a file that it keeps open --sync,
 *   verify--> the shard's name in the commit record
 *
 *   invariants  1. all ranks take the same number of rounds, computed from the record, even if a shard fails or is given up:
 *                  its rank then sends headers without bytes
 *               2. a failure loses the copy of one shard; copies that arrived stay
 *               3. the saver's thread pins the checkpoint until a newer one is copied
 *   threads     this worker uses only constant parts of the store, and files that it has open */
#include "ckpt/base/clock.h"
#include "ckpt/base/digest.h"
#include "ckpt/base/fault.h"
#include "ckpt/shard/pieces.h"
#include "ckpt/tiers/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define PIECE_BYTES_MIN (2u * PD_SHARD_BLOCK_BYTES)

struct header { /* precedes every piece */
    uint64_t offset, bytes, digest;
    uint64_t is_end; /* everything was sent */
};

struct incoming { /* another rank's shard that we store */
    uint32_t rank;
    char path[TIERS_PATH_MAX];
    struct pd_file *file;
    unsigned char *buffer; /* (piece_bytes) */
    struct header header;
    bool is_whole;
    pd_status status; /* of storing it here */
    struct pd_error error;
};

struct transfer {
    struct tier *tier;
    const struct tier_job *job;
    struct pd_store *store;
    const struct pd_store_replicas *ring;
    struct pd_commit commit;
    uint64_t piece_bytes;
    struct incoming *incoming;    /* (ring->source_count) */
    struct pd_group_piece *recvs; /* (ring->source_count) */

    struct pd_shard *shard; /* this rank's */
    struct pd_shard_cursor cursor;
    struct header header;
    uint64_t start_ns, begun_bytes;
    pd_status status; /* of sending it */
    struct pd_error error;
};

/* ---- sending ---- */

/* A checkpoint that was removed meanwhile is not a failure. */
static pd_status unless_gone(const struct transfer *v, pd_status st)
{
    return st == PD_NOT_FOUND && !pd_store_has_record(v->store, v->job->name) ? PD_STOPPED : st;
}

static pd_status read_piece(struct transfer *v, struct pd_error *err)
{
    if (!pd_clock_pace(v->start_ns, v->begun_bytes, v->tier->bytes_per_second, &v->tier->worker.stop))
        PD_FAIL(err, PD_STOPPED, "copying %s was given up", v->job->source);
    const struct pd_shard_piece piece = pd_shard_cut_piece(v->shard, &v->cursor, v->piece_bytes);
    if (piece.bytes) PD_TRY(pd_file_read(pd_shard_file(v->shard), piece.offset, v->tier->staging, piece.bytes, err));
    PD_TRY(pd_shard_verify_piece(v->shard, &piece, v->tier->staging, err));
    v->begun_bytes += piece.bytes;
    v->header = (struct header){piece.offset, piece.bytes, pd_digest64(v->tier->staging, piece.bytes, 0), !piece.bytes};
    return PD_OK;
}

/* ---- keeping ---- */

static pd_status make_file(const struct transfer *v, struct incoming *in, struct pd_error *err)
{
    PD_TRY(pd_store_replica_begin(v->store, in->rank, in->path, err));
    PD_TRY(pd_file_open(v->tier->tiers->vfs, in->path, PD_OPEN_WRITE | PD_OPEN_CREATE | PD_OPEN_DIRECT, &in->file, err));
    const pd_status st = pd_file_preallocate(in->file, v->commit.shards[in->rank].file_bytes, err);
    return st == PD_UNSUPPORTED ? PD_OK : st;
}

static pd_status keep_piece(const struct incoming *in, struct pd_error *err)
{
    const struct header *h = &in->header;
    if (!h->bytes) return PD_OK;
    if (pd_digest64(in->buffer, h->bytes, 0) != h->digest)
        PD_FAIL(err, PD_IO, "bytes %" PRIu64 " and on of the shard of rank %u were damaged on the way", h->offset, in->rank);
    return pd_file_write(in->file, h->offset, in->buffer, h->bytes, err);
}

static pd_status end_file(const struct transfer *v, struct incoming *in, struct pd_error *err)
{
    const uint64_t bytes = v->commit.shards[in->rank].file_bytes;
    struct pd_stat stat;
    PD_TRY(pd_file_stat(in->file, &stat, err));
    if (stat.bytes != bytes) PD_TRY(pd_file_truncate(in->file, bytes, err));
    return pd_file_sync(in->file, err);
}

/* Verifies the written file against the record. The sender verified its bytes, so a mismatch arose on the way or here. */
static pd_status verify_file(const struct transfer *v, const struct incoming *in, struct pd_error *err)
{
    const struct pd_shard_summary *expect = &v->commit.shards[in->rank];
    struct pd_shard *made = NULL;
    struct pd_error own = {0};
    pd_status st = pd_shard_open(v->tier->tiers->vfs, in->path, &v->commit.state.identity, expect, &made, &own);
    if (!st) st = pd_shard_verify_made(made, v->tier->staging, v->tier->staging_bytes, &own);
    pd_shard_close(made);
    if (st == PD_CORRUPT) PD_FAIL(err, PD_IO, "%s reads back different from what was written: %s", in->path, own.message);
    return pd_error_pass(err, st, &own);
}

/* An incomplete shard is not counted here: its sender reports the failure. */
static void end_incoming(struct transfer *v, struct incoming *in)
{
    pd_status st = in->status;
    if (!st && in->is_whole) st = end_file(v, in, &in->error);
    const pd_status closed = in->file ? pd_file_close(in->file, st ? NULL : &in->error) : PD_OK;
    if (!st) st = closed;
    if (!st && in->is_whole) st = verify_file(v, in, &in->error);
    pd_fault_point("tiers.peer.written");
    if (!st && !in->is_whole) (void)!pd_store_replica_end(v->store, v->job->name, in->rank, PD_STOPPED, NULL);
    if (st || in->is_whole) st = pd_store_replica_end(v->store, v->job->name, in->rank, st, &in->error);
    pd_fault_point("tiers.peer.placed");
    in->status = unless_gone(v, st);
}

/* ---- rounds ---- */

/* All ranks agree on the result, since nobody can receive a piece of unknown size. */
static pd_status check_headers(const struct transfer *v, struct pd_error *err)
{
    pd_status st = PD_OK;
    for (uint32_t i = 0; !st && i < v->ring->source_count; i++) {
        const struct incoming *in = &v->incoming[i];
        const uint64_t offset = in->header.offset, bytes = in->header.bytes,
                       end = v->commit.shards[in->rank].file_bytes + PD_VFS_ALIGN - 1;
        if (bytes <= v->piece_bytes && offset <= end && bytes <= end - offset && (offset | bytes) % PD_VFS_ALIGN == 0)
            continue;
        st = pd_error_set(err, PD_IO, PD_WHERE, 0,
                          "the header of a piece of rank %u's shard arrived damaged: %" PRIu64 " bytes at %" PRIu64,
                          in->rank, bytes, offset);
    }
    return pd_group_agree(v->tier->group, st, err);
}

static pd_status exchange_headers(struct transfer *v, struct pd_error *err)
{
    const struct pd_group_piece mine = {v->ring->replica_host, &v->header, sizeof v->header};
    for (uint32_t i = 0; i < v->ring->source_count; i++)
        v->recvs[i] = (struct pd_group_piece){v->incoming[i].rank, &v->incoming[i].header, sizeof v->header};
    PD_TRY(pd_group_exchange(v->tier->group, &mine, 1, v->recvs, v->ring->source_count, err));
    return check_headers(v, err);
}

static pd_status exchange_pieces(struct transfer *v, struct pd_error *err)
{
    const struct pd_group_piece mine = {v->ring->replica_host, v->tier->staging, v->header.bytes};
    uint32_t count = 0;
    for (uint32_t i = 0; i < v->ring->source_count; i++) {
        const struct incoming *in = &v->incoming[i];
        if (in->header.bytes) v->recvs[count++] = (struct pd_group_piece){in->rank, in->buffer, in->header.bytes};
    }
    return pd_group_exchange(v->tier->group, &mine, v->header.bytes > 0, v->recvs, count, err);
}

/* Enough for the largest shard and its end header. */
static uint64_t count_rounds(const struct transfer *v)
{
    uint64_t most = 0;
    for (uint32_t r = 0; r < v->commit.shard_count; r++)
        most = v->commit.shards[r].file_bytes > most ? v->commit.shards[r].file_bytes : most;
    return most / (v->piece_bytes - PD_SHARD_BLOCK_BYTES) + 2;
}

static pd_status run_rounds(struct transfer *v, struct pd_error *err)
{
    v->start_ns = pd_clock_monotonic_ns(NULL);
    for (uint64_t left = count_rounds(v); left > 0; left--) {
        v->header = (struct header){0};
        if (!v->status) v->status = read_piece(v, &v->error);
        PD_TRY(exchange_headers(v, err));
        PD_TRY(exchange_pieces(v, err));
        for (uint32_t i = 0; i < v->ring->source_count; i++) {
            struct incoming *in = &v->incoming[i];
            if (in->header.is_end) in->is_whole = true;
            if (!in->status) in->status = keep_piece(in, &in->error);
        }
    }
    return PD_OK;
}

/* ---- a job ---- */

static uint64_t piece_bytes_of(const struct pd_store_replicas *ring)
{
    const uint64_t bytes = PD_TIERS_STAGING_BYTES / (1 + ring->most) / PD_SHARD_BLOCK_BYTES * PD_SHARD_BLOCK_BYTES;
    return bytes < PIECE_BYTES_MIN ? PIECE_BYTES_MIN : bytes;
}

/* More than PD_TIERS_STAGING_BYTES only if a rank keeps replicas of more than 63 ranks. */
uint64_t tier_replicate_staging_bytes(const struct pd_store_replicas *ring)
{
    return piece_bytes_of(ring) * (1 + ring->source_count);
}

static pd_status prepare(struct transfer *v, struct pd_error *err)
{
    const uint32_t count = v->ring->source_count;
    pd_status st = tier_read_source(v->tier, v->job, &v->commit, err);
    PD_TRY(unless_gone(v, st));
    PD_TRY(tier_make_staging(v->tier, tier_replicate_staging_bytes(v->ring), err));
    v->piece_bytes = piece_bytes_of(v->ring);
    v->incoming = calloc(count + 1u, sizeof *v->incoming);
    v->recvs = calloc(count + 1u, sizeof *v->recvs);
    if (!v->incoming || !v->recvs) PD_FAIL(err, PD_NO_MEMORY, "no memory for the shards of %u ranks", count);
    return PD_OK;
}

static void begin_shards(struct transfer *v)
{
    const uint32_t rank = v->tier->group->rank;
    char path[TIERS_PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", v->job->source, pd_shard_name(rank).text);
    v->status =
        pd_shard_open(v->tier->tiers->vfs, path, &v->commit.state.identity, &v->commit.shards[rank], &v->shard, &v->error);
    v->status = unless_gone(v, v->status);
    for (uint32_t i = 0; i < v->ring->source_count; i++) {
        struct incoming *in = &v->incoming[i];
        in->rank = v->ring->sources[i];
        in->buffer = (unsigned char *)v->tier->staging + (1 + i) * v->piece_bytes;
        in->status = make_file(v, in, &in->error);
    }
}

/* Real failures take precedence over copies that were given up. */
static pd_status judge(const struct transfer *v, struct pd_error *err)
{
    pd_status st = v->status;
    const struct pd_error *why = &v->error;
    for (uint32_t i = 0; i < v->ring->source_count; i++) {
        const struct incoming *in = &v->incoming[i];
        if (!in->status || (st && st != PD_STOPPED)) continue;
        st = in->status;
        why = &in->error;
    }
    return pd_error_pass(err, st, why);
}

pd_status tier_replicate(struct tier *tier, struct tier_job *job, struct pd_error *err)
{
    struct pd_store *store = tier->tiers->tiers[0].store;
    struct transfer v = {.tier = tier, .job = job, .store = store, .ring = pd_store_replicas(store)};
    pd_status st = pd_group_agree(tier->group, prepare(&v, err), err);
    if (!st) {
        pd_owner_acquire(&tier->staging_is, "replication");
        begin_shards(&v);
        st = run_rounds(&v, err);
        pd_shard_close(v.shard);
        for (uint32_t i = 0; i < v.ring->source_count; i++)
            end_incoming(&v, &v.incoming[i]);
        pd_owner_release(&tier->staging_is, "replication");
        if (!st) st = pd_group_agree(tier->group, judge(&v, err), err);
    }
    free(v.incoming);
    free(v.recvs);
    pd_commit_deinit(&v.commit);
    return st;
}
