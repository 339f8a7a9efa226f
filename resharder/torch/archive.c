#include "resharder/torch/archive.h"

#include "ckpt/base/checked.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STORAGE_DEPTH_MAX 4 /* a parameter of a tensor subclass is nested */

static const struct {
    const char *dtype, *storage;
    enum pd_element element;
} types[] = {
    {"float32", "FloatStorage", PD_ELEMENT_F32},
    {"bfloat16", "BFloat16Storage", PD_ELEMENT_BF16},
    {"float16", "HalfStorage", PD_ELEMENT_F16},
    {"float64", "DoubleStorage", PD_ELEMENT_F64},
    {"int64", "LongStorage", PD_ELEMENT_I64},
    {"int32", "IntStorage", PD_ELEMENT_I32},
    {"int16", "ShortStorage", PD_ELEMENT_I16},
    {"int8", "CharStorage", PD_ELEMENT_I8},
    {"uint8", "ByteStorage", PD_ELEMENT_U8},
    {"bool", "BoolStorage", PD_ELEMENT_BOOL},
    {"complex64", "ComplexFloatStorage", PD_ELEMENT_C64},
    {"complex128", "ComplexDoubleStorage", PD_ELEMENT_C128},
    {"uint16", "uint16", PD_ELEMENT_U16},
    {"uint32", "uint32", PD_ELEMENT_U32},
    {"uint64", "uint64", PD_ELEMENT_U64},
    {"float8_e4m3fn", "float8_e4m3fn", PD_ELEMENT_F8_E4M3},
    {"float8_e5m2", "float8_e5m2", PD_ELEMENT_F8_E5M2},
};
enum { TYPES = sizeof types / sizeof *types };

bool pd_torch_element(const char *global, enum pd_element *ret_element)
{
    static const char module[] = "torch.";
    if (!global || strncmp(global, module, sizeof module - 1) != 0) return false;
    for (int i = 0; i < TYPES; i++) {
        const char *name = global + sizeof module - 1;
        if (strcmp(name, types[i].dtype) != 0 && strcmp(name, types[i].storage) != 0) continue;
        *ret_element = types[i].element;
        return true;
    }
    return false;
}

const char *pd_torch_dtype(enum pd_element element)
{
    int i = 0;
    while (i < TYPES && types[i].element != element)
        i++;
    PD_CHECK(i < TYPES);
    return types[i].dtype;
}

/* ---- the archive ---- */

static pd_status read_entry(struct pd_torch_archive *a, const struct pd_zip_entry *entry, uint64_t most, void **ret_text,
                            struct pd_error *err)
{
    uint64_t offset = 0;
    PD_TRY(pd_zip_data(a->file, a->path, &a->zip, entry, &offset, err));
    if (entry->bytes > most)
        PD_FAIL(err, PD_CORRUPT, "%s: %.*s takes %" PRIu64 " bytes; at most %" PRIu64 " are read", a->path,
                (int)entry->name_bytes, entry->name, entry->bytes, most);
    void *text = malloc(entry->bytes + 1);
    if (!text) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory", a->path);
    const pd_status st = pd_file_read(a->file, offset, text, entry->bytes, err);
    if (st)
        free(text);
    else
        *ret_text = text;
    return st;
}

static pd_status check_byte_order(struct pd_torch_archive *a, struct pd_error *err)
{
    const struct pd_zip_entry *entry = pd_zip_find(&a->zip, "byteorder");
    void *text = NULL;
    if (!entry) return PD_OK; /* before torch 2.0 */
    PD_TRY(read_entry(a, entry, 16, &text, err));
    const bool is_little = entry->bytes == 6 && memcmp(text, "little", 6) == 0;
    free(text);
    if (!is_little) PD_FAIL(err, PD_UNSUPPORTED, "%s: its numbers are not little-endian", a->path);
    return PD_OK;
}

static pd_status read_pickle(struct pd_torch_archive *a, struct pd_error *err)
{
    const struct pd_zip_entry *entry = pd_zip_find(&a->zip, "data.pkl");
    void *text = NULL;
    if (!entry) PD_FAIL(err, PD_CORRUPT, "%s: an archive without data.pkl; torch.save did not make it", a->path);
    PD_TRY(read_entry(a, entry, PD_PICKLE_BYTES_MAX, &text, err));
    const pd_status st = pd_pickle_parse(a->path, text, entry->bytes, &a->pickle, NULL, err);
    free(text);
    return st;
}

pd_status pd_torch_open(struct pd_file *file, const char *path, uint64_t begin, uint64_t end,
                        struct pd_torch_archive *ret_archive, struct pd_error *err)
{
    struct pd_torch_archive a = {.file = file, .path = path};
    PD_TRY(pd_zip_read(file, path, begin, end, &a.zip, err));
    pd_status st = check_byte_order(&a, err);
    if (!st) st = read_pickle(&a, err);
    if (st)
        pd_torch_close(&a);
    else
        *ret_archive = a;
    return st;
}

pd_status pd_torch_open_file(struct pd_vfs *vfs, const char *path, struct pd_torch_archive *ret_archive,
                             struct pd_error *err)
{
    struct pd_file *file = NULL;
    struct pd_stat stat;
    PD_TRY(pd_file_open(vfs, path, PD_OPEN_READ, &file, err));
    pd_status st = pd_file_stat(file, &stat, err);
    if (!st) st = pd_torch_open(file, path, 0, stat.bytes, ret_archive, err);
    if (st)
        pd_file_close_readonly(file);
    else
        ret_archive->owned = file;
    return st;
}

void pd_torch_close(struct pd_torch_archive *archive)
{
    pd_file_close_readonly(archive->owned);
    pd_pickle_free(archive->pickle);
    pd_zip_deinit(&archive->zip);
    *archive = (struct pd_torch_archive){0};
}

/* ---- tensors ---- */

/* Returns the arguments of its _rebuild_tensor_v2 call: storage, offset, sizes, strides, ...; NULL: not such a call. */
static const struct pd_pickle_node *tensor_arguments(const struct pd_pickle_node *node)
{
    for (int depth = 0; depth < STORAGE_DEPTH_MAX; depth++) {
        if (pd_pickle_is_call(node, "torch._utils._rebuild_tensor_v2")) return node->object->arguments;
        if (pd_pickle_is_call(node, "torch._tensor._rebuild_from_type_v2")) {
            const char *maker = pd_pickle_global(pd_pickle_argument(node, 0));
            const bool is_plain = maker && strcmp(maker, "torch._utils._rebuild_tensor_v2") == 0;
            return is_plain ? pd_pickle_argument(node, 2) : NULL;
        }
        if (!pd_pickle_is_call(node, "torch._utils._rebuild_parameter")) return NULL;
        node = pd_pickle_argument(node, 0);
    }
    return NULL;
}

/* Resolves ("storage", torch.FloatStorage, "0", "cpu", 10): the offset and number of its bytes. */
static pd_status find_storage(const struct pd_torch_archive *a, const char *name, const struct pd_pickle_node *node,
                              struct pd_torch_tensor *t, uint64_t *ret_bytes, struct pd_error *err)
{
    const struct pd_pickle_node *id = node && node->type == PD_PICKLE_PERSISTENT ? node->object->arguments : NULL;
    const char *key = pd_pickle_text(pd_pickle_at(id, 2)), *type = pd_pickle_global(pd_pickle_at(id, 1));
    char inner[128];
    if (!key || !type || strlen(key) > 64) PD_FAIL(err, PD_CORRUPT, "%s: %s has no storage", a->path, name);
    if (!pd_torch_element(type, &t->element))
        PD_FAIL(err, PD_UNSUPPORTED, "%s: %s is of type %s, which is not read", a->path, name, type);
    snprintf(inner, sizeof inner, "data/%s", key);
    const struct pd_zip_entry *entry = pd_zip_find(&a->zip, inner);
    if (!entry) PD_FAIL(err, PD_CORRUPT, "%s: %s lies in %s, and the archive has no such entry", a->path, name, inner);
    *ret_bytes = entry->bytes;
    return pd_zip_data(a->file, a->path, &a->zip, entry, &t->offset, err);
}

/* Elements from the first to the end of the last; false on overflow. */
static bool reach(const struct pd_torch_tensor *t, uint64_t *ret)
{
    uint64_t elements = 1;
    for (uint32_t d = 0; d < t->ndim; d++) {
        uint64_t step = 0;
        if (t->shape[d] == 0) return *ret = 0, true;
        if (!pd_checked_mul_u64(t->shape[d] - 1, t->stride[d], &step) || !pd_checked_add_u64(elements, step, &elements))
            return false;
    }
    *ret = elements;
    return true;
}

pd_status pd_torch_tensor(const struct pd_torch_archive *archive, const char *name, const struct pd_pickle_node *node,
                          struct pd_torch_tensor *ret_tensor, struct pd_error *err)
{
    const struct pd_pickle_node *arguments = tensor_arguments(node);
    struct pd_torch_tensor t = {0};
    uint32_t strides = 0;
    uint64_t first = 0, elements = 0, bytes = 0, end = 0;
    if (pd_pickle_is_call(node, "torch._utils._rebuild_tensor_v3")) /* used for fp8 and unsigned integers */
        PD_FAIL(err, PD_UNSUPPORTED, "%s: %s is of type %.40s, which is not read", archive->path, name,
                pd_pickle_global(pd_pickle_argument(node, 6)) ? pd_pickle_global(pd_pickle_argument(node, 6)) : "unknown");
    if (!arguments) PD_FAIL(err, PD_CORRUPT, "%s: %s is not a plain tensor", archive->path, name);
    if (!pd_pickle_is_u64(pd_pickle_at(arguments, 1), &first) ||
        !pd_pickle_is_sizes(pd_pickle_at(arguments, 2), PD_FOREIGN_DIMS_MAX, t.shape, &t.ndim) ||
        !pd_pickle_is_sizes(pd_pickle_at(arguments, 3), PD_FOREIGN_DIMS_MAX, t.stride, &strides) || strides != t.ndim)
        PD_FAIL(err, PD_CORRUPT, "%s: %s has no sizes and strides of at most %d dimensions", archive->path, name,
                PD_FOREIGN_DIMS_MAX);
    for (uint32_t d = 0; d < t.ndim; d++)
        if (t.shape[d] > 1 && !t.stride[d])
            PD_FAIL(err, PD_UNSUPPORTED, "%s: %s repeats its elements, as torch's expand does; save its contiguous()",
                    archive->path, name);
    for (uint32_t d = t.ndim; d < PD_FOREIGN_DIMS_MAX; d++)
        t.shape[d] = 1;
    PD_TRY(find_storage(archive, name, pd_pickle_at(arguments, 0), &t, &bytes, err));
    const uint64_t size = pd_elements[t.element].block_bytes;
    if (!reach(&t, &elements) || !pd_checked_add_u64(first, elements, &end) || end > bytes / size)
        PD_FAIL(err, PD_CORRUPT, "%s: %s reaches beyond its storage of %" PRIu64 " bytes", archive->path, name, bytes);
    t.offset += first * size;
    *ret_tensor = t;
    return PD_OK;
}

struct pd_piece pd_torch_piece(const struct pd_torch_tensor *tensor, uint32_t file)
{
    struct pd_piece piece = {.file = file, .offset = tensor->offset};
    memcpy(piece.count, tensor->shape, sizeof piece.count);
    memcpy(piece.stride, tensor->stride, sizeof piece.stride);
    return piece;
}

static double archive_number_of(enum pd_element element, const unsigned char *text)
{
    float value = 0;
    int64_t integer = 0;
    if (element == PD_ELEMENT_I64) {
        memcpy(&integer, text, sizeof integer); /* a float would round above 2^24 */
        return (double)integer;
    }
    pd_elements[element].to_f32(text, 1, &value);
    return value;
}

bool pd_torch_is_count(double number, uint64_t *ret)
{
    if (!(number >= 0 && number < 0x1p63)) return false;
    *ret = (uint64_t)number;
    return true;
}

pd_status pd_torch_number(const struct pd_torch_archive *archive, const char *name, const struct pd_pickle_node *node,
                          double *ret, struct pd_error *err)
{
    struct pd_torch_tensor t;
    unsigned char text[8];
    if (pd_pickle_is_number(node, ret)) return PD_OK;
    PD_TRY(pd_torch_tensor(archive, name, node, &t, err));
    for (uint32_t d = 0; d < t.ndim; d++)
        if (t.shape[d] != 1) PD_FAIL(err, PD_CORRUPT, "%s: %s is not a single number", archive->path, name);
    PD_TRY(pd_file_read(archive->file, t.offset, text, pd_elements[t.element].block_bytes, err));
    *ret = archive_number_of(t.element, text);
    return PD_OK;
}
