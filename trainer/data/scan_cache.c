#include "trainer/data/scan_cache.h"

#include "ckpt/base/digest.h"
#include "ckpt/base/grow.h"
#include "ckpt/base/regular_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define RECORDS_MAX 65536u
#define SETTLED_NS UINT64_C(1000000000) /* a file that changed less long ago may change again within one tick of its times */

struct record {
    uint64_t key[14];
    struct pd_token_scan scan;
    uint64_t check; /* of all before it: a record that was torn is none */
};

struct pd_scan_cache {
    int fd;          /* -1: nothing is kept */
    bool is_partial; /* a scan failed: what was known of the others stays */
    struct record *known, *used;
    uint32_t known_count, used_count;
};

static uint64_t check_of(const struct record *record)
{
    return pd_digest64(record, offsetof(struct record, check), 1);
}

static void read_known(struct pd_scan_cache *cache)
{
    struct stat st;
    if (fstat(cache->fd, &st) || st.st_size <= 0) return;
    const uint64_t count = (uint64_t)st.st_size / sizeof *cache->known;
    if (count > RECORDS_MAX || !(cache->known = calloc(count + 1, sizeof *cache->known))) return;
    const ssize_t got = pread(cache->fd, cache->known, count * sizeof *cache->known, 0);
    if (got > 0) cache->known_count = (uint32_t)((size_t)got / sizeof *cache->known);
}

struct pd_scan_cache *pd_scan_cache_open(const char *path)
{
    struct pd_scan_cache *cache = calloc(1, sizeof *cache);
    if (!cache) return NULL;
    if (!path || pd_regular_open(path, O_RDWR | O_CREAT | O_NOFOLLOW, &cache->fd)) cache->fd = -1;
    if (cache->fd < 0) return cache;
    while (flock(cache->fd, LOCK_EX) && errno == EINTR) /* without locks all scan at once, as without a cache */
        ;
    read_known(cache);
    return cache;
}

static uint64_t nanoseconds(struct timespec t)
{
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

/* False: it cannot be known again. */
static bool key_of(const struct pd_token_file *file, uint64_t key[14])
{
    struct timespec now;
    struct stat st;
    const int fds[] = {file->fd, file->index_fd};
    memset(key, 0, 14 * sizeof *key);
    clock_gettime(CLOCK_REALTIME, &now);
    for (int i = 0; i < 2; i++) {
        if (fds[i] < 0) continue;
        if (fstat(fds[i], &st)) return false;
        const uint64_t words[] = {st.st_dev, st.st_ino, (uint64_t)st.st_size, nanoseconds(st.st_mtim),
                                  nanoseconds(st.st_ctim)};
        memcpy(key + 5 * i, words, sizeof words);
        if (nanoseconds(now) < nanoseconds(st.st_ctim) + SETTLED_NS) return false;
    }
    key[10] = file->format;
    key[11] = file->type;
    key[12] = file->data_offset;
    key[13] = file->token_count;
    return true;
}

static const struct record *find(const struct pd_scan_cache *cache, const uint64_t key[14])
{
    for (uint32_t i = 0; i < cache->known_count; i++)
        if (!memcmp(cache->known[i].key, key, sizeof cache->known[i].key) &&
            check_of(&cache->known[i]) == cache->known[i].check)
            return &cache->known[i];
    return NULL;
}

/* Tokens outside of the vocabulary are looked for again, for the error that names the first. */
static bool serves(const struct record *record, uint32_t vocab)
{
    return record && (!vocab || (record->scan.min >= 0 && record->scan.max < (int64_t)vocab));
}

pd_status pd_scan_cache_scan(struct pd_scan_cache *cache, const struct pd_token_file *file, uint32_t vocab,
                             struct pd_thread_pool *pool, struct pd_token_scan *ret_scan, struct pd_error *err)
{
    struct record record = {0};
    uint64_t after[14];
    bool is_settled = cache && cache->fd >= 0 && key_of(file, record.key);
    const struct record *known = is_settled ? find(cache, record.key) : NULL;
    if (serves(known, vocab)) {
        record.scan = known->scan;
    } else {
        const pd_status st = pd_token_file_scan(file, vocab, pool, &record.scan, err);
        if (st && cache) cache->is_partial = true;
        PD_TRY(st);
        is_settled = is_settled && key_of(file, after) && !memcmp(after, record.key, sizeof after);
    }
    *ret_scan = record.scan;
    record.check = check_of(&record);
    if (is_settled && pd_grow(&cache->used, cache->used_count, sizeof *cache->used))
        cache->used[cache->used_count++] = record;
    return PD_OK;
}

/* What fails here costs the next start a scan. */
void pd_scan_cache_close(struct pd_scan_cache *cache)
{
    if (!cache) return;
    const size_t bytes = cache->used_count * sizeof *cache->used;
    const bool is_same = cache->used_count == cache->known_count && (!bytes || !memcmp(cache->used, cache->known, bytes));
    if (cache->fd >= 0 && !is_same && !cache->is_partial && pwrite(cache->fd, cache->used, bytes, 0) == (ssize_t)bytes)
        (void)!ftruncate(cache->fd, (off_t)bytes);
    if (cache->fd >= 0) close(cache->fd);
    free(cache->known);
    free(cache->used);
    free(cache);
}
