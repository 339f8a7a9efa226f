/* The loop of one exchange: links, channels, waiting, and who is missing when it does not end. */
#ifndef PD_TRAINER_COMM_EXCHANGE_H
#define PD_TRAINER_COMM_EXCHANGE_H

#include "trainer/comm/progress.h"

/* Carries `op` out. Only the thread that holds engine->is_executing may call it. */
PD_MUST_USE pd_status pd_exchange_run(struct pd_progress *engine, const struct pd_comm_op *op, struct pd_error *err);

/* PD_PEER_LOST where a peer's memory says that it is gone; its rank is then the one to blame. From any thread. */
PD_MUST_USE pd_status pd_exchange_look(struct pd_progress *engine, struct pd_error *err);

#endif
