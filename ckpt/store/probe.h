/* Tests what a directory supports by doing each operation once on a file of its own. */
#pragma once

#include "ckpt/io/vfs.h"

struct pd_probe {
    bool has_links;   /* if false, the index is copied */
    bool has_locks;   /* if false, only fences keep two launches apart */
    bool is_direct;   /* if false, I/O goes through the page cache */
    bool syncs_names; /* if false, a power loss may remove names that were reported durable */
    bool is_network;  /* or unknown: a lock may exclude only this host */
    struct pd_space space;
};

/* Creates, writes, syncs, renames, links, locks and unlinks "<dir>/probe-<tag>…". *ret_probe lists the optional features.
 * If anything else is refused, the error says which user tried what, where, and what to do about it. */
PD_MUST_USE pd_status pd_probe_directory(struct pd_vfs *vfs, const char *dir, const char *tag, struct pd_probe *ret_probe,
                                         struct pd_error *err);
/* Adds our user and a remedy to a permission error about `dir`; leaves other errors alone. */
pd_status pd_probe_explain(struct pd_error *err, pd_status status, const char *dir);
