/* A commit record whose digests are right: an input is the first bytes of its trailer, then its body. */
#ifndef PD_TESTS_FUZZ_INPUT_COMMIT_H
#define PD_TESTS_FUZZ_INPUT_COMMIT_H

#include <stddef.h>
#include <stdint.h>

#define INPUT_COMMIT_TRAILER 512u

/* malloc'ed (ret_bytes); NULL: the input is too short. */
unsigned char *input_commit_make(const uint8_t *data, size_t bytes, uint64_t *ret_bytes);

#endif
