/* Four ranks, each with a GPU that is late. One stops before the third collective, and the launcher's watch names it. */
#include "ckpt/base/heartbeat.h"
#include "tests/helpers/nccl_rank.h"
#include "trainer/launch/watch.h"

#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#define S UINT64_C(1000000000)
enum { RANKS = 4, COLLECTIVES = 3, THIRD = 2 };

struct scene {
    uint32_t victim;
    bool is_device; /* its GPU stops, and its host has started everything */
    _Atomic bool is_released;
    pd_status status;
    struct pd_error error;
};

static void stop(void *context)
{
    struct scene *scene = context;
    while (!scene->is_released)
        usleep(1000);
}

static pd_status rank_main(struct pd_comm *control, void *context, struct pd_error *err)
{
    struct scene *scene = context;
    struct rank r;
    struct pd_comm *part;
    uint8_t parts[COLLECTIVES][RANKS] = {{0}};
    PD_TRY(rank_open(control, &r, err));
    PD_TRY(pd_comm_split(r.comm, control->rank / 2, control->rank, &part, err));
    pd_heartbeat_step(1);
    pd_heartbeat_step(2);
    for (int i = 0; i < COLLECTIVES; i++) {
        struct pd_comm_op op = {.what = "parameters"}, pair = {.what = "streams"};
        if (i == THIRD && control->rank == scene->victim) {
            if (scene->is_device)
                late_put(r.compute, stop, scene);
            else
                stop(scene);
        }
        PD_TRY(pd_comm_start_all_gather(part, &pair, parts[i], 1, err));
        PD_TRY(pd_comm_wait(part, &pair, err));
        PD_TRY(pd_comm_start_all_gather(r.comm, &op, parts[i], 1, err));
        PD_TRY(pd_comm_wait(r.comm, &op, err));
    }
    PD_TRY(pd_dev_stream_sync(&r.dev, r.compute, err)); /* the hosts of the others are here */
    pd_comm_free(part);
    rank_close(&r);
    return PD_OK;
}

static void *scene_main(void *context)
{
    struct scene *scene = context;
    scene->status = run(RANKS, rank_main, scene, &scene->error);
    return NULL;
}

/* What the others' heartbeats come to. The victim's partner waits in the third collective of the pair; the other two have
 * finished theirs, and wait in the third of all. */
static bool has_come(const struct pd_heartbeat *p, uint32_t rank, uint32_t victim)
{
    const bool is_victim = rank == victim, is_partner = rank / 2 == victim / 2;
    uint64_t reached = 0, ended = 0;
    for (uint32_t i = 0; i < PD_HEARTBEAT_COMMUNICATORS; i++) {
        reached += p->flights[i].reached;
        ended += p->flights[i].ended;
    }
    return reached == (is_victim ? 4u : is_partner ? 5u : 6u) && ended == (is_partner ? 4u : 5u);
}

static void expect_named(uint32_t victim, bool is_device)
{
    struct scene scene = {.victim = victim, .is_device = is_device};
    struct pd_launch_watch *watch;
    struct pd_launch_hang hang;
    struct pd_error err;
    uint64_t now = 100 * S;
    pthread_t thread;
    int fd;
    cr_assert(pd_heartbeat_open(RANKS, &fd));
    const struct pd_heartbeat *beats = pd_heartbeat_map(getpid(), fd, RANKS);
    cr_assert_eq(pd_launch_watch_new(RANKS, 30, 0, &watch, &err), PD_OK);
    pd_launch_watch_add(watch, 0, RANKS, getpid(), beats);
    cr_assert_eq(pthread_create(&thread, NULL, scene_main, &scene), 0);
    for (uint32_t r = 0; r < RANKS; r++)
        while (!has_come(&beats[r], r, victim))
            usleep(1000);
    cr_assert_not(pd_launch_watch_look(watch, now, &hang));
    cr_assert_not(pd_launch_watch_look(watch, now += 29 * S, &hang));
    cr_assert(pd_launch_watch_look(watch, now += 2 * S, &hang), "nobody is named");
    cr_expect_eq(hang.rank, victim, "%s", hang.text);
    cr_expect(strstr(hang.text, "its GPU has not come to operation 3 ("), "%s", hang.text);
    scene.is_released = true;
    pthread_join(thread, NULL);
    cr_expect_eq(scene.status, PD_OK, "%s", scene.error.message);
    for (uint32_t i = 0; i < PD_HEARTBEAT_COMMUNICATORS; i++)
        cr_expect_eq(beats[0].flights[i].communicator, 0, "it was freed");
    pd_launch_watch_free(watch);
    close(fd);
}

Test(nccl_hang, a_host_that_stops_before_the_third_collective_is_named)
{
    for (uint32_t victim = 0; victim < RANKS; victim++)
        expect_named(victim, false);
}

Test(nccl_hang, a_gpu_that_stops_before_the_third_collective_is_named)
{
    for (uint32_t victim = 0; victim < RANKS; victim++)
        expect_named(victim, true);
}
