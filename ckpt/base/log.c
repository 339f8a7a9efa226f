#include "ckpt/base/log.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/parse.h"
#include "ckpt/base/progress.h"
#include "ckpt/base/rank.h"
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_BYTES 4096
#define MODULES_MAX 32
#define MODULE_NAME_MAX 24

struct levels {
    enum pd_log_level all, most; /* level of modules not named; the highest of any module */
    unsigned count;
    struct {
        char name[MODULE_NAME_MAX];
        enum pd_log_level level;
    } modules[MODULES_MAX];
    struct levels *replaced; /* readers may still use it: kept until exit */
};

struct sink {
    void (*write)(void *context, const char *line, size_t bytes);
    void *context;
};

static struct levels start_levels = {.all = PD_LOG_INFO, .most = PD_LOG_INFO};
static struct levels *_Atomic current_levels = &start_levels;
static pthread_mutex_t sink_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sink current_sink;
static pthread_once_t environment_once = PTHREAD_ONCE_INIT;
static atomic_bool configured;

static const char *const level_names[PD_LOG_LEVEL_COUNT] = {"error", "warn", "info", "debug", "trace"};

static pd_status parse_word(const char *word, size_t length, struct levels *levels, struct pd_error *err)
{
    const char *equals = memchr(word, '=', length);
    const char *text = equals ? equals + 1 : word;
    unsigned number;
    if (!pd_parse_name(text, (size_t)(word + length - text), level_names, PD_LOG_LEVEL_COUNT, &number))
        PD_FAIL(err, PD_USAGE,
                "PERDURE_LOG: \"%.*s\" is not understood: write a level (error, warn, info, debug, trace) or module=level",
                (int)length, word);
    const enum pd_log_level level = (enum pd_log_level)number;
    if (!equals) {
        levels->all = level;
        return PD_OK;
    }
    size_t name_length = (size_t)(equals - word);
    if (name_length == 0 || name_length >= MODULE_NAME_MAX || levels->count == MODULES_MAX)
        PD_FAIL(err, PD_USAGE, "PERDURE_LOG: \"%.*s\": a module's name has 1 to %d characters, and at most %d are named",
                (int)length, word, MODULE_NAME_MAX - 1, MODULES_MAX);
    memcpy(levels->modules[levels->count].name, word, name_length);
    levels->modules[levels->count++].level = level;
    return PD_OK;
}

static pd_status parse_spec(const char *spec, struct levels *levels, struct pd_error *err)
{
    levels->all = PD_LOG_INFO;
    while (spec && *spec) {
        size_t length = strcspn(spec, ",");
        if (length) PD_TRY(parse_word(spec, length, levels, err));
        spec += length + (spec[length] == ',');
    }
    levels->most = levels->all;
    for (unsigned i = 0; i < levels->count; i++) {
        if (levels->modules[i].level > levels->most) levels->most = levels->modules[i].level;
    }
    return PD_OK;
}

pd_status pd_log_configure(const char *spec, struct pd_error *err)
{
    struct levels *levels = calloc(1, sizeof *levels);
    if (!levels) PD_FAIL(err, PD_NO_MEMORY, "no memory for the log's levels");
    pd_status status = parse_spec(spec, levels, err);
    if (status) {
        free(levels);
        return status;
    }
    struct levels *before = atomic_load(&current_levels);
    do {
        levels->replaced = before;
    } while (!atomic_compare_exchange_weak(&current_levels, &before, levels));
    atomic_store(&configured, true);
    return PD_OK;
}

pd_status pd_log_configure_env(struct pd_error *err)
{
    return pd_log_configure(getenv("PERDURE_LOG"), err);
}

static void configure_late(void)
{
    struct pd_error err;
    if (atomic_load(&configured)) return;
    pd_status status = pd_log_configure_env(&err);
    atomic_store(&configured, true);
    if (status) pd_log_write(PD_LOG_WARN, "log", "%s", err.message);
}

bool pd_log_enabled(enum pd_log_level level, const char *module)
{
    if (!atomic_load_explicit(&configured, memory_order_acquire)) pthread_once(&environment_once, configure_late);
    const struct levels *levels = atomic_load_explicit(&current_levels, memory_order_acquire);
    if (level > levels->most) return false;
    for (unsigned i = 0; i < levels->count; i++) {
        if (strcmp(levels->modules[i].name, module) == 0) return level <= levels->modules[i].level;
    }
    return level <= levels->all;
}

void pd_log_set_sink(void (*sink)(void *context, const char *line, size_t bytes), void *context)
{
    pthread_mutex_lock(&sink_lock);
    current_sink = (struct sink){sink, context};
    pthread_mutex_unlock(&sink_lock);
}

static size_t format_prefix(char *line, size_t capacity, enum pd_log_level level, const char *module)
{
    uint64_t now_ns = pd_clock_wall_ns();
    time_t seconds = (time_t)(now_ns / 1000000000u);
    struct tm utc;
    gmtime_r(&seconds, &utc);
    size_t used = strftime(line, capacity, "%Y-%m-%dT%H:%M:%S", &utc);
    int milliseconds = (int)(now_ns / 1000000u % 1000u);
    used += (size_t)snprintf(line + used, capacity - used, ".%03dZ %s %.32s", milliseconds, level_names[level], module);
    int rank = pd_rank_current();
    if (rank >= 0) used += (size_t)snprintf(line + used, capacity - used, " r%d", rank);
    used += (size_t)snprintf(line + used, capacity - used, ": ");
    return used;
}

/* A failed write of a log line is ignored: there is nobody to report it to. */
static void write_stderr(const char *line, size_t bytes)
{
    while (bytes) {
        ssize_t written = write(STDERR_FILENO, line, bytes);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return;
        line += written;
        bytes -= (size_t)written;
    }
}

void pd_log_write(enum pd_log_level level, const char *module, const char *format, ...)
{
    PD_CHECK((unsigned)level < PD_LOG_LEVEL_COUNT);
    int saved_errno = errno;
    char line[LINE_MAX_BYTES];
    size_t used = format_prefix(line, sizeof line, level, module);
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line + used, sizeof line - used - 1, format, arguments);
    va_end(arguments);
    size_t capacity = sizeof line - used - 2, kept = length < 0 ? 0 : (size_t)length;
    if (kept > capacity) {
        kept = capacity;
        memcpy(line + used + kept - 3, "...", 3);
    }
    for (size_t i = used; i < used + kept; i++) {
        if ((unsigned char)line[i] < ' ' || line[i] == 0x7f) line[i] = ' ';
    }
    used += kept;
    line[used++] = '\n';
    pthread_mutex_lock(&sink_lock);
    if (current_sink.write) {
        current_sink.write(current_sink.context, line, used);
    } else {
        const char *clear = pd_progress_clear();
        write_stderr(clear, strlen(clear));
        write_stderr(line, used);
    }
    pthread_mutex_unlock(&sink_lock);
    errno = saved_errno;
}
