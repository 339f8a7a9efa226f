/* Counts and hands out all memory of a run, by category. The count is known before any of it is allocated.
 *
 * A recipe is code that takes all its memory from an arena. A dry arena only counts: that count is the plan. A real arena
 * returns addresses. The same recipe runs on both, so the plan is exact by construction.
 *
 *   invariants  1. a real arena hands out at most the bytes of the plan it was made from, per category
 *               2. every address is aligned to PD_ARENA_ALIGN and every size is rounded up to it
 *               3. after pd_arena_freeze a take is a PD_CHECK failure
 *   threads     one
 */
#pragma once

#include "ckpt/base/status.h"
#include <stdbool.h>
#include <stdint.h>

#define PD_ARENA_ALIGN 4096u

enum pd_memory_category {
    PD_MEMORY_PARAMETERS, /* gathered and owned working copies */
    PD_MEMORY_GRADIENTS,
    PD_MEMORY_OPTIMIZER, /* fp32 master and moments */
    PD_MEMORY_ACTIVATIONS,
    PD_MEMORY_BUFFERS, /* communication, I/O, data, workspaces */
    PD_MEMORY_CATEGORY_COUNT
};

struct pd_memory_plan {
    uint64_t bytes[PD_MEMORY_CATEGORY_COUNT];
    uint64_t host_bytes[PD_MEMORY_CATEGORY_COUNT];  /* the part of `bytes` that is in host memory when the rank has a GPU */
    uint64_t noted_bytes[PD_MEMORY_CATEGORY_COUNT]; /* the part of host_bytes that was noted and is allocated elsewhere */
    uint64_t library_bytes; /* estimate: device memory that libraries allocate for themselves, on top of `bytes` */
};

const char *pd_memory_category_name(enum pd_memory_category category);
uint64_t pd_memory_plan_total(const struct pd_memory_plan *plan);
uint64_t pd_memory_plan_host(const struct pd_memory_plan *plan);

struct pd_arena;

/* Counts only: every take returns a non-NULL address that must not be touched. */
PD_MUST_USE pd_status pd_arena_new_dry(struct pd_arena **ret_arena, struct pd_error *err);
/* Maps exactly `plan` bytes per category (anonymous, zero pages, not touched).  PD_NO_MEMORY names the category. */
PD_MUST_USE pd_status pd_arena_new(const struct pd_memory_plan *plan, struct pd_arena **ret_arena, struct pd_error *err);
void pd_arena_free(struct pd_arena *arena);

/* Allocates the memory of a rank that has a device. map returns zeroed memory: host memory aligned to PD_ARENA_ALIGN,
 * device memory to at least 256 bytes. */
struct pd_arena_source {
    pd_status (*map)(void *context, bool is_host, uint64_t bytes, void **ret_data, struct pd_error *err);
    void (*unmap)(void *context, bool is_host, void *data, uint64_t bytes);
    void *context; /* outlives the arena */
};
/* As pd_arena_new, with host_bytes mapped separately and noted bytes left out. The source is copied. */
PD_MUST_USE pd_status pd_arena_new_on(const struct pd_memory_plan *plan, const struct pd_arena_source *source,
                                      struct pd_arena **ret_arena, struct pd_error *err);

bool pd_arena_is_dry(const struct pd_arena *arena);
/* Returns `bytes` of zeroed memory, owned by the arena. Never NULL: exceeding the plan is a bug (PD_CHECK). */
void *pd_arena_take(struct pd_arena *arena, enum pd_memory_category category, uint64_t bytes);
/* Returns memory that the host reads and writes, even when the other takes return device memory. */
void *pd_arena_take_host(struct pd_arena *arena, enum pd_memory_category category, uint64_t bytes);
/* Returns the whole mapping of a category (device memory if there is a source). NULL if it is empty or the arena is dry. */
void *pd_arena_mapped(const struct pd_arena *arena, enum pd_memory_category category, uint64_t *ret_bytes);
/* Counts memory that a component allocates elsewhere (shared windows, driver-pinned pages). */
void pd_arena_note(struct pd_arena *arena, enum pd_memory_category category, uint64_t bytes);
/* Adds an estimate of device memory that a library allocates for itself to the plan's library_bytes. */
void pd_arena_note_library(struct pd_arena *arena, uint64_t bytes);
void pd_arena_freeze(struct pd_arena *arena);
void pd_arena_usage(const struct pd_arena *arena, struct pd_memory_plan *ret_usage);
