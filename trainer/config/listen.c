#include "trainer/config/listen.h"

#include "ckpt/base/parse.h"

#include <arpa/inet.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static bool is_address(const char *host)
{
    struct in6_addr address;
    return inet_pton(AF_INET, host, &address) == 1 || inet_pton(AF_INET6, host, &address) == 1;
}

pd_status pd_config_listen(const char *key, const char *text, struct pd_listen *ret_listen, struct pd_error *err)
{
    struct pd_listen listen = {.host = "127.0.0.1"};
    const char *colon = strrchr(text, ':'), *host = text;
    size_t length = colon ? (size_t)(colon - text) : 0;
    uint64_t port;
    const bool is_bracketed = length > 2 && host[0] == '[' && host[length - 1] == ']';
    if (is_bracketed) host++, length -= 2;
    if (length && length < sizeof listen.host) snprintf(listen.host, sizeof listen.host, "%.*s", (int)length, host);
    if (strcmp(listen.host, "localhost") == 0) listen = (struct pd_listen){.host = "127.0.0.1"};
    const bool is_port = pd_parse_u64(colon ? colon + 1 : text, &port) && port && port <= UINT16_MAX;
    const bool is_bare_v6 = !is_bracketed && memchr(text, ':', length);
    if (!is_port || is_bare_v6 || length >= sizeof listen.host || !is_address(listen.host))
        PD_FAIL(err, PD_INVALID, "%s is %s: expected PORT for this host alone, or ADDRESS:PORT such as 0.0.0.0:9400", key,
                text);
    listen.port = (uint16_t)port;
    *ret_listen = listen;
    return PD_OK;
}
