#include "ckpt/base/words.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct pd_counted pd_counted(uint64_t count, const char *noun)
{
    struct pd_counted words;
    const int length = (int)strlen(noun);
    const char *plural = length && noun[length - 1] == 'f' ? "ves" : "s";
    if (count == 1)
        snprintf(words.text, sizeof words.text, "1 %s", noun);
    else
        snprintf(words.text, sizeof words.text, "%" PRIu64 " %.*s%s", count, length - (plural[0] == 'v'), noun, plural);
    return words;
}
