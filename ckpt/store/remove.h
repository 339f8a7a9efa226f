/* Removes checkpoints (record first), quarantines them, and, at open, acts on what the scan found. */
#pragma once

#include "ckpt/store/files.h"
#include "ckpt/store/scan.h"

/* Collective: removes the record on every host, then the directory. With `recycle` every rank keeps its files. */
PD_MUST_USE pd_status store_remove(struct store_files *files, const char *name, bool recycle, struct pd_error *err);
/* Leaders: clears a directory without a valid record anywhere. If it holds foreign files, they and the directory stay. */
PD_MUST_USE pd_status store_clear_dir(struct store_files *files, const char *name, struct pd_error *err);

/* ---- quarantine.c ---- */

/* Leaders: moves <root>/<name> into the quarantine, writes `reason` into a file beside it, and enforces the cap. */
PD_MUST_USE pd_status store_quarantine_here(struct store_files *files, const char *name, const char *reason,
                                            uint64_t bytes_max, struct pd_error *err);
/* Collective: the maximum over hosts. */
PD_MUST_USE pd_status store_quarantine_count(struct store_dir *root, uint32_t *ret_count, struct pd_error *err);

/* ---- recover.c ---- */

/* Collective: rolls committed ones forward, clears uncommitted ones, quarantines damaged ones, and fills the catalog. */
PD_MUST_USE pd_status store_recover(struct store_files *files, const struct pd_store_options *options,
                                    const struct store_scan *scan, struct store_catalog *catalog, struct pd_error *err);
