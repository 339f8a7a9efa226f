/* An open shard, as reading and scanning share it. */
#ifndef PD_CKPT_SHARD_OPEN_H
#define PD_CKPT_SHARD_OPEN_H

#include "ckpt/shard_table.h"

struct pd_shard {
    struct pd_door *door;
    char *path;
    struct pd_file *file;
    uint64_t file_bytes;
    struct pd_identity identity;
    struct pd_shard_trailer trailer;
    unsigned char *table;      /* (trailer.table_bytes), verified */
    const uint64_t *checksums; /* inside the table */
    struct pd_shard_contents contents;
    struct pd_shard_map map;
    uint64_t *box_seeds;   /* (contents.box_count) */
    unsigned char *bounce; /* aligned; makes reading single blocks a matter of one thread */
};

/* Metadata and shared pages against the digest in the table. */
PD_MUST_USE pd_status pd_shard_verify_rest(struct pd_shard *shard, struct pd_error *err);

#endif
