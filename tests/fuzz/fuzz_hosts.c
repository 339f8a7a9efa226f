/* A list of hosts. */
#include "tests/fuzz/target.h"
#include "trainer/launch/hosts.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct pd_launch_host_seen *hosts;
    uint32_t count;
    struct pd_error err = {0};
    char *text = strndup((const char *)data, bytes);
    if (!text) abort();
    const pd_status st = pd_launch_hosts_parse(text, 2, &hosts, &count, &err);
    if (st && !err.message[0]) abort();
    for (uint32_t i = 0; !st && i < count; i++)
        if (!hosts[i].name[0] || !hosts[i].slots || hosts[i].answers) abort();
    if (!st) free(hosts);
    free(text);
    return 0;
}
