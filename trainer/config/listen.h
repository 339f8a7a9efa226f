/* Where an endpoint listens, out of text. */
#pragma once

#include "ckpt/base/status.h"
#include <stdint.h>

struct pd_listen {
    char host[64]; /* an address: "127.0.0.1", "0.0.0.0", "::1" */
    uint16_t port;
};

/* "9400", "0.0.0.0:9400", "[::1]:9400"; without a host 127.0.0.1, since what a run says is nobody's business by default.
 *   errors  PD_INVALID: names `key` */
PD_MUST_USE pd_status pd_config_listen(const char *key, const char *text, struct pd_listen *ret_listen,
                                       struct pd_error *err);
