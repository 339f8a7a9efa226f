#include "ckpt/store/paths.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void pd_step_name_format(const struct pd_step_name *name, char ret_text[PD_STORE_NAME_MAX])
{
    snprintf(ret_text, PD_STORE_NAME_MAX, "step-%012" PRIu64 "-%" PRIu64 "%s", name->step, name->fence,
             name->is_tmp ? ".tmp" : "");
}

/* Each parser scans generously and takes only what formats back to exactly the same text. */

bool pd_step_name_parse(const char *text, struct pd_step_name *ret_name)
{
    struct pd_step_name name = {.is_tmp = strchr(text, '.') != NULL};
    char again[PD_STORE_NAME_MAX];
    if (sscanf(text, "step-%" SCNu64 "-%" SCNu64, &name.step, &name.fence) != 2) return false;
    pd_step_name_format(&name, again);
    if (strcmp(again, text) != 0) return false;
    *ret_name = name;
    return true;
}

bool pd_numbered_name_parse(const char *text, const char *prefix, uint64_t *ret_number)
{
    const size_t length = strlen(prefix);
    char again[PD_STORE_NAME_MAX];
    uint64_t number;
    if (strncmp(text, prefix, length) != 0 || sscanf(text + length, "%" SCNu64, &number) != 1) return false;
    snprintf(again, sizeof again, "%s%" PRIu64, prefix, number);
    if (strcmp(again, text) != 0) return false;
    *ret_number = number;
    return true;
}

void pd_shard_name_format(uint32_t rank, char ret_text[PD_STORE_NAME_MAX])
{
    snprintf(ret_text, PD_STORE_NAME_MAX, "shard-%05" PRIu32 ".h5", rank);
}

bool pd_shard_name_parse(const char *text, uint32_t *ret_rank)
{
    uint64_t rank;
    char again[PD_STORE_NAME_MAX];
    if (sscanf(text, "shard-%" SCNu64, &rank) != 1) return false;
    pd_shard_name_format((uint32_t)rank, again);
    if (rank > UINT32_MAX || strcmp(again, text) != 0) return false;
    *ret_rank = (uint32_t)rank;
    return true;
}

/* Names of a rank's files in a pool: `scan` and `format` read and write the same two numbers. */
static bool parse_pair(const char *text, const char *scan, void (*format)(uint32_t, uint32_t, char *), uint32_t *ret_rank,
                       uint32_t *ret_number)
{
    uint64_t rank, number;
    char again[PD_STORE_NAME_MAX];
    if (sscanf(text, scan, &rank, &number) != 2 || rank > UINT32_MAX || number > UINT32_MAX) return false;
    format((uint32_t)rank, (uint32_t)number, again);
    if (strcmp(again, text) != 0) return false;
    *ret_rank = (uint32_t)rank;
    *ret_number = (uint32_t)number;
    return true;
}

void pd_recycle_name_format(uint32_t rank, uint32_t k, char ret_text[PD_STORE_NAME_MAX])
{
    snprintf(ret_text, PD_STORE_NAME_MAX, "recycle-%05" PRIu32 "-%" PRIu32, rank, k);
}

bool pd_recycle_name_parse(const char *text, uint32_t *ret_rank, uint32_t *ret_k)
{
    return parse_pair(text, "recycle-%" SCNu64 "-%" SCNu64, pd_recycle_name_format, ret_rank, ret_k);
}

void pd_generation_name_format(uint32_t rank, uint32_t slot, char ret_text[PD_STORE_NAME_MAX])
{
    snprintf(ret_text, PD_STORE_NAME_MAX, "generation-%05" PRIu32 "-%" PRIu32 ".h5", rank, slot);
}

bool pd_generation_name_parse(const char *text, uint32_t *ret_rank, uint32_t *ret_slot)
{
    return parse_pair(text, "generation-%" SCNu64 "-%" SCNu64, pd_generation_name_format, ret_rank, ret_slot);
}

bool pd_store_owns_file(const char *text)
{
    static const char *const names[] = {"commit.h5", "index.h5", PD_STORE_REMOVED, PD_STORE_DAMAGED_NOTE,
                                        PD_STORE_UNRECORDED_NOTE};
    uint32_t rank;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(text, names[i]) == 0) return true;
    return pd_shard_name_parse(text, &rank);
}
