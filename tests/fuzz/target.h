/* What libFuzzer calls. */
#ifndef PD_TESTS_FUZZ_TARGET_H
#define PD_TESTS_FUZZ_TARGET_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

#endif
