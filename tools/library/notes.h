/* Reports what a caller should know although the call succeeds: a copy that was passed over, a tensor that was left out. */
#pragma once

#include "ckpt/base/status.h"

struct pd_notes {
    void (*note)(void *context, const char *text); /* one line without its end */
    void *context;
};

/* notes NULL, or without a function: nobody wants to know. */
PD_PRINTF(2, 3) void pd_note(const struct pd_notes *notes, const char *format, ...);
