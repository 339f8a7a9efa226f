/* X.loss beside a token file X.bin: which of its tokens have a loss. Without one all have.
 *
 *   "PDLOSS1\n", the number of tokens (u64), then a bit for each, the lowest of a byte first. Little-endian.
 *
 * A token file that is written again is removed before its X.loss changes, so the two always belong together. */
#pragma once

#include "ckpt/base/digest.h"
#include "trainer/data/file_writer.h"
#include "trainer/data/token_file.h"

#define PD_TOKEN_LOSS_END ".loss"

struct pd_loss_writer { /* zeroed: none */
    struct pd_file_writer file;
    uint64_t count, learned;
    unsigned char bits; /* of the byte that is not full */
};
/* Writes the marks of `token_path`. Then add, end and pd_file_writer_commit or abort of `file`. */
PD_MUST_USE pd_status pd_loss_writer_begin(const char *token_path, struct pd_loss_writer *ret_writer, struct pd_error *err);
/* learned (count) NULL: all are. */
PD_MUST_USE pd_status pd_loss_writer_add(struct pd_loss_writer *writer, const unsigned char *learned, size_t count,
                                         struct pd_error *err);
PD_MUST_USE pd_status pd_loss_writer_end(struct pd_loss_writer *writer, struct pd_error *err);
/* Removes X.loss, if there is one, and first X.bin, whose marks it has. */
PD_MUST_USE pd_status pd_token_loss_remove(const char *token_path, struct pd_error *err);

/* Opens X.loss for file->loss_fd, or sets it to -1 if there is none.
 *   errors  PD_INVALID: of another number of tokens, or not such a file */
PD_MUST_USE pd_status pd_token_loss_open(struct pd_token_file *file, struct pd_error *err);
/* targets (count) of the tokens from `start`: those without a loss become -1. */
PD_MUST_USE pd_status pd_token_loss_apply(const struct pd_token_file *file, uint64_t start, uint32_t count, int32_t *targets,
                                          struct pd_error *err);
/* Adds every byte to the digest, and counts tokens with a loss. */
PD_MUST_USE pd_status pd_token_loss_scan(const struct pd_token_file *file, struct pd_digest_stream *stream,
                                         uint64_t *ret_learned, struct pd_error *err);
