/* What run.dir says of its run: which step was saved, where, by which run, since it began at step 1. */
#include "trainer/run/events.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char dir[] = "/tmp/perdure-recorded-XXXXXX";

static void append(const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "a");
    cr_assert(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

static void set_up(void)
{
    cr_assert_not_null(mkdtemp(dir));
}

static void tear_down(void)
{
    static const char *const names[] = {"events.jsonl", "metrics.jsonl"};
    char path[128];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        (void)unlink(path);
    }
    (void)rmdir(dir);
}

TestSuite(recorded, .init = set_up, .fini = tear_down);

static struct pd_recorded read_all(void)
{
    struct pd_recorded recorded;
    pd_recorded_read(dir, &recorded);
    return recorded;
}

#define OPEN(time, run, resumed, newest)                                                \
    "{\"event\":\"open\",\"time\":" time ",\"run_id\":\"" run "\",\"resumed\":" resumed \
    ",\"tiers\":[{\"dir\":\"/fast\",\"newest\":" newest ",\"in_memory\":false}]}\n"
#define LEAVE(newest) \
    "{\"event\":\"leave\",\"time\":103,\"tiers\":[{\"dir\":\"/fast\",\"newest\":" newest ",\"in_memory\":false}]}\n"

Test(recorded, nothing)
{
    cr_assert_eq(read_all().step, 0);
    cr_assert_str_empty(read_all().run_id);
    append("events.jsonl", "{\"event\":\"start\",\"time\":99}\nnonsense\n");
    append("metrics.jsonl", "");
    cr_assert_eq(read_all().step, 0);
}

Test(recorded, the_newest_step_of_either_file)
{
    append("events.jsonl", OPEN("100", "a1", "false", "0"));
    cr_assert_eq(read_all().step, 0, "nothing was saved yet");
    cr_assert_str_eq(read_all().run_id, "a1");
    append("metrics.jsonl", "{\"step\":5,\"last_checkpoint\":4,\"time\":102}\n{\"step\":6,\"last_che");
    cr_assert_eq(read_all().step, 4, "the line that is cut off is none");
    append("events.jsonl", LEAVE("6"));
    cr_assert_eq(read_all().step, 6);
    cr_assert_str_eq(read_all().dir, "/fast");
}

/* What was recorded before a run began at step 1 is of another one. */
Test(recorded, a_fresh_start_forgets)
{
    append("events.jsonl", OPEN("100", "a1", "false", "0") LEAVE("6") "{\"event\":\"fresh\",\"time\":110}\n");
    append("metrics.jsonl", "{\"step\":6,\"last_checkpoint\":4,\"time\":102}\n");
    cr_assert_eq(read_all().step, 0);
    cr_assert_str_empty(read_all().run_id);
    append("events.jsonl", OPEN("111", "b2", "false", "0"));
    cr_assert_eq(read_all().step, 0);
    cr_assert_str_eq(read_all().run_id, "b2");
    append("metrics.jsonl", "{\"step\":3,\"last_checkpoint\":2,\"time\":112}\n");
    cr_assert_eq(read_all().step, 2);
    append("events.jsonl", OPEN("113", "b2", "true", "2"));
    cr_assert_eq(read_all().step, 2);
}

/* What lay in memory is gone with a reboot, and the run goes on without. */
Test(recorded, tiers_in_memory_do_not_count)
{
    append("events.jsonl",
           "{\"event\":\"open\",\"time\":100,\"run_id\":\"a1\",\"resumed\":false,\"tiers\":[{\"dir\":\"/shm\",\"newest\":0,"
           "\"in_memory\":true},{\"dir\":\"/disk\",\"newest\":0,\"in_memory\":false}]}\n");
    append("metrics.jsonl", "{\"step\":5,\"last_checkpoint\":4,\"tiers\":[{\"newest\":4},{\"newest\":0}],\"time\":102}\n");
    cr_assert_eq(read_all().step, 0);
    append("metrics.jsonl", "{\"step\":6,\"last_checkpoint\":5,\"tiers\":[{\"newest\":5},{\"newest\":4}],\"time\":103}\n");
    cr_assert_eq(read_all().step, 4);
    cr_assert_str_eq(read_all().dir, "/disk");
}
