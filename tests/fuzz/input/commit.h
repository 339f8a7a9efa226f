/* A commit record whose digests are right: an input is the first bytes of its trailer, then its body. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define INPUT_COMMIT_TRAILER 512u

/* malloc'ed (ret_bytes); NULL: the input is too short. */
unsigned char *input_commit_make(const uint8_t *data, size_t bytes, uint64_t *ret_bytes);
