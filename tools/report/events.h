/* events.jsonl into the starts of a history. */
#pragma once

#include "tools/report/history.h"

/* A line of events.jsonl; what is no event is counted as damaged. */
PD_MUST_USE pd_status pd_history_take_event(struct pd_history *history, const char *line, size_t bytes,
                                            struct pd_error *err);
/* 0 where there is none. */
uint64_t pd_history_u64(const struct pd_json_value *object, const char *key);
/* Behind those that are there. */
PD_MUST_USE pd_status pd_history_add_start(struct pd_history *history, struct pd_history_start **ret_start,
                                           struct pd_error *err);
