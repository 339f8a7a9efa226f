/* Completes a configuration and checks it as a whole. */
#pragma once

#include "ckpt/base/status.h"
#include "trainer/config/config.h"
#include <stdint.h>

/* Fills in open choices: micro-batch, context, schedule, directories. Does not look at the machine, because numerics must
 * not depend on it. */
PD_MUST_USE pd_status pd_config_resolve(struct pd_config *config, struct pd_error *err);
/* Checks all that needs no file. errors PD_INVALID: key, cause, nearest valid value */
PD_MUST_USE pd_status pd_config_check(const struct pd_config *config, struct pd_error *err);
/* The checks that need the model's sizes: with init.from, call it when the model is known. */
PD_MUST_USE pd_status pd_config_check_model(const struct pd_config *config, struct pd_error *err);
/* Sets a model that was read. If no key gave the context, it is limited to this model's. */
void pd_config_take_model(struct pd_config *config, const struct pd_model_config *model);
/* Checks only what readers of a saved configuration divide by or allocate from; and its layout, if that was changed. */
PD_MUST_USE pd_status pd_config_check_saved(const struct pd_config *config, bool is_changed, struct pd_error *err);

/* The address of an endpoint, parsed from text. */
struct pd_listen {
    char host[64]; /* an address: "127.0.0.1", "0.0.0.0", "::1" */
    uint16_t port;
};

/* "9400", "0.0.0.0:9400", "[::1]:9400". Without a host 127.0.0.1, so that a run's data is private by default.
 *   errors  PD_INVALID: names `key` */
PD_MUST_USE pd_status pd_config_listen(const char *key, const char *text, struct pd_listen *ret_listen,
                                       struct pd_error *err);
