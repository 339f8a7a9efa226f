#include "trainer/run/launched.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/cpu.h"
#include "ckpt/base/heartbeat.h"
#include "ckpt/base/log.h"
#include "ckpt/base/parse.h"
#include "trainer/config/keys.h"
#include "trainer/run/signals.h"
#include "trainer/status/channel.h"
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define MODULE "layout"

/* Assumes that other hosts are like this one. */
uint32_t pd_launch_ranks_of_a_host(const struct pd_config *config, uint32_t ranks)
{
    const uint32_t ranks_per_host = config->layout.ranks_per_host;
    return ranks_per_host && ranks_per_host < ranks ? ranks_per_host : ranks;
}

pd_status pd_launch_layout_apply(struct pd_config *config, const char *settings, uint32_t ranks, struct pd_error *err)
{
    char text[sizeof((struct pd_launch_layout *)0)->settings], key[64];
    snprintf(text, sizeof text, "%s", settings);
    config->layout.chosen = config->layout.automatic;
    config->layout.automatic = false;
    config->layout.ranks = ranks;
    for (char *rest = text, *word; (word = strtok_r(rest, ",", &rest));) {
        char *equals = strchr(word, '=');
        if (!equals) PD_FAIL(err, PD_BUG, "\"%s\" is not a setting of a layout", word);
        *equals = '\0';
        snprintf(key, sizeof key, "%s%s", strchr(word, '.') ? "" : "layout.", word);
        PD_TRY(pd_key_set(config, key, equals + 1, err));
    }
    return PD_OK;
}

void pd_launch_layout_log_hosts(const struct pd_config *config, uint32_t ranks, uint32_t hosts, uint32_t most)
{
    const uint32_t counted = pd_launch_ranks_of_a_host(config, ranks);
    if (!config->layout.chosen || counted == most) return;
    pd_log(PD_LOG_WARN, MODULE,
           "the layout was chosen for %u ranks a host, and %u hosts have %u at most: layout.ranks_per_host=%u counts their "
           "memory and links as they are",
           counted, hosts, most, most);
}

/* ---- the launcher's words ---- */

#define SAVED_NS UINT64_C(1000000000)

static uint64_t launched_number_of(const char *variable, uint64_t otherwise)
{
    uint64_t value;
    const char *text = getenv(variable);
    return text && pd_parse_u64(text, &value) ? value : otherwise;
}

const char *const pd_launched_rank_variables[PD_LAUNCHED_RANK_VARIABLES] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                                                            "SLURM_PROCID"};

static uint32_t rank_from_environment(void)
{
    for (size_t i = 0; i < PD_LAUNCHED_RANK_VARIABLES; i++) {
        uint64_t rank = launched_number_of(pd_launched_rank_variables[i], UINT64_MAX);
        if (rank < UINT32_MAX) return (uint32_t)rank;
    }
    return 0;
}

/* Slurm's name of the step that srun started, whose tasks outlive a killed srun. */
static void step_set(char ret_step[PD_MESSAGE_STEP_BYTES])
{
    const char *job = getenv("SLURM_JOB_ID"), *step = getenv("SLURM_STEP_ID");
    if (job && step) snprintf(ret_step, PD_MESSAGE_STEP_BYTES, "%.20s.%.20s", job, step);
}

static pd_status report_begin(const struct pd_launched *launched, struct pd_error *err)
{
    const bool is_local = launched->transport == PD_TRANSPORT_LOCAL;
    struct pd_begun begun = {.process = (int32_t)getpid(), .heartbeat = -1};
    begun.mpi_job = (uint32_t)launched_number_of("OMPI_MCA_ess_base_jobid", 0);
    step_set(begun.step);
    (void)pd_heartbeat_open(is_local ? launched->ranks : 1, &begun.heartbeat); /* without it hangs cannot be detected */
    PD_TRY(pd_channel_open(launched->rank, is_local ? 1 : launched->ranks, &begun, err));
    if (pd_channel_is_relay()) pd_relay_start(launched->rank, launched->ranks);
    return PD_OK;
}

pd_status pd_launched_begin(struct pd_launched *ret_launched, struct pd_error *err)
{
    struct pd_launched launched = {.transport = PD_TRANSPORT_AUTO};
    PD_TRY(pd_signals_install(err));
    const char *addresses = getenv(PD_CHANNEL_ENV_ADDRESSES), *transport = getenv(PD_LAUNCH_ENV_TRANSPORT);
    if (addresses && *addresses && transport) {
        launched.is_launched = true;
        launched.ranks = (uint32_t)launched_number_of(PD_LAUNCH_ENV_RANKS, 0);
        launched.restart = (uint32_t)launched_number_of(PD_LAUNCH_ENV_RESTART, 0);
        launched.transport = strcmp(transport, "local") == 0 ? PD_TRANSPORT_LOCAL : PD_TRANSPORT_MPI;
        launched.rank = launched.transport == PD_TRANSPORT_LOCAL ? 0 : rank_from_environment();
        const char *layout = getenv(PD_LAUNCH_ENV_LAYOUT);
        snprintf(launched.layout, sizeof launched.layout, "%s", layout ? layout : "");
        /* A worker's parent is the launcher, or the starter of ranks, which dies with the launcher. */
        if (prctl(PR_SET_PDEATHSIG, SIGKILL)) PD_FAIL_ERRNO(err, errno, "asking to end with the launcher");
        pid_t parent = getppid(), launcher = (pid_t)launched_number_of(PD_LAUNCH_ENV_PARENT, 0);
        bool is_orphan = launched.transport == PD_TRANSPORT_LOCAL ? parent != launcher : parent == 1 && launcher != 1;
        if (is_orphan) PD_FAIL(err, PD_PEER_LOST, "the launcher ended while this worker was starting");
        if (launched.transport == PD_TRANSPORT_MPI) pd_signals_mind_parent();
        PD_TRY(report_begin(&launched, err));
    }
    *ret_launched = launched;
    return PD_OK;
}

void pd_launched_ready(const struct pd_launched *launched)
{
    /* The write that exceeds a file size limit reports it. Not set before, because MPI would then hang. */
    signal(SIGXFSZ, SIG_IGN);
    pd_signals_joined();
    pd_channel_say(PD_MESSAGE_READY, launched->rank, "", 0);
}

void pd_launched_training(void)
{
    pd_channel_say(PD_MESSAGE_TRAINING, 0, "", 0);
}

void pd_launched_saved(uint64_t step)
{
    static uint64_t said_ns; /* of rank 0's thread */
    const uint64_t now = pd_clock_monotonic_ns(NULL);
    if (said_ns && now - said_ns < SAVED_NS) return;
    said_ns = now;
    pd_channel_say(PD_MESSAGE_SAVED, 0, &step, sizeof step);
}

double pd_launched_grace_seconds(void)
{
    double grace;
    const char *text = getenv(PD_LAUNCH_ENV_GRACE);
    return text && pd_parse_double(text, &grace) ? grace : (double)INFINITY;
}

double pd_launched_leave_seconds(double asked)
{
    return fmin(asked, 0.8 * pd_launched_grace_seconds());
}

const char *pd_launched_hosts_away(void)
{
    const char *away = getenv(PD_LAUNCH_ENV_AWAY);
    return away ? away : "";
}

void pd_launched_taken(uint32_t rank)
{
    pd_channel_say(PD_MESSAGE_TAKEN, rank, "", 0);
}

void pd_launched_lost_gpu(uint32_t rank, const char *identity, bool is_spare)
{
    struct pd_lost_gpu lost = {.is_spare = is_spare};
    snprintf(lost.identity, sizeof lost.identity, "%s", identity);
    if (identity[0]) pd_channel_say(PD_MESSAGE_GPU, rank, &lost, sizeof lost);
}

void pd_launched_not_finite(uint32_t rank, const char *gpu, bool is_spare)
{
    struct pd_suspect suspect = {.rank = rank, .is_spare = is_spare};
    (void)gethostname(suspect.host, sizeof suspect.host - 1);
    snprintf(suspect.gpu, sizeof suspect.gpu, "%s", gpu);
    pd_channel_say(PD_MESSAGE_SUSPECT, rank, &suspect, sizeof suspect);
}

static _Atomic uint32_t missed = PD_MESSAGE_NOBODY;

void pd_launched_misses(uint32_t rank)
{
    atomic_store(&missed, rank);
}

bool pd_launched_end(const struct pd_launched *launched, pd_status status, const char *message)
{
    struct pd_ended ended = {.status = status, .missed = atomic_load(&missed)};
    snprintf(ended.message, sizeof ended.message, "%s", message ? message : "");
    return pd_channel_say(PD_MESSAGE_ENDED, launched->rank, &ended, sizeof ended);
}

uint32_t pd_launched_threads(uint32_t asked, uint32_t ranks_here)
{
    if (asked > 0) return asked;
    uint32_t share = ranks_here ? pd_cpu_cores() / ranks_here : 1;
    return share ? share : 1;
}
