/* Ends of a start that no test makes with processes. */
#include "trainer/launch/judge.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <string.h>

enum { KILLED = SIGKILL, EXIT_137 = 137 << 8 };

/* Below mpirun, of two ranks. What the kernel kills for want of memory is named as that, whoever it was. */
Test(judge, who_was_killed_at_a_memory_limit)
{
    static const struct {
        uint64_t oom_kills;
        int status;
        bool has_begun, is_gone, is_here;
        const char *message;
    } rows[] = {
        {0, KILLED, true, true, true, "mpirun (process 7) was killed by SIGKILL, and its ranks with it"},
        {1, KILLED, true, true, true,
         "the kernel killed mpirun (process 7) or what it had started: the memory limit, 1 GiB, is reached"},
        {0, EXIT_137, false, false, false, "mpirun ended (exit code 137) before a rank had begun"},
        {1, EXIT_137, false, false, false,
         "the kernel killed mpirun (process 7) or what it had started: the memory limit, 1 GiB, is"},
        {0, EXIT_137, true, true, true, "rank 1 (process 9) died: killed by SIGKILL"},
        {1, EXIT_137, true, true, true, "rank 1 (process 9) was killed by the kernel: the memory limit, 1 GiB, is reached"},
        {1, EXIT_137, true, true, false, "rank 1 (process 9) died: killed by SIGKILL"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct pd_error err;
        struct pd_rank_table said;
        struct pd_launch_verdict v;
        cr_assert_eq(pd_rank_table_init(&said, 2, &err), PD_OK);
        const struct pd_start start = {.transport = PD_TRANSPORT_MPI, .ranks = 2, .run_dir = "r"};
        const struct pd_launch_process processes[2] = {{.process = 8, .has_begun = rows[i].has_begun, .is_here = true},
                                                       {.process = 9,
                                                        .has_begun = rows[i].has_begun,
                                                        .is_gone = rows[i].is_gone,
                                                        .is_here = rows[i].is_here,
                                                        .gone_ns = 1}};
        const struct pd_launch_end end = {.start = &start,
                                          .said = &said,
                                          .starter_name = "mpirun",
                                          .starter = 7,
                                          .status = rows[i].status,
                                          .processes = processes,
                                          .count = 2,
                                          .oom_kills = rows[i].oom_kills,
                                          .memory_limit = "1 GiB"};
        pd_launch_judge(&end, &v);
        cr_expect(v.status == PD_PEER_LOST && v.next == PD_LAUNCH_AGAIN, "row %zu", i);
        cr_expect(!strncmp(v.message, rows[i].message, strlen(rows[i].message)), "row %zu: %s", i, v.message);
        pd_rank_table_deinit(&said);
    }
}

/* What the launcher does next depends on whose fault it may be. */
Test(judge, who_may_be_the_cause_of_an_end)
{
    enum { NETWORK = 1, OVERDUE = 2, CUT_OFF = 4, LOGGED = 8 };
    const struct pd_start start = {.transport = PD_TRANSPORT_MPI, .ranks = 2, .run_dir = "r"};
    const struct pd_launch_process alive[2] = {{.process = 8, .has_begun = true, .is_here = true},
                                               {.process = 9, .has_begun = true, .is_here = true}};
    struct pd_ended lost[2] = {{.status = PD_PEER_LOST, .missed = 1}, {.status = PD_PEER_LOST, .missed = 0}};
    const struct {
        struct pd_launch_end end;
        uint32_t reports, lost;
        unsigned marks;
    } rows[] = {
        {{.status = KILLED, .is_begin_overdue = true}, 0, 0, OVERDUE},
        {{.status = KILLED, .is_join_overdue = true}, 0, 0, NETWORK},
        {{.status = KILLED, .hang = "rank 1 holds up the run", .hang_rank = 1}, 0, 1, NETWORK | CUT_OFF | LOGGED},
        {{.status = EXIT_137, .oom_kills = 1}, 0, 0, CUT_OFF},
        {{.status = KILLED}, 0, 0, CUT_OFF},
        {{.status = 75 << 8}, 1, 1, NETWORK},
        {{.status = 75 << 8}, 2, 0, NETWORK},
        {{.status = 75 << 8}, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct pd_error err;
        struct pd_rank_table said;
        struct pd_launch_verdict v;
        cr_assert_eq(pd_rank_table_init(&said, 2, &err), PD_OK);
        for (uint32_t r = 0; r < rows[i].reports; r++)
            said.ranks[r].ended = &lost[r];
        struct pd_launch_end end = rows[i].end;
        end.start = &start;
        end.said = &said;
        end.starter_name = "mpirun";
        end.processes = alive;
        end.count = 2;
        pd_launch_judge(&end, &v);
        const unsigned marks = (v.may_be_network ? NETWORK : 0) | (v.is_overdue ? OVERDUE : 0) |
                               (v.was_cut_off ? CUT_OFF : 0) | (v.is_logged ? LOGGED : 0);
        cr_expect(v.status == PD_PEER_LOST && v.next == PD_LAUNCH_AGAIN, "row %zu: %s", i, v.message);
        cr_expect(marks == rows[i].marks && v.lost == rows[i].lost, "row %zu: %u, %u lost: %s", i, marks, v.lost, v.message);
        for (uint32_t r = 0; r < rows[i].reports; r++)
            said.ranks[r].ended = NULL;
        pd_rank_table_deinit(&said);
    }
}
