/* What a run lost when it ended: the steps that metrics.jsonl has beyond the one that it goes on from. For people. */
#ifndef PD_TRAINER_RUN_LOST_STEPS_H
#define PD_TRAINER_RUN_LOST_STEPS_H

#include <stdbool.h>
#include <stdint.h>

struct pd_lost_steps {
    uint64_t steps;
    double seconds; /* between the line of the step that the run goes on from and the last one */
    double age;     /* of the former, now; below 0: metrics have no line of it */
};

/* Reads the last 4 MiB of the file at most; nothing lost where it cannot. */
struct pd_lost_steps pd_lost_steps(const char *metrics_path, uint64_t step);

#endif
