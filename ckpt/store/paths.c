#include "ckpt/store/paths.h"

#include "ckpt/base/parse.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void pd_step_name_format(const struct pd_step_name *name, char ret_text[PD_STORE_NAME_MAX])
{
    snprintf(ret_text, PD_STORE_NAME_MAX, "step-%012" PRIu64 "-%" PRIu64 "%s", name->step, name->fence,
             name->is_tmp ? ".tmp" : "");
}

/* Numbers out of a name: digits up to `end` (0: the end of the text). */
static bool take_number(const char **cursor, char end, uint64_t *ret)
{
    char digits[24];
    size_t length = strspn(*cursor, "0123456789");
    if (length == 0 || length >= sizeof digits || (*cursor)[length] != end) return false;
    memcpy(digits, *cursor, length);
    digits[length] = 0;
    *cursor += length + (end != 0);
    return pd_parse_u64(digits, ret);
}

static bool take_prefix(const char **cursor, const char *prefix)
{
    size_t length = strlen(prefix);
    if (strncmp(*cursor, prefix, length) != 0) return false;
    *cursor += length;
    return true;
}

bool pd_step_name_parse(const char *text, struct pd_step_name *ret_name)
{
    const char *cursor = text, *dot = strchr(text, '.');
    struct pd_step_name name = {.is_tmp = dot != NULL};
    if (!take_prefix(&cursor, "step-") || !take_number(&cursor, '-', &name.step)) return false;
    if (!take_number(&cursor, dot ? '.' : 0, &name.fence)) return false;
    char again[PD_STORE_NAME_MAX];
    pd_step_name_format(&name, again);
    if (strcmp(again, text) != 0) return false;
    *ret_name = name;
    return true;
}

bool pd_numbered_name_parse(const char *text, const char *prefix, uint64_t *ret_number)
{
    const char *cursor = text;
    uint64_t number;
    if (!take_prefix(&cursor, prefix) || !take_number(&cursor, 0, &number)) return false;
    char again[PD_STORE_NAME_MAX];
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
    const char *cursor = text;
    uint64_t rank;
    if (!take_prefix(&cursor, "shard-") || !take_number(&cursor, '.', &rank) || rank > UINT32_MAX) return false;
    char again[PD_STORE_NAME_MAX];
    pd_shard_name_format((uint32_t)rank, again);
    if (strcmp(again, text) != 0) return false;
    *ret_rank = (uint32_t)rank;
    return true;
}

void pd_recycle_name_format(uint32_t rank, uint32_t k, char ret_text[PD_STORE_NAME_MAX])
{
    snprintf(ret_text, PD_STORE_NAME_MAX, "recycle-%05" PRIu32 "-%" PRIu32, rank, k);
}

/* "<prefix><rank>-<number><suffix>" */
static bool take_pair(const char *text, const char *prefix, char end, uint32_t *ret_rank, uint32_t *ret_number)
{
    const char *cursor = text;
    uint64_t rank, number;
    if (!take_prefix(&cursor, prefix) || !take_number(&cursor, '-', &rank) || !take_number(&cursor, end, &number))
        return false;
    if (rank > UINT32_MAX || number > UINT32_MAX) return false;
    *ret_rank = (uint32_t)rank;
    *ret_number = (uint32_t)number;
    return true;
}

bool pd_recycle_name_parse(const char *text, uint32_t *ret_rank, uint32_t *ret_k)
{
    uint32_t rank, k;
    char again[PD_STORE_NAME_MAX];
    if (!take_pair(text, "recycle-", 0, &rank, &k)) return false;
    pd_recycle_name_format(rank, k, again);
    if (strcmp(again, text) != 0) return false;
    *ret_rank = rank;
    *ret_k = k;
    return true;
}

void pd_generation_name_format(uint32_t rank, uint32_t slot, char ret_text[PD_STORE_NAME_MAX])
{
    snprintf(ret_text, PD_STORE_NAME_MAX, "generation-%05" PRIu32 "-%" PRIu32 ".h5", rank, slot);
}

bool pd_generation_name_parse(const char *text, uint32_t *ret_rank, uint32_t *ret_slot)
{
    uint32_t rank, slot;
    char again[PD_STORE_NAME_MAX];
    if (!take_pair(text, "generation-", '.', &rank, &slot)) return false;
    pd_generation_name_format(rank, slot, again);
    if (strcmp(again, text) != 0) return false;
    *ret_rank = rank;
    *ret_slot = slot;
    return true;
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
