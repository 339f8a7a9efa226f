/* The table of all configuration keys: used for reading, overriding, printing, comparing and suggestions. */
#pragma once

#include "ckpt/base/status.h"
#include "trainer/config/config.h"

enum pd_key_type {
    PD_KEY_STRING,
    PD_KEY_U32,
    PD_KEY_U64,
    PD_KEY_I64,
    PD_KEY_FLOAT,
    PD_KEY_DOUBLE,
    PD_KEY_BOOL,
    PD_KEY_WORD, /* an enum: words[value] */
    PD_KEY_LIST,
};

enum pd_key_suffix { PD_SUFFIX_NONE, PD_SUFFIX_COUNT, PD_SUFFIX_SIZE }; /* 10k steps are 10000; 8k tokens are 8192 */

struct pd_key {
    const char *name;
    enum pd_key_type type;
    size_t offset, count_offset; /* in struct pd_config, or in a list element; count_offset: lists */
    const char *initial;         /* default as text; NULL: from the preset (model), or empty */
    double low, high;            /* numbers: valid range, ends included unless open */
    bool low_open, high_open;
    const char *const *words; /* NULL-terminated */
    const struct pd_key_list *list;
    enum pd_key_suffix suffix;
    bool automatic; /* "auto" means 0, or the default if that is not a valid value */
    enum pd_resume_effect effect;
    const char *meaning; /* the comment beside it in --print-config */
};

/* Members of list elements. An element that is a single value sets the first member. */
struct pd_key_list {
    const char *is; /* for errors about an unknown member */
    const struct pd_key *members;
    uint32_t member_count, most;
    size_t bytes; /* of an element */
};

extern const struct pd_key pd_keys[];
extern const uint32_t pd_key_count;

/* The key called name (no indices), or NULL. */
const struct pd_key *pd_key_find(const char *name);
/* Whether there are keys below it: "optimizer". */
bool pd_key_is_section(const char *path);
/* The key of a path with indices and members, or NULL. */
const struct pd_key *pd_key_of_path(const char *path);
/* "unknown key ...; did you mean optimizer.lr?", by spelling or by other trainers' names (suggest.c). ret (bytes) */
void pd_key_suggest(const char *path, char *ret, size_t bytes);
struct pd_key_meaning {
    const char *key;  /* may include a value: numerics.precision=bf16; NULL: none */
    const char *said; /* if none: why, or NULL */
};
struct pd_key_meaning pd_key_meant(const char *path);

/* `path` may have an index and a member: data.train[0].path, restart.ranks[1]. Replaces the value.
 *   errors  PD_INVALID: unknown key, with the nearest one; expected and actual value */
PD_MUST_USE pd_status pd_key_set(struct pd_config *config, const char *path, const char *text, struct pd_error *err);
/* Empties a list before elements are added. */
void pd_key_clear_list(struct pd_config *config, const struct pd_key *key);
/* A scalar as text that pd_key_set reads back to the same bits. base: the configuration, or a list element. ret (bytes) */
void pd_key_text(const void *base, const struct pd_key *key, char *ret, size_t bytes);
/* Whether layout.auto decides it, whatever its value is; it is printed as "auto". */
bool pd_key_is_left(const struct pd_config *config, const struct pd_key *key);
#define PD_TIER_LEFT_OUT UINT64_MAX /* every and keep_every of a tier without them: "auto" */

/* Renamed or removed keys and values: one table for user input and for checkpoints. */
struct pd_renamed {
    const char *key;   /* without list indices: checkpoint.tiers[].replicas */
    const char *value; /* NULL: the key was renamed; else only this value */
    const char *now;   /* NULL: no replacement */
    const char *said;  /* NULL: "is now called `now`"; else the rest of the error sentence */
    bool is_accepted;  /* in user input it is read as `now`, with a warning */
};

/* The row of an old key, or of an old value of a current key; NULL: none. */
const struct pd_renamed *pd_renamed_find(const char *path, const char *value);
/* "checkpoint.tiers[].new" with the index of `path`.   ret (bytes) */
void pd_renamed_path(const struct pd_renamed *row, const char *path, char *ret, size_t bytes);
