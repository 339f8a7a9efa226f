/* Lists of hosts, who answers, and what hosts cost a launch. */
#include "trainer/launch/account.h"
#include "trainer/launch/starter.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define S UINT64_C(1000000000)

static struct pd_launch_host_seen *parse(const char *text, uint32_t expected)
{
    struct pd_launch_host_seen *hosts;
    uint32_t count;
    struct pd_error err;
    cr_assert_eq(pd_launch_hosts_parse(text, 3, &hosts, &count, &err), PD_OK, "%s: %s", text, err.message);
    cr_assert_eq(count, expected, "%s", text);
    return hosts;
}

Test(hosts, a_line_a_host)
{
    struct pd_launch_host_seen *h = parse("# two\na\n  b:4 # four\n\nc slots=2\nd slots=5 max_slots=5\na:1\ne slots=0\n", 4);
    static const struct {
        const char *name;
        uint32_t slots;
    } expected[] = {{"a", 4}, {"b", 4}, {"c", 2}, {"d", 5}};
    for (size_t i = 0; i < 4; i++) {
        cr_expect_str_eq(h[i].name, expected[i].name);
        cr_expect_eq(h[i].slots, expected[i].slots, "%s has %u", h[i].name, h[i].slots);
    }
    free(h);
    h = parse("fe80::1\n", 1);
    cr_expect_str_eq(h[0].name, "fe80::1", "an address of IPv6 has no slots behind its colons");
    free(h);
}

Test(hosts, what_is_no_host_is_named)
{
    static const char *const wrong[] = {
        "a b", "a:x",        "a slots=", "a slots=2 b", ":3", "a:99999", "-oProxyCommand=x", "-oProxyCommand=x:4",
        "-",   "-a slots=2", "a;b",      "$a",          "a'b"}; /* ssh takes an option for an option */
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char text[64];
        struct pd_launch_host_seen *hosts;
        uint32_t count;
        struct pd_error err;
        snprintf(text, sizeof text, "ok\n%s\n", wrong[i]);
        cr_expect_eq(pd_launch_hosts_parse(text, 1, &hosts, &count, &err), PD_INVALID, "%s", wrong[i]);
        cr_expect(strstr(err.message, "line 2") && strstr(err.message, wrong[i]), "%s", err.message);
    }
}

static pd_status look(const char *source, const char *agent, struct pd_launch_host_seen **ret, uint32_t *ret_count,
                      struct pd_error *err)
{
    static struct pd_launch_look l = {.results = -1};
    PD_TRY(pd_launch_look_begin(source, agent, 1, 4, &l, err));
    while (!pd_launch_look_poll(&l, 1000))
        ;
    PD_TRY(pd_launch_look_end(&l, ret, ret_count, err));
    cr_expect_gt(l.slowest_ms, 0, "a host has answered");
    return PD_OK;
}

/* What is known before `slow` is given up. */
static void peek(const char *source, const char *agent)
{
    struct pd_launch_look l = {.results = -1};
    struct pd_launch_host_seen *h;
    struct pd_error err;
    uint32_t count;
    cr_expect_eq(pd_launch_look_peek(&l, &h, &count, &err), PD_UNSUPPORTED, "nothing is");
    cr_assert_eq(pd_launch_look_begin(source, agent, 1, 1000000, &l, &err), PD_OK);
    for (bool is_known = false; !is_known;) {
        (void)pd_launch_look_poll(&l, 10);
        if (pd_launch_look_peek(&l, &h, &count, &err)) continue;
        is_known = count == 5 && h[0].answers && !h[2].is_silent && h[3].is_silent;
        free(h);
    }
    cr_assert_eq(pd_launch_look_end(&l, &h, &count, &err), PD_OK);
    cr_expect(h[0].answers && !h[3].answers);
    free(h);
}

/* An agent that is a script: host `down` does not answer, `slow` takes for ever, others do. */
Test(hosts, who_answers, .timeout = 600)
{
    char agent[] = "/tmp/perdure-agent-XXXXXX", own[256] = "";
    const int fd = mkstemp(agent);
    cr_assert(fd >= 0);
    dprintf(fd, "#!/bin/sh\ncase \"$2 $3\" in 'down test -x '*) exit 1 ;; 'bare test -x '*) exit 97 ;; esac\n[ $2 = slow ] "
                "&& exec sleep 1000\n[ $1 = word ]\n");
    cr_assert_eq(fchmod(fd, 0755), 0);
    close(fd);
    gethostname(own, sizeof own - 1);
    char source[512], with_word[128];
    snprintf(source, sizeof source, "printf 'up\\n%s\\ndown:2\\nslow\\nbare\\n'", own);
    snprintf(with_word, sizeof with_word, "%s word", agent);
    struct pd_launch_host_seen *h;
    uint32_t count;
    struct pd_error err;
    cr_assert_eq(look(source, with_word, &h, &count, &err), PD_OK, "%s", err.message);
    cr_assert_eq(count, 5);
    cr_expect_str_eq(h[0].name, own, "this host is the first");
    cr_expect(h[0].answers && h[1].answers && !h[2].answers && !h[3].answers && !h[4].answers);
    cr_expect(!h[0].is_silent && !h[1].is_silent && !h[2].is_silent && h[3].is_silent, "down has said no, slow nothing");
    cr_expect(h[4].lacks_program && !h[4].is_silent && !h[2].lacks_program);
    cr_expect_eq(h[2].slots, 2);
    free(h);
    peek(source, with_word);
    unlink(agent);
    cr_assert_eq(look("echo '#'; true", "false", &h, &count, &err), PD_UNSUPPORTED);
    cr_expect(strstr(err.message, "names no host"), "%s", err.message);
    cr_assert_eq(look("/nonexistent/hosts", "false", &h, &count, &err), PD_UNSUPPORTED);
    cr_expect(strstr(err.message, "launch.hosts (/nonexistent/hosts)"), "%s", err.message);
}

/* An agent whose hosts say which machine they are: `again` is this one, `b` and `alias` are another, which greets first. */
Test(hosts, two_names_of_one_machine_are_one_host, .timeout = 600)
{
    char agent[] = "/tmp/perdure-agent-XXXXXX", own[256] = "", source[512];
    const int fd = mkstemp(agent);
    cr_assert(fd >= 0);
    dprintf(
        fd,
        "#!/bin/sh\ncase $1 in again) sh -c \"$2\" ;; b|alias) yes welcome | head -n 20000; echo perdure-host 1_b ;; esac\n"
        "[ $1 != gone.invalid ]\n");
    cr_assert_eq(fchmod(fd, 0755), 0);
    close(fd);
    gethostname(own, sizeof own - 1);
    snprintf(source, sizeof source, "printf '%s\nagain:2\nb\nmute\nalias:4\nmute2\ngone.invalid\n'", own);
    struct pd_launch_host_seen *h;
    uint32_t count;
    struct pd_error err;
    cr_assert_eq(look(source, agent, &h, &count, &err), PD_OK, "%s", err.message);
    cr_assert_eq(count, 7);
    cr_expect_str_eq(h[1].same_as, own);
    cr_expect_str_eq(h[4].same_as, "b");
    cr_expect(!h[0].same_as[0] && !h[2].same_as[0] && !h[3].same_as[0] && !h[5].same_as[0], "of mute ones nobody knows");
    cr_expect(h[0].slots == 1 && h[1].slots == 0 && h[2].slots == 1 && h[4].slots == 0);
    struct pd_launch_account a = {.hosts = NULL};
    char out[1024];
    cr_assert_eq(pd_launch_account_update(&a, h, count, &err), PD_OK);
    cr_expect_eq(pd_launch_account_slots(&a, S), 4);
    pd_launch_account_describe_out(&a, S, out, sizeof out);
    cr_expect(strstr(out, "alias is the same machine as b (for more ranks there: b:N)"), "%s", out);
    cr_expect(strstr(out, "gone.invalid does not answer, and its name has no address here"), "%s", out);
    free(h);
    pd_launch_account_deinit(&a);
    unlink(agent);
}

static void look_at_links(const char *agent, uint32_t count, struct pd_launch_host_seen **ret)
{
    static struct pd_launch_look l = {.results = -1};
    struct pd_error err;
    uint32_t found;
    l.asks_links = true;
    cr_assert_eq(
        pd_launch_look_begin("printf '198.51.100.1\\n198.51.100.2\\n198.51.100.3\\n198.51.100.4\\n'", agent, 1, 4, &l, &err),
        PD_OK);
    while (!pd_launch_look_poll(&l, 1000))
        ;
    cr_assert_eq(pd_launch_look_end(&l, ret, &found, &err), PD_OK, "%s", err.message);
    cr_assert_eq(found, count);
}

/* An agent whose hosts say whom they do not reach, when they are asked that. The second and the third do not reach one another,
 * one way; nobody reaches the fourth, by its packet filter. */
Test(hosts, of_two_that_do_not_reach_one_another_one_goes, .timeout = 600)
{
    char agent[] = "/tmp/perdure-agent-XXXXXX", out[1024];
    const int fd = mkstemp(agent);
    cr_assert(fd >= 0);
    dprintf(fd, "#!/bin/sh\necho \"$2\" | grep -q \"' reach .*198.51.100.\" || exit 0\necho \"$2\" | grep -q \"reach.* "
                "$1\\>\" && exit "
                "1\n"
                "[ $1 = 198.51.100.4 ] || echo perdure-unreached 198.51.100.4\n[ $1 != 198.51.100.2 ] || echo "
                "perdure-unreached 198.51.100.3\n"
                "echo perdure-unreached 198.51.100.30\n");
    cr_assert_eq(fchmod(fd, 0755), 0);
    close(fd);
    struct pd_launch_host_seen *h;
    struct pd_error err;
    struct pd_launch_account a = {.hosts = NULL};
    char *text;
    look_at_links(agent, 4, &h);
    cr_assert_eq(pd_launch_account_update(&a, h, 4, &err), PD_OK);
    cr_expect_eq(pd_launch_account_slots(&a, S), 3);
    pd_launch_account_describe_out(&a, S, out, sizeof out);
    cr_expect_str_eq(out, "198.51.100.3 and 198.51.100.2 cannot reach each other");
    for (uint32_t i = 0; i < 4; i++) { /* of a look that does not ask it stays */
        h[i].knows_links = false;
        h[i].cut_off_from[0] = '\0';
    }
    cr_assert_eq(pd_launch_account_update(&a, h, 4, &err), PD_OK);
    cr_expect(pd_launch_account_slots(&a, S) == 3 && pd_launch_account_has_cut_off(&a));
    cr_expect_eq(pd_launch_account_cut_off(&a, out, sizeof out), 0, "it has no rank");
    free(h);
    cr_assert_eq(unlink(agent), 0);
    const int mended = open(agent, O_WRONLY | O_CREAT | O_EXCL, 0755);
    cr_assert(mended >= 0);
    dprintf(mended, "#!/bin/sh\nexit 0\n");
    close(mended);
    look_at_links(agent, 4, &h);
    cr_assert_eq(pd_launch_account_update(&a, h, 4, &err), PD_OK);
    pd_launch_account_describe_out(&a, S, out, sizeof out);
    cr_expect(pd_launch_account_slots(&a, S) == 4 && !pd_launch_account_has_cut_off(&a), "%s", out);
    cr_assert_eq(pd_launch_account_take(&a, S, 4, &text, &err), PD_OK);
    snprintf(h[2].cut_off_from, sizeof h[2].cut_off_from, "198.51.100.2");
    cr_assert_eq(pd_launch_account_update(&a, h, 4, &err), PD_OK);
    cr_expect_eq(pd_launch_account_cut_off(&a, out, sizeof out), 1);
    cr_expect_str_eq(out, "198.51.100.3 and 198.51.100.2 cannot reach each other");
    free(text);
    free(h);
    pd_launch_account_deinit(&a);
    unlink(agent);
}

/* srun knows its nodes, and no --host. */
Test(hosts, are_for_mpirun_alone)
{
    char dir[] = "/tmp/perdure-srun-XXXXXX", path[64];
    struct pd_starter_command command;
    struct pd_error err;
    struct pd_start start = {.transport = PD_TRANSPORT_MPI, .ranks = 2, .worker = (const char *[]){"worker", NULL}};
    cr_assert(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/srun", dir);
    FILE *f = fopen(path, "w");
    cr_assert(f && fclose(f) == 0 && chmod(path, 0755) == 0);
    setenv("PATH", dir, 1);
    setenv("SLURM_JOB_ID", "1", 1);
    setenv("SLURM_JOB_NUM_NODES", "2", 1);
    unsetenv("PERDURE_MPIRUN");
    cr_expect_eq(pd_starter_command_make(&start, &command, &err), PD_OK, "%s", err.message);
    start.hosts = "a:1,b:1";
    cr_expect_eq(pd_starter_command_make(&start, &command, &err), PD_UNSUPPORTED);
    cr_expect(strstr(err.message, "PERDURE_MPIRUN=mpirun"), "%s", err.message);
    setenv("PERDURE_MPIRUN", "mpirun", 1);
    cr_expect_eq(pd_starter_command_make(&start, &command, &err), PD_OK, "%s", err.message);
    unlink(path);
    rmdir(dir);
}

/* Slurm's own choice does not make ranks wait for one another in MPI_Init. */
Test(hosts, of_slurm_fence_in_a_ring_or_as_the_user_says)
{
    const struct pd_start start = {.transport = PD_TRANSPORT_MPI, .ranks = 2, .dir = "/tmp"};
    unsetenv("SLURM_PMIX_FENCE");
    pd_starter_environment_set(&start, 1);
    cr_expect_str_eq(getenv("SLURM_PMIX_FENCE"), "ring");
    setenv("SLURM_PMIX_FENCE", "tree", 1);
    pd_starter_environment_set(&start, 1);
    cr_expect_str_eq(getenv("SLURM_PMIX_FENCE"), "tree");
}

static void update(struct pd_launch_account *a, const char *text, const char *silent)
{
    uint32_t count;
    struct pd_launch_host_seen *seen;
    struct pd_error err;
    cr_assert_eq(pd_launch_hosts_parse(text, 1, &seen, &count, &err), PD_OK);
    for (uint32_t i = 0; i < count; i++)
        seen[i].answers = strcmp(seen[i].name, silent) != 0;
    cr_assert_eq(pd_launch_account_update(a, seen, count, &err), PD_OK);
    free(seen);
}

static void expect_taken(struct pd_launch_account *a, uint64_t now, uint32_t ranks, const char *expected)
{
    char *text;
    struct pd_error err;
    cr_assert_eq(pd_launch_account_take(a, now, ranks, &text, &err), PD_OK);
    cr_expect_str_eq(text, expected);
    free(text);
}

Test(account, ranks_fill_the_hosts_that_are_usable)
{
    struct pd_launch_account a = {.hosts = NULL};
    update(&a, "a:2\nb:3\nc:2\n", "b");
    cr_expect_eq(pd_launch_account_slots(&a, 0), 4);
    expect_taken(&a, 0, 3, "a:2,c:1");
    cr_expect_eq(pd_launch_account_host_of(&a, 1), 0);
    cr_expect_eq(pd_launch_account_host_of(&a, 2), 2);
    cr_expect_eq(pd_launch_account_host_of(&a, 3), PD_LAUNCH_NO_HOST);
    update(&a, "b:3\nc:2\n", "");
    cr_expect_eq(pd_launch_account_slots(&a, 0), 5, "a is not in the list any more, b answers");
    pd_launch_account_deinit(&a);
}

Test(account, a_host_that_is_gone_is_charged_whatever_its_ranks_say)
{
    char names[256];
    struct pd_launch_account a = {.hosts = NULL};
    update(&a, "a\nb:2\nc\n", "");
    expect_taken(&a, 0, 3, "a:1,b:2");
    cr_expect_eq(pd_launch_account_lost(&a, names, sizeof names), 0);
    update(&a, "a\nb:2\nc\n", "c");
    cr_expect_eq(pd_launch_account_lost(&a, names, sizeof names), 0, "it had no rank");
    update(&a, "a\nb:2\nc\n", "b");
    cr_expect_eq(pd_launch_account_lost(&a, names, sizeof names), 1);
    cr_expect_str_eq(names, "b (2 ranks)");
    pd_launch_account_deinit(&a);
}

static bool knows(const struct pd_launch_account *a, const char *text, const char *silent)
{
    uint32_t count;
    struct pd_launch_host_seen *seen;
    struct pd_error err;
    cr_assert_eq(pd_launch_hosts_parse(text, 1, &seen, &count, &err), PD_OK);
    for (uint32_t i = 0; i < count; i++) {
        seen[i].is_silent = strchr(silent, seen[i].name[0]);
        seen[i].answers = !seen[i].is_silent;
    }
    const bool is_known = pd_launch_account_knows(a, seen, count);
    free(seen);
    return is_known;
}

Test(account, a_host_whose_ranks_have_said_how_they_ended_is_there)
{
    char names[256];
    uint32_t count;
    struct pd_launch_host_seen *seen;
    struct pd_error err;
    struct pd_launch_account a = {.hosts = NULL};
    update(&a, "a\nb:2\nc\nd\n", "d");
    expect_taken(&a, 0, 4, "a:1,b:2,c:1");
    pd_launch_account_sign(&a, 2);
    cr_expect(knows(&a, "a\nb\nc\nd\n", "b"), "a rank of it has left a note");
    cr_expect(knows(&a, "a\nb\nc\nd\n", "bd"), "d did not answer before and has no rank");
    cr_expect_not(knows(&a, "a\nb\nc\nd\n", "bc"), "c has said nothing");
    cr_expect_not(knows(&a, "a\nb\ne\n", "e"), "e is new");
    cr_assert_eq(pd_launch_hosts_parse("a\nb:2\nc\n", 1, &seen, &count, &err), PD_OK);
    seen[0].answers = seen[1].is_silent = seen[2].is_silent = true;
    cr_assert_eq(pd_launch_account_update(&a, seen, count, &err), PD_OK);
    cr_expect_eq(pd_launch_account_lost(&a, names, sizeof names), 1);
    cr_expect_str_eq(names, "c (1 rank)");
    cr_assert_eq(pd_launch_account_update(&a, seen, count, &err), PD_OK);
    cr_expect_eq(pd_launch_account_lost(&a, names, sizeof names), 2, "a sign is good for one look");
    free(seen);
    pd_launch_account_deinit(&a);
}

Test(account, a_host_that_will_be_taken_away_is_left_out_until_it_is_back)
{
    char out[256];
    struct pd_launch_account a = {.hosts = NULL};
    update(&a, "a:2\nb:2\n", "");
    pd_launch_account_taken(&a, 1, 10 * S);
    cr_expect_eq(pd_launch_account_slots(&a, 11 * S), 2);
    pd_launch_account_describe_out(&a, 11 * S, out, sizeof out);
    cr_expect_str_eq(out, "b will be taken away (preempt.notice)");
    update(&a, "a:2\nb:2\n", "");
    cr_expect_eq(pd_launch_account_slots(&a, 12 * S), 2, "it answers still");
    update(&a, "a:2\nb:2\n", "b");
    update(&a, "a:2\nb:2\n", "");
    cr_expect_eq(pd_launch_account_slots(&a, 13 * S), 4, "it was away, and is back");
    pd_launch_account_taken(&a, 1, 20 * S);
    cr_expect_eq(pd_launch_account_slots(&a, 321 * S), 4, "it was not taken");
    pd_launch_account_deinit(&a);
}

Test(account, a_host_that_computed_wrongly_is_left_out_while_others_suffice)
{
    char out[256];
    struct pd_launch_account a = {.hosts = NULL};
    update(&a, "a:2\nb:2\n", "");
    cr_expect_not(pd_launch_account_suspect(&a, "b", 1 * S, 3), "the others are not enough");
    cr_expect_not(pd_launch_account_suspect(&a, "", 1 * S, 1), "no host of the list");
    cr_expect(pd_launch_account_suspect(&a, "b", 1 * S, 2));
    cr_expect_eq(pd_launch_account_slots(&a, 600 * S), 2);
    pd_launch_account_describe_out(&a, 600 * S, out, sizeof out);
    cr_expect_str_eq(out, "b computed wrongly");
    cr_expect_eq(pd_launch_account_slots(&a, 602 * S), 4);
    cr_expect(pd_launch_account_suspect(&a, "b", 700 * S, 2));
    cr_expect_eq(pd_launch_account_slots(&a, 1800 * S), 2, "the second time for twenty minutes");
    pd_launch_account_deinit(&a);
}

Test(account, a_start_knows_the_hosts_that_it_is_without)
{
    char names[256];
    struct pd_launch_account a = {.hosts = NULL};
    update(&a, "a\nb\nc\n", "b");
    expect_taken(&a, 0, 1, "a:1");
    pd_launch_account_away(&a, names, sizeof names);
    cr_expect_str_eq(names, "b", "c could have had one");
    cr_expect_not(pd_launch_account_has_other(&a, 0));
    update(&a, "a\nb\nc\nd\n", "b");
    cr_expect(pd_launch_account_has_other(&a, 0), "d is new");
    update(&a, "a\nb\n", "");
    cr_expect(pd_launch_account_has_other(&a, 0), "b is back");
    update(&a, "a\nc\n", "");
    cr_expect_not(pd_launch_account_has_other(&a, 0));
    pd_launch_account_away(&a, names, sizeof names);
    cr_expect_str_empty(names, "b is not in the list any more");
    pd_launch_account_deinit(&a);
}

Test(account, where_ranks_die_twice_is_left_out_for_ever_longer_while_others_suffice)
{
    struct pd_launch_account a = {.hosts = NULL};
    char out[256];
    update(&a, "a:2\nb:2\n", "");
    cr_expect_not(pd_launch_account_charge(&a, 1, 10 * S, 2), "the first time it starts again in the same place");
    cr_expect_eq(pd_launch_account_slots(&a, 10 * S), 4);
    cr_expect(pd_launch_account_charge(&a, 1, 20 * S, 2));
    cr_expect_eq(pd_launch_account_slots(&a, 20 * S), 2);
    pd_launch_account_describe_out(&a, 20 * S, out, sizeof out);
    cr_expect_str_eq(out, "b lost ranks 2 times without progress");
    cr_expect_eq(pd_launch_account_slots(&a, 21 * S), 4, "after a second");
    cr_expect(pd_launch_account_charge(&a, 1, 30 * S, 2));
    cr_expect_eq(pd_launch_account_slots(&a, 31 * S), 2);
    cr_expect_eq(pd_launch_account_slots(&a, 32 * S), 4, "after two");
    cr_expect_not(pd_launch_account_charge(&a, 1, 40 * S, 3), "the others are not enough");
    pd_launch_account_progress(&a);
    cr_expect_not(pd_launch_account_charge(&a, 1, 50 * S, 2), "a newer checkpoint is there");
    pd_launch_account_deinit(&a);
}

Test(account, a_lost_device_is_left_out_for_ever_longer)
{
    struct pd_launch_account a = {.hosts = NULL};
    pd_launch_account_lost_device(&a, "aa", PD_LAUNCH_NO_HOST, 1 * S);
    pd_launch_account_lost_device(&a, "bb", PD_LAUNCH_NO_HOST, 2 * S);
    pd_launch_account_lost_device(&a, "aa", PD_LAUNCH_NO_HOST, 2 * S); /* said by a second rank on it */
    static const struct {
        uint64_t now_ns;
        const char *out;
    } expected[] = {{3 * S, "aa,bb"}, {601 * S, "bb"}, {602 * S, ""}};
    for (size_t i = 0; i < 3; i++) {
        char *out = pd_launch_account_devices_out(&a, expected[i].now_ns);
        cr_expect_str_eq(out, expected[i].out);
        free(out);
    }
    pd_launch_account_lost_device(&a, "aa", PD_LAUNCH_NO_HOST, 700 * S);
    char *out = pd_launch_account_devices_out(&a, 1899 * S);
    cr_expect_str_eq(out, "aa", "the second time for twenty minutes");
    free(out);
    pd_launch_account_deinit(&a);
}

Test(account, a_host_has_a_place_less_for_each_lost_device_without_a_spare)
{
    struct pd_launch_account a = {.hosts = NULL};
    update(&a, "a:2\nb:2\nc:1\n", "");
    pd_launch_account_lost_device(&a, "aa", 0, 1 * S);
    cr_expect_eq(pd_launch_account_slots(&a, 1 * S), 4);
    expect_taken(&a, 1 * S, 3, "a:1,b:2");
    pd_launch_account_lost_device(&a, "cc", 2, 1 * S);
    expect_taken(&a, 1 * S, 3, "a:1,b:2");
    expect_taken(&a, 601 * S, 5, "a:2,b:2,c:1");
    update(&a, "c:1\nd:1\n", "d");
    pd_launch_account_lost_device(&a, "cc", 0, 700 * S);
    cr_expect_eq(pd_launch_account_slots(&a, 700 * S), 0, "d may come");
    update(&a, "c:1\n", "");
    cr_expect_eq(pd_launch_account_slots(&a, 700 * S), 1, "where there is no other it is tried again");
    pd_launch_account_deinit(&a);
}
