#include "resharder/convert/reshard.h"

#include "resharder/formats/perdure.h"

#include <inttypes.h>

static pd_status write_again(struct pd_vfs *vfs, const struct pd_import_request *request,
                             struct pd_import_report *ret_report, struct pd_error *err)
{
    const pd_status st = pd_import_check(request, err);
    if (st == PD_INVALID) /* the record verifies, but does not match its configuration */
        return pd_error_context(err, pd_error_change(err, PD_CORRUPT),
                                "its shards do not hold what its configuration gives");
    PD_TRY(st);
    return pd_import(vfs, request, ret_report, err);
}

pd_status pd_reshard(struct pd_vfs *vfs, const struct pd_import_request *q, struct pd_import_report *ret_report,
                     struct pd_error *err)
{
    struct pd_catalog catalog;
    struct pd_links links = {0};
    const struct pd_run_state *state = &q->ours->state;
    struct pd_import_request request = *q;
    PD_TRY(pd_commit_check_is_run(q->ours, err));
    PD_TRY(pd_layout_check(q->layout, err));
    if (q->layout->virtual_tp != state->layout.virtual_tp || q->layout->virtual_sp != state->layout.virtual_sp)
        PD_FAIL(err, PD_INVALID,
                "the checkpoint has virtual_tp %u and virtual_sp %u; they are numerics, and a reshard keeps them",
                state->layout.virtual_tp, state->layout.virtual_sp);
    if (state->tensor_count != q->tensors->count)
        PD_FAIL(err, PD_INVALID, "%s holds %" PRIu64 " tensors where its configuration gives %u", q->source,
                state->tensor_count, q->tensors->count);
    pd_catalog_init(&catalog, pd_format_perdure.name);
    pd_status st = pd_format_perdure.read(vfs, q->source, &catalog, err);
    if (!st) st = pd_catalog_finish(&catalog, err);
    for (uint32_t i = 0; i < q->tensors->count * PD_KIND_COUNT && !st; i++)
        st = pd_links_add_own(&links, q->tensors, i / PD_KIND_COUNT, (enum pd_kind)(i % PD_KIND_COUNT), err);
    request.catalog = &catalog;
    request.links = &links;
    request.state = state;
    if (!st) st = write_again(vfs, &request, ret_report, err);
    pd_links_deinit(&links);
    pd_catalog_deinit(&catalog);
    return st ? pd_error_context(err, st, "rewriting %s", q->source) : PD_OK;
}
