#include "ckpt/base/pretended_host.h"

#include "ckpt/base/parse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns word `count` of a comma-separated list, starting over after the last. */
static void word_of(const char *list, uint32_t count, char ret[64])
{
    const char *at = list;
    while (count--) {
        at += strcspn(at, ",");
        at = *at ? at + 1 : list;
    }
    snprintf(ret, 64, "%.*s", (int)strcspn(at, ","), at);
}

bool pd_pretended_host(uint32_t rank, uint32_t size, char ret_name[64])
{
    const char *own = getenv("PERDURE_TEST_HOST"), *all = getenv("PERDURE_TEST_HOSTS");
    uint64_t hosts;
    ret_name[0] = '\0';
    if (own && *own) {
        snprintf(ret_name, 64, "%s", own);
    } else if (all && strchr(all, ',')) {
        word_of(all, rank, ret_name);
    } else if (all && *all) {
        if (!pd_parse_u64(all, &hosts) || hosts == 0 || hosts > size) return false;
        snprintf(ret_name, 64, "%llu", (unsigned long long)(rank * hosts / size));
    }
    return true;
}
