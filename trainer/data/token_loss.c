#include "trainer/data/token_loss.h"

#include "trainer/data/data_file.h"
#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAGIC "PDLOSS1\n"

struct header {
    char magic[8];
    uint64_t count;
};

/* ---- writing ---- */

pd_status pd_loss_writer_begin(const char *token_path, struct pd_loss_writer *w, struct pd_error *err)
{
    const struct header header = {MAGIC, 0};
    char *path = pd_data_beside(token_path, PD_TOKEN_LOSS_END);
    *w = (struct pd_loss_writer){0};
    if (!path) PD_FAIL(err, PD_NO_MEMORY, "no memory for a name");
    pd_status st = pd_file_writer_begin(path, &w->file, err);
    free(path);
    return st ? st : pd_file_writer_add(&w->file, &header, sizeof header, err);
}

pd_status pd_loss_writer_add(struct pd_loss_writer *w, const unsigned char *learned, size_t count, struct pd_error *err)
{
    for (size_t i = 0; i < count; i++) {
        const unsigned bit = !learned || learned[i];
        w->bits |= (unsigned char)(bit << w->count % 8);
        w->learned += bit;
        if (++w->count % 8) continue;
        PD_TRY(pd_file_writer_add(&w->file, &w->bits, 1, err));
        w->bits = 0;
    }
    return PD_OK;
}

pd_status pd_loss_writer_end(struct pd_loss_writer *w, struct pd_error *err)
{
    const struct header header = {MAGIC, htole64(w->count)};
    if (w->count % 8) PD_TRY(pd_file_writer_add(&w->file, &w->bits, 1, err));
    PD_TRY(pd_file_writer_patch(&w->file, 0, &header, sizeof header, err));
    return pd_file_writer_seal(&w->file, err);
}

pd_status pd_token_loss_remove(const char *token_path, struct pd_error *err)
{
    char *path = pd_data_beside(token_path, PD_TOKEN_LOSS_END);
    if (!path) PD_FAIL(err, PD_NO_MEMORY, "no memory for a name");
    pd_status st = PD_OK;
    if (access(path, F_OK) == 0 && ((unlink(token_path) && errno != ENOENT) || unlink(path)))
        st = pd_error_set(err, pd_status_from_errno(errno), PD_WHERE, errno, "removing %s", path);
    free(path);
    return st;
}

/* ---- reading ---- */

static pd_status token_loss_check(struct pd_token_file *file, const char *path, uint64_t bytes, struct pd_error *err)
{
    struct header header = {.count = 0};
    const uint64_t expected = sizeof header + (file->token_count + 7) / 8;
    if (bytes >= sizeof header) PD_TRY(pd_data_file_read(file->loss_fd, path, 0, &header, sizeof header, err));
    if (bytes == expected && memcmp(header.magic, MAGIC, sizeof header.magic) == 0 &&
        le64toh(header.count) == file->token_count)
        return PD_OK;
    PD_FAIL(err, PD_INVALID,
            "%s says which tokens of %s have a loss, and is of another file or damaged: %" PRIu64 " bytes, %" PRIu64
            " expected; pack the data again, or delete it if all tokens have one",
            path, file->path, bytes, expected);
}

pd_status pd_token_loss_open(struct pd_token_file *file, struct pd_error *err)
{
    uint64_t bytes = 0;
    char *path = pd_data_beside(file->path, PD_TOKEN_LOSS_END);
    file->loss_fd = -1;
    if (!path) PD_FAIL(err, PD_NO_MEMORY, "no memory for a name");
    pd_status st = PD_OK;
    if (file->format != PD_DATA_TEXT && access(path, F_OK) == 0) {
        st = pd_data_file_open(path, false, &file->loss_fd, &bytes, err);
        if (!st) st = token_loss_check(file, path, bytes, err);
    }
    free(path);
    return st;
}

pd_status pd_token_loss_apply(const struct pd_token_file *file, uint64_t start, uint32_t count, int32_t *targets,
                              struct pd_error *err)
{
    unsigned char bits[4096];
    for (uint32_t at = 0; file->loss_fd >= 0 && at < count;) {
        const uint64_t first = start + at, byte = first / 8, left = (file->token_count + 7) / 8 - byte;
        const uint64_t bytes = left < sizeof bits ? left : sizeof bits;
        PD_TRY(pd_data_file_read(file->loss_fd, file->path, sizeof(struct header) + byte, bits, bytes, err));
        for (uint64_t bit = first % 8; at < count && bit < 8 * bytes; bit++, at++)
            if (!(bits[bit / 8] >> bit % 8 & 1)) targets[at] = -1;
    }
    return PD_OK;
}

pd_status pd_token_loss_scan(const struct pd_token_file *file, struct pd_digest_stream *stream, uint64_t *ret_learned,
                             struct pd_error *err)
{
    unsigned char bits[64 << 10];
    *ret_learned = file->token_count;
    if (file->loss_fd < 0) return PD_OK;
    *ret_learned = 0;
    const uint64_t end = (file->token_count + 7) / 8;
    for (uint64_t at = 0; at < end;) {
        const uint64_t bytes = end - at < sizeof bits ? end - at : sizeof bits;
        PD_TRY(pd_data_file_read(file->loss_fd, file->path, sizeof(struct header) + at, bits, bytes, err));
        pd_digest_stream_add(stream, bits, bytes);
        for (uint64_t i = 0; i < bytes; i++)
            *ret_learned += (uint64_t)__builtin_popcount(bits[i]);
        at += bytes;
    }
    return PD_OK;
}
