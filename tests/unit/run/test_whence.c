#include "tests/helpers/local_group.h"
#include "trainer/run/resume.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

enum { RANKS = 3, HOSTS = 2 };

static struct pd_shard_summary shards[] = {{.host = 0}, {.host = 1}, {.host = 2}};
static struct pd_commit commit = {.shard_count = 3, .shards = shards};
static struct pd_whence found[RANKS];
static const char *directory;
static bool has_replicas;

/* Rank r has read r MiB; ranks 0 and 1 are of host 0. */
static pd_status find(struct pd_group *group, void *context, struct pd_error *err)
{
    (void)context;
    return pd_whence_find(group, directory, &commit, has_replicas, (uint64_t)group->rank << 20, &found[group->rank], err);
}

static void find_on(uint32_t ranks, uint32_t hosts, const char *where, bool replicas)
{
    struct pd_error err;
    directory = where;
    has_replicas = replicas;
    memset(found, 0, sizeof found);
    cr_assert_eq(pd_group_run_local(ranks, hosts, find, NULL, &err), PD_OK, "%s", err.message);
}

Test(whence, hosts_say_what_they_read_and_who_is_missing)
{
    find_on(RANKS, HOSTS, "/tmp", true);
    for (uint32_t r = 0; r < RANKS; r++) {
        cr_expect_eq(found[r].lost_hosts, 1, "three saved it and two hold it");
        cr_expect(strstr(found[r].hosts, " (1.00 MiB) and ") && strstr(found[r].hosts, " (2.00 MiB)"), "%s", found[r].hosts);
    }
}

Test(whence, a_host_without_the_checkpoint_is_none_that_holds_it)
{
    find_on(RANKS, HOSTS, "/dev/null/none", true);
    cr_expect_eq(found[0].lost_hosts, 3);
}

Test(whence, hosts_that_share_a_directory_have_no_replicas)
{
    find_on(RANKS, HOSTS, "/tmp", false);
    cr_expect_eq(found[0].lost_hosts, 0);
}

Test(whence, one_host_alone_needs_no_name)
{
    char text[512];
    find_on(1, 1, "/tmp", false);
    cr_expect_str_eq(found[0].hosts, "");
    found[0].lost = (struct pd_lost_steps){.age = 4.25, .steps = 2, .seconds = 1.5};
    pd_whence_describe(&found[0], &(struct pd_tier_report){.dir = "/dev/shm/t", .in_memory = true}, text, sizeof text);
    cr_expect_str_eq(text, "; from /dev/shm/t, in memory, 4.2 s old: 2 steps are lost, 1.5 s");
}

Test(whence, the_last_host_names_those_that_are_lost)
{
    char text[512];
    shards[0].host = 1;
    commit.shard_count = 1;
    find_on(1, 1, "/tmp", true);
    snprintf(found[0].hosts, sizeof found[0].hosts, "b (1.00 MiB)");
    found[0].lost = (struct pd_lost_steps){.age = -1};
    pd_whence_describe(&found[0], &(struct pd_tier_report){.dir = "/disk"}, text, sizeof text);
    cr_expect_str_eq(text, "; from /disk, read on b (1.00 MiB), with replicas of the shards of 1 lost host");
}
