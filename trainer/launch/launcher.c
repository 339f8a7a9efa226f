#include "trainer/launch/launcher.h"

#include "ckpt/base/heartbeat.h"
#include "ckpt/base/log.h"
#include "ckpt/base/words.h"
#include "offload/device.h"
#include "trainer/launch/hold.h"
#include "trainer/launch/job.h"
#include "trainer/launch/outer.h"
#include "trainer/launch/private_dir.h"
#include "trainer/run/events.h"
#include "trainer/run/launched.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define MODULE "launch"
#define PAUSE_MS 200 /* before the second restart without progress; doubled for each further one */
#define PAUSE_MS_MAX 5000

struct launch_state {
    const struct pd_launch *launch;
    struct pd_launch_requests requests;
    struct pd_start start;
    struct pd_launch_layout layout; /* of this start */
    struct pd_launch_placement placement;
    struct pd_private_dir dir;
    struct pd_rank_table said; /* by the ranks of the last start */
    bool has_step, has_progress;
    uint64_t step;                     /* newest committed at the last start, if this host sees it */
    uint64_t progress;                 /* newest ever known to be committed */
    char found[PD_LAUNCH_FOUND_BYTES]; /* if none: what is there instead */
    uint32_t restarts, idle_restarts;  /* all; since the last progress */
    bool has_diverged;                 /* the last end was not finite, with this progress and these words */
    uint64_t diverged_behind;
    char diverged_words[320];
    bool has_suspect; /* of that end */
    struct pd_suspect suspect;
    char suspect_host[PD_LAUNCH_HOST_BYTES]; /* of launch.hosts; "": of none */
    bool is_charged;                         /* the last end, to hosts and not to the run */
    uint32_t died;                           /* ranks that died at the last end, without progress since */
    uint32_t died_ranks[PD_LAUNCH_LOST_NAMED];
    char last_words[sizeof((struct pd_error *)0)->message];
};

void pd_launch_configure(struct pd_launch *launch, const struct pd_config *config)
{
    launch->dir = config->run.dir;
    launch->ranks = config->layout.ranks;
    launch->transport = config->layout.transport;
    launch->gpus = config->run.device == PD_DEVICE_CPU ? 0 : pd_dev_cuda_count();
    launch->restart_ranks = config->restart.ranks;
    launch->restart_ranks_count = config->restart.ranks_count;
    launch->restart_limit = config->restart.limit;
    launch->begin_seconds = config->restart.begin_seconds;
    launch->join_seconds = config->restart.join_seconds;
    launch->open_seconds = config->restart.open_seconds;
    launch->hang_seconds = config->restart.hang_seconds;
    launch->places = (struct pd_launch_places){.hosts = config->launch.hosts,
                                               .port = config->launch.port,
                                               .agent = config->launch.agent,
                                               .slots = config->layout.ranks_per_host,
                                               .grows_now = config->launch.grow == PD_GROW_NOW,
                                               .wait_seconds = config->launch.wait_seconds,
                                               .min = config->elastic.min,
                                               .max = config->elastic.max};
}

/* ---- how many ranks ---- */

static pd_status choose_layout(struct launch_state *state, uint32_t ranks, bool is_restart, struct pd_error *err)
{
    const struct pd_launch *launch = state->launch;
    struct pd_launch_layout layout = {.ranks = ranks};
    if (launch->choose) PD_TRY(launch->choose(launch->context, ranks, is_restart, &layout, err));
    if (layout.ranks && layout.ranks < launch->places.min)
        PD_FAIL(
            err, PD_PEER_LOST,
            "%s can start, and elastic.min is %u: bring back the missing ones, or lower it, then run the same command again",
            pd_counted(layout.ranks, "rank").text, launch->places.min);
    state->layout = layout;
    state->start.ranks = layout.ranks;
    return PD_OK;
}

/* If there are slots for them; 0: all there are. */
static uint32_t wanted_ranks(const struct pd_launch *launch)
{
    return launch->places.max ? launch->places.max : launch->ranks;
}

static pd_status take_hosts(struct launch_state *state, struct pd_error *err)
{
    PD_TRY(pd_launch_placement_take(&state->placement, state->start.ranks, err));
    state->start.hosts = state->placement.hosts;
    state->start.away = state->placement.away;
    state->start.addresses = state->placement.reach.own;
    return PD_OK;
}

/* A configuration's degrees fit the requested number of ranks; fewer hosts reduce them as at a restart. */
static pd_status choose_first(struct launch_state *state, struct pd_error *err)
{
    const struct pd_launch *launch = state->launch;
    uint32_t ranks = launch->ranks;
    if (!pd_launch_placement_has_list(&state->placement)) return choose_layout(state, ranks, false, err);
    PD_TRY(pd_launch_placement_look(&state->placement, &state->requests, err));
    PD_TRY(pd_launch_placement_ranks(&state->placement, wanted_ranks(launch), &state->requests, &ranks, err));
    PD_TRY(choose_layout(state, launch->ranks ? launch->ranks : ranks, false, err));
    if (ranks != state->start.ranks) PD_TRY(choose_layout(state, ranks, true, err));
    return take_hosts(state, err);
}

static uint32_t named(uint32_t lost)
{
    return lost < PD_LAUNCH_LOST_NAMED ? lost : PD_LAUNCH_LOST_NAMED;
}

static bool dies_again(const struct launch_state *state, const struct pd_launch_verdict *verdict)
{
    bool any = false;
    for (uint32_t i = 0; i < named(verdict->lost); i++)
        for (uint32_t k = 0; k < named(state->died); k++)
            any |= verdict->lost_ranks[i] == state->died_ranks[k];
    return any;
}

/* With launch.hosts as many as there are slots, minus ranks that die without another place. */
static pd_status ranks_of_hosts(struct launch_state *state, uint32_t left, bool is_charged, uint32_t *ret_ranks,
                                struct pd_error *err)
{
    uint32_t ranks;
    PD_TRY(pd_launch_placement_ranks(&state->placement, wanted_ranks(state->launch), &state->requests, &ranks, err));
    *ret_ranks = !is_charged && left < state->start.ranks && left < ranks ? left : ranks;
    return PD_OK;
}

/* Restarts all ranks. Uses fewer only if a named rank was lost again without progress since, or if a start after such a loss
 * did not begin: as far as the starter knows, its host is gone. */
static uint32_t next_ranks(struct launch_state *state, const struct pd_launch_verdict *verdict)
{
    const struct pd_launch *launch = state->launch;
    const uint32_t ranks = state->start.ranks;
    const bool has_list = pd_launch_placement_has_list(&state->placement);
    uint32_t lost = dies_again(state, verdict) ? verdict->lost : 0;
    if (!lost && !verdict->has_begun && !verdict->was_cut_off && !has_list) lost = state->died;
    if (verdict->lost) {
        state->died = verdict->lost;
        memcpy(state->died_ranks, verdict->lost_ranks, sizeof state->died_ranks);
    }
    if (state->restarts < launch->restart_ranks_count) return launch->restart_ranks[state->restarts];
    return lost < ranks ? ranks - lost : 1;
}

/* ---- after an end ---- */

static void take_progress(struct launch_state *state, uint64_t step)
{
    if (state->has_progress && step <= state->progress) return;
    state->idle_restarts = 0;
    state->last_words[0] = '\0';
    state->died = 0;
    pd_launch_account_progress(&state->placement.account);
    state->progress = step;
    state->has_progress = true;
}

/* Checkpoints in tiers that this host sees, and those the ranks reported. */
static void step_look(struct launch_state *state)
{
    const struct pd_launch *launch = state->launch;
    state->found[0] = '\0';
    state->has_step = launch->newest_step && launch->newest_step(launch->context, &state->step, state->found);
    if (state->has_step) take_progress(state, state->step);
    if (state->said.has_saved) take_progress(state, state->said.saved);
}

static void step_text(const struct launch_state *state, char *ret_text, size_t bytes)
{
    if (state->has_step)
        snprintf(ret_text, bytes, "step %llu", (unsigned long long)state->step);
    else
        snprintf(ret_text, bytes, "%s", state->found[0] ? "the newest step that its ranks find whole" : "the beginning");
}

static pd_status fail_stuck(const struct launch_state *state, const struct pd_launch_verdict *verdict, struct pd_error *err)
{
    char from[48];
    step_text(state, from, sizeof from);
    PD_FAIL(err, PD_STUCK,
            "no progress beyond %s in %s; the last: %.600s. Remove the cause, then run the same command again", from,
            pd_counted(state->launch->restart_limit, "restart").text, verdict->message);
}

/* The message without the rank: "rank 3: ..." */
static const char *behind_rank(const char *words)
{
    const size_t digits = strncmp(words, "rank ", 5) ? 0 : strspn(words + 5, "0123456789");
    return digits && strncmp(words + 5 + digits, ": ", 2) == 0 ? words + 5 + digits + 2 : words;
}

/* If the first ranks cannot begin, no others will: a limit, a wrong argument, an unreachable host. */
static pd_status fail_before_begin(const struct launch_state *state, const struct pd_launch_verdict *verdict,
                                   struct pd_error *err)
{
    const char *local =
        state->start.transport == PD_TRANSPORT_MPI ? "; on one host layout.transport=local needs no mpirun" : "";
    PD_FAIL(err, PD_UNSUPPORTED,
            "%.600s; no rank has joined, so nothing is tried again. What it printed is above; see the limits of this shell "
            "with ulimit -a%s",
            verdict->message, local);
}

/* mpirun runs quietly, because its output on a rank's death is known already. Here only it knows the cause. */
static pd_status explain_before_begin(struct launch_state *state, const struct pd_launch_verdict *verdict, bool *ret_is_over)
{
    pd_log_warn(MODULE, "%s: once more, to see what it prints", verdict->message);
    state->start.is_verbose = true;
    *ret_is_over = false;
    return PD_OK;
}

/* A listed host loses a place if a device is lost again. */
static bool is_the_same_again(const struct launch_state *state, const struct pd_launch_verdict *verdict)
{
    if (verdict->status == PD_DEVICE_LOST && pd_launch_placement_has_list(&state->placement)) return false;
    return verdict->status != PD_PEER_LOST && strcmp(behind_rank(state->last_words), behind_rank(verdict->message)) == 0;
}

static pd_status set_next(struct launch_state *state, const struct pd_launch_verdict *verdict, bool is_charged,
                          struct pd_error *err)
{
    const uint32_t without = pd_launch_placement_lose_devices(&state->placement, &state->said);
    uint32_t ranks = next_ranks(state, verdict);
    if (state->restarts >= state->launch->restart_ranks_count) ranks = without < ranks ? ranks - without : 1;
    state->start.left_out = state->placement.left_out;
    if (pd_launch_placement_has_list(&state->placement)) PD_TRY(ranks_of_hosts(state, ranks, is_charged, &ranks, err));
    PD_TRY(choose_layout(state, ranks, true, err));
    PD_TRY(take_hosts(state, err));
    state->start.restart = ++state->restarts;
    state->idle_restarts += !is_charged;
    state->is_charged = is_charged;
    return PD_OK;
}

/* Resuming from an older step would discard one held by hosts that may return. */
static pd_status await_hosts(struct launch_state *state, const struct pd_launch_verdict *verdict, bool *ret_is_over,
                             struct pd_error *err)
{
    PD_TRY(pd_launch_placement_await(&state->placement, behind_rank(verdict->message), &state->requests, err));
    step_look(state);
    *ret_is_over = false;
    return set_next(state, verdict, true, err);
}

/* Sets up the next start, or returns the end of the launch. */
static pd_status launcher_judge(struct launch_state *state, struct pd_launch_verdict *verdict, bool *ret_is_over,
                                struct pd_error *err)
{
    *ret_is_over = true;
    if (verdict->status == PD_OK) return PD_OK;
    if (state->requests.wants_abort) PD_FAIL(err, PD_STOPPED, "interrupted twice: left without saving");
    const bool is_regrouped = verdict->status == PD_STOPPED && !state->requests.wants_leave &&
                              (state->requests.wants_regroup || pd_launch_placement_taken(&state->placement, &state->said));
    state->requests.wants_regroup = false;
    if (verdict->next == PD_LAUNCH_AWAIT) return await_hosts(state, verdict, ret_is_over, err);
    const bool is_charged = (verdict->next != PD_LAUNCH_END || !verdict->has_begun) &&
                            pd_launch_placement_charge(&state->placement, &state->said, &state->requests, verdict);
    if (verdict->next == PD_LAUNCH_END && !is_regrouped && !is_charged)
        PD_FAIL(err, verdict->status, "%s", verdict->message);
    if (state->requests.wants_leave)
        PD_FAIL(err, PD_PEER_LOST, "left, and the last save is missing: %.800s", verdict->message);
    if (!verdict->has_begun && !verdict->was_cut_off && !is_charged && state->restarts == 0)
        return state->start.is_verbose || state->said.begun || verdict->is_overdue ||
                       state->start.transport == PD_TRANSPORT_LOCAL
                   ? fail_before_begin(state, verdict, err)
                   : explain_before_begin(state, verdict, ret_is_over);
    step_look(state);
    /* A start after the loss of a host is excused once if it does not begin. */
    const bool is_aftermath = !verdict->has_begun && state->is_charged;
    *ret_is_over = !(is_regrouped || is_charged || is_aftermath);
    if (!*ret_is_over) {
        PD_TRY(set_next(state, verdict, true, err));
        state->is_charged &= !is_aftermath;
        return PD_OK;
    }
    if (is_the_same_again(state, verdict))
        PD_FAIL(err, verdict->status, "%s: %.850s",
                verdict->status == PD_DIVERGED ? "the loss diverged again, with the same bits, so no machine is to blame"
                                               : "twice the same",
                verdict->message);
    if (state->idle_restarts >= state->launch->restart_limit) return fail_stuck(state, verdict, err);
    snprintf(state->last_words, sizeof state->last_words, "%s", verdict->message);
    PD_TRY(set_next(state, verdict, false, err));
    *ret_is_over = false;
    return PD_OK;
}

/* ---- the life of a launch ---- */

static void log_start(const struct launch_state *state)
{
    char from[48], which[32] = "starting";
    step_text(state, from, sizeof from);
    if (state->restarts) snprintf(which, sizeof which, "restart %u:", state->restarts);
    if (!state->has_step && state->found[0]) pd_log(PD_LOG_WARN, MODULE, "%s", state->found);
    pd_log(PD_LOG_INFO, MODULE, "%s %u rank%s (%s%s%s%s%.400s) from %s", which, state->start.ranks,
           state->start.ranks == 1 ? "" : "s", state->layout.summary, state->layout.summary[0] ? "; " : "",
           state->start.transport == PD_TRANSPORT_LOCAL ? "threads of one process" : "processes",
           state->start.hosts ? " on " : "", state->start.hosts ? state->start.hosts : "", from);
    if (!state->restarts && pd_launch_placement_has_list(&state->placement) && !state->launch->places.max &&
        state->start.ranks < state->launch->ranks)
        pd_log_warn(MODULE, "layout.ranks asks for %u; a line NAME:N in launch.hosts gives a host N ranks",
                    state->launch->ranks);
}

static void log_end(const struct launch_state *state, const struct pd_launch_verdict *verdict)
{
    char hung[32];
    snprintf(hung, sizeof hung, "rank %u is ended", verdict->lost_ranks[0]);
    const char *message = verdict->is_logged ? hung : verdict->message;
    if (verdict->next == PD_LAUNCH_AWAIT) return; /* logged before the wait */
    if (verdict->status == PD_STOPPED)
        pd_log_info(MODULE, "%s", verdict->message);
    else if (state->is_charged)
        pd_log_warn(MODULE, "%s; the others continue", message);
    else if (!verdict->has_begun && !state->idle_restarts)
        pd_log_warn(MODULE, "%s; once more", message);
    else
        pd_log_warn(MODULE, "%s; restart %u of %u without progress follows", message, state->idle_restarts,
                    state->launch->restart_limit);
}

/* The step's bits are fixed: if a restart gets another result, the data was not the cause. */
static void look_for_repeat(struct launch_state *state, const struct pd_launch_verdict *verdict)
{
    char whose[192] = "of that rank";
    const struct pd_suspect *s = &state->suspect;
    if (state->has_diverged) step_look(state);
    const bool has_passed = verdict->status == PD_OK || state->progress > state->diverged_behind;
    if (state->has_diverged && verdict->status != PD_DIVERGED && has_passed) {
        if (state->has_suspect)
            snprintf(whose, sizeof whose, "of rank %u, on host %s%s%s", s->rank, s->host, s->gpu[0] ? ", GPU " : "", s->gpu);
        pd_log_warn(MODULE,
                    "the non-finite value of the previous start did not come again from the same bits: suspect the hardware "
                    "%s (%s)",
                    whose, state->diverged_words);
        if (state->has_suspect) pd_launch_placement_suspect(&state->placement, s, state->suspect_host);
    }
    state->has_suspect = state->said.has_suspect;
    state->suspect = state->said.suspect;
    const struct pd_launch_account *account = &state->placement.account;
    const uint32_t host = state->has_suspect ? pd_launch_account_host_of(account, s->rank) : PD_LAUNCH_NO_HOST;
    snprintf(state->suspect_host, sizeof state->suspect_host, "%s",
             host == PD_LAUNCH_NO_HOST ? "" : account->hosts[host].name);
    state->has_diverged = verdict->status == PD_DIVERGED;
    state->diverged_behind = state->progress;
    if (state->has_diverged) snprintf(state->diverged_words, sizeof state->diverged_words, "%.300s", verdict->message);
}

/* ---- for people who watch the run ---- */

static void note_start(const struct launch_state *state)
{
    struct pd_json_writer w;
    char host[64] = "";
    if (!state->start.run_dir) return;
    (void)gethostname(host, sizeof host - 1);
    pd_event_begin(&w, "start");
    pd_json_u64(&w, "restart", state->restarts);
    pd_json_u64(&w, "ranks", state->start.ranks);
    pd_json_string(&w, "layout", state->layout.summary);
    pd_json_string(&w, "transport", state->start.transport == PD_TRANSPORT_LOCAL ? "local" : "mpi");
    if (state->has_step)
        pd_json_u64(&w, "from_step", state->step);
    else
        pd_json_null(&w, "from_step");
    pd_json_i64(&w, "process", getpid());
    pd_json_string(&w, "host", host);
    pd_event_end(&w, state->start.run_dir);
}

static void note_end(const struct launch_state *state, const struct pd_launch_verdict *verdict, bool is_over, pd_status st)
{
    struct pd_json_writer w;
    if (!state->start.run_dir || access(state->start.run_dir, F_OK)) return;
    pd_event_begin(&w, "end");
    pd_json_u64(&w, "restart", state->restarts - !is_over);
    pd_json_string(&w, "status", pd_status_name(verdict->status));
    pd_json_i64(&w, "exit_code", pd_status_exit_code(is_over ? st : verdict->status));
    pd_json_string(&w, "cause", verdict->message);
    pd_json_bool(&w, "restarts", !is_over);
    pd_event_end(&w, state->start.run_dir);
}

/* True when a request to leave ended the pause. */
static bool pause_before_restart(struct launch_state *state)
{
    int pause_ms = state->idle_restarts > 1 ? PAUSE_MS : 0;
    for (uint32_t i = 2; i < state->idle_restarts && pause_ms < PAUSE_MS_MAX; i++)
        pause_ms *= 2;
    for (int waited = 0; waited < pause_ms && !state->requests.wants_leave && !state->requests.wants_abort; waited += 50)
        pd_launch_requests_poll(&state->requests, 50);
    return state->requests.wants_leave || state->requests.wants_abort;
}

/* Threads of one process share locks of the CUDA driver, and one that holds such a lock may wait in NCCL for another that
 * needs it. The stand-in for NCCL takes only threads. */
static pd_status check_threads(const struct launch_state *state, struct pd_error *err)
{
    const struct pd_launch *launch = state->launch;
    if (state->start.transport == PD_TRANSPORT_MPI || state->start.ranks < 2 || launch->gpus < 2) return PD_OK;
    const char *is_test = getenv("PERDURE_TEST_GPU_THREADS");
    if (is_test && *is_test) return PD_OK;
    PD_FAIL(err, PD_UNSUPPORTED,
            "%u ranks on %u GPUs as threads of one process can hang in NCCL: each needs a process of its own; %s",
            state->start.ranks, launch->gpus,
            launch->transport == PD_TRANSPORT_LOCAL ? "use layout.transport=auto"
                                                    : "apt-get install openmpi-bin, or use layout.ranks=1");
}

static pd_status launch_loop(struct launch_state *state, struct pd_error *err)
{
    step_look(state);
    for (;;) {
        struct pd_launch_verdict verdict;
        bool is_over;
        PD_TRY(check_threads(state, err));
        log_start(state);
        note_start(state);
        pd_rank_table_deinit(&state->said);
        PD_TRY(pd_launch_job_run(&state->start, &state->requests, &state->said, &verdict, err));
        look_for_repeat(state, &verdict);
        pd_status st = launcher_judge(state, &verdict, &is_over, err);
        is_over |= st != PD_OK;
        PD_ON_STORAGE(note_end(state, &verdict, is_over, st));
        if (is_over) return st;
        log_end(state, &verdict);
        if (pause_before_restart(state))
            PD_FAIL(err, PD_STOPPED, "asked to leave between two starts: %.800s", verdict.message);
    }
}

static pd_status signals_block(struct launch_state *state, sigset_t *ret_before, struct pd_error *err)
{
    const sigset_t mask = pd_launch_signals();
    state->requests.signals = signalfd(-1, &mask, SFD_NONBLOCK | SFD_CLOEXEC);
    if (state->requests.signals < 0) PD_FAIL_ERRNO(err, errno, "signals of the launcher");
    sigprocmask(SIG_BLOCK, &mask, ret_before);
    return PD_OK;
}

/* Signals that arrived too late to matter must not kill the process once unblocked. */
static void signals_restore(struct launch_state *state, const sigset_t *before)
{
    pd_launch_requests_poll(&state->requests, 0);
    close(state->requests.signals);
    sigprocmask(SIG_SETMASK, before, NULL);
}

/* A list of hosts requires ranks as processes, whatever their number. */
static pd_status choose_starter(struct launch_state *state, struct pd_error *err)
{
    enum pd_transport transport = state->launch->transport;
    if (transport == PD_TRANSPORT_AUTO && state->start.hosts) transport = PD_TRANSPORT_MPI;
    PD_TRY(pd_starter_choose(transport, state->start.ranks, &transport, err));
    state->start.transport = transport;
    return transport == PD_TRANSPORT_MPI ? pd_outer_check_slurm(err) : PD_OK;
}

static bool has_grown(void *context)
{
    struct launch_state *state = context;
    return pd_launch_placement_has_grown(&state->placement, wanted_ranks(state->launch));
}

static void has_lost(void *context)
{
    pd_launch_placement_lose(&((struct launch_state *)context)->placement);
}

static bool has_silent(void *context, char *ret_names, size_t bytes)
{
    return pd_launch_placement_has_silent(&((struct launch_state *)context)->placement, ret_names, bytes);
}

static pd_status launch_in(struct launch_state *state, struct pd_error *err)
{
    const struct pd_launch *launch = state->launch;
    bool is_there = false; /* else ranks report the error */
    if (launch->dir) PD_ON_STORAGE(is_there = access(launch->dir, F_OK) == 0);
    state->start = (struct pd_start){.dir = state->dir.path,
                                     .secret = state->dir.secret,
                                     .run_dir = is_there ? launch->dir : NULL,
                                     .worker = launch->worker,
                                     .config_path = launch->config_path,
                                     .port = launch->places.port,
                                     .layout = state->layout.settings,
                                     .agent = launch->places.agent,
                                     .begin_seconds = launch->begin_seconds,
                                     .join_seconds = launch->join_seconds,
                                     .open_seconds = launch->open_seconds,
                                     .hang_seconds = launch->hang_seconds};
    sigset_t before;
    PD_TRY(signals_block(state, &before, err));
    pd_status st = choose_first(state, err);
    if (!st) st = choose_starter(state, err);
    if (!st) st = launch_loop(state, err);
    signals_restore(state, &before);
    return st;
}

pd_status pd_launch_run(const struct pd_launch *launch, struct pd_error *err)
{
    struct launch_state state = {.launch = launch, .placement = {.places = &launch->places, .look = {.results = -1}}};
    state.requests = (struct pd_launch_requests){
        .has_grown = has_grown, .has_lost = has_lost, .has_silent = has_silent, .context = &state};
    PD_TRY(pd_outer_leave(err));
    pd_status st;
    PD_ON_STORAGE(st = pd_private_dir_make(launch->dir, &state.dir, err));
    PD_TRY(st);
    state.placement.look.secret = state.dir.secret_text;
    state.placement.look.secret_dir = state.dir.path;
    st = launch_in(&state, err);
    pd_rank_table_deinit(&state.said);
    PD_ON_STORAGE(pd_private_dir_remove(&state.dir));
    pd_launch_placement_deinit(&state.placement);
    return st;
}
