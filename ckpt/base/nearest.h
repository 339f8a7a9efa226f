/* What a mistyped name may have meant. */
#pragma once

#include <stdint.h>

/* Insertions, deletions, replacements and swaps of neighbours that turn a into b; names longer than 63 bytes are cut. */
uint32_t pd_edit_distance(const char *a, const char *b);
/* Indices of the `wanted` (at most count) nearest names, nearest first, earlier ones first where they are as near. */
void pd_nearest_names(const char *name, const char *const *names, uint32_t count, uint32_t *ret_indices, uint32_t wanted);
