#include "ckpt/base/arena.h"

#include <criterion/criterion.h>
#include <signal.h>
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
