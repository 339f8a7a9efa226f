#include "trainer/launch/outer.h"

#include "ckpt/base/log.h"
#include "ckpt/base/parse.h"
#include "ckpt/base/process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MODULE "launch"
#define LEVELS_MAX 256 /* parents; more would be a cycle of reused process numbers */

extern char **environ;

/* The variable with the number of ranks, and the processes that set it. The kernel truncates their names to 15 characters.
 */
static const struct outer {
    const char *size, *processes;
} outers[] = {
    {"OMPI_COMM_WORLD_SIZE", " mpirun mpiexec orterun orted prterun prted prte "},
    {"PMI_SIZE", " mpirun mpiexec mpiexec.hydra hydra_pmi_proxy slurmstepd "},
    {"MPI_LOCALNRANKS", " mpirun mpiexec mpiexec.hydra hydra_pmi_proxy "},
    {"SLURM_STEP_NUM_TASKS", " slurmstepd "},
    {"WORLD_SIZE", " torchrun accelerate deepspeed "},
};

/* A shell started by `srun --pty` may be one of several tasks, but the only one with the user's terminal. */
static uint64_t outer_size(const struct outer *outer)
{
    uint64_t size;
    const char *text = getenv(outer->size);
    const bool is_typed_into = !strncmp(outer->size, "SLURM_", 6) && getenv("SLURM_PTY_PORT");
    return text && !is_typed_into && pd_parse_u64(text, &size) ? size : 0;
}

/* `python3 -m torch.distributed.run`, and `python3 /usr/bin/torchrun`: the kernel calls both python3. */
static bool runs_module(int process)
{
    static const char *const modules[] = {"torch.distributed.run", "torch.distributed.launch", "torchrun",
                                          "accelerate.commands.launch", "deepspeed.launcher.launch"};
    char words[1024] = "";
    (void)pd_process_read(process, "cmdline", words, sizeof words); /* a zero ends each */
    for (const char *word = words; word < words + sizeof words && *word; word += strlen(word) + 1)
        for (size_t i = 0; i < sizeof modules / sizeof *modules; i++) {
            const size_t bytes = strlen(word), end = strlen(modules[i]);
            if (bytes >= end && !strcmp(word + bytes - end, modules[i])) return true;
        }
    return false;
}

/* The nearest ancestor with one of these names (separated by spaces); 0: none. */
static int outer_find(const char *names, char ret_name[32])
{
    char name[32], between[40];
    int process = getppid();
    for (int level = 0; process > 0 && level < LEVELS_MAX; level++, process = pd_process_parent(process)) {
        if (!pd_process_read(process, "comm", name, sizeof name)) return 0;
        name[strcspn(name, "\n")] = '\0';
        snprintf(between, sizeof between, " %s ", name);
        if (!strstr(names, between) && !(strstr(names, " torchrun ") && runs_module(process))) continue;
        snprintf(ret_name, 32, "%s", name);
        return process;
    }
    return 0;
}

/* Left by an outer starter, not set by the user. Some entries are full names, which is harmless. */
static bool is_left_over(const char *entry)
{
    char prefixes[] = "OMPI_COMM_WORLD_ OMPI_UNIVERSE_SIZE= OMPI_WORLD_ OMPI_APP_CTX_ OMPI_NUM_APP_CTX= OMPI_ARGV= "
                      "OMPI_COMMAND= OMPI_FIRST_RANKS= OMPI_FILE_LOCATION= OMPI_MCA_ess= OMPI_MCA_ess_base_ OMPI_MCA_pmix= "
                      "OMPI_MCA_initial_wdir= OMPI_MCA_mpi_oversubscribe= OMPI_MCA_orte_app_num= "
                      "OMPI_MCA_orte_bound_at_launch= OMPI_MCA_orte_ess_ OMPI_MCA_orte_hnp_uri= "
                      "OMPI_MCA_orte_jobfam_session_dir= OMPI_MCA_orte_launch= OMPI_MCA_orte_local_daemon_uri= "
                      "OMPI_MCA_orte_num_nodes= OMPI_MCA_orte_precondition_transports= OMPI_MCA_orte_top_session_dir= "
                      "PMIX_ PMI_ PRTE_LAUNCHED= HYDI_CONTROL_FD=";
    if (!strncmp(entry, "PMIX_MCA_", 9) || !strncmp(entry, "PMIX_PREFIX=", 12)) return false;
    for (char *rest = prefixes, *prefix; (prefix = strtok_r(rest, " ", &rest));)
        if (!strncmp(entry, prefix, strlen(prefix))) return true;
    return false;
}

static bool is_of_slurm(const char *entry)
{
    return !strncmp(entry, "SLURM_", 6) && strncmp(entry, "SLURM_CONF=", 11) != 0;
}

static uint32_t variables_remove(bool (*is_one)(const char *entry))
{
    uint32_t removed = 0;
    char name[256];
    for (char **at = environ; at && *at;) {
        const size_t bytes = strcspn(*at, "=");
        if (!is_one(*at) || bytes >= sizeof name) {
            at++;
            continue;
        }
        snprintf(name, sizeof name, "%.*s", (int)bytes, *at);
        unsetenv(name); /* the next one takes this index */
        removed++;
    }
    return removed;
}

pd_status pd_outer_leave(struct pd_error *err)
{
    char name[32];
    for (size_t i = 0; i < sizeof outers / sizeof *outers; i++) {
        const uint64_t size = outer_size(&outers[i]);
        const int process = size > 1 ? outer_find(outers[i].processes, name) : 0;
        if (!process) continue;
        PD_FAIL(err, PD_USAGE,
                "%s=%llu and process %d (%s) above this one: %s starts %llu launchers of the same run. Run perdure once, "
                "without it, and give layout.ranks=%llu; words for mpirun go into PERDURE_MPIRUN=\"mpirun --hostfile "
                "hosts\". If this is one launcher all the same: env -u %s perdure train ...",
                outers[i].size, (unsigned long long)size, process, name, name, (unsigned long long)size,
                (unsigned long long)size, outers[i].size);
    }
    static const char *const ranks[] = {"OMPI_COMM_WORLD_RANK", "OMPI_UNIVERSE_SIZE", "PMIX_RANK", "PMIX_NAMESPACE",
                                        "PMI_RANK"};
    bool is_rank = false;
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++)
        is_rank |= getenv(ranks[i]) != NULL;
    const uint32_t removed = is_rank ? variables_remove(is_left_over) : 0;
    if (removed) pd_log_debug(MODULE, "%u variables of an outer mpirun or srun are not passed on", removed);
    return PD_OK;
}

/* ---- Slurm ---- */

enum answer { JOB_RUNS, JOB_IS_OVER, NO_ANSWER };

static enum answer ask_slurm(const char *job, char ret_said[256])
{
    char command[128];
    snprintf(command, sizeof command, "squeue --noheader --jobs=%.20s --format=%%T 2>&1", job);
    FILE *asked = popen(command, "re");
    ret_said[0] = '\0';
    if (!asked) return NO_ANSWER;
    char line[256];
    while (fgets(line, sizeof line, asked))
        if (!ret_said[0]) snprintf(ret_said, 256, "%.*s", (int)strcspn(line, "\n"), line);
    const int status = pclose(asked);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127) return JOB_RUNS; /* no squeue here, as in a job's container */
    if (strstr(ret_said, "Invalid job id")) return JOB_IS_OVER;
    if (status) return NO_ANSWER;
    return ret_said[0] && strcmp(ret_said, "PENDING") ? JOB_RUNS : JOB_IS_OVER;
}

pd_status pd_outer_check_slurm(struct pd_error *err)
{
    char name[32], said[256], job[32];
    const char *variable = getenv("SLURM_JOB_ID") ? "SLURM_JOB_ID" : "SLURM_JOBID", *value = getenv(variable);
    const char *own = getenv("PERDURE_MPIRUN");
    if (!value || (own && *own) || outer_find(" slurmstepd salloc ", name)) return PD_OK;
    snprintf(job, sizeof job, "%s", value);
    const bool is_number = *job && strspn(job, "0123456789") == strlen(value);
    const enum answer answer = is_number ? ask_slurm(job, said) : JOB_IS_OVER;
    if (answer == NO_ANSWER)
        PD_FAIL(err, PD_UNSUPPORTED,
                "%s=%s says that this is a Slurm job, no process of Slurm is above this one, and squeue does not know (%s). "
                "If the variable is left over: env -u SLURM_JOB_ID -u SLURM_JOBID perdure train ...; if the job runs, try "
                "again when squeue answers",
                variable, job, said);
    if (answer == JOB_RUNS) return PD_OK;
    (void)variables_remove(is_of_slurm); /* value is one of them */
    pd_log_warn(MODULE, "%s=%s is left over, Slurm runs no such job: all variables of Slurm are ignored", variable, job);
    return PD_OK;
}
