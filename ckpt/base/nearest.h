/* Suggests names that a mistyped one may have meant. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Counts insertions, deletions, replacements and swaps of neighbours that turn a into b. Names are cut after 63 bytes. */
uint32_t pd_edit_distance(const char *a, const char *b);
/* True if at most (longer length + 1) / 4 edits, and at most two, turn a into b. */
bool pd_is_near(const char *a, const char *b);
/* Returns the nearest of (count) names that passes pd_is_near, or NULL. */
const char *pd_nearest_name(const char *name, const char *const *names, uint32_t count);
/* Returns indices of the `wanted` (at most count) nearest names, nearest first; ties keep their order. Names of models
 * and devices have parts ("Llama-3-8B", "h100"). The distance counts parts that only one name has, parts of `name` twice;
 * ties go to fewer edits. */
void pd_nearest_names(const char *name, const char *const *names, uint32_t count, uint32_t *ret_indices, uint32_t wanted);
