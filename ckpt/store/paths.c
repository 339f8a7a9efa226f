#include "ckpt/store/paths.h"

#include "ckpt/base/status.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static struct pd_store_name name_of(const char *format, ...) PD_PRINTF(1, 2);
static struct pd_store_name name_of(const char *format, ...)
{
    struct pd_store_name name;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name.text, sizeof name.text, format, arguments);
    va_end(arguments);
    return name;
}

struct pd_store_name pd_step_name_text(const struct pd_step_name *name)
{
    return name_of("step-%012" PRIu64 "-%" PRIu64 "%s", name->step, name->fence, name->is_tmp ? ".tmp" : "");
}

/* Each parser scans loosely, then accepts only text that formats back to exactly itself. */

bool pd_step_name_parse(const char *text, struct pd_step_name *ret_name)
{
    struct pd_step_name name = {.is_tmp = strchr(text, '.') != NULL};
    if (sscanf(text, "step-%" SCNu64 "-%" SCNu64, &name.step, &name.fence) != 2) return false;
    if (strcmp(pd_step_name_text(&name).text, text) != 0) return false;
    if (name.step > PD_STORE_NUMBER_MAX || name.fence > PD_STORE_NUMBER_MAX) return false;
    *ret_name = name;
    return true;
}

bool pd_numbered_name_parse(const char *text, const char *prefix, uint64_t *ret_number)
{
    const size_t length = strlen(prefix);
    uint64_t number;
    if (strncmp(text, prefix, length) != 0 || sscanf(text + length, "%" SCNu64, &number) != 1) return false;
    if (strcmp(name_of("%s%" PRIu64, prefix, number).text, text) != 0) return false;
    *ret_number = number;
    return true;
}

struct pd_store_name pd_shard_name(uint32_t number)
{
    return name_of("shard-%05" PRIu32 ".h5", number);
}

bool pd_shard_name_parse(const char *text, uint32_t *ret_rank)
{
    uint64_t rank;
    if (sscanf(text, "shard-%" SCNu64, &rank) != 1) return false;
    if (rank > UINT32_MAX || strcmp(pd_shard_name((uint32_t)rank).text, text) != 0) return false;
    *ret_rank = (uint32_t)rank;
    return true;
}

/* Parses names of a rank's files in a pool: `scan` and `format` read and write the same two numbers. */
static bool parse_pair(const char *text, const char *scan, struct pd_store_name (*format)(uint32_t, uint32_t),
                       uint32_t *ret_rank, uint32_t *ret_number)
{
    uint64_t rank, number;
    if (sscanf(text, scan, &rank, &number) != 2 || rank > UINT32_MAX || number > UINT32_MAX) return false;
    if (strcmp(format((uint32_t)rank, (uint32_t)number).text, text) != 0) return false;
    *ret_rank = (uint32_t)rank;
    *ret_number = (uint32_t)number;
    return true;
}

struct pd_store_name pd_recycle_name(uint32_t rank, uint32_t k)
{
    return name_of("recycle-%05" PRIu32 "-%" PRIu32, rank, k);
}

bool pd_recycle_name_parse(const char *text, uint32_t *ret_rank, uint32_t *ret_k)
{
    return parse_pair(text, "recycle-%" SCNu64 "-%" SCNu64, pd_recycle_name, ret_rank, ret_k);
}

struct pd_store_name pd_generation_name(uint32_t rank, uint32_t slot)
{
    return name_of("generation-%05" PRIu32 "-%" PRIu32 ".h5", rank, slot);
}

bool pd_generation_name_parse(const char *text, uint32_t *ret_rank, uint32_t *ret_slot)
{
    return parse_pair(text, "generation-%" SCNu64 "-%" SCNu64, pd_generation_name, ret_rank, ret_slot);
}

bool pd_store_owns_file(const char *text)
{
    static const char *const names[] = {"commit.h5", "index.h5", PD_STORE_REMOVED, PD_STORE_DAMAGED_NOTE};
    uint32_t rank;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(text, names[i]) == 0) return true;
    return pd_shard_name_parse(text, &rank);
}
