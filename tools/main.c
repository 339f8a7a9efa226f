#include "ckpt/base/log.h"
#include "ckpt/base/utf8.h"
#include "ckpt/base/words.h"
#include "ckpt/io/vfs.h"
#include "ckpt/objects/vfs.h"
#include "offload/device.h"
#include "tools/command.h"
#include "tools/output.h"
#include "trainer/launch/hold.h"

#include <fcntl.h>
#include <perdure_source_id.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define STACK_BYTES (1u << 20)
#define STACK_GROWN_BYTES (STACK_BYTES / 2) /* arguments and environment may take a quarter */

/* To add a command, add a row here and a file. */
const struct pd_command pd_commands[] = {
    {"init", "[-o FILE]", "write a configuration that fits this machine, from three answers", pd_cmd_init},
    {"train", "CONFIG [key=value...]", "train, or resume from the newest checkpoint", pd_cmd_train},
    {"plan", "CONFIG [key=value...]", "memory and time of a layout, without starting anything", pd_cmd_plan},
    {"report", "RUN [RUN...]", "an HTML page with charts of runs", pd_cmd_report},
    {"replay", "RUN --step=N", "compute a past step again and compare the bits", pd_cmd_replay},
    {"watch", "RUN", "follow a run on the terminal", pd_cmd_watch},
    {"sample", "PATH --prompt TEXT", "generate text with a checkpoint", pd_cmd_sample},
    {"eval", "RUN --data=FILE", "loss and perplexity of a checkpoint on a file", pd_cmd_eval},
    {"ckpt", "COMMAND ...", "checkpoints: ls, show, verify, diff, stats, reshard, import, export, upload, prune",
     pd_cmd_ckpt},
    {"data", "COMMAND ...", "token files: pack, inspect", pd_cmd_data},
    {"bench", "COMMAND ...", "speed: ckpt, objects, reshard, offload, step, exchange, attention, adam", pd_cmd_bench},
    {"doctor", "[DIR]", "what this machine has and what is missing", pd_cmd_doctor},
    {"worker", "CONFIG", NULL, pd_cmd_worker},
    {"relay", "RANK RANKS", NULL, pd_cmd_relay},
    {"reach", "ADDRESS...", NULL, pd_cmd_reach},
    {0},
};

static const char topics[] =
    "\nperdure --version    version\n"
    "Exit codes: 0 done, 64 usage, 65 no valid checkpoint, 70 internal error or loss not finite, 74 storage,\n"
    "75 preempted or a peer lost (run again), 78 configuration, 93 no progress in three restarts.\n";

/* This thread's stack can grow up to the current limit; other threads and programs start with it. */
static pd_status raise_stack(struct pd_error *err)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_STACK, &limit) || limit.rlim_cur >= STACK_BYTES) return PD_OK;
    const bool can_be = limit.rlim_max >= STACK_BYTES;
    limit.rlim_cur = STACK_BYTES;
    if (can_be && setrlimit(RLIMIT_STACK, &limit) == 0) {
        pthread_attr_t attributes;
        if (pthread_attr_init(&attributes)) return PD_OK;
        if (pthread_attr_setstacksize(&attributes, STACK_BYTES) == 0) (void)pthread_setattr_default_np(&attributes);
        pthread_attr_destroy(&attributes);
        return PD_OK;
    }
    PD_FAIL(err, PD_UNSUPPORTED, "the stack is limited to %llu KiB, and perdure needs %u: raise it with ulimit -s 8192",
            (unsigned long long)limit.rlim_max >> 10, STACK_BYTES >> 10);
}

static __attribute__((noinline)) void touch_stack(void)
{
    volatile char deepest[STACK_GROWN_BYTES];
    deepest[0] = 0;
    (void)deepest[0];
}

/* The kernel kills a process whose stack cannot grow. So let it grow now, where a lack of address space is an error. */
static pd_status grow_stack(struct pd_error *err)
{
    void *space = mmap(NULL, STACK_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (space == MAP_FAILED) PD_FAIL(err, PD_NO_MEMORY, "no memory for the stack");
    munmap(space, STACK_BYTES);
    touch_stack();
    return PD_OK;
}

/* True for --json, possibly abbreviated, with any command or none. */
static bool asks_json(int argc, char **argv)
{
    bool asks = false;
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        asks |= strlen(argv[i]) > 2 && strncmp(argv[i], "--json", strlen(argv[i])) == 0;
    return asks;
}

static pd_status print_version(bool is_json, struct pd_error *err)
{
    struct pd_json_writer w;
    if (!is_json) {
        printf("perdure %s (%s)\n", PERDURE_VERSION, PERDURE_SOURCE_ID);
        return PD_OK;
    }
    pd_json_writer_init_object(&w, 0);
    pd_json_string(&w, "version", PERDURE_VERSION);
    pd_json_string(&w, "source", PERDURE_SOURCE_ID);
    return pd_output_json(&w, err);
}

static pd_status main_run(int argc, char **argv, struct pd_error *err)
{
    PD_TRY(raise_stack(err));
    PD_TRY(grow_stack(err));
    PD_TRY(pd_log_configure_env(err));
    /* What makes reading and writing slow here matters to a run. Other commands do not repeat it: doctor says so. */
    const char *name = argc >= 2 ? argv[1] : "";
    if (!getenv("PERDURE_LOG") && strcmp(name, "train") != 0 && strcmp(name, "worker") != 0 && strcmp(name, "bench") != 0)
        PD_TRY(pd_log_configure("info,io=error", err));
    if (argc >= 2 && strcmp(argv[1], "--version") == 0) return print_version(asks_json(argc, argv), err);
    if (argc == 2 && (strcmp(argv[1], "version") == 0 || strcasecmp(argv[1], "-v") == 0))
        PD_FAIL(err, PD_USAGE, "perdure has no command %s; perdure --version says which this is", argv[1]);
    bool help = argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0);
    PD_TRY(pd_command_dispatch(pd_commands, "perdure", argc, argv, err));
    if (help) fputs(topics, stdout);
    return PD_OK;
}

/* Opens missing standard descriptors: otherwise files of ours would get their numbers. Writing to a closed stdout still
 * fails, as it should. */
static void fill_descriptors(void)
{
    static const int modes[] = {O_RDONLY, O_RDONLY, O_RDWR};
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", modes[fd]) != fd) _exit(70);
}

/* After `| head` exits, unread output is not a failure of the command. */
static bool reader_left(void)
{
    struct pollfd out = {.fd = STDOUT_FILENO};
    return poll(&out, 1, 0) == 1 && (out.revents & (POLLERR | POLLHUP));
}

/* Memory ran out at the address space limit: names it, since whoever set it can raise it. */
static pd_status name_limit(pd_status status, struct pd_error *err)
{
    struct rlimit space;
    if (status != PD_NO_MEMORY || !err->message[0] || getrlimit(RLIMIT_AS, &space) || space.rlim_cur == RLIM_INFINITY)
        return status;
    pd_error_append(err, "; the address space is limited to %llu MiB: raise it (ulimit -v)",
                    (unsigned long long)space.rlim_cur >> 20);
    return err->status = PD_UNSUPPORTED;
}

int main(int argc, char **argv)
{
    struct pd_error err = {0};
    const bool is_json = asks_json(argc, argv); /* before options are moved */
    const bool is_worker = argc >= 2 && strcmp(argv[1], "worker") == 0;
    if (argc >= 2 && strcmp(argv[1], "train") == 0)
        pd_launch_signals_hold(); /* first: signals wait until the launch handles them */
    fill_descriptors();
    pd_dev_prepare();
    signal(SIGPIPE, SIG_IGN);                 /* a closed pipe must not end a run */
    if (!is_worker) signal(SIGXFSZ, SIG_IGN); /* a limit of file sizes is an error of the write; ranks: pd_launched_ready */
    pd_vfs_register_remote("s3://", pd_vfs_new_objects);
    pd_status status = name_limit(main_run(argc, argv, &err), &err);
    pd_utf8_clean(err.message); /* it may quote a file */
    if (status && is_json && err.message[0]) pd_output_json_error(&err);
    bool lost = fflush(stdout) != 0 || ferror(stdout);
    if (status == PD_OK && lost && !reader_left())
        status = pd_error_set(&err, PD_IO, PD_WHERE, 0,
                              "stdout could not be written; look where it goes: a full disk, a closed file");
    if (status != PD_OK && err.message[0]) fprintf(stderr, "%sperdure: %s\n", pd_progress_clear(), err.message);
    return pd_status_exit_code(status);
}
