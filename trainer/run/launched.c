#include "trainer/run/launched.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/cpu.h"
#include "ckpt/base/parse.h"
#include "ckpt/base/pulse.h"
#include "ckpt/base/thread.h"
#include "trainer/notes/note.h"
#include "trainer/run/recovery.h"
#include "trainer/notes/relay.h"
#include "trainer/notes/sender.h"
#include "trainer/run/signals.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define SAVED_NS UINT64_C(1000000000)

static uint64_t number_of(const char *variable, uint64_t otherwise)
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
        uint64_t rank = number_of(pd_launched_rank_variables[i], UINT64_MAX);
        if (rank < UINT32_MAX) return (uint32_t)rank;
    }
    return 0;
}

/* The parent of a worker is the launcher, or the starter of ranks, which dies with the launcher. */
static pd_status die_with_parent(const struct pd_launched *launched, struct pd_error *err)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL)) PD_FAIL_ERRNO(err, errno, "asking to end with the launcher");
    pid_t parent = getppid(), launcher = (pid_t)number_of(PD_LAUNCH_ENV_PARENT, 0);
    bool is_orphan = launched->transport == PD_TRANSPORT_LOCAL ? parent != launcher : parent == 1 && launcher != 1;
    if (is_orphan) PD_FAIL(err, PD_PEER_LOST, "the launcher ended while this worker was starting");
    return PD_OK;
}

pd_status pd_launched_begin(struct pd_launched *ret_launched, struct pd_error *err)
{
    struct pd_launched launched = {.transport = PD_TRANSPORT_AUTO};
    PD_TRY(pd_signals_install(err));
    pd_recovery_begin();
    const char *dir = getenv(PD_LAUNCH_ENV_DIR), *transport = getenv(PD_LAUNCH_ENV_TRANSPORT);
    if (dir && transport && strlen(dir) < sizeof launched.dir) {
        launched.is_launched = true;
        launched.ranks = (uint32_t)number_of(PD_LAUNCH_ENV_RANKS, 0);
        launched.restart = (uint32_t)number_of(PD_LAUNCH_ENV_RESTART, 0);
        launched.transport = strcmp(transport, "local") == 0 ? PD_TRANSPORT_LOCAL : PD_TRANSPORT_MPI;
        launched.rank = launched.transport == PD_TRANSPORT_LOCAL ? 0 : rank_from_environment();
        snprintf(launched.dir, sizeof launched.dir, "%s", dir);
        const char *layout = getenv(PD_LAUNCH_ENV_LAYOUT);
        snprintf(launched.layout, sizeof launched.layout, "%s", layout ? layout : "");
        PD_TRY(die_with_parent(&launched, err));
        const bool is_local = launched.transport == PD_TRANSPORT_LOCAL;
        int pulse = -1;
        (void)pd_pulse_open(is_local ? launched.ranks : 1, &pulse); /* without it nobody sees a hang */
        if (!is_local) pd_sender_open();
        if (launched.rank == 0) pd_note_write_mark(launched.dir, PD_NOTE_OPENING, 0);
        const uint32_t size = is_local ? 1 : launched.ranks;
        const bool is_written = pd_note_write_process(launched.dir, PD_NOTE_BEGUN, launched.rank, size, pulse);
        PD_TRY(pd_sender_check(is_written, err));
        if (pd_sender_is_relay()) pd_relay_start(launched.rank, launched.ranks);
    }
    *ret_launched = launched;
    return PD_OK;
}

/* Of a process that the launcher sees nothing of, until its end. Where the process is stopped nothing is said any more. */
static void *say_pulse(void *context)
{
    struct pd_pulse copy;
    const struct pd_launched *launched = context;
    while (pd_pulse_copy(&copy)) {
        (void)pd_note_write_pulse(launched->dir, launched->rank, &copy);
        pd_clock_sleep_ns(NULL, pd_note_pulse_ns(launched->ranks));
    }
    return NULL;
}

/* Without it, or where the directory is not seen, the launcher knows less. */
static void say_pulses(const struct pd_launched *launched)
{
    static struct pd_launched kept; /* of the thread */
    struct pd_note_begun owner;
    pthread_t thread;
    if (pd_sender_is_on()) return; /* the relay does */
    if (!pd_note_read_process(launched->dir, PD_NOTE_OWNER, 0, &owner) || owner.is_here) return;
    kept = *launched;
    if (!pd_thread_start(&thread, NULL, say_pulse, &kept)) pthread_detach(thread);
}

void pd_launched_ready(const struct pd_launched *launched)
{
    /* A limit of file sizes is an error of the write that meets it, in words; not before, since MPI waits for ever then. */
    signal(SIGXFSZ, SIG_IGN);
    pd_recovery_reached(PD_RECOVERY_JOIN);
    if (!launched->is_launched) return;
    pd_note_write_mark(launched->dir, PD_NOTE_READY, launched->rank);
    if (launched->transport == PD_TRANSPORT_MPI) say_pulses(launched);
}

void pd_launched_training(void)
{
    const char *dir = getenv(PD_LAUNCH_ENV_DIR);
    if (dir) pd_note_remove_opening(dir);
}

void pd_launched_beat(uint32_t rank)
{
    static _Atomic uint64_t last_ns;
    static const uint64_t period_ns = UINT64_C(2000000000);
    const uint64_t now_ns = pd_clock_monotonic_ns(NULL);
    const char *dir = getenv(PD_LAUNCH_ENV_DIR);
    if (!dir || now_ns - atomic_load(&last_ns) < period_ns) return;
    atomic_store(&last_ns, now_ns);
    pd_note_beat(dir, rank);
}

void pd_launched_saved(uint64_t step)
{
    static uint64_t said_ns; /* of rank 0's thread */
    const uint64_t now = pd_clock_monotonic_ns(NULL);
    const char *dir = getenv(PD_LAUNCH_ENV_DIR);
    if (!dir || (said_ns && now - said_ns < SAVED_NS)) return;
    said_ns = now;
    pd_note_write_saved(dir, step);
}

double pd_launched_leave_seconds(double asked)
{
    double grace;
    const char *text = getenv(PD_LAUNCH_ENV_GRACE);
    return text && pd_parse_double(text, &grace) ? fmin(asked, 0.8 * grace) : asked;
}

const char *pd_launched_hosts_away(void)
{
    const char *away = getenv(PD_LAUNCH_ENV_AWAY);
    return away ? away : "";
}

void pd_launched_taken(uint32_t rank)
{
    const char *dir = getenv(PD_LAUNCH_ENV_DIR);
    if (dir) pd_note_write_mark(dir, PD_NOTE_TAKEN, rank);
}

void pd_launched_lost_gpu(uint32_t rank, const char *identity, bool is_spare)
{
    const char *dir = getenv(PD_LAUNCH_ENV_DIR);
    if (dir && identity[0]) pd_note_write_gpu(dir, rank, identity, is_spare);
}

void pd_launched_not_finite(uint32_t rank, const char *gpu, bool is_spare)
{
    const char *dir = getenv(PD_LAUNCH_ENV_DIR);
    struct pd_note_suspect suspect = {.rank = rank, .is_spare = is_spare};
    (void)gethostname(suspect.host, sizeof suspect.host - 1);
    snprintf(suspect.gpu, sizeof suspect.gpu, "%s", gpu);
    if (dir) pd_note_write_suspect(dir, &suspect);
}

bool pd_launched_end(const struct pd_launched *launched, pd_status status, const char *message)
{
    return launched->is_launched && pd_note_write_ended(launched->dir, launched->rank, status, message ? message : "");
}

uint32_t pd_launched_threads(uint32_t asked, uint32_t ranks_here)
{
    if (asked > 0) return asked;
    uint32_t share = ranks_here ? pd_cpu_cores() / ranks_here : 1;
    return share ? share : 1;
}
