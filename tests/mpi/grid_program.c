/* Grids of processes: `grid_program all` under mpirun walks every layout of that many ranks; `grid_program kill` kills the
 * last rank in the middle of traffic under a layout in every direction. Exit code 0: passed on this rank. */
#include "tests/helpers/grid_exercise.h"

#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define DESCRIPTORS_MAX 256 /* of all ranks of a host together: a common limit of one process */

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Descriptors are given in ascending order, so the lowest free one counts those in use. */
static int descriptors(void)
{
    const int fd = dup(0);
    if (fd >= 0) close(fd);
    return fd;
}

static void cube(struct pd_layout *layout)
{
    pd_layout_init_dp(layout, 1);
    layout->tp = layout->pp = layout->sp = layout->virtual_tp = layout->virtual_sp = layout->interleave = 2;
    layout->stage_count = 4;
    for (uint16_t s = 1; s < 4; s++)
        layout->first_unit[s] = (uint16_t)(s + 1);
}

static pd_status resources(struct pd_comm *comm, struct pd_error *err)
{
    struct pd_layout layout;
    struct pd_grid grid;
    cube(&layout);
    const int before = descriptors();
    PD_TRY(pd_grid_init(&layout, comm->rank, comm, &grid, err));
    const int taken = descriptors() - before;
    PD_TRY(pd_comm_barrier(comm, err));
    pd_grid_deinit(&grid);
    if (taken < 0 || taken * 8 > DESCRIPTORS_MAX) PD_FAIL(err, PD_BUG, "a grid takes %d descriptors of a rank", taken);
    if (descriptors() != before) PD_FAIL(err, PD_BUG, "%d descriptors are left", descriptors() - before);
    return pd_comm_barrier(comm, err);
}

static pd_status case_all(struct pd_comm *comm, struct pd_error *err)
{
    PD_TRY(grid_exercise(comm, err));
    return comm->size == 8 ? resources(comm, err) : PD_OK;
}

static pd_status case_kill(struct pd_comm *comm, struct pd_error *err)
{
    struct pd_layout layout;
    struct pd_grid grid;
    struct pd_error lost = {.message = ""};
    struct grid_link *links = calloc(GRID_LINKS, sizeof *links);
    const uint32_t victim = comm->size - 1;
    cube(&layout);
    PD_TRY(pd_grid_init(&layout, comm->rank, comm, &grid, err));
    grid_links(&grid, links);
    const bool is_victim = comm->rank == victim;
    pd_status st = grid_traffic(&grid, links, is_victim ? 50 + (uint64_t)getpid() % 50 : UINT64_MAX, &lost);
    if (is_victim) raise(SIGKILL);
    const double began = seconds_now();
    char says[32];
    snprintf(says, sizeof says, "rank %u ", victim);
    const bool is_told = st == PD_PEER_LOST && strstr(lost.message, says);
    printf("rank %u %s: %s\n", comm->rank, is_told ? "noticed" : "NOT noticed", lost.message);
    fflush(stdout);
    pd_grid_deinit(&grid);
    free(links);
    if (seconds_now() - began > 120) PD_FAIL(err, PD_BUG, "the grid is freed after %g s", seconds_now() - began);
    PD_FAIL(err, st, "%s", lost.message);
}

int main(int argc, char **argv)
{
    struct pd_error err;
    struct pd_comm *comm;
    if (argc != 2 || (strcmp(argv[1], "all") != 0 && strcmp(argv[1], "kill") != 0)) {
        fprintf(stderr, "usage: grid_program all|kill\n");
        return 64;
    }
    pd_status st = pd_comm_open_mpi(&comm, &err);
    if (!st) {
        st = argv[1][0] == 'a' ? case_all(comm, &err) : case_kill(comm, &err);
        pd_comm_free(comm);
    }
    if (st) fprintf(stderr, "grid_program: %s: %s (%s)\n", pd_status_name(st), err.message, err.where);
    return pd_status_exit_code(st);
}
