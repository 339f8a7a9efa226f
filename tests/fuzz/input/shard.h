/* Shard files of an input. */
#pragma once

#include "ckpt/shard/table.h"

struct input_shard {
    unsigned char *bytes;                         /* (file_bytes) data, then the table, then the trailer's page */
    uint64_t data_bytes, table_bytes, file_bytes; /* whole pages */
    struct pd_shard_head *head;                   /* set by input_shard_seal, as all below */
    struct pd_identity identity;
    struct pd_shard_contents contents;
};

/* Makes right what digests there are over data and table, but for the blocks of compressed chunks, and adds the trailer. So
 * each number of the table is believed as far as it makes sense. */
void input_shard_seal(struct input_shard *shard);
