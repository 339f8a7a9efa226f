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
