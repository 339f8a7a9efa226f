/* Copies one shard file byte for byte and verifies it: from tier to tier, and where a file cannot be linked.
 *
 * Every block is checked against the source's table between its read and its write. Metadata, table and small boxes are
 * checked in the new file after its sync. Several reads and writes are in flight at once.
 *   threads  one caller a copy
 *   memory   `buffers`; tables of the shard while it runs, 8 bytes a block */
#pragma once

#include "ckpt/shard/shard.h"
#include <stdatomic.h>

struct pd_shard_copy {
    const char *from, *to;                 /* `to` is created, or overwritten in place */
    const struct pd_identity *identity;    /* of the source */
    const struct pd_shard_summary *expect; /* of the source, from its commit record; NULL: use the source's own */
    void *buffers;                         /* (buffer_bytes) aligned to PD_VFS_ALIGN, at least 1 MiB */
    uint64_t buffer_bytes;
    uint64_t bytes_per_second; /* 0: no cap */
    const atomic_bool *stop;   /* checked between pieces; may be NULL */
};

/* PD_OK: the content of `to` is complete and durable, its name is not. After any error unlink `to`; never reuse it.
 *   errors  PD_CORRUPT: the source is damaged; PD_STOPPED; PD_NO_SPACE, PD_IO: either file, named */
PD_MUST_USE pd_status pd_shard_copy_with(struct pd_vfs *vfs, const struct pd_shard_copy *copy, struct pd_error *err);

/* The same without cap and stop. */
PD_MUST_USE pd_status pd_shard_copy(struct pd_vfs *vfs, const char *from, const char *to, const struct pd_identity *identity,
                                    void *buffers, uint64_t buffer_bytes, struct pd_error *err);
