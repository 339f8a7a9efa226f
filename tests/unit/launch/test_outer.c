/* Variables that an outer starter has left, with that starter above this process and without. */
#include "trainer/launch/outer.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* The process is renamed, and look() called in a child of it. */
static int below(const char *name, int (*look)(void))
{
    int status;
    prctl(PR_SET_NAME, name);
    const pid_t child = fork();
    if (child == 0) _exit(look());
    cr_assert_eq(waitpid(child, &status, 0), child);
    return WEXITSTATUS(status);
}

static int leave(void)
{
    struct pd_error err = {.message = ""};
    const pd_status st = pd_outer_leave(&err);
    if (st) fprintf(stderr, "%s\n", err.message);
    return st != PD_USAGE ? st : strstr(err.message, "env -u ") && strstr(err.message, " above this one") ? 64 : 1;
}

static const struct row {
    const char *variable, *process;
} rows[] = {{"OMPI_COMM_WORLD_SIZE", "mpirun"},     {"OMPI_COMM_WORLD_SIZE", "prterun"},  {"PMI_SIZE", "hydra_pmi_proxy"},
            {"SLURM_STEP_NUM_TASKS", "slurmstepd"}, {"MPI_LOCALNRANKS", "mpiexec.hydra"}, {"WORLD_SIZE", "torchrun"}};

Test(outer, one_of_several_launchers_is_refused)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        setenv(rows[i].variable, "4", 1);
        cr_expect_eq(below(rows[i].process, leave), 64, "%s below %s", rows[i].variable, rows[i].process);
        cr_expect_eq(below("bash", leave), 0, "%s below a shell", rows[i].variable);
        setenv(rows[i].variable, "1", 1);
        cr_expect_eq(below(rows[i].process, leave), 0, "one rank below %s", rows[i].process);
        unsetenv(rows[i].variable);
    }
}

/* Of the next test, below a process of its own. */
Test(outer, what_the_next_test_runs)
{
    if (getenv("EXPECTED")) cr_assert_eq(leave(), (int)strtol(getenv("EXPECTED"), NULL, 10));
}

/* The process is called python3, and what it runs is a word of its command line. */
Test(outer, a_module_of_python_is_found_by_its_words)
{
    static const char *const words[][3] = {{"-m", "torch.distributed.run", "64"},
                                           {"-mtorch.distributed.launch", "x.py", "64"},
                                           {"/opt/bin/torchrun", "x.py", "64"},
                                           {"-m", "http.server", "0"},
                                           {"torch.distributed.run.py", "x", "0"}};
    char self[512] = "";
    cr_assert_gt(readlink("/proc/self/exe", self, sizeof self - 1), 0);
    setenv("WORLD_SIZE", "4", 1);
    setenv("TORCHELASTIC_RUN_ID", "none", 1);
    unsetenv("BXFI_MAP"); /* by which a worker of Criterion knows that it is one */
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        int status;
        const pid_t child = fork();
        setenv("EXPECTED", words[i][2], 1);
        if (child == 0)
            execl("/bin/sh", "python3", "-c", "\"$0\" --filter outer/what_the_next_test_runs; exit $?", self, words[i][0],
                  words[i][1], (char *)NULL);
        cr_assert_eq(waitpid(child, &status, 0), child);
        cr_expect_eq(status, 0, "%s %s: not %s", words[i][0], words[i][1], words[i][2]);
    }
}

Test(outer, a_terminal_of_srun_is_no_rank)
{
    setenv("SLURM_STEP_NUM_TASKS", "2", 1);
    setenv("SLURM_PTY_PORT", "4242", 1);
    cr_expect_eq(below("slurmstepd", leave), 0);
}

Test(outer, what_it_left_is_not_passed_on)
{
    struct pd_error err;
    static const char *const left[] = {
        "OMPI_COMM_WORLD_RANK", "OMPI_UNIVERSE_SIZE", "OMPI_MCA_ess_base_jobid", "PMIX_RANK", "PMI_FD",
        "OMPI_MCA_orte_hnp_uri"};
    static const char *const settings[] = {"OMPI_MCA_btl", "PMIX_MCA_ptl", "OMPI_MCA_orte_default_hostfile"};
    for (size_t i = 0; i < sizeof left / sizeof *left; i++)
        setenv(left[i], "1", 1);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        setenv(settings[i], "x", 1);
    cr_assert_eq(pd_outer_leave(&err), PD_OK);
    for (size_t i = 0; i < sizeof left / sizeof *left; i++)
        cr_expect(!getenv(left[i]), "%s", left[i]);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        cr_expect(getenv(settings[i]), "%s is the user's", settings[i]);
}

static char dir[] = "/tmp/perdure-outer-XXXXXX", squeue[64];

/* A squeue that says so. */
static void slurm_is(const char *script)
{
    snprintf(squeue, sizeof squeue, "%s/squeue", dir);
    FILE *f = fopen(squeue, "w");
    cr_assert(f && fprintf(f, "#!/bin/sh\n%s\n", script) > 0 && fclose(f) == 0 && chmod(squeue, 0755) == 0);
    setenv("SLURM_JOB_ID", "77", 1);
    setenv("SLURM_JOB_NUM_NODES", "2", 1);
    setenv("SLURM_CONF", "/etc/slurm.conf", 1);
}

static void slurm_begin(void)
{
    char path[4096];
    cr_assert(mkdtemp(dir));
    snprintf(path, sizeof path, "%s:/usr/bin:/bin", dir);
    setenv("PATH", path, 1);
    unsetenv("PERDURE_MPIRUN");
}

static void slurm_end(void)
{
    unlink(squeue);
    rmdir(dir);
}

static int check_slurm(void)
{
    struct pd_error err = {.message = ""};
    const pd_status st = pd_outer_check_slurm(&err);
    if (st) fprintf(stderr, "%s\n", err.message);
    return st == PD_UNSUPPORTED ? (strstr(err.message, "env -u SLURM_JOB_ID") ? 78 : 1) : getenv("SLURM_JOB_ID") ? 2 : 3;
}

Test(outer, a_job_that_is_over_does_not_matter, .init = slurm_begin, .fini = slurm_end)
{
    slurm_is("echo RUNNING");
    cr_expect_eq(below("bash", check_slurm), 2, "it runs");
    slurm_is("echo slurm_load_jobs error: Invalid job id specified >&2; exit 1");
    cr_expect_eq(below("bash", check_slurm), 3, "it is over");
    cr_expect_eq(below("slurmstepd", check_slurm), 2, "this is in it, and nobody is asked");
    slurm_is("exit 0");
    cr_expect_eq(below("bash", check_slurm), 3, "it has ended a moment ago");
    slurm_is("echo Unable to contact slurm controller >&2; exit 1");
    cr_expect_eq(below("bash", check_slurm), 78, "nobody knows");
    setenv("PERDURE_MPIRUN", "mpirun", 1);
    cr_expect_eq(below("bash", check_slurm), 2, "the user's own starter");
    unsetenv("PERDURE_MPIRUN");
    setenv("SLURM_JOB_ID", "7; echo RUNNING", 1);
    cr_expect_eq(below("bash", check_slurm), 3, "no number of a job");
    setenv("SLURM_JOB_ID", "77", 1);
    struct pd_error err;
    slurm_is("exit 0");
    cr_assert_eq(pd_outer_check_slurm(&err), PD_OK);
    cr_expect(!getenv("SLURM_JOB_NUM_NODES") && getenv("SLURM_CONF"));
}
