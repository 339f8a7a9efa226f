/* How far a command is that reads or writes for long. */
#pragma once

#include "ckpt/base/progress.h"
#include "ckpt/inspect/inspect.h"

#include <stdbool.h>
#include <stdint.h>

/* Bytes done of bytes in all, on stderr, with rate and time left. NULL where nothing is to be shown. */
struct pd_shown_progress {
    struct pd_progress_mode mode;
    uint64_t start_ns, shown_ns;
    bool is_shown;
};
pd_inspect_progress pd_shown_progress_start(struct pd_shown_progress *progress);
void pd_shown_progress_end(const struct pd_shown_progress *progress);
