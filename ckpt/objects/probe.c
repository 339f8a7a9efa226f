#include "ckpt/objects/probe.h"
#include "ckpt/objects/url.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/random_bits.h"
#include "ckpt/base/thread.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RIVALS 8u
#define RATE_THREADS 4u

struct rival {
    pthread_t thread;
    struct pd_bucket *bucket;
    const char *key;
    char text[16];
    pd_status status;
    struct pd_error err;
};

static void *rival_put(void *context)
{
    struct rival *r = context;
    r->status = pd_bucket_put(r->bucket, r->key, r->text, strlen(r->text), true, &r->err);
    return NULL;
}

/* Finds the rival whose object is there. NULL: none of them. */
static pd_status find_winner(struct pd_bucket *bucket, const char *key, const struct rival *rivals, uint32_t count,
                             const struct rival **ret_winner, struct pd_error *err)
{
    char *text = NULL;
    size_t bytes = 0;
    PD_TRY(pd_bucket_get_small(bucket, key, sizeof rivals->text, &text, &bytes, err));
    *ret_winner = NULL;
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(text, rivals[i].text) == 0) *ret_winner = &rivals[i];
    free(text);
    return PD_OK;
}

/* No winner is fine: its answer may have been lost. More than one is an error. */
static pd_status judge_rivals(struct pd_bucket *bucket, const char *key, const struct rival *rivals, uint32_t count,
                              struct pd_error *err)
{
    const struct rival *told = NULL, *there = NULL;
    uint32_t winners = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (rivals[i].status == PD_OK) {
            told = &rivals[i];
            winners++;
        } else if (rivals[i].status != PD_EXISTS) {
            return pd_error_pass(err, rivals[i].status, &rivals[i].err);
        }
    }
    if (winners > 1)
        PD_FAIL(err, PD_UNSUPPORTED,
                "%s: %" PRIu32 " of %" PRIu32
                " simultaneous PUTs of one name with If-None-Match succeeded, but only one may: two "
                "launches could commit the same step. Use a store that has conditional writes",
                pd_bucket_endpoint(bucket), winners, count);
    PD_TRY(find_winner(bucket, key, rivals, count, &there, err));
    if (there && (!told || told == there)) return PD_OK;
    PD_FAIL(err, PD_UNSUPPORTED, "%s kept a different object than the conditional PUT that succeeded: use another store",
            pd_bucket_endpoint(bucket));
}

static pd_status probe_exclusion(struct pd_bucket *bucket, const char *key, struct pd_error *err)
{
    struct rival rivals[RIVALS] = {{0}};
    uint32_t started = 0;
    for (; started < RIVALS; started++) {
        struct rival *r = &rivals[started];
        *r = (struct rival){.bucket = bucket, .key = key};
        snprintf(r->text, sizeof r->text, "rival %" PRIu32, started);
        if (pd_thread_start(&r->thread, NULL, rival_put, r)) break;
    }
    for (uint32_t i = 0; i < started; i++)
        pthread_join(rivals[i].thread, NULL);
    return judge_rivals(bucket, key, rivals, started, err);
}

static pd_status probe_upload(struct pd_bucket *bucket, const char *key, struct pd_error *err)
{
    char id[PD_UPLOAD_ID_MAX];
    PD_TRY(pd_bucket_upload_begin(bucket, key, id, err));
    return pd_bucket_upload_abort(bucket, key, id, err);
}

/* ---- rates ---- */

struct rate_part {
    pthread_t thread;
    struct pd_bucket *bucket;
    char key[PD_OBJECT_KEY_MAX + 1];
    void *data;
    uint64_t bytes;
    bool is_upload;
    pd_status status;
    struct pd_error err;
};

static void *rate_move(void *context)
{
    struct rate_part *p = context;
    const struct iovec into = {p->data, p->bytes};
    p->status = p->is_upload ? pd_bucket_put(p->bucket, p->key, p->data, p->bytes, false, &p->err)
                             : pd_bucket_get(p->bucket, p->key, NULL, 0, &into, 1, &p->err);
    return NULL;
}

static pd_status rate_run(struct rate_part *parts, bool is_upload, double *ret_rate, struct pd_error *err)
{
    const uint64_t begin_ns = pd_clock_monotonic_ns(NULL);
    uint32_t started = 0;
    pd_status st = PD_OK;
    for (; started < RATE_THREADS; started++) {
        parts[started].is_upload = is_upload;
        if (pd_thread_start(&parts[started].thread, NULL, rate_move, &parts[started])) break;
    }
    for (uint32_t i = 0; i < started; i++) {
        pthread_join(parts[i].thread, NULL);
        if (!st) st = pd_error_pass(err, parts[i].status, &parts[i].err);
    }
    *ret_rate = (double)(parts[0].bytes * started) / pd_clock_seconds_since(begin_ns);
    return st;
}

static pd_status probe_rates(struct pd_bucket *bucket, const char *key, uint64_t bytes, struct pd_bucket_rates *ret,
                             struct pd_error *err)
{
    struct rate_part *parts = calloc(RATE_THREADS, sizeof *parts);
    char *data = malloc(bytes);
    pd_status st = PD_ALLOCATED(parts && data, err, "measuring a bucket");
    for (uint32_t i = 0; i < RATE_THREADS && !st; i++) {
        const uint64_t part = bytes / RATE_THREADS;
        parts[i] = (struct rate_part){.bucket = bucket, .data = data + i * part, .bytes = part};
        snprintf(parts[i].key, sizeof parts[i].key, "%.1000s-%" PRIu32, key, i);
    }
    for (uint64_t i = 0; i < bytes && !st; i += sizeof(uint32_t)) { /* compressible data would give too high a rate */
        const uint32_t random = pd_random_bits(bytes, i);
        memcpy(data + i, &random, bytes - i < sizeof random ? bytes - i : sizeof random);
    }
    if (!st) st = rate_run(parts, true, &ret->upload_bytes_per_second, err);
    if (!st) st = rate_run(parts, false, &ret->download_bytes_per_second, err);
    for (uint32_t i = 0; parts && i < RATE_THREADS; i++)
        if (parts[i].key[0]) (void)!pd_bucket_delete(bucket, parts[i].key, NULL);
    free(parts);
    free(data);
    return st;
}

static pd_status seen(void *context, const char *key, uint64_t bytes, bool is_directory, struct pd_error *err)
{
    (void)context, (void)key, (void)bytes, (void)is_directory, (void)err;
    return PD_STOPPED;
}

static pd_status seen_upload(void *context, const char *key, const char *id, struct pd_error *err)
{
    (void)context, (void)key, (void)id, (void)err;
    return PD_OK;
}

pd_status pd_bucket_probe(struct pd_bucket *bucket, const char *prefix, uint64_t rate_bytes,
                          struct pd_bucket_rates *ret_rates, struct pd_error *err)
{
    char key[PD_OBJECT_KEY_MAX + 1];
    const uint64_t wall_ns = pd_clock_wall_ns();
    snprintf(key, sizeof key, "%.900s%sprobe-%08" PRIx32 "%08" PRIx32, prefix, prefix[0] ? "/" : "",
             pd_random_bits(wall_ns, (uint64_t)getpid()), pd_random_bits(wall_ns, (uintptr_t)&key));
    PD_TRY(pd_bucket_list(bucket, prefix, false, seen, NULL, err));
    PD_TRY(pd_bucket_uploads(bucket, key, seen_upload, NULL, err));
    pd_status st = probe_exclusion(bucket, key, err);
    if (!st) st = probe_upload(bucket, key, err);
    if (!st && ret_rates) st = probe_rates(bucket, key, rate_bytes, ret_rates, err);
    struct pd_error own = {0};
    const pd_status deleted = pd_bucket_delete(bucket, key, &own);
    return st ? st : pd_error_pass(err, deleted, &own);
}
