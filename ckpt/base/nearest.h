/* What a mistyped name may have meant. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Insertions, deletions, replacements and swaps of neighbours that turn a into b; names longer than 63 bytes are cut. */
uint32_t pd_edit_distance(const char *a, const char *b);
/* Whether one may be the other misspelt: they differ in two letters at most, and in one of four; "ls" and "rm" in all. */
bool pd_is_near(const char *a, const char *b);
/* The nearest of (count) names that is near; NULL: none is. */
const char *pd_nearest_name(const char *name, const char *const *names, uint32_t count);
/* Indices of the `wanted` (at most count) nearest names, nearest first, earlier ones first where they are as near. Names of
 * models and devices have parts ("Llama-3-8B", "h100"): fewer parts that only one of the two has are nearer, twice so those of
 * `name`; then fewer edits. */
void pd_nearest_names(const char *name, const char *const *names, uint32_t count, uint32_t *ret_indices, uint32_t wanted);
