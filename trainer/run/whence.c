#include "trainer/run/whence.h"

#include "ckpt/base/heartbeat.h"
#include "ckpt/base/words.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HOSTS_NAMED 4u

/* Of one rank, and then of one host. */
struct source {
    uint64_t bytes_read;
    uint32_t host, holds; /* a part of the checkpoint */
    char name[64];
};

static void add_up(const struct source *ranks, uint32_t count, struct source *hosts)
{
    for (uint32_t r = 0; r < count; r++) {
        struct source *host = &hosts[ranks[r].host];
        host->bytes_read += ranks[r].bytes_read;
        host->holds |= ranks[r].holds;
        if (!host->name[0]) memcpy(host->name, ranks[r].name, sizeof host->name);
    }
}

static void name_hosts(const struct source *hosts, uint32_t count, char *ret_text, size_t room)
{
    uint32_t named = 0, all = 0;
    size_t used = 0;
    for (uint32_t h = 0; h < count; h++)
        all += hosts[h].bytes_read > 0;
    for (uint32_t h = 0; h < count && named < HOSTS_NAMED; h++) {
        if (!hosts[h].bytes_read) continue;
        const char *before = !named ? "" : named + 1 == all ? " and " : ", ";
        used += (size_t)snprintf(ret_text + used, room - used, "%s%.32s (%s)", before, hosts[h].name,
                                 pd_bytes_text((double)hosts[h].bytes_read).text);
        named++;
    }
    if (named < all) snprintf(ret_text + used, room - used, " and %u more", all - named);
}

pd_status pd_whence_find(struct pd_group *group, const char *directory, const struct pd_commit *commit, bool has_replicas,
                         uint64_t bytes_read, struct pd_whence *ret_whence, struct pd_error *err)
{
    uint32_t holding = 0;
    void *ranks = NULL;
    struct source mine = {.bytes_read = bytes_read, .host = group->host};
    PD_ON_STORAGE(mine.holds = access(directory, F_OK) == 0);
    (void)gethostname(mine.name, sizeof mine.name - 1);
    struct source *hosts = calloc(group->host_count, sizeof *hosts);
    pd_status st = PD_ALLOCATED(hosts, err, "no memory for what hosts have read");
    st = pd_group_agree(group, st, err);
    if (!st) st = pd_group_gather_all(group, &mine, sizeof mine, &ranks, err);
    if (!st) add_up(ranks, group->size, hosts);
    for (uint32_t h = 0; !st && h < group->host_count; h++)
        holding += hosts[h].holds;
    uint32_t count = 0;
    for (uint32_t s = 0; s < commit->shard_count; s++)
        if (commit->shards[s].host >= count) count = commit->shards[s].host + 1; /* numbered from 0 on */
    const uint32_t saved = count;
    if (!st && has_replicas && holding < saved) ret_whence->lost_hosts = saved - holding;
    if (!st && (group->host_count > 1 || ret_whence->lost_hosts))
        name_hosts(hosts, group->host_count, ret_whence->hosts, sizeof ret_whence->hosts);
    free(ranks);
    free(hosts);
    return st;
}

void pd_whence_describe(const struct pd_whence *whence, const struct pd_tier_report *tier, char *ret_text, size_t bytes)
{
    const struct pd_lost_steps *lost = &whence->lost;
    FILE *out = fmemopen(ret_text, bytes, "w");
    ret_text[0] = '\0';
    if (!out) return;
    fprintf(out, "; from %.400s%s", tier->dir, tier->in_memory ? ", in memory" : "");
    if (whence->hosts[0]) fprintf(out, ", read on %s", whence->hosts);
    if (whence->lost_hosts)
        fprintf(out, ", with replicas of the shards of %s", pd_counted(whence->lost_hosts, "lost host").text);
    if (lost->age >= 0) fprintf(out, ", %.1f s old", lost->age);
    if (lost->steps) fprintf(out, ": %s %s lost", pd_counted(lost->steps, "step").text, lost->steps == 1 ? "is" : "are");
    if (lost->steps && lost->age >= 0) fprintf(out, ", %.1f s", lost->seconds);
    (void)fclose(out);
    ret_text[bytes - 1] = '\0';
}
