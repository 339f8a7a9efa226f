/* Puts tensors into files in the order in which they are wanted, as many as shard_bytes_max allows. The plan already
 * knows the headers; finish only writes them. */
#include "resharder/formats/safetensors.h"

#include "ckpt/base/checked.h"
#include "ckpt/base/json.h"
#include "resharder/catalog/model_directory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHARD_BYTES UINT64_C(5000000000) /* transformers' "5GB" */

struct shard {
    uint32_t begin, end; /* tensors */
    char *header;        /* (header_bytes) including the eight bytes of its length */
    uint64_t header_bytes;
    char name[48];
};

struct writer {
    struct pd_vfs *vfs;
    const char *directory;
    const struct pd_catalog *wanted;
    struct shard *shards; /* (count) */
    uint32_t count;
};

/* ---- the plan ---- */

static pd_status check_wanted(const struct pd_catalog *wanted, struct pd_error *err)
{
    for (uint32_t t = 0; t < wanted->tensor_count; t++) {
        const struct pd_foreign_tensor *tensor = &wanted->tensors[t];
        if (!pd_safetensors_dtypes[tensor->element])
            PD_FAIL(err, PD_UNSUPPORTED, "safetensors has no type %s, which tensor %s would need",
                    pd_elements[tensor->element].name, tensor->name);
        if (tensor->kind != PD_PARAM)
            PD_FAIL(err, PD_UNSUPPORTED, "safetensors has no place for %s of tensor %s", pd_kind_name(tensor->kind),
                    tensor->name);
    }
    return PD_OK;
}

static pd_status cut_shards(struct writer *w, uint64_t shard_bytes, struct pd_error *err)
{
    w->shards = calloc((size_t)w->wanted->tensor_count + 1, sizeof *w->shards);
    if (!w->shards) PD_FAIL(err, PD_NO_MEMORY, "no memory to plan safetensors files");
    uint64_t bytes = 0;
    for (uint32_t t = 0; t < w->wanted->tensor_count; t++) {
        const uint64_t more = pd_foreign_bytes(&w->wanted->tensors[t]);
        if (w->count == 0 || (bytes && (more > shard_bytes || bytes > shard_bytes - more))) {
            w->shards[w->count++].begin = t;
            bytes = 0;
        }
        bytes += more;
        w->shards[w->count - 1].end = t + 1;
    }
    if (w->count == 0) w->count = 1;
    for (uint32_t s = 0; s < w->count; s++) {
        struct shard *shard = &w->shards[s];
        if (w->count == 1)
            snprintf(shard->name, sizeof shard->name, "model.safetensors");
        else
            snprintf(shard->name, sizeof shard->name, "model-%05u-of-%05u.safetensors", s + 1, w->count);
    }
    return PD_OK;
}

/* Pads the header with spaces to a multiple of eight, like the format's own writer. */
static pd_status keep_header(struct shard *shard, const char *text, size_t bytes, struct pd_error *err)
{
    while (bytes && text[bytes - 1] == '\n')
        bytes--;
    const uint64_t padded = pd_round_up(bytes, 8);
    if (padded > PD_SAFETENSORS_HEADER_MAX)
        PD_FAIL(err, PD_UNSUPPORTED, "%s: its header would have %" PRIu64 " bytes, the format allows %" PRIu64, shard->name,
                padded, PD_SAFETENSORS_HEADER_MAX);
    shard->header_bytes = 8 + padded;
    shard->header = malloc(shard->header_bytes);
    if (!shard->header) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory for its header", shard->name);
    memcpy(shard->header, &padded, 8);
    memcpy(shard->header + 8, text, bytes);
    memset(shard->header + 8 + bytes, ' ', padded - bytes);
    return PD_OK;
}

static pd_status make_header(const struct pd_catalog *wanted, struct shard *shard, struct pd_error *err)
{
    struct pd_json_writer json;
    const char *text = NULL;
    size_t bytes = 0;
    uint64_t at = 0;
    pd_json_writer_init_object(&json, 0);
    pd_json_object_begin(&json, "__metadata__");
    pd_json_string(&json, "format", "pt");
    pd_json_object_end(&json);
    for (uint32_t t = shard->begin; t < shard->end; t++) {
        const struct pd_foreign_tensor *tensor = &wanted->tensors[t];
        pd_json_object_begin(&json, tensor->name);
        pd_json_string(&json, "dtype", pd_safetensors_dtypes[tensor->element]);
        pd_json_array_begin(&json, "shape");
        for (uint32_t d = 0; d < tensor->ndim; d++)
            pd_json_u64(&json, NULL, tensor->shape[d]);
        pd_json_array_end(&json);
        pd_json_array_begin(&json, "data_offsets");
        pd_json_u64(&json, NULL, at);
        at += pd_foreign_bytes(tensor);
        pd_json_u64(&json, NULL, at);
        pd_json_array_end(&json);
        pd_json_object_end(&json);
    }
    pd_status st = pd_json_writer_finish(&json, &text, &bytes, err);
    if (!st) st = keep_header(shard, text, bytes, err);
    pd_json_writer_deinit(&json);
    return st;
}

static pd_status place_tensors(struct writer *w, struct pd_catalog *wanted, struct pd_error *err)
{
    for (uint32_t s = 0; s < w->count; s++) {
        struct shard *shard = &w->shards[s];
        char path[PD_FORMATS_PATH_MAX];
        uint32_t file;
        PD_TRY(make_header(wanted, shard, err));
        uint64_t bytes = shard->header_bytes;
        for (uint32_t t = shard->begin; t < shard->end; t++)
            bytes += pd_foreign_bytes(&wanted->tensors[t]);
        PD_TRY(pd_formats_path(w->directory, shard->name, path, err));
        PD_TRY(pd_catalog_add_file(wanted, path, bytes, &file, err));
        uint64_t offset = shard->header_bytes;
        for (uint32_t t = shard->begin; t < shard->end; offset += pd_foreign_bytes(&wanted->tensors[t++]))
            PD_TRY(pd_catalog_place(wanted, t, file, offset, err));
    }
    return PD_OK;
}

pd_status pd_safetensors_plan(struct pd_vfs *vfs, struct pd_format_plan *plan, void **ret_state, struct pd_error *err)
{
    struct writer *w = *ret_state = calloc(1, sizeof *w);
    if (!w) PD_FAIL(err, PD_NO_MEMORY, "no memory to plan safetensors files");
    *w = (struct writer){.vfs = vfs, .directory = plan->directory, .wanted = plan->wanted};
    PD_TRY(check_wanted(plan->wanted, err));
    PD_TRY(cut_shards(w, plan->shard_bytes_max ? plan->shard_bytes_max : SHARD_BYTES, err));
    return place_tensors(w, plan->wanted, err);
}

/* ---- the end ---- */

static pd_status write_header(const struct writer *w, const struct shard *shard, struct pd_error *err)
{
    char path[PD_FORMATS_PATH_MAX];
    PD_TRY(pd_formats_path(w->directory, shard->name, path, err));
    return pd_formats_patch(w->vfs, path, shard->header, shard->header_bytes, err);
}

static pd_status write_index(const struct writer *w, struct pd_error *err)
{
    struct pd_json_writer json;
    const char *text = NULL;
    char path[PD_FORMATS_PATH_MAX];
    size_t bytes = 0;
    uint64_t total = 0;
    for (uint32_t t = 0; t < w->wanted->tensor_count; t++)
        total += pd_foreign_bytes(&w->wanted->tensors[t]);
    pd_json_writer_init_object(&json, 2);
    pd_json_object_begin(&json, "metadata");
    pd_json_u64(&json, "total_size", total);
    pd_json_object_end(&json);
    pd_json_object_begin(&json, "weight_map");
    for (uint32_t s = 0; s < w->count; s++)
        for (uint32_t t = w->shards[s].begin; t < w->shards[s].end; t++)
            pd_json_string(&json, w->wanted->tensors[t].name, w->shards[s].name);
    pd_status st = pd_json_writer_finish(&json, &text, &bytes, err);
    if (!st) st = pd_formats_path(w->directory, PD_SAFETENSORS_INDEX, path, err);
    if (!st) st = pd_formats_write_text(w->vfs, path, text, bytes, err);
    pd_json_writer_deinit(&json);
    return st;
}

pd_status pd_safetensors_finish(void *state, pd_status mine, struct pd_error *err)
{
    struct writer *w = state;
    pd_status st = mine;
    for (uint32_t s = 0; !st && s < w->count; s++)
        st = write_header(w, &w->shards[s], err);
    if (!st && w->count > 1) st = write_index(w, err);
    if (!st) st = pd_formats_write_texts(w->vfs, w->directory, w->wanted, err);
    for (uint32_t s = 0; w->shards && s < w->count; s++)
        free(w->shards[s].header);
    free(w->shards);
    free(w);
    return st;
}
