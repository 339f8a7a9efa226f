#include "ckpt/tensor/tensor.h"

#include "ckpt/base/half.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    uint32_t bytes;
} dtypes[PD_DTYPE_COUNT] = {
    [PD_F32] = {"fp32", 4},         [PD_BF16] = {"bf16", 2},        [PD_F16] = {"fp16", 2},  [PD_F64] = {"fp64", 8},
    [PD_F8_E4M3] = {"fp8_e4m3", 1}, [PD_F8_E5M2] = {"fp8_e5m2", 1}, [PD_I8] = {"int8", 1},   [PD_I16] = {"int16", 2},
    [PD_I32] = {"int32", 4},        [PD_I64] = {"int64", 8},        [PD_U8] = {"uint8", 1},  [PD_U16] = {"uint16", 2},
    [PD_U32] = {"uint32", 4},       [PD_U64] = {"uint64", 8},       [PD_BOOL] = {"bool", 1}, [PD_C64] = {"complex64", 8},
    [PD_C128] = {"complex128", 16},
};

const char *pd_dtype_name(enum pd_dtype dtype)
{
    PD_CHECK((unsigned)dtype < PD_DTYPE_COUNT);
    return dtypes[dtype].name;
}

uint32_t pd_dtype_bytes(enum pd_dtype dtype)
{
    PD_CHECK((unsigned)dtype < PD_DTYPE_COUNT);
    return dtypes[dtype].bytes;
}

const struct pd_kind_row pd_kinds[PD_KIND_COUNT] = {
    [PD_PARAM] = {"param", PD_INITIAL_MODEL},
    [PD_EXP_AVG] = {"exp_avg", PD_INITIAL_ZERO},
    [PD_EXP_AVG_SQ] = {"exp_avg_sq", PD_INITIAL_ZERO},
};

const char *pd_kind_name(enum pd_kind kind)
{
    PD_CHECK((unsigned)kind < PD_KIND_COUNT);
    return pd_kinds[kind].name;
}

enum pd_dtype pd_tensor_dtype(const struct pd_tensor *tensor, enum pd_kind kind)
{
    return kind == PD_PARAM ? tensor->dtype : tensor->moments;
}

uint32_t pd_tensor_element_bytes(const struct pd_tensor *tensor, enum pd_kind kind)
{
    return pd_dtype_bytes(pd_tensor_dtype(tensor, kind));
}

uint32_t pd_tensor_file_dims(const struct pd_tensor *tensor)
{
    return tensor->ndim ? tensor->ndim : 1;
}

bool pd_tensor_has_kind(const struct pd_tensor *tensor, enum pd_kind kind)
{
    return !tensor->kinds || tensor->kinds >> kind & 1;
}

uint32_t pd_kinds_bytes(enum pd_dtype moments)
{
    return pd_dtype_bytes(PD_F32) + (PD_KIND_COUNT - 1) * pd_dtype_bytes(moments);
}

void pd_widen_bf16(void *to, const void *from, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        uint16_t narrow;
        memcpy(&narrow, (const char *)from + i * sizeof narrow, sizeof narrow);
        const float wide = pd_f32_from_bf16(narrow);
        memcpy((char *)to + i * sizeof wide, &wide, sizeof wide);
    }
}

void pd_narrow_bf16(void *to, const void *from, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        float wide;
        memcpy(&wide, (const char *)from + i * sizeof wide, sizeof wide);
        const uint16_t narrow = pd_bf16_from_f32(wide);
        memcpy((char *)to + i * sizeof narrow, &narrow, sizeof narrow);
    }
}

/* ---- boxes ---- */

static uint64_t product(const uint64_t counts[PD_TENSOR_DIMS_MAX])
{
    uint64_t result = 1;
    for (int d = 0; d < PD_TENSOR_DIMS_MAX; d++)
        result *= counts[d];
    return result;
}

uint64_t pd_tensor_elements(const struct pd_tensor *tensor)
{
    return product(tensor->shape);
}

uint64_t pd_box_elements(const struct pd_box *box)
{
    return product(box->count);
}

struct pd_box pd_box_whole(const struct pd_tensor *tensor)
{
    struct pd_box box = {{0}, {0}};
    memcpy(box.count, tensor->shape, sizeof box.count);
    return box;
}

struct pd_box pd_box_part(const struct pd_tensor *tensor, uint64_t row_begin, uint64_t row_end, uint64_t begin, uint64_t end)
{
    struct pd_box box = pd_box_whole(tensor);
    box.start[0] = row_begin, box.count[0] = row_end - row_begin;
    box.start[1] = begin, box.count[1] = end - begin;
    return box;
}

bool pd_box_intersect(const struct pd_box *a, const struct pd_box *b, struct pd_box *ret_box)
{
    struct pd_box common;
    for (int d = 0; d < PD_TENSOR_DIMS_MAX; d++) {
        uint64_t a_end = a->start[d] + a->count[d], b_end = b->start[d] + b->count[d];
        uint64_t start = a->start[d] > b->start[d] ? a->start[d] : b->start[d], end = a_end < b_end ? a_end : b_end;
        if (end <= start) return false;
        common.start[d] = start;
        common.count[d] = end - start;
    }
    *ret_box = common;
    return true;
}

uint64_t pd_box_offset(const struct pd_box *outer, const struct pd_box *inner)
{
    uint64_t offset = 0;
    for (int d = 0; d < PD_TENSOR_DIMS_MAX; d++)
        offset = offset * outer->count[d] + (inner->start[d] - outer->start[d]);
    return offset;
}

/* ---- tables ---- */

void pd_tensor_table_deinit(struct pd_tensor_table *table)
{
    if (!table) return;
    free(table->tensors);
    free(table->shapes);
    *table = (struct pd_tensor_table){0};
}

uint32_t pd_tensor_expert_of(const char *name)
{
    const char *at = strstr(name, ".experts.");
    uint32_t number = 0;
    if (!at) return 0;
    at += strlen(".experts.");
    if (*at < '0' || *at > '9') return 0;
    for (; *at >= '0' && *at <= '9' && number < UINT32_MAX / 16; at++)
        number = 10 * number + (uint32_t)(*at - '0');
    return *at == '.' ? number + 1 : 0;
}

int64_t pd_tensor_table_find(const struct pd_tensor_table *table, const char *name)
{
    for (uint32_t t = 0; t < table->count; t++)
        if (strcmp(table->tensors[t].name, name) == 0) return t;
    return -1;
}
