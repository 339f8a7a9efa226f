/* A tensor is: dimensions, type, a byte for each size, how many pieces; a piece is: flags, a byte for each start and count (and
 * stride). Where finish agrees, elements are counted one by one. */
#include "resharder/catalog/catalog.h"
#include "tests/fuzz/target.h"

#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES = 4096, ELEMENTS_MAX = 1 << 16 };

struct input {
    const uint8_t *data;
    size_t bytes;
};

static uint8_t take(struct input *in)
{
    if (!in->bytes) return 0;
    in->bytes--;
    return *in->data++;
}

/* Mostly small, now and then beyond anything. */
static uint64_t take_size(struct input *in)
{
    const uint8_t byte = take(in);
    return byte == 255 ? UINT64_MAX - take(in) : byte == 254 ? UINT64_C(1) << (take(in) % 64) : byte % 40;
}

static pd_status add_tensor(struct pd_catalog *c, struct input *in, uint8_t number, struct pd_error *err)
{
    char name[2] = {(char)('a' + number % 26), 0};
    const uint8_t head = take(in);
    uint32_t t;
    struct pd_foreign_tensor tensor = {.name = name,
                                       .kind = (enum pd_kind)(head / 16 % PD_KIND_COUNT),
                                       .element = (enum pd_element)(take(in) % PD_ELEMENT_COUNT),
                                       .ndim = head % (PD_FOREIGN_DIMS_MAX + 2)};
    for (uint32_t d = 0; d < tensor.ndim && d < PD_FOREIGN_DIMS_MAX; d++)
        tensor.shape[d] = take_size(in);
    PD_TRY(pd_catalog_add_tensor(c, &tensor, &t, err));
    for (unsigned pieces = take(in) % 16; pieces > 0; pieces--) {
        const uint8_t flags = take(in);
        struct pd_piece piece = {.offset = take_size(in), .is_range = flags & 1};
        for (uint32_t d = 0; d < (piece.is_range ? 1 : tensor.ndim); d++) {
            piece.start[d] = take_size(in);
            piece.count[d] = take_size(in);
            if (flags & 2) piece.stride[d] = take_size(in);
        }
        PD_TRY(pd_catalog_add_piece(c, t, &piece, err));
    }
    return PD_OK;
}

static bool has(const struct pd_foreign_tensor *tensor, const struct pd_piece *piece, uint64_t element)
{
    if (piece->is_range) return element >= piece->start[0] && element - piece->start[0] < piece->count[0];
    for (uint32_t d = tensor->ndim; d-- > 0; element /= tensor->shape[d]) {
        const uint64_t index = element % tensor->shape[d];
        if (index < piece->start[d] || index - piece->start[d] >= piece->count[d]) return false;
    }
    return true;
}

static void count_elements(const struct pd_catalog *c, const struct pd_foreign_tensor *tensor)
{
    const uint64_t elements = pd_foreign_elements(tensor);
    if (elements > ELEMENTS_MAX) return;
    for (uint64_t e = 0; e < elements; e++) {
        unsigned pieces = 0;
        for (uint64_t p = 0; p < tensor->piece_count; p++)
            pieces += has(tensor, &c->pieces[tensor->piece_begin + p], e);
        if (pieces != 1) abort();
    }
    for (uint64_t p = 0; p < tensor->piece_count; p++) {
        const struct pd_piece *piece = &c->pieces[tensor->piece_begin + p];
        if (piece->offset > FILE_BYTES || pd_piece_bytes(tensor, piece) > FILE_BYTES - piece->offset) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct input in = {data, bytes};
    struct pd_catalog catalog;
    struct pd_error err = {0};
    pd_catalog_init(&catalog, "input");
    pd_status st = pd_catalog_add_file(&catalog, "input", FILE_BYTES, NULL, &err);
    for (uint8_t number = 0; !st && in.bytes && number < 30; number++)
        st = add_tensor(&catalog, &in, number, &err);
    if (!st) st = pd_catalog_finish(&catalog, &err);
    if (st && !err.message[0]) abort();
    for (uint32_t t = 0; !st && t < catalog.tensor_count; t++)
        count_elements(&catalog, &catalog.tensors[t]);
    pd_catalog_deinit(&catalog);
    return 0;
}
