/* One directory as all ranks see it: where it is, who shares it, what can be done there. Owner of struct store_dir: dir.c. */
#pragma once

#include "ckpt/group/group.h"
#include "ckpt/io/vfs.h"
#include "ckpt/store/paths.h"
#include <stdatomic.h>

#define STORE_PATH_MAX 4096u

/* A share is a shared-directory group: the hosts that see the same directory. Its name is its lowest rank, which leads it. */
struct store_dir {
    struct pd_vfs *vfs;
    struct pd_group *group;
    char root[STORE_PATH_MAX];
    uint32_t *host_of, *share_of; /* (group->size), owned */
    uint32_t *lead_of, *first_of; /* (group->size), owned: the lowest rank of a rank's host; scratch of dir.c */
    uint64_t *words;              /* (group->size) of store_gather, owned */
    bool leads_host, leads_share;
    bool has_other_shares;
    bool is_local;  /* one host and no network file system: files of dead launches may be taken over */
    bool has_links; /* as the probe of this host found */
    /* Saves and replicas sync directories in threads of their own. Both change once, and order nothing else. */
    _Atomic bool syncs_names; /* until the file system says that it cannot */
    _Atomic bool
        may_bring_back; /* a directory sync failed: a power loss may bring names back, whatever later syncs answer */
};

/* From the root of the file system, without slashes at its end. */
PD_MUST_USE pd_status store_absolute(const char *path, char ret_path[STORE_PATH_MAX], struct pd_error *err);

/* Collective. Until store_dir_share says otherwise every host is a share of its own. */
PD_MUST_USE pd_status store_dir_open(struct store_dir *dir, struct pd_vfs *vfs, struct pd_group *group, const char *root,
                                     struct pd_error *err);
void store_dir_close(struct store_dir *dir);
/* Collective: leaders of hosts give the host whose directory they see. */
PD_MUST_USE pd_status store_dir_share(struct store_dir *dir, uint32_t host, struct pd_error *err);
/* Leaders of hosts make the last part of the path when it is absent. Durable on return, as far as the file system can: also a
 * directory that somebody else made a moment ago. */
PD_MUST_USE pd_status store_dir_make(const struct store_dir *dir, struct pd_error *err);
/* Collective: every host tries in `path` what a save will need. */
PD_MUST_USE pd_status store_dir_probe(struct store_dir *dir, const char *path, struct pd_error *err);
/* A lock that nobody holds within `wait_ms`. PD_OK and NULL: this file system has none, which the probe logs. */
PD_MUST_USE pd_status store_dir_lock(const struct store_dir *dir, const char *path, uint32_t wait_ms,
                                     struct pd_lock **ret_lock, struct pd_error *err);

/* "<root>/<formatted>". */
struct store_text {
    char text[STORE_PATH_MAX];
};
struct store_text store_at(const struct store_dir *dir, const char *format, ...) PD_PRINTF(2, 3);
bool store_exists(const struct store_dir *dir, const char *path);  /* or cannot be told */
bool store_is_link(const struct store_dir *dir, const char *path); /* symbolic */
/* Of the files in the directory at `path`, or of those that `counts` picks; 0: it cannot be listed. */
uint64_t store_bytes_in(const struct store_dir *dir, const char *path,
                        bool (*counts)(const struct store_dir *dir, const char *file));
/* A further name. PD_UNSUPPORTED: refused here, or for this file, so that it has to be copied; without a message where the
 * probe has found that. */
PD_MUST_USE pd_status store_link(const struct store_dir *dir, const char *from, const char *to, struct pd_error *err);
/* A file system's word that a name exists is no verdict: only what has looked says PD_EXISTS. */
static inline pd_status store_as_storage(pd_status st, struct pd_error *err)
{
    return st == PD_EXISTS ? pd_error_change(err, PD_IO) : st;
}
/* Opens a directory at or below the root for removing (ckpt/io/vfs.h); below the root nothing may be a symbolic link. */
PD_MUST_USE pd_status store_open_below(const struct store_dir *dir, const char *path, struct pd_dir **ret_dir,
                                       struct pd_error *err);
/* A directory sync where the file system knows it. */
PD_MUST_USE pd_status store_sync_dir(struct store_dir *dir, const char *path, struct pd_error *err);
/* Removes our files of a checkpoint directory, then it; what is not ours stays. Where its old name may come back the mark of
 * its removal goes after the other files, durably. */
PD_MUST_USE pd_status store_remove_files(const struct store_dir *dir, const char *path, struct pd_error *err);

/* ---- small files, read and written as a whole ---- */

/* *ret_data is malloc'ed, the caller's. PD_CORRUPT: longer than `bytes_max`. */
PD_MUST_USE pd_status store_file_read(struct pd_vfs *vfs, const char *path, uint64_t bytes_max, void **ret_data,
                                      uint64_t *ret_bytes, struct pd_error *err);

enum store_file_end {
    STORE_FILE_LEAVE,    /* what follows the data stays, and nothing is synced */
    STORE_FILE_SYNC,     /* the data is durable, its name need not be */
    STORE_FILE_CUT_SYNC, /* and the file ends behind it */
};
/* Opens with PD_OPEN_WRITE | flags and writes `bytes` of `data` (none: 0) at the start. */
PD_MUST_USE pd_status store_file_write(struct pd_vfs *vfs, const char *path, unsigned flags, const void *data,
                                       uint64_t bytes, enum store_file_end end, struct pd_error *err);

/* ---- small collectives ---- */

/* Collective: the word of every rank, in dir->words on every rank. */
PD_MUST_USE pd_status store_gather(struct store_dir *dir, uint64_t mine, struct pd_error *err);
/* Collective: *ret_most is the largest word of any rank. */
PD_MUST_USE pd_status store_gather_most(struct store_dir *dir, uint64_t mine, uint64_t *ret_most, struct pd_error *err);
/* Collective: the bytes that rank `from` has, on every rank. `mine`: whether it has them. On failure they are freed. */
PD_MUST_USE pd_status store_spread(const struct store_dir *dir, uint32_t from, pd_status mine, void **data, uint64_t *bytes,
                                   struct pd_error *err);
