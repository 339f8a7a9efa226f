/* What somebody meant who wrote a command or an option that there is not: by spelling, or as other tools call it. */
#pragma once

#include "tools/command.h"

/* The words of a command line that begin it: "perdure ckpt prune". NULL: nothing is near.   ret (bytes) */
const char *pd_suggest_command(const struct pd_command *commands, const char *parent, const char *word, char *ret,
                               size_t bytes);
/* Of (count) names of options. NULL: none is meant. */
const char *pd_suggest_option(const char *word, const char *const *names, uint32_t count);
