/* Formats and parses the names in a store. A name that does not parse back to exactly itself is foreign: ignored, kept. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define PD_STORE_NAME_MAX 64u
#define PD_STORE_NUMBER_MAX UINT64_C(1000000000000000) /* most steps and fences; a name with a higher number is foreign */

struct pd_store_name { /* returned by value */
    char text[PD_STORE_NAME_MAX];
};

struct pd_step_name {
    uint64_t step, fence;
    bool is_tmp; /* "….tmp": being prepared */
};

struct pd_store_name pd_step_name_text(const struct pd_step_name *name);
bool pd_step_name_parse(const char *text, struct pd_step_name *ret_name);
/* "<prefix><number>", such as fence-7 or pool-7. */
bool pd_numbered_name_parse(const char *text, const char *prefix, uint64_t *ret_number);
/* "shard-00007.h5" */
struct pd_store_name pd_shard_name(uint32_t number);
bool pd_shard_name_parse(const char *text, uint32_t *ret_rank);
/* "recycle-00007-1": the k-th free file of rank 7. */
struct pd_store_name pd_recycle_name(uint32_t rank, uint32_t k);
bool pd_recycle_name_parse(const char *text, uint32_t *ret_rank, uint32_t *ret_k);
/* "generation-00007-2.h5": the file that rank 7 uses in slot 2. */
struct pd_store_name pd_generation_name(uint32_t rank, uint32_t slot);
bool pd_generation_name_parse(const char *text, uint32_t *ret_rank, uint32_t *ret_slot);
/* Removing a checkpoint renames commit.h5 to this: this store has removed it on purpose. */
#define PD_STORE_REMOVED "removed.h5"
/* Says why a directory was quarantined. */
#define PD_STORE_DAMAGED_NOTE "reason.txt"
/* True for names of our files inside a checkpoint directory. */
bool pd_store_owns_file(const char *text);
