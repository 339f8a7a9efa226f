#include "tools/library/foreign.h"

#include "ckpt/base/words.h"
#include "resharder/catalog/model_directory.h"
#include "resharder/convert/compare.h"
#include "resharder/formats/gguf.h"
#include "resharder/formats/perdure.h"
#include "trainer/config/check.h"
#include "trainer/model/hugging_face.h"
#include "trainer/model/links.h"
#include "trainer/tokenizer/tokenizer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_foreign(struct pd_vfs *vfs, const char *path)
{
    const struct pd_format *format = pd_format_recognize(vfs, path);
    return format && format != &pd_format_perdure;
}

bool pd_ckpt_is_foreign(const char *path)
{
    struct pd_vfs *vfs = NULL;
    if (pd_vfs_new_auto(&vfs, NULL)) return false;
    const bool is = is_foreign(vfs, path);
    pd_vfs_free(vfs);
    return is;
}

bool pd_ckpt_needs_import(const char *path)
{
    struct pd_ckpt_place place;
    const struct pd_store_entry *entry = NULL;
    struct pd_commit commit;
    if (pd_ckpt_is_foreign(path)) return true;
    if (pd_ckpt_place_open_quiet(path, NULL, &place, NULL)) return false;
    pd_status st = pd_ckpt_place_choose(&place, UINT64_MAX, &entry, NULL);
    if (!st) st = pd_store_read_commit(place.store, entry, &commit, NULL);
    const bool is_listed = !st && commit.state.layout.is_listed;
    if (!st) pd_commit_deinit(&commit);
    pd_ckpt_place_close(&place);
    return is_listed;
}

static pd_status read_catalog(struct pd_ckpt_foreign *f, struct pd_error *err)
{
    pd_catalog_deinit(&f->catalog);
    pd_catalog_init(&f->catalog, f->format->name);
    if (f->entry) pd_store_entry_path(f->place.store, f->entry, f->path);
    PD_TRY(f->format->read(f->vfs, f->path, &f->catalog, err));
    return pd_catalog_finish(&f->catalog, err);
}

pd_status pd_ckpt_foreign_take_copy(struct pd_ckpt_foreign *f, pd_status status, struct pd_error *err)
{
    while (status && f->entry && pd_ckpt_place_next_copy(&f->place, err, &f->entry))
        if ((status = read_catalog(f, err)) == PD_OK) return PD_OK;
    return status;
}

/* Opens a run, a store, or one checkpoint, even if the store would not list it. */
static pd_status open_ours(const char *path, uint64_t step, const struct pd_notes *notes, struct pd_ckpt_foreign *f,
                           struct pd_error *err)
{
    f->format = &pd_format_perdure;
    PD_TRY(pd_ckpt_place_open(path, NULL, notes, &f->place, err));
    if (f->place.named[0])
        snprintf(f->path, sizeof f->path, "%s/%s", f->place.root, f->place.named);
    else
        PD_TRY(pd_ckpt_place_choose(&f->place, step, &f->entry, err));
    const pd_status st = pd_ckpt_foreign_take_copy(f, read_catalog(f, err), err);
    return st == PD_NOT_FOUND ? PD_CORRUPT : st; /* there must be a valid checkpoint */
}

pd_status pd_ckpt_foreign_record(const struct pd_ckpt_foreign *f, struct pd_commit *ret_commit, struct pd_error *err)
{
    char path[PD_FORMATS_PATH_MAX];
    PD_TRY(pd_formats_path(f->path, "commit.h5", path, err));
    return pd_commit_read(f->vfs, path, ret_commit, err);
}

pd_status pd_ckpt_foreign_add_advice(pd_status status, const char *path, struct pd_error *err)
{
    static const char copy[] = "; fetch it again, or take another copy",
                      hint[] = "; free some space, or name a place on another drive";
    if (!err) return status;
    if (status == PD_CORRUPT && strstr(err->message, path) && !strstr(err->message, copy)) pd_error_append(err, "%s", copy);
    if (status == PD_NO_SPACE && !strstr(err->message, "make room")) pd_error_append(err, "%s", hint);
    return status;
}

pd_status pd_ckpt_foreign_open(const char *path, uint64_t step, const struct pd_notes *notes, struct pd_ckpt_foreign *ret,
                               struct pd_error *err)
{
    struct pd_stat stat;
    *ret = (struct pd_ckpt_foreign){0};
    PD_TRY(pd_vfs_new_auto(&ret->vfs, err));
    pd_catalog_init(&ret->catalog, "");
    pd_status st = pd_vfs_stat(ret->vfs, path, &stat, NULL);
    if (st == PD_NOT_FOUND)
        st = pd_error_set(err, st, PD_WHERE, 0, "%s does not exist; name a run, a checkpoint, or one of another program",
                          path[0] ? path : "the empty path");
    else if (st || stat.type != PD_ENTRY_DIRECTORY)
        st = pd_format_of(ret->vfs, path, &ret->format, err);
    if (!st && !is_foreign(ret->vfs, path)) {
        st = open_ours(path, step, notes, ret, err);
    } else if (!st) {
        snprintf(ret->path, sizeof ret->path, "%s", path);
        st = pd_format_of(ret->vfs, path, &ret->format, err);
        if (!st) st = read_catalog(ret, err);
    }
    if (st && ret->format != &pd_format_perdure) st = pd_ckpt_foreign_add_advice(st, path, err);
    if (st) pd_ckpt_foreign_close(ret);
    return st;
}

void pd_ckpt_foreign_close(struct pd_ckpt_foreign *f)
{
    pd_catalog_deinit(&f->catalog);
    if (f->place.vfs) pd_ckpt_place_close(&f->place);
    pd_vfs_free(f->vfs);
    *f = (struct pd_ckpt_foreign){0};
}

bool pd_ckpt_foreign_is_run(const struct pd_ckpt_foreign *f)
{
    return f->format == &pd_format_perdure && pd_catalog_text(&f->catalog, "config.yaml");
}

static pd_status model_of_record(const char *yaml, struct pd_model **ret_model, struct pd_error *err)
{
    struct pd_config config;
    PD_TRY(pd_config_parse_saved(yaml, NULL, 0, &config, err));
    const pd_status st = pd_config_model(&config, ret_model, err);
    pd_config_deinit(&config);
    return st;
}

/* GGUF has no config.json: messages name its own file. */
static pd_status read_theirs(const struct pd_ckpt_foreign *f, const struct pd_catalog_text *text,
                             struct pd_model_config *ret, struct pd_error *err)
{
    if (f->format == &pd_format_gguf)
        return pd_hugging_face_read_gguf(f->catalog.files[0].path, text->text, text->bytes, ret, err);
    const pd_status st = pd_hugging_face_read("config.json", text->text, text->bytes, ret, NULL, err);
    return st ? pd_error_context(err, st, "%s", f->path) : PD_OK;
}

pd_status pd_ckpt_foreign_model(const struct pd_ckpt_foreign *f, struct pd_model **ret_model, struct pd_error *err)
{
    const struct pd_catalog_text *ours = pd_catalog_text(&f->catalog, "config.yaml"),
                                 *theirs = pd_catalog_text(&f->catalog, "config.json");
    struct pd_model_config config;
    if (f->format == &pd_format_perdure && ours) return model_of_record(ours->text, ret_model, err);
    if (!theirs) return PD_NOT_FOUND;
    PD_TRY(read_theirs(f, theirs, &config, err));
    const pd_status st = pd_model_new(&config, ret_model, err);
    return st ? pd_error_context(err, st, "%s", f->path) : PD_OK;
}

pd_status pd_ckpt_foreign_read_model(const struct pd_ckpt_foreign *f, struct pd_config *config, bool *ret_is_said,
                                     struct pd_error *err)
{
    const struct pd_catalog_text *text = pd_catalog_text(&f->catalog, "config.json");
    struct pd_model_config model;
    *ret_is_said = text != NULL;
    if (!text) return PD_OK;
    PD_TRY(read_theirs(f, text, &model, err));
    pd_config_take_model(config, &model);
    return PD_OK;
}

bool pd_ckpt_is_model_file(const char *file)
{
    const char *dot = file ? strrchr(file, '.') : NULL;
    return dot && strcmp(dot, ".json") == 0;
}

static pd_status read_any_model(const struct pd_ckpt_foreign *f, const char *file, struct pd_config *config,
                                struct pd_error *err)
{
    bool is_said;
    if (pd_ckpt_is_model_file(file)) {
        char *text = NULL;
        uint64_t bytes = 0;
        PD_TRY(pd_formats_read_text(f->vfs, file, PD_CATALOG_TEXT_MAX, &text, &bytes, err));
        struct pd_model_config model;
        const pd_status st = pd_hugging_face_read(file, text, bytes, &model, NULL, err);
        if (!st) pd_config_take_model(config, &model);
        free(text);
        return st;
    }
    PD_TRY(pd_ckpt_foreign_read_model(f, config, &is_said, err));
    if (is_said || file) return PD_OK;
    PD_FAIL(err, PD_INVALID,
            "%s does not say which model it is; give the config.json of transformers, or a configuration of a run with its "
            "model section: --config=run.yaml",
            f->path);
}

pd_status pd_ckpt_foreign_configure(const struct pd_ckpt_foreign *f, const char *file, struct pd_config *ret_config,
                                    struct pd_error *err)
{
    /* The user's run sets its own values. With init.from sizes are checked against the imported model, not against the
     * preset's. */
    static const char *const own[] = {"init.from=imported", "run.dir=imported", "data.train=[imported]"};
    const char *run = pd_ckpt_is_model_file(file) ? NULL : file;
    PD_TRY(pd_config_load(run, own, run ? 1 : 3, ret_config, err));
    pd_status st = read_any_model(f, file, ret_config, err);
    if (!st) st = pd_config_check_model(ret_config, err);
    ret_config->init.from[0] = '\0';
    if (st) pd_config_deinit(ret_config);
    return st;
}

pd_status pd_ckpt_foreign_refuse_step(const struct pd_ckpt_foreign *f, uint64_t step, struct pd_error *err)
{
    if (f->format == &pd_format_perdure || step == UINT64_MAX) return PD_OK;
    PD_FAIL(err, PD_USAGE, "--step=%" PRIu64 ": %s is one checkpoint (%s); leave it out", step, f->path, f->format->name);
}

/* "model.q.weight" and "model.q.weight_scale_inv", or "model.q.weight" and "model.q.input_scale". */
static bool is_scale_of(const char *scale, const char *name)
{
    const char *dot = strrchr(name, '.');
    const size_t whole = strlen(name), module = dot ? (size_t)(dot + 1 - name) : whole;
    return (strncmp(scale, name, whole) == 0 && strstr(scale + whole, "scale")) ||
           (dot && strncmp(scale, name, module) == 0 && strstr(scale + module, "scale"));
}

/* fp8 is read as plain numbers, which are the weights only if no scale multiplies them. */
static pd_status check_fp8(const struct pd_ckpt_foreign *f, const struct pd_links *links, struct pd_error *err)
{
    const struct pd_catalog *c = &f->catalog;
    for (uint32_t i = 0; i < links->count; i++) {
        const struct pd_link *link = &links->items[i];
        const int64_t at = pd_catalog_find(c, link->name, link->kind);
        const enum pd_element element = at < 0 ? PD_ELEMENT_F32 : c->tensors[at].element;
        for (uint32_t t = 0; t < c->tensor_count && (element == PD_ELEMENT_F8_E4M3 || element == PD_ELEMENT_F8_E5M2); t++)
            if ((int64_t)t != at && is_scale_of(c->tensors[t].name, link->name))
                PD_FAIL(
                    err, PD_UNSUPPORTED,
                    "%s: %s is stored as fp8 with a scale (%s), which perdure does not apply; take the bf16 weights that "
                    "it was made of",
                    f->path, link->name, c->tensors[t].name);
    }
    return PD_OK;
}

bool pd_ckpt_foreign_is_model(const struct pd_ckpt_foreign *f)
{
    const struct pd_catalog_counters *n = &f->catalog.counters;
    return !pd_ckpt_foreign_has_moments(f) && !(n->has_step && n->step) && !(n->has_updates && n->updates);
}

pd_status pd_ckpt_foreign_link(const struct pd_ckpt_foreign *f, const struct pd_model *model, bool fresh_optimizer,
                               struct pd_links *ret_links, struct pd_error *err)
{
    const struct pd_catalog *c = &f->catalog;
    const enum pd_moments moments = !pd_ckpt_foreign_has_moments(f) ? PD_MOMENTS_NONE
                                    : fresh_optimizer               ? PD_MOMENTS_FOUND
                                                                    : PD_MOMENTS_ALL;
    pd_status st = pd_model_links(model, NULL, c, moments, ret_links, err);
    if (!st) {
        st = check_fp8(f, ret_links, err);
        if (st) pd_links_deinit(ret_links), *ret_links = (struct pd_links){0};
        return st;
    }
    st = pd_error_context(err, st, "%s", f->path);
    if (strstr(err->message, "--prefix")) return st;
    for (uint32_t i = 0; i < c->unmapped_count; i++)
        if (strstr(c->unmapped[i], "not read")) return pd_error_append(err, "; %s", c->unmapped[i]), st;
    struct pd_links without;
    if (moments == PD_MOMENTS_ALL && !pd_model_links(model, NULL, c, PD_MOMENTS_FOUND, &without, NULL)) {
        pd_links_deinit(&without);
        return pd_error_append(err, "; give --fresh-optimizer, and these moments begin at zero"), st;
    }
    pd_error_append(err, "; perdure ckpt show lists what it has, and --config=FILE describes another model");
    return st;
}

struct pd_catalog_counters pd_ckpt_foreign_counters(const struct pd_ckpt_foreign *f, const struct pd_config *config)
{
    const struct pd_catalog_counters *n = &f->catalog.counters;
    const uint64_t step = n->has_step ? n->step : n->updates, updates = n->has_updates ? n->updates : n->step;
    const bool has_scale = n->has_loss_scale && isfinite(n->loss_scale) && n->loss_scale > 0;
    return (struct pd_catalog_counters){.has_step = true,
                                        .has_updates = true,
                                        .has_samples = true,
                                        .has_tokens = true,
                                        .has_loss_scale = true,
                                        .step = step > updates ? step : updates, /* a step applies at most one update */
                                        .updates = updates,
                                        .samples = n->samples,
                                        .tokens = n->tokens,
                                        .loss_scale = has_scale ? n->loss_scale : config->numerics.loss_scale};
}

static bool is_same_shape(const struct pd_foreign_tensor *a, const struct pd_foreign_tensor *b)
{
    return a->ndim == b->ndim && !memcmp(a->shape, b->shape, sizeof a->shape);
}

/* -1: none to compare. */
static int64_t find_tied_head(const struct pd_catalog *c, const struct pd_model *model,
                              const struct pd_foreign_tensor *tokens)
{
    for (uint32_t t = 0; t < c->tensor_count; t++)
        if (c->tensors[t].kind == PD_PARAM && pd_model_ties(model, c->tensors[t].name) &&
            is_same_shape(&c->tensors[t], tokens))
            return t;
    return -1;
}

static pd_status compare_tied(const struct pd_ckpt_foreign *f, uint32_t tokens, uint32_t head, void *buffers, bool *wanted,
                              struct pd_tensor_report *reports, struct pd_error *err)
{
    const struct pd_compare_request request = {.left = {.catalog = &f->catalog}, .buffers = buffers};
    if (!buffers || !wanted || !reports) PD_FAIL(err, PD_NO_MEMORY, "no memory to compare tied tensors");
    wanted[tokens] = wanted[head] = true;
    PD_TRY(pd_compare_report(f->vfs, &request, wanted, reports, NULL, err));
    if (reports[tokens].digest == reports[head].digest) return PD_OK;
    PD_FAIL(err, PD_INVALID,
            "%s: the model ties its output matrix to the token embedding, and %s is not equal to %s; to keep it, set "
            "\"tie_word_embeddings\": false in config.json (model.tie_embeddings of --config)",
            f->path, f->catalog.tensors[head].name, f->catalog.tensors[tokens].name);
}

pd_status pd_ckpt_foreign_check_tied(const struct pd_ckpt_foreign *f, const struct pd_model *model,
                                     const struct pd_links *links, struct pd_error *err)
{
    const struct pd_catalog *c = &f->catalog;
    const int64_t tokens = pd_catalog_find(c, links->items[0].name, PD_PARAM), /* the first tensor of every model */
        head = tokens < 0 ? -1 : find_tied_head(c, model, &c->tensors[tokens]);
    if (head < 0) return PD_OK;
    void *buffers = aligned_alloc(PD_VFS_ALIGN, PD_COMPARE_BUFFER_BYTES);
    bool *wanted = calloc(c->tensor_count, sizeof *wanted);
    struct pd_tensor_report *reports = calloc(c->tensor_count, sizeof *reports);
    const pd_status st = compare_tied(f, (uint32_t)tokens, (uint32_t)head, buffers, wanted, reports, err);
    free(reports);
    free(wanted);
    free(buffers);
    return st;
}

/* Length of a name prefix shared by many fields, which get one line; 0: none. */
static size_t group_of(const char *unmapped)
{
    static const char *const groups[] = {"param_groups", "__metadata__"};
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        const char *at = strstr(unmapped, groups[i]);
        if (at && at[strlen(groups[i])] == '.') return (size_t)(at - unmapped) + strlen(groups[i]);
    }
    return 0;
}

pd_status pd_ckpt_foreign_list_beyond(const struct pd_ckpt_foreign *f, const struct pd_model *model,
                                      const struct pd_links *links, bool with_moments, const char *verb,
                                      const struct pd_notes *notes, struct pd_error *err)
{
    const struct pd_catalog *c = &f->catalog;
    bool *is_beyond = calloc((size_t)c->tensor_count + 1, sizeof *is_beyond);
    if (!is_beyond) PD_FAIL(err, PD_NO_MEMORY, "no memory for %u names", c->tensor_count);
    pd_model_links_beyond(model, links, c, is_beyond);
    for (uint32_t t = 0; t < c->tensor_count; t++)
        if (is_beyond[t] && (with_moments || c->tensors[t].kind == PD_PARAM))
            pd_note(notes, "%s: %s of tensor %s", verb, pd_kind_name(c->tensors[t].kind), c->tensors[t].name);
    for (uint32_t i = 0; i < links->count; i++) {
        const uint64_t rows = pd_model_links_padding(model, &links->items[i], c);
        if (rows && links->items[i].kind == PD_PARAM)
            pd_note(notes, "%s: %" PRIu64 " rows of tensor %s beyond the vocabulary of %u", verb, rows, links->items[i].name,
                    model->config.vocab);
    }
    for (uint32_t i = 0; i < c->unmapped_count; i++) {
        uint32_t same = 0, before = 0;
        const size_t bytes = group_of(c->unmapped[i]);
        for (uint32_t k = 0; bytes && k < c->unmapped_count; k++)
            if (group_of(c->unmapped[k]) == bytes && !memcmp(c->unmapped[k], c->unmapped[i], bytes)) same++, before += k < i;
        if (same < 2)
            pd_note(notes, "%s: %s", verb, c->unmapped[i]);
        else if (!before)
            pd_note(notes, "%s: %u fields of %.*s", verb, same, (int)bytes, c->unmapped[i]);
    }
    free(is_beyond);
    return PD_OK;
}

static struct pd_tokenizer_text text_of(const struct pd_catalog *catalog, const char *name)
{
    const struct pd_catalog_text *text = pd_catalog_text(catalog, name);
    return text ? (struct pd_tokenizer_text){text->text, text->bytes} : (struct pd_tokenizer_text){0};
}

pd_status pd_ckpt_foreign_open_tokenizer(const struct pd_catalog *catalog, struct pd_tokenizer **ret, struct pd_error *err)
{
    const struct pd_tokenizer_text json = text_of(catalog, PD_TOKENIZER_FILE),
                                   gguf = text_of(catalog, PD_TOKENIZER_GGUF_FILE);
    struct pd_tokenizer_text beside[PD_TOKENIZER_BESIDE];
    for (uint32_t i = 0; i < PD_TOKENIZER_BESIDE; i++)
        beside[i] = text_of(catalog, pd_tokenizer_beside[i]);
    *ret = NULL;
    if (json.text) return pd_tokenizer_parse_with(PD_TOKENIZER_FILE, &json, beside, ret, err);
    const bool is_inside = catalog->file_count && strcmp(catalog->format, pd_format_gguf.name) == 0;
    const char *name = is_inside ? catalog->files[0].path : PD_TOKENIZER_GGUF_FILE;
    return gguf.text ? pd_tokenizer_parse(name, gguf.text, gguf.bytes, ret, err) : PD_OK;
}

uint64_t pd_ckpt_foreign_tokenizer(const struct pd_catalog *catalog)
{
    struct pd_tokenizer *tokenizer = NULL;
    if (pd_ckpt_foreign_open_tokenizer(catalog, &tokenizer, NULL)) return 0;
    const uint64_t digest = tokenizer ? pd_tokenizer_digest(tokenizer) : 0;
    pd_tokenizer_free(tokenizer);
    return digest;
}

bool pd_ckpt_foreign_has_moments(const struct pd_ckpt_foreign *f)
{
    for (uint32_t t = 0; t < f->catalog.tensor_count; t++)
        if (f->catalog.tensors[t].kind != PD_PARAM) return true;
    return false;
}
