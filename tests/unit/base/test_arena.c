#include "ckpt/base/arena.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* A recipe: the same code counts and takes. */
static void recipe(struct pd_arena *arena, unsigned char *ret_addresses[6])
{
    ret_addresses[0] = pd_arena_take(arena, PD_MEMORY_PARAMETERS, 1);
    ret_addresses[1] = pd_arena_take(arena, PD_MEMORY_PARAMETERS, 5000);
    ret_addresses[2] = pd_arena_take(arena, PD_MEMORY_OPTIMIZER, 9u << 20);
    ret_addresses[3] = pd_arena_take(arena, PD_MEMORY_OPTIMIZER, 0);
    ret_addresses[4] = pd_arena_take(arena, PD_MEMORY_OPTIMIZER, 4096);
    ret_addresses[5] = pd_arena_take(arena, PD_MEMORY_GRADIENTS, 0);
    pd_arena_note(arena, PD_MEMORY_BUFFERS, 100);
}

static struct pd_memory_plan plan_of_recipe(void)
{
    struct pd_arena *dry = NULL;
    unsigned char *addresses[6];
    struct pd_memory_plan plan;
    cr_assert_eq(pd_arena_new_dry(&dry, NULL), PD_OK);
    cr_assert(pd_arena_is_dry(dry));
    recipe(dry, addresses);
    for (int i = 0; i < 6; i++)
        cr_assert_not_null(addresses[i]);
    pd_arena_usage(dry, &plan);
    pd_arena_free(dry);
    return plan;
}

Test(arena, the_dry_run_is_the_plan)
{
    struct pd_memory_plan plan = plan_of_recipe(), usage;
    cr_assert_eq(plan.bytes[PD_MEMORY_PARAMETERS], 4096 + 8192);
    cr_assert_eq(plan.bytes[PD_MEMORY_OPTIMIZER], (9u << 20) + 4096);
    cr_assert_eq(plan.bytes[PD_MEMORY_GRADIENTS], 0);
    cr_assert_eq(plan.bytes[PD_MEMORY_BUFFERS], 4096);
    cr_assert_eq(pd_memory_plan_total(&plan), 12288 + (9u << 20) + 8192);

    struct pd_arena *arena = NULL;
    unsigned char *addresses[6];
    cr_assert_eq(pd_arena_new(&plan, &arena, NULL), PD_OK);
    cr_assert_not(pd_arena_is_dry(arena));
    recipe(arena, addresses);
    pd_arena_usage(arena, &usage);
    cr_assert_eq(memcmp(&plan, &usage, sizeof plan), 0);
    for (int i = 0; i < 6; i++)
        cr_assert_eq((uintptr_t)addresses[i] % PD_ARENA_ALIGN, 0);
    for (uint32_t i = 0; i < 9u << 20; i += 4096)
        cr_assert_eq(addresses[2][i], 0);
    memset(addresses[0], 1, 4096);
    memset(addresses[1], 2, 8192);
    memset(addresses[2], 3, 9u << 20);
    memset(addresses[4], 4, 4096);
    cr_assert_eq(addresses[0][4095], 1);
    cr_assert_eq(addresses[1][0], 2);
    cr_assert_eq(addresses[2][(9u << 20) - 1], 3);
    pd_arena_free(arena);
}

Test(arena, what_cannot_be_had_is_named)
{
    struct pd_memory_plan plan = {.bytes = {[PD_MEMORY_ACTIVATIONS] = 1ull << 60, [PD_MEMORY_PARAMETERS] = 4096}};
    struct pd_arena *arena = NULL;
    struct pd_error err;
    cr_assert_eq(pd_arena_new(&plan, &arena, &err), PD_NO_MEMORY);
    cr_assert_not_null(strstr(err.message, "activations"), "%s", err.message);
    cr_assert_null(strstr(err.message, "--ladder"), "an option that is gone: %s", err.message);
    plan.bytes[PD_MEMORY_ACTIVATIONS] = UINT64_MAX;
    cr_assert_eq(pd_arena_new(&plan, &arena, &err), PD_NO_MEMORY);
    cr_assert_null(arena);
    pd_arena_free(NULL);
}

Test(arena, more_than_the_plan_is_a_bug, .signal = SIGABRT)
{
    struct pd_memory_plan plan = {.bytes = {[PD_MEMORY_PARAMETERS] = 8192}};
    struct pd_arena *arena = NULL;
    cr_assert_eq(pd_arena_new(&plan, &arena, NULL), PD_OK);
    pd_arena_take(arena, PD_MEMORY_PARAMETERS, 4097);
    pd_arena_take(arena, PD_MEMORY_PARAMETERS, 1);
}

Test(arena, a_frozen_arena_gives_nothing, .signal = SIGABRT)
{
    struct pd_memory_plan plan = {.bytes = {[PD_MEMORY_PARAMETERS] = 8192}};
    struct pd_arena *arena = NULL;
    cr_assert_eq(pd_arena_new(&plan, &arena, NULL), PD_OK);
    pd_arena_freeze(arena);
    pd_arena_take(arena, PD_MEMORY_PARAMETERS, 1);
}

Test(arena, sizes_that_wrap_are_a_bug, .signal = SIGABRT)
{
    struct pd_arena *arena = NULL;
    cr_assert_eq(pd_arena_new_dry(&arena, NULL), PD_OK);
    pd_arena_take(arena, PD_MEMORY_PARAMETERS, UINT64_MAX - 5);
}

Test(arena, what_a_dry_arena_gives_faults_when_touched, .signal = SIGSEGV)
{
    struct pd_arena *arena = NULL;
    cr_assert_eq(pd_arena_new_dry(&arena, NULL), PD_OK);
    *(volatile char *)pd_arena_take(arena, PD_MEMORY_BUFFERS, 10) = 1;
}

/* ---- memory that is apart ---- */

struct far {
    uint64_t mapped[2], unmapped[2]; /* of the device, of the host */
    unsigned char *data[2];
    bool has_no_device_memory;
};

static pd_status far_map(void *context, bool is_host, uint64_t bytes, void **ret_data, struct pd_error *err)
{
    struct far *far = context;
    if (!is_host && far->has_no_device_memory) PD_FAIL(err, PD_NO_MEMORY, "the device is full");
    far->mapped[is_host] += bytes;
    *ret_data = far->data[is_host] = aligned_alloc(PD_ARENA_ALIGN, bytes);
    memset(*ret_data, 0, bytes);
    return PD_OK;
}

static void far_unmap(void *context, bool is_host, void *data, uint64_t bytes)
{
    struct far *far = context;
    far->unmapped[is_host] += bytes;
    free(data);
}

static void split_recipe(struct pd_arena *arena, unsigned char *ret[3])
{
    ret[0] = pd_arena_take(arena, PD_MEMORY_BUFFERS, 5000);
    ret[1] = pd_arena_take_host(arena, PD_MEMORY_BUFFERS, 100);
    ret[2] = pd_arena_take(arena, PD_MEMORY_BUFFERS, 1);
    pd_arena_note(arena, PD_MEMORY_BUFFERS, 4096);
}

static struct pd_memory_plan split_plan(void)
{
    struct pd_arena *dry = NULL;
    struct pd_memory_plan plan;
    unsigned char *addresses[3];
    cr_assert_eq(pd_arena_new_dry(&dry, NULL), PD_OK);
    split_recipe(dry, addresses);
    pd_arena_usage(dry, &plan);
    pd_arena_free(dry);
    return plan;
}

Test(arena, memory_of_a_device_and_of_the_host_lie_apart)
{
    const struct pd_memory_plan plan = split_plan();
    struct far far = {0};
    const struct pd_arena_source source = {far_map, far_unmap, &far};
    struct pd_memory_plan usage;
    struct pd_arena *arena = NULL;
    unsigned char *at[3];
    cr_assert_eq(plan.bytes[PD_MEMORY_BUFFERS], 8192 + 4096 + 4096 + 4096);
    cr_assert_eq(plan.host_bytes[PD_MEMORY_BUFFERS], 8192, "what is taken for the host, and what is noted");
    cr_assert_eq(pd_arena_new_on(&plan, &source, &arena, NULL), PD_OK);
    cr_assert_eq(far.mapped[0], 8192 + 4096);
    cr_assert_eq(plan.noted_bytes[PD_MEMORY_BUFFERS], 4096);
    cr_assert_eq(far.mapped[1], 4096, "what is noted is held elsewhere");
    split_recipe(arena, at);
    cr_assert(at[0] == far.data[0] && at[2] == far.data[0] + 8192 && at[1] == far.data[1]);
    pd_arena_usage(arena, &usage);
    cr_assert_eq(memcmp(&plan, &usage, sizeof plan), 0);
    pd_arena_free(arena);
    cr_assert_eq(memcmp(far.mapped, far.unmapped, sizeof far.mapped), 0);
}

Test(arena, a_full_device_is_named_with_what_was_asked)
{
    const struct pd_memory_plan plan = split_plan();
    struct far far = {.has_no_device_memory = true};
    const struct pd_arena_source source = {far_map, far_unmap, &far};
    struct pd_arena *arena = NULL;
    struct pd_error err;
    cr_assert_eq(pd_arena_new_on(&plan, &source, &arena, &err), PD_NO_MEMORY);
    cr_assert(strstr(err.message, "buffers") && strstr(err.message, "12288") && strstr(err.message, "device is full"));
    cr_assert_null(arena);
}
