#include "ckpt/objects/upload.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/digest.h"
#include "ckpt/base/thread.h"
#include "ckpt/shard/pieces.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SENDERS 8u
#define PART_BYTES_LEAST (UINT64_C(8) << 20)
#define PIECE_BYTES (UINT64_C(128) << 10) /* read at once: stays in the cache for its checksum */

struct upload_file {
    struct pd_upload *upload;
    struct pd_file *file;
    const char *key;
    char id[PD_UPLOAD_ID_MAX];
    uint64_t bytes, part_bytes, begin_ns;
    uint32_t part_count, senders;   /* senders: one per part that fits the buffer */
    struct pd_uploaded_part *parts; /* (part_count) the sender of a part writes its entry; read after the joins */
    _Atomic uint32_t next;
    _Atomic uint64_t begun;  /* bytes of parts that senders took, for the rate limit */
    _Atomic bool has_failed; /* tells the other senders to end */
};

struct upload_sender {
    pthread_t thread;
    struct upload_file *file;
    void *buffer; /* (part_bytes) of this sender */
    pd_status status;
    struct pd_error err;
};

static pd_status read_part(struct upload_file *f, uint64_t offset, void *buffer, uint64_t bytes, uint32_t *ret_crc,
                           struct pd_error *err)
{
    *ret_crc = 0;
    for (uint64_t at = 0; at < bytes; at += PIECE_BYTES) {
        const uint64_t piece = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES, begin = offset + at;
        PD_TRY(pd_file_read(f->file, begin, (char *)buffer + at, piece, err));
        if (f->upload->shard) PD_TRY(pd_shard_verify_part(f->upload->shard, offset, buffer, begin, begin + piece, err));
        *ret_crc = pd_crc32(*ret_crc, (char *)buffer + at, piece);
    }
    return PD_OK;
}

static pd_status send_part(struct upload_file *f, uint32_t part, void *buffer, struct pd_error *err)
{
    const uint64_t offset = part * f->part_bytes, left = f->bytes - offset,
                   bytes = left < f->part_bytes ? left : f->part_bytes;
    const uint64_t before = atomic_fetch_add(&f->begun, bytes);
    (void)pd_clock_pace(f->begin_ns, before, f->upload->bytes_per_second,
                        f->upload->stop ? f->upload->stop : &f->has_failed);
    uint32_t crc = 0;
    pd_status st = read_part(f, offset, buffer, bytes, &crc, err);
    if (st == PD_CORRUPT) st = read_part(f, offset, buffer, bytes, &crc, err); /* damage only if it is there twice */
    PD_TRY(st);
    if (f->part_count <= 1)
        PD_TRY(pd_bucket_put(f->upload->bucket, f->key, buffer, bytes, false, err));
    else
        PD_TRY(pd_bucket_upload_part(f->upload->bucket, f->key, f->id, part + 1, buffer, bytes, crc, &f->parts[part], err));
    if (f->upload->bytes_sent) atomic_fetch_add(f->upload->bytes_sent, bytes);
    return PD_OK;
}

static void *sender_run(void *context)
{
    struct upload_sender *s = context;
    struct upload_file *f = s->file;
    for (uint32_t part;
         !s->status && !atomic_load(&f->has_failed) && (part = atomic_fetch_add(&f->next, 1)) < f->part_count;) {
        s->status = send_part(f, part, s->buffer, &s->err);
        if (s->status) atomic_store(&f->has_failed, true);
    }
    return NULL;
}

static void join_sender(const struct upload_file *f, const struct upload_sender *s)
{
    struct timespec until;
    do {
        if (f->upload->wait) f->upload->wait(f->upload->wait_context);
        (void)clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += 100000000;
        until.tv_sec += until.tv_nsec / 1000000000, until.tv_nsec %= 1000000000;
    } while (pthread_clockjoin_np(s->thread, NULL, CLOCK_MONOTONIC, &until) == ETIMEDOUT);
}

static pd_status send_parts(struct upload_file *f, struct pd_error *err)
{
    struct upload_sender *senders = calloc(SENDERS, sizeof *senders);
    if (!senders) PD_FAIL(err, PD_NO_MEMORY, "uploading %s", f->key);
    uint32_t started = 0;
    int number = 0;
    pd_status st = PD_OK;
    while (started < f->senders && started < f->part_count && !number) {
        struct upload_sender *s = &senders[started];
        *s = (struct upload_sender){.file = f, .buffer = (char *)f->upload->memory + started * f->part_bytes};
        number = pd_thread_start(&s->thread, NULL, sender_run, s);
        started += !number;
    }
    if (!started) st = pd_error_thread(err, PD_WHERE, number, "to upload checkpoints");
    for (uint32_t i = 0; i < started; i++) {
        join_sender(f, &senders[i]);
        if (!st) st = pd_error_pass(err, senders[i].status, &senders[i].err);
    }
    free(senders);
    return st;
}

static pd_status upload_in_parts(struct upload_file *f, struct pd_error *err)
{
    f->parts = calloc(f->part_count, sizeof *f->parts);
    if (!f->parts) PD_FAIL(err, PD_NO_MEMORY, "uploading %s", f->key);
    pd_status st = pd_bucket_upload_begin(f->upload->bucket, f->key, f->id, err);
    if (!st) {
        st = send_parts(f, err);
        if (!st) st = pd_bucket_upload_complete(f->upload->bucket, f->key, f->id, f->parts, f->part_count, err);
        if (st) (void)!pd_bucket_upload_abort(f->upload->bucket, f->key, f->id, NULL);
    }
    free(f->parts);
    return st;
}

pd_status pd_upload_file(struct pd_upload *upload, const char *path, const char *key, struct pd_error *err)
{
    struct upload_file f = {.upload = upload, .key = key, .begin_ns = pd_clock_monotonic_ns(NULL)};
    struct pd_stat stat = {.bytes = 0};
    PD_TRY(pd_file_open(upload->vfs, path, PD_OPEN_READ, &f.file, err));
    pd_status st = pd_file_stat(f.file, &stat, err);
    f.bytes = stat.bytes;
    f.part_bytes = upload->memory_bytes / SENDERS / PD_VFS_ALIGN * PD_VFS_ALIGN;
    if (f.part_bytes < PART_BYTES_LEAST) f.part_bytes = PART_BYTES_LEAST;
    f.senders = (uint32_t)(upload->memory_bytes / f.part_bytes);
    PD_CHECK(f.senders > 0);
    const uint64_t count = (f.bytes + f.part_bytes - 1) / f.part_bytes;
    if (!st && count > PD_UPLOAD_PARTS_MAX)
        st = pd_error_set(err, PD_INVALID, PD_WHERE, 0,
                          "%s needs %" PRIu64 " parts of %" PRIu64
                          " bytes, and an object has at most %u: set a larger upload_memory",
                          path, count, f.part_bytes, PD_UPLOAD_PARTS_MAX);
    f.part_count = (uint32_t)count;
    if (!st) st = count > 1 ? upload_in_parts(&f, err) : send_part(&f, 0, upload->memory, err);
    if (!st)
        (void)pd_clock_pace(f.begin_ns, f.bytes, upload->bytes_per_second, upload->stop); /* wait for the last part too */
    pd_file_close_readonly(f.file);
    return st;
}
