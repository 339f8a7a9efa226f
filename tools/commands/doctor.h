/* Findings of perdure doctor: a row each, of what this machine has and what to do about it. */
#pragma once

#include "ckpt/base/status.h"
#include <stdint.h>

#define FINDINGS_MAX 160

enum finding_state {
    FINDING_OK,
    FINDING_LIMITED, /* works, but could be better */
    FINDING_MISSING, /* something will not work */
    FINDING_UNUSED,  /* optional: nothing depends on it */
};

struct finding {
    const char *what; /* "memory", static */
    enum finding_state state;
    char here[200];   /* what this machine offers */
    char advice[200]; /* what to do about it, or empty */
};

struct findings {
    struct finding items[FINDINGS_MAX];
    uint32_t count;
};

/* Adds a row without advice. */
PD_PRINTF(4, 5)
struct finding *pd_doctor_add(struct findings *findings, const char *what, enum finding_state state, const char *format,
                              ...);
PD_PRINTF(2, 3)
void pd_doctor_limit(struct finding *finding, const char *format, ...);

/* doctor --gpu: of each of `count` GPUs what NVML says, and a copy's and a product's rate beside what the card should have. */
void pd_doctor_gpus(struct findings *findings, uint32_t count);
