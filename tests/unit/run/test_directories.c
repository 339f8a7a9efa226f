/* Directories of a configuration: none inside another, however it is written; what cannot be made is named with its key. */
#include "trainer/run/directories.h"

#include "ckpt/base/log.h"
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char root[64];

static void make_root(void)
{
    snprintf(root, sizeof root, "/tmp/perdure-directories-XXXXXX");
    cr_assert_not_null(mkdtemp(root));
    cr_assert_eq(chdir(root), 0);
    cr_assert_eq(
        system("mkdir -p a/b other run && ln -s ../a other/link && ln -s nowhere other/dangling && ln -s loop loop"), 0);
}

static void remove_root(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", root);
    cr_assert_eq(chdir("/") || system(command), 0);
}

TestSuite(directories, .init = make_root, .fini = remove_root);

/* NULL ends the overrides. */
static struct pd_config configure(const char *const *overrides)
{
    struct pd_config config;
    struct pd_error err = {0};
    uint32_t count = 0;
    while (overrides[count])
        count++;
    cr_assert_eq(pd_config_parse("run.yaml",
                                 "run: {dir: run}\nmodel: {vocab: 256, layers: 2, hidden: 64, heads: 4}\ndata: {train: x}\n"
                                 "offload: {optimizer: nvme}\n",
                                 overrides, count, &config, &err),
                 PD_OK, "%s", err.message);
    return config;
}

#define TIER(n, dir) "checkpoint.tiers[" #n "].dir=" dir

static const struct {
    const char *overrides[4];
    const char *words[3]; /* of the refusal; none: admitted */
} cases[] = {
    {{NULL}, {NULL}},
    {{TIER(0, "a"), TIER(1, "other/x")}, {NULL}},
    {{TIER(0, "a/b"), TIER(1, "a/bc")}, {NULL}},
    {{TIER(0, "run/checkpoints"), TIER(1, "far")}, {NULL}}, /* what nothing else is saved into */
    {{TIER(0, "run/near"), TIER(1, "run/far")}, {NULL}},
    {{TIER(0, "a"), TIER(1, "a/b")}, {"checkpoint.tiers[1].dir, a/b, lies inside checkpoint.tiers[0].dir, a"}},
    {{TIER(0, "a/b/new/x"), TIER(1, "a")}, {"checkpoint.tiers[0].dir, a/b/new/x, lies inside checkpoint.tiers[1].dir, a"}},
    {{TIER(0, "a"), TIER(1, "./other/../a/")},
     {"checkpoint.tiers[1].dir, ./other/../a/, is the same directory as", "[0].dir, a"}},
    {{TIER(0, "a/new"), TIER(1, "other/../a//new/.")}, {"is the same directory as"}},
    {{TIER(0, "a"), TIER(1, "new/../a")}, {"is the same directory as"}},
    {{TIER(0, "a"), TIER(1, "other/link")},
     {"is the same directory as", "/a, and /", "name another directory with checkpoint.tiers[1].dir="}},
    {{TIER(0, "a"), TIER(1, "other/link/b/new")},
     {"checkpoint.tiers[1].dir, other/link/b/new, lies inside checkpoint.tiers[0].dir"}},
    {{TIER(0, "/"), TIER(1, "a")}, {"lies inside checkpoint.tiers[0].dir, /"}},
    {{TIER(0, "run/checkpoints/near"), TIER(1, "far")},
     {"checkpoint.tiers[0].dir", "lies inside checkpoint.dir, run/checkpoints"}},
    {{TIER(0, "run"), TIER(1, "far")},
     {"checkpoint.dir, run/checkpoints, lies inside checkpoint.tiers[0].dir, run", "with checkpoint.tiers[0].dir="}},
};

Test(directories, none_lies_inside_another)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pd_config config = configure(cases[i].overrides);
        struct pd_error err = {0};
        cr_expect_eq(pd_directories_check(&config, &err), cases[i].words[0] ? PD_INVALID : PD_OK, "case %zu: %s", i,
                     err.message);
        for (int w = 0; w < 3 && cases[i].words[w]; w++)
            cr_expect(strstr(err.message, cases[i].words[w]), "case %zu: %s", i, err.message);
        pd_config_deinit(&config);
    }
}

Test(directories, what_cannot_be_made_is_named_with_its_key)
{
    struct pd_error err = {0};
    cr_assert_eq(pd_directories_make("run.dir", "run/new/deep", &err), PD_OK);
    cr_assert_eq(access("run/new/deep", F_OK), 0);
    cr_assert_eq(pd_directories_make("checkpoint.tiers[2].dir", "/proc/xx", &err), PD_NOT_FOUND);
    cr_assert_str_eq(err.message,
                     "checkpoint.tiers[2].dir: /proc/xx: making the directory: No such file or directory; see to it "
                     "that it can be made, or name another directory with checkpoint.tiers[2].dir=DIR");
    cr_assert_eq(pd_directories_make("checkpoint.tiers[0].dir", "loop/x", &err), PD_IO);
    cr_assert(strstr(err.message, "checkpoint.tiers[0].dir: loop is a link to a missing target"), "%s", err.message);
    cr_assert_eq(pd_directories_make("checkpoint.dir", "/dev/null/x", &err), PD_INVALID);
    cr_assert(strstr(err.message, "checkpoint.dir: /dev/null is not a directory"), "%s", err.message);
}

static char logged[4096];

static void keep_line(void *context, const char *line, size_t bytes)
{
    (void)context;
    const size_t used = strlen(logged);
    snprintf(logged + used, sizeof logged - used, "%.*s", (int)bytes, line);
}

static void warnings(const char *const *overrides, const char *const *expected)
{
    struct pd_config config = configure(overrides);
    unsigned lines = 0;
    logged[0] = '\0';
    pd_log_set_sink(keep_line, NULL);
    pd_directories_warn_shared(&config);
    pd_log_set_sink(NULL, NULL);
    for (; expected[lines]; lines++)
        cr_expect(strstr(logged, expected[lines]), "\"%s\" is not in %s", expected[lines], logged);
    unsigned found = 0;
    for (const char *at = logged; (at = strchr(at, '\n')); at++)
        found++;
    cr_expect_eq(found, lines, "%s", logged);
    pd_config_deinit(&config);
}

Test(directories, tiers_of_one_file_system_are_warned_of)
{
    cr_assert_eq(system("mkdir -p c d"), 0);
    warnings((const char *const[]){TIER(0, "a/b"), NULL}, (const char *const[]){NULL});
    warnings((const char *const[]){TIER(0, "/dev/shm"), TIER(1, "c"), NULL}, (const char *const[]){NULL});
    warnings((const char *const[]){TIER(0, "/dev/shm"), TIER(1, "c"), TIER(2, "d"), TIER(3, "absent"), NULL},
             (const char *const[]){
                 "checkpoint.tiers[2].dir, d, lies on the same file system as checkpoint.tiers[1].dir, c: what takes "
                 "one takes both, so the copy protects nothing; name a directory on another drive or on shared "
                 "storage",
                 NULL});
}

/* Of the root directory itself nothing can stand in; what is made there is removed. */
Test(directories, what_is_made_in_the_root_directory_is_warned_of)
{
    char made[64], path[80], expected[300];
    struct pd_error err = {0};
    if (access("/", W_OK)) cr_skip_test("only who may write there can make a directory in /");
    snprintf(made, sizeof made, "/perdure-test-%d", (int)getpid());
    snprintf(path, sizeof path, "%s/tier", made);
    pd_log_set_sink(keep_line, NULL);
    cr_assert_eq(pd_directories_make("checkpoint.tiers[1].dir", path, &err), PD_OK, "%s", err.message);
    pd_log_set_sink(NULL, NULL);
    rmdir(path);
    rmdir(made);
    snprintf(
        expected, sizeof expected,
        "checkpoint.tiers[1].dir, %s: there was no %s, so it was made on the system's own disk: if a drive belongs there",
        path, made);
    cr_expect(strstr(logged, expected), "%s", logged);
    logged[0] = '\0';
    pd_log_set_sink(keep_line, NULL);
    cr_assert_eq(pd_directories_make("checkpoint.tiers[1].dir", "a/new/deep", &err), PD_OK);
    pd_log_set_sink(NULL, NULL);
    cr_expect_str_eq(logged, "");
}
