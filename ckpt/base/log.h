/* Writes log lines for people to stderr, by level and module.
 *
 *   2026-11-21T09:25:46.123Z info ckpt r3: text
 *
 * PERDURE_LOG=info,ckpt=trace sets the default level, then one module's; the default is info. Each line is one
 * write, so lines of threads and ranks do not mix. Control characters become spaces; text over 4 KiB is cut. Errors are
 * values: a library returns them and does not log them. The caller that knows step, path and rank logs an error once.
 *   threads  any */
#pragma once

#include "ckpt/base/status.h"
#include <stdbool.h>

enum pd_log_level { PD_LOG_ERROR, PD_LOG_WARN, PD_LOG_INFO, PD_LOG_DEBUG, PD_LOG_TRACE, PD_LOG_LEVEL_COUNT };

/* `spec` has the syntax of PERDURE_LOG; NULL or "": info. PD_USAGE names the word it does not understand; levels are then
 * unchanged. main calls pd_log_configure_env first. Otherwise the first log line does so, and warns of mistakes.
 */
PD_MUST_USE pd_status pd_log_configure(const char *spec, struct pd_error *err);
PD_MUST_USE pd_status pd_log_configure_env(struct pd_error *err);
/* For tests: redirects lines to `sink`; NULL: stderr. */
void pd_log_set_sink(void (*sink)(void *context, const char *line, size_t bytes), void *context);

bool pd_log_enabled(enum pd_log_level level, const char *module);
void pd_log_write(enum pd_log_level level, const char *module, const char *format, ...) PD_PRINTF(3, 4);

/* Evaluates the arguments only if the line will be written. */
#define pd_log(level, module, ...)                                                           \
    do {                                                                                     \
        if (pd_log_enabled((level), (module))) pd_log_write((level), (module), __VA_ARGS__); \
    } while (0)
#define pd_log_error(module, ...) pd_log(PD_LOG_ERROR, module, __VA_ARGS__)
#define pd_log_warn(module, ...) pd_log(PD_LOG_WARN, module, __VA_ARGS__)
#define pd_log_info(module, ...) pd_log(PD_LOG_INFO, module, __VA_ARGS__)
#define pd_log_debug(module, ...) pd_log(PD_LOG_DEBUG, module, __VA_ARGS__)
