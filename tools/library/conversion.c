/* perdure_convert: an import, an export or a reshard, by what it is given. */
#include "resharder/formats/perdure.h"
#include "tools/library/convert.h"
#include "tools/library/handle.h"

#include <string.h>

struct conversion {
    const struct perdure_watch *watch;
    bool is_stopped;
};

static void conversion_progress(void *context, uint64_t done, uint64_t total)
{
    struct conversion *c = context;
    if (!c->is_stopped) c->is_stopped = pd_library_progress(c->watch, done, total, NULL) == PD_STOPPED;
}

static bool conversion_is_stopped(void *context)
{
    return ((struct conversion *)context)->is_stopped;
}

/* True if the source is a run of perdure, which is rewritten; others are imported. */
static pd_status is_run(const char *path, uint64_t step, bool *ret_is_run, struct pd_error *err)
{
    struct pd_ckpt_foreign source;
    PD_TRY(pd_ckpt_foreign_open(path, step, NULL, &source, err));
    *ret_is_run = pd_ckpt_foreign_is_run(&source);
    pd_ckpt_foreign_close(&source);
    return PD_OK;
}

static pd_status convert_any(const struct perdure_convert *o, struct pd_error *err)
{
    struct conversion conversion = {.watch = o->watch};
    const struct pd_notes notes = pd_library_notes(o->watch);
    const struct pd_convert convert = {.source = o->source,
                                       .destination = o->destination,
                                       .step = o->step,
                                       .layout = o->layout ? o->layout : "dp=1",
                                       .compression = o->compression,
                                       .format = o->format,
                                       .dtype = o->dtype,
                                       .only = o->only,
                                       .config_file = o->config,
                                       .prefix = o->prefix,
                                       .experts = o->experts,
                                       .fresh_optimizer = o->fresh_optimizer != 0};
    const struct pd_convert_watch watch = {.notes = &notes,
                                           .plain_notes = &notes,
                                           .should_stop = {conversion_is_stopped, &conversion},
                                           .context = &conversion,
                                           .progress = conversion_progress};
    if (!o->source || !o->destination)
        PD_FAIL(err, PD_INVALID, "it converts \"%s\"; give both a source and a destination", o->source ? o->source : "");
    if (o->format && strcmp(o->format, pd_format_perdure.name) != 0) return pd_convert_export(&convert, &watch, err);
    bool is_ours = false;
    PD_TRY(is_run(o->source, o->step, &is_ours, err));
    return (is_ours ? pd_convert_reshard : pd_convert_import)(&convert, &watch, err);
}

enum perdure_status perdure_convert(const struct perdure_convert *options, struct perdure_error *err)
{
    struct perdure_convert mine = PERDURE_CONVERT;
    struct pd_error own = {0};
    pd_library_begin();
    pd_library_options(&mine, sizeof mine, options, options->size);
    return pd_library_end(convert_any(&mine, &own), &own, err);
}
