/* Writes PyTorch's distributed checkpoint: every tensor is one chunk, an archive of its own, one after the other. A style
 * gives the names; this file's own is PyTorch's.
 *
 * Parameters are "model.<name>", moments "optimizer.state.<name>.exp_avg" and "..exp_avg_sq" with a "..step" beside them:
 * what dcp.load({"model": model.state_dict(), "optimizer": get_optimizer_state_dict(model, optimizer)}) asks for.
 * Parameter groups (rates, decay) are not written, since torch has its own grouping: the loader allows partial loads. The
 * model's config.json lies beside it for another import. */
#include "resharder/formats/dcp.h"

#include "ckpt/base/digest.h"
#include "resharder/catalog/model_directory.h"
#include "resharder/torch/archive.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define METADATA "torch.distributed.checkpoint.metadata"
#define KEY_MAX (PD_FOREIGN_NAME_MAX + 64)

struct output {
    struct pd_torch_output archive;
    uint32_t tensor; /* index in the wanted catalog */
    bool is_step;    /* step of that tensor, an fp32 number */
    uint32_t file, crc;
    uint64_t begin; /* offset in its file */
};

struct writer {
    struct pd_vfs *vfs;
    const struct pd_format_plan *plan;
    const char *directory;
    const struct pd_dcp_style *style;
    const char *const *objects; /* (object_count) */
    uint32_t object_count;
    struct output *outputs; /* (count): the tensors by index, then the steps */
    uint32_t count;
    char *nothing; /* (nothing_bytes) the archive of each object; after the last output */
    uint64_t nothing_bytes, nothing_begin;
    uint64_t file_bytes; /* of the file being planned */
    uint32_t files;
};

static const struct pd_dcp_style pytorch = {
    .keys = {[PD_PARAM] = {{"model.", ""}},
             [PD_EXP_AVG] = {{"optimizer.state.", ".exp_avg"}},
             [PD_EXP_AVG_SQ] = {{"optimizer.state.", ".exp_avg_sq"}}},
    .step = {"optimizer.state.", ".step"},
    .has_paths = true,
};

/* Its checkpointer flattens the model to the top. */
static const struct pd_dcp_style torchtitan = {
    .keys = {[PD_PARAM] = {{"", ""}},
             [PD_EXP_AVG] = {{"optimizer.state.", ".exp_avg"}},
             [PD_EXP_AVG_SQ] = {{"optimizer.state.", ".exp_avg_sq"}}},
    .step = {"optimizer.state.", ".step"},
};

/* Makes the variant-th name; false: no more. */
static bool dcp_write_key_of(const struct writer *w, const struct output *o, uint32_t variant, char ret[KEY_MAX])
{
    const struct pd_foreign_tensor *t = &w->plan->wanted->tensors[o->tensor];
    if (variant >= (o->is_step ? 1 : PD_DCP_KEYS_MAX)) return false;
    const struct pd_dcp_key *key = o->is_step ? &w->style->step : &w->style->keys[t->kind][variant];
    if (!key->before) return false;
    snprintf(ret, KEY_MAX, "%s%s%s", key->before, t->name, key->after);
    return true;
}

static void file_name(uint32_t file, char ret[32])
{
    snprintf(ret, 32, "__0_%u.distcp", file);
}

/* ---- plan ---- */

static const struct pd_foreign_tensor *shape_of(const struct writer *w, const struct output *o)
{
    static const struct pd_foreign_tensor scalar = {.element = PD_ELEMENT_F32, .shape = {1, 1, 1, 1, 1, 1, 1, 1}};
    return o->is_step ? &scalar : &w->plan->wanted->tensors[o->tensor];
}

static pd_status dcp_write_place(struct writer *w, struct output *o, struct pd_error *err)
{
    PD_TRY(pd_torch_plan(shape_of(w, o), NULL, &o->archive, err));
    w->count++;
    if (w->file_bytes && w->plan->shard_bytes_max && w->file_bytes + o->archive.bytes > w->plan->shard_bytes_max) {
        w->files++;
        w->file_bytes = 0;
    }
    o->file = w->files;
    o->begin = w->file_bytes;
    w->file_bytes += o->archive.bytes;
    return PD_OK;
}

static pd_status make_nothing(struct writer *w, struct pd_error *err)
{
    struct pd_pickle_writer p = {0};
    pd_pickle_begin(&p);
    pd_pickle_do(&p, "](Ne");
    pd_status st = pd_pickle_finish(&p, err);
    if (!st) st = pd_torch_make_small(&p, NULL, 0, &w->nothing, &w->nothing_bytes, err);
    pd_pickle_writer_deinit(&p);
    return st;
}

static pd_status place_all(struct writer *w, struct pd_error *err)
{
    const struct pd_catalog *wanted = w->plan->wanted;
    w->outputs = calloc(2 * (size_t)wanted->tensor_count + 1, sizeof *w->outputs);
    if (!w->outputs) PD_FAIL(err, PD_NO_MEMORY, "no memory to write %u tensors", wanted->tensor_count);
    for (uint32_t t = 0; t < wanted->tensor_count; t++) {
        struct output *o = &w->outputs[w->count];
        o->tensor = t;
        PD_TRY(dcp_write_place(w, o, err));
    }
    for (uint32_t t = 0; t < wanted->tensor_count && w->style->step.before; t++) {
        struct output *o = &w->outputs[w->count];
        if (wanted->tensors[t].kind != PD_EXP_AVG) continue;
        *o = (struct output){.tensor = t, .is_step = true};
        PD_TRY(dcp_write_place(w, o, err));
    }
    w->nothing_begin = w->file_bytes;
    w->files++;
    return w->object_count ? make_nothing(w, err) : PD_OK;
}

/* A file ends with its last archive. */
static pd_status add_files(const struct writer *w, struct pd_error *err)
{
    char name[32], path[PD_FORMATS_PATH_MAX];
    for (uint32_t i = 0; i < w->count; i++) {
        const struct output *o = &w->outputs[i];
        if (i + 1 < w->count && o[1].file == o->file) continue;
        const uint64_t more = i + 1 < w->count ? 0 : w->nothing_bytes;
        file_name(o->file, name);
        PD_TRY(pd_formats_path(w->directory, name, path, err));
        PD_TRY(pd_catalog_add_file(w->plan->wanted, path, o->begin + o->archive.bytes + more, NULL, err));
    }
    return PD_OK;
}

static pd_status add_pieces(const struct writer *w, struct pd_error *err)
{
    for (uint32_t i = 0; i < w->count; i++) {
        const struct output *o = &w->outputs[i];
        const uint64_t at = o->begin + o->archive.data_offset;
        if (!o->is_step && pd_foreign_elements(shape_of(w, o)))
            PD_TRY(pd_catalog_place(w->plan->wanted, o->tensor, o->file, at, err));
    }
    return PD_OK;
}

pd_status pd_dcp_plan(struct pd_vfs *vfs, struct pd_format_plan *plan, void **ret_state, struct pd_error *err)
{
    return pd_dcp_plan_as(vfs, plan, plan->directory, &pytorch, NULL, 0, ret_state, err);
}

pd_status pd_torchtitan_plan(struct pd_vfs *vfs, struct pd_format_plan *plan, void **ret_state, struct pd_error *err)
{
    return pd_dcp_plan_as(vfs, plan, plan->directory, &torchtitan, NULL, 0, ret_state, err);
}

pd_status pd_dcp_plan_as(struct pd_vfs *vfs, struct pd_format_plan *plan, const char *directory,
                         const struct pd_dcp_style *style, const char *const *objects, uint32_t object_count,
                         void **ret_state, struct pd_error *err)
{
    struct writer *w = *ret_state = calloc(1, sizeof *w);
    if (!w) PD_FAIL(err, PD_NO_MEMORY, "no memory to write a checkpoint");
    *w = (struct writer){
        .vfs = vfs, .plan = plan, .directory = directory, .style = style, .objects = objects, .object_count = object_count};
    PD_TRY(place_all(w, err));
    PD_TRY(add_files(w, err));
    return add_pieces(w, err);
}

void pd_dcp_observe(void *state, uint32_t tensor, const void *data, uint64_t bytes)
{
    struct output *o = &((struct writer *)state)->outputs[tensor];
    o->crc = pd_crc32(o->crc, data, bytes);
}

/* ---- archives ---- */

static pd_status dcp_write_write_file(struct writer *w, uint32_t number, struct pd_error *err)
{
    struct pd_file *file = NULL;
    PD_TRY(pd_file_open(w->vfs, w->plan->wanted->files[number].path, PD_OPEN_WRITE | PD_OPEN_CREATE, &file, err));
    pd_status st = PD_OK;
    for (uint32_t i = 0; !st && i < w->count; i++) {
        struct output *o = &w->outputs[i];
        if (o->file != number) continue;
        if (o->is_step) {
            const float step = (float)w->plan->wanted->counters.updates;
            o->crc = pd_crc32(0, &step, sizeof step);
            st = pd_file_write(file, o->begin + o->archive.data_offset, &step, sizeof step, err);
        }
        if (!st) st = pd_torch_write(&o->archive, o->crc, file, o->begin, err);
    }
    if (!st && w->nothing && number + 1 == w->files)
        st = pd_file_write(file, w->nothing_begin, w->nothing, w->nothing_bytes, err);
    const pd_status closed = pd_file_close(file, st ? NULL : err);
    return st ? st : closed;
}

/* ---- .metadata ---- */

static void put_size(struct pd_pickle_writer *p, const uint64_t *sizes, uint32_t count)
{
    pd_pickle_put_global(p, "torch", "Size");
    pd_pickle_put_sizes(p, sizes, count);
    pd_pickle_do(p, "\x85R");
}

static void put_tensor(struct pd_pickle_writer *p, const struct pd_foreign_tensor *t)
{
    static const uint64_t zeros[PD_FOREIGN_DIMS_MAX];
    pd_pickle_object_begin(p, METADATA, "TensorStorageMetadata");
    pd_pickle_put_text(p, NULL, "properties");
    /* (dtype, layout, requires_grad, memory format, pin_memory) */
    enum pd_element element = t->element;
    pd_pickle_put_global(p, METADATA, "TensorProperties");
    pd_pickle_do(p, ")\x81(");
    pd_pickle_put_global(p, "torch", pd_torch_dtype(element));
    pd_pickle_put_global(p, "torch.serialization", "_get_layout");
    pd_pickle_put_text(p, NULL, "torch.strided");
    pd_pickle_do(p, "\x85R\x89");
    pd_pickle_put_global(p, METADATA, "_MEM_FORMAT_ENCODING");
    pd_pickle_put_u64(p, NULL, 0); /* contiguous */
    pd_pickle_do(p, "\x85R\x89tb");
    pd_pickle_put_text(p, NULL, "size");
    put_size(p, t->shape, t->ndim);
    pd_pickle_put(p, "chunks", "](");
    pd_pickle_object_begin(p, METADATA, "ChunkStorageMetadata");
    pd_pickle_put_text(p, NULL, "offsets");
    put_size(p, zeros, t->ndim);
    pd_pickle_put_text(p, NULL, "sizes");
    put_size(p, t->shape, t->ndim);
    pd_pickle_object_end(p);
    pd_pickle_do(p, "e");
    pd_pickle_object_end(p);
}

/* Writes the path that the key was joined from: ("optimizer", "state", name, "exp_avg"). */
static void put_path(struct pd_pickle_writer *p, const struct writer *w, const struct output *o, const char *key)
{
    const struct pd_foreign_tensor *t = &w->plan->wanted->tensors[o->tensor];
    pd_pickle_do(p, "(");
    pd_pickle_put_text(p, NULL, t->kind == PD_PARAM ? "model" : "optimizer");
    if (t->kind != PD_PARAM) pd_pickle_put_text(p, NULL, "state");
    pd_pickle_put_text(p, NULL, t->name);
    if (t->kind != PD_PARAM) pd_pickle_put_text(p, NULL, strrchr(key, '.') + 1);
    pd_pickle_do(p, "t");
}

/* `o` NULL: an object. */
static void put_place(struct pd_pickle_writer *p, const struct writer *w, const struct output *o, const char *key)
{
    static const uint64_t zeros[PD_FOREIGN_DIMS_MAX];
    char name[32];
    pd_pickle_object_begin(p, METADATA, "MetadataIndex");
    pd_pickle_put_text(p, "fqn", key);
    pd_pickle_put_text(p, NULL, "offset");
    if (o)
        put_size(p, zeros, shape_of(w, o)->ndim);
    else
        pd_pickle_do(p, "N");
    pd_pickle_put_text(p, NULL, "index");
    if (o)
        pd_pickle_put_u64(p, NULL, 0);
    else
        pd_pickle_do(p, "N");
    pd_pickle_object_end(p);
    pd_pickle_object_begin(p, "torch.distributed.checkpoint.filesystem", "_StorageInfo");
    file_name(o ? o->file : w->files - 1, name);
    pd_pickle_put_text(p, "relative_path", name);
    pd_pickle_put_u64(p, "offset", o ? o->begin : w->nothing_begin);
    pd_pickle_put_u64(p, "length", o ? o->archive.bytes : w->nothing_bytes);
    pd_pickle_object_end(p);
}

enum section { NAMES, PATHS, PLACES, SECTIONS };

static void put_objects(struct pd_pickle_writer *p, const struct writer *w, enum section section)
{
    for (uint32_t i = 0; i < w->object_count && section != PATHS; i++) {
        if (section == PLACES) {
            put_place(p, w, NULL, w->objects[i]);
            continue;
        }
        pd_pickle_put_text(p, NULL, w->objects[i]);
        pd_pickle_object_begin(p, METADATA, "BytesStorageMetadata");
        pd_pickle_object_end(p);
    }
}

static void put_section(struct pd_pickle_writer *p, const struct writer *w, enum section section)
{
    static const char *const names[SECTIONS] = {"state_dict_metadata", "planner_data", "storage_data"};
    char key[KEY_MAX];
    pd_pickle_put_text(p, NULL, names[section]);
    pd_pickle_do(p, "}(");
    for (uint32_t i = 0; i < w->count && (section != PATHS || w->style->has_paths); i++) {
        const struct output *o = &w->outputs[i];
        for (uint32_t variant = 0; dcp_write_key_of(w, o, variant, key); variant++) {
            if (section != PLACES) pd_pickle_put_text(p, NULL, key);
            if (section == NAMES) put_tensor(p, shape_of(w, o));
            if (section == PATHS) put_path(p, w, o, key);
            if (section == PLACES) put_place(p, w, o, key);
        }
    }
    put_objects(p, w, section);
    pd_pickle_do(p, "u");
}

static pd_status write_metadata(const struct writer *w, struct pd_error *err)
{
    char path[PD_FORMATS_PATH_MAX];
    struct pd_pickle_writer p = {0};
    pd_pickle_begin(&p);
    pd_pickle_object_begin(&p, METADATA, "Metadata");
    for (int s = 0; s < SECTIONS; s++)
        put_section(&p, w, (enum section)s);
    pd_pickle_object_end(&p);
    pd_status st = pd_pickle_finish(&p, err);
    if (!st) st = pd_formats_path(w->directory, ".metadata", path, err);
    if (!st) st = pd_formats_write_text(w->vfs, path, (const char *)p.text, p.bytes, err);
    pd_pickle_writer_deinit(&p);
    return st;
}

pd_status pd_dcp_finish(void *state, pd_status mine, struct pd_error *err)
{
    struct writer *w = state;
    pd_status st = mine;
    for (uint32_t f = 0; !st && f < w->files; f++)
        st = dcp_write_write_file(w, f, err);
    if (!st) st = write_metadata(w, err);
    if (!st) st = pd_formats_write_texts(w->vfs, w->directory, w->plan->wanted, err);
    for (uint32_t i = 0; i < w->count; i++)
        pd_torch_output_deinit(&w->outputs[i].archive);
    free(w->outputs);
    free(w->nothing);
    free(w);
    return st;
}
