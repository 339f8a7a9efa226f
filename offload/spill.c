#include "offload/spill.h"

#include "offload/device_spill.h"
#include "offload/spill_file.h"

#include <stdlib.h>

/* One of the two. */
struct pd_spill {
    struct pd_spill_file *file;
    struct pd_device_spill *device;
};

uint64_t pd_spill_bytes(const uint64_t *span_bytes, uint32_t span_count, uint64_t block_bytes)
{
    return sizeof(struct pd_spill) + pd_spill_file_heap_bytes(span_bytes, span_count, block_bytes);
}

pd_status pd_spill_new(const struct pd_spill_options *options, struct pd_spill **ret_spill, struct pd_error *err)
{
    struct pd_spill *s = calloc(1, sizeof *s);
    if (!s) PD_FAIL(err, PD_NO_MEMORY, "no memory for scratch");
    const pd_status st =
        options->device ? pd_device_spill_new(options, &s->device, err) : pd_spill_file_new(options, &s->file, err);
    if (st)
        free(s);
    else
        *ret_spill = s;
    return st;
}

void pd_spill_free(struct pd_spill *s)
{
    if (!s) return;
    pd_device_spill_free(s->device);
    pd_spill_file_free(s->file);
    free(s);
}

pd_status pd_spill_write(struct pd_spill *s, uint32_t span, void *data, struct pd_error *err)
{
    if (s->device) return pd_device_spill_write(s->device, span, data, err);
    return pd_spill_file_write(s->file, span, data, err);
}

pd_status pd_spill_read(struct pd_spill *s, uint32_t span, void *data, struct pd_error *err)
{
    if (s->device) return pd_device_spill_read(s->device, span, data, err);
    return pd_spill_file_read(s->file, span, data, err);
}

pd_status pd_spill_wait(struct pd_spill *s, uint32_t span, struct pd_error *err)
{
    if (s->device) return pd_device_spill_wait(s->device, span, err);
    return pd_spill_file_wait(s->file, span, err);
}
