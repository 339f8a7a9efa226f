#include "trainer/config/renamed.h"

#include <stdio.h>
#include <string.h>

#define GRADIENTS "no longer exists, since gradients are added up in fp32 and travel as integers; leave it out"
#define STRIPES                                                                                                           \
    "no longer exists: leave it out; to use several drives, join them into one RAID-0 with mdadm and put checkpoint.dir " \
    "there"

/* A row stays for as long as checkpoints with its name may exist. */
static const struct pd_renamed rows[] = {
    {"restart.peer_timeout", NULL, "restart.begin_seconds", NULL, true},
    {"batch.leaf", NULL, "batch.micro_batch", NULL, false},
    {"layout.host_ranks", NULL, "layout.ranks_per_host", NULL, false},
    {"layout.order", "leaves", "depth_first", NULL, false},
    {"layout.order", "layers", "breadth_first", NULL, false},
    {"layout.fp8_codes", "leaf", "micro_batch", NULL, false},
    {"checkpoint.compression", "auto", "zstd:1", "no longer exists; write none, or zstd:1 to compress", false},
    {"checkpoint.tiers[].compression", "auto", "zstd:1", "no longer exists; write none, or zstd:1 to compress", false},
    {"checkpoint.tiers[].copies", NULL, "checkpoint.tiers[].replicas", NULL, false},
    {"numerics.gradient_type", NULL, NULL, GRADIENTS, false},
    {"numerics.gradient_rounding", NULL, NULL, GRADIENTS, false},
    {"checkpoint.stripes", NULL, NULL, STRIPES, false},
    {"checkpoint.stripe_weights", NULL, NULL, STRIPES, false},
    {"layout.tensor_exchange", NULL, NULL, "no longer exists: exchanges are of a micro-batch at once; leave it out", false},
    {"layout.schedule", NULL, NULL, "no longer exists, since 1F1B has gpipe's bubble in less memory; leave it out", false},
};

/* Equal, where "[]" stands for any index. */
static bool matches(const char *key, const char *path)
{
    const char *open = strchr(path, '[');
    if (!open) return strcmp(key, path) == 0;
    const size_t length = (size_t)(open - path);
    const char *rest = strchr(open, ']');
    return rest && strncmp(key, path, length) == 0 && key[length] == '[' && strcmp(key + length + 1, rest) == 0;
}

const struct pd_renamed *pd_renamed_find(const char *path, const char *value)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (matches(rows[i].key, path) && (!rows[i].value || (value && strcmp(rows[i].value, value) == 0))) return &rows[i];
    return NULL;
}

void pd_renamed_path(const struct pd_renamed *row, const char *path, char *ret, size_t bytes)
{
    const char *hole = strstr(row->now, "[]"), *index = strchr(path, '[');
    if (hole && index)
        snprintf(ret, bytes, "%.*s%.*s%s", (int)(hole - row->now), row->now, (int)strcspn(index, "]"), index, hole + 1);
    else
        snprintf(ret, bytes, "%s", row->now);
}

pd_status pd_renamed_refuse(const char *path, const char *value, struct pd_error *err)
{
    const struct pd_renamed *row = pd_renamed_find(path, value);
    char now[256] = "", said[320] = "no longer exists; leave it out";
    if (!row) return PD_OK;
    if (row->now) pd_renamed_path(row, path, now, sizeof now);
    if (row->now) snprintf(said, sizeof said, "is now called %s", now);
    if (row->value) PD_FAIL(err, PD_INVALID, "%s: %s %s", path, value, row->said ? row->said : said);
    PD_FAIL(err, PD_INVALID, "unknown key %s: it %s", path, row->said ? row->said : said);
}
