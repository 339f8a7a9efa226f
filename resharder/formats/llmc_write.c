/* Writes llm.c's checkpoints: model_<step>.bin, state_<step>_00000.bin of one rank with both moments and the fp32
 * parameters, and DONE_<step>, which llm.c looks for. An import reads the state. The model's file repeats its parameters,
 * rounded if requested; it is written beside the state from the same bytes as they pass (observe), then read back here.
 *
 * llm.c requires fp32 parameters in the state by default (-w 0 turns it off), so they are always written. Its generator
 * and its samples start as in a new run. */
#include "resharder/formats/llmc.h"

#include "ckpt/base/checked.h"
#include "ckpt/base/digest.h"
#include "ckpt/base/json.h"
#include "resharder/catalog/family.h"
#include "resharder/catalog/model_directory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- shared by reader and writer ---- */

const enum pd_kind pd_llmc_kinds[PD_KIND_COUNT] = {PD_EXP_AVG, PD_EXP_AVG_SQ, PD_PARAM};

struct pd_foreign_tensor pd_llmc_tensor(const struct pd_llmc_sizes *sizes, int t, uint64_t *ret_layers)
{
    const uint64_t l = (uint64_t)sizes->layers, c = (uint64_t)sizes->width, v = (uint64_t)sizes->padded_vocab,
                   p = (uint64_t)sizes->context;
    const struct {
        const char *name;
        uint64_t shape[3]; /* layers (0: not stacked), rows, columns (0: one dimension) */
    } table[PD_LLMC_TENSORS] = {
        {"wte", {0, v, c}},         {"wpe", {0, p, c}},      {"ln1w", {l, c, 0}},     {"ln1b", {l, c, 0}},
        {"qkvw", {l, 3 * c, c}},    {"qkvb", {l, 3 * c, 0}}, {"attprojw", {l, c, c}}, {"attprojb", {l, c, 0}},
        {"ln2w", {l, c, 0}},        {"ln2b", {l, c, 0}},     {"fcw", {l, 4 * c, c}},  {"fcb", {l, 4 * c, 0}},
        {"fcprojw", {l, c, 4 * c}}, {"fcprojb", {l, c, 0}},  {"lnfw", {0, c, 0}},     {"lnfb", {0, c, 0}}};
    struct pd_foreign_tensor tensor = {.name = (char *)(uintptr_t)table[t].name, .element = PD_ELEMENT_F32};
    for (uint32_t d = 0; d < PD_FOREIGN_DIMS_MAX; d++)
        tensor.shape[d] = 1;
    for (int d = 0; d < 3; d++)
        if (table[t].shape[d]) tensor.shape[tensor.ndim++] = table[t].shape[d];
    *ret_layers = table[t].shape[0] ? l : 1;
    return tensor;
}

/* Counts the elements of the tensors before number `end`. */
static uint64_t elements_before(const struct pd_llmc_sizes *sizes, int end)
{
    uint64_t elements = 0, layers;
    for (int t = 0; t < end; t++) {
        const struct pd_foreign_tensor tensor = pd_llmc_tensor(sizes, t, &layers);
        elements += pd_foreign_elements(&tensor);
    }
    return elements;
}

uint64_t pd_llmc_elements(const struct pd_llmc_sizes *sizes)
{
    return elements_before(sizes, PD_LLMC_TENSORS);
}

pd_status pd_llmc_add_parts(struct pd_catalog *catalog, const struct pd_llmc_sizes *sizes, int t, uint32_t number,
                            uint32_t rank, uint64_t parts, uint32_t file, uint64_t base, struct pd_error *err)
{
    uint64_t layers;
    const struct pd_foreign_tensor tensor = pd_llmc_tensor(sizes, t, &layers);
    const uint64_t size = pd_foreign_elements(&tensor) / layers, part = size / parts;
    for (uint64_t l = 0; l < layers; l++) {
        struct pd_piece piece = {.file = file, .is_range = true};
        piece.offset = base + (elements_before(sizes, t) / parts + l * part) * sizeof(float);
        piece.start[0] = l * size + rank * part;
        piece.count[0] = part;
        PD_TRY(pd_catalog_add_piece(catalog, number, &piece, err));
    }
    return PD_OK;
}

#define GENERATOR_START UINT64_C(13371337) /* llm.c's rng_state of rank 0 */
#define CHUNK_BYTES (UINT64_C(1) << 20)

/* ---- writing ---- */

struct writer {
    struct pd_digest_stream digest; /* of the model's file after its header */
    struct pd_vfs *vfs;
    const struct pd_format_plan *plan;
    struct pd_llmc_sizes sizes;
    enum pd_element element; /* of the model's file */
    uint64_t step;
    char model_path[PD_FORMATS_PATH_MAX], state_path[PD_FORMATS_PATH_MAX];
    struct pd_file *model;
    uint64_t at;          /* next byte in it */
    unsigned char *chunk; /* (CHUNK_BYTES) */
    pd_status status;     /* of observe, which cannot return it */
    struct pd_error error;
};

/* ---- the plan ---- */

static pd_status read_heads(const struct pd_catalog *wanted, int32_t *ret, struct pd_error *err)
{
    const struct pd_catalog_text *text = pd_catalog_text(wanted, "config.json");
    const char *key = pd_family_of_dialect(pd_format_llmc.name)->keys[PD_NUMBER_HEADS].config;
    struct pd_json_document *document = NULL;
    if (text) PD_TRY(pd_json_parse("config.json", text->text, text->bytes, &document, err));
    const double heads = pd_json_number_or(document ? pd_json_root(document) : NULL, key, 0);
    pd_json_document_free(document);
    if (!(heads >= 1 && heads <= INT32_MAX))
        PD_FAIL(err, PD_INVALID, "config.json does not say %s, which llm.c's header needs", key);
    *ret = (int32_t)heads;
    return PD_OK;
}

static const struct pd_foreign_tensor *find_param(const struct pd_catalog *wanted, const char *name)
{
    for (uint32_t t = 0; t < wanted->tensor_count; t++)
        if (wanted->tensors[t].kind == PD_PARAM && strcmp(wanted->tensors[t].name, name) == 0) return &wanted->tensors[t];
    return NULL;
}

static pd_status read_sizes(struct writer *w, struct pd_error *err)
{
    const struct pd_foreign_tensor *wte = find_param(w->plan->wanted, "wte"), *wpe = find_param(w->plan->wanted, "wpe"),
                                   *norm = find_param(w->plan->wanted, "ln1w");
    if (!wte || !wpe || !norm) PD_FAIL(err, PD_INVALID, "files of llm.c hold a whole model: leave out --only");
    w->element = wte->element;
    if (w->element != PD_ELEMENT_F32 && w->element != PD_ELEMENT_BF16)
        PD_FAIL(err, PD_UNSUPPORTED, "llm.c has models in fp32 or bf16, not in %s", pd_elements[w->element].name);
    w->sizes = (struct pd_llmc_sizes){.vocab = (int32_t)wte->shape[0],
                                      .context = (int32_t)wpe->shape[0],
                                      .layers = (int32_t)norm->shape[0],
                                      .width = (int32_t)wte->shape[1],
                                      .padded_vocab = (int32_t)pd_round_up(wte->shape[0], PD_LLMC_VOCAB_UNIT)};
    return read_heads(w->plan->wanted, &w->sizes.heads, err);
}

/* Converts tensor t of each kind to what the files have: fp32, padded rows. */
static pd_status take_tensor(struct writer *w, int t, uint32_t numbers[PD_KIND_COUNT], struct pd_error *err)
{
    struct pd_catalog *wanted = w->plan->wanted;
    uint64_t layers;
    const struct pd_foreign_tensor is = pd_llmc_tensor(&w->sizes, t, &layers);
    uint32_t found = 0;
    for (uint32_t i = 0; i < wanted->tensor_count; i++) {
        const struct pd_foreign_tensor *tensor = &wanted->tensors[i];
        if (strcmp(tensor->name, is.name) != 0) continue;
        pd_catalog_store_as(wanted, i, PD_ELEMENT_F32, t == 0 ? is.shape[0] : tensor->shape[0]);
        if (tensor->ndim != is.ndim || memcmp(tensor->shape, is.shape, sizeof is.shape) != 0)
            PD_FAIL(err, PD_UNSUPPORTED, "llm.c's models have another shape of %s than this one", tensor->name);
        numbers[tensor->kind] = i;
        found++;
    }
    if (found != PD_KIND_COUNT) PD_FAIL(err, PD_INVALID, "files of llm.c hold a whole model: leave out --only");
    return PD_OK;
}

static pd_status place_tensors(struct writer *w, struct pd_error *err)
{
    struct pd_catalog *wanted = w->plan->wanted;
    const uint64_t bytes = pd_llmc_elements(&w->sizes) * sizeof(float);
    uint32_t file;
    PD_TRY(pd_catalog_add_file(wanted, w->state_path, PD_LLMC_HEADER_BYTES + PD_KIND_COUNT * bytes, &file, err));
    for (int t = 0; t < PD_LLMC_TENSORS; t++) {
        uint32_t numbers[PD_KIND_COUNT];
        PD_TRY(take_tensor(w, t, numbers, err));
        for (uint32_t k = 0; k < PD_KIND_COUNT; k++)
            PD_TRY(pd_llmc_add_parts(wanted, &w->sizes, t, numbers[pd_llmc_kinds[k]], 0, 1, file,
                                     PD_LLMC_HEADER_BYTES + k * bytes, err));
    }
    return PD_OK;
}

static pd_status open_model(struct writer *w, struct pd_error *err)
{
    char name[32];
    snprintf(name, sizeof name, "state_%08" PRIu64 "_00000.bin", w->step);
    PD_TRY(pd_formats_path(w->plan->directory, name, w->state_path, err));
    snprintf(name, sizeof name, "model_%08" PRIu64 ".bin", w->step);
    PD_TRY(pd_formats_path(w->plan->directory, name, w->model_path, err));
    w->at = PD_LLMC_HEADER_BYTES;
    pd_digest_stream_init(&w->digest, 0);
    w->chunk = malloc(CHUNK_BYTES);
    if (!w->chunk) PD_FAIL(err, PD_NO_MEMORY, "no memory to write %s", w->model_path);
    return pd_file_open(w->vfs, w->model_path, PD_OPEN_READ | PD_OPEN_WRITE | PD_OPEN_CREATE, &w->model, err);
}

pd_status pd_llmc_plan(struct pd_vfs *vfs, struct pd_format_plan *plan, void **ret_state, struct pd_error *err)
{
    struct writer *w = *ret_state = aligned_alloc(_Alignof(struct writer), sizeof *w);
    if (!w) PD_FAIL(err, PD_NO_MEMORY, "no memory to write files of llm.c");
    *w = (struct writer){.vfs = vfs, .plan = plan, .step = plan->wanted->counters.step % 100000000};
    PD_TRY(read_sizes(w, err));
    PD_TRY(open_model(w, err));
    return place_tensors(w, err);
}

/* ---- the model's file ---- */

static pd_status write_rounded(struct writer *w, const float *values, uint64_t count, struct pd_error *err)
{
    const struct pd_element_row *element = &pd_elements[w->element];
    const uint64_t most = CHUNK_BYTES / element->block_bytes;
    for (uint64_t done = 0, n = 0; done < count; done += n) {
        n = pd_min_u64(count - done, most);
        const uint64_t bytes = n * element->block_bytes;
        element->from_f32(values + done, n, w->chunk);
        pd_digest_stream_add(&w->digest, w->chunk, bytes);
        PD_TRY(pd_file_write(w->model, w->at, w->chunk, bytes, err));
        w->at += bytes;
    }
    return PD_OK;
}

/* Parameters arrive in the order of the model's file, since both files order tensors alike. */
void pd_llmc_observe(void *state, uint32_t tensor, const void *data, uint64_t bytes)
{
    struct writer *w = state;
    if (w->plan->wanted->tensors[tensor].kind == PD_PARAM && !w->status)
        w->status = write_rounded(w, data, bytes / sizeof(float), &w->error);
}

static pd_status check_model(struct writer *w, struct pd_error *err)
{
    struct pd_digest_stream there;
    pd_digest_stream_init(&there, 0);
    for (uint64_t at = PD_LLMC_HEADER_BYTES, n = 0; at < w->at; at += n) {
        n = pd_min_u64(w->at - at, CHUNK_BYTES);
        PD_TRY(pd_file_read(w->model, at, w->chunk, n, err));
        pd_digest_stream_add(&there, w->chunk, n);
    }
    if (pd_digest_stream_value(&there) == pd_digest_stream_value(&w->digest)) return PD_OK;
    PD_FAIL(err, PD_CORRUPT, "%s differs from what was written", w->model_path);
}

/* ---- the end ---- */

static pd_status end_model(struct writer *w, struct pd_error *err)
{
    const struct pd_llmc_sizes *s = &w->sizes;
    const int32_t header[256] = {
        PD_LLMC_MODEL_MAGIC, w->element == PD_ELEMENT_F32 ? 3 : 5, s->context, s->vocab, s->layers, s->heads, s->width,
        s->padded_vocab};
    PD_TRY(pd_file_write(w->model, 0, header, sizeof header, err));
    PD_TRY(pd_file_sync(w->model, err));
    PD_TRY(check_model(w, err));
    struct pd_file *file = w->model;
    w->model = NULL;
    return pd_file_close(file, err);
}

static pd_status end_state(const struct writer *w, struct pd_error *err)
{
    static const uint64_t generator[2] = {GENERATOR_START, GENERATOR_START}; /* now, and at the last update */
    int32_t header[256] = {PD_LLMC_STATE_MAGIC, 1, 1, 0, 1, [10] = (int32_t)w->step};
    memcpy(&header[20], generator, sizeof generator);
    return pd_formats_patch(w->vfs, w->state_path, header, sizeof header, err);
}

static pd_status write_done(const struct writer *w, struct pd_error *err)
{
    char path[PD_FORMATS_PATH_MAX], name[24];
    snprintf(name, sizeof name, "DONE_%08" PRIu64, w->step);
    PD_TRY(pd_formats_path(w->plan->directory, name, path, err));
    return pd_formats_write_text(w->vfs, path, "", 0, err);
}

pd_status pd_llmc_finish(void *state, pd_status mine, struct pd_error *err)
{
    struct writer *w = state;
    pd_status st = mine;
    if (!st && w->status) {
        st = w->status;
        *err = w->error;
    }
    if (!st) st = end_model(w, err);
    if (!st) st = end_state(w, err);
    if (!st) st = write_done(w, err);
    if (!st) st = pd_formats_write_texts(w->vfs, w->plan->directory, w->plan->wanted, err);
    pd_file_close_readonly(w->model);
    free(w->chunk);
    free(w);
    return st;
}
