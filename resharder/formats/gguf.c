/* One file: "GGUF", version, counts, then metadata (key, type, value), then tensors (name, dimensions innermost first, type,
 * offset), then data on multiples of general.alignment.
 * Source: ggml/docs/gguf.md; names of keys: gguf-py/gguf/constants.py. */
#include "resharder/formats/gguf.h"

#include "ckpt/base/checked.h"
#include "ckpt/base/json.h"
#include "resharder/catalog/model_directory.h"
#include "resharder/formats/gguf_file.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAIRS_MAX 65536u
#define TEXT_MAX PD_CATALOG_TEXT_MAX /* most bytes of one string */
#define ALIGNMENT_MAX (1u << 20)

static const unsigned type_bytes[PD_GGUF_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

/* ---- the file, front to back ---- */

static pd_status gguf_take(struct gguf *g, void *ret, uint64_t bytes, struct pd_error *err)
{
    unsigned char *out = ret;
    if (!pd_checked_range(g->at, bytes, g->bytes))
        PD_FAIL(err, PD_CORRUPT, "%s: ends at byte %" PRIu64 ", where %" PRIu64 " more are wanted at %" PRIu64, g->path,
                g->bytes, bytes, g->at);
    while (bytes) {
        if (g->at < g->window_begin || g->at >= g->window_end) {
            const uint64_t left = g->bytes - g->at, count = left < sizeof g->window ? left : sizeof g->window;
            PD_TRY(pd_file_read(g->file, g->at, g->window, count, err));
            g->window_begin = g->at;
            g->window_end = g->at + count;
        }
        const uint64_t there = g->window_end - g->at, now = there < bytes ? there : bytes;
        memcpy(out, g->window + (g->at - g->window_begin), now);
        g->at += now;
        out += now;
        bytes -= now;
    }
    return PD_OK;
}

static pd_status take_u32(struct gguf *g, uint32_t *ret, struct pd_error *err)
{
    return gguf_take(g, ret, sizeof *ret, err);
}

static pd_status take_u64(struct gguf *g, uint64_t *ret, struct pd_error *err)
{
    return gguf_take(g, ret, sizeof *ret, err);
}

static pd_status gguf_take_text(struct gguf *g, struct pd_error *err)
{
    uint64_t bytes = 0;
    PD_TRY(take_u64(g, &bytes, err));
    if (bytes > TEXT_MAX || bytes > g->bytes - g->at)
        PD_FAIL(err, PD_CORRUPT,
                "%s: a text of %" PRIu64 " bytes begins at byte %" PRIu64 " of %" PRIu64
                ": the file is cut short or damaged",
                g->path, bytes, g->at, g->bytes);
    if (bytes + 1 > g->text_capacity) {
        char *fresh = realloc(g->text, 2 * bytes + 64);
        if (!fresh) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory for a text", g->path);
        g->text = fresh;
        g->text_capacity = 2 * bytes + 64;
    }
    PD_TRY(gguf_take(g, g->text, bytes, err));
    g->text[bytes] = '\0';
    g->text_bytes = bytes;
    return PD_OK;
}

static pd_status take_number(struct gguf *g, enum pd_gguf_type type, double *ret, struct pd_error *err)
{
    unsigned char text[8] = {0};
    PD_TRY(gguf_take(g, text, type_bytes[type], err));
    uint64_t bits = 0;
    float single;
    for (unsigned i = 0; i < type_bytes[type]; i++)
        bits |= (uint64_t)text[i] << (8 * i);
    memcpy(&single, text, sizeof single);
    switch (type) {
    case PD_GGUF_I8:
        *ret = (int8_t)bits;
        break;
    case PD_GGUF_I16:
        *ret = (int16_t)bits;
        break;
    case PD_GGUF_I32:
        *ret = (int32_t)bits;
        break;
    case PD_GGUF_I64:
        *ret = (double)(int64_t)bits;
        break;
    case PD_GGUF_F32:
        *ret = (double)single;
        break;
    case PD_GGUF_F64:
        memcpy(ret, text, sizeof *ret);
        break;
    default:
        *ret = (double)bits;
        break;
    }
    return PD_OK;
}

/* ---- metadata ---- */

static pd_status put_value(struct gguf *g, const char *key, enum pd_gguf_type type, struct pd_error *err)
{
    g->number = -1;
    if (type == PD_GGUF_TEXT) {
        PD_TRY(gguf_take_text(g, err));
        pd_json_string(&g->tokenizer, key, g->text);
        return PD_OK;
    }
    if (type == PD_GGUF_U64 || type == PD_GGUF_I64) { /* a double cannot hold all of them */
        uint64_t whole = 0;
        PD_TRY(take_u64(g, &whole, err));
        if (type == PD_GGUF_U64)
            pd_json_u64(&g->tokenizer, key, whole);
        else
            pd_json_i64(&g->tokenizer, key, (int64_t)whole);
        return PD_OK;
    }
    PD_TRY(take_number(g, type, &g->number, err));
    if (type == PD_GGUF_BOOL)
        pd_json_bool(&g->tokenizer, key, g->number != 0);
    else if (type == PD_GGUF_F32 || type == PD_GGUF_F64)
        pd_json_double(&g->tokenizer, key, g->number);
    else
        pd_json_i64(&g->tokenizer, key, (int64_t)g->number);
    return PD_OK;
}

static pd_status check_type(const struct gguf *g, uint32_t type, struct pd_error *err)
{
    if (type >= PD_GGUF_TYPES) PD_FAIL(err, PD_CORRUPT, "%s: a value of type %u before byte %" PRIu64, g->path, type, g->at);
    return PD_OK;
}

static pd_status take_numbers(struct gguf *g, enum pd_gguf_type type, uint64_t count, struct pair *ret, struct pd_error *err)
{
    const uint64_t end = g->at + count * type_bytes[type];
    bool is_even = true;
    for (uint64_t i = 0; i < count && is_even; i++) {
        double number = 0;
        PD_TRY(take_number(g, type, &number, err));
        if (!i) ret->first = number;
        is_even = number == ret->first;
    }
    g->at = end;
    const bool is_number = count && type != PD_GGUF_BOOL;
    snprintf(ret->text, sizeof ret->text, "%s",
             !is_number ? "is a list, not a number"
             : is_even  ? ""
                        : "differs from layer to layer");
    return PD_OK;
}

/* Reads an array: keeps every element for a tokenizer, else only what `pair` holds.   pair  NULL: a tokenizer's */
static pd_status take_array(struct gguf *g, const char *tokenizer_key, struct pair *pair, struct pd_error *err)
{
    uint32_t type = 0;
    uint64_t count = 0;
    PD_TRY(take_u32(g, &type, err));
    PD_TRY(check_type(g, type, err));
    PD_TRY(take_u64(g, &count, err));
    if (type == PD_GGUF_ARRAY) PD_FAIL(err, PD_UNSUPPORTED, "%s: an array of arrays at byte %" PRIu64, g->path, g->at);
    if (count > (g->bytes - g->at) / (type == PD_GGUF_TEXT ? 8 : type_bytes[type]))
        PD_FAIL(err, PD_CORRUPT, "%s: an array of %" PRIu64 " values at byte %" PRIu64 ", and the file ends before", g->path,
                count, g->at);
    if (tokenizer_key) {
        pd_json_array_begin(&g->tokenizer, tokenizer_key);
        g->has_tokenizer = true;
    }
    if (pair) {
        pair->number = (double)count;
        if (type != PD_GGUF_TEXT) return take_numbers(g, (enum pd_gguf_type)type, count, pair, err);
        snprintf(pair->text, sizeof pair->text, "is a list of texts");
    }
    for (uint64_t i = 0; i < count; i++)
        PD_TRY(tokenizer_key ? put_value(g, NULL, (enum pd_gguf_type)type, err) : gguf_take_text(g, err));
    if (tokenizer_key) pd_json_array_end(&g->tokenizer);
    return PD_OK;
}

/* True for keys that describe the file's origin, which llama.cpp does not compute with. */
static bool is_about_file(const char *key)
{
    static const char *const about[] = {"general.", "quantize.", "mradermacher.", "unsloth."}, *const used[] = {
                                                                                                   "general.architecture",
                                                                                                   "general.alignment",
                                                                                                   "general.type"};
    for (size_t i = 0; i < sizeof used / sizeof *used; i++)
        if (strcmp(key, used[i]) == 0) return false;
    for (size_t i = 0; i < sizeof about / sizeof *about; i++)
        if (strncmp(key, about[i], strlen(about[i])) == 0) return true;
    return false;
}

static pd_status keep_pair(struct gguf *g, const char *key, enum pd_gguf_type type, struct pd_error *err)
{
    struct pair pair = {.type = type};
    snprintf(pair.key, sizeof pair.key, "%s", key);
    if (type == PD_GGUF_TEXT) {
        PD_TRY(gguf_take_text(g, err));
        snprintf(pair.text, sizeof pair.text, "%s", g->text);
    } else if (type == PD_GGUF_ARRAY) {
        PD_TRY(take_array(g, NULL, &pair, err));
    } else {
        PD_TRY(take_number(g, type, &pair.number, err));
    }
    if (is_about_file(key)) return PD_OK;
    if (g->pair_count == KEYS_MAX)
        PD_FAIL(err, PD_UNSUPPORTED, "%s: more than %u metadata keys; %s is one of them", g->path, KEYS_MAX, key);
    g->pairs[g->pair_count++] = pair;
    return PD_OK;
}

/* The configuration also names the tokens that begin and end a text; a file without a tokenizer may have these alone. */
static pd_status take_tokenizer(struct gguf *g, const char *key, enum pd_gguf_type type, struct pd_error *err)
{
    double *id = !strcmp(key, "ggml.bos_token_id") ? &g->bos : !strcmp(key, "ggml.eos_token_id") ? &g->eos : NULL;
    PD_TRY(put_value(g, key, type, err));
    if (id)
        *id = g->number;
    else
        g->has_tokenizer = true;
    return PD_OK;
}

static pd_status take_pair(struct gguf *g, struct pd_error *err)
{
    static const char tokenizer[] = "tokenizer.";
    char key[256];
    uint32_t type = 0;
    PD_TRY(gguf_take_text(g, err));
    if (g->text_bytes >= sizeof key || strlen(g->text) != g->text_bytes)
        PD_FAIL(err, PD_CORRUPT, "%s: a key of %" PRIu64 " bytes before byte %" PRIu64, g->path, g->text_bytes, g->at);
    memcpy(key, g->text, g->text_bytes + 1);
    const char *inner = strncmp(key, tokenizer, sizeof tokenizer - 1) == 0 ? key + sizeof tokenizer - 1 : NULL;
    PD_TRY(take_u32(g, &type, err));
    PD_TRY(check_type(g, type, err));
    if (inner && type == PD_GGUF_ARRAY) return take_array(g, inner, NULL, err);
    return inner ? take_tokenizer(g, inner, (enum pd_gguf_type)type, err) : keep_pair(g, key, (enum pd_gguf_type)type, err);
}

/* ---- tensors ---- */

static bool element_of(uint32_t type, enum pd_element *ret)
{
    for (uint32_t i = 0; i < pd_gguf_element_count; i++)
        if (pd_gguf_elements[i].type == type) return *ret = pd_gguf_elements[i].element, true;
    return false;
}

/* Reads a tensor's row, with its offset from the data's begin. *ret_type ggml's if it is not supported, else -1 */
static pd_status take_tensor(struct gguf *g, struct pd_foreign_tensor *t, uint64_t *ret_offset, int64_t *ret_type,
                             struct pd_error *err)
{
    uint32_t dims = 0, type = 0;
    PD_TRY(gguf_take_text(g, err));
    if (g->text_bytes == 0 || g->text_bytes >= PD_FOREIGN_NAME_MAX || strlen(g->text) != g->text_bytes)
        PD_FAIL(err, PD_CORRUPT, "%s: a tensor's name of %" PRIu64 " bytes before byte %" PRIu64, g->path, g->text_bytes,
                g->at);
    PD_TRY(take_u32(g, &dims, err));
    if (dims > 4) PD_FAIL(err, PD_CORRUPT, "%s: %s has %u dimensions; there are 4 at most", g->path, g->text, dims);
    *t = (struct pd_foreign_tensor){.name = g->text, .ndim = dims};
    for (uint32_t d = 0; d < PD_FOREIGN_DIMS_MAX; d++)
        t->shape[d] = 1;
    for (uint32_t d = dims; d-- > 0;)
        PD_TRY(take_u64(g, &t->shape[d], err));
    PD_TRY(take_u32(g, &type, err));
    *ret_type = element_of(type, &t->element) ? -1 : (int64_t)type;
    return take_u64(g, ret_offset, err);
}

static pd_status gguf_add_tensor(struct gguf *g, uint32_t file, uint64_t data, struct pd_error *err)
{
    struct pd_foreign_tensor t;
    uint64_t offset = 0;
    int64_t unread = -1;
    char name[32];
    PD_TRY(take_tensor(g, &t, &offset, &unread, err));
    snprintf(name, sizeof name, "%" PRId64 " of ggml", unread);
    if (unread >= 0) return pd_catalog_add_unread(g->catalog, t.name, name, err);
    if (offset % g->alignment || !pd_checked_add_u64(offset, data, &offset))
        PD_FAIL(err, PD_CORRUPT, "%s: %s lies at %" PRIu64 " of the data, which is not a multiple of %u", g->path, t.name,
                offset, g->alignment);
    if (strcmp(t.name, PD_GGUF_ROPE_FACTORS) == 0 && t.element == PD_ELEMENT_F32 && t.shape[0] <= PD_GGUF_ROPE_FACTORS_MAX) {
        PD_TRY(pd_file_read(g->file, offset, g->rope_factors, t.shape[0] * sizeof *g->rope_factors, err));
        g->rope_count = t.shape[0];
    }
    const pd_status st = pd_catalog_add_dense(g->catalog, &t, file, offset, err);
    return st ? pd_error_context(err, st, "%s", g->path) : PD_OK;
}

/* Reads the rows twice, since the data begins after the last one. */
static pd_status take_tensors(struct gguf *g, uint32_t file, uint64_t count, struct pd_error *err)
{
    const uint64_t rows = g->at;
    struct pd_foreign_tensor t;
    uint64_t data = 0;
    int64_t unread;
    for (uint64_t i = 0; i < count; i++)
        PD_TRY(take_tensor(g, &t, &data, &unread, err));
    data = pd_round_up(g->at, g->alignment);
    g->at = rows;
    for (uint64_t i = 0; i < count; i++)
        PD_TRY(gguf_add_tensor(g, file, data, err));
    return PD_OK;
}

/* ---- the whole ---- */

static pd_status gguf_read_all(struct gguf *g, struct pd_error *err)
{
    char magic[4];
    uint64_t tensors = 0, pairs = 0;
    uint32_t file = 0;
    PD_TRY(pd_catalog_add_file(g->catalog, g->path, g->bytes, &file, err));
    PD_TRY(gguf_take(g, magic, sizeof magic, err));
    PD_TRY(take_u32(g, &g->version, err));
    if (memcmp(magic, "GGUF", 4) != 0) PD_FAIL(err, PD_CORRUPT, "%s: does not begin with GGUF", g->path);
    if (g->version < 2 || g->version > 3)
        PD_FAIL(err, PD_UNSUPPORTED, "%s: version %u of GGUF; perdure reads 2 and 3, little-endian", g->path, g->version);
    PD_TRY(take_u64(g, &tensors, err));
    PD_TRY(take_u64(g, &pairs, err));
    if (tensors > PD_CATALOG_TENSORS_MAX || pairs > PAIRS_MAX)
        PD_FAIL(err, PD_CORRUPT, "%s: %" PRIu64 " tensors and %" PRIu64 " pairs of metadata; at most %u and %u are read",
                g->path, tensors, pairs, PD_CATALOG_TENSORS_MAX, PAIRS_MAX);
    const char *text = NULL;
    size_t bytes = 0;
    pd_json_object_begin(&g->tokenizer, NULL);
    for (uint64_t i = 0; i < pairs; i++)
        PD_TRY(take_pair(g, err));
    PD_TRY(pd_json_writer_finish(&g->tokenizer, &text, &bytes, err));
    const struct pair *alignment = gguf_find_whole(g, "general.alignment");
    g->alignment = PD_GGUF_ALIGNMENT;
    if (alignment) {
        const double a = alignment->number;
        if (!(a >= 1 && a <= ALIGNMENT_MAX) || ((uint32_t)a & ((uint32_t)a - 1)))
            PD_FAIL(err, PD_CORRUPT, "%s: general.alignment is %g; it is a power of two up to %u", g->path, a,
                    ALIGNMENT_MAX);
        g->alignment = (uint32_t)a;
    }
    PD_TRY(g->has_tokenizer ? pd_catalog_add_text(g->catalog, "tokenizer.gguf", text, bytes, err) : PD_OK);
    return take_tensors(g, file, tensors, err);
}

static pd_status read_file(struct pd_vfs *vfs, const char *path, struct gguf *g, struct pd_error *err)
{
    struct pd_stat stat;
    g->path = path;
    pd_status st = pd_file_open(vfs, path, PD_OPEN_READ, &g->file, err);
    if (st == PD_NOT_FOUND) PD_FAIL(err, st, "%s does not exist: copy all parts of the model into one directory", path);
    if (st) return st;
    st = pd_file_stat(g->file, &stat, err);
    g->bytes = st ? 0 : stat.bytes;
    if (!st) st = gguf_read_all(g, err);
    pd_file_close_readonly(g->file);
    g->file = NULL;
    return st;
}

static struct gguf *gguf_new(struct pd_catalog *catalog)
{
    struct gguf *g = calloc(1, sizeof *g);
    if (!g) return NULL;
    g->catalog = catalog;
    g->bos = g->eos = -1;
    pd_json_writer_init(&g->tokenizer, 0);
    return g;
}

static void gguf_free(struct gguf *g)
{
    if (!g) return;
    pd_json_writer_deinit(&g->tokenizer);
    free(g->text);
    free(g);
}

/* Reads the tensors of one part into the common catalog; everything else comes from the first part. */
static pd_status read_part(struct pd_vfs *vfs, const char *path, struct gguf *first, struct pd_error *err)
{
    struct gguf *g = gguf_new(first->catalog);
    if (!g) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory", path);
    const pd_status st = read_file(vfs, path, g, err);
    if (!st && g->rope_count) {
        first->rope_count = g->rope_count;
        memcpy(first->rope_factors, g->rope_factors, sizeof g->rope_factors);
    }
    gguf_free(g);
    return st;
}

static pd_status read_parts(struct pd_vfs *vfs, const char *path, struct gguf *g, struct pd_error *err)
{
    size_t bytes = 0;
    char name[PD_FORMATS_PATH_MAX];
    const uint32_t count = pd_gguf_parts_of(path, &bytes);
    snprintf(name, sizeof name, "%s", path);
    if (count) snprintf(name, sizeof name, "%.*s-00001-of-%05u.gguf", (int)bytes, path, count);
    PD_TRY(read_file(vfs, name, g, err));
    const struct pair *parts = gguf_find_whole(g, "split.count");
    if (!count && gguf_number_of(parts, 0) > 1)
        PD_FAIL(err, PD_INVALID,
                "%s is one of %g parts (split.count), which are found by names that end as llama.cpp writes them: "
                "-00001-of-%05.0f.gguf",
                path, gguf_number_of(parts, 0), gguf_number_of(parts, 0));
    for (uint32_t part = 2; part <= count; part++) {
        snprintf(name, sizeof name, "%.*s-%05u-of-%05u.gguf", (int)bytes, path, part, count);
        PD_TRY(read_part(vfs, name, g, err));
    }
    g->path = path;
    struct pd_json_writer w;
    pd_json_writer_init(&w, 2);
    return pd_catalog_add_json(g->catalog, "config.json", &w, gguf_put_config(g, &w, err), err);
}

static pd_status gguf_read_checkpoint(struct pd_vfs *vfs, const char *path, struct pd_catalog *catalog, struct pd_error *err)
{
    char inner[PD_FORMATS_PATH_MAX];
    if (pd_formats_is_directory(vfs, path)) {
        PD_TRY(pd_gguf_find(vfs, path, inner, err));
        path = inner;
    }
    struct gguf *g = gguf_new(catalog);
    if (!g) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory", path);
    const pd_status st = read_parts(vfs, path, g, err);
    gguf_free(g);
    return st;
}

static bool gguf_recognizes(struct pd_vfs *vfs, const char *path)
{
    char magic[4] = "", inner[PD_FORMATS_PATH_MAX];
    if (pd_formats_is_directory(vfs, path)) {
        const pd_status st = pd_gguf_find(vfs, path, inner, NULL);
        if (st) return st == PD_INVALID; /* several: reading names them */
        path = inner;
    }
    struct pd_stat stat;
    struct pd_file *file = NULL;
    if (pd_vfs_stat(vfs, path, &stat, NULL) || stat.type != PD_ENTRY_FILE || stat.bytes < sizeof magic) return false;
    if (pd_file_open(vfs, path, PD_OPEN_READ, &file, NULL)) return false;
    const bool is_it = pd_file_read(file, 0, magic, sizeof magic, NULL) == PD_OK && memcmp(magic, "GGUF", 4) == 0;
    pd_file_close_readonly(file);
    return is_it;
}

const struct pd_format pd_format_gguf = {
    .name = "gguf",
    .about = "llama.cpp: one file, one of its parts, or the directory of one model",
    .recognizes = gguf_recognizes,
    .read = gguf_read_checkpoint,
    .file = "model.gguf",
    .plan = pd_gguf_plan,
    .observe = pd_format_observe_nothing,
    .finish = pd_gguf_finish,
};
