/* One directory as all ranks see it: its path, who shares it, and what it supports. dir.c owns struct store_dir. */
#pragma once

#include "ckpt/group/group.h"
#include "ckpt/io/vfs.h"
#include "ckpt/store/paths.h"
#include <stdatomic.h>

#define STORE_PATH_MAX 4096u

/* A share is a shared-directory group: hosts that see the same directory. Its leader's rank, the lowest, is its name. */
struct store_dir {
    struct pd_vfs *vfs;
    struct pd_group *group;
    char root[STORE_PATH_MAX];
    uint32_t *host_of, *share_of; /* (group->size), owned */
    uint32_t *lead_of, *first_of; /* (group->size), owned: the lowest rank of each rank's host; scratch of dir.c */
    uint64_t *words;              /* (group->size) result of store_gather, owned */
    bool leads_host, leads_share;
    bool has_other_shares;
    bool is_local;  /* one host and no network file system: this launch may take over files of dead launches */
    bool has_links; /* found by this host's probe */
    /* Threads that save or replicate set these while syncing directories. Each changes once, and orders nothing else. */
    _Atomic bool syncs_names; /* true until the file system refuses to sync directories */
    _Atomic bool
        may_bring_back; /* a directory sync failed: after a power loss old names may return, even if later syncs succeed */
};

/* Makes a path absolute, without trailing slashes. */
PD_MUST_USE pd_status store_absolute(const char *path, char ret_path[STORE_PATH_MAX], struct pd_error *err);

/* Collective. Every host is a share of its own until store_dir_share. */
PD_MUST_USE pd_status store_dir_open(struct store_dir *dir, struct pd_vfs *vfs, struct pd_group *group, const char *root,
                                     struct pd_error *err);
void store_dir_close(struct store_dir *dir);
/* Collective: the leader of each host passes the host whose directory it sees. */
PD_MUST_USE pd_status store_dir_share(struct store_dir *dir, uint32_t host, struct pd_error *err);
/* Leaders of hosts create the last part of the path if it is absent. On return it is durable, as far as the file system
 * can, even if somebody else has just created it. */
PD_MUST_USE pd_status store_dir_make(const struct store_dir *dir, struct pd_error *err);
/* Collective: every host tries every operation of a save in `path`. */
PD_MUST_USE pd_status store_dir_probe(struct store_dir *dir, const char *path, struct pd_error *err);
/* Takes a lock, waiting up to `wait_ms`. PD_OK and NULL: this file system has no locks, which the probe logs. */
PD_MUST_USE pd_status store_dir_lock(const struct store_dir *dir, const char *path, uint32_t wait_ms,
                                     struct pd_lock **ret_lock, struct pd_error *err);

/* "<root>/<formatted>". */
struct store_text {
    char text[STORE_PATH_MAX];
};
struct store_text store_at(const struct store_dir *dir, const char *format, ...) PD_PRINTF(2, 3);
bool store_exists(const struct store_dir *dir, const char *path);  /* also if that cannot be determined */
bool store_is_link(const struct store_dir *dir, const char *path); /* true for a symbolic link */
/* Sums the files in the directory at `path`, or those that `counts` accepts; 0 if it cannot be listed. */
uint64_t store_bytes_in(const struct store_dir *dir, const char *path,
                        bool (*counts)(const struct store_dir *dir, const char *file));
/* Makes a hard link. PD_UNSUPPORTED: links are refused here, or for this file, so copy it; no message if the probe
 * already found that. */
PD_MUST_USE pd_status store_link(const struct store_dir *dir, const char *from, const char *to, struct pd_error *err);
/* Turns PD_EXISTS of a file system into PD_IO: it proves nothing. Only code that has looked returns PD_EXISTS. */
static inline pd_status store_as_storage(pd_status st, struct pd_error *err)
{
    return st == PD_EXISTS ? pd_error_change(err, PD_IO) : st;
}
/* Opens a directory at or below the root for removing (ckpt/io/vfs.h). Follows no symbolic link below the root. */
PD_MUST_USE pd_status store_open_below(const struct store_dir *dir, const char *path, struct pd_dir **ret_dir,
                                       struct pd_error *err);
/* Syncs a directory if the file system supports it. */
PD_MUST_USE pd_status store_sync_dir(struct store_dir *dir, const char *path, struct pd_error *err);
/* Removes our files of a checkpoint directory, then the directory; foreign files stay. If its old name may come back, the
 * removal mark goes last, durably. */
PD_MUST_USE pd_status store_remove_files(const struct store_dir *dir, const char *path, struct pd_error *err);

/* ---- small files, read and written whole ---- */

/* *ret_data is malloc'ed, the caller's. PD_CORRUPT: longer than `bytes_max`. */
PD_MUST_USE pd_status store_file_read(struct pd_vfs *vfs, const char *path, uint64_t bytes_max, void **ret_data,
                                      uint64_t *ret_bytes, struct pd_error *err);

enum store_file_end {
    STORE_FILE_LEAVE,    /* bytes after the data stay, and nothing is synced */
    STORE_FILE_SYNC,     /* the data is durable, its name need not be */
    STORE_FILE_CUT_SYNC, /* the same, and the file is truncated after it */
};
/* Opens with PD_OPEN_WRITE | flags and writes `bytes` (may be 0) of `data` at the start. */
PD_MUST_USE pd_status store_file_write(struct pd_vfs *vfs, const char *path, unsigned flags, const void *data,
                                       uint64_t bytes, enum store_file_end end, struct pd_error *err);

/* ---- small collectives ---- */

/* Collective: gathers one word of every rank into dir->words, on every rank. */
PD_MUST_USE pd_status store_gather(struct store_dir *dir, uint64_t mine, struct pd_error *err);
/* Collective: *ret_most is the maximum over all ranks. */
PD_MUST_USE pd_status store_gather_most(struct store_dir *dir, uint64_t mine, uint64_t *ret_most, struct pd_error *err);
/* Collective: broadcasts the bytes of rank `from`. `mine`: whether this rank has them. Frees them on failure. */
PD_MUST_USE pd_status store_spread(const struct store_dir *dir, uint32_t from, pd_status mine, void **data, uint64_t *bytes,
                                   struct pd_error *err);
