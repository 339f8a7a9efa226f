/* The world of a whole run (test_whole_runs.c), shared by what stands for machines and by ranks. */
#pragma once

#include "offload/device.h"
#include "tests/helpers/tier_cluster.h"
#include "tests/helpers/turns.h"
#include "trainer/engine/rank_device.h"
#include "trainer/launch/launcher.h"
#include "trainer/status/message.h"

#include <inttypes.h>

#define HOSTS_MAX 4u
#define DEVICES_MAX 3u
#define RECORDS 32u
#define S UINT64_C(1000000000)
#define FAILURES_MAX 8u /* of a run */
#define STARTS_MAX 60u

enum injected {
    FAULT_NONE,
    FAULT_KILL,
    FAULT_POWER,
    FAULT_PARTITION,
    FAULT_HANG,
    FAULT_DEVICE,
    FAULT_LAUNCHER,
    FAULT_KINDS
};

struct machine {
    uint64_t back_ns; /* 0: it is up */
    uint32_t devices, broken;
};

/* A step that was committed, and which hosts hold each of its shards. */
struct record {
    uint64_t step;
    uint32_t shards;
    bool is_shared; /* in the last tier too */
    uint32_t holders[TURN_RANKS_MAX];
};

struct process {
    uint32_t rank, host, rank_here, ranks_here;
    bool is_gone, has_begun; /* to its peers */
    bool is_victim;
    struct tier_rank tier;
    struct pd_group groups[PD_TIERS_MAX];
    uint64_t digest, from;
    struct pd_rank_device device;
    pd_status status;
    struct pd_error error;
};

/* One run. Failures of its processes are told by `wrong`: an assertion cannot leave another stack. */
extern struct world {
    uint64_t seed, dice, entropy, now_ns, steps, quiet;
    struct pd_simulated_disk *disk;
    uint32_t hosts, slots, launcher_host;
    struct machine machines[HOSTS_MAX];
    struct pd_tiers_options options;
    struct pd_launch_places places;
    struct record records[RECORDS];       /* by step modulo */
    uint64_t kept;                        /* the newest step that other hosts have too */
    uint64_t pinned;                      /* what the first tier keeps beside its two newest, for a lost host */
    uint64_t digest;                      /* at the end */
    uint32_t faults, lone_faults, starts; /* lone_faults: of ranks, since the last progress */
    bool loses_hosts;                     /* one after the other, before any step is done */
    bool is_launcher_lost, wants_leave;
    /* of this start */
    const struct pd_start *start;
    struct pd_launch_requests *requests;
    struct pd_rank_table *said;
    enum injected injected;
    uint64_t fault_step, fault_nth;
    uint32_t victim;
    bool is_armed;
    struct process *processes;
    uint32_t ranks, host_count;
    struct turn_team teams[PD_TIERS_MAX + 2];
    uint32_t asked_host; /* whose devices are counted */
    uint64_t tally[FAULT_KINDS], trace;
    char wrong[512];
} w;

#define WRONG(...)                                                       \
    do {                                                                 \
        if (!w.wrong[0]) snprintf(w.wrong, sizeof w.wrong, __VA_ARGS__); \
    } while (0)

uint64_t world_roll(uint64_t below);
void world_mark(uint64_t what); /* into the trace */
bool world_is_up(uint32_t host);
uint32_t world_hosts_here(void); /* that take part in this start: a bit a host */
/* The newest step of which these hosts hold every shard, or the shared tier does. */
uint64_t world_newest_whole(uint32_t hosts);
void world_begin_future(uint64_t from); /* steps beyond it are none any more */
void world_forget_pruned(void);         /* what retention removes when a step is committed */

/* What a rank reports to its launcher, without a connection. */
void world_say(enum pd_message_kind kind, uint32_t rank, const void *data, uint32_t bytes);
void world_say_gpu(const struct process *process, const char *identity);
void world_say_ended(const struct process *process);

bool world_breaks(enum injected injected); /* at an operation of a disk */
/* Before a rank speaks to others: its disk may have told it that it is dead. */
void world_look_for_death(void *processes, uint32_t rank);
void *world_rank_main(void *process);
