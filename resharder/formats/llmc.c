/* llm.c: model_<step>.bin, a header of 256 numbers and sixteen tensors of GPT-2 one behind the other, those of the blocks
 * stacked; beside it state_<step>_<rank>.bin with both moments and, where the model is bf16, the fp32 parameters of a rank.
 *
 * With ZeRO-1 a rank has of every tensor, of every layer, the rank-th of equal parts; what it has lies in the order of the
 * tensors, layers stacked. Without, every rank has all, and the first one's file is read.
 * Source: llm.c's train_gpt2.cu (gpt2_build_from_checkpoint, save_state, gpt2_update). */
#include "resharder/formats/llmc.h"

#include "ckpt/base/checked.h"
#include "ckpt/base/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL_MAGIC 20240326
#define STATE_MAGIC 20240527
#define HEADER_BYTES (256 * sizeof(int32_t))
#define SIZE_MAX_EACH (1 << 24) /* of any number in the header */
#define RANKS_MAX 4096
enum { TENSORS = 16 };

struct llmc {
    struct pd_vfs *vfs;
    const char *path;
    struct pd_catalog *catalog;
    int32_t context, vocab, layers, heads, width, padded_vocab;
    enum pd_element element;
    uint32_t file;
    uint64_t elements; /* of the whole model */
    uint64_t ranks;    /* of the states; 0: there are none */
    bool is_cut;       /* ZeRO-1 */
    bool has_master;
    uint64_t step;
};

/* Shape of tensor t: layers (0: it is not stacked), rows, columns (0: one dimension). */
static void shape_of(const struct llmc *m, int t, const char **ret_name, uint64_t ret[3])
{
    const uint64_t l = (uint64_t)m->layers, c = (uint64_t)m->width, v = (uint64_t)m->padded_vocab, p = (uint64_t)m->context;
    const struct {
        const char *name;
        uint64_t layers, rows, columns;
    } table[TENSORS] = {{"wte", 0, v, c},         {"wpe", 0, p, c},      {"ln1w", l, c, 0},     {"ln1b", l, c, 0},
                        {"qkvw", l, 3 * c, c},    {"qkvb", l, 3 * c, 0}, {"attprojw", l, c, c}, {"attprojb", l, c, 0},
                        {"ln2w", l, c, 0},        {"ln2b", l, c, 0},     {"fcw", l, 4 * c, c},  {"fcb", l, 4 * c, 0},
                        {"fcprojw", l, c, 4 * c}, {"fcprojb", l, c, 0},  {"lnfw", 0, c, 0},     {"lnfb", 0, c, 0}};
    *ret_name = table[t].name;
    ret[0] = table[t].layers;
    ret[1] = table[t].rows;
    ret[2] = table[t].columns;
}

static struct pd_foreign_tensor tensor_of(const struct llmc *m, int t)
{
    const char *name = NULL;
    uint64_t shape[3];
    shape_of(m, t, &name, shape);
    struct pd_foreign_tensor tensor = {.name = (char *)(uintptr_t)name, .element = m->element};
    for (uint32_t d = 0; d < PD_FOREIGN_DIMS_MAX; d++)
        tensor.shape[d] = 1;
    for (int d = 0; d < 3; d++)
        if (shape[d]) tensor.shape[tensor.ndim++] = shape[d];
    return tensor;
}

/* ---- headers ---- */

static pd_status open_header(struct pd_vfs *vfs, const char *path, int32_t header[256], struct pd_file **ret_file,
                             uint64_t *ret_bytes, struct pd_error *err)
{
    struct pd_stat stat;
    PD_TRY(pd_file_open(vfs, path, PD_OPEN_READ, ret_file, err));
    PD_TRY(pd_file_stat(*ret_file, &stat, err));
    *ret_bytes = stat.bytes;
    return pd_file_read(*ret_file, 0, header, HEADER_BYTES, err);
}

static pd_status read_header(struct pd_vfs *vfs, const char *path, int32_t header[256], uint64_t *ret_bytes,
                             struct pd_error *err)
{
    struct pd_file *file = NULL;
    const pd_status st = open_header(vfs, path, header, &file, ret_bytes, err);
    pd_file_close_readonly(file);
    return st;
}

static pd_status take_model(struct llmc *m, const int32_t header[256], struct pd_error *err)
{
    int32_t *const sizes[] = {&m->context, &m->vocab, &m->layers, &m->heads, &m->width, &m->padded_vocab};
    if (header[0] != MODEL_MAGIC || (header[1] != 3 && header[1] != 5))
        PD_FAIL(err, PD_CORRUPT,
                "%s: begins with %d, version %d; a model of llm.c begins with %d and is version 3 (fp32) or 5 (bf16)",
                m->path, header[0], header[1], MODEL_MAGIC);
    m->element = header[1] == 3 ? PD_ELEMENT_F32 : PD_ELEMENT_BF16;
    for (int i = 0; i < 6; i++) {
        *sizes[i] = header[2 + i];
        if (header[2 + i] < 1 || header[2 + i] > SIZE_MAX_EACH)
            PD_FAIL(err, PD_CORRUPT, "%s: number %d of the header is %d", m->path, 2 + i, header[2 + i]);
    }
    if (m->padded_vocab < m->vocab)
        PD_FAIL(err, PD_CORRUPT, "%s: a padded vocabulary of %d for one of %d", m->path, m->padded_vocab, m->vocab);
    return PD_OK;
}

/* "model_00000100.bin" has "state_00000100_00000.bin" beside it; false: it is not called so. */
static bool state_path(const struct llmc *m, uint32_t rank, char ret[4096])
{
    const char *slash = strrchr(m->path, '/'), *name = slash ? slash + 1 : m->path;
    unsigned long step = 0;
    int used = 0;
    if (sscanf(name, "model_%8lu.bin%n", &step, &used) != 1 || name[used]) return false;
    snprintf(ret, 4096, "%.*sstate_%08lu_%05u.bin", (int)(name - m->path), m->path, step, rank);
    return true;
}

/* ---- parameters and states ---- */

static pd_status add_parameters(struct llmc *m, uint64_t bytes, struct pd_error *err)
{
    uint64_t offset = HEADER_BYTES;
    PD_TRY(pd_catalog_add_file(m->catalog, m->path, bytes, &m->file, err));
    for (int t = 0; t < TENSORS; t++) {
        const struct pd_foreign_tensor tensor = tensor_of(m, t);
        if (!m->has_master) PD_TRY(pd_catalog_add_dense(m->catalog, &tensor, m->file, offset, err));
        offset += pd_foreign_bytes(&tensor);
        m->elements += pd_foreign_elements(&tensor);
    }
    if (offset != bytes)
        PD_FAIL(err, PD_CORRUPT, "%s: takes %" PRIu64 " bytes where its header gives %" PRIu64, m->path, bytes, offset);
    return PD_OK;
}

/* What rank `rank` has of tensor t in a state: its part of every layer. `base`: byte of that kind's first element. */
static pd_status add_parts(struct llmc *m, int t, uint32_t number, uint32_t rank, uint32_t file, uint64_t base,
                           uint64_t before, struct pd_error *err)
{
    const struct pd_foreign_tensor tensor = tensor_of(m, t);
    const char *name = NULL;
    uint64_t shape[3];
    shape_of(m, t, &name, shape);
    const uint64_t layers = shape[0] ? shape[0] : 1, size = pd_foreign_elements(&tensor) / layers;
    const uint64_t parts = m->is_cut ? m->ranks : 1, part = size / parts;
    for (uint64_t l = 0; l < layers; l++) {
        struct pd_piece piece = {.file = file, .is_range = true};
        piece.offset = base + (before / parts + l * part) * sizeof(float);
        piece.start[0] = l * size + rank * part;
        piece.count[0] = part;
        PD_TRY(pd_catalog_add_piece(m->catalog, number, &piece, err));
    }
    return PD_OK;
}

static pd_status add_rank(struct llmc *m, const uint32_t *numbers, uint32_t rank, struct pd_error *err)
{
    static const enum pd_kind kinds[] = {PD_EXP_AVG, PD_EXP_AVG_SQ, PD_PARAM}; /* in the order of the file */
    const uint64_t parts = m->is_cut ? m->ranks : 1, kind_count = m->has_master ? 3 : 2;
    int32_t header[256];
    char path[4096];
    uint64_t bytes = 0, before = 0;
    uint32_t file = 0;
    state_path(m, rank, path);
    PD_TRY(read_header(m->vfs, path, header, &bytes, err));
    if (header[0] != STATE_MAGIC || header[1] != 1 || header[2] < 1 || (uint64_t)header[2] != m->ranks ||
        (uint64_t)header[3] != rank || bytes != HEADER_BYTES + kind_count * (m->elements / parts) * sizeof(float))
        PD_FAIL(err, PD_CORRUPT, "%s: is not the state of rank %u of %" PRIu64 " of %s", path, rank, m->ranks, m->path);
    PD_TRY(pd_catalog_add_file(m->catalog, path, bytes, &file, err));
    for (int t = 0; t < TENSORS; t++) {
        for (uint32_t k = 0; k < kind_count; k++)
            PD_TRY(add_parts(m, t, numbers[t * PD_KIND_COUNT + kinds[k]], rank, file,
                             HEADER_BYTES + k * (m->elements / parts) * sizeof(float), before, err));
        const struct pd_foreign_tensor tensor = tensor_of(m, t);
        before += pd_foreign_elements(&tensor);
    }
    return PD_OK;
}

/* Tensors of a state; then what each rank has of them. */
static pd_status add_states(struct llmc *m, struct pd_error *err)
{
    uint32_t numbers[TENSORS * PD_KIND_COUNT];
    for (int t = 0; t < TENSORS; t++)
        for (int kind = m->has_master ? PD_PARAM : PD_EXP_AVG; kind < PD_KIND_COUNT; kind++) {
            struct pd_foreign_tensor tensor = tensor_of(m, t);
            tensor.kind = (enum pd_kind)kind;
            tensor.element = PD_ELEMENT_F32;
            PD_TRY(pd_catalog_add_tensor(m->catalog, &tensor, &numbers[t * PD_KIND_COUNT + kind], err));
        }
    for (uint32_t r = 0; r < (m->is_cut ? m->ranks : 1); r++)
        PD_TRY(add_rank(m, numbers, r, err));
    m->catalog->counters.has_step = m->catalog->counters.has_updates = true;
    m->catalog->counters.step = m->catalog->counters.updates = m->step;
    return PD_OK;
}

/* The first rank's file says how many there are; its size whether each has all. */
static pd_status look_at_state(struct llmc *m, struct pd_error *err)
{
    int32_t header[256];
    char path[4096];
    uint64_t bytes = 0, whole = 0;
    struct pd_stat stat;
    if (!state_path(m, 0, path) || pd_vfs_stat(m->vfs, path, &stat, NULL)) return PD_OK;
    PD_TRY(read_header(m->vfs, path, header, &bytes, err));
    if (header[0] != STATE_MAGIC || header[1] != 1 || header[2] < 1 || header[2] > RANKS_MAX || header[10] < 0)
        PD_FAIL(err, PD_CORRUPT, "%s: is no state of llm.c of version 1", path);
    for (int t = 0; t < TENSORS; t++) {
        const struct pd_foreign_tensor tensor = tensor_of(m, t);
        whole += pd_foreign_elements(&tensor);
    }
    m->ranks = (uint64_t)header[2];
    m->has_master = header[4] == 1;
    m->step = (uint64_t)header[10];
    m->is_cut = bytes != HEADER_BYTES + (m->has_master ? 3 : 2) * whole * sizeof(float);
    return PD_OK;
}

/* ---- the whole ---- */

static pd_status add_config(struct llmc *m, struct pd_error *err)
{
    struct pd_json_writer w;
    const char *text = NULL;
    size_t bytes = 0;
    pd_json_writer_init(&w, 2);
    pd_json_object_begin(&w, NULL);
    pd_json_array_begin(&w, "architectures");
    pd_json_string(&w, NULL, "GPT2LMHeadModel");
    pd_json_array_end(&w);
    pd_json_string(&w, "model_type", "gpt2");
    pd_json_i64(&w, "vocab_size", m->vocab);
    pd_json_i64(&w, "n_positions", m->context);
    pd_json_i64(&w, "n_embd", m->width);
    pd_json_i64(&w, "n_layer", m->layers);
    pd_json_i64(&w, "n_head", m->heads);
    pd_json_bool(&w, "tie_word_embeddings", true);
    pd_json_object_end(&w);
    pd_status st = pd_json_writer_finish(&w, &text, &bytes, err);
    if (!st) st = pd_catalog_add_text(m->catalog, "config.json", text, bytes, err);
    pd_json_writer_deinit(&w);
    return st;
}

static pd_status read_checkpoint(struct pd_vfs *vfs, const char *path, struct pd_catalog *catalog, struct pd_error *err)
{
    struct llmc m = {.vfs = vfs, .path = path, .catalog = catalog};
    int32_t header[256];
    uint64_t bytes = 0;
    PD_TRY(read_header(vfs, path, header, &bytes, err));
    PD_TRY(take_model(&m, header, err));
    PD_TRY(look_at_state(&m, err));
    PD_TRY(add_parameters(&m, bytes, err));
    if (m.ranks) PD_TRY(add_states(&m, err));
    return add_config(&m, err);
}

static bool recognizes(struct pd_vfs *vfs, const char *path)
{
    int32_t header[256];
    uint64_t bytes = 0;
    struct pd_stat stat;
    if (pd_vfs_stat(vfs, path, &stat, NULL) || stat.type != PD_ENTRY_FILE || stat.bytes < HEADER_BYTES) return false;
    return read_header(vfs, path, header, &bytes, NULL) == PD_OK && header[0] == MODEL_MAGIC;
}

const struct pd_format pd_format_llmc = {
    .name = "llmc",
    .about = "llm.c: model_00000100.bin, with the state_*.bin beside it",
    .recognizes = recognizes,
    .read = read_checkpoint,
    .plan = pd_format_not_written,
    .observe = pd_format_observe_nothing,
    .finish = pd_format_finish_nothing,
};
