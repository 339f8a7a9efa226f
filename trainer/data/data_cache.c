#include "trainer/data/data_cache.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/digest.h"
#include "ckpt/base/fault.h"
#include "ckpt/base/grow.h"
#include "ckpt/base/heartbeat.h"
#include "ckpt/base/log.h"
#include "ckpt/base/progress.h"
#include "ckpt/base/words.h"
#include "ckpt/objects/download.h"
#include "ckpt/objects/url.h"
#include "trainer/data/data_file.h"
#include "trainer/data/megatron_index.h"
#include "trainer/data/token_loss.h"
#include "trainer/data/token_origin.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <ftw.h>
#include <inttypes.h>
#include <limits.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define MODULE "data"
#define NAME_BYTES 33u                  /* "URL-VERSION", 16 hexadecimal digits each */
#define COMPANIONS 7u                   /* a path, the pair that it may stand for, and what lies beside these */
#define FETCHING "fetching"             /* below it a directory per copy */
#define GROUP_BYTES (UINT64_C(1) << 30) /* fetched before their copies get their names: what a kill may cost */
#define WAIT_NS UINT64_C(50000000)
#define WAIT_SILENT_NS UINT64_C(5000000000)

struct copy {
    uint32_t path;             /* index in cache.paths */
    char *urls[COMPANIONS];    /* (count) owned */
    struct pd_download *looks; /* (count) */
    uint32_t count;
    char name[NAME_BYTES + 1];
    uint64_t bytes;
    bool is_there; /* in the cache, or a copy before this one has the same name */
};

struct pd_data_cache {
    char dir[PATH_MAX];
    uint64_t limit_bytes;
    pd_should_stop should_stop;
    char **paths; /* (path_count) owned */
    uint32_t path_count;
    struct copy *copies; /* (copy_count) */
    uint32_t copy_count;
    struct pd_download *looks; /* (copy_count * COMPANIONS) */
    int use_fd;                /* -1: none */
    char use_path[PATH_MAX + 16];
};

bool pd_data_is_remote(const char *path)
{
    return path && pd_object_url_is(path);
}

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* ---- what is in the bucket ---- */

/* Takes ownership of `url`. Ignores one that is there already. */
static pd_status copy_add(struct copy *c, char *url, struct pd_error *err)
{
    PD_TRY(PD_ALLOCATED(url, err, "a list of data files"));
    for (uint32_t i = 0; i < c->count; i++) {
        if (strcmp(c->urls[i], url) != 0) continue;
        free(url);
        return PD_OK;
    }
    c->urls[c->count] = url;
    c->looks[c->count++] = (struct pd_download){.url = url};
    return PD_OK;
}

/* The path itself, X.bin and X.idx, and tokenizers and marks of losses beside them. */
static pd_status copy_add_all(struct copy *c, const char *url, struct pd_error *err)
{
    PD_TRY(copy_add(c, strdup(url), err));
    PD_TRY(copy_add(c, pd_megatron_path(url, ".bin"), err));
    const char *tokens = c->urls[c->count - 1]; /* may be the path itself */
    PD_TRY(copy_add(c, pd_megatron_path(url, ".idx"), err));
    for (uint32_t i = 0; i < 2; i++) {
        PD_TRY(copy_add(c, pd_data_beside(i ? url : tokens, PD_TOKEN_ORIGIN_END), err));
        PD_TRY(copy_add(c, pd_data_beside(i ? url : tokens, PD_TOKEN_LOSS_END), err));
    }
    return PD_OK;
}

static const struct pd_download *copy_look(const struct copy *c, const char *end)
{
    char *url = pd_megatron_path(c->urls[0], end);
    const struct pd_download *found = NULL;
    for (uint32_t i = 0; url && i < c->count && !found; i++)
        if (strcmp(c->urls[i], url) == 0 && c->looks[i].is_there) found = &c->looks[i];
    free(url);
    return found;
}

/* Size and name. Drops X.bin without X.idx if the path is X: it is another file. */
static pd_status copy_measure(struct copy *c, struct pd_error *err)
{
    struct pd_digest_stream version;
    const struct pd_download *tokens = copy_look(c, ".bin"), *index = copy_look(c, ".idx");
    const bool is_pair = tokens && index;
    if (!c->looks[0].is_there && !is_pair)
        PD_FAIL(err, PD_NOT_FOUND, "%s: there is no such object; check its name, or set AWS_ENDPOINT_URL_S3", c->urls[0]);
    pd_digest_stream_init(&version, 0);
    c->bytes = 0;
    for (uint32_t i = 0; i < c->count; i++) {
        struct pd_download *look = &c->looks[i];
        if (i && !is_pair && look == tokens) look->is_there = false;
        if (!look->is_there) continue;
        pd_digest_stream_add(&version, c->urls[i], strlen(c->urls[i]) + 1);
        pd_digest_stream_add(&version, look->object.etag, strlen(look->object.etag) + 1);
        pd_digest_stream_add(&version, &look->object.bytes, sizeof look->object.bytes);
        c->bytes += look->object.bytes;
    }
    snprintf(c->name + 16, sizeof c->name - 16, "-%016" PRIx64, pd_digest_stream_value(&version));
    return PD_OK;
}

static bool is_repeated(const struct pd_data_cache *cache, uint32_t i)
{
    for (uint32_t k = 0; k < i; k++)
        if (strcmp(cache->copies[k].name, cache->copies[i].name) == 0) return true;
    return false;
}

static uint64_t cache_bytes(const struct pd_data_cache *cache)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < cache->copy_count; i++)
        if (!is_repeated(cache, i)) bytes += cache->copies[i].bytes;
    return bytes;
}

static pd_status check_limit(const struct pd_data_cache *cache, struct pd_error *err)
{
    const uint64_t bytes = cache_bytes(cache);
    if (bytes <= cache->limit_bytes) return PD_OK;
    PD_FAIL(
        err, PD_INVALID,
        "the data in the bucket has %s and data.cache_bytes is %s: training reads from all files from the first step on, "
        "so all must be on the host; set data.cache_bytes=%" PRIu64 "M, or name fewer files",
        pd_bytes_text((double)bytes).text, pd_bytes_text((double)cache->limit_bytes).text, (bytes >> 20) + 1);
}

/* Asks for all objects. */
static pd_status cache_look(struct pd_data_cache *cache, struct pd_error *err)
{
    uint32_t count = 0;
    struct pd_download *all = calloc((size_t)cache->copy_count * COMPANIONS, sizeof *all);
    PD_TRY(PD_ALLOCATED(all, err, "a list of data files"));
    for (uint32_t i = 0; i < cache->copy_count; i++)
        for (uint32_t k = 0; k < cache->copies[i].count; k++)
            all[count++] = cache->copies[i].looks[k];
    pd_status st = pd_downloads_look(all, count, err);
    count = 0;
    for (uint32_t i = 0; i < cache->copy_count; i++)
        for (uint32_t k = 0; k < cache->copies[i].count; k++)
            cache->copies[i].looks[k] = all[count++];
    free(all);
    for (uint32_t i = 0; !st && i < cache->copy_count; i++)
        st = copy_measure(&cache->copies[i], err);
    return st ? st : check_limit(cache, err);
}

/* ---- what is on this host ---- */

struct kept {
    char name[NAME_BYTES + 1];
    uint64_t bytes, used_ns; /* used_ns: when last */
    bool is_used;            /* by a process, or by this one soon */
};

struct kept_list {
    struct kept *items; /* (count) */
    uint32_t count;
};

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *where)
{
    (void)st, (void)type, (void)where;
    return remove(path);
}

static pd_status remove_below(const char *dir, const char *name, struct pd_error *err)
{
    char path[PATH_MAX + NAME_BYTES + 2];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS) && errno != ENOENT)
        PD_FAIL_ERRNO(err, errno, "%s: removing it; remove it by hand", path);
    return PD_OK;
}

static bool is_copy_name(const char *name)
{
    return strlen(name) == NAME_BYTES && name[16] == '-' && strspn(name, "0123456789abcdef") == 16 &&
           strspn(name + 17, "0123456789abcdef") == 16;
}

static void kept_measure(const char *dir, struct kept *kept)
{
    char path[PATH_MAX + NAME_BYTES + 2];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", dir, kept->name);
    DIR *listing = opendir(path);
    if (!listing) return;
    if (fstat(dirfd(listing), &st) == 0)
        kept->used_ns = (uint64_t)st.st_mtim.tv_sec * UINT64_C(1000000000) + (uint64_t)st.st_mtim.tv_nsec;
    for (const struct dirent *entry; (entry = readdir(listing));)
        if (fstatat(dirfd(listing), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode))
            kept->bytes += (uint64_t)st.st_size;
    closedir(listing);
}

static void mark_used(struct kept_list *list, const char *name)
{
    for (uint32_t i = 0; i < list->count; i++)
        if (strcmp(list->items[i].name, name) == 0) list->items[i].is_used = true;
}

/* Marks the copies that the process behind this file uses; removes the file if there is no such process. */
static void read_use(const char *dir, const char *name, struct kept_list *list)
{
    char path[PATH_MAX + 256], line[64];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "re");
    if (!file) return;
    if (flock(fileno(file), LOCK_EX | LOCK_NB) == 0)
        unlink(path);
    else
        while (fgets(line, sizeof line, file)) {
            line[strcspn(line, "\n")] = '\0';
            mark_used(list, line);
        }
    fclose(file);
}

static pd_status list_kept(const struct pd_data_cache *cache, struct kept_list *list, struct pd_error *err)
{
    pd_status st = PD_OK;
    DIR *listing = opendir(cache->dir);
    if (!listing) PD_FAIL_ERRNO(err, errno, "data.cache_dir %s cannot be listed", cache->dir);
    for (const struct dirent *entry; !st && (entry = readdir(listing));) {
        if (!is_copy_name(entry->d_name)) continue;
        st = PD_ALLOCATED(pd_grow(&list->items, list->count, sizeof *list->items), err, "a list of data files");
        if (st) break;
        struct kept *kept = &list->items[list->count++];
        *kept = (struct kept){.bytes = 0};
        memcpy(kept->name, entry->d_name, sizeof kept->name);
        kept_measure(cache->dir, kept);
    }
    rewinddir(listing);
    for (const struct dirent *entry; !st && (entry = readdir(listing));)
        if (strncmp(entry->d_name, "use-", 4) == 0) read_use(cache->dir, entry->d_name, list);
    closedir(listing);
    return st;
}

/* Whether all files are there with the sizes in the bucket. */
static bool is_whole(const struct pd_data_cache *cache, const struct copy *c)
{
    char path[PATH_MAX + 512];
    struct stat st;
    for (uint32_t i = 0; i < c->count; i++) {
        if (!c->looks[i].is_there) continue;
        snprintf(path, sizeof path, "%s/%s/%s", cache->dir, c->name, last_part(c->urls[i]));
        if (stat(path, &st) || !S_ISREG(st.st_mode) || (uint64_t)st.st_size != c->looks[i].object.bytes) return false;
    }
    return true;
}

static struct kept *oldest_unused(const struct kept_list *list)
{
    struct kept *oldest = NULL;
    for (uint32_t i = 0; i < list->count; i++) {
        struct kept *kept = &list->items[i];
        if (kept->name[0] && !kept->is_used && (!oldest || kept->used_ns < oldest->used_ns)) oldest = kept;
    }
    return oldest;
}

static uint64_t free_bytes(const char *dir)
{
    struct statvfs st;
    return statvfs(dir, &st) == 0 ? (uint64_t)st.f_bavail * st.f_frsize : UINT64_MAX;
}

/* Evicts until `more` bytes have space below the limit and on the disk. */
static pd_status make_space(const struct pd_data_cache *cache, struct kept_list *list, uint64_t more, struct pd_error *err)
{
    for (;;) {
        uint64_t kept = 0;
        for (uint32_t i = 0; i < list->count; i++)
            kept += list->items[i].bytes;
        const uint64_t available = free_bytes(cache->dir);
        if (kept + more <= cache->limit_bytes && more <= available) return PD_OK;
        struct kept *oldest = oldest_unused(list);
        if (oldest) {
            pd_log_info(MODULE, "evicting a copy of %s from %s", pd_bytes_text((double)oldest->bytes).text, cache->dir);
            PD_TRY(remove_below(cache->dir, oldest->name, err));
            *oldest = (struct kept){.bytes = 0};
            continue;
        }
        if (more > available)
            PD_FAIL(err, PD_NO_SPACE,
                    "data.cache_dir %s: copies of the data take %s more and its disk has %s free: free some, or set "
                    "data.cache_dir to a directory on a larger disk",
                    cache->dir, pd_bytes_text((double)more).text, pd_bytes_text((double)available).text);
        PD_FAIL(
            err, PD_INVALID,
            "data.cache_dir %s: copies of the data take %s more, copies that are in use take %s, and data.cache_bytes is "
            "%s; set data.cache_bytes=%" PRIu64 "M, or wait for the other runs on this host",
            cache->dir, pd_bytes_text((double)more).text, pd_bytes_text((double)kept).text,
            pd_bytes_text((double)cache->limit_bytes).text, ((kept + more) >> 20) + 1);
    }
}

/* ---- fetching ---- */

struct watched {
    const struct pd_data_cache *cache;
    uint64_t before, total, seen; /* bytes; before: of earlier groups */
    uint64_t begin_ns, line_ns;
    struct pd_progress_mode mode;
};

static bool watch_fetch(void *context, uint64_t done)
{
    struct watched *w = context;
    const uint64_t now_ns = pd_clock_monotonic_ns(NULL), bytes = w->before + done;
    if (bytes > w->seen) pd_heartbeat_done();
    w->seen = bytes;
    if (w->mode.kind != PD_PROGRESS_OFF && (double)(now_ns - w->line_ns) >= w->mode.line_seconds * 1e9) {
        w->line_ns = now_ns;
        pd_log_info(MODULE, "fetched %s of %s, %s/s", pd_bytes_text((double)bytes).text,
                    pd_bytes_text((double)w->total).text,
                    pd_bytes_text((double)bytes / ((double)(now_ns - w->begin_ns) * 1e-9)).text);
    }
    return pd_stop_asked(w->cache->should_stop);
}

static pd_status sync_directory(const char *path, struct pd_error *err)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) PD_FAIL_ERRNO(err, errno, "%s", path);
    const int number = fsync(fd) ? errno : 0;
    close(fd);
    if (number) PD_FAIL_ERRNO(err, number, "%s: syncing it", path);
    return PD_OK;
}

/* Puts a file of the copy on the list, below fetching/NAME. */
static pd_status list_file(const struct pd_data_cache *cache, const struct copy *c, uint32_t file, struct pd_download *ret,
                           struct pd_error *err)
{
    char *path = NULL;
    *ret = c->looks[file];
    if (asprintf(&path, "%s/" FETCHING "/%s/%s", cache->dir, c->name, last_part(c->urls[file])) < 0) path = NULL;
    ret->path = path;
    return PD_ALLOCATED(path, err, "a list of data files");
}

static pd_status name_copy(const struct pd_data_cache *cache, const struct copy *c, struct pd_error *err)
{
    char from[PATH_MAX + 64], to[PATH_MAX + 64];
    snprintf(from, sizeof from, "%s/" FETCHING "/%s", cache->dir, c->name);
    snprintf(to, sizeof to, "%s/%s", cache->dir, c->name);
    PD_TRY(sync_directory(from, err));
    pd_fault_point("data.fetched");
    if (rename(from, to)) PD_FAIL_ERRNO(err, errno, "%s: giving it its name", to);
    return sync_directory(cache->dir, err);
}

/* Copies [first, end). */
static pd_status fetch_group(struct pd_data_cache *cache, uint32_t first, uint32_t end, struct watched *watched,
                             struct pd_error *err)
{
    char path[PATH_MAX + 64];
    pd_status st = PD_OK;
    uint32_t count = 0;
    struct pd_download *files = calloc((size_t)(end - first) * COMPANIONS, sizeof *files);
    PD_TRY(PD_ALLOCATED(files, err, "a list of data files"));
    for (uint32_t i = first; !st && i < end; i++) {
        const struct copy *c = &cache->copies[i];
        if (c->is_there) continue;
        snprintf(path, sizeof path, "%s/" FETCHING "/%s", cache->dir, c->name);
        if (mkdir(path, 0700)) st = pd_error_set(err, pd_status_from_errno(errno), PD_WHERE, errno, "%s: making it", path);
        for (uint32_t k = 0; !st && k < c->count; k++)
            if (c->looks[k].is_there) st = list_file(cache, c, k, &files[count++], err);
    }
    if (!st) st = pd_downloads_run(files, count, watch_fetch, watched, err);
    for (uint32_t i = first; !st && i < end; i++)
        if (!cache->copies[i].is_there) st = name_copy(cache, &cache->copies[i], err);
    for (uint32_t i = 0; i < count; i++) {
        watched->before += files[i].object.bytes;
        free((char *)(uintptr_t)files[i].path);
    }
    free(files);
    return st;
}

static pd_status fetch_missing(struct pd_data_cache *cache, uint64_t missing, uint32_t count, struct pd_error *err)
{
    char path[PATH_MAX + 64];
    struct watched watched = {.cache = cache, .total = missing, .mode = pd_progress_mode()};
    watched.begin_ns = watched.line_ns = pd_clock_monotonic_ns(NULL);
    snprintf(path, sizeof path, "%s/" FETCHING, cache->dir);
    if (mkdir(path, 0700)) PD_FAIL_ERRNO(err, errno, "%s: making it", path);
    pd_log_info(MODULE, "fetching %s, %s, into %s", pd_counted(count, "file").text, pd_bytes_text((double)missing).text,
                cache->dir);
    pd_status st = PD_OK;
    for (uint32_t first = 0, end = 0; !st && first < cache->copy_count; first = end) {
        uint64_t bytes = 0;
        while (end < cache->copy_count && (end == first || bytes < GROUP_BYTES)) {
            if (!cache->copies[end].is_there) bytes += cache->copies[end].bytes;
            end++;
        }
        st = fetch_group(cache, first, end, &watched, err);
    }
    if (!st) {
        const double seconds = pd_clock_seconds_since(watched.begin_ns);
        pd_log_info(MODULE, "fetched %s in %.1f s, %s/s", pd_bytes_text((double)missing).text, seconds,
                    pd_bytes_text((double)missing / (seconds + 1e-9)).text);
    }
    const pd_status removed = remove_below(cache->dir, FETCHING, st ? NULL : err);
    return st ? st : removed;
}

/* Tells other processes which copies this one uses. */
static pd_status begin_use(struct pd_data_cache *cache, struct pd_error *err)
{
    snprintf(cache->use_path, sizeof cache->use_path, "%s/use-XXXXXX", cache->dir);
    cache->use_fd = mkostemp(cache->use_path, O_CLOEXEC);
    if (cache->use_fd < 0) PD_FAIL_ERRNO(err, errno, "data.cache_dir %s: making a file in it", cache->dir);
    if (flock(cache->use_fd, LOCK_EX | LOCK_NB))
        PD_FAIL_ERRNO(err, errno, "data.cache_dir %s: locking a file; name a directory on a local disk", cache->dir);
    for (uint32_t i = 0; i < cache->copy_count; i++) {
        char path[PATH_MAX + 64];
        dprintf(cache->use_fd, "%s\n", cache->copies[i].name);
        snprintf(path, sizeof path, "%s/%s", cache->dir, cache->copies[i].name);
        (void)utimensat(AT_FDCWD, path, NULL, 0);
    }
    return PD_OK;
}

static pd_status fill_locked(struct pd_data_cache *cache, struct kept_list *list, struct pd_error *err)
{
    uint64_t missing = 0;
    uint32_t count = 0;
    PD_TRY(remove_below(cache->dir, FETCHING, err));
    for (uint32_t i = 0; i < cache->copy_count; i++) {
        struct copy *c = &cache->copies[i];
        c->is_there = is_repeated(cache, i) || is_whole(cache, c);
        if (c->is_there) continue;
        PD_TRY(remove_below(cache->dir, c->name, err)); /* somebody has changed it */
        missing += c->bytes;
        count++;
    }
    PD_TRY(list_kept(cache, list, err));
    for (uint32_t i = 0; i < cache->copy_count; i++)
        mark_used(list, cache->copies[i].name);
    if (count) {
        PD_TRY(make_space(cache, list, missing, err));
        PD_TRY(fetch_missing(cache, missing, count, err));
    }
    return begin_use(cache, err);
}

/* The newest copy of each path, if the bucket does not answer. */
static pd_status take_old_locked(struct pd_data_cache *cache, struct kept_list *list, const struct pd_error *why,
                                 struct pd_error *err)
{
    PD_TRY(list_kept(cache, list, err));
    for (uint32_t i = 0; i < cache->copy_count; i++) {
        struct copy *c = &cache->copies[i];
        const struct kept *newest = NULL;
        for (uint32_t k = 0; k < list->count; k++)
            if (memcmp(list->items[k].name, c->name, 16) == 0 && (!newest || list->items[k].used_ns > newest->used_ns))
                newest = &list->items[k];
        if (!newest) return pd_error_pass(err, why->status, why);
        memcpy(c->name, newest->name, sizeof c->name);
    }
    pd_log_warn(MODULE, "%s; continuing with the copies of the data in %s", why->message, cache->dir);
    return begin_use(cache, err);
}

/* ---- the directory ---- */

static pd_status make_directory(struct pd_data_cache *cache, const char *given, struct pd_error *err)
{
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char buffer[4096];
    struct passwd entry, *user = NULL;
    int length;
    if ((!home || !*home) && !getpwuid_r(geteuid(), &entry, buffer, sizeof buffer, &user) && user) home = user->pw_dir;
    if (given && *given)
        length = snprintf(cache->dir, sizeof cache->dir, "%s", given);
    else if (base && *base)
        length = snprintf(cache->dir, sizeof cache->dir, "%s/perdure", base);
    else if (home && *home)
        length = snprintf(cache->dir, sizeof cache->dir, "%s/.cache/perdure", home);
    else
        PD_FAIL(err, PD_INVALID, "HOME is not set, so there is no place for copies of the data; set data.cache_dir");
    if ((size_t)length >= sizeof cache->dir - 300) PD_FAIL(err, PD_INVALID, "data.cache_dir is too long; name another");
    for (char *slash = cache->dir; slash;) {
        slash = strchr(slash + 1, '/');
        if (slash) *slash = '\0';
        const int number = mkdir(cache->dir, 0700) ? errno : 0;
        if (number && number != EEXIST) PD_FAIL_ERRNO(err, number, "data.cache_dir: making %s; name another", cache->dir);
        if (slash) *slash = '/';
    }
    return PD_OK;
}

/* One process of the host at a time. */
static pd_status lock_directory(const struct pd_data_cache *cache, int *ret_fd, struct pd_error *err)
{
    char path[PATH_MAX + 8];
    bool is_said = false;
    const uint64_t begin_ns = pd_clock_monotonic_ns(NULL);
    snprintf(path, sizeof path, "%s/lock", cache->dir);
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) PD_FAIL_ERRNO(err, errno, "%s cannot be made; set data.cache_dir to another directory", path);
    while (flock(fd, LOCK_EX | LOCK_NB)) {
        const int number = errno;
        const bool is_asked = pd_stop_asked(cache->should_stop);
        if ((number != EWOULDBLOCK && number != EINTR) || is_asked) {
            close(fd);
            if (is_asked) PD_FAIL(err, PD_STOPPED, "asked to leave while waiting for the data");
            PD_FAIL_ERRNO(err, number, "%s: locking it; set data.cache_dir to a directory on a local disk", path);
        }
        if (!is_said && pd_clock_monotonic_ns(NULL) - begin_ns > WAIT_SILENT_NS) {
            is_said = true;
            pd_log_info(MODULE, "waiting for another process of this host, which fetches data into %s", cache->dir);
        }
        PD_ON_STORAGE(pd_clock_sleep_ns(WAIT_NS));
    }
    *ret_fd = fd;
    return PD_OK;
}

/* `why`: the bucket did not answer; NULL: it did. */
static pd_status cache_fill(struct pd_data_cache *cache, const char *dir, const struct pd_error *why, struct pd_error *err)
{
    int lock = -1;
    struct kept_list list = {NULL, 0};
    PD_TRY(make_directory(cache, dir, err));
    PD_TRY(lock_directory(cache, &lock, err));
    const enum pd_heartbeat_place before = pd_heartbeat_storage_begin();
    const pd_status st = why ? take_old_locked(cache, &list, why, err) : fill_locked(cache, &list, err);
    pd_heartbeat_storage_end(before);
    close(lock);
    free(list.items);
    PD_TRY(st);
    for (uint32_t i = 0; i < cache->copy_count; i++) {
        const struct copy *c = &cache->copies[i];
        char *path = NULL;
        if (asprintf(&path, "%s/%s/%s", cache->dir, c->name, last_part(c->urls[0])) < 0) path = NULL;
        PD_TRY(PD_ALLOCATED(path, err, "a list of data files"));
        free(cache->paths[c->path]);
        cache->paths[c->path] = path;
    }
    return PD_OK;
}

static pd_status cache_list(struct pd_data_cache *cache, const char *const *paths, uint32_t count, struct pd_error *err)
{
    cache->paths = calloc(count + 1, sizeof *cache->paths);
    cache->copies = calloc(count + 1, sizeof *cache->copies);
    cache->looks = calloc((size_t)(count + 1) * COMPANIONS, sizeof *cache->looks);
    PD_TRY(PD_ALLOCATED(cache->paths && cache->copies && cache->looks, err, "a list of data files"));
    for (uint32_t i = 0; i < count; i++) {
        PD_TRY(PD_ALLOCATED((cache->paths[i] = strdup(paths[i] ? paths[i] : "")), err, "a list of data files"));
        cache->path_count++;
        if (!pd_data_is_remote(paths[i])) continue;
        struct copy *c = &cache->copies[cache->copy_count];
        c->path = i;
        c->looks = cache->looks + (size_t)cache->copy_count++ * COMPANIONS;
        snprintf(c->name, sizeof c->name, "%016" PRIx64, pd_digest64(paths[i], strlen(paths[i]), 0));
        PD_TRY(copy_add_all(c, paths[i], err));
    }
    return PD_OK;
}

static pd_status cache_new(const struct pd_data_cache_options *options, const char *const *paths, uint32_t count,
                           struct pd_data_cache **ret_cache, struct pd_error *err)
{
    struct pd_data_cache *cache = calloc(1, sizeof *cache);
    if (!cache) PD_FAIL(err, PD_NO_MEMORY, "a list of data files");
    cache->use_fd = -1;
    cache->limit_bytes = options->bytes;
    cache->should_stop = options->should_stop;
    const pd_status st = cache_list(cache, paths, count, err);
    if (st)
        pd_data_cache_close(cache);
    else
        *ret_cache = cache;
    return st;
}

/* The bucket does not answer; nothing is refused. */
static bool is_silent(pd_status st, const struct pd_error *err)
{
    return st == PD_IO && err->sys_errno != EACCES;
}

pd_status pd_data_cache_open(const struct pd_data_cache_options *options, const char *const *paths, uint32_t count,
                             struct pd_data_cache **ret_cache, struct pd_error *err)
{
    struct pd_data_cache *cache = NULL;
    struct pd_error why = {0};
    PD_TRY(cache_new(options, paths, count, &cache, err));
    pd_status st = PD_OK;
    if (cache->copy_count) {
        PD_ON_STORAGE(st = cache_look(cache, &why));
        if (!st || is_silent(st, &why))
            st = cache_fill(cache, options->dir, st ? &why : NULL, err);
        else
            (void)pd_error_pass(err, st, &why);
    }
    if (st)
        pd_data_cache_close(cache);
    else
        *ret_cache = cache;
    return st;
}

pd_status pd_data_cache_open_one(const char *path, struct pd_data_cache **ret_cache, const char **ret_path,
                                 struct pd_error *err)
{
    const struct pd_data_cache_options options = {.bytes = PD_DATA_CACHE_BYTES};
    PD_TRY(pd_data_cache_open(&options, &path, 1, ret_cache, err));
    *ret_path = pd_data_cache_path(*ret_cache, 0);
    return PD_OK;
}

pd_status pd_data_cache_check(const struct pd_data_cache_options *options, const char *const *paths, uint32_t count,
                              struct pd_error *err)
{
    struct pd_data_cache *cache = NULL;
    struct pd_error why = {0};
    PD_TRY(cache_new(options, paths, count, &cache, err));
    const pd_status st = cache->copy_count ? cache_look(cache, &why) : PD_OK;
    pd_data_cache_close(cache);
    return is_silent(st, &why) ? PD_OK : pd_error_pass(err, st, &why);
}

const char *pd_data_cache_path(const struct pd_data_cache *cache, uint32_t i)
{
    return cache->paths[i];
}

void pd_data_cache_close(struct pd_data_cache *cache)
{
    if (!cache) return;
    if (cache->use_fd >= 0) {
        unlink(cache->use_path);
        close(cache->use_fd);
    }
    for (uint32_t i = 0; i < cache->copy_count; i++)
        for (uint32_t k = 0; k < cache->copies[i].count; k++)
            free(cache->copies[i].urls[k]);
    for (uint32_t i = 0; i < cache->path_count; i++)
        free(cache->paths[i]);
    free(cache->paths);
    free(cache->copies);
    free(cache->looks);
    free(cache);
}

/* ---- lists ---- */

struct remote_listing {
    struct pd_remote_list *list;
    const char *bucket, *pattern; /* pattern: of keys; NULL: all */
};

static pd_status remote_push(struct pd_remote_list *list, char *url, uint64_t bytes, struct pd_error *err)
{
    if (!url || !pd_grow(&list->urls, list->count, sizeof *list->urls) ||
        !pd_grow(&list->bytes, list->count, sizeof *list->bytes)) {
        free(url);
        PD_FAIL(err, PD_NO_MEMORY, "a list of data files");
    }
    list->urls[list->count] = url;
    list->bytes[list->count++] = bytes;
    return PD_OK;
}

static pd_status take_object(void *context, const char *key, uint64_t bytes, bool is_directory, struct pd_error *err)
{
    struct remote_listing *l = context;
    char *url = NULL;
    if (is_directory || !bytes || last_part(key)[0] == '.' || pd_ends_with(key, PD_TOKEN_ORIGIN_END) ||
        pd_ends_with(key, PD_TOKEN_LOSS_END) || pd_ends_with(key, ".idx") ||
        (l->pattern && fnmatch(l->pattern, key, FNM_PATHNAME | FNM_PERIOD) != 0))
        return PD_OK;
    if (asprintf(&url, "s3://%s/%s", l->bucket, key) < 0) url = NULL;
    return remote_push(l->list, url, bytes, err);
}

pd_status pd_data_cache_list(const char *url, struct pd_remote_list *list, struct pd_error *err)
{
    struct pd_object_url place;
    struct pd_bucket *bucket = NULL;
    char prefix[PD_OBJECT_KEY_MAX + 2];
    const uint32_t before = list->count;
    if (!pd_data_is_remote(url)) return remote_push(list, strdup(url), 1, err);
    PD_TRY(pd_object_url_parse(url, &place, err));
    const size_t wild = strcspn(place.key, "*?[");
    const bool is_glob = place.key[wild], is_prefix = !place.key[0] || url[strlen(url) - 1] == '/';
    if (!is_glob && !is_prefix) return remote_push(list, strdup(url), 1, err);
    struct remote_listing listing = {list, place.bucket, is_glob ? place.key : NULL};
    snprintf(prefix, sizeof prefix, "%.*s%s", (int)wild, place.key, !is_glob && place.key[0] ? "/" : "");
    const bool is_deep = is_glob && strchr(place.key + wild, '/');
    PD_TRY(pd_bucket_open(place.bucket, NULL, &bucket, err));
    const pd_status st = pd_bucket_list(bucket, prefix, is_deep, take_object, &listing, err);
    pd_bucket_close(bucket);
    PD_TRY(st);
    if (list->count == before)
        PD_FAIL(err, PD_NOT_FOUND, "no object %s %s; check with a tool of your store, or set AWS_ENDPOINT_URL_S3",
                is_glob ? "matches" : "lies below", url);
    return PD_OK;
}

void pd_remote_list_deinit(struct pd_remote_list *list)
{
    for (uint32_t i = 0; i < list->count; i++)
        free(list->urls[i]);
    free(list->urls);
    free(list->bytes);
    *list = (struct pd_remote_list){NULL, NULL, 0};
}
