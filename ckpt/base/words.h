/* Helpers for the text of messages. */
#pragma once

#include "ckpt/base/status.h"
#include <stdbool.h>

struct pd_counted {
    char text[64];
};
/* "1 rank", "2 ranks", "3 batches". `noun` in the singular, with a regular plural. */
struct pd_counted pd_counted(uint64_t count, const char *noun);

struct pd_bytes_text {
    char text[32];
};
/* "512 B", "1.90 MiB", "74.5 GiB" */
struct pd_bytes_text pd_bytes_text(double bytes);

/* Appends to the message of an error that is already set, cut to the space left. err may be NULL. */
void pd_error_append(struct pd_error *err, const char *format, ...) PD_PRINTF(2, 3);

bool pd_ends_with(const char *text, const char *end);
