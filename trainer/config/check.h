/* What a configuration leaves open, and what is wrong with it as a whole. */
#pragma once

#include "ckpt/base/status.h"
#include "trainer/config/config.h"
#include <stdint.h>

/* Fills what was left to be chosen: micro-batch, context, schedule, directories. Nothing here looks at the machine:
 * numerics must not depend on it. */
PD_MUST_USE pd_status pd_config_resolve(struct pd_config *config, struct pd_error *err);
/* Everything that can be checked without opening a file.   errors  PD_INVALID: key, cause, nearest admitted value */
PD_MUST_USE pd_status pd_config_check(const struct pd_config *config, struct pd_error *err);
/* The part of it that asks for the model's sizes, which init.from says: checked when the model is known. */
PD_MUST_USE pd_status pd_config_check_model(const struct pd_config *config, struct pd_error *err);
/* Takes a model that was read. A context that is no key's but the other model's is no longer than this one's. */
void pd_config_take_model(struct pd_config *config, const struct pd_model_config *model);
/* Only what a reader of a saved configuration divides by or allocates from; and its layout, where that was changed. */
PD_MUST_USE pd_status pd_config_check_saved(const struct pd_config *config, bool is_changed, struct pd_error *err);

/* Where an endpoint listens, out of text. */
struct pd_listen {
    char host[64]; /* an address: "127.0.0.1", "0.0.0.0", "::1" */
    uint16_t port;
};

/* "9400", "0.0.0.0:9400", "[::1]:9400"; without a host 127.0.0.1, since what a run says is nobody's business by default.
 *   errors  PD_INVALID: names `key` */
PD_MUST_USE pd_status pd_config_listen(const char *key, const char *text, struct pd_listen *ret_listen,
                                       struct pd_error *err);
