/* The I/O engine, and what a directory offers to checkpoints. */
#include "tools/doctor/findings.h"

#include "ckpt/store/probe.h"
#include "tools/output.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void find_engine(struct pd_findings *findings, const struct pd_vfs *vfs)
{
    const char *description = pd_vfs_describe(vfs);
    bool uring = strncmp(description, "io_uring", 8) == 0;
    struct pd_finding *f =
        pd_findings_add(findings, "i/o engine", uring ? PD_FINDING_OK : PD_FINDING_LIMITED, "%s", description);
    if (!uring) pd_finding_advise(f, "io_uring is faster");
}

static void find_features(struct pd_findings *findings, const struct pd_probe *probe)
{
    struct pd_finding *f = pd_findings_add(findings, "direct i/o", probe->is_direct ? PD_FINDING_OK : PD_FINDING_LIMITED,
                                           probe->is_direct ? "yes" : "refused: bytes go through the page cache");
    if (!probe->is_direct) pd_finding_advise(f, "checkpoints are slower here; a local ext4 or xfs takes it");
    f = pd_findings_add(findings, "hard links", probe->has_links ? PD_FINDING_OK : PD_FINDING_LIMITED,
                        probe->has_links ? "yes" : "refused: the index is copied into each checkpoint");
    f = pd_findings_add(findings, "locks", probe->has_locks ? PD_FINDING_OK : PD_FINDING_LIMITED, "%s",
                        !probe->has_locks   ? "refused"
                        : probe->is_network ? "yes, maybe of this host only"
                                            : "yes");
    if (!probe->has_locks || probe->is_network)
        pd_finding_advise(f, "only fences keep two launches apart here: do not start the same run twice");
    if (!probe->syncs_names) {
        f = pd_findings_add(findings, "synced names", PD_FINDING_LIMITED, "refused");
        pd_finding_advise(f, "after a power loss the newest checkpoint may be the one before");
    }
}

static void find_space(struct pd_findings *findings, const struct pd_space *space)
{
    struct pd_finding *f =
        pd_findings_add(findings, "file system", PD_FINDING_OK, "%s, %s, %s free", space->type_name,
                        pd_text_bytes(space->total_bytes).text, pd_text_bytes(space->available_bytes).text);
    if (space->in_memory)
        pd_finding_limit(f, "it is memory: checkpoints do not survive a reboot, and count against the memory limit");
    else if (space->total_inodes && space->available_inodes < 1000)
        pd_finding_limit(f, "only %s inodes are free", pd_text_count(space->available_inodes).text);
}

void pd_find_storage(struct pd_findings *findings, const char *dir)
{
    struct pd_vfs *vfs = NULL;
    struct pd_error err;
    struct pd_probe probe;
    struct pd_stat stat;
    char tag[32];
    if (pd_vfs_new_auto(&vfs, &err)) {
        struct pd_finding *f = pd_findings_add(findings, "i/o engine", PD_FINDING_MISSING, "none");
        pd_finding_advise(f, "%.190s", err.message);
        return;
    }
    find_engine(findings, vfs);
    snprintf(tag, sizeof tag, "doctor-%ld", (long)getpid());
    if (pd_probe_directory(vfs, dir, tag, &probe, &err)) {
        struct pd_finding *f = pd_findings_add(findings, "directory", PD_FINDING_MISSING, "%.190s", dir);
        if (pd_vfs_stat(vfs, dir, &stat, NULL) == PD_NOT_FOUND)
            pd_finding_advise(f, "it does not exist: mkdir -p %.150s", dir);
        else
            pd_finding_advise(f, "%.190s", err.message);
    } else {
        pd_findings_add(findings, "directory", PD_FINDING_OK, "%.190s", dir);
        find_space(findings, &probe.space);
        find_features(findings, &probe);
    }
    pd_vfs_free(vfs);
}
