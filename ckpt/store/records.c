/* Checks whether records belong to the shards beside them. A load would find out, but records alone decide earlier which
 * run a directory belongs to. So with records of several runs, each is checked against the shards of its directory. */
#include "ckpt/store/scan.h"

#include "ckpt/store/commit.h"

#include <stdio.h>
#include <string.h>

static bool has_several_runs(const struct store_scan *scan)
{
    const struct store_state *first = NULL;
    for (uint32_t i = 0; i < scan->state_count; i++) {
        if (!store_state_has_record(&scan->states[i])) continue;
        if (!first) first = &scan->states[i];
        if (memcmp(first->run_id, scan->states[i].run_id, sizeof first->run_id) != 0) return true;
    }
    return false;
}

/* Returns what this leader sees. */
static bool has_other_shards(const struct store_dir *dir, const struct store_scan *scan, const struct store_state *state)
{
    struct pd_commit commit = {0};
    const struct pd_store_name name = store_state_name(state, !store_scan_find(scan, state, false));
    if (pd_commit_read(dir->vfs, store_at(dir, "%s/commit.h5", name.text).text, &commit, NULL) != PD_OK) return false;
    const bool differs = store_has_other_shards(dir, store_at(dir, "%s", name.text).text, &commit);
    pd_commit_deinit(&commit);
    return differs;
}

pd_status store_scan_check_records(struct store_dir *dir, struct store_scan *scan, struct pd_error *err)
{
    if (!has_several_runs(scan)) return PD_OK;
    for (uint32_t i = 0; i < scan->state_count; i++) {
        struct store_state *state = &scan->states[i];
        uint64_t differs = 0;
        if (!store_state_has_record(state)) continue;
        PD_TRY(store_gather_most(dir, dir->leads_share && has_other_shards(dir, scan, state), &differs, err));
        if (!differs) continue;
        state->kind = STORE_DAMAGED;
        snprintf(state->cause, sizeof state->cause, "commit.h5 is the record of other shards than those beside it");
    }
    return PD_OK;
}
