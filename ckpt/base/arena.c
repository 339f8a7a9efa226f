#include "ckpt/base/arena.h"

#include "ckpt/base/checked.h"
#include "ckpt/base/words.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/mman.h>

#define HUGE_PAGE (2ull << 20)
/* Not canonical on x86-64 and never mapped elsewhere: touching a dry arena's memory faults at once. */
#define DRY_BASE (1ull << 62)

struct region {
    char *base;
    uint64_t mapped_bytes; /* of base */
    uint64_t most_bytes;   /* limit from the plan */
    uint64_t taken_bytes;  /* handed out here */
    uint64_t noted_bytes;  /* counted here, allocated elsewhere */
    uint64_t host_bytes;   /* the host's part of both; counted but not mapped separately */
};

struct pd_arena {
    bool dry, frozen;
    struct region regions[PD_MEMORY_CATEGORY_COUNT];
    struct pd_arena_source source;                 /* map NULL: host memory is not separate */
    struct region hosts[PD_MEMORY_CATEGORY_COUNT]; /* with a source: host memory */
    uint64_t library_bytes;
};

const char *pd_memory_category_name(enum pd_memory_category category)
{
    static const char *const names[PD_MEMORY_CATEGORY_COUNT] = {
        [PD_MEMORY_PARAMETERS] = "parameters",   [PD_MEMORY_GRADIENTS] = "gradients", [PD_MEMORY_OPTIMIZER] = "optimizer",
        [PD_MEMORY_ACTIVATIONS] = "activations", [PD_MEMORY_BUFFERS] = "buffers",
    };
    PD_CHECK((unsigned)category < PD_MEMORY_CATEGORY_COUNT);
    return names[category];
}

uint64_t pd_memory_plan_total(const struct pd_memory_plan *plan)
{
    uint64_t total = 0;
    for (int c = 0; c < PD_MEMORY_CATEGORY_COUNT; c++)
        total += plan->bytes[c];
    return total;
}

uint64_t pd_memory_plan_host(const struct pd_memory_plan *plan)
{
    uint64_t total = 0;
    for (int c = 0; c < PD_MEMORY_CATEGORY_COUNT; c++)
        total += plan->host_bytes[c];
    return total;
}

static uint64_t round_up(uint64_t bytes)
{
    uint64_t rounded;
    PD_CHECK(pd_checked_align_u64(bytes, PD_ARENA_ALIGN, &rounded));
    return rounded;
}

/* Starts large regions on a huge page, so that the kernel can use huge pages: fewer TLB misses. */
static char *map_region(uint64_t bytes)
{
    uint64_t slack = bytes >= 2 * HUGE_PAGE ? HUGE_PAGE : 0, asked;
    if (!pd_checked_add_u64(bytes, slack, &asked)) return NULL;
    char *start = mmap(NULL, asked, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) return NULL;
    if (!slack) return start;
    uint64_t head = (HUGE_PAGE - (uintptr_t)start % HUGE_PAGE) % HUGE_PAGE;
    if (head) munmap(start, head);
    if (head < slack) munmap(start + head + bytes, slack - head);
    madvise(start + head, bytes, MADV_HUGEPAGE); /* only advice: may fail */
    return start + head;
}

static pd_status arena_new(bool dry, struct pd_arena **ret_arena, struct pd_error *err)
{
    struct pd_arena *arena = calloc(1, sizeof *arena);
    if (!arena) PD_FAIL(err, PD_NO_MEMORY, "no memory for an arena");
    arena->dry = dry;
    *ret_arena = arena;
    return PD_OK;
}

pd_status pd_arena_new_dry(struct pd_arena **ret_arena, struct pd_error *err)
{
    return arena_new(true, ret_arena, err);
}

pd_status pd_arena_new(const struct pd_memory_plan *plan, struct pd_arena **ret_arena, struct pd_error *err)
{
    struct pd_arena *arena = NULL;
    PD_TRY(arena_new(false, &arena, err));
    for (int c = 0; c < PD_MEMORY_CATEGORY_COUNT; c++) {
        struct region *region = &arena->regions[c];
        uint64_t bytes;
        bool fits = pd_checked_align_u64(plan->bytes[c], PD_ARENA_ALIGN, &bytes);
        if (fits && bytes == 0) continue;
        region->base = fits ? map_region(bytes) : NULL;
        if (!region->base) {
            pd_status status = pd_error_set(err, PD_NO_MEMORY, PD_WHERE, ENOMEM,
                                            "%s of memory for %s cannot be allocated; perdure plan shows what each rank "
                                            "needs",
                                            pd_bytes_text((double)plan->bytes[c]).text,
                                            pd_memory_category_name((enum pd_memory_category)c));
            pd_arena_free(arena);
            return status;
        }
        region->mapped_bytes = region->most_bytes = bytes;
    }
    *ret_arena = arena;
    return PD_OK;
}

/* noted: the part of the plan's bytes that is allocated elsewhere. */
static pd_status map_from(const struct pd_arena_source *source, bool is_host, uint64_t planned, uint64_t noted, int category,
                          struct region *region, struct pd_error *err)
{
    void *data = NULL;
    const uint64_t bytes = planned - noted;
    region->most_bytes = planned;
    if (bytes == 0) return PD_OK;
    pd_status st = source->map(source->context, is_host, bytes, &data, err);
    if (st)
        return pd_error_context(err, st, "%" PRIu64 " bytes of %s memory for %s%s", bytes, is_host ? "pinned" : "device",
                                pd_memory_category_name((enum pd_memory_category)category),
                                st == PD_DEVICE_LOST ? "" : "; `perdure plan` shows what is needed");
    region->base = data;
    region->mapped_bytes = bytes;
    return PD_OK;
}

pd_status pd_arena_new_on(const struct pd_memory_plan *plan, const struct pd_arena_source *source,
                          struct pd_arena **ret_arena, struct pd_error *err)
{
    struct pd_arena *arena = NULL;
    PD_TRY(arena_new(false, &arena, err));
    arena->source = *source;
    pd_status st = PD_OK;
    for (int c = 0; c < PD_MEMORY_CATEGORY_COUNT && !st; c++) {
        const uint64_t host = plan->host_bytes[c], noted = plan->noted_bytes[c];
        PD_CHECK(host <= plan->bytes[c] && noted <= host);
        st = map_from(source, false, plan->bytes[c] - host, 0, c, &arena->regions[c], err);
        if (!st) st = map_from(source, true, host, noted, c, &arena->hosts[c], err);
    }
    if (st)
        pd_arena_free(arena);
    else
        *ret_arena = arena;
    return st;
}

static void unmap(struct pd_arena *arena, bool is_host, struct region *region)
{
    if (!region->base) return;
    if (arena->source.map)
        arena->source.unmap(arena->source.context, is_host, region->base, region->mapped_bytes);
    else
        munmap(region->base, region->mapped_bytes);
}

void pd_arena_free(struct pd_arena *arena)
{
    if (!arena) return;
    for (int c = 0; c < PD_MEMORY_CATEGORY_COUNT; c++) {
        unmap(arena, false, &arena->regions[c]);
        unmap(arena, true, &arena->hosts[c]);
    }
    free(arena);
}

bool pd_arena_is_dry(const struct pd_arena *arena)
{
    return arena->dry;
}

/* Counts `bytes` in *counter; taken and noted bytes together stay within the plan. */
static void count_bytes(struct pd_arena *arena, struct region *region, uint64_t *counter, uint64_t bytes)
{
    PD_CHECK(!arena->frozen);
    uint64_t total;
    PD_CHECK(pd_checked_add_u64(region->taken_bytes + region->noted_bytes, round_up(bytes), &total));
    PD_CHECK(arena->dry || total <= region->most_bytes);
    *counter += round_up(bytes);
}

static void *take_from(struct pd_arena *arena, struct region *region, enum pd_memory_category category, uint64_t bytes)
{
    uint64_t offset = region->taken_bytes;
    count_bytes(arena, region, &region->taken_bytes, bytes);
    if (arena->dry) return (void *)(uintptr_t)(DRY_BASE + ((uint64_t)category << 54) + offset); /* NOLINT: never touched */
    static _Alignas(PD_ARENA_ALIGN) char nothing[PD_ARENA_ALIGN]; /* returned for 0 bytes of a category without bytes */
    return region->base ? region->base + offset : nothing;
}

void *pd_arena_take(struct pd_arena *arena, enum pd_memory_category category, uint64_t bytes)
{
    PD_CHECK((unsigned)category < PD_MEMORY_CATEGORY_COUNT);
    return take_from(arena, &arena->regions[category], category, bytes);
}

/* The host's region, or else the region in which host bytes are counted. */
static struct region *host_region(struct pd_arena *arena, enum pd_memory_category category, uint64_t bytes)
{
    PD_CHECK((unsigned)category < PD_MEMORY_CATEGORY_COUNT);
    if (arena->source.map) return &arena->hosts[category];
    arena->regions[category].host_bytes += round_up(bytes);
    return &arena->regions[category];
}

void *pd_arena_take_host(struct pd_arena *arena, enum pd_memory_category category, uint64_t bytes)
{
    return take_from(arena, host_region(arena, category, bytes), category, bytes);
}

void *pd_arena_mapped(const struct pd_arena *arena, enum pd_memory_category category, uint64_t *ret_bytes)
{
    const struct region *region = &arena->regions[category];
    *ret_bytes = region->mapped_bytes;
    return region->base;
}

void pd_arena_note(struct pd_arena *arena, enum pd_memory_category category, uint64_t bytes)
{
    struct region *region = host_region(arena, category, bytes);
    count_bytes(arena, region, &region->noted_bytes, bytes);
}

void pd_arena_note_library(struct pd_arena *arena, uint64_t bytes)
{
    arena->library_bytes += bytes;
}

void pd_arena_freeze(struct pd_arena *arena)
{
    arena->frozen = true;
}

void pd_arena_usage(const struct pd_arena *arena, struct pd_memory_plan *ret_usage)
{
    for (int c = 0; c < PD_MEMORY_CATEGORY_COUNT; c++) {
        const struct region *region = &arena->regions[c], *host = &arena->hosts[c];
        const uint64_t host_bytes = host->taken_bytes + host->noted_bytes;
        ret_usage->bytes[c] = region->taken_bytes + region->noted_bytes + host_bytes;
        ret_usage->host_bytes[c] = region->host_bytes + host_bytes;
        ret_usage->noted_bytes[c] = region->noted_bytes + host->noted_bytes;
    }
    ret_usage->library_bytes = arena->library_bytes;
}
