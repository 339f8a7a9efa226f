#include "ckpt/base/fault.h"

#include "ckpt/base/heartbeat.h"
#include "ckpt/base/parse.h"
#include "ckpt/base/rank.h"
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FAULTS_MAX 16
#define NAME_MAX_BYTES 64
#define ONCE_PATH_MAX 1024
#define EXIT_INTERNAL 70
#define SLEEP_MS 20
#define SLEEP_MS_MAX 10000

enum action { ACTION_KILL, ACTION_EXIT, ACTION_STOP, ACTION_SLEEP, ACTION_COUNT };
static const char *const action_names[ACTION_COUNT] = {"kill", "exit", "stop", "sleep"};

struct fault {
    char name[NAME_MAX_BYTES];
    int64_t rank; /* -1: any */
    uint64_t nth;
    enum action action;
    uint64_t sleep_ms;
    _Atomic uint64_t passages;
};

atomic_bool pd_fault_armed;
static struct fault faults[FAULTS_MAX];
static unsigned fault_count;
static char once_file[ONCE_PATH_MAX];

/* Parses "name[@rank]:nth[:action]" and cuts it up in place. */
static bool parse_fault(char *word, struct fault *fault)
{
    char *nth = strchr(word, ':');
    if (!nth) return false;
    *nth++ = '\0';
    char *action = strchr(nth, ':');
    if (action) *action++ = '\0';
    char *rank = strchr(word, '@');
    if (rank) *rank++ = '\0';
    fault->rank = -1;
    fault->sleep_ms = SLEEP_MS;
    unsigned number = ACTION_KILL;
    size_t length = strlen(word);
    if (length == 0 || length >= sizeof fault->name) return false;
    memcpy(fault->name, word, length + 1);
    if (rank && (!pd_parse_i64(rank, &fault->rank) || fault->rank < 0)) return false;
    if (!pd_parse_u64(nth, &fault->nth) || fault->nth == 0) return false;
    if (action && strncmp(action, "sleep", 5) == 0 && action[5]) {
        fault->action = ACTION_SLEEP;
        return pd_parse_u64(action + 5, &fault->sleep_ms) && fault->sleep_ms <= SLEEP_MS_MAX;
    }
    if (action && !pd_parse_name(action, strlen(action), action_names, ACTION_COUNT, &number)) return false;
    fault->action = (enum action)number;
    return true;
}

static pd_status parse_spec(const char *spec, struct pd_error *err)
{
    while (spec && *spec) {
        size_t length = strcspn(spec, ",");
        char word[NAME_MAX_BYTES + 64];
        bool fits = length < sizeof word && fault_count < FAULTS_MAX;
        if (fits) {
            memcpy(word, spec, length);
            word[length] = '\0';
            memset(&faults[fault_count], 0, sizeof faults[0]);
            fits = parse_fault(word, &faults[fault_count]);
        }
        if (!fits)
            PD_FAIL(err, PD_USAGE,
                    "PERDURE_FAULT: \"%.*s\" is not understood: write name[@rank]:nth[:kill|exit|stop|sleep|sleepMS]",
                    (int)length, spec);
        fault_count++;
        spec += length + (spec[length] == ',');
    }
    return PD_OK;
}

pd_status pd_fault_configure(const char *spec, const char *once_path, struct pd_error *err)
{
    atomic_store(&pd_fault_armed, false);
    fault_count = 0;
    once_file[0] = '\0';
    if (once_path) {
        if (strlen(once_path) >= sizeof once_file) PD_FAIL(err, PD_USAGE, "PERDURE_FAULT_ONCE: the path is too long");
        memcpy(once_file, once_path, strlen(once_path) + 1);
    }
    pd_status status = parse_spec(spec, err);
    if (status) {
        fault_count = 0;
        return status;
    }
    atomic_store(&pd_fault_armed, fault_count > 0);
    return PD_OK;
}

pd_status pd_fault_configure_env(struct pd_error *err)
{
    return pd_fault_configure(getenv("PERDURE_FAULT"), getenv("PERDURE_FAULT_ONCE"), err);
}

static bool first_to_fire(void)
{
    if (!once_file[0]) return true;
    int fd = open(once_file, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    if (fd < 0) return false;
    close(fd);
    return true;
}

/* raise, not kill: another thread might receive a process-directed signal first, and this thread would go on. */
static void fire(const struct fault *fault)
{
    const enum action action = fault->action;
    if (action == ACTION_SLEEP) {
        (void)nanosleep(&(struct timespec){(time_t)(fault->sleep_ms / 1000), (long)(fault->sleep_ms % 1000) * 1000000}, NULL);
        return;
    }
    if (action == ACTION_EXIT) _exit(EXIT_INTERNAL);
    if (action == ACTION_STOP) pd_heartbeat_hold();
    (void)raise(action == ACTION_STOP ? SIGSTOP : SIGKILL);
    while (action == ACTION_KILL)
        pause();
}

/* Returns the fault that is due with this pass, or NULL. Counts the pass for all faults of that name. */
static const struct fault *find_due(const char *name)
{
    const struct fault *due = NULL;
    for (unsigned i = 0; i < fault_count; i++) {
        struct fault *fault = &faults[i];
        if (strcmp(fault->name, name) != 0) continue;
        if (fault->rank >= 0 && fault->rank != pd_rank_current()) continue;
        uint64_t pass = atomic_fetch_add(&fault->passages, 1) + 1;
        if (!due && (pass == fault->nth || (fault->action == ACTION_SLEEP && pass > fault->nth))) due = fault;
    }
    return due && first_to_fire() ? due : NULL;
}

void pd_fault_pass(const char *name)
{
    const struct fault *due = find_due(name);
    if (due) fire(due);
}

bool pd_fault_passes_nth(const char *name)
{
    return find_due(name) != NULL;
}
