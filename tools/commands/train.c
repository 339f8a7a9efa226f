/* perdure train: the launcher of a run. perdure worker: the process it starts, one for each rank (or one for all). */
#include "tools/command.h"
#include "tools/library/place.h"

#include "ckpt/base/fault.h"
#include "ckpt/base/heartbeat.h"
#include "ckpt/base/log.h"
#include "ckpt/base/parse.h"
#include "ckpt/base/trace.h"
#include "ckpt/base/words.h"
#include "ckpt/store/paths.h"
#include "offload/device.h"
#include "tools/commands/ckpt.h"
#include "tools/output.h"
#include "trainer/comm/comm.h"
#include "trainer/data/token_file.h"
#include "trainer/launch/hold.h"
#include "trainer/launch/launcher.h"
#include "trainer/launch/layout.h"
#include "trainer/launch/own_waits.h"
#include "trainer/launch/reach.h"
#include "trainer/launch/run_lock.h"
#include "trainer/run/directories.h"
#include "trainer/run/events.h"
#include "trainer/run/worker.h"
#include "trainer/status/channel.h"

#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define OVERRIDES_MAX 128
#define BUSY_WAIT_MS 10000 /* an earlier launch may be about to exit */

struct train {
    bool json;
    const char *config_path;
    const char *overrides[OVERRIDES_MAX];
    uint32_t override_count;
    bool fresh, print_config, verify_data;
    const char *trace;
};

/* ---- newest committed step, for the launcher ---- */

/* The ranks, which may see more than this host, decide. */
static void find_recorded(const char *run_dir, char ret_found[PD_LAUNCH_FOUND_BYTES])
{
    struct pd_recorded recorded;
    pd_recorded_read(run_dir, &recorded);
    if (recorded.step)
        snprintf(ret_found, PD_LAUNCH_FOUND_BYTES, "step %llu was saved in %s, and this host now sees no checkpoint there",
                 (unsigned long long)recorded.step, recorded.dir);
}

static bool newest_step(void *context, uint64_t *ret_step, char ret_found[PD_LAUNCH_FOUND_BYTES])
{
    const struct pd_launch_chooser *chooser = context;
    struct pd_run_tiers tiers;
    pd_run_tiers_of_config(chooser->config, &tiers);
    const struct pd_run_tier *newest = pd_run_tiers_look_quietly(&tiers);
    if (newest)
        *ret_step = newest->step;
    else
        pd_run_tiers_found(&tiers, chooser->config->run.dir, ret_found, PD_LAUNCH_FOUND_BYTES);
    if (!newest && !ret_found[0]) find_recorded(chooser->config->run.dir, ret_found);
    return newest;
}

static pd_status train_choose(void *context, uint32_t ranks, bool is_restart, struct pd_launch_layout *ret_layout,
                              struct pd_error *err)
{
    return pd_launch_choose(context, ranks, is_restart, ret_layout, err);
}

/* ---- train ---- */

/* A save killed after its record but before its final name is still a checkpoint: the start would resume from it. */
static pd_status check_unnamed(const struct pd_run_tiers *tiers, struct pd_error *err)
{
    for (uint32_t i = 0; i < tiers->count; i++)
        if (tiers->tiers[i].unnamed[0])
            PD_FAIL(err, PD_INVALID,
                    "--fresh: %.600s/%s is a complete checkpoint whose save was killed before it was renamed, and a start "
                    "continues from it; choose another run.dir, move it away, or leave --fresh out to continue",
                    tiers->tiers[i].dir, tiers->tiers[i].unnamed);
    return PD_OK;
}

static pd_status check_fresh(const struct pd_config *config, struct pd_error *err)
{
    struct pd_run_tiers tiers;
    pd_run_tiers_of_config(config, &tiers);
    PD_TRY(pd_run_tiers_look(&tiers, err));
    const struct pd_run_tier *newest = pd_run_tiers_newest(&tiers);
    if (!newest) return check_unnamed(&tiers, err);
    PD_FAIL(err, PD_INVALID,
            "--fresh: %s holds %s, the newest of step %llu; choose another run.dir, move them away, or leave --fresh out to "
            "continue",
            newest->dir, pd_counted(newest->count, "checkpoint").text, (unsigned long long)newest->step);
}

static bool holds_checkpoints_itself(const char *dir)
{
    bool any = false;
    DIR *listing = opendir(dir);
    if (!listing) return false;
    for (const struct dirent *entry; !any && (entry = readdir(listing));) {
        struct pd_step_name name;
        any = pd_step_name_parse(entry->d_name, &name) && !name.is_tmp;
    }
    closedir(listing);
    return any;
}

static bool is_named_for_checkpoints(const struct pd_config *config, const char *dir)
{
    struct pd_run_tiers tiers;
    bool any = false;
    pd_run_tiers_of_config(config, &tiers);
    for (uint32_t i = 0; i < tiers.count; i++)
        any |= pd_directories_are_same(tiers.tiers[i].dir, dir);
    return any;
}

/* A run looks for checkpoints below run.dir. If some lie directly in it, as after a reshard, it would start over. */
static pd_status check_run_dir(const struct pd_config *config, struct pd_error *err)
{
    struct pd_run_tiers tiers;
    const char *dir = config->run.dir;
    if (!holds_checkpoints_itself(dir) || is_named_for_checkpoints(config, dir)) return PD_OK;
    pd_run_tiers_of_config(config, &tiers);
    if (pd_run_tiers_look_quietly(&tiers)) return PD_OK;
    PD_FAIL(err, PD_INVALID,
            "run.dir, %.400s, holds checkpoints itself, as a directory that ckpt reshard wrote; to continue from them name "
            "it %s=%.400s, and another run.dir=DIR",
            dir, config->checkpoint.tiers_count ? "checkpoint.tiers[0].dir" : "checkpoint.dir", dir);
}

/* Accepts a file, or one that can be created, in a directory that exists or will. */
static pd_status check_trace(const struct pd_config *config, const char *file, struct pd_error *err)
{
    char folder[4096];
    struct stat found;
    const char *slash = strrchr(file, '/');
    if (!*file) PD_FAIL(err, PD_USAGE, "--trace: an empty name; give a file, as in --trace trace.json");
    if ((slash && !slash[1]) || (!stat(file, &found) && S_ISDIR(found.st_mode)))
        PD_FAIL(err, PD_USAGE, "--trace %s: this is a directory; name a file in it, such as %s%strace.json", file, file,
                slash && !slash[1] ? "" : "/");
    if (!slash || slash == file) return PD_OK;
    snprintf(folder, sizeof folder, "%.*s", (int)(slash - file), file);
    if ((stat(folder, &found) || !S_ISDIR(found.st_mode)) && strcmp(folder, config->run.dir) != 0)
        PD_FAIL(err, PD_USAGE, "--trace %s: there is no directory %s: mkdir -p %s", file, folder, folder);
    return PD_OK;
}

/* Checks before ranks are started or restarted. Ranks on other hosts, which only the starter of layout.transport=mpi
 * knows, check themselves.
 */
static pd_status check_device(const struct pd_config *config, struct pd_error *err)
{
    struct pd_dev *dev;
    if (config->run.device != PD_DEVICE_GPU || config->layout.transport == PD_TRANSPORT_MPI || pd_dev_cuda_count())
        return PD_OK;
    const pd_status st = pd_dev_open_cuda(0, &dev, err);
    if (st)
        return pd_error_context(err, st,
                                "run.device is gpu, and this host has none: run.device=cpu needs none, layout.transport=mpi "
                                "uses other hosts' GPUs");
    pd_dev_close(dev);
    return PD_OK;
}

/* For workers, which may have another current directory. */
static pd_status hand_on_trace(const struct pd_config *config, const char *file, struct pd_error *err)
{
    char path[8192], here[4096] = "";
    if (file) PD_TRY(check_trace(config, file, err));
    if (!file) file = "";
    if (*file && *file != '/' && !getcwd(here, sizeof here))
        PD_FAIL_ERRNO(err, errno, "--trace %s: the current directory", file);
    snprintf(path, sizeof path, "%s%s%s", here, *here ? "/" : "", file);
    setenv(PD_LAUNCH_ENV_TRACE, path, 1);
    return PD_OK;
}

/* Passes on the path, for hosts that may have a copy. */
static void hand_on_config(const char *file)
{
    char *whole = realpath(file, NULL);
    setenv(PD_LAUNCH_ENV_CONFIG, whole ? whole : "", 1);
    free(whole);
}

/* The launcher's configuration comes over the network. A command in it runs here only if this host's own copy has it. */
static pd_status drop_unnamed_commands(struct pd_config *config, struct pd_error *err)
{
    struct pd_config own;
    struct pd_error ignored;
    const char *path = getenv(PD_LAUNCH_ENV_CONFIG);
    if (!config->preempt.notice[0]) return PD_OK;
    static const char *const given[] = {"run.dir=/", "data.train=/"}; /* the launcher's command line may set them */
    const bool is_read = path && *path && !pd_config_load(path, given, 2, &own, &ignored);
    const bool is_named = is_read && strcmp(own.preempt.notice, config->preempt.notice) == 0;
    if (is_read) pd_config_deinit(&own);
    if (is_named) return PD_OK;
    pd_log_warn("preempt",
                "preempt.notice is not run on this host, since the host has no copy of %s that names the same command: copy "
                "it there",
                path && *path ? path : "the configuration");
    free(config->preempt.notice);
    config->preempt.notice = strdup("");
    if (!config->preempt.notice) PD_FAIL(err, PD_NO_MEMORY, "a configuration");
    return PD_OK;
}

/* A run's metrics and config.yaml belong to one line of checkpoints: refuses a start that would begin another one beside it.
 * A directory that is absent now (a disk that is not mounted) or holds no checkpoint does not count. */
static pd_status check_same_checkpoints(const struct pd_config *config, struct pd_error *err)
{
    struct pd_run_tiers before, now;
    pd_run_tiers_of_run(config->run.dir, &before);
    if (!before.count) /* none elsewhere: look in the usual place */
        snprintf(before.tiers[before.count++].dir, sizeof before.tiers[0].dir, "%.4000s/checkpoints", config->run.dir);
    pd_run_tiers_of_config(config, &now);
    for (uint32_t i = 0; i < now.count; i++)
        for (uint32_t k = 0; k < before.count; k++)
            if (pd_directories_are_same(now.tiers[i].dir, before.tiers[k].dir)) return PD_OK;
    const struct pd_run_tier *old = pd_run_tiers_look_quietly(&before);
    if (!old || pd_run_tiers_look_quietly(&now)) return PD_OK;
    PD_FAIL(err, PD_INVALID,
            "the run in %.400s has its checkpoints in %.400s, the newest of step %llu, and this configuration names %.400s, "
            "which has none: name the directory that has them, move them there, or choose another run.dir",
            config->run.dir, old->dir, (unsigned long long)old->step, now.tiers[0].dir);
}

static bool ask_leave(void *context)
{
    (void)context;
    return pd_launch_signals_say_leave();
}

/* A new run with init.from begins with an import; if killed during it, it has no checkpoint and imports again. */
static pd_status import_first(const struct pd_config *config, struct pd_error *err)
{
    struct pd_run_tiers tiers;
    if (!config->init.from[0]) return PD_OK;
    pd_run_tiers_of_config(config, &tiers);
    if (pd_run_tiers_look_quietly(&tiers)) return PD_OK;
    PD_TRY(pd_recorded_check_lost(config, err));
    pd_log_info("init", "importing %s", config->init.from);
    const pd_status st = pd_ckpt_import_for_run(config, tiers.tiers[0].dir, (pd_should_stop){.ask = ask_leave}, err);
    return st ? pd_error_context(err, st, "init.from") : PD_OK;
}

static pd_status launch_locked(const struct pd_config *config, struct pd_launch_chooser *chooser, struct pd_error *err)
{
    char path[4096], self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length < 0) PD_FAIL_ERRNO(err, errno, "/proc/self/exe: where this program lies");
    self[length] = '\0';
    PD_TRY(check_same_checkpoints(config, err));
    PD_TRY(import_first(config, err));
    /* Workers of this launch read a file of their own, so that a refused launch does not change the running one's. Files
     * of killed launches of this host are removed. */
    char host[256] = "host", pattern[4096];
    glob_t stale;
    gethostname(host, sizeof host - 1);
    snprintf(pattern, sizeof pattern, "%s/.config-%s-*.yaml", config->run.dir, host);
    const enum pd_heartbeat_place before = pd_heartbeat_storage_begin();
    if (glob(pattern, 0, NULL, &stale) == 0) {
        for (size_t i = 0; i < stale.gl_pathc; i++) {
            const char *number = strrchr(stale.gl_pathv[i], '-') + 1;
            if (kill((pid_t)strtol(number, NULL, 10), 0) && errno == ESRCH) unlink(stale.gl_pathv[i]);
        }
        globfree(&stale);
    }
    snprintf(path, 4096, "%s/.config-%s-%d.yaml", config->run.dir, host, (int)getpid());
    pd_status st = pd_config_write(config, path, err);
    pd_heartbeat_storage_end(before);
    if (st) return pd_error_context(err, st, "run.dir cannot be written; make it so, or name another with run.dir=DIR");
    if (isatty(STDERR_FILENO)) setenv("PERDURE_PROGRESS", "bar", 0);
    const char *worker[] = {self, "worker", path, NULL};
    struct pd_launch l = {
        .worker = worker, .config_path = path, .newest_step = newest_step, .context = chooser, .choose = train_choose};
    pd_launch_configure(&l, config);
    st = pd_launch_run(&l, err);
    PD_ON_STORAGE(unlink(path));
    return st;
}

/* Makes the first rank of each host read every byte again. */
static void forget_scans(const struct pd_config *config)
{
    char pattern[4300];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/" PD_SCAN_CACHE_PREFIX "*", config->run.dir);
    if (glob(pattern, GLOB_NOSORT, NULL, &found)) return;
    for (size_t i = 0; i < found.gl_pathc; i++)
        unlink(found.gl_pathv[i]);
    globfree(&found);
}

static pd_status launch(const struct pd_config *config, const struct train *t, struct pd_launch_chooser *chooser,
                        struct pd_error *err)
{
    int lock = -1;
    pd_status st;
    PD_ON_STORAGE(st = pd_directories_make("run.dir", config->run.dir, err));
    PD_TRY(st);
    PD_TRY(pd_launch_lock(config->run.dir, BUSY_WAIT_MS, &lock, err));
    setenv(PD_LAUNCH_ENV_VERIFY, t->verify_data ? "1" : "", 1); /* for hosts with a run.dir of their own */
    if (t->verify_data) forget_scans(config);
    if (t->fresh) {
        struct pd_json_writer w;
        pd_event_begin(&w, "fresh");
        pd_event_end(&w, config->run.dir);
    }
    st = launch_locked(config, chooser, err);
    pd_launch_unlock(lock);
    return st;
}

/* Prints the run's result, for programs; people read the progress on stderr. */
static pd_status print_result(const struct pd_config *config, pd_status status, const char *message, struct pd_error *err)
{
    struct pd_run_tiers tiers;
    struct pd_json_writer w;
    pd_run_tiers_of_config(config, &tiers);
    const struct pd_run_tier *newest = pd_run_tiers_look_quietly(&tiers);
    pd_json_writer_init_object(&w, 0);
    PD_JSON_STRINGS(&w, {"run_dir", config->run.dir}, {"checkpoints", newest ? newest->dir : tiers.tiers[0].dir});
    PD_JSON_U64S(&w, {"checkpoint_count", newest ? newest->count : 0}, {"newest_step", newest ? newest->step : 0},
                 {"steps", config->run.steps});
    /* As in metrics; null: unknown. */
    static const char *const keys[] = {"loss", "validation_loss"};
    char line[16384];
    struct pd_json_document *document = NULL;
    pd_recorded_last_line(config->run.dir, line, sizeof line);
    const bool is_read = !pd_json_parse("metrics.jsonl", line, strlen(line), &document, NULL);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        double value = NAN;
        if (is_read) (void)pd_json_is_number(pd_json_member(pd_json_root(document), keys[i]), &value);
        pd_json_measured(&w, keys[i], value);
    }
    pd_json_document_free(document);
    pd_output_ending(&w, status, message);
    return pd_output_json(&w, err);
}

/* Reports what is wrong with the files before ranks are started. */
static pd_status find_data(struct pd_config *config, struct pd_error *err)
{
    char *notes, *rest = NULL;
    PD_TRY(pd_config_find_data(config, &notes, err));
    for (const char *line = strtok_r(notes, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        pd_log_info("data", "%s", line);
    free(notes);
    const struct pd_data_options data = pd_config_data(config);
    return pd_data_check(&data, err);
}

/* Without a configuration: prints every key, its default and meaning, with placeholders for the two without defaults. */
static pd_status print_keys(struct train *t, struct pd_error *err)
{
    const char *overrides[OVERRIDES_MAX + 2] = {"run.dir=runs/mine", "data.train=text.txt"};
    struct pd_config config;
    memcpy(overrides + 2, t->overrides, t->override_count * sizeof *overrides);
    PD_TRY(pd_config_load(NULL, overrides, t->override_count + 2, &config, err));
    pd_status st = pd_ckpt_take_model(&config, err);
    if (!st) st = pd_output_config(&config, t->json, err);
    pd_config_deinit(&config);
    return st;
}

pd_status pd_cmd_train(int argc, char **argv, struct pd_error *err)
{
    struct train t = {0};
    struct pd_config config;
    struct pd_option options[] = {
        PD_OPTION("fresh", NULL, "start a new run; fail if run.dir holds checkpoints", PD_OPTION_FLAG, &t.fresh),
        PD_OPTION("print-config", NULL, "show the resolved configuration and start nothing", PD_OPTION_FLAG,
                  &t.print_config),
        PD_OPTION("verify-data", NULL, "read and check every byte of the data, even of unchanged files", PD_OPTION_FLAG,
                  &t.verify_data),
        PD_OPTION("trace", "FILE", "write a trace for ui.perfetto.dev; each process and restart writes its own file",
                  PD_OPTION_TEXT, &t.trace),
        {0}};
    const struct pd_usage usage = {
        .arguments = "CONFIG [section.key=value...]",
        .doc =
            "Trains, or resumes from the newest checkpoint in run.dir: the same command does both. If a rank dies, the run "
            "restarts, with all ranks or with those that are left. If a key is given twice, the last one counts.\vSignals: "
            "TERM and USR1 save and leave (exit code 75), USR2 saves and continues, a second INT aborts.",
        .options = options,
        .json = &t.json,
        PD_WORDS(t.overrides, OVERRIDES_MAX, &t.override_count),
        .takes_keys = true};
    PD_COMMAND_PARSE(&usage, argc, argv, err);
    t.config_path = pd_command_take_config(t.overrides, &t.override_count);
    if (!t.config_path && t.print_config) return print_keys(&t, err);
    if (!t.config_path)
        PD_FAIL(err, PD_USAGE, "train needs a configuration: perdure train run.yaml; perdure init writes one");
    if (!t.print_config) pd_launch_own_waits_report();
    PD_TRY(pd_config_load(t.config_path, t.overrides, t.override_count, &config, err));
    pd_status st = pd_ckpt_take_model(&config, err);
    if (!st && t.print_config) {
        st = pd_output_config(&config, t.json, err);
    } else if (!st) {
        st = find_data(&config, err);
        if (!st) st = pd_directories_check(&config, err);
        if (!st) st = check_device(&config, err);
        if (!st) st = check_run_dir(&config, err);
        if (!st && t.fresh) st = check_fresh(&config, err);
        if (!st) st = hand_on_trace(&config, t.trace, err);
        hand_on_config(t.config_path);
        struct pd_launch_chooser chooser = {0};
        if (!st) st = pd_launch_chooser_init(&config, &chooser, err);
        if (!st) st = launch(&config, &t, &chooser, err);
        pd_launch_chooser_deinit(&chooser);
        if (t.json) {
            struct pd_error own;
            const pd_status printed = print_result(&config, st, err->message, &own);
            if (!st && printed) *err = own;
            if (!st) st = printed;
        }
    }
    pd_config_deinit(&config);
    return st;
}

/* ---- worker ---- */

/* For trace.json, rank 2, after one restart: trace.restart1.rank2.json. */
static pd_status open_trace(const struct pd_launched *launched, struct pd_error *err)
{
    const char *path = getenv(PD_LAUNCH_ENV_TRACE);
    char name[8192], rank[32] = "", restart[32] = "";
    if (!path || !*path) return PD_OK;
    const char *slash = strrchr(path, '/'), *dot = strrchr(path, '.');
    if (!dot || (slash && dot < slash)) dot = path + strlen(path);
    if (launched->restart) snprintf(restart, sizeof restart, ".restart%u", launched->restart);
    if (launched->rank) snprintf(rank, sizeof rank, ".rank%u", launched->rank);
    snprintf(name, sizeof name, "%.*s%s%s%s", (int)(dot - path), path, restart, rank, dot);
    return pd_trace_open(name, err);
}

/* The training result stands even if the trace fails. */
static void close_trace(void)
{
    struct pd_error error;
    if (pd_trace_close(&error)) pd_log(PD_LOG_WARN, "trace", "%s", error.message);
}

static pd_status train_work(const struct pd_launched *launched, const char *config_path, struct pd_error *err)
{
    struct pd_config config;
    const char *text = pd_channel_config(); /* a host other than the launcher's needs no file */
    pd_status st = text ? pd_config_parse(config_path, text, NULL, 0, &config, err)
                        : pd_config_load(config_path, NULL, 0, &config, err);
    if (st) return st;
    const char *verify = getenv(PD_LAUNCH_ENV_VERIFY);
    if (verify && *verify && !launched->restart && pd_channel_is_relay()) /* also before this rank joins the scan */
        forget_scans(&config);
    if (text) st = drop_unnamed_commands(&config, err);
    if (st) {
        pd_config_deinit(&config);
        return st;
    }
    if (launched->layout[0]) st = pd_launch_layout_apply(&config, launched->layout, launched->ranks, err);
    if (!st) st = pd_worker_main(&config, launched, err);
    pd_config_deinit(&config);
    return st;
}

/* Prints a line for each host that does not answer. */
pd_status pd_cmd_reach(int argc, char **argv, struct pd_error *err)
{
    const uint32_t count = (uint32_t)argc - 1;
    bool *answers = calloc(count + 1, sizeof *answers);
    if (!answers) PD_FAIL(err, PD_NO_MEMORY, "addresses to be asked");
    pd_launch_reach_ask((const char *const *)argv + 1, count, answers);
    for (uint32_t i = 0; i < count; i++)
        if (!answers[i]) printf(PD_LAUNCH_UNREACHED "%s\n", argv[1 + i]);
    free(answers);
    return PD_OK;
}

pd_status pd_cmd_relay(int argc, char **argv, struct pd_error *err)
{
    uint64_t rank, ranks;
    if (argc != 3 || !pd_parse_u64(argv[1], &rank) || !pd_parse_u64(argv[2], &ranks) || ranks > UINT32_MAX || rank >= ranks)
        PD_FAIL(err, PD_USAGE, "relay is started by perdure train");
    return pd_relay_run((uint32_t)rank, (uint32_t)ranks, err);
}

pd_status pd_cmd_worker(int argc, char **argv, struct pd_error *err)
{
    struct pd_launched launched;
    if (argc != 2) PD_FAIL(err, PD_USAGE, "worker is started by perdure train");
    PD_TRY(pd_fault_configure_env(err));
    PD_TRY(pd_launched_begin(&launched, err));
    pd_fault_point("worker.begun");
    pd_status st = open_trace(&launched, err);
    if (!st) st = train_work(&launched, argv[1], err);
    close_trace();
    bool is_told = pd_launched_end(&launched, st, st ? err->message : "");
    if (is_told) pd_error_clear(err); /* the launcher reports it once for all ranks */
    return is_told && pd_comm_mpi_is_over() ? PD_OK : st;
}
