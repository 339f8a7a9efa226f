/* What `perdure doctor` finds: one row a thing, in a fixed order. */
#pragma once

#include "ckpt/base/status.h"
#include <stdint.h>

#define PD_FINDINGS_MAX 40

enum pd_finding_state {
    PD_FINDING_OK,
    PD_FINDING_LIMITED, /* works, and could be better */
    PD_FINDING_MISSING, /* something will not work */
    PD_FINDING_UNUSED,  /* there or not, nothing depends on it */
};

struct pd_finding {
    const char *what; /* "memory", static */
    enum pd_finding_state state;
    char here[200];   /* what this machine offers */
    char advice[200]; /* what to do about it, or empty */
};

struct pd_findings {
    struct pd_finding items[PD_FINDINGS_MAX];
    uint32_t count;
};

/* Adds a row; its advice is empty. */
struct pd_finding *pd_findings_add(struct pd_findings *findings, const char *what, enum pd_finding_state state,
                                   const char *format, ...) PD_PRINTF(4, 5);
void pd_finding_advise(struct pd_finding *finding, const char *format, ...) PD_PRINTF(2, 3);
#define pd_finding_limit(finding, ...) ((finding)->state = PD_FINDING_LIMITED, pd_finding_advise(finding, __VA_ARGS__))

void pd_find_processor(struct pd_findings *findings);                /* cores, quota, instruction sets; then GPUs */
void pd_find_gpus(struct pd_findings *findings);                     /* GPUs, their driver, the libraries for them */
void pd_find_memory(struct pd_findings *findings);                   /* of the machine, the cgroup, lockable, shared */
void pd_find_software(struct pd_findings *findings);                 /* kernel, MPI, libraries, tools */
void pd_find_storage(struct pd_findings *findings, const char *dir); /* the I/O engine, and what a directory can do */
