/* llm.c: model_<step>.bin, a header of 256 numbers and the sixteen tensors of GPT-2, with blocks stacked; beside it
 * state_<step>_<rank>.bin with both moments of a rank and, if the model is bf16, its fp32 parameters.
 *
 * With ZeRO-1 each rank has the rank-th of equal parts of every layer of every tensor, in the order of the tensors,
 * layers stacked. Without, every rank has everything, and the first one's file is read. Source: llm.c's train_gpt2.cu
 * (gpt2_build_from_checkpoint, save_state, gpt2_update). */
#include "resharder/formats/llmc.h"

#include "ckpt/base/checked.h"
#include "ckpt/base/json.h"
#include "resharder/catalog/family.h"
#include "resharder/catalog/model_directory.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SIZE_MAX_EACH (1 << 24) /* most for any number in the header */
#define RANKS_MAX 4096
#define MODEL_MAGIC PD_LLMC_MODEL_MAGIC
#define STATE_MAGIC PD_LLMC_STATE_MAGIC
#define HEADER_BYTES PD_LLMC_HEADER_BYTES
enum { TENSORS = PD_LLMC_TENSORS };

struct llmc {
    struct pd_vfs *vfs;
    const char *path;
    struct pd_catalog *catalog;
    struct pd_llmc_sizes sizes;
    enum pd_element element;
    uint32_t file;
    uint64_t elements; /* of the whole model */
    uint64_t ranks;    /* number of states; 0: none */
    bool is_cut;       /* ZeRO-1 */
    bool has_master;
    bool has_order; /* the order of samples follows what we read */
    uint64_t step;
};

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

static bool is_model_name(const char *name, unsigned long *ret_step)
{
    int used = 0;
    return sscanf(name, "model_%8lu.bin%n", ret_step, &used) == 1 && !name[used];
}

/* "model_00000100.bin" has "state_00000100_00000.bin" beside it; false for other names. */
static bool state_path(const struct llmc *m, uint32_t rank, char ret[PD_FORMATS_PATH_MAX])
{
    const char *slash = strrchr(m->path, '/'), *name = slash ? slash + 1 : m->path;
    unsigned long step = 0;
    if (!is_model_name(name, &step)) return false;
    return snprintf(ret, PD_FORMATS_PATH_MAX, "%.*sstate_%08lu_%05u.bin", (int)(name - m->path), m->path, step, rank) <
           (int)PD_FORMATS_PATH_MAX;
}

/* ---- parameters and states ---- */

/* Bytes of the state of one of `parts` ranks, without the order of samples. */
static uint64_t state_bytes(const struct llmc *m, uint64_t parts)
{
    return HEADER_BYTES + (m->has_master ? 3 : 2) * (m->elements / parts) * sizeof(float);
}

/* True if [at, bytes) of the file is an order of samples: a count and numbers of shards, a count and numbers of samples,
 * a generator. This identifies a state of one of `parts` ranks. */
static bool is_order(struct pd_file *file, uint64_t at, uint64_t bytes)
{
    enum { GENERATOR_BYTES = 2520 };
    for (int i = 0; i < 2; i++) {
        uint64_t count = 0;
        if (!pd_checked_range(at, sizeof count, bytes) || pd_file_read(file, at, &count, sizeof count, NULL)) return false;
        at += sizeof count;
        if (count > (bytes - at) / sizeof(int32_t)) return false;
        at += count * sizeof(int32_t);
    }
    return bytes - at == GENERATOR_BYTES;
}

static bool is_state_of(const struct llmc *m, struct pd_file *file, uint64_t bytes, uint64_t parts)
{
    const uint64_t end = state_bytes(m, parts);
    return m->has_order ? end <= bytes && is_order(file, end, bytes) : end == bytes;
}

static pd_status add_rank(struct llmc *m, const uint32_t *numbers, uint32_t rank, struct pd_error *err)
{
    const uint64_t parts = m->is_cut ? m->ranks : 1, kind_count = m->has_master ? 3 : 2;
    int32_t header[256];
    char path[PD_FORMATS_PATH_MAX];
    struct pd_file *opened = NULL;
    uint64_t bytes = 0;
    uint32_t file = 0;
    state_path(m, rank, path);
    pd_status st = open_header(m->vfs, path, header, &opened, &bytes, err);
    if (!st && (header[0] != STATE_MAGIC || header[1] != 1 || header[2] < 1 || (uint64_t)header[2] != m->ranks ||
                (uint64_t)header[3] != rank || !is_state_of(m, opened, bytes, parts)))
        st = pd_error_set(err, PD_CORRUPT, PD_WHERE, 0, "%s: is not the state of rank %u of %" PRIu64 " of %s", path, rank,
                          m->ranks, m->path);
    pd_file_close_readonly(opened);
    PD_TRY(st);
    PD_TRY(pd_catalog_add_file(m->catalog, path, bytes, &file, err));
    for (int t = 0; t < TENSORS; t++)
        for (uint32_t k = 0; k < kind_count; k++)
            PD_TRY(pd_llmc_add_parts(m->catalog, &m->sizes, t, numbers[t * PD_KIND_COUNT + pd_llmc_kinds[k]], rank, parts,
                                     file, HEADER_BYTES + k * (m->elements / parts) * sizeof(float), err));
    return PD_OK;
}

/* Adds the tensors of a state, then each rank's parts. */
static pd_status add_states(struct llmc *m, struct pd_error *err)
{
    uint32_t numbers[TENSORS * PD_KIND_COUNT];
    uint64_t layers;
    for (int t = 0; t < TENSORS; t++)
        for (int kind = m->has_master ? PD_PARAM : PD_EXP_AVG; kind < PD_KIND_COUNT; kind++) {
            struct pd_foreign_tensor tensor = pd_llmc_tensor(&m->sizes, t, &layers);
            tensor.kind = (enum pd_kind)kind;
            PD_TRY(pd_catalog_add_tensor(m->catalog, &tensor, &numbers[t * PD_KIND_COUNT + kind], err));
        }
    for (uint32_t r = 0; r < (m->is_cut ? m->ranks : 1); r++)
        PD_TRY(add_rank(m, numbers, r, err));
    m->catalog->counters.has_step = m->catalog->counters.has_updates = true;
    m->catalog->counters.step = m->catalog->counters.updates = m->step;
    if (!m->has_order) return PD_OK;
    return pd_catalog_add_unmapped(m->catalog, "the order of llm.c's samples", err);
}

/* The first rank's file says how many states there are; its size tells whether each is complete. */
static pd_status look_at_state(struct llmc *m, struct pd_error *err)
{
    int32_t header[256];
    char path[PD_FORMATS_PATH_MAX];
    struct pd_file *file = NULL;
    uint64_t bytes = 0;
    struct pd_stat stat;
    if (!state_path(m, 0, path) || pd_vfs_stat(m->vfs, path, &stat, NULL)) return PD_OK;
    pd_status st = open_header(m->vfs, path, header, &file, &bytes, err);
    if (!st && (header[0] != STATE_MAGIC || header[1] != 1 || header[2] < 1 || header[2] > RANKS_MAX || header[10] < 0))
        st = pd_error_set(err, PD_CORRUPT, PD_WHERE, 0, "%s: is not a state of llm.c in its version 1", path);
    if (!st) {
        m->ranks = (uint64_t)header[2];
        m->has_master = header[4] == 1;
        m->has_order = header[5] == 1;
        m->step = (uint64_t)header[10];
        m->is_cut = !is_state_of(m, file, bytes, 1);
    }
    pd_file_close_readonly(file);
    return st;
}

/* ---- the whole ---- */

static pd_status add_config(struct llmc *m, struct pd_error *err)
{
    const struct pd_family *family = pd_family_of_dialect(pd_format_llmc.name);
    struct pd_json_writer w;
    pd_json_writer_init_object(&w, 2);
    pd_model_class_write(family->classes, &w);
    pd_json_i64(&w, family->keys[PD_NUMBER_VOCAB].config, m->sizes.vocab);
    pd_json_i64(&w, family->keys[PD_NUMBER_CONTEXT].config, m->sizes.context);
    pd_json_i64(&w, family->keys[PD_NUMBER_HIDDEN].config, m->sizes.width);
    pd_json_i64(&w, family->keys[PD_NUMBER_LAYERS].config, m->sizes.layers);
    pd_json_i64(&w, family->keys[PD_NUMBER_HEADS].config, m->sizes.heads);
    pd_json_bool(&w, "tie_word_embeddings", true);
    return pd_catalog_add_json(m->catalog, "config.json", &w, PD_OK, err);
}

/* Finds the newest model in a run's directory; if llm.c marks any as done, only among those. */
static pd_status newest_model(struct pd_vfs *vfs, const char *directory, char ret_path[PD_FORMATS_PATH_MAX],
                              struct pd_error *err)
{
    struct pd_listing listing;
    unsigned long best = 0;
    bool is_best_done = false;
    ret_path[0] = '\0';
    PD_TRY(pd_vfs_list(vfs, directory, &listing, err));
    pd_status st = PD_OK;
    for (uint32_t i = 0; !st && i < listing.count; i++) {
        unsigned long step = 0;
        char done[24];
        if (!is_model_name(listing.names[i], &step)) continue;
        snprintf(done, sizeof done, "DONE_%08lu", step);
        const bool is_done = pd_formats_has_file(vfs, directory, done);
        if (ret_path[0] && (is_done < is_best_done || (is_done == is_best_done && step < best))) continue;
        best = step;
        is_best_done = is_done;
        st = pd_formats_path(directory, listing.names[i], ret_path, err);
    }
    pd_listing_deinit(&listing);
    return st;
}

static pd_status llmc_read_checkpoint(struct pd_vfs *vfs, const char *path, struct pd_catalog *catalog, struct pd_error *err)
{
    struct llmc m = {.vfs = vfs, .path = path, .catalog = catalog};
    char model[PD_FORMATS_PATH_MAX];
    int32_t header[256];
    uint64_t bytes = 0;
    if (pd_formats_is_directory(vfs, path)) {
        PD_TRY(newest_model(vfs, path, model, err));
        PD_TRY(pd_formats_add_texts(vfs, path, catalog, err));
        m.path = model;
    }
    PD_TRY(read_header(vfs, m.path, header, &bytes, err));
    struct pd_llmc_sizes *s = &m.sizes;
    int32_t *const sizes[] = {&s->context, &s->vocab, &s->layers, &s->heads, &s->width, &s->padded_vocab};
    if (header[0] != MODEL_MAGIC || (header[1] != 3 && header[1] != 5))
        PD_FAIL(err, PD_CORRUPT,
                "%s: begins with %d, version %d; a model of llm.c begins with %d and is version 3 (fp32) or 5 (bf16)",
                m.path, header[0], header[1], MODEL_MAGIC);
    m.element = header[1] == 3 ? PD_ELEMENT_F32 : PD_ELEMENT_BF16;
    for (int i = 0; i < 6; i++) {
        *sizes[i] = header[2 + i];
        if (header[2 + i] < 1 || header[2 + i] > SIZE_MAX_EACH)
            PD_FAIL(err, PD_CORRUPT, "%s: number %d of the header is %d", m.path, 2 + i, header[2 + i]);
    }
    if (s->padded_vocab < s->vocab)
        PD_FAIL(err, PD_CORRUPT, "%s: a padded vocabulary of %d for one of %d", m.path, s->padded_vocab, s->vocab);
    m.elements = pd_llmc_elements(s);
    PD_TRY(look_at_state(&m, err));
    uint64_t offset = HEADER_BYTES, layers;
    PD_TRY(pd_catalog_add_file(m.catalog, m.path, bytes, &m.file, err));
    for (int t = 0; t < TENSORS; t++) {
        struct pd_foreign_tensor tensor = pd_llmc_tensor(&m.sizes, t, &layers);
        tensor.element = m.element;
        if (!m.has_master) PD_TRY(pd_catalog_add_dense(m.catalog, &tensor, m.file, offset, err));
        offset += pd_foreign_bytes(&tensor);
    }
    if (offset != bytes)
        PD_FAIL(err, PD_CORRUPT, "%s: takes %" PRIu64 " bytes where its header gives %" PRIu64, m.path, bytes, offset);
    if (m.ranks) PD_TRY(add_states(&m, err));
    return pd_catalog_text(catalog, "config.json") ? PD_OK : add_config(&m, err);
}

static bool llmc_recognizes(struct pd_vfs *vfs, const char *path)
{
    int32_t header[256];
    char model[PD_FORMATS_PATH_MAX];
    uint64_t bytes = 0;
    struct pd_stat stat;
    if (pd_formats_is_directory(vfs, path)) {
        if (newest_model(vfs, path, model, NULL) || !model[0]) return false;
        path = model;
    }
    if (pd_vfs_stat(vfs, path, &stat, NULL) || stat.type != PD_ENTRY_FILE || stat.bytes < HEADER_BYTES) return false;
    return read_header(vfs, path, header, &bytes, NULL) == PD_OK && header[0] == MODEL_MAGIC;
}

const struct pd_format pd_format_llmc = {
    .name = "llmc",
    .about = "llm.c: model_00000100.bin, with the state_*.bin beside it, or the directory of both",
    .holds_moments = true,
    .recognizes = llmc_recognizes,
    .read = llmc_read_checkpoint,
    .plan = pd_llmc_plan,
    .observe = pd_llmc_observe,
    .finish = pd_llmc_finish,
};
