#include "ckpt/objects/download.h"
#include "ckpt/objects/url.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/thread.h"
#include "ckpt/base/words.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define THREADS 16u
#define PART_BYTES (UINT64_C(8) << 20)
#define WATCH_NS UINT64_C(100000000)

struct download_file {
    struct pd_bucket *bucket; /* of downloads.buckets */
    struct pd_object_url url;
    uint64_t first_part;   /* counted over all files */
    _Atomic uint64_t left; /* parts; who ends the last one compares the sum and syncs the file */
    _Atomic uint64_t sum;  /* of the parts so far */
};

struct downloads {
    struct pd_download *looks;       /* (count) looked up; NULL: run */
    const struct pd_download *files; /* (count) */
    struct download_file *each;      /* (count) */
    uint32_t count;
    struct pd_bucket **buckets; /* (bucket_count) */
    uint32_t bucket_count;
    uint64_t jobs; /* files to look up, or parts */
    _Atomic uint64_t next, done_bytes;
    _Atomic bool stop; /* ends the threads and their requests */
    _Atomic uint32_t running;
    pthread_mutex_t mutex; /* guards status and err: the first failure */
    pd_status status;
    struct pd_error err;
};

static pd_status downloads_open(struct downloads *d, struct pd_error *err)
{
    d->each = calloc(d->count + 1, sizeof *d->each);
    d->buckets = calloc(d->count + 1, sizeof(struct pd_bucket *));
    PD_TRY(PD_ALLOCATED(d->each && d->buckets, err, "downloading %u objects", d->count));
    for (uint32_t i = 0; i < d->count; i++) {
        struct download_file *f = &d->each[i];
        PD_TRY(pd_object_url_parse(d->files[i].url, &f->url, err));
        for (uint32_t k = 0; k < i && !f->bucket; k++)
            if (strcmp(d->each[k].url.bucket, f->url.bucket) == 0) f->bucket = d->each[k].bucket;
        if (f->bucket) continue;
        PD_TRY(pd_bucket_open(f->url.bucket, &d->stop, &f->bucket, err));
        d->buckets[d->bucket_count++] = f->bucket;
    }
    return PD_OK;
}

static void downloads_close(struct downloads *d)
{
    for (uint32_t i = 0; i < d->bucket_count; i++)
        pd_bucket_close(d->buckets[i]);
    free(d->buckets);
    free(d->each);
}

static pd_status look_up(struct downloads *d, uint64_t i, struct pd_error *err)
{
    struct pd_download *look = &d->looks[i];
    struct pd_error own = {0};
    const pd_status st = pd_bucket_head(d->each[i].bucket, d->each[i].url.key, &look->object, &own);
    look->is_there = !st;
    if (own.sys_errno == EACCES)
        pd_error_append(&own, "; without s3:ListBucket on the bucket an object that is absent is refused, too");
    if (st) return st == PD_NOT_FOUND ? PD_OK : pd_error_pass(err, st, &own);
    if (look->object.etag[0]) return PD_OK;
    PD_FAIL(err, PD_UNSUPPORTED, "%s: %s sends no ETag, so a replaced object would go unnoticed: copy it to a disk",
            look->url, pd_bucket_endpoint(d->each[i].bucket));
}

static pd_status part_write(int fd, const char *path, uint64_t offset, const char *data, uint64_t bytes,
                            struct pd_error *err)
{
    while (bytes) {
        const ssize_t moved = pwrite(fd, data, bytes, (off_t)offset);
        if (moved < 0 && errno == EINTR) continue;
        if (moved < 0) PD_FAIL_ERRNO(err, errno, "%s", path);
        offset += (uint64_t)moved;
        data += moved;
        bytes -= (uint64_t)moved;
    }
    return PD_OK;
}

static uint64_t parts_of(uint64_t bytes)
{
    return bytes ? (bytes - 1) / PART_BYTES + 1 : 1;
}

static pd_status download_part(struct downloads *d, uint64_t job, void *buffer, struct pd_error *err)
{
    uint32_t i = d->count - 1;
    while (d->each[i].first_part > job)
        i--;
    struct download_file *f = &d->each[i];
    const struct pd_download *file = &d->files[i];
    const uint64_t offset = (job - f->first_part) * PART_BYTES, left = file->object.bytes - offset,
                   bytes = left < PART_BYTES ? left : PART_BYTES;
    const struct iovec into = {buffer, bytes};
    PD_TRY(pd_bucket_get(f->bucket, f->url.key, file->object.etag, offset, &into, 1, err));
    const int fd = open(file->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) PD_FAIL_ERRNO(err, errno, "%s", file->path);
    pd_status st = part_write(fd, file->path, offset, buffer, bytes, err);
    const enum pd_object_sum_kind kind = file->object.sum.kind;
    if (kind) {
        const uint64_t sum = pd_object_sum_of(kind, buffer, bytes);
        atomic_fetch_xor(&f->sum, pd_object_sum_shift(kind, sum, left - bytes));
    }
    if (!st && atomic_fetch_sub(&f->left, 1) == 1) {
        if (kind && atomic_load(&f->sum) != file->object.sum.value)
            st = pd_error_set(err, PD_CORRUPT, PD_WHERE, 0,
                              "%s: its bytes do not have the %s that the server keeps of it: run the command again; if "
                              "this stays, the object is damaged",
                              file->url, pd_object_sum_name(kind));
        else if (fdatasync(fd))
            st = pd_error_set(err, pd_status_from_errno(errno), PD_WHERE, errno, "%s: syncing it", file->path);
    }
    close(fd);
    atomic_fetch_add(&d->done_bytes, bytes);
    return st;
}

static void *downloads_thread(void *context)
{
    struct downloads *d = context;
    struct pd_error err = {0};
    void *buffer = d->looks ? NULL : malloc(PART_BYTES);
    pd_status st = PD_ALLOCATED(d->looks || buffer, &err, "downloading");
    for (uint64_t job; !st && !atomic_load(&d->stop) && (job = atomic_fetch_add(&d->next, 1)) < d->jobs;)
        st = d->looks ? look_up(d, job, &err) : download_part(d, job, buffer, &err);
    free(buffer);
    pthread_mutex_lock(&d->mutex);
    if (st && !d->status) {
        d->status = st;
        d->err = err;
        atomic_store(&d->stop, true);
    }
    pthread_mutex_unlock(&d->mutex);
    atomic_fetch_sub(&d->running, 1);
    return NULL;
}

static pd_status downloads_work(struct downloads *d, pd_download_watch watch, void *context, struct pd_error *err)
{
    pthread_t threads[THREADS];
    uint32_t started = 0;
    int number = 0;
    bool is_stopped = false;
    while (started < THREADS && started < d->jobs && !number) {
        atomic_fetch_add(&d->running, 1);
        number = pd_thread_start(&threads[started], NULL, downloads_thread, d);
        if (number)
            atomic_fetch_sub(&d->running, 1);
        else
            started++;
    }
    while (atomic_load(&d->running)) {
        pd_clock_sleep_ns(d->looks ? WATCH_NS / 50 : WATCH_NS);
        if (!watch || is_stopped || !watch(context, atomic_load(&d->done_bytes))) continue;
        is_stopped = true;
        atomic_store(&d->stop, true);
    }
    for (uint32_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    if (is_stopped) PD_FAIL(err, PD_STOPPED, "asked to leave while files were fetched");
    if (!started && number) PD_FAIL_THREAD(err, number, "to download files");
    return pd_error_pass(err, d->status, &d->err);
}

static pd_status downloads_do(struct downloads *d, pd_download_watch watch, void *context, struct pd_error *err)
{
    pthread_mutex_init(&d->mutex, NULL);
    pd_status st = downloads_open(d, err);
    for (uint32_t i = 0; !st && i < d->count; i++) {
        d->each[i].first_part = d->jobs;
        d->each[i].left = d->looks ? 1 : parts_of(d->files[i].object.bytes);
        d->jobs += d->each[i].left;
    }
    if (!st) st = downloads_work(d, watch, context, err);
    downloads_close(d);
    pthread_mutex_destroy(&d->mutex);
    return st;
}

pd_status pd_downloads_look(struct pd_download *files, uint32_t count, struct pd_error *err)
{
    struct downloads d = {.looks = files, .files = files, .count = count};
    return count ? downloads_do(&d, NULL, NULL, err) : PD_OK;
}

pd_status pd_downloads_run(const struct pd_download *files, uint32_t count, pd_download_watch watch, void *context,
                           struct pd_error *err)
{
    struct downloads d = {.files = files, .count = count};
    return count ? downloads_do(&d, watch, context, err) : PD_OK;
}
