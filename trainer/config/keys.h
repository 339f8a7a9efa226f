/* Every key of the configuration in one table: it drives reading, overriding, printing, comparing and suggestions. */
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
    size_t offset, count_offset; /* in struct pd_config, or in an element of a list; count_offset of lists */
    const char *initial;         /* text of the default; NULL: the preset's (model), or empty */
    double low, high;            /* numbers: admitted range, both included unless open */
    bool low_open, high_open;
    const char *const *words; /* NULL-terminated */
    const struct pd_key_list *list;
    enum pd_key_suffix suffix;
    bool automatic; /* "auto" is read as 0, or as what is no value where that is the default */
    enum pd_resume_effect effect;
    const char *meaning; /* the comment beside it in --print-config */
};

/* What the elements of a list have. One that is a single value is its first member. */
struct pd_key_list {
    const char *is; /* for who names another member */
    const struct pd_key *members;
    uint32_t member_count, most;
    size_t bytes; /* of an element */
};

extern const struct pd_key pd_keys[];
extern const uint32_t pd_key_count;

/* The key called name (no indices), or NULL. */
const struct pd_key *pd_key_find(const char *name);
/* Whether keys lie below it: "optimizer". */
bool pd_key_is_section(const char *path);
/* The key that a path with indices and members belongs to, or NULL. */
const struct pd_key *pd_key_of_path(const char *path);
/* "unknown key ...; did you mean optimizer.lr?", by spelling or by what other trainers call it (suggest.c).   ret (bytes) */
void pd_key_suggest(const char *path, char *ret, size_t bytes);
struct pd_key_meaning {
    const char *key;  /* perhaps with its value: numerics.precision=bf16; NULL: there is none */
    const char *said; /* then: why, or NULL */
};
struct pd_key_meaning pd_key_meant(const char *path);

/* `path` may carry an index and a member: data.train[0].path, restart.ranks[1]. The value replaces what was there.
 *   errors  PD_INVALID: unknown key with the nearest one; what was expected and what is there */
PD_MUST_USE pd_status pd_key_set(struct pd_config *config, const char *path, const char *text, struct pd_error *err);
/* Empties a list before its elements come. */
void pd_key_clear_list(struct pd_config *config, const struct pd_key *key);
/* The value of a scalar as text that pd_key_set reads back to the same bits. base: the configuration, or an element of a
 * list.   ret (bytes) */
void pd_key_text(const void *base, const struct pd_key *key, char *ret, size_t bytes);
/* To layout.auto, whatever its value is: "auto" is read back so. */
bool pd_key_is_left(const struct pd_config *config, const struct pd_key *key);
#define PD_TIER_LEFT_OUT UINT64_MAX /* every and keep_every of a tier that does not name them: "auto" */

/* Keys and values that once had another name, or are gone: one table for who types them and for what a checkpoint carries. */
struct pd_renamed {
    const char *key;   /* the index of a list left out: checkpoint.tiers[].replicas */
    const char *value; /* NULL: the key itself was renamed, else only this value of it */
    const char *now;   /* NULL: nothing has taken its place */
    const char *said;  /* NULL: "is now called `now`"; else the rest of the sentence that refuses it */
    bool is_accepted;  /* what a user wrote is taken as `now`, with a warning */
};

/* The row of an old key, or of an old value of a key that is still there; NULL: none. */
const struct pd_renamed *pd_renamed_find(const char *path, const char *value);
/* "checkpoint.tiers[].new" with the index of `path`.   ret (bytes) */
void pd_renamed_path(const struct pd_renamed *row, const char *path, char *ret, size_t bytes);
