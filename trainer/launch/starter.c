#include "trainer/launch/starter.h"

#include "ckpt/base/file_limit.h"
#include "ckpt/base/log.h"
#include "ckpt/base/parse.h"
#include "ckpt/base/words.h"
#include "trainer/comm/comm.h"
#include "trainer/launch/job.h"
#include "trainer/run/launched.h"
#include "trainer/status/channel.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define MPI_FILE_BYTES (5u << 20) /* a rank's shared memory in Open MPI 4.1; under a smaller limit SIGXFSZ kills it */
#define RUN_FILES 9u              /* besides the files of its ranks, needed to save in a run with rank threads */
#define RANK_FILES 3u
#define FULL_RUN_FILES 16u           /* a rank, and one rank more: with state on drives and metrics of every kind */
#define MPI_SPACE_BYTES (256u << 20) /* Open MPI 4.1 ends in SIGSEGV with less; a rank of any model needs more */

bool pd_starter_find_program(const char *program, char ret_path[4096])
{
    const char *at = getenv("PATH");
    snprintf(ret_path, 4096, "%s", program);
    if (strchr(program, '/')) return access(program, X_OK) == 0;
    while (at && *at) {
        size_t length = strcspn(at, ":");
        snprintf(ret_path, 4096, "%.*s/%s", (int)length, at, program);
        if (access(ret_path, X_OK) == 0) return true;
        at += length + (at[length] == ':');
    }
    return false;
}

static bool is_on_path(const char *program)
{
    char path[4096];
    return pd_starter_find_program(program, path);
}

static bool always(void)
{
    return true;
}

/* 0: this is no Slurm job. */
static uint64_t slurm_nodes(void)
{
    uint64_t nodes;
    const char *job = getenv("SLURM_JOB_ID"), *count = getenv("SLURM_JOB_NUM_NODES");
    return job && count && pd_parse_u64(count, &nodes) ? nodes : 0;
}

static bool is_slurm_of_nodes(void)
{
    return slurm_nodes() > 1;
}

/* If Slurm's MpiDefault is none, srun gives Open MPI ranks no way to find each other. SLURM_MPI_TYPE is the user's --mpi. */
static bool is_without_mpi(void)
{
    char line[256];
    bool is_none = false;
    FILE *config = getenv("SLURM_MPI_TYPE") ? NULL : popen("scontrol show config 2>/dev/null", "re");
    while (config && fgets(line, sizeof line, config))
        is_none |= strncmp(line, "MpiDefault", 10) == 0 && strstr(line, "= none");
    if (config) (void)pclose(config);
    return is_none;
}

/* srun requests all nodes of the job; with fewer ranks it warns and uses fewer. */
static void slurm_words(const struct pd_start *start, char ret_words[64])
{
    const uint64_t nodes = slurm_nodes();
    snprintf(ret_words, 64, " --nodes=%llu%s", (unsigned long long)(start->ranks < nodes ? start->ranks : nodes),
             is_without_mpi() ? " --mpi=pmix" : "");
}

static void no_words(const struct pd_start *start, char ret_words[64])
{
    (void)start;
    ret_words[0] = 0;
}

/* mpirun needs only the count as argument: the rest is environment, which other MPIs ignore. */
static const struct starter {
    const char *name;
    bool (*applies)(void);
    const char *words;
    void (*more)(const struct pd_start *start, char ret_words[64]); /* that depend on the start */
} starters[] = {
    {"srun", is_slurm_of_nodes, "--kill-on-bad-exit=1 --cpu-bind=none --overlap", slurm_words},
    {"mpirun", always, "", no_words},
    {"mpiexec", always, "", no_words},
};

static const struct starter *starter_find(void)
{
    for (size_t i = 0; i < sizeof starters / sizeof *starters; i++)
        if (starters[i].applies() && is_on_path(starters[i].name)) return &starters[i];
    return NULL;
}

static const char *own_starter(void)
{
    const char *own = getenv("PERDURE_MPIRUN");
    return own && *own ? own : NULL;
}

/* Open MPI passes variables to other hosts by its setting or by -x, but not both. */
static const char *const exported[] = {
    PD_LAUNCH_ENV_RANKS,  PD_LAUNCH_ENV_RESTART,    PD_LAUNCH_ENV_TRANSPORT, PD_LAUNCH_ENV_PARENT, PD_LAUNCH_ENV_LAYOUT,
    PD_LAUNCH_ENV_TRACE,  PD_LAUNCH_ENV_CONFIG,     PD_LAUNCH_ENV_LEFT_OUT,  PD_LAUNCH_ENV_AWAY,   PD_LAUNCH_ENV_GRACE,
    PD_LAUNCH_ENV_VERIFY, PD_CHANNEL_ENV_ADDRESSES, PD_CHANNEL_ENV_SECRET};
#define EXPORTED (sizeof exported / sizeof *exported)

bool pd_starter_may_reach_others(void)
{
    static const char *const variables[] = {"PBS_NODEFILE",
                                            "LSB_HOSTS",
                                            "LSB_DJOB_HOSTFILE",
                                            "PE_HOSTFILE",
                                            "SLURM_JOB_ID",
                                            "LOADL_HOSTFILE",
                                            "OMPI_MCA_orte_default_hostfile",
                                            "OMPI_MCA_hostfile",
                                            "PRTE_MCA_prte_default_hostfile",
                                            "COBALT_NODEFILE"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        if (getenv(variables[i])) return true;
    return own_starter() != NULL;
}

static bool exports_by_word(void)
{
    const char *own = own_starter();
    return own && strstr(own, " -x ");
}

static void export_by_setting(void)
{
    const char *name = "OMPI_MCA_mca_base_env_list", *given = getenv(name);
    char list[4096];
    int used = snprintf(list, sizeof list, "%s", given ? given : "");
    for (size_t i = 0; i < EXPORTED && used >= 0 && (size_t)used < sizeof list; i++)
        used += snprintf(list + used, sizeof list - (size_t)used, "%s%s", used ? ";" : "", exported[i]);
    setenv(name, list, 1);
}

pd_status pd_starter_choose(enum pd_transport asked, uint32_t ranks, enum pd_transport *ret_transport, struct pd_error *err)
{
    bool can_start = pd_comm_has_mpi() && (own_starter() || starter_find());
    if (asked == PD_TRANSPORT_MPI && !pd_comm_has_mpi())
        PD_FAIL(err, PD_UNSUPPORTED,
                "layout.transport is mpi and this build has none: use layout.transport=local, or configure with "
                "-DPERDURE_MPI=ON");
    if (asked == PD_TRANSPORT_MPI && !can_start)
        PD_FAIL(err, PD_UNSUPPORTED,
                "layout.transport is mpi and there is no mpirun on PATH: apt-get install openmpi-bin, or use "
                "layout.transport=local");
    if (asked == PD_TRANSPORT_AUTO)
        *ret_transport = ranks > 1 && can_start ? PD_TRANSPORT_MPI : PD_TRANSPORT_LOCAL;
    else
        *ret_transport = asked;
    return PD_OK;
}

/* Raises the soft limit up to the hard one, to the need of offloading and metrics; ranks and relays inherit it. Returns it.
 */
static rlim_t open_files_raise(const struct pd_start *start)
{
    struct rlimit files;
    const rlim_t wanted = FULL_RUN_FILES * (1 + (rlim_t)start->ranks);
    if (getrlimit(RLIMIT_NOFILE, &files)) return RLIM_INFINITY;
    struct rlimit raised = {wanted < files.rlim_max ? wanted : files.rlim_max, files.rlim_max};
    return files.rlim_cur < raised.rlim_cur && setrlimit(RLIMIT_NOFILE, &raised) == 0 ? raised.rlim_cur : files.rlim_cur;
}

static pd_status check_open_files(const struct pd_start *start, rlim_t needs, const char *who, const char *or_else,
                                  struct pd_error *err)
{
    const rlim_t files = open_files_raise(start);
    if (files >= needs) return PD_OK;
    PD_FAIL(err, PD_UNSUPPORTED,
            "%s needs more than %llu open files for %s, and the limit is %llu: raise it (ulimit -n 1024)%s", who,
            (unsigned long long)needs - 1, pd_counted(start->ranks, "rank").text, (unsigned long long)files, or_else);
}

/* Open MPI 4 first opens pipes for all ranks of a host, and hangs if it gets none. With hosts named by others, fewer ranks
 * may be here. */
pd_status pd_starter_check_limits(const struct pd_start *start, struct pd_error *err)
{
    struct rlimit space;
    if (start->transport == PD_TRANSPORT_LOCAL)
        return check_open_files(start, RUN_FILES + RANK_FILES * (rlim_t)start->ranks, "a run", "", err);
    if (own_starter() || is_slurm_of_nodes()) {
        (void)open_files_raise(start); /* a socket of each rank is here, wherever that is */
        return PD_OK;
    }
    if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur < MPI_SPACE_BYTES)
        PD_FAIL(
            err, PD_UNSUPPORTED,
            "mpirun and its ranks need more than %u MiB of address space each, and the limit is %llu: raise it (ulimit -v)",
            MPI_SPACE_BYTES >> 20, (unsigned long long)space.rlim_cur >> 20);
    PD_TRY(pd_file_limit_check("mpirun", MPI_FILE_BYTES, err));
    return check_open_files(start, 25 + 4 * (rlim_t)start->ranks, "mpirun", ", or use layout.transport=local", err);
}

static pd_status command_add(struct pd_starter_command *command, uint32_t *count, char *word, struct pd_error *err)
{
    if (*count >= PD_STARTER_WORDS_MAX)
        PD_FAIL(err, PD_USAGE, "the command of a worker has more than %u words; take some out of PERDURE_MPIRUN",
                PD_STARTER_WORDS_MAX);
    command->argv[(*count)++] = word;
    return PD_OK;
}

/* Splits command->text into words in place. */
static pd_status command_add_text(struct pd_starter_command *command, uint32_t *count, struct pd_error *err)
{
    char *rest = command->text;
    for (char *word; (word = strtok_r(rest, " \t", &rest));)
        PD_TRY(command_add(command, count, word, err));
    return PD_OK;
}

/* Ranks fill one host after another, so that the launcher knows where each is. */
static pd_status hosts_add(const struct pd_start *start, struct pd_starter_command *command, uint32_t *count,
                           struct pd_error *err)
{
    static const char *const words[] = {"--map-by", "slot:OVERSUBSCRIBE", "--host"};
    if (start->hosts && !strcmp(command->name, "srun"))
        PD_FAIL(
            err, PD_UNSUPPORTED,
            "launch.hosts are given to mpirun, and in this Slurm job srun starts the ranks, on the nodes of the job: leave "
            "launch.hosts out, or set PERDURE_MPIRUN=mpirun");
    for (size_t i = 0; start->hosts && i < sizeof words / sizeof *words; i++)
        PD_TRY(command_add(command, count, (char *)(uintptr_t)words[i], err));
    return start->hosts ? command_add(command, count, (char *)(uintptr_t)start->hosts, err) : PD_OK;
}

static pd_status starter_text(const struct pd_start *start, struct pd_starter_command *command, struct pd_error *err)
{
    const char *own = own_starter();
    const struct starter *starter = own ? NULL : starter_find();
    if (!own && !starter) PD_FAIL(err, PD_UNSUPPORTED, "there is no mpirun on PATH: apt-get install openmpi-bin");
    char more[64] = "";
    if (starter) starter->more(start, more);
    command->name = own ? "PERDURE_MPIRUN" : starter->name;
    int length = snprintf(command->text, sizeof command->text, "%s %s%s -n %u", own ? own : starter->name,
                          own ? "" : starter->words, more, start->ranks);
    if (length < 0 || (size_t)length >= sizeof command->text)
        PD_FAIL(err, PD_USAGE, "PERDURE_MPIRUN is too long; put its words into a script, and name that");
    return PD_OK;
}

pd_status pd_starter_command_make(const struct pd_start *start, struct pd_starter_command *ret_command, struct pd_error *err)
{
    uint32_t count = 0;
    *ret_command = (struct pd_starter_command){.name = start->worker[0]};
    if (start->transport == PD_TRANSPORT_MPI) {
        PD_TRY(starter_text(start, ret_command, err));
        PD_TRY(command_add_text(ret_command, &count, err));
        PD_TRY(hosts_add(start, ret_command, &count, err));
        for (size_t i = 0; exports_by_word() && i < EXPORTED; i++) {
            PD_TRY(command_add(ret_command, &count, "-x", err));
            PD_TRY(command_add(ret_command, &count, (char *)(uintptr_t)exported[i], err));
        }
    }
    for (uint32_t i = 0; start->worker[i]; i++)
        PD_TRY(command_add(ret_command, &count, (char *)(uintptr_t)start->worker[i], err));
    return PD_OK;
}

static void set_number(const char *variable, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    setenv(variable, text, 1);
}

static bool is_writable(const char *path)
{
    return path && *path && access(path, W_OK | X_OK) == 0;
}

/* mpirun keeps a session directory in TMPDIR, and without HOME asks passwd for a home directory. Containers run with
 * `--user`, or with a read-only root, have neither. Open MPI reads a comma-separated list of files below HOME, and fails if
 * one part is a directory. */
static void home_set(const char *dir)
{
    const char *temporary = getenv("TMPDIR");
    if (!is_writable(getenv("HOME"))) setenv("HOME", strchr(dir, ',') ? "/" : dir, 1);
    if (!is_writable(temporary && *temporary ? temporary : "/tmp")) setenv("TMPDIR", dir, 1);
}

/* Settings that Open MPI reads. Its single-copy path is often forbidden in containers and unused here; binding would put a
 * rank's threads on one core; its banners would bury our message. */
static void mpi_environment_set(const struct pd_start *start)
{
    static const char *const settings[][2] = {
        /* Notices a vanished host in 4 + 3 * 2 s instead of eight minutes. */
        {"OMPI_MCA_oob_tcp_keepalive_time", "4"},
        {"OMPI_MCA_oob_tcp_keepalive_intvl", "2"},
        {"OMPI_MCA_oob_tcp_keepalive_probes", "3"},
        {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
        {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
        {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
        {"OMPI_MCA_hwloc_base_binding_policy", "none"},
        {"OMPI_MCA_btl_vader_single_copy_mechanism", "none"},
        {"OMPI_MCA_mpi_yield_when_idle", "1"},
        /* Slurm's tree (since 20.11) has no edges on fewer nodes than TreeWidth: PMIx_Fence without data waits for no one,
         * and a first message to a receiver still in MPI_Init kills it. Slurm's ring waits. */
        {"SLURM_PMIX_FENCE", "ring"},
        {"PRTE_ALLOW_RUN_AS_ROOT", "1"},
        {"PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
        {"PRTE_MCA_rmaps_default_mapping_policy", ":OVERSUBSCRIBE"},
        {"PRTE_MCA_hwloc_default_binding_policy", "none"},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        setenv(settings[i][0], settings[i][1], 0);
    setenv("OMPI_MCA_orte_execute_quiet", start->is_verbose ? "0" : "1", start->is_verbose);
    if (start->hosts) setenv("OMPI_MCA_plm_rsh_agent", start->agent, 1);
    if (start->hosts) setenv("PRTE_MCA_plm_ssh_agent", start->agent, 1); /* Open MPI 5 */
    home_set(start->dir);
    if (!exports_by_word()) export_by_setting();
}

void pd_starter_environment_set(const struct pd_start *start, int launcher_process)
{
    char secret[4096];
    snprintf(secret, sizeof secret, "%.4000s/" PD_STARTER_SECRET_NAME, start->dir);
    setenv(PD_CHANNEL_ENV_SECRET, secret, 1);
    setenv(PD_LAUNCH_ENV_TRANSPORT, start->transport == PD_TRANSPORT_LOCAL ? "local" : "mpi", 1);
    setenv(PD_LAUNCH_ENV_LAYOUT, start->layout ? start->layout : "", 1);
    setenv(PD_LAUNCH_ENV_TRACE, "", 0);
    setenv(PD_LAUNCH_ENV_CONFIG, "", 0);
    setenv(PD_LAUNCH_ENV_VERIFY, "", 0);
    setenv(PD_LAUNCH_ENV_GRACE, PD_LAUNCH_GRACE_SECONDS, 0);
    setenv(PD_LAUNCH_ENV_LEFT_OUT, start->left_out ? start->left_out : "", 1);
    setenv(PD_LAUNCH_ENV_AWAY, start->away ? start->away : "", 1);
    set_number(PD_LAUNCH_ENV_RANKS, start->ranks);
    set_number(PD_LAUNCH_ENV_RESTART, start->restart);
    set_number(PD_LAUNCH_ENV_PARENT, (uint64_t)launcher_process);
    if (start->transport == PD_TRANSPORT_MPI) mpi_environment_set(start);
}

/* ---- starting ---- */

static void child_fail(int report, int number)
{
    ssize_t ignored = write(report, &number, sizeof number);
    (void)ignored;
    _exit(127);
}

/* Own process group: a terminal's interrupt reaches only the launcher; no terminal input, which would stop it. */
static void child_main(const struct pd_start *start, const struct pd_starter_command *command, const char *addresses,
                       pid_t launcher, int report)
{
    sigset_t none;
    sigemptyset(&none);
    setpgid(0, 0);
    signal(SIGXFSZ, SIG_DFL); /* MPI hangs if it is ignored */
    signal(SIGTTOU, SIG_IGN); /* or a terminal with tostop would stop its output */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL)) child_fail(report, errno);
    if (getppid() != launcher) _exit(127);
    sigprocmask(SIG_SETMASK, &none, NULL);
    int input = open("/dev/null", O_RDONLY);
    if (input >= 0) dup2(input, STDIN_FILENO);
    if (input > STDERR_FILENO) close(input);
    pd_starter_environment_set(start, (int)launcher);
    setenv(PD_CHANNEL_ENV_ADDRESSES, addresses, 1);
    execvp(command->argv[0], command->argv);
    child_fail(report, errno);
}

pd_status pd_starter_spawn(const struct pd_start *start, const struct pd_starter_command *command, const char *addresses,
                           int *ret_process, struct pd_error *err)
{
    int report[2], number = 0;
    if (pipe2(report, O_CLOEXEC)) PD_FAIL_ERRNO(err, errno, "starting %s", command->name);
    const pid_t launcher = getpid();
    fflush(NULL);
    const pid_t process = fork();
    if (process == 0) child_main(start, command, addresses, launcher, report[1]);
    int fork_errno = errno;
    close(report[1]);
    if (process < 0) {
        close(report[0]);
        PD_FAIL_ERRNO(err, fork_errno, "starting %s", command->name);
    }
    setpgid(process, process); /* parent or child, whichever runs first */
    ssize_t got = read(report[0], &number, sizeof number);
    close(report[0]);
    if (got == (ssize_t)sizeof number) {
        waitpid(process, NULL, 0);
        PD_FAIL_ERRNO(err, number, "%s cannot be started; look at PATH, and at PERDURE_MPIRUN where it names that",
                      command->argv[0]);
    }
    *ret_process = process;
    return PD_OK;
}

/* ---- Slurm's steps ---- */

/* Whether squeue still lists the step. */
static bool is_step_left(const char *step)
{
    char command[160], line[64];
    snprintf(command, sizeof command, "squeue --noheader --steps=%s --format=%%i 2>/dev/null", step);
    FILE *listing = popen(command, "re");
    if (!listing) return false;
    const bool is_left = fgets(line, sizeof line, listing) && strncmp(line, step, strlen(step)) == 0;
    (void)pclose(listing);
    return is_left;
}

pd_status pd_starter_end_step(const struct pd_start *start, const struct pd_rank_table *said,
                              struct pd_launch_requests *requests, struct pd_error *err)
{
    char command[160];
    const char *step = "";
    for (uint32_t r = 0; r < said->count && !*step; r++)
        step = said->ranks[r].begun.step;
    char own[PD_MESSAGE_STEP_BYTES] = "";
    const char *job = getenv("SLURM_JOB_ID"), *own_step = getenv("SLURM_STEP_ID");
    if (job && own_step) snprintf(own, sizeof own, "%.20s.%.20s", job, own_step);
    if (strcmp(step, own) == 0) return PD_OK; /* mpirun's ranks are in the step that this launcher runs in */
    if (start->transport != PD_TRANSPORT_MPI || !*step || strspn(step, "0123456789.") != strlen(step)) return PD_OK;
    for (uint32_t looks = 0; is_step_left(step); looks++) {
        snprintf(command, sizeof command, "scancel --signal=KILL %s 2>/dev/null", step);
        FILE *kill_step = popen(command, "re");
        if (kill_step) (void)pclose(kill_step);
        if (looks % 60 == 1)
            pd_log_warn("launch", "tasks of job step %s are still there: waiting for Slurm to end them", step);
        pd_launch_requests_poll(requests, 500);
        if (requests->wants_abort)
            PD_FAIL(err, PD_PEER_LOST, "tasks of job step %s do not end: left without them; end them with scancel %s", step,
                    step);
    }
    return PD_OK;
}
