/* Files of an input for readers that open names themselves: links in a directory of tmpfs to memory of this process, which
 * goes away with it. A file without content is there and empty. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* The directory; made by the first call, which says what lies in it: names (count). */
const char *input_names(const char *const *names, uint32_t count);
/* All that is in one of the files from now on. */
void input_name_set(uint32_t number, const void *data, size_t bytes);
