/* In place of ckpt/base/log.c in libperdure, which prints nothing: what a caller should know is an error or a note. */
#include "ckpt/base/log.h"

pd_status pd_log_configure(const char *spec, struct pd_error *err)
{
    (void)spec, (void)err;
    return PD_OK;
}

pd_status pd_log_configure_env(struct pd_error *err)
{
    (void)err;
    return PD_OK;
}

void pd_log_set_sink(void (*sink)(void *context, const char *line, size_t bytes), void *context)
{
    (void)sink, (void)context;
}

bool pd_log_enabled(enum pd_log_level level, const char *module)
{
    (void)level, (void)module;
    return false;
}

void pd_log_write(enum pd_log_level level, const char *module, const char *format, ...)
{
    (void)level, (void)module, (void)format;
}
