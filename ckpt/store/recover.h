/* Acting on a scan at open: every state leads to one of roll forward, clear, move aside, report. Invariant 4 of store.c. */
#ifndef PD_CKPT_STORE_RECOVER_H
#define PD_CKPT_STORE_RECOVER_H

#include "ckpt/store/drives.h"
#include "ckpt/store/scan.h"

/* Collective: rolls committed ones forward, clears what was never committed, moves the damaged aside, fills the catalog. */
PD_MUST_USE pd_status store_recover(struct store_drives *drives, const struct pd_store_options *options,
                                    const struct store_scan *scan, struct store_catalog *catalog, struct pd_error *err);

#endif
