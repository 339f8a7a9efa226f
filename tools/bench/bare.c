#include "tools/bench/bare.h"
#include "ckpt/base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define DEPTH_MAX 64u

struct pass {
    struct pd_bare *bare;
    int fd;
    bool is_write;
    uint64_t bytes;
};

struct mover {
    pthread_t thread;
    const struct pass *pass;
    uint32_t index;
    int failed; /* errno; -1: the file ended early */
};

struct pd_bare {
    uint64_t block_bytes;
    uint32_t depth;
    char *buffers; /* (depth, block_bytes) */
    struct mover movers[DEPTH_MAX];
};

pd_status pd_bare_new(uint64_t block_bytes, uint32_t depth, struct pd_bare **ret_bare, struct pd_error *err)
{
    PD_CHECK(depth >= 1 && depth <= DEPTH_MAX && block_bytes % 4096 == 0);
    struct pd_bare *bare = calloc(1, sizeof *bare);
    if (!bare) PD_FAIL(err, PD_NO_MEMORY, "bench: no memory");
    *bare = (struct pd_bare){.block_bytes = block_bytes, .depth = depth};
    void *buffers = mmap(NULL, block_bytes * depth, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buffers == MAP_FAILED) {
        free(bare);
        PD_FAIL(err, PD_NO_MEMORY, "bench: no memory for %u buffers", depth);
    }
    bare->buffers = buffers;
    madvise(buffers, block_bytes * depth, MADV_HUGEPAGE); /* as the other side; a refusal changes nothing */
    uint64_t *words = buffers, state = 1;
    for (uint64_t i = 0; i < block_bytes * depth / sizeof *words; i++) /* not compressible */
        words[i] = state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    *ret_bare = bare;
    return PD_OK;
}

void pd_bare_free(struct pd_bare *bare)
{
    if (!bare) return;
    munmap(bare->buffers, bare->block_bytes * bare->depth);
    free(bare);
}

static int move_block(const struct pass *pass, char *buffer, uint64_t offset, uint64_t bytes)
{
    for (uint64_t done = 0; done < bytes;) {
        ssize_t moved = pass->is_write ? pwrite(pass->fd, buffer + done, bytes - done, (off_t)(offset + done))
                                       : pread(pass->fd, buffer + done, bytes - done, (off_t)(offset + done));
        if (moved < 0 && errno == EINTR) continue;
        if (moved < 0) return errno;
        if (moved == 0) return -1;
        done += (uint64_t)moved;
    }
    return 0;
}

static void *mover_main(void *context)
{
    struct mover *m = context;
    const struct pass *pass = m->pass;
    const uint64_t block = pass->bare->block_bytes, stride = block * pass->bare->depth;
    char *buffer = pass->bare->buffers + m->index * block;
    for (uint64_t at = m->index * block; at < pass->bytes && !m->failed; at += stride)
        m->failed = move_block(pass, buffer, at, pass->bytes - at < block ? pass->bytes - at : block);
    return NULL;
}

/* 0, an errno or -1. */
static int move_all(const struct pass *pass)
{
    struct pd_bare *bare = pass->bare;
    uint32_t started = 0;
    int failed = 0;
    for (; started < bare->depth && !failed; started++) {
        bare->movers[started] = (struct mover){.pass = pass, .index = started};
        failed = pthread_create(&bare->movers[started].thread, NULL, mover_main, &bare->movers[started]);
        if (failed) break;
    }
    for (uint32_t i = 0; i < started; i++) {
        pthread_join(bare->movers[i].thread, NULL);
        if (!failed) failed = bare->movers[i].failed;
    }
    return failed;
}

static pd_status move_file(struct pd_bare *bare, const char *path, uint64_t bytes, bool is_write, bool fresh,
                           double *ret_seconds, struct pd_error *err)
{
    uint64_t start = pd_clock_monotonic_ns(NULL);
    int flags = O_DIRECT | O_CLOEXEC | (is_write ? O_WRONLY : O_RDONLY) | (fresh ? O_CREAT | O_EXCL : 0);
    struct pass pass = {bare, open(path, flags, 0666), is_write, bytes};
    if (pass.fd < 0) PD_FAIL_ERRNO(err, errno, "%s: opening with O_DIRECT", path);
    int failed = fresh && fallocate(pass.fd, 0, 0, (off_t)bytes) && errno != EOPNOTSUPP ? errno : 0;
    if (!failed) failed = move_all(&pass);
    if (!failed && is_write && fdatasync(pass.fd)) failed = errno;
    if (close(pass.fd) && !failed) failed = errno;
    if (failed < 0) PD_FAIL(err, PD_CORRUPT, "%s: ends early", path);
    if (failed) PD_FAIL_ERRNO(err, failed, "%s: %s", path, is_write ? "writing" : "reading");
    *ret_seconds = pd_clock_seconds_since(NULL, start);
    return PD_OK;
}

pd_status pd_bare_write(struct pd_bare *bare, const char *path, uint64_t bytes, bool fresh, double *ret_seconds,
                        struct pd_error *err)
{
    if (fresh && unlink(path) && errno != ENOENT) PD_FAIL_ERRNO(err, errno, "%s: removing", path);
    return move_file(bare, path, bytes, true, fresh, ret_seconds, err);
}

pd_status pd_bare_read(struct pd_bare *bare, const char *path, uint64_t bytes, double *ret_seconds, struct pd_error *err)
{
    return move_file(bare, path, bytes, false, false, ret_seconds, err);
}
