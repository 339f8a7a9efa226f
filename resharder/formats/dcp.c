/* PyTorch's distributed checkpoint (torch.distributed.checkpoint; also torchtitan's): `.metadata`, a pickle of the
 * index, and `__<rank>_<n>.distcp`, archives of torch.save one after the other. Reading.
 *
 *   Metadata.state_dict_metadata   name -> TensorStorageMetadata{properties, size, chunks[]} or BytesStorageMetadata
 *   Metadata.storage_data          MetadataIndex{fqn, offset} -> _StorageInfo{relative_path, offset, length}
 *
 * Source: torch/distributed/checkpoint/{metadata,filesystem,planner}.py. */
#include "resharder/formats/dcp.h"

#include "ckpt/base/checked.h"
#include "resharder/catalog/model_directory.h"
#include "resharder/torch/archive.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names of optimizer state ---- */

/* PyTorch's "optimizer.state.<parameter>.exp_avg" and Megatron's "optimizer.state.exp_avg.<parameter>", with or without
 * the part before "state.", and however the run's own dictionary wraps it. */
enum role {
    ROLE_PARAM, /* or a buffer: anything that is not optimizer state */
    ROLE_EXP_AVG,
    ROLE_EXP_AVG_SQ,
    ROLE_MASTER, /* the parameter in fp32, if the model has it rounded */
    ROLE_STEP,
    ROLE_OTHER, /* other optimizer state */
};

/* After "state.": PyTorch puts the kind after the parameter's name, Megatron before it. */
static const struct {
    const char *before, *after;
    enum role role;
} roles[] = {
    {"", ".exp_avg", ROLE_EXP_AVG}, {"", ".exp_avg_sq", ROLE_EXP_AVG_SQ}, {"", ".step", ROLE_STEP},
    {"exp_avg.", "", ROLE_EXP_AVG}, {"exp_avg_sq.", "", ROLE_EXP_AVG_SQ}, {"fp32_param.", "", ROLE_MASTER},
    {"param.", "", ROLE_MASTER}, /* of Megatron's distributed optimizer */
};

/* Returns the parameter's name inside `name`: *ret_name (*ret_bytes), not terminated; all of it for ROLE_PARAM. */
static enum role role_of(const char *name, const char **ret_name, size_t *ret_bytes)
{
    const char *state = strncmp(name, "state.", 6) == 0 ? name : strstr(name, ".state.");
    *ret_name = name;
    *ret_bytes = strlen(name);
    if (!state) return strstr(name, "param_groups.") ? ROLE_OTHER : ROLE_PARAM;
    const char *inner = strchr(state + 1, '.') + 1;
    const size_t bytes = strlen(inner);
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        const size_t before = strlen(roles[i].before), after = strlen(roles[i].after);
        if (bytes <= before + after || strncmp(inner, roles[i].before, before) != 0 ||
            strcmp(inner + bytes - after, roles[i].after) != 0)
            continue;
        *ret_name = inner + before;
        *ret_bytes = bytes - before - after;
        return roles[i].role;
    }
    return ROLE_OTHER;
}

/* Bytes before `inner` in `name`, if `name` ends with "." and it; else 0. */
static size_t wrapper_of(const char *name, const char *inner)
{
    const size_t bytes = strlen(name), inner_bytes = strlen(inner);
    if (bytes <= inner_bytes || name[bytes - inner_bytes - 1] != '.') return 0;
    return strcmp(name + bytes - inner_bytes, inner) == 0 ? bytes - inner_bytes : 0;
}

/* Returns the prefix of the parameter with the first moment's name; NULL also if several have one: those are two models. */
static const char *find_wrapper(const struct pd_catalog *c, size_t *ret_bytes)
{
    const char *inner = NULL, *wrapper = NULL;
    *ret_bytes = 0;
    for (uint32_t t = 0; t < c->tensor_count && !inner; t++)
        if (c->tensors[t].kind != PD_PARAM) inner = c->tensors[t].name;
    for (uint32_t t = 0; inner && t < c->tensor_count; t++) {
        const struct pd_foreign_tensor *p = &c->tensors[t];
        if (p->kind != PD_PARAM) continue;
        if (strcmp(p->name, inner) == 0) return NULL; /* no prefix */
        const size_t bytes = wrapper_of(p->name, inner);
        if (bytes && wrapper) return NULL;
        if (bytes) wrapper = p->name;
        if (bytes) *ret_bytes = bytes;
    }
    return wrapper;
}

/* Removes "model.", or whatever a run's dictionary put before its parameters, from names of an unfinished catalog, so
 * that they match the optimizer's names. Without moments names stay. */
static void strip_wrapper(struct pd_catalog *catalog)
{
    char prefix[PD_FOREIGN_NAME_MAX];
    size_t bytes = 0;
    const char *wrapper = find_wrapper(catalog, &bytes);
    if (!wrapper) return;
    memcpy(prefix, wrapper, bytes);
    for (uint32_t t = 0; t < catalog->tensor_count; t++) {
        struct pd_foreign_tensor *p = &catalog->tensors[t];
        if (p->kind == PD_PARAM && strncmp(p->name, prefix, bytes) == 0 && p->name[bytes])
            memmove(p->name, p->name + bytes, strlen(p->name + bytes) + 1);
    }
}

/* ---- what to read ---- */

/* One row of storage_data. */
struct item {
    const char *name, *file;
    const struct pd_pickle_node *offset; /* of the chunk; a None if the tensor is whole */
    uint64_t begin, bytes;
};

struct dcp {
    struct pd_vfs *vfs;
    const char *directory;
    char metadata[PD_FORMATS_PATH_MAX]; /* path of .metadata */
    struct pd_catalog *catalog;
    struct pd_pickle *pickle;
    const struct pd_pickle_node **names; /* (name_count) key, value of state_dict_metadata, sorted by key */
    uint32_t *tensors;                   /* (name_count) index in the catalog; UINT32_MAX: none */
    uint32_t name_count;
    struct item *items; /* (item_count), sorted by file and offset */
    uint32_t item_count;
    struct pd_file *file; /* of the current item */
    char path[PD_FORMATS_PATH_MAX];
    uint32_t file_number;
    uint64_t file_bytes;
    const char *master; /* (master_bytes) prefix of fp32 parameters; NULL: there are none */
    size_t master_bytes;
    bool has_steps;
    double step; /* of the first parameter with one */
};

/* ---- names ---- */

static int dcp_compare_names(const void *a, const void *b)
{
    return strcmp((*(const struct pd_pickle_node *const *)a)->text, (*(const struct pd_pickle_node *const *)b)->text);
}

static pd_status sort_names(struct dcp *d, struct pd_error *err)
{
    const struct pd_pickle_node *all = pd_pickle_field(pd_pickle_root(d->pickle), "state_dict_metadata");
    if (!all || all->type != PD_PICKLE_DICT)
        PD_FAIL(err, PD_CORRUPT, "%s: not the metadata of a distributed checkpoint: state_dict_metadata is missing",
                d->metadata);
    d->name_count = all->count / 2;
    d->names = malloc((all->count + 2) * sizeof(void *));
    d->tensors = malloc((d->name_count + 1) * sizeof *d->tensors);
    if (!d->names || !d->tensors) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory for %u names", d->metadata, d->name_count);
    for (uint32_t i = 0; i < d->name_count; i++) {
        if (!pd_pickle_text(all->items[2 * i]) || all->items[2 * i]->count == 0)
            PD_FAIL(err, PD_CORRUPT, "%s: key %u of state_dict_metadata is not a name", d->metadata, i);
        memcpy(&d->names[2 * i], &all->items[2 * i], 2 * sizeof(void *));
        d->tensors[i] = UINT32_MAX;
    }
    qsort(d->names, d->name_count, 2 * sizeof(void *), dcp_compare_names);
    return PD_OK;
}

static int64_t find_name(const struct dcp *d, const char *name)
{
    const struct pd_pickle_node wanted = {.text = name}, *const key = &wanted,
                                *const *found = bsearch(&key, d->names, d->name_count, 2 * sizeof key, dcp_compare_names);
    return found ? (found - d->names) / 2 : -1;
}

/* properties is an object whose state is (dtype, layout, ...), or has a field dtype (before torch 2.1). */
static const char *dtype_of(const struct pd_pickle_node *properties)
{
    if (!properties || properties->type != PD_PICKLE_OBJECT) return NULL;
    const struct pd_pickle_node *state = properties->object->state, *field = pd_pickle_member(state, "dtype");
    return pd_pickle_global(field ? field : pd_pickle_at(state, 0));
}

/* True if the optimizer has this parameter in fp32: then the model's is that, rounded, and not needed. */
static bool has_master(const struct dcp *d, const char *name)
{
    char key[2 * PD_FOREIGN_NAME_MAX];
    snprintf(key, sizeof key, "%.*s%s", (int)d->master_bytes, d->master, name);
    return d->master && find_name(d, key) >= 0;
}

/* True if it is the same fp32 parameter under another name, as Megatron saves it for other kinds of optimizers. */
static bool is_second_master(const struct dcp *d, const char *name, const char *inner)
{
    return strncmp(name, d->master, d->master_bytes) != 0 && has_master(d, inner);
}

/* Adds a tensor that is read to the catalog, in the order of `.metadata`; lists everything else by name. */
static pd_status add_name(struct dcp *d, const struct pd_pickle_node *key, const struct pd_pickle_node *value,
                          struct pd_error *err)
{
    static const enum pd_kind kinds[] = {
        [ROLE_PARAM] = PD_PARAM, [ROLE_MASTER] = PD_PARAM, [ROLE_EXP_AVG] = PD_EXP_AVG, [ROLE_EXP_AVG_SQ] = PD_EXP_AVG_SQ};
    const char *inner = NULL;
    size_t bytes = 0;
    char name[PD_FOREIGN_NAME_MAX];
    struct pd_foreign_tensor t = {.name = name};
    const enum role role = role_of(key->text, &inner, &bytes);
    const struct pd_pickle_node *size = pd_pickle_field(value, "size");
    if (role == ROLE_STEP) return PD_OK; /* read in place */
    if (role == ROLE_PARAM && has_master(d, key->text)) return PD_OK;
    if (role == ROLE_MASTER && is_second_master(d, key->text, inner)) return PD_OK;
    if (!size || role == ROLE_OTHER || !pd_torch_element(dtype_of(pd_pickle_field(value, "properties")), &t.element))
        return pd_catalog_add_unmapped(d->catalog, key->text, err);
    if (bytes >= sizeof name) PD_FAIL(err, PD_CORRUPT, "%s: a name of %zu bytes: %.64s...", d->metadata, bytes, inner);
    memcpy(name, inner, bytes);
    name[bytes] = '\0';
    t.kind = kinds[role];
    for (uint32_t i = 0; i < PD_FOREIGN_DIMS_MAX; i++)
        t.shape[i] = 1;
    if (!pd_pickle_is_sizes(size, PD_FOREIGN_DIMS_MAX, t.shape, &t.ndim))
        PD_FAIL(err, PD_CORRUPT, "%s: %s has no size, or one of more than %d dimensions", d->metadata, key->text,
                PD_FOREIGN_DIMS_MAX);
    const pd_status st = pd_catalog_add_tensor(d->catalog, &t, &d->tensors[find_name(d, key->text)], err);
    return st ? pd_error_context(err, st, "%s", d->metadata) : PD_OK;
}

static void find_master(struct dcp *d)
{
    for (uint32_t i = 0; i < d->name_count && !d->master; i++) {
        const char *inner = NULL, *name = d->names[2 * i]->text;
        size_t bytes = 0;
        if (role_of(name, &inner, &bytes) != ROLE_MASTER) continue;
        d->master = name;
        d->master_bytes = (size_t)(inner - name);
    }
}

static pd_status add_names(struct dcp *d, struct pd_error *err)
{
    const struct pd_pickle_node *all = pd_pickle_field(pd_pickle_root(d->pickle), "state_dict_metadata");
    PD_TRY(sort_names(d, err));
    find_master(d);
    for (uint32_t i = 0; i < d->name_count; i++) {
        if (i && dcp_compare_names(&d->names[2 * i - 2], &d->names[2 * i]) == 0)
            PD_FAIL(err, PD_CORRUPT, "%s: %s occurs twice", d->metadata, d->names[2 * i]->text);
        PD_TRY(add_name(d, all->items[2 * i], all->items[2 * i + 1], err));
    }
    return PD_OK;
}

/* ---- items ---- */

static int compare_items(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    const int order = strcmp(x->file, y->file);
    return order ? order : (x->begin > y->begin) - (x->begin < y->begin);
}

static pd_status take_item(struct dcp *d, const struct pd_pickle_node *index, const struct pd_pickle_node *info,
                           struct item *ret, struct pd_error *err)
{
    const struct pd_pickle_node *transforms = pd_pickle_field(info, "transform_descriptors");
    *ret = (struct item){.name = pd_pickle_text(pd_pickle_field(index, "fqn")),
                         .file = pd_pickle_text(pd_pickle_field(info, "relative_path")),
                         .offset = pd_pickle_field(index, "offset")};
    if (!ret->name || !ret->file || !pd_pickle_is_u64(pd_pickle_field(info, "offset"), &ret->begin) ||
        !pd_pickle_is_u64(pd_pickle_field(info, "length"), &ret->bytes))
        PD_FAIL(err, PD_CORRUPT, "%s: an entry of storage_data lacks its name, file, offset or length", d->metadata);
    if (ret->file[0] == '/' || strstr(ret->file, "..") || strlen(ret->file) > 255)
        PD_FAIL(err, PD_CORRUPT, "%s: %s should be in \"%s\", which is outside of the checkpoint", d->metadata, ret->name,
                ret->file);
    if (transforms && transforms->type != PD_PICKLE_NONE && transforms->count)
        PD_FAIL(
            err, PD_UNSUPPORTED,
            "%s: %s was written through an extension (such as compression) that perdure does not read; save it without one",
            d->metadata, ret->name);
    return PD_OK;
}

static pd_status dcp_open_file(struct dcp *d, const struct item *item, struct pd_error *err)
{
    struct pd_stat stat;
    char path[PD_FORMATS_PATH_MAX];
    PD_TRY(pd_formats_join(d->directory, item->file, path, err));
    if (d->file && strcmp(path, d->path) == 0) return PD_OK;
    pd_file_close_readonly(d->file);
    d->file = NULL;
    memcpy(d->path, path, sizeof path);
    const pd_status st = pd_file_open(d->vfs, d->path, PD_OPEN_READ, &d->file, err);
    if (st) return pd_error_context(err, st, "%s lies there, says %s", item->name, d->metadata);
    PD_TRY(pd_file_stat(d->file, &stat, err));
    d->file_bytes = stat.bytes;
    return pd_catalog_add_file(d->catalog, d->path, stat.bytes, &d->file_number, err);
}

static pd_status add_piece(struct dcp *d, const struct item *item, uint32_t tensor, const struct pd_torch_archive *archive,
                           struct pd_error *err)
{
    const struct pd_foreign_tensor *whole = &d->catalog->tensors[tensor];
    struct pd_torch_tensor t;
    uint32_t dims = 0;
    PD_TRY(pd_torch_tensor(archive, item->name, pd_pickle_root(archive->pickle), &t, err));
    struct pd_piece piece = pd_torch_piece(&t, d->file_number);
    if (item->offset && item->offset->type != PD_PICKLE_NONE &&
        (!pd_pickle_is_sizes(item->offset, PD_FOREIGN_DIMS_MAX, piece.start, &dims) || dims != whole->ndim))
        PD_FAIL(err, PD_CORRUPT, "%s: a piece of %s has no offset in %u dimensions", d->metadata, item->name, whole->ndim);
    if (t.ndim != whole->ndim || t.element != whole->element)
        PD_FAIL(err, PD_CORRUPT, "%s: at byte %" PRIu64 " lies %s of %u dimensions where %s is %s of %u", d->path,
                item->begin, pd_elements[t.element].name, t.ndim, item->name, pd_elements[whole->element].name, whole->ndim);
    return pd_catalog_add_piece(d->catalog, tensor, &piece, err);
}

/* All parameters of one optimizer have made the same number of steps; perdure has one count. */
static pd_status add_step(struct dcp *d, const struct item *item, const struct pd_torch_archive *archive,
                          struct pd_error *err)
{
    double step = 0;
    PD_TRY(pd_torch_number(archive, item->name, pd_pickle_root(archive->pickle), &step, err));
    if (d->has_steps && step != d->step) return pd_catalog_add_unmapped(d->catalog, item->name, err);
    d->has_steps = true;
    d->step = step;
    return PD_OK;
}

/* Reads numbers of the run stored beside the model, by name. */
static void add_number(struct dcp *d, const struct item *item, const struct pd_torch_archive *archive)
{
    struct pd_catalog_counters *c = &d->catalog->counters;
    const char *last = strrchr(item->name, '.');
    double value = 0;
    last = last ? last + 1 : item->name;
    const bool is_step = strcmp(last, "step") == 0, is_tokens = strcmp(last, "ntokens_seen") == 0;
    if (!is_step && !is_tokens) return;
    if (pd_torch_number(archive, item->name, pd_pickle_root(archive->pickle), &value, NULL)) return;
    if (is_step && !c->has_step) c->has_step = pd_torch_is_count(value, &c->step);
    if (is_tokens && !c->has_tokens) c->has_tokens = pd_torch_is_count(value, &c->tokens);
}

static pd_status read_item(struct dcp *d, const struct item *item, struct pd_error *err)
{
    struct pd_torch_archive archive;
    const char *inner = NULL;
    size_t bytes = 0;
    const int64_t name = find_name(d, item->name);
    if (name < 0)
        PD_FAIL(err, PD_CORRUPT, "%s: storage_data has %s, and state_dict_metadata does not", d->metadata, item->name);
    PD_TRY(dcp_open_file(d, item, err));
    if (!pd_checked_range(item->begin, item->bytes, d->file_bytes))
        PD_FAIL(err, PD_CORRUPT,
                "%s: %s should lie in bytes %" PRIu64 " to %" PRIu64 " of %" PRIu64 "; the file is cut short", d->path,
                item->name, item->begin, item->begin + item->bytes, d->file_bytes);
    const enum role role = role_of(item->name, &inner, &bytes);
    const bool is_tensor = d->tensors[name] != UINT32_MAX;
    if (!is_tensor && item->bytes > (1u << 20)) return PD_OK; /* not a number */
    struct pd_error own = {0};
    pd_status st = pd_torch_open(d->file, d->path, item->begin, item->begin + item->bytes, &archive, &own);
    const bool is_foreign = st == PD_CORRUPT || st == PD_UNSUPPORTED;
    if (is_foreign && !is_tensor && role != ROLE_STEP) return PD_OK; /* listed as unmapped: its content is not needed */
    if (st) return pd_error_context(err, pd_error_pass(err, st, &own), "%s", item->name);
    if (is_tensor)
        st = add_piece(d, item, d->tensors[name], &archive, err);
    else if (role == ROLE_STEP)
        st = add_step(d, item, &archive, err);
    else
        add_number(d, item, &archive);
    pd_torch_close(&archive);
    return st;
}

/* ---- the whole ---- */

static pd_status dcp_read_all(struct dcp *d, struct pd_error *err)
{
    char *text = NULL;
    uint64_t bytes = 0;
    PD_TRY(pd_formats_path(d->directory, ".metadata", d->metadata, err));
    PD_TRY(pd_formats_read_text(d->vfs, d->metadata, PD_PICKLE_BYTES_MAX, &text, &bytes, err));
    const pd_status st = pd_pickle_parse(d->metadata, text, bytes, &d->pickle, NULL, err);
    free(text);
    PD_TRY(st);
    PD_TRY(add_names(d, err));
    const struct pd_pickle_node *all = pd_pickle_field(pd_pickle_root(d->pickle), "storage_data");
    if (!all || all->type != PD_PICKLE_DICT)
        PD_FAIL(err, PD_CORRUPT, "%s: not the metadata of a distributed checkpoint: storage_data is missing", d->metadata);
    d->items = calloc(all->count / 2 + 1, sizeof *d->items);
    if (!d->items) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory for %u entries", d->metadata, all->count / 2);
    for (; d->item_count < all->count / 2; d->item_count++)
        PD_TRY(
            take_item(d, all->items[2 * d->item_count], all->items[2 * d->item_count + 1], &d->items[d->item_count], err));
    qsort(d->items, d->item_count, sizeof *d->items, compare_items);
    for (uint32_t i = 0; i < d->item_count; i++)
        PD_TRY(read_item(d, &d->items[i], err));
    if (d->has_steps) d->catalog->counters.has_updates = pd_torch_is_count(d->step, &d->catalog->counters.updates);
    strip_wrapper(d->catalog);
    return pd_formats_add_texts(d->vfs, d->directory, d->catalog, err);
}

pd_status pd_dcp_read(struct pd_vfs *vfs, const char *path, struct pd_catalog *catalog, struct pd_error *err)
{
    struct dcp d = {.vfs = vfs, .directory = path, .catalog = catalog};
    const pd_status st = dcp_read_all(&d, err);
    pd_file_close_readonly(d.file);
    pd_pickle_free(d.pickle);
    free(d.names);
    free(d.tensors);
    free(d.items);
    return st;
}

static bool dcp_recognizes(struct pd_vfs *vfs, const char *path)
{
    return pd_formats_has_file(vfs, path, ".metadata");
}

const struct pd_format pd_format_dcp = {
    .name = "dcp",
    .about = "PyTorch's distributed checkpoint: a directory with .metadata and __0_0.distcp",
    .recognizes = dcp_recognizes,
    .read = pd_dcp_read,
    .holds_moments = true,
    .plan = pd_dcp_plan,
    .observe = pd_dcp_observe,
    .finish = pd_dcp_finish,
};

static bool torchtitan_recognizes(struct pd_vfs *vfs, const char *path)
{
    (void)vfs, (void)path;
    return false; /* it is a dcp */
}

const struct pd_format pd_format_torchtitan = {
    .name = "torchtitan",
    .about = "a dcp with torchtitan's names",
    .is_form = true,
    .recognizes = torchtitan_recognizes,
    .read = pd_dcp_read,
    .holds_moments = true,
    .plan = pd_torchtitan_plan,
    .observe = pd_dcp_observe,
    .finish = pd_dcp_finish,
};
