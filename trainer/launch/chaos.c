#include "trainer/launch/chaos.h"

#include "ckpt/base/parse.h"

#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *const pd_chaos_names[PD_CHAOS_KINDS] = {"kill", "stop", "pause", "preempt", "damage"};

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
    struct pd_chaos chaos = {.per_minute = strtod(text + length + 1, &end)};
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
