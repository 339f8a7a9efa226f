/* An allocator that fails once, or from then on, at the n-th allocation of a process; linked with --wrap before that of libc. What
 * libraries allocate inside themselves is not counted.
 *
 *   PERDURE_STARVE=n       the n-th fails (from 1); n+: all from the n-th on
 *   PERDURE_STARVE_ONCE=F  in the process that creates the file F, and in no other
 *   PERDURE_STARVE_COUNT=F how many there were, a line a process, written at its end */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *data, size_t bytes);
void *__real_aligned_alloc(size_t align, size_t bytes);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *data, size_t bytes);
void *__wrap_aligned_alloc(size_t align, size_t bytes);
char *__wrap_strdup(const char *text);

static _Atomic unsigned long long counted;
static unsigned long long wanted; /* written before main */
static bool persists;

__attribute__((constructor)) static void begin(void)
{
    const char *text = getenv("PERDURE_STARVE");
    char *end = NULL;
    wanted = text ? strtoull(text, &end, 10) : 0;
    persists = end && *end == '+';
}

__attribute__((destructor)) static void report(void)
{
    const char *path = getenv("PERDURE_STARVE_COUNT");
    char line[32];
    int file = path ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644) : -1;
    if (file < 0) return;
    (void)!write(file, line, (size_t)snprintf(line, sizeof line, "%llu\n", atomic_load(&counted)));
    close(file);
}

static bool is_first(void)
{
    const char *path = getenv("PERDURE_STARVE_ONCE");
    if (!path) return true;
    const int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (file >= 0) close(file);
    return file >= 0;
}

static bool fails(void)
{
    const unsigned long long n = atomic_fetch_add(&counted, 1) + 1;
    if (!wanted || n < wanted || (n > wanted && !persists) || !is_first()) return false;
    errno = ENOMEM;
    return true;
}

void *__wrap_malloc(size_t bytes)
{
    return fails() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return fails() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *data, size_t bytes)
{
    return fails() ? NULL : __real_realloc(data, bytes);
}

void *__wrap_aligned_alloc(size_t align, size_t bytes)
{
    return fails() ? NULL : __real_aligned_alloc(align, bytes);
}

char *__wrap_strdup(const char *text)
{
    return fails() ? NULL : __real_strdup(text);
}
