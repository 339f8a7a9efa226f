/* Whole runs, from the first start to the last step, in one thread: 2 to 4 hosts, 1 to 8 ranks. The launcher's own loop, judge,
 * account and placement decide; tiers, stores and replicas commit and choose on the simulated disk; ranks and the threads of
 * their tiers take turns (tests/helpers/turns.h). Simulated are time, the starter, who answers, and what a step computes: the
 * state is a digest of the steps done. A seed decides hosts, layout, who fails when and how, and whose turn it is.
 *
 *   killed        a rank, before any operation of its disk, from opening a store to a copy's last rename
 *   power         a host, there too: what was not synced is lost as POSIX allows, memory as a whole
 *   partition     a host that nobody reaches for a while, with all that it holds
 *   hang          a rank that the launcher ends
 *   device        of a rank, for good
 *   launcher      the host on which it runs: the same command follows on another
 *
 *   invariants  1. the run ends, with the digest of a quiet one
 *               2. a start goes on from the newest step that is whole on the hosts that take part, or a newer one
 *               3. no start shares a device between ranks while another could be had
 *               4. no loss of a host ends in 93 */
#include "ckpt/base/log.h"
#include "tests/crash/launch/world.h"
#include "tests/helpers/scale.h"

#include <criterion/criterion.h>
#include <signal.h>

static const char *const fault_names[] = {"quiet", "killed", "power", "partition", "hang", "device", "launcher"};

__typeof__(pd_launch_job_run) __wrap_pd_launch_job_run;

/* ---- a start ---- */

static void place_ranks(const struct pd_start *start)
{
    const char *at = start->hosts;
    uint32_t order = 0;
    w.ranks = 0;
    while (at && *at) {
        unsigned host, ranks;
        cr_assert_eq(sscanf(at, "h%u:%u", &host, &ranks), 2, "%s", start->hosts);
        for (unsigned i = 0; i < ranks; i++, w.ranks++)
            w.processes[w.ranks] = (struct process){.rank = w.ranks, .host = host, .rank_here = i, .ranks_here = ranks};
        at = strchr(at, ',');
        at += at != NULL;
        order++;
    }
    w.host_count = order;
    cr_assert_eq(w.ranks, start->ranks, "%s", start->hosts);
}

static void set_up_ranks(struct cluster *cluster)
{
    for (uint32_t t = 0; t < w.options.count + 2; t++) {
        w.teams[t] = (struct turn_team){.size = w.ranks, .look = world_look_for_death, .context = w.processes};
        for (uint32_t r = 0; r < w.ranks; r++)
            w.teams[t].gone[r] = &w.processes[r].is_gone;
    }
    for (uint32_t r = 0, order = 0; r < w.ranks; r++) {
        struct process *p = &w.processes[r];
        if (r && p->host != w.processes[r - 1].host) order++;
        for (uint32_t t = 0; t < w.options.count; t++)
            turn_group_init(&w.teams[t], r, order, w.host_count, &p->groups[t]);
        turn_group_init(&w.teams[w.options.count], r, order, w.host_count, &p->tier.replica_group);
        turn_group_init(&w.teams[w.options.count + 1], r, order, w.host_count, &p->tier.world);
        p->tier.cluster = (struct cluster_rank){.cluster = cluster, .group = &p->tier.world, .context = p};
    }
}

/* Whether what lies on the others is enough: otherwise a run rightly waits or ends. One whose devices are all lost takes no part. */
static bool can_do_without(uint32_t host)
{
    uint32_t others = 0;
    bool has_any = false;
    for (uint32_t h = 0; h < w.hosts; h++)
        others |= (uint32_t)(h != host && w.machines[h].broken + 1u != 1u << w.machines[h].devices) << h;
    for (uint32_t i = 0; i < RECORDS; i++)
        has_any |= w.records[i].step > 0;
    return !has_any || (world_newest_whole(others) > 0 && world_newest_whole(others) >= w.kept);
}

/* Two hosts keep all their devices: where none opens any more a run rightly ends. */
static bool may_break(uint32_t host)
{
    uint32_t sound = 0;
    for (uint32_t h = 0; h < w.hosts; h++)
        sound += h != host && !w.machines[h].broken;
    return sound >= 2 && !w.machines[host].broken && can_do_without(host);
}

static void choose_fault(void)
{
    w.injected = FAULT_NONE;
    w.is_armed = w.wants_leave = false;
    if (w.faults >= FAILURES_MAX || !(w.loses_hosts || world_roll(4))) return;
    w.injected = (enum injected)(1 + world_roll(FAULT_KINDS - 1));
    w.victim = (uint32_t)world_roll(w.ranks);
    w.fault_step = world_roll(4) ? world_newest_whole(UINT32_MAX) + 1 + world_roll(4) : 0;
    if (w.loses_hosts) {
        w.injected = world_roll(2) ? FAULT_POWER : FAULT_PARTITION;
        w.victim = w.ranks - 1;
        w.fault_step = w.injected == FAULT_POWER ? 0 : world_newest_whole(UINT32_MAX) + 1;
    }
    w.fault_nth = 1 + world_roll(w.fault_step ? 150 : 80);
    const bool is_beside_launcher = w.processes[w.victim].host == w.launcher_host;
    if (is_beside_launcher && (w.injected == FAULT_POWER || w.injected == FAULT_PARTITION))
        w.injected = w.loses_hosts ? FAULT_NONE : FAULT_LAUNCHER;
    const uint32_t host = w.injected == FAULT_LAUNCHER ? w.launcher_host : w.processes[w.victim].host;
    const bool is_of_host = w.injected == FAULT_POWER || w.injected == FAULT_LAUNCHER;
    const bool is_of_rank = w.injected == FAULT_KILL || w.injected == FAULT_HANG || w.injected == FAULT_DEVICE;
    if (!w.fault_step && !world_breaks(w.injected)) w.fault_step = 1;
    for (uint32_t r = w.ranks; w.injected == FAULT_LAUNCHER && r-- > 0;)
        if (w.processes[r].host == host) w.victim = r;
    if (w.processes[w.victim].host != host) w.injected = FAULT_NONE; /* nobody runs where the launcher does */
    if (is_of_host && !can_do_without(host)) w.injected = FAULT_NONE;
    if (is_of_rank && w.lone_faults >= 2) w.injected = FAULT_NONE; /* a third rightly ends in 93 */
    if (w.injected == FAULT_DEVICE && !may_break(host)) w.injected = FAULT_NONE;
    for (uint32_t r = 0; r < w.ranks; r++) {
        const bool is_same_host = w.processes[r].host == host;
        w.processes[r].is_victim = is_of_rank ? r == w.victim : is_same_host;
    }
}

static bool is_lost_as_host(void)
{
    return w.injected == FAULT_POWER || w.injected == FAULT_PARTITION || w.injected == FAULT_LAUNCHER;
}

/* Whether what was to happen did, and what becomes of hosts. */
static bool settle_fault(void)
{
    bool has_struck = false;
    const uint32_t host = w.injected ? w.processes[w.victim].host : 0;
    for (uint32_t r = 0; w.injected && r < w.ranks; r++)
        has_struck |= w.processes[r].is_victim || (w.injected == FAULT_DEVICE && w.processes[r].status == PD_DEVICE_LOST);
    if (world_breaks(w.injected)) has_struck = w.is_armed && pd_simulated_disk_fired(w.disk);
    pd_simulated_disk_set_fault(w.disk, NULL);
    if (!has_struck) return false;
    w.faults++;
    w.tally[w.injected]++;
    w.lone_faults += !is_lost_as_host();
    if (is_lost_as_host())
        w.machines[host].back_ns =
            w.now_ns + ((w.loses_hosts ? 20 : 5) + world_roll(60)) * S; /* 20: after it was looked for */
    if (w.injected == FAULT_POWER || w.injected == FAULT_LAUNCHER) {
        pd_simulated_disk_crash(w.disk, host, world_roll(1u << 30));
        for (uint32_t i = 0; i < RECORDS && w.options.tiers[0].dir[1] == 's'; i++)
            for (uint32_t s = 0; s < w.records[i].shards; s++)
                w.records[i].holders[s] &= ~(1u << host);
    }
    return true;
}

/* While another could be had: on the same host, or on one with a slot that nobody has. */
static void check_devices(void)
{
    uint32_t used[HOSTS_MAX][DEVICES_MAX] = {0}, here[HOSTS_MAX] = {0}, idle[HOSTS_MAX] = {0};
    bool is_shared = false, is_shared_at[HOSTS_MAX] = {false};
    for (uint32_t r = 0; r < w.ranks; r++) {
        const struct process *p = &w.processes[r];
        struct pd_rank_device device = {.dev = NULL};
        w.asked_host = p->host;
        here[p->host]++;
        if (pd_rank_device_open(PD_DEVICE_GPU, p->rank_here, w.start->left_out, &device, NULL)) continue;
        is_shared_at[p->host] |= used[p->host][device.dev->index]++ > 0;
        is_shared |= is_shared_at[p->host];
        pd_rank_device_close(&device);
    }
    for (uint32_t h = 0; h < w.hosts; h++)
        for (uint32_t d = 0; d < w.machines[h].devices; d++) {
            char identity[33];
            w.asked_host = h;
            pd_dev_cuda_identity(d, identity);
            idle[h] += !used[h][d] && !(w.start->left_out && strstr(w.start->left_out, identity));
        }
    for (uint32_t h = 0; h < w.hosts; h++) {
        const bool has_place = here[h] && here[h] < w.slots;
        if (idle[h] && (is_shared_at[h] || (is_shared && has_place)))
            WRONG("%s: ranks share a device while one of h%u idles; left out: %s", w.start->hosts, h,
                  w.start->left_out ? w.start->left_out : "-");
    }
}

/* How a starter would end: with the code of the first that it sees end badly. */
static int starter_status(bool has_struck)
{
    if (has_struck && w.injected == FAULT_KILL) return (128 + SIGKILL) << 8;
    for (uint32_t r = 0; r < w.ranks; r++)
        if (!w.processes[r].has_begun || w.processes[r].is_victim) return 1 << 8;
    for (uint32_t r = 0; r < w.ranks; r++)
        if (w.processes[r].status && w.processes[r].status != PD_STOPPED && !w.processes[r].is_victim)
            return pd_status_exit_code(w.processes[r].status) << 8;
    return 0;
}

static void judge(bool has_struck, struct pd_launch_verdict *ret)
{
    struct pd_launch_process seen[TURN_RANKS_MAX] = {0};
    struct pd_launch_end end = {.start = w.start,
                                .said = w.said,
                                .starter_name = "mpirun",
                                .starter = 999,
                                .status = starter_status(has_struck),
                                .processes = seen,
                                .count = w.ranks};
    for (uint32_t r = 0; r < w.ranks; r++) {
        const struct process *p = &w.processes[r];
        const bool is_here = p->host == w.launcher_host;
        seen[r] = (struct pd_launch_process){.process = (int32_t)(1000 + r),
                                             .has_begun = p->has_begun,
                                             .is_here = is_here,
                                             .is_gone = p->has_begun && (is_here || p->is_victim),
                                             .gone_ns = w.now_ns - (p->is_victim ? 5 * S : 0)};
    }
    if (has_struck && w.injected == FAULT_HANG) {
        snprintf(end.hang, sizeof end.hang, "rank %u (process %u) holds up the run", w.victim, 1000 + w.victim);
        end.hang_rank = w.victim;
    }
    pd_launch_judge(&end, ret);
    world_mark(ret->status * 31u + ret->next);
}

pd_status __wrap_pd_launch_job_run(const struct pd_start *start, struct pd_launch_requests *requests,
                                   struct pd_rank_table *ret_said, struct pd_launch_verdict *ret_verdict,
                                   struct pd_error *err)
{
    struct process processes[TURN_RANKS_MAX];
    struct cluster cluster = {.disk = w.disk};
    void *arguments[TURN_RANKS_MAX];
    uint32_t begin_count = 0;
    w.start = start;
    w.requests = requests;
    w.processes = processes;
    if (++w.starts > STARTS_MAX) PD_FAIL(err, PD_BUG, "%u starts, and the run does not end", STARTS_MAX);
    place_ranks(start);
    PD_TRY(pd_rank_table_init(ret_said, w.ranks, err));
    w.said = ret_said;
    cluster.ranks = w.ranks;
    cluster.hosts = w.host_count;
    set_up_ranks(&cluster);
    choose_fault();
    check_devices();
    bool all_up = true;
    for (uint32_t r = 0; r < w.ranks; r++)
        all_up &= world_is_up(processes[r].host);
    for (uint32_t r = 0; all_up && r < w.ranks; r++) {
        world_say(PD_MESSAGE_READY, r, "", 0);
        arguments[begin_count++] = &processes[r];
    }
    if (!turns_run(&w.dice, world_rank_main, arguments, begin_count))
        PD_FAIL(err, PD_BUG, "ranks wait for one another for ever");
    for (uint32_t r = 0; r < begin_count; r++) /* not before: the fault goes by its address */
        if (processes[r].tier.cluster.vfs) pd_vfs_free(processes[r].tier.cluster.vfs);
    const bool has_struck = all_up && settle_fault();
    w.now_ns += (has_struck && w.injected == FAULT_HANG ? 31 : has_struck && is_lost_as_host() ? 15 : 1) * S;
    if (has_struck && w.injected == FAULT_LAUNCHER) {
        w.is_launcher_lost = true;
        PD_FAIL(err, PD_BUG, "the launcher's host is gone");
    }
    if (has_struck && !world_roll(2)) requests->has_lost(requests->context);
    judge(has_struck, ret_verdict);
    return PD_OK;
}

/* ---- runs ---- */

static uint32_t hosts_up(void)
{
    uint32_t up = 0;
    for (uint32_t h = 0; h < w.hosts; h++)
        up |= (uint32_t)world_is_up(h) << h;
    return up;
}

static void begin_world(uint64_t seed)
{
    static const char *const first[] = {"/shm/c", "/disk"};
    struct pd_error err;
    w = (struct world){.seed = seed, .dice = seed, .entropy = seed, .now_ns = 1000 * S};
    w.hosts = 2 + (uint32_t)world_roll(HOSTS_MAX - 1);
    w.slots = 1 + (uint32_t)world_roll(2);
    w.steps = 8 + world_roll(6);
    w.loses_hosts = !world_roll(8);
    for (uint32_t h = 0; h < w.hosts; h++)
        w.machines[h].devices = w.slots + (uint32_t)world_roll(2);
    struct pd_disk_options disk = {.seed = seed, .host_count = w.hosts};
    disk.mounts[0] = (struct pd_disk_mount){.path = "/"};
    disk.mounts[1] = (struct pd_disk_mount){.path = "/shm", .in_memory = true};
    disk.mounts[2] = (struct pd_disk_mount){.path = "/net", .shared = true};
    cr_assert_eq(pd_simulated_disk_new(&disk, &w.disk, &err), PD_OK, "%s", err.message);
    w.options = (struct pd_tiers_options){.tiers = {{.dir = first[world_roll(2)], .every = 1, .keep_last = 2, .replicas = 1},
                                                    {.dir = "/net/c", .every = 3 + world_roll(3), .keep_last = 2}},
                                          .count = 2,
                                          .quarantine_bytes_max = 1 << 20};
    w.places = (struct pd_launch_places){
        .hosts = "hosts", .agent = "ssh", .slots = w.slots, .grows_now = world_roll(2), .wait_seconds = 600, .min = 1};
}

/* As a scheduler would: again on 75. A launcher whose host is gone says nothing. */
static pd_status run_to_the_end(struct pd_error *err)
{
    static const char *const worker[] = {"worker", NULL};
    const struct pd_launch launch = {.worker = worker,
                                     .ranks = w.hosts * w.slots,
                                     .transport = PD_TRANSPORT_MPI,
                                     .restart_limit = w.loses_hosts ? 1 : 3,
                                     .begin_seconds = 60,
                                     .join_seconds = 60,
                                     .hang_seconds = 30,
                                     .places = w.places};
    for (;;) {
        w.is_launcher_lost = false;
        while (!hosts_up())
            w.now_ns += S;
        for (w.launcher_host = 0; !world_is_up(w.launcher_host);)
            w.launcher_host++;
        const pd_status st = pd_launch_run(&launch, err);
        world_mark(st);
        if (w.wrong[0] || (!w.is_launcher_lost && st != PD_PEER_LOST)) return st;
    }
}

static void expect_same_as_quiet(uint64_t seed)
{
    struct pd_error err = {0};
    begin_world(seed);
    const pd_status st = run_to_the_end(&err);
    uint64_t quiet = seed;
    for (uint64_t step = 1; step <= w.steps; step++)
        quiet = cluster_mix(quiet ^ step);
    cr_assert(!w.wrong[0], "PERDURE_TEST_SEED=%" PRIu64 ": start %u (%s): %s", seed, w.starts, fault_names[w.injected],
              w.wrong);
    cr_assert_eq(st, PD_OK, "PERDURE_TEST_SEED=%" PRIu64 ": start %u: %s: %s", seed, w.starts, pd_status_name(st),
                 err.message);
    cr_assert_eq(w.digest, quiet, "PERDURE_TEST_SEED=%" PRIu64 ": the state is not that of a quiet run", seed);
    pd_simulated_disk_free(w.disk);
}

static void campaign(uint64_t first)
{
    uint64_t tally[FAULT_KINDS] = {0}, starts = 0, seed = 0;
    const uint64_t count = 250 * test_scale(), share = test_scale() > 1 ? count : count / 2;
    const char *text = getenv("PERDURE_TEST_SEED");
    if (text && pd_parse_u64(text, &seed)) {
        expect_same_as_quiet(seed);
        return;
    }
    tier_be_quiet();
    seed = first * count + test_share() % 2 * share;
    for (const uint64_t end = seed + share; seed < end; seed++) {
        expect_same_as_quiet(seed);
        starts += w.starts;
        for (int i = 0; i < FAULT_KINDS; i++)
            tally[i] += w.tally[i];
    }
    fprintf(stderr, "%" PRIu64 " runs, %" PRIu64 " starts", share, starts);
    for (int i = 1; i < FAULT_KINDS; i++) {
        fprintf(stderr, ", %s %" PRIu64, fault_names[i], tally[i]);
        cr_expect_gt(tally[i], 0, "%s: never", fault_names[i]);
    }
    fputc('\n', stderr);
}

Test(whole_runs, first_quarter)
{
    campaign(0);
}

Test(whole_runs, second_quarter)
{
    campaign(1);
}

Test(whole_runs, third_quarter)
{
    campaign(2);
}

Test(whole_runs, last_quarter)
{
    campaign(3);
}

/* Beyond the default scale: two groups of hosts save step 7 apart and meet; the only other host is left out before a step is whole. */
Test(whole_runs, seeds_that_found_a_fault)
{
    expect_same_as_quiet(1309);
    expect_same_as_quiet(2870);
}

Test(whole_runs, a_seed_repeats_exactly)
{
    tier_be_quiet();
    for (uint64_t seed = 0; seed < 20; seed++) {
        expect_same_as_quiet(seed);
        const uint64_t trace = w.trace, dice = w.dice, now = w.now_ns;
        expect_same_as_quiet(seed);
        cr_assert(trace == w.trace && dice == w.dice && now == w.now_ns, "seed %" PRIu64, seed);
    }
}
