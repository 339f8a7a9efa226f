/* What a directory offers to a store, found by doing each thing once in a file of its own. */
#pragma once

#include "ckpt/io/vfs.h"

struct pd_probe {
    bool has_links;   /* without: the index is copied */
    bool has_locks;   /* without: only fences keep two launches apart */
    bool is_direct;   /* without: bytes go through the page cache */
    bool syncs_names; /* without: a power loss may take names that were reported durable */
    bool is_network;  /* or unknown: a lock may exclude only this host */
    struct pd_space space;
};

/* Creates, writes, syncs, renames, links, locks and unlinks "<dir>/probe-<tag>…". What a store can do without is reported in
 * *ret_probe; anything else that is refused is an error that says who asked for what, where, and what to do about it. */
PD_MUST_USE pd_status pd_probe_directory(struct pd_vfs *vfs, const char *dir, const char *tag, struct pd_probe *ret_probe,
                                         struct pd_error *err);
/* Adds who we are and what to do to an error about `dir` that permissions caused; other errors are left alone. */
pd_status pd_probe_explain(struct pd_error *err, pd_status status, const char *dir);
