#include "trainer/launch/chaos.h"

#include "ckpt/base/parse.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define FILL_WRITTEN_BYTES (UINT64_C(1) << 20)

const char *const pd_chaos_names[PD_CHAOS_KINDS] = {"kill", "stop", "pause", "preempt", "damage",
                                                    "flip", "fill", "host",  "cut_off"};

/* Steele, Lea and Flood 2014: SplitMix64, whose n-th number needs no others. */
static uint64_t number_at(uint64_t seed, uint64_t n)
{
    uint64_t z = seed + (n + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static double share_at(uint64_t seed, uint64_t n)
{
    return (double)(number_at(seed, n) >> 11) * 0x1p-53;
}

bool pd_chaos_parse(const char *text, struct pd_chaos *ret_chaos)
{
    char seed[32], *end;
    const size_t length = strcspn(text, ",");
    if (!text[length] || length >= sizeof seed) return false;
    snprintf(seed, sizeof seed, "%.*s", (int)length, text);
    struct pd_chaos chaos = {.per_minute = strtod(text + length + 1, &end), .paused = PD_CHAOS_NOBODY, .ballast = -1};
    if (*end || end == text + length + 1 || !(chaos.per_minute > 0 && chaos.per_minute <= 600)) return false;
    if (!pd_parse_u64(seed, &chaos.seed)) return false;
    *ret_chaos = chaos;
    return true;
}

bool pd_chaos_due(struct pd_chaos *c, uint64_t now_ns, uint32_t processes, struct pd_chaos_blow *ret_blow)
{
    if (c->per_minute <= 0 || !processes) return false;
    if (!c->began_ns) c->began_ns = now_ns;
    const uint64_t first = 4 * c->count;
    const double due = ((double)c->count + share_at(c->seed, first)) * 60 / c->per_minute;
    if ((double)(now_ns - c->began_ns) * 1e-9 < due) return false;
    *ret_blow = (struct pd_chaos_blow){.kind = (enum pd_chaos_kind)(number_at(c->seed, first + 1) % PD_CHAOS_KINDS),
                                       .victim = (uint32_t)(number_at(c->seed, first + 2) % processes),
                                       .moment = share_at(c->seed, first + 3)};
    c->count++;
    return true;
}

/* Names end in fences and have leading zeros: the last in their order is the newest. Directories of saves under way do not
 * match. */
static bool newest_shard(const char *dir, double moment, char *ret_path, size_t bytes)
{
    char pattern[4200];
    glob_t steps, shards;
    snprintf(pattern, sizeof pattern, "%.4000s/step-*[0-9]", dir);
    if (glob(pattern, 0, NULL, &steps)) return false;
    snprintf(pattern, sizeof pattern, "%.4000s/shard-*.h5", steps.gl_pathv[steps.gl_pathc - 1]);
    globfree(&steps);
    if (glob(pattern, 0, NULL, &shards)) return false;
    snprintf(ret_path, bytes, "%s", shards.gl_pathv[(size_t)(moment * (double)shards.gl_pathc)]);
    globfree(&shards);
    return true;
}

bool pd_chaos_damage(const struct pd_chaos *c, double moment)
{
    char path[4200];
    struct stat found;
    unsigned char byte = 0;
    if (!c->dir || !newest_shard(c->dir, moment, path, sizeof path)) return false;
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    bool is_done = fd >= 0 && !fstat(fd, &found);
    const off_t at = is_done ? (off_t)(moment * (double)found.st_size) : 0;
    is_done = is_done && pread(fd, &byte, 1, at) == 1;
    byte = (unsigned char)~byte;
    is_done = is_done && pwrite(fd, &byte, 1, at) == 1;
    if (fd >= 0) close(fd);
    return is_done;
}

/* What the file system needs for itself nobody knows: the last bytes are written until there is no room. */
static bool fill(int fd, uint64_t left)
{
    static const char zeros[4096];
    const off_t most = left > FILL_WRITTEN_BYTES ? (off_t)(left - FILL_WRITTEN_BYTES) : 0;
    if (most && posix_fallocate(fd, 0, most)) return false;
    off_t at = most;
    ssize_t wrote;
    while ((wrote = pwrite(fd, zeros, sizeof zeros, at)) > 0)
        at += wrote;
    return errno == ENOSPC;
}

bool pd_chaos_fill(struct pd_chaos *c)
{
    struct statvfs space;
    if (!c->dir || c->ballast >= 0) return false;
    c->ballast = open(c->dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (c->ballast < 0) return false;
    const bool is_known = fstatvfs(c->ballast, &space) == 0;
    const uint64_t left = is_known ? (uint64_t)space.f_bavail * space.f_frsize : 0;
    if (is_known && left <= PD_CHAOS_FILL_BYTES_MAX && fill(c->ballast, left)) return true;
    pd_chaos_empty(c);
    return false;
}

void pd_chaos_empty(struct pd_chaos *c)
{
    if (c->ballast >= 0) close(c->ballast);
    c->ballast = -1;
}
